"""Which files are suites by their name, for pytest and for builds.

It loads nothing: every session of pytest imports it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SUITE_ENDINGS: Final = (".suite.yaml", ".suite.yml")


def find_suites(folder: Path) -> list[Path]:
    """Return the suite files below a folder, by their names; raises `UsageError` where there are none."""
    from kestrel_lab.core.errors import UsageError
    from kestrel_lab.core.sanitize import shown_path

    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            one
            for one in folders
            if not one.startswith(".") and one not in ("node_modules", "venv", "site-packages", "__pycache__")
        )
        found += [Path(place, name) for name in sorted(files) if name.endswith(SUITE_ENDINGS)]
    if not found:
        raise UsageError(
            f"no file *.suite.yaml is in {shown_path(folder)}: name the suites, or let kestrel init write one"
        )
    return found
