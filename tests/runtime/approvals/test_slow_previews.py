"""Questions about code whose preview takes long: they do not wait for it, and it is no work of the run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, PREVIEWING, Danger
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    KernelPreviewed,
    RunStarted,
    StateTransition,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.usage import UsageMeter
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.agent import tool_calls
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import DryRun, ToolContext
from kestrel_lab.views.run_view import RunView

FOUND = DryRun(danger=Danger.LOW, sandbox=PREVIEWED, text="total: new int, 3")


@tool(danger_level="medium", version="1")
async def run_code(code: str, ctx: ToolContext) -> str:
    """Say where code would run."""
    assert ctx.code is not None
    return ctx.code.sandbox


class Preview:
    """A preview that ends when it is told to; `ended` says how it went."""

    def __init__(self) -> None:
        self.go, self.ended = asyncio.Event(), ""

    async def __call__(self, _args: dict[str, Json], _ctx: ToolContext) -> DryRun:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended = "broken off"
            raise
        self.ended = "complete"
        return FOUND


def carried_out(
    session: Lab, workspace: Path, *, wait_for_preview: bool, answers: bool
) -> tuple[Run, Preview]:
    """A run whose only call has a preview that does not end before the question."""

    async def work() -> tuple[Run, Preview]:
        preview = Preview()

        async def approver(asked: ApprovalAsked) -> ApprovalGiven:
            assert preview.ended == "", "the question came before the preview ended"
            if wait_for_preview:
                preview.go.set()
            if not answers:
                await asyncio.get_running_loop().create_future()
            return ApprovalGiven(call=asked.call, granted=True, by="ann", how="click")

        run = await session.run(
            "go",
            model=ScriptedModel([[("run_code", {"code": "total = 3"})], "done"]),
            workspace=workspace,
            tools=[replace(run_code, dry_run=preview)],
            approve="auto:low",
            approver=approver,
        )
        return run, preview

    return asyncio.run(work())


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions wait 20 ms for a preview."""
    monkeypatch.setattr(tool_calls, "PREVIEW_PATIENCE_S", 0.02)


def test_a_question_does_not_wait_for_its_preview(session: Lab, workspace: Path) -> None:
    """It says that the preview is not there; a yes runs the code as code without one, and the preview ends."""
    run, preview = carried_out(session, workspace, wait_for_preview=False, answers=True)
    asked = next(event for event in run.events() if isinstance(event, ApprovalAsked))
    called = next(event for event in run.events() if isinstance(event, ToolCalled))
    assert (asked.preview, asked.danger, asked.sandbox) == (PREVIEWING, "HIGH", IN_KERNEL)
    assert (called.sandbox, preview.ended, run.answer) == (IN_KERNEL, "broken off", "done")


def test_a_preview_that_needs_no_question_withdraws_it(session: Lab, workspace: Path) -> None:
    """The policy lets values of a harmless preview pass: nobody has to click, and nothing but they is used."""
    run, preview = carried_out(session, workspace, wait_for_preview=True, answers=False)
    given = next(event for event in run.events() if isinstance(event, ApprovalGiven))
    answered = next(event for event in run.events() if isinstance(event, ToolAnswered))
    assert (given.granted, given.by, given.sandbox, given.danger) == (
        True,
        "policy auto:low",
        PREVIEWED,
        "LOW",
    )
    assert (preview.ended, answered.text) == ("complete", PREVIEWED)


def test_looking_ahead_is_no_work() -> None:
    """The seconds of a preview, and those in which a question waited for one, count against no limit."""
    meter = UsageMeter()
    meter.take(RunStarted(goal="go", workspace=".", model="toy"), 0)
    meter.take(StateTransition(source="PLANNING", target="EXECUTING"), 1)
    meter.take(KernelPreviewed(call="a", step="s", seconds=4), 7)
    asked = ApprovalAsked(
        call="b", step="s", tool="run_code", args={}, danger="HIGH", key="k", preview=PREVIEWING
    )
    meter.take(asked, 8)
    meter.take(StateTransition(source="EXECUTING", target="WAITING_APPROVAL"), 8)
    meter.take(KernelPreviewed(call="b", step="s", seconds=12), 20)
    assert (meter.working_s, meter.idle_s, meter.waiting_s) == (3, 5, 12)


def test_a_late_preview_fills_the_card() -> None:
    """The card is there at once and says since when it waits; the preview brings facts, figures and danger."""
    view = RunView()
    asked = ApprovalAsked(
        call="b", step="s", tool="run_code", args={}, danger="HIGH", key="k", preview=PREVIEWING
    )
    view.apply(asked, 8)
    assert (view.asks["b"].previewing, view.asks["b"].danger) == (8, "HIGH")
    image: dict[str, Json] = {"media": "image/png", "data": "aGk="}
    found = KernelPreviewed(
        call="b", step="s", text="x: new int\u202e", danger="MEDIUM", sandbox=IN_KERNEL, images=[image]
    )
    view.apply(found, 20)
    card = view.asks["b"]
    assert (card.previewing, card.danger, card.why) == (0, "MEDIUM", "runs in your kernel")
    assert (card.diff, card.images) == ("x: new int\\u{202e}", ["data:image/png;base64,aGk="])
