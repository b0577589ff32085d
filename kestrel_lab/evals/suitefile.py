"""Suites written as YAML: read, checked, and every mistake told with its place and what would be right."""

from __future__ import annotations

from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, Field, ValidationError, WithJsonSchema, model_validator

from kestrel_lab.checks.parse import checks_schema, parse_check
from kestrel_lab.core.entries import Entry, attempt, checked, joined
from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.limits import Limits
from kestrel_lab.core.protocols import Check
from kestrel_lab.core.text import shown_path
from kestrel_lab.core.yamlfile import Where, YamlFile, read_yaml
from kestrel_lab.evals.gate import Gate
from kestrel_lab.evals.importers.published import is_published, load_published
from kestrel_lab.evals.matrix import expanded
from kestrel_lab.evals.suite import Config, FolderCopy, InlineFiles, PackageSource, Place, Scenario, Suite
from kestrel_lab.middleware.policy import Policy

Positive = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
CheckItem = Annotated[Any, WithJsonSchema(checks_schema())]
"""Read by `parse_check`."""


class LimitsEntry(Entry):
    """How far a run may go; `null` for no bound."""

    cycles: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None
    tokens: int | None = None


class WorkspaceEntry(Entry):
    """One of three: files written here, a folder to copy, the source of an installed package."""

    files: dict[str, str] | None = None
    folder: str | None = None
    package: str | None = None


class DefaultsEntry(Entry):
    """What scenarios have that do not say otherwise; limits are merged one by one."""

    family: str = ""
    workspace: WorkspaceEntry | None = None
    tools: list[str] | None = None
    limits: LimitsEntry = LimitsEntry()
    approve: str = ""
    tags: list[str] = Field(default_factory=list)


class ScenarioEntry(DefaultsEntry):
    """A task with checks."""

    id: Name
    goal: Annotated[str, Field(min_length=1)]
    expected: Any = None
    checks: Annotated[list[CheckItem], Field(min_length=1)]
    weight: Annotated[float, Field(gt=0)] = 1.0


class ScenarioFileEntry(Entry):
    """A file of scenarios that suites take in by `scenarios_from`."""

    defaults: DefaultsEntry = DefaultsEntry()
    scenarios: Annotated[list[ScenarioEntry], Field(min_length=1)]


class ConfigEntry(Entry):
    """One way to run the scenarios. A text alone is the name of a model."""

    name: Name
    model: str = ""
    temperature: Annotated[float, Field(ge=0)] | None = None
    seed: int | None = None
    concurrency: Positive | None = None
    limits: LimitsEntry = LimitsEntry()
    plan: str = ""
    inputs: dict[str, Any] = Field(default_factory=dict)
    routes: dict[str, Any] = Field(default_factory=dict)
    tools: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"name": value, "model": value} if isinstance(value, str) else value


class BoundEntry(Entry):
    """The bound of a gate, and what it is for; all configurations, each on its own, and all families by default."""

    at_least: float | None = None
    at_most: float | None = None
    config: str = ""
    family: str = ""


class SuiteEntry(Entry):
    """A whole suite file."""

    name: str = ""
    epochs: Positive = 1
    concurrency: Positive = 4
    count_errors: Literal["fail", "exclude"] = "fail"
    instructions: str = ""
    instructions_from: str = ""
    tools_from: list[str] = Field(default_factory=list)
    grader: str = ""
    defaults: DefaultsEntry = DefaultsEntry()
    configs: Annotated[list[ConfigEntry], Field(min_length=1)] = Field(default_factory=list)
    matrix: dict[str, list[Any] | dict[str, Any]] = Field(default_factory=dict)
    gates: list[dict[str, BoundEntry]] = Field(default_factory=list)
    scenarios: list[ScenarioEntry] = Field(default_factory=list)
    scenarios_from: list[str] = Field(default_factory=list)


def load_suite(path: str | Path, *, at: str | Path | None = None) -> Suite:
    """The suite in the YAML file at `path`, or the published one that `path` names, such as `bfcl:multi_turn_base?limit=20`.

    What the suite names (folders, tools, scripts) is looked for beside the file, or beside `at`, a place in
    another checkout, when given. Raises `UsageError`, one line for each mistake: file, line, key, what is
    wrong and the nearest right spelling.
    """
    if is_published(str(path)):
        return load_published(str(path))
    path = Path(path)
    place = Path(at) if at is not None else path
    document, entry = _read(path, SuiteEntry)
    problems: list[str] = []
    scenarios = [_scenario(entry, index, document, problems) for index in range(len(entry.scenarios))]
    for number, name in enumerate(entry.scenarios_from):
        if is_published(name):
            loaded = attempt(document, ("scenarios_from", number), problems, partial(load_published, name))
            scenarios += loaded.scenarios if loaded is not None else ()
            continue
        found = attempt(document, ("scenarios_from", number), problems, partial(_beside, path, name))
        if found is not None:
            scenarios += _scenarios_of(found, entry.defaults, problems)
    if not scenarios and not problems:
        problems.append(
            f"{document.place()}: the suite has no scenarios: write some under 'scenarios', or name files under 'scenarios_from'"
        )
    configs = [_config(one, document, ("configs", index), problems) for index, one in enumerate(entry.configs)]
    made = attempt(document, ("matrix",), problems, lambda: [_made(one) for one in expanded(entry.matrix)]) if entry.matrix else []
    configs += [_config(one, document, ("matrix",), problems) for one in made or ()]
    configs = configs or [Config(name="default")]
    gates = _gates(entry, document, problems, configs, scenarios)
    if problems:
        raise UsageError(joined(problems))
    try:
        return Suite(
            name=entry.name or path.stem,
            scenarios=tuple(scenarios),
            configs=tuple(configs),
            epochs=entry.epochs,
            concurrency=entry.concurrency,
            count_errors=entry.count_errors,
            instructions=entry.instructions,
            instructions_from=entry.instructions_from,
            tools_from=tuple(entry.tools_from),
            grader=entry.grader,
            gates=tuple(gates),
            path=place.absolute(),
            root=repository_of(place.absolute().parent),
        )
    except UsageError as error:
        msg = f"{document.place()}: {error}"
        raise UsageError(msg) from error


def suite_schema() -> dict[str, Json]:
    """JSON Schema of suite files, for editors."""
    return cast("dict[str, Json]", SuiteEntry.model_json_schema())


def repository_of(folder: Path) -> Path | None:
    """The top of the git checkout that `folder` is in, if any."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


_Entry = TypeVar("_Entry", bound=BaseModel)


def _read(path: Path, kind: type[_Entry]) -> tuple[YamlFile, _Entry]:
    document = read_yaml(path, shown_path(path))
    return document, checked(document, kind)


def _beside(suite: Path, name: str) -> Path:
    """The file that a suite names: beside it, else from the top of its repository."""
    folder = suite.absolute().parent
    for place in (folder, repository_of(folder) or folder):
        if not Path(name).is_absolute() and (place / name).is_file():
            return place / name
    msg = f"there is no scenario file {name!r}, neither beside the suite nor at the top of its repository"
    raise UsageError(msg)


def _scenarios_of(path: Path, defaults: DefaultsEntry, problems: list[str]) -> list[Scenario]:
    """The scenarios of a file; its defaults go before those of the suite."""
    document, entry = _read(path, ScenarioFileEntry)
    merged = defaults.model_copy(update={name: getattr(entry.defaults, name) for name in entry.defaults.model_fields_set})
    whole = entry.model_copy(update={"defaults": merged})
    return [_scenario(whole, index, document, problems) for index in range(len(whole.scenarios))]


def _scenario(suite: SuiteEntry | ScenarioFileEntry, index: int, document: YamlFile, problems: list[str]) -> Scenario:
    entry, defaults = suite.scenarios[index], suite.defaults
    where: Where = ("scenarios", index)
    limits = _limits(document, (*where, "limits"), problems, defaults.limits, entry.limits)
    approve = entry.approve or defaults.approve
    if approve:
        attempt(document, (*where, "approve"), problems, lambda: _refuse_asking(approve))
    checks: list[Check] = []
    for number, item in enumerate(entry.checks):
        if check := attempt(document, (*where, "checks", number), problems, partial(parse_check, item)):
            checks.append(check)
    place = attempt(document, (*where, "workspace"), problems, lambda: _place(entry.workspace or defaults.workspace))
    return Scenario(
        id=entry.id,
        goal=entry.goal,
        checks=tuple(checks),
        family=entry.family or defaults.family,
        place=place or InlineFiles(),
        tools=_tools(entry.tools if entry.tools is not None else defaults.tools),
        limits=limits,
        approve=approve,
        expected=entry.expected,
        tags=tuple(entry.tags or defaults.tags),
        weight=entry.weight,
    )


def _made(written: dict[str, Any]) -> ConfigEntry:
    """A configuration of the matrix."""
    try:
        return ConfigEntry.model_validate(written)
    except ValidationError as error:
        first = error.errors()[0]
        msg = f"{'.'.join(map(str, first['loc']))}: {first['msg'].replace('Input should', 'must')}, not {first['input']!r}"
        raise UsageError(msg) from error


def _config(entry: ConfigEntry, document: YamlFile, where: Where, problems: list[str]) -> Config:
    if entry.model and entry.routes:
        problems.append(f"{document.place(where)}: the configuration {entry.name!r} has both model and routes: leave one of them out")
    return Config(
        name=entry.name,
        model=entry.model,
        temperature=entry.temperature,
        seed=entry.seed,
        concurrency=entry.concurrency,
        limits=_limits(document, (*where, "limits"), problems, entry.limits),
        plan=entry.plan,
        inputs=entry.inputs,
        routes=entry.routes,
        tools=_tools(entry.tools),
    )


def _gates(suite: SuiteEntry, document: YamlFile, problems: list[str], configs: list[Config], scenarios: list[Scenario]) -> list[Gate]:
    known = {"config": [config.name for config in configs], "family": sorted({scenario.family for scenario in scenarios} - {""})}

    def made(item: dict[str, BoundEntry]) -> Gate:
        if len(item) != 1:
            msg = f"a gate is one metric with its bound, not {' and '.join(item) or 'nothing'}"
            raise UsageError(msg)
        (metric, bound), *_ = item.items()
        for key, names in known.items():
            if (name := getattr(bound, key)) and name not in names:
                msg = f"{key}: the suite has no {key} {name!r}; {nearest(name, names)}"
                raise UsageError(msg)
        return Gate(metric=metric, **bound.model_dump())

    found = [attempt(document, ("gates", index), problems, partial(made, item)) for index, item in enumerate(suite.gates)]
    return [gate for gate in found if gate is not None]


def _tools(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _limits(document: YamlFile, where: Where, problems: list[str], *entries: LimitsEntry) -> dict[str, int | float | None]:
    merged = {key: value for entry in entries for key, value in entry.model_dump(exclude_unset=True).items()}
    attempt(document, where, problems, lambda: Limits(**merged))
    return merged


def _place(entry: WorkspaceEntry | None) -> Place:
    if entry is None:
        return InlineFiles()
    given = entry.model_dump(exclude_none=True)
    if len(given) != 1:
        msg = f"a workspace is one of files, folder and package, not {' and '.join(given) or 'nothing'}"
        raise UsageError(msg)
    if entry.folder is not None:
        return FolderCopy(folder=entry.folder)
    if entry.package is not None:
        return PackageSource(package=entry.package)
    files = entry.files or {}
    for name in files:
        if not name or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
            msg = f"the file {name!r} must be a relative path without '..'"
            raise UsageError(msg)
    return InlineFiles(files=files)


def _refuse_asking(approve: str) -> None:
    Policy.parse(approve)
    if approve.strip().lower() == "ask":
        msg = "nobody is asked anything during a suite: write 'auto', 'auto:LEVEL' or 'deny'"
        raise UsageError(msg)
