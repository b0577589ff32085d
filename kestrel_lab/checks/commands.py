"""A check that runs a command in the workspace that a run left behind, in the sandbox of the run's own
commands.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from kestrel_lab.checks.files import read_workspace_file, require_inside
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import ADDED_LATER, Score
from kestrel_lab.tools.sandbox.levels import Level, Sandbox, denial_cause
from kestrel_lab.tools.sandbox.select import run_sandboxed
from kestrel_lab.tools.shell.environment import clean_environment


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandSucceeds:
    """A command, run without a shell in the workspace, ends with exit code 0 in time.

    `python` as the command is the Python that runs this. The command runs what the agent wrote, so it is held
    in as the agent's commands are: in the trial's sandbox, with a short environment without keys, or in its
    container. It gets no input and leaves no process behind.
    """

    argv: tuple[str, ...]
    timeout: float = 60.0
    """Seconds."""
    files: str = field(default="", metadata=ADDED_LATER)
    """A folder beside the suite that is put into the workspace first: tests that the agent does not see. It
    replaces what the agent left under its name.
    """
    reward: str = field(default="", metadata=ADDED_LATER)
    """A file of the workspace in which the command writes its reward, a number from 0 to 1, that decides in
    place of the exit code: 1 passes, less is partial credit.
    """

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise UsageError("command_succeeds needs a command: a list of words such as [python, -m, pytest]")
        if self.timeout <= 0:
            raise UsageError(f"the timeout of command_succeeds must be positive, not {self.timeout}")
        if self.reward:
            require_inside(self.reward)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{one_line(shlex.join(self.argv), 60)} succeeds"

    async def __call__(self, trial: Trial) -> Score:
        """Pass on exit code 0; a timeout is not a pass; raises `CheckError` when the command cannot be
        started or no sandbox can be had.
        """
        sandbox: Sandbox = trial.sandbox or Sandbox()
        if self.files or self.reward:
            await asyncio.to_thread(self._put_files, trial)
        kept = bytearray()

        def keep(piece: bytes) -> bool:
            kept.extend(piece)
            # The end of an output says why a command failed, and a program that prints for ever must not
            # fill memory.
            del kept[:-100_000]
            return True

        try:
            if sandbox.container is None:
                # The command runs what the agent wrote: keys in the environment must not reach it.
                env = clean_environment()
                ended, level = await run_sandboxed(
                    [self._program(trial, env), *self.argv[1:]],
                    workspace=trial.workspace,
                    sandbox=sandbox,
                    env=env,
                    output=keep,
                    timeout_s=self.timeout,
                    read_only=trial.read_only,
                )
            else:
                level = Level.S0
                ended = await sandbox.container.run(
                    self.argv, stdout=keep, stderr=keep, timeout_s=self.timeout
                )
        except (OSError, UsageError) as error:
            raise CheckError(f"command_succeeds cannot start {self.argv[0]!r}: {error}") from error
        if ended.stopped:
            return self._score(
                f"not finished after {self.timeout:g} s"
                if ended.stopped == "timeout"
                else "it started too many processes"
            )
        if self.reward:
            return await asyncio.to_thread(self._rewarded, trial, kept.decode("utf-8", "replace"))
        if ended.exit_code == 0:
            return self._score("")
        said = kept.decode("utf-8", "replace")
        tail = "; ".join(text for text in (_last_lines(said), denial_cause(level, sandbox, said)) if text)
        return self._score(f"exit code {ended.exit_code}" + (f": {tail}" if tail else ""))

    def _program(self, trial: Trial, env: Mapping[str, str]) -> str:
        command = sys.executable if self.argv[0] == "python" else self.argv[0]
        place = shutil.which(
            str(trial.workspace / command) if "/" in command else command, path=env.get("PATH")
        )
        if place is None:
            raise FileNotFoundError("No such file or directory, or none that can be executed")
        return place

    def _put_files(self, trial: Trial) -> None:
        """Put the hidden files into the workspace, and remove a reward that the agent may have written."""
        if trial.read_only:
            raise CheckError("command_succeeds cannot put files into a workspace that is read-only")
        if self.reward:
            old = trial.workspace / self.reward
            # The agent may have made a link of its folder, which would lead out of the workspace.
            if not old.parent.resolve().is_relative_to(trial.workspace.resolve()):
                raise CheckError(f"command_succeeds: {self.reward} leads out of the workspace")
            old.unlink(missing_ok=True)
        if not self.files:
            return
        if trial.resolve is None:
            raise CheckError(
                f"command_succeeds with {self.files} works in a suite only, which says where it is"
            )
        try:
            source = trial.resolve(self.files)
            target = trial.workspace / source.name
            # A link is removed itself: what it leads to may lie outside of the workspace.
            if target.is_symlink() or target.is_file():
                target.unlink()
            elif target.exists():
                shutil.rmtree(target)
            shutil.copytree(source, target)
        except (OSError, UsageError) as error:
            raise CheckError(
                f"command_succeeds cannot put {self.files} into the workspace: {error}"
            ) from error

    def _rewarded(self, trial: Trial, said: str) -> Score:
        text, problem = read_workspace_file(trial.workspace, self.reward)
        try:
            value = float(text.strip()) if not problem else 0.0
        except ValueError:
            value, problem = 0.0, f"{self.reward} holds {one_line(text, 40)!r}, which is no number"
        passed = not problem and value >= 1
        why = () if passed else (problem or f"the reward is {value:g}", _last_lines(said))
        # A reward outside of 0 to 1 must not outweigh the other checks of the trial.
        share = min(max(value, 0.0), 1.0)
        return Score(check=self.label, passed=passed, value=share, reason="; ".join(filter(None, why)))

    def _score(self, reason: str) -> Score:
        return Score(check=self.label, passed=not reason, value=float(not reason), reason=reason)


def _last_lines(said: str) -> str:
    """Return the last lines of an output, 200 characters or so, on one line."""
    end = said.rstrip()
    begin = max(0, len(end) - 200)
    # A line that would begin in its middle is left out where another follows it.
    whole = 0 if begin == 0 else end.find("\n", begin) + 1 or begin
    return one_line(end[whole:], 200)
