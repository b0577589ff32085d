"""The kernel that a notebook runs in: code in the user's namespace, previewed before and undone after."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ConflictError
from kestrel_lab.tools.kernel.capture import IMAGES, Output, capture_output, frame_table, show_drawn
from kestrel_lab.tools.kernel.fork import Fork, copied_values
from kestrel_lab.tools.kernel.lockdown import NoLockdown
from kestrel_lab.tools.kernel.preview import Preview, PreviewJob
from kestrel_lab.tools.kernel.state.annotations import is_type_of_python, read_type
from kestrel_lab.tools.kernel.state.boundary import held_interrupts
from kestrel_lab.tools.kernel.state.imports import import_installed, import_sources, imported_attribute
from kestrel_lab.tools.kernel.state.process_state import ProcessState, adopt_states
from kestrel_lab.tools.kernel.undo import Done, UndoResult, UndoStack
from kestrel_lab.tools.kernel.values import NotPlain, decode_value
from kestrel_lab.tools.kernel.variables import Before, Change

if TYPE_CHECKING:
    from kestrel_lab.tools.kernel.documents import Page

EXECUTE_S = 600.0
"""Seconds that code may take in the kernel of a notebook; a person can stop it sooner."""
MOST_PREVIEWS = 5
"""As many as calls of a turn; each holds the values that it computed."""
_TURNS_S = 0.02
"""Seconds that the event loop runs before code does, so that a cancellation of the cell reaches the call."""
STOPPED = "was stopped"
"""End of the message on code that was stopped."""
HEADLESS = "KESTREL_HEADLESS"
"""Set to 1 if a program executes notebooks while pretending to have a user."""


def is_attended(shell: Any) -> bool:
    """Return true if the running code came from a notebook with a user."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or os.environ.get(HEADLESS) == "1":
        return False
    # nbclient, papermill and nbconvert send False with each cell: no one is there to type.
    request = kernel.get_parent("shell") or {}
    return bool(request.get("content", {}).get("allow_stdin"))


def live_shell() -> Any | None:
    """Return the shell of the notebook kernel that this process is; `None` anywhere else."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


@cache
def kernel_of(shell: Any) -> LiveKernel:
    """Return the kernel of a shell, always the same one."""
    return LiveKernel(shell)


@contextmanager
def keyboard_interruptible() -> Iterator[None]:
    """Let Stop raise `KeyboardInterrupt` here: in a cell that awaits, the kernel's own handler only cancels
    at the next turn of its loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_STOPS: dict[int, Callable[[], None]] = {}
"""By thread other than the main one, what stops the code that runs there."""


def press_stop(thread: int) -> bool:
    """Stop the code of a `stop_button` block in another thread; returns whether there was any.

    Code that waits in C ends after that.
    """
    stop = _STOPS.get(thread)
    if stop is not None:
        stop()
    return stop is not None


@contextmanager
def stop_button() -> Iterator[threading.Event]:
    """Let Stop end the code of the block, which this task runs; the event says whether it was pressed, also
    where the code goes on.

    Code that works gets `KeyboardInterrupt` where it is. Code that awaits is cancelled instead: raised
    between two tasks, the exception would end the event loop of the kernel. Off the main thread, which alone
    hears signals, `press_stop` does the same.
    """
    pressed, cancelled = threading.Event(), False
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def cancel() -> None:
        nonlocal cancelled
        cancelled = task.cancel() or cancelled

    def stop(*_: object) -> None:
        # IPython leaves this frame out of the traceback: it is not part of the person's code.
        __tracebackhide__ = True
        pressed.set()
        if asyncio.current_task(loop) is task:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(cancel)

    def stop_thread() -> None:
        pressed.set()
        # Signals reach the main thread alone; this is the only way to raise in another one.
        if asyncio.current_task(loop) is task:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(here), ctypes.py_object(KeyboardInterrupt)
            )
        else:
            loop.call_soon_threadsafe(cancel)

    here, main = threading.get_ident(), threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, stop) if main else None
    if not main:
        _STOPS[here] = stop_thread
    try:
        yield pressed
    finally:
        _STOPS.pop(here, None)
        if main:
            signal.signal(signal.SIGINT, before)
        if cancelled and task.cancelling():
            # The shell has already shown the cancellation as an exception of the code; without this, it would
            # cancel the agent's run as well.
            task.uncancel()


def _table_alone(output: Output, value: object) -> list[list[str]]:
    """Return the table of a frame that is all that code put out."""
    return [] if output.printed or output.displayed or output.error else frame_table(value)


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Result of code that was executed."""

    how: str
    """`adopted` or `executed`."""
    output: Output
    given: str
    """The plain text of what its last expression gave."""
    changes: tuple[Change, ...] = ()
    before: str = ""
    given_up: tuple[str, ...] = ()
    """Calls that cannot be undone whole any more."""
    bundle: dict[str, Any] = field(default_factory=dict)
    """The display data of what its last expression gave."""
    stopped: bool = False
    """True if a person stopped it."""
    table: list[list[str]] = field(default_factory=list)
    """Of a data frame that its last expression gave, see `frame_table`; empty where it printed, too."""

    @property
    def error(self) -> str:
        """Traceback; empty without an exception."""
        return self.output.traceback or self.output.error

    @property
    def reason(self) -> str:
        """Why the code failed or was stopped, in a line; empty on success."""
        if self.stopped:
            return "the code was stopped"
        lines = self.error.strip().splitlines()
        # A time limit says so in its first line; the exception that ended the code adds nothing.
        stopped = lines and lines[0].endswith(STOPPED)
        return "" if not lines else lines[0] if stopped else lines[-1]

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The outputs that a cell with this code would have, in nbformat's form."""
        output = self.output
        found: list[dict[str, Any]] = [
            {"output_type": "stream", "name": name, "text": text} for name, text in output.printed
        ]
        for data, metadata in output.displayed:
            found.append(
                {"output_type": "display_data", "data": _display_as_json(data), "metadata": metadata}
            )
        if self.bundle:
            found.append(
                {
                    "output_type": "execute_result",
                    "data": _display_as_json(self.bundle),
                    "metadata": {},
                    "execution_count": None,
                }
            )
        if self.error:
            kind, _, value = output.error.partition(": ")
            found.append(
                {
                    "output_type": "error",
                    "ename": kind,
                    "evalue": value,
                    "traceback": output.traceback.splitlines(),
                }
            )
        return found


class LiveKernel:
    """One shell with the code that agents brought into it."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.id = secrets.token_hex(6)
        self.generation = 0
        """Rises with every cell and call, after which a preview is of the past."""
        self.undo_stack = UndoStack(shell.user_ns)
        self.page: Page | None = None
        """The cells of the notebook in the page that shows the newest panel."""
        self.panels: set[str] = set()
        """Runs that a panel shows."""
        self.inserted: dict[str, tuple[str, str]] = {}
        """By id, the run and the model turn that inserted a cell."""
        self.given: tuple[str, Any] = ("", None)
        """The newest run whose code returned a value, and the value: `Run.value` unless another was asked
        for.
        """
        self._previews: dict[str, Preview] = {}
        """By call, the newest last."""
        shell.events.register("post_run_cell", self._moved)

    def _moved(self, *_: object) -> None:
        self.generation += 1

    async def preview(self, code: str, workspace: str, call: str = "", *, untraced: bool = False) -> Preview:
        """Preview the effects of `code` now; once per call, while nothing has run since."""
        python, known = self._plain(code), self._previews.get(call)
        if call and known is not None and known.code == python and known.generation == self.generation:
            return known
        job = PreviewJob(
            shell=self.shell, code=python, workspace=workspace, generation=self.generation, untraced=untraced
        )
        found = await job.run()
        if call:
            self._previews.pop(call, None)
            self._previews[call] = found
            for old in list(self._previews)[:-MOST_PREVIEWS]:
                del self._previews[old]
        return found

    def known(self, call: str) -> Preview | None:
        """Return the preview of a call that was made already."""
        return self._previews.get(call)

    def preview_for(self, call: str) -> Preview:
        """Return the preview of a call that has one."""
        return self._previews[call]

    def is_ready(self, call: str, code: str, danger: Danger) -> bool:
        """Return whether `code`, allowed up to `danger`, can be taken over from the call's preview now."""
        found = self.known(call)
        return (
            found is not None
            and found.adoptable
            and found.danger <= danger
            and found.generation == self.generation
            and self.is_of(found, code)
        )

    def is_of(self, preview: Preview, code: str) -> bool:
        """Return true if a preview is of this code."""
        return preview.code == self._plain(code)

    def _plain(self, code: str) -> str:
        """Return `code` as Python, magics as calls."""
        return str(self.shell.transform_cell(code))

    def adopt(self, preview: Preview, run: str, call: str, *, show: bool = True) -> ExecutionResult:
        """Take over the values that a preview computed, without running the code; show its output if `show`.

        Raises `ConflictError` if something ran in the kernel since the preview, or if the values cannot be
        read; then nothing is changed.
        """
        if preview.generation != self.generation or preview.store is None:
            raise ConflictError(
                "the variables have changed since the preview of this code: nothing was taken over; "
                "make the call again"
            )
        namespace = self.shell.user_ns
        before, state = self._state_before(preview.code)
        with state.watching():
            values = self._taken_over(preview, state)
        given = values.pop("_", None)
        for name, value in values.items():
            if value is _DELETED:
                namespace.pop(name, None)
            else:
                namespace[name] = value
        changes, given_up = self._push(Done(run, call, (), before), state)
        self.generation += 1
        if given is not None:
            self.shell.displayhook.update_user_ns(given)
            self.given = run, given
        output = Output(
            printed=[("stdout", preview.printed)] if preview.printed else [],
            error=preview.error,
            traceback=preview.traceback,
        )
        output.displayed += [({media: content}, {}) for media, content in preview.images]
        output.displayed += [({"text/plain": text}, {}) for text in preview.shown]
        ran = ExecutionResult(
            "adopted",
            output,
            preview.given,
            changes,
            before.key,
            tuple(given_up),
            self._bundle(given),
            table=_table_alone(output, given),
        )
        if show:
            self.show(ran, run)
        return ran

    def _taken_over(self, preview: Preview, state: ProcessState) -> dict[str, Any]:
        """Return a preview's values by name and advance random states; raises `ConflictError`."""
        assert preview.store is not None
        problem = "what the preview computed cannot be taken over"
        try:
            for name in preview.imports:
                import_installed(name, preview.workspace)
            states = {name: decode_value(stored, preview.store) for name, stored in preview.states.items()}
            values = {name: self._value(name, stored, preview) for name, stored in preview.adopted.items()}
            if bad := [
                name for name in values if name != "_" and (not name.isidentifier() or name.startswith("_"))
            ]:
                raise ConflictError(
                    f"{problem}: it produced an invalid variable name ({bad[0][:40]!r}): nothing was changed"
                )
            adopt_states(self.shell, states)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, NotPlain, ImportError) as error:
            for one in state.alterations():
                one.restore()
            raise ConflictError(f"{problem} ({error}): nothing was changed; make the call again") from error
        return values

    def _value(self, name: str, stored: Any, preview: Preview) -> Any:
        if "deleted" in stored:
            return _DELETED
        if "same" in stored:
            return self.shell.user_ns[stored["same"]]
        # Only a module that the kernel has: importing one would run its code, unapproved.
        if "module" in stored:
            return sys.modules[stored["module"]]
        if "from" in stored:
            module, attribute = stored["from"]
            if (module, attribute) not in import_sources(name, preview.code):
                raise ValueError(f"the code does not import {name}")
            return imported_attribute(module, attribute)
        assert preview.store is not None
        if "type" in stored:
            written = decode_value(stored["type"], preview.store)
            if not is_type_of_python(written):
                raise ValueError(f"{name} is no type of Python")
            return read_type(written, self.shell.user_ns)
        return decode_value(stored["value"], preview.store)

    async def execute(
        self,
        code: str,
        workspace: str,
        run: str,
        call: str,
        *,
        show: bool = True,
        report: Callable[[str], object] = lambda _: None,
    ) -> ExecutionResult:
        """Run `code` in the user's namespace, as a cell does; show its output if `show`. `report` gets what
        it prints while it runs.

        Stop and the time limit interrupt it.
        """
        namespace, python = self.shell.user_ns, self._plain(code)
        # Figures that the person's own code has drawn must not appear as output of this code.
        show_drawn()
        before, state = self._state_before(python)
        paused = _frozen_copy(namespace, workspace) if before.prints else None
        try:
            with capture_output(self.shell, report) as output:
                with stop_button() as pressed, time_limit(EXECUTE_S) as late, state.watching():
                    # A Stop that came while the state was recorded waits in the event loop, and the code may
                    # keep the loop busy from here on.
                    await asyncio.sleep(_TURNS_S)
                    await self.shell.run_cell_async(python, store_history=False, transformed_cell=python)
                show_drawn()
        finally:
            changes, given_up = self._push(Done(run, call, (), before, paused=paused), state)
            self.generation += 1
        if late.is_set():
            output.traceback = f"the code took more than {EXECUTE_S:g} s and was stopped\n{output.traceback}"
        bundle = self._bundle(output.value)
        if output.value is not None:
            self.given = run, output.value
        given = str(bundle.get("text/plain", ""))
        # The time limit sends the signal of Stop, so the button looks pressed then as well.
        stopped = pressed.is_set() and not late.is_set()
        ran = ExecutionResult(
            "executed",
            output,
            given,
            changes,
            before.key,
            tuple(given_up),
            bundle,
            stopped,
            _table_alone(output, output.value),
        )
        if show:
            self.show(ran, run)
        return ran

    def _state_before(self, code: str) -> tuple[Before, ProcessState]:
        """Read the variables and the other state, for code about to run."""
        with held_interrupts():
            before = Before.of(code, self.shell.user_ns)
            return before, ProcessState.of(code, self.shell, before)

    def _push(self, done: Done, state: ProcessState) -> tuple[tuple[Change, ...], list[str]]:
        """Record a change; return what changed, and calls whose in-place changes can no longer be undone."""
        with held_interrupts():
            altered = state.alterations()
            changes = (*done.before.changes(self.shell.user_ns), *(one.change for one in altered))
            return changes, self.undo_stack.push(replace(done, changes=changes, state=tuple(altered)))

    def _bundle(self, value: Any) -> dict[str, Any]:
        return {} if value is None else dict(self.shell.display_formatter.format(value)[0])

    def show(self, ran: ExecutionResult, run: str) -> None:
        """Show the person what came of code, with its whole display data, below the cell that runs.

        A panel that shows the run has all that is text, figures and tables; then only the rest is shown.
        """
        from IPython.display import display

        for output in ran.outputs:
            tabled = output["output_type"] == "execute_result" and bool(ran.table)
            if run in self.panels and (tabled or not set(output.get("data", ())) - _IN_PANEL):
                continue
            if output["output_type"] == "stream":
                (sys.stderr if output["name"] == "stderr" else sys.stdout).write(output["text"])
            elif output["output_type"] == "error":
                # A person who pressed Stop needs no traceback that says so.
                if ran.stopped:
                    continue
                sys.stderr.write("\n".join(output["traceback"]) + "\n")
            else:
                display(output["data"], metadata=output["metadata"], raw=True)  # type: ignore[no-untyped-call]

    def undo(self, run: str = "", call: str = "", *, force: bool = False) -> UndoResult:
        """Take back the newest call, or that call and all after it; see `UndoStack.undo`."""
        with held_interrupts():
            undone = self.undo_stack.undo(run, call, force=force)
        self.generation += 1
        return replace(undone, kernel=self.id)


_DELETED = object()
_IN_PANEL = {"text/plain", *IMAGES}
"""Media types that a panel shows."""


@contextmanager
def time_limit(seconds: float) -> Iterator[threading.Event]:
    """Stop code that takes more than `seconds` in the block; the event says whether that happened.

    Code that awaits is cancelled by the event loop. Code that keeps the loop busy gets the signal that Stop
    sends, a little later, on the main thread only.
    """
    late, over, lock = threading.Event(), threading.Event(), threading.Lock()
    task = asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        late.set()
        task.cancel()

    def interrupt() -> None:
        with lock:
            if not over.is_set() and not late.is_set():
                late.set()
                os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds + 0.5, interrupt)
    timer.daemon = True
    handle = asyncio.get_running_loop().call_later(seconds, cancel)
    if threading.current_thread() is threading.main_thread():
        timer.start()
    try:
        yield late
    finally:
        handle.cancel()
        timer.cancel()
        with lock:
            over.set()
        if late.is_set() and task.cancelling():
            # The shell has shown it as an exception of the code: the task goes on.
            task.uncancel()


def _display_as_json(data: dict[str, Any]) -> dict[str, Any]:
    """Return display data as JSON: bytes as base64, as nbformat has images."""
    return {
        kind: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for kind, value in data.items()
    }


def _frozen_copy(namespace: dict[str, Any], workspace: str) -> Fork | None:
    """Return a copy of the kernel that preserves its variables; `None` if impossible."""
    try:
        return Fork(copied_values(namespace), workspace, paused=True)
    except (NoLockdown, OSError):
        return None
