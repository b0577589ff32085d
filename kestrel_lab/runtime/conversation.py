"""Conversation: what a run takes over from the run that it follows, and the runs of a conversation in order.

A follow-up is a run of its own that names its parent. It begins with the messages that the parent ended with;
what is known of those messages (whose words, which notes, which long results) comes with them. What goes on
in the parent later changes nothing of that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack, cast

from kestrel_lab.answers.output_types import T
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message
from kestrel_lab.core.plan import conversation_step
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.options import RunOptions
from kestrel_lab.runtime.resume import check_whole
from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.tools.data_flow import Flow

if TYPE_CHECKING:
    from kestrel_lab.answers.output_types import OutputForm
    from kestrel_lab.runtime.run import Run

_NO_ANSWER = "(The run ended without an answer: {reason})"
_NOT_DONE = "This call was not carried out: the run ended before."


def inherited_history(
    store: SessionStore, run_id: str, known: Callable[[str], Flow]
) -> tuple[RunStarted, dict[str, Json]]:
    """Return how run `run_id` began, and what a run takes over from it: the field `earlier` of its
    `run_started`. `known` gives the flow of a tool.

    Raises `UsageError` for a run that does not exist or has not ended, `Damaged` for one whose events are not
    those that were written.
    """
    store.flush()
    store.run(run_id)
    check_whole(store, run_id, anew=False)
    state, taint = RunState(), Taint(known=known)
    for record in store.records(run_id):
        state.apply(record.event, record.at)
        taint.apply(record.event)
    if state.started is None or not (state.status.terminal or state.interrupted):
        raise UsageError(
            f"run {run_id} has not ended: wait for it (kestrel follow {run_id}), or begin anew with --new"
        )
    turn = cast("int", state.started.earlier.get("turn", 0)) + 1
    messages = [_rename_calls(message, turn) for message in _messages(state)]
    return replace(state.started, private_copy=state.private_copy), {
        "turn": turn,
        "messages": [message.as_json() for message in messages],
        "recalled": [*sorted(state.recalled)],
        "files": dict(state.conversation(conversation_step(state.started.plan)).files),
        "wholes": {
            name: {"call": whole.call, "tool": whole.tool, "chars": whole.chars}
            for name, whole in state.wholes.items()
        },
        **taint.carried(messages),
    }


def _messages(state: RunState) -> list[Message]:
    """The conversation that a run ended with, without system message; of a plan, goal and answer."""
    assert state.started is not None
    conversation = state.conversation(conversation_step(state.started.plan))
    if len(state.planned.steps) > 1:
        messages = [message for message in conversation.messages if message.earlier]
        messages.append(Message(role="user", text=state.started.goal))
    else:
        messages = [message for message in conversation.sent if message.role != "system"]
        messages += [
            Message(
                role="tool",
                text=conversation.answers.get(request.id, _NOT_DONE),
                call_id=request.id,
                name=request.name,
            )
            for request in conversation.requests
        ]
        messages = messages or [Message(role="user", text=state.started.goal)]
    said = messages[-1].text if messages[-1].role == "assistant" else ""
    if state.answer and said.strip() != state.answer.strip():
        messages.append(Message(role="assistant", text=state.answer))
    elif messages[-1].role != "assistant":
        reason = (
            state.finished.reason
            if state.finished is not None and state.finished.reason
            else "it was stopped"
        )
        messages.append(Message(role="assistant", text=_NO_ANSWER.format(reason=reason)))
    return messages


def _rename_calls(message: Message, turn: int) -> Message:
    """The message with ids of calls that no other turn has: each run counts its calls from the beginning."""
    if message.earlier:
        return message
    calls = tuple(replace(call, id=f"turn{turn}.{call.id}") for call in message.calls)
    return replace(message, calls=calls, call_id=message.call_id and f"turn{turn}.{message.call_id}")


_FOLLOWED = """
    SELECT parent, (SELECT body ->> '$.follows' FROM events WHERE run_id = runs.id AND seq = 1 AND type = \
'run_started') FROM runs WHERE id = ?
"""


def conversation_runs(store: SessionStore, run_id: str) -> list[str]:
    """Return the ids of the runs whose conversation `run_id` goes on with, the first one first, and its own
    at the end.

    A parent that is no longer in the log ends the list. Raises `UsageError` where `run_id` itself is not
    there.
    """
    store.run(run_id)
    found = [run_id]
    while rows := store.query(_FOLLOWED, (run_id,)):
        parent, follows = rows[0]
        # A fork follows what the run follows that it was forked from.
        run_id = str(parent or follows or "")
        if run_id in found:
            break
        if run_id and not parent:
            found.insert(0, run_id)
    return found


class Chat:
    """A conversation. Its turns are runs, so each can be shown, forked and measured like any other.

    `await chat.ask("…")` is the next turn; a notebook shows it in a panel.
    """

    def __init__(
        self,
        start: Callable[..., Run],
        run: Callable[..., Awaitable[Run]],
        options: RunOptions,
    ) -> None:
        """Turns begin with `options`; `start` begins one, `run` waits for its end and shows it where somebody
        looks. `options["follow"]` is the run whose conversation the first one goes on with.
        """
        self.runs: list[Run] = []
        """The turns so far."""
        self._start, self._run, self._options = start, run, options

    def begin(
        self,
        goal: str,
        *,
        output: type[T] | OutputForm | None = None,
        **changes: Unpack[RunOptions],
    ) -> Run[T]:
        """Begin the next turn on the running event loop and return at once; options as `Lab.start`."""
        run = self._start(goal, output=output, **self._next(changes))
        self.runs.append(run)
        return run

    async def ask(
        self,
        goal: str,
        *,
        output: type[T] | OutputForm | None = None,
        **changes: Unpack[RunOptions],
    ) -> Run[T]:
        """Carry out the next turn; raises like `Lab.run`, and `UsageError` while a turn is at work."""
        run = await self._run(goal, output=output, **self._next(changes))
        self.runs.append(run)
        return run

    def _next(self, changes: RunOptions) -> RunOptions:
        options: RunOptions = {**self._options, **changes}
        return {**options, "follow": self.runs[-1]} if self.runs else options

    def __repr__(self) -> str:
        last = f", last answer {one_line(self.runs[-1].answer, 60)!r}" if self.runs else ""
        return f"Chat({len(self.runs)} turns{last})"

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self.runs)
