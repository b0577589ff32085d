"""Named entities in a text: files, symbols, packages, commands, errors, quotes, dates, people, places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from kestrel_lab.language.words import COMMON, NEGATIONS, name_parts

_EXTENSION = (
    r"(?:py|pyi|ipynb|js|jsx|ts|tsx|rs|go|java|c|h|cc|cpp|hpp|rb|php|sh|sql"
    r"|md|rst|txt|toml|ya?ml|json|jsonl|ini|cfg|lock|html|css|xml|csv|db|log|env)"
)
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
    r"|aug(?:ust)?|sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_TOOLS = (
    "pip|uv|poetry|conda|npm|npx|yarn|pnpm|cargo|make|cmake|git|docker|podman|kubectl|pytest|python3?|ruff|mypy|tox|nox|go|bash|sh|curl|"
    "psql|sqlite3|jupyter|kestrel|gradle|mvn|terraform|ansible"
)
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("url", r"https?://[^\s)>\]\"'`]+"),
    (
        "path",
        rf"(?<![\w./-])(?:~?/)?(?:[\w.-]+/)+[\w.-]*\w|(?<![\w./-])[\w-]+(?:\.[\w-]+)*\.{_EXTENSION}\b|(?<!\w)(?:Makefile|Dockerfile)\b",
    ),
    (
        "error",
        r"\b[A-Z]\w*(?:Error|Exception|Warning|Interrupt|Timeout)\b|\b[EW]\d{3,4}\b|\bE[A-Z]{3,}\b"
        r"|\bHTTP\s?[45]\d\d\b|\bexit(?: "
        r"code)? \d+\b",
    ),
    ("command", rf"(?:^|(?<=[`$\"' ]))(?:{_TOOLS})(?: (?:-{{1,2}}\w[\w=./-]*|[a-z][\w./:=-]*)){{1,4}}"),
    (
        "package",
        r"(?:(?<=install )|(?<=import )|(?<=package )|(?<=library )|(?<=dependency "
        r"))[A-Za-z][\w.-]*|\b[A-Za-z][\w-]*(?:==|>=|~=)[\d.]+\w*",
    ),
    (
        "symbol",
        r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\b(?:\(\))?|\b[A-Za-z_]\w*\(\)|\b[a-z]+(?:_[a-z0-9]+)+\b|\b[A-Z]+(?:_[A-Z0-9]+)+\b|\b(?:[A-Z][a-z0-9]+){2,}\b|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b",
    ),
    (
        "date",
        rf"\b\d{{4}}-\d\d-\d\d\b|\b\d{{1,2}} {_MONTH}\.?,? \d{{4}}\b|\b{_MONTH}\.? "
        rf"\d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?\b|\b{_MONTH}\.?,? \d{{4}}\b|\b(?:19|20)\d\d\b",
    ),
    ("version", r"\bv?\d+\.\d+(?:\.\d+)*\w*\b"),
    ("number", r"(?<![\w.])\d+(?:[.,]\d+)*(?:\s?(?:%|ms|s|[kKMG]B|kb|mb|gb|m|km|min|h))?\b"),
)
_FOUND = tuple(
    (kind, re.compile(pattern, re.IGNORECASE if kind in {"date", "url"} else 0))
    for kind, pattern in _PATTERNS
)
_QUOTED = re.compile(
    r"\"\w+\":(?=\S)|`([^`\n]{1,200})`|\"([^\"\n]{2,200})\"|“([^”\n]{2,200})”|(?<!\w)'([^'\n]{2,80})'(?!\w)"
)
"""The first form is the key of a JSON object, which is not a quotation."""
_NAME = re.compile(
    r"\b[A-Z][a-zà-ÿ]+(?:[-’'][A-Z]?[a-zà-ÿ]+)?(?: (?:of |the |de )?[A-Z][a-zà-ÿ]+)*|\b[A-Z]{2,6}\b"
)
MOST = 64
"""Entities of one text."""


@dataclass(frozen=True, order=True, slots=True)
class Entity:
    """Something a text names."""

    kind: str
    """`path`, `symbol`, `package`, `command`, `error`, `quoted`, `date`, `version`, `number`, `url` or
    `name`.
    """
    name: str
    """In lower case, as notes about it are found."""
    written: str = field(default="", compare=False)
    """As written, where capitals separate words."""


def find_entities(text: str) -> tuple[Entity, ...]:
    """Return the entities of `text`, each once, in the order found; at most `MOST`.

    A place in the text is one thing only: the parts of a path are not symbols, those of a date no numbers.
    """
    # A note is short; a whole file as text must not hold up the write.
    text = text[:20_000]
    found = dict.fromkeys(_quoted_entities(text))
    free = text
    for kind, pattern in _FOUND:
        for match in pattern.finditer(free):
            written = match[0].strip(" .,;:").removesuffix("()")
            written = _without_prose(written) if kind == "command" else written
            found[Entity(kind, written.lower(), written)] = None
        free = pattern.sub(lambda match: " " * len(match[0]), free)
    found |= dict.fromkeys(_names(free))
    return tuple(found)[:MOST]


def entities_text(found: tuple[Entity, ...]) -> str:
    """Return entities as text for the full-text index: each name and its words."""
    named = dict.fromkeys(
        word for entity in found for word in (entity.name, *name_parts(entity.written or entity.name))
    )
    return " ".join(named)


def _quoted_entities(text: str) -> Iterator[Entity]:
    for match in _QUOTED.finditer(text):
        inner = next((group for group in match.groups() if group is not None), "").strip()
        if inner:
            yield Entity("quoted", inner.lower(), inner)


def _without_prose(command: str) -> str:
    """Return a command without the sentence that goes on after it."""
    # `make` and `go` are common words too.
    first, *others = command.split()
    return " ".join([first, *takewhile(lambda word: word not in COMMON, others)])


def _names(text: str) -> Iterator[Entity]:
    """Yield people, places and products: capitalised words that are not just the beginning of a sentence."""
    for match in _NAME.finditer(text):
        name = match[0].lower()
        if name in COMMON or name in NEGATIONS:
            continue
        first = name.split()[0]
        if first in COMMON:
            name = name.partition(" ")[2]
        begins = (
            not text[: match.start()].rstrip(" \"'(`“")
            or text[: match.start()].rstrip(" \"'(`“")[-1] in ".!?:\n"
        )
        if name and not (
            begins
            and " " not in name
            and match[0].istitle()
            and text.count(match[0]) == 1
            and _is_ordinary_word(name)
        ):
            yield Entity("name", name)


def _is_ordinary_word(word: str) -> bool:
    """Return true if a word is capitalised only because it starts a sentence, judged by its form."""
    return word.endswith(("ing", "ed", "ly", "s")) or len(word) < 4
