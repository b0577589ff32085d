"""Exact text replacement, with a diff of the change or the reason why it failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.text_files import end_pattern, line_end, lines_with_ends, split_lines, with_line_ends

_CONTEXT = 3
_NO_NEWLINE = "\n\\ No newline at end of file"
_MOST_COMPARED = 20_000
_MOST_NUMBERS = 5
_END = re.compile(r"(\r\n|\n|\r)")


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement of exact text."""

    old: str
    new: str
    replace_all: bool = False


def replace_exact(text: str, old: str, new: str, *, everywhere: bool) -> str:
    """`text` with `old` replaced; raises `ValueError` that helps when it is missing, repeated or empty.

    Line ends of `old` match any line end where the exact ones are not there. Line ends of `new` become those
    of the text that it replaces, else that of its line, so the file keeps its own. An `old` and a `new` that
    differ in nothing but line ends are taken as they are.
    """
    if not old:
        raise ValueError("old is empty: give the exact text to replace, or use write_file for a new file")
    if old == new:
        raise ValueError("old and new are the same: nothing would change")
    places = _places(text, old)
    if not places:
        raise ValueError(f"old was not found{_closest_line(text, old)}")
    if len(places) > 1 and not everywhere:
        raise ValueError(
            f"old occurs {len(places)} times (lines {_line_numbers(text, places)}): "
            "add lines around it until it is unique, or set replace_all"
        )
    parts, at = [], 0
    for place in places:
        parts += [text[at : place.start()], new if _same_words(old, new) else _fitted(new, text, place)]
        at = place.end()
    after = "".join([*parts, text[at:]])
    if after == text:
        raise ValueError(
            "old and new differ only in line ends, and the file has those of new already: nothing "
            "would change"
        )
    return after


def _places(text: str, old: str) -> list[re.Match[str]]:
    """Return where `old` is in `text`: with exact line ends, else with any.

    A match never starts or ends within a CRLF.
    """
    if "\n" not in old and "\r" not in old:
        return list(re.finditer(re.escape(old), text))
    pieces = _END.split(old)
    exact = {"\n": r"(?<!\r)\n", "\r\n": r"\r\n", "\r": r"\r(?!\n)"}
    lone = "\r" if line_end(text) == "\r" else ""
    for ends in (
        exact,
        {end: exact["\r"] if end == "\r" and not lone else f"(?:{end_pattern(text)})" for end in exact},
    ):
        pattern = "".join(
            ends[piece] if number % 2 else re.escape(piece) for number, piece in enumerate(pieces)
        )
        if found := list(re.finditer(pattern, text)):
            return found
    return []


def _same_words(old: str, new: str) -> bool:
    return _END.sub("\n", old) == _END.sub("\n", new)


def _fitted(new: str, text: str, place: re.Match[str]) -> str:
    """Return `new` with the line ends of what it replaces; extra lines get those of the place."""
    if "\n" not in new and "\r" not in new:
        return new
    ends = re.compile(end_pattern(text))
    there = ends.findall(place[0])
    if (here := ends.search(text, place.end())) is not None:
        there.append(here[0])
    elif not there:
        # The last line has no end: as the line before it.
        there = [found[0] for found in ends.finditer(text, 0, place.start())][-1:]
    return with_line_ends(new, there, lone=line_end(text) == "\r") if there else new


def replace_in_order(text: str, edits: Sequence[Edit]) -> str:
    """Return `text` after all edits in order; raises `ValueError` that names the failed edit."""
    if not edits:
        raise ValueError("edits is empty: give at least one")
    for number, edit in enumerate(edits, 1):
        try:
            text = replace_exact(text, edit.old, edit.new, everywhere=edit.replace_all)
        except ValueError as error:
            raise ValueError(f"edit {number} of {len(edits)}: {error}") from None
    return text


def unified_diff(before: str, after: str, name: str) -> str:
    """Return a unified diff; equal beginnings and ends are skipped, so large files cost little."""
    a, b = lines_with_ends(before), lines_with_ends(after)
    start = _common(a, b, 0)
    end = _common(a[::-1], b[::-1], start)
    skipped = max(start - _CONTEXT, 0)
    below = max(end - _CONTEXT, 0)
    a, b = a[skipped : len(a) - below], b[skipped : len(b) - below]
    lines = [f"--- {name}", f"+++ {name}"]
    if max(len(a), len(b)) > _MOST_COMPARED:
        return "\n".join([*lines, f"@@ lines {skipped + 1} to {skipped + len(a)} became {len(b)} lines @@"])
    for group in SequenceMatcher(None, a, b).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_range(first[1], last[2], skipped)} +{_range(first[3], last[4], skipped)} @@")
        for kind, a_from, a_to, b_from, b_to in group:
            if kind == "equal":
                lines += [_marked_line(" ", line) for line in a[a_from:a_to]]
            else:
                lines += [_marked_line("-", line) for line in a[a_from:a_to]]
                lines += [_marked_line("+", line) for line in b[b_from:b_to]]
    return "\n".join(lines)


def _marked_line(mark: str, line: str) -> str:
    # The line end of a text that has no other.
    if line.endswith("\r"):
        return mark + line
    return mark + (line.removesuffix("\n") if line.endswith("\n") else line + _NO_NEWLINE)


def _range(begin: int, end: int, skipped: int) -> str:
    """Return the range of a hunk: lines count from 1, and from 0 if there are none."""
    length = end - begin
    return f"{begin + skipped + (1 if length else 0)},{length}"


def _common(a: list[str], b: list[str], taken: int) -> int:
    """Return the number of equal lines at the start, excluding the `taken` lines at the end."""
    most = min(len(a), len(b)) - taken
    for number in range(most):
        if a[number] != b[number]:
            return number
    return max(most, 0)


def _line_numbers(text: str, places: Sequence[re.Match[str]]) -> str:
    ends = re.compile(end_pattern(text))
    numbers = [
        str(sum(1 for _ in ends.finditer(text, 0, place.start())) + 1) for place in places[:_MOST_NUMBERS]
    ]
    return ", ".join(numbers) + (", …" if len(places) > _MOST_NUMBERS else "")


def _closest_line(text: str, old: str) -> str:
    """Return a clause about the line of `text` that is most like the first line of `old`."""
    lines = split_lines(text)[:_MOST_COMPARED]
    wanted = next((line for line in split_lines(old) if line.strip()), "")
    stripped = wanted.strip()
    if not stripped:
        return ""
    for number, line in enumerate(lines, 1):
        if line.strip() == stripped:
            differs = "a line after it differs" if line == wanted else "its indentation or blanks differ"
            return (
                f"; line {number} is {one_line(line, 120)!r}, but {differs}: read the file again and "
                "copy the text exactly"
            )
    if close := get_close_matches(wanted, lines, n=1, cutoff=0.6):
        return f"; the nearest line is {lines.index(close[0]) + 1}: {one_line(close[0], 120)!r}"
    return "; no line is like it: read the file again"
