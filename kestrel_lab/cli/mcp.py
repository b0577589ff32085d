"""`kestrel mcp …`: servers of tools; and being one for other programs."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from kestrel_lab.cli.face import Face
from kestrel_lab.cli.mcpinstall import find, install_server, list_installed, remove
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.text import one_line, plain
from kestrel_lab.engine.blocking import run_blocking
from kestrel_lab.engine.mcp import Checked
from kestrel_lab.engine.mcpserver import serve_stdio
from kestrel_lab.engine.mcptable import ServerTable
from kestrel_lab.middleware.policy import Policy
from kestrel_lab.views.html import pre_html

mcp = typer.Typer(
    help="List MCP servers; check, approve and withdraw them; find and install others; serve the tools of this lab to other programs.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

mcp.command()(find)
mcp.command("install")(install_server)
mcp.command("installed")(list_installed)
mcp.command()(remove)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The server, as `kestrel mcp` lists it.")]


@dataclass(frozen=True, slots=True)
class CheckedText:
    """What a check found, for reading."""

    checked: Checked
    done: str = ""
    """What was done with it."""

    def __repr__(self) -> str:
        checked = self.checked
        server, count = checked.server, len(checked.tools)
        lines = [f"{server.name}: ready, {checked.who or 'does not say who it is'}, {count} tool{'' if count == 1 else 's'}"]
        lines.append(f"{'reached at' if server.url else 'started by'}: {server.shown}")
        for name, one in checked.tools.items():
            trust = server.trust_in(name)
            lines.append(f"  {server.name}:{name}  {trust.danger.name}, {trust.effect}  {one_line(one.description, 90)}")
        lines += [f"  {name}: not offered: {why}" for name, why in checked.refused.items()]
        if self.done:
            lines.append(self.done)
        elif checked.approved is None:
            lines.append(f"not approved: kestrel mcp approve {server.name} allows this command with these tools")
        elif checked.changes:
            lines += ["changed since it was approved:", *checked.changes]
            lines.append(f"changed tools are not called until they are approved: kestrel mcp approve {server.name}")
        else:
            lines.append("approved as it is")
        return plain("\n".join(lines))

    def _repr_html_(self) -> str:
        return pre_html(repr(self))


@mcp.callback()
def list_servers(ctx: typer.Context) -> ServerTable | None:
    """List MCP servers; check, approve and withdraw them; find and install others; serve the tools of this lab to other programs."""
    return _face(ctx).lab().mcp.table() if ctx.invoked_subcommand is None else None


@mcp.command("list")
def list_again(ctx: typer.Context) -> ServerTable:
    """List the servers and how each stands; starts none."""
    return _face(ctx).lab().mcp.table()


@mcp.command()
def check(
    ctx: typer.Context, name: Name, *, start: Annotated[bool, typer.Option("--start", help="Start it although it is not approved.")] = False
) -> CheckedText:
    """Start a server and show its tools, and what has changed since they were approved."""
    servers = _face(ctx).lab().mcp
    if not start and (row := servers.row(name)).state == "not approved":
        msg = (
            f"{name} is not approved, so it is not started. It would be: {row.what}. Start it for a look: kestrel mcp check {name} --start"
        )
        raise UsageError(msg)
    return CheckedText(run_blocking(servers.check(name)))


@mcp.command()
def approve(ctx: typer.Context, name: Name) -> CheckedText:
    """Start a server and allow it with the tools it has now; what that changes is shown."""
    checked = run_blocking(_face(ctx).lab().mcp.approve(name))
    changes = "\n".join(checked.changes)
    return CheckedText(
        checked, (f"{changes}\n" if checked.approved and changes else "") + "approved: its tools may be offered to runs from now on"
    )


@mcp.command()
def withdraw(ctx: typer.Context, name: Name) -> str:
    """Approve a server no longer: its tools are not offered any more."""
    return f"{name} is no longer approved" if _face(ctx).lab().mcp.withdraw(name) else f"{name} was not approved"


@mcp.command(epilog="Example for a client's configuration: command kestrel, args mcp serve --approve deny")
def serve(
    ctx: typer.Context,
    *,
    approve: Annotated[
        str, typer.Option(help="deny (only SAFE and LOW calls), auto:LEVEL or auto. Nobody is asked: what is not allowed is refused.")
    ] = "deny",
    workspace: Annotated[str, typer.Option(help="The only folder that file tools may touch.")] = ".",
    tools: Annotated[str | None, typer.Option(help="Names of the tools to offer, with commas between; all by default.")] = None,
    goals: Annotated[bool, typer.Option("--goals/--no-goals", help="Also offer run_goal, which has an agent work on a goal.")] = True,
) -> None:
    """Be an MCP server on standard input and output: other programs call this lab's tools and have it run goals."""
    if Policy.parse(approve).unattended is False:
        msg = f"--approve {approve}: nobody can be asked here; use deny, auto:LEVEL or auto"
        raise UsageError(msg)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        msg = "serve is for a terminal: another program starts it and talks to its standard input; here that is the notebook's"
        raise UsageError(msg)
    if sys.stdin.isatty():
        typer.echo("waiting for an MCP client on standard input; Ctrl-D ends it", err=True)
    names = None if tools is None else [word.strip() for word in tools.split(",") if word.strip()]
    run_blocking(serve_stdio(_face(ctx).lab(), approve=approve, workspace=workspace, tools=names, goals=goals))


def _face(ctx: typer.Context) -> Face:
    face: Face = ctx.find_root().obj
    return face
