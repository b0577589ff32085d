"""What an operation is: work of a step that the engine does itself, and that may grow the plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.review.evidence_table import answer_subject
from kestrel_lab.verification.subject import Subject


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What an operation may know and use."""

    step: Step
    args: dict[str, Json]
    """The step's arguments, with artifacts put in."""
    inputs: Mapping[str, Json]
    """The artifacts it consumes, by name."""
    steps: Mapping[str, Json]
    """How the steps it waits for went: `{ok, skipped, answer, reason}` by name."""
    plan: Plan
    """As far as it has grown."""
    ctx: RunContext
    approvals: RunApprovals

    @property
    def name(self) -> str:
        """The id of the step within its nested workflow, without the number of its turn: what its conditions
        and its parts call it.
        """
        return self.whole.removeprefix(f"{self.step.scope}/") if self.step.scope else self.whole

    def went(self, name: str) -> dict[str, Any]:
        """Return how a step went that this one waits for, by its id within the nested workflow; empty for one
        that it does not wait for.
        """
        return cast(
            "dict[str, Any]", self.steps.get(f"{self.step.scope}/{name}" if self.step.scope else name) or {}
        )

    @property
    def whole(self) -> str:
        """The id of the step, without the number of its turn."""
        return self.step.id.rpartition("#")[0] if {"round", "turn"} & self.args.keys() else self.step.id

    def held(self, argument: str) -> list[Step]:
        """Return the steps that an argument holds as JSON."""
        return [Step.from_json(body) for body in cast("list[dict[str, Json]]", self.args[argument])]

    def subject(self, answer: str, goal: str = "") -> Subject:
        """Return an answer with what the run has found out so far, this step left out."""
        return answer_subject(
            self.ctx.state, self.ctx.given.workspace.root, answer, goal=goal, but=self.step.id
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What came of an operation."""

    output: Json = None
    """What it gives to those that consume what it produces; `None` to let the steps it grew speak for it."""
    grows: tuple[Step, ...] = field(default=())
    """Steps to be done now, before anything that waits for this one."""
    artifacts: Mapping[str, Json] = field(default_factory=dict)
    """Artifacts that are there before these steps, by `SCOPE/NAME`."""
    skipped: bool = False
    """There was nothing to do: the step counts as skipped, and what it produces is `None`."""


Operation = Callable[[Scope], Awaitable[Done]]
"""Work of the engine, by name in a step.

It must come to the same result when it is done again after a crash: what it learns from models and tools is
in the log and is not asked again, the clock and chance it must not ask at all. Raises a `RunError` when it
fails, a `UsageError` when its arguments are wrong.
"""


def prefix_steps(prefix: str, steps: Iterable[Step], **changes: Any) -> tuple[Step, ...]:
    """The steps with `prefix/` before their ids, also where they name each other, and with `changes` made to
    each.
    """
    found = tuple(steps)
    names = {step.id: f"{prefix}/{step.id}" for step in found}
    return tuple(
        replace(
            step,
            id=names[step.id],
            depends_on=tuple(names.get(need, need) for need in step.depends_on),
            **changes,
        )
        for step in found
    )


def in_scope(scope: str, steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps as those of the nested workflow `scope`, unless they belong to one within it: its id stands
    before theirs.
    """
    found = tuple(steps)
    if not scope:
        return found
    names = {step.id: step.id if step.id.startswith(f"{scope}/") else f"{scope}/{step.id}" for step in found}
    return tuple(
        replace(
            step,
            id=names[step.id],
            depends_on=tuple(names.get(need, need) for need in step.depends_on),
            scope=step.scope or scope,
        )
        for step in found
    )
