"""The `kestrel` command: the commands of `app` in a terminal."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kestrel_lab.cli.app import app
from kestrel_lab.cli.attach import AttachedTerminal, stopped_notice, tell_way_on
from kestrel_lab.cli.build_server_output import harmless_output
from kestrel_lab.cli.commands.doctor import Doctor
from kestrel_lab.cli.commands.serve import LinesScreen
from kestrel_lab.cli.frontend import Screen, ShowOptions, files_named
from kestrel_lab.cli.goal_words import with_run, wrong_usage
from kestrel_lab.cli.label_keys import keys_of_terminal, label_by_keys
from kestrel_lab.cli.settings_file import write_setting
from kestrel_lab.cli.terminal import TerminalDisplay, progress_bar
from kestrel_lab.core.errors import ApprovalRequired, KestrelError, RunCancelled, UsageError
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Approver, Reporter
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import full_stop, one_line, sanitize_text
from kestrel_lab.evals.blame.receipt import Receipt
from kestrel_lab.evals.blame.shrink import Shrunk
from kestrel_lab.evals.commits.bisect_result import BisectResult
from kestrel_lab.evals.commits.comparison import Comparison
from kestrel_lab.evals.commits.history import History
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.labels.label_queue import Labelling
from kestrel_lab.evals.labels.label_report import label_report
from kestrel_lab.evals.notebooks.run import NotebookResult
from kestrel_lab.evals.options import REDUCERS
from kestrel_lab.evals.reports.aligned_runs import AlignedRuns
from kestrel_lab.evals.reports.cluster_report import ClusterReport
from kestrel_lab.evals.reports.gate_decisions import EXIT_CODES, GateReport
from kestrel_lab.evals.reports.scan_report import ScanReport
from kestrel_lab.evals.studies.ablation_result import Ablation
from kestrel_lab.evals.summaries.breakdowns import (
    CHECK_HEADINGS,
    FAILED_HEADINGS,
    failed_table,
    family_table,
    shared_checks,
)
from kestrel_lab.host.user import user_name
from kestrel_lab.host.version import __version__
from kestrel_lab.lab import Lab
from kestrel_lab.permissions.rulebook import Rulebook
from kestrel_lab.runtime.mcp.server_table import ServerTable
from kestrel_lab.runtime.recomputation import RecomputeResult
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.settings import Settings, load_settings
from kestrel_lab.tools.tool import Toolbox
from kestrel_lab.views.html.table_view import Table as ShownTable

EXIT_FAILED, EXIT_USAGE, EXIT_APPROVAL, EXIT_CANCELLED = 1, 2, 3, 130


class TerminalFrontend:
    """Commands typed in a terminal, or in a script where nobody can be asked."""

    def __init__(self) -> None:
        # Without a terminal there is no width to fit: lines are left whole for the reader of the file. Nor is
        # there one where a kernel or a build server asks for colours: a bar that moves would be a hundred
        # lines there.
        self.console = Console() if sys.stdout.isatty() else Console(width=200, force_terminal=False)

    @cached_property
    def _lab(self) -> Lab:
        return Lab()

    @property
    def user(self) -> str:
        """The login name."""
        return user_name()

    def lab(self) -> Lab:
        """The lab that the settings describe."""
        return self._lab

    def configure(self, key: str, value: str) -> Settings:
        """Write a setting into `kestrel.toml`; what is returned is in force, which an environment variable
        may still decide.
        """
        write_setting(Path.cwd(), key, value)
        return load_settings(Path.cwd(), os.environ).only(key)

    def goes_on_with(self) -> dict[str, Any]:
        """Nothing: each command of a terminal stands alone."""
        return {}

    def say(self, text: str) -> None:
        """Print a sentence."""
        self.console.print(Text(sanitize_text(text), style="yellow"))

    def show_result(self, result: Any) -> None:
        """Print what a command gave."""
        _show_result(self.console, result, followed=False)

    def screen(self, how: ShowOptions) -> Screen:
        """The screen for one run; Ctrl-C on it stops the run."""
        if how.background or how.name:
            raise UsageError(
                "--bg and --as are for notebooks; in a terminal end the line with & or use --json"
            )
        if how.control:
            return LinesScreen(self.lab(), self.user, how.approval_timeout)
        if sys.stdin.isatty() and not how.as_json:
            return AttachedTerminal(self.lab(), how, self.console, self.user)
        return PlainScreen(self.console, as_json=how.as_json)

    def slider(self, run: Run) -> Any:
        """Raise `UsageError`: a terminal shows one event after the other."""
        raise UsageError(
            f"--slider is for a notebook: kestrel show {run.id} --at EVENT shows the run as of an event"
        )

    def label(self, labelling: Labelling) -> Any:
        """Label by keys, or by the first letters of piped lines; then what is labelled."""
        with keys_of_terminal() as key:
            label_by_keys(self.console, labelling, key, self.console.input)
        return label_report(labelling.store, labelling.suite.name)

    def failed_cell(self, wish: str) -> str:
        """Raise `UsageError`: a terminal has no cells."""
        raise UsageError('fix is for a notebook, below a cell that failed; here: kestrel run "…"')

    def wait(self, work: Callable[[Reporter], Awaitable[Any]]) -> Any:
        """Do `work` under a progress bar; Ctrl-C stops it."""

        async def body() -> Any:
            with progress_bar(self.console) as reporter:
                return await work(reporter)

        try:
            return asyncio.run(body())
        except KeyboardInterrupt:  # typer would end without a word
            msg = (
                "stopped; finished work is stored. `eval run` and `eval gate` continue with --resume (with "
                "--batch by themselves), other commands when they are run again"
            )
            raise RunCancelled(msg) from None


class PlainScreen:
    """The screen of a run in a terminal, or in a script, where nobody can be asked."""

    approver: Approver | None = None

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console, self._as_json = Console(stderr=True) if as_json else console, as_json

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    async def show(self, run: Run) -> Run:
        """Print what the run does until it ends; raises `RunCancelled` when Ctrl-C stops it."""
        display = TerminalDisplay(self._console)
        self._console.print(Text.assemble(("run ", "dim"), run.id, (f" · {run.report.model}", "dim")))
        stop = run.subscribe(display.tell)
        try:
            with display.shown():
                await run.wait()
        except asyncio.CancelledError:
            # `from None`: a stopped run is no error, its trace would only hide the notice.
            raise stopped_notice(run) from None
        finally:
            stop()
            self._console.print(display.ending())
        tell_way_on(run, self._console)
        if self._as_json:
            sys.stdout.write(json.dumps(_as_json(run), indent=2) + "\n")
        return run


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 0, 1 failed, 2 wrong usage, 3 approval needed, 130 stopped.

    `eval gate` and `eval ci` exit with 0 ok, 1 regression, 2 inconclusive, 3 not decided for any reason.
    """
    with harmless_output():
        try:
            code = _main(list(sys.argv[1:] if argv is None else argv))
        except KeyboardInterrupt:  # before the command has begun, or when it is over
            code = EXIT_CANCELLED
    sys.exit(code)


@cache
def _root() -> Any:
    """Return the command tree, built once: Typer takes 60 ms for it, more than most commands take."""
    return typer.main.get_command(app)


def _main(argv: list[str]) -> int:
    frontend = TerminalFrontend()
    gate, root = argv[:2] in (["eval", "gate"], ["eval", "ci"]), _root()
    try:
        argv = with_run(argv, root, "kestrel")
        with files_named():
            result = root.main(argv, prog_name="kestrel", standalone_mode=False, obj=frontend)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        return _show_result(
            frontend.console,
            result,
            followed=bool(argv) and argv[0] in {"run", "orchestrate", "resume", "fork", "websearch", "chat"},
        )
    except typer.TyperException as error:
        if message := wrong_usage(error, root, "kestrel", argv):
            _complain(message)
        code = EXIT_USAGE
    # Before `KestrelError`, which a stopped run is, too.
    except (typer.Abort, KeyboardInterrupt, RunCancelled) as error:
        _complain(str(error) or "stopped")
        return EXIT_CANCELLED
    except ApprovalRequired as error:
        _complain(str(error))
        code = EXIT_APPROVAL
    except KestrelError as error:
        _complain(str(error))
        code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    except Exception as error:  # the boundary: nothing is swallowed, it is kept in a file and named  # noqa: BLE001
        # Python 3.11 raises a RuntimeError from the interrupt where a class was being made.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return EXIT_CANCELLED
        _complain(_bug_message(error, argv))
        code = EXIT_FAILED
    finally:
        # A lab that no command asked for is not opened to be closed.
        if "_lab" in frontend.__dict__:
            frontend.lab().close()
    # The codes of a gate are verdicts: whatever kept it from being decided must not look like one.
    return EXIT_CODES["broken"] if gate else code


def _bug_message(error: Exception, argv: list[str]) -> str:
    """What is said of a fault of our own, in one line; the rest is kept in a file of the person's."""
    # Readable by its owner only.
    number, name = tempfile.mkstemp(prefix="kestrel-", suffix=".txt")
    with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"kestrel_lab {__version__}, Python {sys.version}\nkestrel {shlex.join(argv)}\n\n")
        file.write("".join(traceback.format_exception(error)))
    what = one_line(f"{type(error).__name__}: {error}", 300)
    return f"{what}. This is a bug in kestrel_lab: please report it with the content of {name}"


def _complain(message: str) -> None:
    Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False).print(
        Text.assemble(("error: ", "bold red"), sanitize_text(message)), soft_wrap=True
    )


def _show_result(console: Console, result: Any, *, followed: bool) -> int:  # one case per kind of result  # noqa: C901
    match result:
        case None | int():
            return result or 0
        case Run():
            if not followed:
                console.print(Text(repr(result.report)))
            return 0 if not followed or result.status is RunStatus.COMPLETE else EXIT_FAILED
        case Toolbox():
            console.print(
                _table(
                    ("tool", "danger", "effect", "offered", "what it does"),
                    [
                        (t.name, t.danger.name, t.effect, result.offered(t), t.description.split("\n")[0])
                        for t in result
                    ],
                )
            )
        case Path() | str():
            # Not broken at the width of the terminal: it may be JSON or YAML on its way to a file.
            console.print(Text(str(result)), soft_wrap=True)
        case Plan():
            console.print(_table(*result.table()))
        case EvalResult():
            console.print(Text("\n".join((result.headline, *result.lines()))))
            console.print(_fit_terminal(*result.table()))
            if checks := shared_checks(result.rows):
                console.print(_table(CHECK_HEADINGS, checks))
            families, rates = family_table(
                result.rows,
                result.suite.count_errors,
                [*(gate.metric for gate in result.suite.gates), *(one.name for one in result.suite.metrics)],
            )
            if rates:
                console.print(Text(), _table(families, rates), sep="\n")
            if failed := failed_table(result.rows):
                console.print(Text(), _table(FAILED_HEADINGS, failed), sep="\n")
            return result.exit_code
        case NotebookResult():
            return _notebook(console, result)
        case Comparison():
            console.print(Text(str(result)))
            return EXIT_CODES["broken"] if result.outdated else 0
        case (
            GateReport()
            | Settings()
            | Doctor()
            | RecomputeResult()
            | History()
            | BisectResult()
            | Ablation()
            | AlignedRuns()
            | ClusterReport()
            | ScanReport()
            | Receipt()
            | Shrunk()
            | ServerTable()
            | Rulebook()
        ):
            for part in ([result.headline] if result.headline else []) + [*result.parts()]:
                console.print(_table(*part) if isinstance(part, ShownTable) else Text(sanitize_text(part)))
            return int(getattr(result, "exit_code", not getattr(result, "ok", True)))
        case _ if hasattr(result, "itertuples"):
            console.print(
                _table(
                    (str(result.index.name), *map(str, result.columns)),
                    [tuple(map(_cell, row)) for row in result.itertuples()],
                )
            )
        case _:
            console.print(Text(repr(result)))
            return int(getattr(result, "exit_code", 0))
    return 0


def _notebook(console: Console, result: NotebookResult) -> int:
    if result.ok:
        console.print(Text(result.headline))
        return 0
    _complain(f"{full_stop(result.headline)} Its outputs up to there: {result.path}")
    return EXIT_APPROVAL if result.needs_approval else EXIT_FAILED


_SHOWN = (
    "configuration",
    "success (95 %)",
    "mean score",
    "trials",
    "broke",
    "wall s",
    "tokens",
    "tool calls",
    "cost per trial",
)


def _fit_terminal(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """What of a summary fits a terminal; the rest is in the report and the frame."""
    places = [
        place
        for place, name in enumerate(columns)
        if name in (*_SHOWN, *REDUCERS) or name.startswith(("pass@", "pass^", "at_least_"))
    ]
    return _table([columns[place] for place in places], [[row[place] for place in places] for row in rows])


def _cell(value: Any) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S") if hasattr(value, "strftime") else str(value)


_WHOLE = 40
"""Width up to which leading columns are not broken: names and ids there are meant to be copied."""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table, taken = Table(box=None, header_style="bold", pad_edge=False), 0
    for place, column in enumerate(columns):
        taken += max(map(cell_len, (column, *(sanitize_text(row[place]) for row in rows))))
        table.add_column(column, overflow="fold", no_wrap=taken <= _WHOLE)
    for row in rows:
        table.add_row(*(Text(sanitize_text(cell)) for cell in row))
    return table


def _as_json(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "status": run.report.status.word,
        "outcome": run.outcome,
        "answer": run.answer,
        "reason": run.reason,
        "model": run.report.model,
        "usage": asdict(run.usage),
    }
