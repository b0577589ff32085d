"""What a page does besides showing things: dialogs, requests elsewhere, messages to the kernel, elements that
texts could have made.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Page, Request, WebSocket

_ELEMENTS = """inside => {
  // JupyterLab turns addresses in error messages into links; following one is the reader's click.
  const ours = [...document.querySelectorAll(inside)].filter(node => !node.closest('.jp-RenderedText a'));
  const telling = name => \
/^on|^(src|srcset|href|action|data|poster|background|style|http-equiv|id)$/.test(name);
  return ours.map(node => [node.tagName.toLowerCase(), \
...node.getAttributeNames().filter(telling).sort()].join(' '));
}"""
_MESSAGE = re.compile(rb'"msg_type": ?"(\w+)"')
_WORD = re.compile(rb'"k": ?"(\w+)"')


@dataclass
class Watch:
    """Watches one page from before it loads anything."""

    origin: str
    dialogs: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Requests that did not go to the notebook's own server; none of them is let through."""
    sent: Counter[str] = field(default_factory=Counter)
    """Messages to kernels, by type; those of widgets with the panel's word for what they are."""
    received: bytearray = field(default_factory=bytearray)

    def __call__(self, page: Page) -> None:
        """Begin."""
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.on("websocket", self._socket)
        page.route(lambda url: not self._own(url), lambda route: route.abort())

    def kinds(self) -> set[str]:
        """Which messages were sent, whatever their number."""
        return set(self.sent)

    def _own(self, url: str) -> bool:
        return url.startswith(
            (
                self.origin,
                self.origin.replace("http", "ws"),
                "blob:",
                "about:",
                "file:",
                "data:font",
                "data:image/svg",
            )
        )

    def _dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not self._own(request.url):
            self.strangers.append(request.url)

    def _socket(self, socket: WebSocket) -> None:
        if not self._own(socket.url):
            self.strangers.append(socket.url)
        socket.on("framesent", self._framesent)
        socket.on(
            "framereceived",
            lambda frame: self.received.extend(frame if isinstance(frame, bytes) else frame.encode()),
        )

    def _framesent(self, frame: str | bytes) -> None:
        frame = frame if isinstance(frame, bytes) else frame.encode()
        kind = _MESSAGE.search(frame)
        word = _WORD.search(frame)
        self.sent[" ".join(found[1].decode() for found in (kind, word) if found)] += 1


def elements(page: Page, inside: str = ".jp-OutputArea-output *") -> set[str]:
    """Kinds of elements in outputs, each with those of its attributes that could do something."""
    return set(page.evaluate(_ELEMENTS, inside))
