"""Hooks: functions called before and after each phase of an agent's turn and around a run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar, get_args

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import RunError, UsageError, did_you_mean, error_boundary
from kestrel_lab.core.messages import Message, ToolRequest

Around = Literal["before_run", "after_run"]
InTurn = Literal[
    "before_think",
    "after_think",
    "before_act",
    "after_act",
    "before_observe",
    "after_observe",
    "before_decide",
    "after_decide",
]
Moment = Around | InTurn
MOMENTS: Final[tuple[str, ...]] = (*get_args(Around), *get_args(InTurn))


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """The moment a hook is called at; changing it has no effect."""

    moment: str
    run: str
    """The id of the run."""
    status: str
    usage: Usage
    """Of the whole run so far."""
    step: str = ""
    """Step of the agent; empty around the run."""
    cycle: int = 0
    """Its model turn, counted from 1."""
    messages: Sequence[Message] = ()
    """Its conversation so far; the answers of a turn's calls are in it from `before_observe` on."""
    calls: tuple[ToolRequest, ...] = ()
    """The calls of the turn that have no answer yet: at `after_think` and `before_act`."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """Answers of the turn's calls, by call: at `after_act`, `before_observe` and `after_observe`."""
    goes_on: bool | None = None
    """At `after_decide`, whether the model is asked again."""
    answer: str = ""
    """Answer of the run at `after_run`; of the agent at `after_decide` if it is done."""


Hook = Callable[[Phase], Awaitable[None] | None]
_H = TypeVar("_H", bound=Hook)


class Hooks:
    """Hooks by moment, for `Lab(hooks=…)`; those of one moment are called in the order in which they were
    added.

    Hooks observe: what changes calls is middleware. A hook that raises ends the step, and with it the run, by
    a `RunError` that names it; `after_run` comes when all is written, so that an error in it is only reported
    to the event loop. A run that is resumed calls the hooks of the phase that it was in once more.
    """

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}

    def on(self, *moments: Moment) -> Callable[[_H], _H]:
        """Add the decorated function, plain or async, to these moments; raises `UsageError` with the nearest
        name for one that is none.
        """
        for moment in moments:
            if moment not in MOMENTS:
                raise UsageError(f"there is no moment {moment!r} for hooks; {did_you_mean(moment, MOMENTS)}")

        def add(hook: _H) -> _H:
            for moment in moments:
                self._hooks.setdefault(moment, []).append(hook)
            return hook

        return add

    def wants(self, moment: str) -> bool:
        """Return whether there is a hook for that moment."""
        return moment in self._hooks

    async def call(self, phase: Phase) -> None:
        """Call the hooks of a moment one after the other; raises `RunError` for one that raises."""
        for hook in self._hooks.get(phase.moment, ()):
            with error_boundary(RunError, f"the hook {getattr(hook, '__name__', hook)!r} at {phase.moment}"):
                waiting = hook(phase)
                if inspect.isawaitable(waiting):
                    await waiting
