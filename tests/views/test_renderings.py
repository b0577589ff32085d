"""Runs as HTML, text and page: everything is told, nothing foreign becomes markup."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core import events as e
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.text import plain
from kestrel_lab.views.html import run_html, table_html
from kestrel_lab.views.page import page
from kestrel_lab.views.runview import RunView
from kestrel_lab.views.text import run_text, table_text
from kestrel_lab.views.wording import duration, usage_line, value_text, visible_json

ALLOWED = set(
    [
        "section",
        "div",
        "p",
        "b",
        "small",
        "span",
        "code",
        "pre",
        "details",
        "summary",
        "svg",
        "title",
        "g",
        "rect",
        "path",
        "text",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    ]
)


SVG_ATTRIBUTES = {
    *("xmlns", "class", "role", "width", "height", "viewbox", "font-size", "x", "y", "rx", "d", "opacity", "stroke-dasharray"),
    *("fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "text-anchor", "font-weight"),
}


class Markup(HTMLParser):
    """Collects tags, attribute names and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


def notices(text: str, step: str) -> list[e.Event]:
    """One of each event that is told in a row of its own."""
    return [
        e.StepRetried(step=step, attempt=2, error_class=text, reason=text, wait_s=0.5),
        e.Prompted(step=step, text=text),
        e.MacroStarted(call="m1", step=step, macro=text, version=3, args={text: text}),
        e.ToolCalled(call="m1.1", step=step, tool="bash", args={}),
        e.MacroFinished(call="m1", step=step, macro=text, ok=False, reason=text),
        e.VerifierStarted(step=step, verifier=text, criteria=[text]),
        e.VerifierFinished(step=step, verifier=text, passed=False, confidence=0.25, issues=[text, text]),
        e.BranchScored(step=step, candidate=text, text=text, score=0.5, parent=text),
        e.MemoryRecalled(step=step, notes=[{"text": text}, {text: text}]),
        e.MemoryStored(step=step, note={"text": text}),
        e.ModelEscalated(step=step, source=text, target=text, reason=text),
        e.HealthChanged(dependency=text, kind=text, source="ready", target="degraded", reason=text),
        e.CheckpointSaved(seq=3, reason=text),
    ]


def told(hostile: str) -> RunView:
    """A run in which every foreign text is `hostile`."""
    view = RunView()
    view.apply(e.RunStarted(goal=hostile, workspace=".", model=hostile, model_kind="replay"))
    steps: list[Json] = [{"id": hostile + "1", "goal": hostile, "stage": hostile}, {"id": "b", "goal": hostile, "depends_on": [hostile]}]
    view.apply(e.PlanProposed(plan={"steps": steps}))
    view.apply(e.PlanExtended(step=hostile + "1", steps=[{"id": hostile + "2", "operation": hostile, "parent": hostile + "1"}]))
    view.apply(e.StageStarted(stage=hostile))
    view.apply(e.StageFinished(stage=hostile, task=hostile + "1", status=hostile))
    view.apply(e.StepFinished(step=hostile + "1", ok=False, skipped=True, reason=hostile))
    for event in notices(hostile, hostile + "1"):
        view.apply(event)
    wanted: dict[str, Json] = {"id": "c", "name": hostile, "args": {hostile: hostile}}
    view.apply(e.ModelAnswered(call="m", step="s", model=hostile, text=hostile, calls=[wanted]))
    view.apply(e.ToolAnswered(call="c", step="s", tool=hostile, text=hostile))
    view.apply(e.ApprovalAsked(call="d", step="s", tool=hostile, args={hostile: [hostile]}, danger=hostile, key="k", why=hostile))
    view.apply(e.BudgetWarned(limit="x", message=hostile))
    view.apply(e.HealthChanged(dependency=hostile, kind=hostile, source="ready", target=hostile, reason=hostile))
    view.apply(e.ModelEscalated(step="s", source=hostile, target=hostile, reason=hostile))
    view.apply(e.RunFinished(outcome="error", answer=hostile, reason=hostile))
    return view


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\x1b]0;t\x07\u202e&lt;"]
PLAIN = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(st.one_of(st.text(max_size=30), st.sampled_from(HOSTILE)))
def test_foreign_text_is_never_markup(hostile: str) -> None:
    """Whatever a run contains, its HTML has only our own elements and attributes, and no hidden characters."""
    markup = Markup()
    markup.feed(run_html(told(hostile)))

    assert set(markup.tags) <= ALLOWED
    assert markup.attributes <= {"class", "style", "scope", "open", "aria-label"} | SVG_ATTRIBUTES
    assert plain(markup.words) == markup.words


def test_a_result_that_is_not_from_a_real_model_says_so() -> None:
    """HTML and text name a replay."""
    assert "replay" in run_html(told("x"))
    assert "(replay)" in run_text(told("x"))


def test_text_tells_the_run() -> None:
    """Plain text has goal, calls with result, answer, reason and usage."""
    view = RunView()
    view.apply(e.RunStarted(goal="count", workspace=".", model="toy"))
    view.apply(e.ToolCalled(call="c", step="s", tool="bash", args={"command": "wc"}, danger="HIGH"))
    view.apply(e.ToolAnswered(call="c", step="s", tool="bash", text="3\nlines", seconds=0.25))
    view.apply(e.StateTransition(source="EXECUTING", target="COMPLETE"))
    view.apply(e.RunFinished(outcome="complete", answer="three"))

    assert run_text(view) == (
        "run ? · COMPLETE · toy\ngoal: count\n✓ bash wc [ok · 0.2 s · HIGH]\n    3 lines\nanswer:\n  three\n"
        "0 tokens · $0.0000 · 0 model calls · 1 tool call"
    )


def staged() -> RunView:
    """A session in stages whose plan grew."""
    view = RunView()
    plan: list[Json] = [
        {"id": "gather", "goal": "look around", "stage": "gather"},
        {"id": "plan", "operation": "plan", "args": {"goal": "x"}, "stage": "act", "depends_on": ["gather"]},
        {"id": "end", "goal": "end it", "depends_on": ["plan"], "needs_approval": True},
    ]
    grown: list[dict[str, Json]] = [
        {"id": "plan/a", "goal": "do a", "parent": "plan", "stage": "act"},
        {"id": "plan/b", "goal": "do b", "parent": "plan", "depends_on": ["plan/a"], "stage": "act"},
    ]
    for event in (
        e.RunStarted(goal="tidy", workspace=".", model="toy"),
        e.PlanProposed(plan={"steps": plan}),
        e.StageStarted(stage="gather"),
        e.StepStarted(step="gather", goal="look around"),
        e.StepFinished(step="gather", ok=True),
        e.StageFinished(stage="gather", task="gather", status="done"),
        e.StageStarted(stage="act", attempt=2),
        e.StepStarted(step="plan"),
        e.PlanExtended(step="plan", steps=grown),
        e.StepFinished(step="plan", ok=True),
        e.StageFinished(stage="act", task="plan", status="done", attempt=2),
        e.StepStarted(step="plan/a", goal="do a"),
        e.ModelAnswered(call="m", step="plan/a", model="toy", text="I did"),
    ):
        view.apply(event)
    return view


def test_text_tells_a_plan_that_grew() -> None:
    """Steps stand under what grew them, with state and stage; stages are headings; a text says which step wrote it."""
    assert run_text(staged()).splitlines()[2:] == [
        "Plan of 5 steps: 2 ok, 2 pending, 1 running:",
        "  ✓ gather [ok, stage gather]: look around",
        "  ✓ plan [ok, stage act]: plan x",
        "    … plan/a [running, stage act]: do a",
        "    · plan/b [pending, stage act]: do b",
        "  · end [pending]: end it",
        "stage gather: done",
        "stage act: running, attempt 2",
        "plan/a: text:",
        "  I did",
        "0 tokens · 1 unpriced · 1 model call · 0 tool calls",
    ]


def test_text_tells_what_happens_beside_calls() -> None:
    """Each of the rarer events is one readable line and what belongs to it; a checkpoint is not told."""
    view = RunView()
    for event in notices("it", "s"):
        view.apply(event)
    assert run_text(view).splitlines()[2:] == [
        "not in order: it degraded",
        "warning: failed (it) and is tried again in 0.5 s, attempt 2: it",
        "info: asked: it",
        "✗ macro_run it it [error · macro it failed: it]",
        "  it › … bash  [running · SAFE]",
        "bad: FAIL · confidence 0.25 · it",
        "    it",
        "    it",
        "info: candidate it: score 0.50, goes on from it",
        "    it",
        "info: 2 notes of earlier runs recalled",
        "    it",
        "    it: it",
        "info: kept for later runs",
        "    it",
        "info: it takes over from it: it",
        "warning: it it is degraded: it",
    ]


def test_html_draws_the_plan() -> None:
    """The saved page has the plan as a drawing without a script, with states in words, and as a table with goals."""
    text = run_html(staged())
    assert text.count("<svg") == 1
    assert "gather ✓" in text and "act …" in text
    for words in ("plan/a", "… running", "· pending", "do b", "Stage act"):
        assert words in text
    assert "<script" not in text


@given(JSON)
def test_visible_json_is_the_same_value_with_nothing_hidden(value: object) -> None:
    """Arguments to edit read back as they were, and show every character."""
    text = visible_json(value)  # type: ignore[arg-type]

    assert json.loads(text) == value
    assert plain(text) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("ls -l", "ls -l"), ("5", '"5"'), ("", '""'), (" x", '" x"'), (5, "5"), ("a\x1b[2Kb", "a\\u{1b}[2Kb"), ("a\u202eb", "a\\u{202e}b")],
)
def test_an_argument_is_shown_so_that_it_cannot_be_mistaken(value: str | int, text: str) -> None:
    """Strings that look like something else are quoted; escapes are shown."""
    assert value_text(value) == text


def test_durations_and_usage_read_well() -> None:
    """Units fit the size; unknown prices are not called zero."""
    assert [duration(s) for s in (0.0123, 3.44, 59.96, 125)] == ["12 ms", "3.4 s", "1 min 00 s", "2 min 05 s"]
    assert usage_line(Usage(tokens_in=1500, unpriced=2, model_calls=2)) == "1,500 tokens · 2 unpriced · 2 model calls · 0 tool calls"


def test_tables_align_numbers_and_escape_cells() -> None:
    """A table shows values as text in HTML and in columns as plain text."""
    assert '<td style="text-align:right">1</td><td style="text-align:left">&lt;b&gt;</td>' in table_html(["n", "x"], [(1, "<b>")])
    assert table_text(["name", "n"], [("a", 1), ("longer", 22)]) == "name    n\na       1\nlonger  22"


def test_a_page_forbids_scripts_and_remote_loads() -> None:
    """The document's own policy allows inline style and nothing else from outside."""
    text = page("<t>", "<p>x</p>")

    assert "default-src &#x27;none&#x27;" in text
    assert "<title>&lt;t&gt;</title>" in text
    assert "http://" not in text.replace("http-equiv", "") and "https://" not in text
