"""A risky call goes on only after somebody said yes."""

from collections.abc import Awaitable, Callable

from msgspec import Struct
from msgspec.structs import replace

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, Call, Problem, Result
from kestrel_lab.core.events.union import ApprovalGiven
from kestrel_lab.core.protocols import Handler

Decide = Callable[[Call], Awaitable[ApprovalGiven | None]]
"""The decision on a call; `None` when none is needed."""


class Approval(Struct, frozen=True):
    """Ask `decide` before proceeding; a person may have changed the arguments."""

    decide: Decide

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Proceed once decided; a denied call is answered with why, one that asks a person with what they said."""
        decision = await self.decide(call)
        if decision is None:
            return await proceed(call)
        if not decision.granted:
            return Result(error=_denied(call, decision))
        if decision.answer is not None:
            return Result(value=decision.answer)
        if decision.args is None:
            return await proceed(replace(call, leave=_leave(decision)))
        sandbox = IN_KERNEL if call.sandbox == PREVIEWED else call.sandbox  # there is no preview of what a person wrote
        return await proceed(replace(call, args=decision.args, sandbox=sandbox, leave=_leave(decision)))


def _leave(decision: ApprovalGiven) -> str:
    because = f": {decision.reason}" if decision.reason and decision.how != "policy" else ""
    return f"{decision.by}{because}"


def _denied(call: Call, decision: ApprovalGiven) -> Problem:
    because = f": {decision.reason}" if decision.reason else ""
    if call.attempt > 1:
        text = (
            f"an earlier session ended while {call.target} ran; whether it took effect is not known, and {decision.by} "
            f"chose not to run it again{because}. Look at the state of things before going on."
        )
        return Problem(kind="unknown_outcome", message=text)
    text = f"{call.target} was denied by {decision.by}{because}. Do not repeat this call; find another way or explain what is needed."
    return Problem(kind="denied", message=text)
