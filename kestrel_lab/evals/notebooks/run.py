"""Headless execution of notebooks: parameters put in, outputs kept, every cell within a time limit."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.errors import RunCancelled, UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.notebooks.parameters import inject_parameters
from kestrel_lab.evals.reports.junit import Case, Group, write_junit
from kestrel_lab.evals.reports.markdown import code_span, join_blocks, markdown_table
from kestrel_lab.runtime.options import check_options
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.elements import headline_html, table_html

CELL_TIMEOUT_S: Final = 120.0
"""Seconds that one cell may take where nothing else is said."""
_LAST_WORDS: Final = 400
"""Characters that an error shows of what a dead kernel wrote to its terminal."""
_HEADINGS: Final = ("cell", "outcome", "seconds", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRun:
    """The outcome of one code cell."""

    number: int
    """From 1, counted over the code cells of the executed notebook."""
    source: str
    outcome: str
    """`ok`, `error`, `timeout`, or `not run`."""
    seconds: float = 0.0
    error: str = ""
    """Name of the exception."""
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class NotebookResult:
    """An executed notebook."""

    source: Path
    path: Path
    """Where it was written, outputs included."""
    cells: tuple[CellRun, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every cell ran to its end."""
        return all(cell.outcome == "ok" for cell in self.cells)

    @property
    def failed(self) -> CellRun | None:
        """The cell that the notebook ended at, if it did not end well."""
        return next((cell for cell in self.cells if cell.outcome not in ("ok", "not run")), None)

    @property
    def needs_approval(self) -> bool:
        """Whether it ended at a call that a person has to approve."""
        return self.failed is not None and self.failed.error == "ApprovalRequired"

    @property
    def headline(self) -> str:
        """What happened, in one line: the cell and its error where it failed."""
        cell = self.failed
        if cell is None:
            return (
                f"{self.source.name}: {format_count(len(self.cells), 'cell')} in {self.seconds:.1f} s "
                f"→ {self.path}"
            )
        first = one_line(next((line for line in cell.source.splitlines() if line.strip()), ""))
        why = f"{cell.error}: {sanitize_text(cell.message)}" if cell.message else cell.error
        return f"{self.source.name}: cell {cell.number} of {len(self.cells)} ({first}): {why}"

    def junit(self, path: str | Path) -> Path:
        """Write JUnit XML with one test case per code cell; cells behind one that failed are skipped."""
        outcomes: dict[str, Any] = {
            "ok": "passed",
            "error": "failure",
            "timeout": "error",
            "not run": "skipped",
        }
        cases = [
            Case(
                name=f"cell {cell.number}",
                seconds=cell.seconds,
                outcome=outcomes[cell.outcome],
                kind=cell.error or cell.outcome,
                message=one_line(f"{cell.error}: {cell.message}", 300)
                if cell.error
                else "an earlier cell failed",
                text=f"{cell.source}\n\n{cell.traceback or cell.message}" if cell.error else "",
            )
            for cell in self.cells
        ]
        return write_junit(path, self.source.name, [Group(name=self.source.stem, cases=cases)])

    def markdown(self) -> str:
        """A summary for a pull request."""
        cell = self.failed
        where = (
            f"Cell {cell.number} of {len(self.cells)}: {code_span(cell.error)} {code_span(cell.message, 400)}"
            if cell
            else ""
        )
        done = f"**{'ok' if self.ok else 'failed'}** in {self.seconds:.1f} s"
        rows = [[str(c.number), c.outcome, f"{c.seconds:.2f}", code_span(c.error)] for c in self.cells]
        return join_blocks(
            [f"### Notebook {code_span(self.source.name)}", done, where, markdown_table(_HEADINGS, rows)]
        )

    def __repr__(self) -> str:
        return self.headline

    def _repr_html_(self) -> str:
        rows = [
            (cell.number, cell.outcome, f"{cell.seconds:.2f}", one_line(f"{cell.error} {cell.message}", 200))
            for cell in self.cells
        ]
        return f"{headline_html(self.headline)}{table_html(_HEADINGS, rows)}"


@check_options
async def run_notebook(
    source: str | Path,
    out: str | Path | None = None,
    *,
    parameters: Mapping[str, Json] | None = None,
    timeout: float = CELL_TIMEOUT_S,  # of a cell, not of the whole  # noqa: ASYNC109
    cwd: str | Path | None = None,
    reporter: Reporter | None = None,
) -> NotebookResult:
    """Execute a notebook in a fresh kernel and write it with its outputs, also when a cell fails.

    Args:
        source: The notebook.
        out: Where to write it; in its place by default, which parameters do not allow.
        parameters: JSON values by name, assigned in a cell behind the one tagged `parameters`.
        timeout: Seconds that one cell may take before its kernel is ended.
        cwd: Folder that the kernel works in; the current one by default.
        reporter: Called after each cell.

    Nobody is asked anything: a cell that reads from the keyboard fails, and a risky call of an agent ends its
    cell with `ApprovalRequired`. Raises `UsageError` for what is not a notebook, and for parameters it does
    not have.
    """
    path = Path(source)
    target = path if out is None else Path(out)
    if parameters and target == path:
        raise UsageError(
            f"parameters are written into the executed notebook, and {path} is to stay as it is: give "
            "another file (--out)"
        )
    if not (math.isfinite(timeout) and timeout > 0):
        raise UsageError(f"a cell's time limit is a number of seconds above 0, not {timeout}")
    notebook = _read(path)
    if parameters:
        inject_parameters(notebook, parameters, str(path))
    return await _Execution(
        path, target, notebook, timeout, Path(cwd) if cwd is not None else Path.cwd(), reporter
    ).run()


class _Execution:
    def __init__(
        self, source: Path, target: Path, notebook: Any, timeout: float, cwd: Path, reporter: Reporter | None
    ) -> None:
        self.source, self.target, self.notebook, self.timeout, self.cwd = (
            source,
            target,
            notebook,
            timeout,
            cwd,
        )
        self.reporter = reporter
        self.cells = [
            cell
            for cell in notebook.cells
            if cell.cell_type == "code"
            and cell.source.strip()
            and "skip-execution" not in cell.metadata.get("tags", [])
        ]
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.stopped = False
        self.last_words = ""
        self.client: Any = None
        self.begun: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        for cell in self.cells:
            cell.outputs, cell.execution_count = (
                [],
                None,
            )  # what is left of an earlier execution is none of this one's

    async def run(self) -> NotebookResult:
        began = time.perf_counter()
        failure: Exception | None = None
        with tempfile.TemporaryFile() as said, tempfile.TemporaryDirectory(prefix="kestrel-") as sockets:
            self.client = self._client(Path(sockets))
            try:
                # What cells print comes as messages. The rest is of interest once the kernel died: one that
                # ends may complain of it.
                await self.client.async_execute(stderr=said)
            except Exception as error:
                said.seek(0)
                self.last_words = one_line(
                    sanitize_text(said.read().decode(errors="replace"))[-_LAST_WORDS:], _LAST_WORDS
                )
                # With a cell under way it is what became of that cell; without one the kernel never came up.
                if not self.begun:
                    raise UsageError(
                        self._with_last_words(
                            f"{self.source}: the kernel did not start: {type(error).__name__}: {error}"
                        )
                    ) from error
                failure = error
            finally:
                self._write()
        self._raise_if_stopped()
        cells = tuple(self._cell(number, failure) for number in range(1, len(self.cells) + 1))
        return NotebookResult(
            source=self.source, path=self.target, cells=cells, seconds=time.perf_counter() - began
        )

    def _with_last_words(self, message: str) -> str:
        return f"{message}; the kernel said last: {self.last_words}" if self.last_words else message

    def _client(self, sockets: Path) -> Any:
        from nbclient import NotebookClient
        from traitlets.config import Config

        return NotebookClient(
            self.notebook,
            timeout=math.ceil(self.timeout),
            startup_timeout=60,
            kernel_name="python3",
            store_widget_state=False,
            record_timing=False,
            config=Config({"KernelManager": _transport(sockets)}),
            # what a program prints comes in pieces, which a code host would show apart
            coalesce_streams=True,
            # The kernel would warn of unencrypted sockets, which stay on this machine.
            extra_arguments=["--IPKernelApp.log_level=40"],
            resources={"metadata": {"path": str(self.cwd)}},
            on_notebook_start=self._listen,
            on_cell_execute=self._begin,
            on_cell_executed=self._end,
        )

    def _listen(self, notebook: Any) -> None:
        """Let signals stop this task: nbclient's own handlers end the kernel and leave the task waiting for
        it.
        """

        def stop() -> None:
            self.stopped = True
            self.client.shutdown_kernel = "immediate"
            self.task.cancel()

        loop = asyncio.get_running_loop()
        # nbclient sets its handlers before this: ours take their place.
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, stop)
            except (RuntimeError, NotImplementedError):
                # This is not the main thread, or the system has no signals.
                return

    def _raise_if_stopped(self) -> None:
        """Raise what nbclient takes for a dead kernel as what it was."""
        if self.stopped:
            self.task.uncancel()
            raise RunCancelled(f"stopped {self.source}; its outputs up to there: {self.target}")
        if self.task.cancelling():
            raise asyncio.CancelledError

    def _begin(self, cell: Any, cell_index: int) -> None:
        number = self._number(cell)
        self.begun[number] = time.perf_counter()
        if self.reporter is not None:
            self.reporter(number - 1, len(self.cells), one_line(cell.source))

    def _end(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        number = self._number(cell)
        self.ended[number] = time.perf_counter()
        if self.reporter is not None:
            self.reporter(number, len(self.cells), "")

    def _number(self, cell: Any) -> int:
        return next(number for number, known in enumerate(self.cells, 1) if known is cell)

    def _cell(self, number: int, failure: Exception | None) -> CellRun:
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

        source = str(self.cells[number - 1].source)
        if number not in self.begun:
            return CellRun(number=number, source=source, outcome="not run")
        seconds = self.ended.get(number, time.perf_counter()) - self.begun[number]
        # Only the cell that began last can have failed: no cell runs after it.
        if failure is None or number != max(self.begun):
            return CellRun(number=number, source=source, outcome="ok", seconds=seconds)
        outcome, error, message, traceback = "error", type(failure).__name__, str(failure), ""
        if isinstance(failure, CellExecutionError):
            error, message, traceback = failure.ename, failure.evalue, failure.traceback
        elif isinstance(failure, CellTimeoutError):
            outcome, error = "timeout", "CellTimeout"
            message = f"took longer than the {math.ceil(self.timeout)} s that a cell may take (--timeout)"
        elif isinstance(failure, DeadKernelError):
            message = self._with_last_words(message)
        return CellRun(
            number=number,
            source=source,
            outcome=outcome,
            seconds=seconds,
            error=error,
            message=message,
            traceback=sanitize_text(traceback),
        )

    def _write(self) -> None:
        import nbformat

        for cell in self.notebook.cells:
            cell.metadata.pop("execution", None)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into its place: a stop in the middle leaves the notebook as it was.
        half = self.target.with_name(f".{self.target.name}.part")
        nbformat.write(self.notebook, half)  # type: ignore[no-untyped-call,unused-ignore]
        half.replace(self.target)


def _transport(folder: Path) -> dict[str, str]:
    """Return how a kernel is talked to: through sockets in `folder`, where the system has them.

    A TCP port is chosen before the kernel listens on it. Where many kernels start at once, another process
    may have it by then: the kernel does not come up, or the client waits without an end for one that talks
    another protocol.
    """
    path = folder / "kernel"
    # The path of a Unix socket has at most 103 bytes on macOS and 107 on Linux.
    if os.name == "posix" and len(os.fsencode(f"{path}-5")) <= 103:
        return {"transport": "ipc", "ip": str(path)}
    return {"transport": "tcp"}


def _read(path: Path) -> Any:
    import nbformat

    try:
        notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call,unused-ignore]
        _check_shape(notebook)
    except FileNotFoundError:
        raise UsageError(f"there is no notebook {path}") from None
    except Exception as error:
        # the boundary to nbformat, which takes the file for a notebook and stumbles over anything else
        raise UsageError(
            f"{path} cannot be read as a notebook: {one_line(str(error) or type(error).__name__, 200)}"
        ) from error
    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    if language != "python":
        raise UsageError(
            f"{path} is written in {one_line(str(language))}; only Python notebooks are executed"
        )
    return notebook


def _check_shape(notebook: Any) -> None:
    """Raise `ValueError` for notebooks that nbformat reads but nbclient cannot run."""
    spec = notebook.metadata.get("kernelspec", {})
    if not isinstance(spec, dict) or not all(
        isinstance(value, str) for key, value in spec.items() if key in ("name", "language")
    ):
        raise ValueError("its kernelspec is not an object with a name and a language")
    for number, cell in enumerate(notebook.cells, 1):
        if cell.get("cell_type") not in ("code", "markdown", "raw") or not isinstance(
            cell.get("source"), str
        ):
            raise ValueError(
                f"cell {number} is not a cell: it has no known cell_type, or a source that is not text"
            )
        if not isinstance(cell.metadata.get("tags", []), list):
            raise ValueError(f"the tags of cell {number} are no list")
    import nbformat

    nbformat.writes(notebook).encode()  # type: ignore[no-untyped-call,unused-ignore]  # what was run has to be written


def run_notebook_sync(source: str | Path, out: str | Path | None = None, **options: Any) -> NotebookResult:
    """`run_notebook` for scripts."""
    return run_blocking(run_notebook(source, out, **options))
