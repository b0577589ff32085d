"""A check that an answer has the form that its reader was promised."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from kestrel_lab.answers.contracts import contract_named
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text import one_line


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerForm:
    """The answer keeps a contract: `brief`, `plan`, `patch`, `explanation` or `research`; one that says that it does not know keeps all."""

    needs: ClassVar[str] = "the workspace"

    contract: str

    def __post_init__(self) -> None:
        contract_named(self.contract)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"the answer has the form {self.contract!r}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when nothing is wrong with its form."""
        issues = await asyncio.to_thread(contract_named(self.contract).issues, trial.answer, trial.workspace)
        return Score(check=self.label, passed=not issues, value=1 / (1 + len(issues)), reason=one_line("; ".join(issues), 300))
