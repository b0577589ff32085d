"""The tool that changes the package and sees which changes the tests notice."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import mutants
from bench.mutants import PACKAGE, ROOT, Mutant, mutants_of, swap, table
from kestrel_lab.core.sanitize import one_line

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
    """Comparisons, conditions, booleans, sums and what is returned; neither assertions nor what is for type
    checkers.
    """
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


def test_the_table_counts_by_group_and_leaves_out_what_ran_out_of_time() -> None:
    """The share is of the mutants whose tests ended."""
    one = Mutant("eventlog/store.py", 1, "return", 0, 1, "None")
    lines = table(
        [(one, "caught"), (one, "caught"), (one, "caught"), (one, "missed"), (one, "time")], 1
    ).splitlines()
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


def test_the_tests_of_a_change_are_those_that_ran_its_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where the statement begins to where the change ends; for what runs at import no test is left
    out.
    """
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


def test_a_function_is_given_the_changed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the function that has the changed statement."""
    made = [mutant for mutant in mutants_of(PACKAGE / "core/sanitize.py") if mutant.kind == "return"]
    for function in (one_line, table):
        monkeypatch.setattr(function, "__code__", function.__code__)
    assert [mutant for mutant in made if swap(mutant, [table])] == []
    assert one_line("a") == "a"
    assert len([mutant for mutant in made if swap(mutant, [one_line])]) == 1
    assert one_line("a") is None


TESTS = """\
from pathlib import Path

from kestrel_lab.core.sanitize import one_line, shown_folder

BUSY = Path(__file__).with_name("busy")


def test_that_notices():
    assert one_line("a") == "a"


def test_that_fails_once_for_another_reason():
    assert shown_folder("x") or True
    if BUSY.exists():
        BUSY.unlink()
        raise AssertionError


def test_that_fails_anyway():
    assert not one_line("a")


"""

DRIVER = """\
import sys
from pathlib import Path

import pytest

from bench.mutants import PACKAGE, Trials, mutants_of
from kestrel_lab.core.sanitize import one_line, shown_folder


def first(function):
    start = function.__code__.co_firstlineno
    return next(one for one in mutants_of(PACKAGE / "core/sanitize.py") if one.line >= start and one.kind == \
"return")


here = Path.cwd()
trials = Trials([first(one_line), first(shown_folder)], here, 0, 1)
record = trials._record
trials._record = lambda files: (record(files), (here / "busy").touch())[0]
sys.exit(pytest.main(["-qq", "-pno:cacheprovider", "--rootdir=.", "test_it.py"], plugins=[trials]))
"""


def test_a_change_is_noticed_by_a_test_that_fails_twice(tmp_path: Path) -> None:
    """One that fails anyway is not asked; one that fails once, as happens on a busy machine, notices
    nothing.
    """
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "drive.py").write_text(DRIVER)
    subprocess.run(
        [sys.executable, "drive.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        check=True,
        capture_output=True,
    )
    assert [json.loads(line) for line in (tmp_path / "ends.jsonl").read_text().splitlines()] == [
        [0, "caught"],
        [1, "missed"],
    ]
    assert not (tmp_path / "busy").exists()
