"""Whoever has no business with the local server gets a typed refusal and changes nothing; each check is
missed when it is missing.
"""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from people import InMemory, until
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import Progress, RunFinished, RunStarted
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.server.actions import decide_question
from kestrel_lab.server.auth import Guard, new_token
from kestrel_lab.server.controller import Control
from kestrel_lab.server.http import FILES, make_app
from kestrel_lab.server.protocol import MESSAGE_BYTES, ApprovalWanted, Approve, Refused, read_message
from kestrel_lab.server.serve import serve_control, token_for
from kestrel_lab.testing import ScriptedModel

PORT = 8765
HOST = f"127.0.0.1:{PORT}"
TOKEN = new_token()
MODEL = ScriptedModel([[("write_file", {"path": "a.txt", "content": "hi"})], "written"])
JSON = "application/json"


@asynccontextmanager
async def waiting(
    session: Lab, workspace: Path, **options: Any
) -> AsyncIterator[tuple[Control, dict[str, Any]]]:
    """A control, and the message that would approve a call which waits."""
    async with Control(
        session, user="ann", can_start=True, workspace=workspace, always=True, **options
    ) as control:
        program = InMemory(control)
        run = await program.start("go")
        asked = await program.asked()
        yield control, {"type": "approve", "run": run, "question": asked["question"], "key": asked["key"]}
        await program.leave()


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """A session with a scripted model."""
    opened = Lab(tmp_path / "home", model=MODEL, env={})
    yield opened
    opened.close()


def attacks(approve: dict[str, Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    """What a foreign page, or a program without the token, would try; and the status that each must get."""
    body, bearer = json.dumps(approve).encode(), f"Bearer {TOKEN}"
    post: dict[str, Any] = {"method": "POST", "url": "/v1/messages", "content": body}
    good = {"Host": HOST, "Content-Type": JSON, "Authorization": bearer}
    stream = f"/v1/runs/{approve['run']}/events"
    return {
        "another name for this machine (rebinding)": (
            421,
            {**post, "headers": {**good, "Host": f"evil.example:{PORT}"}},
        ),
        "this machine's name at another port": (421, {**post, "headers": {**good, "Host": "127.0.0.1:80"}}),
        "no name at all": (421, {**post, "headers": {**good, "Host": ""}}),
        "a page of another site": (403, {**post, "headers": {**good, "Origin": "http://evil.example"}}),
        "a page without an origin": (403, {**post, "headers": {**good, "Origin": "null"}}),
        "a page on another port of this machine": (
            403,
            {**post, "headers": {**good, "Origin": "http://127.0.0.1:8888"}},
        ),
        "a request that a browser marks as foreign": (
            403,
            {**post, "headers": {**good, "Sec-Fetch-Site": "cross-site"}},
        ),
        "the same from another port": (403, {**post, "headers": {**good, "Sec-Fetch-Site": "same-site"}}),
        "an image that is really a stream": (
            403,
            {
                "method": "GET",
                "url": stream,
                "headers": {**good, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
            },
        ),
        "a script of the page taken over": (
            403,
            {
                "method": "GET",
                "url": "/page.js",
                "headers": {"Host": HOST, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "script"},
            },
        ),
        "the page in a frame": (
            403,
            {
                "method": "GET",
                "url": "/",
                "headers": {
                    "Host": HOST,
                    "Sec-Fetch-Site": "cross-site",
                    "Sec-Fetch-Mode": "navigate",
                    "Sec-Fetch-Dest": "iframe",
                },
            },
        ),
        "no token": (401, {**post, "headers": {"Host": HOST, "Content-Type": JSON}}),
        "a wrong token": (401, {**post, "headers": {**good, "Authorization": "Bearer " + "x" * len(TOKEN)}}),
        "the beginning of the token": (
            401,
            {**post, "headers": {**good, "Authorization": f"Bearer {TOKEN[:8]}"}},
        ),
        "the token and more": (401, {**post, "headers": {**good, "Authorization": f"Bearer {TOKEN}x"}}),
        "an empty token": (401, {**post, "headers": {**good, "Authorization": "Bearer "}}),
        "the token as a password": (401, {**post, "headers": {**good, "Authorization": f"Basic {TOKEN}"}}),
        "a token that is not text": (401, {**post, "headers": {**good, "Authorization": b"Bearer \xff\xfe"}}),
        "a scan for streams": (
            401,
            {"method": "GET", "url": stream, "headers": {"Host": HOST, "Accept": "text/event-stream"}},
        ),
        "a scan for runs": (401, {"method": "GET", "url": "/v1/runs", "headers": {"Host": HOST}}),
        "the token in the address": (
            400,
            {"method": "GET", "url": f"{stream}?token={TOKEN}", "headers": {"Host": HOST}},
        ),
        "the token in the address too": (
            400,
            {"method": "GET", "url": f"{stream}?access_token={TOKEN}", "headers": good},
        ),
        "a form": (415, {**post, "headers": {**good, "Content-Type": "text/plain"}}),
        "a form of fields": (
            415,
            {**post, "headers": {**good, "Content-Type": "application/x-www-form-urlencoded"}},
        ),
        "no type": (415, {**post, "headers": {"Host": HOST, "Authorization": bearer}}),
        "too much": (
            413,
            {**post, "content": b'{"v":1,"id":"' + b"x" * MESSAGE_BYTES + b'"}', "headers": good},
        ),
        "a size that is not a number": (413, {**post, "headers": {**good, "Content-Length": "many"}}),
        "a decision by GET": (405, {**post, "method": "GET", "headers": good}),
        "a decision by HEAD": (405, {**post, "method": "HEAD", "headers": good}),
        "a decision by PUT": (405, {**post, "method": "PUT", "headers": good}),
        "a question whether other sites may": (
            403,
            {**post, "method": "OPTIONS", "headers": {**good, "Origin": "http://evil.example"}},
        ),
        "another address": (404, {"method": "GET", "url": "/v1/approve", "headers": good}),
        "a file beside the page": (
            401,
            {"method": "GET", "url": "/../control.py", "headers": {"Host": HOST}},
        ),
    }


async def got_through(app: Any, approve: dict[str, Any]) -> set[str]:
    """The attacks that were not answered as they must be, or were answered with anything that another site
    could read.
    """
    wrong = set()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{HOST}") as client:
        for name, (status, request) in attacks(approve).items():
            response = await client.send(client.build_request(**request))
            readable = any(header.startswith("access-control") for header in response.headers)
            secret = TOKEN in response.text or TOKEN in str(response.headers)
            typed = request["method"] == "HEAD" or response.text.startswith('{"v":1,"type":"error"')
            if response.status_code != status or readable or secret or not typed:
                wrong.add(name)
    return wrong


class _AnyOrigin(Guard):
    """Mutant: pages of other sites are not told from the own one."""

    def _foreign(self, method: str, path: str, headers: Headers) -> Response | None:
        return None


class _AnyName(Guard):
    """Mutant: whatever name the browser thinks it talks to."""

    def refused(self, method: str, path: str, query: bytes, headers: Headers) -> Response | None:
        named = [(name, value) for name, value in headers.items() if name != "host"]
        return super().refused(method, path, query, Headers(dict([*named, ("host", HOST)])))


class _Beginning(Guard):
    """Mutant: tokens are compared by their beginning."""

    def _stranger(self, headers: Headers) -> Response | None:
        given = headers.get("authorization", "").removeprefix("Bearer ")
        return None if given and TOKEN.startswith(given) else super()._stranger(headers)


def _takes_get(app: Any) -> Any:
    """Mutant: the address of messages takes a GET."""
    inner: Starlette = app._app
    inner.router.routes = [
        Route(route.path, route.endpoint, methods=["GET", "POST"])
        if getattr(route, "path", "") == "/v1/messages"
        else route
        for route in inner.router.routes
    ]
    return app


def _instead(kind: type[Guard]) -> Callable[[Any], Any]:
    return lambda app: kind(app._app, token=TOKEN, port=PORT, public=frozenset(FILES))


@pytest.mark.parametrize(
    ("mutate", "expected"),
    [
        (lambda app: app, set()),
        (
            _instead(_AnyOrigin),
            {
                "a page of another site",
                "a page on another port of this machine",
                "a request that a browser marks as foreign",
            },
        ),
        (_instead(_AnyName), {"another name for this machine (rebinding)"}),
        (_instead(_Beginning), {"the beginning of the token"}),
        (_takes_get, {"a decision by GET", "a decision by HEAD"}),
    ],
    ids=["as it is", "no origin check", "no host check", "token by its beginning", "GET allowed"],
)
def test_attacks_are_refused(session: Lab, workspace: Path, mutate: Any, expected: set[str]) -> None:
    """Each attack gets its status, nothing is decided, no answer is readable elsewhere; a missing check is
    noticed by name.
    """

    async def body() -> None:
        async with waiting(session, workspace) as (control, approve):
            through = await asyncio.wait_for(
                got_through(mutate(make_app(control, token=TOKEN, port=PORT)), approve), PATIENCE_S
            )
            assert expected <= through if expected else through == set()
            # The mutants that let a decision through show that the attacks would have decided.
            assert (session.store.decision(approve["run"], approve["question"]) is None) == (not expected)

    asyncio.run(body())


def test_a_flood_of_wrong_tokens_is_cut_off_and_the_right_one_is_not(session: Lab) -> None:
    """After twenty wrong tokens in a minute more get 429; the owner's still opens; a minute later wrong ones
    are looked at again.
    """
    clock = [0.0]
    guard = Guard(Starlette(), token=TOKEN, port=PORT, public=frozenset(), clock=lambda: clock[0])

    def status(token: str) -> int | None:
        headers = Headers({"host": HOST, "authorization": f"Bearer {token}"})
        refused = guard.refused("GET", "/v1/runs", b"", headers)
        return None if refused is None else refused.status_code

    assert [status("no") for _ in range(22)] == [401] * 20 + [429] * 2
    assert status(TOKEN) is None
    clock[0] = 61.0
    assert (status("no"), status(TOKEN)) == (401, None)


def test_a_real_server_is_for_this_machine_and_leaves_no_secret(
    session: Lab, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It listens on loopback, sends its safety headers with everything, takes one message from the owner, and
    logs no token.
    """

    async def body() -> None:
        async with waiting(session, workspace) as (control, approve), serve_control(control) as (address, _):
            assert stat.S_IMODE(address.token_file.stat().st_mode) == 0o600
            assert address.token_file.read_text() == address.token and len(address.token) >= 43
            async with httpx.AsyncClient(base_url=address.url) as client:
                for path in FILES:
                    page = await client.get(path)
                    policy = page.headers["content-security-policy"]
                    assert (page.status_code, "unsafe" in policy, "script-src 'self'" in policy) == (
                        200,
                        False,
                        True,
                    )
                    assert (
                        page.headers["x-content-type-options"] == "nosniff"
                        and page.headers["referrer-policy"] == "no-referrer"
                    )
                    assert "server" not in page.headers
                refused = await client.post("v1/messages", json=approve)
                assert (refused.status_code, refused.headers["cache-control"]) == (401, "no-store")
                signed = {"Authorization": f"Bearer {address.token}"}
                chunked = await client.post(
                    "v1/messages", content=_pieces(), headers={**signed, "Content-Type": JSON}
                )
                assert chunked.status_code == 413
                assert (await client.get("v1/runs/nope/events", headers=signed)).status_code == 404
                assert (await client.get("v1/runs?limit=0", headers=signed)).status_code == 400
                (listed,) = (await client.get("v1/runs", headers=signed)).json()["runs"]
                assert (listed["id"], listed["waiting"], listed["worked_on"]) == (approve["run"], 1, True)
                assert (
                    await client.post("v1/messages", json={**approve, "key": "other"}, headers=signed)
                ).json()["code"] == "changed"
                own = {**signed, "Origin": address.url.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
                assert (await client.post("v1/messages", json=approve, headers=own)).json()[
                    "type"
                ] == "accepted"
                again = await client.post("v1/messages", json=approve, headers=own)
                assert (again.status_code, again.json()["code"], again.json()["by"]) == (
                    409,
                    "already_decided",
                    "ann",
                )
                started = await client.post(
                    "v1/runs", json={"goal": "go", "limits": {"cycles": 1}}, headers=signed
                )
                assert started.json()["type"] == "accepted"
        assert not address.token_file.exists()
        told = capsys.readouterr()
        assert address.token not in told.out + told.err

    asyncio.run(body())


async def _pieces() -> AsyncIterator[bytes]:
    for _ in range(80):
        yield b"x" * 1_024


def test_a_token_is_kept_for_a_fixed_port_only(tmp_path: Path) -> None:
    """A fixed port keeps its token over restarts, unless others could read the file; a port of chance gets a
    new one each time.
    """
    first, path = token_for(tmp_path, 80, keep=True)
    assert token_for(tmp_path, 80, keep=True)[0] == first
    path.chmod(0o640)
    second = token_for(tmp_path, 80, keep=True)[0]
    assert second != first and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_for(tmp_path, 80, keep=False)[0] != second
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert token_for(tmp_path, 80, keep=True)[0] not in {first, second} and not path.is_symlink()


def test_a_port_that_is_taken_is_named(session: Lab) -> None:
    """Two servers on one port: the second says which port, and what to do."""

    async def body() -> None:
        async with Control(session) as control, serve_control(control) as (address, _):
            with pytest.raises(UsageError, match=f"port {address.port} is not available .*leave --port out"):
                await serve_control(control, port=address.port).__aenter__()

    asyncio.run(body())


def refusals(obey: Callable[[dict[str, Any]], Any], approve: dict[str, Any]) -> dict[str, str]:
    """What is said to decisions that are none on what was asked."""
    wrong = {
        "another call": {**approve, "key": "0" * 64},
        "another question": {**approve, "question": "answer.9.9"},
        "another run": {**approve, "run": "r000000-000000"},
        "words": {**approve, "type": "answer", "text": "yes"},
        "a field too many": {**approve, "granted": True},
        "another version": {**approve, "v": 2},
    }
    return {name: getattr(obey(message), "code", "obeyed") for name, message in wrong.items()}


def test_a_decision_is_on_exactly_what_was_asked(session: Lab, workspace: Path) -> None:
    """Another call, question, run, kind or version is refused by its code; mutant: a server that does not
    look at the key obeys.
    """

    async def body() -> None:
        async with waiting(session, workspace) as (_, approve):

            def obey(message: dict[str, Any]) -> Any:
                read = read_message(json.dumps(message))
                return (
                    read
                    if isinstance(read, Refused)
                    else decide_question(session, read, by="ann", how="command")
                )  # type: ignore[arg-type]

            codes = {
                "another call": "changed",
                "another question": "unknown_question",
                "another run": "unknown_run",
                "words": "refused",
            }
            expected = {**codes, "a field too many": "bad_message", "another version": "bad_message"}
            assert await asyncio.to_thread(refusals, obey, approve) == expected
            assert session.store.decision(approve["run"], approve["question"]) is None

            def careless(message: dict[str, Any]) -> Any:
                return obey({**message, "key": approve["key"]})

            assert (await asyncio.to_thread(refusals, careless, approve))["another call"] == "obeyed"

    asyncio.run(body())


def test_who_may_not_start_cannot(session: Lab) -> None:
    """Without leave no run is started or resumed, and the words that give leave are told."""

    async def body() -> None:
        async with Control(session) as control:
            program = InMemory(control)
            for message in ({"type": "start", "goal": "go"}, {"type": "resume", "run": "r"}):
                reply = await program.say(**message)
                assert (reply["code"], "--allow-start" in reply["todo"]) == ("not_allowed", True)
            assert program.heard[0]["can_start"] is False
            await program.leave()
        assert session.store.runs() == []

    asyncio.run(body())


def long_run(store: SessionStore, number: int) -> str:
    """A finished run of about `number` times 20 kB."""
    store.create_run("r-long", RunStarted(goal="long", workspace=".", model="none"))
    store.transition("r-long", RunStatus.EXECUTING, source=RunStatus.PLANNING)
    for _ in range(number):
        store.append("r-long", Progress(text="x" * 20_000))
    store.append("r-long", RunFinished(outcome="complete"))
    store.transition("r-long", RunStatus.COMPLETE, source=RunStatus.EXECUTING).result()
    return "r-long"


def test_who_reads_nothing_is_dropped_and_holds_up_nobody(session: Lab) -> None:
    """Of a run of 12 MB a client that does not read gets no more than fits the pipes, and is dropped; another
    gets it all meanwhile.
    """

    async def body() -> None:
        run = long_run(session.store, 600)
        async with (
            Control(session, always=True) as control,
            serve_control(control, slow_s=0.2) as (address, _),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port, limit=1_024)
            writer.write(
                f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: "
                f"127.0.0.1:{address.port}\r\nAuthorization: Bearer {address.token}\r\n\r\n".encode()
            )
            (link,) = await until(lambda: control.links)
            program = InMemory(control)
            await program.follow(run)
            await program.ended()
            assert program.numbers == list(range(1, 605))
            await until(lambda: link not in control.links)
            assert link._queue.qsize() <= 256
            writer.close()
            await program.leave()
            del reader

    asyncio.run(body())


def test_every_question_is_a_message_of_its_kind() -> None:
    """Mutant of the schema: a message with a type of its own only is read as what it is, and lone surrogates
    go through as text.
    """
    wanted = ApprovalWanted(
        run="r",
        seq=1,
        at=0.0,
        event={"type": "approval_asked"},
        question="q",
        key="k",
        tool="t",
        args={"path": "\udcff"},
        danger="LOW",
        why="",
        diff="",
        sandbox="",
    )
    assert json.loads(wanted.line())["args"] == {"path": "\udcff"}
    read = read_message(json.dumps({"type": "approve", "run": "r", "question": "q", "key": "k"}))
    assert read == Approve(run="r", question="q", key="k")
