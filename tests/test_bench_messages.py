"""The list of messages that a person reads."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from bench.messages import PACKAGE, SHOWN_IN, page, text_of
from kestrel_lab.core.sanitize import full_stop


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ('"two  words"', "two words"),
        ('f"no run {run_id!r} in {self.path}"', "no run {run_id} in {path}"),
        ("f\"{'one' if a else 'two'} words\"", "[one | two] words"),
        ('"a" if x else "b"', "a | b"),
        ('"begin " + name', "begin {…}"),
        ("name", None),
    ],
)
def test_a_text_is_shown_with_the_names_of_what_is_put_in(code: str, text: str | None) -> None:
    """A reader sees the sentence, and where something is put into it."""
    assert text_of(ast.parse(code, mode="eval").body) == text


def test_the_list_has_errors_help_and_lines_of_the_terminal() -> None:
    """One of each kind is found, and docstrings of functions that are no commands are left out."""
    found = page()
    for text in (
        "- give a goal or --resume, not both",
        "- List the newest runs, or remove runs.",
        "- most model turns of a run",
        "- waiting for an MCP client on standard input; Ctrl-D ends it",
    ):
        assert text in found.splitlines()
    assert "Start a run, or resume one" not in found


def test_the_kept_list_is_there() -> None:
    """`docs/messages.md` stands beside the other documents, under the heading that the script writes."""
    kept = Path(__file__).parents[1] / "docs" / "messages.md"
    assert kept.read_text(encoding="utf-8").startswith("# Messages\n")


_COUNTED = (
    "trials scenarios runs labels configurations commits pairs verdicts epochs cells columns models tools "
    "steps turns events"
).split()
_FOREIGN = ("error", "problem", "why", "reason")
_NEVER_ONE = (
    "trials is too small",
    "trials are",
    "epochs are more",
    "turns and is asked",
    "trials have a confidence",
)
"""What follows numbers that are never 1, in texts about too many or too few."""


def numbers_with_plurals(tree: ast.AST) -> list[str]:
    """The f-strings in which a number that may be 1 stands before a plural."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in pairwise(node.values):
            if not (isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant)):
                continue
            text = str(after.value)
            noun = re.match(r" ([a-z]+)\b", text)
            constant = isinstance(value.value, ast.Name) and value.value.id.isupper()
            words = any(text.startswith(f" {one}") for one in _NEVER_ONE)
            if noun and noun[1] in _COUNTED and not constant and not words:
                found.append(ast.unparse(node))
    return found


def test_numbers_and_nouns_agree() -> None:
    """A number that may be 1 is written by `format_count`, in everything that a person reads of trials, runs
    and suites: "1 trial", "2 trials".
    """
    assert numbers_with_plurals(ast.parse("f'{n} trials'")) == ["f'{n} trials'"]
    assert numbers_with_plurals(ast.parse("f'{NUMBER} trials, {format_count(n, \"run\")}'")) == []
    found = {
        str(path.relative_to(PACKAGE)): texts
        for name in ("evals", *SHOWN_IN)
        for path in (PACKAGE / name).rglob("*.py")
        if (texts := numbers_with_plurals(ast.parse(path.read_bytes())))
    }
    assert found == {}


def test_foreign_sentences_end_with_one_full_stop() -> None:
    """An error of unknown origin that another sentence follows ends with `full_stop`, which adds none to one
    that is there; no text of ours has two.
    """
    assert [full_stop(text) for text in ("gone", "gone.", "gone … ")] == ["gone.", "gone.", "gone …."]
    foreign = re.compile(rf"\{{({'|'.join(_FOREIGN)})\}}\. ")
    doubled = re.compile(r"[a-z]\.\.(?!\.)( |\")")
    found = [
        line
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if '"' in line and (foreign.search(line) or doubled.search(line))
    ]
    assert found == []
