"""Cassettes: model calls recorded in a file, for replay without a model.

The file is JSON Lines, made to be read and kept in git. A line is a message, a list of tools, or a call,
which refers to its messages and tools by hash, so that a long conversation is written once. During recording
lines are only appended, each flushed to disk before the answer is passed on; when the last recording trial
ends they are sorted by content alone. An unfinished line of a killed process is skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, content_key, loads
from kestrel_lab.models.cassettes.scrub import map_texts

Mode = Literal["off", "record", "replay", "refresh"]
"""`record` calls a model only for missing answers, `replay` never, `refresh` always."""
_HASH: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTrial:
    """The trial of a recording: configuration and epoch. Answers of different trials are kept apart."""

    config: str = ""
    epoch: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """A recorded call and its answer."""

    take: RecordedTrial
    repeat: int
    """1 for the first such request of its take."""
    request: dict[str, Json]
    """`model`, `messages`, `tools`, `settings`."""
    answer: dict[str, Json]
    spelled: str = ""
    """Name by which the model was requested, if different."""
    unanswered: str = ""
    """Why there was no answer; such a call is recorded for error messages only."""

    @property
    def key(self) -> str:
        """A hash of the request."""
        return content_key(self.request)


_Place = tuple[str, RecordedTrial, int]


class Cassette:
    """The recordings in one file, which need not exist yet.

    Any number of threads and processes may record into one file at once.
    """

    def __init__(self, path: Path, scrub: Callable[[str], str] = str) -> None:
        """Read the file and apply `scrub` to its texts, so that patterns declared volatile later still match.

        Raises `UsageError` for a file that cannot be read or is not a cassette.
        """
        self.path = path
        self.clocks: dict[RecordedTrial, str] = {}
        """The time that each take was given, in ISO format."""
        self._scrub = scrub
        self._calls: dict[_Place, RecordedCall] = {}
        self._written: set[str] = set()
        self._lock = threading.Lock()
        self._inode = 0
        self._open = 0
        self._fresh: set[_Place] = set()
        self._renewed: set[RecordedTrial] = set()
        self._read()

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self._calls.values())

    def find(self, key: str, take: RecordedTrial, repeat: int) -> RecordedCall | None:
        """Return the recording of exactly this request."""
        return self._calls.get((key, take, repeat))

    def alike(self, key: str, take: RecordedTrial, repeat: int) -> RecordedCall | None:
        """Return the recording of this request, or one of another configuration."""
        if found := self.find(key, take, repeat):
            return found
        others = [
            one
            for (name, of, number), one in self._calls.items()
            if (name, of.epoch, number) == (key, take.epoch, repeat)
        ]
        return min(others, key=lambda one: one.take.config, default=None)

    def clock(self, take: RecordedTrial) -> str | None:
        """Return the time that the take was given, else that of the nearest one."""
        nearest = sorted(
            self.clocks, key=lambda of: (of != take, of.epoch != take.epoch, of.epoch, of.config)
        )
        return self.clocks[nearest[0]] if nearest else None

    def name_of(self, spelled: str, take: RecordedTrial) -> str:
        """Return the model that `spelled` stood for when the calls were recorded, or `spelled`."""
        found = [one for one in self if one.spelled == spelled]
        found.sort(key=lambda one: (one.take != take, one.take.config, one.take.epoch))
        return str(found[0].request["model"]) if found else spelled

    def add(self, recorded: RecordedCall) -> None:
        """Add a recording; it is on disk when this returns."""
        with self._lock:
            self._append(_lines(recorded))
            self._note(recorded)

    def tell(self, take: RecordedTrial, clock: str) -> None:
        """Record the time that a take is given."""
        with self._lock:
            self._append([_clock_line(take, clock)])
            self.clocks[take] = clock

    def begin(self) -> None:
        """Begin the recording of a trial."""
        with self._lock:
            self._open += 1

    def end(self, take: RecordedTrial | None = None) -> None:
        """End the recording of a trial; a re-recorded `take` loses the calls it no longer makes."""
        with self._lock:
            if take is not None:
                self._renewed.add(take)
            self._open -= 1
            if not self._open and (self._fresh or self._stale()):
                self._settle()

    def _stale(self) -> bool:
        return any(place[1] in self._renewed and place not in self._fresh for place in self._calls)

    def _note(self, recorded: RecordedCall) -> None:
        place = (recorded.key, recorded.take, recorded.repeat)
        self._calls[place] = recorded
        self._fresh.add(place)

    def _append(self, lines: list[dict[str, Json]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_exclusively(self.path.parent):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            fd = os.open(self.path, flags, 0o644)
            try:
                status = os.fstat(fd)
                # Sorted by another process, which may have removed lines.
                if status.st_ino != self._inode:
                    self._inode, self._written = status.st_ino, set()
                missing = [line for line in lines if line.get("hash") not in self._written]
                # A line that was cut off must not take the next one with it.
                begun = b"\n" if status.st_size and os.pread(fd, 1, status.st_size - 1) != b"\n" else b""
                whole = begun + "".join(map(_text, missing)).encode()
                while whole:
                    whole = whole[os.write(fd, whole) :]
                os.fsync(fd)
            finally:
                os.close(fd)
        self._written |= {str(line["hash"]) for line in lines if "hash" in line}

    def _read(self) -> None:
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                self._inode, content = os.fstat(file.fileno()).st_ino, file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"the cassette {self.path} cannot be read: {error.strerror or error}") from error
        self._calls, self.clocks, self._written = {}, {}, set()
        parts: dict[str, Json] = {}
        for number, text in enumerate(content.split("\n"), 1):
            if not text.strip():
                continue
            try:
                self._take_in(cast("dict[str, Any]", loads(text)), parts)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if _cut_off(text):  # of a killed process
                    continue
                msg = (
                    f"{self.path}:{number}: not a line of a cassette ({type(error).__name__}: "
                    f"{error}): restore the file, or remove it and record again"
                )
                raise UsageError(msg) from error

    def _take_in(self, line: dict[str, Any], parts: dict[str, Json]) -> None:
        if "clock" in line:
            self.clocks[_read_take(line)] = _read_clock(line["clock"])
        elif "call" in line:
            call = line["call"]
            request: dict[str, Json] = {
                "model": str(call["model"]),
                "messages": [parts[name] for name in call["messages"]],
                "tools": parts[call["tools"]] if call.get("tools") else [],
                "settings": dict(call.get("settings", {})),
            }
            recorded = RecordedCall(
                take=_read_take(line),
                repeat=int(line["repeat"]),
                request=request,
                answer=dict(line.get("answer", {})),
                spelled=str(call.get("spelled", call["model"])),
                unanswered=str(line.get("unanswered", "")),
            )
            self._calls[recorded.key, recorded.take, recorded.repeat] = recorded
        else:
            name = line["hash"]
            value = (
                line["tools"]
                if "tools" in line
                else {key: item for key, item in line.items() if key != "hash"}
            )
            parts[name] = map_texts(value, self._scrub)
            self._written.add(str(name))

    def _settle(self) -> None:
        """Sort the lines and remove outdated ones, atomically."""
        fresh, renewed = self._fresh, self._renewed
        with _lock_exclusively(self.path.parent):
            # Other processes may have added to it.
            self._read()
            for place in [place for place in self._calls if place[1] in renewed and place not in fresh]:
                del self._calls[place]
            _replace(self.path, self._whole())
        self._fresh, self._renewed = set(), set()

    def _whole(self) -> str:
        """Return the file's text, sorted by calls; each message precedes the first call that sends it."""
        written: set[str] = set()
        texts = [
            _text(_clock_line(take, self.clocks[take]))
            for take in sorted(self.clocks, key=lambda take: (take.config, take.epoch))
        ]
        for recorded in sorted(self, key=_order):
            for line in _lines(recorded):
                if "hash" not in line or line["hash"] not in written:
                    texts.append(_text(line))
                    written.add(str(line.get("hash")))
        self._written = written
        return "".join(texts)


def file_for(folder: Path, name: str) -> Path:
    """Return the file of the cassette `name`; different names never share a file."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "cassette"
    return folder / (f"{plain}.jsonl" if plain == name else f"{plain}-{content_key(name)[:8]}.jsonl")


def _order(recorded: RecordedCall) -> tuple[str, int, int, str, int]:
    return (
        recorded.take.config,
        recorded.take.epoch,
        len(cast("list[Json]", recorded.request["messages"])),
        recorded.key,
        recorded.repeat,
    )


def _lines(recorded: RecordedCall) -> list[dict[str, Json]]:
    request = recorded.request
    messages = cast("list[dict[str, Json]]", request["messages"])
    tools = request["tools"]
    call: dict[str, Json] = {"model": request["model"], "messages": [_hash(message) for message in messages]}
    lines: list[dict[str, Json]] = [{"hash": _hash(message), **message} for message in messages]
    if tools:
        lines.append({"hash": _hash(tools), "tools": tools})
        call["tools"] = _hash(tools)
    if request["settings"]:
        call["settings"] = request["settings"]
    if recorded.spelled != request["model"]:
        call["spelled"] = recorded.spelled
    take = recorded.take
    said: dict[str, Json] = (
        {"unanswered": recorded.unanswered} if recorded.unanswered else {"answer": recorded.answer}
    )
    return [
        *lines,
        {"config": take.config, "epoch": take.epoch, "repeat": recorded.repeat, "call": call, **said},
    ]


def _read_clock(text: object) -> str:
    """Return the time of a recording; raises `ValueError` without an offset from UTC."""
    if datetime.fromisoformat(str(text)).tzinfo is None:
        raise ValueError(f"the clock {text!r} has no offset from UTC")
    return str(text)


def _clock_line(take: RecordedTrial, clock: str) -> dict[str, Json]:
    return {"config": take.config, "epoch": take.epoch, "clock": clock}


def _read_take(line: dict[str, Any]) -> RecordedTrial:
    return RecordedTrial(config=str(line["config"]), epoch=int(line["epoch"]))


def _hash(value: Json) -> str:
    return content_key(value)[:_HASH]


def _text(line: dict[str, Json]) -> str:
    # The `dumps` of the package writes ASCII, and people read these files.
    import json

    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    # Some programs treat these characters as line ends; a lone surrogate is not UTF-8.
    return (
        text.replace("\x85", "\\u0085")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
        .encode("utf-8", "backslashreplace")
        .decode()
        + "\n"
    )


_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)')


def _cut_off(text: str) -> bool:
    """Return whether `text` is an unfinished line, and not an edited one."""
    if not text.startswith("{"):
        return False
    bare = _STRINGS.sub(lambda match: '""' if len(match[0]) > 1 and match[0].endswith('"') else "{", text)
    return bare.count("{") + bare.count("[") > bare.count("}") + bare.count("]")


@contextlib.contextmanager
def _lock_exclusively(folder: Path) -> Iterator[None]:
    """Exclude other threads and processes; the folder is locked, so that no lock file is left behind."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace(path: Path, text: str) -> None:
    fd, temporary = tempfile.mkstemp(prefix=".kestrel-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(text.encode())
            file.flush()
            os.fsync(fd)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
