"""Recomputation: a conversation's code runs again in a sandboxed kernel; outputs are compared."""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED
from kestrel_lab.core.errors import ToolError, UsageError
from kestrel_lab.core.events.union import KernelChanged, KernelUndone, RunStarted, ToolAnswered, ToolCalled
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.eventlog.large_results import ResultStore
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.log_files import leave_out_logs
from kestrel_lab.language.python_ast import tree_of
from kestrel_lab.runtime.run import Run, RunHistory
from kestrel_lab.tools.kernel.kernel_tools import NO_OUTPUT, execution_text
from kestrel_lab.tools.kernel.lockdown import NoLockdown, lockdown_problem, read_places
from kestrel_lab.tools.kernel.own_kernel import OwnKernel
from kestrel_lab.tools.sandbox.levels import GIB
from kestrel_lab.views.html.table_view import TableView

_HEADINGS: Final = ("run", "call", "output", "recorded", "now")
_SHOWN: Final = 60
"""Characters of an output in the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutput:
    """One call with its recorded output and the one that its code has now."""

    run: str
    call: str
    outcome: Literal["same", "differs", "not kept"]
    """`not kept`: the recorded text was too long and is no longer whole, so it cannot be compared."""
    recorded: str
    """As it is compared: see `comparable_output`."""
    now: str


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class RecomputeResult(TableView):
    """What the code of a conversation gives now."""

    run: str
    calls: tuple[CallOutput, ...]
    needs: tuple[str, ...]
    """Variables of the user's notebook that the code reads; they are not in the log, so calls differ."""

    @property
    def ok(self) -> bool:
        """Whether every recorded output holds."""
        return all(call.outcome == "same" for call in self.calls)

    @property
    def headline(self) -> str:
        """What holds, in one line."""
        same = sum(call.outcome == "same" for call in self.calls)
        why = (
            f"; the code reads {', '.join(self.needs)} of your notebook, which the log does not have"
            if self.needs
            else ""
        )
        return f"run {self.run}: {same} of {len(self.calls)} outputs hold{why}"

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings and a row for each call; outputs are shown from where they begin to differ."""
        return _HEADINGS, [
            (call.run, call.call, call.outcome, *_from_difference(call)) for call in self.calls
        ]


def _from_difference(call: CallOutput) -> tuple[str, str]:
    if call.outcome != "differs":
        return one_line(call.recorded, _SHOWN), one_line(call.now, _SHOWN)
    was, now = split_lines(call.recorded), split_lines(call.now)
    same = next(
        (place for place, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now))
    )
    return one_line("\n".join(was[same:]), _SHOWN) or "(nothing more)", one_line(
        "\n".join(now[same:]), _SHOWN
    ) or "(nothing more)"


async def recompute_run(
    store: SessionStore,
    run_id: str,
    *,
    workspace: str | Path | None = None,
    copy: bool = False,
    memory: float | None = None,
    reporter: Reporter | None = None,
) -> RecomputeResult:
    """Run the code of the conversation that a run ends again, and compare each output with the recorded one.

    It runs in a sandboxed kernel that reads the run's workspace, or the folder `workspace`, and changes
    nothing there: code that writes files fails with `PermissionError` and so differs. With `copy` it works in
    a throw-away copy of that folder (without `.git`), where it may write. The kernel has at most `memory`
    GiB. Where another kernel began in the log, another one begins here. Raises `UsageError` for a run that
    does not exist or has not ended, for one without code, and where code cannot be sandboxed.
    """
    turns = turns_of(store, run_id)
    calls = [call for turn in turns for call in turn.calls]
    if reason := lockdown_problem():
        raise UsageError(f"the code cannot be run again here, because it could not be sandboxed: {reason}")
    folders = {turn.run: _folder(turn.workspace if workspace is None else workspace) for turn in turns}
    most = None if memory is None else int(memory * GIB)
    kernels: dict[tuple[str, Path], OwnKernel] = {}
    copies: dict[Path, Path] = {}
    found = list[CallOutput]()
    try:
        for place, call in enumerate(calls):
            if reporter is not None:
                reporter(place, len(calls), one_line(call.code))
            folder = folders[call.run]
            if copy:
                if folder not in copies:
                    copies[folder] = Path(tempfile.mkdtemp(prefix="kestrel-recompute-"))
                    await asyncio.to_thread(_copy, folder, copies[folder])
                folder = copies[folder]
            key = (call.kernel, folder)
            kernel = kernels.setdefault(key, OwnKernel(folder, most, writable=copy))
            found.append(_compare_output(call, await _output(kernel, call.code)))
            if all(later.kernel != call.kernel for later in calls[place + 1 :]):
                kernels.pop(key).close()
        if reporter is not None:
            reporter(len(calls), len(calls), "")
    finally:
        for kernel in kernels.values():
            kernel.close()
        for folder in copies.values():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return RecomputeResult(run=run_id, calls=tuple(found), needs=tuple(needed_names(calls)))


def _folder(workspace: str | Path) -> Path:
    folder = Path(workspace).absolute()
    if not folder.is_dir():
        raise UsageError(
            f"the workspace {folder} is not there: name a folder with its files (--workspace FOLDER)"
        )
    try:
        read_places(str(folder))
    except NoLockdown as reason:
        raise UsageError(f"the code cannot be run again: {reason}") from reason
    return folder


def _copy(folder: Path, target: Path) -> None:
    try:
        shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True, ignore=leave_out_logs(".git"))
    except OSError as error:
        raise UsageError(f"{folder} cannot be copied: {one_line(str(error), 200)}") from error


async def _output(kernel: OwnKernel, code: str) -> str:
    try:
        ran = await asyncio.to_thread(kernel.execute, code)
    except asyncio.CancelledError:
        # The thread cannot be cancelled, but the code in the kernel can.
        kernel.interrupt()
        raise
    except ToolError as error:
        return str(error)
    return comparable_output(execution_text(ran), ran.error.strip().rpartition("\n")[2])


def _compare_output(call: CodeCall, now: str) -> CallOutput:
    outcome: Literal["same", "differs", "not kept"] = (
        "same" if call.output == now else "differs" if call.whole else "not kept"
    )
    return CallOutput(
        run=call.run,
        call=call.call,
        outcome=outcome,
        recorded=sanitize_text(call.output),
        now=sanitize_text(now),
    )


TOOLS: Final = ("run_python", "run_cell")
_FIGURE: Final = re.compile(r"^\[(figure \d+: [\w/+.-]+), [\d,]+ bytes, shown to the user\]$", re.MULTILINE)
_KERNEL_GONE: Final = re.compile(r"\A\[the kernel in which [^\n]* is gone, with its variables[^\n]*\]\n")
_GIVEN_UP: Final = re.compile(r"\n?\[changes inside of objects by [^\n]* cannot be undone any more[^\n]*\]\Z")
_VOLATILE: Final = (
    (re.compile(r"\bat 0x[0-9a-f]+"), "at 0x…"),
    (re.compile(r"\S*ipykernel_\d+/\d+\.py"), "ipykernel"),
)
"""Addresses in memory, and the file that a kernel says a cell is in: they are others in each process."""
_TRACEBACK: Final = re.compile(r"^(-{40,}$|[ \t]*(Cell In\[|File .*line \d)|Traceback \()", re.MULTILINE)
_STOPPED: Final = re.compile(r"^KeyboardInterrupt\b| was stopped$")
_UNDEFINED: Final = re.compile(r"name '(\w+)' is not defined")
_OF_IPYTHON: Final = {"display", "get_ipython", "In", "Out", "exit", "quit"}

_COMPOUND: Final = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeCall:
    """One call whose code had its effect in a kernel."""

    run: str
    call: str
    code: str
    kernel: str
    """Names the kernel; calls of another one do not share its variables."""
    live: bool
    """It was the kernel of a notebook, which may have held variables before."""
    text: str
    """What the model was given, without the lines on variables and earlier kernels."""
    whole: bool
    """Whether `text` is all of it: a long text may have had to go from the log."""
    error: str
    """Kind and message of the exception; empty if none was raised."""
    images: tuple[tuple[str, Path | None], ...]
    """Media type and file of each figure; `None` where it is no longer kept."""

    @property
    def output(self) -> str:
        """The text in the form in which it is compared, see `comparable_output`."""
        return comparable_output(self.text, self.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One run of a conversation."""

    run: str
    goal: str
    answer: str
    model: str
    """Its model, with `(scripted)` or `(replay)` where none was asked."""
    workspace: str
    calls: tuple[CodeCall, ...]
    left_out: tuple[tuple[str, str], ...]
    """Calls whose code is not part of what was done, with the reason."""


def turns_of(store: SessionStore, run_id: str) -> list[Turn]:
    """Return the turns of the conversation that a run ends, its parents first.

    Raises `UsageError` for a run that does not exist or has not ended, and where no code stands that it
    executed.
    """
    runs = RunHistory(store).conversation(run_id)
    if not runs[-1].status.terminal and not runs[-1].report.interrupted:
        raise UsageError(f"run {run_id} is {runs[-1].status}: a notebook is made of a run that has ended")
    turns = [_turn(run, store.results) for run in runs]
    if not any(turn.calls for turn in turns):
        why = "; ".join(f"{call}: {reason}" for turn in turns for call, reason in turn.left_out)
        raise UsageError(
            f"run {run_id} left no Python code (tool run_python) to run again{f': {why}' if why else ''}"
        )
    return turns


def _turn(run: Run, results: ResultStore) -> Turn:
    events = run.events()
    asked = {event.call: event for event in events if isinstance(event, ToolCalled) and event.tool in TOOLS}
    answers = {event.call: event for event in events if isinstance(event, ToolAnswered)}
    started = next(event for event in events if isinstance(event, RunStarted))
    done, undone = dict[str, KernelChanged](), set[str]()
    for event in events:
        if isinstance(event, KernelChanged) and event.call in asked:
            # A call that was made again after a crash has its place there.
            done.pop(event.call, None)
            done[event.call] = event
        elif isinstance(event, KernelUndone):
            undone.update(event.calls)
    left_out, calls = dict[str, str](), list[CodeCall]()
    for name, changed in done.items():
        if name in undone:
            left_out[name] = "it was undone"
        elif _STOPPED.search(changed.error):
            left_out[name] = "it was stopped before its end"
        else:
            calls.append(_code_call(run, asked[name], changed, answers.get(name), results))
    for name in asked.keys() - done.keys():
        problem = one_line(answers[name].text, 200) if name in answers else "the run ended before"
        left_out[name] = f"nothing of it is known to have come into a kernel: {problem}"
    kind = "" if started.model_kind == "real" else f" ({started.model_kind})"
    return Turn(
        run=run.id,
        goal=run.goal,
        answer=run.answer,
        model=f"{started.model}{kind}",
        workspace=run._state.folder,
        calls=tuple(calls),
        left_out=tuple((name, left_out[name]) for name in asked if name in left_out),
    )


def _code_call(
    run: Run, asked: ToolCalled, changed: KernelChanged, answer: ToolAnswered | None, results: ResultStore
) -> CodeCall:
    whole = answer is not None
    try:
        text = "" if answer is None else run.results[asked.call]
    except UsageError:
        text, whole = "" if answer is None else answer.text, False
    text = _GIVEN_UP.sub("", _KERNEL_GONE.sub("", text))
    for change in reversed(changed.changes):
        lost = f" (cannot be undone: {change['lost']})" if change.get("lost") else ""
        text = text.removesuffix(f"[{change['name']}: {change['text']}{lost}]").removesuffix("\n")
    return CodeCall(
        run=run.id,
        call=asked.call,
        code=changed.code or str(asked.args.get("code")),
        kernel=changed.kernel,
        live=asked.sandbox.partition(" ")[0] in (PREVIEWED, IN_KERNEL),
        text=text,
        whole=whole,
        error=changed.error,
        images=tuple((str(image["media"]), results.path(str(image["blob"]))) for image in changed.images),
    )


def comparable_output(text: str, error: str) -> str:
    """Return an output as far as two executions of the same code must agree.

    Left out are sizes of figures, addresses in memory, and all of a traceback but its last line `error`.
    """
    if error and (trace := _TRACEBACK.search(text)):
        text = text[: trace.start()]
    text = _FIGURE.sub(r"[\1]", text)
    for pattern, instead in _VOLATILE:
        text = pattern.sub(instead, text)
    lines = [line.rstrip() for line in split_lines(text)]
    return "\n".join([*lines, error] if error else lines).strip() or NO_OUTPUT


# Names.


def needed_names(calls: Iterable[CodeCall]) -> list[str]:
    """Return the user's own names: those that code read before any code assigned them, in order."""
    known: set[str] = {*dir(builtins), *_OF_IPYTHON}
    found = dict[str, None]()
    for call in calls:
        undefined = set(_UNDEFINED.findall(call.error))
        if call.live:
            found |= dict.fromkeys(
                name
                for name in _Names(known).read(call.code)
                if name not in undefined and not name.startswith("_")
            )
    return [*found]


class _Names:
    """Follows which names a cell reads before it binds them."""

    def __init__(self, known: set[str]) -> None:
        """`known` are names that are bound already; those that cells bind are added."""
        self._known = known
        self._later: list[str] = []
        self._free = dict[str, None]()

    def read(self, code: str) -> list[str]:
        """Return the names that a cell reads and nobody has bound."""
        from IPython.core.inputtransformer2 import TransformerManager

        try:
            magics = TransformerManager()  # type: ignore[no-untyped-call,unused-ignore]
            self._statements(tree_of(magics.transform_cell(code)).body)
        except (SyntaxError, ValueError, RecursionError):  # it raised when it ran, too
            return []
        # Bodies of functions run later, when more is bound.
        self._use(self._later)
        return [*self._free]

    def _statements(self, statements: Iterable[ast.AST]) -> None:
        for statement in statements:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self._later += _free_in(statement)
                    self._known.add(statement.name)
                case ast.AugAssign(target=ast.Name(id=name)):
                    self._use([name])
                    self._simple(statement)
                case _ if isinstance(statement, _COMPOUND):
                    self._statements(ast.iter_child_nodes(statement))
                case ast.ExceptHandler(name=name):
                    self._known.update([name] if name else [])
                    self._statements(ast.iter_child_nodes(statement))
                case ast.match_case(pattern=pattern):
                    self._known.update(_bound_in(pattern))
                    self._statements(ast.iter_child_nodes(statement))
                case _:
                    self._simple(statement)

    def _simple(self, node: ast.AST) -> None:
        self._use(
            _free_in(node)
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
            else _free_in(*_read_parts(node))
        )
        self._known.update(_bound_in(node))

    def _use(self, names: Iterable[str]) -> None:
        self._free |= dict.fromkeys(name for name in names if name not in self._known)


def _read_parts(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[ast.AST]:
    """Yield what an assignment reads: its value, and the objects whose items or attributes it sets."""
    if node.value is not None:
        yield node.value
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        yield from (
            part for part in ast.walk(target) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        )


def _free_in(*nodes: ast.AST) -> list[str]:
    """Return the names that are read somewhere below the nodes and bound nowhere below the same one."""
    found = dict[str, None]()
    for node in nodes:
        bound = set(_bound_in(node))
        names = [
            one
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id not in bound
        ]
        found |= dict.fromkeys(one.id for one in sorted(names, key=lambda one: (one.lineno, one.col_offset)))
    return [*found]


def _bound_in(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        match one:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                yield name
            case (
                ast.ClassDef(name=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case ast.alias():
                yield one.asname or one.name.partition(".")[0]
            case _:
                pass
