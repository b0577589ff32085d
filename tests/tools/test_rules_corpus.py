"""A denied command is asked about or denied however a line runs it, and a line that only speaks of it passes."""

import pytest
from rules_corpus import ASKED, DENIED, HARMLESS, RUNS, lines_of

from kestrel_lab.core.calls import Call
from kestrel_lab.permissions.rulebook import read_rulebook
from kestrel_lab.shell_syntax import runnable_words
from kestrel_lab.shell_syntax.parser import read_line
from kestrel_lab.shell_syntax.python_code import starts_no_program

BOOK = read_rulebook([{"tool": "bash", "verdict": "deny", "command": [*DENIED]}])


def verdict(line: str) -> str:
    """What becomes of a command line; `-` if its danger decides."""
    ruling = BOOK.ruling(
        Call(id="c", kind="tool", target="bash", args={"command": line}), "/tmp"
    )  # no file is used
    return "-" if ruling is None else ruling.verdict


@pytest.mark.parametrize("line", lines_of(RUNS))
def test_a_line_that_runs_a_denied_command_does_not_pass(line: str) -> None:
    """Wrappers, known or not, conditions, texts that are fed, and code of other languages are looked through."""
    assert verdict(line) in ("ask", "deny")


@pytest.mark.parametrize("line", lines_of(HARMLESS))
def test_a_line_that_speaks_of_a_denied_command_passes(line: str) -> None:
    """Messages, patterns to search, names of files and code that starts no program ask nobody."""
    assert verdict(line) == "-"


@pytest.mark.parametrize("line", lines_of(ASKED))
def test_some_harmless_lines_are_asked_about(line: str) -> None:
    """Where it cannot be told, a person is asked, and nothing is denied."""
    assert verdict(line) == "ask"


def test_a_list_of_wrappers_lets_new_ones_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: if an unknown program counts as known, its words are not looked at."""
    read_line.cache_clear()
    monkeypatch.setattr(runnable_words, "is_known", lambda command: True)
    assert (verdict("mytool curl x"), verdict("proxychains4 curl x")) == ("-", "-")
    read_line.cache_clear()


STARTS = """
import os; os.system('x')
import json; json.codecs.builtins.exec('x')
from re import os
from pathlib import *
import sys; sys.modules['os']
print(().__class__)
f = getattr; f(1, 'a')
map(exec, ['x'])
import collections.abc
from . import x
import subprocess
open('x'
lambda x=eval: x
print(f'{().__class__}')
[].append(__builtins__)
import statistics; statistics.sys.modules
import random; random._os.system('x')
"""


@pytest.mark.parametrize("code", STARTS.strip().splitlines())
def test_code_that_may_start_a_program_is_not_harmless(code: str) -> None:
    """Neither through another module, nor by a hidden name, nor where it cannot be read."""
    assert not starts_no_program(code)


def test_harmless_code_is_read_whole() -> None:
    """Long, deep and odd code counts as code that may start anything."""
    assert starts_no_program("import json; print(json.dumps({'a': 'rm -rf'}))")
    assert not starts_no_program("-" * 10_000 + "1")
    assert not starts_no_program("1;" * 20_000)
    assert not starts_no_program("\0")
