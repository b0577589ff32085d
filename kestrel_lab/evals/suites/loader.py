"""Suite files: YAML is read and checked, and every mistake is reported with its place and what would be
right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel, ValidationError

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import Limits
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.core.yaml.reader import Where, YamlFile, dotted_path, read_yaml
from kestrel_lab.core.yaml.validation import FILE, explain_all, join_problems, validate, validate_partly
from kestrel_lab.evals.benchmarks.by_name import is_published, load_published
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.scenario_parts import GitCheckout
from kestrel_lab.evals.seed_notes import GivenNote
from kestrel_lab.evals.suite import CassetteUse, Config, Defaults, Scenario, Suite
from kestrel_lab.evals.suites.cassettes import default_folder
from kestrel_lab.evals.suites.datasets import (
    TABLES,
    Row,
    check_columns,
    fill_template,
    read_rows,
    select_rows,
)
from kestrel_lab.evals.suites.models import ScenarioFile, Source, SuiteFile
from kestrel_lab.evals.suites.python_files import load_instance
from kestrel_lab.evals.suites.repository_checkouts import check_place
from kestrel_lab.models.cassettes.scrub import check_pattern
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.views.formatting import format_count

MAX_ROWS_REPORTED: Final = 5
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
        return load_instance(path, Suite, root).model_copy(update={"path": place.absolute(), "root": root})
    problems: list[str] = []
    top = {"top": root or place.absolute().parent}
    document, entry = _read(path, SuiteFile, problems, top)
    wrong = _Mistakes(document.place, problems)
    placed = _scenarios(entry, wrong)
    for number, source in enumerate(entry.scenarios_from):
        here = wrong.below("scenarios_from", number)
        if is_published(source.file):
            loaded = here.attempt((), partial(load_published, source.file))
            placed += [(one, here.tell(())) for one in (loaded.scenarios if loaded is not None else ())]
        elif source.file:
            raw = cast("Any", document.value)["scenarios_from"][number]
            placed += here.attempt((), partial(_scenarios_from, path, source, raw, entry, here)) or []
    if not placed and not problems:
        wrong.add(
            (),
            "the suite has no scenarios: write some under 'scenarios', or name files under 'scenarios_from'",
        )
    written: list[tuple[Config, Where]] = [
        (one, ("configs", number)) for number, one in enumerate(entry.configs)
    ]
    if entry.matrix:
        made = wrong.attempt(
            ("matrix",), lambda: [_make_config(one, top) for one in expand_matrix(entry.matrix)]
        )
        written += [(one, ("matrix",)) for one in made or ()]
    for one, where in written:
        _check_config(one, wrong.below(*where))
    _refuse_twice("scenario", [(scenario.id, at) for scenario, at in placed], problems)
    _refuse_twice("configuration", [(one.name, document.place(where)) for one, where in written], problems)
    configs = tuple(one for one, _ in written) or (Config(name="default"),)
    scenarios = tuple(scenario for scenario, _ in placed)
    _check_gates(entry.gates, wrong, configs, scenarios)
    cassette = _cassette(entry.cassette, path, entry.name or path.stem, wrong.below("cassette"))
    if problems:
        raise UsageError(join_problems(_in_order(problems)))
    whole = {
        "name": entry.name or path.stem,
        "scenarios": scenarios,
        "configs": configs,
        "cassette": cassette,
        "path": place.absolute(),
        "root": root,
    }
    return Suite(**{name: getattr(entry, name) for name in Suite.model_fields} | whole)


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


def _read(
    path: Path, kind: type[_Entry], problems: list[str], context: Mapping[str, Any] = FILE
) -> tuple[YamlFile, _Entry]:
    """Return the file; its mistakes of form become problems.

    Raises `UsageError` for one that cannot be read at all.
    """
    document = read_yaml(path, shown_path(path))
    entry = (
        validate_partly(document, kind, problems, _STAND_INS, context)
        if isinstance(document.value, dict)
        else None
    )
    return document, entry if entry is not None else validate(document, kind, context=context)


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


def _scenarios_from(
    path: Path, source: Source, raw: Any, suite: SuiteFile, wrong: _Mistakes
) -> list[_Placed]:
    """Return the scenarios of a file of scenarios or of a table; defaults of the file come before those of
    the suite. `raw` is the source as it is written.
    """
    found = _file_of_suite(path, source.file)
    if found.suffix.lower() in TABLES:
        rows = select_rows(read_rows(found), limit=source.limit, sample=source.sample, seed=source.seed)
        if not source.goal or not (source.checks or source.choices):
            raise UsageError(
                "a table needs a template for its rows: goal and checks, or choices, in which {{column}} "
                "stands for a value"
            )
        fields = Source.model_fields
        valid = {fields[name].validation_alias or name for name in source.model_fields_set}
        kept = {
            key: value for key, value in raw.items() if key in valid - {"file", "limit", "sample", "seed"}
        }
        template: dict[str, Json] = {"id": f"{found.stem}-{{{{row_number}}}}", **kept}
        return _rows(template, suite.defaults, rows, f"{wrong.tell(())}: {source.file}", wrong.found)
    if more := sorted(source.model_fields_set - {"file"}):
        raise UsageError(
            f"{source.file} is a file of scenarios, which takes no {', '.join(more)}; the name of a "
            f"table ends in {', '.join(TABLES)}"
        )
    inner, entry = _read(found, ScenarioFile, wrong.found)
    merged = suite.defaults.model_copy(
        update={name: getattr(entry.defaults, name) for name in entry.defaults.model_fields_set}
    )
    return _scenarios(entry.model_copy(update={"defaults": merged}), _Mistakes(inner.place, wrong.found))


def _scenarios(suite: SuiteFile | ScenarioFile, wrong: _Mistakes) -> list[_Placed]:
    places = [wrong.below("scenarios", number) for number in range(len(suite.scenarios))]
    return [
        (_with_defaults(one, suite.defaults, at), at.tell(()))
        for one, at in zip(suite.scenarios, places, strict=True)
    ]


def _rows(
    template: dict[str, Json], defaults: Defaults, rows: Sequence[Row], at: str, problems: list[str]
) -> list[_Placed]:
    """Return a scenario for each row; of rows with mistakes only the first few are reported."""
    check_columns(template, rows)
    placed: list[_Placed] = []
    mistakes: list[str] = []
    for row in rows:
        place = f"{at} {row.place}"
        wrong = _Mistakes(partial(_in_row, place), [])
        try:
            placed.append(
                (_with_defaults(_scenario_of_row(fill_template(template, row)), defaults, wrong), place)
            )
        except UsageError as error:
            mistakes.append(str(error) if str(error).startswith(at) else f"{place}: {error}")
        mistakes += wrong.found
    problems += mistakes[:MAX_ROWS_REPORTED]
    if len(mistakes) > MAX_ROWS_REPORTED:
        problems.append(f"{at}: … and {len(mistakes) - MAX_ROWS_REPORTED} more mistakes in its rows")
    return placed


def _in_row(row: str, where: Where) -> str:
    return f"{row}: {dotted_path(where)}"


def _scenario_of_row(values: dict[str, Json]) -> Scenario:
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
        return Scenario.model_validate(values, context={"loosely": True})
    except ValidationError as error:
        raise UsageError(next(explain_all(Scenario, error))) from error


def _with_defaults(scenario: Scenario, defaults: Defaults, wrong: _Mistakes) -> Scenario:
    """Return the scenario with what it leaves to the defaults; what is wrong with the two is noted."""
    limits = {**defaults.limits, **scenario.limits}
    approve = scenario.approve or defaults.approve
    place = scenario.place if "place" in scenario.model_fields_set else defaults.place
    notes = (*defaults.notes, *scenario.notes)
    wrong.attempt(("limits",), lambda: Limits(**limits))  # type: ignore[arg-type]  # a mapping of fields
    wrong.attempt(("notes",), lambda: _refuse_same_names(notes))
    if approve:
        wrong.attempt(("approve",), lambda: _refuse_asking(approve))
    if isinstance(place, GitCheckout):
        wrong.attempt(("workspace",), lambda: check_place(place))
    return scenario.model_copy(
        update={
            "family": scenario.family or defaults.family,
            "place": place,
            "tools": defaults.tools if scenario.tools is None else scenario.tools,
            "limits": limits,
            "approve": approve,
            "tags": scenario.tags or defaults.tags,
            "notes": notes,
            "output": scenario.output or defaults.output,
        }
    )


def _refuse_same_names(notes: Sequence[GivenNote]) -> None:
    names = [note.name for note in notes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two notes are called {twice!r}: give each a name of its own")


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
            f"the matrix makes {format_count(len(combinations), 'configuration')}, more than "
            f"{MOST_CONFIGS}: leave out values"
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


def _make_config(written: dict[str, Any], context: Mapping[str, Any]) -> Config:
    try:
        return Config.model_validate(written, context=context)
    except ValidationError as error:
        raise UsageError(next(explain_all(Config, error))) from error


def _check_config(config: Config, wrong: _Mistakes) -> None:
    if config.model and config.routes:
        wrong.add((), f"the configuration {config.name!r} has both model and routes: leave one of them out")
    if config.plan and config.form == "auto":
        wrong.add(
            (), f"the configuration {config.name!r} has a plan, and 'auto' is for runs without: name the form"
        )
    wrong.attempt(("limits",), lambda: Limits(**config.limits))  # type: ignore[arg-type]  # a mapping of fields


def _check_gates(
    gates: Sequence[Gate], wrong: _Mistakes, configs: Iterable[Config], scenarios: Iterable[Scenario]
) -> None:
    """Note the gates whose configuration or family the suite does not have."""
    known = {
        "config": [config.name for config in configs],
        "family": sorted({scenario.family for scenario in scenarios} - {""}),
    }
    for number, gate in enumerate(gates):
        for key, names in known.items():
            if (name := getattr(gate, key)) and name not in names:
                wrong.add(
                    ("gates", number), f"{key}: the suite has no {key} {name!r}; {did_you_mean(name, names)}"
                )


def _cassette(use: CassetteUse, path: Path, name: str, wrong: _Mistakes) -> CassetteUse:
    for number, pattern in enumerate(use.volatile):
        wrong.attempt(("volatile", number), partial(check_pattern, pattern))
    if use.mode == "off" and use.folder is None:
        return use
    # Beside the file itself, also where the suite is read for another checkout: that is thrown away.
    folder = path.absolute().parent / use.folder if use.folder else default_folder(path, name)
    return use.model_copy(update={"folder": folder})


def _refuse_asking(approve: str) -> None:
    Policy.parse(approve)
    if approve.strip().lower() == "ask":
        raise UsageError("a suite cannot ask anybody for approval: write 'auto', 'auto:LEVEL' or 'deny'")
