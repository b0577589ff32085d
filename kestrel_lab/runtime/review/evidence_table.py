"""Evidence of an answer: its claims with what they cite, and the deterministic checks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.answers.claim_markdown import TITLE, asks_for_claims, claims_given
from kestrel_lab.core.citations import Span, answer_spans
from kestrel_lab.core.errors import KestrelError, RunError, error_boundary
from kestrel_lab.core.events.actions import TYPES, Action, actions_of
from kestrel_lab.core.events.union import Record, RunStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.verification.answered_calls import AnsweredCall
from kestrel_lab.verification.claims import mentions_actions
from kestrel_lab.verification.evidence import CitedClaim, evidence_of, span_as_now, states_summary
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.subject import Subject, subject_of
from kestrel_lab.verification.workspace_files import Files
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.evidence import evidence_html, evidence_rows, evidence_text

if TYPE_CHECKING:
    import pandas as pd

    from kestrel_lab.runtime.context.run_context import RunContext


Claims = Sequence[Mapping[str, Any]]
"""Claims with citations, as `answers.claim_form` has them."""


_FAILED: Final = "error: "
"""How the message of a call that failed begins in a conversation: see `middleware.record_events`."""


class EvidenceTable:
    """The claims of an answer with what each cites and whether that is there, as a frame and as a table."""

    def __init__(self, backed: Sequence[CitedClaim], unseen: str = "") -> None:
        self.claims = tuple(backed)
        self._summary = states_summary([one.state for one in self.claims]) + (f"; {unseen}" if unseen else "")

    @property
    def frame(self) -> pd.DataFrame:
        """A row per claim and citation, with the columns `claim`, `text`, `state`, `why`, `cites`, `quote`,
        `found`, `trust`, `status` and `evidence`.
        """
        return unit_frame(evidence_rows(self.claims), columns=list(_COLUMNS), units={})

    def __len__(self) -> int:
        return len(self.claims)

    def __iter__(self) -> Iterator[CitedClaim]:
        return iter(self.claims)

    def __str__(self) -> str:
        return self._summary

    def __repr__(self) -> str:
        return evidence_text(self._summary, evidence_rows(self.claims))

    def page_html(self) -> str:
        """Return the claims as HTML for the run's page."""
        return evidence_html(self._summary, evidence_rows(self.claims), folded=True)

    def _repr_html_(self) -> str:
        return evidence_html(self._summary, evidence_rows(self.claims))

    def _repr_markdown_(self) -> None:
        """No Markdown form: it would be rendered with remote images."""


_COLUMNS = ("claim", "text", "state", "why", "cites", "quote", "found", "trust", "status", "evidence")


def evidence_table(
    records: Sequence[Record], *, answer: str, goal: str, workspace: str, claims: Claims
) -> EvidenceTable:
    """Return the claims of a stored run's answer with citations, by its log and the current workspace."""
    root = Path(workspace)
    subject = subject_of(
        records, answer=answer, goal=goal, root=root if workspace and root.is_dir() else None
    )
    return EvidenceTable(evidence_of(subject, claims), subject.unseen)


def claims_in(state: RunState) -> Claims:
    """Return the claims of an answer in the form of claims with citations, from the last agent."""
    # As nearly always: spares making the plan.
    if TITLE not in str(state.plan):
        return []
    makers = [step for step in state.planned.steps if asks_for_claims(step.schema)]
    done = [step for step in makers if state.finished_steps.get(step.id)]
    said = state.conversation(done[-1].id).messages[-1].text if done else ""
    return claims_given(said)


def answer_subject(
    state: RunState,
    root: Path,
    answer: str,
    *,
    goal: str = "",
    but: str = "",
    seconds: float | None = None,
    actions: Sequence[Action] | None = None,
    earlier: Sequence[Action] = (),
) -> Subject:
    """Return an answer with the results of the run's steps so far, the step `but` left out."""
    spans: list[Span] = []
    calls: list[AnsweredCall] = []
    for call, tool, args, text in _answers(state, but):
        failed = text.startswith(_FAILED)
        # An error is no text of the file or page that was asked for.
        spans += answer_spans(call, tool, args, text)[: 1 if failed else None]
        calls.append(
            AnsweredCall(call=call, tool=tool, args=args, ok=not failed, text=text.removeprefix(_FAILED))
        )
    goal = goal or (state.started.goal if state.started else "")
    return Subject(
        answer=answer,
        goal=goal,
        spans=tuple(spans),
        calls=tuple(calls),
        actions=actions,
        earlier=earlier,
        ground=Files(root, seconds),
    )


def calls_made(state: RunState) -> list[tuple[str, Mapping[str, Json], str]]:
    """Return tool, arguments and result of the tool calls so far; those within macros are left out."""
    return [(tool, args, text) for _, tool, args, text in _answers(state, "")]


_ANSWERS = attrgetter("answers")


def _answers(state: RunState, but: str) -> Iterator[tuple[str, str, Mapping[str, Json], str]]:
    steps = (
        {step.id: step for step in state.planned.steps}
        if any(map(_ANSWERS, state.conversations.values()))
        else {}
    )
    for name, conversation in state.conversations.items():
        if name == but:
            continue
        asked = {call.id: call.args for said in conversation.messages for call in said.calls}
        for said in conversation.messages:
            if said.role == "tool":
                yield said.call_id, said.name, asked.get(said.call_id, {}), said.text
        if name in steps and steps[name].tool:
            for call, text in conversation.answers.items():
                yield call, steps[name].tool, steps[name].args, text


async def actions_done(ctx: RunContext, answer: str) -> tuple[Action, ...] | None:
    """Return the run's actions from its log; `None` if the answer mentions none and no call was refused or
    failed.
    """
    if not mentions_actions(answer) and not _has_failed_calls(ctx.state):
        return None
    await ctx.on_disk()
    return await asyncio.to_thread(_actions_in, ctx, ctx.run_id)


def _has_failed_calls(state: RunState) -> bool:
    for conversation in state.conversations.values():
        for said in conversation.messages:
            if said.role == "tool" and said.text.startswith(_FAILED):
                return True
    return False


def _actions_in(ctx: RunContext, run: str) -> tuple[Action, ...]:
    # How far each tool reaches.
    offers = () if ctx.state.started is None else (ctx.state.started,)
    return actions_of((*offers, *(record.event for record in ctx.services.store.records(run, types=TYPES))))


async def earlier_actions(ctx: RunContext) -> tuple[Action, ...]:
    """Return the actions of earlier runs of the conversation, oldest first."""
    found, run = list[tuple[Action, ...]](), "" if ctx.state.started is None else ctx.state.started.follows
    while run and len(found) < MOST_EARLIER:
        found.append(await asyncio.to_thread(_actions_in, ctx, run))
        first = next(
            iter(await asyncio.to_thread(ctx.services.store.records, run, types=(RunStarted.type,))), None
        )
        run = first.event.follows if first is not None and isinstance(first.event, RunStarted) else ""
    return tuple(action for actions in reversed(found) for action in actions)


def speaks_of_earlier(ctx: RunContext, found: Iterable[Issue]) -> bool:
    """Return true if an issue is about actions, which an earlier run of the conversation may have done."""
    return (
        ctx.state.started is not None
        and bool(ctx.state.started.follows)
        and any(one.check in _ACTION_CHECKS for one in found)
    )


_ACTION_CHECKS = frozenset(
    {"deeds_were_done", "outcomes_are_right", "refused_calls_did_nothing", "command_reports_are_right"}
)
MOST_EARLIER = 20
"""Number of earlier runs of a conversation whose calls are read."""


async def check_claims(ctx: RunContext, answer: str, *, goal: str = "", but: str = "") -> tuple[Issue, ...]:
    """Return the issues that the deterministic checks find; raises `RunError` if a check crashes."""
    actions = await actions_done(ctx, answer)

    def check(earlier: Sequence[Action] = ()) -> tuple[Issue, ...]:
        root = Path(ctx.given.workspace.root)
        return _check_subject(
            answer_subject(ctx.state, root, answer, goal=goal, but=but, actions=actions, earlier=earlier)
        )

    issues = await asyncio.to_thread(check)
    if not speaks_of_earlier(ctx, issues):
        return issues
    return await asyncio.to_thread(check, await earlier_actions(ctx))


def answer_issues(subject: Subject) -> tuple[Issue, ...]:
    """Return the issues of an answer as warnings without effect; a crashed check is one of them."""
    try:
        return _check_subject(subject)
    except KestrelError as error:
        # An answer is not lost to a defect of a check.
        return (
            Issue(
                "minor", "", f"the answer could not be checked: {error}", "please report it", check="checks"
            ),
        )


def _check_subject(subject: Subject) -> tuple[Issue, ...]:
    with error_boundary(RunError, "the check of the answer"):
        # With all its rules: only where an answer is checked.
        from kestrel_lab.verification.engine import (
            check_answer,
        )

        return check_answer(subject)


def cited_spans(subject: Subject, changed: Iterable[str] = ()) -> tuple[Span, ...]:
    """Return the spans that an answer cites, as they are now, without doubles, then the files `changed`."""
    return (*_spans_now(subject, evidence_of(subject)), *changed_spans(subject, changed))


def spans_for_model(
    subject: Subject, backed: Sequence[CitedClaim], changed: Iterable[str] = ()
) -> tuple[Span, ...]:
    """Return the evidence shown to a model: cited spans, else tool answers; then `changed` files."""
    return (*(_spans_now(subject, backed) or subject.whole_spans), *changed_spans(subject, changed))


def _spans_now(subject: Subject, backed: Sequence[CitedClaim]) -> tuple[Span, ...]:
    found = (span_as_now(subject, one) for claim in backed for one in claim.cited)
    return tuple({span.id: span for span in found if span is not None}.values())


MOST_OF_FILE = 4_000
"""Characters of a changed file that a model is shown."""
_HEAD, _AROUND = 1_200, 15
"""Of a longer file: characters at its beginning, and lines around each changed one."""


def changed_spans(subject: Subject, changed: Iterable[str]) -> Iterator[Span]:
    """Yield each file changed by the run as it is now; of a long one its start and the changed lines."""
    added = {
        line[1:].strip()
        for span in subject.whole_spans
        for line in split_lines(span.text)
        if line.startswith("+")
    } - {""}
    for path in changed:
        if (text := subject.files.read(path)) is None:
            continue
        shown = text if len(text) <= MOST_OF_FILE else _around_changes(text, added)
        yield Span(
            id=path, source=path, text=shown, path=path, found="the file as it is now", trust="workspace"
        )


def _around_changes(text: str, added: Collection[str]) -> str:
    lines = split_lines(text)
    near = {
        place + off
        for place, line in enumerate(lines)
        if line.strip() in added
        for off in range(-_AROUND, _AROUND + 1)
    }
    head = text[:_HEAD].count("\n")
    kept = [place for place in range(len(lines)) if place < head or place in near]
    parts = [
        f"…\n{lines[place]}" if place and place - 1 not in kept[:number] else lines[place]
        for number, place in enumerate(kept)
    ]
    return "\n".join(parts)[:MOST_OF_FILE]
