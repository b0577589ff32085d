"""Choice of the sandbox level, the requested one or the highest that passes its canary test on this machine,
and a program run at it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kestrel_lab.core.calls import CONTAINER
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.command_lines import bwrap_path, check_workspace, launch_with_places
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.process import ProcessEnd, Sink, run_launched

_BEST_FIRST = (Level.S3, Level.S2, Level.S1)
_VERDICTS: dict[tuple[Level, bool, str | None], str] = {}
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The level at which commands run, and why the higher ones do not work."""

    level: Level
    reasons: tuple[tuple[Level, str], ...] = ()
    """Higher levels that do not work here, with the reasons."""
    wanted: bool = True
    """True if it is the requested level or, without a request, at least a sandbox."""
    held: str = ""
    """What holds commands in place of a sandbox of this machine."""

    def __str__(self) -> str:
        """Return the level in a few words, with the reason if it is not a sandbox."""
        if self.held:
            return self.held
        if self.wanted:
            return self.level.name
        return f"{self.level.name}: no sandbox; {_reasons_text(self.reasons)}"


def level_problem(level: Level, sandbox: Sandbox) -> str:
    """Return why the level is unreliable here, else an empty text; tested once per process and settings."""
    key = (level, sandbox.network, bwrap_path())
    # Two threads would start the same probes, which take a tenth of a second.
    with _ONE_AT_A_TIME:
        if key not in _VERDICTS:
            _VERDICTS[key] = probe_level(level, Sandbox(network=sandbox.network))
        return _VERDICTS[key]


def choose_level(
    sandbox: Sandbox, workspace: Path, minimum: Level = Level.S0, *, written: bool = True
) -> Choice:
    """Return the level for commands in `workspace`, at least `minimum`; `written` says whether they may write
    there.

    Takes a tenth of a second per level the first time and blocks. A level that was named is that level or
    nothing: raises `UsageError` that says why it does not work and what to install, and likewise when even
    the best is below `minimum`. Where nothing was named and nothing holds, the choice is S0, not `wanted`: it
    must be asked about.
    """
    if sandbox.container is not None:
        # A container isolates as S2 does: the machine, its keys and its processes are not there, and the
        # workspace can be written.
        return Choice(level=Level.S2, held=CONTAINER)
    if sandbox.level is not None:
        if sandbox.level < minimum:
            raise UsageError(
                f"the setting sandbox = {sandbox.level.name} is below {minimum.name}, the least this "
                "tool may run at: set sandbox = auto"
            )
        if problem := _problem(sandbox.level, sandbox, workspace, written=written):
            raise UsageError(
                f"sandbox level {sandbox.level.name} is not available: {full_stop(problem)} Fix this, or set "
                "sandbox = auto for the highest level that works"
            )
        return Choice(level=sandbox.level)
    reasons: list[tuple[Level, str]] = []
    for level in _BEST_FIRST:
        if level < minimum:
            break
        problem = _problem(level, sandbox, workspace, written=written)
        if not problem:
            return Choice(level=level, reasons=tuple(reasons))
        reasons.append((level, problem))
    if minimum > Level.S0:
        raise UsageError(
            f"no sandbox of level {minimum.name} or above is available: {_reasons_text(reasons)}"
        )
    return Choice(level=Level.S0, reasons=tuple(reasons), wanted=False)


async def choose_level_async(
    sandbox: Sandbox, workspace: Path, minimum: Level = Level.S0, *, written: bool = True
) -> Choice:
    """Choose the level without blocking the event loop."""
    if is_tested(sandbox):
        return choose_level(sandbox, workspace, minimum, written=written)
    return await asyncio.to_thread(choose_level, sandbox, workspace, minimum, written=written)


async def run_sandboxed(
    argv: Sequence[str],
    *,
    workspace: Path,
    sandbox: Sandbox,
    env: Mapping[str, str],
    output: Sink,
    timeout_s: float,
    read: Sequence[Path] = (),
    read_only: bool = False,
    stdin: int | None = None,
) -> tuple[ProcessEnd, Level]:
    """Run a program of this package on code that an agent may have written, in the sandbox of its commands or
    not at all.

    It may write `workspace`, unless that is `read_only`, and sees the places in `read`. Returns how it ended
    and the level it was held in at. Raises `UsageError` where no sandbox can be had and nobody set `sandbox =
    S0`, and `OSError` for a program that cannot be started.
    """
    sandbox = replace(sandbox, container=None)  # a program of this package is not in it
    choice = await choose_level_async(sandbox, workspace, written=not read_only)
    if not choice.wanted:
        raise UsageError(
            f"no sandbox is available here ({choice}), and this command runs what an agent may have "
            "written: set sandbox = S0 to run it without one"
        )
    seen, written = ((workspace, *read), ()) if read_only else (tuple(read), (workspace,))
    plain = Launch(argv=tuple(argv), cwd=str(workspace), env=env)
    return await run_launched(
        launch_with_places(choice.level, plain, read=seen, write=written, sandbox=sandbox),
        stdout=output,
        stderr=output,
        timeout_s=timeout_s,
        stdin=stdin,
    ), choice.level


def is_tested(sandbox: Sandbox) -> bool:
    """Return whether every test that `sandbox` needs has been made, so that the choice takes no time."""
    if sandbox.container is not None:
        return True
    for level in _BEST_FIRST if sandbox.level is None else (sandbox.level,):
        found = _VERDICTS.get((level, sandbox.network, bwrap_path()))
        if not found:
            return found is not None
    return True


def _problem(level: Level, sandbox: Sandbox, workspace: Path, *, written: bool) -> str:
    if level > Level.S0:
        try:
            check_workspace(level, workspace, sandbox.hidden, written=written)
        except PermissionError as error:
            return str(error)
    return level_problem(level, sandbox)


def _reasons_text(reasons: tuple[tuple[Level, str], ...] | list[tuple[Level, str]]) -> str:
    """Return the reasons as a clause, each once."""
    grouped: dict[str, list[str]] = {}
    for level, reason in reasons:
        grouped.setdefault(reason, []).append(level.name)
    return "; ".join(f"{' and '.join(levels)}: {reason}" for reason, levels in grouped.items())
