"""What a server of tools may see of the files of this machine: its installation, what its table names, and
nothing unrelated.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.mcp.sandboxing import _places, installation_folder, network_hint, program_path
from kestrel_lab.tools.sandbox.levels import Level


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a tool in a folder of its own, its interpreter in another, and private files."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("tool/bin", "python/bin", "base/bin", "work/data", "private"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in (
        ("tool/bin/serve", "#!/usr/bin/env -S interp -u\n"),
        ("python/bin/interp", "\x7fELF"),
        ("base/bin/python3", "\x7fELF"),
        ("python/pyvenv.cfg", f"home = {tmp_path}/base/bin\n"),
        ("work/data/table.csv", "1"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tool/bin/link").symlink_to("serve")
    return tmp_path


def seen(
    machine: Path,
    *,
    path: str = "tool/bin:python/bin",
    command: str = "serve",
    folder: str = "work",
    **table: Any,
) -> tuple[list[str], list[str]]:
    """What it may read and write, as seen from the home."""
    env = {"PATH": os.pathsep.join(str(machine / part) for part in path.split(":"))}
    config = ServerConfig(name="a", command=command, **table)
    place = machine / folder
    read, write = _places(config, place, program_path(config.command, place, env), env)
    return [os.path.relpath(one, machine) for one in read], [os.path.relpath(one, machine) for one in write]


def test_a_server_sees_its_installation_its_interpreter_and_that_ones_base(machine: Path) -> None:
    """Also through a link, and where it is named by a path; an interpreter that is nowhere is none."""
    assert seen(machine) == seen(machine, command="link") == (["base", "python", "tool", "work"], [])
    assert seen(machine, command="../tool/bin/serve") == (["base", "python", "tool", "work"], [])
    assert seen(machine, path="tool/bin") == (["tool", "work"], [])
    with pytest.raises(FileNotFoundError, match="nothing"):
        seen(machine, command="nothing")


def test_a_folder_of_unrelated_things_is_not_shown(machine: Path) -> None:
    """Neither as the place where it starts nor as that of a program."""
    assert seen(machine, folder=".") == (["base", "python", "tool"], [])
    (machine / "serve").write_text("")
    assert installation_folder(machine / "serve") == machine / "serve"
    assert installation_folder(machine / "tool/bin/serve") == machine / "tool"
    assert installation_folder(machine / "tool/other/serve") == machine / "tool/other"
    assert installation_folder(machine / "x/node_modules/y/bin/z") == machine / "x"
    assert installation_folder(Path("/usr/bin/env")) is None


@pytest.mark.parametrize(
    ("table", "more"),
    [
        ({"args": ("data/table.csv",)}, ["work/data", "work/data/table.csv"]),
        ({"args": ("--db=data/table.csv",)}, ["work/data", "work/data/table.csv"]),
        ({"args": ("../private",)}, ["private"]),
        ({"args": ("/", "", "no/such", "x\0y")}, []),
        ({"env": {"A": "HOME/private:data:/no/such"}}, ["private"]),
        ({"env": {"A": "/"}}, []),
        ({"read": ("../private",)}, ["private"]),
        ({"read": ("~/private",)}, ["private"]),
    ],
)
def test_what_its_table_names_is_shown(machine: Path, table: dict[str, Any], more: list[str]) -> None:
    """Paths in arguments and variables as far as they exist, and those given for it."""
    if "env" in table:
        table = {"env": {name: value.replace("HOME", str(machine)) for name, value in table["env"].items()}}
    assert seen(machine, **table) == (
        sorted(["base", "python", "tool", "work", *more], key=lambda one: Path(machine, one)),
        [],
    )


def test_what_it_may_write_is_not_only_read(machine: Path) -> None:
    """And a path that is given and does not exist is named."""
    assert seen(machine, read=("../private",), write=("../private", "data")) == (
        ["base", "python", "tool", "work"],
        ["private", "work/data"],
    )
    for key in ("read", "write"):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            seen(machine, **{key: ("nowhere",)})


def test_a_folder_among_the_arguments_is_shown_without_what_is_around_it(machine: Path) -> None:
    """Only a file brings its folder along."""
    for name in ("place/deep", "place/other"):
        (machine / name).mkdir(parents=True)
    assert seen(machine, args=("../place/deep",)) == (["base", "place/deep", "python", "tool", "work"], [])


@pytest.mark.parametrize(
    ("command", "network", "level", "said", "hint"),
    [
        ("serve", False, Level.S2, "getaddrinfo EAI_AGAIN example.org", True),
        ("serve", True, Level.S2, "getaddrinfo EAI_AGAIN example.org", False),
        ("serve", False, Level.S0, "getaddrinfo EAI_AGAIN example.org", False),
        ("serve", False, None, "getaddrinfo EAI_AGAIN example.org", False),
        ("serve", False, Level.S2, "no such page", False),
        ("/usr/bin/uvx", False, Level.S1, "it was not ready within 20 s", True),
        ("npx", True, Level.S1, "it was not ready within 20 s", False),
    ],
)
def test_how_to_allow_the_network_is_said_where_it_is_shut(
    command: str, network: bool, level: Level | None, said: str, hint: bool
) -> None:
    """For what looks like it, and for programs that download a server before they start it."""
    wanted = "; it has no network: if it needs one, set network = true for the MCP server 'a'" if hint else ""
    assert network_hint(ServerConfig(name="a", command=command, network=network), level, said) == wanted
