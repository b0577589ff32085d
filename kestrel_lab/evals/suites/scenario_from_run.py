"""Scenario drafts: a run that ended is written as a scenario for a person to edit."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from kestrel_lab.checks.trajectory import MadeCall, made_calls
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelCalled, Record, RunStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.core.yaml.writer import entry_text
from kestrel_lab.evals.suites.loader import repository_of
from kestrel_lab.runtime.context.recorded_tools import recorded_tools_of
from kestrel_lab.runtime.run import Run
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.macros import MACRO_RUN
from kestrel_lab.tools.skills import LOAD_SKILL

# The workspace of a finished run as a scenario can have it: files written out, or a folder of the repository.

MAX_FILES: Final = 20
"""Files that are written into a scenario."""
MAX_BYTES: Final = 40_000
"""Bytes of all of them."""
MAX_LOOKED_AT: Final = 5_000
"""Entries of a workspace that are visited; one with more is not small."""


RunPlace = tuple[dict[str, Json] | None, list[str]]
"""A scenario's `workspace`, `None` for an empty one, and notes for the reader."""


def workspace_reference(workspace: str, began: float, beside: Path) -> RunPlace:
    """Return how a scenario file in the folder `beside` can name the workspace of a run that began at
    `began`.

    Small text files are taken over as they are now; one that changed since is left out and noted, for what
    the run found there is not known any more. Hidden files, in which secrets are kept, and links are never
    taken. Otherwise the folder is named if it is in the repository that `beside` is in.
    """
    root = Path(workspace)
    if not root.is_dir():
        return None, [
            "EDIT: the run's workspace is gone; write the files it needs under workspace: {files: …}"
        ]
    small = _small_files(Workspace(root), began)
    if small is not None:
        return small
    top = repository_of(beside.resolve()) or beside.resolve()
    if not root.resolve().is_relative_to(top):
        return None, [
            f"EDIT: the run worked in {one_line(str(root), 200)}, which is too large to be written "
            "here and outside this repository:",
            "copy what the scenario needs into a folder beside the suite, and name it: workspace: "
            "{folder: …}",
        ]
    # As a suite beside or above the file calls it: from the top of its repository.
    return {"folder": root.resolve().relative_to(top).as_posix()}, [
        "EDIT: the whole folder is copied for each trial, as it then is; name a smaller one if you can"
    ]


def _small_files(workspace: Workspace, began: float) -> RunPlace | None:
    """Return the files, if they are few, small and text."""
    found = list(islice(workspace.walk(), MAX_LOOKED_AT + 1))
    files = [
        entry
        for entry in found
        if entry.kind == "file" and not any(part.startswith(".") for part in entry.path.split("/"))
    ]
    if len(found) > MAX_LOOKED_AT or len(files) > MAX_FILES or sum(entry.size for entry in files) > MAX_BYTES:
        return None
    kept: dict[str, Json] = {}
    changed: list[str] = []
    for entry in files:
        if workspace.stat(entry.path).st_mtime >= began:
            changed.append(entry.path)
            continue
        try:
            kept[entry.path] = workspace.read_bytes(entry.path, MAX_BYTES).decode("utf-8")
        except UnicodeDecodeError:
            return None
    notes = (
        [
            f"EDIT: left out, because they changed after the run began: {one_line(', '.join(changed), 300)}",
            "if the run found them there, write them as they were before it",
        ]
        if changed
        else []
    )
    return ({"files": kept} if kept else None), notes


MAX_PHRASES: Final = 3
_PHRASES: Final = re.compile(r"`([^`\n]{1,60})`|\"([^\"\n]{2,60})\"|(?<![\w.])(\d[\d,.]*\d|\d)(?![\w])")
"""What an answer seldom says by chance: code, quotations, numbers."""
_OFFERED_ANEW: Final = frozenset({MACRO_RUN, LOAD_SKILL})
"""Tools that a run is offered by what its workspace has, not by their names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioDraft:
    """A scenario file made from a run; printed, it is the file."""

    id: str
    text: str
    """YAML, as suites take it in by `scenarios_from`."""

    def write(self, path: str | Path) -> Path:
        """Write the file; raises `UsageError` if there is one already, which somebody may have edited."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("x", encoding="utf-8", newline="") as file:
                file.write(self.text)
        except FileExistsError as error:
            raise UsageError(f"{target} is there already: give another name, or remove it first") from error
        return target

    def __str__(self) -> str:
        return self.text

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """The file, in a notebook as well."""
        printer.text(self.text.rstrip("\n"))


def scenario_from(run: Run, *, beside: Path | None = None) -> ScenarioDraft:
    """Return a draft of a scenario that asks for what `run` did; see `Evaluations.scenario_from`."""
    records = run.records()
    began = next((record for record in records if isinstance(record.event, RunStarted)), None)
    if began is None or not isinstance(began.event, RunStarted) or not run.status.terminal:
        raise UsageError(f"run {run.id} is {run.status}: a scenario is made from a run that has ended")
    calls = made_calls(records)
    name = slug(run.goal)
    lines = [
        f"# Drafted from run {run.id} ({run.status}, model {one_line(run.report.model)}).",
        "# Look through what is marked EDIT, then name this file in a suite under scenarios_from, or "
        "run it: kestrel eval run FILE",
        "scenarios:",
        _item(_entry("id", name)),
        *_entry("goal", run.goal),
    ]
    if began.event.plan:
        lines += _notes(
            "EDIT: the run followed a plan; name it in the suite's configuration: {name: …, model: …, "
            "plan: …}"
        )
    place, notes = workspace_reference(began.event.workspace, began.at, beside or Path.cwd())
    lines += _notes(*notes)
    if place is not None:
        lines += _entry("workspace", place)
    lines += _tools(began.event, calls)
    lines += _entry(
        "limits",
        {
            key: began.event.limits[key]
            for key in ("cycles", "cost_usd", "seconds", "tokens")
            if key in began.event.limits
        },
    )
    if began.event.policy == "deny":
        lines += _entry("approve", "deny")
    if run.answer.strip():
        lines += _notes("EDIT: what the run answered; put it right where it is wrong")
        lines += _entry("expected", head_tail(run.answer, 4_000)[0])
    lines += _notes(
        "EDIT: proposed from what happened; keep what any good run would do, and add what a bad one would not"
    )
    lines.append("    checks:")
    for check in _checks(run, records, calls, began.event.workspace):
        lines.append(_item(entry_text(*next(iter(check.items())), 8).rstrip("\n").split("\n")))
    return ScenarioDraft(id=name, text="\n".join(lines) + "\n")


def _tools(began: RunStarted, calls: Sequence[MadeCall]) -> list[str]:
    used = [tool for tool in dict.fromkeys(call.tool for call in calls) if tool not in _OFFERED_ANEW]
    others = [name for name in recorded_tools_of(began) if name not in used]
    note = f"EDIT: those that the run used; it was also offered {one_line(', '.join(others), 120)}"
    return [*(_notes(note) if others else []), *_entry("tools", cast("list[Json]", used))]


def _checks(
    run: Run, records: Sequence[Record], calls: Sequence[MadeCall], workspace: str
) -> list[dict[str, Json]]:
    """Return checks that the run itself passes: its tools in order, phrases of its answer, the files it
    wrote; at least one.
    """
    found: list[dict[str, Json]] = []
    order = [
        tool for tool, _ in groupby(call.tool for call in calls if call.ok and call.tool not in _OFFERED_ANEW)
    ]
    if order:
        found.append({"tools_in_order": cast("list[Json]", order[:10])})
    phrases = _phrases(run.answer)
    if phrases:
        found.append({"answer_contains": {"texts": cast("list[Json]", phrases), "mode": "all"}})
    found += _written_files(calls, workspace)
    if not found:
        turns = sum(isinstance(record.event, ModelCalled) for record in records)
        found.append({"turns_at_most": max(1, turns)})
    return found


def _phrases(answer: str) -> list[str]:
    """Return phrases that distinguish the answer from others; of one without any, its first line."""
    found = [next(filter(None, match.groups())).strip() for match in _PHRASES.finditer(answer)]
    kept = list(dict.fromkeys(phrase for phrase in found if phrase))[:MAX_PHRASES]
    if kept or not answer.strip():
        return kept
    first = answer.strip().splitlines()[0].strip()
    return [first if len(first) <= 60 else first[:60].rpartition(" ")[0] or first[:60]]


def _written_files(calls: Sequence[MadeCall], workspace: str) -> list[dict[str, Json]]:
    """Return the first line of each file that the run wrote as a whole, as it was written last."""
    files: dict[str, str] = {}
    for call in calls:
        path, content = call.args.get("path"), call.args.get("content")
        if call.ok and call.tool == "write_file" and isinstance(path, str) and isinstance(content, str):
            name = (
                Path(path).relative_to(workspace).as_posix() if Path(path).is_relative_to(workspace) else path
            )
            files[name] = next((line.strip() for line in split_lines(content) if line.strip()), "")[:80]
    inside = {
        name: line
        for name, line in files.items()
        if line and not PurePosixPath(name).is_absolute() and ".." not in name.split("/")
    }
    return [{"file_contains": {"path": name, "text": line}} for name, line in list(inside.items())[:3]]


def slug(goal: str) -> str:
    """Return an id made of the first words of a goal."""
    words = re.findall(
        r"[a-z0-9]+", unicodedata.normalize("NFKD", goal).encode("ascii", "ignore").decode().lower()
    )
    name = ""
    for word in words:
        if len(name) + len(word) > 40:
            break
        name += f"-{word}" if name else word
    return name or "from-run"


def _entry(key: str, value: Json) -> list[str]:
    return entry_text(key, value, 4).rstrip("\n").split("\n")


def _item(lines: list[str]) -> str:
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join([f"{lines[0][: indent - 2]}- {lines[0][indent:]}", *lines[1:]])


def _notes(*notes: str) -> list[str]:
    return [f"    # {note}" for note in notes]
