"""Definitions in syntax trees: the qualified names that a node defines, and its body."""

from __future__ import annotations

import re
from typing import Any

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
            return _assigned(node, content)
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
            return _within(holder[1] if holder else "", _plain(node.child_by_field_name("name"), content))
        case _:
            found = node.child_by_field_name("name") or node.child_by_field_name("type" if node.type == "impl_item" else "declarator")
            found = found or node.child_by_field_name("property")
            return _within("", _plain(_innermost(found), content))


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


def _assigned(node: Any, content: bytes) -> list[str]:
    """Return an assigned name in Python; in JavaScript a function that is exported or assigned to a prototype."""
    child = node.children[0] if node.children else None
    left = None if child is None else child.child_by_field_name("left")
    if child is None or left is None:
        return []
    if child.type == "assignment" and left.type == "identifier":
        return [_text(left, content)]
    name = _text(left, content)
    if child.type == "assignment_expression" and _has_body(child) and _EXPORTS.search(name):
        return _within("", _EXPORTS.sub("", name))
    return []


def _prototype(node: Any, content: bytes) -> list[str]:
    """Return a function that is declared here and defined elsewhere."""
    found = node.child_by_field_name("declarator")
    for _ in range(_DEEP):
        if found is None or found.type == "function_declarator":
            break
        found = _inner(found)
    inner = None if found is None else found.child_by_field_name("declarator")
    return [] if inner is None or inner.type == "parenthesized_declarator" else _within("", _plain(inner, content))


def _innermost(node: Any | None) -> Any | None:
    for _ in range(_DEEP):
        inner = None if node is None else _inner(node)
        if inner is None:
            break
        node = inner
    return node


def _inner(node: Any) -> Any | None:
    if node.type == "operator_cast":
        return None
    found = node.child_by_field_name("declarator")
    if found is None and node.type.endswith("_declarator"):  # of references and in brackets: without a name for its part
        found = next(iter(node.named_children), None)
    if found is None and node.type in {"generic_type", "template_type", "template_function"}:
        found = node.child_by_field_name("type") or node.child_by_field_name("name")
    return found


def _plain(node: Any | None, content: bytes) -> str:
    """Return the name without type arguments: `Tree.grow` of `Tree<T>::grow`."""
    if node is None:
        return ""
    text = _text(node, content)
    if node.type == "operator_cast":
        return " ".join(text.split("(")[0].split())
    if "operator" not in text:
        text = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", text))
    return re.sub(r"\s+", " " if text.startswith("operator ") else "", text)


def _within(holder: str, name: str) -> list[str]:
    full = ".".join(part for part in (holder, *re.split(r"::|(?<!\.)\.(?!\.)", name)) if part)
    return [full] if name and len(full) <= 200 else []


def _text(node: Any, content: bytes) -> str:
    return content[node.start_byte : node.end_byte].decode("utf-8", "replace")
