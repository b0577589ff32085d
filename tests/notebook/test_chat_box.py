"""A conversation in a cell has a line to type into, also before its first turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from waits import becomes

from kestrel_lab import Lab
from kestrel_lab.notebook.panel import ChatBox
from kestrel_lab.testing import ScriptedModel


def test_what_is_typed_is_the_next_turn(tmp_path: Path) -> None:
    """Turns follow each other, by the button and by Enter; each stands in the box with its answer, and an
    empty line begins none. A command is answered in its place, and a mistyped one explained.
    """

    async def body() -> None:
        lab = Lab(
            home=tmp_path / "lab",
            model=ScriptedModel(lambda request: f"You said {request.messages[-1].text} <b>."),
        )
        chat = lab.chat(workspace=tmp_path)
        box = ChatBox(chat, lambda command: f"<{command.name}> {command.text}")
        data, _ = box.bundle()
        assert data["application/vnd.jupyter.widget-view+json"]
        assert box._turns.children == ()

        box._button.click()
        box._text.value = "hello"
        box._button.click()
        await becomes(lambda: len(chat.runs) == 1)
        await chat.runs[0].wait()
        box._text.value = "and again"
        box._text._handle_custom_msg({"event": "submit"}, [])
        await becomes(lambda: len(chat.runs) == 2)
        await chat.runs[1].wait()
        await becomes(lambda: len(box._turns.children) == 2)
        await becomes(lambda: all(hasattr(turn.children[0], "value") for turn in box._turns.children))

        first, second = (turn.children[0].value for turn in box._turns.children)
        assert "You said hello &lt;b&gt;." in first
        assert "You said and again" in second
        assert [run.goal for run in chat.runs] == ["hello", "and again"]
        assert (box._text.value, box._problem.value) == ("", "")

        box._text.value = "/time tomorrow"
        box._button.click()
        await becomes(lambda: len(box._turns.children) == 3)
        assert "&lt;time&gt; tomorrow" in box._turns.children[2].value
        box._text.value = "/hlep"
        box._button.click()
        await becomes(lambda: box._problem.value)
        assert "did you mean /help?" in box._problem.value
        assert len(chat.runs) == 2, "no model was asked"
        assert "You said and again" in box.bundle()[0]["text/html"]

    asyncio.run(body())
