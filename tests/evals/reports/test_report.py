"""Reports as files: flips side by side, every transcript once, of bounded size, foreign text as text."""

import asyncio
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.reports.pages import Transcripts, report_page
from kestrel_lab.evals.reports.plots import configs_figure
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

EVIL = "</details><script>alert(1)</script><img src=http://evil/x onerror=alert(1)>\x1b[31m"


class Page(HTMLParser):
    """Elements with their attributes, ids, and whether all that is opened is closed."""

    VOID = {"meta", "img", "br"}

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.ids = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value.startswith("run-")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def a_suite(name="demo"):
    """Seven scenarios with hostile goals, and a gate."""
    checks = (AnswerContains(texts=("42",)),)
    scenarios = tuple(
        Scenario(id=f"s{n}", goal=f"{n} {EVIL}", checks=checks, family="ab"[n % 2]) for n in range(7)
    )
    return Suite(
        name=name,
        scenarios=scenarios,
        configs=(Config(name="c", model="m"),),
        gates=(Gate(metric="success_rate", at_least=0.5),),
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A comparison in which everything flips but one scenario, with its store."""
    lab = Lab(tmp_path_factory.mktemp("lab") / "home", env={})

    def worse(request):
        goal = next(message.text for message in request.messages if message.role == "user")
        return "42" if goal.startswith("0") else f"no {EVIL}"

    sides = [
        Side(
            name=name,
            sha=name * 20,
            rows=asyncio.run(
                run_suite(lab, a_suite(f"demo {EVIL}"), configs={"c": ScriptedModel(turn)})
            ).rows,
        )
        for name, turn in (("aa", ["42"]), ("bb", worse))
    ]
    yield Comparison(suite=a_suite(f"demo {EVIL}"), base=sides[0], head=sides[1], store=lab.store)
    lab.close()


def safe(html):
    """No script, no handler, nothing loaded from elsewhere; every element closed; no anchor twice."""
    page = Page(html)
    assert page.open == []
    assert {tag for tag, _ in page.seen} & {"script", "iframe", "object", "link", "form"} == set()
    assert not [name for _, attrs in page.seen for name in attrs if name.startswith("on")]
    assert all(
        attrs.get("src", "data:").startswith("data:") and attrs.get("href", "#").startswith("#")
        for _, attrs in page.seen
    )
    assert "\x1b" not in html
    assert len(page.ids) == len(set(page.ids))
    return page


def test_flips_stand_side_by_side_with_both_transcripts(found, tmp_path):
    """Each flip holds the trial of both sides; the other trials are below; every run has its anchor, which
    the summary links to.
    """
    html = found.report(tmp_path / "out" / "c.html").read_text(encoding="utf-8")
    page = safe(html)
    assert html.count("display:grid") == 6
    assert html.count("pass → fail: s") == 6
    assert set(page.ids) == {
        f"run-{row.result['run']}" for side in (found.base, found.head) for row in side.rows
    }
    flip = html[html.index("pass → fail: s1") : html.index("pass → fail: s2")]
    runs = [side.rows[1].result["run"] for side in (found.base, found.head)]
    assert [run in flip for run in runs] == [True, True]
    assert flip.index("✓ answer contains") < flip.index("✗ answer contains")
    linked = set(re.findall(r"#(run-[^)]+)\)", found.markdown("c.html")))
    assert linked <= set(page.ids)
    assert len(linked) == 6
    assert "data:image/png;base64," in html
    assert "Success rate by family" in html
    assert list(found.families["family"]) == ["a", "b"]


def test_without_the_logs_it_says_so(found, tmp_path):
    """A comparison whose runs are logged elsewhere has a page, and says that transcripts are missing."""
    html = replace(found, store=None).report(tmp_path / "c.html").read_text(encoding="utf-8")
    safe(html)
    assert html.count("The log of this run is not in this store.") == 14


def test_every_trial_of_a_run_is_told_once(found):
    """Failures first, then what passed; gates and families are in the page."""
    html = report_page(found.suite, found.head.rows, found.store, None)
    page = safe(html)
    assert len(page.ids) == 7
    assert (
        html.index("What did not pass")
        < html.index(f"run-{found.head.rows[1].result['run']}")
        < html.index("What passed")
    )
    assert "<h2>Families</h2>" in html


def test_pages_stay_small(found):
    """Beyond the room for transcripts trials are told in a line with their anchor; a run that is asked for
    twice is linked.
    """
    rows = found.head.rows
    few = Transcripts(found.store, chars=1)
    told = [few.folded(row) for row in rows]
    assert [text.startswith("<details") for text in told] == [True] + [False] * 6
    assert all(f'id="run-{row.result["run"]}"' in text for row, text in zip(rows, told, strict=True))
    assert all("no room for more transcripts" in text for text in told[1:])
    assert few.folded(rows[0]).startswith('<p><a href="#run-')


def test_a_very_long_run_is_cut(tmp_path):
    """The beginning of a long transcript is shown, how much is missing is said, and so is how to see it."""
    lab = Lab(tmp_path / "home", env={})
    try:
        long = [[("tree", {})] for _ in range(60)] + ["42"]
        suite = a_suite().model_copy(update={"scenarios": a_suite().scenarios[:1]})
        (row,) = asyncio.run(run_suite(lab, suite, configs={"c": ScriptedModel(long)})).rows
        whole = Transcripts(lab.store).folded(row)
        events = len(lab.store.records(row.result["run"]))
        assert events > 50
        assert "more events" not in whole
        cut = Transcripts(lab.store, run_chars=len(whole) // 3).folded(row)
        assert len(cut) < len(whole) / 2
        assert re.search(rf"and \d+ more events: <code>kestrel show {row.result['run']}</code>", cut)
    finally:
        lab.close()


def test_columns_and_plots_that_say_nothing_are_left_out(tmp_path):
    """There is a column of families only where there are families, and no plot against a cost that every
    trial had: none.
    """
    lab = Lab(tmp_path / "home", env={})
    try:
        plain = [scenario.model_copy(update={"family": ""}) for scenario in a_suite().scenarios]
        alone = a_suite().model_copy(update={"scenarios": plain})
        result = asyncio.run(run_suite(lab, alone, configs={"c": ScriptedModel(lambda _: "42")}))
        assert '">scenario</th><th scope="col" style="text-align:left">c (scripted)</th>' in report_page(
            alone, result.rows, lab.store
        )
        grouped = [replace(row, result=row.result | {"family": "a"}) for row in result.rows]
        assert '<th scope="col" style="text-align:left">family</th>' in report_page(alone, grouped, lab.store)
        drawn = configs_figure(result.summaries())
        assert [axes.get_title() for axes in drawn.axes] == ["Success", "Success and time"]
        assert "no price: cost per trial is left out" in drawn.get_suptitle()
    finally:
        lab.close()
