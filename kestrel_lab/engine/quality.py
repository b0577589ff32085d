"""The operation `quality`: an answer is reported on, with places and fixes, and nothing new is made.

It has no tools and grows no steps: what it finds is for others to act upon. Deterministic checks come first; a model is
asked only where the step says so, and what it says has to point at what it was shown, or does not count.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.template import escape
from kestrel_lab.engine.artifacts import as_text, told
from kestrel_lab.engine.dialogue import Dialogue, read_json
from kestrel_lab.engine.evidence import checked, subject_in
from kestrel_lab.engine.operation import Done, Scope
from kestrel_lab.verification.evidence import Backed, evidence_of
from kestrel_lab.verification.issues import issue

__all__ = ["REPORT", "quality"]

SEVERITIES: Final = ("critical", "major", "minor")
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
    beside the checks (no). Its output: `{pass, issues: [{severity, place, what, fix, step, check}], fixes: {step: [text]},
    missing_evidence: [text]}`. `pass` is false if any issue is critical or major, or the answer is empty.
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
    root = Path(ctx.workspace.root)
    found: list[dict[str, Json]] = [
        {**one.as_json(), "step": ""} for one in await asyncio.to_thread(checked, ctx.state, root, answer, goal=goal, but=scope.step.id)
    ]
    if not answer:
        found.append({**issue("critical", "", "there is no answer", "answer the goal", check="answer").as_json(), "step": ""})
    subject = subject_in(ctx.state, root, answer, goal=goal, but=scope.step.id)
    backed = await asyncio.to_thread(evidence_of, subject) if answer else ()
    missing = [one.said.text for one in backed if not one.support.spans] if subject.spans else []
    if asked and answer:
        more = await Dialogue(scope.step, ctx, scope.desk).ask(
            _TEXT.format(goal=goal, artifacts=told(cast("dict[str, Json]", {"answer": answer, **_shown(backed)}))),
            lambda text: _report(text, answer),
        )
        found += [{"step": "", **entry, "check": "model"} for entry in more["issues"]]
        missing += [text for text in more["missing_evidence"] if text not in missing]
    found.sort(key=lambda one: SEVERITIES.index(str(one["severity"])))
    fixes: dict[str, list[str]] = {}
    for one in found:
        fixes.setdefault(str(one["step"]) or "answer", []).append(str(one["fix"]))
    passed = not any(one["severity"] != "minor" for one in found)
    return Done(output=cast("Json", {"pass": passed, "issues": found, "fixes": fixes, "missing_evidence": missing}))


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
