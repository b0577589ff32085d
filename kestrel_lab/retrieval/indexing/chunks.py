"""Chunks of files: functions, classes and methods by their syntax nodes; sections of prose; cells of notebooks; else runs of lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.retrieval.indexing.languages import GRAMMARS, HOLDERS, UNCUT, Grammar, language_of, parse_source

_MOST_LINES = 120
"""Lines of one chunk; a longer part is split."""
_SECTION_LINES = 40
_DEPTH = 40
"""Levels of nested definitions that are read."""
_CPP_HEADER = re.compile(r"^\s*(?:class\s+\w[^;{]*\{|namespace\b[^;{]*\{|template\s*<|(?:public|private|protected)\s*:)", re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6}\s+\S.*|={1,3}\s+\S.*)$")
_UNDERLINE = re.compile(r"^([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_LINK = re.compile(
    r"\[[^\]\n]*\]\(\s*<?([^)\s>#]+)[^)\n]*\)|:doc:`(?:[^`<]*<)?([^`>]+)>?`|^\s*\.\. (?:literal)?include::\s*(\S+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines `first` to `last` of a file, counted from 1; `name` says what they define or are about."""

    first: int
    last: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something that a file defines, under its own name and under its full one within the file."""

    name: str
    qualified: str
    kind: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Edge:
    """Another file or module that a file names: `import` or `link`."""

    kind: str
    target: str
    names: str
    """What is imported from it, with spaces between."""
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
    language = language_of(path)
    if path.endswith(".h") and _CPP_HEADER.search(text):
        language = "c++"
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if language in GRAMMARS:
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
    content = text.encode("utf-8", "surrogatepass")
    root = parse_source(language, content).root_node
    symbols = list(_symbols(root, grammar, content))
    spans = [(each.first, min(each.last, len(lines)), each) for each in symbols if each.kind not in UNCUT]
    owner: list[Symbol | None] = [None] * (len(lines) + 2)
    for first, last, symbol in spans:  # inner ones come behind outer ones and take their lines
        owner[first : last + 1] = [symbol] * (last + 1 - first)
    chunks: list[Chunk] = []
    start = 1
    for number in range(2, len(lines) + 2):
        if number > len(lines) or owner[number] is not owner[start]:
            held = owner[start]
            kind, name = ("code", "") if held is None else (held.kind, held.qualified)
            if chunks and held is None and not any(line.strip() for line in lines[start - 1 : number - 1]):
                chunks[-1] = replace(chunks[-1], last=number - 1)  # empty lines belong to what is above them
            else:
                chunks += _windows(start, number - 1, kind, name)
            start = number
    return Parsed(
        language=language,
        title=_title(text, language),
        chunks=tuple(chunks),
        symbols=tuple(symbols),
        edges=tuple(_imports(grammar, text)),
    )


def _symbols(root: Any, grammar: Grammar, content: bytes) -> Iterator[Symbol]:
    todo: list[tuple[Any, Any, str, int]] = [(child, child, "", 0) for child in reversed(root.children)]
    spaces = {""}  # full names of what holds functions rather than methods
    while todo:
        node, whole, outer, depth = todo.pop()
        kind = grammar.definitions.get(node.type)
        if kind is None:
            if node.type in grammar.within and depth < _DEPTH:
                around = node if node.type in {"decorated_definition", "export_statement", "template_declaration"} else None
                todo += [(child, around or child, outer, depth + 1) for child in reversed(node.children)]
            continue
        qualified = outer
        for name in names_of(node, content):
            qualified = f"{outer}.{name}" if outer else name
            shown = "function" if kind == "constant" and is_function(node) else kind
            shown = "method" if kind == "function" and outer not in spaces else shown
            spaces |= {qualified} if kind == "namespace" else set()
            yield Symbol(qualified.rsplit(".", 1)[-1], qualified, shown, whole.start_point[0] + 1, _last_line(whole))
        if kind in HOLDERS and depth < _DEPTH and qualified != outer and (body := body_of(node)) is not None:
            todo += [(child, child, qualified, depth + 1) for child in reversed(body.children)]
        elif node.type == "type_definition":  # the structure of a `typedef struct node {…} node_t` has a name as well
            todo += [(child, child, outer, depth + 1) for child in reversed(node.children)]


def _last_line(node: Any) -> int:
    row, column = node.end_point
    return int(row) + (1 if column else 0) or 1


def _title(text: str, language: str) -> str:
    """The first sentence of a module's docstring or of the comment at its head."""
    head = text[:4_000]
    found = re.match(r'(?:\s*#[^\n]*\n)*\s*[rRuUbB]{0,2}("""|\'\'\'|"|\')(.*?)\1', head, re.DOTALL) if language == "python" else None
    if found:
        return _paragraph(found[2])
    comment = re.match(r"\s*(?:/\*+(.*?)\*/|((?:\s*//[^\n]*\n)+))", head, re.DOTALL)
    return _paragraph(re.sub(r"^[\s*/!]+", "", comment[1] or comment[2], flags=re.MULTILINE)) if comment and language != "python" else ""


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
        elif at and _UNDERLINE.match(line) and lines[at - 1].strip() and len(line.rstrip()) >= len(lines[at - 1].rstrip()) // 2:
            heads.append((at, lines[at - 1].strip()))
    title = heads[0][1] if heads else next((line.strip() for line in lines if line.strip()), "")
    starts = ([] if heads and heads[0][0] == 1 else [(1, "")]) + heads
    chunks: list[Chunk] = []
    for (first, name), (after, _) in zip(starts, [*starts[1:], (len(lines) + 1, "")], strict=True):
        chunks += _paragraphs(first, after - 1, name, lines)
    links = [Edge("link", next(group for group in match.groups() if group), "", 0) for match in _LINK.finditer(text)]
    return Parsed(language="prose", title=one_line(title, 200), chunks=tuple(chunks), edges=tuple(links))


def _paragraphs(first: int, last: int, name: str, lines: list[str]) -> Iterator[Chunk]:
    start = first
    while start <= last:
        end = min(start + _SECTION_LINES - 1, last)
        if end < last:
            end = next((number for number in range(end, start + _SECTION_LINES // 2, -1) if not lines[number - 1].strip()), end)
        yield Chunk(start, end, "section", one_line(name, 120))
        start = end + 1


def _notebook(text: str, lines: list[str]) -> Parsed | None:
    """Cells as chunks, where the file is written as Jupyter writes it; `None` for a file that is not a notebook."""
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


_DEEP = 40
"""Most declarators within declarators."""
_FUNCTIONS = {"arrow_function", "function_expression", "generator_function", "class"}
_BODY_NEEDED = {
    *("struct_specifier", "class_specifier", "union_specifier", "enum_specifier", "mod_item"),
    *("field_definition", "public_field_definition", "assignment_expression"),
}
"""Nodes that define something only together with what is in it: `class A;` says that there is an A elsewhere."""
_EXPORTS = re.compile(r"^(?:module\.)?exports\.|\bprototype\.")


def names_of(node: Any, content: bytes) -> list[str]:
    """Return the names a node defines, with the class or namespace that it names: `Tree.cut` for `int Tree::cut() {}`."""
    if node.type in _BODY_NEEDED and not _has_body(node):
        return []
    match node.type:
        case "expression_statement":
            return _assigned_names(node, content)
        case "lexical_declaration" | "variable_declaration":
            named = [child.child_by_field_name("name") for child in node.named_children]
            return [_text(each, content) for each in named if each is not None and each.type == "identifier"]
        case "const_spec" | "var_spec":
            return [_text(each, content) for each in node.children_by_field_name("name") if each.is_named]
        case "field_declaration" if node.child_by_field_name("declarator") is not None and node.parent.type == "class_body":  # Java
            declared = [each.child_by_field_name("name") for each in node.children_by_field_name("declarator")]
            return [_text(each, content) for each in declared if each is not None]
        case "declaration" | "field_declaration":
            return _prototype(node, content)
        case "method_declaration" if node.child_by_field_name("receiver") is not None:
            holder = re.search(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\])?\s*\)$", _text(node.child_by_field_name("receiver"), content))
            return _qualified_name(holder[1] if holder else "", _name_without_types(node.child_by_field_name("name"), content))
        case _:
            found = node.child_by_field_name("name") or node.child_by_field_name("type" if node.type == "impl_item" else "declarator")
            found = found or node.child_by_field_name("property")
            return _qualified_name("", _name_without_types(_innermost_declarator(found), content))


def body_of(node: Any) -> Any | None:
    """Return the node that contains the definitions within a node; `None` where none does."""
    if node.type == "type_spec":
        return node.child_by_field_name("type")
    return node.child_by_field_name("body")


def is_function(node: Any) -> bool:
    """Return whether a constant is a function, as in `const add = (a, b) => a + b`."""
    if node.type == "expression_statement":
        return bool(node.children) and node.children[0].type == "assignment_expression"
    if node.type in {"field_definition", "public_field_definition"}:
        return _has_body(node)
    values = [child.child_by_field_name("value") for child in node.named_children]
    return any(value is not None and value.type in _FUNCTIONS for value in values)


def _has_body(node: Any) -> bool:
    value = node.child_by_field_name("value") or node.child_by_field_name("right")
    return (value is not None and value.type in _FUNCTIONS) or node.child_by_field_name("body") is not None


def _assigned_names(node: Any, content: bytes) -> list[str]:
    """Return an assigned name in Python; in JavaScript a function that is exported or assigned to a prototype."""
    child = node.children[0] if node.children else None
    left = None if child is None else child.child_by_field_name("left")
    if child is None or left is None:
        return []
    if child.type == "assignment" and left.type == "identifier":
        return [_text(left, content)]
    name = _text(left, content)
    if child.type == "assignment_expression" and _has_body(child) and _EXPORTS.search(name):
        return _qualified_name("", _EXPORTS.sub("", name))
    return []


def _prototype(node: Any, content: bytes) -> list[str]:
    found = node.child_by_field_name("declarator")
    for _ in range(_DEEP):
        if found is None or found.type == "function_declarator":
            break
        found = _inner_node(found)
    inner = None if found is None else found.child_by_field_name("declarator")
    return [] if inner is None or inner.type == "parenthesized_declarator" else _qualified_name("", _name_without_types(inner, content))


def _innermost_declarator(node: Any | None) -> Any | None:
    for _ in range(_DEEP):
        inner = None if node is None else _inner_node(node)
        if inner is None:
            break
        node = inner
    return node


def _inner_node(node: Any) -> Any | None:
    if node.type == "operator_cast":
        return None
    found = node.child_by_field_name("declarator")
    if found is None and node.type.endswith("_declarator"):  # of references and in brackets: without a name for its part
        found = next(iter(node.named_children), None)
    if found is None and node.type in {"generic_type", "template_type", "template_function"}:
        found = node.child_by_field_name("type") or node.child_by_field_name("name")
    return found


def _name_without_types(node: Any | None, content: bytes) -> str:
    """Return the name without type arguments: `Tree.grow` of `Tree<T>::grow`."""
    if node is None:
        return ""
    text = _text(node, content)
    if node.type == "operator_cast":
        return " ".join(text.split("(")[0].split())
    if "operator" not in text:
        text = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", text))
    return re.sub(r"\s+", " " if text.startswith("operator ") else "", text)


def _qualified_name(holder: str, name: str) -> list[str]:
    full = ".".join(part for part in (holder, *re.split(r"::|(?<!\.)\.(?!\.)", name)) if part)
    return [full] if name and len(full) <= 200 else []


def _text(node: Any, content: bytes) -> str:
    return content[node.start_byte : node.end_byte].decode("utf-8", "replace")
