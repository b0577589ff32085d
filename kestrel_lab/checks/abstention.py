"""A check that an agent says so when it does not know, and only then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kestrel_lab.answers.abstaining import abstains
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text import one_line


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
