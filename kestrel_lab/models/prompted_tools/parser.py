"""Parsing of prompted tool calls: a model's text is a tool call, an answer, or plain text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json, dumps, values_in
from kestrel_lab.core.messages import ThinkingDelta, ToolRequest
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kestrel_lab.core.protocols import OnDelta

_OPENING = re.compile(r'\s*\{\s*(?:"thought"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"answer"\s*:\s*"', re.DOTALL)
# Runs of characters and escapes that are complete: the first half of a surrogate pair waits for the second one.
_COMPLETE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*', re.DOTALL
)
_CUT_OFF = re.compile(r'\{\s*(?:"thought"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"tool"\s*:\s*"([^"]+)"', re.DOTALL)


_WORD = r"(?:tool|action|function|invoke)(?:[ _-]?(?:calls?|use|name|input))?"
_ARGUMENTS = ("arguments", "args", "parameters", "action_input")
_ATTEMPT = re.compile(
    rf"""^[\s>*_#`-]*{_WORD}\s*\d*\s*[*_`]*:  # Action: look
    |["'](?:{_WORD}|arguments)["']\s*:            # {{'tool': 'look'
    |<\s*[|/]?\s*(?:\w+:)?{_WORD}\b|\[{_WORD}\]   # <tool_call>, <|tool_call|>, [TOOL_CALLS]""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
"""Common other notations of tool calls: a line, a key or a tag with the word tool, action or function."""


def read_said(said: str, *, tools: Sequence[str], call_id: str) -> tuple[str, tuple[ToolRequest, ...]]:
    """Return the text and the tool call in `said`.

    A call with arguments that cannot be parsed has a problem, and so has text that looks like a call in another notation;
    the text stands beside it and is not an answer. Other plain text is the answer.
    """
    for found in values_in(said):
        if not isinstance(found, dict):
            continue
        if (name := _tool_name(found, tools)) is not None:
            thought = found.get("thought")
            return thought if isinstance(thought, str) else "", (_request(found, name, call_id),)
        if "answer" in found:
            answer = found["answer"]
            return answer if isinstance(answer, str) else dumps(answer), ()
    if cut := _CUT_OFF.search(said):
        problem = f"the call of {cut[1]!r} was cut off before its arguments ended: {one_line(said, 200)}"
        return "", (ToolRequest(id=call_id, name=cut[1], problem=problem),)
    if opening := _OPENING.match(said):
        complete = _COMPLETE.match(said, opening.end())
        return _decoded(complete[0]) if complete else "", ()
    named = [name for name in tools if re.search(rf"(?m)^[\s`>*-]*{re.escape(name)}\s*[(\[{{]", said)]
    if named or _ATTEMPT.search(said):
        meant = next((name for name in (*named, *tools) if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said)), UNREAD)
        return said.strip(), (ToolRequest(id=call_id, name=meant, problem=_FORM),)
    return said.strip(), ()


UNREAD = "reply"
"""The name of the tool where it cannot be determined."""
_FORM = 'what you said is neither a call that can be read nor an answer; say just {"tool": "<tool>", "arguments": {…}} or {"answer": "<answer>"}'


def _tool_name(found: dict[str, Json], tools: Sequence[str]) -> str | None:
    """Return the tool that an object calls; some models were trained to write `name` or `action` instead of `tool`."""
    if isinstance(name := found.get("tool"), str):
        return name
    for word in ("name", "action"):
        if isinstance(name := found.get(word), str) and (name in tools or any(isinstance(found.get(args), dict) for args in _ARGUMENTS)):
            return name
    return None


def _request(found: dict[str, Json], name: str, call_id: str) -> ToolRequest:
    for word in _ARGUMENTS:
        if isinstance(args := found.get(word), dict):
            return ToolRequest(id=call_id, name=name, args=args)
        if args is not None:
            problem = f"the arguments of {name!r} must be a JSON object, not {one_line(dumps(args), 200)}"
            return ToolRequest(id=call_id, name=name, problem=problem)
    return ToolRequest(id=call_id, name=name)


def _decoded(piece: str) -> str:
    return str(json.loads(f'"{piece}"', strict=False))


class AnswerText:
    """Streams the text of a `{"answer": "…"}` while it comes in; tool calls and other forms are not streamed."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._said = ""
        self._at: int | None = None
        self._shown = ""

    def add(self, piece: str) -> None:
        """Add a piece of the model's output; reasoning is passed on as it is."""
        if isinstance(piece, ThinkingDelta):
            self._on_delta(piece)
            return
        self._said += piece
        if self._at is None and (opening := _OPENING.match(self._said)):
            self._at = opening.end()
        if self._at is None or (complete := _COMPLETE.match(self._said, self._at)) is None:
            return
        self._at = complete.end()
        self._show(_decoded(complete[0]))

    def finish(self, text: str) -> None:
        """Stream the rest of the final `text`."""
        if text.startswith(self._shown):
            self._show(text[len(self._shown) :])

    def _show(self, text: str) -> None:
        if text:
            self._shown += text
            self._on_delta(text)
