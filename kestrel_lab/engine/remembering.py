"""The operation `commit`: a model proposes what to remember, rules decide, and what passes is kept with its evidence."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from typing import cast

from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.events import MemoryStored, Progress
from kestrel_lab.core.jsontypes import Json, content_key
from kestrel_lab.core.notes import GUIDING, OWN, Note, unvouched
from kestrel_lab.core.text import one_line, plain
from kestrel_lab.engine.artifacts import as_text, told
from kestrel_lab.engine.dialogue import Dialogue, read_json
from kestrel_lab.engine.learning import learned
from kestrel_lab.engine.operation import Done, Scope
from kestrel_lab.memory.words import stems

MOST_NOTES = 3
LONGEST_NOTE = 300
ANSWER = "answer"
"""The taint of what a run's answer says: tools and files had a say in it."""
_LONGEST_EVIDENCE = 1_000
KINDS = ("preference", "procedure", "decision", "pitfall", "fact")
"""What a model may propose."""
SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "notes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "kind": {"enum": list(KINDS)}, "evidence": {"type": "string"}},
                "required": ["text", "kind", "evidence"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["notes"],
    "additionalProperties": False,
}
"""What a model proposes."""

_TEXT = """\
A run has reached its goal. Propose what is worth remembering for later runs in the same workspace: preferences of the user, \
procedures the user asked for, decisions that stand, pitfalls, facts that will be needed again. Nothing that only mattered this \
once, nothing secret. Mostly there is nothing; then the list is empty.

The goal was:

{goal}

{answer}

Answer with one JSON object and nothing else:
{{"notes": [{{"text": "one sentence", "kind": "preference | procedure | decision | pitfall | fact", "evidence": "words copied exactly from the goal or the \
answer that say so"}}]}}
At most {most} notes of at most {longest} characters."""
_SECRET = re.compile(
    r"(?i)\b(?:api[_ -]?key|secret|password|passwd|token|credential)s?\b\s*(?:is|are|[:=])|-----BEGIN|\b(?=\w*\d)(?=\w*[a-z])[\w-]{32,}\b"
)
_ORDER = re.compile(r"(?i)\b(?:ignore|disregard|forget)\b.{0,40}\b(?:instruction|previous|above|rule)|\bsystem prompt\b|\byou are now\b")


async def commit(scope: Scope) -> Done:
    """Keep what the run has learned and pass on its answer unchanged.

    Arguments: `goal` and `answer`. A model proposes notes; `refusal` decides on each, and what passes is given to the
    memory; then what the log itself shows, see `learned`. A proposal that cannot be used after three attempts means
    that nothing of it is kept: the run has its answer.
    """
    goal, answer, ctx = as_text(scope.args.get("goal")).strip(), scope.args.get("answer"), scope.ctx
    if not goal:
        msg = "the operation 'commit' needs a goal in its args"
        raise UsageError(msg)
    said = as_text(answer)
    text = _TEXT.format(goal=goal, answer=told({"answer": said}), most=MOST_NOTES, longest=LONGEST_NOTE)
    try:
        proposed = await Dialogue(scope.step, ctx, scope.desk).ask(text, lambda reply: _notes(read_json(reply, SCHEMA)))
    except ModelError as error:
        if not isinstance(error.__cause__, UsageError):
            raise
        ctx.emit(Progress(text="nothing was remembered: the model proposed nothing that could be read"))
        proposed = []
    await ctx.on_disk()  # what this run kept before a crash is known to the memory
    kept = 0
    for place, item in enumerate(proposed):
        note = replace(sourced(item, goal), run=ctx.run_id, at=time.time(), id=f"n{content_key(ctx.run_id, scope.step.id, place)[:10]}")
        if why := refusal(note, goal, said) or ("there are more than allowed" if kept >= MOST_NOTES else ""):
            ctx.emit(Progress(text=f"not remembered, {why}: {one_line(note.text, 80)}"))
            continue
        kept += 1
        await _keep(scope, note)
    for note in await asyncio.to_thread(lambda: learned(ctx.store.records(ctx.run_id), goal, ctx.workspace.root)):
        if not _unfit(note):
            await _keep(scope, note)
    return Done(output=answer)


async def _keep(scope: Scope, note: Note) -> None:
    """Give a note to the memory and tell of it, unless that was done before a crash."""
    ctx = scope.ctx
    if note.id in ctx.state.kept:
        return
    if unvouched(note.taint) and ctx.flow.now().clean:
        note = replace(note, taint=OWN + note.taint)
    if await ctx.ports.memory.remember(note, workspace=str(ctx.workspace.root)):
        shown = MemoryStored(step=scope.step.id, note=note.as_json())
        ctx.emit(MemoryStored(step=scope.step.id, note=note.named()), shown=shown)


def sourced(note: Note, goal: str) -> Note:
    """`note` with how far it is trusted: as the user's own words if the goal says most of it, else as the run's answer."""
    evidence = _words(note.evidence)
    if len(evidence) >= 3 and evidence in _words(goal) and _covered(note.text, note.evidence):
        return replace(note, stated=True, taint="", confidence=0.9)
    return replace(note, stated=False, taint=ANSWER, confidence=0.6)


def _covered(text: str, evidence: str) -> bool:
    wanted = stems(text)
    return len(wanted & stems(evidence)) >= 0.6 * len(wanted)


def refusal(note: Note, goal: str, answer: str) -> str:
    """Why a proposed `note` is not kept, in words; empty if it may be. It says by its taint whether the user said it."""
    if why := _unfit(note):
        return why
    if note.kind not in KINDS:
        return f"its kind is not {', '.join(KINDS[:-1])} or {KINDS[-1]}"
    evidence = _words(note.evidence)
    if len(evidence) < 3 or not (evidence in _words(goal) or evidence in _words(answer)):
        return "its evidence is not in the goal or the answer"
    if note.kind in GUIDING and note.taint:
        return f"a {note.kind} must be what the user said, and the goal does not say it"
    return ""


def _unfit(note: Note) -> str:
    """What is wrong with the words of a note, wherever they come from."""
    if not note.text or len(note.text) > LONGEST_NOTE or "\n" in note.text:
        return f"it is not one sentence of at most {LONGEST_NOTE} characters"
    if len(note.evidence) > _LONGEST_EVIDENCE:
        return f"its evidence has more than {_LONGEST_EVIDENCE:,} characters"
    if plain(note.text) != note.text:
        return "it has hidden characters"
    if _SECRET.search(note.text) or _SECRET.search(note.evidence):
        return "it looks like a secret"
    if _ORDER.search(note.text):
        return "it gives orders to agents"
    return ""


def _notes(value: Json) -> list[Note]:
    items = cast("list[dict[str, str]]", cast("dict[str, Json]", value)["notes"])
    return [Note(text=item["text"].strip(), kind=item["kind"], evidence=item["evidence"].strip()) for item in items]


def _words(text: str) -> str:
    return " ".join(text.casefold().split())
