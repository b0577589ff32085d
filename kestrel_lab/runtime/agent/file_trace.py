"""Files of tool calls: keep what they hold before and after, see `FileHistory`, and trace taint: record which
tainted files a call read, and which files it tainted.

The tool decides how the files that a call read are found: by its arguments (`workspace` with a `path`), by
the paths in its answer (`lines`, `names`), or, for commands and other tools that may open any file, by the
files that the kernel reports as opened. A call whose author has read untrusted text, or that read a tainted
file itself, taints every file that changed while it ran.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct, field

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.events.union import FilesTainted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Handler
from kestrel_lab.runtime.context.run_context import RunContext, in_notebook
from kestrel_lab.runtime.security.argument_texts import call_label
from kestrel_lab.runtime.security.file_taint import MOST_ENTRIES, MOST_FILES, FileTaint, Snapshot
from kestrel_lab.runtime.security.kernel_taint import KernelTaint
from kestrel_lab.tools.data_flow import Flow
from kestrel_lab.tools.files.inotify import OpenWatch
from kestrel_lab.tools.files.workspace import SKIPPED
from kestrel_lab.tools.tool import Tool, render_result

_PLAIN = re.compile(r"[\w./-]{1,40}")
"""Matches a path that is too plain to carry an instruction."""
_MARGIN_NS = 50_000_000
_SMALL = 300
"""Workspace entries that take a millisecond to read on the event loop; more are read in a thread."""
_Way = Literal["", "exact", "lines", "names", "watch"]


class FileTrace(Struct, frozen=True):
    """A layer around one turn's tool calls; outside of the cache, since a cached answer is as tainted."""

    ctx: RunContext
    calls: Sequence[Call]
    """All of the turn."""
    _begun: dict[str, _Trace] = field(default_factory=dict)
    """By author, what calls share that begin while one of them works."""

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Proceed; before the answer, record what flowed through files and their content before and after."""
        tool = self.ctx.tools.find(call.target)
        if tool is None:
            return await proceed(call)
        flow = tool.flow.at(call.sandbox)
        writes = may_write(flow, call)
        history = self.ctx.history if writes and tool.parts is None else None
        if history is not None and history.changed(0):
            await history.note(call.id, "before", self.ctx.emit)
        try:
            result = await self._way(call, proceed, tool, flow, writes)
            if history is not None and history.changed(0):
                await history.note(call.id, "after", self.ctx.emit)
        except BaseException:  # cancelled, say: what it did until now is kept all the same
            if history is not None:
                history.note_now(call.id, "after", self.ctx.emit)
            raise
        return result

    def _way(self, call: Call, proceed: Handler, tool: Tool, flow: Flow, writes: bool) -> Awaitable[Result]:
        """Proceed in the way that the call needs."""
        files = self.ctx.services.files
        if files is None:
            return proceed(call)
        author, way = self._author(call, flow) if writes else "", detection_of(tool, flow, call)
        kernel = (
            KernelTaint(tool, self.ctx.run_id, in_notebook=in_notebook(self.ctx))
            if "kernel" in flow.reads
            else None
        )
        # Before it runs: cancelled or failed, it has left something all the same.
        if kernel is not None and kernel.sets:
            kernel.mark(author or next(reversed(self.ctx.flow.now().context(call).untrusted), ""))
        if not author and (kernel is None or not kernel.source) and not (way and files.known()):
            return proceed(call)
        begin = partial(_Trace, self.ctx, files, call, tool, flow, way, author, kernel)
        if author and not _named(tool, flow, call):
            return self._compared(files, call, author, begin, proceed)
        return self._watched(files, begin(), proceed)

    async def _watched(self, files: FileTaint, trace: _Trace, proceed: Handler) -> Result:
        """Proceed with a call of which it matters what it reads."""
        files.refresh()
        await asyncio.to_thread(trace.begin)
        trace.tell_begin()
        result: Result | None = None
        try:
            result = await proceed(trace.call)
        finally:
            # Cancelled: what it did until now is recorded all the same.
            if result is None:
                trace.end("")
            else:
                nothing = result.error is not None and result.value is None
                answer = (
                    result.error.message
                    if nothing and result.error is not None
                    else render_result(result.value)
                )
                await asyncio.to_thread(trace.end, answer, cached=result.cached)
            trace.tell_end()
        return result

    async def _compared(
        self, files: FileTaint, call: Call, author: str, begin: Callable[[], _Trace], proceed: Handler
    ) -> Result:
        """Proceed with a call of which only the changes matter: its author counts as having read every
        tainted file.

        Calls of one author that work at the same time share one trace, from the first beginning to the last
        end: each of them may have made any change of that time. Until the last end every file that changes
        counts as tainted.
        """
        if (trace := self._begun.get(author)) is None:
            trace, also = begin(), list[str]()
            trace.before = files.stamps(self.ctx.given.workspace, most=_SMALL)
            if trace.before.whole:
                self._begun[author] = trace
                also = [one.id for one in self.calls if one.id != call.id]
            else:  # too much for the event loop
                trace.before = await asyncio.to_thread(files.stamps, self.ctx.given.workspace)
            trace.tell_begin(also)
        trace.working += 1
        result: Result | None = None
        try:
            result = await proceed(call)
        finally:
            trace.working -= 1
            if last := not trace.working:
                # Ended: the next call begins a new trace.
                if self._begun.get(author) is trace:
                    del self._begun[author]
            elif result is not None:
                # For those that end before the event loop turns over: the last of all records for them.
                await asyncio.sleep(0)
            if last or trace.working:
                await self._record(files, trace, ended=last, cancelled=result is None)
        return result

    async def _record(self, files: FileTaint, trace: _Trace, *, ended: bool, cancelled: bool) -> None:
        """Record what changed since the calls of a trace began; does not wait if they are `cancelled`."""
        after = files.stamps(
            self.ctx.given.workspace, everything=True, most=MOST_ENTRIES if cancelled else _SMALL
        )
        if not after.whole and not cancelled:
            after = await asyncio.to_thread(files.stamps, self.ctx.given.workspace, everything=True)
        changed = trace.changed(after)
        if changed and cancelled:
            trace.end("", after=after)
        elif changed:
            await asyncio.to_thread(trace.end, "", after=after)
        if ended:
            trace.tell_end()
        elif changed:
            trace.tell_so_far()

    def _author(self, call: Call, flow: Flow) -> str:
        """Return the untrusted source that may flow into what a call writes; empty if there is none."""
        if foreign := self.ctx.flow.now().context(call).untrusted:
            return foreign[-1]
        return call_label(call.target, call.args) if "untrusted" in flow.reads else ""


def may_write(flow: Flow, call: Call) -> bool:
    """Return whether the call may change files of the workspace."""
    return flow.reaches in {"workspace", "anything"} or ("files" in flow.unsaid and call.effect != "pure")


def detection_of(tool: Tool, flow: Flow, call: Call) -> _Way:
    """Return how to find the files that a call read; empty if it reads none or is untrusted anyway."""
    if "untrusted" in flow.reads:
        return ""
    if tool.shows:
        return tool.shows
    if "workspace" in flow.reads and tool.sandbox is None and paths_of(call.args):
        return "exact"
    return "watch" if "workspace" in flow.reads or "files" in flow.unsaid else ""


def _named(tool: Tool, flow: Flow, call: Call) -> list[str]:
    return paths_of(call.args) if tool.sandbox is None and flow.reaches == "workspace" else []


def paths_of(args: dict[str, Json]) -> list[str]:
    """Return the files that a call names in its arguments."""
    path, paths = args.get("path"), args.get("paths")
    return [path] if isinstance(path, str) else [str(one) for one in paths] if isinstance(paths, list) else []


class _Trace:
    """The trace of one call. `begin` and `end` read files and may run in a thread."""

    def __init__(
        self,
        ctx: RunContext,
        files: FileTaint,
        call: Call,
        tool: Tool,
        flow: Flow,
        way: _Way,
        author: str,
        kernel: KernelTaint | None,
    ) -> None:
        self.ctx, self.files, self.call, self.way, self.author = ctx, files, call, way, author
        self.writes = may_write(flow, call)
        self.key = call.key if tool.cache_ttl_seconds is not None else ""
        """The key of an answer that may be stored and given again."""
        self.named = _named(tool, flow, call)
        """The only files that it can write; empty where it can write any."""
        self.root = str(ctx.given.workspace.root)
        self.began = time.time()
        self.marks = files.marks(self.root)
        self.working = 0
        """How many calls share it that have not ended."""
        self.before = Snapshot()
        self.watch = OpenWatch(())
        self.kernel = kernel
        self.read = "" if author or kernel is None else kernel.source
        """Whose words the answer may hold: from the beginning those that the kernel holds."""
        self.known: dict[str, frozenset[int]] = {}
        """Of the files that it names to write, the runs of words in them before it."""
        self.wrote: list[dict[str, Json]] = []
        self.folders: list[str] = []

    def begin(self) -> None:
        workspace = self.ctx.given.workspace
        self.known = {path: self.files.words_in(workspace, path) for path in self._places() if self.named}
        if self.way == "exact" and not self.read:
            self.read = self._first(self.files.below(workspace, path) for path in paths_of(self.call.args))
        if self.way == "watch":
            self.before = self.files.snapshot(workspace)
            # Of what git keeps only its objects hold words; every command of git opens the rest.
            held = {path: why for path, why in self.before.tainted.items() if ".git" not in path.split("/")}
            held |= self.files.objects(workspace)
            self.before = Snapshot(self.before.stamps, held, self.before.whole)
            self.watch = OpenWatch(workspace.root / path for path in held)

    def tell_begin(self, also: Sequence[str] = ()) -> None:
        source = self.author or self.read or next(iter(self.before.tainted.values()), "")
        if self.writes and source:
            self._tell(
                self._event(source=source, places=self._places(), also=[*also]),
                live=not self.author and not self.read,
            )

    def end(self, answer: str, *, cached: bool = False, after: Snapshot | None = None) -> None:
        workspace, args = self.ctx.given.workspace, self.call.args
        self.files.refresh()
        # Taint of a run that has read files is already recorded; recording it again would add nothing.
        if not self.read and not self.author:
            match self.way:
                case "exact":
                    self.read = self._first(self.files.below(workspace, path) for path in paths_of(args))
                case "lines":
                    path = str(args.get("path") or ".")
                    found = self.files.below(workspace, path)
                    self.read = next(
                        (
                            why
                            for below, why in found.items()
                            if below == "." or _contains_path(below, answer)
                        ),
                        "",
                    )
                case "watch":
                    self.read = self._watched()
        if not self.read and cached:
            self.read = self.files.answered(self.key)
        if not self.read and not self.author and self.way:
            self.read = next(
                (
                    why
                    for path, why in self.files.names(self.root).items()
                    if _contains_file_name(path, answer)
                ),
                "",
            )
        self.watch.close()
        if self.kernel is not None:
            self.kernel.mark(self.read)
        if self.writes and (self.author or self.read):
            self.wrote, self.folders = self._changes(after)

    def _watched(self) -> str:
        if not self.before.whole:
            return "files of a workspace that is too large to be searched"
        if self.watch.opened():
            return next(iter(self.before.tainted.values()), "files that may hold words of others")
        if self.files.marks(self.root) != self.marks:
            return "files that another call has written meanwhile"
        return self.files.writers(self.root, (self.ctx.run_id, self.call.id, self.began))

    def tell_so_far(self) -> None:
        self._tell(
            self._event(source=self.author, places=self._places(), files=self.wrote, folders=self.folders)
        )

    def tell_end(self) -> None:
        source = self.author or self.read
        opened = self.writes and (source or self.before.tainted)
        if self.read or opened:
            left = source if self.wrote or self.folders else ""
            self._tell(
                self._event(
                    source=left,
                    ended=True,
                    files=self.wrote,
                    folders=self.folders,
                    read=self.read,
                    key=self.key if self.read else "",
                )
            )

    def _event(self, **flows: Any) -> FilesTainted:
        return FilesTainted(call=self.call.id, step=self.call.step, began=self.began, **flows)

    def _places(self) -> list[str]:
        return [self._relative(path) for path in self.named] or ["."]

    def _relative(self, path: str) -> str:
        try:
            return self.ctx.given.workspace.relative(path)
        except (OSError, ValueError):  # the tool refuses it
            return path

    def _tell(self, event: FilesTainted, *, live: bool = False) -> None:
        self.files.take(self.ctx.run_id, self.root, event, self.watch.opened if live else None)
        self.ctx.emit(event)

    def changed(self, after: Snapshot) -> bool:
        """Whether any file may have changed until `after`."""
        return not (after.whole and self.before.whole) or any(
            self._changed(path, stamp) for path, stamp in after.stamps.items()
        )

    def _changes(self, after: Snapshot | None) -> tuple[list[dict[str, Json]], list[str]]:
        """Return the files that were written, or of very many their folders."""
        if self.named:
            changed = self._places()
            new = set(changed)
        else:
            after = after or self.files.stamps(self.ctx.given.workspace, everything=True)
            if not (after.whole and self.before.whole):
                return [], ["."]
            changed = [path for path, stamp in after.stamps.items() if self._changed(path, stamp)]
            new = {path for path in changed if path not in self.before.stamps}
        if len(changed) > MOST_FILES:
            return [], sorted({path.partition("/")[0] if "/" in path else "." for path in changed})
        said, wrote = self.ctx.flow.now().said, []
        for path in changed:
            name = (
                path in new
                and not _PLAIN.fullmatch(path)
                and path not in said
                and path.rpartition("/")[2] not in said
            )
            wrote.append(
                self.files.described(
                    self.ctx.given.workspace, path, name=name, known=self.known.get(path, ())
                )
            )
        return wrote, []

    def _changed(self, path: str, stamp: tuple[int, ...]) -> bool:
        known = self.before.stamps.get(path)
        # Not looked at before.
        if known is None and not SKIPPED.isdisjoint(path.split("/")):
            return bool(stamp) and stamp[-1] >= self.began * 1e9 - _MARGIN_NS
        return known != stamp or (bool(stamp) and stamp[-1] >= self.began * 1e9)

    @staticmethod
    def _first(found: Iterable[dict[str, str]]) -> str:
        return next((why for one in found for why in one.values()), "")


def _contains_path(path: str, text: str) -> bool:
    """Whether a path occurs in an answer; a path that may be displayed differently always counts."""
    if not path.isprintable() or not path.isascii():
        return True
    return re.search(rf"(?<![\w.-]){re.escape(path)}(?![\w-])", text) is not None


def _contains_file_name(path: str, text: str) -> bool:
    name = path.rpartition("/")[2]
    return any(form in text for form in (name, json.dumps(name)[1:-1]))
