"""Servers that npm installs: every package locked with its hash, no script of one run, and no project's
settings obeyed.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.mcp.registry.catalogue import Package
from kestrel_lab.mcp.registry.install import (
    InstallError,
    LockedPackage,
    install_package,
    installer_for,
    lock_package,
)

SERVER = Package(kind="npm", name="@scope/mcp-echo", version="1.0.0")
WHOLE: dict[str, Any] = {
    "": {"dependencies": {"@scope/mcp-echo": "1.0.0"}},
    "node_modules/@scope/mcp-echo": {"version": "1.0.0", "integrity": "sha512-own"},
    "node_modules/other": {"version": "2.0.0", "integrity": "sha512-other"},
    "node_modules/other/node_modules/packed": {"version": "3.0.0", "inBundle": True},
    "node_modules/near": {"link": True},
}
NPM = """#!{python}
import json, os, sys
from pathlib import Path
here = Path(__file__).parent
with (here / "log").open("a") as log:
    log.write(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("NODE_OPTIONS")]) + "\\n")
folder = Path(sys.argv[sys.argv.index("--prefix") + 1])
if sys.argv[1] == "install":
    assert json.loads((folder / "package.json").read_text())["dependencies"] == {{"@scope/mcp-echo": "1.0.0"}}
    (folder / "package-lock.json").write_text((here / "lock.json").read_text())
elif (here / "fail").exists():
    print("no space left")
    sys.exit(3)
else:
    assert (folder / "package.json").exists() and json.loads((folder / \
"package-lock.json").read_text())["packages"]
    program = folder / "node_modules" / ".bin" / "mcp-echo"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
"""


@pytest.fixture
def npm(tmp_path: Path) -> Path:
    """A folder with an `npm` that resolves to `lock.json` and notes how it was called in `log`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(NPM.format(python=sys.executable))
    (folder / "npm").chmod(0o755)
    (folder / "lock.json").write_text(json.dumps({"name": "scratch-1234", "packages": WHOLE}))
    return folder


def env_of(npm: Path) -> dict[str, str]:
    """An environment in which it is the only one."""
    return {
        **os.environ,
        "PATH": f"{npm}:/bin",
        "NODE_OPTIONS": "--require evil",
        "XDG_CONFIG_HOME": str(npm.parent / "config"),
    }


def locked(npm: Path, package: Package = SERVER) -> LockedPackage:
    """The lock of a package."""
    return asyncio.run(lock_package(package, env_of(npm)))


def test_a_package_of_npm_is_locked_and_installed_without_scripts(npm: Path, tmp_path: Path) -> None:
    """Its hash becomes part of what is approved; npm installs what is in the lock, in the root folder,
    without our settings for Node.
    """
    found = locked(npm)
    assert (found.installer, found.package.sha256, found.packages) == ("npm", "sha512-own", 4)
    assert "scratch" not in found.text and found.hash == locked(npm).hash
    made = asyncio.run(install_package(found, tmp_path / "mcp", server="echo", entry="", env=env_of(npm)))
    assert (made.package, made.lock, made.packages) == (found.package, found.hash, 4)
    assert json.loads((made.folder / "package-lock.json").read_text()) == json.loads(found.text)
    calls = [json.loads(line) for line in (npm / "log").read_text().splitlines()]
    assert [(words[0], "--ignore-scripts" in words, place, node) for words, place, node in calls] == [
        ("install", True, "/", None),
        ("install", True, "/", None),
        ("ci", True, "/", None),
    ]
    assert "--package-lock-only" in calls[0][0] and "--package-lock-only" not in calls[2][0]
    assert (
        asyncio.run(install_package(found, tmp_path / "mcp", server="echo", entry="", env=env_of(npm)))
        == made
    )
    assert len((npm / "log").read_text().splitlines()) == 3


@pytest.mark.parametrize("change", [{"integrity": ""}, {"integrity": "sha1-x"}, {"integrity": None}])
def test_a_package_without_a_hash_cannot_be_locked(npm: Path, change: dict[str, Any]) -> None:
    """Neither one without any nor one with a weak one, wherever it stands in the tree; the package is
    named.
    """
    packages = {**WHOLE, "node_modules/other": {**WHOLE["node_modules/other"], **change}}
    (npm / "lock.json").write_text(json.dumps({"packages": packages}))
    with pytest.raises(InstallError, match="needs node_modules/other, which has no hash where npm looks"):
        locked(npm)


def test_another_version_than_was_asked_for_is_not_found(npm: Path) -> None:
    """What npm resolved counts only in the version that was named."""
    packages = {**WHOLE, "node_modules/@scope/mcp-echo": {"version": "1.0.1", "integrity": "sha512-own"}}
    (npm / "lock.json").write_text(json.dumps({"packages": packages}))
    with pytest.raises(InstallError, match=r"npm:@scope/mcp-echo==1\.0\.0 was not found where npm looks"):
        locked(npm)


def test_an_installation_that_fails_leaves_nothing(npm: Path, tmp_path: Path) -> None:
    """The message has what npm said last; the folder is gone."""
    (npm / "fail").touch()
    with pytest.raises(
        InstallError, match=r"installing npm:@scope/mcp-echo==1\.0\.0 failed \(exit code 3\): no space left"
    ):
        asyncio.run(install_package(locked(npm), tmp_path / "mcp", server="echo", entry="", env=env_of(npm)))
    assert not (tmp_path / "mcp" / "@scope+mcp-echo-1.0.0").exists()


def test_each_kind_of_package_has_its_installer(npm: Path) -> None:
    """Packages of npm need it, others uv or else pip; without npm it is said what to install."""
    python = Package(kind="pypi", name="mcp-echo", version="1.0.0")
    env = {"PATH": str(npm)}
    assert (installer_for(SERVER, env), installer_for(python, env)) == ("npm", "pip")
    (npm / "uv").touch(0o755)
    assert (installer_for(SERVER, env), installer_for(python, env)) == ("npm", "uv")
    with pytest.raises(InstallError, match=r"needs npm, which is not found: install Node\.js"):
        installer_for(SERVER, {"PATH": str(npm.parent)})


def test_every_installer_keeps_to_the_hashes_of_the_lock(tmp_path: Path) -> None:
    """Both uv and pip take wheels with these hashes and nothing beside them."""
    for installer in ("uv", "pip"):
        made, filled = LockedPackage(
            package=Package(kind="pypi", name="a", version="1"), installer=installer, text="", packages=1
        ).commands(tmp_path)
        assert str(tmp_path / "a-1") in made and {
            "--only-binary",
            ":all:",
            "--require-hashes",
            "--no-deps",
        } < {*filled}
