"""Recompute: the code of a conversation runs again in a sandboxed kernel, and each output is compared with the recorded one."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kestrel_lab.core.errors import ToolError, UsageError
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import one_line, plain
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.recomputation.executed_code import CodeCall, comparable, needed, turns_of
from kestrel_lab.tools.kernel.kernel_tools import told
from kestrel_lab.tools.kernel.lockdown import NoLockdown, impossible, read_places
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
    """`not kept`: the recorded text was too long and is no longer in the log whole, so that nothing can be said."""
    recorded: str
    """As it is compared: see `comparable`."""
    now: str


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Recomputed(TableView):
    """What the code of a conversation gives now."""

    run: str
    calls: tuple[CallOutput, ...]
    needs: tuple[str, ...]
    """Variables of the user's notebook that the code reads: they are not in the log, so calls that read them differ."""

    @property
    def ok(self) -> bool:
        """Whether every recorded output holds."""
        return all(call.outcome == "same" for call in self.calls)

    @property
    def headline(self) -> str:
        """What holds, in one line."""
        same = sum(call.outcome == "same" for call in self.calls)
        why = f"; the code reads {', '.join(self.needs)} of your notebook, which the log does not have" if self.needs else ""
        return f"run {self.run}: {same} of {len(self.calls)} outputs hold{why}"

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings and a row for each call; outputs are shown from where they begin to differ."""
        return _HEADINGS, [(call.run, call.call, call.outcome, *_from_difference(call)) for call in self.calls]


def _from_difference(call: CallOutput) -> tuple[str, str]:
    if call.outcome != "differs":
        return one_line(call.recorded, _SHOWN), one_line(call.now, _SHOWN)
    was, now = call.recorded.splitlines(), call.now.splitlines()
    same = next((place for place, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    return one_line("\n".join(was[same:]), _SHOWN) or "(nothing more)", one_line("\n".join(now[same:]), _SHOWN) or "(nothing more)"


async def recompute(
    store: SessionStore,
    run_id: str,
    *,
    workspace: str | Path | None = None,
    copy: bool = False,
    memory: float | None = None,
    reporter: Reporter | None = None,
) -> Recomputed:
    """Run the code of the conversation that a run ends again, and compare each output with the recorded one.

    It runs in a sandboxed kernel that reads the run's workspace, or the folder `workspace`, and changes nothing there: code that writes
    files fails with `PermissionError` and so differs. With `copy` it works in a throw-away copy of that folder (without `.git`), where it
    may write. The kernel has at most `memory` GiB. Where another kernel began in the log, another one begins here. Raises `UsageError` for a run that does not exist or has
    not ended, for one without code, and where code cannot be sandboxed.
    """
    turns = turns_of(store, run_id)
    calls = [call for turn in turns for call in turn.calls]
    if not calls:
        raise UsageError(f"run {run_id} executed no Python code (tool run_python), so there is nothing to recompute")
    if reason := impossible():
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
            found.append(_compared(call, await _output(kernel, call.code)))
            if all(later.kernel != call.kernel for later in calls[place + 1 :]):
                kernels.pop(key).close()
    finally:
        for kernel in kernels.values():
            kernel.close()
        for folder in copies.values():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    return Recomputed(run=run_id, calls=tuple(found), needs=tuple(needed(calls)))


def _folder(workspace: str | Path) -> Path:
    folder = Path(workspace).absolute()
    if not folder.is_dir():
        raise UsageError(f"the workspace {folder} is not there: name a folder with its files (--workspace FOLDER)")
    try:
        read_places(str(folder))
    except NoLockdown as reason:
        raise UsageError(f"the code cannot be run again: {reason}") from reason
    return folder


def _copy(folder: Path, target: Path) -> None:
    try:
        shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
    except OSError as error:
        raise UsageError(f"{folder} cannot be copied: {one_line(str(error), 200)}") from error


async def _output(kernel: OwnKernel, code: str) -> str:
    try:
        ran = await asyncio.to_thread(kernel.execute, code)
    except asyncio.CancelledError:
        kernel.interrupt()
        raise
    except ToolError as error:
        return str(error)
    return comparable(told(ran), ran.error.strip().rpartition("\n")[2])


def _compared(call: CodeCall, now: str) -> CallOutput:
    outcome: Literal["same", "differs", "not kept"] = "same" if call.output == now else "differs" if call.whole else "not kept"
    return CallOutput(run=call.run, call=call.call, outcome=outcome, recorded=plain(call.output), now=plain(now))
