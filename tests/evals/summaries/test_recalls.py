"""What a suite wanted to be found: where it was, or where it was lost, in the frame, the summary and the
report.
"""

import asyncio

import pandas as pd
import pytest
from result_pages import page_text

from kestrel_lab.core.events.union import Record, RetrievalStep, ToolAnswered
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.stored.summary import StoredSummary
from kestrel_lab.evals.summaries.retrieval_recall import RECALL_COLUMNS, recall_rows
from kestrel_lab.lab import Lab

SUITE = """\
name: finding
configs: [{name: searches, model: "scripted:searches.yaml"}, {name: idle, model: "scripted:idle.yaml"}]
defaults: {tools: [search_code]}
scenarios:
  - id: roof
    family: house
    goal: Which file paints the roof?
    workspace: {files: {FILES}}
    checks: [{recall_at: {items: [roof0.py, roof5.py, cellar.py], k: 30}}]
"""
FILES = (
    ", ".join(f'"roof{n}.py": "def paint_roof{n}(roof):\\n    return roof\\n"' for n in range(6))
    + ', "cellar.py": "wine = 3\\n"'
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalResult, pd.DataFrame, StoredSummary, str]:
    """A suite that was run: one agent searches for two files of six that match, the other does nothing."""
    place = tmp_path_factory.mktemp("suite")
    (place / "suite.yaml").write_text(SUITE.replace("{FILES}", "{" + FILES + "}"))
    call = "{tool: search_code, args: {query: paint roof, top_k: 2}}"
    (place / "searches.yaml").write_text(f"rules: [{{when: ., turns: [[{call}], done]}}]")
    (place / "idle.yaml").write_text("rules: [{when: ., turns: [done]}]")
    lab = Lab(home=place / ".kestrel", env={})
    try:
        result = asyncio.run(lab.eval(place / "suite.yaml"))
        return (
            result,
            result.recall(),
            lab.evals.stored(place / "suite.yaml", by="family"),
            page_text(result.report(place / "r.html")),
        )
    finally:
        lab.close()


def test_each_item_has_its_story(found: tuple[EvalResult, pd.DataFrame, StoredSummary, str]) -> None:
    """One row per trial and item: found with its place, or the step that dropped it and why; who never looked
    is told apart.
    """
    frame = found[1]
    assert tuple(frame.columns) == RECALL_COLUMNS
    told = {(row.config, row.item): (row.found, row.state) for row in frame.itertuples()}
    searched = [told["searches", f"roof{n}.py"] for n in (0, 5)]
    assert (sorted(state for _, state in searched), told["searches", "cellar.py"]) == (
        ["behind", "found"],
        (False, "unmatched"),
    )
    assert {state for (config, _), state in told.items() if config == "idle"} == {(False, "not looked for")}
    lost = frame[(frame["config"] == "searches") & (frame["state"] == "behind")].iloc[0]
    assert (lost["step"], lost["why"].startswith("ranked "), lost["family"]) == ("1 search", True, "house")


def test_summary_and_report_name_what_is_missing(
    found: tuple[EvalResult, pd.DataFrame, StoredSummary, str],
) -> None:
    """Beside recall@k of each family with its interval stands what was not found, by whom, in how many
    trials, where and why.
    """
    _, _, summary, page = found
    assert [(row[1], row[2], row[3]) for row in summary.missed] == [
        ("idle (scripted)", "roof0.py (first 30)", "1 of 1"),
        ("idle (scripted)", "roof5.py (first 30)", "1 of 1"),
        ("idle (scripted)", "cellar.py (first 30)", "1 of 1"),
        *(("searches (scripted)", row[2], "1 of 1") for row in summary.missed[3:]),
    ]
    assert len(summary.missed) == 5
    assert "recall@30 (95 %)" in summary.table()[0]
    for text in (repr(summary), summary._repr_html_(), page):
        assert "cellar.py (first 30)" in text and "ranked " in text and "1 search" in text


def test_the_last_step_that_names_it_tells(
    found: tuple[EvalResult, pd.DataFrame, StoredSummary, str],
) -> None:
    """Dropped by a later step, chosen and not shown, behind the results that count: each is said as it
    was.
    """
    result, *_ = found

    def told(steps: list[RetrievalStep], shown: str) -> tuple[str, str]:
        events = [*steps, ToolAnswered(call="c", step="s", tool="search_code", text=shown)]
        log = [
            Record(run_id="r", seq=n, eid=str(n), at=0.0, event=event) for n, event in enumerate(events, 1)
        ]
        rows = list(recall_rows(result.suite, result.rows[:1], Log(log)))  # type: ignore[arg-type]
        return rows[0]["state"], rows[0]["step"]

    first = RetrievalStep(step="s", question="q", retriever="search", query="q", found=3, chosen=["roof0.py"])
    second = RetrievalStep(
        step="s",
        question="q",
        retriever="graph",
        query="q",
        found=3,
        dropped={"roof0.py": "no words"},
        stopped="limit",
    )
    assert told([first, second], "other.py") == ("dropped", "2 graph")
    assert told([first], "other.py") == ("chosen", "1 search")
    assert told([], "\n".join([*(f"line {n}" for n in range(30)), "roof0.py"])) == ("behind", "")
    assert told([], "roof0.py:1") == ("found", "")


class Log:
    """A store of one run."""

    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def records(self, _run: str) -> list[Record]:
        """All of it."""
        return self._records
