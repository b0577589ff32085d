"""Findings in the log, and what becomes of them: frames, gates, comparisons, rates corrected by labels."""

import asyncio
import json
from pathlib import Path

import made_rows
import pytest
from recorded_runs import recording, store_recordings

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import TrialLabelled
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.evals.commits.compare import compare_configs
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.labels.stored_labels import record_label
from kestrel_lab.evals.scanners.findings import stored_scans
from kestrel_lab.evals.scanners.model_scanner import ModelScanner
from kestrel_lab.evals.scanners.scanner import Finding, finding, scanner
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.evals.transcripts.transcript import Transcript
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

LOOK = ("look", {"at": "x"}, "nothing new")


@pytest.fixture
def lab(tmp_path: Path):
    """A lab whose log has twelve trials of each of two configurations; those of `b` go round in circles."""
    made = Lab(home=tmp_path / "home", env={})
    store_recordings(
        made.store,
        [
            recording(
                "go",
                *([LOOK] * 4 + ["I could not find it."] if config == "b" else [LOOK, "done"]),
                scenario=f"s{number}",
                config=config,
            )
            for number in range(12)
            for config in "ab"
        ],
    )
    yield made
    made.close()


def result(lab: Lab, *gates: Gate) -> EvalResult:
    """The trials as a result."""
    suite = made_rows.suite(*gates, configs=("a", "b"))
    return EvalResult(suite=suite, rows=tuple(stored_trials(lab.store, suite="demo")), store=lab.store)


def test_what_is_found_is_a_measure(lab: Lab) -> None:
    """A scan is stored once, and is a column of the frame, a gate's metric and part of a comparison."""
    found = result(lab, Gate(metric="found:loop", at_most=0.5))
    assert {one.verdict for one in found.gates().decisions} == {"broken"}
    assert "kestrel eval scan" in found.gates().decisions[0].why
    report = asyncio.run(found.scan())
    assert report.rates.set_index(["scanner", "config"]).loc[("loop", "b"), "found"] == 1
    assert list(report.frame.query("scanner == 'loop'").config) == ["b"] * 12
    assert "loop" in repr(report)
    assert "<table" in report._repr_html_()
    one, other = (row.run for row in found.rows[:2])
    assert not any(pair[0] and pair[0].event.type == "run_scanned" for pair in lab.diff(one, other).rows)
    again = asyncio.run(found.scan())
    assert (again.done.looked, again.done.there) == (0, 24)
    assert list(found.frame.groupby("config")["found:loop"].mean()) == [0, 1]
    assert [one.verdict for one in found.gates().decisions] == ["ok", "regression"]
    change = compare_configs(found, "a", "b").frame.set_index("metric")
    assert list(change.loc["found:loop", ["base", "head", "verdict"]]) == [0, 1, "regression"]
    assert "found:refusal" not in change.index  # which found nothing on either side


def test_a_suite_with_such_a_gate_is_scanned_as_it_runs(tmp_path: Path) -> None:
    """A gate on a shipped scanner is decided without another command."""
    suite = made_rows.suite(Gate(metric="found:refusal", at_most=0.5))
    with Lab(home=tmp_path / "home", env={}) as lab:
        found = lab.eval_sync(suite, configs={"c": ScriptedModel(["I can’t help with that."])})
        assert list(found.frame["found:refusal"]) == [1]
        assert found.gates().decisions[0].trials == 1


def test_a_scanner_that_raises_costs_that_run_only(lab: Lab) -> None:
    """Its error is a finding of its own kind; the run says nothing of it, and is tried again."""

    @scanner
    def picky(run: Transcript) -> list[Finding]:
        if len(run.calls) == 4:
            raise ValueError("too many")
        return [finding("it looked", *run.calls)]

    report = asyncio.run(result(lab).scan(picky))
    assert report.frame.value.isna().sum() == 12
    assert "too many" in repr(report)
    rates = report.rates.set_index("config")
    assert (rates.loc["a", "found"], rates.loc["b", "runs"], rates.loc["b", "failed"]) == (1, 0, 12)
    assert asyncio.run(result(lab).scan(picky)).done.looked == 12


def test_runs_are_scanned_by_their_ids_and_others_are_named(lab: Lab) -> None:
    """`lab.scan` takes a suite's name or runs; what is not there is an error that names it."""
    runs = [row.run for row in stored_trials(lab.store, suite="demo")]
    assert len(lab.evals.scan_sync(runs[:2], "loop").rows) == 2
    assert len(lab.evals.scan_sync("demo", "loop", configs=["b"]).rows) == 12
    with pytest.raises(UsageError, match="did you mean 'loop'"):
        lab.evals.scan_sync("demo", "lop")
    with pytest.raises(UsageError, match="nosuchrun"):
        lab.evals.scan_sync([runs[0], "nosuchrun"])
    with pytest.raises(UsageError, match="model"):
        lab.evals.scan_sync("demo", "loop", rubric="It loops.")


def answers(*texts: str) -> ScriptedModel:
    """A model that gives these answers, the last one again and again."""
    left = list(texts)

    def turn(request: ModelRequest) -> str:
        shown = json.loads(request.messages[1].text)
        assert shown["run"][0]["id"] == "s1"
        return left.pop(0) if len(left) > 1 else left[0]

    return ScriptedModel(turn)


def says(found: bool, *events: str) -> str:
    """An answer of a model scanner."""
    return json.dumps({"found": found, "events": events, "sure": 0.8, "why": "It goes round."})


def test_a_model_cites_what_is_there(lab: Lab) -> None:
    """A citation of a step that the run lacks is refused, and so is a finding without one."""
    run = next(row.run for row in stored_trials(lab.store, suite="demo") if row.config == "b")
    model = answers(says(True, "s99"), says(True), says(True, "s2"))
    [scan] = asyncio.run(_scan(lab, run, model)).values()
    assert scan.findings[0]["value"] == 0.8
    known = {record.eid for record in lab.store.records(run)}
    assert set(scan.findings[0]["events"]) <= known
    [scan] = asyncio.run(_scan(lab, run, answers(says(True, "s99")), "Other rubric.")).values()
    assert "s99" in scan.failed


async def _scan(lab: Lab, run: str, model: ScriptedModel, rubric: str = "The agent goes round."):
    await lab.evals.scan(run, "round", model=model, rubric=rubric)
    return stored_scans(lab.store, [run])[run]


def test_labels_by_its_rubric_correct_a_model_scanners_rate(lab: Lab) -> None:
    """Labels with the text of the rubric say how far the model is right, with an interval."""
    store_recordings(
        lab.store,
        [recording("go", LOOK, f"done {number}", scenario=f"t{number}", config="a") for number in range(30)],
    )
    found = result(lab)
    wrong = ModelScanner(name="round", rubric="The agent goes round.", model=answers(says(True, "s2")))
    for row in found.rows:
        if row.config == "a":
            said = TrialLabelled(
                suite="demo", who="ann", rubric="The agent goes round.", rubric_hash="", value=0
            )
            record_label(lab.store, row.run, said)
    rate = asyncio.run(found.scan(wrong)).rates.set_index("config").loc["a"]
    assert rate.found == 1
    assert rate.corrected_rate < 0.2
    assert rate.corrected_rate_low <= rate.corrected_rate <= rate.corrected_rate_high
