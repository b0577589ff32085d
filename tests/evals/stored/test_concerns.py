"""What verification finds in the answers of a suite, by kind: from the run to the frame, the summary and a
gate.
"""

import asyncio
import math

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import Record, RunFinished
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.metrics import KINDS, concern_kinds, concerns
from kestrel_lab.evals.stored.summary import StoredSummary
from kestrel_lab.lab import Lab

SUITE = """\
name: made_up
epochs: 2
configs:
  - {name: careful, model: "scripted:careful.yaml", verify: warn}
  - {name: loose, model: "scripted:loose.yaml", verify: warn}
  - {name: unseen, model: "scripted:loose.yaml"}
gates: [{"concerns:files": {at_most: 0.5, config: loose}}]
scenarios:
  - {id: roof, goal: What colour is the roof?, workspace: {files: {roof.txt: "The roof is red.\\n"}}, \
checks: [{answer_contains: red}]}
  - {id: door, goal: What colour is the door?, workspace: {files: {door.txt: "The door is red.\\n"}}, \
checks: [{answer_contains: red}]}
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalResult, StoredSummary]:
    """A suite of two scenarios that was run; of one of the models, every answer about the roof names a file
    that is not there.
    """
    place = tmp_path_factory.mktemp("suite")
    (place / "suite.yaml").write_text(SUITE)
    (place / "careful.yaml").write_text("rules: [{when: ., turns: [It is red.]}]")
    (place / "loose.yaml").write_text(
        "rules: [{when: roof, turns: ['It is red, see tower.txt.']}, {when: ., turns: [It is red.]}]"
    )
    lab = Lab(home=place / ".kestrel", env={})
    try:
        return asyncio.run(lab.eval(place / "suite.yaml")), lab.evals.stored(place / "suite.yaml")
    finally:
        lab.close()


def test_configurations_compare_by_what_they_make_up(found: tuple[EvalResult, StoredSummary]) -> None:
    """The share of trials with a concern, by kind and configuration; of trials that nobody looked at, nothing
    is said.
    """
    result, _ = found
    shares = result.by("concern")["share"]
    assert {key: value for key, value in shares.items() if value} == {("loose", "files"): 0.5}
    assert set(shares.index) == {(config, kind) for config in ("careful", "loose") for kind in KINDS}
    assert set(result.by("concern")["trials"]) == {4}
    frame = result.frame
    loose = frame[frame["config"] == "loose"]
    assert set(zip(loose["scenario"], loose["concerns"], loose["concerns:files"], strict=True)) == {
        ("roof", 1.0, 1.0),
        ("door", 0.0, 0.0),
    }
    assert frame[frame["config"] == "unseen"]["concerns"].isna().all()


def test_the_summary_shows_it(found: tuple[EvalResult, StoredSummary]) -> None:
    """`concerns` is shown where it is known, and those kinds of which anything was found."""
    headings, rows = found[1].table()
    assert [name for name in headings if name.startswith("concerns")] == [
        "concerns (95 %)",
        "concerns:files (95 %)",
    ]
    assert {row[0].split()[0]: row[-1].split(" (")[0] for row in rows} == {
        "careful": "0 %",
        "loose": "50 %",
        "unseen": "–",
    }


def test_a_gate_holds_made_up_files_down(found: tuple[EvalResult, StoredSummary]) -> None:
    """Half of the answers of two scenarios are neither shown to be above a half nor below it."""
    assert [(gate.metric, gate.verdict, gate.interval.mean) for gate in found[0].gates().decisions] == [
        ("concerns:files", "inconclusive", 0.5)
    ]


def record(event: RunFinished) -> Record:
    """The event as the log keeps it."""
    return Record(run_id="r", seq=1, eid="e", at=1.0, event=event)


def test_nobody_looked_is_not_nothing_found() -> None:
    """An answer that was not looked at, and a run without one, have no number; minor things and defects of
    ours are not counted.
    """
    minor, major = (
        {"severity": "minor", "check": "files_exist"},
        {"severity": "major", "check": "citations_resolve"},
    )
    ours = {"severity": "major", "check": "checks"}
    ends = [
        RunFinished(outcome="complete", looked=looked, concerns=[minor, major, ours])
        for looked in (True, False)
    ]
    told = [[record(end)] for end in ends]
    assert [concerns(told[0]), math.isnan(concerns(told[1])), math.isnan(concerns([]))] == [1, True, True]
    assert {kind for kind, value in concern_kinds(told[0]).items() if value} == {
        "concerns:files",
        "concerns:citations",
    }
    assert concern_kinds(told[1]) == {}


def test_without_a_look_it_says_what_to_write(found: tuple[EvalResult, StoredSummary]) -> None:
    """Where no configuration was looked at, there is no frame of zeros but the way to one."""
    unseen = EvalResult(
        suite=found[0].suite,
        rows=tuple(row for row in found[0].rows if row.config == "unseen"),
        store=found[0].store,
    )
    with pytest.raises(UsageError, match="verify: warn"):
        unseen.by("concern")
