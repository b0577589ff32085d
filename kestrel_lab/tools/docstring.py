"""A docstring in Google style, split into what a model reads: the description and the parameters."""

import re

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns|Return|Yields|Raises|Examples?|Notes?|Warnings?|See Also|References|Attributes|Todo):\s*"
)
_ARGUMENTS = {"Args", "Arguments", "Parameters", "Params"}
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the entry of each parameter; `text` is dedented, as `inspect.getdoc` gives it.

    An entry is the part after `name:` with its continuation lines, on one line.
    """
    description: list[str] = []
    entries: list[str] = []
    section = ""
    for line in text.splitlines():
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
        elif not section:
            description.append(line)
        elif line and not line[0].isspace():
            section = "text"  # prose after a section belongs to none
        elif section in _ARGUMENTS:
            entries.append(line)
    return "\n".join(description).strip(), _entries(entries)


def _entries(lines: list[str]) -> dict[str, str]:
    filled = [line for line in lines if line.strip()]
    margin = min((_indent(line) for line in filled), default=0)
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filled:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry:
            current = found.setdefault(entry[1], [])
            current.append(entry[2])
        else:
            current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
