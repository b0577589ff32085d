"""Whether a value that Python code gives is of the type that is declared for it, without pydantic."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin


def is_of_type(value: object, kind: Any) -> bool:
    """Return whether `value` is of the type `kind`; true where the type says nothing that can be checked.

    An integer is a number, too; a truth value is none. A list may stand for a tuple. What has all members of
    a Protocol fits it.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return is_of_type(value, parts[0])
    if origin in (Union, UnionType):
        return any(is_of_type(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple and len(parts) == 2 and parts[1] is ...:
        return isinstance(value, tuple | list) and all(is_of_type(item, parts[0]) for item in value)
    if kind in (None, NoneType):
        return value is None
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in _members(kind))
    plain = origin or kind
    return isinstance(value, plain) if isinstance(plain, type) else True


def type_name(kind: Any) -> str:
    """Return a type as a person reads it: `Check`, `float or None`, `several Gate`."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_name(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(type_name(part) for part in parts)
    if origin is tuple and len(parts) == 2:
        return f"several {type_name(parts[0])}"
    if kind is NoneType:
        return "None"
    return getattr(origin or kind, "__name__", str(kind))


def _members(protocol: Any) -> set[str]:
    members: set[str] = set()
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False) and base.__module__ != "typing":
            names = {*vars(base), *vars(base).get("__annotations__", {})}
            members |= {name for name in names if not name.startswith("_") or name == "__call__"}
    return members
