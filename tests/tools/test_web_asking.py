"""Asking the web: each attack on an HTTP client, against a real server, and mutants that let it succeed."""

import asyncio
import gzip
import subprocess
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waits import FOREVER_S
from webserver import Send, WebServer, answer, serving

from kestrel_lab.tools.web.fetch import Answer, Reach, Resolve, request


def resolving(*answers: list[str]) -> Resolve:
    """A resolver that gives these answers one after the other, the last one for ever."""
    left = list(answers)

    async def resolve(_host: str, _port: int) -> list[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def get(reach: Reach, url: str, **options: Any) -> Answer:
    """One GET."""
    return asyncio.run(request(reach, "GET", url, **options))


def here(server: WebServer, **options: Any) -> Reach:
    """Reaches the test's server under its numeric address, and any host of the public internet at its
    port.
    """
    return Reach(
        **{
            "also": frozenset({("127.0.0.1", server.port)}),
            "ports": frozenset({server.port}),
            "env": {},
            **options,
        }
    )


class ChecksThenLooksUpAgain(Reach):
    """A mutant: what is checked is not what is connected to."""

    async def addresses(self, host: str, port: int) -> list[str]:
        await super().addresses(host, port)
        return await self.resolve(host, port)


class ChecksTheFirstRequestOnly(Reach):
    """A mutant: redirects are followed wherever they lead."""

    async def addresses(self, host: str, port: int) -> list[str]:
        return (
            await super().addresses(host, port)
            if (host, port) in self.also
            else await self.resolve(host, port)
        )


def test_a_page_is_fetched_as_it_is() -> None:
    """Status, headers, body; the request names host and program, takes no cookie and closes the
    connection.
    """
    with serving({"/a": answer("grüezi", kind="text/plain; charset=utf-8", Set_Cookie="a=b")}) as server:
        got = get(here(server), server.url("/a?q=ä b".replace(" ", "+")))
        assert (got.status, got.said, got.kind, got.body, got.left_out) == (
            200,
            "200 OK",
            "text/plain",
            "grüezi".encode(),
            "",
        )
        sent = server.asked[0]
        assert (sent.method, sent.target) == ("GET", "/a?q=%C3%A4+b")
        assert sent.headers.keys() == {"host", "user-agent", "accept", "accept-encoding", "connection"}
        assert sent.headers["host"] == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "0.0.0.0",
        "localhost",
        "evil.test",
        "127.1",
    ],
)
def test_this_machine_is_not_reached(host: str) -> None:
    """By number, by name, by any disguise: refused before a connection is made."""
    with serving({"/": answer("secret")}) as server:
        reach = here(server, also=frozenset(), resolve=resolving(["127.0.0.1"]))
        with pytest.raises((PermissionError, ValueError), match=r"was not asked: it is|only to some"):
            get(reach, f"http://{host}:{server.port}/")
        assert server.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://168.63.129.16/",
    ],
)
def test_metadata_of_clouds_is_not_reached(url: str) -> None:
    """The usual target; nothing is connected to, which the guard of all tests would report otherwise."""
    with pytest.raises(PermissionError, match="not a public address"):
        get(Reach(env={}), url)


def test_only_the_ports_of_the_web_are_reached() -> None:
    """No mail server, no database, whoever's it is."""
    with pytest.raises(PermissionError, match="only ports 80 and 443"):
        get(Reach(env={}, resolve=resolving(["93.184.216.34"])), "http://example.org:25/")


def rebound(reach_type: type[Reach]) -> int:
    """How many connections a name gets that is public when it is checked and this machine when it is used."""
    with serving({"/": answer("secret")}) as server:
        reach = reach_type(
            env={},
            ports=frozenset({server.port}),
            resolve=resolving(["93.184.216.34"], ["127.0.0.1"]),
            seconds=5,
        )
        with suppress(BaseException):  # the guard of all tests stops the attempt to reach the checked address
            get(reach, f"http://evil.test:{server.port}/")
        return server.connections


def test_a_name_that_changes_its_address_is_not_followed() -> None:
    """DNS rebinding: the name is looked up once and that very address is connected to; a mutant is led
    astray.
    """
    assert rebound(Reach) == 0
    assert rebound(ChecksThenLooksUpAgain) == 1


def test_the_checked_address_is_asked_under_the_name(tmp_path: Path) -> None:
    """TLS: host header and certificate are the name's, though the connection goes to a number; other names
    are refused.
    """
    pem, key = tmp_path / "both.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=good.test", "-addext", "subjectAltName=DNS:good.test"]
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run([*made, *subject, "-keyout", str(key), "-out", str(pem)], check=True, capture_output=True)
    authority = tmp_path / "ca.pem"
    authority.write_bytes(pem.read_bytes())
    pem.write_bytes(pem.read_bytes() + key.read_bytes())
    with serving({"/": answer("hello")}, certificate=pem) as server:
        also = frozenset({("good.test", server.port), ("other.test", server.port)})
        reach = Reach(also=also, env={"SSL_CERT_FILE": str(authority)}, resolve=resolving(["127.0.0.1"]))
        got = get(reach, f"https://good.test:{server.port}/")
        assert (got.body, server.asked[0].headers["host"]) == (b"hello", f"good.test:{server.port}")
        with pytest.raises(ConnectionError, match="no proper answer"):
            get(reach, f"https://other.test:{server.port}/")
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            get(
                Reach(also=also, env={}, resolve=resolving(["127.0.0.1"])),
                f"https://good.test:{server.port}/",
            )
        assert len(server.asked) == 1


def redirected(reach_type: type[Reach], to: str, server: WebServer) -> None:
    """Follow a redirect from the server that may be reached to `to`."""
    server.routes = {"/": answer(status="302 Found", Location=to)}
    options: dict[str, Any] = {
        "also": frozenset({("127.0.0.1", server.port)}),
        "resolve": resolving(["127.0.0.1"]),
        "seconds": 5,
    }
    get(reach_type(env={}, ports=frozenset({80, server.port}), **options), server.url())


@pytest.mark.parametrize(
    "to",
    [
        *(
            "http://169.254.169.254/latest/",
            "http://evil.test:PORT/in",
            "//evil.test:PORT/in",
            "http://localhost:PORT/in",
        ),
        *(
            "file:///etc/passwd",
            "http://127.1:PORT/in",
            "http://u:p@127.0.0.1:PORT/in",
            "http://127.0.0.1:1/",
            "ftp://evil.test/",
        ),
    ],
)
def test_a_redirect_is_checked_like_the_first_request(to: str) -> None:
    """Wherever it leads: refused, and nothing there is asked."""
    with serving({}) as server:
        with pytest.raises((PermissionError, ValueError)):
            redirected(Reach, to.replace("PORT", str(server.port)), server)
        assert [sent.target for sent in server.asked] == ["/"]


def test_a_mutant_that_checks_only_the_first_request_is_led_inside() -> None:
    """So the test above can fail."""
    with serving({}) as server:
        with pytest.raises(ValueError, match="redirects more than 5"):
            redirected(ChecksTheFirstRequestOnly, f"http://evil.test:{server.port}/", server)
        assert len(server.asked) == 6


def test_redirects_end_and_keys_stay_with_their_host() -> None:
    """Five at most; headers that were given go to the first host only."""
    with serving({"/": answer(status="301 Moved", Location="/")}) as server:
        with pytest.raises(ValueError, match="redirects more than 5 times"):
            get(here(server), server.url())
        assert len(server.asked) == 6
        with serving({"/x": answer("there")}) as other:
            server.routes = {
                "/a": answer(status="307 T", Location="/b"),
                "/b": answer(status="302 F", Location=other.url("/x")),
            }
            both = here(server, also=frozenset({("127.0.0.1", server.port), ("127.0.0.1", other.port)}))
            assert get(both, server.url("/a"), headers={"Authorization": "Bearer k"}).body == b"there"
            assert ["authorization" in sent.headers for sent in [*server.asked[-2:], *other.asked]] == [
                True,
                True,
                False,
            ]


def slowly(send: Send) -> None:
    """Drip a byte now and then, never silent for long."""
    send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    for _ in range(600):
        send(b"x")
        time.sleep(0.05)


def endless(send: Send) -> None:
    """A body without an end."""
    send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    for _ in range(20_000):
        send(b"x" * 65_536)


def header_flood(send: Send) -> None:
    """Headers without an end."""
    send(b"HTTP/1.1 200 OK\r\n")
    for _ in range(2_000):
        send(b"X-A: " + b"a" * 1_000 + b"\r\n")


def silent(_send: Send) -> None:
    """No answer for as long as somebody waits."""
    time.sleep(FOREVER_S)


@pytest.mark.parametrize("route", [slowly, silent])
def test_an_answer_has_its_time(route: Callable[[Send], None]) -> None:
    """A total deadline, not one per read: a slow drip does not keep it open, and an effect that may have been
    is told.
    """
    with serving({"/": route}) as server:
        for seconds in (0.4, 4.0, 40.0):  # a busy machine may not have sent it within the first
            with pytest.raises(TimeoutError, match=rf"within {seconds:g} seconds") as late:
                asyncio.run(request(here(server, seconds=seconds), "POST", server.url(), body=b"x"))
            if "took effect" in str(late.value):
                break
    assert "whether the POST took effect is not known" in str(late.value)


def left_out(route: bytes | Callable[[Send], None], **options: Any) -> str:
    """Why the body of an answer was not read."""
    with serving({"/": route}) as server:
        got = get(here(server, **options), server.url())
        assert (got.status, got.body) == (200, b"")
        return got.left_out


def test_an_answer_has_its_size() -> None:
    """Declared, endless, or packed; and other types and packings are not read at all."""
    assert left_out(endless, most_bytes=1_000_000) == "it is larger than 1,000,000 bytes"
    declared = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2147483648\r\n\r\nx"
    assert left_out(declared) == "it is larger than 5,000,000 bytes"
    assert left_out(answer(b"\x89PNG", kind="image/png")) == "its type is image/png, not text"
    assert (
        left_out(answer(b"x", kind="application/octet-stream"))
        == "its type is application/octet-stream, not text"
    )
    assert left_out(answer(b"x", Content_Encoding="br")) == "it is packed as 'br', which was not asked for"
    assert (
        left_out(answer(b"x", Content_Encoding="gzip, gzip"))
        == "it is packed as 'gzip, gzip', which was not asked for"
    )


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Twenty million bytes, packed into twenty thousand."""
    return gzip.compress(bytes(20_000_000), 6)


def peak(packed: bytes, most: int) -> tuple[str, int]:
    """Why a packed answer was left out, and the most memory that took."""
    with serving({"/": answer(packed, Content_Encoding="gzip")}) as server:
        get(here(server), server.url("/warm"))
        tracemalloc.start()
        try:
            got = get(here(server, most_bytes=most), server.url())
            return got.left_out, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def test_a_bomb_is_not_unpacked(bomb: bytes) -> None:
    """Never more in memory than may be read; without the cap, the mutant, it all is."""
    assert len(bomb) < 50_000
    said, most = peak(bomb, 1_000_000)
    assert said == "it is larger than 1,000,000 bytes"
    assert most < 4_000_000
    assert peak(bomb, 200_000_000)[1] > 18_000_000


def test_packed_answers_are_unpacked_and_broken_ones_told() -> None:
    """One member or several; cut off, or no gzip at all."""
    with serving({}) as server:
        for packed, body in ((gzip.compress(b"one") + gzip.compress(b"two"), b"onetwo"), (b"", b"")):
            server.routes = {"/": answer(packed, Content_Encoding="gzip")}
            assert get(here(server), server.url()).body == body
        for packed in (gzip.compress(b"one" * 100)[:-12], b"no gzip"):
            server.routes = {"/": answer(packed, Content_Encoding="gzip")}
            with pytest.raises(ConnectionError, match="no proper answer"):
                get(here(server), server.url())


@pytest.mark.parametrize(
    "route",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nContent-Type: text/plain\r\n\r\nshort",
        header_flood,
    ],
)
def test_a_broken_answer_is_a_connection_error(route: bytes | Callable[[Send], None]) -> None:
    """Nothing, garbage, an end too soon, headers without end."""
    with serving({"/": route}) as server:
        with pytest.raises(ConnectionError, match="gave no proper answer"):
            get(here(server), server.url())


def test_who_is_not_there_is_told() -> None:
    """A port nobody listens on, and a name nobody has."""

    async def unknown(_host: str, _port: int) -> list[str]:
        raise OSError("no such name")

    with serving({}) as server:
        pass
    with pytest.raises(ConnectionError, match="no proper answer"):
        get(here(server), server.url())
    with pytest.raises(ConnectionError, match=r"the name nowhere\.test is not known"):
        get(Reach(env={}, resolve=unknown), "http://nowhere.test/")


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"X-A": "a\r\nX-B: b"}, "characters"),
        ({"X A": "a"}, "characters"),
        ({"X-A:": "a"}, "characters"),
        ({"X-A": "ä"}, "characters"),
        ({"Host": "other"}, "cannot be chosen"),
        ({"content-length": "5"}, "cannot be chosen"),
        ({"Transfer-Encoding": "chunked"}, "cannot be chosen"),
    ],
)
def test_headers_cannot_make_another_request(headers: dict[str, str], message: str) -> None:
    """Neither by line ends nor by those that say where a request ends and whom it is for."""
    with serving({}) as server:
        with pytest.raises(ValueError, match=message):
            get(here(server), server.url(), headers=headers)
        assert server.connections == 0


def proxied(server: WebServer, **env: str) -> Reach:
    """Reaches what a proxy reaches; this machine's resolver knows no name."""

    async def unknown(_host: str, _port: int) -> list[str]:
        raise OSError("no such name")

    return Reach(env={"HTTP_PROXY": f"http://user:p%40ss@127.0.0.1:{server.port}", **env}, resolve=unknown)


def test_requests_go_through_the_proxy() -> None:
    """With its password and the whole URL; what is private by its number is refused before."""
    with serving({"http://example.org/a": answer("by proxy")}) as server:
        assert get(proxied(server), "http://example.org/a").body == b"by proxy"
        assert (server.asked[0].target, server.asked[0].headers["proxy-authorization"]) == (
            "http://example.org/a",
            "Basic dXNlcjpwQHNz",
        )
        for url in ("http://169.254.169.254/", "http://[::1]/", "http://example.org:22/"):
            with pytest.raises(PermissionError):
                get(proxied(server), url)
        inside = Reach(env=proxied(server).env, resolve=resolving(["10.0.0.1"]))
        with pytest.raises(PermissionError, match=r"intranet \(10\.0\.0\.1\)"):
            get(inside, "http://intranet/")
        assert len(server.asked) == 1


def test_many_ask_at_once() -> None:
    """Requests share nothing: each gets its own answer."""

    async def all_of_them(server: WebServer) -> list[bytes]:
        asked: list[Coroutine[Any, Any, Answer]] = [
            request(here(server), "GET", server.url(f"/{number}")) for number in range(20)
        ]
        return [got.body for got in await asyncio.gather(*asked)]

    with serving({f"/{number}": answer(str(number)) for number in range(20)}) as server:
        assert asyncio.run(all_of_them(server)) == [str(number).encode() for number in range(20)]
