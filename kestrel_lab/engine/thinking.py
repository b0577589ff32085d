"""The two operations that `thoughts` grows: one proposes candidates, the other has a model score one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.step import Step
from kestrel_lab.core.template import escape
from kestrel_lab.engine.artifacts import told
from kestrel_lab.engine.dialogue import Dialogue, read_json
from kestrel_lab.engine.operation import Done, Scope

MAX_THOUGHT = 4_000
"""Characters of a candidate."""
_CANDIDATES: dict[str, Json] = {
    "type": "object",
    "properties": {
        "candidates": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1, "maxLength": MAX_THOUGHT}},
    },
    "required": ["candidates"],
    "additionalProperties": False,
}
_SCORE: dict[str, Json] = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "done": {"type": "boolean"},
        "note": {"type": "string"},
    },
    "required": ["score", "done", "note"],
    "additionalProperties": False,
}
_EXPAND = """\
Think of ways to reach this goal:

{goal}

{so_far} Propose {what}. Each must differ from the others in what would be done, not in words. Answer with one JSON object and nothing else:
{{"candidates": ["the first", "the second"]}}"""
_FIRST = "Nothing has been decided yet."
_NEXT = "What has been decided so far, and what is known of it, is in the artifacts below."
_JUDGE = """\
Judge a way towards this goal:

{goal}

The artifacts below hold the thoughts it consists of, one after the other. Answer with one JSON object and nothing else:
{{"score": 0.5, "done": false, "note": "why, in one sentence, and what whoever goes on should know"}}

"score" is from 0 (leads nowhere, or is wrong) to 1 (certainly reaches the goal); "done" is true only if the goal is reached with it \
and nothing is left to do."""


async def thoughts_expand(scope: Scope) -> Done:
    """Ask the model for candidates that go on from the path given, and grow a step for each that scores it."""
    args = scope.args
    goal, count = str(args["goal"]), cast("int", args["count"])
    path = cast("list[dict[str, Json]]", scope.step.given["path"])
    what = ("one next thought" if count == 1 else f"{count} different next thoughts") if path else _first(count)
    text = _EXPAND.format(goal=goal, so_far=_NEXT if path else _FIRST, what=what)
    if path:
        text = f"{text}\n\n{told(_as_artifacts(path))}"
    dialogue = Dialogue(replace(scope.step, schema=_CANDIDATES), scope.ctx, scope.desk)
    candidates = await dialogue.ask(text, _proposed)
    grown = [_scoring(scope, goal, path, text, number) for number, text in enumerate(candidates[:count], cast("int", args["known"]) + 1)]
    return Done(output=cast("Json", candidates[:count]), grows=tuple(grown))


async def thoughts_score(scope: Scope) -> Done:
    """Ask the model what a candidate is worth."""
    thought, path = (scope.step.given[name] for name in ("thought", "path"))
    shown = _as_artifacts([*cast("list[dict[str, Json]]", path), cast("dict[str, Json]", thought)])
    text = f"{_JUDGE.format(goal=scope.args['goal'])}\n\n{told(shown)}"
    dialogue = Dialogue(replace(scope.step, schema=_SCORE, temperature=0.0), scope.ctx, scope.desk)
    return Done(output=await dialogue.ask(text, lambda answer: read_json(answer, _SCORE)))


def _first(count: int) -> str:
    return "one approach, or its first part" if count == 1 else f"{count} different approaches, or first parts of one"


def _proposed(answer: str) -> list[str]:
    """The different candidates in an answer."""
    value = cast("dict[str, Any]", read_json(answer, _CANDIDATES))
    found = dict.fromkeys(text.strip() for text in value["candidates"])
    found.pop("", None)
    if not found:
        msg = "candidates: all of them are empty"
        raise UsageError(msg)
    return list(found)


def _scoring(scope: Scope, goal: str, path: list[dict[str, Json]], text: str, number: int) -> Step:
    """The step that scores a candidate: a tool's call, or a question to a model."""
    step, order = scope.step, cast("dict[str, Any]", scope.args["score"])
    name = f"{scope.args['prefix']}{number}"
    thought: dict[str, Json] = {"id": name, "text": text, "parent": path[-1]["id"] if path else "", "depth": len(path) + 1}
    given: dict[str, Json] = {"thought": thought, "path": cast("Json", path)}
    if not order:
        return replace(step, id=name, operation="thoughts_score", parent="", args={"goal": escape(goal)}, given=given)
    values: dict[str, Json] = {"goal": goal, "path": [*(item["text"] for item in path), text], "candidate": text}
    args = {**order.get("args", {}), **{order[word]: value for word, value in values.items() if word in order}}
    safe = scope.ctx.toolbox.get(order["tool"]).effect == "pure"
    return Step(id=name, tool=order["tool"], args=cast("dict[str, Json]", escape(args)), given=given, stage=step.stage, parallelizable=safe)


def _as_artifacts(path: list[dict[str, Json]]) -> dict[str, Json]:
    shown: dict[str, Json] = {}
    for place, item in enumerate(path, 1):
        shown[f"thought {place}"] = item["text"]
        if item.get("note"):
            shown[f"what is known of thought {place}"] = item["note"]
    return shown
