"""Annotations of the notebook's variables as plain data: `x: list[int] = []` leaves `list[int]` under `x`.

A type is written as the name that its library has for it; a generic type and a union are written with their
parts. Whoever reads it looks the names up and calls nothing of the user.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping
from copyreg import dispatch_table
from types import GenericAlias, UnionType
from typing import Any

from kestrel_lab.tools.kernel.state.boundary import is_a, module_of, raw_dict, read_or
from kestrel_lab.tools.kernel.state.libraries import is_own
from kestrel_lab.tools.kernel.state.probes import ABSENT, Reading, set_or_delete

_PLAIN = (str, bytes, int, float, bool, type(None))
_NAME = "__annotations__"
_OF_PYTHON = frozenset({"builtins", "typing", "types", "collections", "collections.abc"})


def annotations_of(shell: Any) -> Reading:
    """Return the annotations of the notebook's variables, each as `written_type` writes it."""
    annotations = shell.user_ns.get(_NAME)
    if type(annotations) is not dict:
        return {}
    return {name: written_type(value, shell.user_ns) for name, value in annotations.items()}


def restore_annotations(shell: Any, values: Mapping[Any, Any]) -> None:
    """Make annotations of variables what they were; without any, there is no dictionary of them."""
    annotations = shell.user_ns.setdefault(_NAME, {})
    for name, written in values.items():
        value = ABSENT if written is ABSENT else read_type(written, shell.user_ns)
        set_or_delete(annotations, name, value)
    if not annotations:
        del shell.user_ns[_NAME]


def written_type(value: Any, namespace: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a type as a tuple of plain values; one that has no name in a library or in `namespace` is in the
    tuple itself.
    """
    if type(value) in _PLAIN:
        return ("value", value)
    if type(value) in (list, tuple):
        return (type(value).__name__, *(written_type(part, namespace) for part in value))
    if is_a(value, UnionType):
        return ("union", *(written_type(part, namespace) for part in value.__args__))
    if (generic := read_or(None, _generic_parts, value)) is not None:
        return ("generic", *(written_type(part, namespace) for part in generic))
    for module in (module_of(value), "types"):
        name = _name_of(value)
        if module and not is_own(module) and _attribute(module, name) is value:
            return ("library", module, name)
    if is_a(value, type) and namespace.get(_name_of(value)) is value:
        return ("variable", _name_of(value))
    return ("object", value)


def read_type(written: Any, namespace: Mapping[str, Any]) -> Any:
    """Return the type that a tuple stands for; raises `ValueError` or `TypeError` if there is none."""
    kind, *parts = written
    if kind in ("value", "object"):
        return parts[0]
    if kind == "library":
        module, name = parts
        value = ABSENT if is_own(module) else _attribute(module, name)
    elif kind == "variable":
        value = namespace.get(parts[0], ABSENT)
        value = value if is_a(value, type) else ABSENT
    else:
        items = [read_type(part, namespace) for part in parts]
        makers: dict[str, Callable[[list[Any]], Any]] = {
            "list": list,
            "tuple": tuple,
            "union": lambda types: functools.reduce(operator.or_, types),
            "generic": lambda types: _made_generic(*types),
        }
        value = makers[kind](items) if kind in makers else ABSENT
    if value is ABSENT:
        raise ValueError(f"there is no type {written!r:.100}")
    return value


def _made_generic(origin: Any, argument: Any) -> Any:
    if not is_a(origin, type) and type(origin).__module__ != "typing":
        raise TypeError(f"{origin!r:.100} is no type")
    return origin[argument]


def is_type_of_python(written: tuple[Any, ...]) -> bool:
    """Return true for a generic type or a union that is made of Python's own types, such as `list[int]`."""
    return written[0] in ("generic", "union") and _is_of_python(written)


def _is_of_python(written: tuple[Any, ...]) -> bool:
    kind, *parts = written
    if kind in ("library", "value"):
        return kind == "value" or parts[0] in _OF_PYTHON
    return kind not in ("variable", "object") and all(map(_is_of_python, parts))


def _generic_parts(value: Any) -> tuple[Any, Any] | None:
    """Return `list` and `int` of `list[int]`, also of the generic types of `typing`; `None` for others."""
    if not is_a(value, GenericAlias) and type(value).__module__ != "typing":
        return None
    reduce = dispatch_table.get(type(value))
    reduced = value.__reduce__() if reduce is None else reduce(value)
    if type(reduced) is not tuple:
        return None
    make, arguments = reduced[:2]
    is_generic = make is operator.getitem or (is_a(make, type) and issubclass(make, GenericAlias))
    return (arguments[0], arguments[1]) if is_generic and len(arguments) == 2 else None


def _name_of(value: Any) -> str:
    for attribute in ("__qualname__", "_name", "__name__"):
        name = read_or(None, getattr, value, attribute)
        if type(name) is str:
            return name
    return ""


def _attribute(module: str, name: str) -> Any:
    return raw_dict(sys.modules.get(module)).get(name, ABSENT)
