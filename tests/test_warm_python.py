"""A warm Python does for its caller what a real one does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waits import until

LOOK = "import os, sys; print(os.getcwd(), os.environ['MARK'], sys.argv[1:], file=sys.stderr); sys.exit(7)"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose package of our name is the caller's own, as in the checkout of a commit."""
    monkeypatch.setenv("MARK", "here")
    return tmp_path


def test_streams_folder_environment_words_and_code_are_the_callers(warm_program: Path, place: Path) -> None:
    """As with a real Python; what is no module of the package is run by a real one."""
    words = ["-m", "kestrel_lab", "frobnicate"]
    mine, real = (
        subprocess.run([python, *words], cwd=place, capture_output=True, text=True, check=False)
        for python in (warm_program, sys.executable)
    )
    # A real one that took long to load says so in a line before.
    assert (mine.returncode, mine.stdout) == (real.returncode, real.stdout) == (2, "")
    assert mine.stderr.splitlines() == real.stderr.splitlines()[-1:]
    looked = subprocess.run(
        [warm_program, "-c", LOOK, "a"], cwd=place, capture_output=True, text=True, check=False
    )
    assert (looked.returncode, looked.stderr) == (7, f"{place} here ['a']\n")


@pytest.mark.skipif(sys.platform != "linux", reason="a warm Python needs Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_kills_it_kills_what_it_does(warm_program: Path, place: Path, number: signal.Signals) -> None:
    """The fork ends with the process that the caller knows."""
    command = [warm_program, "-m", "kestrel_lab.evals.execution.remote_trials"]
    with subprocess.Popen(command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def forks() -> list[psutil.Process]:
            return [
                one
                for one in psutil.process_iter(["cwd"])
                if one.info["cwd"] == str(place) and one.pid != process.pid
            ]

        until(lambda: len(forks()) == 1)
        os.kill(process.pid, number)
        process.wait()
        until(lambda: not forks())
