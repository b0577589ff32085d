"""Patches on their way to a screen: bundled, numbered, and whole when asked for."""

from __future__ import annotations

import asyncio

from kestrel_lab.core import events as e
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.notebook.stream import PatchStream
from kestrel_lab.views.runview import RunView


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

    assert [[change["op"] for change in message["changes"]] for message in sent] == [["row", "text", "row", "ask"]]  # type: ignore[union-attr,call-overload,index]


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
        assert sent[-1]["changes"] == stream.view.snapshot()

    asyncio.run(play())

    assert [(message["k"], message["seq"]) for message in sent] == [("patch", 1), ("snap", 1)]


def test_a_named_run_is_named_in_the_next_message() -> None:
    """Events do not say which run they belong to; the stream is told."""
    sent: list[dict[str, Json]] = []
    stream = PatchStream(RunView(), sent.append)
    stream.name("r1")
    stream.flush()

    assert sent[0]["changes"] == [{"op": "head", "id": "head", "run": "r1"}]
