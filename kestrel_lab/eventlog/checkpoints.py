"""Checkpoints: a run's state as compressed JSON and back; reading one executes nothing.

What a snapshot means depends on the code that wrote it. Its form is therefore part of its name: a field more
or less, or one of another type, anywhere in the state makes another `FORM`, and snapshots of other forms are
not read.
"""

from __future__ import annotations

import json
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, ForwardRef, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.json_types import Json, content_key, dumps
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.host.version import __version__

MEANING = 2
"""Raise this number when `RunState.apply` makes another state of the same events than before."""
_LEVEL = 3
_MOST_BYTES = 1 << 30
"""Of a state as JSON: a larger one was not written here."""


@dataclass(frozen=True, slots=True)
class _Codec:
    """How values of one type are read."""

    read: Callable[[Any], Any]
    shape: str
    """Equal for types that are written alike."""


class DamagedSnapshot(StoreError):
    """Bytes that are no snapshot of this form: the log has to be read instead."""


@cache
def snapshot_format() -> str:
    """The name of the form that snapshots have now."""
    return f"{__version__}/{MEANING}/{content_key(_codec(RunState).shape)[:12]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """A state as JSON text, and the event that it is the state behind."""

    seq: int
    eid: str
    body: bytes


def encode_state(state: RunState) -> bytes:
    """Return `state` as JSON text."""
    try:
        return msgspec.json.encode(state)
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can hold
        return dumps(msgspec.to_builtins(state, str_keys=True)).encode("ascii")


def pack_snapshot(body: bytes, **about: Json) -> bytes:
    """Return a snapshot of what `encode_state` gave, with what it is about."""
    # Most runs end before their first checkpoint.
    import zstandard

    text = msgspec.json.encode({**about, "form": snapshot_format(), "state": msgspec.Raw(body)})
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(text)


def restore_state(content: bytes, **about: Json) -> RunState:
    """The state that `pack_snapshot` was given; raises `DamagedSnapshot` when it is of another form or about
    something else.
    """
    import zstandard

    try:
        if zstandard.frame_content_size(content) > _MOST_BYTES:
            raise DamagedSnapshot("it is too large")  # never shown alone
        body = json.loads(zstandard.ZstdDecompressor().decompress(content))
        if {key: body[key] for key in body if key != "state"} != {**about, "form": snapshot_format()}:
            raise DamagedSnapshot("it is another run's, or of another form")
        state: RunState = _codec(RunState).read(body["state"])
    except (
        zstandard.ZstdError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise DamagedSnapshot(str(error)) from error
    return state


@cache
def _codec(kind: Any) -> _Codec:
    """How values of type `kind` are written; raises `TypeError` for a type that JSON cannot carry."""
    if _is_plain_json(kind):
        return _Codec(lambda value: value, str(kind))
    if is_dataclass(kind):
        return _of_fields(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Codec(kind, f"{kind.__name__}{[member.value for member in kind]}")
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType) and type(None) in args and len(args) == 2:
        inner = _codec(next(arg for arg in args if arg is not type(None)))
        return _Codec(lambda value: None if value is None else inner.read(value), f"{inner.shape}?")
    if origin is dict and args[0] is str:
        each = _codec(args[1])
        return _Codec(
            lambda values: {key: each.read(value) for key, value in values.items()}, f"dict[{each.shape}]"
        )
    if origin in (list, set, frozenset) or (origin is tuple and args[1:] == (...,)):
        item = _codec(args[0])
        return _Codec(lambda values: origin(map(item.read, values)), f"{origin.__name__}[{item.shape}]")
    msg = (
        f"a run's state has a field of type {kind}, which a snapshot cannot carry: teach it to "
        "kestrel_lab.eventlog.checkpoints"
    )
    raise TypeError(msg)


def _is_plain_json(kind: Any) -> bool:
    """Whether values of `kind` are JSON as they are."""
    if kind in (None, type(None), bool, int, float, str, ForwardRef("Json"), "Json"):
        return True
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return all(isinstance(arg, bool | int | str) for arg in args)
    if origin in (Union, types.UnionType, list):
        return all(map(_is_plain_json, args))
    return origin is dict and args[0] is str and _is_plain_json(args[1])


def _of_fields(cls: Any) -> _Codec:
    hints = get_type_hints(cls)
    codecs = {field.name: _codec(hints[field.name]) for field in fields(cls)}

    def read(body: Any) -> Any:
        if body.keys() != codecs.keys():
            raise ValueError(f"not the fields of {cls.__name__}")
        return cls(**{name: codec.read(body[name]) for name, codec in codecs.items()})

    return _Codec(
        read, f"{cls.__name__}({', '.join(f'{name}: {codec.shape}' for name, codec in codecs.items())})"
    )


# Snapshots kept beside the events, so that a long run is taken up quickly. The log is the truth: without them
# it is only slower.

Read = Callable[[str, Iterable[object]], list[tuple[Any, ...]]]
"""Runs a query."""

KEPT = 3
"""How many snapshots of a run are kept: the newest, so the last one before an end too."""

# The event must be there, and be the one that the snapshot was made behind: it may have been refused, or
# another process's decision may stand in its place.
SAVE = """
INSERT OR IGNORE INTO checkpoints(run_id, seq, reason, form, state, created_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM events WHERE run_id = ?1 AND seq = ?2 AND eid = ?7);
DELETE FROM checkpoints WHERE run_id = ?1 AND seq NOT IN (SELECT seq FROM checkpoints WHERE run_id = ?1 \
ORDER BY seq DESC LIMIT ?2)
"""

_SELECT = """
SELECT run_id, seq, reason, form, state, checkpoints.created_at, eid FROM checkpoints JOIN events USING \
(run_id, seq)
WHERE run_id = ? AND seq <= ? ORDER BY seq DESC
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A stored snapshot."""

    run_id: str
    """The run that made it: of a fork it may be the parent."""
    seq: int
    """The last event in it; `Lab.fork` goes on from there."""
    reason: str
    """`cycles`, `interrupt` or `error`."""
    form: str
    state: bytes
    created_at: float
    eid: str
    """Of that event."""

    @property
    def current(self) -> bool:
        """Whether this version can read it."""
        return self.form == snapshot_format()

    def restored(self) -> RunState:
        """The state; raises `DamagedSnapshot` when the bytes are not those that were written for that
        event.
        """
        return restore_state(self.state, run=self.run_id, seq=self.seq, eid=self.eid)

    @property
    def usable(self) -> str:
        """`yes`, `older form` or `damaged`."""
        if not self.current:
            return "older form"
        try:
            self.restored()
        except DamagedSnapshot:
            return "damaged"
        return "yes"


def read_snapshots(read: Read, lineage: Iterable[tuple[str, int]]) -> Iterable[Checkpoint]:
    """The snapshots of a run, the newest first, then those that it shares with the runs it was forked
    from.
    """
    for run_id, last in reversed(list(lineage)):
        for row in read(_SELECT, (run_id, last)):
            owner, seq, reason, named, state, created_at, eid = row
            yield Checkpoint(
                run_id=owner, seq=seq, reason=reason, form=named, state=state, created_at=created_at, eid=eid
            )


def newest_state(checkpoints: Iterable[Checkpoint]) -> RunState:
    """The state in the first snapshot that can be used, or that of a run without events.

    One of another version is passed over; a damaged one too, with a warning that names it.
    """
    for checkpoint in checkpoints:
        if not checkpoint.current:
            continue
        try:
            return checkpoint.restored()
        except DamagedSnapshot as error:
            # A damaged checkpoint costs time only: the state is folded from the events again.
            text = (
                f"the checkpoint of run {checkpoint.run_id} at event {checkpoint.seq} is damaged "
                f"({error}) and not used: the log is read"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=3)
    return RunState()
