"""Fingerprints of values: equal as long as nothing in a value has changed, whatever kind of object it is.

A value is walked breadth first. Plain data and arrays are hashed; objects count by their attributes;
iterators, generators, files, locks and random states by what can be read of them without moving them on. What
offers nothing to read counts by its identity (`is_opaque`).
"""

from __future__ import annotations

import _thread
import io
import itertools
import marshal
import os
import random
import stat
import sys
import types
import warnings
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial, singledispatchmethod
from typing import Any, cast

from kestrel_lab.tools.kernel.state.boundary import is_a, raw_dict, read_or, type_name
from kestrel_lab.tools.kernel.state.libraries import is_own
from kestrel_lab.tools.kernel.state.library_values import package_of, read_library_value

MOST_PARTS = 4_000
"""Objects in one value that are looked at; what lies beyond them counts by its identity."""
_MANY = 1_000
_LARGE = 10_000
_BARE = object.__basicsize__ + 2 * tuple.__itemsize__
"""Size of an object of a Python class without slots; a larger one holds data that no attribute shows."""
_ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None), type(...)})
_PLAIN = frozenset({list, tuple, dict, set, frozenset})
_BY_IDENTITY = ("pyarrow.", "jax.", "jaxlib.", "re.", "kestrel_lab.")
"""Modules with immutable objects, and this package, whose objects change with each event."""
_DRAWN = "matplotlib.transforms"
"""Drawing a figure recreates its transforms."""
_PASSING = ("cache", "stale")
"""Parts of library attribute names that carry no content."""
_ONLY_ID = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.CodeType,
    types.FrameType,
    types.TracebackType,
    types.FunctionType,
    types.ModuleType,
    type,
    # What code sets is seen in its own task alone.
    ContextVar,
    property,
    staticmethod,
    classmethod,
)


@dataclass(frozen=True, slots=True)
class Unread:
    """Stands for an object that could not be read, because the code of its class raised an exception."""

    identity: int
    reason: str = field(compare=False)


def value_fingerprint(value: object, most: int = MOST_PARTS) -> int:
    """Return a number that changes with the content of `value`. Very large values and columns of objects are
    compared by a sample.
    """
    return hash(tuple(token for _, token in walk(value, most)))


def walk(value: object, most: int = MOST_PARTS) -> Iterable[tuple[Any, tuple[Any, ...]]]:
    """Yield the objects in `value` up to a bound, nearest first, each with what to compare of it.

    An object that cannot be read has an `Unread` there, and nothing in it is looked at.
    """
    queue: deque[object] = deque([value])
    # The objects are kept in `held`: Python may give the id of a freed object to another one.
    places, held = {id(value): 0}, [value]
    while queue:
        one = queue.popleft()
        token, parts = _look_at(one)
        links: list[object] = []
        for part in parts:
            if _is_of(part, _ATOMS):
                links.append(_of_atom(part))
            elif id(part) in places:
                links.append(places[id(part)])
            elif len(held) < most:
                places[id(part)] = len(held)
                links.append(len(held))
                held.append(part)
                queue.append(part)
            else:
                # By type only: reading an object may make a new container with another identity each time.
                links.append(type_name(part) if _is_of(part, _PLAIN) else id(part))
        yield one, (token, *links)


def is_large(value: object) -> bool:
    """Return true if comparing a value is noticeably slow, so that only code naming it is worth it."""
    return read_or(False, _is_large, value)


def _is_large(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN or kind in (str, bytes, bytearray, deque):
        return len(value) > _LARGE
    root, pandas = package_of(kind), sys.modules.get("pandas")
    if root == "numpy":
        return int(getattr(value, "nbytes", 0)) > 8 * _LARGE
    return (
        pandas is not None
        and is_a(value, pandas.DataFrame | pandas.Series | pandas.Index)
        and int(value.size) > _LARGE
    )


def is_opaque(value: object) -> bool:
    """Return true if nothing in `value` can be read, as in a library's connection."""
    if is_a(value, _ONLY_ID) or _is_of(value, _ATOMS | _PLAIN):
        return False
    if read_or(False, _is_by_identity, type(value)):
        return False
    return _look_at(value)[0] in (_opaque(value), Unread(id(value), ""))


def _opaque(value: object) -> tuple[object, ...]:
    return ("id", id(value))


def _is_of(value: object, kinds: frozenset[Any]) -> bool:
    """Return true if the type of `value` is one of `kinds`."""
    try:
        return type(value) in kinds
    except BaseException:  # the hash of a class may be code of its metaclass  # noqa: BLE001
        return False


def _is_by_identity(kind: type) -> bool:
    module = kind.__module__
    return isinstance(module, str) and f"{module}.".startswith(_BY_IDENTITY)


def _look_at(value: object) -> tuple[object, Sequence[object]]:
    """Return what is compared of one object itself, and its parts."""
    try:
        token, parts = _read_parts(value)
        return token, list(parts)
    except BaseException as error:  # the boundary to classes of others  # noqa: BLE001
        return Unread(id(value), f"reading a {type_name(value)} raises {type_name(error)}"), ()


def _read_parts(value: Any) -> tuple[object, Iterable[object]]:
    kind = type(value)
    if _is_of(value, _ATOMS):
        return _of_atom(value), ()
    if _is_of(value, _PLAIN):
        return _of_container(value)
    if is_a(value, _ONLY_ID) or _is_by_identity(kind):
        return _opaque(value), ()
    if kind.__module__ == _DRAWN:
        return ("type", id(kind)), ()
    if (library := read_library_value(value)) is not None:
        return library
    read = _reader(kind)
    return _of_object(value, kind) if read is None else ((kind.__qualname__, id(value)), (read(value),))


def _of_atom(value: object) -> object:
    # By bytes: 1, True and 1.0 are equal, and nan is not equal to itself.
    return zlib.crc32(marshal.dumps(cast("Any", value), 2))


def _of_container(value: Any) -> tuple[object, Iterable[object]]:
    kind = type(value)
    if kind in (set, frozenset):
        # Independent of the order, which may differ in a set that was restored.
        return (
            kind.__name__,
            hash(frozenset(value)),
        ), ()
    kinds = read_or(frozenset[Any]({object}), _types_in, value)
    # Only plain values: marshal would copy the bytes of an array.
    is_plain = kinds <= _ATOMS
    if not is_plain and len(value) > _MANY and kinds <= _ATOMS | _PLAIN:
        is_plain = read_or(False, _plain_within, value)
    if is_plain:
        try:
            return (kind.__name__, zlib.crc32(marshal.dumps(value, 2))), ()
        except ValueError:
            # Something deeper is not plain, or the container contains itself.
            pass
    if len(value) > _LARGE:
        return (
            kind.__name__,
            hash(tuple(map(id, value))),
            hash(tuple(map(id, value.values()))) if kind is dict else 0,
        ), ()
    return (kind.__name__, len(value)), [
        part for pair in value.items() for part in pair
    ] if kind is dict else value


def _types_in(container: Any) -> frozenset[Any]:
    if type(container) is dict:
        return frozenset(map(type, container)) | frozenset(map(type, container.values()))
    return frozenset(map(type, container))


def _plain_within(value: Any) -> bool:
    """Return true if a sample of a container's items has only plain values."""
    items = itertools.islice(
        value.values() if isinstance(value, dict) else value, 0, None, max(1, len(value) // 50)
    )
    return all(
        set(map(type, item.values() if isinstance(item, dict) else item)) <= _ATOMS | _PLAIN
        for item in items
        if type(item) in _PLAIN
    )


# Objects.


def _of_object(value: Any, kind: Any) -> tuple[object, Iterable[object]]:
    content = container_items(value)
    if content is not None:
        return (id(kind), len(content)), [*content[: 2 * _MANY], *_attributes(value, kind).values()]
    if (
        not kind.__dictoffset__
        and not is_own(kind.__module__)
        and kind.__hash__ not in (None, object.__hash__)
    ):
        # A class with its own hash is immutable by convention, even if it caches values in its slots.
        return (id(kind), hash(value)), ()
    attributes = _attributes(value, kind)
    if not attributes and kind.__basicsize__ > _BARE:
        try:
            with memoryview(value) as view:
                return (id(kind), zlib.crc32(view.tobytes())), ()
        except (TypeError, ValueError, BufferError):
            return _opaque(value), ()
    if not is_own(kind.__module__):
        attributes = {
            name: part for name, part in attributes.items() if not any(word in name for word in _PASSING)
        }
    return (id(kind), tuple(attributes)), attributes.values()


def container_items(value: Any) -> list[object] | None:
    """Return the items of a container, also of a derived class, by the way of its base; `None` for others."""
    kind = type(value)
    if issubclass(kind, dict):
        return list(itertools.chain.from_iterable(dict.items(value)))
    for base in (list, set, frozenset, tuple, deque):
        if issubclass(kind, base):
            items: Iterator[object] = base.__iter__(value)
            return list(items)
    return None


def _attributes(value: Any, kind: type) -> dict[str, object]:
    """Return an object's attributes, including slots, without calling user code."""
    found: dict[str, object] = {}
    for one in kind.__mro__:
        slots = one.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            slot = one.__dict__.get(name)
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    found[name] = slot.__get__(value, kind)
                except AttributeError:
                    continue
    return {**found, **raw_dict(value)}


def _of_generator(value: Any) -> object:
    frame = next(
        getattr(value, name) for name in ("gi_frame", "cr_frame", "ag_frame") if hasattr(value, name)
    )
    return ["ended"] if frame is None else [frame.f_lasti, dict(frame.f_locals)]


def _of_iterator(value: Any) -> object:
    with warnings.catch_warnings():
        # Of itertools, which loses this in Python 3.14 and is opaque then.
        warnings.simplefilter("ignore", DeprecationWarning)
        _, arguments, *state = value.__reduce__()
    return [*arguments, *state]


def _of_reference(value: Any) -> object:
    found = value()
    # A weak reference to a method makes a new method object at each call.
    return [id(found.__self__), id(found.__func__)] if isinstance(found, types.MethodType) else id(found)


class OpenFiles:
    """Checks whether files can be read: a locked-down copy of a kernel has their descriptors closed."""

    readable = True


def file_state(file: Any) -> object:
    """Return the position of an open file; raises `OSError` if unknown."""
    if not OpenFiles.readable:
        raise OSError("files are closed here")
    if file.closed:
        return "closed"
    if isinstance(file, io.BytesIO | io.StringIO):
        return [file.getvalue(), file.tell()]
    try:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return file.tell() if regular else "open"
    except (OSError, ValueError):
        # During `for line in file` a text file refuses to tell its position; its buffer does not.
        return file.buffer.tell() if hasattr(file, "buffer") else "open"


def _of_function_cache(value: Any) -> object:
    info = value.cache_info()
    # Its hits are no state.
    return [value.__wrapped__, info.misses, info.currsize, dict(raw_dict(value))]


_READERS: dict[tuple[type, ...], Callable[[Any], object]] = {
    (type(lru_cache(len)),): _of_function_cache,
    (singledispatchmethod,): lambda value: [dict(value.dispatcher.registry), value.func],
    (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType): _of_generator,
    (random.Random,): lambda value: [value.getstate(), dict(value.__dict__)],
    (io.IOBase,): file_state,
    (_thread.LockType, _thread.RLock): repr,
    (weakref.ref,): _of_reference,
    (types.MethodType,): lambda value: [value.__self__, value.__func__],
    (partial,): lambda value: [value.func, value.args, value.keywords],
    (types.MappingProxyType,): dict,
    (types.SimpleNamespace,): lambda value: dict(value.__dict__),
    (
        *(type(iter(one)) for one in [[], (), "", b"", range(0), set(), bytearray()]),
        *(type(iter(getattr({}, name)())) for name in ("keys", "values", "items")),
        *(enumerate, zip, map, filter, reversed),
        *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
    ): _of_iterator,
}
"""Readers of state outside attributes, by Python type."""


_READERS_OF: dict[int, tuple[type, Callable[[Any], object] | None]] = {}
"""By the id of a type, which is kept with it: the hash of a type may be code of its metaclass."""
_MOST_READERS = 4_096


def _reader(kind: type) -> Callable[[Any], object] | None:
    if id(kind) not in _READERS_OF:
        if len(_READERS_OF) >= _MOST_READERS:
            _READERS_OF.clear()
        reader = next((read for known, read in _READERS.items() if issubclass(kind, known)), None)
        _READERS_OF[id(kind)] = (kind, reader)
    return _READERS_OF[id(kind)][1]
