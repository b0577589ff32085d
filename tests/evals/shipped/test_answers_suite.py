"""The shipped suite of answers one can trust: each scenario can be passed, and is failed by idleness and by a
likely mistake.
"""

from pathlib import Path

from kestrel_lab.lab import Lab

SUITE = Path(__file__).parents[3] / "evals" / "answers.yaml"


def test_every_scenario_tells_right_from_wrong(tmp_path: Path) -> None:
    """The expected way passes all of at least 24 scenarios in 6 families; a mistake in each, and doing
    nothing, fail all; nothing breaks.

    After a pinned package has changed, what is printed names each answer that is true no longer:
    `evals/answers.yaml` says what to do.
    """
    frame = Lab(home=tmp_path / "home").eval_sync(SUITE, epochs=1).frame
    outcomes = frame.groupby("config")["outcome"].unique().map(list).to_dict()

    assert outcomes == {"expected way": ["pass"], "careless": ["fail"], "idle": ["fail"]}, frame.loc[
        (frame["outcome"] == "pass") != (frame["config"] == "expected way"),
        ["scenario", "config", "outcome", "reason"],
    ].to_string()
    assert frame["scenario"].nunique() >= 24
    assert set(frame["family"]) == {"locate", "cite", "faithful", "abstain", "form", "safety"}
    assert set(frame["model_kind"]) == {"scripted"}
