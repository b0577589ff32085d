"""Plain values between two processes without pickle: JSON for their structure, raw arrays for their data.

What is decoded comes from a process that ran code of a model. So only types that are named here come out of
it, arrays never hold objects, and a value of another type, also of a subclass, is refused with its reason
when it is encoded.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import mmap
import os
import struct
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from kestrel_lab.core.json_types import Json

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

MOST_BYTES = 1024**3
"""Of one transfer."""
MOST_DEPTH = 40
"""Containers within containers."""
_ALIGNED = 64
_KINDS = frozenset("biufcmMSU")
"""Numpy kinds whose data are plain bytes."""
_NUMBER = struct.Struct("<Q")

Tree = Json


class NotPlain(Exception):
    """A value is of no type that can be handed over as data, with the reason."""


class Buffers:
    """Arrays of one or more encoded values, with their offsets."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.size = 0

    def drop(self, count: int) -> None:
        """Keep the first `count` arrays only."""
        del self.arrays[count:]
        self.size = 0
        for array in self.arrays:
            self.size = -(-self.size // _ALIGNED) * _ALIGNED + array.nbytes

    def add(self, array: np.ndarray[Any, Any]) -> list[Json]:
        """Add an array; return its offset, size and type as JSON.

        Raises `NotPlain` if it contains objects or there is no room.
        """
        if array.dtype.kind not in _KINDS or array.dtype.fields is not None:
            raise NotPlain(f"an array of {array.dtype} holds objects")
        fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        place = -(-self.size // _ALIGNED) * _ALIGNED
        self.size = place + array.nbytes
        if self.size > MOST_BYTES:
            raise NotPlain(f"it is larger than {MOST_BYTES / 1e9:.1f} GB")
        self.arrays.append(array)
        return [place, array.dtype.str, list(array.shape), "F" if fortran else "C"]


def write_values(fd: int, header: Json, buffers: Buffers) -> None:
    """Write a JSON value and the arrays that it refers to into a file."""
    import numpy as np

    text = json.dumps(header).encode()
    start = -(-(2 * _NUMBER.size + len(text)) // _ALIGNED) * _ALIGNED
    _write_at(fd, memoryview(_NUMBER.pack(len(text)) + _NUMBER.pack(start) + text), 0)
    os.ftruncate(fd, start + max(buffers.size, 1))
    place = 0
    for array in buffers.arrays:
        place = -(-place // _ALIGNED) * _ALIGNED
        flat = array.T if array.flags.f_contiguous else np.ascontiguousarray(array)
        _write_at(fd, flat.reshape(-1).view(np.uint8).data if array.size else memoryview(b""), start + place)
        place += array.nbytes


def _write_at(fd: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


class Store:
    """Reads what `write_values` wrote; arrays are mapped copy-on-write."""

    def __init__(self, fd: int) -> None:
        """Raise `ValueError` if the file is not from `write_values`."""
        size = os.fstat(fd).st_size
        if size < 2 * _NUMBER.size:
            raise ValueError("nothing was handed over")
        self._map = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
        (length,), (self._start,) = (
            _NUMBER.unpack_from(self._map),
            _NUMBER.unpack_from(self._map, _NUMBER.size),
        )
        if not length <= self._start <= size:
            raise ValueError("what was handed over is damaged")
        try:
            self.header: Json = json.loads(self._map[2 * _NUMBER.size : 2 * _NUMBER.size + length])
        except RecursionError:
            raise ValueError("what was handed over is nested too deeply") from None

    def array(self, described: Json) -> np.ndarray[Any, Any]:
        """Return the array that `Buffers.add` described; raises `ValueError` or `TypeError`."""
        import numpy as np

        place, kind, shape, order = cast("tuple[int, str, list[int], Any]", described)
        dtype = np.dtype(kind)
        if (
            dtype.kind not in _KINDS
            or dtype.fields is not None
            or place < 0
            or any(side < 0 for side in shape)
        ):
            raise ValueError(f"an array of {kind!r} is not plain")
        count = int(np.prod(shape, dtype=np.int64)) if shape else 1
        flat = (
            np.frombuffer(self._map, dtype=dtype, count=count, offset=self._start + place)
            if count
            else np.empty(0, dtype)
        )
        return flat.reshape(shape, order="F" if order == "F" else "C")


# Values of Python itself.

_AS_TEXT: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    dt.datetime: ("datetime", lambda value: _naive_or_utc(value).isoformat(), dt.datetime.fromisoformat),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (
        "timedelta",
        lambda value: f"{value.days} {value.seconds} {value.microseconds}",
        lambda text: dt.timedelta(*map(int, text.split())),
    ),
    Decimal: ("decimal", str, Decimal),
    complex: ("complex", str, complex),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
}
_CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


def _naive_or_utc(value: dt.datetime) -> dt.datetime:
    if value.tzinfo is not None and value.tzinfo is not dt.UTC:
        raise NotPlain("a time has a zone of its own kind")
    return value


def encode_value(value: object, buffers: Buffers, depth: int = 0) -> Tree:
    """Return `value` as JSON that refers to `buffers`; raises `NotPlain` with the reason for other data."""
    try:
        return _encode(value, buffers, depth)
    except NotPlain:
        raise
    except BaseException as error:  # the boundary to classes of others
        raise NotPlain(f"reading it raises {type(error).__name__}") from error


def _encode(value: object, buffers: Buffers, depth: int) -> Tree:
    kind = type(value)
    if value is None or kind in (bool, str):
        return cast("Json", value)
    if kind is int:
        return value if abs(cast("int", value)) < 2**53 else ["int", hex(cast("int", value))]  # type: ignore[return-value]
    if kind is float:
        return ["float", cast("float", value).hex()]
    if depth > MOST_DEPTH:
        raise NotPlain("it is nested too deeply")
    if kind in _CONTAINERS:
        return [
            _CONTAINERS[kind],
            [encode_value(item, buffers, depth + 1) for item in cast("list[Any]", value)],
        ]
    if kind is dict:
        pairs = cast("dict[Any, Any]", value).items()
        return [
            "dict",
            [
                [encode_value(key, buffers, depth + 1), encode_value(item, buffers, depth + 1)]
                for key, item in pairs
            ],
        ]
    if kind in _AS_TEXT:
        name, write_text, _ = _AS_TEXT[kind]
        return [name, write_text(value)]
    for library, encoded in (("numpy", _encode_numpy), ("pandas", _encode_pandas)):
        if kind.__module__.partition(".")[0] == library and library in sys.modules:
            return encoded(value, buffers)
    raise NotPlain(_of_type(value))


def _of_type(value: object) -> str:
    kind = type(value)
    return (
        "it is a "
        f"{'' if kind.__module__ in ('builtins', '__main__') else f'{kind.__module__}.'}{kind.__qualname__}"
    )


def decode_value(tree: Tree, store: Store) -> Any:
    """Return the value encoded in `tree`; raises `ValueError`, `TypeError` or `KeyError` if invalid."""
    if not isinstance(tree, list):
        if isinstance(tree, dict):
            raise TypeError("there is an object in the place of a value")
        return tree
    kind, content, *more = cast("list[Any]", tree)
    if kind in _MAKERS:
        return _MAKERS[kind]([decode_value(item, store) for item in content])
    if kind == "dict":
        return {decode_value(key, store): decode_value(item, store) for key, item in content}
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float.fromhex(content)
    for name, _, read_text in _AS_TEXT.values():
        if kind == name:
            return read_text(content)
    return _DECODERS[kind](content, store, *more)


# numpy


def _encode_numpy(value: Any, buffers: Buffers) -> Tree:
    import numpy as np

    if type(value) is np.ndarray:
        if value.dtype == object:
            return [
                "objects",
                [encode_value(item, buffers, 1) for item in value.ravel().tolist()],
                list(value.shape),
            ]
        return ["array", buffers.add(value)]
    if isinstance(value, np.generic):
        return ["scalar", buffers.add(np.asarray(value))]
    raise NotPlain(_of_type(value))


def _objects(content: Any, store: Store, shape: list[int]) -> Any:
    import numpy as np

    array = np.empty(len(content), dtype=object)
    array[:] = [decode_value(item, store) for item in content]
    return array.reshape(shape)


# pandas: columns one by one, or as one block where all are of one type


def _encode_pandas(value: Any, buffers: Buffers) -> Tree:
    import pandas as pd

    if value is pd.NaT or value is pd.NA:
        return ["missing", "NaT" if value is pd.NaT else "NA"]
    if isinstance(value, pd.Timestamp | pd.Timedelta):
        return ["moment", encode_column(pd.Index([value]).array, buffers)]
    if type(value) is pd.DataFrame:
        return _encode_frame(value, buffers)
    if type(value) is pd.Series:
        return [
            "series",
            encode_column(value.array, buffers),
            _encode_index(value.index, buffers),
            encode_value(value.name, buffers, 1),
        ]
    if isinstance(value, pd.Index):
        return ["index", _encode_index(value, buffers)]
    raise NotPlain(_of_type(value))


def _encode_frame(frame: pd.DataFrame, buffers: Buffers) -> Tree:
    import numpy as np

    kinds = list(dict.fromkeys(frame.dtypes))
    rest: list[Json] = [
        _encode_index(frame.index, buffers),
        _encode_index(frame.columns, buffers),
        encode_value(frame.attrs, buffers, 1),
    ]
    if len(kinds) == 1 and isinstance(kinds[0], np.dtype) and kinds[0].kind in "biufc":
        return ["block", buffers.add(frame.to_numpy()), *rest]
    return [
        "frame",
        [encode_column(frame.iloc[:, place].array, buffers) for place in range(frame.shape[1])],
        *rest,
    ]


def encode_column(array: Any, buffers: Buffers) -> Tree:
    """Return a column of pandas as JSON; raises `NotPlain` for a type of column that is not known."""
    import numpy as np
    import pandas as pd

    dtype = array.dtype
    if isinstance(dtype, np.dtype) or type(array) is pd.arrays.NumpyExtensionArray:
        return encode_value(array.to_numpy(), buffers, 1)
    if isinstance(dtype, pd.DatetimeTZDtype):
        return ["zoned", buffers.add(np.asarray(array.tz_convert(None))), str(dtype.tz)]
    if isinstance(dtype, pd.CategoricalDtype):
        return [
            "categories",
            buffers.add(array.codes),
            _encode_index(dtype.categories, buffers),
            bool(dtype.ordered),
        ]
    if isinstance(dtype, pd.StringDtype):
        texts = [
            None if missing else text
            for text, missing in zip(array.tolist(), array.isna().tolist(), strict=True)
        ]
        return ["strings", texts, dtype.storage, dtype.na_value is pd.NA]
    if isinstance(dtype, pd.PeriodDtype):
        return ["periods", buffers.add(array.asi8), dtype.name]
    if isinstance(dtype, pd.IntervalDtype):
        return [
            "intervals",
            encode_column(pd.Index(array.left).array, buffers),
            encode_column(pd.Index(array.right).array, buffers),
            dtype.closed,
        ]
    if hasattr(dtype, "numpy_dtype") and dtype.name in _MASKED:
        return [
            "masked",
            buffers.add(array.to_numpy(dtype=dtype.numpy_dtype, na_value=0)),
            buffers.add(array.isna()),
            dtype.name,
        ]
    raise NotPlain(f"a column is of type {dtype}")


_MASKED = frozenset(
    {"boolean", "Float32", "Float64", *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))}
)


def _encode_index(index: Any, buffers: Buffers) -> Tree:
    import numpy as np
    import pandas as pd

    if type(index) is pd.RangeIndex:
        return ["range", [index.start, index.stop, index.step], encode_value(index.name, buffers, 1)]
    if isinstance(index, pd.MultiIndex):
        levels = [_encode_index(level, buffers) for level in index.levels]
        codes: list[Json] = [buffers.add(np.asarray(code)) for code in index.codes]
        return ["levels", levels, codes, encode_value(list(index.names), buffers, 1)]
    frequency = getattr(index, "freqstr", None) if isinstance(index, pd.DatetimeIndex) else None
    return ["labels", encode_column(index.array, buffers), encode_value(index.name, buffers, 1), frequency]


def _pandas() -> Any:
    """Return pandas without its types, which know less than it does."""
    import pandas as pd

    return pd


def _frame(values: Any, store: Store, index: Any, columns: Any, attrs: Any) -> Any:
    frame = _pandas().DataFrame(values, index=decode_value(index, store), copy=False)
    # Not in the constructor: there the names of columns would choose among those of `values`.
    frame.columns = decode_value(columns, store)
    frame.attrs = decode_value(attrs, store)
    return frame


def _strings(content: Any, _: Store, storage: str, missing: Any) -> Any:
    import numpy as np

    pd = _pandas()
    return pd.array(content, dtype=pd.StringDtype(storage, na_value=pd.NA if missing else np.nan))


def _periods(content: Any, store: Store, frequency: str) -> Any:
    pd = _pandas()
    return pd.PeriodIndex.from_ordinals(
        store.array(content), freq=pd.PeriodDtype.construct_from_string(frequency).freq
    ).array


def _apply_mask(content: Any, store: Store, mask: Any, name: str) -> Any:
    pd = _pandas()
    if name not in _MASKED:
        raise ValueError(f"there is no masked type {name!r}")
    array = pd.array(store.array(content), dtype=name)
    array[store.array(mask)] = pd.NA
    return array


def _levels(content: Any, store: Store, codes: Any, names: Any) -> Any:
    levels = [decode_value(level, store) for level in content]
    return _pandas().MultiIndex(
        levels=levels, codes=[store.array(code) for code in codes], names=decode_value(names, store)
    )


def _labels(content: Any, store: Store, name: Any, frequency: Any) -> Any:
    pd = _pandas()
    index = pd.Index(decode_value(content, store), name=decode_value(name, store), copy=False)
    if frequency is not None and isinstance(index, pd.DatetimeIndex):
        index.freq = frequency
    return index


_DECODERS: dict[str, Callable[..., Any]] = {
    "array": lambda content, store: store.array(content),
    "scalar": lambda content, store: store.array(content)[()],
    "objects": _objects,
    "missing": lambda content, _: _pandas().NaT if content == "NaT" else _pandas().NA,
    "moment": lambda content, store: _pandas().Index(decode_value(content, store))[0],
    "block": lambda content, store, *labels: _frame(store.array(content), store, *labels),
    "frame": lambda content, store, *labels: _frame(
        {place: decode_value(column, store) for place, column in enumerate(content)}, store, *labels
    ),
    "series": lambda content, store, index, name: _pandas().Series(
        decode_value(content, store),
        index=decode_value(index, store),
        name=decode_value(name, store),
        copy=False,
    ),
    "index": decode_value,
    "zoned": lambda content, store, zone: (
        _pandas().DatetimeIndex(store.array(content)).tz_localize("UTC").tz_convert(zone).array
    ),
    "categories": lambda content, store, categories, ordered: _pandas().Categorical.from_codes(
        store.array(content), categories=decode_value(categories, store), ordered=bool(ordered)
    ),
    "strings": _strings,
    "periods": _periods,
    "intervals": lambda content, store, right, closed: _pandas().arrays.IntervalArray.from_arrays(
        decode_value(content, store), decode_value(right, store), closed=closed
    ),
    "masked": _apply_mask,
    "range": lambda content, store, name: _pandas().RangeIndex(
        *map(int, content), name=decode_value(name, store)
    ),
    "levels": _levels,
    "labels": _labels,
}
