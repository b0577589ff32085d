"""An answer split into what it claims: sentences, items, rows of tables, blocks of code.

The rules are our own: answers are Markdown in which dots stand in paths, names and calls, which libraries for prose take
for ends of sentences. What is in backticks or an address is therefore covered before a sentence is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["sentence", "row", "code", "quote", "heading"]

_FENCE: Final = re.compile(r"^ {0,12}(?P<fence>`{3,}|~{3,}) *(?P<info>[^\n`]*)$")
_ITEM: Final = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_HEADING: Final = re.compile(r"^ {0,3}#{1,6}\s+")
_RULE: Final = re.compile(r"^\s*\|?[\s:|-]*-{3,}[\s:|-]*\|?\s*$")
_COVERED: Final = re.compile(r"`[^`\n]*`|https?://\S+|\[[^\]\n]{1,80}\]|\"[^\"\n]{1,400}\"|“[^”\n]{1,400}”|\([^()\n]{1,200}\)")
_END: Final = re.compile(r"[.!?…](?:[\"”')\]*_]+)?\s+(?=[\"“'`(\[*_A-Z0-9À-Þ\x00])")
_SHORT: Final = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|al|approx|no|nos|fig|sec|ch|vol|pp|p|ca|mr|mrs|ms|dr|prof|st|resp|incl|excl|max|min|esp)|(?:^|[\s(])(?-i:[A-HJ-Z]))\.$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """One thing that an answer says."""

    text: str
    at: int
    """Where it begins in the answer, in characters."""
    kind: Kind = "sentence"
    lead: str = ""
    """What introduces it: the line before a list or a block, or the heading."""
    language: str = ""
    """Of a block of code, as its fence says it."""


def claims_of(answer: str) -> tuple[Said, ...]:
    """Everything that `answer` says, in its order; headings are no claims."""
    return tuple(said for said in pieces(answer) if said.kind != "heading" and any(letter.isalnum() for letter in said.text))


def pieces(answer: str) -> Iterator[Said]:
    """`answer` in pieces, headings too."""
    lead = heading = ""
    lines = answer.splitlines(keepends=True)
    at = place = 0
    held: list[tuple[str, int]] = []

    def flush() -> Iterator[Said]:
        nonlocal lead, held
        if held:
            found = [*_sentences("".join(text for text, _ in held), held[0][1], heading)]
            held = []
            lead = found[-1].text if found else lead
            yield from found

    while place < len(lines):
        line = lines[place]
        if fence := _FENCE.match(line.rstrip("\n")):
            yield from flush()
            body, place, after = _fenced(lines, place, fence["fence"])
            yield Said(text=body, at=at + len(line), kind="code", lead=lead or heading, language=(fence["info"].split() or [""])[0].strip("{}.").lower())
            at = at + after
            continue
        if not line.strip():
            yield from flush()
        elif match := _HEADING.match(line):
            yield from flush()
            heading = lead = line[match.end() :].strip()
            yield Said(text=heading, at=at + match.end(), kind="heading")
        elif line.lstrip().startswith("|") and line.count("|") >= 2:
            yield from flush()
            if not _RULE.match(line) and not (place + 1 < len(lines) and _RULE.match(lines[place + 1])):
                yield Said(text=line.strip(), at=at, kind="row", lead=lead or heading)
        elif line.lstrip().startswith(">"):
            yield from flush()
            yield Said(text=line.lstrip().lstrip("> ").strip(), at=at, kind="quote", lead=lead or heading)
        elif match := _ITEM.match(line):
            before = lead
            if held:
                yield from flush()
                before = lead
            item, used = _item(lines, place)
            yield from _sentences(item[match.end() :], at + match.end(), before or heading)
            at += len(item)
            place += used
            continue
        else:
            held.append((line, at))
        at += len(line)
        place += 1
    yield from flush()


def _fenced(lines: list[str], place: int, fence: str) -> tuple[str, int, int]:
    """The inside of a block, the place behind it, and how many characters it takes; one without an end goes to the last line."""
    inside: list[str] = []
    length = len(lines[place])
    for number in range(place + 1, len(lines)):
        length += len(lines[number])
        if lines[number].strip().startswith(fence) and not lines[number].strip().strip(fence[0]):
            return "".join(inside), number + 1, length
        inside.append(lines[number])
    return "".join(inside), len(lines), length


def _item(lines: list[str], place: int) -> tuple[str, int]:
    """An item of a list with the lines that go on with it."""
    taken = [lines[place]]
    for line in lines[place + 1 :]:
        if not line.strip() or not line[0].isspace() or _ITEM.match(line) or _FENCE.match(line.rstrip("\n")):
            break
        taken.append(line)
    return "".join(taken), len(taken)


def _sentences(text: str, at: int, lead: str) -> Iterator[Said]:
    covered = _COVERED.sub(lambda match: "\x00" * len(match[0]), text)
    start = 0
    for match in [*_END.finditer(covered), None]:
        end = len(text) if match is None else match.end()
        if match is not None and _SHORT.search(covered[start : match.start() + 1]):
            continue
        piece = text[start:end]
        if piece.strip():
            before = len(piece) - len(piece.lstrip())
            yield Said(text=piece.strip(), at=at + start + before, lead=lead)
        start = end
