"""What a server writes: messages, lines that are none, lines without end, its log, and how it is told that it
has ended.
"""

import asyncio
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from anyio import EndOfStream

from kestrel_lab.core.redaction import Redactor
from kestrel_lab.mcp import stdio_transport
from kestrel_lab.mcp.config import ServerConfig, read_server
from kestrel_lab.mcp.managed_server import Server
from kestrel_lab.mcp.stdio_transport import (
    LONGEST_LINE,
    MOST_GARBAGE,
    MOST_HELD,
    MOST_LOGGED,
    ServerLog,
    open_pipe,
    start_server,
)
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.process import RunningProcess

MESSAGE = '{"jsonrpc": "2.0", "id": 7, "result": {}}'


def read_from(folder: Path, script: str) -> tuple[list[Any], list[str], str]:
    """The messages of a program until its output ends, the reason, and its log."""
    ended: list[str] = []
    log = ServerLog(folder / "logs/log")

    async def go() -> list[Any]:
        found = []
        launch = Launch(
            argv=(sys.executable, "-S", "-c", f"import os, sys, time\nsay = sys.stdout.write\n{script}"),
            cwd="/",
            env={},
        )
        async with open_pipe(launch, log=log, ended=ended.append) as (incoming, _):
            while True:
                try:
                    found.append((await incoming.receive()).message)
                except EndOfStream:
                    return found

    messages = asyncio.run(go())
    log.close()
    return messages, ended, log.path.read_text()


def test_streams_are_closed_however_often_the_end_is_cancelled(tmp_path: Path) -> None:
    """A stream that stays open is a warning later, in whatever runs when it is collected."""
    log = ServerLog(tmp_path / "logs/log")
    launch = Launch(argv=(sys.executable, "-S", "-c", "import sys; sys.stdin.read()"), cwd="/", env={})

    async def go() -> list[Any]:
        streams: list[Any] = []
        opened = asyncio.Event()

        async def hold() -> None:
            async with open_pipe(launch, log=log, ended=lambda _why: None) as pair:
                streams.extend(pair)
                opened.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await opened.wait()
        while not holding.done():
            holding.cancel()
            await asyncio.sleep(0)
        return [one.statistics() for one in streams]

    incoming, outgoing = asyncio.run(go())
    log.close()
    assert (incoming.open_receive_streams, incoming.open_send_streams) == (0, 0)
    assert (outgoing.open_receive_streams, outgoing.open_send_streams) == (0, 0)


def long_line(size: int, *, head: str = "", tail: str = "") -> str:
    """A program that writes one line of this many bytes, with an id at its beginning or end."""
    begins, ends = f'{{"jsonrpc": "2.0", {head}"result": {{"x": "', f'"}}{tail}}}'
    return f"say({begins!r} + 'x' * {size - len(begins) - len(ends)} + {ends!r} + '\\n')"


def test_a_message_may_be_so_long_and_no_longer(tmp_path: Path) -> None:
    """A million bytes; a longer one fails its request, and those behind it are read."""
    (message,), _, _ = read_from(tmp_path, long_line(LONGEST_LINE, head='"id": 7, '))
    assert (message.id, len(message.result["x"])) == (
        7,
        LONGEST_LINE - len('{"jsonrpc": "2.0", "id": 7, "result": {"x": ""}}'),
    )
    for size, more, number in (
        (LONGEST_LINE + 1, {"head": '"id": 7, '}, 7),
        (LONGEST_LINE + 1, {"tail": ', "id": "7"'}, "7"),
        (1_500_000, {"head": '"id":"a b", '}, "a b"),
        (1_500_000, {"tail": ', "id" : 7'}, 7),
    ):
        messages, ended, _ = read_from(tmp_path, f"{long_line(size, **more)}; say({MESSAGE!r} + '\\n')")
        assert [one.id for one in messages] == [number, 7]
        assert (
            messages[0].error.message
            == f"the server's answer is too long: {size:,} bytes, at most 1,000,000 are read"
        )
        assert ended == ["it ended with exit code 0"]


@pytest.mark.parametrize("size", [LONGEST_LINE + 1, 2_000_000])
def test_a_long_line_of_nobody_ends_the_connection(size: int, tmp_path: Path) -> None:
    """Nobody knows whose answer it is."""
    messages, ended, _ = read_from(
        tmp_path, f"{long_line(size)}; say({MESSAGE!r} + '\\n'); sys.stdout.flush(); time.sleep(86400)"
    )
    assert (messages, ended) == ([], [f"it sent a message of {size:,} bytes, at most 1,000,000 are read"])


def test_lines_that_are_no_messages_are_logged_up_to_a_bound(tmp_path: Path) -> None:
    """A banner harms nothing, empty lines are nothing; who writes nothing else is no server."""
    banner = MOST_GARBAGE - 1
    messages, ended, log = read_from(
        tmp_path / "a", f"say('\\n  \\n' + 'hello\\n' * {banner} + {MESSAGE!r} + '\\n')"
    )
    assert ([one.id for one in messages], log) == ([7], "[not a message] hello\n" * banner)
    assert ended == ["it ended with exit code 0; it said last: [not a message] hello"]
    messages, ended, _ = read_from(
        tmp_path / "b",
        f"say('hello\\n' * {MOST_GARBAGE} + {MESSAGE!r} + '\\n'); sys.stdout.flush(); time.sleep(86400)",
    )
    assert (messages, ended) == ([], ["it writes what is not a message to its standard output: hello"])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sys.exit(3)", "it ended with exit code 3"),
        ("os.kill(os.getpid(), 9)", "it was ended by signal 9"),
        (
            "sys.stderr.write('no licence\\n'); sys.exit(3)",
            "it ended with exit code 3; it said last: no licence",
        ),
        ("os.close(1); time.sleep(86400)", "it closed its standard output"),
    ],
)
def test_how_a_server_ended_is_told(script: str, reason: str, tmp_path: Path) -> None:
    """Its code or signal, and its last words."""
    assert read_from(tmp_path, script)[1] == [reason]


# Its log


def test_a_log_goes_on_and_is_begun_anew_when_it_is_large(tmp_path: Path) -> None:
    """Two megabytes at most of each start, and before the next one; nobody else can read it."""
    path = tmp_path / "logs/log"

    def write(*pieces: bytes) -> ServerLog:
        log = ServerLog(path)
        for piece in pieces:
            log.write(piece)
        log.close()
        return log

    assert write(b"one\n", b"  \n\n").last == "one"  # lines come in pieces
    assert write("tw\xf6".encode()[:3], "tw\xf6".encode()[3:], b"\xff\n").last == "tw\xf6\ufffd"
    assert path.read_text() == "one\n  \n\ntw\xf6\ufffd\n"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    path.write_bytes(b"x" * MOST_LOGGED)
    write(b"more")
    assert path.stat().st_size == MOST_LOGGED + 4
    write(b"y" * (MOST_LOGGED - 10), b"z" * 20, b"never")
    assert path.stat().st_size == MOST_LOGGED and path.read_bytes().endswith(b"y" + b"z" * 10)


def test_a_secret_is_in_no_log_however_it_comes(tmp_path: Path) -> None:
    """Byte by byte too; what could be the beginning of one is held back, but not without end."""
    secret = "correct-horse-battery"
    log = ServerLog(tmp_path / "logs/log", Redactor(frozenset({secret})))
    for sign in f"the key is {secret} or so":
        log.write(sign.encode())
    log.write(b"\nc" + b"-" * (2 * MOST_HELD))
    assert secret not in log.last
    log.close()
    text = log.path.read_text()
    assert secret not in text and text.startswith("the key is ") and text.count("-") >= 2 * MOST_HELD


# One server and its connections


class Fake:
    """A connection that opens at once."""

    made: list["Fake"]
    sandbox = Sandbox(level=Level.S0)

    def __init__(self, *_: Any) -> None:
        self.alive = False
        self.made.append(self)

    async def open(self) -> None:
        """Be there."""
        self.alive = True

    async def close(self) -> None:
        """Be gone."""
        self.alive = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """The connections that were made."""
    Fake.made = []
    monkeypatch.setattr("kestrel_lab.mcp.managed_server.Connection", Fake)
    return Fake.made


def server(config: ServerConfig, level: Level = Level.S0) -> Server:
    """A server of a lab with this level."""
    return Server(config, {}, Path("/no/log"), lambda _: None, lambda: Sandbox(level=level))


def test_a_connection_is_replaced_once_by_those_who_found_it_wanting(made: list[Fake]) -> None:
    """One that is alive is kept; a dead one is closed and another opened."""

    async def go() -> None:
        one = server(read_server("a", {"command": "x"}))
        with pytest.raises(ConnectionError, match="it is not connected"):
            _ = one.connected
        await asyncio.gather(one.open(), one.open())
        assert (len(made), one.connected) == (1, made[0])
        await asyncio.gather(*(one.open(replacing=one.connected) for _ in range(3)))
        assert (len(made), one.connected, made[0].alive, made[1].alive) == (2, made[1], False, True)
        made[1].alive = False
        await one.open()
        assert (len(made), one.connected) == (3, made[2])
        await one.close()
        assert not made[2].alive

    asyncio.run(go())


def test_a_server_that_is_closed_while_its_seal_is_checked_is_not_started(
    made: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is left behind."""

    async def go() -> None:
        one = server(ServerConfig(name="a", command="x", seal=object()))  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()

        def check(_: object) -> None:
            asyncio.run_coroutine_threadsafe(one.close(), loop).result()

        monkeypatch.setattr("kestrel_lab.mcp.managed_server.check_seal", check)
        with pytest.raises(ConnectionError, match="it was closed before it was started"):
            await one.open()
        assert made == []

    asyncio.run(go())


@pytest.mark.parametrize(
    ("table", "outdated"),
    [({"command": "x"}, True), ({"command": "x", "sandbox": "S1"}, False), ({"url": "https://x"}, False)],
)
def test_a_server_in_another_sandbox_than_the_lab_is_outdated(
    table: dict[str, Any], outdated: bool, made: list[Fake]
) -> None:
    """Unless its sandbox is its own, or there is none."""
    strict, same = server(read_server("a", table), Level.S2), server(read_server("a", table))
    assert not strict.outdated
    for one in (strict, same):
        asyncio.run(one.open())
    assert (strict.outdated, same.outdated) == (outdated, False)


def test_a_full_disk_ends_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is left out."""
    log = ServerLog(tmp_path / "logs/log")

    def full(*_: object) -> int:
        raise OSError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.write(b"lost\n")
    log.write(b"kept\n")
    log.close()
    assert (log.path.read_text(), log.last) == ("kept\n", "kept")


def open_pipes() -> int:
    """How many ends of pipes this process holds."""
    return sum(target.startswith("pipe:") for target in map(_target, Path("/proc/self/fd").iterdir()))


def _target(place: Path) -> str:
    try:
        return str(place.readlink())
    except OSError:  # the folder itself, closed by now
        return ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("moment", ["stopping", "starting", "missing"])
def test_a_loop_that_ends_leaves_no_pipe_open(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its end cancels the task that stops the server, one that starts it, or the program is not
    there.
    """
    launch = Launch(argv=(sys.executable, "-S", "-c", "import time; time.sleep(60)"), cwd="/", env={})

    async def never(*_: object) -> RunningProcess:
        await asyncio.sleep(60)
        raise AssertionError

    async def absent(*_: object) -> RunningProcess:
        raise FileNotFoundError

    async def end_while_it_stops() -> None:
        program = await start_server(launch)
        stopping.append(asyncio.ensure_future(program.stop()))
        await asyncio.sleep(0.05)
        stopping.append(program)

    async def end_while_it_starts() -> None:
        monkeypatch.setattr(stdio_transport, "start_program", never)
        stopping.append(asyncio.ensure_future(start_server(launch)))
        await asyncio.sleep(0.05)

    async def end_when_it_is_missing() -> None:
        monkeypatch.setattr(stdio_transport, "start_program", absent)
        with pytest.raises(FileNotFoundError):
            await start_server(launch)

    stopping: list[object] = []
    before = open_pipes()
    asyncio.run(
        {"stopping": end_while_it_stops, "starting": end_while_it_starts, "missing": end_when_it_is_missing}[
            moment
        ]()
    )
    assert open_pipes() == before
