"""Streams of chat completions as servers send them, made what clients take for granted.

A server may answer a request for a stream with a whole completion, an error, or a page of a proxy, all with
status 200; events may lack what the format has in each of them. Clients ignore lines that are no events, so
without this an error would look like a model that says nothing.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from kestrel_lab.core.json_types import Json, dumps, loads
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.models.litellm.cost import read_usage

_ODD_NUMBER: Final = re.compile(r"NaN|Infinity|\d[eE]\+?\d{3}|\d{400}")
_DONE: Final = "[DONE]"
_FIELDS: Final = frozenset({"event", "id", "retry", ""})
"""Of server-sent events, beside `data`; a line that begins with a colon is a comment."""
_MOST_KEPT: Final = 8_000_000
"""Characters of what is no event that are kept: it may be a whole completion."""
_HEAD: Final[dict[str, Json]] = {"id": "", "object": "chat.completion.chunk", "created": 0, "model": ""}
_KINDS: Final = {
    "rate_limit": 429,
    "insufficient_quota": 429,
    "overloaded": 529,
    "server_error": 500,
    "invalid_request": 400,
    "authentication": 401,
    "permission": 403,
    "not_found": 404,
}
"""Words of the types and codes of errors, with the status that says the same."""


def _finite_number(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _readable_integer(digits: str) -> int | None:
    return int(digits) if len(digits) < 400 else None


_LENIENT: Final = json.JSONDecoder(
    strict=False, parse_constant=lambda _: None, parse_float=_finite_number, parse_int=_readable_integer
)


class StreamError(Exception):
    """What a server sent in place of a stream, or in it, is an error."""

    def __init__(
        self, message: str, *, status: int | None = None, kind: str = "", passes: bool = False
    ) -> None:
        super().__init__(message)
        self.status_code, self.type, self.passes = status, kind, passes


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of bytes that come in pieces; what is not UTF-8 is replaced."""
    decoder, left = codecs.getincrementaldecoder("utf-8")("replace"), ""
    async for piece in pieces:
        *whole, left = (left + decoder.decode(piece)).split("\n")
        for line in whole:
            for part in line.removesuffix("\r").split("\r"):
                yield part
    for part in (left + decoder.decode(b"", final=True)).split("\r"):
        yield part


async def repaired_events(
    lines: AsyncIterator[str], what: str = "", on_usage: Callable[[Any], None] | None = None
) -> AsyncIterator[str]:
    """Yield the chunks of a stream as JSON texts in the form that clients read; raises `StreamError` for what
    is none.

    `what` is the content type of the response, for the message. `on_usage` is called with each usage as it
    was sent.
    """
    reader, came = _Reader(on_usage), False
    async for line in lines:
        for text in reader.take(line):
            # The reader stops there.
            if text == _DONE and not came:
                raise reader.nothing(what)
            came = True
            yield text
    for text in reader.end():
        came = True
        yield text
    if not came:
        raise reader.nothing(what)


class _Reader:
    """Reads the lines of one response."""

    def __init__(self, on_usage: Callable[[Any], None] | None) -> None:
        self._on_usage = on_usage
        self._data: list[str] = []
        self._kept: list[str] = []
        self._chars = 0
        self._event = ""
        self._first = True

    def take(self, line: str) -> list[str]:
        """Return what is complete with this line."""
        if self._first:
            line, self._first = line.removeprefix("\ufeff"), False
        if not line.strip():
            return self._flush()
        name, colon, value = line.partition(":")
        if name == "data" and colon:
            # A server that leaves no blank line between events.
            if self._data and _parsed("\n".join(self._data)) is not None:
                return [*self._flush(), *self._with(value)]
            return self._with(value)
        if colon and name in _FIELDS:
            self._event = value.strip() if name == "event" else self._event
            return []
        found = _parsed(line)
        # An event without its field name, or a whole answer.
        if isinstance(found, dict | list):
            return [*self._flush(), *self._chunk(line, found)]
        self._keep(line)
        return []

    def end(self) -> list[str]:
        """Return what is complete with the end of the response."""
        last = self._flush()
        found = _parsed("\n".join(self._kept)) if self._kept else None
        if isinstance(found, dict | list):
            self._kept.clear()
            last += self._chunk("", found)
        return last

    def nothing(self, what: str) -> StreamError:
        """Return the error of a response without a single chunk."""
        if said := one_line("\n".join(self._kept), 300):
            return StreamError(f"the answer is no stream{f' but {what}' if what else ''}: {said}")
        return StreamError("the stream ended without an answer", passes=True)

    def _with(self, value: str) -> list[str]:
        if not self._data and value.strip() == _DONE:
            return [_DONE]
        self._data.append(value.removeprefix(" "))
        return []

    def _flush(self) -> list[str]:
        if not self._data:
            self._event = ""
            return []
        text, event = "\n".join(self._data), self._event
        self._data.clear()
        self._event = ""
        found = _parsed(text)
        if event == "error":
            raise _error(found if found is not None else text)
        if not isinstance(found, dict | list):
            self._keep(text)
            return []
        return self._chunk(text, found)

    def _chunk(self, text: str, found: dict[str, Any] | list[Any]) -> list[str]:
        """Return a chunk, as `text` where nothing is to be changed."""
        if isinstance(found, list):
            found = next((one for one in found if isinstance(one, dict)), {})
        if found.get("error"):
            raise _error(found["error"])
        if not isinstance(found.get("choices"), list) and not isinstance(found.get("usage"), dict):
            self._keep(text or dumps(found))
            return []
        if self._on_usage is not None and (usage := found.get("usage")) is not None:
            self._on_usage(usage)
        chunk = repaired_chunk(found)
        unchanged = chunk is found and text and "\n" not in text and not _ODD_NUMBER.search(text)
        return [text if unchanged else dumps(chunk)]

    def _keep(self, text: str) -> None:
        if self._chars < _MOST_KEPT:
            self._kept.append(text)
            self._chars += len(text)


def _parsed(text: str) -> Json:
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        return loads(text)
    except ValueError:
        pass
    try:
        # A number that is none, somewhere in what a server sends, costs that number only.
        return cast("Json", _LENIENT.decode(text))
    except (ValueError, RecursionError):
        return None


def _error(said: Any) -> StreamError:
    """Return an error of the format, whatever its form."""
    if not isinstance(said, dict):
        return StreamError(one_line(said if isinstance(said, str) else dumps(said), 400))
    inner = said.get("error")
    if isinstance(inner, dict | str) and inner:
        return _error(inner)
    message = said.get("message") or said.get("detail") or said.get("msg")
    kind = " ".join(str(said[key]) for key in ("type", "code", "status") if said.get(key))
    numbers = [int(word) for word in kind.split() if word.isdecimal() and 400 <= int(word) < 600]
    status = next(
        iter(numbers), next((status for word, status in _KINDS.items() if word in kind.lower()), None)
    )
    name = str(said.get("code") or said.get("type") or "")
    return StreamError(
        message if isinstance(message, str) and message else dumps(said), status=status, kind=name
    )


def repaired_chunk(chunk: dict[str, Any]) -> dict[str, Any]:
    """Return a chunk, or a whole completion as one, with all that clients rely on; the same object where
    nothing lacks.
    """
    choices = chunk.get("choices")
    complete = [_choice(one) for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    usage = chunk.get("usage")
    repaired_usage = usage if usage is None or _is_usual(usage) else _usual_usage(usage)
    if complete == choices and _HEAD.keys() <= chunk.keys() and repaired_usage is usage:
        return chunk
    whole = {**_HEAD, **chunk, "object": _HEAD["object"], "choices": complete}
    return {**whole, "usage": repaired_usage} if "usage" in chunk else whole


_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")


def _is_usual(usage: Any) -> bool:
    return isinstance(usage, dict) and all(type(usage.get(name)) is int for name in _COUNTS)


def _usual_usage(usage: Any) -> dict[str, Any] | None:
    """Return the numbers of a usage in the names of the format, as far as they are whole."""
    reported = read_usage(usage)
    if reported is None:
        return None
    read, written = reported.parts(0)
    counts = (read, written, read + written)
    details = {name: part for name, part in usage.items() if isinstance(part, dict)}
    return {**details, **dict(zip(_COUNTS, counts, strict=True))}


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        message = choice.get("message")
        delta = message if isinstance(message, dict) else {}
    content = delta.get("content")
    if content is not None and not isinstance(content, str | list):
        delta = {**delta, "content": dumps(content)}
    calls, one = delta.get("tool_calls"), delta.get("function_call")
    given = [calls] if isinstance(calls, dict) else calls if isinstance(calls, list) else []
    # The format before there were several.
    if isinstance(one, dict):
        given = [*given, {"type": "function", "function": one}]
    complete = [_call(call, place, len(given)) for place, call in enumerate(given) if isinstance(call, dict)]
    if complete != (calls or []):
        delta = {
            **{key: part for key, part in delta.items() if key != "function_call"},
            "tool_calls": complete,
        }
    end = "tool_calls" if choice.get("finish_reason") == "function_call" else choice.get("finish_reason")
    if delta is choice.get("delta") and end == choice.get("finish_reason") and "finish_reason" in choice:
        return choice
    return {
        **{key: part for key, part in choice.items() if key != "message"},
        "delta": delta,
        "finish_reason": end,
    }


def _call(call: dict[str, Any], place: int, of: int) -> dict[str, Any]:
    given = call.get("function")
    function: dict[str, Any] = given if isinstance(given, dict) else {}
    if not isinstance(function.get("name", ""), str | None):
        function = {**function, "name": str(function["name"])}
    args = function.get("arguments")
    if args is not None and not isinstance(args, str):
        function = {**function, "arguments": dumps(args)}
    index = call.get("index")
    complete = {} if isinstance(index, int) or of == 1 else {"index": place}
    return call if function is given and not complete else {**call, "function": function, **complete}
