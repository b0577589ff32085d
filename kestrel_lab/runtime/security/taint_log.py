"""The taint of one run, folded from its events when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kestrel_lab.core.events.union import Event, RunStarted, ToolAnswered
from kestrel_lab.runtime.security.taint import Taint


@dataclass(slots=True)
class TaintLog:
    """The taint of one run, folded when it is first needed and kept up to date from then on.

    Until then it costs a list of references to events.
    """

    earlier: Callable[[], Iterable[Event]]
    """The events before the session took the run up."""
    taint: Taint
    _later: list[Event] | None = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take one event in."""
        if self._later is None:
            self.taint.apply(event)
        else:
            self._later.append(event)

    def answers_hold(self, sought: Callable[[str], bool]) -> bool:
        """Return whether any answer of a tool may hold what is `sought`, without folding the taint; true for what a run begins with."""
        if self._later is None:
            return any(sought(passage.text) for passage in self.taint.passages)
        for event in (*self.earlier(), *self._later):
            if (
                sought(event.text)
                if isinstance(event, ToolAnswered)
                else isinstance(event, RunStarted) and (event.earlier or event.guidance)
            ):
                return True
        return False

    def now(self) -> Taint:
        """The taint so far."""
        if self._later is not None:
            later, self._later = self._later, None
            for event in (*self.earlier(), *later):
                self.taint.apply(event)
        return self.taint
