"""The shipped suite of work: each scenario can be passed, and is failed by idleness and by a likely
mistake.
"""

from pathlib import Path

import pytest

from kestrel_lab.host.homes import default_home
from kestrel_lab.lab import Lab
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.select import probe_level

SUITE = Path(__file__).parents[3] / "evals" / "work.yaml"


def test_every_scenario_tells_right_from_wrong(tmp_path: Path) -> None:
    """The expected way passes all of at least 40 scenarios in 8 families; a mistake in each, and doing
    nothing, fail all; nothing breaks.
    """
    frame = Lab(home=tmp_path / "home").eval_sync(SUITE, epochs=1).frame
    outcomes = frame.groupby("config")["outcome"].unique().map(list).to_dict()

    assert outcomes == {"expected way": ["pass"], "careless": ["fail"], "idle": ["fail"]}, frame.loc[
        (frame["outcome"] == "pass") != (frame["config"] == "expected way"),
        ["scenario", "config", "outcome", "reason"],
    ].to_string()
    assert frame["scenario"].nunique() >= 40
    assert frame["family"].nunique() == 8
    assert set(frame["model_kind"]) == {"scripted"}


def test_the_expected_way_passes_at_level_s1_with_the_default_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without bubblewrap, in a folder that had no log: no check is kept from running, and no
    command is CRITICAL.
    """
    if probe_level(Level.S1, Sandbox()):
        pytest.skip("no Landlock")
    monkeypatch.chdir(tmp_path)
    with Lab(sandbox="S1") as lab:
        assert lab.home == default_home(tmp_path, {}) and tmp_path not in lab.home.parents
        frame = lab.eval_sync(SUITE, epochs=1, configs=["expected way"]).frame
    assert list(frame["outcome"].unique()) == ["pass"], frame.loc[
        frame["outcome"] != "pass", ["scenario", "reason"]
    ].to_string()
