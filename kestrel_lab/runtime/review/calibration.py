"""Stored calibration: measured accuracy of stated confidences, by model and basis."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from kestrel_lab.answers.confidence import StatedConfidence
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, dumps, loads
from kestrel_lab.host.filesystem import private_folder

FILE: Final = "calibration.json"
_NEAR: Final = 0.05
"""Largest distance of a confidence from the measured range that is still calibrated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredCalibration:
    """The calibration of one model's confidences."""

    suite: str
    config: str
    trials: int
    steps: tuple[tuple[float, float], ...]
    """`(confidence, share right)` pairs, rising in both; the first confidence is the least that was stated.
    """
    most: float
    """The greatest confidence that was stated."""

    def share(self, confidence: float) -> float | None:
        """Return the share of correct trials near this confidence; `None` if there were none."""
        if not self.steps[0][0] - _NEAR <= confidence <= self.most + _NEAR:
            return None
        found = self.steps[0][1]
        for at, value in self.steps:
            if at > confidence:
                break
            found = value
        return found


def store_calibration(home: Path, model: str, basis: str, kept: StoredCalibration) -> Path:
    """Store a calibration in place of an earlier one of the same model and basis; return the file."""
    path = home / FILE
    known = _read(path)
    known[model] = {
        **_table(known.get(model)),
        basis: {**asdict(kept), "steps": [list(step) for step in kept.steps]},
    }
    private_folder(home)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=home, delete=False) as file:
        file.write(dumps(known))
    Path(file.name).replace(path)
    return path


def calibration_for(home: Path, model: str, said: StatedConfidence) -> dict[str, Json]:
    """Return `share`, `trials` and `suite` of the calibration for this confidence; empty if there is none.

    Raises `UsageError` for an invalid file.
    """
    path = home / FILE
    entry = _table(_read(path).get(model)).get(said.basis)
    if entry is None:
        return {}
    try:
        kept = msgspec.convert(entry, StoredCalibration)
        share = kept.share(said.value)
    except (IndexError, ValueError) as error:
        raise UsageError(_damage_message(path)) from error
    return {} if share is None else {"share": share, "trials": kept.trials, "suite": kept.suite}


def known_models(home: Path) -> frozenset[str]:
    """Return the models with a stored calibration.

    Raises `UsageError` for a file that is not a calibration.
    """
    return frozenset(_read(home / FILE))


def _read(path: Path) -> dict[str, Json]:
    if not path.is_file():
        return {}
    try:
        found = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(_damage_message(path)) from error
    if not isinstance(found, dict):
        raise UsageError(_damage_message(path))
    return found


def _table(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _damage_message(path: Path) -> str:
    return (
        f"{path} is not a calibration: delete it, and make it anew with kestrel eval calibration SUITE --keep"
    )
