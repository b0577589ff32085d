"""Lines are counted as files and editors count them, and what was read is current as long as its lines are
the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel_lab.core.citations import Citation, answer_spans, is_current, resolve_citation
from kestrel_lab.core.text_files import lines_with_ends, split_lines
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.evidence import evidence_of
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

SIGNS = ["\x0b", "\x0c", "\x1c", "\x1d", "\x85", "\u2028", "\u2029"]
"""What `str.splitlines` takes for the end of a line, and no editor does."""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("\n", [""]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\rb\nc", ["a\rb", "c"]),
        ("a\rb", ["a", "b"]),
    ]
    + [(f"a{sign}b\nc", [f"a{sign}b", "c"]) for sign in SIGNS],
)
def test_lines(text: str, lines: list[str]) -> None:
    """Line feeds end lines, carriage returns only where there is no line feed at all; together with their
    ends lines are the text.
    """
    assert split_lines(text) == lines
    assert "".join(lines_with_ends(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo\n\nfour\n\n\nseven\n",
        "one\r\ntwo\r\n\r\nfour\r\n",
        "a\n",
        "a",
        "\n\n\n",
        "x\x0cy\n\nz\u2028\n\n",
    ],
)
def test_untouched_lines_are_current(text: str) -> None:
    """Whatever range of a file is cited, also one that begins or ends with blank lines, it has not moved
    while nobody touched the file.
    """
    span = answer_spans("main.1.1", "read_file", {"path": "a.txt"}, text)
    count = len(split_lines(text))
    for first in range(1, count + 1):
        for last in range(first, count + 1):
            found = resolve_citation(
                Citation(text="", at=0, path="a.txt", first=first, last=last), span, lambda _: text
            )
            assert found is not None
            assert (found.first, found.last, is_current(found, lambda _: text)) == (first, last, "current")


def test_touched_lines_are_told(tmp_path: Path) -> None:
    """Lines that were moved or changed are told, also where a blank line ends them."""
    text = "one\ntwo\n\nfour\n"
    span = answer_spans("main.1.1", "read_file", {"path": "a.txt"}, text)
    found = resolve_citation(Citation(text="", at=0, path="a.txt", first=2, last=3), span, lambda _: text)
    assert found is not None
    assert is_current(found, lambda _: "zero\n" + text) == "moved"
    assert is_current(found, lambda _: "one\n2\n\nfour\n") == "stale"
    assert is_current(found, lambda _: "one\ntwo\nthree\nfour\n") != "current"
    assert is_current(found, lambda _: None) == "gone"


@pytest.mark.parametrize("sign", SIGNS)
def test_places_behind_a_sign_are_right(tmp_path: Path, sign: str) -> None:
    """A form feed or a separator in a file shifts no line number: what is cited behind it is found there, and
    no line more is in the file.
    """
    (tmp_path / "a.py").write_text(
        f"'''x{sign}y{sign}z'''\n{sign}\n" + "\n" * 20 + "def target():\n    return 1\n", newline=""
    )
    subject = Subject(answer="`target` is in a.py:23-24.", ground=Files(tmp_path))
    assert check_answer(subject) == ()
    assert [one.state for one in evidence_of(subject)] == ["cited"]
    wrong = Subject(answer="`target` is in a.py:25.", ground=Files(tmp_path))
    assert ["the file has 24 lines" in one.what for one in check_answer(wrong)] == [True]
