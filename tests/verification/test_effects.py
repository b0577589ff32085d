"""An effect that an answer claims is excused only by a call that can have had it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kestrel_lab.core.citations import spans_of
from kestrel_lab.core.events.actions import actions_of
from kestrel_lab.core.events.union import Event, RunStarted, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.shell_syntax.effects import code_effects, line_effects
from kestrel_lab.verification import effects
from kestrel_lab.verification.claimed_actions import count_confirmed
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

HARMLESS = [
    "ls",
    "ls -la src | head -3",
    "pwd",
    "cat src/config.py",
    "git status --short",
    "git -C . log --oneline -3",
    "grep -rn TIMEOUT src",
    "find . -name '*.py' -exec wc -l {} +",
    "python --version",
    "python -c 'import sys; print(sys.path)'",
    "date && du -sh .",
    "wc -l src/config.py tests/test_config.py",
    "sed -n '1,20p' src/config.py",
    "cat tests/test_config.py 2>/dev/null || true",
]
UNTRUE = [
    "I updated `src/config.py` to use 60.",
    "I've changed the timeout in src/config.py.",
    "Updated `src/config.py`.",
    "I deleted `old.py`.",
    "I created `notes.md`.",
    "I fixed the bug in `src/config.py` and added a test in `tests/test_config.py`.",
    "I updated the default.",
    "All 12 tests pass.",
    "The tests pass now.",
    "I ran the tests and they pass.",
    "I ran `pytest -q` and it passed.",
    "14 passed.",
    "I have sent the summary to Bob.",
    "I emailed the report to the team.",
    "I have submitted the form.",
    "I pushed the commit to origin.",
]


def bash(
    command: str,
    code: int = 0,
    output: str = "",
    *,
    touched: Sequence[str] | None = None,
    sandbox: str = "S2",
) -> list[Event]:
    """A command that ended; `touched` are the files that were other ones then."""
    return [
        ToolCalled(
            call="b", step="main", tool="bash", args={"command": command}, danger="HIGH", sandbox=sandbox
        ),
        ToolAnswered(
            call="b",
            step="main",
            tool="bash",
            text=f'{{"exit_code": {code}, "stdout": "{output}"}}',
            touched=None if touched is None else [*touched],
        ),
    ]


def tool(name: str, args: dict[str, Json], *, reaches: str = "") -> list[Event]:
    """A call of another tool, of which its author may say how far it reaches."""
    offered: dict[str, Json] = {"name": name, "danger": "MEDIUM"} | ({"reaches": reaches} if reaches else {})
    return [
        RunStarted(goal="", workspace="", model="m", tools=[offered]),
        ToolCalled(call="t", step="main", tool=name, args=args, danger="MEDIUM"),
        ToolAnswered(call="t", step="main", tool=name, text="ok"),
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a module and its test."""
    for path in ("src/config.py", "tests/test_config.py", "README.md"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("TIMEOUT = 30\n")
    return tmp_path


def concerns(root: Path, events: Sequence[Event], answer: str, goal: str = "set it to 60") -> list[str]:
    """What the checks say of an answer."""
    subject = Subject(
        answer=answer,
        goal=goal,
        spans=spans_of(events),
        calls=(),
        actions=actions_of(events),
        ground=Files(root),
    )
    return [one.what for one in check_answer(subject)]


@pytest.mark.parametrize("touched", [None, ()])
@pytest.mark.parametrize("command", HARMLESS)
def test_a_harmless_command_excuses_nothing(
    root: Path, command: str, touched: tuple[str, ...] | None
) -> None:
    """After a command that only reads, an untrue claim of a change, of tests or of a message is found, with
    its files compared or not.
    """
    events = bash(command, output="pass passwords.txt", touched=touched)
    assert [
        answer for answer in UNTRUE if not concerns(root, events, answer, "make sure that all tests pass")
    ] == []


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        (bash("sed -i s/30/60/ src/config.py"), "I updated `src/config.py` to use 60."),
        (bash("python fix.py", touched=["src/config.py"]), "I updated `src/config.py`."),
        (bash("python fix.py"), "I updated `src/config.py`."),
        (bash("echo x > src/config.py"), "I changed `src/config.py`."),
        (bash("rm old.py"), "I deleted `old.py`."),
        (bash("git mv a.py src/config.py"), "I renamed `src/config.py`."),
        (bash("cat > notes.md <<X\nx\nX", touched=["notes.md"]), "I created `notes.md`."),
        (bash("pytest -q", output="12 passed"), "All 12 tests pass."),
        (bash("make check"), "All tests pass."),
        (bash("./ci.sh"), "I ran the tests and they pass."),
        (bash("make test", output="pytest -q"), "I ran `pytest -q` and it passed."),
        (bash("bash -c 'ls && pytest -q'", output="3 passed"), "I ran `pytest -q` and it passed."),
        (bash("curl -d @form http://x", sandbox="S2 with network"), "I have submitted the form."),
        (bash("mail -s hi bob < a", sandbox="S0: no sandbox works"), "I emailed the report to Bob."),
        (bash("git push"), "I pushed the commit to origin."),
        (bash("ls -la src"), "I ran `ls` in `src`."),
        (bash("ls"), "I created a summary of the files below."),
        (tool("send_mail", {"to": "bob"}), "I sent the mail to Bob."),
        (tool("send_mail", {"to": "bob"}, reaches="others"), "I sent the mail to Bob."),
        (tool("create_document", {"name": "report.md"}, reaches="others"), "I created `report.md`."),
    ],
)
def test_what_can_have_been_done_is_not_doubted(root: Path, events: Sequence[Event], answer: str) -> None:
    """Where a command or a tool can have had the effect nothing is said; what the answer itself shows needs
    no call.
    """
    assert concerns(root, events, answer) == []


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        (bash("python fix.py", touched=["src/other.py"]), "I updated `src/config.py`."),
        (
            bash("sed -i s/a/b/ src/config.py", touched=[]),
            "I updated `src/config.py`.",
        ),  # it found nothing to replace
        (bash("curl -d @form http://x"), "I have submitted the form."),  # without a network
        (bash("python report.py"), "I emailed the report to Bob."),
        (tool("set_title", {"title": "x"}, reaches="workspace"), "I sent the mail to Bob."),
        (tool("remember", {"text": "config.py"}, reaches="nothing"), "I updated `src/config.py`."),
        (bash("cat pytest.ini"), "I ran `pytest -q`."),
    ],
)
def test_what_no_call_can_have_done_is_found(root: Path, events: Sequence[Event], answer: str) -> None:
    """Compared files, a sandbox without network and what a tool says of its reach exclude effects that its
    name does not.
    """
    assert len(concerns(root, events, answer)) == 1


def test_a_command_that_only_names_a_file_confirms_nothing(root: Path) -> None:
    """The log has a change of a file only where the tool says so, or the compared file was another one."""
    read, changed = (
        bash("cat src/config.py", touched=[]),
        bash("sed -i s/3/6/ src/config.py", touched=["src/config.py"]),
    )
    for events, count in ((read, 0), (bash("cat src/config.py"), 0), (changed, 1)):
        assert (
            count_confirmed(
                Subject(answer="I updated src/config.py.", actions=actions_of(events), ground=Files(root))
            )
            == count
        )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ls; rm x", {"files"}),
        ("find . -name '*.pyc' -delete", {"files"}),
        ("find . -exec rm {} ;", {"files"}),
        ("sort -o a a", {"files"}),
        ("sort a | uniq -c", set()),
        ("git diff --output=x", {"files", "code", "send"}),
        ("git commit -m x", {"files", "code", "send"}),  # a hook may run anything
        ("timeout 5 ls", set()),
        ("timeout 5 pytest", {"files", "code", "send"}),
        ("bash run.sh", {"files", "code", "send"}),
        ("./ls", {"files", "code", "send"}),
        ("pip list", set()),
        ("date -s 2020", {"files"}),
        ("$X", {"files", "code", "send"}),
        ("echo 'unclosed", {"files", "code", "send"}),
        ("", set()),
    ],
)
def test_effects_of_lines(line: str, found: set[str]) -> None:
    """Only what is known to have no such effect is excluded; what cannot be read may have any."""
    assert line_effects(line) == found


def test_effects_of_code() -> None:
    """Code that starts something else may have any effect; code that only prints has none."""
    assert code_effects("print(1 + 1)") == set()
    assert code_effects("open('x', 'w').write('y')") == {"files"}
    assert code_effects("requests.get(u)") == {"send"}
    assert code_effects("subprocess.call(x)") == {"files", "code", "send"}


def test_a_check_that_excuses_by_any_command_is_caught(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant for which any command may have done anything lets the untrue claims pass."""
    monkeypatch.setattr(effects, "line_effects", lambda _: effects.ANY)
    assert concerns(root, bash("ls"), "I updated `src/config.py`.") == []
