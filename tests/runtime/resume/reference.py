"""One session that does everything: a plan of agents and calls, parallel reads, side effects, a repeatable
write, approvals, an answer.

Each side effect is one line handed to `effect`, so that whoever runs the session can count them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Record,
    RunForked,
    RunResumed,
    RunStarted,
    StateTransition,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import TRANSITIONS, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool

GOAL = "do everything once"
ANSWER = "all done"
TURNS: list[Turn] = [
    [("look", {"name": "1"}), ("look", {"name": "2"}), ("bump", {"name": "a"})],
    [("bump", {"name": "b"}), ("risky", {"name": "c"})],
    [("put", {"name": "d"}), ("look", {"name": "3"}), ("no_such_tool", {})],
    [("risky", {"name": "e"}), ("bump", {"name": "f"})],
    ANSWER,
]
SIGN = "sign what was done"
SIGNING: list[Turn] = [[("bump", {"name": "g"}), ("risky", {"name": "h"})], "signed"]
SUM_UP = "say what was done"
PLAN = Plan(
    steps=(
        Step(id="work", goal=GOAL, produces=("report",)),
        Step(id="beside", tool="look", args={"name": "4"}, produces=("view",)),
        Step(id="book", tool="put", args={"name": "d"}, depends_on=("work",)),
        Step(id="sign", goal=SIGN, depends_on=("book", "beside"), needs_approval=True),
        Step(id="close", goal=SUM_UP, consumes=("report", "view"), depends_on=("sign",)),
    )
)
ONCE = ("bump a", "bump b", "risky c", "risky e", "bump f", "bump g", "risky h")
"""Effects that must happen exactly once."""
REPEATABLE = "put d"


def model() -> ScriptedModel:
    """Plays the session."""

    def play(request: ModelRequest) -> Turn:
        goal = next(message.text for message in request.messages if message.role == "user")
        turns = [ANSWER] if goal.startswith(SUM_UP) else SIGNING if goal == SIGN else TURNS
        return turns[sum(message.role == "assistant" for message in request.messages)]

    return ScriptedModel(play)


def tools(effect: Callable[[str], None]) -> list[Tool]:
    """The session's tools."""

    @tool(danger_level="safe", effect="pure")
    async def look(name: str) -> str:
        """Read something."""
        return f"{name} looks fine"

    @tool
    async def bump(name: str) -> str:
        """Change something, in a way that a repetition would show."""
        effect(f"bump {name}")
        return "bumped"

    @tool(effect="idempotent")
    async def put(name: str) -> str:
        """Put something in place; again is the same as once."""
        effect(f"put {name}")
        return "put"

    @tool(danger_level="high")
    async def risky(name: str) -> str:
        """Change something that a person must approve."""
        effect(f"risky {name}")
        return "dared"

    return [look, bump, put, risky]


@dataclass
class HonestPerson:
    """Approves everything, and answers whether a call of unknown outcome may run again by looking at what
    happened.
    """

    happened: Callable[[str], bool]
    asked: list[ApprovalAsked] = field(default_factory=list)

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Say yes, unless it would be the second time."""
        self.asked.append(asked)
        again = asked.why == "unknown_outcome" and self.happened(f"{asked.tool} {asked.args['name']}")
        return ApprovalGiven(
            call=asked.call,
            granted=not again,
            by="person",
            how="prompt",
            reason="it happened" if again else "",
        )


def put_prefix(session: Lab, records: list[Record], cut: int) -> str:
    """Write the first `cut` events of a run into the log of `session` as a run of its own, as if its process
    had died there; returns its id.
    """
    name, first = f"cut{cut}", records[0].event
    assert isinstance(first, RunStarted)
    session.store.create_run(name, first)
    for record in records[1:cut]:
        session.store.append(name, record.event, at=record.at)
    return name


def unreported(records: list[Record]) -> list[str]:
    """Calls with a side effect that a session left without an outcome and that no question was asked
    about.
    """
    begun: dict[str, ToolCalled] = {}
    doubtful: set[str] = set()
    asked: set[str] = set()
    for record in records:
        match record.event:
            case ToolCalled() as event:
                begun[event.call] = event
            case ToolAnswered() as event:
                begun.pop(event.call, None)
            case RunResumed() | RunForked():
                doubtful |= {
                    f"{call}#{event.attempt + 1}" for call, event in begun.items() if event.effect == "opaque"
                }
            case ApprovalAsked() as event if event.why == "unknown_outcome":
                asked.add(event.question)
    return sorted(doubtful - asked)


def illegal_states(records: list[Record]) -> list[str]:
    """Transitions that do not follow from the one before, or that the map does not know."""
    status, found = RunStatus.PLANNING, []
    for record in records:
        if isinstance(record.event, StateTransition):
            source, target = RunStatus(record.event.source), RunStatus(record.event.target)
            if source is not status or target not in TRANSITIONS[source]:
                found.append(f"{record.seq}: {status} {source} → {target}")
            status = target
    return found
