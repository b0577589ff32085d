"""`make test` repeats what failed, once and alone: what passes then is named and does not fail it."""

import subprocess
import sys
from pathlib import Path

import pytest
from waits import PATIENCE_S

TESTS = Path(__file__).parent

FIRST_TIME = """
import pathlib, pytest
def failing_first(name):
    place = pathlib.Path(__file__).with_name(name)
    seen = place.exists()
    place.touch()
    assert seen, "a busy machine"
"""


def second_pass(folder: Path, tests: str, *more: str) -> tuple[int, str]:
    """Run the tests of a file as `make test` does, with the hooks of the project; return the exit code and what was
    printed.
    """
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["once: x"]\n')
    (folder / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n"
        "from outcomes import pytest_addoption, pytest_runtest_logreport, pytest_sessionfinish, "
        "pytest_terminal_summary\n"
    )
    (folder / "test_it.py").write_text(FIRST_TIME + tests)
    command = [sys.executable, str(TESTS / "second_pass.py"), "-p", "no:cacheprovider", *more, "test_it.py"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_unsteady_test_is_named_and_does_not_fail(tmp_path: Path, workers: str) -> None:
    """It is printed by its name, with the traceback of its first failure; the rest is not repeated."""
    code, out = second_pass(tmp_path, "def test_a(): failing_first('a')\ndef test_b(): pass\n", "-n", workers)
    assert code == 0, out
    assert "unsteady: test_it.py::test_a failed at first" in out
    last = out[out.index("second pass: 1 of the tests failed") :]
    assert "AssertionError: a busy machine" in last and "1 passed" in last


def test_a_broken_test_fails(tmp_path: Path) -> None:
    """Beside an unsteady one, too: what fails twice fails CI."""
    code, out = second_pass(tmp_path, "def test_a(): failing_first('a')\ndef test_b(): assert 1 == 2\n")
    assert code == 1
    assert "unsteady: test_it.py::test_a" in out and "failed twice: test_it.py::test_b" in out
    assert "unsteady: test_it.py::test_b" not in out


def test_a_rare_event_counts_at_once(tmp_path: Path) -> None:
    """A test marked `once` is not repeated: it would pass nearly every time, whatever is broken."""
    code, out = second_pass(tmp_path, "@pytest.mark.once\ndef test_a(): failing_first('a')\n")
    assert code == 1 and "second pass: none, test_it.py::test_a: marked `once`" in out


@pytest.mark.parametrize(("number", "code"), [(5, 0), (6, 1)])
def test_more_than_five_are_not_unsteady(tmp_path: Path, number: int, code: int) -> None:
    """Five may be repeated; with six something is broken."""
    tests = f"@pytest.mark.parametrize('n', range({number}))\ndef test_a(n): failing_first(str(n))\n"
    assert second_pass(tmp_path, tests)[0] == code


@pytest.mark.parametrize(
    ("tests", "code"), [("import nothing_of_this_name\n", 2), ("", 5), ("def test_a(): pass\n", 0)]
)
def test_other_ends_are_those_of_pytest(tmp_path: Path, tests: str, code: int) -> None:
    """A file that cannot be imported is not a failed test, and no test at all is no success."""
    found, out = second_pass(tmp_path, tests)
    assert found == code and "second pass" not in out


def test_skips_are_counted_by_reason(tmp_path: Path) -> None:
    """A line for each reason, however many tests have it; an expected failure is no skip."""
    tests = (
        "@pytest.mark.parametrize('n', range(12))\n@pytest.mark.skipif(True, reason='bubblewrap is not "
        "installed')\ndef test_a(n): pass\n"
        "def test_b(): pytest.skip('no browser')\n@pytest.mark.xfail\ndef test_c(): assert 0\ndef "
        "test_d(): pass\n"
    )
    code, out = second_pass(tmp_path, tests)
    assert code == 0 and "  12 bubblewrap is not installed\n   1 no browser\n" in out


def test_ci_runs_the_commands_of_the_readme() -> None:
    """Word for word and before all else, so that nothing which CI installs by itself hides what they do
    not.
    """
    project = TESTS.parent
    shown = [
        line.partition("#")[0].strip()
        for line in (project / "README.md").read_text().splitlines()
        if line.startswith("    make ")
    ]
    ran = [
        line
        for line in (project / ".ci" / "run").read_text().splitlines()
        if line and not line.startswith(("#", "set ", "cd ", "export "))
    ]
    assert shown and ran[: len(shown)] == shown
    assert all(line.startswith("make ") for line in ran)


def test_a_program_is_hidden_from_the_path(tmp_path: Path) -> None:
    """The command finds every program but that one, and its exit code is the command's."""
    script = [
        sys.executable,
        str(TESTS / "path_without.py"),
        "ls",
        "--",
        "sh",
        "-c",
        "command -v ls || cat /dev/null && exit 7",
    ]
    assert subprocess.run(script, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 7
    script[-1] = "command -v ls"
    assert subprocess.run(script, capture_output=True, timeout=PATIENCE_S, check=False).returncode != 0
