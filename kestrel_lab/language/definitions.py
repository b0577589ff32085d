"""What a file defines, by its syntax tree: functions, classes, methods and constants with their places, in
every language of `grammars`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kestrel_lab.language.grammars import GRAMMARS, HOLDERS, Grammar, has_grammar, language_of, parse_source

_DEPTH = 40
"""Levels of nested definitions that are read."""
# C and C++ share `.h`: only what C does not have shows that a header is C++.
_CPP_HEADER = re.compile(
    r"^\s*(?:class\s+\w[^;{]*\{|namespace\b[^;{]*\{|template\s*<|(?:public|private|protected)\s*:)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something that a file defines, under its own name and under its full one within the file."""

    name: str
    qualified: str
    kind: str
    first: int
    last: int


def source_language(path: str, text: str) -> str:
    """Return the language of a file by its name, of a header by its text."""
    return "c++" if path.endswith(".h") and _CPP_HEADER.search(text) else language_of(path)


@lru_cache(maxsize=64)
def definitions_in(path: str, text: str) -> tuple[Symbol, ...]:
    """Return what the file defines, outer ones before those within; empty for a language without a grammar
    here.

    Wrong code has a tree as well.
    """
    language = source_language(path, text)
    return symbols_of(language, text) if has_grammar(language) else ()


def symbols_of(language: str, text: str) -> tuple[Symbol, ...]:
    """Return what a text in a language of `GRAMMARS` defines."""
    # UTF-8 has no form for a lone surrogate, which a text may contain.
    content = text.encode("utf-8", "surrogatepass")
    return tuple(_symbols(parse_source(language, content).root_node, GRAMMARS[language], content))


def _symbols(root: Any, grammar: Grammar, content: bytes) -> Iterator[Symbol]:
    # A stack instead of recursion: code may be nested deeper than Python allows.
    todo: list[tuple[Any, Any, str, int]] = [(child, child, "", 0) for child in reversed(root.children)]
    # Full names of what holds functions rather than methods.
    spaces = {""}
    while todo:
        node, whole, outer, depth = todo.pop()
        kind = grammar.definitions.get(node.type)
        if kind is None:
            if node.type in grammar.within and depth < _DEPTH:
                around = (
                    node
                    if node.type in {"decorated_definition", "export_statement", "template_declaration"}
                    else None
                )
                todo += [(child, around or child, outer, depth + 1) for child in reversed(node.children)]
            continue
        qualified = outer
        for name in names_of(node, content):
            qualified = f"{outer}.{name}" if outer else name
            shown = "function" if kind == "constant" and is_function(node) else kind
            shown = "method" if kind == "function" and outer not in spaces else shown
            spaces |= {qualified} if kind == "namespace" else set()
            yield Symbol(
                qualified.rsplit(".", 1)[-1], qualified, shown, whole.start_point[0] + 1, _last_line(whole)
            )
        if kind in HOLDERS and depth < _DEPTH and qualified != outer and (body := body_of(node)) is not None:
            todo += [(child, child, qualified, depth + 1) for child in reversed(body.children)]
        elif node.type == "type_definition":
            # The structure of a `typedef struct node {…} node_t` has a name as well.
            todo += [(child, child, outer, depth + 1) for child in reversed(node.children)]


def _last_line(node: Any) -> int:
    # A node that ends at the beginning of a line has nothing of that line.
    row, column = node.end_point
    return int(row) + (1 if column else 0) or 1


_DEEP = 40
"""Most declarators within declarators."""
_FUNCTIONS = {"arrow_function", "function_expression", "generator_function", "class"}
_BODY_NEEDED = {
    *("struct_specifier", "class_specifier", "union_specifier", "enum_specifier", "mod_item"),
    *("field_definition", "public_field_definition", "assignment_expression"),
}
"""Nodes that define something only together with what is in it: `class A;` says that there is an A elsewhere.
"""
_EXPORTS = re.compile(r"^(?:module\.)?exports\.|\bprototype\.")


def names_of(node: Any, content: bytes) -> list[str]:
    """Return the names a node defines, with the class or namespace that it names: `Tree.cut` for `int
    Tree::cut() {}`.
    """
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
        case "field_declaration" if (
            node.child_by_field_name("declarator") is not None and node.parent.type == "class_body"
        ):
            # Java: one declaration of several fields.
            declared = [
                each.child_by_field_name("name") for each in node.children_by_field_name("declarator")
            ]
            return [_text(each, content) for each in declared if each is not None]
        case "declaration" | "field_declaration":
            return _prototype(node, content)
        case "method_declaration" if node.child_by_field_name("receiver") is not None:
            holder = re.search(
                r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\])?\s*\)$",
                _text(node.child_by_field_name("receiver"), content),
            )
            return _qualified_name(
                holder[1] if holder else "", _name_without_types(node.child_by_field_name("name"), content)
            )
        case _:
            found = node.child_by_field_name("name") or node.child_by_field_name(
                "type" if node.type == "impl_item" else "declarator"
            )
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
    """Return an assigned name in Python; in JavaScript a function that is exported or assigned to a
    prototype.
    """
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
    return (
        []
        if inner is None or inner.type == "parenthesized_declarator"
        else _qualified_name("", _name_without_types(inner, content))
    )


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
    # Declarators of references and in brackets have no name for their part.
    if found is None and node.type.endswith("_declarator"):
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
