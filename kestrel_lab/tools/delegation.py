"""Tool `delegate`: hand a goal to a sub-agent, which works on it in a conversation of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ToolSpec
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.step import Step
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import ToolContext

DELEGATE: Final = "delegate"
WORKER: Final = "worker"
"""The one agent of a step without a team: the same model with the same tools, in a new conversation."""


async def _delegate(agent: str, goal: str, ctx: ToolContext, share: float = 0.0) -> Json:
    """Have another agent work on a goal and return its answer. It sees nothing of this conversation: put what
    it must know into the goal.

    Several calls in one turn run at the same time. The agent "worker" has your model and your tools.

    Args:
        agent: Which agent.
        goal: What it is to do, complete in itself.
        share: Most of what is left of the run's money, tokens and time that it may use, from 0 to 1; by
            default an equal part.

    """
    if ctx.delegate is None:
        raise UsageError(
            "agents are delegated to only within a run: their calls are approved and recorded there"
        )
    return await ctx.delegate(agent, goal, share)


# Its own calls are asked about, and have flows, like all others: delegating has no effect itself and is gone
# on with after a crash.
delegate = replace(
    tool(name=DELEGATE, danger_level=Danger.SAFE, effect="pure", version="1")(_delegate),
    reads=(),
    reaches="nothing",
    unsaid=frozenset(),
    group="agents",
)


def describe_for_team(spec: ToolSpec, members: Iterable[Step], team: Mapping[str, Any]) -> ToolSpec:
    """Return the spec that a model with a team gets: it lists the agents' names and what each is for."""
    names = [member.id for member in members]
    lines = [
        f"- {name}: "
        f"{one_line(str(team[name].get('description') or team[name].get('instructions') or ''), 200)}"
        for name in names
    ]
    schema: dict[str, Any] = {
        **spec.schema,
        "properties": {
            **cast("dict[str, Any]", spec.schema["properties"]),
            "agent": {"type": "string", "enum": names, "description": "Which agent."},
        },
    }
    text = spec.description.partition(' The agent "worker"')[0]
    return replace(spec, description="\n".join([f"{text} Agents:", *lines]), schema=schema)
