"""Grounding checks: what an answer names exists, its claims are supported by what the run saw, and sources are cited."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from kestrel_lab.checks.trajectory import made_calls
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events.union import ToolAnswered
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import Score
from kestrel_lab.verification.engine import VerifierEngine
from kestrel_lab.verification.entailment import ModelEntailment
from kestrel_lab.verification.evidence import evidence_of, with_entailment
from kestrel_lab.verification.subject import subject_of

if TYPE_CHECKING:
    from kestrel_lab.verification.subject import Subject


@dataclass(frozen=True, kw_only=True, slots=True)
class Grounded:
    """Every file, line, name, number, quote, command and tool output that the answer names is there; no model is asked.

    `most` is how many things may be wrong with it; what is only questionable does not count. An empty answer fails.
    """

    needs: ClassVar[str] = "the workspace"

    most: int = 0

    @property
    def label(self) -> str:
        """The check in words."""
        return "what the answer names is there" + (f", but for {self.most}" if self.most else "")

    async def __call__(self, trial: Trial) -> Score:
        """Pass when no more is wrong; `value` is 1 without anything wrong, and the less the more is."""
        if not trial.answer.strip():
            return Score(check=self.label, passed=False, value=0.0, reason="there is no answer")
        found = await asyncio.to_thread(VerifierEngine(), _subject(trial))
        wrong = [one for one in found if one.refuses]
        reason = "" if len(wrong) <= self.most else one_line("; ".join(one.what for one in wrong), 300)
        return Score(check=self.label, passed=len(wrong) <= self.most, value=1 / (1 + len(wrong)), reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Faithful:
    """At least this share of the answer's claims is held up by what it cites, or else by what the run saw.

    By words alone: additions are noticed, contradictions are not. With `judge`, the suite's grader (or the model of that
    name) is asked about each claim too, and one that is contradicted fails the answer. An answer without a claim fails.
    """

    needs: ClassVar[str] = "the workspace"

    share: float = 0.8
    judge: Literal["no", "yes"] = "no"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"faithful.share is from 0 to 1, not {self.share}")

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.share:.0%} of the claims are supported" + (" and none contradicted" if self.judge == "yes" else "")

    async def __call__(self, trial: Trial) -> Score:
        """Pass when enough is supported; `value` is the share that is."""
        backed = await asyncio.to_thread(evidence_of, _subject(trial))
        if not backed:
            return Score(check=self.label, passed=False, value=0.0, reason="the answer claims nothing")
        if self.judge == "yes":
            if trial.grader is None:
                raise CheckError("faithful with a judge needs a model: give the suite a `grader`")
            backed = await with_entailment(backed, ModelEntailment(trial.grader("")))
        words = [one.support.word for one in backed]
        value = words.count("supported") / len(words)
        wrong = next((one for one in backed if one.support.word == "contradicted"), None)
        weak = next((one.said.text for one in backed if one.support.word != "supported"), "")
        passed = value >= self.share and wrong is None
        reason = f"contradicted: {wrong.said.text}" if wrong else f"{words.count('supported')} of {len(words)} supported; weak: {weak}"
        return Score(check=self.label, passed=passed, value=value, reason="" if passed else one_line(reason, 300))


def _subject(trial: Trial) -> Subject:
    return subject_of(trial.records, answer=trial.answer, goal=trial.goal, root=trial.workspace)


# A check that an answer names where it got what it says.


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerCites:
    """The answer names the sources: paths, addresses or other names, letter by letter.

    A name inside a longer one does not count: `app.py` is not cited by `src/app.py` or `app.pyc`; a place in
    it, `app.py:12`, does. With `seen`, a source counts only if a tool of the run was called with it or told of
    it: the others can only be guessed.
    """

    needs: ClassVar[str] = ""

    sources: tuple[str, ...]
    mode: Literal["all", "any"] = "all"
    seen: bool = False

    def __post_init__(self) -> None:
        if not self.sources or not all(source.strip() for source in self.sources):
            raise UsageError("answer_cites needs at least one source, and none of them empty")

    @property
    def label(self) -> str:
        """The check in words."""
        which = f"{self.mode} of " if len(self.sources) > 1 else ""
        return f"answer cites {which}{one_line(', '.join(self.sources), 80)}" + (" as seen" if self.seen else "")

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the sources are cited; `value` is the share of them that is."""
        missing = [source for source in self.sources if not named_in(trial.answer, source)]
        unseen = [source for source in self.sources if source not in missing and not _told_of(trial, source)] if self.seen else []
        found = len(self.sources) - len(missing) - len(unseen)
        passed = found > 0 if self.mode == "any" else found == len(self.sources)
        told = [f"not cited: {', '.join(missing)}"] if missing else []
        told += [f"cited, but in no call: {', '.join(unseen)}"] if unseen else []
        value = 1.0 if passed else found / len(self.sources)
        return Score(check=self.label, passed=passed, value=value, reason="" if passed else one_line("; ".join(told), 200))


def named_in(text: str, source: str) -> bool:
    """Return whether `text` contains `source` as a whole name; a full stop behind it may end the sentence."""
    return re.search(rf"(?<![\w./-]){re.escape(source)}(?![\w/-]|\.\w)", text) is not None


def _told_of(trial: Trial, source: str) -> bool:
    texts = (record.event.text for record in trial.records if isinstance(record.event, ToolAnswered) and record.event.error is None)
    return any(source in text for text in texts) or any(call.ok and source in dumps(call.args) for call in made_calls(trial.records))
