"""Live panel: an anywidget that shows the events of one run and asks its questions; and the box of a
conversation, a panel per turn.

At the end the panel is replaced by static HTML and text, so that the saved notebook needs no kernel
and holds no widget state.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kestrel_lab.cli.slash_commands import ORCHESTRATE, ORCHESTRATED, SlashCommand, slash_command
from kestrel_lab.core.errors import ApprovalRequired, KestrelError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, RunInterrupted, RunScanned
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.host.user import user_name
from kestrel_lab.notebook.cell_interrupt import resolve_answer
from kestrel_lab.notebook.page_document import PageDocument
from kestrel_lab.notebook.patch_stream import PatchStream
from kestrel_lab.runtime.options import RunOptions
from kestrel_lab.runtime.run import interrupt_run, is_working
from kestrel_lab.runtime.run_report import newest_blame
from kestrel_lab.tools.kernel.live_kernel import kernel_of, live_shell
from kestrel_lab.views.html.elements import paragraph_html, pre_html
from kestrel_lab.views.html.run_page import run_bundle
from kestrel_lab.views.run_view import RunView

if TYPE_CHECKING:
    from kestrel_lab.runtime.conversation import Chat
    from kestrel_lab.runtime.run import Run


HELLO_S = 10.0
"""Seconds that the first page may take to report that it shows the panel."""
FIRST_ROWS = 200
"""A view of at most so many rows is stored in the widget for a page that opens later; of more, it asks."""
ANSWER_CHARS = 20_000
"""Characters of the longest answer to a question."""

Fallback = Callable[[ApprovalAsked], Awaitable[ApprovalGiven]]
"""Asks the person if no page shows the panel."""


def with_static_html(shown: Any, still: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a widget's display data, with a picture for front ends without widgets or a kernel."""
    data, metadata = shown if isinstance(shown, tuple) else (shown, {})
    return {**(data or {}), **still}, metadata


class Place(Protocol):
    """The place of a panel: a display of a cell, or a part of other controls."""

    def update(self, picture: Any, *, raw: bool = False) -> object:
        """Show a widget there, or a `raw` picture: texts by MIME type."""


class BoxPlace:
    """A place among widgets: the children of an ipywidgets box."""

    def __init__(self, box: Any) -> None:
        self.box = box

    def update(self, picture: Any, *, raw: bool = False) -> None:
        """Show a widget, or the HTML of a `raw` picture."""
        from ipywidgets import HTML  # type: ignore[import-untyped]  # loaded on use

        self.box.children = [HTML(picture["text/html"]) if raw else picture]


class Panel:
    """Shows one run and is its approver; call `follow` once the run has started."""

    def __init__(
        self,
        *,
        user: str,
        fallback: Fallback | None,
        timeout: float | None = None,
        shown: Callable[[Panel, Run], object] = lambda *_: None,
        before: Panel | None = None,
        place: Place | None = None,
        awaited: bool = False,
    ) -> None:
        """`user` is recorded with clicks; `timeout` seconds without a click deny a call, `None` waits. A cell
        waits for an `awaited` run: to interrupt the kernel stops the run.

        `shown` is called when the panel appears. The panel replaces `before`, whose run it then shows above
        its own, or appears in `place`.
        """
        self.ask: Callable[[str], object] | None = None
        """Continues the conversation with a text; if set, there is an input line below the finished run."""
        self._shown, self._before = shown, before
        self._loop: asyncio.AbstractEventLoop | None = None
        self.view = RunView()
        self._user = user
        self._fallback = fallback
        self._timeout = timeout
        earlier = "" if before is None else before.bundle()["text/html"]
        self._widget = _widget_class()(self.view, earlier, awaited)
        self._stream = PatchStream(self.view, self._send)
        self._heard = threading.Event()
        self._watched = False
        self._waiting: dict[str, asyncio.Future[ApprovalGiven]] = {}
        self._early: dict[str, ApprovalGiven] = {}
        """Clicks on questions that are shown, but whose `__call__` does not wait yet."""
        self._clicks: set[str] = set()
        """Numbers of clicks that were handled: a page repeats a click until it sees the result."""
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        self._run: Run | None = None
        self._blamed: RunScanned | None = None
        self._undoing: set[asyncio.Task[None]] = set()
        self._widget.on_msg(self._message)
        self._handle: Place | None = place
        self._shown_at = float("inf")
        self._open = True
        self._page = PageDocument(self._widget.send, self._waits_for_page, self.keep_clicks_coming)

    def follow(self, run: Run) -> None:
        """Appear in the running cell and show `run` until it ends; call on its loop."""
        from IPython.display import DisplayHandle  # loaded on use

        self._run, self._loop = run, asyncio.get_running_loop()
        self._shown_at = time.monotonic()
        self._stream.name(run.id)
        if self._before is not None and self._before._handle is not None:
            self._handle = self._before._handle
            self._handle.update(self._widget)
            self._before._replaced_by(self._widget)
        elif self._handle is not None:
            self._handle.update(self._widget)
        else:
            handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
            self._handle = handle
            handle.display(self._widget)
        self._shown(self, run)
        self._take_outputs()
        self.view.read_image = run.results.read_image
        if (shell := live_shell()) is not None:
            kernel_of(shell).page = self._page
        run.subscribe(self._take)

    def close(self) -> None:
        """Replace the panel by a static picture; repeated calls do nothing."""
        if not self._open:
            return
        self._open = False
        # Pages that show the panel get the last changes before the picture replaces it.
        self._stream.flush()
        self._mark()
        self._put_still()
        # The update misses a page that was loaded since, or is closed now and comes back. So each page that
        # says hello gets the static picture, until `retire`.
        self._say_still()

    def look_again(self) -> None:
        """Mark in the picture which citations have changed since, and what was blamed since; does nothing if
        there is nothing new.
        """
        if not self._open and self._handle is not None and self._mark():
            self._put_still()

    def _mark(self) -> bool:
        """Mark the claims of the answer by their evidence as it is now, and the turns that a blame names;
        returns whether that changed any.
        """
        if self._run is None:
            return False
        blamed = newest_blame(self._run._store, self._run.id) if self.view.done else None
        marked = blamed is not None and blamed != self._blamed and bool(self.view.apply(blamed))
        self._blamed = blamed
        return (self.view.cites and bool(self.view.mark(self._run.report.evidence.claims))) or marked

    def bundle(self) -> dict[str, str]:
        """The static picture, below those of the earlier turns."""
        own = run_bundle(self.view)
        earlier = {} if self._before is None else self._before.bundle()
        return {mime: f"{earlier[mime]}\n{text}" if mime in earlier else text for mime, text in own.items()}

    def rest(self) -> None:
        """Remove the input line, because the conversation continues elsewhere. A run that still works stays
        live.
        """
        if self.ask is not None:
            self.ask = None
            if not self._open:
                self._say_still()

    def retire(self) -> bool:
        """Close the widget unless its run still works; keeps the static picture without buttons."""
        if not self._open:
            self._widget.close()
        return not self._open

    def _put_still(self) -> None:
        if self._handle is not None:
            self._handle.update(self.bundle(), raw=True)

    def _say_still(self) -> None:
        run = "" if self._run is None else self._run.id
        self._widget.send(
            {
                "k": "still",
                "id": self._widget.model_id,
                "run": run,
                "ask": self.ask is not None,
                "data": self.bundle(),
            }
        )

    def _replaced_by(self, widget: Any) -> None:
        """Make pages loaded since show `widget` instead: display updates do not reach them."""
        self.ask = None
        data, _ = widget._repr_mimebundle_()
        self._widget.send(
            {
                "k": "next",
                "run": "" if self._run is None else self._run.id,
                "id": widget.model_id,
                "data": data,
            }
        )

    def keep_clicks_coming(self) -> None:
        """Make clicks arrive while the kernel's main thread is busy.

        ipykernel 7.4 handles a message of a front end on the thread that last sent one, which would be the
        busy one. Other versions do not have the attribute.
        """
        comm = self._widget.comm
        if hasattr(comm, "_reply_subshell_for"):
            comm._reply_subshell_for = lambda _data, default: default

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Wait for a click; where no front end shows the panel, ask by the fallback."""
        if not await self._seen():
            if self._fallback is None:
                raise ApprovalRequired(
                    self.view.head.run, asked.tool, asked.args, question=asked.why == "question"
                )
            return await self._fallback(asked)
        if asked.call in self._refused:
            self._widget.send({"k": "refused", "id": asked.call, "message": asked.why})
        answer: asyncio.Future[ApprovalGiven] = asyncio.get_running_loop().create_future()
        # Clicks come in on another thread.
        with self._lock:
            self._waiting[asked.call] = answer
            if (early := self._early.pop(asked.call, None)) is not None:
                answer.set_result(early)
        try:
            async with asyncio.timeout(self._timeout):
                given = await answer
        except TimeoutError:
            reason = f"nobody answered within {self._timeout:g} s"
            return ApprovalGiven(call=asked.call, granted=False, by="timeout", how="policy", reason=reason)
        finally:
            with self._lock:
                self._waiting.pop(asked.call, None)
                self._early.pop(asked.call, None)
        if given.args is not None:
            # If the same call is asked about again, these arguments did not fit the tool.
            self._refused.add(asked.call)
        return given

    def _take(self, event: Event) -> None:
        if self._open:
            self._stream.take(event)
            if self.view.done or isinstance(event, RunInterrupted):
                self.close()

    def _send(self, message: dict[str, Json]) -> None:
        """Send a message; while no page shows the panel, keep the whole view where one will find it."""
        if self._watched:
            self._widget.send(message)
        elif time.monotonic() - self._shown_at < HELLO_S and len(self.view.rows) < FIRST_ROWS:
            self._widget.picture = self._stream.picture()

    async def _seen(self) -> bool:
        """Return whether some front end shows the panel.

        Wait for one at most `HELLO_S` after the panel appeared, so only the first question may wait.
        """
        until = min(self._shown_at, time.monotonic()) + HELLO_S
        # Polled, because the message comes in on any thread, where an event of this loop cannot be set.
        while not self._heard.is_set() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return self._heard.is_set()

    def _waits_for_page(self, seconds: float) -> bool:
        """Whether a front end shows the panel. For threads; `_seen` is the same for the event loop."""
        return self._heard.wait(max(0.0, min(seconds, self._shown_at + HELLO_S - time.monotonic())))

    def _message(self, _widget: object, content: dict[str, Json], _buffers: object) -> None:
        """Handle a message of a front end, on whichever thread the kernel chose."""
        # Any message counts as a greeting: the greeting itself may wait in the queue of the busy main thread.
        self._heard.set()
        self._take_outputs()
        match content.get("k"):
            case "cells":
                self._page.answered(content)
            case "hello" | "resync" if not self._open:
                self._say_still()
            case "ask" if self.ask is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._asked, str(content.get("text") or "")[:ANSWER_CHARS])
            case "hello":
                self._widget.send({"k": "heard"})
            case "resync":
                self._watched = True
                self._stream.whole()
            case "undo" if self._loop is not None:
                self._loop.call_soon_threadsafe(self._begin_undo, str(content.get("call")))
            case "stop" if self._run is not None and self._loop is not None and is_working(self._run):
                # By the loop of the run: the page hears nothing while code keeps it busy, and then interrupts
                # the kernel.
                self._loop.call_soon_threadsafe(self._stop, self._run)
            case "decide":
                self._decide(content)

    def _take_outputs(self) -> None:
        """Show outputs of the run's code here instead of below the cell, once a page shows the panel."""
        if self._heard.is_set() and self._run is not None and (shell := live_shell()) is not None:
            kernel_of(shell).panels.add(self._run.id)

    def _stop(self, run: Run) -> None:
        """Interrupt the run, as the notebook's own Stop does."""
        self._widget.send({"k": "stopping"})
        interrupt_run(run)

    def _asked(self, text: str) -> None:
        if self.ask is None:
            return
        try:
            self.ask(text)
        except KestrelError as error:
            self._widget.send({"k": "problem", "message": sanitize_text(str(error))})

    def tell(self, text: str) -> None:
        """Show a text below the finished run: the answer to a command that was typed there."""
        self._widget.send({"k": "told", "text": text})

    def _begin_undo(self, call: str) -> None:
        self._undoing.add(task := asyncio.ensure_future(self._undo(call)))
        task.add_done_callback(self._undoing.discard)

    async def _undo(self, call: str) -> None:
        """Undo a call; the picture of a run that has ended says so too.

        In a thread, because the page answers on this loop.
        """
        assert self._run is not None
        try:
            await asyncio.to_thread(self._run.undo, call)
        except KestrelError as error:
            self._widget.send({"k": "undo", "call": call, "message": sanitize_text(str(error))})
            return
        if not self._open:
            self.view.apply(self._run.records()[-1])
            self._put_still()
            self._say_still()

    def _decide(self, content: dict[str, Json]) -> None:
        call, args, answer = str(content.get("id")), content.get("args"), content.get("answer")
        given = ApprovalGiven(
            call=call,
            granted=content.get("granted") is True,
            by=self._user,
            how="click",
            reason=str(content.get("reason") or "")[:2_000],
            args=args if isinstance(args, dict) else None,
            scope=scope if (scope := str(content.get("scope"))) in ("run", "same", "like") else "once",
            answer=answer[:ANSWER_CHARS] if isinstance(answer, str) else None,
        )
        with self._lock:
            if (click := str(content.get("n") or "")) and click in self._clicks:
                # A repeated click would answer the next question about the same call.
                return
            self._clicks.add(click)
            waiting = self._waiting.get(call)
            if waiting is None and call in self.view.asks:
                self._early[call] = given
        if waiting is not None:
            resolve_answer(waiting, given)


@cache
def _widget_class() -> Callable[[RunView, str, bool], Any]:
    """The widget; made at first use because importing anywidget takes half a second."""
    import anywidget  # loaded on use
    import traitlets

    here = Path(__file__).parent

    class PanelWidget(anywidget.AnyWidget):
        _esm = (here / "panel.js").read_text(encoding="utf-8")
        _css = (here / "panel.css").read_text(encoding="utf-8")

        panel = traitlets.Unicode().tag(sync=True)
        """The id of the widget, by which a page finds it."""
        before = traitlets.Unicode().tag(sync=True)
        """HTML of the turns above."""
        awaited = traitlets.Bool().tag(sync=True)
        """Whether a cell waits for the run."""
        queued = traitlets.Int().tag(sync=True)
        """How many cells wait behind that one; the page that runs them counts."""
        picture = traitlets.Dict().tag(sync=True)
        """The latest view while nobody listened: a front end that is loading loses messages, not this."""

        def __init__(self, view: RunView, before: str, awaited: bool) -> None:
            super().__init__(before=before, awaited=awaited)
            self._view = view
            self.panel = self.model_id

        def _repr_mimebundle_(self, **options: Any) -> Any:
            return with_static_html(super()._repr_mimebundle_(**options), run_bundle(self._view))

    return PanelWidget


class ChatBox:
    """Shows a `Chat` as widgets.

    Every tab shows the same typed text. At the end of each turn the picture of its run appears above the
    input.
    """

    def __init__(self, chat: Chat, answer: Callable[[SlashCommand], str]) -> None:
        """Shows the turns that `chat` has, and those that are typed; `answer` gives the text that a command
        is answered with.
        """
        import ipywidgets as widgets  # loaded on use

        self._widgets, self._chat, self._answer = widgets, chat, answer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = widgets.VBox([widgets.HTML(run._repr_html_()) for run in chat.runs])
        self._problem = widgets.HTML()
        self._text = widgets.Text(
            placeholder="Ask something …", layout=widgets.Layout(flex="1 1 auto", width="auto")
        )
        self._button = widgets.Button(description="Ask", button_style="primary")
        self._text.on_msg(self._received)
        self._button.on_click(lambda _: self._wanted())
        self._box = widgets.VBox([self._turns, widgets.HBox([self._text, self._button]), self._problem])

    def bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a cell shows: the widgets, and for a notebook without a kernel the turns."""
        self._loop = asyncio.get_running_loop()
        return with_static_html(
            self._box._repr_mimebundle_(),
            {"text/html": self._chat._repr_html_(), "text/plain": repr(self._chat)},
        )

    def _received(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("event") == "submit":
            self._wanted()

    def _wanted(self) -> None:
        # Which thread takes a click is the kernel's choice.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        if not self._text.value.strip():
            return
        box = self._widgets.VBox([])
        panel = Panel(user=user_name(), fallback=None, place=BoxPlace(box))
        self._problem.value = ""
        try:
            command = slash_command(self._text.value)
            if command is not None and command.name != ORCHESTRATE:
                told = self._answer(command)
                self._text.value = ""
                self._turns.children = (*self._turns.children, self._widgets.HTML(pre_html(told)))
                return
            goal = self._text.value if command is None else command.text
            options: RunOptions = {"approver": panel}
            if command is not None:
                options = {**options, **ORCHESTRATED}
            run = self._chat.begin(goal, **options)
        except KestrelError as error:
            self._problem.value = paragraph_html(str(error))
            return
        self._text.value = ""
        self._turns.children = (*self._turns.children, box)
        panel.follow(run)
