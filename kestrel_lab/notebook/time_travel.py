"""Time travel: a slider shows a run as of each event, and starts another branch from there."""

from __future__ import annotations

import asyncio
import time
from html import escape
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import KestrelError, UsageError
from kestrel_lab.core.events.union import ModelAnswered, ModelCalled, Record, ToolAnswered, ToolCalled
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.notebook.panel import BoxPlace, Panel, with_static_html
from kestrel_lab.runtime.start import fork
from kestrel_lab.views.html.elements import paragraph_html
from kestrel_lab.views.html.run_page import run_bundle, run_html

if TYPE_CHECKING:
    from collections.abc import Callable

    from kestrel_lab.lab import Lab
    from kestrel_lab.runtime.run import Run

_WITH: Final = {
    "the same model": "The model is asked again from here.",
    "another model": "Name of the model, e.g. openai/gpt-5-mini",
    "another answer": "What the model answers here instead",
    "another tool result": "What the tool answers here instead",
}


class TimeTravel:
    """The controls of one run; without a kernel the picture of the whole run is shown instead."""

    def __init__(self, lab: Lab, run: Run, user: str, shown: Callable[[Panel, Run], object]) -> None:
        """`user` decides on calls of a branch; `shown` is called when a branch is shown, as by `Panel`."""
        import ipywidgets as widgets  # type: ignore[import-untyped]  # loaded on use

        self._lab, self._run, self._user, self._shown = lab, run, user, shown
        self._loop: asyncio.AbstractEventLoop | None = None
        self.records = run.records()
        wide = widgets.Layout(width="auto", flex="1 1 260px")
        self.slider = widgets.IntSlider(
            value=len(self.records),
            min=1,
            max=len(self.records),
            description="Event",
            continuous_update=True,
            layout=wide,
        )
        play = widgets.Play(
            value=len(self.records), min=1, max=len(self.records), interval=500, show_repeat=False
        )
        widgets.jslink((play, "value"), (self.slider, "value"))
        self.line, self.picture, self.problem = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.given = widgets.Dropdown(
            options=[*_WITH], description="Fork with", layout=widgets.Layout(width="auto", flex="0 1 260px")
        )
        self.text = widgets.Textarea(rows=1, layout=wide)
        self.button = widgets.Button(description="Fork here", button_style="primary")
        half = widgets.Layout(flex="1 1 420px", min_width="0", overflow="hidden")
        self.branch = widgets.VBox([], layout=half)
        row = widgets.Layout(flex_flow="row wrap", align_items="center", width="100%")
        self.box = widgets.VBox(
            [
                widgets.HBox([play, self.slider], layout=row),
                self.line,
                widgets.HBox([self.given, self.text, self.button], layout=row),
                self.problem,
                widgets.HBox(
                    [widgets.VBox([self.picture], layout=half), self.branch],
                    layout=widgets.Layout(flex_flow="row wrap"),
                ),
            ]
        )
        self.slider.observe(lambda _: self._look(), "value")
        self.given.observe(lambda _: self._ask_for(), "value")
        self.button.on_click(lambda _: self._loop and self._loop.call_soon_threadsafe(self._fork))
        self._look()
        self._ask_for()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        self._loop = asyncio.get_running_loop()
        return with_static_html(self.box._repr_mimebundle_(**options), run_bundle(self._run.report.view()))

    @property
    def record(self) -> Record:
        """The event that the slider is on."""
        found: Record = self.records[self.slider.value - 1]
        return found

    def _look(self) -> None:
        record = self.record
        at, kind = time.strftime("%H:%M:%S", time.localtime(record.at)), escape(record.event.type)
        self.line.value = f"<code>{record.seq}</code> {at} <b>{kind}</b> {escape(_words(record))}"
        self.picture.value = run_html(self._run.report.view(at=record.seq))

    def _ask_for(self) -> None:
        self.text.placeholder = _WITH[self.given.value]
        self.text.disabled = self.given.value == "the same model"

    def _fork(self) -> None:
        """Begin the branch and show it beside the run; what is wrong is said below the controls."""
        self.problem.value = ""
        text, given = self.text.value, self.given.value
        panel = Panel(user=self._user, fallback=None, shown=self._shown, place=BoxPlace(self.branch))
        try:
            if given != "the same model" and not text.strip():
                raise UsageError(f"fork with {given}: type it first")
            key = {"another model": "model", "another answer": "answer", "another tool result": "result"}.get(
                given
            )
            chosen: dict[str, Any] = {} if key is None else {key: text.strip() if key == "model" else text}
            panel.follow(fork(self._lab, self._run.id, at=self.record.seq, approver=panel, **chosen))
        except KestrelError as error:
            self.problem.value = paragraph_html(str(error))


def _words(record: Record) -> str:
    match record.event:
        case ToolCalled() as called:
            return sanitize_text(one_line(f"{called.tool} {called.args}", 160))
        case ToolAnswered() as answered:
            return sanitize_text(one_line(f"{answered.tool}: {answered.text}", 160))
        case ModelCalled() as asked:
            return sanitize_text(asked.model)
        case ModelAnswered() as said:
            return sanitize_text(
                one_line(said.text or ", ".join(str(call.get("name")) for call in said.calls), 160)
            )
    return ""
