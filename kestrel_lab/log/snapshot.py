"""A run's state as bytes and back: JSON of its fields, found by their types, compressed; reading it executes nothing.

What a snapshot means depends on the code that wrote it. Its form is therefore part of its name: a field more or
less, or one of another type, anywhere in the state makes another `FORM`, and snapshots of other forms are not read.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin, get_type_hints

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.jsontypes import Json, content_key, dumps
from kestrel_lab.core.version import __version__
from kestrel_lab.log.fold import RunState

MEANING = 2
"""To be raised when `RunState.apply` makes another state of the same events than before."""
_LEVEL = 3
_MOST_BYTES = 1 << 30
"""Of a state as JSON: a larger one was not written here."""


@dataclass(frozen=True, slots=True)
class _Codec:
    """How values of one type are written and read."""

    write: Callable[[Any], Json]
    read: Callable[[Any], Any]
    shape: str
    """Equal for types that are written alike."""


class DamagedSnapshot(StoreError):
    """Bytes that are no snapshot of this form: the log has to be read instead."""


def form() -> str:
    """The name of the form that snapshots have now."""
    return f"{__version__}/{MEANING}/{content_key(_codec(RunState).shape)[:12]}"


def snapshot(state: RunState, **about: Json) -> bytes:
    """`state` as bytes, with what they are about."""
    import zstandard

    body = dumps({**about, "form": form(), "state": _codec(RunState).write(state)})
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(body.encode("ascii"))


def restore(content: bytes, **about: Json) -> RunState:
    """The state that `snapshot` was given; raises `DamagedSnapshot` when it is of another form or about something else."""
    import zstandard

    try:
        if zstandard.frame_content_size(content) > _MOST_BYTES:
            raise DamagedSnapshot("it is too large")  # noqa: EM101  # never shown alone
        body = json.loads(zstandard.ZstdDecompressor().decompress(content))
        if {key: body[key] for key in body if key != "state"} != {**about, "form": form()}:
            raise DamagedSnapshot("it is another run's, or of another form")  # noqa: EM101
        state: RunState = _codec(RunState).read(body["state"])
    except (zstandard.ZstdError, ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        raise DamagedSnapshot(str(error)) from error
    return state


@cache
def _codec(kind: Any) -> _Codec:
    """How values of type `kind` are written; raises `TypeError` for a type that JSON cannot carry."""
    if _plain(kind):
        return _Codec(_same, _same, str(kind))
    if is_dataclass(kind):
        return _of_fields(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Codec(lambda value: value.value, kind, f"{kind.__name__}{[member.value for member in kind]}")
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType) and type(None) in args and len(args) == 2:
        inner = _codec(next(arg for arg in args if arg is not type(None)))
        return _Codec(_unless_none(inner.write), _unless_none(inner.read), f"{inner.shape}?")
    if origin is dict and args[0] is str:
        inner = _codec(args[1])
        return _Codec(_each_value(inner.write), _each_value(inner.read), f"dict[{inner.shape}]")
    if origin in (list, set, frozenset) or (origin is tuple and args[1:] == (...,)):
        return _sequence(origin, _codec(args[0]))
    msg = f"a run's state has a field of type {kind}, which a snapshot cannot carry: teach it to kestrel_lab.log.snapshot"
    raise TypeError(msg)


def _plain(kind: Any) -> bool:
    """Whether values of `kind` are JSON as they are."""
    if kind in (None, type(None), bool, int, float, str, ForwardRef("Json"), "Json"):
        return True
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return all(isinstance(arg, bool | int | str) for arg in args)
    if origin in (Union, types.UnionType, list):
        return all(map(_plain, args))
    return origin is dict and args[0] is str and _plain(args[1])


def _of_fields(cls: Any) -> _Codec:
    hints = get_type_hints(cls)
    codecs = {field.name: _codec(hints[field.name]) for field in fields(cls)}

    def write(value: Any) -> Json:
        return {name: codec.write(getattr(value, name)) for name, codec in codecs.items()}

    def read(body: Any) -> Any:
        if body.keys() != codecs.keys():
            msg = f"not the fields of {cls.__name__}"
            raise ValueError(msg)
        return cls(**{name: codec.read(body[name]) for name, codec in codecs.items()})

    return _Codec(write, read, f"{cls.__name__}({', '.join(f'{name}: {codec.shape}' for name, codec in codecs.items())})")


def _sequence(origin: Any, inner: _Codec) -> _Codec:
    unordered = origin in (set, frozenset)

    def write(values: Any) -> Json:
        return [inner.write(value) for value in (sorted(values) if unordered else values)]

    def read(values: Any) -> Any:
        return origin([inner.read(value) for value in values])

    return _Codec(write, read, f"{origin.__name__}[{inner.shape}]")


def _same(value: Any) -> Any:
    return value


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _each_value(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: {key: convert(value) for key, value in values.items()}
