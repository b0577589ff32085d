"""Reading of what a Python file says without running it: constants, records, and calls that stay calls.

The file is parsed, and so are files of its own folder that it imports; nothing of them is called. What its
functions make of plain values (texts, numbers, lists, mappings) is worked out here, step by step, by the few
operations that are named below. A call of anything else is returned as what it is, a name with arguments, and
what would have to be run becomes a value that says so: it is a mistake only where it is needed.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import string
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.suites.draft import read_beside

MOST_STEPS: Final = 2_000_000
"""Expressions that are worked out for one file."""
MOST_TEXT: Final = 1_000_000
"""Characters of a text, items of a list."""
_MOST_BITS: Final = 10_000
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
    owner: Any = None
    """What it is a method of, where that is a call too: a dataset that is filtered."""

    def arg(self, name: str, place: int = -1, default: Any = None) -> Any:
        """Return an argument by its name, or its place where it may be given by it."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[place] if 0 <= place < len(self.args) else default


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A name that the file imports or does not define."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function or lambda of the file, with the names around it."""

    name: str
    node: ast.FunctionDef | ast.Lambda
    module: StaticModule = field(repr=False)
    around: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A value that would have to be run to be known."""

    error: Unreadable

    @property
    def name(self) -> str:
        """Why, without the line."""
        return str(self.error).partition(": ")[2]


_OPAQUE: Final = (Called, Named, Function, Unread)


def is_plain(value: Any) -> bool:
    """Return whether a value is known through and through."""
    if isinstance(value, dict):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if isinstance(value, list | tuple) else not isinstance(value, _OPAQUE)


def _united(a: Any, b: Any) -> Any:
    return list(dict.fromkeys([*a, *b])) if isinstance(a, list) and isinstance(b, list) else a | b


def _times(a: Any, b: Any) -> Any:
    for one, count in ((a, b), (b, a)):
        if isinstance(one, str | list) and isinstance(count, int) and len(one) * count > MOST_TEXT:
            raise ValueError("it makes something too large")
    return a * b


def _floor_mod(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def numbers(a: Any, b: Any) -> Any:
        if not isinstance(a, int | float):  # % is a way to format texts, of any width
            raise TypeError("it is no number")
        return work(a, b)

    return numbers


_BINARY: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: lambda a, b: [one for one in a if one not in b] if isinstance(a, list) else a - b,
    ast.Mult: _times,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _floor_mod(operator.mod),
    ast.BitOr: _united,
    ast.BitAnd: lambda a, b: [one for one in a if one in b] if isinstance(a, list) else a & b,
}
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


def _range(*ends: int) -> list[int]:
    numbers = range(*ends)
    if len(numbers) > MOST_TEXT:
        raise ValueError("it makes something too large")
    return list(numbers)


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{
        f.__name__: f
        for f in (str, int, float, bool, len, list, dict, sorted, ord, chr, min, max, sum, abs, round, repr)
    },
    "any": any,
    "all": all,
    "range": _range,
    "tuple": list,
    # Sets keep the order in which they are written, so that the same file gives the same suite.
    "set": lambda items=(): list(dict.fromkeys(items)),
    "frozenset": lambda items=(): list(dict.fromkeys(items)),
    "reversed": lambda items: list(reversed(items)),
    "zip": lambda *lists, strict=False: list(zip(*lists, strict=strict)),
    "enumerate": lambda items, start=0: list(enumerate(items, start)),
    "dedent": textwrap.dedent,
    "json.loads": json.loads,
    "json.dumps": json.dumps,
    "textwrap.dedent": textwrap.dedent,
}
_HOLDERS: Final = frozenset("len list tuple enumerate zip reversed".split())
"""Functions that do not look at the items of a list."""
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    **{one.__name__: one for one in (str, int, float, bool, dict)},
    "list": list,
    "tuple": list,
    "Sequence": (list, str),
    "Mapping": dict,
}
_METHODS: Final[dict[type, frozenset[str]]] = {
    str: frozenset(
        "strip lstrip rstrip split rsplit join lower upper replace format title capitalize startswith "
        "endswith removeprefix removesuffix splitlines isdigit index find count partition rpartition "
        "isalpha isupper islower casefold".split()
    ),
    list: frozenset("append insert extend index pop copy count add".split()),
    dict: frozenset("get keys values items pop copy update setdefault".split()),
}
_CHANGING: Final = frozenset("append insert extend pop add update setdefault remove clear sort".split())
_BUILDERS: Final = frozenset({"solver", "scorer", "agent", "tool", "metric", "reducer", "approver"})
"""Decorators of functions that make what Inspect calls later: what is in them is code of a run."""
_SPEC: Final = re.compile(r"[<>^]?[+ ]?0?\d{0,3}[,_]?(\.\d{1,2})?[bcdeEfFgGnosxX%]?")


@dataclass(kw_only=True, slots=True)
class StaticModule:
    """A parsed file."""

    tree: ast.Module
    path: Path
    functions: dict[str, Function] = field(default_factory=dict)
    skipped: list[Unreadable] = field(default_factory=list)
    """Blocks of functions that could not be read and were left out."""
    _constants: dict[str, ast.expr] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
    """What constants are, worked out once."""
    _imports: dict[str, tuple[Path, str]] = field(default_factory=dict)
    """By name, the file of this folder that it comes from, and its name there."""
    _files: dict[Path, StaticModule] = field(default_factory=dict)
    """The files of the folder that were read, one dictionary for all of them."""
    _steps: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def parse(cls, path: Path, beside: StaticModule | None = None) -> StaticModule:
        """Return the module of a file; raises `UsageError` for what is not Python or cannot be read.

        `beside` is the module that imports it.
        """
        text = read_beside(
            path if beside is None else beside.path, str(path.name if beside is None else path)
        )
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            raise UsageError(f"{path.name}:{line}: is not Python: {getattr(error, 'msg', error)}") from error
        module = cls(tree=tree, path=path.resolve())
        if beside is not None:
            module._files, module._steps, module.skipped = beside._files, beside._steps, beside.skipped
        module._files[module.path] = module
        for node in _top_level(tree.body):
            match node:
                case ast.FunctionDef(name=defined):
                    module.functions[defined] = Function(name=defined, node=node, module=module)
                case ast.Assign(targets=[ast.Name(id=defined)], value=value):
                    module._constants[defined] = value
                case ast.AnnAssign(target=ast.Name(id=defined), value=ast.expr() as value):
                    module._constants[defined] = value
                case ast.ImportFrom():
                    module._import(node)
        return module

    def _import(self, node: ast.ImportFrom) -> None:
        """Note names that come from a file of this folder, by a relative import or by the folder's name."""
        parts = (node.module or "").split(".") if node.module else []
        if node.level == 0:
            own = self.path.parent.name
            if own not in parts:
                return
            parts = parts[len(parts) - parts[::-1].index(own) :]
        elif node.level > 1:
            return
        found = self.path.parent.joinpath(*parts)
        for alias in node.names:
            for file in (found.with_suffix(".py") if parts else None, found / f"{alias.name}.py"):
                if file is not None and file.is_file() and file.stem != alias.name:
                    self._imports[alias.asname or alias.name] = file, alias.name

    def decorated(self, name: str) -> list[str]:
        """Return the functions with a decorator of this name, in the order of the file."""
        return [key for key, one in self.functions.items() if name in _decorators(one.node)]

    def call(self, name: str) -> Any:
        """Return what a function of the file gives for its own defaults; see `call_value`."""
        return self.call_value(self.functions[name], [], {})

    def call_value(self, function: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a function gives for plain arguments, its own defaults filled in.

        Blocks that cannot be read are left out and noted in `skipped`. Raises `Unreadable` where the result
        is one that cannot be read.
        """
        if isinstance(function, Called) and function.name == "partial" and function.args:
            first, *more = function.args
            return self.call_value(first, [*more, *args], {**function.kwargs, **kwargs})
        if not isinstance(function, Function):
            raise Unreadable(ast.Pass(), f"{getattr(function, 'name', function)} would have to be run")
        return _Frame(function, 0).run(args, dict(kwargs))

    def tick(self, node: ast.AST) -> None:
        """Count a step; raises `Unreadable` beyond `MOST_STEPS`."""
        self._steps[0] += 1
        if self._steps[0] > MOST_STEPS:
            raise Unreadable(node, "it takes too many steps")

    def global_value(self, name: str) -> Any:
        """Return what a name of the file is; `Named` for one that it imports from elsewhere."""
        if name in self._values:
            return self._values[name]
        if name in self.functions:
            return self.functions[name]
        if (constant := self._constants.get(name)) is not None:
            # One that is made of itself is not known.
            self._values[name] = Unread(error=Unreadable(constant, f"{name} is made of itself"))
            self._values[name] = _Frame(
                Function(name=name, node=ast.Lambda(args=_NO_ARGS, body=constant), module=self), 0
            ).part(constant)
            return self._values[name]
        if name in self._imports:
            file, there = self._imports[name]
            try:
                module = self._files.get(file.resolve()) or StaticModule.parse(file, self)
            except UsageError as error:
                return Unread(error=Unreadable(ast.Pass(), str(error)))
            return module.global_value(there)
        return Named(name=name)


_NO_ARGS: Final = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those in a `try` or behind a condition of imports among them."""
    for node in body:
        yield node
        if isinstance(node, ast.Try | ast.If):
            yield from _top_level(node.body)


def _only_raises(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Raise)


def _decorators(node: ast.AST) -> set[str]:
    found = [one.func if isinstance(one, ast.Call) else one for one in getattr(node, "decorator_list", ())]
    return {str(getattr(one, "attr", getattr(one, "id", ""))) for one in found}


class _Returned(Exception):  # a jump, not a mistake
    def __init__(self, value: Any) -> None:
        self.value = value


class _Raised(Unreadable):
    """An error that the file raises for the values at hand."""


class _Next(Exception):
    """The next turn of a loop, or its end."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends


class _Frame:
    """The names of one call of a function."""

    def __init__(self, function: Function, depth: int) -> None:
        self._function, self._module, self._depth = function, function.module, depth
        self._names: dict[str, Any] = dict(function.around)

    def run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        node = self._function.node
        if self._depth > _DEEPEST:
            raise Unreadable(node, f"{self._function.name} calls itself too often")
        self._bind(node.args, args, kwargs)
        if isinstance(node, ast.Lambda):
            return self.value(node.body)
        try:
            self._block(node.body)
        except _Returned as result:
            return result.value
        return None

    def _bind(self, given: ast.arguments, args: list[Any], kwargs: dict[str, Any]) -> None:
        names = [one.arg for one in (*given.posonlyargs, *given.args)]
        first = len(names) - len(given.defaults)
        defaults = dict(zip(names[first:], given.defaults, strict=True))
        defaults |= {
            one.arg: value
            for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if value is not None
        }
        known = {*names, *(one.arg for one in given.kwonlyargs)}
        self._names |= dict(zip(names, args, strict=False))
        self._names |= {key: one for key, one in kwargs.items() if key in known}
        if given.vararg is not None:
            self._names[given.vararg.arg] = args[len(names) :]
        if given.kwarg is not None:
            self._names[given.kwarg.arg] = {key: one for key, one in kwargs.items() if key not in known}
        bound = {*names[: len(args)], *kwargs}
        for name in (*names, *(one.arg for one in given.kwonlyargs)):
            if name not in bound:
                if name not in defaults:
                    raise Unreadable(self._function.node, f"{self._function.name} needs a value for {name}")
                self._names[name] = self.part(defaults[name])

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            try:
                self._statement(statement)
            except _Raised:
                raise
            except Unreadable as error:
                if any(isinstance(one, ast.Return) for one in ast.walk(statement)):
                    raise  # what the function gives depends on it
                if _only_raises(statement):
                    continue  # it looks for mistakes in arguments, which are not given here
                self._module.skipped.append(error)
                self._forget(statement, error)

    def _forget(self, statement: ast.stmt, error: Unreadable) -> None:
        """Make the names unknown that a statement which was not read may change."""
        for node in ast.walk(statement):
            changed: ast.AST | None = None
            match node:
                case ast.Name(ctx=ast.Store()):
                    changed = node
                case (
                    ast.Attribute(ctx=ast.Store(), value=owner) | ast.Subscript(ctx=ast.Store(), value=owner)
                ):
                    changed = owner
                case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in _CHANGING:
                    changed = owner
            while isinstance(changed, ast.Attribute | ast.Subscript):
                changed = changed.value
            if isinstance(changed, ast.Name):
                self._names[changed.id] = Unread(error=error)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                found = self.part(value)
                for target in targets:
                    self._store(target, found)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._store(target, self.part(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if type(op) in _BINARY:
                before = self._name(name)
                self._names[name] = self._plain(node, _BINARY[type(op)], before, self.value(value))
            case ast.Expr(value=value):
                self.value(value)
            case ast.FunctionDef(name=name):
                self._names[name] = Function(name=name, node=node, module=self._module, around=self._names)
            case ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._names[name] = Named(name=name)
            case ast.Pass() | ast.AnnAssign() | ast.Import() | ast.ImportFrom() | ast.Assert():
                pass
            case _:
                self._flow(node)

    def _flow(self, node: ast.stmt) -> None:
        """Go where a statement leads."""
        match node:
            case ast.Return(value=value):
                raise _Returned(None if value is None else self.value(value))
            case ast.If(test=test, body=body, orelse=other):
                self._block(body if self._truth(test) else other)
            case ast.For():
                self._loop(node)
            case ast.Try(body=body, orelse=other, finalbody=final):
                self._block([*body, *other, *final])
            case ast.Raise():
                raise _Raised(node, f"{ast.unparse(node)[:60]!r} is reached")
            case ast.Continue() | ast.Break():
                raise _Next(ends=isinstance(node, ast.Break))
            case _:
                raise Unreadable(node, f"{type(node).__name__.lower()} would have to be run")

    def _loop(self, node: ast.For) -> None:
        for item in self._items(node.iter):
            self._store(node.target, item)
            try:
                self._block(node.body)
            except _Next as jump:
                if jump.ends:
                    return
        self._block(node.orelse)

    def _store(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._names[name] = value
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if isinstance(value, Unread):
                for part in parts:
                    self._store(part, value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if isinstance(value, list | tuple):
                if len(parts) != len(value):
                    raise Unreadable(target, "it takes apart another number of values")
                for part, one in zip(parts, value, strict=True):
                    self._store(part, one)
            case ast.Subscript(value=owner, slice=key):
                held, place = self.value(owner), self.value(key)
                self._plain(target, lambda *_: operator.setitem(held, place, value), held, place)
            case _:
                raise Unreadable(target, "an assignment to a part of something")

    def part(self, node: ast.expr) -> Any:
        """Return what an expression is, or that it would have to be run."""
        try:
            return self.value(node)
        except Unreadable as error:
            return Unread(error=error)

    def value(self, node: ast.expr) -> Any:
        """Return what an expression is; raises `Unreadable`."""
        self._module.tick(node)
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute(value=owner, attr=attr):
                held = self.value(owner)
                if isinstance(held, Called | Named):
                    return Named(name=attr)
                raise Unreadable(node, f"{ast.unparse(node)[:60]!r} would have to be run")
            case ast.Call():
                return self._call(node)
            case ast.Lambda():
                return Function(name="lambda", node=node, module=self._module, around=self._names)
            case ast.NamedExpr(target=target, value=value):
                self._store(target, found := self.value(value))
                return found
            case ast.BinOp() | ast.UnaryOp() | ast.IfExp() | ast.BoolOp() | ast.Compare():
                return self._worked_out(node)
            case _:
                return self._collection(node)

    def _collection(self, node: ast.expr) -> Any:
        match node:
            case ast.JoinedStr(values=parts):
                return self._sized(node, "".join(self._formatted(part) for part in parts))
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return self._spread(items)
            case ast.Dict():
                return self._mapping(node)
            case ast.Subscript():
                return self._item(node)
            case ast.ListComp(elt=elt) | ast.GeneratorExp(elt=elt) | ast.SetComp(elt=elt):
                return [self.part(elt) for _ in self._turns(node.generators)]
            case ast.DictComp(key=key, value=value):
                return {
                    self._plain(key, str, self.value(key)): self.part(value)
                    for _ in self._turns(node.generators)
                }
        raise Unreadable(node, f"{ast.unparse(node)[:60]!r} would have to be run")

    def _mapping(self, node: ast.Dict) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self._plain(node, made.update, self.value(value))
            else:
                found = self.part(value)
                self._plain(
                    node, lambda name, found=found: operator.setitem(made, name, found), self.value(key)
                )
        return made

    def _item(self, node: ast.Subscript) -> Any:
        held = self.value(node.value)
        if not isinstance(node.slice, ast.Slice):
            return self._plain(node, operator.getitem, held, self.value(node.slice))
        bounds = (node.slice.lower, node.slice.upper, node.slice.step)
        lower, upper, step = (None if one is None else self.value(one) for one in bounds)
        if isinstance(held, Called) and step is None:  # some of its samples
            return Called(name="slice", args=(lower, upper), kwargs={}, line=node.lineno, owner=held)
        return self._plain(node, lambda one: one[lower:upper:step], held)

    def _turns(self, generators: list[ast.comprehension]) -> Iterator[None]:
        """Yield once for each turn of nested loops of a comprehension."""
        if not generators:
            yield
            return
        first, *rest = generators
        for item in self._items(first.iter):
            self._store(first.target, item)
            if all(self._truth(test) for test in first.ifs):
                yield from self._turns(rest)

    def _spread(self, items: Iterable[ast.expr]) -> list[Any]:
        """Return the values of expressions, those behind a star one by one."""
        found: list[Any] = []
        for item in items:
            found += self._items(item.value) if isinstance(item, ast.Starred) else [self.part(item)]
        return found

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
            case ast.Compare():
                return self._compared(node)
            case ast.BoolOp(op=op, values=values):
                for one in values[:-1]:
                    found = self.value(one)
                    if self._is_true(one, found) != isinstance(op, ast.And):
                        return found
                return self.value(values[-1])
        raise Unreadable(node, f"{ast.unparse(node)[:60]!r} would have to be run")

    def _compared(self, node: ast.Compare) -> bool:
        before = self.value(node.left)
        for op, right in zip(node.ops, node.comparators, strict=True):
            after = self.value(right)
            if not self._plain(node, _COMPARED[type(op)], before, after):
                return False
            before = after
        return True

    def _call(self, node: ast.Call) -> Any:
        args, kwargs = self._spread(node.args), self._keywords(node)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, args, kwargs)
        if not isinstance(node.func, ast.Name):
            raise Unreadable(node, f"{ast.unparse(node.func)[:60]} would have to be run")
        function = self.value(node.func)
        if isinstance(function, Function):
            return self._own(node, function, args, kwargs)
        name = function.name if isinstance(function, Named) else node.func.id
        if name == "isinstance" and len(args) == 2:
            return self._is_instance(node, args)
        if name in _FUNCTIONS:
            known = [*args, *kwargs.values()]
            if name in _HOLDERS and not any(isinstance(one, _OPAQUE) for one in known):
                known = []  # lists of what is not known are lists all the same
            return self._plain(node, lambda *_: _FUNCTIONS[name](*args, **kwargs), *known)
        return Called(name=name, args=tuple(args), kwargs=kwargs, line=node.lineno)

    def _keywords(self, node: ast.Call) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for one in node.keywords:
            if one.arg is not None:
                found[one.arg] = self.part(one.value)
            elif isinstance(more := self.value(one.value), dict):
                found |= more
            else:
                raise Unreadable(node, "arguments that are spread out")
        return found

    def _own(self, node: ast.Call, function: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what a function of the file gives; one that builds a part of a run is a call of its name,
        unless it is made of parts that are known.
        """
        builds = bool(_decorators(function.node) & _BUILDERS)
        skipped = len(self._module.skipped)
        try:
            found = _Frame(function, self._depth + 1).run(args, kwargs)
        except Unreadable:
            if not builds:
                raise
            found = None
        if not builds or isinstance(found, Called | list):
            return found
        del self._module.skipped[skipped:]
        return Called(name=function.name, args=tuple(args), kwargs=kwargs, line=node.lineno)

    def _method(self, node: ast.Call, func: ast.Attribute, args: list[Any], kwargs: dict[str, Any]) -> Any:
        owner, name = self.value(func.value), func.attr
        if isinstance(owner, Named) and f"{owner.name}.{name}" in _FUNCTIONS:
            work = _FUNCTIONS[f"{owner.name}.{name}"]
            return self._plain(node, lambda *_: work(*args, **kwargs), *args, *kwargs.values())
        if isinstance(owner, Called | Named):
            held = owner if isinstance(owner, Called) else None
            return Called(name=name, args=tuple(args), kwargs=kwargs, line=node.lineno, owner=held)
        if isinstance(owner, Unread):
            raise owner.error
        allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), frozenset())
        if name not in allowed:
            raise Unreadable(node, f"{ast.unparse(func)[:60]} would have to be run")
        if name == "format":
            return self._sized(node, _filled(node, owner, args, kwargs))
        if name in ("replace", "join") and _grown(owner, name, args) > MOST_TEXT:
            raise Unreadable(node, "it makes something too large")
        if name == "add":  # a set, which is a list here
            name, args = ("append", args) if args[:1] and args[0] not in owner else ("copy", [])
        keeps = isinstance(owner, list | dict)  # what is not known may lie in a list
        found = self._plain(
            node,
            lambda *_: getattr(owner, name)(*args, **kwargs),
            *([] if keeps else [*args, *kwargs.values()]),
        )
        if isinstance(found, Unread):
            raise found.error
        return list(found) if name in ("keys", "values", "items", "partition", "rpartition") else found

    def _is_instance(self, node: ast.Call, args: list[Any]) -> bool:
        names = [getattr(one, "name", "") for one in (args[1] if isinstance(args[1], list) else [args[1]])]
        if isinstance(args[0], _OPAQUE) or not all(name in _TYPES for name in names):
            raise Unreadable(node, f"whether {ast.unparse(node)[:60]} holds would have to be run")
        return any(isinstance(args[0], _TYPES[name]) for name in names)

    def _name(self, name: str) -> Any:
        found = self._names[name] if name in self._names else self._module.global_value(name)
        if isinstance(found, Unread):
            raise found.error
        return found

    def _formatted(self, part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        if not isinstance(part, ast.FormattedValue):
            raise Unreadable(part, "a text in parts")
        spec = "" if part.format_spec is None else "".join(map(self._formatted, part.format_spec.values))  # type: ignore[attr-defined]  # a JoinedStr
        if not _SPEC.fullmatch(spec):
            raise Unreadable(part, f"the format {spec!r}")
        shown = repr if part.conversion == ord("r") else lambda one: one
        return str(self._plain(part.value, lambda one: format(shown(one), spec), self.value(part.value)))

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
        if isinstance(found, Function):
            return True
        if isinstance(found, _OPAQUE):
            raise Unreadable(node, f"whether {ast.unparse(node)[:60]} holds would have to be run")
        return bool(found)

    def _plain(self, node: ast.AST, work: Callable[..., Any], *args: Any) -> Any:
        """Return what `work` makes of values; raises `Unreadable` where one is not known, or it fails."""
        for one in args:
            if isinstance(one, Unread):
                raise one.error
            holds = isinstance(one, list | dict) and isinstance(
                node, ast.BinOp | ast.AugAssign | ast.Subscript
            )
            if not (holds or is_plain(one)):
                raise Unreadable(node, f"{ast.unparse(node)[:60]!r} would have to be run")
        try:
            found = self._sized(node, work(*args))
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise Unreadable(node, f"{type(error).__name__}: {error}") from error
        if isinstance(found, Unread):
            raise found.error
        return found

    def _sized(self, node: ast.AST, value: Any) -> Any:
        large = isinstance(value, int) and value.bit_length() > _MOST_BITS
        if large or (isinstance(value, str | list | dict | tuple) and len(value) > MOST_TEXT):
            raise Unreadable(node, "it makes something too large")
        return value


def _grown(text: str, name: str, args: list[Any]) -> int:
    """Return how long a text is at most after its method was called, before it is."""
    if not args or not is_plain(args[0]):
        return 0
    if name == "join":
        return sum(len(str(one)) + len(text) for one in args[0])
    return len(text) + text.count(str(args[0])) * len(str(args[-1]))


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
            if not is_plain(found):
                raise Unreadable(node, f"the value of {name!r} would have to be run")
            pieces.append(str(found))
    except (ValueError, LookupError) as error:
        raise Unreadable(node, f"a template that cannot be filled: {error}") from error
    return "".join(pieces)
