"""The suite that compares patterns: the same simulated agents alone, in an ensemble, in a council, under one
limit.
"""

import asyncio
from collections import defaultdict
from pathlib import Path

from kestrel_lab.core.events.union import RunFinished
from kestrel_lab.lab import Lab

SUITE = Path(__file__).parents[3] / "evals" / "patterns.yaml"


def test_patterns_are_compared_under_one_limit(tmp_path: Path) -> None:
    """Whoever works in a trial shares its tokens: the council that has half of them reaches the limit, the
    others come to an answer.
    """
    lab = Lab(tmp_path / "home", env={})
    result = asyncio.run(lab.eval(SUITE, epochs=1, scenarios=["question-01", "question-11"]))
    ends: dict[str, set[str]] = defaultdict(set)
    for row in result.rows:
        ended = next(
            one.event
            for one in lab.store.records(str(row.result["run"]))
            if isinstance(one.event, RunFinished)
        )
        ends[row.config].add(ended.limit or ended.outcome)
    short = "council, half the tokens"
    patterns = ("one agent", "ensemble", "council", "escalation", short)
    assert ends == {name: {"tokens" if name == short else "complete"} for name in patterns}
    most = result.frame.groupby("config")["token_usage"].max()
    assert 6_000 <= most[short] < most["council"] <= 12_000
    assert set(result.frame["model_kind"]) == {"scripted"}
    lab.close()
