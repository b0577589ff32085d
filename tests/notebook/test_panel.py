"""Claims about the panel as an approver, without a browser: messages are handed to it as a kernel would."""

import asyncio

from kestrel_lab.core.events import ApprovalAsked, ApprovalGiven
from kestrel_lab.notebook.panel import Panel

ASKED = ApprovalAsked(call="answer.1.1", step="answer", tool="bash", args={"command": "ls"}, danger="HIGH", key="k", question="answer.1.1")
YES = {"k": "decide", "id": "answer.1.1", "granted": True, "scope": "run"}


def panel() -> Panel:
    """A panel that shows the question."""
    shown = Panel(user="me", fallback=None)
    shown._stream.take(ASKED)
    return shown


def test_a_click_that_comes_early_counts() -> None:
    """A question is shown before it is on disk; a click in between is not lost, and any word of a page shows that one is there."""
    shown = panel()
    shown._message(None, YES, None)
    given = asyncio.run(asyncio.wait_for(shown(ASKED), 5))
    assert given == ApprovalGiven(call="answer.1.1", granted=True, by="me", how="click", scope="run")


def test_a_click_says_for_how_long_it_holds() -> None:
    """Each scope that the panel offers is taken as it is; any other word is a yes to this call alone."""
    scopes = []
    for scope in ("same", "like", "run", "forever", None):
        shown = panel()
        shown._message(None, {**YES, "scope": scope}, None)
        scopes.append(asyncio.run(asyncio.wait_for(shown(ASKED), 5)).scope)
    assert scopes == ["same", "like", "run", "once", "once"]


def test_a_second_click_is_not_kept_for_another_question() -> None:
    """What is clicked after the answer decides nothing later: asked again, the panel waits."""

    async def ask_twice() -> list[str]:
        shown = panel()
        first = asyncio.ensure_future(shown(ASKED))
        await asyncio.sleep(0.05)
        shown._message(None, YES, None)
        shown._message(None, YES, None)
        await first
        shown.view.asks.clear()
        shown._message(None, YES, None)
        again = asyncio.ensure_future(shown(ASKED))
        done, _ = await asyncio.wait({again}, timeout=0.3)
        again.cancel()
        return ["answered" if done else "waits"]

    assert asyncio.run(ask_twice()) == ["waits"]
