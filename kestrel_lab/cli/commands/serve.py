"""`kestrel serve` and `kestrel follow`: programs, pages and terminals as protocol clients."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.text import Text

from kestrel_lab.cli.attach import TerminalClient
from kestrel_lab.cli.frontend import Approve, Model, frontend_of, positive, run_options
from kestrel_lab.cli.terminal import TerminalDisplay
from kestrel_lab.core.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from kestrel_lab.core.protocols import Approver
    from kestrel_lab.lab import Lab
    from kestrel_lab.runtime.run import Run
    from kestrel_lab.runtime.services import Services
    from kestrel_lab.server.controller import Control

serving = typer.Typer()


@serving.command(epilog="Example: kestrel serve, then open the address that it prints")
def serve(
    ctx: typer.Context,
    *,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port on this machine; any free one if left out. With a fixed one pages outlive a restart.",
        ),
    ] = 0,
    stdio: Annotated[
        bool,
        typer.Option(
            "--stdio",
            help="Use JSON lines on standard input and output instead; the server ends with the input.",
        ),
    ] = False,
    allow_start: Annotated[
        bool, typer.Option("--allow-start", help="Clients may also start and resume runs.")
    ] = False,
    workspace: Annotated[str, typer.Option(help="The folder for runs that clients start.")] = ".",
    approval_timeout: Annotated[
        float | None,
        typer.Option(
            callback=positive,
            help="Deny questions of these runs that nobody has answered after so many seconds.",
        ),
    ] = None,
) -> None:
    """Show the runs of every process on a web page of this machine, and decide on them there."""
    only_in_a_terminal("serve")
    frontend = frontend_of(ctx)
    if not Path(workspace).is_dir():
        raise UsageError(f"--workspace {workspace}: there is no such folder")
    from kestrel_lab.server.controller import Control  # loads pydantic

    control = Control(
        frontend.lab(),
        user=frontend.user,
        can_start=allow_start,
        workspace=Path(workspace),
        patience_s=approval_timeout,
        always=not stdio,
    )
    asyncio.run(_serve_lines(control) if stdio else _serve_page(control, frontend.lab(), port))


@serving.command(epilog="Example: name `kestrel acp` as the command of an agent in the settings of an editor")
def acp(
    ctx: typer.Context,
    *,
    model: Model = None,
    approve: Approve = None,
) -> None:
    """Run as an agent inside an editor that speaks the agent client protocol (ACP): it starts this command
    and talks to it.
    """
    only_in_a_terminal("acp")
    from kestrel_lab.server.acp_server import serve_acp

    asyncio.run(serve_acp(frontend_of(ctx).lab(), **run_options(ctx.params)))


@serving.command(epilog="Example: kestrel follow RUN, while a notebook or another terminal works on it")
def follow(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, as `kestrel runs` lists them.")],
) -> None:
    """Watch a run of any process until it ends, and answer its questions here; Ctrl-C stops watching only."""
    only_in_a_terminal("follow")
    frontend = frontend_of(ctx)
    frontend.lab().store.run(run_id)
    asyncio.run(_follow(frontend.lab(), frontend.user, run_id))


async def _follow(lab: Lab, user: str, run_id: str) -> None:
    from kestrel_lab.server.controller import Control  # loads pydantic

    console = Console() if sys.stdout.isatty() else Console(width=200, force_terminal=False)
    display = TerminalDisplay(console)
    async with Control(lab, user=user) as control:
        # Runs of other processes wait for their own people.
        link = control.connect(how="prompt", person=False)
        with display.shown():
            await TerminalClient(link, console, display, ask=sys.stdin.isatty(), user=user).follow(run_id)
    console.print(display.ending())


async def _serve_page(control: Control, lab: Lab, port: int) -> None:
    from kestrel_lab.server.serve import serve_control as served  # loads starlette and uvicorn

    async with control, served(control, port=port) as (address, work):
        console = Console(stderr=True)
        console.print(
            Text(
                f"Runs of {lab.store.path}. Ctrl-C stops the server. Open this link; anybody "
                "who has it can decide on these runs:"
            ),
            soft_wrap=True,
        )
        # Not through the console, which would break the line.
        sys.stdout.write(f"{address.link}\n")
        sys.stdout.flush()
        await work
        console.print(
            Text("The server has stopped. Runs that wait for a decision go on waiting: kestrel runs")
        )


async def _serve_lines(control: Control) -> None:
    from kestrel_lab.server.stdio import serve_lines, standard_streams

    if sys.stdin.isatty():
        typer.echo("waiting for messages on standard input, one per line; Ctrl-D ends it", err=True)
    async with control:
        with standard_streams() as (reading, writing):
            await serve_lines(control.connect(), reading, writing)


class LinesScreen:
    """The screen of `--control stdio`: events are JSON lines on stdout, decisions come on stdin."""

    approver: Approver | None = None

    def __init__(self, lab: Services, user: str, patience_s: float | None) -> None:
        self._lab, self._user, self._patience_s = lab, user, patience_s
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        from kestrel_lab.server.controller import Control  # loads pydantic
        from kestrel_lab.server.stdio import standard_streams

        self._control = await self._opened.enter_async_context(
            Control(self._lab, user=self._user, patience_s=self._patience_s)
        )
        self._streams = self._opened.enter_context(standard_streams())
        self._link = self._control.connect()
        self.approver = self._attended = self._control.approver()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)

    async def show(self, run: Run) -> Run:
        """Write the run from start to `end`; raises `ApprovalRequired` if it asks after the input ended."""
        from kestrel_lab.server.stdio import LineTransport

        self._attended.run = run.id
        await self._link.send({"type": "subscribe", "run": run.id})
        transport = LineTransport(self._link, *self._streams)
        try:
            await run.wait()
            await self._link.ended(run.id)
        finally:
            await transport.finish()
        return run


def only_in_a_terminal(name: str) -> None:
    """Raise `UsageError` in a notebook, whose process a server may not take."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # No loop runs, so this is no notebook: the server may take the process.
        return
    raise UsageError(
        f"{name} is for a terminal: it works until it is stopped; a notebook shows runs in their panels"
    )
