"""The second, similar task takes fewer turns than the first, where memory and macros are on, and only
there.
"""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.events.union import MacroStarted, MemoryRecalled
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.operations import save_notes as remembering
from kestrel_lab.testing import ScriptedModel

SUITE = Path(__file__).parents[3] / "evals" / "learning.yaml"


def measured(folder: Path) -> EvalResult:
    """One epoch of a third of the shipped suite."""
    lab = Lab(folder / "home", env={})
    return asyncio.run(
        lab.eval(SUITE, epochs=1, scenarios=["look-up-settings", "look-up-mail", "put-amber", "put-denim"])
    )


def cycles(result: EvalResult) -> dict[tuple[str, str], float]:
    """Turns by configuration and family."""
    frame = result.by("family")
    return {(row.config, row.family): float(row.cycles) for row in frame.itertuples()}


def test_learning_spares_turns(tmp_path: Path) -> None:
    """Without it every task takes four turns; with it, most take two, by a note in one family and a macro in
    the other.
    """
    result = measured(tmp_path)
    found = cycles(result)
    assert set(result.frame["outcome"]) == {"pass"}
    assert {family: found["forgetting", family] for family in ("pitfall", "procedure")} == {
        "pitfall": 4,
        "procedure": 4,
    }
    assert all(found["learning", family] < 4 for family in ("pitfall", "procedure"))
    events = {
        (row.config, type(record.event))
        for row in result.rows
        for record in result.store.records(str(row.result["run"]))
    }
    assert {("learning", MemoryRecalled), ("learning", MacroStarted)} <= events
    assert events & {("forgetting", MemoryRecalled), ("forgetting", MacroStarted)} == set()
    assert set(result.frame["model_kind"]) == {"scripted"}
    result.store.close()


def test_a_memory_that_learns_nothing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: where the log teaches nothing, the tasks that notes would have helped take as long as the
    first.
    """
    monkeypatch.setattr(remembering, "learn_from_run", lambda *_: [])
    assert cycles(measured(tmp_path))["learning", "pitfall"] == 4


def test_a_task_before_that_breaks_is_told(tmp_path: Path) -> None:
    """A trial whose earlier task did not end is not a failure of the scenario: it broke, and says which task
    it was.
    """
    (tmp_path / "s.yaml").write_text(
        "name: s\nscenarios:\n  - id: a\n    before: [first, second]\n    goal: last\n    checks: "
        "[{answer_contains: x}]\n"
    )
    turns = iter(["x", [("file_exists", {"path": "a"})]])
    lab = Lab(tmp_path / "home", env={}, model=ScriptedModel(lambda _: next(turns)))
    (row,) = asyncio.run(lab.eval(tmp_path / "s.yaml")).rows
    assert row.result["outcome"] == "error"
    assert "a task before it did not end (second)" in str(row.result["reason"])
    assert list(lab.runs(trials=True)["goal"]) == ["second", "first"]
    lab.close()
