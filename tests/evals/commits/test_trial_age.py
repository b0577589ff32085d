"""Stored trials of a hosted model do not count where they are too old, or where another model answers now."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_rows import rows, suite

from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import OnDelta
from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.suite import Config
from kestrel_lab.evals.summaries.trial_age import age_text, outdated_base
from kestrel_lab.lab import Lab

DAY = 86_400.0
START = 1_700_000_000.0


def trials(
    outcome: str,
    *,
    day: float,
    served: Sequence[str] = ("gpt-5-2026-08-07",),
    kind: str = "real",
    model: str = "openai/gpt-5",
) -> list[EvalRow]:
    """Twenty trials that were made on a day."""
    changed = {"model_kind": kind, "model": model, "served": list(served)}
    return [
        replace(row, result={**row.result, **changed}, created_at=START + day * DAY + number)
        for number, row in enumerate(rows(*[outcome] * 20))
    ]


def comparison(base: list[EvalRow], head: list[EvalRow]) -> Comparison:
    """Of two commits with these trials, which differ as much as can be."""
    return Comparison(
        suite=suite(),
        base=Side(name="main", sha="a" * 40, rows=tuple(base)),
        head=Side(name="HEAD", sha="b" * 40, rows=tuple(head)),
    )


def test_trials_above_the_limit_give_no_verdict() -> None:
    """All trials of the base passed 15 days ago and all fail now: no verdict, and code 3 of a gate; 13 days
    ago it is a regression.
    """
    now = trials("fail", day=15)
    old = comparison(trials("pass", day=0), now)
    assert old.verdict == "inconclusive"
    assert "20 stored trials do not count" in old.headline
    assert old.gates().exit_code == 3
    assert "20 stored trials do not count" in old.markdown()
    recent = comparison(trials("pass", day=2), now)
    assert (recent.verdict, recent.gates().exit_code) == ("regression", 1)


def test_another_served_name_gives_no_verdict() -> None:
    """Where the endpoint says another name than yesterday, its trials of yesterday do not count."""
    changed = comparison(trials("pass", day=0), trials("fail", day=1, served=["gpt-5-2026-11-14"]))
    assert changed.verdict == "inconclusive"
    assert changed.gates().exit_code == 3
    assert "the endpoint changed between 2023-11-14 and 2023-11-15" in changed.headline
    assert "from gpt-5-2026-08-07 to gpt-5-2026-11-14" in changed.headline


def test_a_change_in_the_middle_of_a_side_is_noticed() -> None:
    """Where half of the present trials were answered by another name, they are not compared."""
    half = trials("fail", day=1)[:10] + trials("fail", day=1, served=["other"])[10:]
    assert outdated_base(trials("pass", day=0), half)


@pytest.mark.parametrize(
    ("kind", "model"),
    [("scripted", "m"), ("replay", "openai/gpt-5"), ("imported", "m"), ("real", "ollama_chat/qwen3")],
)
def test_what_nobody_else_changes_has_no_age(kind: str, model: str) -> None:
    """Scripted, replayed, imported and local models are compared, however old their trials are."""
    base = trials("pass", day=0, kind=kind, model=model, served=["a"])
    head = trials("fail", day=400, kind=kind, model=model, served=["b"])
    assert outdated_base(base, head) == {}
    assert age_text(base, START + 400 * DAY) == ""
    assert comparison(base, head).verdict == "regression"


def test_two_old_sides_of_one_time_are_compared() -> None:
    """What counts is the time between the sides, not since."""
    assert outdated_base(trials("pass", day=0), trials("fail", day=1)) == {}


def test_another_model_that_the_suite_names_is_no_change_of_the_endpoint() -> None:
    """A commit that asks another model is compared: that is what changed."""
    head = trials("fail", day=1, model="openai/gpt-6", served=["gpt-6"])
    assert outdated_base(trials("pass", day=0), head) == {}


def test_trials_of_earlier_versions_have_an_age_but_no_served_name() -> None:
    """Rows without a served name are never taken for those of another model; their date counts."""
    assert outdated_base(trials("pass", day=0, served=()), trials("fail", day=1)) == {}
    assert outdated_base(trials("pass", day=0, served=()), trials("fail", day=30))


def test_a_comparison_says_the_age_and_what_answered() -> None:
    """The notes have the age of each side and the served names, and that the sides were not made side by
    side.
    """
    notes = str(comparison(trials("pass", day=0), trials("pass", day=3)))
    assert "days old, answered by gpt-5-2026-08-07" in notes
    assert "were not made side by side" in notes


class Served:
    """A hosted model whose endpoint gives a name of its own for what answered."""

    name, kind = "openai/any", "real"

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer as that name."""
        return ModelAnswer(text="x", model="any-2026-08-07")


def test_a_trial_keeps_the_name_that_the_endpoint_gave(tmp_path: Path) -> None:
    """The row of a trial, read back from the log, has the name of what answered and its date."""
    lab = Lab(tmp_path / "home", models={"openai/any": Served()}, env={})
    asked = suite().model_copy(update={"configs": (Config(name="c", model="openai/any"),)})
    result = asyncio.run(run_suite(lab, asked, cassette="off"))
    lab.store.flush()
    (stored,) = stored_trials(lab.store, suite=asked.name)
    lab.close()
    assert result.rows[0].outcome == "pass"
    assert stored.served == ["any-2026-08-07"]
    assert outdated_base([stored], [replace(stored, result={**stored.result, "served": ["any-2026-11-14"]})])
