"""Attributes behind names: those of modules, classes, functions and closures, as they were before code ran,
and how they are put back.

A `Snapshot` keeps the very objects, which costs references and no copies. What is the user's own is also
compared inside; of libraries only what code replaced counts, since they keep caches and counters of their
own.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from kestrel_lab.tools.kernel.state.boundary import is_a, module_of, raw_dict, read_or, type_name
from kestrel_lab.tools.kernel.state.fingerprints import is_large, value_fingerprint
from kestrel_lab.tools.kernel.state.libraries import is_own
from kestrel_lab.tools.kernel.state.probes import ABSENT, same, set_or_delete
from kestrel_lab.tools.kernel.variables import (
    Alteration,
    Change,
    closure_of,
    hidden_names,
    put_back,
    short_repr,
)

_NOT_STATE = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __abstractmethods__ _abc_impl __annotations__ "
    "__builtins__ __cached__ __file__ __loader__ "
    "__name__ __package__ __path__ __spec__ __warningregistry__ __annotate_func__ "
    "__annotations_cache__ last_exc last_type last_value "
    "last_traceback".split()
)
_VARS_OF: Callable[[type], Mapping[str, Any]] = vars(type)["__dict__"].__get__
"""The attributes of a class, by no code of its metaclass."""
_CLOSURE = " in its closure"
_COPIED = (list, dict, set, bytearray, deque)
_MOST_COPIED = 1_000
_MOST_FOUND = 2_000
_MOST_TEXT = 200
_BY_TEXT = frozenset(
    {
        "setattr",
        "delattr",
        "patch",
        "object",
        "dict",
        "monkeypatch",
        "__setattr__",
        "__dict__",
        "vars",
        "exec",
        "eval",
    }
)


@dataclass(frozen=True, slots=True)
class Holder:
    """Something with attributes: a module, a class, a function or an object."""

    name: str
    target: Any
    """A namespace is its dictionary, of which the names that are no variables count: modules, and those with
    an underscore.
    """
    own: bool = True
    """Of the user; otherwise of a library."""

    def read(self) -> dict[str, Any]:
        """Return the attributes now, the very objects."""
        target = self.target
        if type(target) is dict:
            return hidden_names(target)
        if is_a(target, FunctionType):
            found: dict[str, Any] = {
                name: getattr(target, name) for name in ("__code__", "__defaults__", "__kwdefaults__")
            }
            found |= {f"{name}{_CLOSURE}": value for name, value in closure_of(target).items()}
            return {**found, **target.__dict__}
        found = dict(_VARS_OF(target) if is_a(target, type) else raw_dict(target))
        if is_a(target, type):
            found["__bases__"] = read_or((), getattr, target, "__bases__")
        return {name: value for name, value in found.items() if name not in _NOT_STATE}

    def get(self, name: str) -> Any:
        """Return an attribute's current value, also of a variable in a module's place; else `ABSENT`."""
        return (self.target if type(self.target) is dict else self.read()).get(name, ABSENT)

    def put(self, name: str, value: Any) -> None:
        """Make `value` the attribute of that name again; `ABSENT` removes it."""
        target = self.target
        if is_a(target, FunctionType) and name.endswith(_CLOSURE) and target.__closure__:
            place = target.__code__.co_freevars.index(name.removesuffix(_CLOSURE))
            target.__closure__[place].cell_contents = value
        elif is_a(target, type):
            type.__delattr__(target, name) if value is ABSENT else type.__setattr__(target, name, value)
        elif is_a(target, FunctionType) and name in ("__code__", "__defaults__", "__kwdefaults__"):
            setattr(target, name, value)
        else:
            set_or_delete(target if type(target) is dict else raw_dict(target), name, value)


@dataclass(slots=True)
class _Part:
    """One attribute before the code ran."""

    value: Any
    seen: int | None = None
    """Its fingerprint; `None` if only identity is compared."""
    copy: Any = ABSENT
    """Its items, if it is a small container."""

    @classmethod
    def of(cls, value: Any, *, inside: bool) -> _Part:
        if not inside or is_large(value):
            return cls(value)
        small = type(value) in _COPIED and len(value) <= _MOST_COPIED
        return cls(value, value_fingerprint(value), value.copy() if small else ABSENT)

    @property
    def changed_inside(self) -> bool:
        return self.seen is not None and value_fingerprint(self.value) != self.seen

    @property
    def lost(self) -> str:
        """Why its content cannot be restored; empty if it can."""
        if not self.changed_inside:
            return ""
        if self.copy is ABSENT:
            return f"it is a {type_name(self.value)} that was changed inside"
        return "" if value_fingerprint(self.copy) == self.seen else "objects in it were changed"


@dataclass(slots=True)
class Snapshot:
    """Attributes before code ran."""

    names: dict[str, Any]
    """The namespace of the code."""
    _parts: dict[int, tuple[Holder, dict[str, _Part]]] = field(default_factory=dict)
    _stored: set[str] = field(default_factory=set)
    """Names of attributes that the code sets or deletes."""
    _paths: set[tuple[str, ...]] = field(default_factory=set)
    """Dotted names in the code: `("json", "dumps")`."""

    @classmethod
    def of(cls, code: str, names: dict[str, Any], own: Iterable[Holder]) -> Snapshot:
        """Look at what is there now: at `own`, and at the modules, classes and objects of libraries that the
        code or a function of `own` names.

        Not at all modules: counting references to all that is loaded would copy most pages of memory that
        forks of this process share.
        """
        snapshot = cls(names)
        try:
            tree = cast(
                "ast.AST", compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            )
        except (SyntaxError, ValueError):
            tree = ast.Module([], [])
        snapshot._stored, snapshot._paths = _stored_names(tree), set(_dotted_paths(tree))
        for holder in [Holder("", names), *own]:
            snapshot._add(holder)
            if is_a(holder.target, FunctionType):
                snapshot._stored |= _attributes_of(holder.target.__code__)
                snapshot._paths |= set(_paths_of(holder.target))
        snapshot.look_again()
        return snapshot

    def look_again(self) -> None:
        """Add what has been imported since."""
        for first, *rest in self._paths:
            for holder in self._on_the_way(first, rest):
                self._add(holder)

    def _add(self, holder: Holder) -> None:
        if id(holder.target) not in self._parts:
            found = holder.read()
            self._parts[id(holder.target)] = (
                holder,
                {name: _Part.of(value, inside=holder.own) for name, value in found.items()},
            )

    def _on_the_way(self, first: str, rest: list[str]) -> Iterator[Holder]:
        """Yield the owners of attributes in `first`, `first.second`, …; no code is called on the way."""
        value = self.names.get(first, ABSENT)
        # The code imports it, or has just done so.
        if value is ABSENT and first in sys.modules:
            value = sys.modules[first]
        path = first
        for name in [*rest, ""]:
            if value is ABSENT:
                return
            if is_a(value, ModuleType):
                if raw_dict(value) is not self.names:
                    yield Holder(value.__name__, value, own=is_own(value.__name__))
            elif is_a(value, type | FunctionType):
                yield Holder(path, value, own=is_own(module_of(value)))
            elif value is not self.names.get(first):
                if not raw_dict(value):
                    return
                # An object of a library: settings, say.
                yield Holder(path, value, own=False)
            value = (_VARS_OF(value) if is_a(value, type) else raw_dict(value)).get(name, ABSENT)
            path = f"{path}.{name}"

    def alterations(self) -> Iterator[Alteration]:
        """Yield what is different now, each with the way back."""
        for holder, parts in self._parts.values():
            now = holder.read()
            for name in [*parts, *(name for name in now if name not in parts)]:
                value = now[name] if name in now else holder.get(name)
                yield from self._compared(holder, name, parts.get(name), value)

    def _compared(self, holder: Holder, name: str, part: _Part | None, now: Any) -> Iterator[Alteration]:
        was = ABSENT if part is None else part.value
        replaced = now is not was and not (is_a(was, CodeType) and same(was, now))
        if not replaced and (part is None or not part.changed_inside):
            return
        if replaced and not (holder.own or self._counts(name, was, now)):
            return
        if was is ABSENT and is_a(now, ModuleType):  # an import
            return
        yield _alteration(holder, name, part, now, replaced=replaced)

    def _counts(self, name: str, was: Any, now: Any) -> bool:
        """Return true if the code changed a library's attribute: it names it, or the new object is the
        user's.
        """
        if is_a(now, ModuleType) or is_a(was, ModuleType):
            return False
        return name in self._stored or (
            (callable(was) or was is ABSENT) and callable(now) and _is_foreign(now)
        )


def _is_foreign(value: Any) -> bool:
    kind = type(value)
    module = module_of(value if is_a(value, FunctionType | type) else kind)
    return module == "unittest.mock" or is_own(module, made=False)


def _alteration(holder: Holder, name: str, part: _Part | None, now: Any, *, replaced: bool) -> Alteration:
    was = ABSENT if part is None else part.value
    text = f"{_shown(was)} → {_shown(now)}" if replaced else "changed inside"
    seen = None if replaced or is_large(now) else value_fingerprint(now)

    def restore() -> None:
        if replaced:
            holder.put(name, was)
        if part is not None and part.copy is not ABSENT and part.changed_inside:
            put_back(part.value, part.copy)

    def is_as_left() -> bool:
        found = holder.get(name)
        return found is now and (seen is None or value_fingerprint(found) == seen)

    def is_back() -> bool:
        return holder.get(name) is was and (part is None or not part.changed_inside)

    label = f"{holder.name}.{name}" if holder.name else name
    return Alteration(
        Change(name=label, kind="state", text=text, lost="" if part is None else part.lost),
        restore,
        is_as_left,
        is_back,
    )


def _shown(value: Any) -> str:
    return "nothing" if value is ABSENT else short_repr(value)[:80]


# What code names.


def _stored_names(tree: ast.AST) -> set[str]:
    """Return attribute names that code sets or deletes, also from texts if it can set by text."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    stored = {node.attr for node in nodes if not isinstance(node.ctx, ast.Load)}
    return stored | {text.rpartition(".")[2] for text in _texts(tree)}


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield texts in code that can set attributes by name."""
    nodes = list(ast.walk(tree))
    called = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
    if called & _BY_TEXT:
        yield from (
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < _MOST_TEXT
        )


def _dotted_paths(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield each `a.b.c` in code by parts; imported names are expanded."""
    imported = dict[str, tuple[str, ...]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {one.asname: (one.name,) for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {one.asname or one.name: (node.module, one.name) for one in node.names}
    for node in ast.walk(tree):
        rest: list[str] = []
        while isinstance(node, ast.Attribute):
            rest.insert(0, node.attr)
            node = node.value  # down the chain  # noqa: PLW2901
        if isinstance(node, ast.Name):
            yield (*imported.get(node.id, (node.id,)), *rest)
    yield from (tuple(text.split(".")) for text in _texts(tree))


def _paths_of(function: FunctionType) -> Iterator[tuple[str, ...]]:
    """Yield module attributes a compiled function may name: each name on each module among its names."""
    names = _names_of(function.__code__)
    for name in names:
        found = function.__globals__.get(name, sys.modules.get(name))
        if isinstance(found, ModuleType):
            yield from ((found.__name__, other) for other in names)
    yield from (tuple(name.split(".")) for name in names if "." in name)


@lru_cache(maxsize=4_096)
def _names_of(code: CodeType) -> tuple[str, ...]:
    """Return the names in code, and its texts if it can set attributes by text."""
    found = [*code.co_names]
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found += _names_of(const)
        elif isinstance(const, str) and len(const) < _MOST_TEXT and set(code.co_names) & _BY_TEXT:
            found.append(const)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=4_096)
def _attributes_of(code: CodeType) -> frozenset[str]:
    """Return the names of attributes that compiled code sets or deletes, also by text."""
    stored = {
        str(one.argval) for one in dis.get_instructions(code) if one.opname in ("STORE_ATTR", "DELETE_ATTR")
    }
    inner = [_attributes_of(const) for const in code.co_consts if isinstance(const, CodeType)]
    return frozenset(
        stored.union(*inner, (name.rpartition(".")[2] for name in set(_names_of(code)) - set(code.co_names)))
    )


# What is the user's own.


def own_holders(values: Iterable[tuple[str, Any]]) -> list[Holder]:
    """Return the user's functions, classes and modules reachable from `values`, without doubles."""
    found, todo = dict[int, Holder](), deque(values)
    while todo and len(found) < _MOST_FOUND:
        name, value = todo.popleft()
        if is_a(value, ModuleType):
            if value.__name__ == "__main__" or not is_own(value.__name__):
                continue
        elif not is_a(value, type | FunctionType) or not is_own(module_of(value)):
            continue
        if id(value) in found:
            continue
        named = name or getattr(value, "__qualname__", value.__name__)
        holder = found[id(value)] = Holder(named, value)
        for key, part in holder.read().items():
            for inner in _unwrapped(part):
                todo.append((f"{named}.{key}" if is_a(inner, FunctionType) and inner is part else "", inner))
    return list(found.values())


def _unwrapped(value: Any) -> list[Any]:
    """Return the targets of a descriptor, bound method or decorated function, and itself."""
    inner: list[Any] = [value.__func__] if is_a(value, staticmethod | classmethod | MethodType) else []
    inner += [value.fget] if is_a(value, property) else []
    inner += [] if is_a(value, ModuleType | type) else [raw_dict(value).get("__wrapped__")]
    return [value, type(value), *(one for one in inner if is_a(one, FunctionType))]
