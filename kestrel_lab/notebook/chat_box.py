"""A conversation in a cell: its turns, and a line to type the next one into, also before the first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import KestrelError
from kestrel_lab.host.user import user_name
from kestrel_lab.notebook.panel import BoxPlace, Panel
from kestrel_lab.views.html.elements import paragraph_html

if TYPE_CHECKING:
    from kestrel_lab.runtime.conversation import Chat


class ChatBox:
    """Shows a `Chat` as widgets. What is typed is the same in every tab that shows it; at the end of each turn its picture stands above."""

    def __init__(self, chat: Chat) -> None:
        """Shows the turns that `chat` has, and those that are typed."""
        import ipywidgets as widgets  # type: ignore[import-untyped]  # loaded on use

        self._widgets, self._chat = widgets, chat
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = widgets.VBox([widgets.HTML(run.report._repr_html_()) for run in chat.runs])
        self._problem = widgets.HTML()
        self._text = widgets.Text(placeholder="Ask something …", layout=widgets.Layout(flex="1 1 auto", width="auto"))
        self._button = widgets.Button(description="Ask", button_style="primary")
        self._text.on_msg(self._told)
        self._button.on_click(lambda _: self._wanted())
        self._box = widgets.VBox([self._turns, widgets.HBox([self._text, self._button]), self._problem])

    def bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a cell shows: the widgets, and for a notebook without a kernel the turns."""
        self._loop = asyncio.get_running_loop()
        shown: Any = self._box._repr_mimebundle_()
        data, metadata = shown if isinstance(shown, tuple) else (shown, {})
        return {**(data or {}), "text/html": self._chat._repr_html_(), "text/plain": repr(self._chat)}, metadata

    def _told(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("event") == "submit":
            self._wanted()

    def _wanted(self) -> None:
        if self._loop is not None:  # which thread takes a click is the kernel's choice
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        if not self._text.value.strip():
            return
        box = self._widgets.VBox([])
        panel = Panel(user=user_name(), fallback=None, place=BoxPlace(box))
        self._problem.value = ""
        try:
            run = self._chat.begin(self._text.value, approver=panel)
        except KestrelError as error:
            self._problem.value = paragraph_html(str(error))
            return
        self._text.value = ""
        self._turns.children = (*self._turns.children, box)
        panel.follow(run)
