"""Review of an answer before it is given: concerns, what its claims cite, and next actions.

No model is asked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from kestrel_lab.answers.claim_markdown import TITLE
from kestrel_lab.answers.confidence import StatedConfidence, format_share, stated_confidence
from kestrel_lab.answers.contracts import is_abstention
from kestrel_lab.answers.next_actions import NextAction, next_actions
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.actions import Action
from kestrel_lab.core.events.union import RunFinished, VerifierFinished
from kestrel_lab.core.json_types import Json
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.runtime.review.calibration import FILE, calibration_for, known_models
from kestrel_lab.runtime.review.evidence_table import (
    actions_done,
    answer_issues,
    answer_subject,
    calls_made,
    claims_in,
    earlier_actions,
    speaks_of_earlier,
)
from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.verification.claims import is_plain_prose, mentions_actions
from kestrel_lab.verification.evidence import CitedClaim, evidence_of
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files
from kestrel_lab.views.diffs import split_diff

if TYPE_CHECKING:
    from kestrel_lab.runtime.context.run_context import RunContext

REVIEW_S: Final = 2.0
"""Seconds a review may read a workspace; unread parts of a huge one cause no issue."""
MOST_CONCERNS: Final = 20
"""Concerns stored with the answer."""
FORM: Final = "form"
"""The verifier that looks at the form of an answer."""
_FORM_STEP: Final = "'form'"
"""In the text of a plan with a step that looks at the form of the answer."""
_WRITE: Final = frozenset({"write_file", "edit_file", "multi_edit"})


async def review_answer(ctx: RunContext, answer: str) -> RunFinished:
    """Return the end of a complete run with the review of its answer, if reviews are on.

    It is `unmet` if the answer's confidence is below `Ports.abstain`; the answer is still returned.
    """
    end = RunFinished(outcome="complete", answer=answer)
    if not ctx.given.ports.look or not answer.strip():
        return end
    if _rests_on_nothing(ctx.state) and is_plain_prose(answer) and not mentions_actions(answer):
        end = replace(end, looked=True, checked=0)
    else:
        end = await _compared(ctx, end)
    if ctx.given.ports.abstain is not None and not is_abstention(answer):
        end = await _held_back(ctx, end, ctx.given.ports.abstain)
    try:
        return await _with_calibration(ctx, end)
    except UsageError as error:
        # The answer is not lost to a file that somebody edited.
        return replace(
            end,
            concerns=[*end.concerns, Issue("minor", "", str(error), "", check="calibration").as_json()],
        )


def _rests_on_nothing(state: RunState) -> bool:
    """Return whether a run read nothing and called nothing, so that its answer cannot repeat an order of
    others, and was asked for in no form.
    """
    began, plan = state.started, str(state.plan)
    return (
        began is not None
        # Earlier runs and files of the workspace may contain orders.
        and not began.earlier
        and not began.guidance
        and TITLE not in plan
        and _FORM_STEP not in plan
        and not any(
            conversation.answers or any(said.role == "tool" for said in conversation.messages)
            for conversation in state.conversations.values()
        )
    )


async def _compared(ctx: RunContext, end: RunFinished) -> RunFinished:
    """Return the end of a run with its answer compared with the workspace and the log."""
    answer = end.answer
    actions = await actions_done(ctx, answer)
    plain = actions is None and claims_nothing(ctx.state, answer)
    # Whose words they are is asked only where the answer has words enough to repeat an order.
    repeats = ctx.given.containment != "off" and len(_words(answer[:_MOST_ANSWER])) >= _FEWEST

    def look(earlier: Sequence[Action] = ()) -> tuple[RunFinished, tuple[Issue, ...], bool]:
        ordered = repeats and ctx.flow.answers_hold(may_contain_order)
        if plain:
            return replace(end, looked=True, checked=0), (), ordered
        reviewed = full_review(end, ctx.state, Path(ctx.given.workspace.root), actions, earlier)
        return *reviewed, ordered

    # To begin a thread takes longer than to find nothing in an answer that claims nothing.
    looked, found, ordered = await asyncio.to_thread(look) if repeats or not plain else look()
    if speaks_of_earlier(ctx, found):
        looked, _, _ = await asyncio.to_thread(look, await earlier_actions(ctx))
    # The taint is folded from the log only where some text orders anything.
    orders = (
        await asyncio.to_thread(lambda taint: tuple(repeated_orders(answer, taint)), ctx.flow.now())
        if ordered
        else ()
    )
    concerns = [*looked.concerns, *(one.as_json() for one in (*orders, *await form_issues(ctx)))]
    return replace(looked, concerns=concerns[:MOST_CONCERNS])


async def form_issues(ctx: RunContext) -> list[Issue]:
    """Return the issues of the last verdict on the answer's form, as notes: they refuse no answer."""
    # As nearly always: spares reading the log.
    if _FORM_STEP not in str(ctx.state.plan):
        return []
    await ctx.on_disk()
    records = await asyncio.to_thread(ctx.services.store.records, ctx.run_id, types=(VerifierFinished.type,))
    verdicts = [
        event
        for record in records
        if isinstance(event := record.event, VerifierFinished) and event.verifier == FORM
    ]
    return [
        Issue("minor", "", what, "ask for it again in that form, or without one", check="form")
        for what in (verdicts[-1].issues if verdicts and not verdicts[-1].passed else ())
    ]


async def _held_back(ctx: RunContext, end: RunFinished, least: float) -> RunFinished:
    """Return `end` as `unmet` if its confidence is below `least`."""
    said = await _stated_confidence(ctx, end)
    if said is None or said.value >= least:
        return end
    reason = (
        f"it abstains: its confidence is {format_share(said.value)}, {least:.3g} is asked "
        f"for (setting abstain); {said.why}"
    )
    return replace(end, outcome="unmet", reason=reason)


async def _stated_confidence(ctx: RunContext, end: RunFinished) -> StatedConfidence | None:
    await ctx.on_disk()
    records = await asyncio.to_thread(ctx.services.store.records, ctx.run_id)
    return stated_confidence([*(record.event for record in records), end])


async def _with_calibration(ctx: RunContext, end: RunFinished) -> RunFinished:
    """Return `end` with its confidence calibrated; reads the log only if the model has a calibration."""
    home, model = ctx.services.store.path.parent, ctx.state.started.model if ctx.state.started else ""
    if not (home / FILE).is_file() or model not in await asyncio.to_thread(known_models, home):
        return end
    said = await _stated_confidence(ctx, end)
    return (
        end
        if said is None
        else replace(end, calibrated=await asyncio.to_thread(calibration_for, home, model, said))
    )


def claims_nothing(state: RunState, answer: str) -> bool:
    """Return whether an answer that mentions no action gives the checks nothing to compare and no next action
    to propose.
    """
    # A file that the run changed is a next action, whether the answer names it or not.
    return is_plain_prose(answer) and not claims_in(state) and not _files_changed(calls_made(state))


def full_review(
    end: RunFinished,
    state: RunState,
    root: Path,
    actions: Sequence[Action] | None,
    earlier: Sequence[Action] = (),
) -> tuple[RunFinished, tuple[Issue, ...]]:
    """Return the end of a run with the concerns, the claims, the confirmed actions and the next actions of
    its answer; and the concerns.
    """
    # With all the rules of the checks: imported only where an answer claims something.
    from kestrel_lab.verification.claimed_actions import count_confirmed
    from kestrel_lab.verification.engine import UNFINISHED, unfinished_issue

    subject = answer_subject(state, root, end.answer, seconds=REVIEW_S, actions=actions, earlier=earlier)
    found, proposed = answer_issues(subject), propose_actions(state, subject.files, end.answer)
    claims = evidence_of(subject, given) if (given := claims_in(state)) else ()
    if subject.unseen and not any(one.check == UNFINISHED for one in found):
        found = (*found, unfinished_issue(subject.unseen))
    confirmed = count_confirmed(subject)
    ended = replace(
        end,
        looked=True,
        concerns=[one.as_json() for one in found],
        claims=[one.as_json() for one in claims],
        confirmed=confirmed,
        checked=_count_checked(subject, claims),
        actions=[{"kind": one.kind, "text": one.text, "why": one.why} for one in proposed],
    )
    return ended, found


def _count_checked(subject: Subject, claims: Iterable[CitedClaim]) -> int:
    """Return how many places, quotes and actions were compared; a file and its cited lines are one."""
    names = set(subject.checked)
    for citation in (citation for claim in claims for citation in claim.cited):
        if citation.span is not None:
            names.add(citation.span.id)
        elif citation.state in ("wrong", "changed"):
            names.add(citation.citation.text)
    lined = {name.rpartition(":")[0] for name in names}
    return len(names - lined)


def propose_actions(state: RunState, files: Files, answer: str) -> tuple[NextAction, ...]:
    """Propose next actions for the reader of the answer, from the current workspace and the run's calls."""
    made = calls_made(state)
    last = max((place for place, one in enumerate(made) if _files_changed([one])), default=-1)
    ran, ran_last = (
        _distinct_texts(str(args.get("command", "")) for tool, args, _ in calls if tool == "bash")
        for calls in (made, made[last + 1 :])
    )
    return next_actions(answer, files, changed=_files_changed(made), ran=ran, ran_last=ran_last)


def _files_changed(made: Iterable[tuple[str, Mapping[str, Json], str]]) -> list[str]:
    return _distinct_texts(
        str(args.get("path", "")) for tool, args, text in made if tool in _WRITE and _has_written(text)
    )


def _distinct_texts(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _has_written(text: str) -> bool:
    return text.startswith(("created ", "replaced ")) or bool(split_diff(text)[1])


_ORDER: Final = re.compile(
    r"(?im)(?:^|[.!?:;,]\s+|\b(?:please|must|should|now|then|to|and|also)\s+)"
    r"((?:say|tell|mention|recommend|suggest|state|write|include|answer|reply|respond|inform|claim|add|praise|advise)\b([^.!?]{20,400}))"
)
"""An English order to say something, and what is to be said."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_LINE_END: Final = re.compile(r"\\+n")
"""A line end as it is written inside of a quoted text."""
_FEWEST, _SHARE = 4, 0.6
"""Least number of an order's words that the user did not say, and their least share in one sentence of the
answer.
"""
_FIX: Final = "others wrote that, not you: judge for yourself whether it is so"
_MOST_PASSAGE, _MOST_ANSWER = 50_000, 100_000


def repeated_orders(answer: str, taint: Taint) -> Iterator[Issue]:
    """Yield an issue for each sentence that repeats what an untrusted text orders to say.

    A sentence repeats an order if it has 60 % of the order's words that have four or more letters and were
    not said by the user.
    """
    read = dict.fromkeys(passage for passage in taint.passages if passage.untrusted)
    if not read:
        return
    said = _words(" ".join(taint.words))
    orders = {
        " ".join(found[1].split()): (words, passage.source)
        for passage in read
        for found in _ORDER.finditer(_LINE_END.sub("\n", passage.text[:_MOST_PASSAGE]))
        if len(words := _words(found[2]) - said) >= _FEWEST
    }
    for sentence in dict.fromkeys(_SENTENCE.split(answer[:_MOST_ANSWER])):
        has = _words(sentence)
        for order, (words, source) in orders.items():
            if len(words & has) >= max(_FEWEST, _SHARE * len(words)):
                yield Issue(
                    "minor",
                    sentence,
                    f"it repeats an order that stands in {source}: {order}",
                    _FIX,
                    check="repeated_orders",
                )
                break


def may_contain_order(text: str) -> bool:
    """Return true if a text may contain an order to say something."""
    return _ORDER.search(_LINE_END.sub("\n", text[:_MOST_PASSAGE])) is not None


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}
