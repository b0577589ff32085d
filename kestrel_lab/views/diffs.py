"""File changes for display: the unified diff in a tool's answer, and the kind of each line."""

from __future__ import annotations

import re

from kestrel_lab.core.sanitize import sanitize_text


def split_diff(text: str) -> tuple[str, str]:
    """`text` up to a unified diff in it, and that diff; an empty one where there is none."""
    found = re.search(r"^--- [^\n]*\n\+\+\+ [^\n]*\n@@", text, re.MULTILINE)
    return (text, "") if found is None else (text[: found.start()].rstrip("\n"), text[found.start() :])


def sanitize_diff(text: str) -> str:
    """`text` with terminal escapes and hidden characters visible, and line ends if they are mixed."""
    lines = text.replace("\x1b", "\\u{1b}").split("\n")
    body = [line for line in lines if line[:1] in {"+", "-", " "} and not line.startswith(("--- ", "+++ "))]
    if body and all(line.endswith("\r") for line in body):
        lines = [line.removesuffix("\r") for line in lines]
    return "\n".join(map(sanitize_text, lines))


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """Each line with what it is: `added`, `removed`, `place`, or empty for anything else."""
    lines = diff.split("\n") if diff else []
    return [
        (
            ""
            if number < 2 and line[:3] in {"---", "+++"}
            else {"+": "added", "-": "removed", "@": "place"}.get(line[:1], ""),
            line,
        )
        for number, line in enumerate(lines)
    ]


def is_complete_diff(diff: str) -> bool:
    """Return whether a diff shows every changed line, so that it can replace the call's arguments."""
    return "\n@@ -" in diff and "characters left out …\n" not in diff


def diff_stat(diff: str) -> str:
    """Return how many lines a diff adds and removes: `+3 −1 lines`."""
    kinds = [kind for kind, _ in diff_lines(diff)]
    return f"+{kinds.count('added')} \u2212{kinds.count('removed')} lines"
