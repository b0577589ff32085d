"""The tool that changes the package and sees which changes the tests notice."""

import ast
from pathlib import Path

import pytest

from bench import mutants
from bench.mutants import Copy, Covering, Mutant, Reached, mutants_of, notice, put, table

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
    assert lines[2] == "| promises | seed 1 | 5 | 3 | 1 | 1 | 75% (30–95) | 85 % |"
    assert lines[-1] == "Caught by kind: return 3 of 4."


STATEMENTS = """\
LIMIT = 3 + 1
def f(a, b=2 + 1):
    if (
        a < b
    ):
        return (a +
                b)
    class Inner:
        kept = a < 1
    return [lambda: a - 1]
"""


def test_the_tests_of_a_change_are_those_that_ran_its_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From where the statement begins to where the change ends; for what runs at import no test is left out."""
    monkeypatch.setattr(mutants, "PACKAGE", tmp_path)
    (tmp_path / "m.py").write_text(STATEMENTS)
    found = {(one.line, one.kind): mutants.ran(one) for one in mutants_of(tmp_path / "m.py")}
    assert found == {
        (1, "arithmetic"): None,
        (2, "arithmetic"): None,
        (4, "comparison"): range(3, 5),
        (6, "return"): range(6, 8),
        (6, "arithmetic"): range(6, 8),
        (9, "comparison"): range(9, 10),
        (10, "return"): range(10, 11),
        (10, "arithmetic"): range(10, 11),
    }


TESTS = """\
import subprocess
import sys

from kestrel_lab.core.sanitize import one_line


def test_here():
    assert one_line("a", 3)


def test_elsewhere():
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_nothing():
    pass


def test_broken():
    assert not one_line("a", 3)
"""


def test_the_recorder_says_which_tests_ran_a_line(tmp_path: Path) -> None:
    """A test that starts Python may run any line; one that fails anyway is chosen for none."""
    (tmp_path / "test_it.py").write_text(TESTS)
    reached, lines = Reached(tmp_path / "reached"), range(1, 10_000)

    class Here(Copy):
        def __init__(self) -> None:
            self.folder = Path(mutants.ROOT)

    file = str(tmp_path / "test_it.py")
    assert reached.tests(file, "core/sanitize.py", lines, Here()) is None  # to record it takes longer than to run it once
    of = [reached.tests(file, "core/sanitize.py", some, Here()) or {} for some in (lines, range(0), None)]
    names = [{name.rpartition("::")[2] for name in tests} for tests in of]
    assert names == [{"test_here", "test_elsewhere"}, {"test_elsewhere"}, {"test_here", "test_elsewhere", "test_nothing"}]


FLAKY = """\\
from pathlib import Path


def test_once():
    seen = Path(__file__).with_name("seen")
    assert seen.exists() or seen.touch()


def test_never():
    raise AssertionError


def test_always():
    pass
"""


def test_a_change_is_noticed_by_a_test_that_fails_twice(tmp_path: Path) -> None:
    """One that fails once, as happens on a busy machine, is left out, and the others are asked."""
    (tmp_path / "test_it.py").write_text(FLAKY)
    for name in ("bench", "kestrel_lab"):
        (tmp_path / name).symlink_to(mutants.ROOT / name)

    class Here(Copy):
        def __init__(self) -> None:
            self.folder = tmp_path

    names = ["test_it.py::test_once", "test_it.py::test_always"]
    assert not notice(names, Here(), 600)
    (tmp_path / "seen").unlink()
    assert notice([*names, "test_it.py::test_never"], Here(), 600)
    assert (tmp_path / "failed.txt").read_text() == "test_it.py::test_never\n" * 2
