"""Notebooks that a program executes: they end, whatever they ask for, and leave readable output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from traitlets.config import Config
from waits import PATIENCE_S

from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]
in_kernel = pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())

SETUP = """%load_ext kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
lab = Lab(model=ScriptedModel([[("write_file", {"path": "a.txt", "content": "x"})], "done"]))"""


def code(source: str) -> dict[str, Any]:
    """A code cell."""
    return {
        "cell_type": "code",
        "id": uuid4().hex,
        "source": source,
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }


def executed(folder: Path, cells: list[str], *, allow_errors: bool = True) -> Any:
    """The notebook after nbclient ran it in `folder`."""
    notebook = nbformat.from_dict(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [code(source) for source in cells]}
    )  # type: ignore[no-untyped-call]
    place = {"metadata": {"path": str(folder)}}
    with tempfile.TemporaryDirectory(
        prefix="kestrel-"
    ) as sockets:  # a port may be another process's by the time the kernel listens
        config = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        options: Any = {"timeout": int(PATIENCE_S), "kernel_name": "python3", "allow_errors": allow_errors}
        NotebookClient(notebook, resources=place, config=config, **options).execute()
    return notebook


@pytest.mark.timeout(120)
def test_a_notebook_runs_to_its_end_with_nobody_there(tmp_path: Path) -> None:
    """The policy decides, a background run is waited for, no widget is left, every run is shown as HTML and
    text.
    """
    notebook = executed(
        tmp_path,
        [
            SETUP,
            '%kestrel run "write" --approve deny',
            "print(_.answer, _.status)",
            "%%kestrel --approve auto --bg --as last\nwrite",
            "print(last.status)",
            "%%time\n%kestrel run 'write' --approve auto",
            'for _ in range(2):\n    %kestrel run "write" --approve auto',
            '%kestrel run "write"',
        ],
    )
    outputs = [cell.outputs for cell in notebook.cells]
    printed = ["".join(output.get("text", "") for output in cell) for cell in outputs]

    assert "widgets" not in notebook.metadata
    assert {mime for cell in outputs for output in cell for mime in output.get("data", {})} <= {
        "text/html",
        "text/plain",
    }
    assert (printed[2], printed[4]) == ("done COMPLETE\n", "COMPLETE\n")
    assert "denied by policy" in outputs[1][0].data["text/html"]
    assert len(outputs[1]) == 1, "the run is not told again below its picture"
    assert "COMPLETE · scripted (scripted)" in outputs[3][0].data["text/plain"]
    assert [len([o for o in cell if "text/html" in o.get("data", {})]) for cell in outputs[5:7]] == [1, 2]
    page, _ = HTMLExporter().from_notebook_node(notebook)  # type: ignore[no-untyped-call]
    assert page.count('aria-label="kestrel run') == len(
        [o for cell in outputs for o in cell if "text/html" in o.get("data", {})]
    )
    assert (outputs[7][-1].ename, len(outputs[7][-1].traceback)) == ("ApprovalRequired", 1)


PLANNED = """from kestrel_lab import Plan, Step
lab = Lab(model=ScriptedModel(lambda request: "done"))
plan = Plan(steps=(Step(id="dig", goal="dig", produces=("hole",)), Step(id="fill", goal="fill", \
consumes=("hole",))))
run = await lab.run("garden", plan=plan)"""


@pytest.mark.timeout(120)
def test_a_converted_notebook_shows_plans_as_graphs(tmp_path: Path) -> None:
    """A plan, a run of it and its figure are drawings in the converted page, with states in words and no
    script of ours.
    """
    notebook = executed(
        tmp_path, [SETUP, PLANNED, "plan", "run", "run.report.plot_plan()"], allow_errors=False
    )
    shown = [cell.outputs[0].data for cell in notebook.cells[2:]]
    page, _ = HTMLExporter(embed_images=True).from_notebook_node(notebook)  # type: ignore[no-untyped-call]

    assert [sorted(data) for data in shown] == [
        ["text/html", "text/plain"],
        ["text/html", "text/plain"],
        ["image/png", "text/plain"],
    ]
    assert not any("<script" in data.get("text/html", "") for data in shown)
    assert re.findall(r'<svg aria-label="([^"]*)" class="kestrel-plan"', page) == [
        "Plan of 2 steps",
        "Plan of 2 steps: 2 ok",
    ]
    assert page.count(">dig</text>") == 2
    assert "  ✓ dig [ok]: dig\n  ✓ fill [ok]: fill\n" in shown[1]["text/plain"]


@pytest.mark.timeout(120)
def test_a_risky_call_stops_the_notebook_at_once(tmp_path: Path) -> None:
    """With approve="ask" and nobody there nbclient sees ApprovalRequired, never a hang."""
    with pytest.raises(CellExecutionError, match=r"ApprovalRequired: run r.* nobody is here to approve it"):
        executed(tmp_path, [SETUP, '%kestrel run "write"', "never = True"], allow_errors=False)

    assert not (tmp_path / "a.txt").exists()


CLEAN = """%load_ext kestrel_lab
import pandas as pd
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
df = pd.DataFrame({"a": [1, None, 3]})
def lab_of(code, **options): return Lab(model=ScriptedModel([[("run_python", {"code": code})], "cleaned"]), \
**options)
lab = lab_of("df = df.dropna()")"""
GOAL = "clean @df"


@in_kernel
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("code", "policy", "rows", "rules"),
    [
        pytest.param("df = df.dropna()", "auto:high", 2, "", id="a level that allows it"),
        pytest.param(
            "df.dropna(inplace=True)",
            "ask",
            2,
            "rules=[{'tool': 'run_python', 'verdict': 'allow'}]",
            id="a rule that allows it",
        ),
        pytest.param("df = df.dropna()", "ask", 3, "", id="a change of variables asks"),
        pytest.param("df.dropna(inplace=True)", "auto:high", 3, "", id="code in the kernel itself asks"),
        pytest.param("open('f', 'w').write('x')", "auto", 3, "", id="an effect asks"),
    ],
)
def test_an_agent_works_with_variables_where_nobody_looks(
    tmp_path: Path, code: str, policy: str, rows: int, rules: str
) -> None:
    """As in JupyterLab the policy decides, also over injected parameters: what it allows happens, else the
    cell ends with ApprovalRequired.
    """
    parameters = f"# Parameters\ncode = {code!r}\nlab = lab_of(code, {rules})"
    notebook = executed(
        tmp_path, [CLEAN, parameters, f"%%kestrel --approve {policy}\n{GOAL}", "print(len(df))"]
    )
    agent, printed = (cell.outputs for cell in notebook.cells[2:])
    errors = [output.ename for output in agent if output.output_type == "error"]

    assert printed[0].text == f"{rows}\n"
    assert errors == ([] if rows == 2 else ["ApprovalRequired"])
    assert not (tmp_path / "f").exists()


@in_kernel
@pytest.mark.timeout(120)
def test_kestrel_notebook_run_says_that_a_person_is_needed(tmp_path: Path) -> None:
    """Its exit code is 3 and the variables are untouched, as with any other call that needs approval."""
    cells = [code(source) for source in (CLEAN, f"%%kestrel\n{GOAL}")]
    (tmp_path / "n.ipynb").write_text(
        nbformat.writes(
            nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})
        )
    )  # type: ignore[no-untyped-call]
    done = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", "notebook", "run", "n.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 3
    assert "nobody is here to approve it" in done.stderr


def test_a_command_in_a_cell_writes_no_escapes(tmp_path: Path) -> None:
    """Kernels ask programs for colours; what they read is a pipe all the same, where a moving bar would be a
    hundred lines.
    """
    env = {**os.environ, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", "config"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    wrong = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", "show", "r0"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.stdout.startswith("setting")
    assert wrong.stderr.startswith("error: ")
    assert "\x1b" not in done.stdout + wrong.stderr
