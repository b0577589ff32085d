"""The number that a run states for its answer: what a model judge was sure of, or else the share of its
claims that cite what is there.

- With verdicts that state a confidence: the least of the last of each verifier, one minus it where the answer
  did not pass.
- Else, of an answer that was given as claims with citations, the share of the claims that are cited.

Where there is neither nothing is stated. The number says nothing of how often such answers are right: trials
of a suite say that, see `evals.stored.calibration`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kestrel_lab.core.events.union import Event, RunFinished, VerifierFinished

Basis = Literal["verdict", "claims"]
"""Basis of a confidence. Confidences of different bases are calibrated separately."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedConfidence:
    """A confidence, from 0 to 1, and what it rests on."""

    value: float
    basis: Basis
    why: str


def stated_confidence(events: Iterable[Event]) -> StatedConfidence | None:
    """Return the confidence that a run's events state; `None` if they state none."""
    last: dict[str, VerifierFinished] = {}
    end: RunFinished | None = None
    for event in events:
        if isinstance(event, VerifierFinished):
            last[event.verifier] = event
        elif isinstance(event, RunFinished):
            end = event
    sure = [
        each.confidence if each.passed else 1 - each.confidence
        for each in last.values()
        if each.confidence is not None
    ]
    if sure:
        return StatedConfidence(
            value=min(sure), basis="verdict", why=f"verifiers are sure of it by {format_share(min(sure))}"
        )
    if end is None or not end.claims:
        return None
    cited = sum(claim.get("state") == "cited" for claim in end.claims)
    return StatedConfidence(
        value=cited / len(end.claims),
        basis="claims",
        why=f"{cited} of {len(end.claims)} claims cite what is there",
    )


def format_share(value: float) -> str:
    """Return a share with two places: `.62`, `1.0`."""
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0") else "1.0"
