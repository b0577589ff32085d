"""Attacks on what looks at answers and on what is started and imported for it: by answers, by files, by programs, by modules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waits import PATIENCE_S

_RUN = """
import asyncio, json, sys
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
home, workspace, said = json.load(sys.stdin)
turns = [[(name, args) for name, args in turn] if isinstance(turn, list) else turn for turn in said]
lab = Lab(home, model=ScriptedModel(turns), approve="auto")
run = asyncio.run(lab.run("look", workspace=workspace))
print(json.dumps([str(run.status), run.answer == said[-1].strip(), len(lab.runs().frame if hasattr(lab.runs(), "frame") else lab.runs())]))
"""


def run(tmp_path: Path, *said: object, **env: str) -> None:
    """A run in a process of its own, started in the workspace, ends with its answer; one that hangs is killed and fails the test."""
    done = start(tmp_path, _RUN, said, **env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])[1], done.stdout


def start(tmp_path: Path, code: str, said: object, **env: str) -> subprocess.CompletedProcess[str]:
    given = json.dumps([str(tmp_path / "home"), str(tmp_path / "work"), said])
    return subprocess.run(
        [sys.executable, "-c", code], input=given, cwd=tmp_path / "work", env={**os.environ, **env}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "app.py").write_text("def start():\n    return 1\n")
    return folder


@pytest.mark.parametrize(
    "answer",
    [
        "It is in app.py:" + "9" * 5_000 + ".",
        "Aa" * 40_000,
        "-" * 6_000 + "!",
        "```python\n" + "\n" * 200_000 + "x\n```",
        "Look:\n\n```sh\n" + "cat <<A\n" * 12_000 + "```",
        "```bash\nls\n```\n\nand\n\n" * 3_000,
    ],
    ids=["a line of 5,000 digits", "one word", "a rule of dashes", "empty lines", "documents without an end", "3,000 scripts"],
)
def test_an_answer_ends(tmp_path: Path, answer: str) -> None:
    """No answer keeps a run from ending with it."""
    run(tmp_path, answer)


@pytest.mark.parametrize(
    "text",
    ["start = " + "(10**64)" + "**64" * 9, "start\n" + "\n" * 700_000, "start " * 200_000, "# " * 150_000 + '" start'],
    ids=["a tower of powers", "empty lines", "one line", "comments in comments"],
)
def test_a_file_of_the_workspace_holds_no_answer_up(tmp_path: Path, work: Path, text: str) -> None:
    """What an agent can write into a file does not make the look at its answer endless."""
    for name in ("hard.py", "hard.cfg"):
        (work / name).write_text(text)
    run(tmp_path, 'The class `start` is 64 in hard.py:1, which says "so it starts all the same" and `start = 10`.')


def test_no_program_of_the_workspace_runs_for_us(tmp_path: Path, work: Path) -> None:
    """Programs named as those that we start, on the PATH by a link that looks like a folder outside."""
    (work / "bin").mkdir()
    for name in ("bash", "rg", "bwrap", "node", "ruff", "python", "sh"):
        program = work / "bin" / name
        program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'planted'}\n")
        program.chmod(0o755)
    (tmp_path / "tools").symlink_to(work / "bin")
    path = os.pathsep.join([str(tmp_path / "tools"), "./bin", os.environ["PATH"]])
    calls = [["bash", {"command": "echo hello"}], ["grep", {"pattern": "start"}], ["search_code", {"query": "start"}]]
    run(tmp_path, [calls[0]], [calls[1]], [calls[2]], "Run:\n\n```bash\necho hello\n```\n", PATH=path)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("how", ["file", "package", "namespace"])
def test_no_module_of_the_workspace_runs_for_us(tmp_path: Path, work: Path, how: str) -> None:
    """What libraries of ours would import if it were there, and modules of Python itself, in the folder that comes first on the path."""
    for name in (
        "pandas",
        "pyarrow",
        "numexpr",
        "bottleneck",
        "tree_sitter",
        "litellm",
        "jsonschema",
        "tomllib",
        "shlex",
        "uuid",
        "networkx",
    ):
        if how == "file":
            (work / f"{name}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write(__name__)\n")
        else:
            (work / name).mkdir()
        if how == "package":
            (work / name / "__init__.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write(__name__)\n")
    # The package itself is imported from elsewhere before the folder is on the path, as `kestrel` and kernels do.
    first = "import sys\nhere, sys.path[0] = sys.path[0], '/nowhere'\nimport kestrel_lab, json, asyncio\nsys.path[0] = here\n"
    done = start(tmp_path, first + _RUN, ["It is 1.\n\n```toml\na = 1\n```"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (tmp_path / "planted").exists(), (tmp_path / "planted").read_text()
