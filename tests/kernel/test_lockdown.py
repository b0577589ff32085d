"""Whether code in a preview can have an effect: attempts by every way we know, with parts of the lockdown
left out as mutants.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem()),
]
SCRIPT = Path(__file__).parent / "attempts.py"


def attempted(*words: str) -> dict[str, object]:
    """What the attempts gave: all, or with a part of the lockdown left out those that are named after it."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=1_000, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_no_attempt_succeeds() -> None:
    """Of fifty attempts (files, processes, signals, sockets, memory, descriptors, the machine) none has an
    effect, and each had its preview.
    """
    result = attempted()

    assert result["succeeded"] == []
    assert result["attempts"] == result["previews"]
    assert int(str(result["attempts"])) >= 50


@pytest.mark.parametrize(
    ("part", "let_through"),
    [
        ("landlock", {"write a file by libc", "delete a file", "read a key", "read a pipe by libc"}),
        (
            "seccomp",
            {"change a mode", "send by UDP", "use io_uring", "stay as a process", "bound the kernel's files"},
        ),
        ("descriptors", {"write to a socket of the kernel", "write to an open file of the kernel"}),
        ("memory", {"write shared memory", "write a mapped file by its address"}),
    ],
)
def test_each_part_of_the_lockdown_is_needed(part: str, let_through: set[str]) -> None:
    """Without one part of it attempts get through, and these tests see that."""
    assert set(attempted(part, *let_through)["succeeded"]) == let_through  # type: ignore[call-overload]
