"""The operation `council`: agents argue with evidence in rounds and vote; a chair decides and says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from kestrel_lab.core.errors import UnmetError
from kestrel_lab.core.events.union import CouncilDecided, VoteCast
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.operations.arguments import TEXTS, closed_object
from kestrel_lab.runtime.operations.control_flow import decision_step

_TEXT: Final[dict[str, Json]] = {"type": "string"}
_SURE: Final[dict[str, Json]] = {"type": "number", "minimum": 0, "maximum": 1}
POSITION: Final = closed_object(
    {
        "position": _TEXT,
        "claims": {"type": "array", "items": closed_object({"claim": _TEXT, "evidence": TEXTS})},
        "confidence": _SURE,
    }
)
"""JSON Schema of a position."""
DECISION: Final = closed_object({"decision": _TEXT, "reason": _TEXT, "confidence": _SURE})
"""JSON Schema of what the chair says."""
_TAKE = """\
{goal}

You are {member}, one of a council of {count}. Take a position: your answer, the claims it rests on, each \
with its evidence, and how sure \
you are from 0 to 1. Evidence is what a tool answered or what you were given, quoted word for word; a claim \
without any is weighed as such."""
_AGAIN = (
    " You are given the positions of the round before: keep yours or change it, and answer what speaks "
    "against it."
)
_VOTE = """\
{goal}

You are {member}, one of a council of {count}. The positions are given below. Vote for the one whose \
evidence is best, yours or another's, \
by the name of its member, and say why."""
_DECIDE = """\
{goal}

You chair a council of {count}. Its positions with their evidence and its votes are given below; `shown` \
counts the pieces of evidence that \
stand word for word in what tools answered. Decide: the decision is the answer to the goal. Say why, also \
why not as the dissenting \
members say, and how sure you are from 0 to 1. You are not bound by the votes."""


async def council(scope: Scope) -> Done:
    """Grow the next round, the vote or the chair's turn, or give the decision;
    `core.plan_shapes.council_plan` writes the arguments.

    A member works in round n in the step `ID/MEMBER#n`, the vote being the round after the last; after each
    round comes `ID#n`, which records what was said as `vote_cast`. Members that fail are left out of what
    follows. Raises `UnmetError` where fewer than two are left.
    """
    args, name = scope.args, scope.name
    members = scope.held("members")
    chair = Step.from_json(cast("dict[str, Json]", args["chair"]))
    rounds, turn = cast("int", args["rounds"]), cast("int", args.get("turn", 0))
    if turn == rounds + 2:
        return Done(output=_record_decision(scope, scope.went(f"{name}/{chair.id}")["answer"]))
    said = _positions(scope, members, turn) if turn else {}
    heard = cast("dict[str, Json]", args.get("positions", {}))
    if turn and len(said) < 2:
        raise UnmetError(f"council {name!r}: fewer than two of its members came to an answer in round {turn}")
    if turn <= rounds:
        heard = said
    present = [member for member in members if not turn or member.id in said]
    given: dict[str, Json] = {"positions": dict(heard)} if turn else {}
    if turn <= rounds:
        steps = tuple(
            _member_step(scope, member, turn + 1, rounds, len(present), given) for member in present
        )
    else:
        goal = _DECIDE.format(goal=chair.goal, count=len(present))
        given = {**_given_inputs(scope, chair), **given, "votes": dict(said)}
        steps = (replace(chair, id=f"{name}/{chair.id}", goal=goal, schema=DECISION, given=given),)
    more: dict[str, Json] = {
        "turn": turn + 1,
        "positions": dict(heard),
        "votes": dict(said) if turn > rounds else {},
    }
    after = decision_step(scope, name, turn + 1, {**args, **more}, steps, set(scope.step.consumes))
    return Done(grows=(*steps, replace(after, after_failure=turn <= rounds)))


def _member_step(
    scope: Scope, member: Step, turn: int, rounds: int, count: int, given: Mapping[str, Json]
) -> Step:
    """Return the step in which a member takes a position in round `turn`, or finally votes."""
    text, schema = _TAKE + (_AGAIN if turn > 1 else ""), POSITION
    if turn > rounds:
        names = cast("list[Json]", list(cast("dict[str, Json]", given["positions"])))
        text, schema = _VOTE, closed_object({"vote": {"type": "string", "enum": names}, "reason": _TEXT})
    goal = text.format(goal=member.goal, member=member.id, count=count)
    return replace(
        member,
        id=f"{scope.name}/{member.id}#{turn}",
        goal=goal,
        schema=schema,
        given={**_given_inputs(scope, member), **given},
        produces=(),
    )


def _given_inputs(scope: Scope, step: Step) -> dict[str, Json]:
    return {
        **step.given,
        **{name: value for name, value in scope.inputs.items() if name not in step.consumes},
    }


def _positions(scope: Scope, members: Sequence[Step], turn: int) -> dict[str, Json]:
    """Return what each member said in a round, recorded as events unless that was done before a crash."""
    found: dict[str, Json] = {}
    whole = scope.whole
    for member in members:
        went = scope.went(f"{scope.name}/{member.id}#{turn}")
        if not went.get("ok"):
            continue
        body, step = went["answer"], f"{whole}/{member.id}#{turn}"
        claims: list[dict[str, Json]] = [
            {**claim, "shown": _count_found_evidence(scope, whole, claim["evidence"])}
            for claim in body.get("claims", [])
        ]
        found[member.id] = {**body, "claims": cast("Json", claims)} if claims else body
        if step not in scope.ctx.state.votes:
            scope.ctx.emit(
                VoteCast(
                    council=whole,
                    step=step,
                    member=member.id,
                    round=turn,
                    position=body.get("position", ""),
                    claims=claims,
                    confidence=body.get("confidence", 0.0),
                    vote=body.get("vote", ""),
                    reason=body.get("reason", ""),
                )
            )
    return found


def _count_found_evidence(scope: Scope, whole: str, evidence: Sequence[str]) -> int:
    """Return how much evidence occurs in the members' tool answers or inputs; ignores white space."""
    conversations = [
        conversation
        for name, conversation in scope.ctx.state.conversations.items()
        if name.startswith(f"{whole}/")
    ]
    given = [as_text(value) for value in scope.inputs.values()]
    texts = [
        " ".join(text.split())
        for text in (
            *given,
            *(
                said.text
                for conversation in conversations
                for said in conversation.messages
                if said.role == "tool"
            ),
        )
    ]
    return sum(
        bool(piece.strip()) and any(" ".join(piece.split()) in text for text in texts) for piece in evidence
    )


def _record_decision(scope: Scope, said: Mapping[str, Any]) -> Json:
    """Record and return what the chair decided."""
    votes = cast("dict[str, dict[str, Json]]", scope.args["votes"])
    tally = Counter(str(one["vote"]) for one in votes.values())
    (first, most), *others = tally.most_common()
    split = most <= cast("float", scope.args["majority"]) * len(votes) or any(
        count == most for _, count in others
    )
    dissent: list[dict[str, Json]] = [
        {"member": member, "vote": one["vote"], "reason": one["reason"]}
        for member, one in votes.items()
        if split or one["vote"] != first
    ]
    if (whole := scope.whole) not in scope.ctx.state.councils:
        scope.ctx.emit(
            CouncilDecided(
                step=whole,
                decision=said["decision"],
                reason=said["reason"],
                votes=dict(tally),
                dissent=dissent,
                split=split,
                confidence=said["confidence"],
            )
        )
    return cast("Json", said["decision"])
