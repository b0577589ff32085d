"""Variables of a kernel: their description in a few hundred characters, which of them code can reach, and
what changed.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from reprlib import Repr
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, cast

from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.kernel.state.boundary import is_a, module_of, read_or, type_name
from kestrel_lab.tools.kernel.state.fingerprints import (
    MOST_PARTS,
    Unread,
    container_items,
    is_large,
    is_opaque,
    value_fingerprint,
    walk,
)
from kestrel_lab.tools.kernel.state.library_values import block_kind, numpy_random_state
from kestrel_lab.tools.kernel.values import Buffers, NotPlain, encode_value

_VALUES = frozenset({"DataFrame", "Series", "ndarray", "list", "tuple", "set", "frozenset", "dict"})
_DEEP = 3
_MANY = 1_000
_MOST_FUNCTIONS = 100
_MOST_OF_OTHER, _MOST_OTHERS = 500, 5_000
"""Objects compared in one variable that the code seems not to reach, and in all such variables together."""
_OWN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open", "display"})
_ANYTHING = frozenset(
    {
        "eval",
        "exec",
        "globals",
        "locals",
        "vars",
        "get_ipython",
        "setattr",
        "delattr",
        "__import__",
        "gc",
        "inspect",
        "sys",
    }
)
"""Names by which code can reach variables that it does not name."""

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 200
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = 8


def user_variables(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return a user's variables: no modules, no `_` names, nothing of IPython's."""
    return {
        name: value
        for name, value in namespace.items()
        if type(name) is str
        and not name.startswith("_")
        and name not in _OWN
        and not is_a(value, ModuleType)
        and name.isidentifier()
    }


_SHELLS = re.compile(r"_+|_i+|_i?\d+|_[ids]?h|_oh|_exit_code|__\w*__|_kestrel\w*")


def hidden_names(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's other names: modules, and `_` names that are not IPython's."""
    return {
        name: value
        for name, value in namespace.items()
        if type(name) is str
        and name not in _OWN
        and (name.startswith("_") or is_a(value, ModuleType))
        and not _SHELLS.fullmatch(name)
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A value in a few words, and what of it is compared with another one."""

    type: str
    text: str
    """A short form of the value, or its size."""
    rows: int | None = None
    columns: tuple[tuple[str, str], ...] = ()
    """Name and type of each, of a frame."""
    missing: int | None = None


def describe_value(value: object) -> Description:
    """Describe `value` without changing it, quoting only a small part."""
    unread = Description(type=type_name(value), text="it cannot be read")
    return read_or(unread, _describe, value)


def _describe(value: Any) -> Description:
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    if pandas is not None and is_a(value, pandas.DataFrame):
        columns = tuple(
            (str(name), str(kind)) for name, kind in zip(value.columns, value.dtypes, strict=True)
        )
        text = f"{value.shape[0]:,} rows × {value.shape[1]:,} columns"
        return Description(
            type="DataFrame", text=text, rows=len(value), columns=columns, missing=_count_missing(value)
        )
    if pandas is not None and is_a(value, pandas.Series):
        text = f"{len(value):,} values of {value.dtype}"
        return Description(type="Series", text=text, rows=len(value), missing=int(value.isna().sum()))
    if numpy is not None and is_a(value, numpy.ndarray):
        size = " × ".join(f"{side:,}" for side in value.shape) or "one"
        return Description(type="ndarray", text=f"{size} of {value.dtype}")
    kind = type_name(value)
    if is_a(value, list | tuple | set | frozenset | dict) and len(value) > _REPR.maxlist:
        return Description(type=kind, text=f"{len(value):,} items: {short_repr(value)}")
    return Description(type=kind, text=short_repr(value))


def _count_missing(frame: Any) -> int:
    numpy = sys.modules["numpy"]
    # A frame of one type is one block of memory: looking through that is faster than column by column.
    if frame.shape[1] and (kind := block_kind(frame)):
        return int(numpy.count_nonzero(numpy.isnan(frame.to_numpy()))) if kind in "fc" else 0
    return int(frame.isna().to_numpy().sum())


def short_repr(value: object) -> str:
    """Return the start of a value's `repr`, on one line."""
    try:
        return " ".join(_REPR.repr(value).split())[:300]
    except BaseException as error:  # the boundary to a class of the user's  # noqa: BLE001
        return f"<{type_name(value)}: its repr fails with {type(error).__name__}>"


# What code can reach.


def reachable_names(code: str, namespace: Mapping[str, Any]) -> set[str]:
    """Return the names of variables that Python code may read or change: those it names, and those that share
    objects with them.

    Returns all variables if the code can reach some without naming them: by `globals()`, by `exec`, or
    through an object of a class of the user.
    """
    known = user_variables(namespace)
    try:
        tree = compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError):
        # Such code does not run, so it changes nothing.
        return set()
    named = {node.id for node in ast.walk(cast("ast.AST", tree)) if isinstance(node, ast.Name)}
    todo, found = list(named), set[str]()
    while todo:
        name = todo.pop()
        if name in _ANYTHING:
            return set(known)
        if name in found or name not in known:
            continue
        found.add(name)
        value = known[name]
        todo += [other for function in _functions_in(value) for other in _names_in(function.__code__)]
        # What a function does is in its names, which are followed above.
        if is_a(value, FunctionType):
            continue
        # Methods of the user's classes may do anything, and their code is not followed.
        if module_of(type(value)) == "__main__" or is_a(value, type):
            return set(known)
        todo += _shared_with(value, known)
    return found


def _functions_in(value: object) -> Iterator[FunctionType]:
    """Yield the functions that `value` is or holds, and those in their closures."""
    todo, seen = deque([value]), set[int]()
    while todo and len(seen) < _MOST_FUNCTIONS:
        if is_large(one := todo.popleft()):
            continue
        # Bounded: this runs before each call, and closures may form cycles.
        for part, _ in walk(one, _MOST_FUNCTIONS):
            if is_a(part, FunctionType) and id(part) not in seen:
                seen.add(id(part))
                yield part
                todo += [*closure_of(part).values(), getattr(part, "__wrapped__", None)]


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return what a function has in its closure, by name."""
    found = dict[str, Any]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue
    return found


def _names_in(code: CodeType) -> list[str]:
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names_in(const)]
    return [*code.co_names, *inner]


def _shared_with(value: object, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield names of variables that are `value`, are inside it, or share an array's memory with it."""
    numpy = sys.modules.get("numpy")
    parts = {id(part) for part in _inner_values(value)}
    for name, other in known.items():
        if id(other) in parts or (
            numpy is not None
            and is_a(value, numpy.ndarray)
            and is_a(other, numpy.ndarray)
            and read_or(True, numpy.may_share_memory, value, other)
        ):
            yield name


def _inner_values(value: object, depth: int = 0) -> Iterator[object]:
    yield value
    if depth < _DEEP and is_a(value, list | tuple | dict):
        items = container_items(value) or []
        for item in items if len(items) <= _MANY else ():
            yield from _inner_values(item, depth + 1)


# What changed.

Kind = Literal["new", "changed", "deleted", "state"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A variable that is not what it was, or, of kind `state`, something else that code changed: an
    attribute, a setting, a file.
    """

    name: str
    kind: Kind
    text: str
    """In words: `1,200 → 1,188 rows · + column month`."""
    rebound: bool = False
    """True if the name was rebound; otherwise its object was changed."""
    lost: str = ""
    """Why the old value cannot be restored; empty if it can."""
    inside: bool = False
    """The object that the name stood for was changed."""

    def as_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object."""
        return {name: getattr(self, name) for name in ("name", "kind", "text", "rebound", "lost", "inside")}

    @property
    def line(self) -> str:
        """The change as a line for a person or a model."""
        return f"{self.name}: {self.text}" + (f" (cannot be undone: {self.lost})" if self.lost else "")


@dataclass(frozen=True, slots=True)
class Alteration:
    """A reversible change of state besides variables."""

    change: Change
    restore: Callable[[], None]
    is_as_left: Callable[[], bool]
    """Return true if nothing else has changed it since."""
    is_back: Callable[[], bool]
    """Return true if it is as before."""


@dataclass(frozen=True, slots=True)
class Before:
    """Variables before code ran, with fingerprints of those it can reach and of cheap ones."""

    values: Mapping[str, Any]
    """The objects themselves, so that rebound names can get them back."""
    described: Mapping[str, Description]
    prints: Mapping[str, int]
    modules: frozenset[str]
    """Names of modules."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Fingerprints of variables that the code seems not to reach."""
    states: Mapping[str, Any] = field(default_factory=dict)
    """States of the random generators among the variables."""
    used: frozenset[str] = frozenset()
    """Variables that cannot be compared and whose methods the code calls."""
    hidden: frozenset[str] = frozenset()
    """Names of modules, and those with an underscore."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """By variable that the code names, why something in it cannot be compared."""
    own: tuple[tuple[str, Any], ...] = ()
    """Functions, classes and modules of the user, with the name of the variable, or in variables."""

    @classmethod
    def of(cls, code: str, namespace: Mapping[str, Any]) -> Before:
        """Record the variables as they are now, for comparison after the code has run."""
        names = reachable_names(code, namespace)
        values = user_variables(namespace)
        seen, own, left = dict[str, int](), list[tuple[str, Any]](), _MOST_OTHERS
        used, unread = _used(code), dict[str, str]()
        for name, value in values.items():
            # Variables out of the code's reach are compared as well, as far as that is cheap: code may reach
            # them in ways that `reachable_names` does not see.
            if name in names or (left > 0 and not is_large(value)):
                parts = _WalkedValue.of(value, MOST_PARTS if name in names else _MOST_OF_OTHER)
                seen[name] = parts.fingerprint
                own += [(name if one is value else "", one) for one in parts.own]
                left -= 0 if name in names else parts.count
                if parts.unread and name in used:
                    unread[name] = parts.unread
        hidden = hidden_names(namespace)
        own += [
            (name, value) for name, value in hidden.items() if is_a(value, ModuleType | FunctionType | type)
        ]
        return cls(
            values,
            {name: describe_value(values[name]) for name in names},
            {name: seen[name] for name in names},
            frozenset(name for name, value in namespace.items() if is_a(value, ModuleType)),
            {name: found for name, found in seen.items() if name not in names},
            {name: state for name, value in values.items() if (state := read_state(value)) is not None},
            frozenset(
                name
                for name, called in used.items()
                if name in names and _may_change(values[name], called=called)
            ),
            frozenset(hidden),
            unread,
            tuple(own),
        )

    @property
    def key(self) -> str:
        """A key of what the code can reach: equal within one kernel for equal variables."""
        return f"{hash(tuple(sorted(self.prints.items()))) & (2**64 - 1):016x}"

    def is_as_before(self, name: str, value: object) -> bool:
        """Return true if `value` equals what the variable held, as far as compared."""
        if name in self.prints:
            return value_fingerprint(value) == self.prints[name]
        return name not in self.others or value_fingerprint(value, _MOST_OF_OTHER) == self.others[name]

    def changes(self, namespace: Mapping[str, Any]) -> list[Change]:
        """Return what is different now, by name."""
        now, found = user_variables(namespace), list[Change]()
        for name in sorted(now.keys() | self.values.keys()):
            if name in self.hidden:
                continue
            if name not in self.values:
                made = describe_value(now[name])
                found.append(
                    Change(name=name, kind="new", text=f"new {made.type}, {made.text}", rebound=True)
                )
                continue
            old = self.values[name]
            inside = not self.is_as_before(name, old)
            lost = "" if not inside or name in self.states else not_plain(old)
            if name not in now:
                text = f"deleted ({self._was(name).type})"
                found.append(
                    Change(name=name, kind="deleted", text=text, rebound=True, inside=inside, lost=lost)
                )
            elif now[name] is not old:
                text = value_difference(self._was(name), describe_value(now[name]))
                found.append(
                    Change(name=name, kind="changed", text=text, rebound=True, inside=inside, lost=lost)
                )
            elif inside:
                text = value_difference(self._was(name), describe_value(old))
                found.append(Change(name=name, kind="changed", text=text, inside=True, lost=lost))
            elif name in self.used or name in self.unread:
                text = "it cannot be seen whether it changed"
                why = self.unread.get(name) or not_plain(old)
                found.append(Change(name=name, kind="changed", text=text, inside=True, lost=why))
        return found

    def _was(self, name: str) -> Description:
        return self.described.get(name) or describe_value(self.values[name])


@dataclass(frozen=True, slots=True)
class _WalkedValue:
    """What one walk through a value gave."""

    fingerprint: int
    own: list[Any]
    """The functions, classes and modules in it."""
    count: int
    """Its number of parts."""
    unread: str
    """Why a part of it could not be read; empty if all could."""

    @classmethod
    def of(cls, value: object, most: int) -> _WalkedValue:
        tokens, own, unread = list[object](), list[Any](), ""
        for part, token in walk(value, most):
            tokens.append(token)
            if is_a(token[0], Unread):
                unread = token[0].reason
            if is_a(part, type | FunctionType | ModuleType):
                own.append(part)
            elif module_of(type(part)) != "builtins":
                own.append(type(part))
        return cls(hash(tuple(tokens)), own, len(tokens), unread)


def read_state(value: object) -> Any:
    """Return the state of a random generator; `None` for anything else."""
    read = random.Random.getstate if is_a(value, random.Random) else numpy_random_state
    return read_or(None, read, value)


def put_state(value: Any, state: Any) -> None:
    """Set a random generator back to a state that `read_state` gave."""
    if is_a(value, random.Random):
        value.setstate(state)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    elif hasattr(value, "set_state"):
        value.set_state(state)
    else:
        value.state = state


def put_back(old: Any, value: Any) -> Any:
    """Restore an object's content in place, so that other references see it; return the old value if
    impossible.
    """
    if type(old) in (list, bytearray):
        old[:] = value
    elif type(old) in (dict, set):
        old.clear()
        old.update(value)
    elif type(old) is deque:
        old.clear()
        old.extend(value)
    elif (
        type(old).__module__ == "numpy"
        and getattr(old, "shape", None) == getattr(value, "shape", ())
        and old.dtype == value.dtype
    ):
        old[...] = value
    else:
        return value
    return old


def _may_change(value: object, *, called: bool) -> bool:
    """Return true if code may change an opaque value it names: by a method or by iterating."""
    return (called or read_or(True, hasattr, type(value), "__next__")) and is_opaque(value)


def _used(code: str) -> dict[str, bool]:
    """Return the names in code; `True` for those whose methods, items or attributes it uses."""
    try:
        tree = compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError):
        return {}
    found = dict[str, bool]()
    for node in ast.walk(cast("ast.AST", tree)):
        if isinstance(node, ast.Name):
            found.setdefault(node.id, False)
        target = node.func if isinstance(node, ast.Call) else node
        if not isinstance(target, ast.Attribute | ast.Subscript) or not isinstance(target.value, ast.Name):
            continue
        if target is not node or not isinstance(target.ctx, ast.Load):
            found[target.value.id] = True
    return found


def value_difference(was: Description, now: Description) -> str:
    """Describe in one line how a value differs."""
    if was.type != now.type:
        return f"{was.type} → {now.type}, {now.text}"
    parts = []
    if was.rows is not None and now.rows is not None and was.rows != now.rows:
        parts.append(f"{was.rows:,} → {now.rows:,} {'rows' if now.columns else 'values'}")
    parts += _columns(dict(was.columns), dict(now.columns))
    if was.missing != now.missing:
        parts.append(f"missing values {was.missing or 0:,} → {now.missing or 0:,}")
    if not parts and was.rows is None and was.text != now.text:
        parts.append(f"{was.text} → {now.text}")
    return " · ".join(parts) or ("other values" if was.type in _VALUES else "changed inside")


def _columns(was: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    for sign, names in (
        ("+", [name for name in now if name not in was]),
        ("−", [name for name in was if name not in now]),
    ):
        if names:
            yield (
                f"{sign} column{'s' if len(names) > 1 else ''} "
                f"{', '.join(names[:6])}{' …' if len(names) > 6 else ''}"
            )
    for name, kind in now.items():
        if name in was and was[name] != kind:
            yield f"{name}: {was[name]} → {kind}"


def not_plain(value: object) -> str:
    """Return why `value` cannot be handed from one process to another as data; empty if it can."""
    try:
        encode_value(value, Buffers())
    except NotPlain as reason:
        return str(reason)
    return ""


def shadows_builtin(name: str) -> bool:
    """Return true if a variable of that name hides a Python builtin."""
    return hasattr(builtins, name)
