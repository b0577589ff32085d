"""Where output goes and who could answer: found out per cell, never guessed from versions."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

Surface = Literal["panel", "headless", "terminal"]
"""A notebook somebody looks at; a notebook that a program executes; a shell in a terminal."""

HEADLESS = "KESTREL_HEADLESS"
"""Set to 1 where a program executes notebooks but pretends that somebody could type."""


def surface(shell: Any) -> Surface:
    """Where the code that runs now came from."""
    kernel = getattr(shell, "kernel", None)
    if os.environ.get(HEADLESS) == "1":
        return "headless"
    if kernel is None:
        return "terminal" if sys.stdin is not None and sys.stdin.isatty() else "headless"
    # nbclient, papermill and nbconvert send False with each cell: no one is there to type.
    request = kernel.get_parent("shell") or {}
    return "panel" if request.get("content", {}).get("allow_stdin") else "headless"
