"""Tools `create_tasks`, `update_task`, `list_tasks` and `ask_user`: the task list of a run, and questions to
the user.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ToolError, did_you_mean
from kestrel_lab.core.events.union import TaskChanged
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tasks, Tool, ToolContext

STATE_EFFECTS: Final = "state_effects"
_MOST_TASKS = 100
_TITLE_CHARS = 300


@tool(danger_level=Danger.SAFE, effect="idempotent", version="1", reads="run", reaches="nothing")
async def create_tasks(titles: list[str], ctx: ToolContext) -> str:
    """Put tasks on the task list of this run, to plan work of several parts. Returns the whole list.

    Args:
        titles: What is to be done, a short line each, in the order in which you mean to do it.
        ctx: The run it works for.

    """
    tasks = _tasks(ctx)
    titles = [one_line(title, _TITLE_CHARS) for title in titles]
    if not titles or not all(titles):
        raise ValueError("titles must be a list of at least one text, none of them empty")
    there = tasks.listed()
    # By this very call, before it was interrupted.
    made = sum(task.call == ctx.call_id for task in there) if ctx.call_id else 0
    if len(there) + len(titles) - made > _MOST_TASKS:
        raise ValueError(
            f"a run has at most {_MOST_TASKS} tasks, and this one has {len(there)}: make fewer, larger ones"
        )
    for number, title in enumerate(titles[made:], len(there) + 1):
        tasks.change(TaskChanged(task=str(number), title=title, call=ctx.call_id))
    return _tasks_text(tasks)


@tool(danger_level=Danger.SAFE, effect="idempotent", version="1", reads="run", reaches="nothing")
async def update_task(
    task: str,
    ctx: ToolContext,
    status: Literal["", "todo", "doing", "done", "dropped"] = "",
    title: str = "",
    note: str = "",
) -> str:
    """Change a task of the task list: its state, its title, a note. Returns the whole list.

    Args:
        task: Its number.
        ctx: The run it works for.
        status: The new state; as it is if left out.
        title: The new title; as it is if left out.
        note: What came of it, or why it was dropped; as it is if left out.

    """
    tasks = _tasks(ctx)
    known = {one.task: one for one in tasks.listed()}
    if task not in known:
        raise ValueError(
            f"there is no task {task!r}; "
            f"{did_you_mean(task, known) if known else 'the list is empty: create_tasks puts tasks on it'}"
        )
    before = known[task]
    after = replace(
        before,
        status=status or before.status,
        title=one_line(title, _TITLE_CHARS) or before.title,
        note=one_line(note, _TITLE_CHARS) or before.note,
    )
    if after != before:
        tasks.change(after)
    return _tasks_text(tasks)


@tool(danger_level=Danger.SAFE, effect="pure", version="1", reads="run", reaches="nothing")
async def list_tasks(ctx: ToolContext) -> str:
    """List the tasks of this run with their state.

    Args:
        ctx: The run it works for.

    """
    return _tasks_text(_tasks(ctx))


def task_tools() -> list[Tool]:
    """Return `create_tasks`, `update_task` and `list_tasks` of the group `tasks`, and `state_effects` of
    `effects`.
    """
    return [
        *(replace(made, group="tasks") for made in (create_tasks, update_task, list_tasks)),
        state_effects,
    ]


def _tasks(ctx: ToolContext) -> Tasks:
    if ctx.tasks is None:
        raise ValueError("task lists belong to runs: this tool works only within a run")
    return ctx.tasks


def _tasks_text(tasks: Tasks) -> str:
    lines = [
        f"{one.task}. [{one.status}] {one.title}" + (f" ({one.note})" if one.note else "")
        for one in tasks.listed()
    ]
    return "\n".join(lines) or "[the task list is empty]"


# Stating which effects a goal needs, before anything foreign is read.


@dataclass(frozen=True, kw_only=True)
class StatedEffect:
    """Calls of one tool that a goal needs."""

    tool: str
    """The name of the tool."""
    times: int = 1
    """How many calls of it."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments that are known already, by name."""


@tool(name=STATE_EFFECTS, danger_level=Danger.SAFE, effect="pure", version="1", reads="", reaches="nothing")
def _state_effects(effects: list[StatedEffect]) -> str:
    """State which calls that change, send or spend something the user's goal needs. Call it first, before you
    read anything.

    Calls that keep to the list need no question later. What is stated after something was read that others
    wrote counts for nothing.

    Args:
        effects: Each tool that has to be called, how often, and the arguments that the goal names.

    """
    return f"{len(effects)} stated"


state_effects = replace(_state_effects, group="effects")
"""The list of effects that a model states, offered to runs that name it or `effects`.

The call in the log is the statement.
"""


# Asking the person a run works for.


@tool(name="ask_user", danger_level=Danger.SAFE, effect="pure", version="1", reads="", reaches="nothing")
def _nobody(question: str, options: list[str] | None = None) -> str:
    """Ask the user a question that only they can decide, and return what they say. Do not ask for what you
    can find out.

    Args:
        question: What you need to know, in one or two sentences.
        options: Answers to choose from, if there are a few; the user may still answer otherwise.

    """
    raise ToolError(
        "nobody is here to answer: decide yourself, go on, and say in your answer what you assumed"
    )


ask_user = replace(_nobody, asks_person=True)
"""A person answers the question like an approval; the function answers if there is nobody."""
