"""Claims about the panel as an approver, without a browser: messages are handed to it as a kernel would."""

import asyncio
from pathlib import Path

from waits import PATIENCE_S

from kestrel_lab.core.events.labels import BLAME
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, RunScanned
from kestrel_lab.lab import Lab
from kestrel_lab.notebook.frontend import LOOKED_AT, Notebook
from kestrel_lab.notebook.panel import Panel
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel

ASKED = ApprovalAsked(
    call="answer.1.1",
    step="answer",
    tool="bash",
    args={"command": "ls"},
    danger="HIGH",
    key="k",
    question="answer.1.1",
)
YES = {"k": "decide", "id": "answer.1.1", "granted": True, "scope": "run"}


def panel() -> Panel:
    """A panel that shows the question."""
    shown = Panel(user="me", fallback=None)
    shown._stream.take(ASKED)
    return shown


def test_a_click_that_comes_early_counts() -> None:
    """A question is shown before it is on disk; a click in between is not lost, and any word of a page shows
    that one is there.
    """
    shown = panel()
    shown._message(None, YES, None)
    given = asyncio.run(asyncio.wait_for(shown(ASKED), PATIENCE_S))
    assert given == ApprovalGiven(call="answer.1.1", granted=True, by="me", how="click", scope="run")


def test_a_click_says_for_how_long_it_holds() -> None:
    """Each scope that the panel offers is taken as it is; any other word is a yes to this call alone."""
    scopes = []
    for scope in ("same", "like", "run", "forever", None):
        shown = panel()
        shown._message(None, {**YES, "scope": scope}, None)
        scopes.append(asyncio.run(asyncio.wait_for(shown(ASKED), PATIENCE_S)).scope)
    assert scopes == ["same", "like", "run", "once", "once"]


def test_a_repeated_click_counts_once() -> None:
    """The page repeats a click until it sees what came of it: repetitions, early or late, answer no other
    question about the call.
    """

    async def ask_twice(name: str) -> str:
        shown = panel()
        click = {**YES, "n": "click 1"}
        first = asyncio.ensure_future(shown(ASKED))
        await asyncio.sleep(0.05)
        shown._message(None, click, None)
        await first
        shown._message(None, {**click, "n": name}, None)
        again = asyncio.ensure_future(shown(ASKED))
        done, _ = await asyncio.wait({again}, timeout=0.3)
        again.cancel()
        return "answered" if done else "waits"

    assert asyncio.run(ask_twice("click 1")) == "waits"
    assert (
        asyncio.run(ask_twice("click 2")) == "answered"
    )  # the mutant that gives each repetition a name of its own


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


class Shown:
    """The place in a notebook where the picture stands."""

    def __init__(self) -> None:
        self.pictures: list[str] = []

    def update(self, still: dict[str, str], *, raw: bool) -> None:
        """Another picture."""
        assert raw
        self.pictures.append(still["text/html"])


def cited(tmp_path: Path) -> tuple[Run, Path]:
    """A run whose answer cites a line that it read, and the file."""
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "roof.txt"
    file.write_text("The roof is red.\n")
    model = ScriptedModel([[("read_file", {"path": "roof.txt"})], "The roof is red. [roof.txt:1]"])
    return asyncio.run(
        Lab(tmp_path / "lab", env={}).run("what colour?", model=model, workspace=tmp_path / "work")
    ), file


def test_a_picture_says_what_has_changed_since(tmp_path: Path) -> None:
    """Looked at again after a cell, the picture is put up anew when a cited file has changed, moved, gone or
    come back, and only then.
    """
    run, file = cited(tmp_path)
    shown, place = Panel(user="me", fallback=None), Shown()
    for record in run.records():
        shown.view.apply(record)
    shown._run, shown._handle, shown._open = run, place, False  # type: ignore[assignment]
    shown._mark()  # as `close` does
    said = []
    for text in (
        "The roof is red.\n",
        "The roof is blue.\n",
        "The roof is blue.\n",
        "Look:\nThe roof is red.\n",
        None,
        "The roof is red.\n",
    ):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        place.pictures.clear()
        shown.look_again()
        marks = ("changed since", "moved since", "gone since")
        said.append(
            next((mark for mark in marks if mark in place.pictures[0]), "as it was")
            if place.pictures
            else None
        )
    assert said == [None, "changed since", None, "moved since", "gone since", "as it was"]


def test_a_finished_panel_marks_what_is_blamed_later(tmp_path: Path) -> None:
    """After the cell that blames the run, the picture is put up anew with the mark, and only once."""
    with Lab(home=tmp_path / "home", model=ScriptedModel([[("list_directory", {"path": "."})], "7"])) as lab:
        run = lab.run_sync("Give the sum.", workspace=tmp_path, verify="off")
        shown, place = Panel(user="me", fallback=None), Shown()
        for record in run.records():
            shown.view.apply(record)
        shown._run, shown._handle, shown._open = run, place, False  # type: ignore[assignment]
        found = {"scanner": BLAME, "text": "DECISIVE: turn 1", "value": 0.9, "calls": ["answer.1.1"]}
        lab.store.decide(run.id, RunScanned(scanners={BLAME: "1"}, upto=1, findings=[found]))
        shown.look_again()
        shown.look_again()
    shown.look_again()  # the lab is closed
    assert ["▶ decisive (90 %)" in picture for picture in place.pictures] == [True]


def test_a_run_shown_again_says_it_everywhere(tmp_path: Path) -> None:
    """Text, HTML and page of a stored run say of the citation that its file has changed; of a workspace that
    is away, nothing.
    """
    run, file = cited(tmp_path)
    assert "since" not in repr(run.report) + run._repr_html_()
    file.write_text("The roof is blue.\n")
    again = Run(run._store, run.id)
    for text in (repr(again.report), again._repr_html_(), again.report(tmp_path / "run.html").read_text()):
        assert "changed since" in text
    file.unlink()
    file.parent.rmdir()
    assert "since" not in repr(again.report)


def test_a_panel_stays_live_while_others_appear(tmp_path: Path) -> None:
    """Runs started at once keep their panels until each has ended, however many they are; of those that ended
    the newest stay.
    """
    notebook = Notebook({"lab": Lab(model=ScriptedModel(["done"]), home=tmp_path)})
    panels = [panel() for _ in range(LOOKED_AT + 2)]
    told: dict[int, list[object]] = {number: [] for number, _ in enumerate(panels)}
    for number, one in enumerate(panels):
        one._widget.send = lambda message, number=number: told[number].append(message["k"])
        one._widget.close = lambda number=number: told[number].append("closed")
        notebook.take(one, notebook.lab().run_sync("anything"))
    assert not any(told.values())

    for one in panels:
        one.close()
    notebook.take(panel(), notebook.lab().run_sync("anything"))
    assert [number for number, what in told.items() if "closed" in what] == [0]
