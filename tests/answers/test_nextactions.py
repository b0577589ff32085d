"""What is proposed next can be done: programs, files and tests are there, and nothing is run to find out."""

from pathlib import Path

import pytest

from kestrel_lab.answers.next_actions import MOST, NextAction, next_actions
from kestrel_lab.verification.workspace_files import Files

ANSWER = """\
I changed `src/parser.py`; see also docs/gone.md and https://example.org/setup.py.

```sh
$ python -m compileall src
no-such-program --now
./run.sh fast
../outside.sh
# a comment
python -c 'print("
```
Then `git status --short`, not `frobnicate all`.
"""


@pytest.fixture
def project(tmp_path: Path) -> Files:
    """A project with a module, its test and a script."""
    for name in (
        "src/parser.py",
        "tests/test_parser.py",
        "run.sh",
        "pyproject.toml",
        ".git/test_parser.py",
        "src/parser[1].py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return Files(tmp_path)


def test_only_what_is_possible_is_proposed(project: Files) -> None:
    """Tests of what was changed first, then commands whose program is there, then files; what the run ran is
    left out.
    """
    found = next_actions(
        ANSWER, project, changed=["src/parser.py", "src/gone.py"], ran=["git  status --short"]
    )
    assert found == (
        NextAction(kind="test", text="tests/test_parser.py", why="tests src/parser.py, changed by this run"),
        NextAction(
            kind="command", text="python -m pytest tests/test_parser.py", why="runs tests/test_parser.py"
        ),
        NextAction(kind="command", text="python -m compileall src", why="proposed in the answer"),
        NextAction(kind="command", text="./run.sh fast", why="proposed in the answer"),
        NextAction(kind="file", text="src/parser.py", why="changed by this run"),
        NextAction(kind="file", text="run.sh", why="named in the answer"),
    )


def test_hostile_names_do_nothing(project: Files) -> None:
    """Patterns in names are names, hidden characters disqualify a command, and there is an end to the
    list.
    """
    assert [
        each.text for each in next_actions("See `src/parser[1].py`.", project, changed=["src/parser[1].py"])
    ] == ["src/parser[1].py"]
    assert next_actions("`git status\u202e --short`", project) == ()
    assert len(next_actions("\n".join(f"`git show {n}`" for n in range(50)), project)) == MOST
    assert next_actions("", project) == ()


@pytest.mark.parametrize(
    ("command", "proposed"),
    [
        ("python -m pytest -q tests", False),
        ("pytest", False),
        ("cd . && pytest 'tests/test_parser.py' -x", False),
        ("npm test", False),
        ("pytest tests/test_parser.py::test_one", True),
        ("pytest -k one", True),
        ("pytest src", True),
        ("cat tests/test_parser.py", True),
    ],
)
def test_a_test_that_has_just_run_is_not_proposed(project: Files, command: str, proposed: bool) -> None:
    """Neither as a test nor as a command, if all of its file ran behind the last change."""
    found = next_actions("Done.", project, changed=["src/parser.py"], ran=[command], ran_last=[command])
    assert any(one.kind == "test" for one in found) == proposed
    assert any("pytest" in one.text for one in found) == proposed
