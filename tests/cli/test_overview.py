"""The overview of `kestrel --help`, which is printed without loading a command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_WHOLE = "import sys; from kestrel_lab.cli.app import app; app(['--help'], prog_name='kestrel')"


@pytest.mark.parametrize("width", ["80", "160"])
def test_the_overview_is_that_of_the_loaded_commands(width: str) -> None:
    """`kestrel --help` prints every command in order, exactly as the application with all of them does."""
    env = os.environ | {"COLUMNS": width}
    pages = [
        subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, check=True, timeout=120).stdout
        for words in (["-m", "kestrel_lab", "--help"], ["-m", "kestrel_lab", "-h"], ["-c", _WHOLE])
    ]
    assert "orchestrate" in pages[0]
    assert pages[0] == pages[1] == pages[2]


def test_other_words_reach_the_commands() -> None:
    """What is not the overview is run by the commands: a wrong word ends with status 2 and a sentence."""
    done = subprocess.run([sys.executable, "-m", "kestrel_lab", "nothing"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "No such command" in done.stderr
