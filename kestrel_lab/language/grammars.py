"""Programming languages: suffixes of files, syntax nodes of definitions, and patterns of imports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
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


def _by_node(kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the kind of symbol that each type of syntax node defines, given the types of each kind."""
    return {node: kind for kind, nodes in kinds.items() for node in nodes.split()}


def _node_types(nodes: str) -> frozenset[str]:
    return frozenset(nodes.split())


_C_KINDS = {
    "function": "function_definition preproc_function_def",
    "class": "struct_specifier union_specifier enum_specifier type_definition",
    "constant": "preproc_def",
    "declaration": "declaration",
}
_C_WITHIN = _node_types(
    "preproc_ifdef preproc_if preproc_else preproc_elif linkage_specification declaration_list"
)
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
_JS_KINDS = {
    "function": "function_declaration generator_function_declaration",
    "class": "class_declaration",
    "method": "method_definition field_definition",
    "constant": "expression_statement lexical_declaration variable_declaration",
}
_JS_WITHIN = _node_types("export_statement class_body statement_block ambient_declaration module")
_JS_IMPORT = re.compile(r"""(?:\bfrom|\bimport|\brequire\(|\bimport\()\s*['"]([^'"\n]+)['"]""")
_TS_DEFINITIONS = _by_node(_JS_KINDS) | _by_node(
    {
        "class": "abstract_class_declaration interface_declaration type_alias_declaration enum_declaration",
        "namespace": "internal_module",
        "method": "public_field_definition method_signature abstract_method_signature",
        "function": "function_signature",
    }
)
GRAMMARS: Mapping[str, Grammar] = {
    "python": Grammar(
        module="tree_sitter_python",
        definitions=_by_node(
            {
                "function": "function_definition",
                "class": "class_definition",
                "constant": "expression_statement",
            }
        ),
        within=_node_types(
            "decorated_definition block if_statement else_clause try_statement except_clause with_statement"
        ),
        imports=re.compile(
            r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^#\n]+)|import[ \t]+([\w., \t]+))",
            re.MULTILINE,
        ),
    ),
    "javascript": Grammar(
        module="tree_sitter_javascript",
        definitions=_by_node(_JS_KINDS),
        within=_JS_WITHIN,
        imports=_JS_IMPORT,
    ),
    **{
        language: Grammar(
            module="tree_sitter_typescript",
            function=f"language_{language}",
            definitions=_TS_DEFINITIONS,
            within=_JS_WITHIN,
            imports=_JS_IMPORT,
        )
        for language in ("typescript", "tsx")
    },
    "java": Grammar(
        module="tree_sitter_java",
        definitions=_by_node(
            {
                "class": "class_declaration interface_declaration enum_declaration record_declaration "
                "annotation_type_declaration",
                "method": "method_declaration constructor_declaration compact_constructor_declaration",
                "constant": "field_declaration enum_constant",
            }
        ),
        within=_node_types("class_body interface_body enum_body enum_body_declarations"),
        imports=re.compile(r"^\s*import\s+(?:static\s+)?([\w.]+)", re.MULTILINE),
    ),
    "go": Grammar(
        module="tree_sitter_go",
        definitions=_by_node(
            {
                "function": "function_declaration",
                "method": "method_declaration method_elem",
                "class": "type_spec type_alias",
                "constant": "const_spec var_spec",
            }
        ),
        within=_node_types("type_declaration const_declaration var_declaration var_spec_list"),
        imports=re.compile(r'^\s*(?:import\s+)?(?:\w+\s+)?"([\w./-]+)"\s*$', re.MULTILINE),
    ),
    "rust": Grammar(
        module="tree_sitter_rust",
        definitions=_by_node(
            {
                "function": "function_item function_signature_item macro_definition",
                "class": "union_item struct_item enum_item trait_item impl_item type_item",
                "namespace": "mod_item",
                "constant": "const_item static_item",
            }
        ),
        within=_node_types("declaration_list foreign_mod_item"),
        imports=re.compile(r"^\s*(?:pub\s+)?use\s+([\w:]+)|^\s*(?:pub\s+)?mod\s+(\w+)\s*;", re.MULTILINE),
    ),
    "c": Grammar(module="tree_sitter_c", definitions=_by_node(_C_KINDS), within=_C_WITHIN, imports=_INCLUDE),
    "c++": Grammar(
        module="tree_sitter_cpp",
        definitions=_by_node(_C_KINDS)
        | _by_node(
            {
                "class": "class_specifier alias_declaration",
                "namespace": "namespace_definition",
                "declaration": "field_declaration",
            }
        ),
        within=_C_WITHIN | {"template_declaration", "field_declaration_list"},
        imports=_INCLUDE,
    ),
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
LANGUAGES: Mapping[str, str] = {
    suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes.split()
}
"""Languages by the suffix of files."""


def language_of(path: str) -> str:
    """Return the language of a file by its name: also `prose`, `notebook`, and `text` where none is known."""
    name = path.rsplit("/", 1)[-1].lower()
    return LANGUAGES.get(name.rsplit(".", 1)[-1] if "." in name else "", "text")


@cache
def has_grammar(language: str) -> bool:
    """Return whether texts in `language` can be parsed here: the extra `retrieval` brings the grammars."""
    return language in GRAMMARS and find_spec(GRAMMARS[language].module) is not None


@cache
def absent_grammars() -> tuple[str, ...]:
    """Return the modules of grammars that are not installed."""
    return tuple(dict.fromkeys(one.module for name, one in GRAMMARS.items() if not has_grammar(name)))


@cache
def _load_language(language: str) -> Any:
    from tree_sitter import Language  # compiled; only who builds an index needs it

    grammar = GRAMMARS[language]
    return Language(getattr(import_module(grammar.module), grammar.function)())


def parse_source(language: str, content: bytes) -> Any:
    """Return the syntax tree of a text in a language of `GRAMMARS`; wrong code has one too."""
    from tree_sitter import Parser

    return Parser(_load_language(language)).parse(content)
