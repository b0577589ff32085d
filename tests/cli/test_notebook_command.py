"""Claims about `kestrel notebook run`: a real process where it is stopped, else the command in this one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import in_process
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from waits import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]

RISKY = """\
from kestrel_lab import Lab
lab = Lab(model="scripted:script.yaml", approve="ask")
run = await lab.run("write it")
"""
SCRIPT = (
    "rules:\n  - when: write\n    turns:\n      - [{tool: write_file, args: {path: a.txt, content: "
    "hi}}]\n      - written\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a notebook that fits, one that fails and one with a risky call."""
    (tmp_path / "script.yaml").write_text(SCRIPT)
    for name, sources in {
        "good": ["n = 1", "print(n + 1)"],
        "bad": ["n = 1", "1 / 0"],
        "risky": ["n = 1", RISKY],
    }.items():
        cells = [new_code_cell(source) for source in sources]
        cells[0].metadata["tags"] = ["parameters"]
        nbformat.write(new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    return tmp_path


def test_parameters_and_outputs(folder: Path) -> None:
    """Exit code 0, and the executed notebook has the injected cell with its outputs."""
    done = in_process.kestrel(
        folder, "notebook", "run", "good.ipynb", "-p", "n=41", "--out", "out/good.ipynb"
    )
    assert (done.returncode, done.stderr) == (0, "")
    cells = json.loads((folder / "out" / "good.ipynb").read_text())["cells"]
    assert [cell["metadata"].get("tags") for cell in cells] == [["parameters"], ["injected-parameters"], None]
    assert cells[2]["outputs"][0]["text"] == ["42\n"]


def test_a_failure_names_the_cell(folder: Path) -> None:
    """Exit code 1, and one line that names cell and error."""
    done = in_process.kestrel(folder, "notebook", "run", "bad.ipynb", "--out", "out.ipynb")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: bad.ipynb: cell 2 of 2 (1 / 0): ZeroDivisionError: division by zero"
    )


def test_wrong_words_are_told(folder: Path) -> None:
    """Exit code 2 for a parameter that the notebook does not have."""
    done = in_process.kestrel(folder, "notebook", "run", "good.ipynb", "-p", "m=1", "--out", "out.ipynb")
    assert (done.returncode, done.stderr) == (
        2,
        "error: good.ipynb has no parameter 'm'; known: n\n".replace("did you mean 'n'?", "known: n"),
    )


def test_a_risky_call_ends_it(folder: Path) -> None:
    """Exit code 3 with the words to approve, nothing done, JUnit XML and Markdown written."""
    words = ("risky.ipynb", "--timeout", "60", "--junit", "ci/junit.xml", "--markdown", "ci/summary.md")
    done = in_process.kestrel(folder, "notebook", "run", *words)
    assert done.returncode == 3
    assert "ApprovalRequired" in done.stderr
    assert "kestrel approve" in done.stderr
    assert not (folder / "a.txt").exists()
    failure = ET.parse(folder / "ci" / "junit.xml").getroot().find(".//failure")
    assert failure is not None
    assert failure.get("type") == "ApprovalRequired"
    assert "**failed**" in (folder / "ci" / "summary.md").read_text()


def test_ctrl_c_stops_it(folder: Path) -> None:
    """Exit code 130 within seconds, the outputs so far in the file, no kernel left behind."""
    cells = [
        new_code_cell("import os\nprint(os.getpid())"),
        new_code_cell("import time\nopen('begun', 'w').close()\ntime.sleep(86400)"),
    ]
    nbformat.write(new_notebook(cells=cells), folder / "long.ipynb")
    command = [sys.executable, "-m", "kestrel_lab", "notebook", "run", "long.ipynb", "--out", "out.ipynb"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (folder / "begun").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, told) == (
        130,
        "error: stopped long.ipynb; its outputs up to there: out.ipynb\n",
    )
    kernel = json.loads((folder / "out.ipynb").read_text())["cells"][0]["outputs"][0]["text"][0]
    assert not Path(f"/proc/{int(kernel)}").exists()
