"""Build wheel and source distribution, install the wheel into an empty environment for each Python here, and
try it: `make dist`.

Nothing may be compiled, nothing may be fetched on import, and what is absent has to be named by one clear
error. Beside both files come a bill of materials for each Python (CycloneDX), the conda recipe as it renders,
and the notes of the release.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
USE = """
import json, pathlib, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(args) if event == "socket.connect" else None)
import kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
assert not opened, opened
with Lab(home="home", model=ScriptedModel([[("write_file", {"path": "a.txt", "content": "one"})], "done"])) \
as lab:
    run = lab.run_sync("write a file", approve="auto", workspace=".")
    print(json.dumps([kestrel_lab.__version__, str(run.status), run.answer, \
pathlib.Path("a.txt").read_text()]))
"""


def main() -> None:
    """Build, install and try; exits with 1 where an environment failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "dist")
    parser.add_argument(
        "--python",
        action="append",
        metavar="PATH",
        help="a Python that is not found by itself; may be repeated",
    )
    asked = parser.parse_args()
    folder = asked.out.resolve()
    console = Console()
    for old in [*folder.glob("*.*"), folder / "recipe"]:
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    with console.status("setting up what builds"):
        tools = tools_in(folder / "tools")
    with console.status("building"):
        run([str(tools / "python"), "-m", "build", "--outdir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    table = Table(
        "Python",
        "wheel",
        "packages",
        "MB",
        title=f"{wheel.name}: {size_mb(wheel):.1f} MB, source {size_mb(source):.1f} MB",
    )
    failed = False
    for version in SUPPORTED:
        if (python := interpreter(version, tools, asked.python or [])) is None:
            table.add_row(version, "untested: no such Python here", "", "")
            continue
        with (
            console.status(f"trying the wheel in an empty environment of Python {version}"),
            tempfile.TemporaryDirectory() as place,
        ):
            try:
                packages, size = tried(python, wheel, Path(place))
                bill = folder / f"{wheel.name.split('-py3')[0]}-python{version}.cdx.json"
                run(
                    [
                        str(tools / "cyclonedx-py"),
                        "environment",
                        str(Path(place) / "venv/bin/python"),
                        "--output-file",
                        str(bill),
                    ]
                )
                table.add_row(version, "installed, imported, used", str(packages), f"{size:.0f}")
            except (subprocess.CalledProcessError, AssertionError) as error:
                failed = True
                said = str(getattr(error, "stderr", "") or error).strip()
                table.add_row(version, f"failed: {said.splitlines()[-1]}", "", "")
    with console.status("the source distribution, uvx and the conda recipe"):
        for what, check in {"source": from_source, "uvx": by_uvx, "conda": recipe}.items():
            try:
                table.add_row(what, check(tools, wheel, source, folder), "", "")
            except subprocess.CalledProcessError as error:
                failed = True
                table.add_row(
                    what, f"failed: {(error.stderr or error.stdout).strip().splitlines()[-1]}", "", ""
                )
    with console.status("each variant in an empty environment"):
        try:
            variants(tools, wheel, table)
        except subprocess.CalledProcessError as error:
            failed = True
            table.add_row(str(error.cmd[-1]), f"failed: {error.stderr.strip().splitlines()[-1]}", "", "")
    (folder / "notes.md").write_text(newest_changes(), encoding="utf-8")
    console.print(table)
    console.print(f"all of it: {folder}")
    sys.exit(failed)


VARIANTS = {
    "kestrel-lab": USE,
    "kestrel-lab[evals]": USE + "    run.to_frame(); import scipy, matplotlib\n",
    "kestrel-lab[notebook]": USE + "import nbclient, nbformat\n",
    "kestrel-lab[mcp]": USE + "import mcp\n",
    "kestrel-lab[server]": USE + "import kestrel_lab.server.serve\n",
    "kestrel-lab[retrieval]": USE
    + "from kestrel_lab.language.definitions import definitions_in as d; assert d('a.py', 'def f(): pass')\n",
    "kestrel-lab[all]": USE,
    "headless, no litellm": USE,
    "headless": USE + "import litellm\n",
}
"""What can be installed, each with the program that tries it."""
SUITE = """
name: smoke
epochs: 2
configs: [{name: script, model: "scripted:script.yaml"}]
gates: [{success_rate: {at_least: 0.9}}]
scenarios: [{id: say, goal: say it, checks: [{answer_contains: [done]}]}]
"""


def variants(tools: Path, wheel: Path, table: Table) -> None:
    """Install each variant into an empty environment, try it there with a suite and its gate, and add its
    size with bytecode to `table`; raises `CalledProcessError` where one fails.
    """
    for name, program in VARIANTS.items():
        with tempfile.TemporaryDirectory() as place:
            packages, size = _variant(tools / "uv", wheel, name, program, Path(place))
        table.add_row(name, "run, suite, gate and report", str(packages), f"{size:.0f}")


def _variant(uv: Path, wheel: Path, name: str, program: str, place: Path) -> tuple[int, float]:
    """Return how many packages the variant has, and their megabytes."""
    python = str(place / "venv/bin/python")
    install = [str(uv), "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    run([str(uv), "venv", "--quiet", "--python", sys.executable, str(place / "venv")])
    if name.startswith("headless"):
        hosted = [] if "no litellm" in name else ["litellm"]
        run([*install, "-r", str(ROOT / "requirements-core.txt"), *hosted])
        run([*install, "--no-deps", str(wheel)])
    else:
        extra = name.partition("[")[2]
        run([*install, f"{wheel}[{extra}" if extra else str(wheel)])
    (work := place / "work").mkdir()
    (work / "suite.yaml").write_text(SUITE, encoding="utf-8")
    (work / "script.yaml").write_text('rules: [{when: ".", turns: [done]}]', encoding="utf-8")
    run([python, "-c", program], cwd=work)
    run([str(place / "venv/bin/kestrel"), "eval", "run", "suite.yaml", "--report", "report.html"], cwd=work)
    assert (work / "report.html").exists()
    files = [file for file in (place / "venv").rglob("*") if file.is_file() and not file.is_symlink()]
    packages = run([str(uv), "pip", "list", "--python", python, "--format", "json"])
    return len(json.loads(packages)), sum(map(size_mb, files))


def tools_in(place: Path) -> Path:
    """Install what builds into an environment of its own, once, and return the folder of its programs."""
    wanted = ROOT / "requirements-release.txt"
    installed = place / wanted.name
    if not installed.exists() or installed.read_bytes() != wanted.read_bytes():
        run([sys.executable, "-m", "venv", "--clear", str(place)])
        run([str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(wanted)])
        shutil.copy(wanted, installed)
    return place / "bin"


def tried(python: str, wheel: Path, place: Path) -> tuple[int, float]:
    """Install the wheel alone and use it; return how many packages there are and their megabytes."""
    run([python, "-m", "venv", str(place / "venv")])
    inside = place / "venv" / "bin"
    run(
        [
            str(inside / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
            str(wheel),
        ]
    )
    work = place / "work"
    work.mkdir()
    version, *seen = json.loads(
        run([str(inside / "python"), "-W", "error", "-c", USE], cwd=work).splitlines()[-1]
    )
    assert seen == ["COMPLETE", "done", "one"], f"the run of version {version} gave {seen}"
    run([str(inside / "kestrel"), "--help"], cwd=work)
    absent = subprocess.run(
        [inside / "kestrel", "run", "hello", "--model", "local"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    said = re.sub(r"\s+", " ", absent.stderr + absent.stdout)
    assert absent.returncode, f"an extra that is absent was used: {said}"
    assert "kestrel-lab[local]" in said, f"an absent extra is not named: {said}"
    assert "Traceback" not in said, f"an absent extra is named by a traceback: {said}"
    packages = json.loads(
        run([str(inside / "python"), "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"])
    )
    files = [file for file in (place / "venv" / "lib").rglob("*") if file.is_file() and not file.is_symlink()]
    # Pip and setuptools come with the environment.
    return len(packages) - 2, sum(map(size_mb, files))


def from_source(tools: Path, _wheel: Path, source: Path, folder: Path) -> str:
    """Build a wheel from the source distribution: the same files are in it."""
    run(
        [
            str(tools / "python"),
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(folder / "tools" / "from-source"),
            str(source),
        ]
    )
    return "builds"


def by_uvx(tools: Path, wheel: Path, _source: Path, _folder: Path) -> str:
    """Run the command from the built wheel with nothing installed."""
    shown = run(
        [str(tools / "uvx"), "--python", sys.executable, "--from", str(wheel), "kestrel", "--version"]
    )
    return f"runs {shown.strip()}"


def recipe(tools: Path, wheel: Path, _source: Path, folder: Path) -> str:
    """Render the conda recipe, which finds its mistakes; building it needs channels."""
    env = {"KESTREL_VERSION": wheel.name.split("-")[1].replace("+", "_")}
    program = (
        "import sys, rattler_build as r; s = r.Stage0Recipe.from_file(sys.argv[1]); print(len(s.render()))"
    )
    run([str(tools / "python"), "-c", program, str(ROOT / "conda" / "recipe.yaml")], env=env)
    return "recipe renders; not built, no channel asked"


def newest_changes() -> str:
    """Return the newest chapter of the changelog."""
    return (
        re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1]
        .partition("\n")[2]
        .strip()
        + "\n"
    )


def interpreter(version: str, tools: Path, named: Sequence[str]) -> str | None:
    """Return a Python of this version: named, the current one, from PATH, pyenv or uv; or `None`."""
    places = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    of_uv = subprocess.run(
        [tools / "uv", "python", "find", "--no-python-downloads", version],
        check=False,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # Of the virtual environment that runs this.
    base: str = getattr(sys, "_base_executable", sys.executable)
    found: list[str | None] = [*named, base, shutil.which(f"python{version}"), *map(str, places), of_uv]
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in filter(None, found):
        answer = subprocess.run([python, "-c", question], check=False, capture_output=True, text=True)
        if answer.stdout.strip() == version:
            return python
    return None


def size_mb(file: Path) -> float:
    """Return the size of a file in megabytes."""
    return file.stat().st_size / 1e6


def run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output; raises `CalledProcessError` with what it printed."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KESTREL_", "PYTHON", "VIRTUAL_ENV"))
    }
    return subprocess.run(
        command, cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main()
