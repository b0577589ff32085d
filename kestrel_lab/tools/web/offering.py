"""What all tools of the web have in common: their answers are foreign, and a run gets them only when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kestrel_lab.core.calls import Danger, Effect
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.registry import Tool


def offered(function: Callable[..., Any], danger: Danger, effect: Effect, *, name: str | None = None, group: str = "web") -> Tool:
    """A tool of the web; those that change things elsewhere run alone."""
    made = tool(name=name, danger_level=danger, effect=effect, version="1", parallel_safe=danger <= Danger.MEDIUM)(function)
    # A service at a fixed address tells nobody else what it is asked; a page's address is read by whoever wrote the page.
    reaches = "nothing" if danger <= Danger.LOW else "address" if danger <= Danger.MEDIUM else "others"
    reads = ("untrusted",) if group in {"web", "evidence"} else ("private", "untrusted")  # a key opens what is private too
    return replace(made, untrusted=True, reads=reads, reaches=reaches, group=group)
