"""A container's user who has no name, no home folder, or the home folder of somebody else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kestrel_lab.tools.sandbox.command_lines import bwrap_path

NOBODY = """
import pwd, sys
def unknown(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")
pwd.getpwuid = unknown
from kestrel_lab.cli.main import main
for words in " ".join(sys.argv[1:]).split(" ; "):
    try:
        main(words.split(" "))
    except SystemExit as end:
        if end.code:
            raise
"""
SCRIPT = """
rules:
  - when: ""
    turns:
      - [{tool: bash, args: {command: echo hi}}]
      - [{tool: write_file, args: {path: a.txt, content: x}}]
      - done
"""


def kestrel(
    folder: Path, *words: str, home: str | None = None, mutant: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command line in a process whose user `passwd` does not know; of several, with `;` between them, the
    first that fails is the last.
    """
    env = {
        "PATH": os.environ["PATH"],
        "MPLCONFIGDIR": str(folder),
        **({} if home is None else {"HOME": home}),
    }
    if bwrap_path() is None:
        # Landlock cannot hide a log in the workspace, and nobody's home has another place for it: see
        # docs/limits.md
        env["XDG_STATE_HOME"] = str(folder.parent / f"{folder.name}-state")
    return subprocess.run(
        [sys.executable, "-c", mutant + NOBODY, *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "home",
    [None, "/nonexistent", "/dev/null"],
    ids=["no home", "a home that is not there", "a home that is not a folder"],
)
def test_a_run_works_for_a_user_without_a_name(tmp_path: Path, home: str | None) -> None:
    """Commands in a sandbox, files, the list of runs and what is in order: no traceback, and the work is
    done.
    """
    (tmp_path / "s.yaml").write_text(SCRIPT)
    words = "run go --model scripted:s.yaml --approve auto ; runs ; config ; mcp list".split(" ")
    done = kestrel(tmp_path, *words, home=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "a.txt").read_text() == "x"


def test_mutant_that_takes_the_name_for_granted_crashes(tmp_path: Path) -> None:
    """With the system's own functions, as they were called, the same run ends with a traceback."""
    (tmp_path / "s.yaml").write_text(SCRIPT)
    mutant = (
        "import getpass, pathlib, kestrel_lab.host.user as u\nu.user_name, u.home_folder = "
        "getpass.getuser, pathlib.Path.home\n"
    )
    done = kestrel(tmp_path, "run", "go", "--model", "scripted:s.yaml", "--approve", "auto", mutant=mutant)
    assert done.returncode != 0 and ("KeyError" in done.stderr or "home directory" in done.stderr)
