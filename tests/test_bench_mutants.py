"""The tool that changes the package and sees which changes the tests notice."""

import ast
from pathlib import Path

import pytest

from bench import mutants
from bench.mutants import Covering, Mutant, mutants_of, put, table

SOURCE = """\
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import ast
def f(é: int, b: bool = False) -> "int | None":
    assert b is not None
    if b and é < 3:
        return é + 1
    while b:
        b = "x" + str(é) == ""
    return None
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """What is made of the source: kind, line, and the line as it is then."""
    monkeypatch.setattr(mutants, "PACKAGE", tmp_path)
    (tmp_path / "m.py").write_text(SOURCE)
    found = []
    for one in mutants_of(tmp_path / "m.py"):
        changed = one.made(SOURCE.encode()).decode()
        ast.parse(changed)
        found.append((one.kind, one.line, changed.splitlines()[one.line - 1].strip()))
    return found


def test_each_change_is_one_place_of_a_module_that_can_be_read(made: list[tuple[str, int, str]]) -> None:
    """Comparisons, conditions, booleans, sums and what is returned; neither assertions nor what is for type checkers."""
    assert sorted(made) == sorted(
        [
            ("boolean", 4, 'def f(é: int, b: bool = True) -> "int | None":'),
            ("condition", 6, "if (not (b and é < 3)):"),
            ("boolean", 6, "if ((b) or (é < 3)):"),
            ("comparison", 6, "if b and ((é) <= (3)):"),
            ("return", 7, "return None"),
            ("arithmetic", 7, "return ((é) - (1))"),
            ("condition", 8, "while (not (b)):"),
            ("comparison", 9, "b = (('x' + str(é)) != (''))"),
        ]
    )


def test_the_tests_of_a_module_are_those_that_import_it_or_what_imports_it() -> None:
    """The nearest come first, and a module that tests only use through others has those of the others."""
    covering = Covering()
    assert covering.of("eventlog/hash_chain.py")[0] == "tests/eventlog/test_chain.py"
    assert "tests/runtime/approvals/test_approvals.py" in covering.of("runtime/approvals/decide.py")
    assert "tests/runtime/mcp/test_mcp.py" in covering.of("mcp/connection.py")
    assert len(covering.of("mcp/connection.py", 4)) == 4


def test_what_a_changed_module_was_compiled_to_is_forgotten(tmp_path: Path) -> None:
    """A change of the same length in the same second would not be seen; what others were compiled to stays."""
    (cache := tmp_path / "__pycache__").mkdir()
    for name in ("m.cpython-311.pyc", "more.cpython-311.pyc"):
        (cache / name).touch()
    put(tmp_path / "m.py", b"x = 2")
    assert ((tmp_path / "m.py").read_text(), [path.name for path in cache.iterdir()]) == ("x = 2", ["more.cpython-311.pyc"])


def test_the_table_counts_by_group_and_leaves_out_what_ran_out_of_time() -> None:
    """The share is of the mutants whose tests ended."""
    one = Mutant("eventlog/store.py", 1, "return", 0, 1, "None")
    lines = table([(one, "caught"), (one, "caught"), (one, "caught"), (one, "missed"), (one, "time")], 1).splitlines()
    assert lines[2] == "| promises | 5 | 3 | 1 | 1 | 75% | 85 % |"
    assert lines[-1] == "Seed 1; caught by kind: return 3 of 4."
