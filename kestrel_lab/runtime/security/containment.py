"""Untrusted input, private data and an effect: where all three meet in a call, a person decides, whatever the
policy allows.

A model that has read what others wrote is taken to obey it. What that leaves it to do by itself is what harms
nobody: reading, asking services at fixed addresses, asking an address that the user named, and new plain
files as long as nothing private was read. Text has no authority: only a decision in the log lets such a call
pass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Literal, cast

from kestrel_lab.core.calls import Call
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.events.union import Event, RunStarted, ToolAnswered
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.permissions.policy import Rules, no_rules
from kestrel_lab.runtime.security.argument_texts import texts_in
from kestrel_lab.runtime.security.authority import is_authorised, is_like_allowed
from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Tool


@dataclass(slots=True)
class TaintLog:
    """The taint of one run, folded when it is first needed and kept up to date from then on.

    Until then it costs a list of references to events.
    """

    earlier: Callable[[], Iterable[Event]]
    """The events before the session took the run up."""
    taint: Taint
    _later: list[Event] | None = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Take one event in."""
        if self._later is None:
            self.taint.apply(event)
        else:
            self._later.append(event)

    def answers_hold(self, sought: Callable[[str], bool]) -> bool:
        """Return true if an answer of a tool, or the start of the run, may contain `sought`; does not fold
        the taint.
        """
        if self._later is None:
            return any(sought(passage.text) for passage in self.taint.passages)
        for event in (*self.earlier(), *self._later):
            if (
                sought(event.text)
                if isinstance(event, ToolAnswered)
                else isinstance(event, RunStarted) and (event.earlier or event.guidance)
            ):
                return True
        return False

    def now(self) -> Taint:
        """The taint so far."""
        if self._later is not None:
            later, self._later = self._later, None
            for event in (*self.earlier(), *later):
                self.taint.apply(event)
        return self.taint


Containment = Literal["on", "strict", "off"]
MODES: Final = ("on", "strict", "off")
OFF: Final = (
    "containment is off: what others wrote may make this run write, send and delete without anybody "
    "being asked"
)
"""Note shown in a run without containment."""
_EFFECTS = {
    "workspace": "it changes files of the workspace",
    "address": "it asks an address that you did not name",
    "others": "it sends something out, or changes something elsewhere",
    "anything": "it can reach beyond the workspace",
}
_SENDS = "it tells a service what it asks for"
_DOUBTED = "nobody has said whether it reaches others"
_STANDING = "what it may do in your name"
_FILES = "the files that are there"
_SHOWN = 5
_PLAIN = frozenset({".md", ".txt", ".rst", ".csv", ".tsv", ".jsonl", ".log"})
_OBEYED = re.compile(
    r"(?i)(requirements|constraints|cmakelists|agents|claude|gemini|skill|copilot|readme|robots|conventions)"
)
"""Names of plain files that programs or agents act on."""


def read_mode(text: str) -> Containment:
    """Return `on`, `strict` (files of the workspace are untrusted) or `off`; raises `UsageError` for other
    texts.
    """
    word = {"true": "on", "false": "off"}.get(text.strip().lower(), text.strip().lower())
    if word not in MODES:
        raise UsageError(f"unknown containment {text!r}; {did_you_mean(word, MODES)} ({', '.join(MODES)})")
    return cast("Containment", word)


def contained_flows(
    call: Call,
    tool: Tool,
    flow: TaintLog,
    workspace: Workspace,
    carried: Sequence[str] = (),
    *,
    rules: Rules = no_rules,
) -> dict[str, Json]:
    """Return what met in `call`, as `{untrusted, private, effect}`; empty if it need not be asked about.

    `carried` names the sources of private text in its arguments; `rules` are those of the run.
    """
    reach = tool.flow.at(call.sandbox).reaches
    doubted = "reaches" in tool.unsaid
    if reach == "nothing" and not tool.asks and not doubted:
        return {}
    taint = flow.now()
    if doubted and (reaches := taint.said_of.get((tool.name, "reaches"))) is not None:
        doubted, reach = False, "others" if reaches else reach
    context = taint.context(call)
    if not context.untrusted or (reach == "nothing" and not tool.asks and not doubted) or taint.allows(call):
        return {}
    private = list(context.private)
    if tool.unsaid and context.doubted == {tool.name} and context.private_tools <= {tool.name}:
        # It is asked again what it answered: of one tool alone nothing is known to have met.
        return {}
    match "others" if doubted else reach:
        case "nothing":
            # What it sends counts, not what is known.
            private = private if taint.strict and not _in_users_words(call, taint) else list(carried)
        case "address":
            if taint.named_by_user(call.args) or is_like_allowed(call, tool, taint, reads=True):
                return {}
        case "workspace":
            private += [] if _new_and_plain(call, tool, workspace) else [_FILES]
        case _:
            private.append(_STANDING)
    if not private or (reach not in {"nothing", "address"} and is_authorised(call, tool, taint, rules(call))):
        return {}
    return {
        "untrusted": _shorten_list(context.untrusted),
        "private": _shorten_list(private),
        "effect": _DOUBTED if doubted else _EFFECTS.get(reach, _SENDS),
    }


def undeclared_questions(call: Call, tool: Tool, flow: TaintLog) -> list[tuple[str, str]]:
    """Return the tools and questions whose answers decide whether a contained call needs approval."""
    taint = flow.now()
    asked = [(tool.name, "reaches")] if "reaches" in tool.unsaid else []
    context = taint.context(call)
    # In the order of their coming.
    if "" not in context.doubted:
        asked += [
            (name, "reads")
            for name in dict.fromkeys(taint.doubts.get(source, "") for source in context.untrusted)
        ]
    return [one for one in asked if one not in taint.put]


def sends_arguments(call: Call, tool: Tool) -> bool:
    """Return true if a reading call sends its arguments to others."""
    return tool.flow.at(call.sandbox).reaches in {"nothing", "address"} and (
        tool.asks or tool.flow.reaches == "address"
    )


def _in_users_words(call: Call, taint: Taint) -> bool:
    """Return true if the call uses the user's own words."""
    said = {word.casefold() for word in taint.said}
    return all(word.casefold() in said for _, text in texts_in(dict(call.args)) for word in text.split())


def why_denied(found: dict[str, Json]) -> str:
    """Return the reason for a denial without an approver: what met, and what to do about it."""
    untrusted, private = (", ".join(cast("list[str]", found[key])) for key in ("untrusted", "private"))
    return (
        f"three things met that only a person may allow together: untrusted input ({untrusted}), "
        f"private data ({private}), and an effect "
        f"({found['effect']}); nobody is here to be asked. Run it where somebody can answer, keep what "
        "others wrote in a step "
        "of its own, say what your tools read and reach (@tool(reads=…, reaches=…)), or set containment = off"
    )


def _new_and_plain(call: Call, tool: Tool, workspace: Workspace) -> bool:
    """Return true if the call only creates a new file of a kind that is neither executed nor acted on."""
    path = call.args.get("path")
    if not isinstance(path, str) or tool.sandbox is not None:
        return False
    try:
        place = PurePosixPath(workspace.relative(path))
    except (OSError, ValueError):
        return False  # the tool refuses it
    hidden = any(part.startswith(".") for part in place.parts)
    plain = place.suffix.lower() in _PLAIN and not _OBEYED.match(place.name)
    return plain and not hidden and not os.path.lexists(workspace.root / place)


def _shorten_list(names: tuple[str, ...] | list[str]) -> list[Json]:
    shown: list[Json] = [one_line(name, 160) for name in dict.fromkeys(names)]
    return shown if len(shown) <= _SHOWN else [*shown[: _SHOWN - 1], f"and {len(shown) - _SHOWN + 1} more"]
