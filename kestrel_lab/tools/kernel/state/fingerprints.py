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
import site
import stat
import sys
import sysconfig
import types
import warnings
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, cast

MOST_HASHED = 512 * 1024**2
"""Bytes of one value that are compared whole; of a larger one, and of columns of objects, a sample."""
MOST_PARTS = 4_000
"""Objects in one value that are looked at; what lies beyond them counts by its identity."""
_SAMPLE = 20_000
_BLOCK, _SUMMED = 4_096, 1 << 20
_MANY = 1_000
_LARGE = 10_000
_BARE = object.__basicsize__ + 2 * tuple.__itemsize__
"""Size of an object of a Python class without slots; a larger one holds data that no attribute shows."""
_ATOMS = frozenset({int, float, complex, str, bytes, bool, type(None), type(...)})
_SHOWN = (bool, int, float, str, list, tuple, dict, type(None))
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


def value_fingerprint(value: object, most: int = MOST_PARTS) -> int:
    """Return a number that changes with the content of `value`. Very large values and columns of objects are
    compared by a sample.
    """
    return hash(tuple(token for _, token in walk(value, most)))


def walk(value: object, most: int = MOST_PARTS) -> Iterable[tuple[object, object]]:
    """Yield the objects in `value` up to a bound, nearest first, each with what to compare of it."""
    queue: deque[object] = deque([value])
    # The objects are kept in `held`: Python may give the id of a freed object to another one.
    places, held = {id(value): 0}, [value]
    while queue:
        one = queue.popleft()
        token, parts = _look_at(one)
        links: list[object] = []
        for part in parts:
            if type(part) in _ATOMS:
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
                links.append(type(part).__name__ if type(part) in _PLAIN else id(part))
        yield one, (token, *links)


def is_large(value: object) -> bool:
    """Return true if comparing a value is noticeably slow, so that only code naming it is worth it."""
    kind = type(value)
    if kind in _PLAIN or kind in (str, bytes, bytearray, deque):
        return len(cast("Any", value)) > _LARGE
    root, pandas = _root(kind), sys.modules.get("pandas")
    if root == "numpy":
        return int(getattr(value, "nbytes", 0)) > 8 * _LARGE
    return (
        pandas is not None
        and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index)
        and int(value.size) > _LARGE
    )


def is_opaque(value: object) -> bool:
    """Return true if nothing in `value` can be read, as in a library's connection."""
    kind = type(value)
    if isinstance(value, _ONLY_ID) or kind in _ATOMS or kind in _PLAIN or _is_by_identity(cast("Any", kind)):
        return False
    return _look_at(value) == (("id", id(value)), ())


def _root(kind: type) -> str:
    """Return the name of the package that a type is of."""
    # A class may have a property of that name.
    module = kind.__module__
    return module.partition(".")[0] if isinstance(module, str) else ""


@lru_cache(maxsize=4_096)
def _is_by_identity(kind: Any) -> bool:
    return isinstance(kind.__module__, str) and f"{kind.__module__}.".startswith(_BY_IDENTITY)


def _look_at(value: Any) -> tuple[object, Iterable[object]]:
    """Return what is compared of one object itself, and its parts."""
    kind = type(value)
    if kind in _ATOMS:
        return _of_atom(value), ()
    if kind in _PLAIN:
        return _of_container(value)
    if isinstance(value, _ONLY_ID) or _is_by_identity(cast("Any", kind)):
        return ("id", id(value)), ()
    if kind.__module__ == _DRAWN:
        return ("type", id(kind)), ()
    if (library := _of_library(value)) is not None:
        return library, ()
    try:
        read = _reader(cast("Any", kind))
        return _of_object(value, kind) if read is None else ((kind.__qualname__, id(value)), (read(value),))
    except Exception:  # noqa: BLE001
        # The boundary to classes of others, which may refuse to be read: these are compared by identity.
        return ("id", id(value)), ()


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
    kinds = set(map(type, value.values() if kind is dict else value)) | (
        set(map(type, value)) if kind is dict else set()
    )
    # Only plain values: marshal would copy the bytes of an array.
    if kinds <= _ATOMS or (len(value) > _MANY and kinds <= _ATOMS | _PLAIN and _plain_within(value)):
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


def _of_object(value: Any, kind: type) -> tuple[object, Iterable[object]]:
    if issubclass(kind, dict | list | set | frozenset | tuple | deque):
        content: list[object] = list(
            itertools.chain.from_iterable(dict.items(value)) if issubclass(kind, dict) else value
        )
        return (id(kind), len(content)), [*content[: 2 * _MANY], *_attributes(value, kind).values()]
    if (
        not kind.__dictoffset__
        and not is_own(kind.__module__)
        and kind.__hash__ not in (None, object.__hash__)
    ):
        # A class with its own hash is immutable by convention, even if it caches values in its slots.
        return (
            id(kind),
            hash(value),
        ), ()
    attributes = _attributes(value, kind)
    if not attributes and kind.__basicsize__ > _BARE:
        with memoryview(value) as view:
            return (id(kind), zlib.crc32(view.tobytes())), ()
    if not is_own(kind.__module__):
        attributes = {
            name: part for name, part in attributes.items() if not any(word in name for word in _PASSING)
        }
    return (id(kind), tuple(attributes)), attributes.values()


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


def raw_dict(value: object) -> dict[str, Any]:
    """Return the `__dict__` of an object or module, without calling its class, which may load lazily."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


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


_READERS: dict[tuple[type, ...], Callable[[Any], object]] = {
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


@lru_cache(maxsize=4_096)
def _reader(kind: type) -> Callable[[Any], object] | None:
    return next((read for known, read in _READERS.items() if issubclass(kind, known)), None)


# Libraries of arrays and frames.


def _of_library(value: Any) -> object | None:
    """Return what to compare of a loaded library's value, such as an array; `None` for others."""
    root = _root(type(value))
    if root == "numpy" or (
        root != "builtins" and "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].ndarray)
    ):
        return _of_numpy(value)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index):
        return _of_pandas(value)
    if root == "torch" and hasattr(value, "_version"):
        return id(value), value._version, tuple(value.shape)
    traitlets = sys.modules.get("traitlets")
    if traitlets is not None and isinstance(value, traitlets.HasTraits):
        return id(value), value_fingerprint(_traits(value))
    sqlite = sys.modules.get("sqlite3")
    if sqlite is not None and isinstance(value, sqlite.Connection):
        settings = id(value.row_factory), id(value.text_factory), value.isolation_level
        return id(value), value.total_changes, value.in_transaction, *settings
    return None


def _traits(value: Any) -> dict[str, object]:
    """Return a widget's displayed values and plain traits, without its connection."""
    found = {**raw_dict(value), **value._trait_values}
    shown = {
        name: one for name, one in found.items() if isinstance(one, _SHOWN) and not name.startswith("_trait")
    }
    return {
        **shown,
        "observers": {
            name: [list(map(id, one)) for one in kinds.values()]
            for name, kinds in value._trait_notifiers.items()
        },
    }


def _of_numpy(value: Any) -> object | None:
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray):
        return _of_array(value)
    if isinstance(value, numpy.generic):
        return str(value.dtype), value.tobytes() if value.dtype != object else id(value)
    if (state := numpy_random_state(value)) is not None:
        return id(value), value_fingerprint(state)
    return None


def numpy_random_state(value: Any) -> Any:
    """Return the state of a random generator of numpy; `None` for anything else."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    if isinstance(value, numpy_random.Generator):
        return value.bit_generator.state
    if isinstance(value, numpy_random.RandomState):
        return value.get_state(legacy=False)
    return value.state if isinstance(value, numpy_random.BitGenerator) else None


def _of_pandas(value: Any) -> object:
    pandas = sys.modules["pandas"]
    if isinstance(value, pandas.DataFrame):
        parts = (
            _of_frame(value),
            *map(
                value_fingerprint,
                (value.index, value.columns, value.attrs, value.flags.allows_duplicate_labels),
            ),
        )
        return hash((tuple(map(str, value.dtypes)), *parts))
    if isinstance(value, pandas.RangeIndex):
        return hash((value.start, value.stop, value.step, str(value.name)))
    index = value_fingerprint(value.index) if isinstance(value, pandas.Series) else 0
    return hash((str(value.dtype), str(getattr(value, "name", "")), index, _of_column(value.array)))


def _of_array(array: Any) -> int:
    numpy = sys.modules["numpy"]
    head = (str(array.dtype), array.shape)
    if array.dtype == object:
        flat = array.ravel()
        return hash((head, value_fingerprint(flat[:: max(1, len(flat) // _SAMPLE)].tolist())))
    step = max(1, array.nbytes // MOST_HASHED)
    flat = array.T if array.flags.f_contiguous and not array.flags.c_contiguous else array
    flat = numpy.ascontiguousarray(flat).reshape(-1)[::step]
    return (
        hash((head, _of_bytes(numpy.ascontiguousarray(flat).view(numpy.uint8)))) if flat.size else hash(head)
    )


@cache
def _weights() -> Any:
    """Return random odd numbers, one for each word of a block, the same in every copy of this process."""
    numpy = sys.modules["numpy"]
    return numpy.random.default_rng(0).integers(1, 2**63, _BLOCK // 8, dtype=numpy.uint64) | numpy.uint64(1)


def _of_bytes(data: Any) -> int:
    """Hash bytes; long ones by a weighted sum of the words of each block, 5 times as fast as a checksum."""
    numpy = sys.modules["numpy"]
    whole = len(data) // _BLOCK * _BLOCK
    if whole < _SUMMED:
        return zlib.crc32(data.data)
    sums = numpy.einsum("ij,j->i", data[:whole].view(numpy.uint64).reshape(-1, _BLOCK // 8), _weights())
    return hash((zlib.crc32(sums.data), zlib.crc32(data[whole:].data)))


def _of_frame(frame: Any) -> int:
    if block_kind(frame):
        return _of_array(frame.to_numpy())
    return hash(tuple(_of_column(frame.iloc[:, place].array) for place in range(frame.shape[1])))


def block_kind(frame: Any) -> str:
    """Return the numpy kind of all columns of a frame stored as one array; empty if there is none."""
    numpy = sys.modules["numpy"]
    kinds = set(frame.dtypes)
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    return str(kind.kind) if isinstance(kind, numpy.dtype) and kind.kind in "biufc" else ""


def _of_column(array: Any) -> int:
    pandas = sys.modules["pandas"]
    if type(array) is pandas.arrays.NumpyExtensionArray and array.dtype != object:
        return _of_array(array.to_numpy())
    step = max(1, len(array) // _SAMPLE)
    return hash((len(array), int(array.isna().sum()), tuple(map(str, array[::step].tolist()))))


# Whose code it is.


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[2])]
    return tuple(
        {os.path.join(form, "") for folder in folders for form in (folder, os.path.realpath(folder))}
    )


def in_library(file: str) -> bool:
    """Return true if a Python file belongs to Python, an installed library, or this package."""
    return file in ("built-in", "frozen") or file.startswith(("<frozen", *_library_folders()))


def is_own(module: object, *, made: bool = True) -> bool:
    """Return true if a module is the user's: the notebook, or a file that is not installed."""
    if module == "__main__" or not isinstance(module, str):
        return True
    loaded = sys.modules.get(module)
    if loaded is None:
        return made
    about = raw_dict(loaded)
    file = about.get("__file__") or getattr(about.get("__spec__"), "origin", None)
    if file is None:
        folders = list(about.get("__path__") or ())
        return (
            made
            and module not in sys.builtin_module_names
            and not any(in_library(os.path.join(str(one), "")) for one in folders)
        )
    return not in_library(file)
