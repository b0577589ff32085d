"""Carries out a run up to a moment at which it says so and stays: `HOME WORKSPACE MOMENT [MUTANT]`. Whoever
started it then presses Ctrl-C.

Without arguments it reads one JSON order per line: those words as `words`, the `folder` to work in, and
`out`, a named pipe for what is said. Each is carried out by a fork, which ends as the process of a script
does. The answers are two lines: its id, and its exit status.
"""

import asyncio
import gc
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import ModelKind, OnDelta
from kestrel_lab.core.run_types import Limits
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool

EFFECTS = "effects"


def say(word: str = "there") -> None:
    """Tell whoever waits for the moment."""
    print(word, flush=True)


def effect(line: str) -> None:
    """Have an effect in the workspace, which is the current folder."""
    with Path(EFFECTS).open("a") as file:
        file.write(f"{line}\n")


@tool(danger_level="medium")
async def launch() -> str:
    """Launch it, and wait for it to land."""
    effect("launched")
    say()
    await asyncio.sleep(100)
    return "landed"


@tool(danger_level="medium")
def launch_and_block() -> str:
    """Launch it, and hold everything up until it lands."""
    effect("launched")
    say()
    time.sleep(100)
    return "landed"


@tool(danger_level="safe", effect="pure")
def look() -> str:
    """Look."""
    return "nothing"


class Waits:
    """A scripted model whose answer number `at` never comes; with `blocks` it holds up the event loop
    meanwhile.
    """

    def __init__(self, script: ScriptedModel, at: int, *, blocks: bool = False) -> None:
        self._script, self._at, self._blocks = script, at, blocks
        self._asked = itertools.count(1)

    @property
    def name(self) -> str:
        """The script's."""
        return self._script.name

    @property
    def kind(self) -> ModelKind:
        """The script's."""
        return self._script.kind

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Play, or wait."""
        if next(self._asked) == self._at:
            say()
            if self._blocks:
                time.sleep(100)  # what a careless model does
            await asyncio.sleep(100)
        return await self._script(request, on_delta)


async def never(asked: ApprovalAsked) -> ApprovalGiven:
    """A person who thinks."""
    say()
    await asyncio.sleep(100)
    raise AssertionError


def spin() -> ScriptedModel:
    """A model that looks again and again and never suspends; it says so once it has begun."""
    turns = itertools.count(1)

    def play(_: ModelRequest) -> Turn:
        if (turn := next(turns)) == 5:
            say()
        return [("look", {})] if turn < 4_000 else "never stopped"

    return ScriptedModel(play)


LOOKS: list[Turn] = [[("look", {})], "done"]
MOMENTS: dict[str, dict[str, Any]] = {
    "model": {"model": Waits(ScriptedModel(LOOKS), 2)},
    "blocking model": {"model": Waits(ScriptedModel(LOOKS), 2, blocks=True)},
    "spinning": {"model": spin(), "limits": Limits(cycles=None, seconds=None)},
    "effect": {"model": ScriptedModel([[("launch", {})], "done"])},
    "blocking effect": {"model": ScriptedModel([[("launch_and_block", {})], "done"])},
    "approval": {"model": ScriptedModel([[("launch", {})], "done"]), "approve": "ask", "approver": never},
    "verification": {
        "model": Waits(ScriptedModel(["It is `gone()` in `gone.py`."] * 4), 2),
        "verify": "repair",
    },
}


def main(home: str, workspace: str, moment: str, *mutant: str) -> None:
    """Do it."""
    if mutant:  # takes every cancellation for somebody's decision
        RunContext.cancelled = property(lambda _: True, lambda *_: None)  # type: ignore[assignment,method-assign]
    session = Lab(home, env={}, tools=[launch, launch_and_block, look], approve="auto")
    options = {"approve": "auto", **MOMENTS[moment]}
    try:
        run = asyncio.run(session.run("go", workspace=workspace, **options))
        say(f"{run.status} {run.answer}")
    except KeyboardInterrupt:
        session.close()
        sys.exit(130)


def serve() -> None:
    """Serve orders until the input ends; returns in a fork when its order is carried out."""
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # one run loads what would otherwise be loaded in every fork
        session = Lab(f"{folder}/home", env={}, tools=[look])
        asyncio.run(
            session.run(
                "go",
                workspace=folder,
                model=ScriptedModel([LOOKS[0], *["`gone()` in `gone.py`."] * 4]),
                verify="repair",
            )
        )
        session.close()
    gc.freeze()  # a collection in a fork, as at its end, would copy every page of what was loaded here
    assert threading.active_count() == 1, "a fork of a process with threads may hang"
    for line in sys.stdin:
        order = json.loads(line)
        if (pid := os.fork()) == 0:
            os.chdir(order["folder"])
            os.dup2(os.open(order["out"], os.O_WRONLY), sys.stdout.fileno())
            return main(*order["words"])
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else serve()
