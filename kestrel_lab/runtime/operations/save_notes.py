"""The operation `commit`: a model proposes notes, rules decide, the memory stores them with evidence."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import cast

from kestrel_lab.core.errors import DependencyError, LimitError, ModelError, UsageError
from kestrel_lab.core.events.union import MemoryStored, Progress
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.notes import OWN, Note, untrusted_taint
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.runtime.agent.structured_output import read_json
from kestrel_lab.runtime.execution.artifacts import artifacts_prompt, as_text
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.memory.learn import (
    KINDS,
    LONGEST_NOTE,
    learn_from_run,
    note_refusal,
    text_problem,
    with_source,
)
from kestrel_lab.runtime.operations.arguments import Arguments, closed_object, step_dialogue

MOST_NOTES = 3
_NOTE = closed_object(
    {"text": {"type": "string"}, "kind": {"enum": list(KINDS)}, "evidence": {"type": "string"}}
)
SCHEMA = closed_object({"notes": {"type": "array", "items": _NOTE}})
"""JSON Schema of the notes that a model proposes."""

_TEXT = """\
A run has reached its goal. Propose what is worth remembering for later runs in the same workspace: \
preferences of the user, \
that is what they want from now on and not only this once, procedures the user asked for, decisions that \
stand, pitfalls, facts \
that will be needed again. Nothing that only mattered this once, nothing secret. Mostly there is nothing; \
then the list is empty. \
A preference or a procedure is kept in the words of the user that you copy as its evidence.

The goal was:

{goal}

{answer}

Answer with one JSON object and nothing else:
{{"notes": [{{"text": "one sentence", "kind": "preference | procedure | decision | pitfall | fact", \
"evidence": "words copied exactly from the goal or the \
answer that say so"}}]}}
At most {most} notes of at most {longest} characters."""


async def commit(scope: Scope) -> Done:
    """Store what the run has learned and pass on its answer unchanged.

    Arguments: `goal` and `answer`; `propose`, whether a model is asked (yes). A model proposes notes;
    `note_refusal` decides on each, and the memory stores those that pass, then the notes that follow from the
    log alone, see `learn_from_run`. Refused notes are reported with the reason. If the model gives no
    readable proposal in three attempts, or fails, nothing is stored and that is reported; the run keeps its
    answer. Only in a stage, which can be tried again, a failing model fails the step.
    """
    goal, answer, ctx = Arguments(scope).required("goal"), scope.args.get("answer"), scope.ctx
    said = as_text(answer)
    if scope.args.get("propose", True) is not True:
        await _keep_learned(scope)
        return Done(output=answer)
    text = _TEXT.format(
        goal=goal, answer=artifacts_prompt({"answer": said}), most=MOST_NOTES, longest=LONGEST_NOTE
    )
    try:
        proposed = await step_dialogue(scope).ask(text, lambda reply: _notes(read_json(reply, SCHEMA)))
    except (ModelError, DependencyError, LimitError) as error:  # the answer is there already, and stays
        unread = isinstance(error, ModelError) and isinstance(error.__cause__, UsageError)
        if scope.step.stage and not unread:
            # A stage is tried again, and a session that failed goes on there.
            raise
        why = "the model proposed nothing that could be read" if unread else one_line(str(error), 300)
        ctx.emit(Progress(text=f"nothing was remembered: {why}", lasting=True))
        proposed = []
    # The memory may hold notes that this run stored before a crash.
    await ctx.on_disk()
    kept = 0
    for place, item in enumerate(proposed):
        note = replace(
            with_source(item, goal),
            run=ctx.run_id,
            at=time.time(),
            id=f"n{content_key(ctx.run_id, scope.step.id, place)[:10]}",
        )
        if why := note_refusal(note, goal, said) or (
            "there are more than allowed" if kept >= MOST_NOTES else ""
        ):
            _tell_refusal(scope, note, why)
            continue
        kept += 1
        await _store_note(scope, note)
    await _keep_learned(scope)
    return Done(output=answer)


async def _keep_learned(scope: Scope) -> None:
    ctx = scope.ctx
    await ctx.on_disk()
    for note in await asyncio.to_thread(
        lambda: learn_from_run(ctx.services.store.records(ctx.run_id), ctx.given.workspace.root)
    ):
        if why := text_problem(note):
            _tell_refusal(scope, note, why)
        else:
            await _store_note(scope, note)


def _tell_refusal(scope: Scope, note: Note, why: str) -> None:
    text = f"not remembered, {why}: {one_line(note.text, 80)}"
    scope.ctx.emit(Progress(text=text, lasting=True))


async def _store_note(scope: Scope, note: Note) -> None:
    """Store a note in the memory and emit its event, unless that was done before a crash."""
    ctx = scope.ctx
    if note.id in ctx.state.kept:
        return
    if untrusted_taint(note.taint) and ctx.flow.now().clean:
        note = replace(note, taint=OWN + note.taint)
    if await ctx.given.ports.memory.remember(note, workspace=ctx.state.project):
        shown = MemoryStored(step=scope.step.id, note=note.as_json())
        ctx.emit(MemoryStored(step=scope.step.id, note=note.named()), shown=shown)


def _notes(value: Json) -> list[Note]:
    items = cast("list[dict[str, str]]", cast("dict[str, Json]", value)["notes"])
    return [
        Note(text=item["text"].strip(), kind=item["kind"], evidence=item["evidence"].strip())
        for item in items
    ]
