"""Services of a lab: the log, models, tools, servers and caches that its runs share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self, Unpack

from kestrel_lab.core.run_types import Limits
from kestrel_lab.host.homes import default_home
from kestrel_lab.permissions.rulebook import Rulebook, read_rulebook
from kestrel_lab.runtime.context.run_services import RunServices
from kestrel_lab.runtime.options import LabKeywords, LabOptions, fill, takes_options

if TYPE_CHECKING:
    import asyncio

    from kestrel_lab.core.protocols import Model, Reporter, Surroundings
    from kestrel_lab.retrieval.workspace_indexes import WorkspaceIndexes
    from kestrel_lab.runtime.context.dependencies import Ports
    from kestrel_lab.runtime.context.file_history import Recorders
    from kestrel_lab.runtime.mcp.servers import McpServers
    from kestrel_lab.runtime.registry import Registry
    from kestrel_lab.runtime.run import RunHistory
    from kestrel_lab.telemetry.otlp import LiveExport
    from kestrel_lab.tools.kernel.own_kernel import Kernels
    from kestrel_lab.tools.sandbox.levels import Sandbox


class Services(RunServices):
    """What all runs of one lab share; `runtime.start` has the functions that start, resume and fork runs.

    A context manager, also an asynchronous one: leaving it closes the log and everything else that it opened.
    Importing this module loads none of the services, so that `Lab` can be named at no cost.
    """

    surroundings: ClassVar[Surroundings | None] = None
    """Where runs and suites that are waited for are shown; set by the extension of a notebook."""

    options: LabOptions
    """What runs begin with unless they bring their own; `change` replaces single ones."""
    limits: Limits
    """The limits of runs that bring none of their own."""
    env: Mapping[str, str]
    home: Path
    rules: Rulebook
    registry: Registry
    """Finds models and tools by name."""
    history: RunHistory
    """Lists and compares runs, and knows those that work now."""
    mcp: McpServers
    """MCP servers: `table()`, `check`, `approve`, `withdraw`."""
    sandbox: Sandbox
    ports: Ports
    """Memory, search, clock and retry budget of runs that bring none of their own."""
    indexes: WorkspaceIndexes
    kernels: Kernels
    """Kernels of runs that run code off a notebook."""
    recorders: Recorders
    tasks: set[asyncio.Task[None]]
    """What works on runs."""
    telemetry: LiveExport

    __slots__ = ("_opened", *(name for name in __annotations__ if name != "surroundings"))

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
        from kestrel_lab.runtime.open_services import open_services

        self.options = fill(LabOptions, {**options, "model": model, "approve": approve})
        self.limits = self.options.get("limits") or Limits()
        env = self.options.get("env")
        self.env = os.environ if env is None else env
        self.home = default_home(Path.cwd(), self.env) if home is None else Path(home)
        self.rules = read_rulebook(self.options.get("rules"))
        self._opened: list[str] = []
        """The parts to close, the last one first."""
        try:
            open_services(self, self._opened)
        except BaseException as error:
            try:
                self.close()
            except BaseExceptionGroup as also:
                error.add_note(f"while closing what was open: {', '.join(map(str, also.exceptions))}")
            raise

    def change(self, **changes: Unpack[LabOptions]) -> None:
        """Replace options for the runs that begin from now on; raises `UsageError` for a value that an option
        cannot have.

        What was opened with the lab stays as it is: `env`, `tools`, `models`, `mcp`, `rules` and the
        place of the cache.
        """
        from kestrel_lab.runtime.open_services import sandbox_of

        options = fill(LabOptions, {**self.options, **changes})
        self.cache.mode = options["cache"]
        self.options = self.registry.options = options
        self.limits = options.get("limits") or Limits()
        self.sandbox = self.registry.sandbox = sandbox_of(self)
        self.ports = replace(self.ports, abstain=options.get("abstain"))

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
                f"the lab of {self.home} was closed, but not every part of it could be", failed
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
        """Interrupt the runs that still work, which can be resumed later, and close the lab."""
        from kestrel_lab.runtime.start import stop

        try:
            await stop(self)
        finally:
            self.close()


def reporter_of(lab: Services, given: Reporter | None) -> Reporter | None:
    """Return the reporter that was given, else that of the place where work is shown."""
    return lab.surroundings.reporter() if given is None and lab.surroundings is not None else given
