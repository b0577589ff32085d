"""Every public method of a lab that takes a run takes the `Run` that one holds, or its id."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kestrel_lab.core.errors import KestrelError, UsageError
from kestrel_lab.core.run_types import RunReference
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.conversation import Chat
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel

PARTS = ("", "history", "evals", "memory", "macros", "skills", "mcp")
NAMES_OF_RUNS = {"run", "run_id", "a", "b", "follow", "parent", "what"}
"""What parameters are called that stand for a run; `runs` is also the name of a number of runs."""


class Door(NamedTuple):
    """A parameter of a public method that takes a run."""

    part: str
    method: str
    parameter: str
    kind: Any


def part_of(lab: Lab, part: str) -> Any:
    """Return the lab, or a part of it."""
    return getattr(lab, part) if part else lab


def doors(lab: Lab) -> Iterator[Door]:
    """Return every parameter of a public method of the lab that stands for a run."""
    for part in PARTS:
        holder = part_of(lab, part)
        for name in dir(holder):
            method = getattr(holder, name, None)
            if name.startswith("_") or not inspect.isroutine(method) or name.endswith("_sync"):
                continue
            if name == "start":  # needs a loop; `run` begins with it
                continue
            for parameter in inspect.signature(method).parameters.values():
                takes_runs = parameter.kind is parameter.VAR_POSITIONAL and parameter.name == "runs"
                called_back = "Callable" in str(parameter.annotation)
                if takes_runs or (parameter.name in NAMES_OF_RUNS and not called_back):
                    yield Door(part, name, parameter.name, parameter.annotation)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose model answers anything."""
    with Lab(tmp_path / "home", model=ScriptedModel(lambda _: "done")) as opened:
        yield opened


@pytest.fixture
def held(lab: Lab, tmp_path: Path) -> Run:
    """A run that has ended."""
    (tmp_path / "work").mkdir()
    return lab.run_sync("go", workspace=tmp_path / "work")


def required(method: Callable[..., Any], parameter: str, run: object, tmp_path: Path) -> dict[str, Any]:
    """Return what a method needs beside the run."""
    known = {
        "goal": "go on",
        "name": "none",
        "text": "a note",
        "question": "who?",
        "target": tmp_path / "export.json",
        "granted": True,
        "by": "me",
        "how": "click",
        "a": run,
        "b": run,
    }
    return {
        one.name: known[one.name]
        for one in inspect.signature(method).parameters.values()
        if one.default is one.empty
        and one.name != parameter
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }


async def call(lab: Lab, door: Door, run: object, tmp_path: Path) -> None:
    """Call a method with a run, and wait for what it begins."""
    method = getattr(part_of(lab, door.part), door.method)
    others = required(method, door.parameter, run, tmp_path)
    positional = inspect.signature(method).parameters[door.parameter].kind
    if positional is inspect.Parameter.VAR_POSITIONAL:
        result = method(run, run, **others)
    else:
        result = method(**{**others, door.parameter: run})
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Chat):
        await result.ask("go on")


def test_every_parameter_that_stands_for_a_run_takes_a_run(lab: Lab) -> None:
    """No public method declares that it takes only the id of a run."""
    declared = {(door.part, door.method, door.parameter): str(door.kind) for door in doors(lab)}
    only_ids = {
        door for door, kind in declared.items() if "RunReference" not in kind and "HasRunId" not in kind
    }
    assert only_ids == set()
    assert {("", "fork", "run"), ("", "resume", "run"), ("history", "decide", "run")} <= declared.keys()


def test_a_run_that_is_held_is_taken_everywhere(lab: Lab, held: Run, tmp_path: Path) -> None:
    """A method that is given the run itself does what it does with its id: an error is about the run."""

    async def go_through(door: Door) -> None:
        outcomes = []
        for run in (held, held.id):
            try:
                await call(lab, door, run, tmp_path)
            except KestrelError as error:
                outcomes.append(str(error))
            else:
                outcomes.append("done")
        assert outcomes[0] == outcomes[1], door

    for door in doors(lab):
        asyncio.run(go_through(door))


def test_what_is_no_run_is_refused_by_name(lab: Lab, tmp_path: Path) -> None:
    """A method that is given neither a run nor an id says so, and shows what it was given."""
    told: dict[Door, str] = {}
    for door in doors(lab):
        try:
            asyncio.run(call(lab, door, 7, tmp_path))
        except UsageError as error:
            told[door] = str(error)
    wanted = "a run is given as a Run or as its id, not as int 7"
    assert {door for door in doors(lab) if told.get(door) != wanted} == set()


def test_runs_in_a_list_are_taken_too(lab: Lab, held: Run) -> None:
    """Runs that are removed or scanned together are given as themselves as well."""
    from kestrel_lab.runtime.workspace.removal import remove_runs

    with suppress(UsageError):  # there may be nothing to find
        lab.evals.scan_sync([held, held.id])
    assert remove_runs(lab, held).done
    reference: RunReference = held
    with pytest.raises(UsageError, match="removed"):
        lab.get(reference)
