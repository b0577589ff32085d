"""Metrics: pure functions from the events of one run to one number."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, overload

from kestrel_lab.answers.confidence import stated_confidence
from kestrel_lab.core.errors import CheckError, UsageError, error_boundary
from kestrel_lab.core.events import union as e
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import plain_number
from kestrel_lab.core.usage import (
    MeteredRecords,
    UsageMeter,
    events_of_type,
    usage_of_run,
    waiting_time,
    wall_time,
    working_time,
)
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.verification.engine import CHECKS

# What a look at answers found questionable, counted by kind: made-up files, names, numbers and so on,
# configuration by configuration.
#
# Answers of trials are looked at where the configuration says `verify: warn` or more. A trial that was not
# looked at, or did not reach an answer, is in no rate: nothing found and nobody looked are not the same.

PREFIX: Final = "concerns:"
_KIND: Final = {check.__name__: kind for kind, checks in CHECKS.items() for check in checks}
KINDS: Final = tuple(dict.fromkeys(_KIND.values()))
"""`files`, `citations`, `quotes` and `deeds`, as `verification.engine.CHECKS` has them."""
CONCERN_COLUMNS: Final = ("config", "kind", "share", "low", "high", "trials")


def review_concerns(records: Iterable[e.Record]) -> list[dict[str, Any]] | None:
    """Return the concerns of the review of the run's answer, those of a known kind; `None` where it was not
    reviewed.
    """
    end = next(iter(events_of_type(records, e.RunFinished)), None)
    if end is None or not end.looked:
        return None
    return [one for one in end.concerns if one.get("check") in _KIND]


def concerns(records: Iterable[e.Record]) -> float:
    """Return the number of concerns about the answer that are not minor; `nan` where it was not reviewed."""
    found = review_concerns(records)
    return math.nan if found is None else sum(one.get("severity") != "minor" for one in found)


def concern_kinds(records: Iterable[e.Record]) -> dict[str, float]:
    """Return for each kind, as `concerns:KIND`, 1 if there is a concern of it, a minor one too, else 0; empty
    where the answer was not reviewed.
    """
    found = review_concerns(records)
    if found is None:
        return {}
    kinds = {_KIND[str(one["check"])] for one in found}
    return {f"{PREFIX}{kind}": float(kind in kinds) for kind in KINDS}


def concern_rates(rows: Iterable[EvalRow], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one record per configuration and kind: the share of its reviewed trials with any such concern.

    `records` are those of `Reducer.grouped` for the rows. Raises `UsageError` where no answer was looked at.
    """
    looked = Counter(row.config for row in rows if "concerns" in row.metrics)
    rates = [
        {
            "config": record["config"],
            "kind": name.removeprefix(PREFIX),
            "share": record[name],
            "low": record[f"{name}_low"],
            "high": record[f"{name}_high"],
            "trials": looked[record["config"]],
        }
        for record in records
        for name in record
        if name.startswith(PREFIX) and not name.endswith(("_low", "_high")) and not math.isnan(record[name])
    ]
    if not rates:
        raise UsageError(
            "no answer of these trials was verified: write `verify: warn` into their configurations "
            "and run them again"
        )
    return rates


Records = Sequence[e.Record]
Better = Literal["lower", "higher"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number of a run, and which way it is better."""

    name: str
    unit: str
    better: Better
    function: Callable[[Records], float]
    """`nan` where the run says nothing of it."""
    least: float = 0.0
    """The smallest difference that anybody would care about, in its unit."""

    def __call__(self, records: Records) -> float:
        """Return the metric of a run; raises `CheckError` that names it for what its function raises, and for
        what is no number.
        """
        with error_boundary(CheckError, f"the metric {self.name!r}"):
            value: object = self.function(records)
            if (number := plain_number(value)) is not None and not math.isinf(number):
                return float(number)
            # Closed, or Python warns that nobody awaited it.
            if inspect.iscoroutine(value):
                value.close()
            raise ValueError(
                f"it returned {one_line(repr(value))}; a metric returns a finite number, or nan where "
                "a run has none"
            )

    @property
    def clock(self) -> bool:
        """Whether it depends on how fast the machine and the provider were at that time."""
        return self.unit == "s" or self.name == "parallel_speedup"


def queued_time(records: Records) -> float:
    """Seconds that calls of tools and models waited for their turn, added up over calls."""
    tools = sum(event.queued for event in events_of_type(records, e.ToolAnswered))
    return tools + sum(event.queued for event in events_of_type(records, e.ModelAnswered))


def tokens_in(records: Records) -> float:
    """Tokens read by models; answers from a store cost none."""
    return usage_of_run(records).usage.tokens_in


def tokens_out(records: Records) -> float:
    """Tokens written by models."""
    return usage_of_run(records).usage.tokens_out


def token_usage(records: Records) -> float:
    """Tokens read and written."""
    return usage_of_run(records).usage.tokens


def model_calls(records: Records) -> float:
    """Calls that a model answered or failed to."""
    return usage_of_run(records).usage.model_calls


def tool_calls(records: Records) -> float:
    """Tool calls that the model asked for and got an answer to: a result, a cached result, or an error."""
    return usage_of_run(records).usage.tool_calls


def cost_estimate(records: Records) -> float:
    """Money for model calls whose price is known; `unpriced_calls` says how many are left out."""
    return usage_of_run(records).usage.cost_usd


def unpriced_calls(records: Records) -> float:
    """Model calls that `cost_estimate` knows no price of."""
    return usage_of_run(records).usage.unpriced


def cache_hits(records: Records) -> float:
    """Calls that were answered from a store."""
    return len(events_of_type(records, e.CacheHit))


def cycles(records: Records) -> float:
    """Turns of the agent's loop, over all steps of the plan."""
    return len({(event.step, event.cycle) for event in events_of_type(records, e.ModelCalled)})


def iterations_per_step(records: Records) -> float:
    """Turns of the agent's loop for each step that asked a model at all."""
    steps = {event.step for event in events_of_type(records, e.ModelCalled)}
    return _share(cycles(records), len(steps))


def cache_hit_rate(records: Records) -> float:
    """The share of answers that came from a store, of those that might have: hits by hits and misses; what is
    never stored counts as neither.
    """
    meter = usage_of_run(records)
    return _share(meter.hits, meter.lookups)


def parallel_speedup(records: Records) -> float:
    """How many calls were under way at once, on average over the time in which any was.

    The seconds of all calls, added up, over the seconds in which at least one of them ran: 1 for calls one
    after the other. A call of a macro is left out, since the calls it is made of are counted.
    """
    macros = {event.call for event in events_of_type(records, e.MacroStarted)}
    spans = sorted(
        (at - event.seconds, at)
        for at, event in _answers(records)
        if event.call not in macros and event.seconds > 0
    )
    covered, reached = 0.0, -math.inf
    for start, end in spans:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return _share(sum(end - start for start, end in spans), covered)


def backoff_time(records: Records) -> float:
    """Seconds that steps and model calls waited before they were tried again, added up."""
    steps = sum(event.wait_s for event in events_of_type(records, e.StepRetried))
    return steps + sum(event.backoff for event in events_of_type(records, e.ModelAnswered))


def verifier_pass_rate(records: Records) -> float:
    """The share of verdicts on answers that were a pass."""
    verdicts = [event.passed for event in events_of_type(records, e.VerifierFinished)]
    return _share(sum(verdicts), len(verdicts))


def confidence(records: Records) -> float:
    """The confidence of the answer, see `answers.confidence`; `nan` where nothing states one."""
    found = stated_confidence(
        [*events_of_type(records, e.VerifierFinished), *events_of_type(records, e.RunFinished)]
    )
    return math.nan if found is None else found.value


def escalations(records: Records) -> float:
    """How often another model took over."""
    return len(events_of_type(records, e.ModelEscalated))


def stages_failed(records: Records) -> float:
    """Stages of which a step failed for good; one that passed when it was tried again does not count."""
    return len(
        {event.stage for event in events_of_type(records, e.StageFinished) if event.status == "failed"}
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _answers(records: Records) -> list[tuple[float, e.ModelAnswered | e.ToolAnswered]]:
    """When each call was answered, and how; what was given by hand in a fork is left out."""
    return [
        (record.at, record.event)
        for record in records
        if isinstance(record.event, e.ModelAnswered | e.ToolAnswered) and not record.event.given
    ]


_LISTED: Final[tuple[tuple[Callable[[Records], float], str, Better], ...]] = (
    (wall_time, "s", "lower"),
    (working_time, "s", "lower"),
    (waiting_time, "s", "lower"),
    (queued_time, "s", "lower"),
    (backoff_time, "s", "lower"),
    (token_usage, "tokens", "lower"),
    (tokens_in, "tokens", "lower"),
    (tokens_out, "tokens", "lower"),
    (model_calls, "calls", "lower"),
    (tool_calls, "calls", "lower"),
    (cost_estimate, "USD", "lower"),
    (unpriced_calls, "calls", "lower"),
    (cache_hits, "calls", "higher"),
    (cache_hit_rate, "share", "higher"),
    (parallel_speedup, "calls at once", "higher"),
    (cycles, "turns", "lower"),
    (iterations_per_step, "turns", "lower"),
    (verifier_pass_rate, "share", "higher"),
    (confidence, "share", "higher"),
    (concerns, "concerns", "lower"),
    (escalations, "models", "lower"),
    (stages_failed, "stages", "lower"),
)
_LEAST: Final = {"s": 0.05, "USD": 0.0001}
"""Differences below these are noise of the machine, or less money than anybody would care about."""
METRICS: Final[dict[str, Metric]] = {
    function.__name__: Metric(
        name=function.__name__, unit=unit, better=better, function=function, least=_LEAST.get(unit, 0.0)
    )
    for function, unit, better in _LISTED
}
"""Every metric by its name, which is its column in a frame. A new one is a function and a line above."""


def measure_run(records: Records, meter: UsageMeter | None = None) -> dict[str, float]:
    """Return the metrics of a run in the order of `METRICS`; those that the run has no value of are left out.

    Behind them `concerns:KIND` for each kind, where the answer was reviewed. `meter` is that of the run's
    state, where somebody has it: it is summed from the records otherwise.
    """
    records = MeteredRecords(records)
    if meter is not None:
        records.meter = meter
    measured = {name: float(metric.function(records)) for name, metric in METRICS.items()} | concern_kinds(
        records
    )
    return {name: value for name, value in measured.items() if not math.isnan(value)}


def own_metrics(records: Records, metrics: Iterable[Metric]) -> tuple[dict[str, float], list[str]]:
    """Return the values of a suite's own metrics, and why others gave none; those that the run has no value
    of are in neither.
    """
    records, values, unusable = MeteredRecords(records), dict[str, float](), list[str]()
    for one in metrics:
        try:
            values[one.name] = one(records)
        except CheckError as error:
            unusable.append(str(error))
    return {name: value for name, value in values.items() if not math.isnan(value)}, unusable


@overload
def metric(function: Callable[[Records], float], /) -> Metric: ...


@overload
def metric(
    *, unit: str = "", better: Better = "higher"
) -> Callable[[Callable[[Records], float]], Metric]: ...


def metric(
    function: Callable[[Records], float] | None = None, /, *, unit: str = "", better: Better = "higher"
) -> object:
    """Make a metric of a function from the records of a run to one number; `Suite(metrics=(…,))` measures it
    in each trial.

    Its name is the function's, its column in frames; `nan` says that a run has no value of it. What it raises
    breaks the trial. Raises `UsageError` for a name that a shipped metric has.
    """

    def made(function: Callable[[Records], float]) -> Metric:
        name = function.__name__
        if name in METRICS or name in ("success_rate", "error_rate", "score"):
            raise UsageError(f"there is a metric {name!r} already: give the function another name")
        return Metric(name=name, unit=unit, better=better, function=function)

    return made if function is None else made(function)
