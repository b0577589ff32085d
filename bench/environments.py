"""One virtual environment per peer, made once under `.venv-peers/` from pinned versions."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FOLDER = ROOT / ".venv-peers"
_PINS = Path(__file__).with_name("peers") / "requirements"
_INSTALL_S = 900


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Where a peer's programs run."""

    python: Path
    missing: str = ""
    """Why it is not there, if it is not."""


def version(peer: str) -> str:
    """The pinned version of the peer itself: the first line of its `.in` file."""
    return (_PINS / f"{peer}.in").read_text(encoding="utf-8").split()[0].partition("==")[2]


def environment(peer: str) -> Environment:
    """The environment of `peer`, created or updated to its pins; if it cannot be, it says why."""
    folder = _FOLDER / peer
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pins = _PINS / f"{peer}.txt"
    wanted = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    stamp = folder / ".installed"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return Environment(python=python)
    made = _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    installed = made or _run(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "-r",
            str(pins),
        ]
    )
    if installed:
        return Environment(python=python, missing=installed)
    stamp.write_text(wanted, encoding="utf-8")
    return Environment(python=python)


def _run(command: list[str]) -> str:
    """Run a command; returns what went wrong, in a line, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).strip().splitlines()
    errors = [line for line in said if line.lower().startswith("error")]
    return (errors or said or [f"exit code {done.returncode}"])[-1]
