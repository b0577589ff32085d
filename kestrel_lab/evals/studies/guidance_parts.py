"""Parts of a Markdown file: its sections, paragraphs or list items, and the file with some of them only."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    from markdown_it.token import Token

Unit = Literal["paragraph", "section", "item"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a file that can be left out."""

    number: int
    """From 1, in the order of the file."""
    lines: range
    """Line numbers from 0, blank lines that follow included."""
    heading: str
    """The text of the heading above it; empty where there is none."""
    text: str

    @property
    def title(self) -> str:
        """Its number and its beginning, in one line."""
        return (
            f"{self.number} {one_line(self.text.strip().lstrip('#-*+> ').strip() or self.text.strip(), 60)}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DividedFile:
    """A Markdown file and its parts.

    What is no part is kept: front matter, link definitions, and headings as long as anything below them is
    there.
    """

    lines: tuple[str, ...]
    parts: tuple[Part, ...]
    headings: tuple[tuple[range, range], ...]
    """The lines of each heading that is no part, and the lines that it is above."""
    kept: bool
    """Whether it has front matter, which stays where no part does."""

    def text(self, chosen: Sequence[bool]) -> str:
        """Return the file with the chosen parts; empty where nothing but headings and definitions would be
        left.
        """
        if not any(chosen) and not self.kept:
            return ""
        gone = {
            line for part, stays in zip(self.parts, chosen, strict=True) if not stays for line in part.lines
        }
        for own, below in self.headings:
            if not any(
                stays and part.lines.start in below for part, stays in zip(self.parts, chosen, strict=True)
            ):
                gone.update(own)
        return "".join(line for number, line in enumerate(self.lines) if number not in gone)


def split_guidance(text: str, unit: str = "paragraph") -> DividedFile:
    """Return the parts of a Markdown text.

    A `paragraph` is a block between headings: a paragraph, a list, a table, a code block, a quotation. An
    `item` is the same with each item of a list on its own. A `section` is a heading with what follows it up
    to the next heading of any level, or what is above the first. Raises `UsageError` for another unit,
    and for a text without parts.
    """
    from markdown_it import MarkdownIt
    from mdit_py_plugins.front_matter import front_matter_plugin

    if unit not in get_args(Unit):
        raise UsageError(
            f"the unit is paragraph, section or item, not {unit!r}; {did_you_mean(unit, get_args(Unit))}"
        )
    lines = [*io.StringIO(text, newline="")]
    tokens = MarkdownIt("commonmark").enable("table").use(front_matter_plugin).parse(text)
    blocks = [token for token in tokens if token.level == 0 and token.map is not None and token.nesting >= 0]
    matter = bool(blocks) and blocks[0].type == "front_matter"
    titles = [
        (_lines(token, lines), int(token.tag[1:]), tokens[place + 1].content)
        for place, token in enumerate(tokens)
        if token.type == "heading_open" and token.level == 0
    ]
    ranges = [
        _lines(token, lines) for token in blocks if token.type not in ("heading_open", "front_matter", "hr")
    ]
    if unit == "item":
        ranges = _items(tokens, lines, ranges)
    if unit == "section":
        ranges = _sections([own for own, _, _ in titles], ranges)
    parts = tuple(
        Part(
            number=number,
            lines=own,
            heading=next((title for place, _, title in reversed(titles) if place.start < own.start), ""),
            text="".join(lines[own.start : own.stop]).strip("\n"),
        )
        for number, own in enumerate(ranges, 1)
    )
    if not parts:
        raise UsageError(f"there is no {unit} to leave out: it takes text beside headings")
    return DividedFile(
        lines=tuple(lines), parts=parts, headings=tuple(_headings(titles, parts, len(lines))), kept=matter
    )


def _lines(token: Token, lines: Sequence[str]) -> range:
    """Return the lines of a block with the blank ones that follow it."""
    start, stop = token.map or (0, 0)
    while stop > start and not lines[stop - 1].strip():
        stop -= 1
    while stop < len(lines) and not lines[stop].strip():
        stop += 1
    return range(start, stop)


def _items(tokens: Sequence[Token], lines: Sequence[str], ranges: Sequence[range]) -> list[range]:
    items = [_lines(token, lines) for token in tokens if token.type == "list_item_open" and token.level == 1]
    inside = {own.start: [item for item in items if item.start in own] for own in ranges}
    lists = {
        _lines(token, lines).start
        for token in tokens
        if token.type in ("bullet_list_open", "ordered_list_open") and token.level == 0
    }
    return [one for own in ranges for one in (inside[own.start] if own.start in lists else [own])]


def _sections(headings: Sequence[range], blocks: Sequence[range]) -> list[range]:
    """Return the lines from each heading that has text of its own to the end of that text, and of the text
    above the first.
    """
    found: list[range] = []
    starts = [own.start for own in headings]
    for start, stop in zip(
        [-1, *starts], [*starts, max((own.stop for own in blocks), default=0) + 1], strict=True
    ):
        if own := [block for block in blocks if start < block.start < stop]:
            found.append(range(own[0].start if start < 0 else start, own[-1].stop))
    return found


def _headings(
    titles: Sequence[tuple[range, int, str]], parts: Sequence[Part], end: int
) -> list[tuple[range, range]]:
    """Return the headings that belong to no part, each with the lines up to the next one of its level or a
    higher one.
    """
    inside = {line for part in parts for line in part.lines}
    found = []
    for place, (own, level, _) in enumerate(titles):
        following = next((later.start for later, depth, _ in titles[place + 1 :] if depth <= level), end)
        if own.start not in inside and any(own.start < part.lines.start < following for part in parts):
            found.append((own, range(own.stop, following)))
    return found
