"""Programming languages: suffixes of files, syntax nodes of definitions, and patterns of imports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Grammar:
    """The definitions and imports of a language in tree-sitter's terms."""

    module: str
    function: str = "language"
    definitions: Mapping[str, str]
    """Kinds of symbols by types of syntax nodes."""
    within: frozenset[str] = field(default=frozenset())
    """Nodes that may hold definitions without being one."""
    imports: re.Pattern[str]
    """Matches an import; its groups, whichever there are, name what is imported."""


HOLDERS = frozenset({"class", "namespace"})
"""Kinds of symbols that others are within."""
UNCUT = frozenset({"constant", "declaration"})
"""Kinds that are too small to be chunks of their own."""
_C_DEFINITIONS = {
    "declaration": "declaration",
    "function_definition": "function",
    "struct_specifier": "class",
    "union_specifier": "class",
    "enum_specifier": "class",
    "type_definition": "class",
    "preproc_function_def": "function",
    "preproc_def": "constant",
}
_C_WITHIN = frozenset({"preproc_ifdef", "preproc_if", "preproc_else", "preproc_elif", "linkage_specification", "declaration_list"})
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
_JS_DEFINITIONS = {
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "class_declaration": "class",
    "method_definition": "method",
    "field_definition": "method",
    "expression_statement": "constant",
    "lexical_declaration": "constant",
    "variable_declaration": "constant",
}
_JS_WITHIN = frozenset({"export_statement", "class_body", "statement_block", "ambient_declaration", "module"})
_JS_IMPORT = re.compile(r"""(?:\bfrom|\bimport|\brequire\(|\bimport\()\s*['"]([^'"\n]+)['"]""")
_PYTHON = Grammar(
    module="tree_sitter_python",
    definitions={"function_definition": "function", "class_definition": "class", "expression_statement": "constant"},
    within=frozenset({"decorated_definition", "block", "if_statement", "else_clause", "try_statement", "except_clause", "with_statement"}),
    imports=re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^#\n]+)|import[ \t]+([\w., \t]+))", re.MULTILINE),
)
_JAVASCRIPT = Grammar(module="tree_sitter_javascript", definitions=_JS_DEFINITIONS, within=_JS_WITHIN, imports=_JS_IMPORT)
_TS_DEFINITIONS = {
    **_JS_DEFINITIONS,
    "abstract_class_declaration": "class",
    "interface_declaration": "class",
    "type_alias_declaration": "class",
    "enum_declaration": "class",
    "internal_module": "namespace",
    "public_field_definition": "method",
    "method_signature": "method",
    "abstract_method_signature": "method",
    "function_signature": "function",
}
_TYPESCRIPT = Grammar(
    module="tree_sitter_typescript",
    function="language_typescript",
    definitions=_TS_DEFINITIONS,
    within=_JS_WITHIN,
    imports=_JS_IMPORT,
)
_TSX = Grammar(module="tree_sitter_typescript", function="language_tsx", definitions=_TS_DEFINITIONS, within=_JS_WITHIN, imports=_JS_IMPORT)
_JAVA = Grammar(
    module="tree_sitter_java",
    definitions={
        "class_declaration": "class",
        "interface_declaration": "class",
        "enum_declaration": "class",
        "record_declaration": "class",
        "annotation_type_declaration": "class",
        "method_declaration": "method",
        "constructor_declaration": "method",
        "compact_constructor_declaration": "method",
        "field_declaration": "constant",
        "enum_constant": "constant",
    },
    within=frozenset({"class_body", "interface_body", "enum_body", "enum_body_declarations"}),
    imports=re.compile(r"^\s*import\s+(?:static\s+)?([\w.]+)", re.MULTILINE),
)
_GO = Grammar(
    module="tree_sitter_go",
    definitions={
        "function_declaration": "function",
        "method_declaration": "method",
        "method_elem": "method",
        "type_spec": "class",
        "type_alias": "class",
        "const_spec": "constant",
        "var_spec": "constant",
    },
    within=frozenset({"type_declaration", "const_declaration", "var_declaration", "var_spec_list"}),
    imports=re.compile(r'^\s*(?:import\s+)?(?:\w+\s+)?"([\w./-]+)"\s*$', re.MULTILINE),
)
_RUST = Grammar(
    module="tree_sitter_rust",
    definitions={
        "function_item": "function",
        "function_signature_item": "function",
        "union_item": "class",
        "struct_item": "class",
        "enum_item": "class",
        "trait_item": "class",
        "impl_item": "class",
        "mod_item": "namespace",
        "type_item": "class",
        "macro_definition": "function",
        "const_item": "constant",
        "static_item": "constant",
    },
    within=frozenset({"declaration_list", "foreign_mod_item"}),
    imports=re.compile(r"^\s*(?:pub\s+)?use\s+([\w:]+)|^\s*(?:pub\s+)?mod\s+(\w+)\s*;", re.MULTILINE),
)
_C = Grammar(module="tree_sitter_c", definitions=_C_DEFINITIONS, within=_C_WITHIN, imports=_INCLUDE)
_CPP = Grammar(
    module="tree_sitter_cpp",
    definitions={
        **_C_DEFINITIONS,
        "class_specifier": "class",
        "namespace_definition": "namespace",
        "alias_declaration": "class",
        "field_declaration": "declaration",
    },
    within=_C_WITHIN | {"template_declaration", "field_declaration_list"},
    imports=_INCLUDE,
)
GRAMMARS: Mapping[str, Grammar] = {
    "python": _PYTHON,
    "javascript": _JAVASCRIPT,
    "typescript": _TYPESCRIPT,
    "tsx": _TSX,
    "java": _JAVA,
    "go": _GO,
    "rust": _RUST,
    "c": _C,
    "c++": _CPP,
}
_SUFFIXES = {
    "python": "py pyi pyw",
    "javascript": "js jsx mjs cjs",
    "typescript": "ts mts cts",
    "tsx": "tsx",
    "java": "java",
    "go": "go",
    "rust": "rs",
    "c": "c h",
    "c++": "cc cpp cxx hpp hh hxx",
    "prose": "md markdown rst txt adoc org",
    "notebook": "ipynb",
}
LANGUAGES: Mapping[str, str] = {suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
"""Languages by the suffix of files."""


def language_of(path: str) -> str:
    """Return the language of a file by its name: also `prose`, `notebook`, and `text` where none is known."""
    name = path.rsplit("/", 1)[-1].lower()
    return LANGUAGES.get(name.rsplit(".", 1)[-1] if "." in name else "", "text")


@cache
def _loaded(language: str) -> Any:
    from tree_sitter import Language  # compiled; only who builds an index needs it

    grammar = GRAMMARS[language]
    return Language(getattr(import_module(grammar.module), grammar.function)())


def parse(language: str, content: bytes) -> Any:
    """Return the syntax tree of a text in a language of `GRAMMARS`; wrong code has one too."""
    from tree_sitter import Parser

    return Parser(_loaded(language)).parse(content)
