"""A suite of another tool as it is carried over: scenarios, files, and what is left out."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ModelParams
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.core.yaml.reader import MAX_BYTES
from kestrel_lab.core.yaml.writer import entry_text
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, Table

MOST_FILES: Final = 20_000_000
"""Bytes of files that come with a suite, all together."""
ALWAYS: Final[dict[str, Json]] = {"answer_matches": ""}
"""A check that every answer passes: what others call a test without an assertion."""
_NOTHING: Final[tuple[Json, ...]] = (None, "", [], {})
_HEADINGS: Final = ["where", "not carried over", "nearest way"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NotCarried:
    """Something that a suite of another tool says and ours does not."""

    where: str
    what: str
    way: str
    """The nearest way to the same."""


@dataclass(kw_only=True, slots=True)
class SuiteDraft:
    """A suite as it is being read; readers fill it in."""

    source: Path
    tool: str
    """Whose suite it is."""
    suite: dict[str, Json] = field(default_factory=dict)
    """The keys of the suite file but for its scenarios."""
    scenarios: list[tuple[str, dict[str, Json]]] = field(default_factory=list)
    """Each behind what it is from, for a comment."""
    missing: list[NotCarried] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """Files that the suite needs, by their path below the folder `FOLDER` of the suite, see `folder`."""
    folder: str = "imported"
    """The folder of `files` beside the suite; its final name is known when the suite is written."""

    def lost(self, where: str, what: str, way: str) -> None:
        """Note what is not carried over; the same at many places once for each."""
        self.missing.append(NotCarried(where=where, what=what, way=way))

    def add(self, origin: str, scenario: Mapping[str, Json]) -> None:
        """Add a scenario; keys without a value are left out, and an id that is taken gets a number."""
        kept: dict[str, Json] = {
            key: value for key, value in scenario.items() if value not in (None, "", [], {}, ())
        }
        taken = {one["id"] for _, one in self.scenarios}
        name = slug(str(kept["id"]))
        kept["id"] = next(
            found
            for number in range(1, len(taken) + 2)
            if (found := name if number == 1 else f"{name}-{number}") not in taken
        )
        if not kept.get("checks") and not kept.get("choices"):
            # As it is there: a remark and not a loss.
            kept["checks"] = [dict(ALWAYS)]
            origin += "; it checks nothing there either, every answer passes"
        self.scenarios.append((origin, kept))

    def text(self, list_name: str) -> str:
        """Return the suite file; `list_name` is the file of what was not carried over."""
        rest = f"; what was not carried over is in {list_name}" if self.missing else ""
        lines = [f"# From {self.tool}: {one_line(self.source.name, 80)}{rest}."]
        lines += [entry_text(key, value).rstrip("\n") for key, value in self.suite.items() if value != {}]
        lines.append("scenarios:")
        for origin, scenario in self.scenarios:
            lines.append(f"  # {one_line(origin, 100)}")
            body = "".join(_entry(key, value) for key, value in scenario.items()).rstrip("\n")
            lines.append(f"  - {body.removeprefix('    ')}")
        return "\n".join(lines) + "\n"

    def markdown(self, suite_name: str) -> str:
        """Return the list of what was not carried over."""
        rows = [f"| {_cell(one.where)} | {_cell(one.what)} | {_cell(one.way)} |" for one in self.missing]
        return "\n".join(
            [
                f"# Not carried over from {self.source.name}",
                "",
                f"Scenarios of {self.tool} in `{suite_name}`: {len(self.scenarios)}.",
                "",
                f"| {' | '.join(_HEADINGS)} |",
                "| --- | --- | --- |",
                *rows,
                "",
            ]
        )

    def write(self, out: Path) -> ImportedSuite:
        """Write the suite, its files and the list beside it, all or nothing.

        Raises `UsageError` where one of them is there already, where there is no scenario, and where the
        suite would not load: a mistake of this importer, said with what is wrong.
        """
        if not self.scenarios:
            # What comes last is nearest to a scenario: the data, after the settings.
            last = {(one.what, one.way): one.where for one in reversed(self.missing)}
            reasons = "; ".join(f"{where}: {what} ({way})" for (what, way), where in [*last.items()][:3])
            raise UsageError(
                f"{self.source} has no scenario that can be carried over{': ' if reasons else ''}{reasons}"
            )
        listed = out.with_name(f"{out.stem}.not-carried.md")
        folder = out.with_name(f"{out.stem}_{self.folder}")
        targets = [out, *([listed] if self.missing else []), *([folder] if self.files else [])]
        if there := next((one for one in targets if one.exists()), None):
            raise UsageError(f"{there} is there already: name another --out, or remove it first")
        out.parent.mkdir(parents=True, exist_ok=True)
        text = self.text(listed.name).replace(FOLDER, folder.name)
        if len(text.encode("utf-8", "replace")) > MAX_BYTES:
            raise UsageError(
                f"its {format_count(len(self.scenarios), 'scenario')} take more than {MAX_BYTES:,} bytes, "
                "as a suite file cannot: leave out a part of its tests or prompts, and import that by itself"
            )
        # In the same folder, since a file is moved at once only within one file system.
        made = Path(tempfile.mkdtemp(prefix=".import-", dir=out.parent))
        try:
            (made / out.name).write_text(text, encoding="utf-8", newline="")
            try:
                load_suite(made / out.name)
            except UsageError as error:
                if self._leave_out(str(error)):
                    return self.write(out)
                raise
            (made / listed.name).write_text(self.markdown(out.name), encoding="utf-8", newline="")
            for name, content in self.files.items():
                path = made / folder.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            # The suite is moved last: so a reader who finds it finds all of it.
            for target in reversed(targets):
                (made / target.name).replace(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return ImportedSuite(draft=self, path=out, listed=listed if self.missing else None)

    def _leave_out(self, problems: str) -> bool:
        """Leave out the scenarios that a suite cannot have, and say why: rows of others are of any form.

        Returns whether there are any, and others beside them.
        """
        found = {int(place): why for place, why in re.findall(r"scenarios\[(\d+)\]\.?(.*)", problems)}
        if not found or len(found) == len(self.scenarios):
            return False
        for place in sorted(found, reverse=True):
            origin, scenario = self.scenarios.pop(place)
            self.lost(origin, f"the scenario {scenario['id']}: {found[place]}", "write it as a scenario")
        return True


FOLDER: Final = "IMPORTED-FILES"
"""Stands in a draft for the folder of its files."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ImportedSuite(PartsView):
    """A suite that was written, and what was not carried over."""

    draft: SuiteDraft
    path: Path
    listed: Path | None
    """The file that lists what was not carried over; `None` where all was."""

    @property
    def headline(self) -> str:
        """How much was carried over, and to where."""
        number, lost = len(self.draft.scenarios), len(self.draft.missing)
        left = f"{lost} thing{'s' if lost != 1 else ''} not carried over" if lost else "all carried over"
        carried = f"{number} scenario{'s' if number != 1 else ''} from {self.draft.tool}"
        return f"{shown_path(self.path)}: {carried}, {left}"

    def parts(self) -> list[Part]:
        """Return the table of what was not carried over, and what to do next."""
        run = f"next: kestrel eval run {shown_path(self.path)} --epochs 1"
        if self.listed is None:
            return [run]
        # The same thing at many places is one row, as a person would say it.
        places = group_values(((one.what, one.way), one.where) for one in self.draft.missing)
        rows = [
            [at[0] + (f" and {len(at) - 1} more" if len(at) > 1 else ""), what, way]
            for (what, way), at in places.items()
        ]
        return [Table(_HEADINGS, rows), "", f"all of it: {shown_path(self.listed)}", run]


def _entry(key: str, value: Json) -> str:
    """Return a key of a scenario as lines; each check begins a line of its own."""
    if key != "checks" or not isinstance(value, list):
        return entry_text(key, value, 4)
    lines = [f"    {key}:\n"]
    for check in value:
        text = (
            "".join(entry_text(name, one, 8) for name, one in check.items())
            if isinstance(check, dict)
            else ""
        )
        lines.append(f"      - {text.removeprefix(' ' * 8)}")
    return "".join(lines)


def slug(text: str) -> str:
    """Return a text as the id of a scenario."""
    words = re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-._").lower()
    return words[:60].rstrip("-") or "scenario"


def _cell(text: str) -> str:
    return one_line(text, 300).replace("|", "\\|")


_SAME: Final = {
    **dict.fromkeys(
        (
            *("max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_gen_len"),
            *("maxOutputTokens", "maxTokens"),
        ),
        "max_tokens",
    ),
    **dict.fromkeys(("stop_seqs", "stop_sequences", "stopSequences"), "stop"),
    "topP": "top_p",
}
"""What others call parameters of a model."""


def known_params(given: Mapping[str, Any]) -> dict[str, Json]:
    """Return those of another tool's settings that are `params` of a configuration, by our names."""
    found: dict[str, Json] = {}
    for key, value in given.items():
        name = _SAME.get(key, key)
        if name not in ("temperature", "timeout_s") and _is_param(name, value):
            found[name] = value
    return found


def is_carried(key: str, value: Any) -> bool:
    """Return whether a setting of another tool is a parameter here, the temperature among them."""
    return value is None or _is_param(_SAME.get(key, key), value)


def _is_param(name: str, value: Any) -> bool:
    try:
        return bool(ModelParams.of({name: value}).as_json())
    except (UsageError, TypeError):
        return False


def as_list(value: Any) -> list[Any]:
    """Return a list of what may be one thing, several or none."""
    return value if isinstance(value, list) else [] if value is None else [value]


def files_beside(source: Path, name: str) -> list[str]:
    """Return the files that a name with stars means, by their place in the folder of a suite; a name without
    one as it is. Raises `UsageError` where nothing fits.
    """
    if "*" not in name or "://" in name:
        return [name]
    folder = source.parent.resolve()
    if name.startswith("/") or ".." in Path(name).parts:
        raise UsageError(f"{name} lies outside {folder.name}, the folder of {source.name}")
    found = sorted(one for one in folder.glob(name) if one.is_file())
    if not found:
        raise UsageError(f"no file fits {name}")
    return [one.relative_to(folder).as_posix() for one in found]


def read_beside(source: Path, name: str) -> str:
    """Return the text of a file that a suite names.

    Raises `UsageError` where it cannot be read or does not lie in the folder of the suite: a foreign file
    does not say what of this machine is copied into a suite.
    """
    folder = source.parent.resolve()
    found = (folder / name).resolve()
    if not found.is_relative_to(folder):
        raise UsageError(f"{name} lies outside {folder.name}, the folder of {source.name}")
    try:
        if found.stat().st_size > MOST_FILES:
            raise UsageError(f"{name} is larger than {MOST_FILES:,} bytes")
        return found.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', '') or error}") from error
