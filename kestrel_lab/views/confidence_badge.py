"""The confidence badge of an answer: what was checked and judged, and how often such answers were right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from kestrel_lab.answers.confidence import Basis, format_share, stated_confidence
from kestrel_lab.core.events.union import Event, RunFinished, VerifierFinished
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.elements import template_macros

Word = Literal["wrong", "checked", "partly checked", "unchecked", "nothing to check"]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Badge:
    """What is certain or measured about an answer, and nothing else."""

    word: Word
    """`wrong` with a concern that is not minor, `partly checked` where the checks stopped early, `unchecked`
    where nobody looked, `nothing to check` where the answer names nothing that the checks could compare.
    """
    concerns: int = 0
    """Concerns that are not minor."""
    checked: int = 0
    """Places, quotes and actions that could be compared; 0 also where the log does not say how many."""
    stopped: str = ""
    """Why the checks stopped early; empty where they did not."""
    claims: int | None = None
    """Claims of an answer that was asked for as claims with citations; `None` of any other."""
    cited: int = 0
    """Those of them that cite what is there."""
    actions: int = 0
    """Actions that the answer claims and the log has."""
    judge: bool | None = None
    """Whether model judges passed it; `None` where none was asked."""
    value: float | None = None
    """The confidence that the run states, from 0 to 1; `answers.confidence` says how it is made."""
    basis: Basis | None = None
    calibrated: float | None = None
    """The share of answers with this stated confidence that were right in trials; `None` without trials."""
    trials: int = 0
    suite: str = ""

    def __str__(self) -> str:
        result = {
            "wrong": f"{format_count(self.concerns, 'concern')}",
            "unchecked": "not checked",
            "nothing to check": "not checked: it names no place, quote or action that can be compared",
        }.get(self.word, self._compared)
        parts = [result, f"the checks stopped early: {sanitize_text(self.stopped)}" if self.stopped else ""]
        parts.append(
            "" if self.claims is None else f"{self.cited} of {format_count(self.claims, 'claim')} cited"
        )
        parts.append(f"{format_count(self.actions, 'action')} confirmed by the log" if self.actions else "")
        parts.append(
            "" if self.judge is None else f"{'passed' if self.judge else 'refused'} by a model judge"
        )
        if self.calibrated is not None:
            share = f"{self.calibrated:.0%}".replace("%", " %")
            parts.append(
                f"of answers this sure ({format_share(self.value or 0)}), {share} were right: "
                f"{format_count(self.trials, 'trial')} of suite {sanitize_text(self.suite)}"
            )
        return " · ".join(filter(None, parts))

    @property
    def _compared(self) -> str:
        """How much was compared and right, which says nothing of the rest; empty where that is not known."""
        if not self.checked:
            return ""
        return f"{self.checked} of {self.checked} places, quotes and actions that it names are right"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return str(template_macros("elements.html").explained(str(self), self.why))

    @property
    def why(self) -> str:
        """What the words rest on."""
        if self.value is None:
            return (
                "places, quotes and actions that the answer names are compared with the workspace and "
                "the log; prose is not judged"
            )
        return (
            f"stated: {format_share(self.value)} by "
            f"{'a model judge' if self.basis == 'verdict' else 'the share of claims cited'}"
            + ("" if self.calibrated is not None else ", not calibrated")
        )


def _looked_word(end: RunFinished) -> Word:
    if not end.looked:
        return "unchecked"
    return "checked" if end.checked != 0 else "nothing to check"


def badge_of(events: Iterable[Event]) -> Badge:
    """Return the badge of a run's answer, made of verdicts and the end of the run alone."""
    ends = [event for event in events if isinstance(event, VerifierFinished | RunFinished)]
    end = next((event for event in reversed(ends) if isinstance(event, RunFinished)), RunFinished(outcome=""))
    last = {event.verifier: event.passed for event in ends if isinstance(event, VerifierFinished)}
    # These verifiers ask no model.
    judges = [passed for name, passed in last.items() if name not in ("facts", "citations", "form")]
    found, known = stated_confidence(ends), cast("dict[str, Any]", end.calibrated)
    wrong = sum(one.get("severity") != "minor" for one in end.concerns)
    stopped = next(
        (one_line(str(one.get("what", "")), 200) for one in end.concerns if one.get("check") == "unfinished"),
        "",
    )
    return Badge(
        word="wrong" if wrong else "partly checked" if stopped else _looked_word(end),
        concerns=wrong,
        checked=end.checked or 0,
        stopped=stopped.rpartition("end: ")[2],
        claims=len(end.claims) if end.claims else None,
        cited=sum(claim.get("state") == "cited" for claim in end.claims),
        actions=end.confirmed,
        judge=all(judges) if judges else None,
        value=None if found is None else found.value,
        basis=None if found is None else found.basis,
        calibrated=None if known.get("share") is None else float(known["share"]),
        trials=int(known.get("trials", 0)),
        suite=str(known.get("suite", "")),
    )
