"""What the calls of a run are evidence for: only what they answered.

A call that asked for a file, a page or a search and got nothing shows nothing of it, however it ended: it
failed, was denied, has an unknown outcome, answered nothing, or said in its answer that nothing is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kestrel_lab.core.events.actions import exit_code_in
from kestrel_lab.core.events.tool_kinds import command_line, tool_kind
from kestrel_lab.core.json_types import FrozenStruct, Json
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.shell_syntax.effects import line_effects

_NOTHING: Final = re.compile(
    r"\b(?:no such|(?:is |was |were )?not (?:found|exist|read|available|accessible|in)"
    r"|(?:does|do|did)(?:n['’]t| not) (?:exist|match)"
    r"|(?:can|could)(?:n['’]t|not| not) (?:be |access|open|find|read|stat|load|get|locate)|unable to"
    r"|no (?:match(?:es)?|results?|files?|entr(?:y|ies)|hits?|documents?|pages?|items?|data)"
    r"|nothing (?:was |is )?(?:found|there|matched)|(?:found|has|have) nothing"
    r"|0 (?:match(?:es)?|results?|files?|hits?|lines?)|enoent|eacces|failed to|timed out"
    r"|(?:permission|access) (?:is |was )?denied|forbidden|unauthori[sz]ed|missing"
    r"|(?:http )?(?:status )?(?:code )?(?:404|403|410)|is (?:unknown|empty|a directory)|error)\b",
    re.IGNORECASE,
)
"""Words of an answer which say that what was asked for is not there."""
_SHORT_ANSWER: Final = 3
"""Lines of an answer that as a whole may say that nothing is there."""
_SCAFFOLD: Final = re.compile(
    r"^(?:exit_code|truncated|seconds):.*$|^(?:stdout|stderr):[ \t]*$|^\(?(?:no|empty) output\)?$",
    re.MULTILINE,
)
"""Lines that a command's answer has beside what the command printed."""
_BESIDE: Final = frozenset({"exit_code", "truncated", "seconds", "status", "code", "ok", "success"})
"""Fields of an answer in JSON that are not what was asked for."""
_VERDICTS: Final = frozenset({"ok", "success", "found", "exists"})
"""Fields of an answer in JSON which say whether anything was there."""
_EMPTY: Final = frozenset({"null", "none", "false", "[]", "{}", '""', "''", "0", "undefined", "nan"})
_NAMING: Final = re.compile(r"path|file|name|uri|url|document|notebook", re.IGNORECASE)
"""Arguments that name what a call is about."""
_MOST_READ: Final = 200_000
"""Characters of an answer that are looked through."""


class AnsweredCall(FrozenStruct, frozen=True, kw_only=True):
    """A tool call of the run that was answered."""

    call: str
    tool: str
    args: Mapping[str, Json]
    ok: bool
    text: str
    """What it answered, or its error."""
    denied: str = ""
    """Who denied it; empty for a call that was made."""

    @property
    def content(self) -> tuple[str, ...]:
        """The lines of its answer that say something; empty for a call that failed."""
        return content_of(self.text, self.args) if self.ok else ()

    @property
    def is_empty(self) -> bool:
        """True if it answered nothing, or only that nothing is there."""
        content = self.content
        return not content or (
            len(content) <= _SHORT_ANSWER and all(says_nothing_is_there(line) for line in content)
        )


def content_of(answer: str, args: Mapping[str, Json] = MappingProxyType({})) -> tuple[str, ...]:
    """Return the lines of a call's answer that say something beside how the call ended and what it was
    called with.
    """
    text = answer[:_MOST_READ].strip()
    if text[:1] in ("{", "["):
        try:
            return tuple(_leaves(json.loads(text), texts_in(args)))
        except (ValueError, RecursionError):
            # Not JSON, or cut short: it is read as lines.
            pass
    lines = [line.strip() for line in split_lines(_SCAFFOLD.sub("", text))]
    return tuple(line for line in lines if line and line.lower() not in _EMPTY)


def says_nothing_is_there(line: str) -> bool:
    """Return whether a line of an answer says that what was asked for is not there."""
    return _NOTHING.search(line) is not None


def _leaves(value: Any, arguments: Sequence[str], key: str = "") -> Iterator[str]:
    """Yield what an answer in JSON says, without its verdicts, its empty values and repeated arguments."""
    if isinstance(value, dict):
        if not any(value.get(verdict) is False for verdict in _VERDICTS):
            for name in value.keys() - _BESIDE:
                yield from _leaves(value[name], arguments, name)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, arguments, key)
    elif isinstance(value, str):
        repeated = any(value in argument for argument in arguments)
        lines = [] if repeated else [line.strip() for line in split_lines(value)]
        yield from (f"{key}: {line}" for line in lines if line and line.lower() not in _EMPTY)
    elif value:
        yield f"{key}: {value}"


def texts_in(value: Json | Mapping[str, Json]) -> list[str]:
    """Return every text in the arguments of a call."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in texts_in(part)]
    return [text for part in value for text in texts_in(part)] if isinstance(value, list | tuple) else []


def asks_for(call: AnsweredCall, name: re.Pattern[str]) -> bool:
    """Return whether the arguments of a call name a file or page."""
    return any(name.search(text) is not None for text in texts_in(call.args))


def answered_for(call: AnsweredCall, name: re.Pattern[str]) -> bool:
    """Return whether a call that asked for a file or page got it, changed it, or found it."""
    if not call.ok or not asks_for(call, name):
        return False
    kind, content = tool_kind(call.tool, call.args), call.content
    naming = [line for line in content if name.search(line) is not None]
    if any(says_nothing_is_there(line) for line in naming):
        return False
    command = command_line(call.tool, call.args)
    if command is not None:
        changes = "files" in line_effects(command)
        return exit_code_in(call.text) in (0, None) and (changes or not call.is_empty)
    if kind == "edit":
        return True
    if call.is_empty:
        return False
    return bool(naming) or _is_all_about(call, name, kind)


def _is_all_about(call: AnsweredCall, name: re.Pattern[str], kind: str) -> bool:
    """Return whether a file or page is the only thing that a call is about, so that its answer is of that."""
    for key, value in call.args.items():
        texts = texts_in(value)
        if any(name.search(text) is not None for text in texts):
            # A pattern or a query only looks for it.
            return len(texts) == 1 and (kind != "search" or _NAMING.search(key) is not None)
    return False


def outcome_of(call: AnsweredCall) -> str:
    """Return what became of a call that shows nothing, in words."""
    if call.denied:
        return f"was {call.denied}"
    return "answered nothing" if call.ok else "failed"
