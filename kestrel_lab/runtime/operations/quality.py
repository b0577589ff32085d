"""The operation `quality`: an answer is reported on, with places and fixes, and nothing new is made.

It has no tools, whatever its step names, and grows no steps: what it finds is for others to act upon, and is never the
run's answer while there is another (`Plan.ends`). Deterministic checks come first; a model is asked only where the step
says so. What it says has to point at what it was shown, or does not count, and stays short: a line for each thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.expressions.templates import escape
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import REPORTS
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.runtime.agent.structured_output import Dialogue, read_json
from kestrel_lab.runtime.execution.artifacts import as_text, told
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.review.evidence_table import checked, subject_in
from kestrel_lab.verification.evidence import Backed, evidence_of
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.views.dataframes import shown_frame
from kestrel_lab.views.html.elements import headline_html, paragraph_html, table_html
from kestrel_lab.views.notices import COLUMNS, quality_line, quality_rows
from kestrel_lab.views.text import table_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["REPORT", "quality"]

SEVERITIES: Final = ("critical", "major", "minor")
MOST: Final = 20
"""Issues, and claims without evidence, that are taken from one model."""
REPORT: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {
        "issues": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "severity": {"enum": list(SEVERITIES)},
                    "place": {"type": "string"},
                    "what": {"type": "string"},
                    "fix": {"type": "string"},
                    "step": {"type": "string"},
                },
                "required": ["severity", "place", "what", "fix"],
                "additionalProperties": False,
            },
        },
        "missing_evidence": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["issues", "missing_evidence"],
    "additionalProperties": False,
}
"""What a model reports; `pass` follows from it and is not asked for."""
_TEXT: Final = """\
Report on the quality of an answer that somebody else gave to this goal:

{goal}

Do not answer the goal, and write no text that could take the answer's place. Name what is wrong, each with the words of the answer \
it is about (`place`, letter by letter), how bad it is, the step it comes from if you can tell, and what would put it right. Name claims for which \
nothing that is shown speaks. Answer with one JSON object and nothing else:
{{"issues": [{{"severity": "critical, major or minor", "place": "words of the answer", "what": "what is wrong", "fix": "what to do", "step": "id or empty"}}], \
"missing_evidence": ["a claim that nothing shows"]}}

{artifacts}"""


async def quality(scope: Scope) -> Done:
    """The operation `quality`.

    Arguments of the step: `answer`, what is reported on; `goal`, the run's if not given; `model`, whether a model is asked
    beside the checks (no). Its output: `{pass, issues: [{severity, place, what, fix, check, step}], fixes: {step: [text]},
    missing_evidence: [text]}`. `pass` is false if any issue is critical or major, or the answer is empty. A model that
    cannot report, or only in another form, is an issue of the report: it takes nothing from the answer.
    """
    args, ctx = scope.args, scope.ctx
    if "answer" not in args:
        msg = "the operation 'quality' needs the `answer` it reports on"
        raise UsageError(msg)
    if not isinstance(asked := args.get("model", False), bool):
        msg = f"model of the operation 'quality' must be true or false, not {asked!r}"
        raise UsageError(msg)
    answer = as_text(args["answer"]).strip()
    goal = as_text(args.get("goal")).strip() or (ctx.state.started.goal if ctx.state.started else "")
    root, maker = Path(ctx.workspace.root), _maker(scope)
    issues = await asyncio.to_thread(checked, ctx.state, root, answer, goal=goal, but=scope.step.id)
    found = [_entry(one, maker) for one in issues]
    if not answer:
        found.append(_entry(issue("critical", "", "there is no answer", "answer the goal", check="answer"), maker))
    subject = subject_in(ctx.state, root, answer, goal=goal, but=scope.step.id)
    backed = await asyncio.to_thread(evidence_of, subject) if answer else ()
    missing = [one.said.text for one in backed if not one.support.spans] if subject.spans else []
    if asked and answer:
        said, more = await _asked(scope, goal, answer, backed)
        found += [{**entry, "step": entry["step"] or maker} for entry in said]
        missing += [text for text in more if text not in missing]
    found.sort(key=lambda one: SEVERITIES.index(str(one["severity"])))
    fixes: dict[str, list[str]] = {}
    for one in found:
        fixes.setdefault(str(one["step"]) or "answer", []).append(str(one["fix"]))
    passed = not any(one["severity"] != "minor" for one in found)
    return Done(output=cast("Json", {"pass": passed, "issues": found, "fixes": fixes, "missing_evidence": missing}))


async def _asked(scope: Scope, goal: str, answer: str, backed: tuple[Backed, ...]) -> tuple[list[dict[str, Json]], list[str]]:
    """What the model has to report: its issues, and claims without evidence."""
    step = scope.step
    steps = {other.id: other.work for other in scope.plan.steps if other.id != step.id and not other.operation}
    work = {"steps": "\n".join(f"{name}: {one_line(text, 200)}" for name, text in steps.items())} if len(steps) > 1 else {}
    reporter = replace(step, tools=(), schema=REPORT, temperature=0.0 if step.temperature is None else step.temperature)
    shown = cast("dict[str, Json]", {"answer": answer, **work, **_shown(backed)})
    try:
        said = await Dialogue(reporter, scope.ctx, scope.desk).ask(
            _TEXT.format(goal=goal, artifacts=told(shown)), lambda text: _report(text, answer)
        )
    except ModelError as error:  # the answer is there, and what the checks found of it
        return [_entry(issue("minor", "", f"no model reported on it: {error}", "report again, with another model", check="model"))], []
    issues = (
        (issue(entry["severity"], entry["place"], entry["what"], entry["fix"], check="model"), str(entry.get("step", "")))
        for entry in said["issues"][:MOST]
    )
    missing = [issue("minor", "", text, "").what for text in said["missing_evidence"][:MOST]]
    return [_entry(one, name if name in steps else "") for one, name in issues], missing


def _entry(one: Issue, step: str = "") -> dict[str, Json]:
    return {**one.as_json(), "step": step}


def _maker(scope: Scope) -> str:
    """The step that made the answer, where the answer is an artifact of one that this waits for."""
    return next((step.id for step in scope.plan.steps if step.id in scope.steps and set(step.produces) & scope.step.references), "")


def _shown(backed: tuple[Backed, ...]) -> dict[str, str]:
    return {f"span {span.id}": span.text[:4_000] for one in backed for span in one.support.spans}


def _report(text: str, answer: str) -> dict[str, Any]:
    """What a model reported; raises `UsageError` for one that names places that the answer does not have."""
    report = cast("dict[str, Any]", read_json(text, REPORT))
    plain = " ".join(answer.split())
    if strange := [entry["place"] for entry in report["issues"] if entry["place"] and " ".join(entry["place"].split()) not in plain]:
        msg = f"a place has to be words of the answer, letter by letter: {escape(strange[0][:100])!r} is none"
        raise UsageError(msg)
    return report


# What the operation `quality` reported of a run's answer, as its user holds it.

_NONE: Final = "no step of this run reports on quality: kestrel run GOAL --verify quality, or a step with `operation: quality`"


@dataclass(frozen=True, slots=True, repr=False)
class Quality:
    """A report on an answer, shown as a table; nothing of it was acted upon. Without a report it says how to get one."""

    report: Mapping[str, Any] = field(default_factory=dict)
    """As the step gave it: `pass`, `issues`, `fixes` by step, `missing_evidence`; empty where there is none."""

    @property
    def passed(self) -> bool | None:
        """Whether nothing critical or major was found; `None` without a report."""
        return self.report.get("pass")

    @property
    def issues(self) -> list[dict[str, Json]]:
        """The worst first: `severity`, `place`, `what`, `fix`, `step`, `check` each."""
        return list(self.report.get("issues", ()))

    @property
    def fixes(self) -> dict[str, list[str]]:
        """What would put it right, by the step that should do it; `answer` where no step is known."""
        return dict(self.report.get("fixes", {}))

    @property
    def missing_evidence(self) -> list[str]:
        """Claims of the answer that nothing in the run speaks of."""
        return list(self.report.get("missing_evidence", ()))

    @property
    def frame(self) -> pd.DataFrame:
        """A row per issue, the worst first, then one per claim without evidence, whose `severity` says so.

        Columns: `severity`, `place`, `what`, `fix`, `step`, `check`.
        """
        return shown_frame(list(quality_rows(self.report)), columns=list(COLUMNS), units={})

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and the rows of `frame`."""
        return COLUMNS, [tuple(row.values()) for row in quality_rows(self.report)]

    def __str__(self) -> str:
        return quality_line(self.report) if self.report else _NONE

    def __repr__(self) -> str:
        return f"{self}\n{table_text(*self.table())}" if any(quality_rows(self.report)) else str(self)

    def _repr_html_(self) -> str:
        if not self.report:
            return paragraph_html(_NONE)
        return headline_html(str(self)) + (table_html(*self.table()) if any(quality_rows(self.report)) else "")

    def _repr_markdown_(self) -> None:
        """No Markdown form: it would be rendered with remote images."""


def quality_of(state: RunState) -> Quality:
    """The last report of a run."""
    reports = [state.outputs.get(step.id) for step in state.planned.steps if step.operation in REPORTS]
    last = next((report for report in reversed(reports) if isinstance(report, dict)), {})
    return Quality(last)
