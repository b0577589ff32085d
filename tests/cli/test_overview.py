"""The overview of `kestrel --help`, which is printed without loading a command."""

from __future__ import annotations

import io
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from waits import until

from kestrel_lab.cli import overview
from kestrel_lab.cli.app import app
from kestrel_lab.cli.command_table import COMMANDS, EVAL_PANELS, PANELS

COLD = sys.executable
"""The fixture `warm` puts another one in its place."""

pytestmark = pytest.mark.usefixtures("warm", "usual_interrupt")


@pytest.fixture
def usual_interrupt() -> Iterator[None]:
    """Ctrl-C does to the tests after one what it did before: `main` is called in a process of its own."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("width", ["80", "160"])
def test_the_overview_is_that_of_the_loaded_commands(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kestrel --help` prints every command in order, exactly as the application with all of them does."""
    monkeypatch.setenv("COLUMNS", width)
    pages = [
        subprocess.run(
            [sys.executable, "-m", "kestrel_lab", word],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for word in ("--help", "-h")
    ]
    with pytest.raises(SystemExit) as end:
        app(["--help"], prog_name="kestrel")
    assert end.value.code == 0
    assert "orchestrate" in pages[0]
    assert pages[0] == pages[1] == capsys.readouterr().out


def test_without_words_there_is_a_short_start_page() -> None:
    """`kestrel` alone prints what to type first, within a screen of 24 lines, and every command on it
    exists.
    """
    page = subprocess.run(
        [sys.executable, "-m", "kestrel_lab"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert len(page.splitlines()) < 24
    assert {line.split()[1] for line in page.splitlines() if line.startswith("  kestrel ")} <= {*COMMANDS}


def test_every_command_has_a_heading() -> None:
    """Each command stands below one heading of the overview, and no heading names a command that does not
    exist.
    """
    assert sorted(name for names in PANELS.values() for name in names) == sorted(COMMANDS)
    measuring = typer.main.get_command(app).commands["eval"].commands  # type: ignore[attr-defined]
    assert sorted(name for names in EVAL_PANELS.values() for name in names) == sorted(measuring)


def test_other_words_reach_the_commands() -> None:
    """What is not the overview is run by the commands: a wrong word ends with status 2 and a sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", "nothing"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_no_word_of_help_is_taken_for_markup() -> None:
    """A word in square brackets would vanish from the page: names of extras, lists."""
    import typer.main
    from rich.text import Text

    from kestrel_lab.cli.app import app

    def texts(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
        for inner in getattr(command, "commands", {}).values():
            yield from texts(inner)

    told = [*texts(typer.main.get_command(app))]
    assert len(told) > 300
    assert [text for text in told if Text.from_markup(text).plain != text] == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--version"], None, "kestrel "),
        ([], None, "All commands: kestrel --help"),
        (["--help"], 0, "Begin with kestrel doctor"),
        (["-h"], 0, "Begin with kestrel doctor"),
        (["runs", "--help"], 0, "List the newest runs, or remove runs."),
        (["nothing"], 2, ""),
    ],
)
def test_each_way_in(
    words: list[str],
    code: int | None,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The start page, the version, the overview, and the commands with what they are told."""
    monkeypatch.setattr("sys.argv", ["kestrel", *words])
    with nullcontext() if code is None else pytest.raises(SystemExit, match=str(code)):
        overview.main()
    assert told in capsys.readouterr().out


def test_a_shell_that_completes_gets_it_from_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no word is typed yet: the start page would be taken for words."""
    monkeypatch.setattr("sys.argv", ["kestrel"])
    monkeypatch.setenv("_KESTREL_COMPLETE", "complete_bash")
    monkeypatch.setattr("kestrel_lab.cli.main.main", lambda: print("asked"))
    overview.main()
    assert capsys.readouterr().out == "asked\n"


@pytest.mark.parametrize(
    ("terminal", "kind", "said"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_a_terminal_is_told_that_commands_are_loaded(
    terminal: bool, kind: str, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a line that is gone afterwards; a file and a terminal without control of its lines are left
    alone.
    """
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.argv", ["kestrel", "runs"])
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr("kestrel_lab.cli.main.main", lambda: None)
    overview.main()
    assert screen.getvalue() == ("\x1b[2mloading kestrel_lab …\x1b[0m\r\x1b[2K" if said else "")


@pytest.fixture(scope="module")
def start_cpu_s() -> float:
    """Processor seconds until the first line of the command line could run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([COLD, "-c", "import kestrel_lab.cli"], check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("moment_s", [0.05, 0.1, 0.2, 0.4, 0.8])
def test_an_interrupt_while_modules_load_says_nothing(
    moment_s: float, start_cpu_s: float, tmp_path: Path
) -> None:
    """Ctrl-C, so many processor seconds after the start: exit code 130, and one line at most."""
    process = subprocess.Popen(
        [COLD, "-m", "kestrel_lab", "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    clock = Path(f"/proc/{process.pid}/schedstat")
    until(lambda: int(clock.read_text().split()[0]) > 1e9 * (start_cpu_s + moment_s), "the moment")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.count(b"\n") <= 1
    assert b"Traceback" not in said
