"""A store on a real PostgreSQL server that the tests start, put full of garbage and kill."""

import asyncio
import multiprocessing
import socket
import threading
from collections.abc import Iterator

import pytest
from postgres_server import PASSWORD, PostgresServer
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.redaction import shown_url, url_secrets
from kestrel_lab.middleware.cache import MAX_ROW, CacheStore, CacheStoreError
from kestrel_lab.middleware.postgres_cache import TABLE, PostgresStore

pytest.importorskip("asyncpg")


def get(store: CacheStore, key: str) -> str | None:
    """Ask the store, each time on another loop."""
    return asyncio.run(store.get(key))


def put(store: CacheStore, key: str, value: str, ttl_s: float | None = None) -> None:
    """Store on the store."""
    asyncio.run(store.set(key, value, ttl_s))


def opened(url: str) -> PostgresStore:
    """A store that a slow machine does not give up."""
    return PostgresStore(url, timeout_s=PATIENCE_S, connect_s=PATIENCE_S)


@pytest.fixture
def store(postgres: PostgresServer) -> Iterator[PostgresStore]:
    """A store in an empty database."""
    made = opened(postgres.database("cache"))
    yield made
    made.close()


def test_text_is_kept_for_its_time(postgres: PostgresServer, store: PostgresStore) -> None:
    """What is set is there for everybody, as plain text; what has expired is a miss; nothing stays longer
    than a month.
    """
    other = opened(postgres.url("cache"))
    assert get(store, "k") is None
    put(store, "k", '{"value":1}')
    put(store, "t", '{"value":2}', 60.0)
    assert (get(other, "k"), get(other, "t")) == ('{"value":1}', '{"value":2}')
    rows = postgres.sql(
        f"SELECT key, value, extract(epoch FROM expires - now())::float FROM {TABLE} ORDER BY key",
        database="cache",
    )
    assert [row[:2] for row in rows] == [("k", '{"value":1}'), ("t", '{"value":2}')]
    assert 29 * 86_400 < rows[0][2] <= 30 * 86_400
    assert 0 < rows[1][2] <= 60
    postgres.sql(
        f"UPDATE {TABLE} SET expires = now() - interval '1 second' WHERE key = 't'", database="cache"
    )
    assert (get(other, "k"), get(other, "t")) == ('{"value":1}', None)
    put(other, "t", '{"value":3}', 60.0)
    assert get(store, "t") == '{"value":3}'
    other.close()


def test_what_has_expired_is_removed(postgres: PostgresServer, store: PostgresStore) -> None:
    """Each answer that is stored makes room of up to ten that have expired: the table does not grow beyond
    what is in use.
    """
    put(store, "kept", "1")
    postgres.sql(
        f"INSERT INTO {TABLE} SELECT 'old' || n, '1', now() - interval '1 minute' FROM "
        "generate_series(1, 25) AS n",
        "SELECT 1",
        database="cache",
    )
    counts = []
    for number in range(3):
        put(store, f"k{number}", "1")
        counts.append(
            postgres.sql(f"SELECT count(*) FROM {TABLE} WHERE expires < now()", database="cache")[0][0]
        )
    assert counts == [15, 5, 0]
    assert get(store, "kept") == "1"


@pytest.mark.parametrize("garbage", ["no ASCII", "huge"])
def test_garbage_is_a_miss(garbage: str, postgres: PostgresServer, store: PostgresStore) -> None:
    """What is not text of ours or too large for it is a miss with a warning, and can be written over."""
    put(store, "k", "1")
    value = {"no ASCII": "'\u00e9\x1b[31m'", "huge": f"repeat('x', {MAX_ROW + 1})"}[garbage]
    postgres.sql(f"UPDATE {TABLE} SET value = {value}", database="cache")
    with pytest.warns(UserWarning, match="was not written by it"):
        assert get(store, "k") is None
    put(store, "k", "new")
    assert get(store, "k") == "new"


def test_a_table_of_somebody_else_is_an_error(postgres: PostgresServer) -> None:
    """A table of the same name with other columns is a `CacheStoreError`, and stays as it is."""
    url = postgres.database("foreign")
    postgres.sql(
        "CREATE SCHEMA kestrel",
        f"CREATE TABLE {TABLE}(key integer)",
        f"INSERT INTO {TABLE} VALUES (1)",
        "SELECT 1",
        database="foreign",
    )
    store = opened(url)
    with pytest.raises(CacheStoreError, match="foreign"):
        get(store, "k")
    with pytest.raises(CacheStoreError, match="foreign"):
        put(store, "k", "1")
    assert postgres.sql(f"SELECT * FROM {TABLE}", database="foreign") == [(1,)]
    store.close()


def _fill(url: str, number: int) -> None:
    store = opened(url)
    for place in range(40):
        put(store, f"k{place % 5}", f'{{"value":{number}}}', 0.001 if place % 3 else None)
    put(store, "last", f'{{"value":{number}}}')
    assert get(store, "last") is not None
    store.close()


def test_processes_that_fill_the_same_keys_harm_nothing(postgres: PostgresServer) -> None:
    """Four processes make the table at the same time and write the same few keys, while what expires is
    removed: no error, no half row.
    """
    url = postgres.database("crowd")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(url, number)) for number in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(PATIENCE_S)
    assert [one.exitcode for one in workers] == [0] * 4
    assert {value for (value,) in postgres.sql(f"SELECT value FROM {TABLE}", database="crowd")} <= {
        f'{{"value":{n}}}' for n in range(4)
    }


def test_many_calls_at_once_share_few_connections(postgres: PostgresServer, store: PostgresStore) -> None:
    """A hundred calls at once, from one loop, take no more than eight connections."""

    async def all_at_once() -> list[str | None]:
        await asyncio.gather(*(store.set(f"k{number}", str(number), None) for number in range(100)))
        return list(await asyncio.gather(*(store.get(f"k{number}") for number in range(100))))

    assert asyncio.run(all_at_once()) == [str(number) for number in range(100)]
    held = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = 'cache' AND application_name = 'kestrel_lab'"
    )
    assert 1 <= postgres.sql(held)[0][0] <= 8


def test_a_server_that_is_gone_is_an_error_and_comes_back() -> None:
    """While it is down every call is a `CacheStoreError` that names it without its password; connections are
    made anew when it is back.
    """
    server = PostgresServer()
    try:
        server.start()
        store = opened(server.by_socket)
        put(store, "k", "v")
        server.stop()
        for call in (lambda: get(store, "k"), lambda: put(store, "k", "v")):
            with pytest.raises(CacheStoreError, match="postgresql://…@/postgres") as failed:
                call()
            assert PASSWORD not in str(failed.value)
        server.start()
        put(store, "k", "w")
        assert get(store, "k") == "w"
        store.close()
    finally:
        server.close()


def test_a_wrong_password_is_an_error_that_does_not_tell_it(postgres: PostgresServer) -> None:
    """The server's refusal is a `CacheStoreError` with the user and without the password."""
    store = opened(postgres.url(password="wrong-secret"))
    with pytest.raises(CacheStoreError, match='authentication failed for user "kestrel"') as failed:
        get(store, "k")
    assert "wrong-secret" not in str(failed.value)
    store.close()


def test_a_server_that_says_nothing_is_given_up() -> None:
    """One that takes connections and never answers is waited for as long as the store says."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = PostgresStore(
            f"postgresql://user:secret@127.0.0.1:{silent.getsockname()[1]}/db", connect_s=0.1
        )
        with pytest.raises(CacheStoreError, match="did not answer in time") as failed:
            asyncio.run(asyncio.wait_for(store.get("k"), PATIENCE_S))
        assert "secret" not in str(failed.value)
        store.close()


def test_one_that_talks_nonsense_is_an_error() -> None:
    """A server of something else than PostgreSQL is a `CacheStoreError`, not a crash."""
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
        store = opened(f"postgresql://127.0.0.1:{other.getsockname()[1]}/db")
        with pytest.raises(CacheStoreError, match=r"127\.0\.0\.1"):
            get(store, "k")
        store.close()


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:se%63ret@host:port/db",
        "postgresql://me:secret@[::1/db",
        "postgresql://h/db?sslmode=secret",
    ],
)
def test_an_address_that_cannot_be_read_is_an_error(address: str) -> None:
    """It is named without its password, in whatever error the client gives."""
    store = opened(address)
    with pytest.raises(CacheStoreError) as failed:
        get(store, "k")
    assert "me:" not in str(failed.value)
    store.close()


def test_an_address_that_cannot_be_one_is_refused() -> None:
    """Another scheme is a usage error; no address shows its password, wherever that stands in it."""
    with pytest.raises(UsageError, match="must begin with postgresql://"):
        PostgresStore("mysql://me:secret@host")
    assert (
        shown_url("postgresql://me:secret@host:1/db?sslmode=require")
        == "postgresql://…@host:1/db?sslmode=require"
    )
    assert (
        shown_url("postgresql:///db?host=/run/pg&user=me&password=secret&sslpassword=x")
        == "postgresql:///db?host=/run/pg"
    )
    assert shown_url("postgresql://me:secret@[::1/db") == "postgresql://…"
    assert {"s%2Fecret", "s/ecret", "hidden"} <= url_secrets(
        "postgresql://me:s%2Fecret@host/db?password=hidden"
    )


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(__import__("sys").modules, "asyncpg", None)
    with pytest.raises(UsageError, match=r"pip install 'kestrel-lab\[postgres\]'"):
        PostgresStore("postgresql://host/db")
