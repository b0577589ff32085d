"""Attributes behind names: those of modules, classes, functions and closures, as they were before code ran,
and how they are put back.

A `Snapshot` keeps the very objects, which costs references and no copies. What is the user's own is also
compared inside; of libraries only what code replaced counts, since they keep caches and counters of their
own.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import ast
import builtins
import os
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

from kestrel_lab.tools.kernel.state.boundary import is_a, module_of, raw_dict, read_or, type_name
from kestrel_lab.tools.kernel.state.code_names import (
    dotted_paths,
    names_of,
    paths_of,
    set_on_results,
    sets_unseen,
    stored_attributes,
    stored_globals,
    stored_names,
)
from kestrel_lab.tools.kernel.state.fingerprints import is_large, value_fingerprint
from kestrel_lab.tools.kernel.state.libraries import is_own
from kestrel_lab.tools.kernel.state.library_values import is_application, is_capture
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
    "__dict__ __weakref__ __abstractmethods__ _abc_impl __builtins__ __warningregistry__ __annotate_func__ "
    "__annotations_cache__ last_exc last_type last_value last_traceback".split()
)
_OF_FUNCTION = (
    "__code__ __defaults__ __kwdefaults__ __annotations__ __doc__ __name__ __qualname__ __module__".split()
)
_OF_CLASS = ("__bases__", "__name__", "__qualname__")
_VARS_OF: Callable[[type], Mapping[str, Any]] = vars(type)["__dict__"].__get__
"""The attributes of a class, by no code of its metaclass."""
_CLOSURE = " in its closure"
_REGISTERED = "registered classes"
_REGISTERS = (list, dict, set, bytearray, deque, OrderedDict, defaultdict)
"""Types of containers in which libraries keep what code has registered."""
_NO_REGISTERS = frozenset(
    "sys.modules sys.path sys.argv sys.meta_path sys.path_hooks warnings.filters gc.callbacks gc.garbage "
    "threading._active threading._limbo threading._shutdown_locks threading._shutdown_locks_lock "
    "multiprocessing.process._children copyreg.dispatch_table mimetypes.types_map".split()
)
"""Registers that have probes of their own, or that Python keeps of threads and processes."""
_COPIED = (list, dict, set, bytearray, deque)
_MOST_COPIED = 1_000
_MOST_FOUND = 2_000


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
    touched: bool = False
    """All its attributes count: the code calls a method of it, or sets its attributes."""
    by_value: frozenset[str] = frozenset()
    """The attributes to be compared by value, of an object that keeps them elsewhere than in a dictionary."""

    def read(self) -> dict[str, Any]:
        """Return the attributes now, the very objects."""
        target = self.target
        if type(target) is dict:
            return hidden_names(target)
        if self.by_value:
            values = {name: read_or(ABSENT, getattr, target, name, ABSENT) for name in self.by_value}
            return {name: _ReadValue((value,)) for name, value in values.items() if value is not ABSENT}
        if is_a(target, FunctionType):
            found: dict[str, Any] = {name: read_or(None, getattr, target, name) for name in _OF_FUNCTION}
            found |= {f"{name}{_CLOSURE}": value for name, value in closure_of(target).items()}
            return {**found, **target.__dict__}
        found = dict(_VARS_OF(target) if is_a(target, type) else raw_dict(target))
        if is_a(target, type):
            found |= {name: read_or((), getattr, target, name) for name in _OF_CLASS}
            if "_abc_impl" in found:
                found[_REGISTERED] = _registered_classes(target)
        return {name: value for name, value in found.items() if name not in _NOT_STATE}

    def get(self, name: str) -> Any:
        """Return an attribute's current value, also of a variable in a module's place; else `ABSENT`."""
        return (self.target if type(self.target) is dict else self.read()).get(name, ABSENT)

    def put(self, name: str, value: Any) -> None:
        """Make `value` the attribute of that name again; `ABSENT` removes it."""
        target = self.target
        if is_a(value, _ReadValue):
            setattr(target, name, value[0])
        elif name == _REGISTERED:
            return
        elif is_a(target, FunctionType) and name.endswith(_CLOSURE) and target.__closure__:
            place = target.__code__.co_freevars.index(name.removesuffix(_CLOSURE))
            target.__closure__[place].cell_contents = value
        elif is_a(target, type):
            type.__delattr__(target, name) if value is ABSENT else type.__setattr__(target, name, value)
        elif is_a(target, FunctionType) and name in _OF_FUNCTION:
            setattr(target, name, value)
        else:
            set_or_delete(target if type(target) is dict else raw_dict(target), name, value)


class _ReadValue(tuple[Any, ...]):
    """A value that is read anew each time, so that it is compared by content."""

    __slots__ = ()


def _registered_classes(kind: type) -> _ReadValue:
    """Return the classes that were registered with an abstract one, by weak references."""
    return _ReadValue((read_or(frozenset[Any](), lambda: frozenset(_abc._get_dump(kind)[0])),))


@dataclass(slots=True)
class _Part:
    """One attribute before the code ran."""

    value: Any
    seen: int | None = None
    """Its fingerprint; `None` if only identity is compared."""
    copy: Any = ABSENT
    """Its items, if it is a small container."""
    shallow: bool = False
    """Only which items it has is compared."""

    @classmethod
    def of(cls, value: Any, *, inside: bool) -> _Part:
        if not inside or is_large(value):
            return cls(value)
        small = type(value) in _COPIED and len(value) <= _MOST_COPIED
        return cls(value, value_fingerprint(value), value.copy() if small else ABSENT)

    @classmethod
    def of_library(cls, label: str, value: Any) -> _Part:
        """Return an attribute of a library; of a register the items count, and not what is in them."""
        name = label.rpartition(".")[2].lower()
        is_register = type(value) in _REGISTERS and label not in _NO_REGISTERS and "cache" not in name
        if not is_register or len(value) > _MOST_COPIED:
            return cls(value)
        # What is referred to weakly is kept by something else.
        if len(value) and all(is_a(item, weakref.ref) for item in value):
            return cls(value)
        return cls(value, copy=value.copy(), shallow=True)

    @property
    def changed_inside(self) -> bool:
        if self.shallow:
            return _item_ids(self.value) != _item_ids(self.copy)
        return self.seen is not None and value_fingerprint(self.value) != self.seen

    @property
    def lost(self) -> str:
        """Why its content cannot be restored; empty if it can."""
        if not self.changed_inside:
            return ""
        if self.copy is ABSENT:
            return f"it is a {type_name(self.value)} that was changed inside"
        if self.shallow:
            return ""
        return "" if value_fingerprint(self.copy) == self.seen else "objects in it were changed"


def _item_ids(container: Any) -> list[int]:
    if is_a(container, dict):
        return [id(part) for pair in dict.items(container) for part in pair]
    return sorted(map(id, container)) if is_a(container, set) else list(map(id, container))


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
    _unseen: dict[str, str] = field(default_factory=dict)
    """What the code may change and nobody can compare, each with the reason."""

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
        snapshot._stored, snapshot._paths = stored_names(tree), set(dotted_paths(tree))
        classes = [name for name, value in names.items() if type(value) is type and is_own(module_of(value))]
        unseen = set_on_results(tree, classes)
        snapshot._unseen = dict.fromkeys(unseen, "what a call gives is not known before")
        for holder in [Holder("", names), Holder("builtins", builtins, own=False, touched=True), *own]:
            snapshot._add(holder)
            if is_a(holder.target, FunctionType):
                snapshot._stored |= stored_attributes(holder.target.__code__)
                snapshot._paths |= set(paths_of(holder.target))
        snapshot.look_again()
        return snapshot

    def look_again(self) -> None:
        """Add what has been imported since."""
        for first, *rest in self._paths:
            for holder in self._on_the_way(first, rest):
                self._add(holder)

    def _add(self, holder: Holder) -> None:
        # The environment has a probe, which names no value: one may be a secret.
        if id(holder.target) not in self._parts and holder.target is not os.environ:
            found = holder.read()
            self._parts[id(holder.target)] = (
                holder,
                {name: _part_of(holder, name, value) for name, value in found.items()},
            )

    def _add_called(self, function: FunctionType) -> None:
        """Add what a function of a library that the code names can set: globals of its module, attributes of
        other modules, and the objects that it names.
        """
        code = function.__code__
        self._stored |= stored_attributes(code) | stored_globals(code)
        module = sys.modules.get(module_of(function))
        if module is not None:
            self._add(Holder(module.__name__, module, own=False))
        for name in names_of(code):
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                self._add(Holder(value.__name__, value, own=is_own(value.__name__)))
            elif value is not None and not is_a(value, type | FunctionType) and raw_dict(value):
                self._add(Holder(f"{module_of(function)}.{name}", value, own=False, touched=True))

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
                own = is_own(module_of(value))
                if is_a(value, FunctionType) and not own:
                    self._add_called(value)
                yield Holder(path, value, own=own)
            elif value is not self.names.get(first) or is_a(value, MethodType | BuiltinFunctionType):
                yield from self._of_object(path, value)
            value = (_VARS_OF(value) if is_a(value, type) else raw_dict(value)).get(name, ABSENT)
            path = f"{path}.{name}"

    def _of_object(self, path: str, value: Any) -> Iterator[Holder]:
        """Yield the owner of what an object of a library holds: settings, or the module of a function."""
        if is_a(value, MethodType):
            owner = value.__self__
            if raw_dict(owner) and not is_application(owner) and not is_capture(owner):
                yield Holder(path.rpartition(".")[0], owner, own=False, touched=True)
        elif is_a(value, BuiltinFunctionType):
            module = value.__self__
            if is_a(module, ModuleType):
                # Such a module in C holds what a module of Python shows.
                yield Holder(module.__name__, module, own=False)
                if sets_unseen(module.__name__, value.__name__):
                    self._unseen[path] = "Python does not show what it sets"
        elif raw_dict(value):
            yield Holder(path, value, own=False)
        elif self._stored and not _is_plain(value):
            yield Holder(path, value, own=False, touched=True, by_value=frozenset(self._stored))

    def alterations(self) -> Iterator[Alteration]:
        """Yield what is different now, each with the way back."""
        for name, reason in self._unseen.items():
            change = Change(name=name, kind="state", text="it cannot be seen what changed", lost=reason)
            yield Alteration(change, lambda: None, lambda: True, lambda: False)
        for holder, parts in self._parts.values():
            now = holder.read()
            for name in [*parts, *(name for name in now if name not in parts)]:
                value = now[name] if name in now else holder.get(name)
                yield from self._compared(holder, name, parts.get(name), value)

    def _compared(self, holder: Holder, name: str, part: _Part | None, now: Any) -> Iterator[Alteration]:
        was = ABSENT if part is None else part.value
        replaced = now is not was and not (is_a(was, CodeType | _ReadValue) and same(was, now))
        if not replaced and (part is None or not part.changed_inside):
            return
        if replaced and not (holder.own or holder.touched or self._counts(name, was, now)):
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
        return name in (*self._stored, _REGISTERED) or (
            (callable(was) or was is ABSENT) and callable(now) and _is_foreign(now)
        )


def _part_of(holder: Holder, name: str, value: Any) -> _Part:
    if holder.own:
        return _Part.of(value, inside=True)
    return _Part.of_library(f"{holder.name}.{name}", value)


def _is_plain(value: Any) -> bool:
    return type(value) in (
        int,
        float,
        complex,
        str,
        bytes,
        bool,
        type(None),
        list,
        dict,
        tuple,
        set,
        frozenset,
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
        found = holder.get(name)
        is_same = found is was or (is_a(was, _ReadValue) and same(found, was))
        return is_same and (part is None or not part.changed_inside)

    label = f"{holder.name}.{name}" if holder.name else name
    lost = "" if part is None else part.lost
    if name == _REGISTERED:
        text, lost = "others", "Python does not take a registration back"
    return Alteration(
        Change(name=label, kind="state", text=text, lost=lost),
        restore,
        is_as_left,
        is_back,
    )


def _shown(value: Any) -> str:
    return "nothing" if value is ABSENT else short_repr(value)[:80]


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
