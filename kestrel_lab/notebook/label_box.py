"""The box in which a person labels trials by keys, in a notebook.

What it shows is derived from the log each time, so a reload, a second tab and a restarted kernel, in which
the cell is run again, go on where the last label left off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import KestrelError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.evals.labels.label_queue import Labelling
from kestrel_lab.evals.labels.label_report import label_report
from kestrel_lab.notebook.panel import with_static_html
from kestrel_lab.views.html.elements import paragraph_html

NOTE_CHARS = 20_000
"""Characters of the longest note and rubric."""
_FRESH_S = 8.0
"""So long after the cell was run the box takes the keyboard; a page that is opened later keeps its own."""


class LabelBox:
    """Shows one trial after the other, and takes the keys of any page that shows it."""

    def __init__(self, labelling: Labelling) -> None:
        self.labelling = labelling
        self._lock = threading.Lock()
        self._widget = _widget_class()(state=self._state(""), fresh_until=time.time() + _FRESH_S)
        self._widget.on_msg(self._message)

    def bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a cell shows: the box, and for a notebook without a kernel how far it came."""
        text = repr(self.labelling)
        still = {"text/html": paragraph_html(text), "text/plain": text}
        return with_static_html(self._widget._repr_mimebundle_(), still)

    def _message(self, _widget: object, content: dict[str, Json], _buffers: object) -> None:
        """Take a key of a page, on whichever thread the kernel chose."""
        with self._lock:
            try:
                message = self._act(content)
            except KestrelError as error:
                message = str(error)
            self._widget.state = self._state(message)

    def _act(self, content: dict[str, Json]) -> str:
        """Do what a key asks for; returns the message to show, empty if there is none."""
        text = str(content.get("text") or "")[:NOTE_CHARS]
        match content.get("k"):
            case "label":
                item, value = self.labelling.next(), content.get("value")
                if item is None or (item.run, item.repeat) != (content.get("run"), content.get("repeat")):
                    # Another tab was faster. Its label counts; this key meant a trial no longer shown.
                    return "that trial was labelled meanwhile, in another tab perhaps: this is the next one"
                if value in (0, 1, None) and not isinstance(value, bool | float):
                    self.labelling.give(item.run, value, note=text, repeat=item.repeat)
            case "undo":
                return "undone" if self.labelling.undo() else "there is nothing to undo"
            case "rubric" if text.strip():
                self.labelling.edit_rubric(text)
                return "a new version of the rubric: trials are labelled again, and no labels are mixed"
        return ""

    def _state(self, message: str) -> dict[str, Json]:
        labelling = self.labelling
        item = labelling.next()
        done, total = labelling.progress()
        report = repr(label_report(labelling.store, labelling.suite.name)) if item is None else ""
        return {
            "item": None if item is None else item.shown(),
            "done": done,
            "total": total,
            "who": sanitize_text(labelling.who),
            "suite": sanitize_text(labelling.suite.name),
            "rubric": sanitize_text(labelling.rubric),
            "outdated": labelling.outdated(),
            "elsewhere": labelling.elsewhere(),
            "message": sanitize_text(message),
            "report": report,
            # traitlets sends only a state that differs. The number makes every state differ, also after a
            # label that changes nothing on the screen.
            "n": time.monotonic_ns() % 2**52,
        }


def label_bundle(labelling: Labelling) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a notebook shows of trials to be labelled."""
    return LabelBox(labelling).bundle()


@cache
def _widget_class() -> Callable[..., Any]:
    """The widget; made at first use because importing anywidget takes half a second."""
    import anywidget  # loaded on use
    import traitlets

    here = Path(__file__).parent

    class LabelWidget(anywidget.AnyWidget):
        _esm = (here / "label_box.js").read_text(encoding="utf-8")
        # The colours and buttons of the panel.
        _css = "".join((here / name).read_text(encoding="utf-8") for name in ("panel.css", "label_box.css"))

        state = traitlets.Dict().tag(sync=True)
        """What is shown."""
        fresh_until = traitlets.Float().tag(sync=True)
        """Seconds since 1970 until which a page that shows the box gives it the keyboard."""

    return LabelWidget
