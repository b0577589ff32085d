"""Claims about servers that ask: forms and addresses reach the person of a run, a login is kept for later,
nobody here never blocks.
"""

import asyncio
import contextvars
import json
import socket
import stat
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from offered import SERVER, Open
from waits import PATIENCE_S

from kestrel_lab.core.errors import DependencyError, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, ToolAnswered
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.mcp.config import read_server
from kestrel_lab.mcp.connection import Connection
from kestrel_lab.mcp.elicitation import DECLINE, DONE, Person
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel

STDIO = {"command": sys.executable, "args": [SERVER], "start_timeout_s": PATIENCE_S, "timeout_s": PATIENCE_S}


def run_with(
    session: Lab, tool: str, workspace: Path, *answers: str | None, approver: bool = True
) -> tuple[Run, ToolAnswered, list[ApprovalAsked]]:
    """A run that calls one tool, with a person who answers what is asked in this order; `None` refuses."""
    asked: list[ApprovalAsked] = []
    left = list(answers)

    async def person(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(question)
        said = left.pop(0)
        return ApprovalGiven(call=question.call, granted=said is not None, by="me", how="prompt", answer=said)

    model = ScriptedModel([[(tool, {})], "done"])
    run = session.run_sync(
        "go", model=model, tools=[tool], workspace=workspace, approver=person if approver else None
    )
    (answered,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    return run, answered, asked


def test_a_form_becomes_questions_with_typed_answers(opened: Open, workspace: Path) -> None:
    """What does not fit is asked again with the reason; choices and defaults are options; all of it is in the
    log.
    """
    session = opened(o=STDIO)
    run, answered, asked = run_with(session, "o:book", workspace, "many", "0", "4", "inside", "yes")
    assert (run.status, answered.text, answered.error) == (RunStatus.COMPLETE, "4 inside True", None)
    texts = [str(one.args["question"]) for one in asked]
    assert texts[0].startswith("o asks: Who comes to dinner?") and "a whole number" in texts[0]
    assert "does not fit" in texts[1] and "less than the minimum of 1" in texts[2]
    assert [one.args["options"] for one in asked][3:] == [
        ["outside", "inside", "leave it out", DECLINE],
        ["no", "yes", "leave it out", DECLINE],
    ]
    assert {one.call for one in run.events() if isinstance(one, ApprovalAsked)} == {
        f"{answered.call}?1.{number}" for number in range(1, 6)
    }


@pytest.mark.parametrize("answers", [[None], [DECLINE], ["2", DECLINE]])
def test_a_person_may_decline(opened: Open, workspace: Path, answers: list[str | None]) -> None:
    """The server is told, and the call fails as it says."""
    _, answered, _ = run_with(opened(o=STDIO), "o:book", workspace, *answers)
    assert answered.error is not None and "nobody was here" not in answered.text


@pytest.mark.parametrize("tool", ["o:book", "o:pay"])
def test_without_a_person_a_question_is_declined_and_the_model_reads_so(
    opened: Open, workspace: Path, tool: str
) -> None:
    """The run does not wait."""
    run, answered, asked = run_with(opened(o=STDIO), tool, workspace, approver=False)
    assert run.status is RunStatus.COMPLETE and not asked
    assert "nobody was here to answer, so this was declined: o asks" in answered.text


def test_an_address_is_shown_and_not_opened(opened: Open, workspace: Path) -> None:
    """The person reads the whole address and whose it is, and says when they have been there."""
    _, answered, asked = run_with(opened(o=STDIO), "o:pay", workspace, DONE)
    assert answered.text == "the page: accept"
    assert "https://pay.example/7\nIt belongs to pay.example." in str(asked[0].args["question"])


def test_structured_content_images_and_resources_reach_the_run(opened: Open, workspace: Path) -> None:
    """A structured answer is JSON for checks, an image is shown, a wrapped text stays a text, and resources
    are a tool.
    """
    session = opened(o=STDIO)
    assert run_with(session, "o:weather", workspace)[1].value == {"degrees": 21.5, "sky": ["blue", "wide"]}
    assert run_with(session, "o:words", workspace)[1].text == "just words"
    picture = run_with(session, "o:picture", workspace)[1]
    assert [image["media_type"] for image in picture.images] == [
        "image/png"
    ] and "not shown" not in picture.text
    assert "notes://today  What is on today" in run_with(session, "o:read_resource", workspace)[1].text
    read = asyncio.run(session.mcp.request("o", lambda server: server.resource("notes://friday")))
    assert read.value == "[notes://friday]\nnothing on friday"
    assert [one.name for one in asyncio.run(session.mcp.request("o", lambda server: server.prompts()))] == [
        "greet"
    ]
    assert (
        asyncio.run(session.mcp.request("o", lambda server: server.prompt("greet", {"name": "Ada"})))
        == "Say hello to Ada."
    )


def table(address: str) -> dict[str, Any]:
    """The table of that server."""
    return {"url": f"{address}/mcp", "start_timeout_s": PATIENCE_S, "timeout_s": PATIENCE_S}


async def logs_in(text: str, _: tuple[str, ...]) -> str:
    """A person who opens the address; a page of somebody else comes to the waiting address first and is not
    listened to.
    """
    address = text.rsplit("\n", maxsplit=1)[-1]
    redirect = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["redirect_uri"][0]

    def browse() -> None:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{redirect}?code=forged&state=guessed")
        urllib.request.urlopen(address).read()

    await asyncio.to_thread(browse)
    return DONE


def log_of(address: str) -> list[str]:
    """What the authorisation server was asked for."""
    return list(json.load(urllib.request.urlopen(f"{address}/log")))


def test_a_login_is_kept_for_later_sessions_and_forgotten_on_demand(
    opened: Open, guarded: str, tmp_path: Path, workspace: Path
) -> None:
    """The tokens are in a file of their owner alone and in no log; a later run needs nobody, until the login
    is forgotten.
    """
    first = opened(g=table(guarded))
    assert "words" in asyncio.run(first.mcp.login("g", logs_in)).tools
    asyncio.run(first.mcp.approve("g"))
    (file,) = (tmp_path / "config" / "kestrel" / "mcp-tokens").iterdir()
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert "secret-token-3" in file.read_text()
    second = opened(g=table(guarded))
    assert run_with(second, "g:words", workspace, approver=False)[1].text == "just words"
    assert log_of(guarded) == ["registered", "authorized", "authorization_code"]
    second.mcp.close()
    assert not any(
        "secret-token" in path.read_text(errors="replace")
        for home in tmp_path.glob("home*")
        for path in home.rglob("*")
        if path.is_file()
    )
    assert second.mcp.logout("g") and not second.mcp.logout("g") and not file.exists()


@pytest.mark.parametrize("guarded", [1], indirect=True)
def test_an_expired_token_is_refreshed_without_a_person(opened: Open, guarded: str, workspace: Path) -> None:
    """Also in another process: where tokens are refreshed and when they expire is kept with them."""
    asyncio.run(opened(g=table(guarded)).mcp.login("g", logs_in))
    before = log_of(guarded)
    assert before[:3] == ["registered", "authorized", "authorization_code"]
    time.sleep(1.1)  # that it has expired is certain, however long all else takes
    asyncio.run(opened(g=table(guarded)).mcp.check("g"))
    after = log_of(guarded)[len(before) :]
    assert "refresh_token" in after
    assert "authorized" not in after


def test_where_nobody_can_log_in_the_server_is_reported_and_the_run_goes_on(
    opened: Open, guarded: str, workspace: Path
) -> None:
    """What to do is said, nothing is waited for, and the other servers work."""
    session = opened(g=table(guarded), o=STDIO)
    with pytest.raises(DependencyError, match="kestrel mcp login g"):
        asyncio.run(session.mcp.check("g"))
    model = ScriptedModel([[("o:words", {})], "done"])
    run = session.run_sync("go", model=model, tools=["g:*", "o:*"], workspace=workspace)
    assert run.status is RunStatus.COMPLETE
    assert [event.text for event in run.events() if isinstance(event, ToolAnswered)] == ["just words"]
    assert "authorized" not in log_of(guarded)


def test_a_person_in_a_run_may_log_in(opened: Open, guarded: str, workspace: Path) -> None:
    """The address is a question of the run, like any other."""
    session = opened(g=table(guarded))
    asyncio.run(session.mcp.login("g", logs_in))
    asyncio.run(session.mcp.approve("g"))
    asyncio.run(session.mcp.aclose())
    session.mcp.logout("g")
    asked: list[str] = []

    async def person(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(str(question.args["question"]))
        said = await logs_in(asked[-1], ())
        return ApprovalGiven(call=question.call, granted=True, by="me", how="prompt", answer=said)

    model = ScriptedModel([[("g:words", {})], "done"])
    run = session.run_sync("go", model=model, tools=["g:words"], workspace=workspace, approver=person)
    assert [event.text for event in run.events() if isinstance(event, ToolAnswered)] == ["just words"]
    assert len(asked) == 1 and asked[0].startswith(f"g ({guarded}/mcp) wants a login")


@pytest.mark.parametrize(
    ("oauth", "said"),
    [
        ({"client": "x"}, "has no key 'client'"),
        ({"port": "80"}, "port is a int"),
        ({"client_credentials": True, "client_id": "x", "client_secret": "y"}, "client_id and issuer"),
        (
            {"client_credentials": True, "client_id": "x", "issuer": "https://a.example"},
            "client_secret or private_key",
        ),
    ],
)
def test_a_wrong_table_is_named(oauth: dict[str, Any], said: str) -> None:
    """Credentials without the server that issued them are refused: else the MCP server would say who is sent
    them.
    """
    with pytest.raises(UsageError, match=said):
        read_server("g", {"url": "https://mcp.example", "oauth": oauth})
    with pytest.raises(UsageError, match="which may have oauth"):
        read_server("g", {"command": "x", "oauth": {}})


def test_a_secret_in_a_wrong_table_is_not_repeated() -> None:
    """What is wrong is said without the table."""
    with pytest.raises(UsageError) as error:
        read_server(
            "g", {"url": "https://mcp.example", "oauth": {"client_secret": "hunter2-hunter2", "x": 1}}
        )
    assert "hunter2" not in str(error.value)


def test_a_token_that_the_server_sends_back_is_not_in_the_answer(
    opened: Open, guarded: str, workspace: Path
) -> None:
    """A model never reads it."""
    session = opened(g=table(guarded))
    asyncio.run(session.mcp.login("g", logs_in))
    asyncio.run(session.mcp.approve("g"))
    assert run_with(session, "g:headers", workspace)[1].text == "Bearer [REDACTED]"


def test_the_clock_stands_still_while_a_person_is_asked() -> None:
    """The time limit is the server's, not the person's."""

    async def go() -> None:
        asked: list[str] = []

        async def person(text: str, _: tuple[str, ...]) -> str:
            asked.append(text)
            await asyncio.sleep(0.3)
            return DONE

        async with asyncio.timeout(0.2) as clock:
            assert await Person(person, clock, PATIENCE_S).ask("?", (DONE,)) == DONE
        assert asked == ["?"]

    asyncio.run(go())


def test_of_two_calls_nobody_is_asked_where_the_server_does_not_say_for_which(tmp_path: Path) -> None:
    """A question that came for one run is never put to the person of another; a call's own question finds its
    own person.
    """

    async def go() -> None:
        connection = Connection(read_server("o", STDIO), {}, tmp_path / "log", lambda _: None)

        async def me(*_: object) -> str:
            return "me"

        async def you(*_: object) -> str:
            return "you"

        async def from_the_server() -> str | None:
            return await connection._person().ask("?", ())

        outside = contextvars.copy_context()
        async with connection._working(me, PATIENCE_S):
            assert await asyncio.create_task(from_the_server(), context=outside) == "me"
            async with connection._working(you, PATIENCE_S):
                assert await from_the_server() == "you"
                assert await asyncio.create_task(from_the_server(), context=outside) is None

    asyncio.run(go())


def test_a_login_whose_port_is_taken_says_so(opened: Open, guarded: str) -> None:
    """It is not sent to whoever listens there."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        session = opened(g={**table(guarded), "oauth": {"port": other.getsockname()[1]}})
        with pytest.raises(DependencyError, match="which the login needs, cannot be had"):
            asyncio.run(session.mcp.login("g", logs_in))
    assert "authorized" not in log_of(guarded)
