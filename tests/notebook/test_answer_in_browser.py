"""Annotated answers, time travel, the board of a suite and the chat box in a real JupyterLab, looked at with
a real browser.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab_server import CHROMIUM, JupyterLab, run_cell
from waits import PATIENCE_MS, until

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(600),
]
SETUP = """%load_ext kestrel_lab
import asyncio, pathlib
from kestrel_lab import Lab
from kestrel_lab.core.messages import ModelAnswer, ThinkingDelta, ThinkingPart, ToolRequest

pathlib.Path("pool.py").write_text("class Pool:\\n    size = 8\\n    rows = 1188\\n")
go = asyncio.Event()

class Thinker:
    name, kind = "thinker", "scripted"

    async def __call__(self, request, on_delta):
        told = [m for m in request.messages if m.role == "tool" and not m.earlier]
        if not told:
            on_delta(ThinkingDelta("I look into the file "))
            on_delta(ThinkingDelta("and then count."))
            await go.wait()
            call = ("read_file", {"path": "pool.py"})
            return ModelAnswer(calls=(ToolRequest(id="1", name=call[0], args=call[1]),), \
finish="tool_calls", thinking=(ThinkingPart(text="I look into the file and then count."),))
        if told[-1].text.strip() == "other":
            return ModelAnswer(text="Nothing is there.")
        return ModelAnswer(text="## Found\\n\\nThe pool holds **8 connections** [pool.py:2]. It has 1,188 \
rows. The limit is in [gone.py:3].")

lab = Lab(model=Thinker())"""
SUITE = """from kestrel_lab import Scenario, Suite
from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.testing import ScriptedModel
ask = lambda n: Scenario(id=f"q{n}", goal=f"say {n}", checks=(AnswerContains(texts=("yes",)),))
class Slow:
    name, kind = "slow", "scripted"
    async def __call__(self, request, on_delta):
        while "3" in request.messages[-1].text and not pathlib.Path("go").exists(): await asyncio.sleep(0.05)
        return ModelAnswer(text="yes" if "1" in request.messages[-1].text else "no, never")
result = await lab.eval(Suite(name="s", concurrency=1, scenarios=tuple(ask(n) for n in (1, 2, 3))), \
configs={"m": Slow()})"""


def cell(page: Page, number: int) -> Locator:
    """A cell of the notebook, counted from 0."""
    return page.locator(".jp-Notebook .jp-Cell").nth(number)


def pictures(page: Page, of: Locator, screens: Path, name: str) -> None:
    """Screenshots of an output for the eye: light, dark and narrow."""
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', { theme: name })", theme
        )
        page.wait_for_timeout(800)
        of.scroll_into_view_if_needed()
        page.screenshot(path=screens / f"{name}-{theme.split()[1].lower()}.png")
    page.set_viewport_size({"width": 520, "height": 900})
    of.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    page.screenshot(path=screens / f"{name}-narrow.png")
    page.set_viewport_size({"width": 1100, "height": 900})


def test_an_answer_is_annotated_and_its_run_can_be_gone_through(
    jupyterlab: JupyterLab, screens: Path
) -> None:
    """Thinking grows while the model thinks; claims show what they cite on focus; a number leads to its call;
    a branch begins at an event.
    """
    cells = [SETUP, '%kestrel run "how many connections?" --bg', "go.set()", "1"]
    with jupyterlab.opened("answer", cells) as page:
        run_cell(page, 0)
        expect(cell(page, 0).locator(".jp-InputPrompt")).to_have_text("[1]:")
        run_cell(page, 1)
        fold = cell(page, 1).locator(".kst-thinking")
        expect(fold).to_contain_text("I look into the file and then count.")
        expect(fold).not_to_have_attribute("open", "")
        page.screenshot(path=screens / "thinking.png")
        run_cell(page, 2)
        answer = cell(page, 1)
        claim = answer.locator(".kst-claim.kst-cited[tabindex]")
        expect(claim).to_contain_text("8 connections")
        claim.focus()
        shown = "element => getComputedStyle(element, '::after').content"
        assert "size = 8" in claim.evaluate(shown)
        assert "size = 8" in (claim.get_attribute("aria-description") or "")
        pictures(page, claim, screens, "claims")
        expect(answer.locator(".kst-claim.kst-wrong")).to_contain_text("The limit is in")
        answer.locator("a", has_text="1,188").click()
        expect(answer.locator("details[open] > summary", has_text="read_file")).to_be_focused()

        answer.get_by_role("button", name="Step through").click()
        expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(5)
        inserted = next(
            n for n in range(5) if "--slider" in cell(page, n).locator(".jp-InputArea").inner_text()
        )
        run_cell(page, inserted)
        travel = cell(page, inserted)
        slider = travel.get_by_role("slider").first
        slider.focus()
        page.keyboard.press("Home")
        expect(travel).to_contain_text("run_started")
        expect(travel.locator("section").first).not_to_contain_text("8 connections")
        for number in range(2, 40):
            if "tool_called" in travel.inner_text():
                break
            page.keyboard.press("ArrowRight")
            # The slider shows its place at once, and what the event is when the kernel has answered.
            until(
                lambda number=number: f"Event\n{number}\n{number} " in travel.inner_text(), f"event {number}"
            )
        travel.locator("select").first.select_option("another tool result")
        travel.locator("textarea").fill("other")
        travel.get_by_role("button", name="Fork here").click()
        expect(travel).to_contain_text("Nothing is there.")
        pictures(page, travel, screens, "travel")
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        saved = json.loads((jupyterlab.root / "answer" / "t.ipynb").read_text())

    html = "".join(saved["cells"][1]["outputs"][0]["data"]["text/html"])
    assert "kst-claim kst-cited" in html
    assert "size = 8" in html
    assert "widgets" not in saved["metadata"]


def test_a_tile_opens_its_transcript_and_a_chat_begins_in_a_cell(
    jupyterlab: JupyterLab, screens: Path
) -> None:
    """A tile opens the transcript while the suite runs, and in the saved picture; a conversation begins in a
    cell.
    """
    cells = [
        SETUP,
        SUITE,
        "lab.chat(model=ScriptedModel(lambda request: 'You said ' + request.messages[-1].text))",
    ]
    with jupyterlab.opened("board", cells) as page:
        run_cell(page, 0)
        expect(cell(page, 0).locator(".jp-InputPrompt")).to_have_text("[1]:")
        run_cell(page, 1)
        board = cell(page, 1)
        tile = board.locator("summary", has_text="✗").first
        expect(tile).to_contain_text("expected: ")
        tile.click()
        expect(board.locator("section").first).to_contain_text("no, never")
        pictures(page, board, screens, "board-live")
        (jupyterlab.root / "board" / "go").touch()
        expect(board.locator(".jp-RenderedHTMLCommon")).to_contain_text("q3", timeout=PATIENCE_MS)
        tile.click()
        expect(board.locator("section:visible")).to_contain_text("no, never")
        pictures(page, board, screens, "board-saved")
        run_cell(page, 2)
        chat = cell(page, 2)
        line = chat.get_by_placeholder("Ask something …")
        line.fill("hello")
        line.press("Enter")
        expect(chat).to_contain_text("You said hello")
        pictures(page, chat, screens, "chat")
