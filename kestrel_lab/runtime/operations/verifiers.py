"""The package's verifiers: citing models, deterministic checks, answer forms, and votes of judges."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kestrel_lab.answers.contracts import Contract
from kestrel_lab.core.errors import ModelError, RunError, UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Claim, Verification, Verifier
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.runtime.agent.structured_output import Dialogue, read_json
from kestrel_lab.runtime.execution.artifacts import artifacts_prompt
from kestrel_lab.runtime.execution.operation import Scope
from kestrel_lab.runtime.operations.arguments import TEXTS, closed_object
from kestrel_lab.runtime.review.answer_review import FORM
from kestrel_lab.runtime.review.evidence_table import check_claims
from kestrel_lab.verification.engine import UNFINISHED
from kestrel_lab.verification.evidence import evidence_of, wrong_citations

MAX_EVIDENCE = 24_000
"""Characters of evidence shown to a model; the newest is kept, long texts lose their middle."""
MAX_ONE_EVIDENCE = 4_000
_CRITERION = closed_object(
    {
        "criterion": {"type": "integer", "minimum": 1},
        "met": {"type": "boolean"},
        "why": {"type": "string"},
        "evidence": TEXTS,
    }
)
VERDICT = closed_object(
    {
        "criteria": {"type": "array", "items": _CRITERION},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    }
)
"""JSON Schema of a model's verdict on an answer, criterion by criterion."""

_TEXT = """\
Judge an answer that somebody else gave to this goal:

{goal}

Decide for each criterion below, by its number, whether the answer meets it. Be strict: a criterion that \
nothing shows to be met \
is not met, and one that is met names what shows it. {sources} Answer with one JSON object and nothing else:
{{"criteria": [{{"criterion": 1, "met": false, "why": "in one sentence, and if it is not met what would have \
to change", \
"evidence": ["ids of what shows it; empty if nothing does"]}}], "confidence": 0.9}}

{artifacts}"""


@dataclass(frozen=True, slots=True)
class ModelVerifier:
    """A model decides criterion by criterion and cites the evidence for it; it sees nothing but that
    evidence.

    A verdict is refused if it cites evidence that the model was not shown or, where there is evidence, if it
    calls a criterion met and cites nothing.
    """

    dialogue: Dialogue
    knows: Callable[[str], bool]
    """Returns whether there is a call or a span with an id."""
    name: str = "model"

    async def __call__(self, claim: Claim) -> Verification:
        """Judge; an unusable verdict goes back to the model twice at most, then `ModelError` is raised."""
        shown = {
            "criteria": "\n".join(f"{number}. {text}" for number, text in enumerate(claim.criteria, 1)),
            "answer": claim.answer,
            **_fitting_evidence(claim),
        }
        sources = (
            "What the answer rests on is given under the id of the call, or of the lines of a file."
            if claim.evidence
            else "No tool was called in the run."
        )
        text = _TEXT.format(
            goal=claim.goal, sources=sources, artifacts=artifacts_prompt(cast("dict[str, Json]", shown))
        )
        verdict = await self.dialogue.ask(text, lambda answer: self._verdict(answer, claim))
        unmet = [entry for entry in verdict["criteria"] if not entry["met"]]
        issues = tuple(
            f"not met: {claim.criteria[entry['criterion'] - 1]}: {entry['why'].strip()}" for entry in unmet
        )
        return Verification(passed=not issues, confidence=float(verdict["confidence"]), issues=issues)

    def _verdict(self, answer: str, claim: Claim) -> dict[str, Any]:
        verdict, criteria = cast("dict[str, Any]", read_json(answer, VERDICT)), len(claim.criteria)
        times = Counter(entry["criterion"] for entry in verdict["criteria"])
        if wrong := [
            f"{number}"
            for number in range(1, max((criteria, *times)) + 1)
            if times[number] != (number <= criteria)
        ]:
            raise UsageError(
                f"there are {criteria} criteria, each must be judged exactly once: check "
                f"{', '.join(wrong[:10])}"
            )
        cited = {call for entry in verdict["criteria"] for call in entry["evidence"]}
        if made_up := sorted(call for call in cited if not self.knows(call)):
            msg = (
                f"it cites calls that never were: {', '.join(one_line(call) for call in made_up[:5])}; "
                "cite only ids that are given"
            )
            raise UsageError(msg)
        if claim.evidence and (
            bare := [
                entry["criterion"] for entry in verdict["criteria"] if entry["met"] and not entry["evidence"]
            ]
        ):
            unnamed = ", ".join(map(str, bare[:10]))
            msg = (
                f"a criterion that is met names the ids of what shows it; nothing is named for {unnamed}: "
                "name the evidence, or say that the criterion is not met"
            )
            raise UsageError(msg)
        return verdict


def _fitting_evidence(claim: Claim) -> dict[str, str]:
    """Return the newest evidence that fits, in its order, by the call it comes from."""
    found: list[tuple[str, str]] = []
    room = MAX_EVIDENCE
    for item in reversed(claim.evidence):
        text = head_tail(item.text, MAX_ONE_EVIDENCE)[0]
        if room - len(text) < 0:
            break
        room -= len(text)
        found.append(
            (f"span {item.span} of {item.tool}" if item.span else f"call {item.call} of {item.tool}", text)
        )
    return dict(reversed(found))


@dataclass(frozen=True, slots=True)
class Grounded:
    """Places, quotes and actions of an answer are right; without a model, see `check_answer`."""

    scope: Scope
    name: str = "facts"

    async def __call__(self, claim: Claim) -> Verification:
        """Judge; what is only questionable is not held against the answer."""
        found = await check_claims(self.scope.ctx, claim.answer, goal=claim.goal, but=self.scope.step.id)
        wrong = tuple(str(one) for one in found if one.refuses)
        unseen = tuple(str(one) for one in found if one.check == UNFINISHED)
        return Verification(passed=not wrong, confidence=1.0 if wrong else None, issues=(*wrong, *unseen))


@dataclass(frozen=True, slots=True)
class Cites:
    """Every citation of a claim must resolve exactly; a claim without one is only shown as uncited."""

    scope: Scope
    claims: Sequence[Mapping[str, Any]]
    name: str = "citations"

    async def __call__(self, claim: Claim) -> Verification:
        """Judge the citations, by the workspace as it is now and what the run read."""
        backed = await asyncio.to_thread(
            evidence_of, self.scope.subject(claim.answer, claim.goal), self.claims
        )
        wrong = tuple(str(one) for one in wrong_citations(backed))
        return Verification(passed=not wrong, issues=wrong)


@dataclass(frozen=True, slots=True)
class Formed:
    """Deterministic check of an answer against a contract; see `answers.contracts`."""

    contract: Contract
    root: Path
    name: str = FORM

    async def __call__(self, claim: Claim) -> Verification:
        """Judge the form, and that files named as existing exist; the content is not judged."""
        wrong = await asyncio.to_thread(self.contract.issues, claim.answer, self.root)
        return Verification(
            passed=not wrong, issues=tuple(f"form {self.contract.name!r}: {one}" for one in wrong)
        )


@dataclass(frozen=True, slots=True)
class Vote:
    """A majority vote of several judges; one without a usable verdict has no vote."""

    judges: tuple[Verifier, ...]
    name: str = "vote"

    async def __call__(self, claim: Claim) -> Verification:
        """Judge; a tie does not pass. Raises the last judge's error when none of them gives a verdict."""
        verdicts: list[Verification] = []
        problem: RunError | None = None
        for judge in self.judges:
            try:
                verdicts.append(await judge(claim))
            except (ModelError, UsageError) as error:
                # One judge who fails does not end the vote; without any verdict the error counts.
                problem = error if isinstance(error, RunError) else RunError(str(error))
        if not verdicts:
            raise problem or RunError("a vote needs at least one judge")
        passing = sum(found.passed for found in verdicts)
        passed = 2 * passing > len(verdicts)
        issues = tuple(
            dict.fromkeys(issue for found in verdicts if not found.passed for issue in found.issues)
        )
        sure = [
            found.confidence for found in verdicts if found.passed is passed and found.confidence is not None
        ]
        share = max(passing, len(verdicts) - passing) / len(verdicts)
        confidence = share * sum(sure) / len(sure) if sure else None
        return Verification(passed=passed, confidence=confidence, issues=() if passed else issues)
