"""Usage of a run: tokens, money, calls, turns and seconds, folded from its events in one place; and the idle
time of a call.

The state of a run, its view, the list of runs and the metrics of trials all sum with `UsageMeter`, so they
cannot disagree.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from msgspec.structs import replace

from kestrel_lab.core.calls import PREVIEWING, Usage
from kestrel_lab.core.events.labels import Annotation
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    FilesApplied,
    KernelPreviewed,
    KernelUndone,
    ModelAnswered,
    ModelCalled,
    Record,
    RunForked,
    RunResumed,
    RunStarted,
    StateTransition,
    StepRetried,
    ToolAnswered,
)
from kestrel_lab.core.run_types import TERMINAL, RunStatus

E = TypeVar("E")
_SESSION_BEGINS = (RunResumed, RunForked)
_BESIDE_THE_RUN = (Annotation, KernelUndone, FilesApplied)
"""What people and judges do to a run, in any session, often long after its end: no time of the run."""
_UNMETERED: set[type] = set()
"""Types of events of which only the time counts, as `UsageMeter.take` found out."""


@dataclass(kw_only=True, slots=True)
class UsageMeter:
    """The usage of a run after the events taken so far.

    An answer that was given by hand in a fork, or that a store gave, costs nothing and is not a call of a
    model. Time passes once: it is worked, waited for a person, idle, or away.
    """

    usage: Usage = Usage()  # frozen, so shared
    """Tokens, money and calls."""
    hits: int = 0
    """Answers that came from a store, of those that might have:"""
    lookups: int = 0
    turns: int = 0
    """Model turns that began, those left out that a fork asks again."""
    asking: set[str] = field(default_factory=set)
    """Steps whose model has not answered yet."""
    questions: set[str] = field(default_factory=set)
    """Questions that nobody has answered yet."""
    status: str = ""
    took_s: float = 0.0
    """Seconds from the run's start, or from its fork, to its end: waiting for a person and the time between
    sessions apart. This is the time that every list, panel, page and report of runs shows.
    """
    working_s: float = 0.0
    """Seconds of work, with all that a fork inherits: what the limit `seconds` counts."""
    waiting_s: float = 0.0
    """Seconds in which at least one question waited for a person."""
    idle_s: float = 0.0
    """Seconds that calls or steps waited for a turn or an attempt; overlapping waits count once."""
    away_s: float = 0.0
    """Seconds between sessions, and between an event and a fork behind it."""
    idle_until: float = 0.0
    """The time up to which idle time is counted; in the future while a step waits for its next attempt."""
    last_at: float | None = None
    whole_tokens: bool = False
    """Whether the tokens of an imported run are those that its recording tells of the whole."""
    whole_cost: bool = False
    """Whether its cost is."""

    @property
    def counting_since(self) -> float:
        """Since when time passes that is in no sum yet, in seconds since 1970; 0 while the run waits for a
        person, and at its end.
        """
        rests = self.status == RunStatus.WAITING_APPROVAL or self.status in TERMINAL
        return 0.0 if rests else self.last_at or 0.0

    def take(self, event: Event, at: float) -> None:  # one case per event  # noqa: C901
        """Take in an event that happened `at` seconds since 1970."""
        if isinstance(event, _BESIDE_THE_RUN):
            return
        last = at if self.last_at is None else self.last_at
        # A decision is taken in once it is on disk, maybe after later events; and clocks jump.
        until = max(last, at)
        if isinstance(event, _SESSION_BEGINS):
            # What follows an imported run is counted call by call.
            self.whole_tokens = self.whole_cost = False
            self.away_s += until - last
            if isinstance(event, RunForked):
                self.took_s = 0.0
            # A session begins its own clock.
            last = until = self.idle_until = at
        self.last_at = until
        # A log without transitions, one made by hand for instance, says by its questions alone that the run
        # waits.
        if self.status == RunStatus.WAITING_APPROVAL if self.status else self.questions:
            self.waiting_s += until - last
        else:
            self.took_s += until - last
            paused = min(until, self.idle_until) - last if self.idle_until > last else 0.0
            if type(event) in _PREVIEWS:
                paused = max(paused, min(_previewing(event), until - last))
            self.idle_s += paused
            self.working_s += until - last - paused
        if type(event) in _UNMETERED:
            return
        match event:
            case RunStarted():
                self._take_whole_usage(event)
            case ModelCalled():
                self.turns += 1
                self.asking.add(event.step)
            case ModelAnswered():
                self._model_answered(event, at)
            case ToolAnswered():
                self.usage = replace(self.usage, tool_calls=self.usage.tool_calls + 1)
                if not event.given:
                    self.hits += event.cached
                    self.lookups += event.cacheable or event.cached
            case ApprovalAsked():
                self.questions.add(event.question or event.call)
            case ApprovalGiven():
                self.questions.discard(event.question or event.call)
            case StateTransition():
                self.status = event.target
            case StepRetried():
                self.asking.discard(event.step)
                self.idle_until = max(self.idle_until, at + event.wait_s)
            case RunForked():
                self.questions.clear()
                self.turns -= len(self.asking)
                self.asking.clear()
            case _:  # no case above has a condition beside the type, so this holds for all of the type
                _UNMETERED.add(type(event))

    def _take_whole_usage(self, event: RunStarted) -> None:
        """Take what another tool recorded of the whole run: it is counted in place of what its calls tell."""
        recorded = event.imported.get("usage")
        whole: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
        if "tokens_in" in whole and "tokens_out" in whole:
            self.whole_tokens = True
            self.usage += Usage(
                tokens_in=whole["tokens_in"],
                tokens_out=whole["tokens_out"],
                tokens_cached=whole.get("tokens_cached", 0),
            )
        if "cost_usd" in whole:
            self.whole_cost = True
            self.usage += Usage(cost_usd=whole["cost_usd"])

    def _model_answered(self, event: ModelAnswered, at: float) -> None:
        self.asking.discard(event.step)
        idle = min(idle_before(event, at, self.idle_until), self.working_s)
        if idle > 0:
            self.working_s -= idle
            self.idle_s += idle
            self.idle_until = max(self.idle_until, at)
        if event.given:
            return
        self.hits += event.cached
        self.lookups += event.cached
        if event.cached:
            return
        if self.whole_tokens:
            event = replace(event, **_NO_TOKENS, metered=True)
        if self.whole_cost:
            event = replace(event, cost_usd=0.0)
        self.usage += Usage(
            model_calls=1,
            tokens_in=event.tokens_in,
            tokens_out=event.tokens_out,
            tokens_cached=event.tokens_cached,
            tokens_cache_written=event.tokens_cache_written,
            tokens_reasoning=event.tokens_reasoning,
            cost_usd=event.cost_usd or 0.0,
            unpriced=int(event.cost_usd is None and event.error is None),
            unmetered=int(not event.metered),
        )


_NO_TOKENS: dict[str, int] = dict.fromkeys(
    ("tokens_in", "tokens_out", "tokens_cached", "tokens_cache_written", "tokens_reasoning"), 0
)
_PREVIEWS = (KernelPreviewed, ApprovalAsked)


def _previewing(event: Event) -> float:
    """Return for how long a preview was waited for before an event: looking ahead is no work of the run."""
    match event:
        case KernelPreviewed():
            return event.seconds
        case ApprovalAsked(preview=preview) if preview == PREVIEWING:
            return math.inf
    return 0.0


def idle_before(event: ModelAnswered, at: float, until: float) -> float:
    """Return the uncounted seconds that the call answered `at` waited; time is counted up to `until`."""
    return max(0.0, min(event.queued + event.backoff, at - max(at - event.seconds, until)))


class MeteredRecords(tuple[Record, ...]):  # it keeps the sum  # noqa: SLOT001
    """Records of a run; usage and events by type are computed once, however many metrics ask."""

    @cached_property
    def meter(self) -> UsageMeter:
        """The usage of the run."""
        return usage_of_run(tuple(self))

    @cached_property
    def by_type(self) -> dict[type, list[Any]]:
        """The events by their type, in order."""
        found = defaultdict[type, list[Any]](list)
        for record in self:
            found[type(record.event)].append(record.event)
        return found


def events_of_type(records: Iterable[Record], kind: type[E]) -> list[E]:
    """Return the events of one type, in order."""
    if isinstance(records, MeteredRecords):
        return records.by_type.get(kind, [])
    return [record.event for record in records if isinstance(record.event, kind)]


def usage_of_run(records: Iterable[Record]) -> UsageMeter:
    """Return the usage of the run that `records` are the log of."""
    if isinstance(records, MeteredRecords):
        return records.meter
    meter = UsageMeter()
    for record in records:
        meter.take(record.event, record.at)
    return meter


def wall_time(records: Sequence[Record]) -> float:
    """Return the seconds from the first to the last event; an undo or a label after the end adds none."""
    meter = usage_of_run(records)
    return meter.working_s + meter.waiting_s + meter.idle_s + meter.away_s


def waiting_time(records: Sequence[Record]) -> float:
    """Return the seconds in which at least one call waited for a person, or nobody had the run open."""
    meter = usage_of_run(records)
    return meter.waiting_s + meter.away_s


def working_time(records: Sequence[Record]) -> float:
    """Return wall time without waiting for a person, an endpoint or the next attempt."""
    return usage_of_run(records).working_s


# Seconds in which a model call did nothing but wait: for its turn at the endpoint, and between its attempts.


def _no_pause(_seconds: float = 0.0) -> None:
    """Do nothing, where no clock has to be held."""


@dataclass(kw_only=True, slots=True)
class IdleTime:
    """The idle time of one call so far."""

    queued: float = 0.0
    """Before it was made at all, because others were under way."""
    backoff: float = 0.0
    """Between its attempts, because the one before had failed or was refused."""
    hold: Callable[[], None] = _no_pause
    """Called when it begins to wait."""
    release: Callable[[], None] = _no_pause
    """Called when it goes on."""
    give_back: Callable[[float], None] = _no_pause
    """Called with seconds that turn out afterwards not to have been work."""

    def lose(self, seconds: float) -> None:
        """Count the seconds of an attempt that the endpoint let fail: they were no work of the agent."""
        self.backoff += seconds
        self.give_back(seconds)

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """Count the block as waiting for a turn."""
        began = time.monotonic()
        self.hold()
        try:
            yield
        finally:
            self.release()
            self.queued += time.monotonic() - began

    @contextmanager
    def backing_off(self) -> Iterator[None]:
        """Count the block as waiting between attempts."""
        began = time.monotonic()
        self.hold()
        try:
            yield
        finally:
            self.release()
            self.backoff += time.monotonic() - began
