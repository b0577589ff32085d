"""Metrics: pure functions from the events of one run to one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from kestrel_lab.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    CacheHit,
    ModelAnswered,
    ModelCalled,
    Record,
    RunForked,
    RunResumed,
    ToolAnswered,
)

Records = Sequence[Record]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number of a run, and which way it is better."""

    name: str
    unit: str
    better: Literal["lower", "higher"]
    function: Callable[[Records], float]


def wall_time(records: Records) -> float:
    """Seconds from the first to the last event."""
    return records[-1].at - records[0].at if records else 0.0


def waiting_time(records: Records) -> float:
    """Seconds in which at least one call waited for a person, or nobody had the run open.

    Time between the end of one session and `run_resumed` is nobody's working time either, nor is that
    between an event and a fork behind it.
    """
    total = 0.0
    asked: set[str] = set()
    for before, record in pairwise(records):
        match before.event:
            case ApprovalAsked(question=question, call=call):
                asked.add(question or call)
            case ApprovalGiven(question=question, call=call):
                asked.discard(question or call)
        if asked or isinstance(record.event, RunResumed | RunForked):
            total += record.at - before.at
        if isinstance(record.event, RunForked):
            asked.clear()
    return total


def working_time(records: Records) -> float:
    """Wall time without the time of waiting for a person."""
    return wall_time(records) - waiting_time(records)


def queued_time(records: Records) -> float:
    """Seconds that tool calls waited for their turn, added up over calls."""
    return sum(record.event.queued for record in records if isinstance(record.event, ToolAnswered))


def tokens_in(records: Records) -> float:
    """Tokens read by models; answers from a store cost none."""
    return sum(answer.tokens_in for answer in _model_answers(records))


def tokens_out(records: Records) -> float:
    """Tokens written by models."""
    return sum(answer.tokens_out for answer in _model_answers(records))


def token_usage(records: Records) -> float:
    """Tokens read and written."""
    return tokens_in(records) + tokens_out(records)


def model_calls(records: Records) -> float:
    """Calls that a model answered or failed to."""
    return len(_model_answers(records))


def tool_calls(records: Records) -> float:
    """Tool calls that the model asked for and got an answer to: a result, a cached result, or an error."""
    return sum(isinstance(record.event, ToolAnswered) for record in records)


def cost_estimate(records: Records) -> float:
    """Money for model calls whose price is known; `unpriced_calls` says how many are left out."""
    return sum(answer.cost_usd or 0.0 for answer in _model_answers(records))


def unpriced_calls(records: Records) -> float:
    """Model calls that `cost_estimate` knows no price of."""
    return sum(answer.cost_usd is None and answer.error is None for answer in _model_answers(records))


def cache_hits(records: Records) -> float:
    """Calls that were answered from a store."""
    return sum(isinstance(record.event, CacheHit) for record in records)


def cycles(records: Records) -> float:
    """Turns of the agent's loop, over all steps of the plan."""
    return len({(record.event.step, record.event.cycle) for record in records if isinstance(record.event, ModelCalled)})


def _model_answers(records: Records) -> list[ModelAnswered]:
    return [
        record.event for record in records if isinstance(record.event, ModelAnswered) and not (record.event.cached or record.event.given)
    ]


METRICS: Final[dict[str, Metric]] = {
    function.__name__: Metric(name=function.__name__, unit=unit, better="higher" if function is cache_hits else "lower", function=function)
    for function, unit in (
        (wall_time, "s"),
        (working_time, "s"),
        (waiting_time, "s"),
        (queued_time, "s"),
        (token_usage, "tokens"),
        (tokens_in, "tokens"),
        (tokens_out, "tokens"),
        (model_calls, "calls"),
        (tool_calls, "calls"),
        (cost_estimate, "USD"),
        (unpriced_calls, "calls"),
        (cache_hits, "calls"),
        (cycles, "turns"),
    )
}
"""Every metric by its name, which is its column in a frame. A new one is a function and a line here."""


def measure(records: Records) -> dict[str, float]:
    """All metrics of the run that `records` tell of, in the order of `METRICS`."""
    return {name: float(metric.function(records)) for name, metric in METRICS.items()}
