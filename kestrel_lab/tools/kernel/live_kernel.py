"""The kernel that a notebook runs in: code in the user's namespace, previewed before and undone after."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kestrel_lab.core.errors import ConflictError, UsageError
from kestrel_lab.tools.kernel.capture import Output, captured
from kestrel_lab.tools.kernel.fork import Fork, values_of
from kestrel_lab.tools.kernel.lockdown import NoLockdown
from kestrel_lab.tools.kernel.preview import Preview, PreviewJob
from kestrel_lab.tools.kernel.undo import Done, Undone, UndoStack
from kestrel_lab.tools.kernel.values import decode
from kestrel_lab.tools.kernel.variables import Before, Change

MOST_PREVIEWS = 5
"""As many as calls of a turn; each holds the values that it computed."""
HEADLESS = "KESTREL_HEADLESS"
"""Set to 1 where a program executes notebooks but pretends that somebody could type."""


def attended(shell: Any) -> bool:
    """Whether the code that runs now came from a notebook that somebody looks at."""
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


def undo(run: str = "", call: str = "", *, force: bool = False) -> Undone:
    """Take back what agents changed among the variables of this notebook; see `UndoStack.undo`. Raises `UsageError` anywhere else."""
    shell = live_shell()
    if shell is None:
        raise UsageError("variables can be restored only in the notebook whose kernel has them: use %kestrel undo there")
    return kernel_of(shell).undo(run, call, force=force)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Stop raise `KeyboardInterrupt` here: in a cell that awaits, the kernel's own handler only cancels at the next turn of its loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of code that had its effect."""

    how: str
    """`adopted` or `executed`."""
    changes: tuple[Change, ...]
    printed: str
    given: str
    shown: tuple[str, ...]
    images: tuple[tuple[str, bytes], ...]
    error: str
    before: str = ""
    given_up: tuple[str, ...] = ()
    """Calls that cannot be undone whole any more."""


class LiveKernel:
    """One shell with the code that agents brought into it."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.id = secrets.token_hex(6)
        self.generation = 0
        """Rises with every cell and call, after which a preview is of the past."""
        self.undo_stack = UndoStack(shell.user_ns)
        self._previews: dict[str, Preview] = {}
        """By call, the newest last."""
        shell.events.register("post_run_cell", self._moved)

    def _moved(self, *_: object) -> None:
        self.generation += 1

    async def preview(self, code: str, workspace: str, call: str = "", *, untraced: bool = False) -> Preview:
        """Find out what `code` would do now; for one call only once, as long as nothing has run since."""
        python, known = self._plain(code), self._previews.get(call)
        if call and known is not None and known.code == python and known.generation == self.generation:
            return known
        job = PreviewJob(shell=self.shell, code=python, workspace=workspace, generation=self.generation, untraced=untraced)
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

    def _plain(self, code: str) -> str:
        """Return `code` as Python, magics as calls."""
        return str(self.shell.transform_cell(code))

    def adopt(self, preview: Preview, run: str, call: str) -> Ran:
        """Take over what a preview computed; the code is not run.

        Raises `ConflictError` where the kernel has gone on since the preview, or what was handed over cannot be read: nothing is changed then.
        """
        if preview.generation != self.generation or preview.store is None:
            raise ConflictError("the variables have changed since the preview of this code: nothing was taken over; make the call again")
        namespace = self.shell.user_ns
        before = Before.of(preview.code, namespace)
        try:
            values = {name: self._value(told, preview) for name, told in preview.adopted.items()}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            msg = f"what the preview computed cannot be taken over ({error}): nothing was changed; make the call again"
            raise ConflictError(msg) from error
        if bad := [name for name in values if name != "_" and (not name.isidentifier() or name.startswith("_"))]:
            raise ConflictError(f"what the preview computed has names that no variable should have ({bad[0][:40]!r}): nothing was changed")
        given = values.pop("_", None)
        for name, value in values.items():
            if value is _DELETED:
                namespace.pop(name, None)
            else:
                namespace[name] = value
        changes = tuple(before.changes(namespace))
        given_up = self.undo_stack.push(Done(run, call, changes, before.values))
        self.generation += 1
        self._show(preview, given)
        return Ran(
            "adopted",
            changes,
            preview.printed,
            preview.given,
            preview.shown,
            preview.images,
            preview.traceback,
            before.key,
            tuple(given_up),
        )

    def _value(self, told: Any, preview: Preview) -> Any:
        if "deleted" in told:
            return _DELETED
        if "same" in told:
            return self.shell.user_ns[told["same"]]
        if "module" in told:  # it is there already: importing one would run its code
            return sys.modules[told["module"]]
        assert preview.store is not None
        return decode(told["value"], preview.store)

    def _show(self, preview: Preview, given: Any) -> None:
        """Show the person what came of a preview: text and images as they are, its result as this kernel shows such a value."""
        from IPython.display import Image, display

        if preview.printed:
            sys.stdout.write(preview.printed)
        if preview.traceback:
            sys.stderr.write(preview.traceback + "\n")
        for media, content in preview.images:
            display(Image(data=content, format=media.rpartition("/")[2]))  # type: ignore[no-untyped-call]
        if given is not None:
            self.shell.displayhook.update_user_ns(given)
            display(given)  # type: ignore[no-untyped-call]

    async def execute(self, code: str, workspace: str, run: str, call: str) -> Ran:
        """Run `code` in the user's namespace, as a cell does; what it prints and displays is shown there too. Stop interrupts it."""
        namespace, python = self.shell.user_ns, self._plain(code)
        before = Before.of(python, namespace)
        paused = _paused(namespace, workspace) if before.prints else None
        try:
            with captured(self.shell) as output, interruptible():
                await self.shell.run_cell_async(python, store_history=False, transformed_cell=python)
        finally:
            changes = tuple(before.changes(namespace))
            given_up = self.undo_stack.push(Done(run, call, changes, before.values, paused=paused))
            self.generation += 1
        self._repeat(output)
        given = self._text(output.value)
        return Ran(
            "executed",
            changes,
            output.text,
            given,
            tuple(output.texts),
            tuple(output.images),
            output.traceback or output.error,
            before.key,
            tuple(given_up),
        )

    def _text(self, value: Any) -> str:
        return "" if value is None else str(self.shell.display_formatter.format(value, include={"text/plain"})[0].get("text/plain", ""))

    def _repeat(self, output: Output) -> None:
        """Show the person what the code printed and displayed, and its result, with their whole display data."""
        from IPython.display import display

        for kind, text in output.printed:
            (sys.stderr if kind == "stderr" else sys.stdout).write(text)
        for data, metadata in output.displayed:
            self.shell.display_pub.publish(data, metadata)
        if output.value is not None:
            display(output.value)  # type: ignore[no-untyped-call]
        if output.traceback:
            sys.stderr.write(output.traceback + "\n")

    def undo(self, run: str = "", call: str = "", *, force: bool = False) -> Undone:
        """Take back the newest call, or that call and all after it; see `UndoStack.undo`."""
        undone = self.undo_stack.undo(run, call, force=force)
        self.generation += 1
        return replace(undone, kernel=self.id)


_DELETED = object()


def _paused(namespace: dict[str, Any], workspace: str) -> Fork | None:
    """Return a copy of the kernel that keeps its variables as they are; `None` where none can be made."""
    try:
        return Fork(values_of(namespace), workspace, paused=True)
    except (NoLockdown, OSError):
        return None
