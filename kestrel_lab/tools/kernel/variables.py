"""Variables of a kernel: their description in a few hundred characters, which of them code can reach, and what changed."""

from __future__ import annotations

import ast
import builtins
import marshal
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from reprlib import Repr
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal, cast

from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.kernel.values import Buffers, NotPlain, encode_value

MOST_HASHED = 512 * 1024**2
"""Bytes of one value that are compared whole; of a larger one, and of columns of objects, a sample."""
_SAMPLE = 20_000
_BLOCK, _SUMMED = 4_096, 1 << 20
_DEEP = 3
_MANY = 1_000
_OWN = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open", "display"})
_ANYTHING = frozenset(
    {"eval", "exec", "globals", "locals", "vars", "get_ipython", "setattr", "delattr", "__import__", "gc", "inspect", "sys"}
)
"""Names by which code can reach variables that it does not name."""

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 200
_REPR.maxlist = _REPR.maxtuple = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = 8


def user_variables(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a user: no modules, nothing that begins with `_`, nothing of IPython's own."""
    return {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_") and name not in _OWN and not isinstance(value, ModuleType) and name.isidentifier()
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
    """Describe `value`; nothing in it is changed, and no more than a small part of it is quoted."""
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        columns = tuple((str(name), str(kind)) for name, kind in zip(value.columns, value.dtypes, strict=True))
        text = f"{value.shape[0]:,} rows × {value.shape[1]:,} columns"
        missing = _count_missing(value)
        return Description(type="DataFrame", text=text, rows=len(value), columns=columns, missing=missing)
    if pandas is not None and isinstance(value, pandas.Series):
        text = f"{len(value):,} values of {value.dtype}"
        return Description(type="Series", text=text, rows=len(value), missing=int(value.isna().sum()))
    if numpy is not None and isinstance(value, numpy.ndarray):
        size = " × ".join(f"{side:,}" for side in value.shape) or "one"
        return Description(type="ndarray", text=f"{size} of {value.dtype}")
    kind = type(value).__name__
    if isinstance(value, list | tuple | set | frozenset | dict) and len(value) > _REPR.maxlist:
        return Description(type=kind, text=f"{len(value):,} items: {short_repr(value)}")
    return Description(type=kind, text=short_repr(value))


def _count_missing(frame: Any) -> int:
    numpy = sys.modules["numpy"]
    if frame.shape[1] and (kind := _block_kind(frame)):
        return int(numpy.count_nonzero(numpy.isnan(frame.to_numpy()))) if kind in "fc" else 0
    return int(frame.isna().to_numpy().sum())


def _block_kind(frame: Any) -> str:
    """Return the kind of numpy's type that all columns of a frame have, which then lie in memory as one array; empty where there is none."""
    numpy = sys.modules["numpy"]
    kinds = set(frame.dtypes)
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    return str(kind.kind) if isinstance(kind, numpy.dtype) and kind.kind in "biufc" else ""


def short_repr(value: object) -> str:
    """Return the beginning of what `repr` says of a value, on one line."""
    try:
        return " ".join(_REPR.repr(value).split())[:300]
    except Exception as error:  # noqa: BLE001  # the boundary to a class of the user's
        return f"<{type(value).__name__}: its repr fails with {type(error).__name__}>"


# What code can reach.


def reachable_names(code: str, namespace: Mapping[str, Any]) -> set[str]:
    """Return the names of variables that Python code may read or change: those it names, and those that share something with these.

    All of them, where it can reach what it does not name: by `globals()`, by `exec`, by an object of a class of the user's.
    """
    known = user_variables(namespace)
    try:
        tree = compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError):
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
        if isinstance(value, FunctionType):
            todo += _names_in(value.__code__)
        elif type(value).__module__ == "__main__" or isinstance(value, type):
            return set(known)
        else:
            todo += _shared_with(value, known)
    return found


def _names_in(code: CodeType) -> list[str]:
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names_in(const)]
    return [*code.co_names, *inner]


def _shared_with(value: object, known: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of other variables that are `value`, lie in it, or share the memory of an array with it."""
    numpy = sys.modules.get("numpy")
    parts = {id(part) for part in _inner_values(value)}
    for name, other in known.items():
        if id(other) in parts or (
            numpy is not None
            and isinstance(value, numpy.ndarray)
            and isinstance(other, numpy.ndarray)
            and numpy.may_share_memory(value, other)
        ):
            yield name


def _inner_values(value: object, depth: int = 0) -> Iterator[object]:
    yield value
    if depth < _DEEP and isinstance(value, list | tuple | dict) and len(value) <= _MANY:
        for item in list(value.values() if isinstance(value, dict) else value):
            yield from _inner_values(item, depth + 1)


# Whether a value is still the same.


def value_fingerprint(value: object, depth: int = 0) -> int:
    """Return a number that changes when the content of `value` does; of very large values and of columns of objects it knows a sample."""
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _of_array(value)
    if pandas is not None and isinstance(value, pandas.DataFrame):
        parts = [
            _of_frame(value),
            value_fingerprint(value.index),
            value_fingerprint(value.columns),
            value_fingerprint(value.attrs, depth + 1),
        ]
        return hash((tuple(map(str, value.dtypes)), *parts))
    if pandas is not None and isinstance(value, pandas.RangeIndex):
        return hash((value.start, value.stop, value.step, str(value.name)))
    if pandas is not None and isinstance(value, pandas.Series | pandas.Index):
        index = value_fingerprint(value.index) if isinstance(value, pandas.Series) else 0
        return hash((str(value.dtype), str(getattr(value, "name", "")), index, _of_column(value.array)))
    try:
        return zlib.crc32(marshal.dumps(cast("Any", value), 2))
    except ValueError:  # not only plain values of Python
        return _of_object(value, depth)


def _of_array(array: Any) -> int:
    numpy = sys.modules["numpy"]
    head = (str(array.dtype), array.shape)
    if array.dtype == object:
        flat = array.ravel()
        sample = flat[:: max(1, len(flat) // _SAMPLE)]
        return hash((head, tuple(short_repr(item) for item in sample.tolist())))
    step = max(1, array.nbytes // MOST_HASHED)
    flat = array.T if array.flags.f_contiguous and not array.flags.c_contiguous else array
    flat = numpy.ascontiguousarray(flat).reshape(-1)[::step]
    return hash((head, _of_bytes(numpy.ascontiguousarray(flat).view(numpy.uint8)))) if flat.size else hash(head)


@cache
def _weights() -> Any:
    """Return random odd numbers, one for each word of a block, the same in every copy of this process."""
    numpy = sys.modules["numpy"]
    return numpy.random.default_rng(0).integers(1, 2**63, _BLOCK // 8, dtype=numpy.uint64) | numpy.uint64(1)


def _of_bytes(data: Any) -> int:
    """Hash an array of bytes: many by a weighted sum of the words of each block, which is five times as fast as a checksum of them."""
    numpy = sys.modules["numpy"]
    whole = len(data) // _BLOCK * _BLOCK
    if whole < _SUMMED:
        return zlib.crc32(data.data)
    sums = numpy.einsum("ij,j->i", data[:whole].view(numpy.uint64).reshape(-1, _BLOCK // 8), _weights())
    return hash((zlib.crc32(sums.data), zlib.crc32(data[whole:].data)))


def _of_frame(frame: Any) -> int:
    if _block_kind(frame):
        return _of_array(frame.to_numpy())
    return hash(tuple(_of_column(frame.iloc[:, place].array) for place in range(frame.shape[1])))


def _of_column(array: Any) -> int:
    pandas = sys.modules["pandas"]
    if type(array) is pandas.arrays.NumpyExtensionArray and array.dtype != object:
        return _of_array(array.to_numpy())
    step = max(1, len(array) // _SAMPLE)
    return hash((len(array), int(array.isna().sum()), tuple(map(str, array[::step].tolist()))))


def _of_object(value: object, depth: int) -> int:
    """Combine the attributes or items of an object, a few levels deep; what is below counts by its identity."""
    if depth >= _DEEP:
        return id(value)
    if isinstance(value, list | tuple | set | frozenset | dict) and len(value) <= _MANY:
        items: Iterable[Any] = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
        return hash(tuple(value_fingerprint(item, depth + 1) for item in items))
    state = getattr(value, "__dict__", None)
    if not isinstance(state, dict) or isinstance(value, type | FunctionType | ModuleType) or len(state) > _MANY:
        return id(value)
    return hash((id(type(value)), tuple((name, value_fingerprint(item, depth + 1)) for name, item in state.items())))


# What changed.

Kind = Literal["new", "changed", "deleted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A variable that is not what it was."""

    name: str
    kind: Kind
    text: str
    """In words: `1,200 → 1,188 rows · + column month`."""
    rebound: bool = False
    """The name stands for another object; otherwise its object was changed."""
    lost: str = ""
    """Why what it was cannot be restored; empty where it can be."""

    def as_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object."""
        return {"name": self.name, "kind": self.kind, "text": self.text, "rebound": self.rebound, "lost": self.lost}

    @property
    def line(self) -> str:
        """The change as a line for a person or a model."""
        return f"{self.name}: {self.text}" + (f" (cannot be undone: {self.lost})" if self.lost else "")


@dataclass(frozen=True, slots=True)
class Before:
    """The variables before code ran, with fingerprints of those that it can reach."""

    values: Mapping[str, Any]
    """The very objects, so that a name that stands for another one afterwards can have the old one back."""
    described: Mapping[str, Description]
    prints: Mapping[str, int]
    modules: frozenset[str]
    """Names of modules."""

    @classmethod
    def of(cls, code: str, namespace: Mapping[str, Any]) -> Before:
        """Look at the variables now."""
        names = reachable_names(code, namespace)
        values = user_variables(namespace)
        return cls(
            values,
            {name: describe_value(values[name]) for name in names},
            {name: value_fingerprint(values[name]) for name in names},
            frozenset(name for name, value in namespace.items() if isinstance(value, ModuleType)),
        )

    @property
    def key(self) -> str:
        """A key of what the code can reach: equal within one kernel for equal variables."""
        return f"{hash(tuple(sorted(self.prints.items()))) & (2**64 - 1):016x}"

    def changes(self, namespace: Mapping[str, Any]) -> list[Change]:
        """Return what is different now, by name."""
        now, found = user_variables(namespace), list[Change]()
        for name in sorted(now.keys() | self.values.keys()):
            if name not in self.values:
                found.append(
                    Change(name=name, kind="new", text=f"new {(made := describe_value(now[name])).type}, {made.text}", rebound=True)
                )
            elif name not in now:
                found.append(Change(name=name, kind="deleted", text=f"deleted ({self._was(name).type})", rebound=True))
            elif now[name] is not self.values[name]:
                found.append(
                    Change(name=name, kind="changed", text=value_difference(self._was(name), describe_value(now[name])), rebound=True)
                )
            elif name in self.prints and value_fingerprint(now[name]) != self.prints[name]:
                lost = not_plain(now[name])
                found.append(
                    Change(name=name, kind="changed", text=value_difference(self.described[name], describe_value(now[name])), lost=lost)
                )
        return found

    def _was(self, name: str) -> Description:
        return self.described.get(name) or describe_value(self.values[name])


def value_difference(was: Description, now: Description) -> str:
    """Say in a line how a value differs from what it was."""
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
    return " · ".join(parts) or "other values"


def _columns(was: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    for sign, names in (("+", [name for name in now if name not in was]), ("−", [name for name in was if name not in now])):
        if names:
            yield f"{sign} column{'s' if len(names) > 1 else ''} {', '.join(names[:6])}{' …' if len(names) > 6 else ''}"
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
    """Whether a variable of that name hides a function of Python."""
    return hasattr(builtins, name)
