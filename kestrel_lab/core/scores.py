"""An opinion that a check formed."""

from dataclasses import dataclass

from kestrel_lab.core.calls import Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The score of one check for one run."""

    check: str
    """The check in words, e.g. `answer contains '42'`."""
    passed: bool
    value: float
    """1.0 for a full pass, 0.0 for none; between where the check can tell."""
    reason: str = ""
    """What was found instead, when it did not pass."""
    usage: Usage | None = None
    """What forming the opinion consumed, when a model was asked for it; in no number of the run itself."""
