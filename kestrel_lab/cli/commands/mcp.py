"""`kestrel mcp …`: configured servers, the catalogue, logins, and serving this lab's tools."""

from __future__ import annotations

import asyncio
import shlex
import sys
import webbrowser
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.frontend import command_group, frontend_of
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.lab import Lab
from kestrel_lab.mcp.registry.install import (
    InstallError,
    LockedPackage,
    check_name_free,
    install_package,
    own_installation,
)
from kestrel_lab.mcp.registry.installed_servers import (
    InstalledServer,
    check_seal,
    folder_of,
    remove_folder,
    short_name,
    start_of,
)
from kestrel_lab.mcp.registry.scoring import ScoredEntry
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.runtime.mcp.discovery import Sources
from kestrel_lab.runtime.mcp.server_table import ServerCheck, ServerTable
from kestrel_lab.runtime.mcp.servers import McpServers
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.runtime.workflows.loader import workflow_servers
from kestrel_lab.server.mcp_server import serve_stdio
from kestrel_lab.views.html.table_view import Part, PartsView, Table, TableView, TextView

if TYPE_CHECKING:
    from kestrel_lab.runtime.services import Services

mcp = command_group(
    "List MCP servers; check, approve, log in to and withdraw them; find and install others; serve the "
    "tools of this lab to other programs.",
    invoke_without_command=True,
)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FoundServers(PartsView):
    """Servers that could be had, with their points."""

    need: str
    judged: tuple[ScoredEntry, ...]
    problem: str = ""

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row of texts per server."""
        rows: list[tuple[str, ...]] = [
            (
                one.entry.name,
                f"{one.score} of 100",
                "" if one.entry.package is None else one.entry.package.pin,
                one_line(one.entry.description, 100),
                one_line("; ".join([one.entry.problem, *one.warnings]).strip("; "), 200),
            )
            for one in self.judged
        ]
        return ("server", "points", "package", "says of itself", "against it"), rows

    def parts(self) -> Iterable[Part]:
        """Return the servers, the points of the best one, and how to go on."""
        problem = [self.problem] if self.problem else []
        if not self.judged:
            return [
                *problem,
                f"nothing was found for {one_line(self.need)!r}; the setting mcp_registry adds a "
                "registry to search",
            ]
        best = self.judged[0]
        points = ["", f"the points of {best.entry.name}:", *best.parts(), ""]
        return [
            Table(*self.table()),
            *points,
            *problem,
            f"kestrel mcp install {best.entry.name} shows what it would install",
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer(TextView):
    """What would be installed, or was."""

    judged: ScoredEntry
    locked: LockedPackage
    root: Path
    done: InstalledServer | None = None
    tools: tuple[str, ...] = ()

    def __repr__(self) -> str:
        package = self.locked.package
        lines = [f"{package.pin}, sha256 {package.sha256}", repr(self.judged)]
        lines.append(f"{self.locked.packages} packages in all, each with its hash; list {self.locked.hash}")
        lines += [f"runs: {shlex.join(argv)}" for argv in self.locked.commands(self.root)]
        lines.append(
            f"then starts: {shlex.join(start_of(package, folder_of(self.root, package), Path.cwd()))}"
        )
        if package.variables:
            lines.append(f"and passes these environment variables: {', '.join(package.variables)}")
        if self.done is None:
            lines.append(f"nothing was installed yet: kestrel mcp install {package.pin} --yes does it")
        else:
            lines.append(f"installed as {self.done.server}: {', '.join(self.tools)}")
            lines.append(f"a run is offered them with --tools default,{self.done.server}")
        return sanitize_text("\n".join(lines))


class InstalledTable(TableView, tuple[tuple[str, ...], ...]):
    """What is installed, as a table."""

    __slots__ = ()
    nothing = "no MCP server is installed: kestrel mcp find NEED looks for one"

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row of texts per server."""
        return ("server", "package", "packages", "files", "folder"), list(self)


@mcp.command()
def find(
    ctx: typer.Context,
    need: Annotated[
        list[str], typer.Argument(metavar="NEED", help="What its tools should do, in a few words.")
    ],
) -> FoundServers:
    """Look for MCP servers in the catalogue, and in the registry that mcp_registry names; installs
    nothing.
    """
    text = " ".join(need)
    judged, problem = run_blocking(frontend_of(ctx).lab().registry.sources.search(text, 8))
    return FoundServers(need=text, judged=tuple(judged), problem=problem)


@mcp.command("install")
def install_server(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[==VERSION]",
            help="As `kestrel mcp find` shows it; npm:NAME==VERSION for one of npm.",
        ),
    ],
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Install the server, and approve it with the tools it then has.")
    ] = False,
) -> Offer:
    """Show exactly what installing an MCP server would do; with --yes do it, in a folder of its own."""
    lab = frontend_of(ctx).lab()
    entry = lab.registry.sources.entry(name)
    if entry.package is None:
        raise UsageError(f"{entry.name} cannot be installed: {entry.problem}")
    try:
        locked = run_blocking(lab.registry.sources.locked(entry.package))
        offer = Offer(
            judged=lab.registry.sources.judged(entry, ""),
            locked=locked,
            root=lab.registry.sources.root,
        )
        return run_blocking(_install_offer(lab, offer)) if yes else offer
    except InstallError as error:
        raise UsageError(str(error)) from error


@mcp.command("installed")
def list_installed(ctx: typer.Context) -> InstalledTable:
    """List installed MCP servers, and whether their files are as they were left."""
    return InstalledTable(tuple(_row(one) for one in frontend_of(ctx).lab().registry.sources.installed()))


@mcp.command()
def remove(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The server, as `kestrel mcp installed` lists it.")
    ],
) -> str:
    """Remove an installed MCP server, and approve it no longer."""
    lab = frontend_of(ctx).lab()
    known = {one.server: one for one in lab.registry.sources.installed()}
    if name not in known:
        raise UsageError(f"no MCP server {name!r} is installed: {did_you_mean(name, known)}")
    # The approval first: a server that is half removed must not be started.
    lab.mcp.approvals.withdraw(known[name].config(Path.cwd()))
    run_blocking(lab.mcp.forget(name))
    remove_folder(known[name].folder)
    return f"{known[name].package.pin} is removed"


async def _install_offer(lab: Lab, offer: Offer) -> Offer:
    sources: Sources = lab.registry.sources
    package, entry = offer.locked.package, offer.judged.entry
    known = await asyncio.to_thread(own_installation, folder_of(sources.root, package), sources.env)
    server = known.server if known is not None else short_name(package)
    if known is None:
        # Not for one that is installed already, whose name is taken by itself.
        check_name_free(server, lab.mcp.names)
    got = await install_package(offer.locked, sources.root, server=server, entry=entry.name, env=sources.env)
    await lab.mcp.adopt(got.config(Path.cwd()))
    await lab.mcp.approve(got.server)
    return replace(offer, done=got, tools=tuple(tool.name for tool in lab.mcp.tools(got.server)))


def _row(one: InstalledServer) -> tuple[str, ...]:
    seal = one.config(Path.cwd()).seal
    assert seal is not None  # an installed server has one
    try:
        check_seal(seal)
        state = "as installed"
    except ConnectionError:
        # The files differ from the lock that was approved.
        state = "changed: it is not started"
    return (one.server, one.package.pin, str(one.packages), state, str(one.folder))


MOST_DESCRIBED = 4_000
"""Characters of a tool's description that models are given: whoever approves a server sees all of them."""
Name = Annotated[str, typer.Argument(metavar="NAME", help="The server, as `kestrel mcp` lists it.")]


OfWorkflow = Annotated[
    str,
    typer.Option("--plan", metavar="NAME|FILE", help="A workflow that has the server under `mcp_servers`."),
]


def _servers(ctx: typer.Context, plan: str) -> McpServers:
    """Return the servers of the lab, with those of a workflow."""
    servers = frontend_of(ctx).lab().mcp
    if plan:
        servers.add(workflow_servers(plan))
    return servers


@dataclass(frozen=True, slots=True)
class CheckedText(TextView):
    """What a check found, for reading."""

    checked: ServerCheck
    done: str = ""
    """What was done with it."""

    def __repr__(self) -> str:
        checked = self.checked
        server, count = checked.server, len(checked.tools)
        lines = [
            f"{server.name}: ready, {checked.who or 'does not say who it is'}, {count} "
            f"tool{'' if count == 1 else 's'}"
        ]
        lines.append(f"{'reached at' if server.url else 'started by'}: {server.shown}")
        for name, one in checked.tools.items():
            trust = server.trust_in(name)
            says = f", says it {one.says}" if one.says else ""
            lines.append(
                f"  {server.name}:{name}  {trust.danger.name}, {trust.effect}{says}  "
                f"{one_line(one.description, MOST_DESCRIBED)}"
            )
        lines += [f"  {name}: not offered: {why}" for name, why in checked.refused.items()]
        if self.done:
            lines.append(self.done)
        elif checked.approved is None:
            lines.append(
                f"not approved: kestrel mcp approve {server.name} allows this command with these tools"
            )
        elif checked.changes:
            lines += ["changed since it was approved:", *checked.changes]
            lines.append(
                f"changed tools are not called until they are approved: kestrel mcp approve {server.name}"
            )
        else:
            lines.append("approved as it is")
        return sanitize_text("\n".join(lines))


@mcp.callback()
def list_servers(ctx: typer.Context) -> ServerTable | None:
    """List MCP servers; check, approve, log in to and withdraw them; find and install others; serve the tools
    of this lab to other programs.
    """
    return frontend_of(ctx).lab().mcp.table() if ctx.invoked_subcommand is None else None


@mcp.command("list")
def list_again(ctx: typer.Context) -> ServerTable:
    """List the servers and their states; none is started."""
    return frontend_of(ctx).lab().mcp.table()


@mcp.command()
def check(
    ctx: typer.Context,
    name: Name,
    *,
    start: Annotated[
        bool, typer.Option("--start", help="Start the server although it is not approved.")
    ] = False,
    plan: OfWorkflow = "",
) -> CheckedText:
    """Start a server and show its tools, and what has changed since they were approved."""
    servers = _servers(ctx, plan)
    if not start and (row := servers.row(name)).state == "not approved":
        raise UsageError(
            f"{name} is not approved, so it is not started. Its command: {row.what}. To start it and "
            f"see its tools: kestrel mcp check {name} --start"
        )
    return CheckedText(run_blocking(servers.check(name)))


@mcp.command()
def approve(ctx: typer.Context, name: Name, *, plan: OfWorkflow = "") -> CheckedText:
    """Start a server, show what has changed, and approve it with its present tools."""
    checked = run_blocking(_servers(ctx, plan).approve(name))
    changes = "\n".join(checked.changes)
    return CheckedText(
        checked,
        (f"{changes}\n" if checked.approved and changes else "")
        + "approved: its tools may be offered to runs from now on",
    )


@mcp.command()
def withdraw(ctx: typer.Context, name: Name, *, plan: OfWorkflow = "") -> str:
    """Withdraw the approval of a server: its tools are no longer offered."""
    return (
        f"{name} is no longer approved" if _servers(ctx, plan).withdraw(name) else f"{name} was not approved"
    )


@mcp.command(
    epilog="Example: kestrel mcp login tracker, log in on the page that opens, then kestrel mcp approve "
    "tracker"
)
def login(ctx: typer.Context, name: Name) -> CheckedText:
    """Log in to a server at an address (OAuth): opens its page in a browser and waits for the answer."""

    async def ask(text: str, options: tuple[str, ...]) -> str:
        typer.echo(sanitize_text(text), err=True)
        await asyncio.to_thread(webbrowser.open, text.rsplit("\n", 1)[-1])
        return options[0]

    return CheckedText(
        run_blocking(frontend_of(ctx).lab().mcp.login(name, ask)), f"connected as you to {name}"
    )


@mcp.command()
def logout(ctx: typer.Context, name: Name) -> str:
    """Forget the login to a server: its tokens and the registration of the client are removed from this
    machine.
    """
    known = frontend_of(ctx).lab().mcp.logout(name)
    return f"the login to {name} is forgotten" if known else f"there is no login to {name}"


@mcp.command()
def resources(
    ctx: typer.Context,
    name: Name,
    uri: Annotated[str, typer.Argument(metavar="[URI]", help="What to read, as the list names it.")] = "",
) -> str:
    """List the resources of an approved server, or print one."""
    answer = run_blocking(frontend_of(ctx).lab().mcp.request(name, lambda server: server.resource(uri)))
    return str(answer.value)


@mcp.command(epilog='Example: kestrel run "$(kestrel mcp prompts git commit-message style=short)"')
def prompts(
    ctx: typer.Context,
    name: Name,
    prompt: Annotated[str, typer.Argument(metavar="[PROMPT]", help="The prompt to print.")] = "",
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Its arguments.")
    ] = None,
) -> str:
    """List the prompts of an approved server, or print the text of one."""
    servers = frontend_of(ctx).lab().mcp
    if prompt:
        pairs = [word.partition("=") for word in values or ()]
        if wrong := [key for key, sign, _ in pairs if not sign]:
            raise UsageError(f"{wrong[0]!r} is not of the form KEY=VALUE")
        return run_blocking(
            servers.request(
                name, lambda server: server.prompt(prompt, {key: value for key, _, value in pairs})
            )
        )
    found = run_blocking(servers.request(name, lambda server: server.prompts()))
    lines = [
        one.name
        + "".join(f" {arg.name}=…" if arg.required else f" [{arg.name}=…]" for arg in one.arguments or ())
        + f"  {one_line(one.description or one.title or '', 200)}"
        for one in found
    ]
    return sanitize_text("\n".join(lines)) or f"{name} has no prompts"


@mcp.command(epilog="Example for a client's configuration: command kestrel, args mcp serve --approve deny")
def serve(
    ctx: typer.Context,
    *,
    approve: Annotated[
        str,
        typer.Option(
            help="deny (only SAFE and LOW calls), auto:LEVEL or auto. Nobody is asked: what is not "
            "allowed is refused."
        ),
    ] = "deny",
    workspace: Annotated[str, typer.Option(help="The only folder that file tools may touch.")] = ".",
    tools: Annotated[
        str | None, typer.Option(help="Names of the tools to offer, separated by commas; all by default.")
    ] = None,
    http: Annotated[
        int | None,
        typer.Option(
            "--http",
            min=0,
            max=65535,
            metavar="PORT",
            help="Serve over streamable HTTP on this port; 0 for any.",
        ),
    ] = None,
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token",
            help="With --http: every program of this machine may call the tools, without the token.",
        ),
    ] = False,
) -> None:
    """Serve the tools of this lab over MCP, on standard input and output or over HTTP on this machine."""
    if Policy.parse(approve).unattended is False:
        raise UsageError(f"--approve {approve}: this server asks nobody; use deny, auto:LEVEL or auto")
    if no_token and http is None:
        raise UsageError("--no-token is for --http: standard input and output belong to who started this")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # No loop runs: a terminal, where this may block.
        pass
    else:
        raise UsageError(
            "kestrel mcp serve works only in a terminal: another program starts it and uses its "
            "standard input"
        )
    names = None if tools is None else [word.strip() for word in tools.split(",") if word.strip()]
    lab = frontend_of(ctx).lab()
    if http is not None:
        asyncio.run(
            _serve_http(lab, http, not no_token, {"approve": approve, "workspace": workspace, "tools": names})
        )
        return
    if sys.stdin.isatty():
        typer.echo("waiting for an MCP client on standard input; Ctrl-D ends it", err=True)
    run_blocking(serve_stdio(lab, approve=approve, workspace=workspace, tools=names))


async def _serve_http(lab: Services, port: int, token: bool, options: dict[str, Any]) -> None:
    from kestrel_lab.server.serve import serving_http  # loads starlette and uvicorn

    async with serving_http(lab, port=port, token=token, **options) as (bound, path, work):
        needs = "Requests need no token: every program of this machine may call these tools"
        if path is not None:
            needs = f"Requests need the token in {path} as Authorization: Bearer"
        typer.echo(f"MCP over HTTP; Ctrl-C stops the server. {needs}.", err=True)
        typer.echo(f"http://127.0.0.1:{bound}/mcp")
        await work
