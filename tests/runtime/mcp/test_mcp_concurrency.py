"""Claims about MCP servers that several threads and event loops use, add, replace and close at once."""

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from test_mcp import asking, hostile, make  # `make` is a fixture  # noqa: F401
from waits import PATIENCE_S

from kestrel_lab.lab import Lab
from kestrel_lab.mcp.config import read_server
from kestrel_lab.mcp.connection import Connection
from kestrel_lab.runtime.mcp.servers import McpServers
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.tools.sandbox.levels import Sandbox

Make = Callable[..., Lab]


def test_closing_while_a_server_is_added_ends_all_of_them(make: Make) -> None:  # noqa: F811
    """The dictionary of servers may grow while `aclose` waits for one of them; both servers that were started
    have ended.
    """
    session = make(a=hostile("stubborn=/dev/null", sandbox="S0"), b=hostile())
    session.mcp.learn()
    started = [server.connection for server in session.mcp.servers.values()]

    async def go() -> None:
        closing = asyncio.ensure_future(session.mcp.aclose())
        await asyncio.sleep(0)
        await session.mcp.adopt(read_server("c", hostile()))
        await closing

    asyncio.run(go())
    assert set(session.mcp.names) == {"a", "b", "c"}
    assert not any(connection is None or connection.alive for connection in started)


def test_servers_are_listed_while_others_are_added_and_removed(tmp_path: Path) -> None:
    """A thread that lists them never meets a dictionary that changes, nor a name that is gone."""
    servers = McpServers({}, RuntimeSupervisor(), env={"XDG_CONFIG_HOME": str(tmp_path)}, logs=tmp_path)
    configs = [read_server(f"s{number}", {"command": "true"}) for number in range(40)]
    problems: list[BaseException] = []
    done = threading.Event()

    def list_them() -> None:
        while not done.is_set():
            try:
                servers.tools()
                servers.unstarted(None)
                servers.table()
            except BaseException as error:  # told to the test  # noqa: BLE001
                problems.append(error)
                return

    async def change() -> None:
        for _ in range(20):
            for config in configs:
                await servers.adopt(config)
            for config in configs:
                await servers.forget(config.name)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        listing = threading.Thread(target=list_them)
        listing.start()
        asyncio.run(change())
        done.set()
        listing.join()
    finally:
        sys.setswitchinterval(before)
    assert problems == []


def test_two_calls_that_find_an_outdated_server_restart_it_once(make: Make) -> None:  # noqa: F811
    """The second does not close the connection that the first has just opened: both calls are answered over
    the same one.
    """
    level = ["S0"]
    session = make(h=hostile())
    session.mcp._sandbox = lambda: Sandbox.parse(level[0])
    session.mcp.servers["h"].sandbox = session.mcp._sandbox
    session.mcp.learn("h")
    opened: list[Connection] = []
    whole = Connection.open

    async def counted(self: Connection) -> None:
        if asyncio.get_running_loop() is ours:  # servers of other tests may be restarted meanwhile
            opened.append(self)
        await whole(self)

    async def go() -> list[Any]:
        return await asyncio.gather(*(asking(session, "h:echo", text=text) for text in ("one", "two")))

    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    ours = session.mcp._loop.submit(running()).result()
    level[0] = "S1"
    Connection.open = counted  # type: ignore[method-assign]
    try:
        assert asyncio.run(go()) == ["one", "two"]
    finally:
        Connection.open = whole  # type: ignore[method-assign]
    assert len(opened) == 1 and opened[0].alive


def test_a_session_that_is_closed_leaves_no_thread(make: Make) -> None:  # noqa: F811
    """The loop of its connections belongs to it, is started with the first server and ends with `close`."""

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "kestrel-mcp"]

    before = threads()
    session = make(h=hostile())
    assert set(threads()) <= set(before)  # those of tests before this one may end meanwhile
    session.mcp.learn("h")
    (mine,) = set(threads()) - set(before)
    session.close()
    mine.join(PATIENCE_S)
    assert not mine.is_alive()
