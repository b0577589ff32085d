"""Clusters of failures: what is grouped, and names that stay."""

import asyncio
from pathlib import Path

import made_rows
import pytest
from recorded_runs import recording, store_recordings
from result_pages import page_index

from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.scanners.scanner import finding, scanner
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel


def failures(kind: str, number: int, *, first: int = 0) -> list:
    """So many failures of one kind."""
    said = {
        "pay": [("pay", {"to": "x"}, "!insufficient balance"), "The payment was declined by the bank."],
        "mail": [("send_mail", {"to": "x"}, "!address unknown"), "The message bounced from the mailbox."],
    }[kind]
    return [
        recording(f"task {kind} {n}", *said, passed=False, scenario=f"{kind}{n}", config="ab"[n % 2])
        for n in range(first, first + number)
    ]


@pytest.fixture
def lab(tmp_path: Path):
    """A lab whose log has two kinds of failures, and what passed."""
    made = Lab(home=tmp_path / "home", env={})
    passed = recording("task", "done", scenario="p", config="a")
    store_recordings(made.store, [*failures("pay", 6), *failures("mail", 5), passed])
    yield made
    made.close()


def result(lab: Lab) -> EvalResult:
    """The trials as a result."""
    suite = made_rows.suite(configs=("a", "b"))
    return EvalResult(suite=suite, rows=tuple(stored_trials(lab.store, suite="demo")), store=lab.store)


def test_failures_that_are_alike_are_one_cluster(lab: Lab) -> None:
    """Clusters are told by their words, counted by configuration, with three examples each."""
    found = asyncio.run(result(lab).clusters())
    pay, mail = found.clusters
    assert (len(pay.members), len(mail.members)) == (6, 5)
    assert "pay() failed" in pay.words
    assert "send_mail() failed" in mail.words
    assert found.by_configuration(pay) == {"a": 3, "b": 3}
    assert set(found.frame.cluster) == {pay.name, mail.name}
    _, rows = found.table()
    assert len(rows[0][-1].split()) == 3
    assert pay.name in repr(found)


def test_the_table_says_how_many_of_which_and_why(lab: Lab) -> None:
    """A row per cluster, the largest first: failures by configuration of its trials, the most first, why
    the most typical one failed, its most telling words, and three runs to look at; then how to look.
    """
    found = lab.evals.clusters_sync("demo")
    headings, rows = found.table()
    pay, mail = found.clusters
    assert found.headline == "suite demo: 11 failures in 2 clusters"
    assert [row[:3] for row in rows] == [
        (pay.name, "6", "3 of 7 a, 3 of 5 b"),
        (mail.name, "5", "3 of 7 a, 2 of 5 b"),
    ]
    for cluster, row in zip(found.clusters, rows, strict=True):
        cells = dict(zip(headings, row, strict=True))
        assert cells["why, in the most typical"] == found.rows[cluster.members[0]].why
        assert cells["most telling"].split(", ") == [*cluster.words][:4]
        assert cells["for example"].split() == [*cluster.members[:3]]
    *_, how = found.parts()
    assert (
        how
        == f"look at one: kestrel show {pay.members[0]}; at two: kestrel align {' '.join(pay.members[:2])}"
    )


def test_names_stay_from_one_day_to_the_next(lab: Lab) -> None:
    """With more failures, of an old kind and a new one, the old kinds keep their names and what is said of
    them; in another order of runs nothing changes.
    """
    model = ScriptedModel(lambda request: f"They have {request.messages[1].text.split()[1]} in common.")
    before = lab.evals.clusters_sync("demo", model=model)
    assert "in common" in repr(before)
    more = ("pay", {"to": "y"}, "!insufficient balance of the account today")
    store_recordings(
        lab.store,
        [
            *failures("mail", 4, first=10),
            *(
                recording(f"new {n}", more, "Declined again.", passed=False, scenario=f"n{n}")
                for n in range(2)
            ),
        ],
    )
    after = lab.evals.clusters_sync("demo")
    assert {one.name for one in before.clusters} <= {one.name for one in after.clusters}
    assert set(before.sentences.items()) <= set(after.sentences.items())


def test_a_model_that_fails_costs_its_sentence(lab: Lab) -> None:
    """The clusters are there all the same, and why a sentence is missing is said."""

    def fails(_request: object) -> Exception:
        return ModelError("out of order")

    found = asyncio.run(result(lab).clusters(model=ScriptedModel(fails)))
    assert len(found.clusters) == 2
    assert "out of order" in repr(found)


def test_the_page_of_a_suite_has_them(lab: Lab, tmp_path: Path) -> None:
    """What scanners found and which failures are alike stand on the page as tables."""
    found = result(lab)
    failed = scanner(lambda run: [finding("it failed", one) for one in run.calls if one.error], name="failed")
    asyncio.run(found.scan(failed))
    tables = dict(page_index(found.report(tmp_path / "page.html"))["tables"])
    headings, rows = tables["What scanners found"]
    assert headings[0] == "scanner"
    assert [row[0] for row in rows] == ["failed", "failed"]
    assert [row[1] for row in tables["Failures that are alike: kestrel eval clusters"][1]] == ["6", "5"]


def test_nothing_that_failed_is_said(lab: Lab) -> None:
    """There is no cluster of what passed."""
    passed = next(row.run for row in stored_trials(lab.store) if row.outcome == "pass")
    with pytest.raises(UsageError, match="nothing failed"):
        lab.evals.clusters_sync([passed])
