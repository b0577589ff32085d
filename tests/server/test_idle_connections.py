"""Connections that send nothing, or hardly anything, do not keep anybody from the server; streams of holders
of the token stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from waits import PATIENCE_S

from kestrel_lab.lab import Lab
from kestrel_lab.server import serve as module
from kestrel_lab.server.controller import Control
from kestrel_lab.server.serve import Address, serve_control
from kestrel_lab.testing import ScriptedModel

pytestmark = pytest.mark.slow

MANY = 400
SLOW_HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
SLOW_BODY = (
    b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: "
    b"application/json\r\nAuthorization: Bearer %s\r\nContent-Length: 90\r\n\r\n{"
)
NEVER_READ = b"GET /panel.js HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" * 40


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """A session with a scripted model."""
    opened = Lab(tmp_path / "home", model=ScriptedModel(["done"]), env={})
    yield opened
    opened.close()


@asynccontextmanager
async def crowd(
    address: Address, said: bytes, number: int = MANY
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """So many connections that each said that much and no more."""
    found = []
    try:
        for _ in range(number):
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
            writer.write(said)
            found.append((reader, writer))
        yield found
    finally:
        for _, writer in found:
            writer.transport.abort()
        # The loop closes a socket a turn later: one that is still open when it ends fails whatever test comes
        # next.
        await asyncio.gather(*(writer.wait_closed() for _, writer in found), return_exceptions=True)


async def listed(address: Address) -> int:
    """What a client with the token gets."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        return (
            await client.get(f"{address.url}v1/runs", headers={"Authorization": f"Bearer {address.token}"})
        ).status_code


def said_by(how: str, address: Address) -> bytes:
    match how:
        case "nothing":
            return b""
        case "half a head":
            return SLOW_HEAD
        case "half a body":
            return SLOW_BODY % (address.port, address.token.encode())
    return NEVER_READ % ((address.port,) * 40)


@pytest.mark.parametrize("how", ["nothing", "half a head", "half a body", "reads nothing"])
def test_a_client_is_served_beside_400_connections_that_do_nothing(session: Lab, how: str) -> None:
    """Whatever they keep back, whoever comes after them gets an answer, again and again, and a stream that
    was there goes on.
    """

    async def body() -> None:
        async with (
            Control(session, always=True) as control,
            serve_control(control) as (address, _),
            httpx.AsyncClient(timeout=PATIENCE_S) as client,
        ):
            token = {"Authorization": f"Bearer {address.token}"}
            async with client.stream("GET", f"{address.url}v1/events", headers=token) as stream:
                lines = stream.aiter_lines()
                assert (await anext(lines)).startswith("retry")
                async with crowd(address, said_by(how, address)):
                    assert [await listed(address) for _ in range(5)] == [200] * 5
                await session.run("go")
                async for line in lines:
                    if line.startswith("data:") and '"COMPLETE"' in line:
                        break

    asyncio.run(body())


def test_mutant_uvicorn_alone_is_silenced(session: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant is the protocol as it comes: the same client gets no answer but that the server is busy."""
    monkeypatch.setattr(module, "_Connection", H11Protocol)

    async def body() -> None:
        async with (
            Control(session, always=True) as control,
            serve_control(control) as (address, _),
            crowd(address, b""),
        ):
            assert await listed(address) == 503

    asyncio.run(body())


@pytest.mark.parametrize("how", ["nothing", "half a head", "half a body"])
def test_a_request_that_does_not_come_is_not_waited_for(session: Lab, how: str) -> None:
    """The server ends each such connection by itself; one that is answered may ask again."""

    async def body() -> None:
        async with (
            Control(session, always=True) as control,
            serve_control(control, request_s=0.3) as (address, _),
        ):
            async with crowd(address, said_by(how, address), 3) as found:
                for reader, _ in found:
                    with pytest.raises((EOFError, ConnectionError)):
                        await reader.readexactly(1)
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
                answers = [await client.get(address.url) for _ in range(20)]
            assert {answer.status_code for answer in answers} == {200}

    asyncio.run(body())
