"""Whether the process that last worked on a run is still there."""

import os
from contextlib import suppress

from kestrel_lab.log.connection import process_name


def alive_elsewhere(owner: str) -> bool:
    """Whether `owner` (`host:pid`) is another live process of this machine; of other machines nothing is known."""
    host, _, pid = owner.rpartition(":")
    here = process_name()
    if owner == here or not pid.isdigit() or host != here.rpartition(":")[0]:
        return False
    with suppress(PermissionError):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return False
    return True
