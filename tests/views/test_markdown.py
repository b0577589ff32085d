"""Markdown as safe HTML: what is drawn, and that nothing in it loads, runs or leads astray."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kestrel_lab.core.events import union as e
from kestrel_lab.views.html.markdown import GrowingText, RenderedChanges, markdown_html, markdown_nodes
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.run_view import RunView

sys.path.insert(0, str(Path(__file__).parent.parent / "notebook"))
from payloads import MARKDOWN, PAYLOADS

ANSWER = (
    "# Title\n\nWords with `code`, **bold** and $E = mc^2$.\n\n| a | b |\n|--:|---|\n| 1 | 2 "
    "|\n\n```python\ndef f():\n    return 'x'  # why\n```\n\n"
    "- one\n- two\n  - three\n\n> said\n\n\\[\nx^2\n\\]\n\n[docs](https://example.org/a)\n"
)


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(html: str) -> set[str]:
    """The names of the elements of `html`."""
    return {tag for tag, _ in Elements(html).found}


def test_an_answer_has_headings_tables_code_lists_and_formulas() -> None:
    """Each part of an ordinary answer becomes the element that a reader expects; headings stand below those
    of the page.
    """
    html = markdown_html(ANSWER)

    assert {"h3", "code", "strong", "math", "table", "pre", "ul", "blockquote", "a"} <= tags(html)
    assert '<td align="right">1</td>' in html
    assert '<span class="kst-keyword">def</span>' in html and '<pre data-language="python">' in html
    assert html.count("<msup>") == 2
    assert "var(--jp-mirror-editor-keyword-color" in markdown_html(ANSWER, styled=True)


def test_a_character_reference_hides_nothing() -> None:
    """Hidden characters are shown as what they are, however they are written."""
    assert (
        markdown_html("a&#8203;b &#x202e;c `&#8203;`")
        == "<p>a\\u{200b}b \\u{202e}c <code>&amp;#8203;</code></p>\n"
    )


def test_money_is_not_a_formula() -> None:
    """Dollar signs before amounts stay what they are."""
    assert "math" not in tags(markdown_html("It costs $5 today and $6 tomorrow, US$7 at most."))


@pytest.mark.parametrize("text", [*PAYLOADS, *MARKDOWN], ids=range(len(PAYLOADS) + len(MARKDOWN)))
@pytest.mark.parametrize("styled", [False, True])
def test_no_text_makes_an_element_that_does_something(text: str, styled: bool) -> None:
    """Nothing loads, runs or is submitted; a link leads to a web or mail address and says where; a style is a
    colour.
    """
    for tag, attributes in Elements(markdown_html(text, styled=styled)).found:
        assert tag not in {
            "img",
            "script",
            "style",
            "svg",
            "iframe",
            "object",
            "embed",
            "form",
            "input",
            "base",
            "meta",
            "link",
            "video",
            "audio",
        }
        assert not [
            name
            for name in attributes
            if name.startswith("on")
            or name in {"src", "srcset", "id", "poster", "action", "background", "ping"}
        ]
        if "href" in attributes:
            assert tag == "a"
            assert str(attributes["href"]).startswith(("https://", "http://", "mailto:"))
            assert (attributes["target"], "noopener" in str(attributes["rel"])) == ("_blank", True)
        style = str(attributes.get("style", "color:var(--jp-a,#b)"))
        assert re.fullmatch(r"color:var\(--jp-[\w-]+, ?#\w+\)", style) or (
            tag in ("pre", "code") and "url" not in style and "position" not in style
        )


def test_a_growing_text_ends_as_the_whole() -> None:
    """Rendered piece by piece, the complete blocks and the last one are what the whole text gives; no block
    is rendered twice.
    """
    growing, settled, tail, blocks = GrowingText(), "", "", 0
    for end in range(1, len(ANSWER) + 1):
        more, tail = growing.grown(ANSWER[:end])
        settled += more
        blocks += bool(more)

    assert (settled + tail).replace("\n", "") == markdown_html(ANSWER).replace("\n", "")
    assert 5 <= blocks <= 12


def test_a_page_is_given_the_html_of_streamed_text_and_of_the_end() -> None:
    """Pieces bring what is complete and the rest; the end brings the whole."""
    view = RunView()
    rendered = RenderedChanges(view)
    first = rendered.of(view.apply(e.ModelDelta(call="m", text="# A\n\nb")))
    more = rendered.of(view.apply(e.ModelDelta(call="m", text=" **c**")))
    last = rendered.of(view.apply(e.ModelAnswered(call="m", step="s", model="x", text="# A\n\nb **c**")))

    assert (first[0]["html"], first[0]["settled"], first[0]["tail"]) == ("", "<h3>A</h3>", "<p>b</p>\n")
    assert (more[0]["settled"], more[0]["tail"]) == ("", "<p>b <strong>c</strong></p>\n")
    assert (
        next(change for change in last if change["op"] == "row")["html"]
        == "<h3>A</h3><p>b <strong>c</strong></p>\n"
    )


def test_an_answer_is_shown_once() -> None:
    """The last text is the answer, also where it ends in an empty line."""
    view = RunView()
    view.apply(e.ModelAnswered(call="m", step="s", model="x", text="# Done\n"))
    view.apply(e.RunFinished(outcome="complete", answer="# Done"))

    assert run_html(view).count("<h3>Done</h3>") == 1


def test_a_formula_that_defines_macros_is_shown_as_written() -> None:
    """Macros can grow without end, and an unknown formula is text."""
    assert "math" not in tags(markdown_html(r"$\def\x{\x\x}\x$ and $\frac{$"))


def test_nodes_hold_no_html_and_no_address_that_runs() -> None:
    """A page that may parse no HTML builds elements of nodes: known tags, web addresses, and texts."""
    text = "**Hi** <img src=x onerror=alert(1)> [a](javascript:alert(1)) [b](https://x.example)\n\n- `one`\n\n$x^2$"
    first, _, listed, _, formula, *_ = markdown_nodes(text)
    bold, middle, link = first[2:]
    assert bold == ["strong", "", "Hi"]
    assert middle == " <img src=x onerror=alert(1)> [a](javascript:alert(1)) "
    assert link == ["a", "https://x.example", "b"]
    assert ["li", "", ["code", "", "one"]] in listed
    assert "".join(one for one in formula if isinstance(one, str)) == "px2"
