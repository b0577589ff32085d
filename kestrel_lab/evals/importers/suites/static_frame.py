"""The working out of a call of a function that is read and not run, statement by statement."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kestrel_lab.evals.importers.suites.static_values import (
    BINARY,
    BUILDERS,
    CHANGING,
    COMPARED,
    FUNCTIONS,
    HOLDERS,
    METHODS,
    MOST_BITS,
    MOST_TEXT,
    OPAQUE,
    SPEC,
    TYPES,
    Called,
    Function,
    Named,
    Unread,
    Unreadable,
    decorators_of,
    filled_template,
    grown_length,
    is_plain,
)


def _only_raises(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Raise)


# This is a jump and no mistake.
class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Raised(Unreadable):
    """An error that the file raises for the values at hand."""


class _Next(Exception):
    """The next turn of a loop, or its end."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends


class Frame:
    """One call of a function of a file that is read: its names, and what its statements make of them."""

    def __init__(self, function: Function, depth: int) -> None:
        self._function, self._module, self._depth = function, function.module, depth
        self._names: dict[str, Any] = dict(function.around)

    def run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what the function gives for arguments; raises `Unreadable`."""
        node = self._function.node
        # Python's own limit of recursion would end this reader before that of the file that it reads.
        if self._depth > 20:
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
                    # What the function gives depends on it.
                    raise
                if _only_raises(statement):
                    # It looks for mistakes in arguments, which are not given here.
                    continue
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
                case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in CHANGING:
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
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value) if type(op) in BINARY:
                before = self._name(name)
                self._names[name] = self._plain(node, BINARY[type(op)], before, self.value(value))
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
        # A slice of a dataset is some of its samples.
        if isinstance(held, Called) and step is None:
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
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return self._plain(node, BINARY[type(op)], self.value(left), self.value(right))
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
            if not self._plain(node, COMPARED[type(op)], before, after):
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
        if name in FUNCTIONS:
            known = [*args, *kwargs.values()]
            if name in HOLDERS and not any(isinstance(one, OPAQUE) for one in known):
                # Lists of what is not known are lists all the same.
                known = []
            return self._plain(node, lambda *_: FUNCTIONS[name](*args, **kwargs), *known)
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
        builds = bool(decorators_of(function.node) & BUILDERS)
        skipped = len(self._module.skipped)
        try:
            found = Frame(function, self._depth + 1).run(args, kwargs)
        except Unreadable:
            if not builds:
                raise
            found = None
        if not builds or isinstance(found, Called | list):
            return found
        # What was left out in it is code of a run, and no loss for the suite.
        del self._module.skipped[skipped:]
        return Called(name=function.name, args=tuple(args), kwargs=kwargs, line=node.lineno)

    def _method(self, node: ast.Call, func: ast.Attribute, args: list[Any], kwargs: dict[str, Any]) -> Any:
        owner, name = self.value(func.value), func.attr
        if isinstance(owner, Named) and f"{owner.name}.{name}" in FUNCTIONS:
            work = FUNCTIONS[f"{owner.name}.{name}"]
            return self._plain(node, lambda *_: work(*args, **kwargs), *args, *kwargs.values())
        if isinstance(owner, Called | Named):
            held = owner if isinstance(owner, Called) else None
            return Called(name=name, args=tuple(args), kwargs=kwargs, line=node.lineno, owner=held)
        if isinstance(owner, Unread):
            raise owner.error
        allowed = next((names for kind, names in METHODS.items() if isinstance(owner, kind)), frozenset())
        if name not in allowed:
            raise Unreadable(node, f"{ast.unparse(func)[:60]} would have to be run")
        if name == "format":
            return self._sized(node, filled_template(node, owner, args, kwargs))
        if name in ("replace", "join") and grown_length(owner, name, args) > MOST_TEXT:
            raise Unreadable(node, "it makes something too large")
        # Sets are lists here, so `add` is an append of what is not there.
        if name == "add":
            name, args = ("append", args) if args[:1] and args[0] not in owner else ("copy", [])
        # A value that is not known may lie in a list or a mapping.
        keeps = isinstance(owner, list | dict)
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
        if isinstance(args[0], OPAQUE) or not all(name in TYPES for name in names):
            raise Unreadable(node, f"whether {ast.unparse(node)[:60]} holds would have to be run")
        return any(isinstance(args[0], TYPES[name]) for name in names)

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
        if not SPEC.fullmatch(spec):
            raise Unreadable(part, f"the format {spec!r}")
        found = self.value(part.value)
        return self._plain(  # type: ignore[no-any-return]  # what format gives
            part.value, lambda one: format(repr(one) if part.conversion == ord("r") else one, spec), found
        )

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
        if isinstance(found, OPAQUE):
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
        large = isinstance(value, int) and value.bit_length() > MOST_BITS
        if large or (isinstance(value, str | list | dict | tuple) and len(value) > MOST_TEXT):
            raise Unreadable(node, "it makes something too large")
        return value
