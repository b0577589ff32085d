"""Reading of what a Python file says without running it: constants, records, and calls that stay calls.

The file is parsed; its imports are not followed and nothing of it is called. What its functions make of plain
values (texts, numbers, lists, mappings) is worked out here, step by step, by the few operations that are
named below; a call of anything else is returned as what it is, a name with arguments.
"""

from __future__ import annotations

import ast
import operator
import string
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kestrel_lab.core.errors import UsageError

MOST_STEPS: Final = 2_000_000
"""Expressions that are worked out for one file."""
MOST_TEXT: Final = 1_000_000
"""Characters of a text, items of a list."""
_DEEPEST: Final = 20


class Unreadable(UsageError):
    """A place of a file that would have to be run to be read."""

    def __init__(self, node: ast.AST, what: str) -> None:
        self.line = getattr(node, "lineno", 0)
        super().__init__(f"line {self.line}: {what}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """A call of something that the file imports, as it is written."""

    name: str
    """The last part of its name."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: int

    def arg(self, name: str, place: int = -1, default: Any = None) -> Any:
        """Return an argument by its name, or its place where it may be given by it."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[place] if 0 <= place < len(self.args) else default


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A name that the file imports or does not define."""

    name: str


_BINARY: Final[dict[type, Callable[[Any, Any], Any]]] = {ast.Add: operator.add, ast.Sub: operator.sub}
_COMPARED: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{
        f.__name__: f
        for f in (str, int, float, bool, len, list, dict, tuple, sorted, ord, chr, min, max, sum)
    },
    "zip": lambda *lists: list(zip(*lists, strict=False)),
    "enumerate": lambda items, start=0: list(enumerate(items, start)),
    "dedent": textwrap.dedent,
}
_METHODS: Final[dict[type, frozenset[str]]] = {
    str: frozenset(
        "strip lstrip rstrip split rsplit join lower upper replace format title capitalize startswith "
        "endswith removeprefix removesuffix splitlines isdigit index find count".split()
    ),
    list: frozenset("append insert extend index pop copy count".split()),
    dict: frozenset("get keys values items pop copy".split()),
}


@dataclass(kw_only=True, slots=True)
class StaticModule:
    """A parsed file."""

    tree: ast.Module
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    skipped: list[Unreadable] = field(default_factory=list)
    """Statements of functions that could not be read and were left out."""
    _constants: dict[str, ast.expr] = field(default_factory=dict)
    _steps: int = 0

    @classmethod
    def parse(cls, text: str, name: str) -> StaticModule:
        """Return the module; raises `UsageError` for what is not Python."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            raise UsageError(f"{name}:{line}: is not Python: {getattr(error, 'msg', error)}") from error
        module = cls(tree=tree)
        for node in tree.body:
            match node:
                case ast.FunctionDef(name=defined):
                    module.functions[defined] = node
                case ast.Assign(targets=[ast.Name(id=defined)], value=value):
                    module._constants[defined] = value
                case ast.AnnAssign(target=ast.Name(id=defined), value=ast.expr() as value):
                    module._constants[defined] = value
        return module

    def decorated(self, name: str) -> list[str]:
        """Return the functions with a decorator of this name, in the order of the file."""

        def is_it(node: ast.expr) -> bool:
            inner = node.func if isinstance(node, ast.Call) else node
            return getattr(inner, "attr", getattr(inner, "id", "")) == name

        return [one for one, node in self.functions.items() if any(map(is_it, node.decorator_list))]

    def call(self, name: str, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Return what a function of the file gives for plain arguments, its own defaults filled in.

        Statements that cannot be read are left out and noted in `skipped`. Raises `Unreadable` where the
        result is one that cannot be read.
        """
        return _Frame(self, self.functions[name], 0).run(list(args), dict(kwargs or {}))

    def tick(self, node: ast.AST) -> None:
        """Count a step; raises `Unreadable` beyond `MOST_STEPS`."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise Unreadable(node, "it takes too many steps")

    def constant(self, name: str) -> ast.expr | None:
        """Return what the file assigns to a name at its top."""
        return self._constants.get(name)


class _Returned(Exception):  # a jump, not a mistake
    def __init__(self, value: Any) -> None:
        self.value = value


class _Unknown:
    """Stands for the value of a name whose assignment could not be read."""


class _Frame:
    """The names of one call of a function."""

    def __init__(self, module: StaticModule, function: ast.FunctionDef, depth: int) -> None:
        self._module, self._function, self._depth = module, function, depth
        self._names: dict[str, Any] = {}

    def run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        given, function = self._function.args, self._function
        if self._depth > _DEEPEST:
            raise Unreadable(function, f"{function.name} calls itself too often")
        names = [one.arg for one in (*given.posonlyargs, *given.args)]
        first = len(names) - len(given.defaults)
        defaults = dict(zip(names[first:], given.defaults, strict=True))
        defaults |= {
            one.arg: value
            for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if value is not None
        }
        self._names = dict(zip(names, args, strict=False)) | kwargs
        for name in (*names, *(one.arg for one in given.kwonlyargs)):
            if name not in self._names:
                if name not in defaults:
                    raise Unreadable(function, f"{function.name} needs a value for {name}")
                self._names[name] = self.value(defaults[name])
        try:
            self._block(function.body)
        except _Returned as result:
            return result.value
        return None

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            try:
                self._statement(statement)
            except Unreadable as error:
                if isinstance(statement, ast.Return):
                    raise
                self._module.skipped.append(error)
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        self._names[node.id] = _Unknown()

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(value=value):
                raise _Returned(None if value is None else self.value(value))
            case ast.Assign(targets=[target], value=value):
                self._store(target, self.value(value))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._store(target, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if type(op) in _BINARY:
                self._names[name] = self._plain(
                    node, _BINARY[type(op)], self._names.get(name), self.value(value)
                )
            case ast.If(test=test, body=body, orelse=other):
                self._block(body if self._truth(test) else other)
            case ast.For():
                self._loop(node)
            case ast.FunctionDef(name=name):
                # It does not see the names around it: what needs them is unreadable, not wrong.
                self._module.functions.setdefault(name, node)
            case ast.Pass() | ast.AnnAssign() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Expr(value=value):
                self.value(value)
            case _:
                raise Unreadable(node, f"{type(node).__name__.lower()} would have to be run")

    def _loop(self, node: ast.For) -> None:
        for item in self._items(node.iter):
            self._store(node.target, item)
            self._block(node.body)

    def _store(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._names[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if isinstance(value, list | tuple):
                if len(parts) != len(value):
                    raise Unreadable(target, "it takes apart another number of values")
                for part, one in zip(parts, value, strict=True):
                    self._store(part, one)
            case _:
                raise Unreadable(target, "an assignment to a part of something")

    def value(self, node: ast.expr) -> Any:
        """Return what an expression is."""
        self._module.tick(node)
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Attribute(value=owner, attr=attr) if isinstance(self.value(owner), Called | Named):
                return Named(name=attr)
            case ast.Call():
                return self._call(node)
            case ast.BinOp() | ast.UnaryOp() | ast.IfExp() | ast.BoolOp() | ast.Compare():
                return self._worked_out(node)
            case _:
                return self._collection(node)

    def _collection(self, node: ast.expr) -> Any:
        match node:
            case ast.JoinedStr(values=parts):
                return self._sized(node, "".join(self._formatted(part) for part in parts))
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self.value(item) for item in items]
            case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
                pairs = zip(keys, values, strict=True)
                return {self.value(key): self.value(value) for key, value in pairs if key is not None}
            case ast.Subscript(value=owner, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                ends = slice(*(None if end is None else self.value(end) for end in (lower, upper)))
                return self._plain(node, operator.getitem, self.value(owner), ends)
            case ast.Subscript(value=owner, slice=key):
                return self._plain(node, operator.getitem, self.value(owner), self.value(key))
            case ast.ListComp(elt=elt, generators=[one]) | ast.GeneratorExp(elt=elt, generators=[one]):
                found = []
                for item in self._items(one.iter):
                    self._store(one.target, item)
                    if all(self._truth(test) for test in one.ifs):
                        found.append(self.value(elt))
                return found
        raise Unreadable(node, f"{ast.unparse(node)[:60]!r} would have to be run")

    def _worked_out(self, node: ast.expr) -> Any:
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._plain(node, _BINARY[type(op)], self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._plain(node, operator.neg, self.value(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._truth(operand)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.value(body if self._truth(test) else other)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                return self._plain(node, _COMPARED[type(op)], self.value(left), self.value(right))
            case ast.BoolOp(op=op, values=values):
                found: Any = None
                for one in values:
                    found = self.value(one)
                    if self._is_true(one, found) != isinstance(op, ast.And):
                        break
                return found
        raise Unreadable(node, f"{ast.unparse(node)[:60]!r} would have to be run")

    def _call(self, node: ast.Call) -> Any:
        args = [self.value(one) for one in node.args if not isinstance(one, ast.Starred)]
        if len(args) != len(node.args) or any(one.arg is None for one in node.keywords):
            raise Unreadable(node, "arguments that are spread out")
        kwargs = {one.arg: self.value(one.value) for one in node.keywords if one.arg is not None}
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if isinstance(owner, Called | Named):
                return self._called(node, node.func.attr, args, kwargs)
            allowed = next(
                (names for kind, names in _METHODS.items() if isinstance(owner, kind)), frozenset()
            )
            if node.func.attr not in allowed:
                raise Unreadable(node, f"{ast.unparse(node.func)[:60]} would have to be run")
            if node.func.attr == "format":
                return self._sized(node, _filled(node, owner, args, kwargs))
            made = self._plain(node, lambda *_: getattr(owner, node.func.attr)(*args, **kwargs), *args)  # type: ignore[attr-defined]  # an attribute, see above
            return list(made) if node.func.attr in ("keys", "values", "items") else made
        if isinstance(node.func, ast.Name):
            name = node.func.id
            if name in self._module.functions and not isinstance(self._names.get(name), _Unknown):
                inner = _Frame(self._module, self._module.functions[name], self._depth + 1)
                return inner.run(args, kwargs)
            if name in _FUNCTIONS and name not in self._names:
                return self._plain(node, lambda *_: _FUNCTIONS[name](*args, **kwargs), *args)
            return self._called(node, name, args, kwargs)
        raise Unreadable(node, f"{ast.unparse(node.func)[:60]} would have to be run")

    def _called(self, node: ast.AST, name: str, args: list[Any], kwargs: dict[str, Any]) -> Called:
        return Called(name=name, args=tuple(args), kwargs=kwargs, line=getattr(node, "lineno", 0))

    def _name(self, node: ast.expr, name: str) -> Any:
        if name in self._names:
            found = self._names[name]
            if isinstance(found, _Unknown):
                raise Unreadable(node, f"the value of {name} would have to be run")
            return found
        if (constant := self._module.constant(name)) is not None:
            # What a name at the top is does not depend on the call: it is worked out once.
            self._names[name] = _Unknown()
            self._names[name] = self.value(constant)
            return self._names[name]
        return Named(name=name)

    def _formatted(self, part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        if not isinstance(part, ast.FormattedValue) or part.format_spec is not None:
            raise Unreadable(part, "a format of a number")
        found = self.value(part.value)
        if isinstance(found, Called | Named):
            raise Unreadable(part, f"{ast.unparse(part.value)[:60]} would have to be run")
        return repr(found) if part.conversion == ord("r") else str(found)

    def _items(self, node: ast.expr) -> list[Any]:
        found = self.value(node)
        if isinstance(found, dict):
            return list(found)
        if isinstance(found, list | tuple | str):
            return list(found)
        raise Unreadable(node, f"what {ast.unparse(node)[:60]} holds would have to be run")

    def _truth(self, node: ast.expr) -> bool:
        return self._is_true(node, self.value(node))

    def _is_true(self, node: ast.expr, found: Any) -> bool:
        if isinstance(found, Called | Named):
            raise Unreadable(node, f"whether {ast.unparse(node)[:60]} holds would have to be run")
        return bool(found)

    def _plain(self, node: ast.AST, work: Callable[..., Any], *args: Any) -> Any:
        if any(isinstance(one, Called | Named) for one in args):
            raise Unreadable(node, f"{ast.unparse(node)[:60]!r} would have to be run")
        try:
            return self._sized(node, work(*args))
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise Unreadable(node, f"{type(error).__name__}: {error}") from error

    def _sized(self, node: ast.AST, value: Any) -> Any:
        if isinstance(value, str | list | dict | tuple) and len(value) > MOST_TEXT:
            raise Unreadable(node, "it makes something too large")
        return value


def _filled(node: ast.AST, template: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    """Return `str.format` for names and numbers of arguments alone: no attributes, no widths."""
    pieces, number = [], 0
    try:
        for literal, name, spec, conversion in string.Formatter().parse(template):
            pieces.append(literal)
            if name is None:
                continue
            if spec or conversion or not (name == "" or name.isidentifier() or name.isdigit()):
                raise Unreadable(node, f"the format {{{name}}} would have to be run")
            key = number if name == "" else int(name) if name.isdigit() else name
            number += name == ""
            found = args[key] if isinstance(key, int) else kwargs[key]
            if isinstance(found, Called | Named):
                raise Unreadable(node, f"the value of {name!r} would have to be run")
            pieces.append(str(found))
    except (ValueError, LookupError) as error:
        raise Unreadable(node, f"a template that cannot be filled: {error}") from error
    return "".join(pieces)
