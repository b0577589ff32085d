"""What CI is told: JUnit XML that parses, Markdown in which foreign text stays text."""

from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rows import row, rows, suite
from markdown_it import MarkdownIt

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.reports.junit import Case, Group, case_groups, junit_xml
from kestrel_lab.evals.reports.markdown import (
    code_span,
    markdown_link,
    markdown_table,
    plain_prose,
    result_markdown,
)

HOSTILE = (
    "a`b|c\n| x | <img src=x onerror=alert(1)> ![i](http://evil/x.png) [l](javascript:x) @everyone #1 "
    "https://evil \x00\x1b[31m\ud800 ]]>"
)
READER = MarkdownIt("commonmark").enable("table")


class Tags(HTMLParser):
    """Counts the tags of a page and keeps its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)


def conforms(root: ET.Element) -> None:
    """The shape of the common JUnit schema: elements, their order, required attributes, counts that add
    up.
    """
    assert root.tag == "testsuites"
    totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for group in root:
        assert group.tag == "testsuite"
        assert {"name", "tests", "failures", "errors", "skipped", "time"} <= set(group.attrib)
        cases = group.findall("testcase")
        assert [child.tag for child in group] == ["properties"] * (len(group) - len(cases)) + [
            "testcase"
        ] * len(cases)
        counted = {
            "tests": len(cases),
            **{f"{tag}s": len(group.findall(f"testcase/{tag}")) for tag in ("failure", "error")},
            "skipped": len(group.findall("testcase/skipped")),
        }
        assert {key: int(group.get(key, "-1")) for key in counted} == counted
        totals = {key: totals[key] + counted[key] for key in totals}
        for case in cases:
            assert set(case.attrib) == {"classname", "name", "time"}
            assert float(case.get("time", "-1")) >= 0
            tags = [child.tag for child in case]
            assert tags[:1] == ["properties"] or "properties" not in tags
            assert len([tag for tag in tags if tag != "properties"]) <= 1
            assert all(
                set(child.attrib) == {"message", "type"} for child in case if child.tag != "properties"
            )
        assert all(set(item.attrib) == {"name", "value"} for item in group.iter("property"))
    assert {key: int(root.get(key, "-1")) for key in totals} == totals


@given(st.text(), st.text(), st.text())
def test_any_text_makes_a_document_that_parses(name, message, key):
    """Control characters, lone surrogates and markup included."""
    case = Case(name=name, outcome="failure", message=message, text=message, properties={key: name})
    root = ET.fromstring(junit_xml(name, [Group(name=name, cases=[case])]).encode())
    conforms(root)


def test_a_case_is_a_scenario_with_its_epochs():
    """Below the rate it fails, a broken trial makes it an error, and its properties are the metrics."""
    trials = [
        *(row("good", "pass", epoch=n, wall_time=2.0) for n in (1, 2)),
        *(row("half", outcome, epoch=n, reason=HOSTILE) for n, outcome in enumerate(("pass", "fail"), 1)),
        *(row("broke", outcome, epoch=n, reason="down") for n, outcome in enumerate(("pass", "error"), 1)),
    ]

    def outcomes(asked):
        (group,) = case_groups(asked, trials)
        return {case.name: (case.outcome, case.message[:40]) for case in group.cases}

    assert outcomes(suite()) == {
        "good": ("passed", ""),
        "half": ("failure", "1 of 2 trials passed, needed 100 %: a`b|"),
        "broke": ("error", "1 of 2 trials broke: down"),
    }
    gate = Gate(metric="success_rate", at_least=0.5)
    assert {name: kind for name, (kind, _) in outcomes(suite(gate)).items()} == {
        "good": "passed",
        "half": "passed",
        "broke": "error",
    }
    excluded = suite(gate, count_errors="exclude")
    assert {name: kind for name, (kind, _) in outcomes(excluded).items()} == {
        "good": "passed",
        "half": "passed",
        "broke": "passed",
    }
    root = ET.fromstring(junit_xml("demo", case_groups(suite(), trials)).encode())
    conforms(root)
    case = root.find(".//testcase[@name='good']")
    assert case is not None
    assert (case.get("classname"), case.get("time")) == ("demo.c (scripted)", "4.000")
    values = {item.get("name"): item.get("value") for item in case.iter("property")}
    assert (values["wall_time"], values["success_rate"], values["epochs"], values["cost_estimate"]) == (
        "2",
        "1",
        "2",
        "0",
    )
    failure = root.find(".//failure")
    assert failure is not None
    assert "epoch 2: fail: a`b|c" in (failure.text or "")


def harmless(markdown):
    """The page that the Markdown makes has no element but those that are made here."""
    seen = set(Tags(READER.render(markdown)).seen)
    assert seen <= {
        "h3",
        "p",
        "strong",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
        "a",
        "details",
        "summary",
    }
    return seen


@given(st.text(alphabet=st.sampled_from("`|<>[]()!\\*_#@&;\n\r\x00~$a ") | st.characters(), max_size=60))
def test_foreign_text_stays_in_its_cell(text):
    """Whatever the text, the row keeps its cells and nothing in it becomes an element; text written bare does
    (the mutant).
    """
    for told, elements in ((code_span, {"code"}), (plain_prose, set())):
        html = READER.render(markdown_table(["a", "b"], [[told(text), "end"]]))
        assert Tags(html).seen.count("td") == 2
        assert html.count("<td>end</td>") == 1
        assert set(Tags(html).seen) <= {"table", "thead", "tbody", "tr", "th", "td", *elements}
    listed = READER.render(f"- {plain_prose(text)}")
    assert set(Tags(listed).seen) <= {"ul", "li"}


def test_bare_text_would_not_stay_there():
    """The test above would notice text that is not put into a span."""
    html = READER.render(markdown_table(["a", "b"], [["x | ![i](http://evil)", "end"]]))
    assert "img" in Tags(html).seen


def test_a_summary_of_a_run():
    """Scripted answers are labelled, intervals and gates shown, transcripts linked, and hostile names are
    text.
    """
    asked = suite(Gate(metric="success_rate", at_least=0.5), configs=(HOSTILE,), name=HOSTILE)
    trials = [row(HOSTILE, "fail", config=HOSTILE, reason=HOSTILE), row("s", "pass", config=HOSTILE)]
    text = result_markdown(asked, trials, None, "out/my report.html")
    assert "a" in harmless(text)
    assert "No real model answered" in text
    assert "(scripted)`" in text
    assert "(out/my%20report.html#run-r-" in text
    assert "50 % (9–91)" in text
    assert "\n\nEvery trial passed.\n" in result_markdown(suite(), rows("pass"), None, "")


def test_a_summary_of_two_commits():
    """Verdict, change with its interval, and what changed sides come first; every metric, the gates and the
    reasons are folded. Hostile names stay text.
    """
    asked = suite(Gate(metric="success_rate", at_least=0.5))
    base, head = rows(*["pass"] * 30), rows(*["fail"] * 29, "pass", reason=HOSTILE)
    found = Comparison(
        suite=asked,
        base=Side(name="main", sha="a" * 40, rows=tuple(base)),
        head=Side(name=HOSTILE, sha="b" * 40, rows=tuple(head)),
    )
    text = found.markdown("https://ci.example.org/r.html")
    harmless(text)
    first, folded = text.split("<details>")
    assert first.startswith(
        "### ❌ Worse: suite `demo`\n\n- `c (scripted)`: worse than `main (aaaaaaaaaa)` by 97 points, "
    )
    assert (
        "**29 trials changed sides**, 29 to fail and 0 to pass: `s0`, `s1`, `s2`, `s3`, `s4` and 24 more"
        in first
    )
    assert "**Violated:** `success_rate ≥ 50 %`, `c (scripted)`: 3.33 % (" in first
    assert "`main (aaaaaaaaaa)` → `aˋb¦c" in folded
    assert "… and 9 more" in text
    assert "[Report](https://ci.example.org/r.html)" in text
    decided = [(d.metric, d.verdict) for d in found.gates().decisions]
    assert decided == [("success_rate", "regression"), ("success_rate", "regression")]
    same = replace(found, head=replace(found.base, name="same"))
    assert same.markdown().startswith("### ❔ Cannot tell: suite `demo`")
    assert replace(same, same_files=True).markdown().startswith("### ➖ No difference: suite `demo`")
    assert "No trial changed sides." in same.markdown()
    broken = replace(found, head=replace(found.head, rows=tuple(rows(*["error"] * 30))))
    assert broken.gates().exit_code == 3
    assert broken.markdown().startswith("### ⚠️ Broken: suite `demo`")
    priced = [replace(found, base=replace(found.base, rows=tuple(rows(*["pass"] * 30, cost_estimate=0.002))))]
    assert "`c (scripted)` costs $0.002 → $0 per trial" in priced[0].markdown()


def test_links_lead_to_pages():
    """An address that runs something is refused, and none can end its brackets."""
    assert markdown_link("x", "a (1).html") == "[x](a%20%281%29.html)"
    for wrong in ("javascript:alert(1)", "http://[", "data:text/html,x"):
        with pytest.raises(UsageError, match="begins with http"):
            markdown_link("x", wrong)
