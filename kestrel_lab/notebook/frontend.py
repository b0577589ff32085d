"""The notebook front end: runs appear in a panel, long jobs as a progress bar."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self
from weakref import WeakSet

from kestrel_lab.cli.frontend import ShowOptions, files_named
from kestrel_lab.cli.slash_commands import (
    ORCHESTRATE,
    ORCHESTRATED,
    SlashCommand,
    carry_out,
    slash_command,
)
from kestrel_lab.core.errors import KestrelError, UsageError
from kestrel_lab.core.protocols import Approver
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.host.user import user_name
from kestrel_lab.lab import Lab
from kestrel_lab.notebook.cell_interrupt import (
    Ask,
    PromptApprover,
    ask_here,
    run_interruptible,
    run_on_thread,
    wait_for_end,
)
from kestrel_lab.notebook.command_line import root_command
from kestrel_lab.notebook.failed_cell import FailedCell
from kestrel_lab.notebook.panel import BoxPlace, Panel, with_static_html
from kestrel_lab.notebook.suite_board import NotebookReporter
from kestrel_lab.runtime.options import RunOptions
from kestrel_lab.runtime.run import Run, is_working
from kestrel_lab.tools.kernel.live_kernel import HEADLESS, is_attended
from kestrel_lab.views.html.elements import paragraph_html
from kestrel_lab.views.html.run_page import run_bundle

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter, Watcher
    from kestrel_lab.evals.labels.label_queue import Labelling
    from kestrel_lab.notebook.time_travel import TimeTravel
    from kestrel_lab.runtime.settings import Settings


Surface = Literal["panel", "headless", "terminal"]
"""A notebook somebody looks at; a notebook that a program executes; a shell in a terminal."""


def frontend_kind(shell: Any) -> Surface:
    """Where the code that runs now came from."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None and os.environ.get(HEADLESS) != "1":
        return "terminal" if sys.stdin is not None and sys.stdin.isatty() else "headless"
    return "panel" if is_attended(shell) else "headless"


_FIX: Final = "%kestrel fix hands this cell to the agent"
"""Replaces the button where there is no kernel."""
LOOKED_AT: Final = 8
"""Panels whose citations are checked again after each cell, since cells change files."""


class Notebook:
    """What the magics of one shell share: its variables, its lab, and the runs and panels that it shows."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self.variables = variables
        self.shown: WeakSet[Run] = WeakSet()
        """Runs that the running cell has shown; if one is its result as well, a line is enough."""
        self.panels: list[Panel] = []
        """Panels of working runs, and the newest of the others."""
        self.failed: FailedCell | None = None
        """The cell that failed last."""
        self._own_lab: Lab | None = None
        self._last: tuple[Lab, Run, object] | None = None
        """The last run that was shown, its lab, and the model that the lab had then."""

    def lab(self) -> Lab:
        """The notebook's variable `lab` if it is one, else a lab of the magics' own."""
        theirs = self.variables.get("lab")
        if isinstance(theirs, Lab):
            return theirs
        if self._own_lab is None:
            self._own_lab = Lab()
        return self._own_lab

    def take(self, panel: Panel, run: Run) -> None:
        """Note that `panel` shows `run` in the running cell."""
        self.shown.add(run)
        for earlier in self.panels:
            earlier.rest()
        if (
            len(self.panels) >= LOOKED_AT
            and (ended := next((one for one in self.panels if one.retire()), None)) is not None
        ):
            self.panels.remove(ended)
        self.panels.append(panel)
        panel.ask = partial(self.ask, self.lab(), panel, run)
        self.note(run)

    def ask(self, lab: Lab, panel: Panel, run: Run, text: str) -> None:
        """Go on with the conversation of `run` in the place of its panel, or answer a command below it."""
        command = slash_command(text)
        if command is not None and command.name != ORCHESTRATE:
            panel.tell(self.answer(command))
            return
        goal = text if command is None else command.text
        follower = Panel(user=user_name(), fallback=None, shown=self.take, before=panel)
        options: RunOptions = {"follow": run, "approver": follower}
        if command is not None:
            options = {**options, **ORCHESTRATED}
        follower.follow(lab.start(goal, **options))

    def answer(self, command: SlashCommand) -> str:
        """Return what a command of a conversation gives, as text."""
        printed = io.StringIO()
        frontend = NotebookFrontend(self, "panel", awaited=True)
        with files_named(), redirect_stdout(printed):
            result = carry_out(command, root_command(), frontend)
        said = result if isinstance(result, str) else "" if result is None else repr(result)
        return sanitize_text("\n".join(filter(None, (printed.getvalue().rstrip(), said))))

    def offer_fix(self) -> None:
        """Show a button below the cell that failed last: it does what `%kestrel fix` does, and the panel
        takes its place. Call on the loop of the kernel.
        """
        import ipywidgets as widgets  # type: ignore[import-untyped]  # loaded on use
        from IPython.display import display  # loaded on use

        if self.failed is None:
            return
        button = widgets.Button(
            description="Fix with kestrel",
            tooltip="Hand over the cell, its traceback and the variables it names",
        )
        box = widgets.VBox([button])
        # Clicks may come in on any thread of the kernel, and a run has to start on its loop.
        handed_over = partial(
            asyncio.get_running_loop().call_soon_threadsafe, self._fix, self.failed, box, button
        )
        button.on_click(lambda _: handed_over())
        still = {"text/html": paragraph_html(_FIX), "text/plain": _FIX}
        data, metadata = with_static_html(box._repr_mimebundle_(), still)
        display(data, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]

    def _fix(self, failed: FailedCell, box: Any, button: Any) -> None:
        import ipywidgets as widgets  # loaded on use

        # A second click may already be on its way when the first one is handled.
        if button.disabled:
            return
        button.disabled = True
        panel = Panel(user=user_name(), fallback=None, shown=self.take, place=BoxPlace(box))
        try:
            run = self.lab().start(failed.goal(self.variables), approver=panel, **self.goes_on_with())
        except KestrelError as error:
            button.disabled = False
            box.children = [button, widgets.HTML(paragraph_html(str(error)))]
            return
        panel.follow(run)

    def note(self, run: Run) -> None:
        """Remember `run` as the one that the next goal goes on with."""
        self._last = (self.lab(), run, self.lab().options.get("model"))

    def goes_on_with(self) -> dict[str, Any]:
        """Options that continue the last run; none in a new lab or while the last run still works."""
        lab = self.lab()
        if self._last is None or self._last[0] is not lab:
            return {}
        _, run, model = self._last
        if not run.status.terminal and is_working(run):
            return {}
        changed = lab.options.get("model")
        return {"follow": run, **({"model": changed} if changed is not model and changed is not None else {})}

    def runs(self) -> list[str]:
        """Names of variables that hold runs."""
        return [
            name
            for name, value in self.variables.items()
            if isinstance(value, Run) and not name.startswith("_")
        ]


@dataclass(slots=True, eq=False)
class NotebookFrontend:
    """The front end of one magic, and the screen of the run that it begins.

    Where nobody can answer, nobody is asked, and one picture is shown at the end.
    """

    notebook: Notebook
    surface: Surface
    awaited: bool = field(kw_only=True)
    """Whether the cell awaits; otherwise `finish` blocks it."""
    approver: Approver | None = None
    ask: Ask = ask_here
    on_thread: bool = False
    _how: ShowOptions = field(default_factory=ShowOptions)
    _background: bool = False
    _panel: Panel | None = None

    @property
    def user(self) -> str:
        """Who is logged in."""
        return user_name()

    def lab(self) -> Lab:
        """The notebook's lab."""
        return self.notebook.lab()

    def configure(self, key: str, value: str) -> Settings:
        """Change a setting of the notebook's lab, for this session."""
        return self.lab().configure(key, value)

    def goes_on_with(self) -> dict[str, Any]:
        """The lab's last run once it has ended, and the lab's model if it was changed since."""
        return self.notebook.goes_on_with()

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text)  # a notebook shows what is printed  # noqa: T201

    def show_result(self, result: Any) -> None:
        """Display what a command gave."""
        from IPython.display import display  # loaded on use

        display(result)  # type: ignore[no-untyped-call]

    def screen(self, how: ShowOptions) -> Self:
        """The screen for one run: a panel, questions on standard input, or one picture at the end."""
        if how.control:
            raise UsageError("--control is for a terminal, where another program reads and writes")
        if how.name and not how.name.isidentifier():
            raise UsageError(f"--as needs a variable name, not {how.name!r}")
        # A program that executes a notebook ends the kernel after the last cell, and with it the run.
        self._how, self._background = how, how.background and self.surface == "panel"
        return self

    def slider(self, run: Run) -> TimeTravel:
        """A slider over the events of a run, and what forks it there."""
        from kestrel_lab.notebook.time_travel import TimeTravel  # with ipywidgets, so loaded on use

        if self.surface != "panel":
            msg = (
                f"--slider needs somebody who looks at the notebook: %kestrel show {run.id} --at EVENT "
                "shows the run as of an event"
            )
            raise UsageError(msg)
        return TimeTravel(self.lab(), run, self.user, self.notebook.take)

    def label(self, labelling: Labelling) -> Labelling:
        """The trials to label themselves: a notebook that somebody looks at shows them in a box."""
        return labelling

    def failed_cell(self, wish: str) -> str:
        """The goal to fix the cell that failed last."""
        if self.notebook.failed is None:
            raise UsageError("no cell has failed here since %load_ext kestrel_lab: there is nothing to fix")
        return self.notebook.failed.goal(self.notebook.variables, wish)

    def wait(self, work: Callable[[Reporter], Awaitable[Any]]) -> Any:
        """Do something long under a progress bar, which goes at the end; gives a coroutine of its result."""
        reporter = NotebookReporter(self.lab, live=self.surface == "panel")

        async def work_under_bar() -> Any:
            try:
                return await work(reporter)
            finally:
                reporter.close()

        return run_interruptible(work_under_bar())

    def finish(self, result: Any) -> Any:
        """The result of a command; a coroutine is returned to await, or run if the cell cannot await."""
        if self.awaited or not inspect.iscoroutine(result):
            return result
        if self._background:
            return _at_once(result)

        def work(ask: Ask) -> Coroutine[Any, Any, Any]:
            self.ask, self.on_thread = ask, True
            return result

        return run_on_thread(work)

    async def __aenter__(self) -> Self:
        if self.surface == "terminal":
            self.approver = PromptApprover(self.ask)
        elif self.surface == "panel":
            # A background run outlives its cell, and only a cell may use standard input.
            fallback = None if self._background else PromptApprover(self.ask)
            timeout = self._how.approval_timeout
            self.approver = self._panel = Panel(
                user=self.user,
                fallback=fallback,
                timeout=timeout,
                shown=self.notebook.take,
                awaited=not self._background,
            )
            if self.on_thread:
                self._panel.keep_clicks_coming()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._panel is not None and (error is not None or not self._background):
            self._panel.close()

    async def show(self, run: Run) -> Run:
        """Show the run and wait for its end, unless it goes on in the background.

        Raises what `wait_for_end` raises.
        """
        notebook, surface = self.notebook, self.surface
        if surface != "terminal":
            notebook.shown.add(run)
        notebook.note(run)
        if self._how.name:
            notebook.variables[self._how.name] = run
        if self._panel is not None:
            self._panel.follow(run)
        if self._background:
            return run
        try:
            return await wait_for_end(run)
        finally:
            if surface == "headless":
                from IPython.display import display  # loaded on use

                display(run_bundle(run.report.view()), raw=True)  # type: ignore[no-untyped-call]


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing but needs the running loop, like a run's start."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        work.close()
        raise UsageError("--bg needs a running event loop: use it in a notebook") from None
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    # The start of a run never awaits; if it does, the rest of the coroutine would be lost without a word.
    raise RuntimeError("the start of a run waited, which is a defect: please report it")


class NotebookSurroundings:
    """Shows runs in panels and suites on boards, in the cell that waits for them."""

    def __init__(self, notebook: Notebook, shell: Any) -> None:
        self._notebook, self._shell = notebook, shell

    def watcher(self) -> Watcher | None:
        """A panel, where the kernel's own event loop waits and somebody looks."""
        if not self._looked_at():
            return None
        return Panel(
            user=user_name(), fallback=PromptApprover(ask_here), shown=self._notebook.take, awaited=True
        )

    def reporter(self) -> Reporter | None:
        """A bar, which becomes a board where trials are counted."""
        return NotebookReporter(self._notebook.lab) if self._looked_at() else None

    def _looked_at(self) -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return threading.current_thread() is threading.main_thread() and frontend_kind(self._shell) == "panel"
