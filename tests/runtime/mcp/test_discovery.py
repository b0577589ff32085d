"""Where servers come from: the entry that a person names, what is listed for a need, and how a server differs
from what was approved.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_uv import entry, make_uv, write_catalogue

from kestrel_lab.core.errors import UsageError
from kestrel_lab.mcp.approvals import Definition
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.mcp.registry.catalogue import Package, named_package, read_entry
from kestrel_lab.mcp.registry.install import InstallError
from kestrel_lab.mcp.registry.installed_servers import InstalledServer, write_installed
from kestrel_lab.runtime.mcp.discovery import ExpansionSettings, Sources, installed_servers
from kestrel_lab.runtime.mcp.server_table import ServerCheck, ServerRow, ServerTable

HASH = "a" * 64
WEATHER = "Tell the weather forecast of a town."


def sources(tmp_path: Path, *entries: dict[str, Any], **env: str) -> Sources:
    """Sources with this catalogue."""
    return Sources(
        root=tmp_path / "mcp",
        env=env,
        settings=ExpansionSettings(catalogue=write_catalogue(tmp_path / "c.jsonl", *entries)),
    )


@pytest.mark.parametrize("name", ["io.github.someone/mcp-echo", "mcp-echo", "mcp-echo==1.0.0"])
def test_an_entry_is_named_by_its_name_its_package_or_its_pin(name: str, tmp_path: Path) -> None:
    """With the hash that the catalogue has for it."""
    found = sources(tmp_path, entry("a/other"), entry(fileSha256=HASH)).entry(name)
    assert found.package == Package(kind="pypi", name="mcp-echo", version="1.0.0", sha256=HASH)


def test_another_version_or_package_is_named_with_its_version(tmp_path: Path) -> None:
    """What the catalogue says of the server holds for another version, but for the hash; of an unknown one
    nothing is known.
    """
    from_here = sources(tmp_path, entry(fileSha256=HASH))
    other = from_here.entry("mcp-echo==2.0")
    assert (other.name, other.version, other.package) == (
        "io.github.someone/mcp-echo",
        "2.0",
        named_package("mcp-echo==2.0"),
    )
    unknown = from_here.entry("npm:@scope/server==1.0.0")
    assert (unknown.name, unknown.version, unknown.source) == ("unknown/server", "1.0.0", "you")
    assert unknown.package == named_package("npm:@scope/server==1.0.0")
    with pytest.raises(UsageError, match="no version"):
        from_here.entry("mcp-nothing")


def test_what_fits_a_need_is_listed_best_first(tmp_path: Path) -> None:
    """And nothing that hardly fits; a registry that does not answer is told beside it, and the catalogue goes
    before the registry.
    """
    from_here = sources(
        tmp_path,
        entry("io.github.a/echo", "Echo a text back."),
        entry("io.github.a/weather", WEATHER),
        entry("io.github.modelcontextprotocol/weather", WEATHER),
        entry("io.github.a/town", "Draw a town."),
    )

    class Answering:
        async def search(self, need: str) -> list[Any]:
            again = read_entry(entry("io.github.a/weather", f"{WEATHER} Again."), "https://r")
            return [again, replace(again, name="io.github.b/weather", package=None, problem="none")]

    class Silent:
        async def search(self, need: str) -> list[Any]:
            raise ConnectionError("the registry did not answer")

    def names(top_k: int) -> tuple[list[str], str]:
        found, problem = asyncio.run(from_here.search("weather forecast", top_k))
        return [one.entry.name for one in found], problem

    assert names(5) == (["io.github.modelcontextprotocol/weather", "io.github.a/weather"], "")
    assert names(1)[0] == ["io.github.modelcontextprotocol/weather"]
    from_here.__dict__["registry"] = Silent()
    assert names(5) == (
        ["io.github.modelcontextprotocol/weather", "io.github.a/weather"],
        "the registry did not answer",
    )
    from_here.__dict__["registry"] = Answering()
    found, _ = asyncio.run(from_here.search("weather forecast", 5))
    assert {one.entry.name: one.entry.source.startswith("https") for one in found} == {
        "io.github.modelcontextprotocol/weather": False,
        "io.github.a/weather": False,
        "io.github.b/weather": True,
    }


def test_a_list_that_is_gone_is_looked_for_again(tmp_path: Path) -> None:
    """What was locked is kept under its hash until it is installed."""
    from_here = sources(tmp_path, PATH=make_uv(tmp_path / "uv"), XDG_CONFIG_HOME=str(tmp_path))
    package = named_package("mcp-echo==1.0.0")
    locked = asyncio.run(from_here.locked(package))
    assert from_here.kept(locked.package, locked.hash, locked.packages) == locked
    with pytest.raises(InstallError, match="is gone or was changed"):
        from_here.kept(package, "0" * 64, 1)


def test_installed_servers_have_names_of_their_own(tmp_path: Path) -> None:
    """One whose name another server has is left out."""
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        package = named_package(f"mcp-{name}==1.0")
        write_installed(
            InstalledServer(
                server=name, entry="", package=package, lock="l", packages=1, tree="t", folder=folder
            )
        )
    found = installed_servers(tmp_path, ["two", "three"], Path("/w"))
    assert {name: config.command for name, config in found.items()} == {
        "one": str(tmp_path / "one/bin/mcp-one")
    }


def test_a_server_is_held_against_what_was_approved() -> None:
    """A tool that is new, one that is gone and one that is another each have a diff, in the order of their
    names; equal ones have none.
    """

    def tools(**described: str) -> dict[str, Definition]:
        return {
            name: Definition(name=name, fields={"name": name, "description": text})
            for name, text in described.items()
        }

    def check(now: dict[str, Definition], approved: dict[str, Definition] | None) -> tuple[str, ...]:
        return ServerCheck(
            server=ServerConfig(name="s", command="x"), tools=now, refused={}, approved=approved
        ).changes

    before, now = tools(same="s", gone="g", other="o"), tools(same="s", new="n", other="another")
    gone, new, other = check(now, before)
    assert "-" in gone and '- "description": "g"' in gone and '+ "description": "n"' in new
    assert '- "description": "o"' in other and '+ "description": "another"' in other
    assert len(check(now, None)) == 3 and check(before, before) == ()
    row = ServerRow(name="s", state="ready", tools=2, what="x", sandbox="S3", reason="", source="")
    headings, rows = ServerTable([row]).table()
    assert len(headings) == 7 and rows == [("s", "ready", "2", "x", "S3", "", "code")]
