"""The shipped suite of data analysis: each task can be passed in a kernel of its own, and is failed by a
mistake and by idleness.
"""

from pathlib import Path

import pytest

from kestrel_lab.lab import Lab
from kestrel_lab.tools.kernel.lockdown import lockdown_problem

SUITE = Path(__file__).parents[3] / "evals" / "kernel.yaml"


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())
def test_every_task_tells_right_from_wrong(tmp_path: Path) -> None:
    """The expected way passes all 40 tasks in 5 families; carelessness and doing nothing fail all; nothing
    breaks.
    """
    frame = Lab(home=tmp_path / "home").eval_sync(SUITE, epochs=1).frame
    outcomes = frame.groupby("config")["outcome"].unique().map(list).to_dict()

    assert outcomes == {"expected way": ["pass"], "careless": ["fail"], "idle": ["fail"]}, frame.loc[
        (frame["outcome"] == "pass") != (frame["config"] == "expected way"),
        ["scenario", "config", "outcome", "reason"],
    ].to_string()
    assert (frame["scenario"].nunique(), frame["family"].nunique()) == (40, 5)
