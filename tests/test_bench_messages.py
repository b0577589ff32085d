"""The list of messages that a person reads."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bench.messages import page, text_of


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
