"""Reasons of failed trials read as failures, and imported runs had real models."""

from typing import Any

import pytest

from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.result_table import not_real


def row(reason: str, *scores: dict[str, Any]) -> EvalRow:
    """A trial that failed for that reason."""
    result = {"outcome": "fail", "reason": reason, "scores": list(scores), "run": "r"}
    return EvalRow(
        id="t",
        scenario="s",
        result=result,
        metrics={},
        git_sha="",
        created_at=0.0,
        suite="x",
        config="c",
        epoch=1,
        key="k",
    )


DONE: dict[str, Any] = {"check": "user task done", "passed": False, "value": 0.0, "reason": ""}
RIGHT: dict[str, Any] = {"check": "answer is right", "passed": True, "value": 1.0, "reason": ""}


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("user task done", "not held: user task done"),  # as earlier versions stored it
        (
            "ended early, it cannot pass; user task done",
            "ended early, it cannot pass; not held: user task done",
        ),
        ("not held: user task done", "not held: user task done"),
        ("the limit of cost was reached", "the limit of cost was reached"),
    ],
)
def test_a_failed_check_reads_as_a_failure(reason: str, told: str) -> None:
    """The name of a check says what should hold: alone it is never the reason of a failure."""
    failed = row(reason, DONE, RIGHT)
    assert failed.reason == told
    assert "expected: user task done" in failed.why


def test_imported_runs_had_real_models() -> None:
    """Nothing is said against them; scripted ones are named."""
    kinds = [{"model_kind": kind, "config": kind} for kind in ("real", "imported", "scripted")]
    assert not_real(kinds) == ["No real model answered for: scripted (scripted)."]
