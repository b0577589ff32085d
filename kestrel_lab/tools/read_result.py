"""Tool `read_result`: read on in an answer that was too long to show, or search it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from kestrel_lab.core.calls import Danger
from kestrel_lab.eventlog.large_results import offsets_of, piece_of
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.ripgrep import search_file
from kestrel_lab.tools.tool import ToolContext
from kestrel_lab.tools.web.tools import mark_foreign

NAME = "read_result"
_MOST_CHARS = 18_000
"""Less than a model is shown, so that a piece is never cut itself."""
_MOST_SHOWN, _MOST_FOUND = 100, 10_000


@tool(name=NAME, danger_level=Danger.SAFE, effect="pure", version="1", reads="run", reaches="nothing")
async def read_result(
    id: str,  # noqa: A002
    ctx: ToolContext,
    offset: int = 0,
    limit: int = 15_000,
    pattern: str = "",
) -> str:  # as in the note to the model
    """Read more of an earlier answer that was too long to be shown whole, or find the places in it that match
    a pattern.

    Args:
        id: What the shortened answer says at its end.
        ctx: The run it works for.
        offset: Character to begin with, counted from 0.
        limit: Characters at most, up to 18000.
        pattern: Regular expression (ripgrep's: no look-around). Returns the lines that match, each with its
            offset, instead of text.

    """
    if offset < 0 or not 1 <= limit <= _MOST_CHARS:
        raise ValueError(
            f"offset counts from 0 and limit is from 1 to {_MOST_CHARS}, not {offset} and {limit}"
        )
    if ctx.kept is None:
        raise ValueError("kept answers belong to runs: this tool works only within a run")
    kept = ctx.kept(id)
    if offset >= kept.chars:
        raise ValueError(f"the answer has {kept.chars:,} characters, so none from offset {offset:,} on")
    if pattern:
        text, note = await _matches(kept.path, pattern, offset)
    else:
        text = await asyncio.to_thread(piece_of, kept.path, offset, limit)
        last = offset + len(text)
        more = f"; go on with offset={last}" if last < kept.chars else ""
        note = f"characters {offset:,} to {last - 1:,} of {kept.chars:,}{more}"
    shown = mark_foreign(text, f"part of an answer of {kept.tool}") if kept.untrusted else text
    return f"{shown}\n[{note}]"


async def _matches(path: Path, pattern: str, offset: int) -> tuple[str, str]:
    """Return the matching lines from `offset`, and a note on them."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = await search_file(fd, pattern, [], _MOST_FOUND)
    finally:
        os.close(fd)
    places = await asyncio.to_thread(offsets_of, path, [match.line for match in found.matches])
    lines = [
        (places[match.line], match.text) for match in found.matches if places.get(match.line, -1) >= offset
    ]
    notes = [
        f"{len(lines):,} lines match" if len(lines) != 1 else "1 line matches",
        *([found.incomplete] if found.incomplete else []),
    ]
    if len(lines) > _MOST_SHOWN:
        notes.append(f"go on with offset={lines[_MOST_SHOWN][0]}")
    return "\n".join(f"offset {place}: {text}" for place, text in lines[:_MOST_SHOWN]), "; ".join(notes)
