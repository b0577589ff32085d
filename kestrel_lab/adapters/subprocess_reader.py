"""Runs an agent program in the sandbox, reads its JSON lines and ends all its processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kestrel_lab.adapters.adapter import Capabilities, Decision, Permission, Reported, Task, TurnParts
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import ModelKind, OnDelta
from kestrel_lab.core.sanitize import last_shown, one_line
from kestrel_lab.host.user import home_folder
from kestrel_lab.mcp.sandboxing import program_folders, program_path
from kestrel_lab.mcp.stdio_transport import Program, start_in_terminal, start_server
from kestrel_lab.tools.sandbox.command_lines import launch_with_places
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.sandbox.levels import Level

LONGEST: Final = 64 * 1024 * 1024
"""Bytes of a line: results of tools may be whole files."""
_IDLE_S: Final = 0.3
"""Seconds of silence after which an open turn is yielded: a program writes the calls of a turn together."""
_LAST_WORDS: Final = 2_000
_ENV: Final = "/usr/bin/env"


class Reader:
    """Understands the lines of one program while it works on one task. By itself it understands none."""

    ended = False
    """True if the program has reported its end."""

    def __init__(self, task: Task) -> None:
        self.task, self.parts = task, TurnParts()
        self.session = self.model = ""

    def begin(self) -> Sequence[Mapping[str, Any]]:
        """Return what is written to its input first."""
        return ()

    def take(self, line: Mapping[str, Any]) -> Iterable[Reported | Permission]:
        """Yield what a line reports.

        Raises `ModelError` or `LimitError` if the line reports a failure.
        """
        return ()

    def idle(self) -> Iterable[Reported]:
        """Yield a turn that has no reported end; called when the program is silent and at its end."""
        # The last answer has no calls: it is reported with its usage.
        if self.parts.calls:
            yield self.parts.turn(ModelAnswer(model=self.model), self.session)

    def reply(self, asked: Permission, decided: Decision) -> Mapping[str, Any]:
        """Return the line that answers a question; only a program that asks has one."""
        raise ModelError(f"the program asked about {asked.request.name} and takes no answers")


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentProgram:
    """An agent program: its command line, the paths it may write, and the reader of its lines."""

    name: str
    executable: str
    capabilities: Capabilities
    arguments: Callable[[Task, str], Sequence[str]]
    """Arguments of the executable for a task and a model; the model's name may be empty."""
    reader: Callable[[Task], Reader]
    state: tuple[str, ...]
    """Files and folders in the home folder that hold its settings, login and sessions."""
    install: str
    """Command that installs it."""
    terminal: bool = False
    """True if it does not work, or runs no commands, without a terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramAdapter:
    """An agent program that writes JSON lines, as an adapter."""

    program: AgentProgram
    env: Mapping[str, str]
    model: str = ""
    """Model of the program; empty for its default."""
    kind: ModelKind = "real"
    command: tuple[str, ...] = ()
    """Command started in place of the program, such as a recording in tests."""

    @property
    def name(self) -> str:
        """`claude-code` or `claude-code:MODEL`."""
        return f"{self.program.name}:{self.model}" if self.model else self.program.name

    @property
    def capabilities(self) -> Capabilities:
        """Those of the program."""
        return self.program.capabilities

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Raise `ModelError`."""
        raise not_a_model_error(self.name)

    @property
    def _command(self) -> tuple[str, ...]:
        return self.command or (self.program.executable,)

    def check(self, folder: Path) -> None:
        """Raise `UsageError` if the program is not installed."""
        require_program(self._command[0], folder, self.env, self.program.install)

    async def work(self, task: Task) -> AsyncIterator[Reported]:
        """Start the program and yield what it reports; see `Adapter.work`."""
        reader = self.program.reader(task)
        async with agent_process(
            [*self._command, *self.program.arguments(task, self.model)],
            task,
            self.env,
            self.program.state,
            terminal=self.program.terminal,
        ) as running:
            for message in (first := reader.begin()):
                await running.send(message)
            # The whole prompt is on its command line, and it would wait for the end of its input; at a
            # terminal it knows that somebody may type.
            if not first and not task.pty:
                running.program.stdin.close()
            async for line in running.lines():
                for reported in reader.idle() if line is None else self._understood(reader, line):
                    if isinstance(reported, Permission):
                        await running.send(reader.reply(reported, await task.ask(reported)))
                    else:
                        yield reported
                if reader.ended:
                    break
            for reported in reader.idle():
                yield reported
            if not reader.ended:
                raise ModelError(f"{self.name} ended without an answer: {await running.how_it_ended()}")

    def _understood(self, reader: Reader, line: Mapping[str, Any]) -> Iterator[Reported | Permission]:
        try:
            yield from reader.take(line)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
            raise ModelError(
                f"{self.name} wrote a line that cannot be understood ({type(error).__name__}: "
                f"{error}): {one_line(json.dumps(line), 200)}"
            ) from error


def not_a_model_error(name: str) -> ModelError:
    """Return the error of an adapter that is called like a model."""
    return ModelError(
        f"{name} is an agent and answers no single requests: name a model for this step (kestrel models)"
    )


@dataclass
class RunningProgram:
    """A program at work."""

    program: Program
    pty: bool = False
    """True if it writes to a terminal, where control sequences may come between its lines."""
    words: bytearray = field(default_factory=bytearray)
    """The end of what it wrote to its standard error, and of its lines that are no JSON."""

    async def send(self, line: Mapping[str, Any]) -> None:
        """Write a line. No error if the program closed its input: its output says why."""
        with suppress(OSError):
            await self.program.write(json.dumps(line).encode() + b"\n")

    async def lines(self) -> AsyncIterator[Mapping[str, Any] | None]:
        """Yield the program's JSON objects, and `None` when it falls silent, until its output ends."""
        reading = asyncio.ensure_future(self._line())
        try:
            while True:
                done, _ = await asyncio.wait([reading], timeout=_IDLE_S)
                if not done:
                    yield None
                    await asyncio.wait([reading])
                if not (line := reading.result()):
                    return
                reading = asyncio.ensure_future(self._line())
                with suppress(ValueError, RecursionError):
                    if isinstance(value := json.loads(line), dict):
                        yield value
                        continue
                self.note(line)
        finally:
            reading.cancel()

    async def _line(self) -> bytes:
        try:
            line = await self.program.stdout.readline()
        except ValueError as error:
            raise ModelError(f"the program wrote a line of more than {LONGEST:,} bytes") from error
        # The end of the output is an empty line, and a line of nothing but control sequences is none.
        return last_shown(line.decode("utf-8", "replace")).encode() + b"\n" if self.pty and line else line

    def note(self, piece: bytes) -> None:
        """Keep the end of what is no message."""
        self.words += piece
        del self.words[:-_LAST_WORDS]

    async def listen(self) -> None:
        """Read its standard error until it ends."""
        while piece := await self.program.stderr.read(65_536):
            self.note(piece)

    async def how_it_ended(self) -> str:
        """Return exit code and last words."""
        code = await self.program.code(1.0)
        # Its last words are on their way.
        await asyncio.sleep(0.05)
        how = "it closed its output" if code is None else f"exit code {code}"
        return (
            f"{how}; it said last: {one_line(self.words.decode('utf-8', 'replace')[-400:], 400)}"
            if self.words.strip()
            else how
        )


def require_program(executable: str, folder: Path, env: Mapping[str, str], install: str) -> None:
    """Raise `UsageError` with the install command if a program is not found."""
    try:
        program_path(executable, folder, env)
    except FileNotFoundError as error:
        how = f" ({install})" if install else ""
        raise UsageError(
            f"there is no program {executable!r} on this machine: install it{how} and log in to it once"
        ) from error


@asynccontextmanager
async def agent_process(
    argv: Sequence[str], task: Task, env: Mapping[str, str], state: Sequence[str], *, terminal: bool = False
) -> AsyncIterator[RunningProgram]:
    """Start a program at the sandbox level of the task; on exit, end it and all its descendants.

    It may write the workspace and `state`, paths below the home folder. With `terminal`, its standard error
    is a terminal without a user. Raises `UsageError` if it cannot be started.
    """
    try:
        program = str(program_path(argv[0], task.folder, env))
        plain = Launch(
            argv=(program, *argv[1:]), cwd=str(task.folder), env=env, terminal=terminal or task.pty
        )
        begin = start_in_terminal if task.pty else start_server
        running = RunningProgram(await begin(_contained(plain, task, state), limit=LONGEST), pty=task.pty)
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error}") from error
    listening = asyncio.ensure_future(running.listen())
    try:
        yield running
    finally:
        await running.program.stop()
        listening.cancel()


def _contained(plain: Launch, task: Task, state: Sequence[str]) -> Launch:
    if task.level is Level.S0:
        return plain
    home = Path(plain.env.get("HOME") or home_folder())
    places = [home / name for name in state]
    for place in places:
        # A program that has never run makes its folders.
        if not place.suffix:
            place.mkdir(parents=True, exist_ok=True)
    # The sandbox has a home of its own; the program finds its login and sessions in the user's.
    return launch_with_places(
        task.level,
        replace(plain, argv=(_ENV, f"HOME={home}", *plain.argv)),
        read=sorted(program_folders(Path(plain.argv[0]), plain.env)),
        write=[task.folder, *(place for place in places if place.exists())],
        sandbox=task.sandbox,
    )
