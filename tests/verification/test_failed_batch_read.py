"""A `batch_read` that failed names no files, and does not keep a run from its end."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel


@pytest.mark.parametrize("args", [{"paths": []}, {"paths": "a.txt"}, {"path": "a.txt"}])
def test_a_run_whose_batch_read_failed_ends(tmp_path: Path, args: dict[str, Json]) -> None:
    """Wrong arguments are told to the model; the review of the answer, which reads all results, finds no file
    in them.
    """
    lab = Lab(tmp_path / "home", env={})
    run = asyncio.run(
        lab.run(
            "go", model=ScriptedModel([[("batch_read", args)], "I could not read it."]), workspace=tmp_path
        )
    )
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "I could not read it.")
    assert run.results["answer.1.1"].startswith("error: ")
    lab.close()
