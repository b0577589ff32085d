"""A tool, and the toolbox an agent is given."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from kestrel_lab.core.calls import Danger, Effect, Result
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.events.union import (
    CellsChanged,
    KernelChanged,
    KernelPreviewed,
    RetrievalStep,
    TaskChanged,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart, ToolSpec
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.large_results import Spool
from kestrel_lab.host.threads import call_in_thread, interruptible
from kestrel_lab.tools.argument_schema import Arguments, ToolArgumentsError
from kestrel_lab.tools.data_flow import Flow, Shows
from kestrel_lab.tools.files.versions import Versions
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.results import render_result, to_json
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.views.html.elements import table_html

__all__ = [
    "CacheScope",
    "CodeContext",
    "DryRun",
    "Fingerprint",
    "StoredAnswer",
    "Notes",
    "Parts",
    "Preview",
    "Tasks",
    "Tool",
    "ToolArgumentsError",
    "ToolContext",
    "Toolbox",
    "render_result",
]


def _ignore_output(_text: str, _fraction: float | None = None) -> None:
    """Discard progress or output."""


def _unshown(_image: ImagePart) -> None:
    """Drop an image, outside a run."""


class Parts(Protocol):
    """Makes the calls of a macro, each as if the agent had made it: asked about, recorded, never repeated."""

    def begin(self, macro: str, version: int, args: dict[str, Json]) -> None:
        """Record which macro starts, before its first call."""

    async def __call__(self, place: int, tool: str, args: dict[str, Json]) -> Result:
        """Make call number `place`, counted from 1."""

    def end(self, *, ok: bool, reason: str = "") -> None:
        """Record how it ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tasks:
    """The task list of a run; what is changed is an event of the run."""

    listed: Callable[[], tuple[TaskChanged, ...]]
    """As it is now, in the order in which they were put on it."""
    change: Callable[[TaskChanged], object]
    """Put a task on the list, or in another state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """The workspace's memory for tools; each method returns what it did or raises a `KestrelError`."""

    recall: Callable[[str, int, tuple[str, ...]], Awaitable[list[dict[str, Json]]]]
    """Return notes for a query: at most so many, with all of these tags; their words are references."""
    remember: Callable[[str, str, tuple[str, ...], float, float | None, str], Awaitable[str]]
    """Keep a text: its kind, tags, confidence, days, and the call that asks for it."""
    chosen: Callable[[str], str]
    """Return the notes a selector means, one line each with a reference to its words, for the approver."""
    forget: Callable[[str], Awaitable[str]]
    """Forget the notes that a selector means."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """An answer that was too long to show, as it is kept whole."""

    path: Path
    chars: int
    tool: str
    untrusted: bool = False
    """True if others wrote its contents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeContext:
    """Context of a tool that runs code in a kernel, and where it records results."""

    emit: Callable[[KernelPreviewed | KernelChanged | CellsChanged, Sequence[tuple[str, bytes]]], object]
    """Records an event with its images, which are stored next to the log."""
    step: str = ""
    sandbox: str = ""
    """Where the code has its effect: see `core.calls.IN_KERNEL`."""
    danger: Danger = Danger.SAFE
    """Danger for which the call was approved."""
    live: bool = False
    """True if the run works in a notebook's kernel: it is no trial of a suite."""
    earlier: Mapping[str, str] = field(default_factory=dict)
    """Kernel changed by each earlier call of the run."""
    untraced: Callable[[], bool] = bool
    """Return true if tainted files are in the workspace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """Effects of a call, found by running it without effect."""

    danger: Danger
    sandbox: str
    text: str
    """For the approver, one fact per line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """Context of the run for a tool: passed to a parameter annotated `ToolContext`, hidden from models."""

    workspace: Workspace
    run_id: str = ""
    call_id: str = ""
    progress: Callable[[str, float | None], None] = _ignore_output
    """Reports progress: a text, and a fraction from 0 to 1 or `None`."""
    time: Mapping[str, Json] = field(default_factory=dict)
    """The run's start time: see `tools.timeparse.session_time.session_time`; empty outside a run."""
    tasks: Tasks | None = None
    """`None` outside a run."""
    notes: Notes | None = None
    """`None` outside a run."""
    parts: Parts | None = None
    """Makes calls for a tool that consists of calls; `None` outside a run."""
    delegate: Callable[[str, str, float], Awaitable[Json]] | None = None
    """Has a sub-agent work on a goal, with a share of what the run may use; `None` outside a run."""
    kept: Callable[[str], StoredAnswer] | None = None
    """Finds an earlier answer of the run by its id; raises `ValueError` or `FileNotFoundError` for the model.

    `None` outside a run.
    """
    spool: Callable[[], Spool] | None = None
    """Opens a store for a long text of which the answer shows only parts, such as output; once per call."""
    sandbox: Sandbox = Sandbox()  # frozen  # noqa: RUF009
    """Sandbox for commands."""
    versions: Versions = field(default_factory=Versions)
    """Versions of files that the call relies on and produces."""
    folder: str = "."
    """Folder where commands start, relative to the workspace: where the step's last one ended."""
    moved: Callable[[str], object] = _ignore_output
    """Records a new folder for later commands."""
    output: Callable[[str], None] = _ignore_output
    """Streams the newest output of a running command."""
    redactor: Redactor = Redactor()  # frozen  # noqa: RUF009
    """Knows the secrets that no answer may hold."""
    looked_up: Callable[[RetrievalStep], object] | None = None
    """Records a look-up in the log of the run; to be called on the event loop. `None` outside a run."""
    show: Callable[[ImagePart], object] = _unshown
    """Shows an image next to the answer: to the person, and to a model that takes images."""
    code: CodeContext | None = None
    """For tools that run code in a kernel; `None` outside a run."""
    ask: Callable[[str, Sequence[str]], Coroutine[Any, Any, str | None]] | None = None
    """Asks the person a question with options during the call; returns `None` if they decline.

    `None` without a person.
    """


Preview = Callable[[dict[str, Json], ToolContext], str]
"""Returns what a call would change, as a unified diff, or why it would fail. Reads only."""
Fingerprint = Callable[[dict[str, Json], ToolContext], "str | Awaitable[str | None] | None"]
"""The state of everything a pure tool would read for these arguments: equal fingerprints, equal answers.

`None` where the answer must not be used again; empty while what is read is changing, so that no stored answer
may be used now.
"""
CacheScope = Literal["run", "workspace", "global"]
"""Who shares stored answers: one run, all runs in a folder on one machine, or all users of the cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """Something an agent can do. Calling the tool calls its function, as if it had never been decorated."""

    name: str
    description: str
    """What the tool is for, for the model."""
    function: Callable[..., Any]
    arguments: Arguments
    danger: Danger = Danger.LOW
    """LOW by default: somebody offered the tool on purpose, but nobody said that it changes nothing."""
    danger_of: Callable[[dict[str, Json]], Danger] | None = None
    """Danger of a call with these arguments, if it varies."""
    effect: Effect = "opaque"
    version: str = "1"
    """Changes when answers may change; stored answers of other versions are not used."""
    parallel_safe: bool = True
    """True if it may run in parallel with other calls, of the same turn and of other steps."""
    timeout_s: float | None = None
    """Time limit of a call in seconds; `None` for no limit of its own."""
    max_chars: int = 20_000
    """Most characters of an answer that a model gets."""
    thread: bool = False
    """A synchronous function runs in a worker thread, not on the event loop's; one with `timeout_s` always
    does.

    A cancelled call does not stop a thread: its function runs to its end unseen.
    """
    fingerprint: Fingerprint | None = None
    """`None`: answers are never reused, unless they are for `cache_ttl_seconds`."""
    cache_ttl_seconds: float | None = None
    """How long a stored answer may be used; `None` while its fingerprint is equal.

    For pure tools only.
    """
    cache_scope: CacheScope = "workspace"
    parts: Callable[[dict[str, Json]], tuple[str, ...]] | None = None
    """Which tools it calls, given its arguments; `None` for a tool that calls none."""
    preview: Preview | None = None
    """Shown to the approver."""
    dry_run: Callable[[dict[str, Json], ToolContext], Awaitable[DryRun | None]] | None = None
    """Finds out a call's danger and place of effect before it is decided on; `None` if it has no opinion."""
    filled: Callable[[dict[str, Json]], Mapping[str, str]] | None = None
    """Sources of the arguments the tool fills in itself, by name, for the approver."""
    asks_person: bool = False
    """The call is a question: a person's answer, if there is one, replaces the function."""
    reads: tuple[str, ...] | None = None
    """What its answers may contain, see `tools.data_flow.Reads`; `None`: private data."""
    reaches: str | None = None
    """How far a call reaches, see `tools.data_flow.Reach`; `None`: anything from MEDIUM on, else nothing."""
    content: tuple[str, ...] = ()
    """Arguments that are only content, such as a message body; others say whom, where or how much."""
    own: tuple[str, ...] = ()
    """Fields of its answers, each an object or a list of objects, that nobody but the user or the service
    writes, such as `id` and `filename`.

    Where the goal names an object by a text in one of them, the others belong to what it names.
    """
    shown: Callable[[Json], str] | None = None
    """Writes an answer for the model; by default `tools.results.render_result`."""
    unsaid: frozenset[str] = frozenset()
    """Properties its author did not declare, see `tools.data_flow.undeclared_flow`."""
    shows: Shows = ""
    """What answers show of the files they are about, see `tools.data_flow.Shows`."""
    asks: bool = False
    """True if its arguments are sent to a service, even if it changes nothing there."""
    group: str = ""
    """Group name.

    Tools with a group are offered only to runs that name the tool or the group.
    """
    sandbox: Level | None = None
    """The least level that its commands may run at; `None` for a tool that starts none."""
    context_parameter: str = ""
    """Which parameter of the function receives the `ToolContext`, if any."""

    @cached_property
    def flow(self) -> Flow:
        """Data it reads and sends, as declared or as its effect and danger suggest."""
        reads = self.reads if self.reads is not None else ("private",)
        reaches = self.reaches or ("anything" if self.danger >= Danger.MEDIUM else "nothing")
        return Flow(frozenset(reads), reaches, self.unsaid, self.own)

    @property
    def schema(self) -> dict[str, Json]:
        """JSON Schema of the arguments; raises `UsageError` for a parameter type that has none."""
        return self.arguments.schema

    def spec(self) -> ToolSpec:
        """The tool's description for a model."""
        return self._spec

    @cached_property
    def _spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, schema=self.schema)

    @cached_property
    def named(self) -> dict[str, Json]:
        """The tool as an event names it; not to be changed."""
        return {
            "name": self.name,
            "version": self.version,
            "danger": self.danger.name,
            "effect": self.effect,
            **self.flow.as_json(),
        }

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return the arguments as JSON, converted to the declared types and completed with defaults.

        Raises `ToolArgumentsError`, whose message is for the model.
        """
        return self.arguments.validate(args)

    async def run(self, args: dict[str, Json], ctx: ToolContext | None) -> Json:
        """Call the function with arguments that `validate` returned; whatever it raises escapes.

        `ctx` is what a function with a context parameter is given; only one without may go without.

        A synchronous function blocks the event loop unless `thread` or `timeout_s` is set; Ctrl-C or a
        notebook's Stop interrupts it with `KeyboardInterrupt` when it runs on the main thread.
        """
        values = self.arguments.bind(args)
        if self.context_parameter:
            assert ctx is not None
            values[self.context_parameter] = ctx
        if self._is_async:
            return to_json(await self.function(**values))
        if self.in_thread:
            answer = await call_in_thread(self.function, values, alone=self.timeout_s is not None)
        elif threading.current_thread() is threading.main_thread():
            with interruptible():
                answer = self.function(**values)
        else:
            answer = self.function(**values)
        return to_json(await answer if inspect.isawaitable(answer) else answer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function."""
        return self.function(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Shows the plain function to `help`, `inspect.signature` and completion."""
        return self.function

    def __repr__(self) -> str:
        return f"<tool {self.name}: {self.danger.name}, {self.effect}>"

    @cached_property
    def in_thread(self) -> bool:
        """True if a call runs in a thread, which cannot be stopped."""
        return (self.thread or self.timeout_s is not None) and not self._is_async

    @cached_property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


class Toolbox:
    """Tools under their names, in order; never changed after it was made."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        """Raise `UsageError` for two tools of one name, or for something that is not a tool."""
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if not isinstance(tool, Tool):
                raise UsageError(f"{tool!r} is not a tool: decorate the function with @tool")
            if tool.name in self._tools:
                raise UsageError(f"two tools are called {tool.name!r}: rename one with @tool(name=…)")
            self._tools[tool.name] = tool
        self._specs: tuple[ToolSpec, ...] | None = None
        self.find: Callable[[str], Tool | None] = self._tools.get
        """Return the tool of that name; `None` if there is none."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, in order."""
        return tuple(self._tools)

    def get(self, name: str) -> Tool:
        """The tool of that name; raises `UsageError` with the nearest spelling."""
        if (tool := self._tools.get(name)) is not None:
            return tool
        raise UsageError(f"there is no tool {name!r}; {did_you_mean(name, self._tools)}")

    def only(self, names: Iterable[str]) -> Toolbox:
        """Just these tools, in the order of `names`; raises `UsageError` for an unknown one."""
        return Toolbox(self.get(name) for name in names)

    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs that models get; raises `UsageError` for a tool whose types have no JSON form."""
        if self._specs is None:
            self._specs = tuple([tool._spec for tool in self._tools.values()])
        return self._specs

    @staticmethod
    def offered(tool: Tool) -> str:
        """When a run is offered the tool, in words."""
        return f"if {tool.group} is named" if tool.group else "always"

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __add__(self, other: Iterable[Tool]) -> Toolbox:
        return Toolbox([*self, *other])

    def __repr__(self) -> str:
        if not self._tools:
            return "Toolbox: no tools"
        rows = [self._heads(), *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        return "\n".join(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
            for row in rows
        )

    def _repr_html_(self) -> str:
        return table_html(self._heads(), self._rows())

    def _heads(self) -> tuple[str, ...]:
        grouped = ("offered",) if any(tool.group for tool in self) else ()
        return ("name", "danger", "effect", *grouped, "description")

    def _rows(self) -> list[tuple[str, ...]]:
        grouped = any(tool.group for tool in self)
        return [
            (
                *(one_line(tool.name), tool.danger.name, tool.effect),
                *((self.offered(tool),) if grouped else ()),
                one_line(tool.description),
            )
            for tool in self
        ]
