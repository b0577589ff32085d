"""References to notes: what the log has in place of their words, and the words when a model is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from kestrel_lab.core.messages import Message
from kestrel_lab.engine.context import RunContext

_REFERENCE = re.compile(r"\[\[note:([a-z0-9]{1,40})\]\]")
FORGOTTEN = "(this note was forgotten)"


async def spoken(messages: Sequence[Message], ctx: RunContext) -> Sequence[Message]:
    """`messages` as a model is to read them: with the words of the notes that the run recalled in place of references.

    Only what the run itself says to a model is looked at, and only references to notes that it was given: none that a
    tool or a model writes. The words stand as within a JSON string, on one line.
    """
    recalled = ctx.state.recalled
    wanted = {found for message in messages if message.role == "user" for found in _REFERENCE.findall(message.text)} & recalled
    if not wanted:
        return messages
    known = await ctx.ports.memory.notes(wanted, workspace=str(ctx.workspace.root))
    words = {note.id: json.dumps(note.text, ensure_ascii=False)[1:-1] for note in known}

    def put(match: re.Match[str]) -> str:
        return words.get(match[1], FORGOTTEN) if match[1] in recalled else match[0]

    return [replace(message, text=_REFERENCE.sub(put, message.text)) if message.role == "user" else message for message in messages]
