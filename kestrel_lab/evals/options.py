"""Options of an eval run, and the selection of a part of a suite: declared once for `Lab` and the functions
behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Check, Model, Reporter

if TYPE_CHECKING:
    from kestrel_lab.evals.suite import Suite

Configs = Sequence[str] | Mapping[str, Any]
"""Names of a suite's configurations, or models by new names: a model's name, a model, or a `Config`."""

Rest = Literal["again", "direct"]
"""What becomes of requests that a batch did not answer: sent in another one, or asked directly."""


_AT_LEAST: Final = re.compile(r"at_least_([1-9]\d{0,3})")
REDUCERS: Final = ("mean", "mode", "max", "min", "at_least_K")
"""How the trials of a scenario become one: the share that passed, whether more than half did, one did, all
did, or at least K did.
"""


def least_passes(reducer: str) -> int:
    """Return the K of `at_least_K`, 1 for other reducers; raises `UsageError` for an unknown one."""
    if match := _AT_LEAST.fullmatch(reducer):
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

    suite: str | Path | Suite | None
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


class CompareOptions(Selection, total=False):
    """How two commits are compared."""

    epochs: int | None
    """How often each scenario is repeated; the suite's number by default."""
    reporter: Reporter | None
    margin: float
    """How large a change of the success rate counts as none, .05 by default."""
    own_suite: bool
    """Whether each commit runs the suite file that it has itself."""
    cassette: str | None
    """As in `EvalOptions`; recordings are those of each commit."""
    cassettes: str | Path | None
    from_divergence: bool
    """Whether both commits share the answers of models up to the first request in which they differ."""
    alone: bool
    """Whether a first commit, for which `auto` finds no base, is run by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """How a suite is run."""

    configs: Configs | None = None
    """Some of the suite's configurations, or others in their place; all by default."""
    scenarios: Sequence[str] | None = None
    families: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    epochs: int | None = None
    """How often each scenario is repeated; the suite's number by default."""
    reporter: Reporter | None = None
    """Called with the progress after each trial."""
    concurrency: int | None = None
    """Trials at once; the suite's number by default."""
    reuse: bool = False
    """Take stored trials with equal scenario, configuration and code instead of running them again; broken
    ones are run again.
    """
    outside_git: bool = False
    """With `reuse`, take stored trials of a suite that is in no git commit, too, though nothing tells whether
    its code changed.
    """
    keep: bool = False
    """Leave the trials' folders in `trials` under the session's home."""
    resume: bool = False
    """Go on with the last run of this suite: run only trials that are missing or whose scenario,
    configuration or code changed.
    """
    retry_errors: int | None = None
    """How often a trial that broke is repeated; the suite's number by default."""
    cassette: str | None = None
    """`record` the answers of real models as far as they are missing, `replay` them and never ask a model,
    `refresh` all of them, or `off`; as the suite says by default.
    """
    cassettes: str | Path | None = None
    """The folder of the recordings; by default `cassettes` beside the suite, in it one of the suite's name.
    """
    batch: bool = False
    """Ask models in batches, through the batch endpoints of their providers: for less money, answered within
    hours. A run that was cut off is taken up.
    """
    batch_above: int | None = None
    """Do so if there are more trials than this to run."""
    batch_rest: Rest = "again"

    @property
    def parts(self) -> Selection:
        """The scenarios that are meant."""
        return {"scenarios": self.scenarios, "families": self.families, "tags": self.tags}
