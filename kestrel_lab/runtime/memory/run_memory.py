"""Memory tools of a run: recall, remember and forget.

The log refers to notes by id and never contains their text.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import ToolError
from kestrel_lab.core.events.union import ApprovalAsked, MemoryRecalled, MemoryStored
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.messages import Message
from kestrel_lab.core.notes import GUIDING, OWN, REFERENCE, Note, NoteQuery, untrusted_taint
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.memory.learn import text_problem, with_source
from kestrel_lab.tools.memory_tools import forget, recall
from kestrel_lab.tools.tool import Notes

SHOW = "the words of a note: kestrel memory show ID"
_DAY_S = 24 * 3600.0


@runtime_checkable
class ForgettingMemory(Protocol):
    """A memory that can forget."""

    def chosen(self, selector: str, workspace: str) -> Sequence[Note]:
        """Return the notes that `selector` selects. Raises `UsageError` for an unknown selector."""
        ...

    def forget(self, selector: str, workspace: str) -> object:
        """Delete the notes that `selector` selects; the result's `repr` is a sentence.

        Raises `UsageError` for an unknown selector.
        """
        ...


def notes_of(ctx: RunContext, step: str) -> Notes:
    """Return the functions of the tools `recall`, `remember` and `forget` for a step of the run."""
    tools = _NoteTools(ctx, step)
    return Notes(recall=tools.recall, remember=tools.remember, chosen=tools.chosen, forget=tools.forget)


@dataclass(frozen=True, slots=True)
class _NoteTools:
    """Recalls, stores and forgets notes for one step.

    A note that is not in the goal keeps the taint of an answer, is never an instruction, and replaces no
    trusted note. Texts that look like secrets or instruct agents are refused.
    """

    ctx: RunContext
    step: str

    @property
    def place(self) -> str:
        return self.ctx.state.project

    async def recall(self, query: str, top_k: int, tags: tuple[str, ...]) -> list[dict[str, Json]]:
        ctx = self.ctx
        found = await ctx.given.ports.memory.recall(NoteQuery(query, top_k, self.place, tags, ctx.run_id))
        if found:
            shown = MemoryRecalled(step=self.step, notes=[note.as_json() for note in found])
            ctx.emit(MemoryRecalled(step=self.step, notes=[note.named() for note in found]), shown=shown)
        return [note.referred() for note in found]

    async def remember(
        self, text: str, kind: str, tags: tuple[str, ...], confidence: float, days: float | None, call: str
    ) -> str:
        ctx = self.ctx
        note = self._note(text, kind)
        now = time.time()
        note = replace(
            note,
            id=f"n{content_key(ctx.run_id, 'remember', call)[:10]}",
            run=ctx.run_id,
            at=now,
            tags=tags,
            confidence=min(confidence, note.confidence) if note.taint else note.confidence,
            expires=None if days is None else now + days * _DAY_S,
        )
        # By this very call, before it was interrupted.
        if note.id in ctx.state.kept:
            return f"kept as note {note.id}"
        if not await ctx.given.ports.memory.remember(note, workspace=self.place):
            return "the memory has it already, or does not take it"
        ctx.emit(
            MemoryStored(step=self.step, note=note.named()),
            shown=MemoryStored(step=self.step, note=note.as_json()),
        )
        return f"kept as note {note.id}"

    def _note(self, text: str, kind: str) -> Note:
        """Return the note with its taint; raise `ToolError` for one that must not be kept."""
        started = self.ctx.state.started
        note = with_source(Note(text=text, kind=kind, evidence=text), "" if started is None else started.goal)
        if why := text_problem(note):
            raise ToolError(f"it is not kept: {why}")
        if note.kind in GUIDING and note.taint:
            raise ToolError(
                f"it is not kept: a {kind} must be in the user's own words; a fact, decision or "
                "pitfall may be in yours"
            )
        return (
            replace(note, taint=OWN + note.taint)
            if untrusted_taint(note.taint) and self.ctx.flow.now().clean
            else note
        )

    def chosen(self, selector: str) -> str:
        found = [
            note.named() | {"text": REFERENCE.format(note.id)}
            for note in self._forgets().chosen(selector, self.place)
        ]
        lines = [f"- {note['kind']} {note['id']}{_taint_suffix(note)}: {note['text']}" for note in found]
        return "\n".join([f"{selector} means {format_count(len(found), 'note')}:", *lines, SHOW])

    async def forget(self, selector: str) -> str:
        memory = self._forgets()
        await self.ctx.on_disk()
        return repr(await asyncio.to_thread(memory.forget, selector, self.place))

    def _forgets(self) -> ForgettingMemory:
        memory = self.ctx.given.ports.memory
        if not isinstance(memory, ForgettingMemory):
            raise ToolError("the memory of this run cannot forget")
        return memory


def _taint_suffix(note: dict[str, Json]) -> str:
    return f" (from {note['taint']})" if "taint" in note else ""


# References to notes: the log has them in place of the text, which is put in when a model is asked.

_REFERENCE = re.compile(r"\[\[note:([a-z0-9]{1,40})\]\]")
FORGOTTEN = "(this note was forgotten)"


async def with_note_texts(messages: Sequence[Message], ctx: RunContext) -> Sequence[Message]:
    """Return `messages` with references replaced by the text of the notes that the run recalled.

    Only messages of the run itself and of its tool `recall` are changed, and only references to notes that
    the run recalled: none that another tool or a model writes. The text is escaped as within a JSON string,
    on one line.
    """
    recalled = ctx.state.recalled
    wanted = {
        found for message in messages if _refers(message) for found in _REFERENCE.findall(message.text)
    } & recalled
    if not wanted:
        return messages
    known = await ctx.given.ports.memory.notes(wanted, workspace=ctx.state.project)
    words = {note.id: json.dumps(note.text, ensure_ascii=False)[1:-1] for note in known}

    def put(match: re.Match[str]) -> str:
        return words.get(match[1], FORGOTTEN) if match[1] in recalled else match[0]

    return [
        replace(message, text=_REFERENCE.sub(put, message.text)) if _refers(message) else message
        for message in messages
    ]


async def question_with_notes(asked: ApprovalAsked, ctx: RunContext) -> ApprovalAsked:
    """Return `asked` with the text of the notes that would be forgotten, which the log does not contain."""
    if asked.tool != forget.name or not (wanted := set(_REFERENCE.findall(asked.preview))):
        return asked
    words = {
        note.id: one_line(note.text, 300)
        for note in await ctx.given.ports.memory.notes(wanted, workspace=ctx.state.project)
    }
    return replace(asked, preview=_REFERENCE.sub(lambda match: words.get(match[1], FORGOTTEN), asked.preview))


def _refers(message: Message) -> bool:
    return message.role == "user" or (message.role == "tool" and message.name == recall.name)
