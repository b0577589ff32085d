"""`kestrel eval calibration`: from stored trials to the badge of a later run."""

import asyncio
import json
from pathlib import Path

import pytest

from kestrel_lab.answers.confidence import StatedConfidence
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stored.calibration import Reliability, keep_calibrations, stored_calibrations
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.review.calibration import FILE, calibration_for

SUITE = """\
name: work
epochs: 10
configs: [{name: sure, model: "scripted:script.yaml", verify: judge}, {name: mute, model: \
"scripted:script.yaml"}]
scenarios:
  - {id: right, goal: talk, checks: [{answer_contains: hello}]}
  - {id: wrong, goal: talk too, checks: [{answer_contains: bye}]}
"""
SCRIPT = """\
rules:
  - when: Judge an answer
    turns: ['{"criteria": [{"criterion": 1, "met": true, "why": "so", "evidence": []}], "confidence": 0.9}']
  - {when: talk, turns: ['{"claims": [{"text": "hello", "citations": []}]}']}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite that was run once: of answers that are 90 % sure every second is right."""
    place = tmp_path_factory.mktemp("suite")
    (place / "suite.yaml").write_text(SUITE)
    (place / "script.yaml").write_text(SCRIPT)
    return place


@pytest.fixture(scope="module")
def found(folder: Path) -> Reliability:
    """What its trials say."""
    lab = Lab(home=folder / ".kestrel", env={})
    try:
        asyncio.run(lab.eval(folder / "suite.yaml"))
        return stored_calibrations(lab, folder / "suite.yaml")
    finally:
        lab.close()


def test_it_is_shown_and_drawn(found: Reliability, tmp_path: Path) -> None:
    """One table for each configuration that says how sure it is; others are named; the diagram is a
    picture.
    """
    (only,) = found.configs.values()
    assert (only.config, only.trials, round(only.error, 3)) == ("sure", 20, 0.4)
    assert "90%" in repr(found)
    assert found.notes == ("left out, fewer than 20 of their trials say how sure they are: mute",)
    assert [path.read_bytes()[:4] for path in found.write(tmp_path / "out" / "r.png")] == [b"\x89PNG"]
    with pytest.raises(UsageError, match="does not end in the name of a picture format"):
        found.write(tmp_path / "r.banana")


def test_later_badges_say_what_it_was_worth(folder: Path, found: Reliability) -> None:
    """Kept, it stands beside answers whose confidence rests on the same; other models and other confidences
    are not calibrated by it.
    """
    lab = Lab(folder / ".kestrel", f"scripted:{folder / 'script.yaml'}", env={})
    (line,) = keep_calibrations(lab, found)
    assert line.endswith("whose confidence rests on verdict, 20 trials of sure")
    run = asyncio.run(lab.run("talk", workspace=folder, verify="judge"))
    badge = run.report.confidence
    assert (badge.value, badge.calibrated, badge.trials, badge.suite, badge.word) == (
        0.9,
        0.5,
        20,
        "work",
        "nothing to check",
    )
    told = "of answers this sure (.90), 50 % were right: 20 trials of suite work"
    assert (told in str(badge), told in repr(run.report), told in run._repr_html_()) == (True, True, True)

    assert (
        calibration_for(
            folder / ".kestrel",
            run.report.model.partition(" (")[0],
            StatedConfidence(value=0.3, basis="verdict", why=""),
        )
        == {}
    )
    assert (
        calibration_for(folder / ".kestrel", "another", StatedConfidence(value=0.9, basis="verdict", why=""))
        == {}
    )
    assert (
        calibration_for(
            folder / ".kestrel",
            run.report.model.partition(" (")[0],
            StatedConfidence(value=0.9, basis="claims", why=""),
        )
        == {}
    )
    (folder / ".kestrel" / FILE).write_text(
        json.dumps({lab.store.runs(limit=1)[0].model: {"verdict": {"steps": []}}})
    )
    run = asyncio.run(lab.run("talk", workspace=folder, verify="judge"))
    assert (run.report.confidence.calibrated, run.answer) == (None, "hello")
    assert (
        "is not a calibration: delete it, and make it anew with kestrel eval calibration SUITE --keep"
        in run.report.concerns[0]["what"]
    )  # type: ignore[operator]
    (folder / ".kestrel" / FILE).unlink()
    lab.close()
