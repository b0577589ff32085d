"""Grounding checks: what an answer names exists, its claims cite what is there or are supported as a model
judges, and sources are cited.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from kestrel_lab.checks.llm_judge import judge_claim
from kestrel_lab.checks.trajectory import made_calls
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events.union import ToolAnswered
from kestrel_lab.core.json_types import readable
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import LogCheck, Score
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.evidence import cited_share, evidence_of, states_summary, wrong_citations
from kestrel_lab.verification.subject import subject_of

if TYPE_CHECKING:
    from kestrel_lab.verification.subject import Subject


@dataclass(frozen=True, kw_only=True, slots=True)
class Grounded:
    """Every place, quote and action that the answer names is there; no model is asked.

    `most` is how many things may be wrong with it; what is only questionable does not count. An empty answer
    fails.
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
        found = await asyncio.to_thread(check_answer, _subject(trial))
        wrong = [one for one in found if one.refuses]
        reason = "" if len(wrong) <= self.most else one_line("; ".join(one.what for one in wrong), 300)
        return Score(
            check=self.label, passed=len(wrong) <= self.most, value=1 / (1 + len(wrong)), reason=reason
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CitesWhatIsThere:
    """At least this share of the answer's claims cite a place that exists, a call that was made or a page
    that was read, and none is wrong.

    Whether it shows what the claim says is not looked at. An answer without a claim fails.
    """

    needs: ClassVar[str] = "the workspace"

    share: float = 0.8

    def __post_init__(self) -> None:
        _check_share("cited", self.share)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.share:.0%} of the claims are cited"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when enough is cited and nothing wrongly; `value` is the share that is."""
        backed = await asyncio.to_thread(evidence_of, _subject(trial))
        value, wrong = cited_share(backed), next(wrong_citations(backed), None)
        passed = bool(backed) and value >= self.share and wrong is None
        reason = wrong.what if wrong else states_summary([one.state for one in backed])
        return Score(
            check=self.label, passed=passed, value=value, reason="" if passed else one_line(reason, 300)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Faithful:
    """A model judge finds at least this share of the answer's claims entailed by what they cite, else by what
    tools answered, and none contradicted.

    The judge is the suite's grader, or the model of that name; `kestrel eval judge` measures how often it is
    right. An answer without a claim fails.
    """

    needs: ClassVar[str] = "the workspace"

    share: float = 0.8
    model: str = ""

    def __post_init__(self) -> None:
        _check_share("faithful", self.share)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"a model finds {self.share:.0%} of the claims supported and none contradicted"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when enough is supported; `value` is the share that is.

        Raises `CheckError` without a judge.
        """
        if trial.grader is None:
            raise CheckError("faithful asks a model: give the suite a `grader`")
        subject = _subject(trial)
        backed = await asyncio.to_thread(evidence_of, subject)
        if not backed:
            return Score(check=self.label, passed=False, value=0.0, reason="the answer claims nothing")
        judge = trial.grader(self.model)
        # The newest first: the judge is shown 12,000 characters, and answers rest on what was read last.
        seen = [span.text for span in reversed(subject.whole_spans)]
        verdicts: list[str] = []
        for claim in backed:
            shown = [one.span.text for one in claim.cited if one.span] or seen
            asked = seen or claim.cited
            verdicts.append((await judge_claim(judge, claim.text, shown)).verdict if asked else "neither")
        value = verdicts.count("entailed") / len(verdicts)
        # A contradiction counts before a claim that nothing supports.
        worst = next((word for word in ("contradicted", "neither") if word in verdicts), "")
        passed = value >= self.share and worst != "contradicted"
        reason = (
            f"{verdicts.count('entailed')} of {len(verdicts)} supported; {worst}: "
            f"{backed[verdicts.index(worst)].text}"
            if worst
            else ""
        )
        return Score(
            check=self.label, passed=passed, value=value, reason="" if passed else one_line(reason, 300)
        )


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise UsageError(f"{name}.share is from 0 to 1, not {share}")


def _subject(trial: Trial) -> Subject:
    return subject_of(trial.records, answer=trial.answer, goal=trial.goal, root=trial.workspace)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerCites(LogCheck):
    """The answer names the sources: paths, addresses or other names, letter by letter.

    A name inside a longer one does not count: `app.py` is not cited by `src/app.py` or `app.pyc`; a place in
    it, `app.py:12`, does. With `seen`, a source counts only if a tool of the run was called with it or named
    it: the others can only be guessed.
    """

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
        return f"answer cites {which}{one_line(', '.join(self.sources), 80)}" + (
            " as seen" if self.seen else ""
        )

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the sources are cited; `value` is the share of them that is."""
        missing = [source for source in self.sources if not contains_name(trial.answer, source)]
        unseen = (
            [source for source in self.sources if source not in missing and not _was_seen(trial, source)]
            if self.seen
            else []
        )
        found = len(self.sources) - len(missing) - len(unseen)
        passed = found > 0 if self.mode == "any" else found == len(self.sources)
        problems = [f"not cited: {', '.join(missing)}"] if missing else []
        problems += [f"cited, but in no call: {', '.join(unseen)}"] if unseen else []
        value = 1.0 if passed else found / len(self.sources)
        return Score(
            check=self.label,
            passed=passed,
            value=value,
            reason="" if passed else one_line("; ".join(problems), 200),
        )


def contains_name(text: str, source: str) -> bool:
    """Return whether `text` contains `source` as a whole name; a full stop behind it may end the sentence."""
    return re.search(rf"(?<![\w./-]){re.escape(source)}(?![\w/-]|\.\w)", text) is not None


def _was_seen(trial: Trial, source: str) -> bool:
    texts = (
        record.event.text
        for record in trial.records
        # A call that failed has shown the agent nothing of the source.
        if isinstance(record.event, ToolAnswered) and record.event.error is None
    )
    return any(source in text for text in texts) or any(
        call.ok and source in readable(call.args) for call in made_calls(trial.records)
    )
