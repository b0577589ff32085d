"""`kestrel mcp find|install|installed|remove`: servers that are not configured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from kestrel_lab.cli.face import Face
from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.text import one_line, plain
from kestrel_lab.engine.blocking import run_blocking
from kestrel_lab.engine.sources import Sources
from kestrel_lab.lab import Lab
from kestrel_lab.tools.mcp.install import InstallError, Locked, install, made_here, refuse_taken
from kestrel_lab.tools.mcp.installed import Installed, check_seal, folder_of, remove_folder, short_name
from kestrel_lab.tools.mcp.rubric import Judged
from kestrel_lab.views.html import paragraph_html, pre_html, table_html
from kestrel_lab.views.text import table_text


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundServers:
    """Servers that could be had, with their points."""

    need: str
    judged: tuple[Judged, ...]
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

    @property
    def _told(self) -> str:
        if not self.judged:
            return f"nothing was found for {one_line(self.need)!r}; mcp_registry names a registry to look in too"
        return f"kestrel mcp install {self.judged[0].entry.name} shows what it would install"

    def __repr__(self) -> str:
        lines = (
            [table_text(*self.table()), f"\nthe points of {self.judged[0].entry.name}:", repr(self.judged[0]), ""] if self.judged else []
        )
        return plain("\n".join([*lines, *([self.problem] if self.problem else []), self._told]))

    def _repr_html_(self) -> str:
        problem = paragraph_html(self.problem) if self.problem else ""
        best = self.judged[:1]
        tables = [
            table_html(*self.table()),
            *(paragraph_html(f"the points of {one.entry.name}:") + table_html(*one.table()) for one in best),
        ]
        return ("".join(tables) if best else "") + problem + paragraph_html(self._told)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What would be installed, or was."""

    judged: Judged
    locked: Locked
    root: Path
    done: Installed | None = None
    tools: tuple[str, ...] = ()

    def __repr__(self) -> str:
        package = self.locked.package
        lines = [f"{package.pin}, sha256 {package.sha256}", repr(self.judged)]
        lines.append(f"{self.locked.packages} packages in all, each with its hash; list {self.locked.hash}")
        lines += [f"runs: {_words(argv)}" for argv in self.locked.commands(self.root)]
        lines.append(f"then starts: {_words(self.locked.start(self.root, Path.cwd()))}")
        if package.variables:
            lines.append(f"and gives it of your environment: {', '.join(package.variables)}")
        if self.done is None:
            lines.append(f"nothing was installed yet: kestrel mcp install {package.pin} --yes does it")
        else:
            lines.append(f"installed as {self.done.server}: {', '.join(self.tools)}")
            lines.append(f"a run is offered them with --tools default,{self.done.server}")
        return plain("\n".join(lines))

    def _repr_html_(self) -> str:
        return pre_html(repr(self))


class InstalledTable(tuple[tuple[str, ...], ...]):
    """What is installed, as a table."""

    __slots__ = ()

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row of texts per server."""
        return ("server", "package", "packages", "files", "folder"), list(self)

    def __repr__(self) -> str:
        return table_text(*self.table()) if self else "no MCP server is installed: kestrel mcp find NEED looks for one"

    def _repr_html_(self) -> str:
        return table_html(*self.table()) if self else pre_html(repr(self))


def find(
    ctx: typer.Context, need: Annotated[list[str], typer.Argument(metavar="NEED", help="What its tools should do, in a few words.")]
) -> FoundServers:
    """Look for MCP servers in the catalogue, and in the registry that mcp_registry names; installs nothing."""
    text = " ".join(need)
    judged, problem = run_blocking(_lab(ctx).sources.search(text, 8))
    return FoundServers(need=text, judged=tuple(judged), problem=problem)


def install_server(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME[==VERSION]", help="As `kestrel mcp find` shows it; npm:NAME==VERSION for one of npm.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Install it, and approve it with the tools it has then.")] = False,
) -> Offer:
    """Show exactly what installing an MCP server would do; with --yes do it, in a folder of its own."""
    lab = _lab(ctx)
    entry = lab.sources.entry(name)
    if entry.package is None:
        msg = f"{entry.name} cannot be installed: {entry.problem}"
        raise UsageError(msg)
    try:
        locked = run_blocking(lab.sources.locked(entry.package))
        offer = Offer(judged=lab.sources.judged(entry, ""), locked=locked, root=lab.sources.root)
        return run_blocking(_installed(lab, offer)) if yes else offer
    except InstallError as error:
        raise UsageError(str(error)) from error


def list_installed(ctx: typer.Context) -> InstalledTable:
    """List installed MCP servers, and whether their files are as they were left."""
    return InstalledTable(tuple(_row(one) for one in _lab(ctx).sources.installed()))


def remove(
    ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="The server, as `kestrel mcp installed` lists it.")]
) -> str:
    """Remove an installed MCP server, and approve it no longer."""
    lab = _lab(ctx)
    known = {one.server: one for one in lab.sources.installed()}
    if name not in known:
        msg = f"no MCP server {name!r} is installed: {nearest(name, known)}"
        raise UsageError(msg)
    lab.mcp.approvals.withdraw(known[name].config(Path.cwd()))
    run_blocking(lab.mcp.forget(name))
    remove_folder(known[name].folder)
    return f"{known[name].package.pin} is removed"


async def _installed(lab: Lab, offer: Offer) -> Offer:
    sources: Sources = lab.sources
    package, entry = offer.locked.package, offer.judged.entry
    known = await asyncio.to_thread(made_here, folder_of(sources.root, package), sources.env)
    server = known.server if known is not None else short_name(package)
    if known is None:
        refuse_taken(server, lab.mcp.names)
    got = await install(offer.locked, sources.root, server=server, entry=entry.name, env=sources.env)
    await lab.mcp.adopt(got.config(Path.cwd()))
    await lab.mcp.approve(got.server)
    return replace(offer, done=got, tools=tuple(tool.name for tool in lab.mcp.tools(got.server)))


def _row(one: Installed) -> tuple[str, ...]:
    seal = one.config(Path.cwd()).seal
    assert seal is not None  # an installed server has one
    try:
        check_seal(seal)
        state = "as installed"
    except ConnectionError:
        state = "changed: it is not started"
    return (one.server, one.package.pin, str(one.packages), state, str(one.folder))


def _words(argv: tuple[str, ...]) -> str:
    return " ".join(word if word and all(sign.isalnum() or sign in "-_./:=@+,~" for sign in word) else repr(word) for word in argv)


def _lab(ctx: typer.Context) -> Lab:
    face: Face = ctx.find_root().obj
    return face.lab()
