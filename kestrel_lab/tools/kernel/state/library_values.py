"""Values of libraries, such as arrays, frames and widgets: what is compared of them."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from kestrel_lab.tools.kernel.state.boundary import is_a, raw_dict
from kestrel_lab.tools.kernel.state.libraries import is_own

MOST_HASHED = 512 * 1024**2
"""Bytes of one value that are compared whole; of a larger one, and of columns of objects, a sample."""
_SAMPLE = 20_000
_BLOCK, _SUMMED = 4_096, 1 << 20
_SHOWN = (bool, int, float, str, list, tuple, dict, type(None))


def package_of(kind: type) -> str:
    """Return the name of the package that a type is of."""
    # A class may have a property of that name.
    module = kind.__module__
    return module.partition(".")[0] if isinstance(module, str) else ""


def read_library_value(value: Any) -> tuple[object, Iterable[object]] | None:
    """Return what to compare of a loaded library's value, such as an array, and its parts; `None` for
    others.
    """
    root = package_of(type(value))
    if root == "numpy" or (
        root != "builtins" and "numpy" in sys.modules and is_a(value, sys.modules["numpy"].ndarray)
    ):
        return _of_numpy(value)
    pandas = sys.modules.get("pandas")
    if pandas is not None and is_a(value, pandas.DataFrame | pandas.Series | pandas.Index):
        return _of_pandas(value)
    if root == "torch" and hasattr(value, "_version"):
        return (id(value), value._version, tuple(value.shape)), ()
    traitlets = sys.modules.get("traitlets")
    if traitlets is not None and is_a(value, traitlets.HasTraits):
        return _of_traits(value)
    sqlite = sys.modules.get("sqlite3")
    if sqlite is not None and is_a(value, sqlite.Connection):
        settings = id(value.row_factory), id(value.text_factory), value.isolation_level
        return (id(value), value.total_changes, value.in_transaction, *settings), ()
    return None


def _of_traits(value: Any) -> tuple[object, Iterable[object]]:
    """Return a widget's displayed values and plain traits, without its connection.

    Parts of an application, such as the shell of the kernel, change with each cell; what is set of them has
    probes.
    """
    if is_application(value):
        return ("id", id(value)), ()
    attributes = {**raw_dict(value), **value._trait_values}
    shown = {
        name: part
        for name, part in attributes.items()
        if is_a(part, _SHOWN) and not name.startswith("_trait")
    }
    observers = {
        name: [list(map(id, handlers)) for handlers in kinds.values()]
        for name, kinds in value._trait_notifiers.items()
    }
    return ("traits", id(value), tuple(shown)), [*shown.values(), observers]


def is_application(value: object) -> bool:
    """Return true for a part of an application that traitlets configures, such as the shell of the kernel."""
    application = sys.modules.get("traitlets.config")
    is_part = application is not None and is_a(value, application.Configurable)
    return is_part and not is_own(type(value).__module__)


def is_capture(value: object) -> bool:
    """Return true for an object of this package: the `open` of a preview notes what is written."""
    return package_of(type(value)) == "kestrel_lab"


def _of_numpy(value: Any) -> tuple[object, Iterable[object]] | None:
    numpy = sys.modules["numpy"]
    if is_a(value, numpy.ndarray):
        return _of_array(value)
    if is_a(value, numpy.generic):
        return (str(value.dtype), value.tobytes() if value.dtype != object else id(value)), ()
    if (state := numpy_random_state(value)) is not None:
        return ("random", id(value)), (state,)
    return None


def numpy_random_state(value: Any) -> Any:
    """Return the state of a random generator of numpy; `None` for anything else."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    if is_a(value, numpy_random.Generator):
        return value.bit_generator.state
    if is_a(value, numpy_random.RandomState):
        return value.get_state(legacy=False)
    return value.state if is_a(value, numpy_random.BitGenerator) else None


def _of_pandas(value: Any) -> tuple[object, Iterable[object]]:
    pandas = sys.modules["pandas"]
    if is_a(value, pandas.DataFrame):
        columns, parts = _of_frame(value)
        token = (*map(str, value.dtypes), columns, value.flags.allows_duplicate_labels)
        return token, (value.index, value.columns, value.attrs, *parts)
    if is_a(value, pandas.RangeIndex):
        return (value.start, value.stop, value.step, str(value.name)), ()
    column, parts = _of_column(value.array)
    token = (str(value.dtype), str(getattr(value, "name", "")), column)
    return token, (value.index, *parts) if is_a(value, pandas.Series) else parts


def _of_array(array: Any) -> tuple[object, Sequence[object]]:
    """Return what to compare of an array; the objects in it, or a sample of them, are its parts."""
    numpy = sys.modules["numpy"]
    head = (str(array.dtype), array.shape)
    if array.dtype == object:
        flat = array.ravel()
        return head, [flat[:: max(1, len(flat) // _SAMPLE)].tolist()]
    step = max(1, array.nbytes // MOST_HASHED)
    flat = array.T if array.flags.f_contiguous and not array.flags.c_contiguous else array
    flat = numpy.ascontiguousarray(flat).reshape(-1)[::step]
    content = _of_bytes(numpy.ascontiguousarray(flat).view(numpy.uint8)) if flat.size else 0
    return (*head, content), ()


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


def _of_frame(frame: Any) -> tuple[object, Sequence[object]]:
    if block_kind(frame):
        return _of_array(frame.to_numpy())
    columns, parts = list[object](), list[object]()
    for place in range(frame.shape[1]):
        column, objects = _of_column(frame.iloc[:, place].array)
        columns.append(column)
        parts += objects
    return tuple(columns), parts


def block_kind(frame: Any) -> str:
    """Return the numpy kind of all columns of a frame stored as one array; empty if there is none."""
    numpy = sys.modules["numpy"]
    kinds = set(frame.dtypes)
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    return str(kind.kind) if isinstance(kind, numpy.dtype) and kind.kind in "biufc" else ""


def _of_column(array: Any) -> tuple[object, Sequence[object]]:
    pandas = sys.modules["pandas"]
    if type(array) is pandas.arrays.NumpyExtensionArray:
        return _of_array(array.to_numpy())
    step = max(1, len(array) // _SAMPLE)
    return (len(array), int(array.isna().sum()), tuple(map(str, array[::step].tolist()))), ()
