"""A check that an agent says so when it does not know, and only then."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text import one_line

_UNABLE: Final = r"(?:do not|don't|did not|didn't|cannot|can't|could not|couldn't|(?:am|was|are|were) (?:unable|not able) to)"
_FIND: Final = r"(?:know|tell|say|find|determine|answer|verify|confirm|establish|locate)\b"
_NOT: Final = r"(?:is|are|was|were|does|do|has|have|can|could)(?:n't| not)|cannot"
_TOLD: Final = (
    r"(?:(?:been|be) )?(?:known|knowable|stated|mentioned|specified|given|documented|determined|answered|answerable|found|provided|"
    r"present|available|contained|covered|say|state|mention|specify|possible to (?:tell|say|determine|answer|know))\b"
)
_ABSTAINS: Final = re.compile(
    rf"\b(?:i|we) {_UNABLE} {_FIND}"
    rf"|\b(?:{_NOT}) {_TOLD}"
    r"|\b(?:no|not enough|insufficient|too little) (?:information|evidence|answer|mention|data|record)\b"
    r"|^\W*(?:unknown|unanswerable|n/?a|i abstain|no answer)\b",
    re.IGNORECASE,
)
_SENTENCES: Final = 2
"""An agent that does not know says so at once; "could not find" further down tells of a search on the way to an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerAbstains:
    """The answer says that it does not know, for questions that nothing there answers.

    It is recognised by English phrases ("I do not know", "is not mentioned", "not enough information", "unknown") in
    its first two sentences; an empty answer is none. Write `answer_abstains: false` where it may not.
    """

    needs: ClassVar[str] = ""

    expected: bool = True

    @property
    def label(self) -> str:
        """The check in words."""
        return "answer says that it does not know" if self.expected else "answer does not say that it does not know"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when it does as expected."""
        passed = abstains(trial.answer) == self.expected and bool(trial.answer.strip())
        said = f"answered {one_line(trial.answer, 120)!r}" if trial.answer.strip() else "there is no answer"
        return Score(check=self.label, passed=passed, value=float(passed), reason="" if passed else said)


def abstains(answer: str) -> bool:
    """Whether `answer` says that it does not know."""
    text = answer.strip().replace("’", "'")
    first = " ".join(re.split(r"(?<=[.!?])\s+", text, maxsplit=_SENTENCES)[:_SENTENCES])
    return _ABSTAINS.search(first) is not None
