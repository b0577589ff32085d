"""A run on a disk that fills up ends with an error that says so, loses nothing, and goes on when there is
room.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from test_crash import Findings

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="a limit that Windows does not have stands in for a full disk"
)
POINTS = range(1, 71, 3)


def outcomes(folder: Path, points: Iterable[int]) -> list[dict[str, Any]] | str:
    """What became of the session at each point, or what went wrong."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("full_worker.py")),
        str(folder),
        *map(str, points),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, check=False)
    return done.stderr if done.returncode else [json.loads(line) for line in done.stdout.splitlines()]


def test_a_run_on_a_full_disk_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """Wherever the disk fills up: `StorageFull`, everything acknowledged kept, each effect once, and the same
    answer once resumed.
    """
    found = outcomes(tmp_path, POINTS)
    assert not isinstance(found, str), found
    assert [outcome["point"] for outcome in found] == list(POINTS)
    assert {outcome["status"] for outcome in found} == {"COMPLETE"}
    stopped = [outcome for outcome in found if outcome["told"]]
    assert len(stopped) > 15
    assert all(
        "free some space, then resume: nothing acknowledged was lost" in outcome["told"]
        for outcome in stopped
    )
    assert not {outcome["left"] for outcome in stopped} & {"COMPLETE", "FAILED", "CANCELLED"}
    findings = Findings()
    for outcome in found:
        findings.check(tmp_path / str(outcome["point"]))
    assert findings.nothing_wrong, findings
    assert findings.questions >= 1
