"""Verifiers that come with the package: a model that must point at evidence, and a look at the files an answer names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.protocols import Claim, Verification
from kestrel_lab.core.text import head_tail, one_line
from kestrel_lab.engine.artifacts import told
from kestrel_lab.engine.dialogue import Dialogue, read_json

if TYPE_CHECKING:
    from kestrel_lab.tools.workspace import Workspace

MAX_EVIDENCE = 24_000
"""Characters of all evidence that a model is shown; the newest is kept, long texts lose their middle."""
MAX_ONE_EVIDENCE = 4_000
VERDICT: dict[str, Json] = {
    "type": "object",
    "properties": {
        "criteria": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "criterion": {"type": "integer", "minimum": 1},
                    "met": {"type": "boolean"},
                    "why": {"type": "string"},
                    "evidence": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["criterion", "met", "why", "evidence"],
                "additionalProperties": False,
            },
        },
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["criteria", "confidence"],
    "additionalProperties": False,
}
"""What a model says of an answer, criterion by criterion."""

_TEXT = """\
Judge an answer that somebody else gave to this goal:

{goal}

Decide for each criterion below, by its number, whether the answer meets it. Be strict: a criterion that nothing shows to be met \
is not met. {sources} Answer with one JSON object and nothing else:
{{"criteria": [{{"criterion": 1, "met": false, "why": "in one sentence, and if it is not met what would have to change", \
"evidence": ["ids of the calls that show it; empty if none does"]}}], "confidence": 0.9}}

{artifacts}"""


@dataclass(frozen=True, slots=True)
class ModelVerifier:
    """A model decides criterion by criterion, and names the tool calls that show it."""

    dialogue: Dialogue
    knows: Callable[[str], bool]
    """Whether there was a call of this id; a verdict that points at one that never was is no verdict."""
    name: str = "model"

    async def __call__(self, claim: Claim) -> Verification:
        """Judge; a verdict that cannot be used goes back to the model twice at most, then `ModelError` is raised."""
        shown = {
            "criteria": "\n".join(f"{number}. {text}" for number, text in enumerate(claim.criteria, 1)),
            "answer": claim.answer,
            **_shown(claim),
        }
        sources = (
            "What tools answered in the run is given under the id of the call." if claim.evidence else "No tool was called in the run."
        )
        text = _TEXT.format(goal=claim.goal, sources=sources, artifacts=told(cast("dict[str, Json]", shown)))
        verdict = await self.dialogue.ask(text, lambda answer: self._verdict(answer, len(claim.criteria)))
        unmet = [entry for entry in verdict["criteria"] if not entry["met"]]
        issues = tuple(f"not met: {claim.criteria[entry['criterion'] - 1]}: {entry['why'].strip()}" for entry in unmet)
        return Verification(passed=not issues, confidence=float(verdict["confidence"]), issues=issues)

    def _verdict(self, answer: str, criteria: int) -> dict[str, Any]:
        verdict = cast("dict[str, Any]", read_json(answer, VERDICT))
        times = Counter(entry["criterion"] for entry in verdict["criteria"])
        if wrong := [f"{number}" for number in range(1, max((criteria, *times)) + 1) if times[number] != (number <= criteria)]:
            msg = f"there are {criteria} criteria, each is judged once: look at {', '.join(wrong[:10])}"
            raise UsageError(msg)
        cited = {call for entry in verdict["criteria"] for call in entry["evidence"]}
        if made_up := sorted(call for call in cited if not self.knows(call)):
            msg = f"it cites calls that never were: {', '.join(one_line(call) for call in made_up[:5])}; cite only ids that are given"
            raise UsageError(msg)
        return verdict


def _shown(claim: Claim) -> dict[str, str]:
    """Evidence by the call it comes from, the newest as far as there is room, in the order it came."""
    found: list[tuple[str, str]] = []
    room = MAX_EVIDENCE
    for item in reversed(claim.evidence):
        text = head_tail(item.text, MAX_ONE_EVIDENCE)[0]
        if room - len(text) < 0:
            break
        room -= len(text)
        found.append((f"call {item.call} of {item.tool}", text))
    return dict(reversed(found))


_QUOTED = re.compile(r"`([^`\s]{1,200})`")
_FILE = re.compile(
    r"\.?/?(?:[\w.-]+/)*[\w-][\w.-]*\.(?:py|md|rst|txt|json|csv|tsv|ya?ml|toml|cfg|ini|html?|css|js|ts|ipynb|sh|sql|xml|log|parquet)"
)


@dataclass(frozen=True, slots=True)
class FilesExist:
    """Files that an answer names in backticks are there, unless a tool of the run told of them.

    It looks at nothing else: a name without backticks or with an unusual ending, and what is in the files, is not its concern.
    """

    workspace: Workspace
    name: str = "files"

    async def __call__(self, claim: Claim) -> Verification:
        """Judge, without a model."""
        named = dict.fromkeys(name for name in _QUOTED.findall(claim.answer) if _FILE.fullmatch(name))
        missing = [name for name in named if not self._is_there(name) and not any(name in item.text for item in claim.evidence)]
        issues = tuple(f"the answer names the file {name}, which is not there and of which no tool told" for name in missing)
        return Verification(passed=not issues, confidence=1.0 if missing else None, issues=issues)

    def _is_there(self, name: str) -> bool:
        try:
            return self.workspace.exists(name)
        except (OSError, ValueError):  # leads out of the workspace
            return False
