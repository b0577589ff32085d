"""Claims about installing servers: whole or not at all, once, exactly what was approved, and noticed when
changed.
"""

import asyncio
import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fake_uv import HASH, make_uv
from waits import PATIENCE_S, until

from kestrel_lab.core.errors import UsageError
from kestrel_lab.mcp.approvals import Approvals, Definition
from kestrel_lab.mcp.registry.catalogue import Package, named_package
from kestrel_lab.mcp.registry.install import (
    InstallError,
    LockedPackage,
    allowing_pattern,
    checked_pattern,
    install_package,
    lock_package,
    own_installation,
)
from kestrel_lab.mcp.registry.installed_servers import (
    InstalledServer,
    check_seal,
    list_installed,
    read_installed,
    tree_of,
    write_installed,
)
from kestrel_lab.runtime.mcp.discovery import Sources

ECHO = Package(kind="pypi", name="mcp-echo", version="1.0.0")
_WORK = """
import asyncio, os, sys
from pathlib import Path
from kestrel_lab.mcp.registry.catalogue import named_package
from kestrel_lab.mcp.registry.install import install_package, lock_package
async def work():
    locked = await lock_package(named_package("mcp-echo==1.0.0"), os.environ)
    got = await install_package(locked, Path(sys.argv[1]), server="echo", entry="", env=os.environ)
    print(got.tree)
asyncio.run(work())
"""


def env_of(tmp_path: Path) -> dict[str, str]:
    """An environment in which the fake uv is found."""
    return {**os.environ, "PATH": make_uv(tmp_path / "uv"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


def worker(tmp_path: Path, env: dict[str, str]) -> "subprocess.Popen[str]":
    """Another process that installs the same."""
    command = [sys.executable, "-c", _WORK, str(tmp_path / "mcp")]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def got(tmp_path: Path, env: dict[str, str], package: Package = ECHO) -> InstalledServer:
    """What installing here gives."""

    async def work() -> InstalledServer:
        return await install_package(
            await lock_package(package, env), tmp_path / "mcp", server="echo", entry="", env=env
        )

    return asyncio.run(work())


def test_an_installation_that_is_killed_counts_as_nothing(tmp_path: Path) -> None:
    """`kill -9` half-way leaves a folder that is not used, and nothing that goes on writing; the next
    installation is whole.

    A mutant that goes by the program being there would start half of it.
    """
    env = env_of(tmp_path)
    (tmp_path / "uv" / "block").touch()
    process = worker(tmp_path, env)
    until((tmp_path / "uv" / "blocked").exists)
    process.kill()
    process.communicate()
    folder = tmp_path / "mcp" / "mcp-echo-1.0.0"
    program = folder / "bin" / "mcp-echo"
    mutant = os.access(program, os.X_OK)
    assert (mutant, read_installed(folder), list_installed(tmp_path / "mcp")) == (True, None, [])
    child = int((tmp_path / "uv" / "blocked").read_text())
    until(lambda: not Path(f"/proc/{child}").exists())
    (tmp_path / "uv" / "block").unlink()
    whole = got(tmp_path, env)
    assert list_installed(tmp_path / "mcp") == [whole]
    assert program.read_text().splitlines()[1].startswith("exec ")


def test_several_that_install_the_same_at_once_do_it_once(tmp_path: Path) -> None:
    """Two in this process and one in another: one works, the others wait and take what it made.

    A mutant that shares the lock would have each of them install into the same folder.
    """
    env = env_of(tmp_path)
    other = worker(tmp_path, env)

    async def work() -> list[InstalledServer]:
        locked = await lock_package(ECHO, env)
        return await asyncio.gather(
            *(install_package(locked, tmp_path / "mcp", server="echo", entry="", env=env) for _ in range(2))
        )

    one, two = asyncio.run(work())
    tree, why = other.communicate(timeout=PATIENCE_S)
    assert (one, tree.strip(), other.returncode) == (two, one.tree, 0), why
    assert (tmp_path / "uv" / "log").read_text() == "installing\n"


def test_an_installation_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Its folder is gone, the reason is told with what the installer said."""
    env = env_of(tmp_path)
    (tmp_path / "uv" / "fail").touch()
    with pytest.raises(
        InstallError, match=r"installing mcp-echo==1\.0\.0 failed \(exit code 4\): no space left"
    ):
        got(tmp_path, env)
    assert not (tmp_path / "mcp" / "mcp-echo-1.0.0").exists()


def test_a_changed_file_is_noticed_and_a_forged_mark_is_not_approved(tmp_path: Path) -> None:
    """Content, name, mode and link all count; who also rewrites the mark has a server that nobody approved.

    A mutant that looks at names and sizes only would not see the first change.
    """
    env = env_of(tmp_path)
    whole = got(tmp_path, env)
    config = whole.config(tmp_path)
    assert config.seal is not None
    approvals = Approvals(tmp_path / "approvals.json")
    approvals.approve(config, {"echo": Definition(name="echo", fields={"name": "echo"})})
    check_seal(config.seal)
    program = whole.folder / "bin" / "mcp-echo"
    before = program.read_bytes()
    program.write_bytes(before[:-2] + b"x\n")
    assert program.stat().st_size == len(before)
    with pytest.raises(ConnectionError, match="are not what was installed and approved"):
        check_seal(config.seal)
    forged = InstalledServer(
        **{
            **{name: getattr(whole, name) for name in InstalledServer.__dataclass_fields__},
            "tree": tree_of(whole.folder),
        }
    )
    write_installed(forged)
    known = read_installed(whole.folder)
    assert known == forged
    assert (approvals.tools(config) is None, approvals.tools(known.config(tmp_path))) == (False, None)
    program.write_bytes(before)
    check_seal(config.seal)
    program.chmod(0o644)
    with pytest.raises(ConnectionError):
        check_seal(config.seal)
    program.chmod(0o755)
    (whole.folder / "bin" / "sitecustomize.py").symlink_to("/etc/passwd")
    with pytest.raises(ConnectionError):
        check_seal(config.seal)
    assert got(tmp_path, env).tree == whole.tree  # installed anew


def test_a_folder_that_came_with_a_project_is_not_taken_for_an_installation(tmp_path: Path) -> None:
    """A forged folder, whole by its own mark and of the very list that is approved, is replaced by what the
    list names.

    A mutant that believes the mark would start the forger's program under the approval of the genuine one.
    """
    env = env_of(tmp_path)
    whole = got(tmp_path, env)
    program = whole.folder / "bin" / "mcp-echo"
    genuine = program.read_text()
    program.write_text("#!/bin/sh\nevil\n")
    forged = InstalledServer(
        **{
            **{name: getattr(whole, name) for name in InstalledServer.__dataclass_fields__},
            "tree": tree_of(whole.folder),
        }
    )
    write_installed(forged)
    mutant = read_installed(whole.folder)
    assert (mutant, own_installation(whole.folder, env)) == (forged, None)
    again = got(tmp_path, env)
    assert (again.tree, program.read_text()) == (whole.tree, genuine)
    assert own_installation(whole.folder, {**env, "XDG_CONFIG_HOME": str(tmp_path / "somebody else")}) is None


def test_another_file_than_the_entry_names_is_refused(tmp_path: Path) -> None:
    """The hash of an entry is compared with what the index has, and a list that was changed on disk is not
    installed.
    """
    env = env_of(tmp_path)
    with pytest.raises(InstallError, match="is another file than the catalogue names"):
        asyncio.run(
            lock_package(Package(kind="pypi", name="mcp-echo", version="1.0.0", sha256="b" * 64), env)
        )
    sources = Sources(root=tmp_path / "mcp", env=env)
    locked = asyncio.run(sources.locked(ECHO))
    assert (locked.package.sha256, locked.text) == (HASH, f"mcp-echo==1.0.0 --hash=sha256:{HASH}\n")
    assert sources.kept(locked.package, locked.hash, 1) == locked
    kept = tmp_path / "mcp" / ".locks" / locked.hash
    kept.write_text(locked.text.replace("a" * 64, "c" * 64))
    with pytest.raises(InstallError, match="was changed since it was looked up"):
        sources.kept(locked.package, locked.hash, 1)


def wheel(folder: Path, body: str) -> str:
    """A real wheel of one module with a program; gives its hash."""
    path, about = folder / "kestrel_test_echo-1.0-py3-none-any.whl", "kestrel_test_echo-1.0.dist-info"
    files = {
        "kestrel_test_echo.py": f"def main():\n    print({body!r})\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: kestrel-test-echo\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\nkestrel-test-echo = kestrel_test_echo:main\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for name, text in files.items()
    ]
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in {
            **files,
            f"{about}/RECORD": "\n".join([*record, f"{about}/RECORD,,"]) + "\n",
        }.items():
            packed.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_package_that_changes_between_approval_and_installation_is_refused(tmp_path: Path) -> None:
    """With the real pip: the file of the index is replaced after its hash was approved; nothing is installed,
    and nothing is left.
    """
    env = {
        **os.environ,
        "PATH": "/usr/bin:/bin",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CONFIG_FILE": os.devnull,
        "XDG_CONFIG_HOME": str(tmp_path / "c"),
    }
    first = wheel(tmp_path, "good")
    root = tmp_path / "mcp"

    async def work() -> LockedPackage:
        locked = await lock_package(named_package("kestrel-test-echo==1.0"), env)
        wheel(tmp_path, "evil")
        with pytest.raises(InstallError, match=r"(?i)hash"):
            await install_package(locked, root, server="echo", entry="", env=env)
        return locked

    locked = asyncio.run(work())
    assert (locked.installer, locked.package.sha256, locked.packages) == ("pip", first, 1)
    assert (list_installed(root), [path for path in root.iterdir() if path.is_dir()]) == ([], [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("npx evil && curl x", "no version"),
        ("evil; rm -rf ~==1.0", "is not a package name of pypi"),
        ("mcp server==1.0", "is not a package name of pypi"),
        ("../evil==1.0", "is not a package name of pypi"),
        ("--proxy=http://evil==1.0", "is not a package name of pypi"),
        ("git+https://example.org/x==1.0", "is not a package name of pypi"),
        ("npm:@scope/../x==1.0.0", "is not a package name of npm"),
        ("mcp-server-time", "no version"),
        ("mcp-server-time==", "has no version"),
        ("mcp-server-time==*", "is not one exact version"),
        ("mcp-server-time==1.0 --pre", "is not one exact version"),
        ("npm:server==latest", "is not one exact version"),
        ("npm:server==^1.0.0", "is not one exact version"),
    ],
)
def test_odd_names_and_open_versions_are_refused(text: str, said: str) -> None:
    """What is not a plain name with one exact version never reaches an installer."""
    with pytest.raises(UsageError, match=said):
        named_package(text)


def test_what_a_setting_allows_is_exact() -> None:
    """A pattern names one package and one version, or all that begin so; nothing else, and never one that
    wants our variables.
    """
    patterns = [checked_pattern(text) for text in ("mcp-server-time==2026.10.*", "npm:@scope/server==1.2.3")]
    allowed = {
        text: allowing_pattern(named_package(text), patterns)
        for text in (
            "mcp-server-time==2026.10.19",
            "mcp-server-time==2026.1",
            "mcp-server-time-evil==2026.10.1",
            "npm:@scope/server==1.2.3",
        )
    }
    assert list(allowed.values()) == [patterns[0], "", "", patterns[1]]
    assert (
        allowing_pattern(
            Package(kind="pypi", name="mcp-server-time", version="2026.10.19", variables=("KEY",)), patterns
        )
        == ""
    )
    for wrong in ("*", "mcp-*==1.0", "mcp-server-time", "mcp-server-time==*", "a==1==2", "evil==1.0 --pre"):
        with pytest.raises(ValueError, match="is not NAME==VERSION"):
            checked_pattern(wrong)
