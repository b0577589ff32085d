"""An answer with the evidence to check it: workspace files, tool answers, calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from kestrel_lab.core.citations import Span, arguments_by_call, spans_of
from kestrel_lab.core.events.actions import Action, actions_of
from kestrel_lab.core.events.union import ApprovalGiven, Record, ToolAnswered
from kestrel_lab.host.user import decider
from kestrel_lab.verification.answered_calls import AnsweredCall
from kestrel_lab.verification.claims import Statement, claims_of, files_in
from kestrel_lab.verification.workspace_files import CLAIM, PARSED, TOKEN, Files

MOST_CLAIMS: Final = 1_000
"""Claims of an answer that are checked."""
MOST_BLOCK: Final = 20_000
"""Characters of a block of code, which unlike prose is checked as a whole."""
MOST_CHARS: Final = 400_000
"""Characters of an answer that are checked."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Input of the checks. It caches results, so a subject serves one answer at one time."""

    answer: str
    goal: str = ""
    spans: Sequence[Span] = ()
    calls: Sequence[AnsweredCall] | None = None
    """`None` if the calls are unknown."""
    actions: Sequence[Action] | None = None
    """The run's actions; `None` if unknown."""
    earlier: Sequence[Action] = ()
    """Those of earlier runs of its conversation, where an answer speaks of them."""
    ground: Files | None = None
    """`None` without a workspace."""
    left: Mapping[str, str] = field(default_factory=dict)
    """The versions of files as the run's last edits left them, by path."""
    checked: set[str] = field(default_factory=set, compare=False)
    """Places, quotes and actions found right or wrong for certain."""

    @cached_property
    def claims(self) -> tuple[Statement, ...]:
        """Claims of the answer, up to the limit of checked text."""
        return tuple(said for said in self._every[:MOST_CLAIMS] if len(said.text) <= MOST_BLOCK)

    @cached_property
    def _every(self) -> tuple[Statement, ...]:
        return claims_of(self.answer[:MOST_CHARS])

    @cached_property
    def left_out(self) -> str:
        """Parts of the answer that are not checked; empty if all of it is."""
        if len(self._every) > MOST_CLAIMS:
            return f"only the first {MOST_CLAIMS:,} of its claims were checked"
        if len(self.answer) > MOST_CHARS:
            return f"only the first {MOST_CHARS:,} of its {len(self.answer):,} characters were checked"
        return (
            f"only its blocks of up to {MOST_BLOCK:,} characters were checked"
            if len(self.claims) < len(self._every)
            else ""
        )

    @property
    def unseen(self) -> str:
        """What was not checked so far; empty if all was."""
        return self.left_out or (
            "a review may take no more work and time than that" if self.files.work.spent else ""
        )

    def pay(self, cost: float) -> None:
        """Spend some of the work that a review may take."""
        self.files.work.spend(cost)

    def through(self, texts: Iterable[str], cost: float = TOKEN) -> Iterator[str]:
        """Yield the texts; each is paid for when it comes, at a `cost` for each character."""
        for text in texts:
            self.pay(CLAIM + cost * len(text))
            yield text

    def paid(self) -> Iterator[Statement]:
        """Yield the claims; each is paid for when it comes."""
        for said in self.claims:
            self.pay(CLAIM + PARSED * len(said.text))
            yield said

    @cached_property
    def file_names(self) -> tuple[str, ...]:
        """The files that the answer names, each once."""
        return tuple(dict.fromkeys(name.text for said in self.claims for name in files_in(said)))

    @cached_property
    def files(self) -> Files:
        """Files of the workspace; without one, nothing counts as missing."""
        return Files(Path("/nonexistent"), known=False) if self.ground is None else self.ground

    @cached_property
    def acts(self) -> tuple[Action, ...] | None:
        """Calls with effects, those denied by a rule with the model's arguments; `None` if unknown."""
        if self.actions is None and not self.earlier:
            return None
        arguments = {call.call: call.args for call in self.calls or ()}
        own = [
            action if action.args else replace(action, args=arguments.get(action.call, {}))
            for action in self.actions or ()
        ]
        return (*self.earlier, *own)

    @cached_property
    def whole_spans(self) -> tuple[Span, ...]:
        """The answers of tools, without their parts."""
        return tuple(span for span in self.spans if not span.path or not span.call)


def subject_of(records: Sequence[Record], *, answer: str, goal: str, root: Path | None) -> Subject:
    """Return the answer of a run with what its log holds."""
    return Subject(
        answer=answer,
        goal=goal,
        spans=spans_of([record.event for record in records]),
        calls=made_calls(records),
        actions=actions_of(record.event for record in records),
        ground=None if root is None else Files(root),
        left=versions_left(records),
    )


def versions_left(records: Iterable[Record]) -> dict[str, str]:
    """Return the versions in which edits of a run left files, by path."""
    left: dict[str, str] = {}
    for record in records:
        if isinstance(record.event, ToolAnswered):
            for path in record.event.changed:
                left[path] = str(record.event.knows.get(path, ""))
    return left


def made_calls(records: Sequence[Record]) -> tuple[AnsweredCall, ...]:
    """Return the calls of tools that were answered."""
    asked = arguments_by_call(record.event for record in records)
    refused = {
        event.call: event.by
        for event in (record.event for record in records)
        if isinstance(event, ApprovalGiven) and not event.granted
    }
    return tuple(
        AnsweredCall(
            call=event.call,
            tool=event.tool,
            args=asked.get(event.call, {}),
            ok=event.error is None,
            text=event.text if event.error is None else str(event.error.get("message", event.text)),
            denied=""
            if event.error is None or event.error.get("kind") != "denied"
            else f"denied by {decider(refused.get(event.call, 'a rule'))}",
        )
        for event in (record.event for record in records)
        if isinstance(event, ToolAnswered)
    )
