"""References to notes: what the log has in place of their words, and the words when a model is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from kestrel_lab.core.events import ApprovalAsked
from kestrel_lab.core.messages import Message
from kestrel_lab.core.text import one_line
from kestrel_lab.engine.context import RunContext
from kestrel_lab.tools.noting import forget, recall

_REFERENCE = re.compile(r"\[\[note:([a-z0-9]{1,40})\]\]")
FORGOTTEN = "(this note was forgotten)"


async def spoken(messages: Sequence[Message], ctx: RunContext) -> Sequence[Message]:
    """`messages` as a model is to read them: with the words of the notes that the run recalled in place of references.

    Only what the run itself and its tool `recall` say to a model is looked at, and only references to notes that the run
    was given: none that another tool or a model writes. The words stand as within a JSON string, on one line.
    """
    recalled = ctx.state.recalled
    if not recalled:
        return messages
    wanted = {found for message in messages if _refers(message) for found in _REFERENCE.findall(message.text)} & recalled
    if not wanted:
        return messages
    known = await ctx.ports.memory.notes(wanted, workspace=str(ctx.workspace.root))
    words = {note.id: json.dumps(note.text, ensure_ascii=False)[1:-1] for note in known}

    def put(match: re.Match[str]) -> str:
        return words.get(match[1], FORGOTTEN) if match[1] in recalled else match[0]

    return [replace(message, text=_REFERENCE.sub(put, message.text)) if _refers(message) else message for message in messages]


async def worded(asked: ApprovalAsked, ctx: RunContext) -> ApprovalAsked:
    """`asked` as a person is to see it: with the words of the notes that would be forgotten, which the log does not have."""
    if asked.tool != forget.name or not (wanted := set(_REFERENCE.findall(asked.preview))):
        return asked
    words = {note.id: one_line(note.text, 300) for note in await ctx.ports.memory.notes(wanted, workspace=str(ctx.workspace.root))}
    return replace(asked, preview=_REFERENCE.sub(lambda match: words.get(match[1], FORGOTTEN), asked.preview))


def _refers(message: Message) -> bool:
    return message.role == "user" or (message.role == "tool" and message.name == recall.name)
