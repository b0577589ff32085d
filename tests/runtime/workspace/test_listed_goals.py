"""A goal of many lines is one short line wherever runs are listed, and says how many lines follow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel_lab import Lab
from kestrel_lab.notebook.completion import _runs
from kestrel_lab.runtime.workspace.find import find_runs
from kestrel_lab.runtime.workspace.removal import plan_of
from kestrel_lab.server import protocol
from kestrel_lab.server.trial_list import list_found
from kestrel_lab.testing import ScriptedModel

FRAME = "\n".join(f"{number:>4}  {number * 1.5:>8.2f}  code{number}" for number in range(200))
GOAL = f"Which row is odd?\n\n{FRAME}"


def run_ids(lab: Lab) -> list[str]:
    """The ids of all runs."""
    return list(lab.runs().index)


DOORS: dict[str, Callable[[Lab], str]] = {
    "runs": lambda lab: lab.runs()["goal"].iloc[0],
    "repr of a run": lambda lab: repr(lab.history.get(run_ids(lab)[0])),
    "completion of ids": lambda lab: next(iter(_runs(lab, "").values())),
    "find": lambda lab: find_runs(lab.store, wait=True).table()[1][0][4],
    "frame of find": lambda lab: find_runs(lab.store, wait=True).frame["goal"].iloc[0],
    "removal": lambda lab: plan_of(lab, run_ids(lab)).table()[1][0][1],
    "page of the server": lambda lab: list_found(lab.store, protocol.Find(id="1", query="")).runs[0].task,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_pasted_frame_is_not_listed(tmp_path: Path, door: str) -> None:
    """What was asked is shown, without the rows below it, and the number of lines that are not shown."""

    async def show() -> str:
        async with Lab(home=tmp_path / "home", model=ScriptedModel(["Row 3."])) as lab:
            await lab.run(GOAL, workspace=tmp_path, tools=[])
            return await asyncio.to_thread(DOORS[door], lab)

    shown = asyncio.run(show())
    assert ("Which row is odd?" in shown, "more lines" in shown) == (True, True)
    assert ("code7" in shown, "\n" in shown) == (False, False)
