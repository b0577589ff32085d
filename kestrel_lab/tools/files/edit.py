"""Exact text replacement, with a diff of the change or the reason why it failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches

from kestrel_lab.core.sanitize import lines_with_ends, one_line, split_lines

_CONTEXT = 3
_NO_NEWLINE = "\n\\ No newline at end of file"
_MOST_COMPARED = 20_000


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement of exact text."""

    old: str
    new: str
    replace_all: bool = False


def replace_exact(text: str, old: str, new: str, *, everywhere: bool) -> str:
    """`text` with `old` replaced; raises `ValueError` that helps when it is missing, repeated or empty.

    Where the file ends its lines with CRLF and `old` does not, the replacement is made in CRLF.
    """
    if not old:
        raise ValueError("old is empty: give the exact text to replace, or use write_file for a new file")
    if old == new:
        raise ValueError("old and new are the same: nothing would change")
    if old not in text and "\r\n" in text:
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    count = text.count(old)
    if count == 0:
        raise ValueError(f"old was not found{_closest_line(text, old)}")
    if count > 1 and not everywhere:
        places = ", ".join(str(number) for number in _line_numbers(text, old, 5)) + (", …" if count > 5 else "")
        raise ValueError(f"old occurs {count} times (lines {places}): add lines around it until it is unique, or set replace_all")
    return text.replace(old, new)


def replace_in_order(text: str, edits: Sequence[Edit]) -> str:
    """`text` after all edits, each made in what the ones before it left; raises `ValueError` that says which one failed."""
    if not edits:
        raise ValueError("edits is empty: give at least one")
    for number, edit in enumerate(edits, 1):
        try:
            text = replace_exact(text, edit.old, edit.new, everywhere=edit.replace_all)
        except ValueError as error:
            raise ValueError(f"edit {number} of {len(edits)}: {error}") from None
    return text


def unified_diff(before: str, after: str, name: str) -> str:
    """Return what changed, in unified format; equal beginnings and ends are not compared, so a large file costs little."""
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
    return mark + (line.removesuffix("\n") if line.endswith("\n") else line + _NO_NEWLINE)


def _range(begin: int, end: int, skipped: int) -> str:
    """Lines of a hunk as the format wants them: counted from 1, and from 0 for none."""
    length = end - begin
    return f"{begin + skipped + (1 if length else 0)},{length}"


def _common(a: list[str], b: list[str], taken: int) -> int:
    """Return how many lines are equal from the beginning, where `taken` of each are spoken for at the other end."""
    most = min(len(a), len(b)) - taken
    for number in range(most):
        if a[number] != b[number]:
            return number
    return max(most, 0)


def _line_numbers(text: str, old: str, most: int) -> list[int]:
    numbers: list[int] = []
    at = text.find(old)
    while at >= 0 and len(numbers) < most:
        numbers.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + len(old))
    return numbers


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
            return f"; line {number} is {one_line(line, 120)!r}, but {differs}: read the file again and copy the text exactly"
    if close := get_close_matches(wanted, lines, n=1, cutoff=0.6):
        return f"; the nearest line is {lines.index(close[0]) + 1}: {one_line(close[0], 120)!r}"
    return "; no line is like it: read the file again"
