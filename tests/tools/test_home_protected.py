"""The home folder of a lab is protected from file tools whatever its name: what is in it says what happened
and what was approved.
"""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel


@pytest.mark.parametrize("home", [".kestrel", "lab", "data/my lab", "."])
def test_file_tools_write_nothing_of_the_log(tmp_path: Path, home: str) -> None:
    """Neither the log itself, nor what lies beside it in a folder of its own; other folders are free."""
    session = Lab(tmp_path / home, env={})
    beside = f"{home}/cache/x.txt" if home != "." else "kestrel.db-wal"
    calls = [
        ("delete_file", {"path": f"{home}/kestrel.db"}),
        ("write_file", {"path": beside, "content": "x"}),
        ("write_file", {"path": "data/free.txt", "content": "x"}),
    ]
    run = asyncio.run(
        session.run("go", model=ScriptedModel([calls, "done"]), workspace=tmp_path, approve="auto")
    )
    assert [text.partition(":")[0] for text in run.results.values()] == [
        "error",
        "error",
        "created data/free.txt (1 line, 1 bytes)",
    ]
    assert all("is protected" in text for text in list(run.results.values())[:2])
    assert (run.status, (tmp_path / home / "kestrel.db").exists()) == (RunStatus.COMPLETE, True)
    session.close()
