"""The error for a request that is not on a cassette: its differences to the nearest recording."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import ndiff
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.models.cassettes.cassette import Cassette, Recorded

MAX_LINES: Final = 14
"""Lines of differences that are shown."""
_WIDTH: Final = 160
_LONGEST: Final = 400
"""Most lines of a message that are compared."""

_Request = dict[str, Any]


def explained(cassette: Cassette, wanted: Recorded, key: str, repeat: int) -> str:
    """Return why `wanted` is not on the cassette, its differences to the nearest recording, and what to do."""
    where = f"turn {1 + _turns(wanted.request)} with {wanted.request['model']}, cassette {Path(*cassette.path.parts[-3:])}"
    again = "Record what is missing (--cassette record), or everything anew (--cassette refresh)."
    known = list(cassette)
    if not known:
        there = "is not there" if not cassette.path.exists() else "holds no calls"
        return f"not recorded: the file {there} ({where}). {again}"
    same = [one for one in known if one.key == key]
    if failed := [one for one in same if one.unanswered and (one.take.epoch, one.repeat) == (wanted.take.epoch, repeat)]:
        return f"not recorded: when it was, this call failed: {failed[0].unanswered} ({where}). {again}"
    if same:
        return f"not recorded: {_other_tries(same, wanted, repeat)} ({where}). {again}"
    nearest = max(known, key=lambda one: _alikeness(one, wanted))
    lines = list(_differences(cast("_Request", nearest.request), cast("_Request", wanted.request)))
    more = [f"… and {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
    what_changed = [line for line in lines if line[:2] not in ("- ", "+ ")]
    first = f"not recorded: {one_line('; '.join(what_changed), 400)} ({where})"
    of = f"configuration {nearest.take.config!r}, epoch {nearest.take.epoch}" if nearest.take.config else "that run"
    what = f"Compared with the nearest recording ({of}, turn {1 + _turns(nearest.request)}; - recorded, + asked now):"
    return "\n".join([first, what, *lines[:MAX_LINES], *more, again])


def _other_tries(same: Sequence[Recorded], wanted: Recorded, repeat: int) -> str:
    epochs = sorted({one.take.epoch for one in same})
    if wanted.take.epoch not in epochs:
        told = ", ".join(map(str, epochs))
        return f"the same request was recorded in epoch {told}, and this is epoch {wanted.take.epoch}, which needs an answer of its own"
    most = max(one.repeat for one in same if one.take.epoch == wanted.take.epoch)
    return f"the same request was recorded {most} times in this trial, and is now made for the {repeat}. time"


def _turns(request: dict[str, Json]) -> int:
    return sum(message["role"] == "assistant" for message in cast("list[dict[str, Json]]", request["messages"]))


def _alikeness(one: Recorded, wanted: Recorded) -> tuple[bool, int, bool, bool, bool]:
    """Return the sort key of similarity: equal turn, equal messages, equal model, then the same trial."""
    ours, theirs = (cast("list[Json]", recorded.request["messages"]) for recorded in (wanted, one))
    equal = sum(mine == other for mine, other in zip(ours, theirs, strict=False))
    return (
        _turns(one.request) == _turns(wanted.request),
        equal - abs(len(ours) - len(theirs)),
        one.request["model"] == wanted.request["model"],
        one.take == wanted.take,
        one.request["tools"] == wanted.request["tools"],
    )


def _differences(old: _Request, new: _Request) -> Iterator[str]:
    """Yield the differences: model, settings, tools, messages."""
    if old["model"] != new["model"]:
        yield f"the model is {new['model']!r}, recorded was {old['model']!r}"
    for name in sorted({*old["settings"], *new["settings"]}):
        before, after = old["settings"].get(name), new["settings"].get(name)
        if before != after:
            yield f"the setting {name} is {_shown(after)}, recorded was {_shown(before)}"
    yield from _tools(old["tools"], new["tools"])
    yield from _messages(old["messages"], new["messages"])


def _tools(old: list[_Request], new: list[_Request]) -> Iterator[str]:
    before, after = ({tool["name"]: tool for tool in tools} for tools in (old, new))
    if added := [name for name in after if name not in before]:
        yield f"tools that were not offered: {', '.join(added)}"
    if gone := [name for name in before if name not in after]:
        yield f"tools that are not offered any more: {', '.join(gone)}"
    for name in (name for name in after if name in before and after[name] != before[name]):
        parts = [part for part in ("description", "schema") if after[name][part] != before[name][part]]
        yield f"the {' and '.join(parts)} of the tool {name} changed"
        for part in parts:
            yield from _lines(_text(before[name][part]), _text(after[name][part]))
    if list(before) != list(after) and set(before) == set(after):
        yield "the tools are offered in another order"


def _messages(old: list[_Request], new: list[_Request]) -> Iterator[str]:
    if len(old) != len(new):
        yield f"the conversation has {len(new)} messages, recorded were {len(old)}"
    for number, (before, after) in enumerate(zip(old, new, strict=False), 1):
        if before != after:
            who = after["role"] if after["role"] == before["role"] else f"{after['role']}, recorded was {before['role']}"
            yield f"message {number} ({who}{', ' + after['name'] if after.get('name') else ''}) changed"
            yield from _lines(before["text"], after["text"])
            if before.get("calls") != after.get("calls"):
                yield from _lines(_text(before.get("calls", [])), _text(after.get("calls", [])))
    for message in new[len(old) :]:
        yield f"+ {message['role']}: {one_line(message['text'] or _text(message.get('calls', [])), _WIDTH)}"


def _lines(old: str, new: str) -> Iterator[str]:
    before, after = (text.splitlines()[:_LONGEST] for text in (old, new))
    # The common beginning is removed first, as the time of the comparison grows with the square of the lines.
    start = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), min(len(before), len(after)))
    for line in ndiff(before[start : start + 60], after[start : start + 60]):
        if line.startswith(("- ", "+ ")):
            yield f"{line[:2]}{_around(line[2:], old if line[0] == '+' else new)}"


def _around(line: str, other: str) -> str:
    """Return the line; a long one from the place where it differs from `other`."""
    if len(line) <= _WIDTH:
        return one_line(line, _WIDTH)
    at = next((end for end in range(0, len(line), 40) if line[: end + 40] not in other), 0)
    return one_line(("…" if at else "") + line[max(0, at - 40) :], _WIDTH)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)


def _shown(value: Json) -> str:
    return "not given" if value is None else one_line(json.dumps(value, ensure_ascii=False), 80)
