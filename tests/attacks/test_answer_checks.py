"""Attacks on what looks at answers and on what is started and imported for it: by answers, by files, by
programs, by modules.
"""

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
print(json.dumps([str(run.status), run.answer == said[-1].strip(), len(lab.runs().frame if \
hasattr(lab.runs(), "frame") else lab.runs())]))
"""


_RUNS = """
import asyncio, faulthandler, json, sys
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
home, workspace, answers = json.load(sys.stdin)
ended = {}
for name, answer in answers.items():
    print(name, file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(100, exit=True)
    with Lab(home, model=ScriptedModel([answer]), approve="auto") as lab:
        ended[name] = asyncio.run(lab.run("look", workspace=workspace)).answer == answer.strip()
faulthandler.cancel_dump_traceback_later()
print(json.dumps(ended))
"""


def run(tmp_path: Path, *said: object, **env: str) -> None:
    """A run in a process of its own, started in the workspace, ends with its answer; one that hangs is killed
    and fails the test.
    """
    done = start(tmp_path, _RUN, said, **env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])[1], done.stdout


def answered(tmp_path: Path, answers: dict[str, str]) -> None:
    """Runs in one process, each of which ends with its answer; the first that hangs is named."""
    done = start(tmp_path, _RUNS, answers)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(answers, True)


def start(tmp_path: Path, code: str, said: object, **env: str) -> subprocess.CompletedProcess[str]:
    given = json.dumps([str(tmp_path / "home"), str(tmp_path / "work"), said])
    return subprocess.run(
        [sys.executable, "-c", code],
        input=given,
        cwd=tmp_path / "work",
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )


@pytest.fixture(autouse=True)
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "app.py").write_text("def start():\n    return 1\n")
    return folder


ANSWERS = {
    "a line of 5,000 digits": "It is in app.py:" + "9" * 5_000 + ".",
    "one word": "Aa" * 40_000,
    "a rule of dashes": "-" * 6_000 + "!",
    "empty lines": "```python\n" + "\n" * 200_000 + "x\n```",
    "documents without an end": "Look:\n\n```sh\n" + "cat <<A\n" * 12_000 + "```",
    "3,000 scripts": "```bash\nls\n```\n\nand\n\n" * 3_000,
}


def test_an_answer_ends(tmp_path: Path) -> None:
    """No answer keeps a run from ending with it."""
    answered(tmp_path, ANSWERS)


FILES = {
    "a tower of powers": "start = " + "(10**64)" + "**64" * 9,
    "empty lines": "start\n" + "\n" * 700_000,
    "one line": "start " * 200_000,
    "comments in comments": "# " * 150_000 + '" start',
}


def test_a_file_of_the_workspace_holds_no_answer_up(tmp_path: Path, work: Path) -> None:
    """What an agent can write into a file does not make the look at its answer endless."""
    answers = {}
    for number, (name, text) in enumerate(FILES.items()):
        for ending in ("py", "cfg"):
            (work / f"hard{number}.{ending}").write_text(text)
        answers[name] = (
            f'The class `start` is 64 in hard{number}.py:1, which says "so it starts all the same" and '
            "`start = 10`."
        )
    answered(tmp_path, answers)


def test_no_program_of_the_workspace_runs_for_us(tmp_path: Path, work: Path) -> None:
    """Programs named as those that we start, on the PATH by a link that looks like a folder outside."""
    (work / "bin").mkdir()
    for name in ("bash", "rg", "bwrap", "node", "ruff", "python", "sh"):
        program = work / "bin" / name
        program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'planted'}\n")
        program.chmod(0o755)
    (tmp_path / "tools").symlink_to(work / "bin")
    path = os.pathsep.join([str(tmp_path / "tools"), "./bin", os.environ["PATH"]])
    calls = [
        ["bash", {"command": "echo hello"}],
        ["grep", {"pattern": "start"}],
        ["search_code", {"query": "start"}],
    ]
    run(tmp_path, [calls[0]], [calls[1]], [calls[2]], "Run:\n\n```bash\necho hello\n```\n", PATH=path)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("how", ["file", "package", "namespace"])
def test_no_module_of_the_workspace_runs_for_us(tmp_path: Path, work: Path, how: str) -> None:
    """What libraries of ours would import if it were there, and modules of Python itself, in the folder that
    comes first on the path.
    """
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
            (work / name / "__init__.py").write_text(
                f"open({str(tmp_path / 'planted')!r}, 'a').write(__name__)\n"
            )
    # The package itself is imported from elsewhere before the folder is on the path, as `kestrel` and kernels
    # do.
    first = (
        "import sys\nhere, sys.path[0] = sys.path[0], '/nowhere'\nimport kestrel_lab, json, "
        "asyncio\nsys.path[0] = here\n"
    )
    done = start(tmp_path, first + _RUN, ["It is 1.\n\n```toml\na = 1\n```"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (tmp_path / "planted").exists(), (tmp_path / "planted").read_text()
