"""Options of measurements and the selection of a part of a suite, each declared once.

`Lab`, the functions behind it and the commands of `kestrel eval` take them from here: a field with a `Flag`
is an option of a command, too.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict, TypeVar, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Check, Model, Reporter
from kestrel_lab.evals.gate_bounds import FailOn
from kestrel_lab.runtime.options import Flag, Opt

if TYPE_CHECKING:
    from kestrel_lab.evals.suite import Suite

T = TypeVar("T")

Configs = Sequence[str] | Mapping[str, Any]
"""Names of a suite's configurations, or models by new names: a model's name, a model, or a `Config`."""

Rest = Literal["again", "direct"]
"""What becomes of requests that a batch did not answer: sent in another one, or asked directly."""


REDUCERS: Final = ("mean", "mode", "max", "min", "at_least_K")
"""How the trials of a scenario become one: the share that passed, whether more than half did, one did, all
did, or at least K did.
"""


def least_passes(reducer: str) -> int:
    """Return the K of `at_least_K`, 1 for other reducers; raises `UsageError` for an unknown one."""
    if match := re.fullmatch(r"at_least_([1-9]\d{0,3})", reducer):
        return int(match[1])
    if reducer not in REDUCERS[:-1]:
        raise UsageError(f"there is no reducer {reducer!r}: {', '.join(REDUCERS)}")
    return 1


def check_reducer(reducer: str) -> str:
    """Return the name of a reducer; raises `UsageError` for an unknown one."""
    least_passes(reducer)
    return reducer


GivenCheck = Check | str | dict[str, Any]
"""A check, or one as suite files write it."""


class RerunOptions(TypedDict, total=False):
    """What success is, who makes the re-runs, and what they may cost."""

    suite: "str | Path | Suite | None"
    """The suite of the trial, where its name does not find it, or one with a scenario of the run's goal."""
    checks: Sequence[GivenCheck]
    """What a re-run has to pass, in the place of the suite's checks."""
    model: str | Model | None
    """Another model than that of the run."""
    approve: str | None
    runs: float
    """The budget in runs like the one that failed."""
    cost: float | None
    """The budget in US dollars."""
    reporter: Reporter | None


class Selection(TypedDict, total=False):
    """The part of a suite that is meant, as `Suite.select` takes it; what is left out or `None` selects
    all.
    """

    configs: Sequence[str] | None
    """Names of configurations."""
    scenarios: Sequence[str] | None
    """Ids of scenarios; `*` and `?` match as in file names."""
    families: Sequence[str] | None
    tags: Sequence[str] | None
    """Scenarios with one of these tags."""


def take_options(options: type[T], given: dict[str, Any]) -> T:
    """Take the options of a dataclass out of what was `given`, and return them as one."""
    names = [one.name for one in fields(cast("Any", options)) if one.name in given]
    return options(**{name: given.pop(name) for name in names})


def parts_of(options: Mapping[str, Any]) -> Selection:
    """Return the options that select a part of a suite."""
    return cast("Selection", {name: options.get(name) for name in Selection.__annotations__})


class StoredSelection(Selection, total=False):
    """Stored trials of a suite."""

    commit: str | None
    """Trials of this commit; by default those of the commit that was tried last."""


class SummaryOptions(StoredSelection, total=False):
    """What a summary of stored trials shows."""

    by: Annotated[str, Opt("config", "config, family, scenario or any column of a frame")]
    metrics: Annotated[Sequence[str], Opt((), "the metrics to show; a choice of them by default")]
    tries: Annotated[bool, Opt(False, "whether pass@k and pass^k are shown for every k")]


class CompareOptions(Selection, total=False):
    """How two commits are compared."""

    epochs: int | None
    """How often each scenario is repeated; the suite's number by default."""
    reporter: Reporter | None
    margin: float
    """How large a change of the success rate counts as none, .05 by default."""
    own_suite: bool | None
    """Whether each commit runs the suite file that it has itself; by default where the goals or instructions
    in it are not those of the present file.
    """
    cassette: str | None
    """As in `EvalOptions`; recordings are those of each commit."""
    cassettes: str | Path | None
    from_divergence: bool
    """Whether both commits share the answers of models up to the first request in which they differ."""
    alone: bool
    """Whether a first commit, for which `auto` finds no base, is run by itself."""
    fail_on: FailOn
    """What ends with an exit code other than 0, beside bounds that do not hold: `worse`, the default, what is
    shown to be worse; `uncertain`, also where these trials do not tell; `any`, any change of a rate.
    """


def read_rubric(rubric: str) -> str:
    """Return a rubric, read from a file where it begins with @."""
    if not rubric.startswith("@"):
        return rubric
    try:
        return Path(rubric[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the rubric {rubric[1:]} cannot be read: {error}") from error


_RUBRIC: Final = Opt(
    "",
    "what an answer has to be like; by default the rubric of the labels, else that of the suite's graded "
    "checks",
    flag=Flag(metavar="TEXT|@FILE", parse=read_rubric),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelOptions:
    """Which trials are drawn to be labelled, and by what rubric."""

    number: Annotated[
        int, Opt(50, "how many trials are drawn", flag=Flag("--number -n", kind=int, least=1))
    ] = 50
    who: Annotated[str, Opt("", "who labels; by default the login name", flag=Flag())] = ""
    rubric: Annotated[str, _RUBRIC] = ""
    seed: Annotated[int, Opt(0, "seed of the draw", flag=Flag(kind=int))] = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeOptions:
    """How judges are asked about trials."""

    rubric: Annotated[str, _RUBRIC] = ""
    rounds: Annotated[int, Opt(1, "ask each judge N times", flag=Flag(metavar="N", kind=int, least=1))] = 1
    swap: Annotated[
        bool,
        Opt(
            False,
            "ask once more with rubric, goal and answer in the reverse order",
            flag=Flag("--swap", kind=bool),
        ),
    ] = False
    labelled: Annotated[
        bool, Opt(False, "ask about labelled trials only", flag=Flag("--labelled", kind=bool))
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationOptions:
    """What is left out of a guidance file, and how many trials are made: `budget` or `cost` is required."""

    unit: Annotated[
        str,
        Opt(
            "paragraph",
            "what is left out: paragraph, section, or item (a paragraph or an item of a list)",
            flag=Flag(),
        ),
    ] = "paragraph"
    ref: Annotated[
        str,
        Opt("", "take the file from this commit; by default as it is now", flag=Flag(metavar="COMMIT")),
    ] = ""
    budget: Annotated[
        int | None,
        Opt(None, "run N trials at most; stored ones count", flag=Flag(metavar="N", kind=int, least=1)),
    ] = None
    cost: Annotated[
        float | None,
        Opt(None, "begin no trial after these have cost so much", flag=Flag(metavar="USD", kind=float)),
    ] = None
    margin: Annotated[
        float,
        Opt(0.05, "the largest change of the success rate that counts as no change", flag=Flag(kind=float)),
    ] = 0.05
    resume: Annotated[
        bool,
        Opt(
            False,
            "take stored trials also where the suite is not in a git commit",
            flag=Flag("--resume", kind=bool),
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitSample:
    """Which of some commits are looked at."""

    every: Annotated[
        int,
        Opt(
            1,
            "of these commits only every N-th, counted from the newest",
            flag=Flag(metavar="N", kind=int),
        ),
    ] = 1
    last: Annotated[
        int | None, Opt(None, "of these commits only the N newest", flag=Flag(metavar="N", kind=int))
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryOptions(CommitSample):
    """Which commits a history has, and what it shows of them."""

    configs: Sequence[str] | None = None
    metric: str = "success_rate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The options of `Selection`, as commands take them."""

    configs: Annotated[
        Configs | None,
        Opt(
            None,
            "only this configuration of the suite; may be repeated",
            "In Python also others in their place, by name.",
            flag=Flag("--config -c", kind=list[str]),
        ),
    ] = None
    scenarios: Annotated[
        Sequence[str] | None,
        Opt(
            None,
            "only this scenario (* and ? as in file names); may be repeated",
            flag=Flag("--scenario", "ID", list[str]),
        ),
    ] = None
    families: Annotated[
        Sequence[str] | None,
        Opt(None, "only scenarios of this family; may be repeated", flag=Flag("--family", kind=list[str])),
    ] = None
    tags: Annotated[
        Sequence[str] | None,
        Opt(None, "only scenarios with this tag; may be repeated", flag=Flag("--tag", kind=list[str])),
    ] = None

    @property
    def parts(self) -> Selection:
        """The scenarios that are meant."""
        return {"scenarios": self.scenarios, "families": self.families, "tags": self.tags}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOptions(Parts):
    """Which trials are made, and whether models are asked for them."""

    epochs: Annotated[
        int | None,
        Opt(
            None,
            "how often each scenario is repeated; the suite's number by default",
            flag=Flag(kind=int),
        ),
    ] = None
    cassette: Annotated[
        str | None,
        Opt(
            None,
            "record (missing answers of models are recorded), replay (models are never asked), refresh or "
            "off",
            "As the suite says by default. Only the answers of real models are recorded.",
            flag=Flag(metavar="MODE"),
        ),
    ] = None
    cassettes: Annotated[
        str | Path | None,
        Opt(
            None,
            "folder of the recordings; by default cassettes/NAME beside the suite",
            flag=Flag(metavar="DIR", kind=Path),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions(TrialOptions):
    """How a suite is run."""

    reporter: Reporter | None = None
    """Called with the progress after each trial."""
    concurrency: int | None = None
    """Trials at once; the suite's number by default."""
    reuse: Annotated[
        bool,
        Opt(
            False,
            "reuse stored trials whose scenario, configuration and code are the same instead of running "
            "them again",
            "Broken ones are run again.",
            flag=Flag("--reuse", kind=bool),
        ),
    ] = False
    outside_git: bool = False
    """With `reuse`, take stored trials of a suite that is in no git commit, too, though nothing tells whether
    its code changed.
    """
    keep: bool = False
    """Leave the trials' folders in `trials` under the session's home."""
    resume: Annotated[
        bool,
        Opt(
            False,
            "continue the last run of this suite where it was interrupted",
            "Only trials that are missing or whose scenario, configuration or code changed are run.",
            flag=Flag("--resume", kind=bool),
        ),
    ] = False
    retry_errors: Annotated[
        int | None,
        Opt(
            None,
            "how often a trial that failed with an error is repeated; the suite's number by default",
            flag=Flag(kind=int, least=0),
        ),
    ] = None
    early_stopping: Annotated[
        bool | None,
        Opt(
            None,
            "end a trial as soon as its checks cannot pass any more; as the suite says by default",
            flag=Flag("--early-stopping/--whole-trials", kind=bool),
        ),
    ] = None
    batch: Annotated[
        bool,
        Opt(
            False,
            "ask models in batches: cheaper, answered within hours. Stop it when you like: the same "
            "command goes on",
            flag=Flag("--batch", kind=bool),
        ),
    ] = False
    batch_above: Annotated[
        int | None,
        Opt(
            None,
            "the same if more than N trials are to be run",
            flag=Flag(metavar="N", kind=int, least=0),
        ),
    ] = None
    batch_rest: Annotated[
        Rest,
        Opt(
            "again",
            "what a batch did not answer is sent again, or asked directly at the full price",
            flag=Flag(metavar="HOW", kind=Rest),
        ),
    ] = "again"
