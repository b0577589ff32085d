"""Whether the process that worked on a run is still there."""

import os
import subprocess
import sys

from kestrel_lab.engine.owner import alive_elsewhere
from kestrel_lab.log.connection import process_name


def test_only_another_live_process_of_this_machine_counts() -> None:
    """This process, an ended one, another machine's and nonsense do not stand in the way; a live one does, also one of somebody else's."""
    host = process_name().rpartition(":")[0]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        name = f"{host}:{other.pid}"
        assert alive_elsewhere(name)
        assert not alive_elsewhere(f"elsewhere:{other.pid}")
        other.communicate(b"\n")
    assert not alive_elsewhere(name)
    assert not alive_elsewhere(process_name())
    assert alive_elsewhere(f"{host}:{os.getppid()}")
    assert [alive_elsewhere(text) for text in ("", "x", ":", f"{host}:x")] == [False] * 4
