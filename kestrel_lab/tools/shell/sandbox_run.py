"""Run a program of this package on code that an agent may have written, in the sandbox of its commands or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.sandbox.command_lines import launch_among
from kestrel_lab.tools.sandbox.launcher_client import can_launch
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.select import chosen
from kestrel_lab.tools.shell.process import Ended, Sink, run_launched, run_process


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
) -> tuple[Ended, Level]:
    """Run a program in `workspace`, which it may write unless that is `read_only`, and in sight of the places in `read`.

    Returns how it ended and the level it was held in at. Raises `UsageError` where no sandbox can be had and nobody set
    `sandbox = S0`, and `OSError` for a program that cannot be started.
    """
    choice = await chosen(sandbox, workspace)
    if not choice.wanted:
        msg = f"no sandbox is available here ({choice}), and this command runs what an agent may have written: set sandbox = S0 to run it without one"
        raise UsageError(msg)
    seen, written = ((workspace, *read), ()) if read_only else (tuple(read), (workspace,))
    launch = launch_among(choice.level, argv, read=seen, write=written, folder=workspace, env=env, sandbox=sandbox)
    if can_launch():
        ended = await run_launched(launch, stdout=output, stderr=output, timeout_s=timeout_s, stdin=stdin)
    else:
        ended = await run_process(
            launch.argv, cwd=launch.cwd, env=launch.env, stdout=output, stderr=output, timeout_s=timeout_s, stdin=stdin
        )
    return ended, choice.level
