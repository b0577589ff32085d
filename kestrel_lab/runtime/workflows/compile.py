"""Compilation of workflow files to steps of a plan, with the place of every mistake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kestrel_lab.agents import GOAL, with_goal
from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.expressions.conditions import parse
from kestrel_lab.core.expressions.templates import references
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan_shapes import Edge, Part, Shape, along_edges, asked_names, in_sequence, repeated, side_by_side
from kestrel_lab.core.step import STEPS, Step
from kestrel_lab.core.yaml.reader import Where, YamlFile
from kestrel_lab.core.yaml.validation import attempt, joined
from kestrel_lab.runtime.workflows.agent_files import settings_of
from kestrel_lab.runtime.workflows.models import AnyWorkflow, GraphEntry, LoopEntry, ParallelEntry, PlanEntry, SequentialEntry, WorkEntry

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The compilation of one file: its entries, the values for references, and the problems found."""

    document: YamlFile
    folder: Path
    entry: AnyWorkflow
    scope: dict[str, Json]
    """The goal and the inputs."""
    problems: list[str] = field(default_factory=list)

    def tried(self, where: Where, make: Callable[[], _T]) -> _T | None:
        """Return the result of `make`; its `UsageError` becomes a problem with its place."""
        return attempt(self.document, where, self.problems, make)

    def stop_at_problems(self) -> None:
        """Raise `UsageError` if there are problems."""
        if self.problems:
            raise UsageError(joined(self.problems))


def shape_of(reading: Reading) -> Shape:
    """Return the steps of the file; raises `UsageError`, one line for each mistake."""
    entry = reading.entry
    _check_names(reading)
    reading.stop_at_problems()
    parts = [part for where, work in _works(entry) if (part := reading.tried(where, partial(_part, reading, work)))]
    reading.stop_at_problems()
    found = reading.tried(_body(entry), partial(_shaped, entry, parts))
    reading.stop_at_problems()
    return found or Shape(())


def _shaped(entry: AnyWorkflow, parts: Sequence[Part]) -> Shape:
    match entry:
        case PlanEntry():
            return Shape(tuple(part.step for part in parts))
        case SequentialEntry():
            return in_sequence(parts)
        case ParallelEntry():
            return side_by_side(parts, None) if entry.join is None else side_by_side(parts[:-1], parts[-1])
        case LoopEntry():
            return repeated(parts, until=entry.until, limit=entry.limit, state=entry.state, at_limit=entry.at_limit, result=entry.result)
        case GraphEntry():
            return along_edges(
                parts,
                [Edge(edge.source, edge.target, edge.when) for edge in entry.edges],
                start=entry.start,
                state=entry.state,
                limit=entry.limit,
                at_limit=entry.at_limit,
                result=entry.result,
            )


def _body(entry: AnyWorkflow) -> Where:
    return ("nodes",) if isinstance(entry, GraphEntry) else ("branches",) if isinstance(entry, ParallelEntry) else ("steps",)


def _works(entry: AnyWorkflow) -> Iterator[tuple[Where, WorkEntry]]:
    """Yield every entry of work in the file, with its place."""
    (key,) = _body(entry)
    yield from (((key, number), work) for number, work in enumerate(getattr(entry, str(key))))
    if isinstance(entry, ParallelEntry) and entry.join is not None:
        yield ("join",), entry.join


def _part(reading: Reading, work: WorkEntry) -> Part:
    """Return the step of an entry, before the shape adds its dependencies."""
    theirs = {} if work.agent is None else settings_of(work.agent, reading.folder, reading.entry.agents)
    given: dict[str, Any] = {**theirs, **work.model_dump(by_alias=True, exclude_unset=True, exclude={"agent", "goal"})}
    given["instructions"] = "\n\n".join(text for text in (theirs.get("instructions", ""), work.instructions) if text)
    if work.goal or (work.agent is not None and not work.tool and not work.operation):
        given["goal"] = with_goal(work.goal or f"{{{{{GOAL}}}}}", reading.scope)
    given["consumes"] = list(dict.fromkeys([*work.consumes, *sorted(references(work.args)), *sorted(_asked(work.when))]))
    given["produces"] = _makes(reading.entry, work)
    return Part(Step.from_json(given), fed=bool(given.get("goal")) and "consumes" not in work.model_fields_set)


def _asked(condition: str) -> frozenset[str]:
    return parse(condition).names - {STEPS} if condition.strip() else frozenset()


def _makes(entry: AnyWorkflow, work: WorkEntry) -> list[str]:
    """Return the artifacts of an entry; in a shape one of its own name by default."""
    return work.produces or ([] if isinstance(entry, PlanEntry) else [work.id])


def _check_names(reading: Reading) -> None:
    """Note every reference to an artifact that no step makes, and every artifact that exists already."""
    entry, tried = reading.entry, reading.tried
    state = entry.state if isinstance(entry, LoopEntry | GraphEntry) else {}
    known = {*reading.scope, *state, *(name for _, work in _works(entry) for name in _makes(entry, work))}
    for name, agent in entry.agents.items():
        tried(("agents", name), partial(settings_of, agent, reading.folder, {}))
    first: dict[str, Where] = {}
    for where, work in _works(entry):
        tried((*where, "id"), partial(_refuse_again, work.id, first.setdefault(work.id, where), where, reading.document))
        for place, name in enumerate(work.consumes):
            tried((*where, "consumes", place), partial(_find, {name}, known))
        if work.agent is not None:
            tried((*where, "agent"), partial(settings_of, work.agent, reading.folder, entry.agents))
        tried((*where, "goal"), partial(with_goal, work.goal, reading.scope))
        tried((*where, "args"), partial(_find_all, references, work.args, known))
        tried((*where, "when"), partial(_find_all, _asked, work.when, known))
        tried((*where, "produces"), partial(_refuse_taken, _makes(entry, work), reading.scope))
    if isinstance(entry, LoopEntry):
        tried(("until",), partial(asked_names, entry.until, known))
    if isinstance(entry, LoopEntry | GraphEntry):
        tried(("result",), partial(_find, {entry.result} - {""}, known))
        tried(("state",), partial(_refuse_taken, entry.state, reading.scope))
    if isinstance(entry, GraphEntry):
        nodes = [node.id for node in entry.nodes]
        for place, name in enumerate(entry.start):
            tried(("start", place), partial(_find, {name}, nodes, "there is no node"))
        for place, edge in enumerate(entry.edges):
            tried(("edges", place, "from"), partial(_find, {edge.source}, nodes, "there is no node"))
            tried(("edges", place, "to"), partial(_find, {edge.target}, nodes, "there is no node"))
            tried(("edges", place, "when"), partial(asked_names, edge.when, known))


def _refuse_again(name: str, first: Where, where: Where, document: YamlFile) -> None:
    if first != where:
        raise UsageError(f"{name!r} is already on line {document.line((*first, 'id'))}")


def _find_all(names_in: Callable[[Any], frozenset[str]], value: object, known: Collection[str]) -> None:
    _find(names_in(value), known)


def _find(names: Collection[str], known: Collection[str], what: str = "nothing makes") -> None:
    for name in sorted(names):
        if name not in known:
            raise UsageError(f"{what} {name!r}; {nearest(name, known)}")


def _refuse_taken(names: Iterable[str], scope: Collection[str]) -> None:
    for name in names:
        if name in scope:
            raise UsageError(f"{name!r} is the goal or an input: choose another name")
