"""Session: one log with models, tools and policies; starts runs, resumes and forks them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, Unpack, cast

from kestrel_lab.answers.output_types import T
from kestrel_lab.core.protocols import Approver, Model, Surroundings
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.run_types import Limits
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.homes import default_home, record_workspace, state_folder
from kestrel_lab.mcp.config import ServerConfig, read_server
from kestrel_lab.memory.memory import NoteMemory
from kestrel_lab.permissions.rulebook import read_rulebook
from kestrel_lab.runtime import launcher
from kestrel_lab.runtime.context.budget import MaxUsageByModel
from kestrel_lab.runtime.context.dependencies import Ports
from kestrel_lab.runtime.context.file_history import Recorders
from kestrel_lab.runtime.context.gatherers import FileGatherer, IndexedGatherer
from kestrel_lab.runtime.context.tool_cache import ToolCaching
from kestrel_lab.runtime.conversation import Chat, conversation_runs
from kestrel_lab.runtime.mcp.discovery import installed_servers
from kestrel_lab.runtime.mcp.servers import McpServers
from kestrel_lab.runtime.operations.gather import session_indexes
from kestrel_lab.runtime.options import (
    LabKeywords,
    LabOptions,
    ResumeOptions,
    RunOptions,
    fill,
    started_with,
    takes_options,
)
from kestrel_lab.runtime.registry import Registry, skip_failed_servers
from kestrel_lab.runtime.run import Run, RunHistory
from kestrel_lab.runtime.security.file_taint import FileTaint
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.runtime.sync import blocking_twin
from kestrel_lab.tools.builtin import native_tools, web_tools
from kestrel_lab.tools.code_search import retrieval_tools
from kestrel_lab.tools.delegation import delegate
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.interaction import task_tools
from kestrel_lab.tools.kernel.cells import cell_tools
from kestrel_lab.tools.kernel.kernel_tools import kernel_tools
from kestrel_lab.tools.kernel.own_kernel import Kernels
from kestrel_lab.tools.memory_tools import memory_tools
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.web.fetch import Reach

if TYPE_CHECKING:
    from kestrel_lab.answers.output_types import OutputForm
    from kestrel_lab.runtime.workspace.removal import Removal
    from kestrel_lab.runtime.workspace.skills import WorkspaceSkills

P = ParamSpec("P")


def _waiting_twin(start: Callable[P, Run[T]], name: str) -> Callable[P, Coroutine[Any, Any, Run[T]]]:
    """Make the twin of a method that begins a run: it waits for the end, and returns the run that began,
    which may be a new one.
    """

    @functools.wraps(start)
    async def twin(*args: P.args, **options: P.kwargs) -> Run[T]:
        session = cast("Session", args[0])

        def begin(approver: Approver | None) -> Run[T]:
            return start(*args, **{**options, "approver": approver})  # type: ignore[arg-type]  # an option of every such method

        return await session._watched(begin, cast("Approver | None", options.get("approver")))

    twin.__name__, twin.__qualname__ = name, f"Session.{name}"
    twin.__doc__ = (
        f"Run `{start.__name__}` and wait for the end; takes the same options. The run that is "
        "returned may be a new one."
    )
    twin.__signature__ = inspect.signature(start)  # type: ignore[attr-defined]  # `inspect` reads it
    return twin


class Session:
    """Starts, resumes and forks runs over one log.

    `registry` finds models and tools, `history` lists and compares runs. A session is
    a context manager, also an asynchronous one: leaving it closes the log and everything else that it opened.
    """

    surroundings: ClassVar[Surroundings | None] = None
    """Where runs and suites that are waited for are shown; set by the extension of a notebook."""

    @takes_options(LabKeywords)
    def __init__(
        self,
        home: str | Path | None = None,
        model: str | Model | None = None,
        approve: str | None = None,
        **options: Unpack[LabKeywords],
    ) -> None:
        """Open the log under the folder `home`, which is made if need be; `LabOptions` describes the rest.

        Without a `home` it is that of the current folder: see `host.homes.default_home`. Raises `UsageError`
        for a value that an option cannot have.
        """
        self.options = fill(LabOptions, {**options, "model": model, "approve": approve})
        """What runs begin with unless they bring their own; `change` replaces single ones."""
        env = self.options.get("env")
        self.env = os.environ if env is None else env
        self.home = default_home(Path.cwd(), self.env) if home is None else Path(home)
        self._opened: list[str] = []
        """The parts to close, the last one first."""
        try:
            self._open()
        except BaseException as error:
            try:
                self.close()
            except BaseExceptionGroup as also:
                error.add_note(f"while closing what was open: {', '.join(map(str, also.exceptions))}")
            raise

    def _open(self) -> None:
        options = self.options
        self.rules = read_rulebook(options.get("rules"))
        self.redactor = Redactor.of(self.env)
        self.sandbox = self._sandbox()
        self.supervisor = RuntimeSupervisor()
        self.cache = ToolCaching(
            self.home / "cache", options["cache"], options.get("cache_url"), self.supervisor
        )
        self._opened.append("cache")
        self.store = SessionStore(self.home / "kestrel.db", network=options["network_home"])
        self._opened.append("store")
        record_workspace(self.home, Path.cwd(), self.env)
        self.indexes = session_indexes(self.home)
        self._opened.append("indexes")
        given = {
            name: one if isinstance(one, ServerConfig) else read_server(name, one)
            for name, one in (options.get("mcp") or {}).items()
        }
        servers = {**installed_servers(self.home.resolve() / "mcp", given, Path.cwd()), **given}
        self.mcp = McpServers(
            servers, self.supervisor, env=self.env, logs=self.home / "logs", sandbox=lambda: self.sandbox
        )
        """MCP servers: `table()`, `check`, `approve`, `withdraw`."""
        self._opened.append("mcp")
        self.kernels = Kernels()
        """Kernels of runs that run code off a notebook."""
        self._opened.append("kernels")
        native = [
            *native_tools(),
            *task_tools(),
            delegate,
            *memory_tools(),
            *web_tools(Reach(env=self.env)),
            *retrieval_tools(self.indexes),
        ]
        native += [*kernel_tools(self.kernels), *cell_tools()]
        self.registry = Registry(options, self.home, self.mcp, self.sandbox, native)
        self.ports = Ports(
            memory=NoteMemory(self.store),
            gatherer=IndexedGatherer(self.indexes, FileGatherer()),
            abstain=options.get("abstain"),
        )
        """Memory, search, clock and retry budget of runs that bring none of their own."""
        self.files = FileTaint(lambda: self.store)
        self.recorders = Recorders(self.home, self.redactor)
        self._opened.append("recorders")
        self.history = RunHistory(self.store)
        self.max_usage: MaxUsageByModel = {}
        """What calls of models used at most, by model."""
        self.tasks: set[asyncio.Task[None]] = set()
        """What works on runs."""
        self.history.run = self.run
        if options["otel"] != "off":
            from kestrel_lab.telemetry.otlp import LiveExport

            self.telemetry = LiveExport(
                lambda run: conversation_runs(self.store, run)[0], content=options["otel"] == "content"
            )
            self._opened.append("telemetry")
            self.change(listeners=(*options["listeners"], self.telemetry))

    @property
    def limits(self) -> Limits:
        """The limits of runs that bring none of their own."""
        return self.options.get("limits") or Limits()

    @property
    def skills(self) -> WorkspaceSkills:
        """The skills (folders with a SKILL.md) that agents in the current folder can load;
        `skills.at(folder)` for another.
        """
        from kestrel_lab.runtime.workspace.skills import WorkspaceSkills

        return WorkspaceSkills(self)

    def change(self, **changes: Unpack[LabOptions]) -> None:
        """Replace options for the runs that begin from now on; raises `UsageError` for a value that an option
        cannot have.

        What was opened with the session stays as it is: `env`, `tools`, `models`, `mcp`, `rules` and the
        place of the cache.
        """
        options = fill(LabOptions, {**self.options, **changes})
        self.cache.mode = options["cache"]
        self.options = self.registry.options = options
        self.sandbox = self.registry.sandbox = self._sandbox()
        self.ports = replace(self.ports, abstain=options.get("abstain"))

    def _sandbox(self) -> Sandbox:
        options, others = self.options, state_folder(self.env)
        hidden = [self.home.resolve(), *([] if others is None else [others.resolve()])]
        return Sandbox.parse(
            options["sandbox"],
            network=options["network"],
            hidden=hidden,
            memory_gib=options["sandbox_memory"],
        )

    @takes_options(RunOptions)
    def start(
        self,
        goal: str,
        *,
        output: type[T] | OutputForm | None = None,
        **options: Unpack[RunOptions],
    ) -> Run[T]:
        """Begin a run on the running event loop and return at once.

        `RunOptions` describes what a run can be given. With `output`, a type or a JSON Schema, the answer is
        asked for in that form, and `Run.value` is the answer as a value of the type.

        Raises:
            UsageError: An empty goal, an unknown model, tool or policy, a workspace that is not a folder, a
                sandbox level that was named and does not work here, an invalid workflow, a step of the plan
                with an unknown tool or wrong arguments.
        """
        return launcher.start(self, goal, started_with(options, output))

    @takes_options(RunOptions)
    async def run(
        self,
        goal: str,
        *,
        output: type[T] | OutputForm | None = None,
        **options: Unpack[RunOptions],
    ) -> Run[T]:
        """Run `start` and wait for the end.

        Returns the run also when it ended FAILED: `status` and `reason` say so. Raises `ApprovalRequired`
        when a call needs approval and no approver was given.
        """
        given = started_with(options, output)
        place = given["workspace"]
        failed = await self.registry.prepare(
            given.get("tools"), place.root if isinstance(place, Workspace) else Path(place)
        )
        with skip_failed_servers(failed):
            return await self._watched(
                lambda approver: launcher.start(self, goal, {**given, "approver": approver}),
                given.get("approver"),
            )

    run_sync = blocking_twin(run)

    async def _watched(self, begin: Callable[[Approver | None], Run[T]], approver: Approver | None) -> Run[T]:
        """Begin a run and wait for its end, shown where somebody looks; they are asked for approval where
        nobody else is.
        """
        watcher = self.surroundings.watcher() if self.surroundings is not None else None
        run = begin(approver or watcher)
        if watcher is None:
            return await run.wait()
        watcher.follow(run)
        try:
            return await run.wait()
        finally:
            watcher.close()

    @takes_options(ResumeOptions)
    def restart(
        self,
        run_id: str,
        *,
        take_over: bool = False,
        output: type[T] | OutputForm | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Run[T]:
        """Go on with a run where its log ends; on the running event loop, returns at once.

        A run that ended FAILED or CANCELLED behind a completed stage, or by a limit or an error while a model
        was to be asked, goes on in a new run, which shares the completed part by reference: see
        `runtime.resume`. Any other run that has ended is returned as it is, and so is one that this session
        works on. The plan is the one in the log, whatever has become of its file; if it needs something that
        is gone, the error names the stage. `limits` apply from here on, and count what was used before. Calls
        whose outcome the last session left unknown are repeated only if that is harmless, otherwise they need
        approval. A run that another session works on, of this process or another, is taken from it only with
        `take_over`: that session then writes nothing more, and its run ends with `Fenced` at the latest
        before its next tool call with an effect. Only the effect of a call that it is executing may still
        come, which is why that call needs approval. `output` is the type that the run was begun with: the log
        has only its schema.

        Raises:
            UsageError: No such run, another session works on it, or its model or tools cannot be found again.
            Damaged: Its events are not those that were written.
        """
        return launcher.resume(self, run_id, started_with(options, output), take_over=take_over)

    resume = _waiting_twin(restart, "resume")

    @takes_options(ResumeOptions)
    def start_fork(
        self,
        run_id: str,
        *,
        at: int | None = None,
        answer: str | None = None,
        result: str | None = None,
        in_place: bool = False,
        output: type[T] | OutputForm | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Run[T]:
        """Begin a new run that shares the events of another up to number `at`; on the running event loop,
        returns at once.

        The fork has the files of its time: it works in a private copy of the workspace as that was at `at`,
        and `Run.apply` takes over what it changes there. The parent stays as it is, and may still be working.
        Model, tools, policy and approver may be given anew, as for `restart`; `limits` count what the shared
        events used. A question that was open at `at` is asked again; a tool call that had begun is treated as
        `restart` does.

        Args:
            run_id: The run to fork.
            at: The last event shared, any before the run's end; by default its last `model_called`, or with
                `result` its last `tool_called`. A model that was being asked there is asked again.
            answer: The answer of the model called at `at`, in place of its own.
            result: The result of the tool called at `at`, in place of its own.
            in_place: Work in the folder of the parent as it is now, and change the files there.
            output: The type that the parent was begun with, for `Run.value`.

        Raises:
            UsageError: No such run or event, one after the end, one that an answer or a result cannot follow,
                a model or tools that cannot be found again, files of which nothing is known or no copy can be
                made.
            Damaged: An event up to `at` is not what was written.
        """
        return launcher.fork(
            self,
            run_id,
            started_with(options, output),
            at=at,
            answer=answer,
            result=result,
            in_place=in_place,
        )

    fork = _waiting_twin(start_fork, "fork")

    @takes_options(RunOptions)
    def chat(self, **options: Unpack[RunOptions]) -> Chat:
        """Return a conversation whose turns take these options: `await chat.ask("…")`; a notebook shows each
        in a panel.
        """
        return Chat(self.start, self.run, options)

    def get(self, run_id: str, *, output: type[T] | OutputForm | None = None) -> Run[T]:
        """Return a run of this log; see `RunHistory.get`."""
        return self.history.get(run_id, output=output)

    def remove(self, *runs: str | Run[Any], children: bool = False) -> Removal:
        """Remove runs for good, from the log, its files and what lies beside it; see
        `runtime.workspace.removal.remove_runs`.
        """
        from kestrel_lab.runtime.workspace.removal import remove_runs

        return remove_runs(self, *runs, children=children)

    def close(self) -> None:
        """Close the MCP servers, the indexes, the log and the cache; a second call does nothing.

        Closes the rest also when one part fails. Raises an `ExceptionGroup` of what failed.
        """
        failed: list[BaseException] = []
        while self._opened:
            try:
                getattr(self, self._opened.pop()).close()
            except BaseException as error:  # all of them are raised together below  # noqa: BLE001
                failed.append(error)
        if failed:
            raise BaseExceptionGroup(
                f"the session of {self.home} was closed, but not every part of it could be", failed
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Interrupt the runs that still work, which can be resumed later, and close the session."""
        try:
            await launcher.stop(self)
        finally:
            self.close()
