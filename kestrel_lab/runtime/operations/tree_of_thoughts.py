"""The operation `thoughts` (tree of thoughts): propose and score candidates, expand the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from kestrel_lab.core.errors import UnmetError, UsageError, did_you_mean
from kestrel_lab.core.events.union import BranchScored
from kestrel_lab.core.expressions.templates import escape_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.agent.structured_output import read_json
from kestrel_lab.runtime.execution.artifacts import artifacts_prompt, as_text
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.operations.arguments import Arguments, closed_object, step_dialogue

COUNTS = {"breadth": 3, "beam": 4, "nodes": 12, "depth": 3}
SHARES = {"floor": 0.1, "enough": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Thought:
    """A candidate: the next part of a solution, after its parent."""

    id: str
    """Also the id of the step that scores it."""
    text: str
    parent: str = ""
    """Empty for a first thought."""
    depth: int = 1
    score: float = 0.0
    done: bool = False
    """Whether it solves the goal."""
    note: str = ""
    """The remark of its scorer."""
    state: str = "open"
    """`open`, `expanded` (has children) or `closed`: scored low, failed, too deep or outranked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """The checked arguments of a search: its goal and bounds."""

    goal: str
    breadth: int
    """Candidates per expansion."""
    beam: int
    """Open candidates that are kept; worse ones are closed."""
    nodes: int
    """Candidates in all."""
    depth: int
    """Thoughts one after the other."""
    floor: float
    """A candidate with a lower score is closed."""
    enough: float
    """A candidate with this score counts as a solution."""
    score: dict[str, Json]
    """The tool that scores candidates and its arguments; empty where a model scores them."""
    round: int = 1

    @classmethod
    def read(cls, scope: Scope) -> Order:
        """Return the checked arguments of a step; raises `UsageError`."""
        known = {*COUNTS, *SHARES, "goal", "score", "round"}
        for name in scope.args:
            if name not in known:
                raise UsageError(
                    f"the operation 'thoughts' has no argument {name!r}; {did_you_mean(name, known)}"
                )
        args = Arguments(scope)
        counts = {name: args.whole(name, default, least=1) for name, default in COUNTS.items()}
        shares = {name: args.share(name, default) for name, default in SHARES.items()}
        score = _scorer(scope.args.get("score"), scope)
        return cls(
            goal=args.goal(),
            score=score,
            round=args.whole("round", 1, least=1),
            **cast("dict[str, Any]", {**counts, **shares}),
        )


async def thoughts(scope: Scope) -> Done:
    """Search: each round reads the scores of the last one and expands the best open candidate.

    Arguments: `goal`, the run's if not given; `breadth`, `beam`, `nodes`, `depth`, `floor` and `enough`, see
    `Order`; `score`, a tool that scores in place of a model: `{tool: NAME, args: {…}}` and, under `goal`,
    `path` and `candidate`, which of its arguments are given the goal, all texts up to the candidate, and its
    own text. The tool answers `{score: 0 to 1, done: whether it solves the goal, note: what is worth
    knowing}`, the last two as it likes.

    A round grows one step that proposes candidates (`STEP/expand#N`), which grows a step that scores for each
    of them (`STEP/cN`; they run side by side), and the next round (`STEP#N`). Open candidates are tried by
    score, then depth, then age: a branch that turns out worse than one left behind is left for it. The output
    of the last round is the solution: its texts from the first thought on, a line each. Without one, a
    `RunError` tells the best score.
    """
    order = Order.read(scope)
    found = scored_candidates(scope, order)
    for thought in found:
        scope.ctx.emit(
            BranchScored(
                step=scope.step.id,
                candidate=thought.id,
                text=thought.text,
                score=thought.score,
                parent=thought.parent,
                done=thought.done,
            )
        )
    known = prune_candidates([*earlier_candidates(scope), *found], order)
    if solved := [thought for thought in known if thought.done]:
        best = max(solved, key=lambda thought: thought.score)
        return Done(output="\n".join(thought.text for thought in path_to(best.id, known)))
    chosen = best_open(known)
    if len(known) >= order.nodes or (known and chosen is None) or (order.round > 1 and not known):
        raise UnmetError(_failure(scope, order, known))
    state = [
        asdict(replace(thought, state="expanded") if thought is chosen else thought) for thought in known
    ]
    return Done(output=cast("Json", state), grows=_growth(scope, order, known, chosen))


def earlier_candidates(scope: Scope) -> list[Thought]:
    """Return the candidates as the last round left them."""
    went = scope.steps.get(scope.step.parent)
    state = went.get("answer") if isinstance(went, dict) else None
    return [Thought(**cast("dict[str, Any]", item)) for item in state] if isinstance(state, list) else []


def scored_candidates(scope: Scope, order: Order) -> list[Thought]:
    """Return the candidates scored since the last round; one that could not be scored is closed."""
    found = []
    for step in scope.plan.steps:
        went = scope.steps.get(step.id)
        if not isinstance(went, dict) or "thought" not in step.given:
            continue
        thought = Thought(**cast("dict[str, Any]", step.given["thought"]))
        if went["ok"]:
            score, done, note = read_score(went.get("answer"), step)
            found.append(replace(thought, score=score, done=done or score >= order.enough, note=note))
        else:
            found.append(replace(thought, note=one_line(str(went.get("reason")), 200), state="closed"))
    return found


def prune_candidates(known: Sequence[Thought], order: Order) -> list[Thought]:
    """Return the candidates; those with low scores, too deep or not among the best are closed."""
    able = [
        thought
        for thought in known
        if thought.state == "open" and thought.score >= order.floor and thought.depth < order.depth
    ]
    kept = {
        thought.id
        for thought in sorted(able, key=lambda thought: candidate_order(thought, known))[: order.beam]
    }
    return [
        replace(thought, state="closed") if thought.state == "open" and thought.id not in kept else thought
        for thought in known
    ]


def best_open(known: Sequence[Thought]) -> Thought | None:
    """Return the candidate to expand next."""
    return min(
        (thought for thought in known if thought.state == "open"),
        key=lambda thought: candidate_order(thought, known),
        default=None,
    )


def candidate_order(thought: Thought, known: Sequence[Thought]) -> tuple[float, int, int]:
    """Return the sort key of a candidate: better, then deeper, then older ones come first."""
    return (
        -thought.score,
        -thought.depth,
        next(place for place, other in enumerate(known) if other.id == thought.id),
    )


def path_to(candidate: str, known: Sequence[Thought]) -> list[Thought]:
    """Return the thoughts from the first one to the candidate."""
    by_id = {thought.id: thought for thought in known}
    found: list[Thought] = []
    while candidate:
        found.append(by_id[candidate])
        candidate = by_id[candidate].parent
    return found[::-1]


def read_score(value: Json, step: Step) -> tuple[float, bool, str]:
    """Return score, done and note of a scorer's answer; raises `UsageError` with the required form."""
    score = value.get("score") if isinstance(value, dict) else value
    # `true` from a scorer is no score of 1: a bool is an int in Python.
    if not isinstance(score, int | float) or isinstance(score, bool) or not 0 <= score <= 1:
        who = f"the tool {step.tool!r}" if step.tool else f"the step {step.id!r}"
        raise UsageError(
            f"{who} must answer {{score: a number from 0 to 1, done: true or false}}, not "
            f"{one_line(repr(value), 100)}"
        )
    more = value if isinstance(value, dict) else {}
    return float(score), more.get("done") is True, one_line(as_text(more.get("note")), 500)


def _growth(scope: Scope, order: Order, known: Sequence[Thought], chosen: Thought | None) -> tuple[Step, ...]:
    step = scope.step
    first = step.id if order.round == 1 else step.id.removesuffix(f"#{order.round}")
    expand = replace(
        step,
        id=f"{first}/expand#{order.round}",
        operation="thoughts_expand",
        parent="",
        depends_on=(),
        consumes=(),
        produces=(),
        when="",
        after_failure=False,
        needs_approval=False,
        args={
            # Braces in a goal are text: they must not be read as references to artifacts.
            "goal": escape_template(order.goal),
            "count": min(order.breadth, order.nodes - len(known)),
            "score": escape_template(order.score),
            "prefix": f"{first}/c",
            "known": len(known),
        },
        given={
            "path": cast("Json", [asdict(thought) for thought in path_to(chosen.id, known)] if chosen else [])
        },
    )
    again = replace(
        expand,
        id=f"{first}#{order.round + 1}",
        operation="thoughts",
        depends_on=(expand.id,),
        produces=step.produces,
        # A candidate that could not be scored must not end the search.
        after_failure=True,
        args=escape_template(asdict(replace(order, round=order.round + 1))),
        given={},
    )
    return expand, again


def _failure(scope: Scope, order: Order, known: Sequence[Thought]) -> str:
    if not known:
        reasons = [
            str(how.get("reason"))
            for how in scope.steps.values()
            if isinstance(how, dict) and not how.get("ok")
        ]
        return "no way to the goal was proposed" + (f": {reasons[0]}" if reasons else "")
    best = min(known, key=lambda thought: candidate_order(thought, known))
    why = (
        f"all {order.nodes} allowed candidates are tried"
        if len(known) >= order.nodes
        else "no candidate is worth following"
    )
    return (
        f"the goal was not reached: {why}; the best of {len(known)} has a score of {best.score:.2f} "
        "(enough is "
        f"{order.enough:g}): {one_line(' → '.join(thought.text for thought in path_to(best.id, known)), 300)}"
    )


def _scorer(given: Json, scope: Scope) -> dict[str, Json]:
    if not given:
        return {}
    if (
        not isinstance(given, Mapping)
        or not isinstance(given.get("tool"), str)
        or not isinstance(given.get("args", {}), dict)
    ):
        raise UsageError(
            f"score of the operation 'thoughts' must be {{tool: NAME, args: {{…}}}}, not "
            f"{one_line(repr(given), 60)}"
        )
    for name, value in given.items():
        if name not in ("tool", "args", "goal", "path", "candidate"):
            msg = (
                f"score of the operation 'thoughts' has no {name!r}; "
                f"{did_you_mean(name, ('tool', 'args', 'goal', 'path', 'candidate'))}"
            )
            raise UsageError(msg)
        if name != "args" and not isinstance(value, str):
            raise UsageError(
                f"{name} of score must be the name of {'a tool' if name == 'tool' else 'an argument'}, "
                f"not {value!r}"
            )
    scope.ctx.toolbox.get(str(given["tool"]))
    return dict(given)


# The two operations that `thoughts` grows: one proposes candidates, the other has a model score one.

MAX_THOUGHT = 4_000
"""Characters of a candidate."""
_CANDIDATES = closed_object(
    {
        "candidates": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_THOUGHT},
        }
    }
)
_SCORE = closed_object(
    {
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "done": {"type": "boolean"},
        "note": {"type": "string"},
    }
)
_EXPAND = """\
Think of ways to reach this goal:

{goal}

{so_far} Propose {what}. Each must differ from the others in what would be done, not in words. Answer with \
one JSON object and nothing else:
{{"candidates": ["the first", "the second"]}}"""
_FIRST = "Nothing has been decided yet."
_NEXT = "What has been decided so far, and what is known of it, is in the artifacts below."
_JUDGE = """\
Judge a way towards this goal:

{goal}

The artifacts below hold the thoughts it consists of, one after the other. Answer with one JSON object and \
nothing else:
{{"score": 0.5, "done": false, "note": "why, in one sentence, and what whoever goes on should know"}}

"score" is from 0 (leads nowhere, or is wrong) to 1 (certainly reaches the goal); "done" is true only if the \
goal is reached with it \
and nothing is left to do."""


async def thoughts_expand(scope: Scope) -> Done:
    """Ask the model for candidates after the given path, and grow a step for each that scores it."""
    args = scope.args
    goal, count = str(args["goal"]), cast("int", args["count"])
    path = cast("list[dict[str, Json]]", scope.step.given["path"])
    if path:
        what = "one next thought" if count == 1 else f"{count} different next thoughts"
    else:
        what = (
            "one approach, or its first part"
            if count == 1
            else f"{count} different approaches, or first parts of one"
        )
    text = _EXPAND.format(goal=goal, so_far=_NEXT if path else _FIRST, what=what)
    if path:
        text = f"{text}\n\n{artifacts_prompt(_as_artifacts(path))}"
    candidates = await step_dialogue(scope, schema=_CANDIDATES).ask(text, _proposed_thoughts)
    grown = [
        _scoring_step(scope, goal, path, text, number)
        for number, text in enumerate(candidates[:count], cast("int", args["known"]) + 1)
    ]
    return Done(output=cast("Json", candidates[:count]), grows=tuple(grown))


async def thoughts_score(scope: Scope) -> Done:
    """Ask the model for the score of a candidate."""
    thought, path = (scope.step.given[name] for name in ("thought", "path"))
    shown = _as_artifacts([*cast("list[dict[str, Json]]", path), cast("dict[str, Json]", thought)])
    text = f"{_JUDGE.format(goal=scope.args['goal'])}\n\n{artifacts_prompt(shown)}"
    judge = step_dialogue(scope, schema=_SCORE, temperature=0.0)
    return Done(output=await judge.ask(text, lambda answer: read_json(answer, _SCORE)))


def _proposed_thoughts(answer: str) -> list[str]:
    value = cast("dict[str, Any]", read_json(answer, _CANDIDATES))
    found = dict.fromkeys(text.strip() for text in value["candidates"])
    found.pop("", None)
    if not found:
        raise UsageError("candidates: all of them are empty")
    return list(found)


def _scoring_step(scope: Scope, goal: str, path: list[dict[str, Json]], text: str, number: int) -> Step:
    """Return the step that scores a candidate: a call of a tool, or a question to a model."""
    step, order = scope.step, cast("dict[str, Any]", scope.args["score"])
    name = f"{scope.args['prefix']}{number}"
    thought: dict[str, Json] = {
        "id": name,
        "text": text,
        "parent": path[-1]["id"] if path else "",
        "depth": len(path) + 1,
    }
    given: dict[str, Json] = {"thought": thought, "path": cast("Json", path)}
    if not order:
        return replace(
            step,
            id=name,
            operation="thoughts_score",
            parent="",
            args={"goal": escape_template(goal)},
            given=given,
        )
    values: dict[str, Json] = {
        "goal": goal,
        "path": [*(item["text"] for item in path), text],
        "candidate": text,
    }
    args = {
        **order.get("args", {}),
        **{order[word]: value for word, value in values.items() if word in order},
    }
    safe = scope.ctx.toolbox.get(order["tool"]).effect == "pure"
    return Step(
        id=name,
        tool=order["tool"],
        args=escape_template(args),
        given=given,
        stage=step.stage,
        parallelizable=safe,
    )


def _as_artifacts(path: list[dict[str, Json]]) -> dict[str, Json]:
    shown: dict[str, Json] = {}
    for place, item in enumerate(path, 1):
        shown[f"thought {place}"] = item["text"]
        if item.get("note"):
            shown[f"what is known of thought {place}"] = item["note"]
    return shown
