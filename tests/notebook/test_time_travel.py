"""A slider over the events of a run shows it as of each; from each a branch begins, beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from waits import becomes

from kestrel_lab import Lab
from kestrel_lab.core.errors import UsageError
from kestrel_lab.notebook.time_travel import TimeTravel
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel


def script(request: Any) -> Any:
    """A model that reads a file, then says what it read."""
    said = next((message.text for message in reversed(request.messages) if message.role == "tool"), None)
    return [("read_file", {"path": "a.txt"})] if said is None else f"It says {said.strip()}."


async def told(tmp_path: Path) -> tuple[Lab, Run]:
    """A lab, and a run of it that has ended."""
    (tmp_path / "a.txt").write_text("seven\n")
    lab = Lab(home=tmp_path / "lab", model=ScriptedModel(script))
    return lab, await lab.run("what does it say?", workspace=tmp_path)


def travel(lab: Lab, run: Run) -> tuple[TimeTravel, list[Run]]:
    """The controls, shown, and the branches that they will begin."""
    branches: list[Run] = []
    found = TimeTravel(lab, run, "ada", lambda _, branch: branches.append(branch))
    found._repr_mimebundle_()
    return found, branches


def test_the_slider_shows_the_run_as_of_an_event(tmp_path: Path) -> None:
    """Before the tool answered its row runs and there is no answer; at the end there is; the fallback without
    a kernel is the whole run.
    """

    async def body() -> None:
        lab, run = await told(tmp_path)
        found, _ = travel(lab, run)
        whole = found.picture.value
        called = next(
            place for place, record in enumerate(found.records, 1) if record.event.type == "tool_called"
        )
        found.slider.value = called

        assert "It says seven." in whole
        assert "It says seven." not in found.picture.value
        assert "running" in found.picture.value
        assert "tool_called" in found.line.value
        assert "a.txt" in found.line.value
        assert "It says seven." in found._repr_mimebundle_()[0]["text/html"]
        assert run.report.view(at=found.record.seq).answer == ""
        with pytest.raises(UsageError, match="has no event 0"):
            run.report.view(at=0)

    asyncio.run(body())


def test_a_branch_begins_at_the_event_and_is_shown_beside(tmp_path: Path) -> None:
    """With another tool result the model goes on from that; the parent stays as it is; what cannot be forked
    so is said.
    """

    async def body() -> None:
        lab, run = await told(tmp_path)
        found, branches = travel(lab, run)
        found.given.value, found.text.value = "another tool result", "eight"
        found.button.click()
        await becomes(lambda: found.problem.value)
        assert "can be forked at" in found.problem.value
        assert branches == []

        found.slider.value = next(
            place for place, record in enumerate(found.records, 1) if record.event.type == "tool_called"
        )
        found.button.click()
        await becomes(lambda: branches)
        await branches[0].wait()
        await becomes(lambda: "It says eight." in getattr(found.branch.children[0], "value", ""))

        assert (branches[0].answer, run.answer) == ("It says eight.", "It says seven.")
        assert found.problem.value == ""

    asyncio.run(body())
