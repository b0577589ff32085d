"""Pages of results as files: what they hold, in which order, of bounded size, foreign text as text."""

import asyncio
import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from made_rows import rows, suite
from result_pages import page_details, page_index, page_text

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.reports.plots import configs_figure
from kestrel_lab.evals.reports.suite_page import trials_of, write_page, write_suite_page
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

EVIL = "</details></script><script>alert(1)</script><img src=http://evil/x onerror=alert(1)>\x1b[31m\u202e"


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


def safe(path):
    """One script, which the policy names by its hash, and no other; no handler, nothing loaded from elsewhere;
    every element closed. What is foreign is text or packed.
    """
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert page.open == []
    assert {tag for tag, _ in page.seen} & {"iframe", "object", "link", "form", "details"} == set()
    assert [attrs for tag, attrs in page.seen if tag == "script" and not attrs.get("type")] == [{}]
    assert not [name for _, attrs in page.seen for name in attrs if name.startswith("on") or name == "src"]
    (policy,) = [attrs["content"] for _, attrs in page.seen if attrs.get("http-equiv")]
    assert re.match(r"default-src 'none'; script-src 'sha256-[\w+/=]+'; ", policy)
    assert "\x1b" not in html
    return html


def test_a_comparison_says_its_verdict_and_what_changed_sides(found, tmp_path):
    """The verdict is a sentence with its interval; both sides are columns, a pair; the failures counted are
    those of the head; each run that the summary links to is there.
    """
    path = found.report(tmp_path / "out" / "c.html")
    safe(path)
    index = page_index(path)
    assert index["verdict"].startswith(
        "bb is worse than aa: 100 % → 14 % passed (−86 points, 95 % interval −100 to −51)."
    )
    assert index["verdict"].endswith("6 trials changed sides, 6 to fail and 0 to pass.")
    assert (index["tone"], index["not_passed"], index["why"]) == ("bad", 6, [["answer contains …", 6]])
    assert [one["text"] for one in index["columns"]] == ["100 % (65–100)", "14 % (3–51)"]
    assert index["pairs"] == [[0, 1]]
    runs = {one[4] for one in index["trials"]}
    assert runs == {row.run for side in (found.base, found.head) for row in side.rows}
    linked = set(re.findall(r"#run-([^)]+)\)", found.markdown("c.html")))
    assert linked <= runs
    assert len(linked) == 6
    assert {title for title, _ in index["tables"]} >= {"Differences", "Differences by family"}
    assert list(found.families["family"]) == ["a", "b"]
    details = page_details(path)
    assert [[check[1] for check in one["checks"]] for one in details[2:4]] == [[True], [False]]
    assert details[3]["answer"].startswith("no </details></script><script>alert(1)")
    assert "missing '42'" in details[3]["checks"][0][2]


def test_without_the_logs_it_says_so(found, tmp_path):
    """A comparison whose runs are logged elsewhere has a page, and says that transcripts are missing."""
    path = replace(found, store=None).report(tmp_path / "c.html")
    safe(path)
    assert [one["stored"] for one in page_details(path)] == [False] * 14


def test_a_suite_says_which_configuration_is_the_best_and_why_trials_failed(tmp_path, found):
    """The first sentence names the best configuration and the interval of its rate, or says that it is not
    shown; causes are counted by kind of check.
    """
    path = write_suite_page(tmp_path / "s.html", found.suite, found.head.rows, found.store)
    safe(path)
    index = page_index(path)
    assert index["verdict"] == "c (scripted) passes 14 % (95 % interval 3–51) of its trials."
    assert index["why"] == [["answer contains …", 6]]
    assert index["rates"] == []  # one trial in each cell says nothing that an interval could
    assert [plot["title"] for plot in index["plots"]][-1] == "Success rate by family, 95 % interval"
    goals = [one["goal"].partition(" ")[0] for one in index["scenarios"]]
    assert goals == [*"0123456"]


def told(*outcomes, epochs=1):
    """What a page says of configurations with these outcomes, a letter for each scenario: passed, failed."""
    words = {"p": "pass", "f": "fail"}
    made = [
        replace(row, epoch=epoch)
        for name, line in outcomes
        for row in rows(*(words[letter] for letter in line), config=name)
        for epoch in range(epochs)
    ]
    return trials_of(suite(configs=[name for name, _ in outcomes]), made).index("t")


def test_the_best_is_called_so_only_where_it_is_shown():
    """Twelve of twelve against none is shown; eight against seven is not; where the interval of a difference
    excludes nothing while p, which allows for all pairs, decides, both are said.
    """
    clear = told(("good", "p" * 12), ("bad", "f" * 12))["verdict"]
    assert clear.startswith("good (scripted) is the best: it passes 100 % (95 % interval 76–100)")
    assert "It is better than bad (scripted) (+100 points, 95 % interval +47 to +100)." in clear
    near = told(("a", "p" * 8 + "ffff"), ("b", "p" * 7 + "fffff"))["verdict"]
    assert "but it is not shown to be the best. These trials do not tell whether it is better than b" in near
    many = told(("a", "p" * 6 + "f" * 6), ("b", "f" * 12), ("c", "pp" + "f" * 10))["verdict"]
    assert "p = 0.094)" in many
    assert many.endswith("p allows for all 3 pairs of configurations, the interval does not.")
    two = told(("a", "p" * 6 + "f" * 6), ("b", "fp" + "f" * 10))["verdict"]
    assert two.endswith("Where p, from a test of signs, and the interval disagree, p decides."), two


def test_cells_have_intervals_from_three_trials_on():
    """Two trials of a cell have marks alone; three have a rate and its interval."""
    assert told(("a", "pf"), epochs=2)["rates"] == []
    assert told(("a", "pf"), epochs=3)["rates"] == [[0, 0, "100 % (44–100)"], [1, 0, "0 % (0–56)"]]


def test_what_is_too_much_for_one_file_lies_beside_it(tmp_path, found):
    """Beyond the bound the trials are in a folder of blocks, all of them; a smaller page that takes its place
    removes them, and nothing else that is in such a folder.
    """
    noise = random.Random(0)
    wide = [
        replace(row, result=row.result | {"answer": noise.randbytes(40_000).hex()}) for row in found.head.rows
    ]
    trials = trials_of(found.suite, wide, found.store)
    path = write_page(tmp_path / "s.html", trials, trials.index("t"), most=200_000)
    assert path.stat().st_size < 100_000
    assert page_index(path)["folder"] == "s_trials"
    assert len(page_details(path)) == 7
    write_page(path, trials, trials.index("t"))
    assert not (tmp_path / "s_trials").exists()
    assert len(page_details(path)) == 7
    (tmp_path / "s_trials").mkdir()
    (tmp_path / "s_trials" / "mine.txt").touch()
    write_page(path, trials, trials.index("t"))
    assert (tmp_path / "s_trials" / "mine.txt").exists()


def test_bad_unicode_is_written_out(tmp_path, found):
    """Lone surrogates, directions and tags do not reach the page as characters, wherever they come from."""
    bad = "\ud800\u202e\U000e0041"
    row = found.head.rows[1]
    scores = [{"check": bad, "passed": False, "value": 0.0, "reason": bad}]
    hostile = replace(
        row, config=bad, result=row.result | {"answer": bad, "reason": bad, "scores": scores, "model": bad}
    )
    path = write_suite_page(tmp_path / "s.html", found.suite, [hostile], found.store)
    assert not set(bad) & set(page_text(path))
    assert page_details(path)[0]["answer"] == r"\u{d800}\u{202e}\u{e0041}"


def test_equal_results_give_equal_pages(tmp_path, found):
    """No time and no random number is in a page."""
    first, second = (
        write_suite_page(tmp_path / f"{name}.html", found.suite, found.head.rows, found.store)
        for name in "ab"
    )
    assert first.read_bytes() == second.read_bytes()


def test_a_very_long_run_is_cut(tmp_path, monkeypatch):
    """The beginning of a long transcript is shown, how much is missing is said, and so is how to see it."""
    lab = Lab(tmp_path / "home", env={})
    try:
        long = [[("tree", {})] for _ in range(60)] + ["42"]
        suite = a_suite().model_copy(update={"scenarios": a_suite().scenarios[:1]})
        (row,) = asyncio.run(run_suite(lab, suite, configs={"c": ScriptedModel(long)})).rows
        monkeypatch.setattr("kestrel_lab.evals.reports.page_data.TRANSCRIPT_CHARS", 1_000)
        trials = trials_of(suite, [row], lab.store)
        shown = trials.detail(row)["transcript"]
        (missing,) = [one["text"] for one in shown if "left out" in one.get("text", "")]
        assert missing.endswith(f"rows left out; all of them: kestrel show {row.run}")
        assert len(str(shown)) < 3_000
    finally:
        lab.close()


def test_plots_that_say_nothing_are_left_out(tmp_path):
    """There is no plot of families where there are none, and none against a cost that every trial had:
    none.
    """
    lab = Lab(tmp_path / "home", env={})
    try:
        plain = [scenario.model_copy(update={"family": ""}) for scenario in a_suite().scenarios]
        alone = a_suite().model_copy(update={"scenarios": plain})
        result = asyncio.run(run_suite(lab, alone, configs={"c": ScriptedModel(lambda _: "42")}))
        index = page_index(result.report(tmp_path / "r.html"))
        assert [plot["title"] for plot in index["plots"]] == [
            "Success rate, 95 % interval",
            "Success rate and working time per trial",
        ]
        drawn = configs_figure(result.summaries())
        assert [axes.get_title() for axes in drawn.axes] == ["Success", "Success and time"]
        assert "no price: cost per trial is left out" in drawn.get_suptitle()
    finally:
        lab.close()
