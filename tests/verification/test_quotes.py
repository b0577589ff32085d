"""Quotes are exact, or nothing is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.citations import Span
from kestrel_lab.verification.answered_calls import AnsweredCall
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.evidence import evidence_of
from kestrel_lab.verification.quoted_code import changed_code, contains_code
from kestrel_lab.verification.quotes import changed_quote, contains_quote
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

CODE = '''"""Read the settings file and apply what it says."""

SIZE = 16 * 1024
"""Bytes that are read at once."""


def load(path):
    # The first line of the file is never a comment.
    for line in open(path):
        if line.startswith("#"):
            continue
        yield line.rstrip()
'''


@pytest.fixture
def ground(tmp_path: Path) -> Files:
    """A module."""
    (tmp_path / "reader.py").write_text(CODE)
    return Files(tmp_path)


@pytest.mark.parametrize(
    ("answer", "exact"),
    [
        ('reader.py says "The first line of the file is never a comment."', True),
        ('reader.py says "The first line of the file is always a comment."', False),
        ('See reader.py. The comment says "the first line of the file is never … a comment".', True),
        ('The docstring of reader.py reads "Read the settings file and ignore what it says."', False),
        ("> Read the settings file and apply what it says.\n\nThat is reader.py.", True),
        ("reader.py:\n\n> Read the settings folder and apply what it says.", False),
        ('It uses a "lazy loading of parts" style, see reader.py.', True),
        ("`SIZE = 16 * 1024` (reader.py:3) is the size.", True),
        ("`SIZE = 64 * 1024` (reader.py:3) is the size.", False),
        ("Set `SIZE = 64 * 1024` in a module of your own.", True),
        (
            'From reader.py:\n\n```python\nfor line in open(path):\n    if line.startswith("#"):\n     '
            "   continue\n```",
            True,
        ),
        (
            'From reader.py:\n\n```python\nfor line in open(path):\n    if line.startswith("%"):\n     '
            "   continue\n    yield line.rstrip()\n```",
            False,
        ),
        ("From reader.py, abridged:\n\n```python\nelif other:\n    pass\n```", True),
        ("```python\nprint('something else entirely')\nfor line in lines:\n    pass\n```", True),
        ('It printed "12 rows were read from the file".', True),
        ('It printed "15 rows were read from the file".', False),
        ('You asked for "all the rows of the first file", so here they are.', True),
        ('I wrote "Dear all, the report is attached here." to them.', True),
    ],
)
def test_a_quote_is_exact_or_accused(ground: Files, answer: str, *, exact: bool) -> None:
    """A quote with another word than its source is accused; one that is of no source, or of the person, is
    not.
    """
    span = Span(id="main.1.1", source="bash", text="12 rows were read from the file\n", call="main.1.1")
    sent = AnsweredCall(
        call="main.1.2",
        tool="send",
        args={"body": "Dear all, the report is attached here."},
        ok=True,
        text="sent",
    )
    subject = Subject(
        answer=answer, goal="Show me all rows of the first file", spans=(span,), calls=(sent,), ground=ground
    )
    assert [one.check for one in check_answer(subject)] == ([] if exact else ["quotes_are_exact"])


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(
            ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
        ),
        min_size=6,
        max_size=12,
    ),
    st.integers(0, 5),
)
def test_a_quote_is_found_as_it_is_and_as_changed_with_another_word(words: list[str], at: int) -> None:
    """Every part of a text is a quote of it; with one other word it is nearly one."""
    text = " ".join(["begin", *words, "end"])
    quote = " ".join(words)
    changed = " ".join([*words[:at], "other", *words[at + 1 :]])
    assert contains_quote(quote, [text])
    assert not contains_quote(changed, [text])
    assert changed_quote(changed, [text])


def test_code_is_compared_by_tokens() -> None:
    """White space, kinds of quotation marks and commas at ends make no difference; a value does."""
    text = "def load(path, size=16):\n    return read(path, size, 'utf-8')\n"
    assert contains_code('return read( path,size,"utf-8" )', [text])
    assert not contains_code("return read(path, size, 'utf-16')", [text])
    assert (
        changed_code("return read(path, size, 'utf-16')", [text]) == 'return read ( path , size , "utf-8" )'
    )
    assert changed_code("return read(path, length, 'utf-8')", [text], frozenset({"length"})) == ""


@pytest.mark.parametrize(
    ("quote", "line", "state"),
    [
        ("return a + b", "    return a - b", "wrong"),
        ("if x <= 3 and y", "if x < 3 and y:", "wrong"),
        ("x = f(a,b)", "x = f(a, b)", "cited"),
        ("a well-known - thing to say", "a well-known – thing to say", "cited"),
        ("the *big* red thing", "the **big** red thing", "cited"),
        ("3 - see below", "3 -- see below", "cited"),
    ],
)
def test_a_cited_quote_keeps_its_operators(tmp_path: Path, quote: str, line: str, state: str) -> None:
    """Code with the same words and another operator is another code; dashes and emphasis of prose may be
    typed otherwise.
    """
    (tmp_path / "calc.py").write_text(f"def add(a, b):\n{line}\n")
    claims = [
        {"text": "It adds.", "citations": [{"place": "calc.py:2", "quote": quote, "call": "", "address": ""}]}
    ]
    subject = Subject(answer="It adds.", goal="", spans=(), calls=(), actions=(), ground=Files(tmp_path))
    assert [one.state for one in evidence_of(subject, claims)] == [state]
