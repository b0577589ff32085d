"""Chunks of files: functions, classes and methods by their syntax nodes; sections of prose; cells of
notebooks; else runs of lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.language.definitions import Symbol, source_language, symbols_of
from kestrel_lab.language.grammars import GRAMMARS, UNCUT, Grammar, has_grammar

_MOST_LINES = 120
"""Lines of one chunk; a longer part is split."""
_SECTION_LINES = 40
_HEADING = re.compile(r"^(#{1,6}\s+\S.*|={1,3}\s+\S.*)$")
_UNDERLINE = re.compile(r"^([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_LINK = re.compile(
    r"\[[^\]\n]*\]\(\s*<?([^)\s>#]+)[^)\n]*\)|:doc:`(?:[^`<]*<)?([^`>]+)>?`|^\s*\.\. "
    r"(?:literal)?include::\s*(\S+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines `first` to `last` of a file, counted from 1; `name` is what they define or are about."""

    first: int
    last: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Edge:
    """Another file or module that a file names: `import` or `link`."""

    kind: str
    target: str
    names: str
    """Names imported from it, separated by spaces."""
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """The chunks, symbols and imports of a file. Every line is in exactly one chunk."""

    language: str
    title: str
    chunks: tuple[Chunk, ...]
    symbols: tuple[Symbol, ...] = ()
    edges: tuple[Edge, ...] = ()


def cut_chunks(path: str, text: str) -> Parsed:
    """Cut the text of the file `path`; never fails, whatever the text is."""
    language = source_language(path, text)
    lines = text.split("\n")
    # What follows the last line end is no line.
    if not lines[-1]:
        lines.pop()
    if has_grammar(language):
        return _code(language, text, lines)
    if language == "notebook" and (found := _notebook(text, lines)) is not None:
        return found
    if language == "prose":
        return _prose(text, lines)
    return Parsed(language=language, title="", chunks=tuple(_windows(1, len(lines), "lines", "")))


def _windows(first: int, last: int, kind: str, name: str) -> Iterator[Chunk]:
    for start in range(first, last + 1, _MOST_LINES):
        yield Chunk(start, min(start + _MOST_LINES - 1, last), kind, name)


def _code(language: str, text: str, lines: list[str]) -> Parsed:
    grammar = GRAMMARS[language]
    symbols = symbols_of(language, text)
    spans = [(each.first, min(each.last, len(lines)), each) for each in symbols if each.kind not in UNCUT]
    owner: list[Symbol | None] = [None] * (len(lines) + 2)
    # Inner ones come behind outer ones and take their lines.
    for first, last, symbol in spans:
        owner[first : last + 1] = [symbol] * (last + 1 - first)
    chunks: list[Chunk] = []
    start = 1
    for number in range(2, len(lines) + 2):
        if number > len(lines) or owner[number] is not owner[start]:
            held = owner[start]
            kind, name = ("code", "") if held is None else (held.kind, held.qualified)
            if chunks and held is None and not any(line.strip() for line in lines[start - 1 : number - 1]):
                # Empty lines belong to what is above them.
                chunks[-1] = replace(chunks[-1], last=number - 1)
            else:
                chunks += _windows(start, number - 1, kind, name)
            start = number
    return Parsed(
        language=language,
        title=_title(text, language),
        chunks=tuple(chunks),
        symbols=symbols,
        edges=tuple(_imports(grammar, text)),
    )


def _title(text: str, language: str) -> str:
    """The first sentence of a module's docstring or of the comment at its head."""
    head = text[:4_000]
    found = (
        re.match(r'(?:\s*#[^\n]*\n)*\s*[rRuUbB]{0,2}("""|\'\'\'|"|\')(.*?)\1', head, re.DOTALL)
        if language == "python"
        else None
    )
    if found:
        return _paragraph(found[2])
    comment = re.match(r"\s*(?:/\*+(.*?)\*/|((?:\s*//[^\n]*\n)+))", head, re.DOTALL)
    return (
        _paragraph(re.sub(r"^[\s*/!]+", "", comment[1] or comment[2], flags=re.MULTILINE))
        if comment and language != "python"
        else ""
    )


def _paragraph(text: str) -> str:
    filled = [line.strip(" =~-*#\t") for line in text.strip().split("\n\n")[0].splitlines()]
    return one_line(" ".join(line for line in filled if line), 200)


def _imports(grammar: Grammar, text: str) -> Iterator[Edge]:
    line, seen = 1, 0
    for match in grammar.imports.finditer(text):
        line, seen = line + text.count("\n", seen, match.start()), match.start()
        groups = [group for group in match.groups() if group]
        if grammar is not GRAMMARS["python"]:
            yield from (Edge("import", group, "", line) for group in groups)
        elif match[1]:
            names = re.findall(r"(\w+|\*)(?:\s+as\s+\w+)?", re.sub(r"#[^\n]*", "", match[2]))
            yield Edge("import", match[1], " ".join(names), line)
        else:
            for name in match[3].split(","):
                if module := name.split(" as ")[0].strip():
                    yield Edge("import", module, "", line)


def _prose(text: str, lines: list[str]) -> Parsed:
    heads: list[tuple[int, str]] = []
    fenced = False
    for at, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        if fenced:
            continue
        if _HEADING.match(line):
            heads.append((at + 1, line.strip("#= ").strip()))
        elif (
            at
            and _UNDERLINE.match(line)
            and lines[at - 1].strip()
            and len(line.rstrip()) >= len(lines[at - 1].rstrip()) // 2
        ):
            heads.append((at, lines[at - 1].strip()))
    title = heads[0][1] if heads else next((line.strip() for line in lines if line.strip()), "")
    starts = ([] if heads and heads[0][0] == 1 else [(1, "")]) + heads
    chunks: list[Chunk] = []
    for (first, name), (after, _) in zip(starts, [*starts[1:], (len(lines) + 1, "")], strict=True):
        chunks += _paragraphs(first, after - 1, name, lines)
    links = [
        Edge("link", next(group for group in match.groups() if group), "", 0)
        for match in _LINK.finditer(text)
    ]
    return Parsed(language="prose", title=one_line(title, 200), chunks=tuple(chunks), edges=tuple(links))


def _paragraphs(first: int, last: int, name: str, lines: list[str]) -> Iterator[Chunk]:
    start = first
    while start <= last:
        end = min(start + _SECTION_LINES - 1, last)
        if end < last:
            end = next(
                (
                    number
                    for number in range(end, start + _SECTION_LINES // 2, -1)
                    if not lines[number - 1].strip()
                ),
                end,
            )
        yield Chunk(start, end, "section", one_line(name, 120))
        start = end + 1


def _notebook(text: str, lines: list[str]) -> Parsed | None:
    """Return notebook cells as chunks, if the file is formatted as Jupyter does; `None` for other files."""
    try:
        cells = json.loads(text)["cells"]
        kinds = [str(cell["cell_type"]) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    starts = [number for number, line in enumerate(lines, 1) if re.match(r'\s*"cell_type":', line)]
    if len(starts) != len(kinds) or not starts:
        return Parsed(language="notebook", title="", chunks=tuple(_windows(1, len(lines), "lines", "")))
    chunks = [Chunk(1, starts[0] - 1, "lines", "")] if starts[0] > 1 else []
    for number, (first, after) in enumerate(zip(starts, [*starts[1:], len(lines) + 1], strict=True), 1):
        chunks += _windows(first, after - 1, "cell", f"cell {number}, {kinds[number - 1]}")
    title = next((line.strip('", \\n#') for line in lines if re.match(r'\s*"#+ ', line)), "")
    return Parsed(language="notebook", title=one_line(title.strip(), 200), chunks=tuple(chunks))
