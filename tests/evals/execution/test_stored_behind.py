"""Results that are stored behind their runs: nobody waits for the disk, and no row is there without its run."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab import tool
from kestrel_lab.core.errors import Fenced
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.testing import FixedCheck, ScriptedModel

MODEL = ScriptedModel(lambda request: [("look", {})] if request.messages[-1].role == "user" else "yes")


class Seen:
    """A check that keeps what it judges."""

    label = "seen"

    def __init__(self) -> None:
        self.trials: list[Trial] = []

    async def __call__(self, trial: Trial) -> Score:
        """Pass."""
        self.trials.append(trial)
        return Score(check=self.label, passed=True, value=1.0)


@pytest.mark.parametrize("effect", ["pure", "opaque"])
def test_a_check_sees_the_records_that_the_log_has(tmp_path: Path, effect: str) -> None:
    """What checks and metrics are given from memory is, in every field, what is read from the log later."""

    @tool(effect=effect)
    def look() -> dict[str, list[int]]:
        """Look."""
        return {"found": [1, 2]}

    check, lab = Seen(), Lab(tmp_path / "home", tools=[look], env={})
    scenarios = tuple(Scenario(id=f"s{n}", goal="look", checks=(check,), tools=("look",)) for n in range(6))
    result = asyncio.run(lab.eval(Suite(name="s", scenarios=scenarios), configs={"m": MODEL}))
    assert len(result.rows) == len(check.trials) == 6
    for trial in check.trials:
        assert list(trial.records) == lab.store.records(trial.records[0].run_id)
    lab.close()


def test_no_row_is_there_without_its_run(tmp_path: Path) -> None:
    """An event that the log refuses ends the suite, though the trial did not wait for it; the trial has no
    row.
    """
    home = tmp_path / "home"

    @tool(effect="pure")
    def look() -> str:
        """Look."""
        lab.store.flush()
        other = SessionStore(lab.store.path)
        assert other.claim(other.runs()[0])
        other.close()
        return "seen"

    lab = Lab(home, tools=[look], env={})
    scenario = Scenario(id="s", goal="look", checks=(FixedCheck(passes=True),), tools=("look",))
    with pytest.raises(Fenced):
        asyncio.run(lab.eval(Suite(name="s", scenarios=(scenario,)), configs={"m": MODEL}))
    lab.store.flush()
    assert stored_trials(lab.store) == []
    lab.close()
