"""Folders of installed servers and how they are filled: what is a whole one, what its seal covers, what each
installer is told.
"""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.mcp.config import Seal
from kestrel_lab.mcp.registry import install
from kestrel_lab.mcp.registry.catalogue import WORKSPACE, Package
from kestrel_lab.mcp.registry.install import (
    InstallError,
    LockedPackage,
    check_name_free,
    install_package,
    installer_for,
    lock_package,
)
from kestrel_lab.mcp.registry.installed_servers import (
    MARK,
    InstalledServer,
    check_seal,
    folder_of,
    list_installed,
    read_installed,
    short_name,
    tree_of,
    write_installed,
)

ECHO = Package(
    kind="pypi",
    name="mcp-echo",
    version="1.0",
    args=("--in", WORKSPACE),
    variables=("KEY",),
    settings=(("MODE", "fast"),),
)
NPM = Package(kind="npm", name="@scope/echo-mcp", version="1.2.3")


def installed(root: Path, package: Package = ECHO) -> InstalledServer:
    """A folder with a program in it, marked as whole."""
    folder = folder_of(root, package)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/mcp-echo").write_text("#!/bin/sh\n")
    found = InstalledServer(
        server="echo", entry="a/b", package=package, lock="l", packages=3, tree=tree_of(folder), folder=folder
    )
    write_installed(found)
    return found


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("mcp-server-time", "time"),
        ("server-time", "time"),
        ("mcp-time", "time"),
        ("time-mcp", "time"),
        ("time-mcp-server", "time"),
        ("@scope/Time.Zones", "time-zones"),
        ("a__b", "a_b"),
        ("mcp-", "mcp"),
        ("x" * 40, "x" * 32),
        ("mcp-" + "x" * 31 + "-y", "x" * 31),
        ("_", "server"),
    ],
)
def test_the_tools_of_a_server_have_a_short_name(name: str, short: str) -> None:
    """Without what every package of this kind is called."""
    assert short_name(replace(ECHO, name=name)) == short


def test_an_installed_server_is_started_from_its_own_folder(tmp_path: Path) -> None:
    """With the folder of the run in its place, its settings, and the variables that it needs by name;
    sealed.
    """
    found = installed(tmp_path)
    assert found.folder == tmp_path / "mcp-echo-1.0"
    config = found.config(Path("/work"))
    assert (config.name, config.command, config.args) == (
        "echo",
        str(found.folder / "bin/mcp-echo"),
        ("--in", "/work"),
    )
    assert config.env == {"MODE": "fast", "KEY": "${KEY}", "PYTHONDONTWRITEBYTECODE": "1"}
    assert (config.source, config.seal) == (
        str(found.folder / MARK),
        Seal(folder=str(found.folder), tree=found.tree),
    )
    other = replace(found, package=NPM, folder=folder_of(tmp_path, NPM)).config(Path("/work"))
    assert (other.command, other.env) == (
        str(tmp_path / "@scope+echo-mcp-1.2.3/node_modules/.bin/echo-mcp"),
        {},
    )


def test_only_whole_installations_are_listed(tmp_path: Path) -> None:
    """In the order of their names: no file, no link, no folder without its mark or with one that says
    something else.
    """
    assert list_installed(tmp_path / "none") == []
    second, first = installed(tmp_path, replace(ECHO, name="z")), installed(tmp_path, replace(ECHO, name="a"))
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(first.folder)
    for number, mark in enumerate(
        ("{", "[]", "{}", '{"package": "evil"}', json.dumps({"package": "mcp-echo==1.0", "packages": "x"}))
    ):
        (tmp_path / f"odd{number}").mkdir()
        (tmp_path / f"odd{number}" / MARK).write_text(mark)
    (tmp_path / "begun").mkdir()
    assert list_installed(tmp_path) == [first, second]
    assert read_installed(first.folder) == first


CHANGES: dict[str, Any] = {
    "content": lambda folder: (folder / "bin/mcp-echo").write_text("#!/bin/zsh\n"),
    "name": lambda folder: (folder / "bin/mcp-echo").rename(folder / "bin/mcp-ech0"),
    "mode": lambda folder: (folder / "bin/mcp-echo").chmod(0o755),
    "file": lambda folder: (folder / "new").write_text(""),
    "link": lambda folder: (folder / "new").symlink_to("bin"),
    "place of a link": lambda folder: ((folder / "a").unlink(), (folder / "a").symlink_to("c")),
    "pipe": lambda folder: os.mkfifo(folder / "new"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_seal_covers_every_file(change: str, tmp_path: Path) -> None:
    """What it is called, what is in it, whether it is a program and where a link leads; the mark itself is
    not of the server.
    """
    folder = installed(tmp_path).folder
    (folder / "a").symlink_to("b")
    seal = Seal(folder=str(folder), tree=tree_of(folder))
    (folder / MARK).write_text("another")
    (folder / f"{MARK}.new").write_text("half")
    check_seal(seal)
    CHANGES[change](folder)
    with pytest.raises(
        ConnectionError,
        match=rf"its files in {folder} are not what was installed and approved, so it is not started",
    ):
        check_seal(seal)
    with pytest.raises(ConnectionError, match=r"its files in /no/such are gone, so it is not started"):
        check_seal(replace(seal, folder="/no/such"))


def test_a_name_is_given_once() -> None:
    """Of two servers of one name nobody could say which is meant."""
    check_name_free("time", ["times", "tim"])
    with pytest.raises(UsageError, match="there is an MCP server 'time' already"):
        check_name_free("time", ["git", "time"])


# How they are filled

_FAKE_NPM = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in install|ci) what=$1;; --prefix) to=$2;; esac
  shift
done
here=$(dirname "$0")
if [ "$what" = install ]; then cat "$here/lock.json" > "$to/package-lock.json"; exit 0; fi
mkdir -p "$to/node_modules/.bin"
for name in $(cat "$here/programs"); do echo '#!/bin/sh' > "$to/node_modules/.bin/$name"; chmod +x \
"$to/node_modules/.bin/$name"; done
"""


def fake(folder: Path, name: str, text: str = "#!/bin/sh\n") -> None:
    """A program of this name."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def with_npm(tmp_path: Path, lock: dict[str, Any], programs: str = "echo-mcp") -> dict[str, str]:
    """An environment whose npm finds these packages, and installs these programs."""
    fake(tmp_path / "npm", "npm", _FAKE_NPM)
    (tmp_path / "npm/lock.json").write_text(
        json.dumps({"name": "scratch", "lockfileVersion": 3, "packages": lock})
    )
    (tmp_path / "npm/programs").write_text(programs)
    return {"PATH": f"{tmp_path / 'npm'}:/usr/bin:/bin", "XDG_CONFIG_HOME": str(tmp_path / "config")}


def found_by_npm(**more: Any) -> dict[str, Any]:
    """The list of the package and one that it needs."""
    return {
        "": {"dependencies": {NPM.name: NPM.version}},
        f"node_modules/{NPM.name}": {"version": NPM.version, "integrity": "sha512-own"},
        "node_modules/other": {"version": "2.0.0", "integrity": "sha512-other", **more},
    }


def test_each_installer_is_taken_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Npm for its own packages alone, uv before pip; without one, what to install is said."""
    nothing = {"PATH": str(tmp_path / "nothing")}
    fake(tmp_path / "uv", "uv")
    fake(tmp_path / "npm", "npm")
    assert installer_for(ECHO, {"PATH": f"{tmp_path / 'uv'}:{tmp_path / 'npm'}"}) == "uv"
    assert installer_for(NPM, {"PATH": f"{tmp_path / 'uv'}:{tmp_path / 'npm'}"}) == "npm"
    monkeypatch.setattr(install, "find_spec", lambda name: name)
    assert installer_for(ECHO, nothing) == "pip"
    monkeypatch.setattr(install, "find_spec", lambda _: None)
    with pytest.raises(InstallError, match=r"mcp-echo==1\.0 needs uv or pip, and neither is found"):
        installer_for(ECHO, nothing)
    with pytest.raises(InstallError, match=r"npm:@scope/echo-mcp==1\.2\.3 needs npm, which is not found"):
        installer_for(NPM, {"PATH": str(tmp_path / "uv")})


@pytest.mark.parametrize("installer", ["uv", "pip", "npm"])
def test_an_installer_runs_nothing_of_a_package_and_takes_only_what_was_locked(
    installer: Any, tmp_path: Path
) -> None:
    """Wheels alone, by their hashes, into the package's own folder; no scripts."""
    package = NPM if installer == "npm" else ECHO
    commands = LockedPackage(package=package, installer=installer, text="", packages=1).commands(tmp_path)
    last, folder = commands[-1], str(folder_of(tmp_path, package))
    if installer == "npm":
        assert len(commands) == 1 and {"ci", "--ignore-scripts", folder} <= set(last)
        return
    assert len(commands) == 2 and commands[0][-1] == folder and "venv" in commands[0]
    assert {"--require-hashes", "--no-deps"} <= set(last)
    assert last[last.index("--only-binary") + 1] == ":all:"
    assert last[-2:] == ("-r", f"{folder}/requirements.lock")
    assert f"{folder}/bin/python" in last


def test_a_package_of_npm_is_locked_and_installed(tmp_path: Path) -> None:
    """With all that it needs, each with its hash; the same list is not installed again, another one is."""
    env = with_npm(tmp_path, found_by_npm())
    locked = asyncio.run(lock_package(NPM, env))
    assert (locked.installer, locked.packages, locked.package) == (
        "npm",
        2,
        replace(NPM, sha256="sha512-own"),
    )
    assert json.loads(locked.text) == {"lockfileVersion": 3, "packages": found_by_npm()}

    def install_it(what: LockedPackage) -> InstalledServer:
        return asyncio.run(install_package(what, tmp_path / "mcp", server="echo", entry="e", env=env))

    first = install_it(locked)
    assert (first.lock, first.packages, first.entry, read_installed(first.folder)) == (
        locked.hash,
        2,
        "e",
        first,
    )
    assert json.loads((first.folder / "package.json").read_text())["dependencies"] == {NPM.name: NPM.version}
    assert (first.folder / "package-lock.json").read_text() == locked.text
    (tmp_path / "npm/programs").write_text("echo-mcp another")
    assert install_it(locked) == first
    other = install_it(replace(locked, text=locked.text + "\n"))
    assert other.lock != first.lock and (other.folder / "node_modules/.bin/another").is_file()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, ""),
        ({"integrity": "sha1-x"}, "needs node_modules/other, which has no hash where npm looks for packages"),
        ({"integrity": None}, "needs node_modules/other, which has no hash"),
        ({"integrity": "", "link": True}, ""),
        ({"integrity": "", "inBundle": True}, ""),
    ],
)
def test_each_package_of_npm_has_a_hash(more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """But for links and what lies in another one, which has its own."""
    env = with_npm(tmp_path, found_by_npm(**more))
    if problem:
        with pytest.raises(InstallError, match=problem):
            asyncio.run(lock_package(NPM, env))
    else:
        assert asyncio.run(lock_package(NPM, env)).packages == 2


def test_what_is_not_the_package_is_not_installed(tmp_path: Path) -> None:
    """Another version, and a package without the program that is to be started; nothing of it is left."""
    env = with_npm(tmp_path, {f"node_modules/{NPM.name}": {"version": "9.9.9", "integrity": "sha512-own"}})
    with pytest.raises(InstallError, match="was not found where npm looks for packages"):
        asyncio.run(lock_package(NPM, env))
    env = with_npm(tmp_path, found_by_npm(), programs="zeta alpha")
    locked = asyncio.run(lock_package(NPM, env))
    with pytest.raises(InstallError, match=r"has no program 'echo-mcp'; it has alpha, zeta$"):
        asyncio.run(install_package(locked, tmp_path / "mcp", server="echo", entry="", env=env))
    assert not folder_of(tmp_path / "mcp", NPM).exists()
    env = with_npm(tmp_path, found_by_npm(), programs="")
    with pytest.raises(InstallError, match=r"has no program 'echo-mcp'; it has $"):
        asyncio.run(install_package(locked, tmp_path / "mcp", server="echo", entry="", env=env))
