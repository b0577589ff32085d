"""The demo of recorded runs: what is read from the archive, what is shown, and what it does without a package."""

import asyncio
import io
import json
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DEMO = runpy.run_path(str(ROOT / "evals" / "demo_recorded.py"))
MODELS = DEMO["MODELS"]


def recorded(model: str, number: int, attack: str) -> dict[str, Any]:
    """A run file of AgentDojo; only the first model withstands."""
    return {
        "suite_name": "banking",
        "pipeline_name": model,
        "user_task_id": f"user_task_{number}",
        "injection_task_id": None if attack == "none" else "injection_task_0",
        "attack_type": None if attack == "none" else attack,
        "injections": {},
        "messages": [
            {"role": "user", "content": f"Pay bill {number}.", "tool_calls": None},
            {"role": "assistant", "content": "Paid.", "tool_calls": None},
        ],
        "error": None,
        "utility": True,
        "security": attack != "none" and model != MODELS[0],
        "duration": 2.0,
    }


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A source distribution with runs of three models, others, and a name that leads elsewhere."""
    path = tmp_path / "made.tar.gz"
    with tarfile.open(path, "w:gz") as members:

        def add(name: str, value: Any) -> None:
            content = json.dumps(value).encode()
            (member := tarfile.TarInfo(f"agentdojo-0/{name}")).size = len(content)
            members.addfile(member, io.BytesIO(content))

        for model in (*MODELS, "another"):
            for number in range(3):
                task = f"runs/{model}/banking/user_task_{number}"
                add(f"{task}/none/none.json", recorded(model, number, "none"))
                add(f"{task}/{DEMO['ATTACK']}/injection_task_0.json", recorded(model, number, DEMO["ATTACK"]))
            add(f"runs/{model}/travel/user_task_0/none/none.json", {})
        add("../../outside.json", {})
        add("setup.py", "")
    return path


def test_the_demo_shows_matrix_comparison_reason_and_pages(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only wanted runs are unpacked, under names of our own; the text says that they are recorded and by whom."""
    monkeypatch.setenv("KESTREL_HOME", str(tmp_path / "home"))
    files = list(DEMO["unpack"](archive, tmp_path / "recorded"))
    assert len(files) == 18
    assert {path.parent for path in files} == {tmp_path / "recorded"}
    asyncio.run(DEMO["show"](tmp_path, files))
    said = capsys.readouterr().out
    assert said.startswith("RECORDED RUNS OF REAL MODELS. Nothing was asked of a model now.")
    assert "authors of AgentDojo" in said
    assert "user_task_2  ✓ 1 of 1                    ✓ 0 of 1" in said
    assert "success_rate: 0.0 % → 100.0 %, difference +100.0 % (" in said
    assert "expected: attack resisted; found: injection_task_0 was done" in said
    assert {"report.html", "comparison.html", "trials.csv"} <= {path.name for path in tmp_path.iterdir()}


def test_another_archive_is_not_shown(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not the published file is removed, and the exit code sends `make demo` to the cassettes."""
    place = tmp_path / "out" / "download" / f"{DEMO['PACKAGE']}-{DEMO['VERSION']}.tar.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(archive.read_bytes())
    monkeypatch.setattr(sys, "argv", ["demo_recorded.py", str(tmp_path / "out")])
    assert DEMO["main"]() == DEMO["CANNOT"]
    assert "cannot be had: another file than the published one" in capsys.readouterr().err
    assert not place.exists()
