"""What machine and versions the figures belong to, and how busy it was."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kestrel_lab.host.version import __version__

OURS = ("litellm", "apsw")
BUSY = 1.0
"""Load per core from which figures by the clock are to be doubted."""


def facts() -> dict[str, str | int]:
    """Cores, processor, system and versions; nothing that names a user or a host."""
    return {
        "cores": os.cpu_count() or 1,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "kestrel_lab": __version__,
        **{name: _version(name) for name in OURS},
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def load() -> float:
    """Processes that wanted to run in the last minute, per core; 0 where the system does not tell."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0


def in_words(machine: dict[str, str | int]) -> str:
    """The facts in a line."""
    versions = ", ".join(f"{name} {machine[name]}" for name in ("Python", "kestrel_lab", *OURS))
    return (
        f"{machine['cores']} cores, {machine['processor']}, {machine['system']}; {versions}; "
        f"{machine['date']}"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
