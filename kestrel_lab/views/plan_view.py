"""The plan of a run as it is shown: its steps with their states and places, drawn anew when it grows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from kestrel_lab.core.drawing.layout import (
    FOLD_FROM,
    Layout,
    Node,
    fold_nodes,
    lay_out,
    reduced_edges,
    svg_path,
)
from kestrel_lab.core.drawing.svg import state_summary
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.views.formatting import args_line
from kestrel_lab.views.rows import Change, GraphPart, StepPart

STAGE_MARKS = {"running": "…", "done": "✓", "retrying": "↻", "failed": "✗"}
_UNDER_WAY = {"running", "waiting"}
_Spec = dict[str, Json]


@dataclass(slots=True)
class PlanView:
    """The plan of a run so far; every method returns the patches of what it changed."""

    steps: dict[str, StepPart] = field(default_factory=dict)
    graph: GraphPart = field(default_factory=GraphPart)
    stages: dict[str, dict[str, str]] = field(default_factory=dict)
    """For each stage that began, how its steps ended: `done`, `skipped`, `retrying` or `failed`."""
    specs: list[_Spec] = field(default_factory=list)
    artifacts: Json = None
    drawn: Layout | None = None
    """How the steps were arranged last; states in it are those of then."""

    def grown(self, event: e.PlanProposed | e.PlanExtended) -> list[Change]:
        """Apply the plan, or the steps that a step added."""
        if isinstance(event, e.PlanProposed):
            self.specs, self.artifacts = _specs(event.plan.get("steps")), event.plan.get("artifacts")
        else:
            self.specs = [*self.specs, *_specs(list(event.steps))]
            if event.artifacts:
                self.artifacts = {**cast("dict[str, Json]", self.artifacts), **event.artifacts}
        return self._described()

    def stepped(self, event: e.StepStarted | e.StepFinished) -> list[Change]:
        """Note how far a step is."""
        known = event.step in self.steps
        step = self._step(event.step)
        if isinstance(event, e.StepStarted):
            # A sub-agent is not in the plan: it is drawn below the step that delegated to it.
            branch: Change = (
                {"parent": event.parent, "needs": [sanitize_text(event.parent)]} if event.parent else {}
            )
            changed = step.change(
                state="running", goal=one_line(event.goal, 2_000) or step.goal, reason="", **branch
            )
        else:
            state = "skipped" if event.skipped else "ok" if event.ok else "failed"
            changed = step.change(state=state, reason=sanitize_text(event.reason))
        return [changed if known else step.whole(), *self._drawn(anew=not known)]

    def operation(self, step: str) -> str:
        """The operation of a step; empty for an agent's or tool's step, and an unknown one."""
        return next(
            (str(spec.get("operation") or "") for spec in reversed(self.specs) if spec.get("id") == step), ""
        )

    def waits(self, name: str, *, waits: bool) -> list[Change]:
        """Note whether a step that is under way waits for a person."""
        step = self.steps.get(name)
        state = "waiting" if waits else "running"
        if step is None or step.state not in _UNDER_WAY or step.state == state:
            return []
        return [step.change(state=state), *self._drawn()]

    def closed(self) -> list[Change]:
        """Stop the steps that are under way."""
        stopped = [step.change(state="stopped") for step in self.steps.values() if step.state in _UNDER_WAY]
        return [*stopped, *self._drawn()] if stopped else []

    def staged(self, event: e.StageStarted | e.StageFinished) -> list[Change]:
        """Note how far a stage is."""
        ended = self.stages.setdefault(event.stage, {})
        if isinstance(event, e.StageFinished):
            ended[event.task] = event.status
        else:
            # A stage that is tried again keeps the steps that it does not repeat.
            self.stages[event.stage] = {
                task: status for task, status in ended.items() if status in {"done", "skipped"}
            }
        return self._drawn()

    def stage_state(self, stage: str) -> str:
        """`running`, `done`, `retrying` or `failed`."""
        ended = self.stages.get(stage, {})
        for state in ("failed", "retrying"):
            if state in ended.values():
                return state
        members = [step.id for step in self.steps.values() if step.stage == sanitize_text(stage)]
        return "done" if ended and all(name in ended for name in members) else "running"

    def marks(self) -> dict[str, str]:
        """A mark for each stage that began."""
        return {sanitize_text(stage): STAGE_MARKS[self.stage_state(stage)] for stage in self.stages}

    def layout(self) -> Layout:
        """The plan arranged for drawing."""
        return lay_out(self._nodes())

    def _step(self, name: str) -> StepPart:
        return self.steps.setdefault(name, StepPart(id=name, name=sanitize_text(name)))

    def _nodes(self) -> list[Node]:
        ids = {step.name: step.id for step in self.steps.values()}
        return [
            Node(
                id=step.id,
                needs=tuple(ids[need] for need in step.needs if need in ids),
                state=step.state,
                work=step.goal,
                stage=step.stage,
                parent=step.parent,
                exclusive=step.exclusive,
            )
            for step in self.steps.values()
        ]

    def _described(self) -> list[Change]:
        before: Mapping[str, Sequence[str]] = {}
        if len(self.specs) > 1:  # a step alone waits for none
            needs = _dependencies(self.specs, self.artifacts)
            before = reduced_edges([Node(id=name, needs=waits) for name, waits in needs.items()])
        changes = []
        for spec in self.specs:
            step = self._step(str(spec["id"]))
            step.change(
                goal=_work_text(spec),
                needs=[sanitize_text(need) for need in before.get(step.id, ())],
                stage=sanitize_text(str(spec.get("stage") or "")),
                parent=str(spec.get("parent") or ""),
                exclusive=bool(spec.get("needs_approval")) or spec.get("parallelizable") is False,
            )
            changes.append(step.whole())
        return changes + self._drawn(anew=True)

    def _drawn(self, *, anew: bool = False) -> list[Change]:
        """Lay the steps out again if their places may have changed; return the changes."""
        # No front end draws a plan of a single step.
        if self.drawn is None and len(self.steps) < 2:
            return []
        changes: list[Change] = []
        graph: Change = {}
        if self.drawn is None or anew or self._folds_anew(self.drawn):
            self.drawn = self.layout()
            changes += self._placed(self.drawn)
            lines: list[Json] = [[line.source, line.target, svg_path(line)] for line in self.drawn.lines]
            graph |= {"width": self.drawn.width, "height": self.drawn.height, "lines": lines}
        marks = self.marks()
        graph |= {
            "summary": state_summary(step.state for step in self.steps.values()),
            "bands": [
                [
                    ", ".join(f"{stage} {marks.get(stage, '')}".rstrip() for stage in band.stages),
                    band.x,
                    band.width,
                ]
                for band in self.drawn.bands
            ],
        }
        if new := {key: value for key, value in graph.items() if getattr(self.graph, key) != value}:
            changes.append(self.graph.change(**new))
        return changes

    def _folds_anew(self, drawn: Layout) -> bool:
        # Which steps are folded depends on their states, so a new state may move all of them.
        if len(self.steps) < FOLD_FROM or not any(step.parent for step in self.steps.values()):
            return False
        return {node.id for node in fold_nodes(self._nodes())} != {box.node.id for box in drawn.boxes}

    def _placed(self, layout: Layout) -> list[Change]:
        boxes = {box.node.id: box for box in layout.boxes}
        changes = []
        for step in self.steps.values():
            box = boxes.get(step.id)
            place: Change = (
                {"within": self._holder(step, boxes), "x": 0, "y": 0, "width": 0, "label": "", "folded": 0}
                if box is None
                else {
                    "within": "",
                    "x": box.x,
                    "y": box.y,
                    "width": box.width,
                    "label": box.label,
                    "folded": box.node.folded,
                }
            )
            if new := {key: value for key, value in place.items() if getattr(step, key) != value}:
                changes.append(step.change(**new))
        return changes

    def _holder(self, step: StepPart, boxes: Collection[str]) -> str:
        # `seen` ends a circle of parents, which only a damaged log can have.
        seen = {step.id}
        above = step.parent
        while above in self.steps and above not in seen and above not in boxes:
            seen.add(above)
            above = self.steps[above].parent
        return above


def _specs(steps: Json) -> list[_Spec]:
    return (
        [spec for spec in steps if isinstance(spec, dict) and "id" in spec] if isinstance(steps, list) else []
    )


def _work_text(spec: _Spec) -> str:
    goal, args = one_line(str(spec.get("goal") or ""), 2_000), spec.get("args")
    return (
        goal
        or f"{sanitize_text(str(spec.get('tool') or spec.get('operation')))} "
        f"{args_line(args if isinstance(args, dict) else {})}".strip()
    )


def _dependencies(specs: list[_Spec], artifacts: Json) -> dict[str, tuple[str, ...]]:
    """Return what each step waits for; for a plan that is not valid, what it says itself."""
    try:
        return Plan.from_json({"steps": list(specs), "artifacts": artifacts}).needs()
    except UsageError:
        # A plan in an old log may be invalid for this version, and must still be drawn.
        return {str(spec["id"]): _names_in(spec) for spec in specs}


def _names_in(spec: _Spec) -> tuple[str, ...]:
    named = spec.get("depends_on")
    return tuple(map(str, named)) if isinstance(named, list) else ()
