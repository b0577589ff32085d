"""A suite: scenarios to try, configurations to try them with, and how often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, Protocol, TypeVar

from kestrel_lab.checks.parse import check_definition
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Approver, Check
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.guidance import Guidance, is_guidance
from kestrel_lab.evals.metrics import Metric
from kestrel_lab.evals.seed_notes import GivenNote
from kestrel_lab.tools.tool import Tool


class Opened(Protocol):
    """The state of one trial; its checks get it as `Trial.environment`."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools of the agent, in place of all others."""
        ...

    @property
    def approver(self) -> Approver | None:
        """The approver of calls; `None` for nobody, as in any other trial."""
        ...


class Environment(Protocol):
    """The state that a scenario's tools act on."""

    @property
    def instructions(self) -> str:
        """Added to the instructions of the suite."""
        ...

    def definition(self) -> dict[str, Json]:
        """Return all that a trial's outcome depends on: equal for environments that behave equally."""
        ...

    def open(self) -> Opened:
        """Return a new state that shares nothing with that of other trials."""
        ...


MOST = 1_000_000_000
"""The largest number of anything in a suite file."""


MOST_EPOCHS: Final = 1000
"""The most epochs of a suite; those of a bisection are counted from the next one on."""
CassetteMode = Literal["off", "record", "replay", "refresh"]
"""`record` asks a model only for what is missing, `replay` never, `refresh` for everything."""
CountErrors = Literal["fail", "exclude"]
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class InlineFiles:
    """A fresh folder with these files, for each trial."""

    files: dict[str, str] = field(default_factory=dict)
    """Text by path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderCopy:
    """A fresh copy of a folder, for each trial."""

    folder: str
    """As `Suite.resolve` finds it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageSource:
    """The source folder of an installed Python package, in place and read-only."""

    package: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GitCheckout:
    """A fresh checkout of one commit, for each trial, with a repository that knows this commit only.

    What came before and, above all, what came after, the solution perhaps, is not in it.
    """

    repository: str
    """A folder, as `Suite.resolve` finds it, or an address that git can fetch from."""
    commit: str
    """Its hash: at least seven digits, all forty for an address."""


Place = InlineFiles | FolderCopy | PackageSource | GitCheckout
"""The workspace of a trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A task with checks that tell whether it was done."""

    id: str
    goal: str
    checks: tuple[Check, ...]
    family: str = ""
    """Kind of task; summaries can be grouped by it."""
    place: Place = InlineFiles()
    tools: tuple[str, ...] | None = None
    """Names of the tools offered; `None` for the native tools that only read."""
    limits: dict[str, int | float | None] = field(default_factory=dict)
    """Any of `cycles`, `cost_usd`, `seconds`, `wall_seconds`, `tokens` and `messages`; the others as for any
    run.
    """
    approve: str = ""
    """Approval policy. Where empty: `auto` in a throw-away folder, `deny` in an installed package."""
    expected: Json = None
    """Handed to the checks; of the built-in ones `graded` shows it to the grader."""
    tags: tuple[str, ...] = ()
    weight: float = 1.0
    """How much the scenario counts in means over scenarios."""
    turns: tuple[str, ...] = ()
    """What the user says after `goal`, in the same conversation, each after the answer to the one before."""
    containment: str = ""
    """`on`, `strict` or `off`, see `runtime.security.containment`; the session's where empty."""
    before: tuple[str, ...] = ()
    """Goals that are run first in the same workspace, one after the other; what they did and taught is there
    for `goal`, which alone is judged.
    """
    notes: tuple[GivenNote, ...] = ()
    """What the memory of a trial has when it begins; only configurations with `learning` have one."""
    output: Mapping[str, Json] = field(default_factory=dict)
    """JSON Schema of the answer, where it has to be a value."""
    environment: Environment | None = None
    """Brings tools with a state of their own, in place of `tools`."""

    @property
    def policy(self) -> str:
        """The approval policy in force; nobody is asked anything during a suite."""
        return self.approve or ("deny" if isinstance(self.place, PackageSource) else "auto")

    def definition(self) -> dict[str, Json]:
        """Return all that a trial's outcome depends on: not family, tags and weight."""
        return {
            **self.task(),
            "checks": [check_definition(check) for check in self.checks],
            "expected": self.expected,
        }

    def task(self) -> dict[str, Json]:
        """Return all that a trial's run depends on: the definition without what only judges it."""
        own: dict[str, Json] = {
            "goal": self.goal,
            "place": {
                "kind": type(self.place).__name__,
                **{one.name: getattr(self.place, one.name) for one in fields(self.place)},
            },
            "tools": None if self.tools is None else list(self.tools),
            "limits": dict(self.limits),
            "approve": self.policy,
        }
        further: dict[str, Json] = {
            "turns": list(self.turns),
            "before": list(self.before),
            "notes": [note.definition() for note in self.notes],
            "containment": self.containment,
            "output": dict(self.output),
        }
        # Left out where not used, so that results stored before there were environments still stand.
        own |= {key: value for key, value in further.items() if value}
        return own | ({"environment": self.environment.definition()} if self.environment else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """One way to run the scenarios: a model and its settings."""

    name: str
    model: str = ""
    """As for any run; empty for the model that a run gets when none is named."""
    temperature: float | None = None
    seed: int | None = None
    """The model's seed in epoch 1; one more in each further epoch."""
    params: dict[str, Json] = field(default_factory=dict)
    """Further parameters of the model, see `core.messages.ModelParams`."""
    concurrency: int | None = None
    """Trials at once, where the suite's number is too many: a model on this machine runs best alone."""
    limits: dict[str, int | float | None] = field(default_factory=dict)
    """Replace those of the scenarios."""
    plan: str = ""
    """A shipped workflow by name, or a workflow file, as `resolve` finds it; empty for one agent that works
    on the goal.
    """
    inputs: dict[str, Json] = field(default_factory=dict)
    """Values of the workflow's inputs."""
    routes: dict[str, Json] = field(default_factory=dict)
    """Models by kind of work, with `otherwise`, in place of `model`."""
    tools: tuple[str, ...] | None = None
    """Tools in place of those of the scenarios."""
    verify: str = ""
    """How the claims of answers are verified, as for any run: `repair`, `judge` …; not at all where empty."""
    form: str = ""
    """The form that answers have to have, as for any run; none where empty."""
    learning: bool = False
    """Whether runs remember, and macros that they suggest are kept and offered; each trial begins with an
    empty memory of its own.
    """
    guidance: Guidance | None = None
    """The guidance files of the workspaces; where `None`, a workspace keeps those it has."""

    def definition(self) -> dict[str, Json]:
        """Return all that a trial's outcome depends on beside the name: not concurrency."""
        own: dict[str, Json] = {
            "model": self.model,
            "temperature": self.temperature,
            "seed": self.seed,
            "limits": dict(self.limits),
        }
        further: dict[str, Json] = {
            name: getattr(self, name)
            for name in ("params", "plan", "inputs", "routes", "learning", "verify", "form")
        }
        further["tools"] = None if self.tools is None else {"only": list(self.tools)}
        further["guidance"] = "" if self.guidance is None else self.guidance.digest
        # Left out where not used, so that results stored before there were plans still stand.
        return own | {key: value for key, value in further.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class CassetteUse:
    """Whether answers of real models are recorded, or come from recordings."""

    mode: CassetteMode = "off"
    folder: Path | None = None
    """Where they are; by default in `cassettes` beside the suite file, in a folder of the suite's name."""
    volatile: tuple[str, ...] = ()
    """Regular expressions of what is different each time in prompts and results, a duration perhaps: it is
    not a difference.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """Scenarios × configurations × epochs.

    Made in Python, or read by `kestrel_lab.evals.suites.loader.load_suite` from YAML, or from a Python file
    that defines one: what other processes run, a cluster or the commits of a repository, is always a file.
    Raises `UsageError` for names used twice, and where there is nothing to run.
    """

    name: str
    scenarios: tuple[Scenario, ...]
    configs: tuple[Config, ...] = (Config(name="default"),)
    epochs: int = 1
    concurrency: int = 4
    """Trials at once, over all configurations; the most calls at once that any endpoint gets.

    Fewer while it asks to slow down.
    """
    retry_errors: int = 0
    """How often a trial that broke is made again; one that failed is not."""
    count_errors: CountErrors = "fail"
    """Whether a trial that broke counts as failed or is left out of rates; its number is shown either way."""
    instructions: str = ""
    """Instructions for the model, added to the usual ones."""
    instructions_from: str = ""
    """A file that holds them."""
    tools_from: tuple[str, ...] = ()
    """Python files whose `@tool` objects the scenarios may name."""
    grader: str = ""
    """The model that judges for `graded` checks, as for a configuration; empty for the one a run gets when
    none is named.
    """
    gates: tuple[Gate, ...] = ()
    """Bounds that `kestrel eval gate` decides; no trial's outcome depends on them."""
    cassette: CassetteUse = CassetteUse()
    metrics: tuple[Metric, ...] = ()
    """Metrics of its own, made by `@metric`, beside the shipped ones; no trial's outcome depends on them."""
    path: Path | None = None
    """The suite file; what the suite names is looked for beside it."""
    root: Path | None = None
    """Top of the repository the suite is in; what is not beside the suite file is looked for here."""
    guidance_elsewhere: frozenset[str] = frozenset()
    """Paths that the guidance of configurations names which were not selected: a trial is the same whatever
    is run beside it.
    """
    otherwise: Suite | None = None
    """The same suite in another checkout, from which comes what this one lacks: a suite may be newer than the
    code it measures.
    """

    def __post_init__(self) -> None:
        _require_unique("scenario", [scenario.id for scenario in self.scenarios])
        _require_unique("metric", [metric.name for metric in self.metrics])
        _require_unique("configuration", [config.name for config in self.configs])
        if not self.scenarios or not self.configs:
            raise UsageError(
                f"suite {self.name!r} has no {'configurations' if self.scenarios else 'scenarios'}"
            )
        if self.epochs < 1 or self.concurrency < 1:
            raise UsageError(
                f"suite {self.name!r}: epochs and concurrency are at least 1, not {self.epochs} and "
                f"{self.concurrency}"
            )
        if self.retry_errors < 0:
            raise UsageError(f"suite {self.name!r}: retry_errors is at least 0, not {self.retry_errors}")

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What a notebook shows: what would be run, in a few lines."""
        trials = len(self.scenarios) * len(self.configs) * self.epochs
        sizes = (
            f"{len(self.scenarios)} scenarios × {len(self.configs)} configurations × {self.epochs} "
            f"epochs = {trials} trials"
        )
        lines = [
            f"suite {self.name}: {sizes}",
            *(f"  {one.name}: {one.model or 'the model of the lab'}" for one in self.configs),
        ]
        lines += [f"  {one.id}: {one_line(one.goal, 100)}" for one in self.scenarios]
        printer.text(sanitize_text("\n".join(lines)))

    def select(
        self,
        *,
        configs: Iterable[str] | None = None,
        scenarios: Iterable[str] | None = None,
        families: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        epochs: int | None = None,
    ) -> Suite:
        """Return the suite with the named parts only, without gates for configurations and families that are
        left out.

        A scenario has to be among those named, of one of the families and have one of the tags, as far as
        each is given; `*` and `?` in a name stand for any signs and any sign. Raises `UsageError` for a name
        that fits nothing the suite has, and when no scenario is left.
        """
        chosen = self
        if configs is not None:
            picked = tuple(_pick_known("configuration", configs, {c.name: c for c in self.configs}))
            left_out = {config.name for config in self.configs} - {config.name for config in picked}
            gates = tuple(gate for gate in self.gates if gate.config not in left_out)
            chosen = replace(chosen, configs=picked, gates=gates, guidance_elsewhere=self.guidance_paths)
        named = _chosen_names("scenario", scenarios, {scenario.id for scenario in self.scenarios})
        related = _chosen_names("family", families, {scenario.family for scenario in self.scenarios} - {""})
        tagged = _chosen_names("tag", tags, {tag for scenario in self.scenarios for tag in scenario.tags})
        if not named is related is tagged is None:
            left = tuple(
                scenario
                for scenario in self.scenarios
                if (named is None or scenario.id in named)
                and (related is None or scenario.family in related)
                and (tagged is None or tagged.intersection(scenario.tags))
            )
            if not left:
                raise UsageError(
                    f"no scenario of suite {self.name!r} matches all of the given names, families and tags"
                )
            kept = {scenario.family for scenario in left}
            chosen = replace(
                chosen,
                scenarios=left,
                gates=tuple(g for g in chosen.gates if not g.family or g.family in kept),
            )
        if epochs is not None:
            chosen = replace(chosen, epochs=epochs)
        return chosen

    def resolve(self, name: str) -> Path:
        """Return the file or folder that the suite calls `name`: beside the suite file, else from the top of
        its repository.

        With `otherwise` it is what that suite means by the name, at the same place of this checkout if it is
        there. Raises `UsageError` when it is nowhere, or is not inside the repository: a suite has to give
        the same results in another checkout.
        """
        if self.otherwise is not None:
            return self._here(self.otherwise.resolve(name))
        beside = self.path.parent if self.path else Path.cwd()
        places = [beside] if self.root is None or self.root == beside else [beside, self.root]
        if Path(name).is_absolute():
            msg = (
                f"suite {self.name!r} names {name!r}: write it relative to the suite file, so that it "
                "means the same in another checkout"
            )
            raise UsageError(msg)
        for place in places:
            found = place / name
            if found.exists():
                if self.root is not None and not found.resolve().is_relative_to(self.root.resolve()):
                    raise UsageError(
                        f"suite {self.name!r} names {name!r}, which is outside its repository {self.root}"
                    )
                return found
        msg = (
            f"suite {self.name!r} names {name!r}, which does not exist; looked in "
            f"{' and '.join(str(place) for place in places)}"
        )
        raise UsageError(msg)

    def _here(self, found: Path) -> Path:
        """Return the file or folder of this checkout that is at the place of one of the other checkout; the
        other where there is none.
        """
        other = None if self.otherwise is None else self.otherwise.root
        own = (
            self.root / found.relative_to(other)
            if self.root and other and found.is_relative_to(other)
            else found
        )
        return own if own.exists() else found

    def definition(self) -> dict[str, Json]:
        """Return what the outcome of every trial depends on beside its scenario and configuration."""
        own: dict[str, Json] = {
            "instructions": self.instructions,
            "instructions_from": self.instructions_from,
            "tools_from": list(self.tools_from),
        }
        # Left out where not used, so that results stored before there were graders still stand.
        # A trial that may have been replayed never stands for one that was not, nor the other way round.
        taped: dict[str, Json] = (
            {"cassette": self.cassette.mode} if self.cassette.mode in ("record", "replay") else {}
        )
        only_here = sorted(name for name in self.guidance_paths if not is_guidance(PurePosixPath(name)))
        removed: dict[str, Json] = {"guidance": list(only_here)} if only_here else {}
        return own | ({"grader": self.grader} if self.grader else {}) | taped | removed

    @property
    def guidance_paths(self) -> frozenset[str]:
        """Every path that the guidance of a configuration names: it is in no workspace of a configuration
        with other guidance.
        """
        return self.guidance_elsewhere.union(
            *(config.guidance.files for config in self.configs if config.guidance is not None)
        )


def _pick_known(what: str, names: Iterable[str], known: dict[str, _T]) -> Iterable[_T]:
    for name in names:
        if name not in known:
            raise UsageError(f"the suite has no {what} {name!r}; {did_you_mean(name, known)}")
        yield known[name]


def _chosen_names(what: str, asked: Iterable[str] | None, known: set[str]) -> set[str] | None:
    """Return those of `known` that are asked for; `None` when all are."""
    if asked is None:
        return None
    found: set[str] = set()
    for name in [asked] if isinstance(asked, str) else asked:
        fits = {name} & known or {one for one in known if fnmatchcase(one, name)}
        if not fits:
            raise UsageError(f"the suite has no {what} {name!r}; {did_you_mean(name, known)}")
        found |= fits
    return found


def _require_unique(what: str, names: list[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{what} names used twice: {', '.join(twice)}")
