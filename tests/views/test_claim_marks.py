"""Claims of an answer are underlined by their state, and its numbers lead to the calls that gave them."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.events import union as e
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.verification.answered_calls import AnsweredCall
from kestrel_lab.verification.claims import claims_of
from kestrel_lab.verification.evidence import CitedClaim, evidence_of
from kestrel_lab.verification.subject import Subject
from kestrel_lab.views.evidence import cited_places, claim_ranges
from kestrel_lab.views.html.markdown import markdown_html
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.run_view import RunView

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Words(HTMLParser):
    """The text of HTML, and the tags with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[tuple[str, dict[str, str | None]]]()
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def marks(html: str) -> list[tuple[str, str]]:
    """State and text of each underlined piece."""
    found = re.findall(r'<span class="kst-claim kst-(\w+)"[^>]*>(.*?)</span>', html, re.DOTALL)
    return [(state, re.sub("<[^>]+>", "", text)) for state, text in found]


def claims(text: str, *found: tuple[str, str]) -> list[Any]:
    """The claims of a text with their states, as a row has them."""
    return [
        [at := text.index(claim), at + len(claim), state, f"evidence of {claim}"] for claim, state in found
    ]


def test_each_claim_is_underlined_whatever_markdown_it_is_written_in() -> None:
    """Emphasis, code, rows of tables, items and quotes keep what they mean; a claim that ends within an
    element is marked in pieces.
    """
    text = (
        "`c` begins it.\n\n**Bold.** `a` is b. Third **is bold. And fourth** here.\n\n| x | y "
        "|\n|---|---|\n| 1 | two |\n\n- an item\n\n> quoted\n"
    )
    states = ["wrong", "cited", "wrong", "changed", "unknown", "cited", "uncited", "changed"]
    said = [
        "`c` begins it.",
        "**Bold.**",
        "`a` is b.",
        "Third **is bold.",
        "And fourth** here.",
        "| 1 | two |",
        "an item",
        "quoted",
    ]
    html = markdown_html(text, claims=claims(text, *zip(said, states, strict=True)))

    pieces = [
        "c begins it.",
        "Bold.",
        "a is b.",
        "Third ",
        "is bold.",
        "And fourth",
        " here.",
        "1",
        "two",
        "an item",
        "quoted",
    ]
    kinds = [
        "wrong",
        "cited",
        "wrong",
        "changed",
        "changed",
        "unknown",
        "unknown",
        "cited",
        "cited",
        "uncited",
        "changed",
    ]
    assert marks(html) == [*zip(kinds, pieces, strict=True)]
    assert re.sub("</?span[^>]*>", "", html) == markdown_html(text)
    assert html.count("tabindex") == len(said)  # one stop for each claim, not for each piece


def test_a_claim_whose_marks_would_change_the_markdown_has_none_and_others_have() -> None:
    """One that ends within the address of a link, for example: the link stays, and the claim beside it is
    underlined.
    """
    text = "See [the page](https://a.example) now. It is so."
    html = markdown_html(text, claims=[[9, 24, "wrong", "x"], *claims(text, ("It is so.", "cited"))])
    assert marks(html) == [("cited", "It is so.")]
    assert re.sub("</?span[^>]*>", "", html) == re.sub("</?span[^>]*>", "", markdown_html(text))


@settings(max_examples=150, deadline=None)
@given(st.text("ab 1.*_`[](){}|>-#\n\\$⸨⸩", max_size=80), st.text("ab<>\"'&\n", max_size=20))
def test_marks_change_nothing_but_the_line(text: str, told: str) -> None:
    """Of any text, the HTML with marks is the HTML without them once the marks are taken away, and evidence
    in it is never markup.
    """
    said = [CitedClaim(text=one.text) for one in claims_of(text) if one.kind != "code"]
    found = [[*place, "wrong", told] for place in _places(text, said)]
    html = markdown_html(text, claims=found)

    assert re.sub(r'</?span(?: class="kst-claim[^>]*)?>', "", html) == re.sub(
        r"</?span>", "", markdown_html(text)
    )


def _places(text: str, said: list[CitedClaim]) -> list[Any]:
    at, found = 0, []
    for one in said:
        if one.text and (start := sanitize_text(text).find(sanitize_text(one.text), at)) >= 0:
            at = start + len(sanitize_text(one.text))
            found.append([start, at])
    return found


def test_evidence_is_text_in_an_attribute() -> None:
    """What a cited file holds cannot leave the attribute that it is shown by."""
    found = Words(markdown_html("It is so.", claims=[[0, 9, "cited", HOSTILE]], styled=True))

    assert [tag for tag, _ in found.tags] == ["p", "span"]
    assert found.tags[1][1]["data-shown"] == HOSTILE
    assert found.tags[1][1]["aria-description"] == HOSTILE


def test_who_denied_a_cited_call_is_said() -> None:
    """A claim that cites a denied call is not known to be true, and says by whom the call was denied."""
    calls = [
        AnsweredCall(call="main.1.1", tool="shell", args={}, ok=False, text="no", denied="denied by ada")
    ]
    backed = evidence_of(Subject(answer="It passed [main.1.1].", calls=calls))

    (claim,) = claim_ranges("It passed [main.1.1].", backed)
    assert claim == [0, 21, "unknown", "? [main.1.1]: unknown, the call of shell was denied by ada"]
    assert cited_places(backed) == [["[main.1.1]", "the call of shell was denied by ada", "unknown"]]


def test_nothing_is_underlined_where_nothing_is_cited() -> None:
    """An answer that points at nothing is shown as it is written."""
    assert claim_ranges("One. Two.", evidence_of(Subject(answer="One. Two."))) == []


def test_a_number_leads_to_the_call_that_gave_it() -> None:
    """`1,188` is linked to the row of the last call whose output has `1188`; a short number, which may be
    there by chance, is not.
    """
    view = RunView()
    view.head.change(run="r1")
    view.apply(e.RunStarted(goal="count", workspace="", model="toy"))
    for call, text in (("main.1.1", "1188 rows, 12 columns"), ("main.2.1", "n = 1188")):
        view.apply(e.ToolCalled(call=call, step="s", tool="run_python", args={"code": "x"}, danger="LOW"))
        view.apply(e.ToolAnswered(call=call, step="s", tool="run_python", text=text))
    view.apply(e.RunFinished(outcome="complete", answer="There are 1,188 rows and 12 columns, 2,377 cells."))
    page = Words(run_html(view))

    (link,) = [attrs for tag, attrs in page.tags if tag == "a"]
    assert link["href"] == "#kst-r1-c_main.2.1"
    assert [attrs["id"] for tag, attrs in page.tags if "id" in attrs] == [
        "kst-r1-c_main.1.1",
        "kst-r1-c_main.2.1",
    ]


def test_a_stored_run_shows_its_claims(tmp_path: Path) -> None:
    """The picture of a finished run has the claim underlined with the cited line beside it, as it is now."""
    (tmp_path / "a.txt").write_text("height = 7\n")
    model = ScriptedModel([[("read_file", {"path": "a.txt"})], "The height is 7 [a.txt:1]. It is high."])
    run = asyncio.run(Lab(tmp_path / "lab", env={}).run("how high?", model=model, workspace=tmp_path))
    before = run._repr_html_()
    (tmp_path / "a.txt").write_text("height = 9\n")
    after = run._repr_html_()

    assert [state for state, _ in marks(before)] == ["cited", "uncited"]
    assert "height = 7" in before
    assert [state for state, _ in marks(after)] == ["changed", "uncited"]
    assert "a.txt:1: changed since" in after
