"""Scanner: a function that looks through a run for one thing, and what it finds."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, Protocol, overload

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.transcripts.transcript import Transcript, TranscriptStep

PREFIX: Final = "found:"
"""Begins the name of the measure that a scanner is: 1 where it found something in a run, 0 where nothing."""
_MOST: Final = 50
"""Findings of one scanner in one run that are kept."""
_PLAIN: Final = (str, bytes, int, float, bool, tuple, frozenset, type(None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a scanner found in a run."""

    text: str
    """A sentence."""
    events: tuple[str, ...]
    """The ids of the events that it is about."""
    value: float = 1.0
    """How much of it: the number of repeats, or how sure a model is."""

    def as_json(self, scanner: str) -> dict[str, Json]:
        """The finding as an event keeps it."""
        text = one_line(sanitize_text(self.text), 400)
        return {"scanner": scanner, "text": text, "events": list(self.events), "value": self.value}


def finding(text: str, *steps: TranscriptStep, value: float = 1.0) -> Finding:
    """Return a finding about these steps of a transcript."""
    events = dict.fromkeys(event for step in steps for event in step.events)
    return Finding(text=text, events=tuple(events), value=value)


class Looks(Protocol):
    """What looks through a run: a `Scanner`, or a `ModelScanner`."""

    @property
    def name(self) -> str:
        """Its name, by which `found:NAME` is a measure."""

    @property
    def version(self) -> str:
        """A hash of all that its findings depend on beside the run."""

    @property
    def rubric_hash(self) -> str:
        """The hash of its rubric, by which people's labels correct its rate; empty for none."""

    async def __call__(self, run: Transcript) -> Sequence[Finding]:
        """Return what it finds in the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scanner:
    """A deterministic function from a transcript to findings."""

    name: str
    function: Callable[[Transcript], Iterable[Finding]]
    version: str

    @property
    def about(self) -> str:
        """What it looks for, in a sentence."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def rubric_hash(self) -> str:
        """Empty: what it finds is by definition."""
        return ""

    async def __call__(self, run: Transcript) -> Sequence[Finding]:
        """Return what it finds.

        Raises `UsageError` for what is no finding or names an event that the run does not have, and whatever
        the function raises.
        """
        found = list(self.function(run) or ())
        known = {record.eid for record in run.records}
        for one in found:
            if not isinstance(one, Finding):
                raise UsageError(f"the scanner {self.name} gave {one_line(repr(one))}, which is no Finding")
            if missing := [event for event in one.events if event not in known]:
                raise UsageError(f"the scanner {self.name} names the event {missing[0]}, which the run lacks")
        return found[:_MOST]


@overload
def scanner(function: Callable[[Transcript], Iterable[Finding]], /, *, name: str = "") -> Scanner: ...


@overload
def scanner(*, name: str) -> Callable[[Callable[[Transcript], Iterable[Finding]]], Scanner]: ...


def scanner(
    function: Callable[[Transcript], Iterable[Finding]] | None = None, /, *, name: str = ""
) -> object:
    """Make a scanner of a function from a transcript to findings; its name is the function's.

    Its version is a hash of the function's source, and of the functions and plain values of its module that
    it uses: findings of two versions are never counted together.
    """

    def made(function: Callable[[Transcript], Iterable[Finding]]) -> Scanner:
        parts = _sources(function, {})
        return Scanner(
            name=name or function.__name__, function=function, version=content_key("scanner/1", parts)[:12]
        )

    return made if function is None else made(function)


def _sources(function: Any, found: dict[str, str]) -> dict[str, str]:
    """Return by name what a function is made of: its source, and all of its module that it refers to."""
    if not isinstance(function, FunctionType):
        return found
    found[function.__qualname__] = _source(function)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if name in found or value is None:
            continue
        if isinstance(value, FunctionType) and value.__module__ == function.__module__:
            _sources(value, found)
        elif isinstance(value, re.Pattern):  # whose repr is cut
            found[name] = f"{value.pattern}/{value.flags}"
        elif isinstance(value, _PLAIN):
            found[name] = repr(value)
    return found


def _source(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # typed into a plain interpreter
        return function.__code__.co_code.hex() + repr(function.__code__.co_consts)


def _names(code: CodeType) -> Iterable[str]:
    """Yield the names that code refers to, those of functions within it too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
