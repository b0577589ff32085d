"""What names are bound to in a workspace: defaults, constants, keys, as far as the text alone tells their values."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kestrel_lab.language.python_ast import expression_of, tree_of

UNKNOWN: Final = object()
"""The value of what only running the code would tell."""
_PLAIN: Final = re.compile(r"^\s*[\"']?(?P<name>[\w.-]+)[\"']?\s*[:=]\s*(?P<value>[^#\n]+?)\s*,?\s*(?:#.*)?$", re.MULTILINE)
_PLAIN_ENDINGS: Final = (".yml", ".yaml", ".toml", ".json", ".ini", ".cfg", ".env", ".js", ".ts")
_LONGEST: Final = 500
"""Characters of a line that sets something."""
_WORDS: Final = {"true": True, "false": False, "null": None, "none": None}
_OPERATORS: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: lambda a, b: int(a) << int(b),
    ast.Pow: operator.pow,
}


@dataclass(frozen=True, slots=True)
class Binding:
    """A value that a name has at one place."""

    value: object
    path: str
    line: int
    owners: tuple[str, ...]
    """The classes and functions around it, the outermost first."""
    parameter: bool = False


def folded(node: ast.AST | None) -> object:
    """The value of a literal, or of a sum or product of some; `UNKNOWN` for everything else."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            known = folded(operand)
            return -known if isinstance(known, int | float) else UNKNOWN
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            a, b = folded(left), folded(right)
            if not (_is_small(a) and _is_small(b)) or (isinstance(op, ast.Pow | ast.LShift) and abs(b) > 64):  # type: ignore[arg-type]  # a number
                return UNKNOWN
            try:
                return _OPERATORS[type(op)](a, b)  # type: ignore[arg-type]  # numbers
            except (ArithmeticError, ValueError):
                return UNKNOWN
        case _:
            return UNKNOWN


def literal(text: str) -> object:
    """The value that `text` writes, as Python or as YAML would have it; `UNKNOWN` if it writes none."""
    text = text.strip()[:_LONGEST]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return folded(expression_of(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)))
    except (SyntaxError, ValueError, RecursionError):
        return UNKNOWN


def _is_small(value: object) -> bool:
    """Whether it is a number that can be reckoned with in no time: a power of a power of a power takes for ever."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (isinstance(value, float) or value.bit_length() <= _MOST_BITS)


_MOST_BITS: Final = 1_024


@lru_cache(maxsize=128)
def bindings(text: str, path: str) -> dict[str, list[Binding]]:
    """Every name of a file that is bound to something, with what it is bound to."""
    found: dict[str, list[Binding]] = {}
    if path.endswith((".py", ".pyi")):
        try:
            every = _walk(tree_of(text), path, ())
        except (SyntaxError, ValueError, RecursionError):
            return found
    elif path.endswith(_PLAIN_ENDINGS):
        every = _lines(text, path)
    else:
        return found
    try:
        for name, one in every:
            found.setdefault(name, []).append(one)
    except RecursionError:  # an expression of a thousand terms; what comes before it is known
        pass
    return found


def _lines(text: str, path: str) -> Iterator[tuple[str, Binding]]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) <= _LONGEST and (match := _PLAIN.match(line)):
            value = literal(match["value"])
            yield match["name"], Binding(match["value"].strip("\"'") if value is UNKNOWN else value, path, number, ())


def _walk(node: ast.AST, path: str, owners: tuple[str, ...]) -> Iterator[tuple[str, Binding]]:  # noqa: C901  # one case per node
    for child in ast.iter_child_nodes(node):
        inner = owners
        match child:
            case ast.ClassDef(name=name):
                inner = (*owners, name)
            case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args):
                inner = (*owners, name)
                yield from _parameters(args, path, inner)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as value):
                inner = (*owners, name)
                yield from _bound(child.targets[0], value, path, owners)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _bound(target, value, path, owners)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _bound(target, value, path, owners)
            case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target) | ast.NamedExpr(target=target):
                yield from _bound(target, None, path, owners)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, Binding(folded(value), path, key.lineno, owners)
            case ast.keyword(arg=str(name), value=value):
                yield name, Binding(folded(value), path, value.lineno, owners)
            case ast.Call(func=ast.Attribute(attr="get" | "pop" | "setdefault"), args=[ast.Constant(value=str(name)), value]):
                yield name, Binding(folded(value), path, value.lineno, owners, parameter=True)
            case ast.Compare(left=left, comparators=comparators):
                yield from _compared(left, comparators, path, owners)
            case _:
                pass
        yield from _walk(child, path, inner)


def _parameters(args: ast.arguments, path: str, owners: tuple[str, ...]) -> Iterator[tuple[str, Binding]]:
    plain = [*args.posonlyargs, *args.args]
    pairs = [
        *zip(plain[len(plain) - len(args.defaults) :], args.defaults, strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    for argument, value in pairs:
        if value is not None:
            yield argument.arg, Binding(folded(value), path, argument.lineno, owners, parameter=True)


def _bound(target: ast.expr, value: ast.expr | None, path: str, owners: tuple[str, ...]) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Name | ast.Attribute):
        name = target.id if isinstance(target, ast.Name) else target.attr
        if isinstance(value, ast.Name) and value.id == name:
            return  # `self.size = size` hands on what is bound elsewhere
        inside = (
            next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None) if isinstance(value, ast.Call) else None
        )
        yield name, Binding(folded(inside if inside is not None else value), path, target.lineno, owners)
    elif isinstance(target, ast.Tuple | ast.List):
        values = (
            value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else [None] * len(target.elts)
        )
        for one, given in zip(target.elts, values, strict=True):
            yield from _bound(one, given, path, owners)


def _compared(left: ast.expr, comparators: list[ast.expr], path: str, owners: tuple[str, ...]) -> Iterator[tuple[str, Binding]]:
    name = left.id if isinstance(left, ast.Name) else left.attr if isinstance(left, ast.Attribute) else ""
    for one in comparators:
        for value in one.elts if isinstance(one, ast.Tuple | ast.List | ast.Set) else [one]:
            if name and isinstance(value, ast.Constant):
                yield name, Binding(value.value, path, value.lineno, owners)
