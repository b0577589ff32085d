"""Runs as HTML, text and page: everything is told, nothing foreign becomes markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.views.diffs import diff_lines, diff_stat, sanitize_diff, split_diff
from kestrel_lab.views.formatting import first_and_last, format_duration, usage_line, value_text, visible_json
from kestrel_lab.views.html import run_page
from kestrel_lab.views.html.elements import html_page, table_html
from kestrel_lab.views.html.markdown import STATES
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.notices import notice_of
from kestrel_lab.views.run_text import run_text
from kestrel_lab.views.run_view import RunView
from kestrel_lab.views.text import table_text

ALLOWED = set(
    [
        "section",
        "ul",
        "li",
        "br",
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


MARKDOWN = {
    "h3",
    "h4",
    "h5",
    "h6",
    "em",
    "strong",
    "s",
    "a",
    "ol",
    "blockquote",
    "hr",
    "math",
    "mrow",
    "mi",
    "mo",
    "mn",
    "mtext",
    "mspace",
}
"""What Markdown can make of a model's text; `test_markdown` has what these may be."""
MARKDOWN_ATTRIBUTES = {
    "data-language",
    "href",
    "title",
    "target",
    "rel",
    "align",
    "start",
    "xmlns",
    "display",
    "stretchy",
    "fence",
    "form",
}

SVG_ATTRIBUTES = {
    *(
        "xmlns",
        "class",
        "role",
        "width",
        "height",
        "viewbox",
        "font-size",
        "x",
        "y",
        "rx",
        "d",
        "opacity",
        "stroke-dasharray",
    ),
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
        e.TaskChanged(task=text, title=text, status=text, note=text, call=text),
        e.ModelEscalated(step=step, source=text, target=text, reason=text),
        e.HealthChanged(dependency=text, kind=text, source="ready", target="degraded", reason=text),
        e.CheckpointSaved(seq=3, reason=text),
    ]


def met(hostile: str) -> dict[str, Any]:
    """What met in a call, and where its arguments come from."""
    found: list[Json] = [{"source": hostile, "kind": hostile, "piece": hostile}]
    return {
        "contained": {"untrusted": [hostile], "private": [hostile], "effect": hostile},
        "origins": [{"arg": hostile, "from": found}, {"arg": hostile, "from": []}],
    }


def told(hostile: str) -> RunView:
    """A run in which every foreign text is `hostile`."""
    view = RunView()
    view.apply(e.RunStarted(goal=hostile, workspace=".", model=hostile, model_kind="replay"))
    steps: list[Json] = [
        {"id": hostile + "1", "goal": hostile, "stage": hostile},
        {"id": "b", "goal": hostile, "depends_on": [hostile]},
    ]
    view.apply(e.PlanProposed(plan={"steps": steps}))
    view.apply(
        e.PlanExtended(
            step=hostile + "1", steps=[{"id": hostile + "2", "operation": hostile, "parent": hostile + "1"}]
        )
    )
    view.apply(e.StageStarted(stage=hostile))
    view.apply(e.StageFinished(stage=hostile, task=hostile + "1", status=hostile))
    view.apply(e.StepFinished(step=hostile + "1", ok=False, skipped=True, reason=hostile))
    for event in notices(hostile, hostile + "1"):
        view.apply(event)
    wanted: dict[str, Json] = {"id": "c", "name": hostile, "args": {hostile: hostile}}
    view.apply(e.ModelAnswered(call="m", step="s", model=hostile, text=hostile, calls=[wanted]))
    view.apply(e.ToolAnswered(call="c", step="s", tool=hostile, text=hostile))
    view.apply(
        e.ApprovalAsked(
            call="d",
            step="s",
            tool=hostile,
            args={hostile: [hostile]},
            danger=hostile,
            key="k",
            why=hostile,
            **met(hostile),
        )
    )
    view.apply(e.BudgetWarned(limit="x", message=hostile))
    view.apply(
        e.HealthChanged(dependency=hostile, kind=hostile, source="ready", target=hostile, reason=hostile)
    )
    view.apply(e.ModelEscalated(step="s", source=hostile, target=hostile, reason=hostile))
    view.apply(e.RunFinished(outcome="error", answer=hostile, reason=hostile))
    return view


def waiting(hostile: str) -> RunView:
    """A run that waits for a person, all of whose questions, options, previews and diffs are `hostile`."""
    view = RunView()
    diff = f"--- {hostile}\n+++ {hostile}\n@@ -1,1 +1,1 @@\n-{hostile}\n+{hostile}\n {hostile}"
    view.apply(
        e.RunStarted(
            goal=hostile,
            workspace=".",
            model=hostile,
            limits={"cycles": 3, "seconds": 9.0, "cost_usd": 1.0, "tokens": 7},
        )
    )
    view.apply(e.ToolAnswered(call="c", step="s", tool=hostile, text=f"{hostile}\n{diff}"))
    for call in "ab":
        view.apply(
            e.ApprovalAsked(
                call=call,
                step="s",
                tool=hostile,
                args={hostile: hostile},
                danger="HIGH",
                key="k",
                why=hostile,
                preview=diff,
                **met(hostile),
            )
        )
    asked: dict[str, Json] = {"question": hostile, "options": [hostile, hostile]}
    view.apply(
        e.ApprovalAsked(
            call="q", step="s", tool="ask_user", args=asked, danger="SAFE", key="k", why="question"
        )
    )
    return view


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\x1b]0;t\x07\u202e&lt;"]
PLAIN = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(st.one_of(st.text(max_size=30), st.sampled_from(HOSTILE)))
def test_foreign_text_is_never_markup(hostile: str) -> None:
    """Whatever a run contains, its HTML has only our own elements and attributes, those of Markdown included,
    and no hidden characters.
    """
    markup = Markup()
    markup.feed(run_html(told(hostile)) + run_html(waiting(hostile)))

    assert set(markup.tags) <= ALLOWED | MARKDOWN
    assert (
        markup.attributes
        <= {"class", "style", "scope", "open", "aria-label", "id"} | MARKDOWN_ATTRIBUTES | SVG_ATTRIBUTES
    )
    assert sanitize_text(markup.words) == markup.words


def test_a_result_that_is_not_from_a_real_model_says_so() -> None:
    """HTML and text name a replay."""
    assert "replay" in run_html(told("x"))
    assert "(replay)" in run_text(told("x"))


def test_the_schema_of_a_variable_is_no_heading() -> None:
    """The first line of a goal is bold; `@df` in it adds what is known of a frame, which is not."""
    html = run_html(told("Plot df\nday: datetime\n<i>"))

    assert "<b>Plot df</b>\nday: datetime\n&lt;i&gt;" in html


def test_text_tells_the_run() -> None:
    """Plain text has goal, calls with result, answer, reason and usage."""
    view = RunView()
    view.apply(e.RunStarted(goal="count", workspace=".", model="toy"))
    view.apply(e.ToolCalled(call="c", step="s", tool="bash", args={"command": "wc"}, danger="HIGH"))
    view.apply(e.ToolAnswered(call="c", step="s", tool="bash", text="3\nlines", seconds=0.25))
    view.apply(e.StateTransition(source="EXECUTING", target="COMPLETE"))
    view.apply(e.RunFinished(outcome="complete", answer="three"))

    assert run_text(view) == (
        "run ? · COMPLETE · toy\ngoal: count\n✓ bash wc [ok · 0.2 s · HIGH]\n    3 lines\nanswer:\n  "
        "three\ninfo: what it did: ran `wc`\n"
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
    """Steps stand under what grew them, with state and stage; stages are headings; a text says which step
    wrote it.
    """
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
        "0 tokens · 1 model call · 0 tool calls",
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
        "info: tasks: 0 of 1 done",
        "    it it: it",
        "info: it takes over from it: it",
        "warning: it it is degraded: it",
    ]


def test_a_place_of_one_line_has_one_number() -> None:
    """The notice of files that were found writes `:1`, and a range only for several lines."""
    hits: list[dict[str, Json]] = [
        {"path": "a.py", "first": 1, "last": last, "why": "has a"} for last in (1, 3)
    ]
    told = notice_of(e.RetrievalStep(step="s", hits=hits, stopped="limit"))
    assert told is not None
    assert list(told.items) == ["a.py:1 (has a)", "a.py:1-3 (has a)"]


def test_html_draws_the_plan() -> None:
    """The saved page has the plan as a drawing without a script, with states in words, and as a table with
    goals.
    """
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
    assert sanitize_text(text) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ls -l", "ls -l"),
        ("5", '"5"'),
        ("", '""'),
        (" x", '" x"'),
        (5, "5"),
        ("a\x1b[2Kb", "a\\u{1b}[2Kb"),
        ("a\u202eb", "a\\u{202e}b"),
    ],
)
def test_an_argument_is_shown_so_that_it_cannot_be_mistaken(value: str | int, text: str) -> None:
    """Strings that look like something else are quoted; escapes are shown."""
    assert value_text(value) == text


def test_durations_and_usage_read_well() -> None:
    """Units fit the size; unknown prices are not called zero."""
    assert [format_duration(s) for s in (0.0123, 3.44, 59.96, 125)] == [
        "12 ms",
        "3.4 s",
        "1 min 00 s",
        "2 min 05 s",
    ]
    assert (
        usage_line(Usage(tokens_in=1500, unpriced=2, model_calls=2))
        == "1,500 tokens · 2 model calls · 0 tool calls"
    )


def test_tables_align_numbers_and_escape_cells() -> None:
    """A table shows values as text in HTML and in columns as plain text."""
    assert '<td style="text-align:right">1</td><td style="text-align:left">&lt;b&gt;</td>' in table_html(
        ["n", "x"], [(1, "<b>")]
    )
    assert table_text(["name", "n"], [("a", 1), ("longer", 22)]) == "name    n\na       1\nlonger  22"


def test_a_page_forbids_scripts_and_remote_loads() -> None:
    """The document's own policy allows inline style and nothing else from outside."""
    text = html_page("<t>", "<p>x</p>")

    assert "default-src &#x27;none&#x27;" in text
    assert "<title>&lt;t&gt;</title>" in text
    assert "http://" not in text.replace("http-equiv", "") and "https://" not in text


def many(number: int, answer: str = "the end") -> RunView:
    """A run of `number` calls, each with a result of its own."""
    view = RunView()
    view.apply(
        e.Record(run_id="r1", seq=1, eid="1", at=1.0, event=e.RunStarted(goal="g", workspace=".", model="m"))
    )
    for n in range(number):
        view.apply(e.ToolCalled(call=f"c{n}", step="s", tool="grep", args={"pattern": f"word {n}."}))
        view.apply(e.ToolAnswered(call=f"c{n}", step="s", tool="grep", text=f"found {n}. " * 40))
    view.apply(e.RunFinished(outcome="complete", answer=answer))
    return view


def test_what_is_saved_of_a_long_run_has_a_bound() -> None:
    """Of 3,000 calls the first, the last and the answer are kept within 0.5 MB and 0.1 MB; a line says how
    many are not, and where they are.
    """
    view = many(3_000)
    html, text = run_html(view), run_text(view)
    left_out = re.search(r"… ([\d,]+) rows left out; all of them: %kestrel show r1 --html FILE …", html)

    assert (len(html) < 500_000, len(text) < 100_000) == (True, True)
    assert left_out is not None
    # One folds the calls, one what was used.
    assert int(left_out[1].replace(",", "")) == 3_002 - html.count("<details")
    assert re.search(r"… [\d,]+ rows left out; all of them: %kestrel show r1 --html FILE …", text)
    for words in ("word 0.", "word 2999.", "the end"):
        assert (words in html, words in text) == (True, True)
    assert "word 1000." not in html + text
    assert run_html(view, limit=None).count("<details") == 3_001


def test_a_run_of_ordinary_length_is_saved_whole() -> None:
    """A hundred calls are all there; one answer that is longer than everything else is there with its
    beginning and end.
    """
    long = many(100, answer="begin " + "x" * 1_000_000 + " end of it")
    html, text = run_html(long), run_text(long)
    assert (html.count("<details"), "left out; all of them" in html + text) == (
        102,
        False,
    )  # one folds the calls, one what was used
    assert (len(html) < 300_000, "begin x" in html, "x end of it" in html) == (True, True, True)
    assert (len(text) < 100_000, "x end of it" in text) == (True, True)


@given(st.lists(st.text(max_size=20), max_size=30), st.none() | st.integers(0, 300))
def test_ends_leave_out_a_middle_and_nothing_else(items: list[str], limit: int | None) -> None:
    """Head, the number left out, and tail make up the whole; the last is always there, the rest keeps to the
    limit.
    """
    head, left_out, tail = first_and_last(items, str, limit)
    middle = items[len(head) : len(items) - len(tail)]
    assert [*head, *middle, *tail] == items
    assert left_out == len(middle)
    assert not items or (tail or head)[-1] == items[-1]
    if limit is None:
        assert left_out == 0
    elif items:
        assert sum(map(len, head + tail)) <= max(limit, limit // 3 + len(items[-1]))


def test_a_waiting_call_is_shown_once() -> None:
    """In saved HTML the arguments of a call that waits stand in its question only; calls that wait together
    are counted.
    """
    view = waiting("needle-7")
    html = run_html(view)
    assert (
        html.count("needle-7</pre>") == 6 + 2
    )  # of both calls the diff, the argument and where it comes from; a result and its diff
    assert "2 calls wait for approval" in html
    assert "<b>Waits for an answer:</b>" in html
    assert "waits for an answer: needle-7\n  1. needle-7\n  2. needle-7" in run_text(view)


def test_a_diff_is_shown_by_its_lines() -> None:
    """Lines that came and went are marked, headers are not; ends of lines are shown where they are mixed,
    escapes always.
    """
    text, diff = split_diff("replaced f (1 line)\n--- f\n+++ f\n@@ -1,2 +1,2 @@\n--- old\n+new\x1b[2J\n same")
    assert text == "replaced f (1 line)"
    assert [kind for kind, _ in diff_lines(diff)] == ["", "", "place", "removed", "added", ""]
    assert sanitize_diff(diff).splitlines()[4] == "+new\\u{1b}[2J"
    assert diff_stat(diff) == "+1 \u22121 lines"
    assert split_diff("no diff\n--- at all") == ("no diff\n--- at all", "")
    assert sanitize_diff("--- f\n+++ f\n@@ -1 +1 @@\n-a\r\n+b\r") == "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b"
    assert sanitize_diff("--- f\n+++ f\n@@ -1 +1 @@\n-a\r\n+a") == "--- f\n+++ f\n@@ -1 +1 @@\n-a\\u{d}\n+a"


def test_no_machine_is_named_in_what_is_saved() -> None:
    """Who resumed a run is a machine and a process: the view says that it was resumed, not by whom."""
    view = RunView()
    view.apply(e.RunResumed(by="box17:4711", model="m"))
    assert "resumed" in run_text(view)
    assert "box17" not in run_html(view) + run_text(view) + json.dumps(view.snapshot())


def test_what_is_used_of_the_limits_is_told() -> None:
    """Turns, money, tokens and working time, a person's thinking time left out; as many turns as the engine
    counts.
    """
    view = RunView()
    limits: dict[str, Json] = {"cycles": 20, "cost_usd": 2.0, "tokens": 1_000, "seconds": 300.0}
    history: list[tuple[float, e.Event]] = [
        (10.0, e.RunStarted(goal="g", workspace=".", model="m", limits=limits)),
        (10.0, e.StateTransition(source="PLANNING", target="EXECUTING")),
        (11.0, e.ModelCalled(call="m1", step="s", model="m", cycle=1, messages=1)),
        (12.0, e.ModelAnswered(call="m1", step="s", model="m", tokens_in=40, tokens_out=2, cost_usd=0.5)),
        (13.0, e.StateTransition(source="EXECUTING", target="WAITING_APPROVAL")),
        (60.0, e.StateTransition(source="WAITING_APPROVAL", target="EXECUTING")),
        (61.0, e.ModelCalled(call="m2", step="s", model="m", cycle=2, messages=3)),
        (64.0, e.RunForked(parent="r", at=7, model="m")),
    ]
    told = []
    for at, event in history:
        view.apply(event, at)
        told.append((view.head.worked, view.head.working))
    assert told[4:] == [(3.0, 0.0), (3.0, 60.0), (4.0, 61.0), (4.0, 64.0)]
    assert view.head.budget == [
        ["1 of 20 turns", 0.05],
        ["$0.5000 of $2", 0.25],
        ["42 of 1,000 tokens", 0.042],
    ]
    assert "limits: 1 of 20 turns · $0.5000 of $2 · 42 of 1,000 tokens · 4 of 300 s" in run_text(view)
    assert "4 of 300 s" in run_html(view)


def test_arguments_are_folded_only_beside_a_diff_that_says_all() -> None:
    """A call whose diff is cut, only summed up or missing has its arguments open in the question about it."""
    whole = "--- f\n+++ f\n@@ -1,1 +1,1 @@\n-a\n+b"
    cut = "--- f\n+++ f\n@@ -1,9 +1,9 @@\n-a\n… 9,000 characters left out …\n+b"
    summed = "--- f\n+++ f\n@@ lines 1 to 30000 became 9 lines @@"
    opened = {}
    for preview in (whole, cut, summed, "this edit would fail: old was not found", ""):
        view = RunView()
        view.apply(
            e.ApprovalAsked(
                call="a", step="s", tool="t", args={"path": "f"}, danger="HIGH", key="k", preview=preview
            )
        )
        opened[preview] = '<details open><summary style="cursor:pointer">Arguments' in run_html(view)
    assert [*opened.values()] == [False, True, True, True, True]


def test_a_long_goal_is_folded_behind_its_first_line() -> None:
    """What a variable put into the goal is there on a click; a goal of a few lines is shown whole."""
    shown = {}
    for goal in ("Name them.\nAll.", "Plot df by month" + "".join(f"\nrow {number}" for number in range(9))):
        view = RunView()
        view.apply(e.RunStarted(goal=goal, workspace="/w", model="m", model_kind="scripted"))
        shown[goal[:4]] = run_html(view)
    assert "<b>Name them.</b>\nAll.</div>" in shown["Name"]
    assert "<b>Plot df by month</b><details>" in shown["Plot"]
    assert "row 8</details>" in shown["Plot"]


PIXEL = "data:image/png;base64,aGk="


def worked(*, answer: str = "Done.") -> RunView:
    """A run that ran code with a figure, failed once, was undone, and answered."""
    view = RunView(read_image=lambda _: PIXEL)
    for at, event in enumerate(
        (
            e.RunStarted(goal="plot", workspace=".", model="toy"),
            e.StateTransition(source="PLANNING", target="EXECUTING"),
            e.ToolCalled(
                call="a", step="s", tool="run_python", args={"code": "x = 1\nplot(x)"}, danger="LOW"
            ),
            e.ToolAnswered(call="a", step="s", tool="run_python", text="drawn", seconds=2, images=[{}]),
            e.ToolCalled(call="b", step="s", tool="run_python", args={"code": "boom()\n1"}, danger="LOW"),
            e.ToolAnswered(
                call="b",
                step="s",
                tool="run_python",
                text="NameError",
                error={"kind": "raised", "message": "no"},
            ),
            e.KernelUndone(calls=["a"], kernel="k"),
            e.ModelAnswered(call="m", step="s", model="toy", text=answer, tokens_in=1000, cost_usd=0.002),
            e.StateTransition(source="EXECUTING", target="COMPLETE"),
            e.RunFinished(outcome="complete", answer=answer),
        )
    ):
        view.apply(event, at + 1.0)
    return view


def test_a_finished_run_is_answer_first() -> None:
    """One line of status with one time and the cost, the answer, then the calls with code in its lines, output
    and figure; what was used is folded, and nothing says that nothing was checked.
    """
    html = run_html(worked())
    order = [
        html.index(part) for part in ("$0.0020", "Done.", "What it did", "plot(x)", "drawn", PIXEL, "Usage")
    ]
    assert order == sorted(order)
    assert "2 calls · 1 failed · 1 undone" in html
    assert re.search(r"<pre[^>]*><code[^>]*>x = <span[^>]*>1</span>\n", html)
    assert len(re.findall(r"\d s ·", html[: html.index("Done.")])) == 1
    assert not re.search(
        "limits:|not checked|that it names are right|next, if you like|1,000 tokens", html[: order[-1]]
    )


def test_what_went_wrong_or_was_undone_is_not_green() -> None:
    """A raised call is red, an undone one is struck out and grey; neither has the tick of success."""
    view, html = worked(), run_html(worked())
    undone, raised = (html.partition(f'id="kst--c_{name}"')[2].partition("</details>")[0] for name in "ab")
    assert ("↶" in undone, "line-through" in undone, "opacity:.6" in undone) == (True, True, True)
    assert ("✗" in raised, "--jp-error-color1" in raised) == (True, True)
    assert not re.search("✓|success", undone + raised)
    assert "↶ run_python" in run_text(view)


def test_a_cited_place_proves_nothing_in_green() -> None:
    """That a place exists is marked without colour."""
    assert "46,160,67" not in STATES["cited"]


def test_a_figure_cannot_be_forged_and_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that looks like the place of a figure stays text; what is too large for a notebook is named."""
    forged = run_html(worked(answer='<img data-figure="c:a:0">'))
    assert (forged.count(PIXEL), forged.count("<img")) == (1, 1)
    monkeypatch.setattr(run_page, "_FIGURE_CHARS", 3)
    small = run_html(worked())
    assert (
        "<img" in small,
        "too large to be kept here" in small,
        PIXEL in run_html(worked(), limit=None),
    ) == (
        False,
        True,
        True,
    )
