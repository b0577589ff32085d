"""The overview of `kestrel --help`, which is printed without loading a command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kestrel_lab.cli.app import app
from kestrel_lab.cli.overview import COMMANDS, PANELS


@pytest.mark.parametrize("width", ["80", "160"])
def test_the_overview_is_that_of_the_loaded_commands(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kestrel --help` prints every command in order, exactly as the application with all of them does."""
    monkeypatch.setenv("COLUMNS", width)
    pages = [
        subprocess.run([sys.executable, "-m", "kestrel_lab", word], capture_output=True, text=True, check=True, timeout=120).stdout
        for word in ("--help", "-h")
    ]
    with pytest.raises(SystemExit) as end:
        app(["--help"], prog_name="kestrel")
    assert end.value.code == 0
    assert "orchestrate" in pages[0]
    assert pages[0] == pages[1] == capsys.readouterr().out


def test_without_words_there_is_a_short_start_page() -> None:
    """`kestrel` alone prints what to type first, within a screen of 24 lines, and every command on it exists."""
    page = subprocess.run([sys.executable, "-m", "kestrel_lab"], capture_output=True, text=True, check=True, timeout=120).stdout
    assert len(page.splitlines()) < 24
    assert {line.split()[1] for line in page.splitlines() if line.startswith("  kestrel ")} <= {*COMMANDS}


def test_every_command_has_a_heading() -> None:
    """Each command stands below one heading of the overview, and no heading names a command that does not exist."""
    assert sorted(name for names in PANELS.values() for name in names) == sorted(COMMANDS)


def test_other_words_reach_the_commands() -> None:
    """What is not the overview is run by the commands: a wrong word ends with status 2 and a sentence."""
    done = subprocess.run([sys.executable, "-m", "kestrel_lab", "nothing"], capture_output=True, text=True, check=False, timeout=120)
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
