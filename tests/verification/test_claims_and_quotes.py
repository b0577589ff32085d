"""An answer split into claims, what a claim names, and when a quote or a piece of code is the same as its
source.
"""

from __future__ import annotations

import pytest

from kestrel_lab.core.citations import Citation
from kestrel_lab.verification.claims import (
    MOST_CHARS,
    Statement,
    claims_of,
    files_in,
    folders_in,
    names_in,
    preceding_name,
)
from kestrel_lab.verification.evidence import states_summary
from kestrel_lab.verification.quoted_code import (
    changed_code,
    contains_code,
    normalised_code,
    operator_changed_in,
)
from kestrel_lab.verification.quotes import changed_quote, contains_quote, quotes_in, with_context_lines


def split(answer: str) -> list[tuple[str, str, str]]:
    """Kind, text and introduction of each claim."""
    found = claims_of(answer)
    assert all(
        answer[one.at :].startswith(one.text) for one in found if one.kind in ("sentence", "code", "row")
    )
    return [(one.kind, one.text.strip(), one.lead) for one in found]


@pytest.mark.parametrize(
    ("answer", "claims"),
    [
        (
            "# Head\n\nIt is red. See a.py.",
            [("sentence", "It is red.", "Head"), ("sentence", "See a.py.", "Head")],
        ),
        (
            "It has these two parts:\n\n- one part\n- [x] two parts",
            [
                ("sentence", "It has these two parts:", ""),
                ("sentence", "one part", "It has these two parts:"),
                ("sentence", "two parts", "It has these two parts:"),
            ],
        ),
        ("Note:\n\n- one part", [("sentence", "one part", "Note:")]),  # a label is no claim
        ("Done. It is red.", [("sentence", "It is red.", "")]),
        ("Look:\n\n```py\nx = 1\n```\n", [("code", "x = 1", "Look:")]),
        (
            "This was said by Ann:\n\n> It is red.",
            [("sentence", "This was said by Ann:", ""), ("quote", "It is red.", "This was said by Ann:")],
        ),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", [("row", "| 1 | 2 |", "")]),
        (
            "It is, e.g. in a.py, red. Mr. Green met R. Brown. 3 of them.",
            [
                ("sentence", "It is, e.g. in a.py, red.", ""),
                ("sentence", "Mr. Green met R. Brown.", ""),
                ("sentence", "3 of them.", ""),
            ],
        ),
        ("Call `a. B`. then go on.", [("sentence", "Call `a. B`. then go on.", "")]),
        (
            "It is red. [a.py:3] It is blue.",
            [("sentence", "It is red. [a.py:3]", ""), ("sentence", "It is blue.", "")],
        ),
        (
            "It stops. read_file goes on.",
            [("sentence", "It stops.", ""), ("sentence", "read_file goes on.", "")],
        ),
        ("它是红色的。门是绿色的。", [("sentence", "它是红色的。", ""), ("sentence", "门是绿色的。", "")]),
        ("---\n\n...", []),
        ("", []),
    ],
)
def test_an_answer_is_split_into_what_it_claims(answer: str, claims: list[tuple[str, str, str]]) -> None:
    """Sentences, items, rows, quotes and code, each with what introduces it; headings, labels and
    pleasantries claim nothing.
    """
    assert split(answer) == claims


def test_a_block_of_code_is_shown_by_the_claim_before_it() -> None:
    """Two blocks that follow each other are not shown by one another; a row knows the head of its table."""
    first, code, second = claims_of("This is how it is:\n\n```py\nx = 1\n```\n\n```\ny = 2\n```\n")
    assert (first.shown, code.shown, second.shown, code.language, second.language) == (
        "x = 1\n",
        "",
        "",
        "py",
        "",
    )
    (row,) = claims_of("| a | b |\n|---|---|\n| 1 | 2 |\n")
    assert row.header == "| a | b |"


@pytest.mark.parametrize("gap", [" ", "\n", ""])
def test_what_goes_on_without_an_end_is_cut(gap: str) -> None:
    """Parts are no longer than a claim may be, end between words where that can be, and make up the whole."""
    text = gap.join(["wordy"] * 600)
    parts = claims_of(f"x {text}")
    assert "".join(one.text for one in parts).replace("\n", " ") == f"x {text}".replace("\n", " ")
    assert max(len(one.text) for one in parts) <= MOST_CHARS
    assert all(one.text.strip().endswith("wordy") for one in parts) or not gap
    assert len(claims_of("x" * MOST_CHARS)) == 1


@pytest.mark.parametrize(
    ("text", "files", "folders", "names"),
    [
        ("Call `Cart.add` of shop/cart.py.", ["shop/cart.py"], [], ["Cart", "add"]),
        (
            "See https://x.test/a.py, b.py and c.zzz, d/c.zzz, Makefile.",
            ["b.py", "d/c.zzz", "Makefile"],
            [],
            [],
        ),
        ("`src/app` and `src/app/` and `a.b/c.d`", ["a.b/c.d"], ["src/app", "src/app"], ["src", "app"]),
        (
            "`self` and `if` and `ab` and `abc` and read_file, SessionStore, Word",
            [],
            [],
            ["abc", "read_file", "SessionStore"],
        ),
        ("`cart.py` and `run`", ["cart.py"], [], ["run"]),
    ],
)
def test_what_a_claim_names(text: str, files: list[str], folders: list[str], names: list[str]) -> None:
    """Files by their endings or folders, folders in backticks, names of code in backticks or by their
    form.
    """
    said = Statement(text=text, at=0)
    assert [one.text for one in files_in(said)] == files
    assert all(text[one.start : one.end].startswith(one.text) for one in files_in(said))
    assert [one.text for one in folders_in(said)] == folders
    assert names_in(text) == names
    assert list(files_in(Statement(text=text, at=0, kind="code"))) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("`Cart.add` at cart.py:3", "Cart.add"),
        ("`add()` (cart.py:3)", "add"),
        ("read_file, see cart.py:3", "read_file"),
        ("`add` and it calls cart.py:3", ""),
        ("`add` is described at length by cart.py:3", ""),
        ("add, see cart.py:3", ""),
    ],
)
def test_the_name_before_a_place(text: str, name: str) -> None:
    """The last name of code before it, unless the sentence has gone on to something else."""
    assert preceding_name(text, text.index("cart.py")) == name


SOURCE = (
    "def total(cart, tax=0.2):\n    # The sum is rounded up to whole cents.\n    return round(cart.sum "
    "* (1 + tax), 2)\n"
)


@pytest.mark.parametrize(
    ("quote", "there"),
    [
        ("The sum is rounded up to whole cents", True),
        ("the *sum* is rounded … whole cents", True),
        ("whole cents ... The sum is", True),  # parts may be anywhere
        ("The sum is rounded down to whole cents", False),
        ("ValueError: The sum is rounded up", True),
        ("The sum is {how} up to whole cents", True),
    ],
)
def test_a_quote_is_there_in_its_words(quote: str, there: bool) -> None:
    """Emphasis, what is left out and what is filled in make no difference; a word does."""
    assert contains_quote(quote, [SOURCE]) is there
    assert contains_quote(quote, ["nothing", SOURCE]) is there
    assert not contains_quote(quote, [])


def test_a_changed_quote_is_answered_with_its_source() -> None:
    """The nearest stretch of the text; nothing for what is unlike it, too short, or filled in there."""
    assert (
        changed_quote("the sum is rounded down to whole cents", ["nothing", SOURCE])
        == "the sum is rounded up to whole cents"
    )
    assert changed_quote("the sum is", [SOURCE]) == ""
    assert changed_quote("something else that nobody ever wrote", [SOURCE]) == ""
    assert (
        changed_quote("the file name was not found here", ['"the file {name} was not found anywhere"']) == ""
    )
    assert (
        changed_quote("one two three five", ["one two three four"]) == "one two three four"
    )  # the least that is compared


@pytest.mark.parametrize(
    ("text", "quotes"),
    [
        ('It says "the sum is rounded up" there', ["the sum is rounded up"]),
        (
            "It says “the sum is rounded up” and „die Summe wird hier gerundet“",
            ["the sum is rounded up", "die Summe wird hier gerundet"],
        ),
        ('It says "only three words" there', []),
        ('It runs `print("the sum is rounded up")` there', []),
    ],
)
def test_quotes_have_four_words(text: str, quotes: list[str]) -> None:
    """Shorter ones are names and turns of phrase; marks within code are no quotation."""
    assert list(quotes_in(Statement(text=text, at=0))) == quotes
    assert list(quotes_in(Statement(text="“the sum is rounded”", at=0, kind="quote"))) == [
        "the sum is rounded"
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("f(a, b,)", "f( a,b )", True),
        ("self.total(1)", "total(1)", True),
        ("x = 'a'", 'x = "a"', True),
        ("x = -1", "x = - 1", True),
        ("x - 1", "x -1", True),
        ("x - 1", "x + 1", False),
        ("f(-1)", "f(1)", False),
        ("a.b.c", "d.c", True),
    ],
)
def test_code_is_the_same_by_its_tokens(one: str, other: str, same: bool) -> None:
    """Blanks, marks of strings, commas at ends and what a name belongs to make no difference."""
    assert (normalised_code(one) == normalised_code(other)) is same


def test_code_that_differs_in_one_value_is_changed() -> None:
    """A number, an operator or an unheard-of name in place of another; two differences, and names that are
    known, are another code.
    """
    line = "return round ( sum * ( 1 + tax ) , 2 )"
    assert contains_code("return round(cart.sum * (1 + tax), 2)", [SOURCE])
    assert changed_code("return round(cart.sum * (1 + tax), 3)", [SOURCE]) == line
    assert changed_code("return round(cart.sum * (1 - tax), 2)", [SOURCE]) == line
    assert changed_code("return round(cart.sum * (1 + vat), 2)", [SOURCE]) == line
    assert changed_code("return round(cart.sum * (1 + vat), 2)", [SOURCE], ["vat"]) == ""
    assert changed_code("return round(cart.sum * (1 - tax), 3)", [SOURCE]) == ""
    assert changed_code("tax 0.3", [SOURCE]) == ""  # two tokens
    assert changed_code("return round(cart.sum * … 3)", [SOURCE]) == ""
    assert operator_changed_in("1 - tax", SOURCE)
    assert not operator_changed_in("1 + tax", SOURCE)
    assert not operator_changed_in("2 + tax", SOURCE)
    assert not operator_changed_in("tax", SOURCE)


def test_cited_lines_have_those_near_them() -> None:
    """Eight lines before and after, as far as there are any."""
    text = "\n".join(str(number) for number in range(1, 41))
    lines = with_context_lines(Citation(text="a:20-21", at=0, path="a", first=20, last=21), text).split("\n")
    assert (lines[0], lines[-1]) == ("12", "29")
    assert (
        with_context_lines(Citation(text="a:2", at=0, path="a", first=2, last=2), text).split("\n")[0] == "1"
    )


def test_claims_are_summed_up_by_their_states() -> None:
    """Only states that are there; one claim is one."""
    assert states_summary([]) == "no claims"
    assert states_summary(["cited"]) == "1 claim: 1 cited"
    assert states_summary(["cited", "wrong", "cited"]) == "3 claims: 2 cited, 1 wrong"
