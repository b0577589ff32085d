"""Write `docs/messages.md`, the list of what a person reads: errors, help, and lines that are printed:
`python -m bench.messages`.

The texts are found in the syntax trees of the package. What is put into a text when it is shown stands as
`{name}`.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kestrel_lab"
PAGE = ROOT / "docs" / "messages.md"
KINDS = {"error": "Errors", "help": "Help", "shown": "Shown"}
SHOWN_IN = ("cli", "notebook", "views")
"""Packages whose sentences are shown, wherever they stand."""
_SHOWN_BY = {
    "print",
    "echo",
    "warn",
    "Refused",
    "refusal",
    "Finding",
    "Barrier",
    "refuse",
    "refused",
    "Notice",
    "Warned",
    "note",
}
_SAYING = {
    "message",
    "todo",
    "advice",
    "reason",
    "why",
    "found",
    "text",
    "note",
    "problem",
    "hint",
    "warning",
}
"""Names of arguments that hold what is shown."""
_HEAD = """# Messages

What a person reads, package by package: the texts of errors, of `--help`, and what is printed and drawn. \
Written by `make messages`;
read it as a whole after changing texts. `{name}` stands for what is put in when the text is shown.
"""


_MARKUP: Final = re.compile(r"[\\\[\]<>*_`]")
_ESCAPED: Final = r"\\\g<0>"
"""What Markdown would read as its own is shown as it is."""


def texts_of(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield kind, line and text of a module's messages; docstrings of commands are help."""
    tree = ast.parse(path.read_bytes())
    package = path.relative_to(PACKAGE).parts[0]
    seen: set[int] = set()
    # Docstrings, also those of attributes.
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for kind, value in _said(node):
            if (text := text_of(value)) is not None and id(value) not in seen:
                seen |= {id(inner) for inner in ast.walk(value)}
                yield kind, value.lineno, text
    if package in SHOWN_IN:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in seen | docs:
                text = text_of(node)
                seen |= {id(inner) for inner in ast.walk(node)}
                if text is not None and _sentence(text):
                    yield "shown", node.lineno, text


def _said(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the kind and the value of what one node says."""
    match node:
        case ast.Raise(exc=ast.Call(args=[value, *_])):
            yield "error", value
        case ast.Assign(targets=[ast.Name(id="msg")], value=value):
            yield "error", value
        case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_command(node):
            if isinstance(node.body[0], ast.Expr):
                yield "help", node.body[0].value
        case ast.Assign(targets=[ast.Name(id="EPILOG")], value=value):
            yield "help", value
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for keyword in node.keywords:
            if keyword.arg in ("help", "epilog"):
                yield "help", keyword.value
            elif keyword.arg in _SAYING and name in _SHOWN_BY:
                yield "shown", keyword.value
        if name == "group" and node.args:  # of commands
            yield "help", node.args[0]
        if name == "Opt":  # a row of the table of options: default, meaning, and more about it
            yield from (("help", value) for value in node.args[1:])
        if name in _SHOWN_BY:
            yield from (("shown", value) for value in node.args)


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a command of the command line."""
    return any("command" in (text := ast.unparse(one)) or "callback" in text for one in node.decorator_list)


def text_of(node: ast.expr) -> str | None:
    """Return a string on one line, with `{name}` for what is put in; `None` for what is not a string."""
    text = _raw(node)
    return None if text is None else " ".join(text.split())


def _raw(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_part, values))
        case ast.IfExp(body=body, orelse=orelse):
            return " | ".join(text for one in (body, orelse) if (text := _raw(one))) or None
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _raw(left), _raw(right)
            return None if one is None and other is None else f"{one or '{…}'}{other or '{…}'}"
    return None


def _part(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=ast.IfExp() as inner) if (text := _raw(inner)) is not None:
            return f"[{text}]"
        case ast.FormattedValue(value=inner):
            return f"{{{_name(inner)}}}"
    return ""


def _name(node: ast.expr) -> str:
    """Return the name that tells best what an expression is."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(args=[first, *_]):
            return _name(first)
        case (
            ast.Call(func=inner)
            | ast.Subscript(value=inner)
            | ast.GeneratorExp(elt=inner)
            | ast.ListComp(elt=inner)
        ):
            return _name(inner)
    return "…"


def _sentence(text: str) -> bool:
    """Return whether a string reads as words for a person: three words at least, none of code or markup."""
    words = text.split()
    return (
        len(words) > 2
        and sum(word.strip(".,:;()'").isalpha() for word in words) > len(words) / 2
        and not text.startswith(("SELECT ", "<", "^"))
    )


def page() -> str:
    """Return the list as Markdown, by package and kind, each text once."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for kind, _, text in texts_of(path):
            if " " in text:
                found[name.partition("/")[0], kind].setdefault(text, name)
    lines = [_HEAD]
    for package in sorted({package for package, _ in found}):
        lines.append(f"\n## {package}")
        for kind, title in KINDS.items():
            if texts := found.get((package, kind)):
                lines += [f"\n### {title}", ""]
                lines += [f"- {_MARKUP.sub(_ESCAPED, text)}" for text in texts]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.messages", description="List the texts that a person reads."
    )
    parser.add_argument("--out", type=Path, default=PAGE, help="the file (default: docs/messages.md)")
    parser.parse_args().out.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
