"""Compilation of workflow files to steps of a plan, with the place of every mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from kestrel_lab.agents import GOAL, with_goal
from kestrel_lab.core import plan_shapes as shapes
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.expressions.conditions import parse_condition
from kestrel_lab.core.expressions.templates import referenced_names, render_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import STEPS, Step
from kestrel_lab.core.yaml.reader import Where, YamlFile
from kestrel_lab.core.yaml.validation import collect_error, join_problems, validate
from kestrel_lab.runtime.workflows import models
from kestrel_lab.runtime.workflows.agent_files import file_beside, is_file_name, settings_of, team_of
from kestrel_lab.runtime.workflows.loader import find_workflow, input_values, read_workflow

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The compilation of one file: its entries, the values for references, and the problems found."""

    document: YamlFile
    folder: Path
    entry: models.AnyWorkflow
    scope: dict[str, Json]
    """The goal and the inputs."""
    given: frozenset[str] = frozenset()
    """Names of artifacts that are there before the first step and are known only when the run gets there."""
    at: Where = ()
    """The place of the entry in the document: not empty for a workflow within another."""
    above: tuple[Path, ...] = ()
    """The files of workflows that this one is nested in."""
    problems: list[str] = field(default_factory=list)

    def tried(self, where: Where, make: Callable[[], _T]) -> _T | None:
        """Return the result of `make`; its `UsageError` becomes a problem with its place."""
        return collect_error(self.document, (*self.at, *where), self.problems, make)

    def stop_at_problems(self) -> None:
        """Raise `UsageError` if there are problems."""
        if self.problems:
            raise UsageError(join_problems(self.problems))


def compile_steps(reading: Reading) -> shapes.Shape:
    """Return the steps of the file; raises `UsageError`, one line for each mistake."""
    entry = reading.entry
    _check_names(reading)
    reading.stop_at_problems()
    parts = [
        part
        for where, work in _works_of(entry)
        if (part := reading.tried(where, partial(_part, reading, where, work)))
    ]
    reading.stop_at_problems()
    found = reading.tried(_body(entry), partial(_make_shape, entry, parts))
    reading.stop_at_problems()
    return found or shapes.Shape(())


def _make_shape(entry: models.AnyWorkflow, parts: Sequence[shapes.Part]) -> shapes.Shape:  # one case per kind  # noqa: C901
    match entry:
        case models.PlanEntry():
            return shapes.Shape(tuple(part.step for part in parts))
        case models.SequentialEntry():
            return shapes.in_sequence(parts)
        case models.ParallelEntry():
            return (
                shapes.side_by_side(parts, None)
                if entry.join is None
                else shapes.side_by_side(parts[:-1], parts[-1])
            )
        case models.LoopEntry():
            return shapes.loop_plan(parts, entry, until=entry.until)
        case models.GraphEntry():
            return shapes.along_edges(parts, entry.edges, entry, start=entry.start)
        case models.SupervisorEntry():
            return shapes.Shape((parts[0].step,))
        case models.RouterEntry():
            purposes = {route.id: route.purpose for route in entry.routes}
            return shapes.router_plan(parts[-1], parts[:-1], purposes, entry)
        case models.EnsembleEntry():
            return shapes.ensemble_plan(parts[:-1], parts[-1])
        case models.CouncilEntry():
            return shapes.council_plan(parts[:-1], parts[-1], entry)
        case models.EscalationEntry():
            return shapes.escalation_plan(parts, below=entry.below)


_OF_A_STEP: Final = frozenset(one.name for one in fields(Step)) - {"goal", "team"}
_LISTS: Final = ("steps", "nodes", "branches", "routes", "members", "tiers")
_ROLES: Final = ("join", "supervisor", "router", "synthesiser", "chair")
"""Keys of entries of work; the shapes take them in this order."""


def _body(entry: models.AnyWorkflow) -> Where:
    return (next(key for key in (*_LISTS, *_ROLES) if hasattr(entry, key)),)


def _works_of(entry: models.AnyWorkflow) -> Iterator[tuple[Where, models.StepEntry]]:
    for key in _LISTS:
        yield from (((key, number), work) for number, work in enumerate(getattr(entry, key, ())))
    yield from (((key,), work) for key in _ROLES if (work := getattr(entry, key, None)) is not None)


def _part(reading: Reading, where: Where, work: models.StepEntry) -> shapes.Part:
    """Return the step of an entry, before the shape adds its dependencies."""
    if work.workflow is not None:
        return _nested_workflow(reading, where, work)
    workers = reading.entry.workers if isinstance(reading.entry, models.SupervisorEntry) else ()
    theirs = {} if work.agent is None else settings_of(work.agent, reading.folder, reading.entry.agents)
    # `goal` and `team` are completed below; what the step does not say itself, its agent may.
    own = {key: getattr(work, key) for key in work.written & _OF_A_STEP}
    team = team_of(work.team or workers, reading.folder, reading.entry.agents)
    given: dict[str, Any] = {**theirs, **own, **team}
    given["instructions"] = "\n\n".join(
        text for text in (theirs.get("instructions", ""), work.instructions) if text
    )
    pattern = isinstance(
        reading.entry,
        models.SupervisorEntry
        | models.RouterEntry
        | models.EnsembleEntry
        | models.CouncilEntry
        | models.EscalationEntry,
    )
    if work.goal or ((work.agent is not None or pattern) and not work.tool and not work.operation):
        given["goal"] = with_goal(work.goal or f"{{{{{GOAL}}}}}", reading.scope)
    if not given.get("tool") and _takes_provider(reading.entry.provider, given):
        given["provider"] = reading.entry.provider
    given["consumes"] = list(
        dict.fromkeys(
            [*work.consumes, *sorted(referenced_names(work.args)), *sorted(_condition_names(work.when))]
        )
    )
    given["produces"] = _makes(reading.entry, work)
    return shapes.Part(Step.from_json(given), fed=bool(given.get("goal")) and "consumes" not in work.written)


def _takes_provider(provider: str, given: Mapping[str, Any]) -> bool:
    """Return whether the provider of a workflow is that of a step, which names neither one nor a model that
    says what it is by itself (`openai/gpt-5`, `scripted:FILE`, `none`).
    """
    plain = re.fullmatch(r"(?!none$|local$)[^/:]*", str(given.get("model", ""))) is not None
    return bool(provider) and not given.get("provider") and plain


def _nested_workflow(reading: Reading, where: Where, work: models.StepEntry) -> shapes.Part:
    """Return the step of an entry that is a workflow.

    One that is written there may consume what the workflow around it makes; a file is given what `args` name.
    Where those stand for artifacts, they are not known yet, so that they can be no part of a goal.
    """
    document, at, entry, agents = (
        reading.document,
        (*reading.at, *where, "workflow"),
        reading.entry,
        reading.entry.agents,
    )
    if isinstance(work.workflow, str):
        folder, above = reading.folder, reading.above
        path = (
            file_beside(folder, work.workflow, "workflow")
            if is_file_name(work.workflow)
            else find_workflow(work.workflow)
        )
        if path.resolve() in above:
            raise UsageError(f"workflow {work.workflow!r} is nested in itself")
        document, entry = read_workflow(path)
        outside, at, folder, above = frozenset[str](), (), path.parent, (*above, path.resolve())
    else:
        kind = str((work.workflow or {}).get("kind"))
        if kind not in models.KINDS:
            raise UsageError(f"a workflow within another has a kind; {did_you_mean(kind, models.KINDS)}")
        entry = validate(document, models.KINDS[kind], work.workflow, at)
        entry = replace(
            entry, agents={**agents, **entry.agents}, provider=entry.provider or reading.entry.provider
        )
        makes = {name for _, other in _works_of(reading.entry) for name in _makes(reading.entry, other)}
        outside, folder, above = frozenset({*makes, *reading.given}), reading.folder, reading.above
    if entry.output is not None or entry.acceptance_criteria:
        raise UsageError(
            "a workflow within another has no output and no acceptance_criteria of its own: give the "
            "schema to its last agent"
        )
    later = {
        name: value for name, value in work.args.items() if not referenced_names(value) <= set(reading.scope)
    }
    known = {
        name: render_template(value, reading.scope) for name, value in work.args.items() if name not in later
    }
    declared = {name: each for name, each in entry.inputs.items() if name not in later}
    if unknown := sorted(set(later) - set(entry.inputs)):
        raise UsageError(
            f"the workflow has no input {unknown[0]!r}; {did_you_mean(unknown[0], entry.inputs)}"
        )
    scope: dict[str, Json] = {
        GOAL: with_goal(work.goal or f"{{{{{GOAL}}}}}", reading.scope),
        **input_values(document, declared, known),
    }
    inner = Reading(
        document=document,
        folder=folder,
        entry=entry,
        scope=scope,
        given=outside | set(later),
        at=at,
        above=above,
    )
    shape = compile_steps(inner)
    here = {**scope, **shape.artifacts}
    made = {name for step in shapes.all_steps(shape.steps) for name in step.produces}
    asked = {name for step in shapes.all_steps(shape.steps) for name in step.consumes if name not in here}
    free = sorted(name for name in asked if name in inner.given and name not in made)
    step = shapes.plan_step(
        work.id, Plan(steps=shape.steps, artifacts={**here, **dict.fromkeys(free)}), later
    )
    consumed = dict.fromkeys(
        [
            *work.consumes,
            *(name for name in free if name not in later),
            *sorted(referenced_names(later)),
            *sorted(_condition_names(work.when)),
        ]
    )
    place = replace(
        step,
        produces=tuple(_makes(reading.entry, work)),
        consumes=tuple(name for name in consumed if name != GOAL),
        stage=work.stage,
        when=work.when,
        parallelizable=work.parallelizable,
        needs_approval=work.needs_approval,
        after_failure=work.after_failure,
        depends_on=work.depends_on,
    )
    return shapes.Part(place, fed="consumes" not in work.written)


def _condition_names(condition: str) -> frozenset[str]:
    return parse_condition(condition).names - {STEPS} if condition.strip() else frozenset()


def _makes(entry: models.AnyWorkflow, work: models.StepEntry) -> list[str]:
    """Return the artifacts of an entry; in a shape one of its own name by default."""
    return list(work.produces) or ([] if isinstance(entry, models.PlanEntry) else [work.id])


def _check_names(reading: Reading) -> None:
    """Note every reference to an artifact that no step makes, and every artifact that exists already."""
    entry, tried = reading.entry, reading.tried
    state = entry.state if isinstance(entry, models.LoopEntry | models.GraphEntry) else {}
    known = {
        *reading.scope,
        *reading.given,
        *state,
        *(name for _, work in _works_of(entry) for name in _makes(entry, work)),
    }
    for name, agent in entry.agents.items():
        tried(("agents", name), partial(settings_of, agent, reading.folder, {}))
    first: dict[str, Where] = {}
    for where, work in _works_of(entry):
        tried(
            (*where, "id"), partial(_refuse_again, work.id, first.setdefault(work.id, where), where, reading)
        )
        for place, name in enumerate(work.consumes):
            tried((*where, "consumes", place), partial(_find, {name}, known))
        if work.agent is not None:
            tried((*where, "agent"), partial(settings_of, work.agent, reading.folder, entry.agents))
        tried((*where, "goal"), partial(with_goal, work.goal, reading.scope))
        tried((*where, "args"), partial(_find_all, referenced_names, work.args, known))
        tried((*where, "when"), partial(_find_all, _condition_names, work.when, known))
        tried((*where, "produces"), partial(_refuse_taken, _makes(entry, work), reading.scope))
    if isinstance(entry, models.LoopEntry):
        tried(("until",), partial(shapes.condition_names, entry.until, known))
    if isinstance(entry, models.LoopEntry | models.GraphEntry):
        tried(("result",), partial(_find, {entry.result} - {""}, known))
        tried(("state",), partial(_refuse_taken, entry.state, reading.scope))
    if isinstance(entry, models.GraphEntry):
        nodes = [node.id for node in entry.nodes]
        for place, name in enumerate(entry.start):
            tried(("start", place), partial(_find, {name}, nodes, "there is no node"))
        for place, edge in enumerate(entry.edges):
            tried(("edges", place, "from"), partial(_find, {edge.source}, nodes, "there is no node"))
            tried(("edges", place, "to"), partial(_find, {edge.target}, nodes, "there is no node"))
            tried(("edges", place, "when"), partial(shapes.condition_names, edge.when, known))


def _refuse_again(name: str, first: Where, where: Where, reading: Reading) -> None:
    if first != where:
        raise UsageError(f"{name!r} is already on line {reading.document.line((*reading.at, *first, 'id'))}")


def _find_all(names_in: Callable[[Any], frozenset[str]], value: object, known: Collection[str]) -> None:
    _find(names_in(value), known)


def _find(names: Collection[str], known: Collection[str], what: str = "nothing makes") -> None:
    for name in sorted(names):
        if name not in known:
            raise UsageError(f"{what} {name!r}; {did_you_mean(name, known)}")


def _refuse_taken(names: Iterable[str], scope: Collection[str]) -> None:
    for name in names:
        if name in scope:
            raise UsageError(f"{name!r} is the goal or an input: choose another name")
