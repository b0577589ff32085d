"""A store on a real Redis server that the tests start, put full of garbage and kill."""

import asyncio
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.redaction import shown_url
from kestrel_lab.middleware.cache import MAX_ROW, CacheStore, CacheStoreError
from kestrel_lab.middleware.redis_cache import PREFIX, RedisStore

redis = pytest.importorskip("redis")


@dataclass
class Server:
    """A Redis server on a socket of its own."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"unix://{self.folder / 'redis.sock'}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed")
        options = [
            "--port",
            "0",
            "--unixsocket",
            str(self.folder / "redis.sock"),
            "--save",
            "",
            "--dir",
            str(self.folder),
        ]
        self.process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.client() as client:
                    assert client.ping()
            except redis.ConnectionError:
                assert time.monotonic() < until
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def client(self) -> Any:
        """Another user of it."""
        return redis.Redis.from_url(self.url)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of this module."""
    made = Server(tmp_path_factory.mktemp("redis"))
    made.start()
    yield made
    made.stop()


def opened(url: str) -> RedisStore:
    """A store that a slow machine does not give up."""
    return RedisStore(url, timeout_s=PATIENCE_S)


def get(store: CacheStore, key: str) -> str | None:
    """Ask the store."""
    return asyncio.run(store.get(key))


def test_text_is_kept_for_its_time(server: Server) -> None:
    """What is set is there for everybody, as plain text under a key of ours, and Redis itself lets it go."""
    store, other = opened(server.url), opened(server.url)
    assert get(store, "k") is None
    asyncio.run(store.set("k", '{"value":1}', None))
    asyncio.run(store.set("t", '{"value":2}', 60.0))
    assert (get(other, "k"), get(other, "t")) == ('{"value":1}', '{"value":2}')
    with server.client() as client:
        assert client.get(PREFIX + "k") == b'{"value":1}'
        assert 29 * 86_400 < client.ttl(PREFIX + "k") <= 30 * 86_400
        assert 0 < client.ttl(PREFIX + "t") <= 60
    store.close()
    other.close()


@pytest.mark.parametrize("garbage", ["bytes", "surrogate", "huge", "list"])
def test_garbage_is_a_miss(garbage: str, server: Server) -> None:
    """What is not text of ours, too large for it or of another type is a miss with a warning, and can be
    written over.
    """
    store, key = opened(server.url), PREFIX + garbage
    with server.client() as client:
        if garbage == "list":
            client.lpush(key, "a")
        else:
            client.set(
                key, {"bytes": b"\x80\x04cposix", "surrogate": "é", "huge": b"x" * (MAX_ROW + 1)}[garbage]
            )
    with pytest.warns(UserWarning, match="was not written by it"):
        assert get(store, garbage) is None
    asyncio.run(store.set(garbage, "new", None))
    assert get(store, garbage) == "new"
    store.close()


def test_a_server_that_is_gone_is_an_error_and_comes_back(tmp_path: Path) -> None:
    """While it is down every call is a `CacheStoreError` that names it; a connection that it closed is made
    anew when it is back.
    """
    server = Server(tmp_path)
    server.start()
    store = opened(server.url)
    asyncio.run(store.set("k", "v", None))
    server.stop()
    with pytest.raises(CacheStoreError, match="unix://"):
        get(store, "k")
    with pytest.raises(CacheStoreError, match="unix://"):
        asyncio.run(store.set("k", "v", None))
    server.start()
    assert get(store, "k") is None
    store.close()
    server.stop()


def test_a_server_that_says_nothing_is_given_up() -> None:
    """One that takes connections and never answers is waited for as long as the store says, and holds up no
    event loop.
    """

    async def ticks(store: RedisStore) -> int:
        asked, count = asyncio.create_task(store.get("k")), 0
        while not asked.done():
            count += 1
            await asyncio.sleep(0.005)
        with pytest.raises(CacheStoreError) as failed:
            await asked
        assert "secret" not in str(failed.value)
        return count

    counts = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for timeout_s in (
            0.1,
            1.0,
            10.0,
        ):  # a loop that has no processor for a while does not turn over, whoever holds it up
            store = RedisStore(
                f"redis://user:secret@127.0.0.1:{silent.getsockname()[1]}/0", timeout_s=timeout_s
            )
            counts.append(asyncio.run(asyncio.wait_for(ticks(store), PATIENCE_S)))
            store.close()
            if counts[-1] > 3:
                break
    assert counts[-1] > 3


def test_one_that_talks_nonsense_is_an_error() -> None:
    """A server of something else than Redis is a `CacheStoreError`, not a crash."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer_http() -> None:
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1_000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer_http, daemon=True).start()
        store = opened(f"redis://127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(CacheStoreError):
            get(store, "k")
    store.close()


def test_an_address_that_cannot_be_one_is_refused() -> None:
    """Another scheme and nonsense are usage errors; no address shows its password."""
    with pytest.raises(UsageError, match="must begin with one of redis://"):
        RedisStore("http://me:secret@host")
    with pytest.raises(UsageError, match="cannot be read"):
        RedisStore("redis://host:port/0")
    assert shown_url("redis://me:secret@host:1/0") == "redis://…@host:1/0"
    assert shown_url("redis://host:1/0") == "redis://host:1/0"
