"""A cited line speaks for the whole function, method or class that it is in, in every language with a
grammar.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel_lab.language.grammars import GRAMMARS
from kestrel_lab.verification import places
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

FILLED = 30
"""Lines between what is cited and what is named: more than a citation may be off."""
SOURCES = {
    "a.py": ("def {name}():\n", "    y = {call}()\n", "    x = 1\n", "    return x\n"),
    "a.js": ("function {name}() {{\n", "  {call}();\n", "  var x = 1;\n", "}}\n"),
    "a.ts": ("function {name}(): void {{\n", "  {call}();\n", "  let x: number = 1;\n", "}}\n"),
    "a.tsx": ("const {name} = () => {{\n", "  {call}();\n", "  const x = 1;\n", "}};\n"),
    "A.java": ("class {name} {{ void run() {{\n", "  {call}();\n", "  int x = 1;\n", "}} }}\n"),
    "a.go": ("func {name}() {{\n", "\t{call}()\n", "\tx = 1\n", "}}\n"),
    "a.rs": ("fn {name}() {{\n", "    {call}();\n", "    let x = 1;\n", "}}\n"),
    "a.c": ("int {name}(void) {{\n", "    {call}();\n", "    int x = 1;\n", "}}\n"),
    "a.cpp": ("int Tree::{name}() {{\n", "    {call}();\n", "    int x = 1;\n", "}}\n"),
}
"""The head, a line that calls, a line that fills, and the end of a definition, by file."""


def definition(path: str, name: str, call: str) -> str:
    """A long definition that calls something at its beginning."""
    head, calls, fills, end = SOURCES[path]
    return head.format(name=name) + calls.format(call=call) + fills.format() * FILLED + end.format()


def concerns(root: Path, answer: str) -> list[str]:
    """What is said of an answer."""
    return [one.what for one in check_answer(Subject(answer=answer, ground=Files(root)))]


def test_every_language_is_tried() -> None:
    """No grammar is left out of the table above."""
    assert {places.definitions_in.__module__} == {"kestrel_lab.language.definitions"}
    assert len(SOURCES) == len(GRAMMARS)


@pytest.mark.parametrize("path", SOURCES)
def test_a_line_speaks_for_its_definition(tmp_path: Path, path: str) -> None:
    """What the definition has far from the cited line is not called wrong; what only another definition has
    is.
    """
    (tmp_path / path).write_text(
        definition(path, "first_one", "open_gate") + definition(path, "second_one", "close_gate")
    )
    last, end = FILLED + 2, 2 * (FILLED + 3)
    assert concerns(tmp_path, f"`open_gate` is called in {path}:{last}.") == []
    assert concerns(tmp_path, f"`first_one` calls `open_gate` ({path}:{last}).") == []
    assert concerns(tmp_path, f"It calls `close_gate` in {path}:{end - 1}.") == []
    (wrong,) = concerns(tmp_path, f"`open_gate` is called in {path}:{end - 1}.")
    assert wrong.startswith(f"{path}:{end - 1} has nothing of open_gate")


def test_a_line_speaks_for_its_class(tmp_path: Path) -> None:
    """A method's line speaks for its class as well, and one behind the class does not."""
    filled = "        self.x = 1\n" * FILLED
    (tmp_path / "a.py").write_text(
        f"class Gate:\n    def open_it(self):\n        ring_bell()\n{filled}    def "
        f"close_it(self):\n{filled}\n\nx = 1\n" + "y = 2\n" * FILLED
    )
    lines = 3 + FILLED + 1 + FILLED
    assert concerns(tmp_path, f"`ring_bell` is used in a.py:{lines}.") == []
    assert len(concerns(tmp_path, f"`ring_bell` is used in a.py:{lines + 3 + FILLED}.")) == 1


def test_a_quote_of_the_same_definition_is_not_called_wrong(tmp_path: Path) -> None:
    """A docstring that is quoted beside another line of its function."""
    body = "    x = 1\n" * FILLED
    (tmp_path / "a.py").write_text(
        f'def gate():\n    """Open the gate for anybody who rings."""\n{body}\n\ndef other():\n{body}'
    )
    said = 'It says "Open the gate for anybody who rings" (a.py:{}).'
    assert concerns(tmp_path, said.format(FILLED)) == []
    assert len(concerns(tmp_path, said.format(2 * FILLED + 3))) == 1


def test_a_check_without_definitions_would_accuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that knows no definitions calls a right place wrong."""
    (tmp_path / "a.go").write_text(definition("a.go", "first_one", "open_gate"))
    monkeypatch.setattr(places, "definitions_in", lambda *_: ())
    assert len(concerns(tmp_path, f"`open_gate` is called in a.go:{FILLED + 2}.")) == 1
