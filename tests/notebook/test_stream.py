"""Patches on their way to a screen: bundled, numbered, and whole when asked for."""

from __future__ import annotations

import asyncio
import json
import time

from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.notebook.patch_stream import INTERVAL_S, SPARE, PatchStream
from kestrel_lab.views.html.markdown import RenderedChanges
from kestrel_lab.views.run_view import RunView


def told(work: list[e.Event], pause: float = 0.06) -> list[dict[str, Json]]:
    """The messages that a front end gets for `work`."""
    sent: list[dict[str, Json]] = []

    async def play() -> None:
        stream = PatchStream(RunView(), sent.append)
        for event in work:
            stream.take(event)
        await asyncio.sleep(pause)

    asyncio.run(play())
    return sent


def deltas(number: int) -> list[e.Event]:
    """A model that streams `number` pieces."""
    return [e.ModelDelta(call="m", text=f"{n} ") for n in range(number)]


ASKED = e.ApprovalAsked(call="c", step="s", tool="bash", args={}, danger="HIGH", key="k")


def test_a_thousand_pieces_of_text_are_one_message() -> None:
    """Text that streams within one interval is sent once, whole and in order."""
    sent = told(deltas(1_000))

    assert [message["seq"] for message in sent] == [1]
    changes = sent[0]["changes"]
    assert isinstance(changes, list)
    assert len(changes) == 2
    row, rest = changes
    assert isinstance(row, dict) and isinstance(rest, dict)
    assert f"{row['text']}{rest['append']}" == "".join(f"{n} " for n in range(1_000))


def test_a_question_is_sent_at_once() -> None:
    """What a person waits for does not wait for the next interval, and takes along what came before."""
    sent = told([*deltas(2), ASKED], pause=0)

    assert [[change["op"] for change in message["changes"]] for message in sent] == [
        ["row", "text", "row", "ask"]
    ]  # type: ignore[union-attr,call-overload,index]


def starts(number: int) -> list[e.Event]:
    """Calls that begin one after the other."""
    return [e.ToolCalled(call=f"c{n}", step="s", tool="grep", args={}) for n in range(number)]


def test_a_call_that_starts_is_sent_at_once_and_a_rush_of_calls_is_bundled() -> None:
    """A tool may hold up the loop, so its beginning is told first; two hundred beginnings are still only a
    few messages.
    """
    assert len(told(starts(1), pause=0)) == 1

    began = time.monotonic()
    rush = told(starts(200))
    earned = (
        time.monotonic() - began
    ) / INTERVAL_S  # one more may go with each interval that the rush itself lasts
    rows = [change["id"] for message in rush for change in message["changes"]]  # type: ignore[union-attr,call-overload,index]

    assert len(rush) <= SPARE + 1 + earned < 100
    assert rows == [f"c:c{n}" for n in range(200)]


def test_an_id_that_no_kernel_can_send_is_written_as_an_escape() -> None:
    """A lone surrogate in an id would end the stream, and in a request for the whole view the kernel's
    channel.
    """
    sent = told([e.ToolCalled(call="\ud800", step="s\udfff", tool="grep", args={"\ud800": "\ud800"})])

    json.dumps(sent, ensure_ascii=False).encode()
    assert sent[0]["changes"][0]["id"] == "c:\\ud800"  # type: ignore[index,call-overload]


def test_asking_again_gives_the_whole_view_and_nothing_twice() -> None:
    """A front end that joins gets the view; what had gathered is in it and is not sent again."""
    sent: list[dict[str, Json]] = []

    async def play() -> None:
        stream = PatchStream(RunView(), sent.append)
        stream.take(ASKED)
        stream.take(deltas(1)[0])
        stream.whole()
        stream.flush()
        await asyncio.sleep(0.06)
        assert sent[-1]["changes"] == RenderedChanges(stream.view).of(stream.view.snapshot())

    asyncio.run(play())

    assert [(message["k"], message["seq"]) for message in sent] == [("patch", 1), ("snap", 1)]


def test_a_named_run_is_named_in_the_next_message() -> None:
    """Events do not say which run they belong to; the stream is told."""
    sent: list[dict[str, Json]] = []
    stream = PatchStream(RunView(), sent.append)
    stream.name("r1")
    stream.flush()

    assert sent[0]["changes"] == [{"op": "head", "id": "head", "run": "r1"}]
