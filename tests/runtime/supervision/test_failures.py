"""Every error that a run can meet is put into one of four classes; the errors are raised by the libraries
themselves.
"""

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import apsw
import httpx
import pytest
from openai_server import OpenAIServer, Reply
from waits import PATIENCE_S

from kestrel_lab.core.calls import Problem
from kestrel_lab.core.errors import (
    AlreadyDecided,
    ApprovalRequired,
    CheckError,
    DependencyError,
    LimitError,
    ModelError,
    RunFailed,
    StorageFull,
    StoreError,
    ToolError,
    UsageError,
    error_boundary,
)
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.runtime.supervision.failure_kinds import classify_failure, failure_advice
from kestrel_lab.runtime.supervision.health import HealthPolicy
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.testing import conversation
from kestrel_lab.tools.files.tools import read_file
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext

# pydantic's remark about litellm's own types, which the package silences when it loads litellm; each test's
# filters begin anew.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier"
)

NOBODY = "http://127.0.0.1:9/v1"
"""An address where nothing listens."""


def raised(work: Callable[[], Any]) -> BaseException:
    """What `work` raises."""
    try:
        work()
    except (Exception, SystemExit) as error:  # whatever it is  # noqa: BLE001
        return error
    msg = "nothing was raised"
    raise AssertionError(msg)


def wrapped(kind: type[Any], work: Callable[[], Any]) -> BaseException:
    """The same inside an error of ours."""

    def inside() -> None:
        with error_boundary(kind, "something"):
            work()

    return raised(inside)


def fail(error: BaseException) -> Any:
    """Raise `error`."""
    raise error


def ask(reply: Reply | None, *, timeout_s: float = PATIENCE_S) -> BaseException:
    """What a real call raises that a real server answers so; `None` for no server."""

    def call(address: str) -> BaseException:
        model = LiteLLMModel("openai/any", api_base=address, api_key="k", timeout_s=timeout_s)
        request = ModelRequest(messages=conversation(("user", "hi")))
        return raised(lambda: asyncio.run(model(request, lambda _: None)))

    if reply is None:
        return call(NOBODY)
    with OpenAIServer([reply], latency_s=timeout_s * 2 if reply.text == "late" else 0) as server:
        return call(server.api_base)


def raw(status: int) -> BaseException:
    """What httpx raises for that status."""
    with OpenAIServer([Reply(status=status, error="no")]) as server:
        return raised(
            lambda: httpx.post(
                server.api_base + "/chat/completions", json={}, trust_env=False
            ).raise_for_status()
        )


def litellm_raises(status: int) -> BaseException:
    """What litellm itself raises for that status."""
    error = ask(Reply(status=status, error="no"))
    assert error.__cause__ is not None
    return error.__cause__


def get(address: str, **options: Any) -> Any:
    """One request."""
    return httpx.get(address, trust_env=False, **options)


def silent_port() -> BaseException:
    """What httpx raises for a server that accepts and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        return raised(lambda: get(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=0.05))


def garbage(reply: bytes) -> BaseException:
    """What httpx raises for a server that says this and hangs up."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with httpx.Client(trust_env=False) as client:
            import threading

            def serve() -> None:
                taken, _ = listening.accept()
                taken.recv(1_000)
                taken.sendall(reply)
                taken.close()

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                return raised(lambda: client.get(f"http://127.0.0.1:{listening.getsockname()[1]}"))
            finally:
                thread.join()


def child(code: str) -> BaseException:
    """What `check=True` raises for a child process that does this."""
    return raised(
        lambda: subprocess.run(
            [sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL, timeout=PATIENCE_S
        )
    )


def dead_pipe() -> BaseException:
    """What writing to a child raises that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    process.wait()
    assert process.stdin is not None
    found = raised(lambda: os.write(process.stdin.fileno(), b"x" * 100_000))  # type: ignore[union-attr]
    process.stdin.close()
    return found


async def closed_stream() -> None:
    """What the streams raise that MCP clients are made of."""
    send, receive = anyio.create_memory_object_stream[int](1)
    await send.aclose()
    async with receive:
        await receive.receive()


async def half_a_line() -> None:
    """What a child's output raises that ends in the middle."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print('x', end='')", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await process.stdout.readuntil(b"\n")
    finally:
        await process.wait()
        await asyncio.sleep(0)


def mcp_error(code: int) -> BaseException:
    """An answer of an MCP server that is an error."""
    from mcp.shared.exceptions import MCPError

    return MCPError(code, "no")


def locked(folder: Path) -> BaseException:
    """What SQLite raises when somebody else writes."""
    one, other = apsw.Connection(str(folder / "x.db")), apsw.Connection(str(folder / "x.db"))
    try:
        one.execute("begin immediate")
        return raised(lambda: other.execute("begin immediate"))
    finally:
        one.close()
        other.close()


def open_breaker() -> BaseException:
    """What a call raises while the breaker is open."""
    supervisor = RuntimeSupervisor(HealthPolicy(failures=1))
    endpoint = supervisor.watch("m", "model")
    endpoint.failure("down")
    return raised(endpoint.admit)


def missing_file(folder: Path) -> BaseException:
    """What our own tool raises for a file that is not there."""
    return raised(
        lambda: asyncio.run(read_file.run({"path": "none"}, ToolContext(workspace=Workspace(folder))))
    )


def group(*errors: Exception) -> BaseException:
    """Errors raised together."""
    return ExceptionGroup("several", errors)


def table(folder: Path) -> Iterator[tuple[str, str, BaseException | Problem]]:
    """Class, name and error."""
    for limit in ("cycles", "cost_usd", "seconds", "tokens"):
        yield "budget", f"limit {limit}", LimitError(limit, "reached")
    yield "budget", "problem limit", Problem(kind="limit", message="too many")

    for status in (408, 409, 429, 500, 502, 503, 504):
        yield "transient", f"model {status}", ask(Reply(status=status, error="no"))
    for status in (400, 401, 403, 404, 413, 422):
        yield "logic", f"model {status}", ask(Reply(status=status, error="no"))
    for status in (429, 500, 503):
        yield "transient", f"litellm {status}", litellm_raises(status)
    for status in (400, 401, 404):
        yield "logic", f"litellm {status}", litellm_raises(status)
    for status in (408, 429, 503):
        yield "transient", f"httpx {status}", raw(status)
    for status in (400, 403, 404):
        yield "logic", f"httpx {status}", raw(status)
    yield "dependency", "model refused", ask(None)
    import litellm  # loaded by now, the way the package loads it

    yield "budget", "litellm budget", litellm.BudgetExceededError(current_cost=2, max_budget=1)
    yield "transient", "model late", ask(Reply(text="late"), timeout_s=0.3)
    yield "transient", "model dropped", ask(Reply(text="a long answer", drop_after=2))

    yield "dependency", "httpx refused", raised(lambda: get(NOBODY))
    yield "transient", "httpx read timeout", silent_port()
    yield "transient", "httpx dropped", garbage(b"")
    yield "transient", "httpx garbage", garbage(b"\x00nonsense\r\n\r\n")
    yield "logic", "httpx bad address", raised(lambda: get("nonsense://x"))
    yield "logic", "json", raised(lambda: __import__("json").loads("{"))

    yield "dependency", "socket refused", raised(lambda: socket.create_connection(("127.0.0.1", 9)))
    yield "dependency", "no such host", socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    yield (
        "transient",
        "name server busy",
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    )
    yield "dependency", "no route", OSError(errno.EHOSTUNREACH, "No route to host")
    yield "transient", "reset", ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    yield "transient", "timed out", TimeoutError()
    yield (
        "transient",
        "asyncio timeout",
        raised(lambda: asyncio.run(asyncio.wait_for(asyncio.sleep(5), 0.01))),
    )

    yield "dependency", "dead pipe", dead_pipe()
    yield "dependency", "no process", raised(lambda: os.kill(2**22 + 1, 0))
    yield "dependency", "killed", child("import os; os.kill(os.getpid(), 9)")
    yield "logic", "exit 3", child("import sys; sys.exit(3)")
    yield (
        "transient",
        "child late",
        raised(lambda: subprocess.run([sys.executable, "-c", "import time; time.sleep(9)"], timeout=0.05)),
    )
    yield "logic", "no program", raised(lambda: subprocess.run(["no-such-program-here"]))
    yield "dependency", "closed stream", raised(lambda: asyncio.run(closed_stream()))
    yield "dependency", "half a line", raised(lambda: asyncio.run(half_a_line()))
    if find_spec("mcp") is not None:
        yield "dependency", "mcp closed", mcp_error(-32000)
        yield "transient", "mcp timeout", mcp_error(-32001)
        yield "logic", "mcp bad arguments", mcp_error(-32602)

    yield "transient", "database locked", locked(folder)
    yield "dependency", "breaker open", open_breaker()
    yield "dependency", "gate", DependencyError("notes", "failed", "mcp notes is failed")
    yield "logic", "disk full", StorageFull("no room")
    yield "logic", "store", StoreError("no")
    yield "logic", "decided", AlreadyDecided("twice")
    yield "logic", "usage", UsageError("no such model")
    yield "logic", "approval", ApprovalRequired("r", "t", {})
    yield "logic", "run failed", RunFailed("no")
    yield "logic", "check", wrapped(CheckError, lambda: fail(ValueError("x")))
    yield "logic", "model bug", wrapped(ModelError, lambda: fail(KeyError("x")))
    yield "dependency", "own model refused", wrapped(ModelError, lambda: get(NOBODY))
    yield "dependency", "tool refused", wrapped(ToolError, lambda: get(NOBODY))
    yield "transient", "tool late", wrapped(ToolError, lambda: fail(TimeoutError("late")))
    yield "logic", "tool bug", wrapped(ToolError, lambda: fail(ZeroDivisionError()))
    yield "logic", "missing file", missing_file(folder)
    yield "logic", "exit", raised(lambda: sys.exit(1))
    yield "logic", "not allowed", raised(lambda: (folder / "x.db").joinpath("y").read_text())

    yield "transient", "problem timeout", Problem(kind="timeout", message="stopped", transient=True)
    yield "transient", "problem passing", Problem(kind="failed", message="busy", transient=True)
    yield "logic", "problem failed", Problem(kind="failed", message="no")
    yield "logic", "problem denied", Problem(kind="denied", message="no")
    yield "dependency", "group", group(TimeoutError(), ConnectionRefusedError())
    yield "budget", "group with limit", group(TimeoutError(), LimitError("tokens", "reached"))
    yield "logic", "group with a bug", group(LimitError("tokens", "reached"), ValueError("x"))


def test_every_error_has_its_class(tmp_path: Path) -> None:
    """More than 60 real errors, each in the class that decides whether it is tried again, each with
    advice.
    """
    rows = list(table(tmp_path))
    assert len(rows) >= 60
    assert len({name for _, name, _ in rows}) == len(rows)
    found = {name: classify_failure(error) for _, name, error in rows}
    assert found == {name: wanted for wanted, name, _ in rows}
    assert {wanted for wanted, _, _ in rows} == {"transient", "dependency", "logic", "budget"}
    for _, name, error in rows:
        said = failure_advice(error)
        assert said.endswith("."), name
        assert "\n" not in said, name


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LimitError("cycles", "reached"), "Allow more model turns (cycles), or make the goal smaller."),
        (LimitError("other", "reached"), "Raise the limit, or make the goal smaller."),
        (
            DependencyError("notes", "failed", "no"),
            "Bring notes back, then resume the run; kestrel doctor shows what is not in order.",
        ),
        (
            ModelError("busy", transient=True, retry_after_s=30.0),
            "Wait 30 s as the provider asks, then resume the run.",
        ),
        (
            ModelError("busy", transient=True),
            "It may pass by itself: run it again in a moment, or resume the run.",
        ),
        (
            ModelError("401", caller=True),
            "Change what the message names (the key, the name of the model, the conversation), or "
            "choose another model.",
        ),
        (ValueError("x"), "Trying again gives the same: change what the message names."),
    ],
)
def test_advice_says_what_to_do(error: BaseException, said: str) -> None:
    """Each class has its sentence, and what is known of the error is in it."""
    assert failure_advice(error) == said


def test_an_error_of_somebody_elses_is_not_its_context() -> None:
    """A bug in the handling of a refused connection is a bug; only errors of ours stand for their cause."""

    def buggy() -> None:
        try:
            get(NOBODY)
        except httpx.ConnectError:
            {}["x"]

    assert classify_failure(raised(buggy)) == "logic"
