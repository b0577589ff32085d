"""Suite files: YAML is read and checked, and every mistake is reported with its place and what would be
right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from kestrel_lab.answers.output_types import OutputType
from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ModelParams
from kestrel_lab.core.run_types import Limits
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.core.yaml.reader import Where, YamlFile, dotted_path, read_yaml
from kestrel_lab.core.yaml.validation import join_problems, validate, validate_partly
from kestrel_lab.evals.benchmarks.by_name import is_published, load_published
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.guidance import Guidance, read_guidance
from kestrel_lab.evals.seed_notes import GivenNote
from kestrel_lab.evals.suite import (
    CassetteUse,
    Config,
    FolderCopy,
    GitCheckout,
    InlineFiles,
    PackageSource,
    Place,
    Scenario,
    Suite,
)
from kestrel_lab.evals.suites.cassettes import default_folder
from kestrel_lab.evals.suites.datasets import (
    TABLES,
    Row,
    check_columns,
    fill_template,
    read_rows,
    select_rows,
)
from kestrel_lab.evals.suites.models import (
    BoundEntry,
    CassetteEntry,
    ConfigEntry,
    DefaultsEntry,
    GuidanceEntry,
    LimitsEntry,
    NoteEntry,
    ScenarioEntry,
    ScenarioFileEntry,
    SourceEntry,
    SuiteEntry,
    WorkspaceEntry,
)
from kestrel_lab.evals.suites.python_files import load_instance
from kestrel_lab.evals.suites.repository_checkouts import check_place
from kestrel_lab.models.cassettes.scrub import check_pattern
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.runtime.options import model_of_runner

MAX_ROWS_TOLD: Final = 5
"""Mistakes in rows of one table that are reported."""
AXES: Final = (
    "model",
    "runner",
    "routes",
    "plan",
    "temperature",
    "seed",
    "params",
    "tools",
    "limits",
    "inputs",
    "guidance",
)
MOST_CONFIGS: Final = 200
"""The most configurations of a matrix."""
_T = TypeVar("_T")
_Placed = tuple[Scenario, str]
"""A scenario, and its place in a file."""


@dataclass(frozen=True, slots=True)
class _Mistakes:
    """Mistakes of a suite, each with the place of its key, which `tell` knows."""

    tell: Callable[[Where], str]
    found: list[str]

    def add(self, where: Where, what: object) -> None:
        self.found.append(f"{self.tell(where)}: {what}")

    def attempt(self, where: Where, make: Callable[[], _T]) -> _T | None:
        try:
            return make()
        except UsageError as error:
            self.add(where, error)
            return None

    def below(self, *start: str | int) -> _Mistakes:
        """Return the same list for the keys below `start`."""
        return _Mistakes(lambda where: self.tell((*start, *where)), self.found)


def load_suite(path: str | Path, *, at: str | Path | None = None) -> Suite:
    """Return the suite in the YAML file at `path`, the `Suite` that a Python file defines, or the published
    one that `path` names, such as `bfcl:multi_turn_base?limit=20`.

    What the suite names (folders, tools, scripts) is looked for beside the file, or beside `at`, a place in
    another checkout, when given. Raises `UsageError`, one line for each mistake of it and of the files it
    takes scenarios from: file, line, key, what is wrong and the nearest right spelling.
    """
    if is_published(str(path)):
        return load_published(str(path))
    path = Path(path)
    place = Path(at) if at is not None else path
    root = repository_of(place.absolute().parent)
    if path.suffix == ".py":
        return replace(load_instance(path, Suite, root), path=place.absolute(), root=root)
    problems: list[str] = []
    document, entry = _read(path, SuiteEntry, problems)
    wrong = _Mistakes(document.place, problems)
    placed = _scenarios(entry, wrong)
    for number, source in enumerate(entry.scenarios_from):
        here = wrong.below("scenarios_from", number)
        if is_published(source.file):
            loaded = here.attempt((), partial(load_published, source.file))
            placed += [(one, here.tell(())) for one in (loaded.scenarios if loaded is not None else ())]
        elif source.file:
            placed += here.attempt((), partial(_scenarios_from, path, source, entry, here)) or []
    if not placed and not problems:
        wrong.add(
            (),
            "the suite has no scenarios: write some under 'scenarios', or name files under 'scenarios_from'",
        )
    written: list[tuple[ConfigEntry, Where]] = [
        (one, ("configs", number)) for number, one in enumerate(entry.configs)
    ]
    if entry.matrix:
        written += [
            (one, ("matrix",))
            for one in wrong.attempt(
                ("matrix",), lambda: list(map(_make_config, expand_matrix(entry.matrix)))
            )
            or ()
        ]
    configs = [_config(one, wrong.below(*where), root or place.absolute().parent) for one, where in written]
    _refuse_twice("scenario", [(scenario.id, told) for scenario, told in placed], problems)
    _refuse_twice("configuration", [(one.name, document.place(where)) for one, where in written], problems)
    configs = configs or [Config(name="default")]
    scenarios = tuple(scenario for scenario, _ in placed)
    gates = _gates(entry, wrong, configs, scenarios)
    cassette = _cassette(entry.cassette, path, entry.name or path.stem, wrong.below("cassette"))
    if problems:
        raise UsageError(join_problems(_in_order(problems)))
    return Suite(
        name=entry.name or path.stem,
        scenarios=scenarios,
        configs=tuple(configs),
        **_copied_values(
            entry,
            "epochs",
            "concurrency",
            "count_errors",
            "retry_errors",
            "instructions",
            "instructions_from",
            "grader",
        ),
        tools_from=tuple(entry.tools_from),
        gates=tuple(gates),
        cassette=cassette,
        path=place.absolute(),
        root=root,
    )


def repository_of(folder: Path) -> Path | None:
    """Return the top of the git checkout that `folder` is in, if any."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


_Entry = TypeVar("_Entry", bound=BaseModel)
_STAND_INS: Final[dict[str, Json]] = {
    "id": "?",
    "name": "?",
    "goal": "?",
    "checks": [{"turns_at_most": 1}],
    "file": "",
    "scenarios": [{"id": "?", "goal": "?", "checks": [{"turns_at_most": 1}]}],
}
"""What takes the place of a key that is missing, so that the rest of the file is looked at too."""


def _read(path: Path, kind: type[_Entry], problems: list[str]) -> tuple[YamlFile, _Entry]:
    """Return the file; its mistakes of form become problems.

    Raises `UsageError` for one that cannot be read at all.
    """
    document = read_yaml(path, shown_path(path))
    entry = (
        validate_partly(document, kind, problems, _STAND_INS) if isinstance(document.value, dict) else None
    )
    return document, entry if entry is not None else validate(document, kind)


def _in_order(problems: list[str]) -> list[str]:
    found = [(match[1], int(match[2])) if (match := _PLACE.match(text)) else ("", 0) for text in problems]
    files = list(dict.fromkeys(file for file, _ in found))
    order = sorted(range(len(problems)), key=lambda at: (files.index(found[at][0]), found[at][1]))
    return [problems[at] for at in order]


_PLACE: Final = re.compile(r"(.+?):(\d+): ")


def _refuse_twice(what: str, named: Iterable[tuple[str, str]], problems: list[str]) -> None:
    first: dict[str, str] = {}
    for name, at in named:
        if name in first and name != "?":
            problems.append(f"{at}: the {what} name {name!r} is used already at {first[name]}")
        first.setdefault(name, at)


def _file_of_suite(suite: Path, name: str) -> Path:
    """Return the file that a suite names: beside it, else from the top of its repository."""
    folder = suite.absolute().parent
    for place in (folder, repository_of(folder) or folder):
        if not Path(name).is_absolute() and (place / name).is_file():
            return place / name
    raise UsageError(
        f"there is no scenario file {name!r}, neither beside the suite nor at the top of its repository"
    )


def _scenarios_from(path: Path, source: SourceEntry, suite: SuiteEntry, wrong: _Mistakes) -> list[_Placed]:
    """Return the scenarios of a file of scenarios or of a table; defaults of the file come before those of
    the suite.
    """
    found = _file_of_suite(path, source.file)
    if found.suffix.lower() in TABLES:
        rows = select_rows(read_rows(found), limit=source.limit, sample=source.sample, seed=source.seed)
        return _rows(
            source, suite.defaults, rows, found.stem, f"{wrong.tell(())}: {source.file}", wrong.found
        )
    if more := sorted(source.model_fields_set - {"file"}):
        msg = (
            f"{source.file} is a file of scenarios, which takes no {', '.join(more)}; the name of a "
            f"table ends in {', '.join(TABLES)}"
        )
        raise UsageError(msg)
    inner, entry = _read(found, ScenarioFileEntry, wrong.found)
    merged = suite.defaults.model_copy(
        update={name: getattr(entry.defaults, name) for name in entry.defaults.model_fields_set}
    )
    return _scenarios(entry.model_copy(update={"defaults": merged}), _Mistakes(inner.place, wrong.found))


def _scenarios(suite: SuiteEntry | ScenarioFileEntry, wrong: _Mistakes) -> list[_Placed]:
    places = [wrong.below("scenarios", number) for number in range(len(suite.scenarios))]
    return [
        (_scenario(one, suite.defaults, at), at.tell(()))
        for one, at in zip(suite.scenarios, places, strict=True)
    ]


def _rows(
    source: SourceEntry, defaults: DefaultsEntry, rows: Sequence[Row], name: str, at: str, problems: list[str]
) -> list[_Placed]:
    """Return a scenario for each row; of rows with mistakes only the first few are reported."""
    if not source.goal or not source.checks:
        raise UsageError(
            "a table needs a template for its rows: goal and checks, in which {{column}} stands for a value"
        )
    kept = source.model_dump(exclude_unset=True, exclude={"file", "limit", "sample", "seed"})
    template: dict[str, Json] = {"id": f"{name}-{{{{row_number}}}}", **kept}
    check_columns(template, rows)
    placed: list[_Placed] = []
    told: list[str] = []
    for row in rows:
        place = f"{at} {row.place}"
        wrong = _Mistakes(partial(_in_row, place), [])
        try:
            placed.append(
                (_scenario(_row_entry(fill_template(template, row)), defaults, wrong, loosely=True), place)
            )
        except UsageError as error:
            told.append(str(error) if str(error).startswith(at) else f"{place}: {error}")
        told += wrong.found
    problems += told[:MAX_ROWS_TOLD]
    if len(told) > MAX_ROWS_TOLD:
        problems.append(f"{at}: … and {len(told) - MAX_ROWS_TOLD} more mistakes in its rows")
    return placed


def _in_row(row: str, where: Where) -> str:
    return f"{row}: {dotted_path(where)}"


def _row_entry(values: dict[str, Json]) -> ScenarioEntry:
    """Return the scenario of a row; numbers are written out where text is needed."""
    for key in ("id", "goal", "family", "approve"):
        if key in values and not isinstance(values[key], str):
            values[key] = as_text(values[key])
    if isinstance(weight := values.get("weight"), str):
        try:
            values["weight"] = float(weight)
        except ValueError as error:
            raise UsageError(f"weight: must be a number, not {one_line(repr(weight), 60)}") from error
    if not str(values["goal"]).strip():
        raise UsageError("goal: is empty")
    tags = values.get("tags", [])
    values["tags"] = [as_text(tag) for tag in tags] if isinstance(tags, list) else [as_text(tags)]
    try:
        return ScenarioEntry.model_validate(values)
    except ValidationError as error:
        detail = error.errors()[0]
        msg = (
            f"{dotted_path(detail['loc'])}: {detail['msg'].replace('Input should', 'must')}, not "
            f"{one_line(repr(detail['input']), 60)}"
        )
        raise UsageError(msg) from error


def _scenario(
    entry: ScenarioEntry, defaults: DefaultsEntry, wrong: _Mistakes, *, loosely: bool = False
) -> Scenario:
    limits, approve = _limits(wrong, defaults.limits, entry.limits), entry.approve or defaults.approve
    if approve:
        wrong.attempt(("approve",), lambda: _refuse_asking(approve))
    checks = [
        wrong.attempt(("checks", number), partial(parse_check, item, loosely=loosely))
        for number, item in enumerate(entry.checks)
    ]
    place = wrong.attempt(("workspace",), lambda: _place(entry.workspace or defaults.workspace))
    notes = wrong.attempt(("notes",), lambda: _notes((*defaults.notes, *entry.notes)))
    output = wrong.attempt(
        ("output",), lambda: OutputType.of(entry.output if entry.output is not None else defaults.output)
    )
    tools = entry.tools if entry.tools is not None else defaults.tools
    return Scenario(
        id=entry.id,
        output={} if output is None else output.schema,
        goal=entry.goal,
        before=tuple(entry.before),
        notes=notes or (),
        checks=tuple(check for check in checks if check is not None),
        family=entry.family or defaults.family,
        place=place or InlineFiles(),
        tools=None if tools is None else tuple(tools),
        limits=limits,
        approve=approve,
        expected=entry.expected,
        tags=tuple(entry.tags or defaults.tags),
        weight=entry.weight,
    )


def _notes(entries: Iterable[NoteEntry]) -> tuple[GivenNote, ...]:
    notes = tuple(GivenNote(**{**entry.model_dump(), "tags": tuple(entry.tags)}) for entry in entries)
    if len(names := [note.name for note in notes]) > len(set(names)):
        raise UsageError(
            f"two notes are called {next(name for name in names if names.count(name) > 1)!r}: give "
            "each a name of its own"
        )
    return notes


def expand_matrix(matrix: Mapping[str, Sequence[Any] | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one configuration, as a suite file writes it, for each combination of the values of every axis.

    An axis is a key of a configuration, with a list of values or a mapping that gives each value a name. A
    configuration is called after the values in which it differs from others. Raises `UsageError` for an axis
    that does not exist or has no values.
    """
    for axis, values in matrix.items():
        if axis not in AXES:
            raise UsageError(f"a matrix has no axis {axis!r}; {did_you_mean(axis, AXES)}")
        if not values:
            raise UsageError(f"the axis {axis!r} has no values")
    named = {
        axis: [
            *(values.items() if isinstance(values, Mapping) else ((_word(value), value) for value in values))
        ]
        for axis, values in matrix.items()
    }
    combinations = [*product(*named.values())]
    if len(combinations) > MOST_CONFIGS:
        raise UsageError(
            f"the matrix makes {len(combinations)} configurations, more than {MOST_CONFIGS}: leave out values"
        )
    differing = [place for place, values in enumerate(named.values()) if len(values) > 1] or [0]
    return [
        {
            "name": " ".join(str(chosen[place][0]) for place in differing),
            **{axis: value for axis, (_, value) in zip(named, chosen, strict=True)},
        }
        for chosen in combinations
    ]


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value or "none"
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ",".join(f"{key}={one_line(str(inner), 30)}" for key, inner in value.items())
    return str(value)


def _make_config(written: dict[str, Any]) -> ConfigEntry:
    try:
        return ConfigEntry.model_validate(written)
    except ValidationError as error:
        first = error.errors()[0]
        msg = (
            f"{'.'.join(map(str, first['loc']))}: {first['msg'].replace('Input should', 'must')}, not "
            f"{first['input']!r}"
        )
        raise UsageError(msg) from error


def _config(entry: ConfigEntry, wrong: _Mistakes, top: Path) -> Config:
    if entry.model and entry.routes:
        wrong.add((), f"the configuration {entry.name!r} has both model and routes: leave one of them out")
    if entry.plan and entry.form == "auto":
        wrong.add(
            (), f"the configuration {entry.name!r} has a plan, and 'auto' is for runs without: name the form"
        )
    return Config(
        **_copied_values(
            entry,
            "name",
            "temperature",
            "seed",
            "concurrency",
            "plan",
            "inputs",
            "routes",
            "verify",
            "form",
            "learning",
        ),
        model=wrong.attempt((), lambda: str(model_of_runner(entry.runner, entry.model) or "")) or "",
        params=wrong.attempt(("params",), lambda: ModelParams.of(entry.params).as_json()) or {},
        limits=_limits(wrong, entry.limits),
        tools=None if entry.tools is None else tuple(entry.tools),
        guidance=wrong.attempt(("guidance",), lambda: _guidance(entry.guidance, top)),
    )


def _guidance(entry: GuidanceEntry | None, top: Path) -> Guidance | None:
    if entry is None:
        return None
    files = entry.files if isinstance(entry.files, dict) else {name: name for name in entry.files}
    return read_guidance(top, files, entry.ref, entry.text)


def _copied_values(entry: BaseModel, *names: str) -> dict[str, Any]:
    """Return the values of an entry that are taken over as they are."""
    return {name: getattr(entry, name) for name in names}


def _gates(
    suite: SuiteEntry, wrong: _Mistakes, configs: Iterable[Config], scenarios: Iterable[Scenario]
) -> list[Gate]:
    known = {
        "config": [config.name for config in configs],
        "family": sorted({scenario.family for scenario in scenarios} - {""}),
    }

    def made(item: dict[str, BoundEntry]) -> Gate:
        if len(item) != 1:
            raise UsageError(f"a gate is one metric with its bound, not {' and '.join(item) or 'nothing'}")
        (metric, bound), *_ = item.items()
        for key, names in known.items():
            if (name := getattr(bound, key)) and name not in names:
                raise UsageError(f"{key}: the suite has no {key} {name!r}; {did_you_mean(name, names)}")
        return Gate(metric=metric, **bound.model_dump())

    found = [wrong.attempt(("gates", index), partial(made, item)) for index, item in enumerate(suite.gates)]
    return [gate for gate in found if gate is not None]


def _limits(wrong: _Mistakes, *entries: LimitsEntry) -> dict[str, int | float | None]:
    merged = {key: value for entry in entries for key, value in entry.model_dump(exclude_unset=True).items()}
    wrong.attempt(("limits",), lambda: Limits(**merged))
    return merged


def _cassette(entry: CassetteEntry, path: Path, name: str, wrong: _Mistakes) -> CassetteUse:
    for number, pattern in enumerate(entry.volatile):
        wrong.attempt(("volatile", number), partial(check_pattern, pattern))
    if entry.mode == "off" and not entry.folder:
        return CassetteUse(volatile=tuple(entry.volatile))
    # Beside the file itself, also where the suite is read for another checkout: that is thrown away.
    folder = path.absolute().parent / entry.folder if entry.folder else default_folder(path, name)
    return CassetteUse(mode=entry.mode, folder=folder, volatile=tuple(entry.volatile))


def _place(entry: WorkspaceEntry | None) -> Place:
    if entry is None:
        return InlineFiles()
    given = entry.model_dump(exclude_none=True)
    if set(given) == {"repository", "commit"}:
        checkout = GitCheckout(repository=given["repository"], commit=given["commit"])
        check_place(checkout)
        return checkout
    if len(given) != 1 or not {"files", "folder", "package"} & set(given):
        msg = (
            "a workspace is one of files, folder, package, and repository with commit, not "
            f"{' and '.join(given) or 'nothing'}"
        )
        raise UsageError(msg)
    if entry.folder is not None:
        return FolderCopy(folder=entry.folder)
    if entry.package is not None:
        return PackageSource(package=entry.package)
    files = entry.files or {}
    for name in files:
        if not name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
            raise UsageError(f"the file {name!r} must be a relative path without '..'")
    return InlineFiles(files=files)


def _refuse_asking(approve: str) -> None:
    Policy.parse(approve)
    if approve.strip().lower() == "ask":
        raise UsageError("a suite cannot ask anybody for approval: write 'auto', 'auto:LEVEL' or 'deny'")
