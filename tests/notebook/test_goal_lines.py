"""Which lines of `%kestrel` are goals, and which are commands: their words decide, not their first one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from kestrel_lab import Lab, UsageError
from kestrel_lab.cli.command_arguments import takes_words
from kestrel_lab.core.errors import KestrelError
from kestrel_lab.notebook.command_line import root_command
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel

GOALS = """
train a model on @df
find the duplicates in @df
show me the outliers in @df
compare the two columns of @df
search for dead code
fix the bug in calc.py
import the csv files of this folder
plan the analysis of @df
index the columns of @df
explain calc.py
time the function in calc.py
model the sales in @df
models for @df: which fits?
test calc.py
tune the learning rate
memory use of @df
why is calc.py slow?
undo the last change
summarise @df
summarize @df
plot a
describe @df
help me with @df
Blame it on calc.py
trust but verify calc.py
merge @df with itself
rules of calc.py
list the files
apply log to @df.a
scenario analysis of @df
what is in this folder
runs of calc.py
home directory size
show @df
show columns
find @df
find bugs in calc.py
compare f and g
compare a.csv and b.csv
import calc.py and call f
run the tests and tell me what fails
fork calc.py into two modules
resume writing the report where it ended
follow the imports of calc.py
cancel every order of @df that is late
approve or reject each row of @df
deny list for @df
diff calc.py and the one before
align the columns of @df
shrink @df to 10 rows
chat with me about @df
serve @df as a web page
init a package here
eval the expression in calc.py
router for a web application
notebook about @df
mcp servers: what are they?
skills that this folder needs
macros in calc.c
taint analysis of calc.py
config files of this folder
doctor @df: fill the gaps
gc pauses of calc.py: how long are they?
schema of @df
tools that calc.py needs
trust @df?
fit a line to @df
form groups of @df
prune @df
chart the sales
how many rows has @df
what's in calc.py
the users' files, which are there?
Which file defines f?
Which file defines f??
why?
who calls g()?
""".strip().splitlines()
COMMANDS = [
    "show",
    "show r0a1-b2",
    "show @run",
    "show {run}",
    "show {run.id}",
    "show r0 r1",
    "show r0 --html x.html",
    "diff @run r1",
    "resume r0",
    "cancel r0",
    "apply r0 calc.py",
    "undo",
    "undo r0.c1",
    "runs",
    "runs --limit 3",
    "runs remov r0",
    "runs remove r0",
    "find twice",
    'find "refund twice"',
    "find refund twice --since 2w",
    'search "dead code"',
    "search @query",
    "search dead code --top 3",
    "time",
    "time next friday at 15:30",
    "time 3pm CST",
    "time nächsten Freitag --language de",
    'plan "tidy up" --plan react',
    "compare suite.yaml HEAD~1 HEAD",
    "compare HEAD",
    "compare a b -s suite.yaml",
    "import calc.py",
    "import @file",
    "memory",
    "memory recall how are the tests run",
    "memory add Tests are run with make.",
    "memory serch tests",
    "eval rn",
    "eval run suite.yaml",
    "eval summary sums",
    "rules try bash 'git push'",
    "macros show m",
    "config cahce off",
    "config cache refresh",
    "schema suite",
    "init suites",
    "trust --show",
    "models",
    "tools",
    "tools --help",
    "help",
    "help run",
    "help eval run",
]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A shell with the extension, a lab whose model answers anything, and variables of several kinds."""
    import pandas as pd

    monkeypatch.chdir(tmp_path)
    Path("calc.py").write_text("def f(): pass\n")
    ip = InteractiveShell.instance()
    ip.run_line_magic("load_ext", "kestrel_lab")
    lab = Lab(model=ScriptedModel(lambda _: "Done."))
    ip.push(  # type: ignore[no-untyped-call]
        {
            "lab": lab,
            "df": pd.DataFrame({"a": [1]}),
            "query": "dead code",
            "file": Path("calc.py"),
            "run": lab.run_sync("Begin."),
        }
    )
    yield ip
    ip.run_line_magic("unload_ext", "kestrel_lab")
    lab.close()
    InteractiveShell.clear_instance()


def carried_out(ip: InteractiveShell, line: str) -> Any:
    """What a line gives."""
    with capture_output():
        result = ip.run_cell(f"%kestrel {line}")  # type: ignore[no-untyped-call]
    result.raise_error()
    return result.result


@pytest.mark.parametrize("line", GOALS)
def test_words_that_no_command_can_take_are_a_goal(shell: InteractiveShell, line: str) -> None:
    """Whatever word they begin with and whatever sign ends them; the goal is what was typed."""
    before = len(shell.user_ns["lab"].runs())
    done = carried_out(shell, line)
    assert isinstance(done, Run)
    assert done.answer == "Done."
    assert len(shell.user_ns["lab"].runs()) == before + 1
    typed = line.removeprefix("run ")
    beginning = typed.partition("@")[0].strip()
    assert done.goal.startswith(beginning)
    if "@" not in typed:
        assert done.goal == typed


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_with_its_arguments_is_no_goal(shell: InteractiveShell, line: str) -> None:
    """It does what it says, or is refused with what is wrong with it; no model is asked to guess."""
    lab = shell.user_ns["lab"]
    with suppress(KestrelError):
        carried_out(shell, line)
    assert [goal for goal in lab.runs().goal if goal.partition(" ")[0] == line.partition(" ")[0]] == []


@pytest.mark.parametrize("line", ["websearch what is new in pandas", "orchestrate tidy up here", "doctor"])
def test_a_command_whose_words_an_agent_works_on_takes_any(line: str) -> None:
    """They need no quotes: as a goal they would reach an agent, too."""
    assert takes_words(root_command(), line.split(), {})


def test_help_of_ipython_and_texts_with_such_lines_stay_as_they_are(shell: InteractiveShell) -> None:
    """`%kestrel?` is IPython's help; a line in a string is a string."""
    with capture_output() as captured:
        shell.run_cell("%kestrel?")  # type: ignore[no-untyped-call]
        shell.run_cell("text = '''\n%kestrel why?\n'''")  # type: ignore[no-untyped-call]
    assert shell.user_ns["text"] == "\n%kestrel why?\n"
    assert len(shell.user_ns["lab"].runs()) == 1
    assert "not found" not in captured.stdout


def test_a_question_is_assigned_and_works_below_other_magics(shell: InteractiveShell) -> None:
    """`answer = %kestrel …?`, several in a cell, and indented ones."""
    with capture_output():
        shell.run_cell("a = %kestrel Which file defines f?\nfor _ in [1]:\n    b = %kestrel who calls f?")  # type: ignore[no-untyped-call]
    assert [shell.user_ns[name].goal for name in "ab"] == ["Which file defines f?", "who calls f?"]


def test_a_line_that_begins_like_a_command_says_that_it_is_a_goal(shell: InteractiveShell) -> None:
    """With the way to the command; a line that begins like no command says nothing."""
    with capture_output() as captured:
        shell.run_cell("%kestrel show me the rows")  # type: ignore[no-untyped-call]
        shell.run_cell("%kestrel explain the rows")  # type: ignore[no-untyped-call]
    assert captured.stdout.count("These words are a goal") == 1
    assert "%kestrel show --help" in captured.stdout


@pytest.mark.parametrize("line", ["shwo r0", "rsume r0", "evla run a.yaml", "orchestrat the tests"])
def test_a_mistyped_command_is_guessed_where_its_arguments_fit(shell: InteractiveShell, line: str) -> None:
    """Nothing is run: who mistyped a letter did not mean a goal."""
    with pytest.raises(UsageError, match="did you mean %kestrel"):
        carried_out(shell, line)


def test_fixing_is_a_command_below_a_cell_that_failed(shell: InteractiveShell) -> None:
    """Its words are added to what went wrong; without a failed cell they are the goal."""
    assert carried_out(shell, "fix the bug in calc.py").goal == "fix the bug in calc.py"
    with capture_output():
        shell.run_cell("1 / 0")  # type: ignore[no-untyped-call]
    goal = carried_out(shell, "fix the bug in calc.py").goal
    assert "ZeroDivisionError" in goal
    assert "the bug in calc.py" in goal
