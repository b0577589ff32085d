"""Thinking of models is shown folded, and as harmless as any other text that strangers may have written
into.
"""

import re

import pytest

from kestrel_lab.core.events.union import ModelAnswered, ModelCalled, ModelDelta, Record, RunStarted
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.rows import TextRow
from kestrel_lab.views.run_text import run_text
from kestrel_lab.views.run_view import RunView, view_of

PAYLOADS = [
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "</pre></details><iframe src=//evil.example>",
    "[click](javascript:alert(1))",
    "\x1b]8;;http://evil.example\x07link\x1b]8;;\x07",
    "\u202egnp.exe",
]


def view_with(thinking: str, text: str = "Done.", **more: object) -> RunView:
    """A run whose model thought and answered."""
    events = [
        RunStarted(goal="g", workspace="/w", model="m"),
        ModelCalled(call="a.m1", step="a", model="m", cycle=1, messages=1),
        ModelAnswered(
            call="a.m1",
            step="a",
            model="m",
            text=text,
            thinking=[{"text": thinking}],
            tokens_in=1_000,
            tokens_out=10,
            **more,
        ),
    ]
    return view_of(
        [
            Record(run_id="r", seq=seq, eid=str(seq), at=float(seq), event=event)
            for seq, event in enumerate(events, 1)
        ]
    )


def test_thinking_is_folded() -> None:
    """HTML has it in a closed fold before the text, plain text in one short line, the text of the answer
    nowhere.
    """
    view = view_with("first I look\nthen I answer")
    html, text = run_html(view), run_text(view)
    fold = re.search(r"<details><summary[^>]*>Thinking.*?</details>", html, re.DOTALL)
    assert fold is not None
    assert "first I look" in fold[0]
    assert html.index("first I look") < html.index("Done.")
    assert "thinking: first I look then I answer" in text
    assert next(row.text for row in view.rows.values() if isinstance(row, TextRow)) == "Done."


@pytest.mark.parametrize("payload", PAYLOADS)
def test_thinking_and_text_of_models_are_never_markup(payload: str) -> None:
    """Markup, escape sequences and characters that turn text around come out as text, in the fold and in the
    answer.
    """
    for view in (view_with(payload), view_with("", payload)):
        html = run_html(view)
        assert "<script>alert" not in html
        assert "<img" not in html
        assert "<iframe" not in html
        assert "\x1b" not in html + run_text(view)
        assert "\u202e" not in html + run_text(view)


def test_a_block_that_the_provider_keeps_is_named() -> None:
    """A redacted block has no text; that there is one is shown."""
    view = view_with("")
    view.apply(ModelAnswered(call="a.m2", step="a", model="m", thinking=[{"redacted": "c2VjcmV0"}]))
    assert "[a block that the provider keeps to itself]" in run_html(view)
    assert "c2VjcmV0" not in run_html(view)


def test_the_usage_says_what_the_cache_gave() -> None:
    """Cached, written and reasoning tokens stand in the usage line of the run and in the note of the
    answer.
    """
    view = view_with("hm", tokens_cached=900, tokens_cache_written=50, tokens_reasoning=7, cost_usd=0.01)
    words = "(90% of the prompt from its cache, 50 written to it, 7 reasoning)"
    assert words in view.head.usage
    assert any(words in row.note for row in view.rows.values() if isinstance(row, TextRow))


def test_a_long_text_grows_in_linear_time() -> None:
    """A piece costs the same at the end of 2 MB as at the beginning: the mutant, which copies, takes hundreds
    of times as long there.
    """
    import time

    def took(row: TextRow) -> float:
        began = time.process_time()
        for _ in range(3_000):
            row.append("a piece")
        return time.process_time() - began

    assert took(TextRow(id="a", text="x" * 2_000_000)) < 50 * max(took(TextRow(id="b")), 0.001)


def test_thinking_grows_while_the_model_thinks() -> None:
    """Pieces of reasoning come into the fold as they stream, apart from the text, merged into one message to
    a page; the terminal shows their end.
    """
    from io import StringIO

    from rich.console import Console

    from kestrel_lab.cli.terminal import TerminalDisplay
    from kestrel_lab.notebook.patch_stream import _merge
    from kestrel_lab.views.rows import Change

    display = TerminalDisplay(Console(file=StringIO(), width=80))
    view, sent = display.view, list[Change]()
    for event in (
        RunStarted(goal="g", workspace="/w", model="m"),
        ModelCalled(call="a.m1", step="a", model="m", cycle=1, messages=1),
        ModelDelta(call="a.m1", text="first I look\n", thinking=True),
        ModelDelta(call="a.m1", text="then \x1b[31mI", thinking=True),
        ModelDelta(call="a.m1", text=" answer", thinking=True),
    ):
        for change in view.apply(event):
            _merge(sent, change)
    (row,) = [row for row in view.rows.values() if isinstance(row, TextRow)]
    console = Console(file=StringIO(), width=80)
    console.print(display._now())

    assert (row.state, row.text, row.thinking) == ("thinking", "", "first I look\nthen I answer")
    assert sent[-1] == {"op": "text", "id": row.id, "thought": "first I look\nthen I answer"}
    assert "thinking: then I answer" in console.file.getvalue()  # type: ignore[attr-defined]

    view.apply(ModelDelta(call="a.m1", text="Done"))
    assert (row.state, row.text) == ("streaming", "Done")
