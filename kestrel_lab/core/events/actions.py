"""What a run really did, folded from its log: files it changed, commands it ran, other calls that act, what
was denied or is unknown.

Nothing here reads prose. A call counts by what its tool declares: a pure call does nothing, and one that is
SAFE changes nothing of anybody's. A file counts as changed where the tool says so; of a command it is known
which files were touched while it ran, where somebody compared them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from kestrel_lab.core.events.tool_kinds import command_line, only_reads
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    CellsChanged,
    Event,
    KernelChanged,
    RunForked,
    RunStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.json_types import Json, readable
from kestrel_lab.core.sanitize import one_line, sanitize_text

Outcome = Literal["done", "failed", "denied", "unknown", "open"]
Kind = Literal["change", "command", "other"]
TYPES: Final = tuple(
    kind.type
    for kind in (ToolCalled, ToolAnswered, ApprovalAsked, ApprovalGiven, KernelChanged, CellsChanged)
)
"""The types of the events that are folded, beside those that say which tools are offered."""
_EXIT_CODE: Final = re.compile(r"\bexit_code\b[\"']?\s*[:=]\s*(-?\d+)")
_DIFF_LINE: Final = re.compile(r"^([+-])(?!\+\+ |-- )", re.MULTILINE)
_DIFF: Final = re.compile(r"^--- [^\n]*\n\+\+\+ [^\n]*\n@@.*", re.MULTILINE | re.DOTALL)
_SAID_LINES: Final = re.compile(r"\((\d+) lines?\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One call that acts, or that was meant to."""

    call: str
    tool: str
    args: Mapping[str, Json]
    outcome: Outcome
    kind: Kind = "other"
    files: tuple[str, ...] = ()
    """Files that it changed, as its tool says."""
    added: int | None = None
    """Lines added to files; `None` where the tool does not say."""
    removed: int | None = None
    exit_code: int | None = None
    """Of a command that ended."""
    output: str = ""
    """What the call answered, or its error."""
    touched: tuple[str, ...] | None = None
    """Files that were other ones when it ended; `None` where nobody compared them."""
    variables: tuple[str, ...] | None = None
    """Variables of a kernel that it changed; `None` where none were compared."""
    cells: bool = False
    """Whether it changed cells of a notebook."""
    sandbox: str = ""
    """The level that its commands were held in at."""
    reaches: str = ""
    """How far its tool reaches, as its author says; empty where nobody does."""

    def __str__(self) -> str:
        what = self.what
        if self.outcome == "denied":
            return f"denied: {what}"
        if self.outcome == "unknown":
            return f"outcome unknown: {what}"
        if self.outcome == "failed":
            return f"failed: {what}"
        if self.outcome == "open":
            return f"not finished: {what}"
        if self.kind == "command" and self.exit_code is not None:
            return f"{what}: exit code {self.exit_code}"
        return what

    @property
    def what(self) -> str:
        """The action without its outcome, in one line."""
        if self.kind == "command":
            return f"ran `{one_line(sanitize_text(str(self.args.get('command', ''))), 120)}`"
        if self.kind == "change":
            lines = "" if self.added is None else f" (+{self.added} \u2212{self.removed or 0} lines)"
            return f"changed {', '.join(map(sanitize_text, self.files))}{lines}"
        shown = ", ".join(f"{name}={one_line(readable(value), 60)}" for name, value in self.args.items())
        return f"called {sanitize_text(self.tool)}({one_line(sanitize_text(shown), 160)})"


@dataclass(slots=True)
class ActionLog:
    """Folds events into actions: feed it every event of a run, in order."""

    _calls: dict[str, ToolCalled] = field(default_factory=dict)
    _asked: dict[str, ApprovalAsked] = field(default_factory=dict)
    _ends: dict[str, ToolAnswered] = field(default_factory=dict)
    _denied: set[str] = field(default_factory=set)
    _order: dict[str, None] = field(default_factory=dict)
    _reaches: dict[str, str] = field(default_factory=dict)
    _variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _cells: set[str] = field(default_factory=set)
    _safe: set[str] = field(default_factory=set)
    """Tools that change nothing of anybody's, as their authors say."""

    def take(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, ToolCalled | ToolAnswered | ApprovalAsked | ApprovalGiven):
            self._order.setdefault(event.call)
        if isinstance(event, ToolCalled):
            self._calls[event.call] = event
        elif isinstance(event, ToolAnswered):
            self._ends[event.call] = event
            if event.error is not None and event.error.get("kind") == "denied":
                self._denied.add(event.call)
        elif isinstance(event, ApprovalAsked):
            self._asked[event.call] = event
        elif isinstance(event, ApprovalGiven):
            if event.granted:
                self._denied.discard(event.call)
            else:
                self._denied.add(event.call)
        else:
            self._take_effects(event)

    def _take_effects(self, event: Event) -> None:
        if isinstance(event, RunStarted | RunForked):
            # Of a tool that is SAFE it is supposed, as of all tools of a run that was recorded elsewhere: it
            # excludes nothing.
            self._safe |= {str(tool.get("name")) for tool in event.tools if tool.get("danger") == "SAFE"}
            self._reaches |= {
                str(tool.get("name")): str(tool.get("reaches") or "")
                for tool in event.tools
                if tool.get("danger") != "SAFE"
                and "reaches" not in cast("list[str]", tool.get("unsaid") or [])
            }
        elif isinstance(event, KernelChanged):
            names = tuple(str(change.get("name")) for change in event.changes)
            self._variables[event.call] = (*self._variables.get(event.call, ()), *names)
        elif isinstance(event, CellsChanged):
            self._cells.add(event.call)

    @property
    def actions(self) -> tuple[Action, ...]:
        """What was done so far, in the order in which it was begun or refused."""
        meant = (call for call in self._order if call in self._calls or self._was_refused(call))
        return tuple(action for call in meant if (action := self._action(call)) is not None)

    def _was_refused(self, call: str) -> bool:
        """Return whether a call that acts never began: it was denied, its tool does not exist, or its
        arguments were wrong.
        """
        if call in self._denied:
            return True
        end = self._ends.get(call)
        if end is None or end.error is None:
            return False
        return end.tool not in self._safe and not only_reads(end.tool)

    def _action(self, call: str) -> Action | None:
        begun, end, asked = self._calls.get(call), self._ends.get(call), self._asked.get(call)
        if begun is not None and (begun.effect == "pure" or begun.danger == "SAFE"):
            return None
        tool = (
            begun.tool
            if begun is not None
            else asked.tool
            if asked is not None
            else end.tool
            if end is not None
            else ""
        )
        args = begun.args if begun is not None else asked.args if asked is not None else {}
        text = "" if end is None else end.text if end.error is None else str(end.error.get("message", ""))
        files = tuple(end.changed) if end is not None else ()
        added, removed = _lines(text) if files else (None, None)
        command = command_line(tool, args)
        kind: Kind = "change" if files else "command" if command is not None else "other"
        if kind == "command":
            args = {**args, "command": command}
        return Action(
            call=call,
            tool=tool,
            args=args,
            outcome=self._outcome(call, end),
            kind=kind,
            files=files,
            added=added,
            removed=removed,
            exit_code=exit_code_in(text) if kind == "command" else None,
            output=text,
            touched=None if end is None or end.touched is None else tuple(end.touched),
            variables=self._variables.get(call),
            cells=call in self._cells,
            sandbox="" if begun is None else begun.sandbox,
            reaches=self._reaches.get(tool, ""),
        )

    def _outcome(self, call: str, end: ToolAnswered | None) -> Outcome:
        if call in self._denied:
            return "denied"
        if end is None:
            return "open"
        if end.error is None:
            return "done"
        return "unknown" if end.error.get("kind") == "unknown_outcome" else "failed"


def exit_code_in(text: str) -> int | None:
    """Return the exit code that the answer of a command tells; `None` where it tells none."""
    code = _EXIT_CODE.search(text)
    return int(code[1]) if code else None


def actions_of(events: Iterable[Event]) -> tuple[Action, ...]:
    """Return what a run did, in order."""
    log = ActionLog()
    for event in events:
        log.take(event)
    return log.actions


def action_lines(actions: Iterable[Action]) -> Iterator[str]:
    """Yield a line for each action; changes of one file are added up."""
    files: dict[str, tuple[int, int, bool]] = {}
    others: list[str] = []
    for action in actions:
        if action.kind == "change" and action.outcome == "done":
            for path in action.files:
                added, removed, known = files.get(path, (0, 0, True))
                alone = len(action.files) == 1 and action.added is not None
                files[path] = (added + (action.added or 0), removed + (action.removed or 0), known and alone)
        else:
            others.append(str(action))
    for path, (added, removed, known) in files.items():
        yield f"changed {sanitize_text(path)}" + (f" (+{added} \u2212{removed} lines)" if known else "")
    yield from others


def _lines(text: str) -> tuple[int | None, int | None]:
    """The lines added and removed, by the diff that a tool shows."""
    found = _DIFF.search(text)
    if found is None:
        said = _SAID_LINES.search(text) if text.startswith("created ") else None
        return (int(said[1]), 0) if said else (None, None)
    marks = [match[1] for match in _DIFF_LINE.finditer(found[0])]
    return marks.count("+"), marks.count("-")
