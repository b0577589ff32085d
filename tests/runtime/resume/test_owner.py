"""Whether the process that worked on a run is still there."""

import asyncio
import html
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kestrel_lab.eventlog.connection import process_name
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.run_status import alive_elsewhere, visible_status
from kestrel_lab.lab import Lab
from kestrel_lab.server.controller import RunList
from kestrel_lab.testing import ScriptedModel


def test_only_another_live_process_of_this_machine_counts() -> None:
    """This process, an ended one, another machine's and nonsense do not stand in the way; a live one does,
    also one of somebody else's.
    """
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


WORKER = """
import asyncio, sys
from kestrel_lab.lab import Lab

class Hangs:
    name, kind = "hangs", "scripted"

    async def __call__(self, request, on_delta):
        await run.ctx.on_disk()
        print(run.id, flush=True)
        await asyncio.Event().wait()

async def main():
    global run
    run = Lab(sys.argv[1], env={}).start("never ends", model=Hangs())
    await run.wait()

asyncio.run(main())
"""


@pytest.fixture
def killed(session: Lab) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A run of another process, which is killed by the test."""
    session.store.flush()
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(session.home)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        yield other.stdout.readline().strip(), other
        other.kill()


def told(session: Lab, run_id: str) -> dict[str, str]:
    """How the run is said to stand, in every place that says it."""
    run = session.get(run_id)
    frame = session.history.runs().loc[run_id]
    (listed,) = RunList(session.store).newest(5)
    return {
        "frame": frame.status,
        "text": repr(run.report),
        "html": html.unescape(run._repr_html_()),
        "str": str(run),
        "list": listed.visible_status,
    }


def test_a_run_whose_process_was_killed_is_shown_as_interrupted(
    session: Lab, killed: tuple[str, subprocess.Popen[str]]
) -> None:
    """While the process lives the run is EXECUTING everywhere; after its death INTERRUPTED, with the command
    that goes on. The log stays as it is.
    """
    run_id, other = killed
    assert all("EXECUTING" in text and "INTERRUPTED" not in text for text in told(session, run_id).values())
    other.kill()
    other.wait()
    after = told(session, run_id)
    assert after["frame"] == "INTERRUPTED"
    assert after["list"] == "INTERRUPTED"
    assert all("INTERRUPTED" in text and "EXECUTING" not in text for text in after.values())
    assert all(f"kestrel run --resume {run_id}" in after[place] for place in ("text", "html", "str"))
    assert session.store.run(run_id).status == "EXECUTING"
    resumed = asyncio.run(_resumed(session, run_id))
    assert all("COMPLETE" in text for text in told(session, resumed).values())


async def _resumed(session: Lab, run_id: str) -> str:
    resumed = await session.resume(run_id, model=ScriptedModel(["done"]))
    return (await resumed.wait()).id


@pytest.mark.parametrize(
    ("owner", "word"),
    [
        ("", "INTERRUPTED"),
        ("{host}:{me}:1.00:s", "INTERRUPTED"),  # the number of a live process that began later
        ("{host}:{parent}:1.00:s", "INTERRUPTED"),
        ("{host}:{parent}", "EXECUTING"),
        ("{here}:closed session", "INTERRUPTED"),  # a session of this process that works on nothing
        ("elsewhere:{me}:1.00:s", "UNKNOWN"),
        ("elsewhere:{me}", "UNKNOWN"),
        ("nonsense", "INTERRUPTED"),
    ],
)
def test_status_goes_by_host_number_and_beginning_of_the_owner(owner: str, word: str) -> None:
    """A process is the same only if it began when the owner did; of other machines nothing is claimed.

    Ended and waiting runs stand as they are.
    """
    here = str(Owner.here("s")).rpartition(":")[0]
    text = owner.format(
        host=process_name().rpartition(":")[0], me=os.getpid(), parent=os.getppid(), here=here
    )
    assert (
        visible_status("r1", "EXECUTING", text).word
        == visible_status("r1", "PLANNING", text).word.replace("PLANNING", "EXECUTING")
        == word
    )
    assert [
        visible_status("r1", status, text).word
        for status in ("COMPLETE", "FAILED", "CANCELLED", "WAITING_APPROVAL")
    ] == ["COMPLETE", "FAILED", "CANCELLED", "WAITING_APPROVAL"]


def test_mutant_that_goes_by_the_number_alone_takes_a_later_process_for_the_owner() -> None:
    """Without the time at which it began, the live parent of this process would be the owner."""
    later = Owner(process=f"{process_name().rpartition(':')[0]}:{os.getppid()}", began=1.0, session="s")
    assert (later.alive, replace(later, began=None).alive) == (False, True)
