"""The operation `quality`: a report on an answer, with issues, their places and fixes. It changes nothing.

It has no tools, whatever its step names, and grows no steps: others act on the report, which is never the
run's answer while there is another (`Plan.ends`). Deterministic checks come first; a model is asked only
where the step says so, and an issue of the model counts only if its place is in the answer: one that is not
is left out by itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.citations import Span
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import REPORTS
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.runtime.agent.structured_output import read_json
from kestrel_lab.runtime.execution.artifacts import artifacts_prompt
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.operations.arguments import (
    TEXTS,
    Arguments,
    closed_object,
    step_dialogue,
    temperature_of,
)
from kestrel_lab.runtime.review.evidence_table import check_claims, spans_for_model
from kestrel_lab.verification.evidence import evidence_of
from kestrel_lab.verification.issues import Issue
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, Table
from kestrel_lab.views.notices import COLUMNS, quality_line, quality_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["REPORT", "quality"]

SEVERITIES: Final = ("critical", "major", "minor")
MOST: Final = 20
"""Issues, and claims without evidence, that are taken from one model."""
_TEXT_FIELD: Final[Json] = {"type": "string"}
_ISSUE: Final[dict[str, Json]] = {
    "severity": {"enum": list(SEVERITIES)},
    "place": _TEXT_FIELD,
    "what": _TEXT_FIELD,
    "fix": _TEXT_FIELD,
    "step": _TEXT_FIELD,
}
REPORT: Final[dict[str, Json]] = closed_object(
    {
        "issues": {"type": "array", "items": closed_object(_ISSUE, optional={"step"})},
        "missing_evidence": TEXTS,
    }
)
"""JSON Schema of a model's report; `pass` follows from the issues and is not asked for."""
_PROMPT: Final = """\
Report on the quality of an answer that somebody else gave to this goal:

{goal}

Do not answer the goal, and write no text that could take the answer's place. Name what is wrong, each with \
the words of the answer \
it is about (`place`, letter by letter), how bad it is, the step it comes from if you can tell, and what \
would put it right. Name claims for which \
nothing that is shown speaks. Answer with one JSON object and nothing else:
{{"issues": [{{"severity": "critical, major or minor", "place": "words of the answer", "what": "what is \
wrong", "fix": "what to do", "step": "id or empty"}}], \
"missing_evidence": ["a claim that nothing shows"]}}

{artifacts}"""


async def quality(scope: Scope) -> Done:
    """The operation `quality`.

    Arguments of the step: `answer`; `goal`, the run's if not given; `model`, whether a model is asked beside
    the checks (no). Its output: `{pass, issues: [{severity, place, what, fix, check, step}], fixes: {step:
    [text]}, missing_evidence: [text]}`. `pass` is false if any issue is critical or major, or the answer is
    empty. A model that gives no usable report is one more minor issue: the answer does not fail for it.
    """
    args, ctx = Arguments(scope), scope.ctx
    if "answer" not in scope.args:
        raise UsageError("the operation 'quality' needs the `answer` it reports on")
    answer, goal, asked = args.text("answer"), args.goal(), args.flag("model", default=False)
    maker = _maker(scope)
    issues = await check_claims(ctx, answer, goal=goal, but=scope.step.id)
    found = [_entry(one, maker) for one in issues]
    if not answer:
        found.append(
            _entry(Issue("critical", "", "there is no answer", "answer the goal", check="answer"), maker)
        )
    subject = scope.subject(answer, goal)
    backed = await asyncio.to_thread(evidence_of, subject) if answer else ()
    missing = [one.text for one in backed if one.state != "cited"]
    if asked and answer:
        said, more = await _ask_model(
            scope, goal, answer, spans_for_model(subject, backed, ctx.state.writers)
        )
        found += [{**entry, "step": entry["step"] or maker} for entry in said]
        missing += [text for text in more if text not in missing]
    found.sort(key=lambda one: SEVERITIES.index(str(one["severity"])))
    fixes: dict[str, list[str]] = {}
    for one in found:
        fixes.setdefault(str(one["step"]) or "answer", []).append(str(one["fix"]))
    passed = not any(one["severity"] != "minor" for one in found)
    return Done(
        output=cast("Json", {"pass": passed, "issues": found, "fixes": fixes, "missing_evidence": missing})
    )


async def _ask_model(
    scope: Scope, goal: str, answer: str, spans: Sequence[Span]
) -> tuple[list[dict[str, Json]], list[str]]:
    """Return the model's issues, and the claims for which it sees no evidence."""
    step = scope.step
    steps = {
        other.id: other.work for other in scope.plan.steps if other.id != step.id and not other.operation
    }
    work = (
        {"steps": "\n".join(f"{name}: {one_line(text, 200)}" for name, text in steps.items())}
        if len(steps) > 1
        else {}
    )
    shown = cast(
        "dict[str, Json]",
        {"answer": answer, **work, **{f"span {span.id}": span.text[:4_000] for span in spans}},
    )
    try:
        said = await step_dialogue(scope, tools=(), schema=REPORT, temperature=temperature_of(scope)).ask(
            _PROMPT.format(goal=goal, artifacts=artifacts_prompt(shown)), lambda text: _report(text, answer)
        )
    except ModelError as error:  # the answer is there, and what the checks found of it
        return [
            _entry(
                Issue(
                    "minor",
                    "",
                    f"no model reported on it: {error}",
                    "report again, with another model",
                    check="model",
                )
            )
        ], []
    issues = (
        (
            Issue(entry["severity"], entry["place"], entry["what"], entry["fix"], check="model"),
            str(entry.get("step", "")),
        )
        for entry in said["issues"][:MOST]
    )
    missing = [Issue("minor", "", text, "").what for text in said["missing_evidence"][:MOST]]
    found = [_entry(one, name if name in steps else "") for one, name in issues]
    if strange := said["strange"]:
        places = ", ".join(f"“{one_line(place, 60)}”" for place in strange[:3])
        what = (
            f"{format_count(len(strange), 'issue')} of a model "
            f"{'was' if len(strange) == 1 else 'were'} left out: the answer does not have {places}"
        )
        found.append(_entry(Issue("minor", "", what, "report again, with another model", check="model")))
    return found, missing


def _entry(one: Issue, step: str = "") -> dict[str, Json]:
    return {**one.as_json(), "step": step}


def _maker(scope: Scope) -> str:
    """Return the step that produced the answer, where the answer is an artifact; empty otherwise."""
    return next(
        (
            step.id
            for step in scope.plan.steps
            if step.id in scope.steps and set(step.produces) & scope.step.references
        ),
        "",
    )


def _report(text: str, answer: str) -> dict[str, Any]:
    """Return a model's report; issues that quote words missing in the answer are `strange`."""
    report = cast("dict[str, Any]", read_json(text, REPORT))
    plain = _plain(answer)
    there = [
        all(part in plain for part in map(_plain, _GAP.split(entry["place"]))) for entry in report["issues"]
    ]
    return {
        "issues": [entry for entry, has in zip(report["issues"], there, strict=True) if has],
        "strange": [entry["place"] for entry, has in zip(report["issues"], there, strict=True) if not has],
        "missing_evidence": report["missing_evidence"],
    }


_GAP: Final = re.compile(r"\.{3}|…")


def _plain(text: str) -> str:
    """A text without what models change when quoting: case, white space, emphasis, final stop."""
    return " ".join(re.sub(r"[*_`\"“”'’]", "", text).casefold().split()).strip(" .,;:")


_NONE: Final = (
    "no step of this run reports on quality: kestrel run GOAL --verify quality, or a step with "
    "`operation: quality`"
)


@dataclass(frozen=True, slots=True, repr=False)
class Quality(PartsView):
    """The quality report of a run's answer, shown as a table. Without a report it says how to get one."""

    report: Mapping[str, Any] = field(default_factory=dict)
    """The step's output: `pass`, `issues`, `fixes` by step, `missing_evidence`; empty without one."""

    @property
    def passed(self) -> bool | None:
        """Whether nothing critical or major was found; `None` without a report."""
        return self.report.get("pass")

    @property
    def issues(self) -> list[dict[str, Json]]:
        """The issues, worst first, each with `severity`, `place`, `what`, `fix`, `step` and `check`."""
        return list(self.report.get("issues", ()))

    @property
    def fixes(self) -> dict[str, list[str]]:
        """The fixes by the step that should make them; under `answer` where no step is known."""
        return dict(self.report.get("fixes", {}))

    @property
    def missing_evidence(self) -> list[str]:
        """Claims that cite what does not exist, and those for which the model sees no evidence."""
        return list(self.report.get("missing_evidence", ()))

    @property
    def frame(self) -> pd.DataFrame:
        """A row per issue, the worst first, then one per claim without evidence, whose `severity` says so.

        Columns: `severity`, `place`, `what`, `fix`, `step`, `check`.
        """
        return unit_frame(list(quality_rows(self.report)), columns=list(COLUMNS), units={})

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings and the rows of `frame`."""
        return COLUMNS, [tuple(row.values()) for row in quality_rows(self.report)]

    def __str__(self) -> str:
        return quality_line(self.report) if self.report else _NONE

    def parts(self) -> Iterable[Part]:
        """Return the verdict in a line, and the issues."""
        return [str(self), *([Table(*self.table())] if any(quality_rows(self.report)) else [])]

    def _repr_markdown_(self) -> None:
        """No Markdown form: it would be rendered with remote images."""


def quality_of(state: RunState) -> Quality:
    """Return the last quality report of a run."""
    reports = [state.outputs.get(step.id) for step in state.planned.steps if step.operation in REPORTS]
    last = next((report for report in reversed(reports) if isinstance(report, dict)), {})
    return Quality(last)
