"""Open the services of a lab: log, cache, indexes, MCP servers, kernels, and the tools made with them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel_lab.core.redaction import Redactor
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.homes import record_workspace, state_folder
from kestrel_lab.mcp.config import ServerConfig, read_server
from kestrel_lab.memory.memory import NoteMemory
from kestrel_lab.runtime.context.dependencies import Ports
from kestrel_lab.runtime.context.file_history import Recorders
from kestrel_lab.runtime.context.gatherers import FileGatherer, IndexedGatherer
from kestrel_lab.runtime.context.tool_cache import ToolCaching
from kestrel_lab.runtime.conversation import conversation_runs
from kestrel_lab.runtime.mcp.discovery import installed_servers
from kestrel_lab.runtime.mcp.servers import McpServers
from kestrel_lab.runtime.operations.gather import session_indexes
from kestrel_lab.runtime.registry import Registry
from kestrel_lab.runtime.run import RunHistory
from kestrel_lab.runtime.security.file_taint import FileTaint
from kestrel_lab.runtime.start import run
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.tools.builtin import native_tools, web_tools
from kestrel_lab.tools.code_search import retrieval_tools
from kestrel_lab.tools.delegation import delegate
from kestrel_lab.tools.interaction import task_tools
from kestrel_lab.tools.kernel.cells import cell_tools
from kestrel_lab.tools.kernel.kernel_tools import kernel_tools
from kestrel_lab.tools.kernel.own_kernel import Kernels
from kestrel_lab.tools.memory_tools import memory_tools
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.tool import Tool
from kestrel_lab.tools.web.fetch import Reach

if TYPE_CHECKING:
    from kestrel_lab.runtime.services import Services


def open_services(lab: Services, opened: list[str]) -> None:
    """Set the services of `lab`, whose `options`, `env`, `home` and `rules` are set; names those that have to
    be closed in `opened`, in order, also when a later one fails.
    """
    options = lab.options
    lab.redactor = Redactor.of(lab.env)
    lab.sandbox = sandbox_of(lab)
    lab.supervisor = RuntimeSupervisor()
    lab.cache = ToolCaching(lab.home / "cache", options["cache"], options.get("cache_url"), lab.supervisor)
    opened.append("cache")
    lab.store = SessionStore(lab.home / "kestrel.db", network=options["network_home"])
    opened.append("store")
    record_workspace(lab.home, Path.cwd(), lab.env)
    lab.indexes = session_indexes(lab.home)
    opened.append("indexes")
    lab.mcp = _servers(lab)
    opened.append("mcp")
    lab.kernels = Kernels()
    opened.append("kernels")
    lab.registry = Registry(options, lab.home, lab.mcp, lab.sandbox, _tools(lab))
    lab.ports = Ports(
        memory=NoteMemory(lab.store),
        gatherer=IndexedGatherer(lab.indexes, FileGatherer()),
        abstain=options.get("abstain"),
    )
    lab.files = FileTaint(lambda: lab.store)
    lab.recorders = Recorders(lab.home, lab.redactor)
    opened.append("recorders")
    lab.history = RunHistory(lab.store)
    lab.history.run = partial(run, lab)
    lab.max_usage, lab.tasks = {}, set()
    if options["otel"] != "off":
        from kestrel_lab.telemetry.otlp import LiveExport

        lab.telemetry = LiveExport(
            lambda run: conversation_runs(lab.store, run)[0], content=options["otel"] == "content"
        )
        opened.append("telemetry")
        lab.change(listeners=(*options["listeners"], lab.telemetry))


def sandbox_of(lab: Services) -> Sandbox:
    """Return the sandbox that the options name; it hides the folders of logs."""
    options, others = lab.options, state_folder(lab.env)
    hidden = [lab.home.resolve(), *([] if others is None else [others.resolve()])]
    return Sandbox.parse(
        options["sandbox"],
        network=options["network"],
        hidden=hidden,
        memory_gib=options["sandbox_memory"],
    )


def _servers(lab: Services) -> McpServers:
    given = {
        name: one if isinstance(one, ServerConfig) else read_server(name, one)
        for name, one in (lab.options.get("mcp") or {}).items()
    }
    servers = {**installed_servers(lab.home.resolve() / "mcp", given, Path.cwd()), **given}
    return McpServers(
        servers, lab.supervisor, env=lab.env, logs=lab.home / "logs", sandbox=lambda: lab.sandbox
    )


def _tools(lab: Services) -> list[Tool]:
    """Return the native tools, and those that runs are offered on request."""
    return [
        *native_tools(),
        *task_tools(),
        delegate,
        *memory_tools(),
        *web_tools(Reach(env=lab.env)),
        *retrieval_tools(lab.indexes),
        *kernel_tools(lab.kernels),
        *cell_tools(),
    ]
