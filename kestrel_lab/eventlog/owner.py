"""The owner of a run: a session of a process, identified by process number and start time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from kestrel_lab.eventlog.connection import process_name

SLACK_S = 5.0
"""How far the clock may have been set since an owner wrote down when its process began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """A session as a run's row names it: `host:pid:began:session`; the first version wrote `host:pid`."""

    process: str
    """`host:pid`."""
    began: float | None = None
    """When that process started, seconds since 1970, UTC."""
    session: str = ""
    """Unique for ever."""

    @classmethod
    def here(cls, session: str) -> Owner:
        """The session of that name in this process."""
        return cls(process=process_name(), began=_process_start(os.getpid()), session=session)

    @classmethod
    def parse(cls, text: str) -> Owner:
        """The owner that `text` names; one that is never alive when it names none."""
        parts = text.rsplit(":", 2)
        try:
            if len(parts) == 3 and ":" in parts[0]:
                return cls(process=parts[0], began=float(parts[1]), session=parts[2])
        except ValueError:
            # The first version wrote `host:pid` alone.
            pass
        return cls(process=text)

    def __str__(self) -> str:
        return f"{self.process}:{self.began or 0:.2f}:{self.session}"

    @property
    def same_process(self) -> bool:
        """Whether it is a session of this very process."""
        return self.process == process_name() and self.alive

    @property
    def alive(self) -> bool:
        """Whether its process is there on this machine; of other machines nothing is known."""
        pid = self.process.rpartition(":")[2]
        return pid.isdecimal() and not self.host and _is_running(int(pid), self.began)

    @property
    def host(self) -> str:
        """The other machine that its process is on; empty for one of this machine."""
        host = self.process.rpartition(":")[0]
        return "" if host == process_name().rpartition(":")[0] else host


@cache
def _process_start(pid: int) -> float:
    """When this process, of that number, was started; asked once, since every run names its owner."""
    # Only runs of other processes need it.
    import psutil  # not needed to read a log

    began: float = psutil.Process(pid).create_time()
    return began


def _is_running(pid: int, began: float | None) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        # Over, and its parent has not looked yet.
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return began is None or abs(process.create_time() - began) <= SLACK_S
    except psutil.AccessDenied:  # somebody else's
        return True
    except (psutil.Error, OverflowError):
        # It ended meanwhile, or the log names a number that is no process id.
        return False
