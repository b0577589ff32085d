"""Connections to servers that answer in every way the protocol knows: what comes back, what is an error of
the tool, and what one of the server.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from waits import PATIENCE_S

from kestrel_lab.core.errors import ToolError
from kestrel_lab.mcp import connection as connections
from kestrel_lab.mcp.config import read_server
from kestrel_lab.mcp.connection import READ_RESOURCE, Connection

SERVER = str(Path(__file__).with_name("replying_server.py"))
TOOL = {"name": "look", "inputSchema": {"type": "object"}}
TOOLS = {"tools/list": {"tools": [TOOL]}}
WITH_ALL = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "replying", "version": "2"},
    }
}
A_FILE = {"uri": "notes://a", "name": "a"}
A_TEMPLATE = {"uriTemplate": "notes://{day}", "name": "day"}


def connection_to(
    folder: Path, answers: dict[str, Any], ended: list[str] | None = None, **table: Any
) -> Connection:
    """A connection to a server that answers so; `ended` gets the reason when it ends by itself."""
    given = {"command": sys.executable, "args": ["-S", SERVER, json.dumps(answers)], "sandbox": "S0"}
    limits = {"start_timeout_s": PATIENCE_S, "timeout_s": PATIENCE_S}
    env = {"PATH": os.environ["PATH"]}
    return Connection(
        read_server("r", {**given, **limits, **table}),
        env,
        folder / "logs/r.log",
        [].append if ended is None else ended.append,
    )


@asynccontextmanager
async def connected(
    folder: Path, answers: dict[str, Any], ended: list[str] | None = None, **table: Any
) -> AsyncIterator[Connection]:
    """The same, open in the block."""
    made = connection_to(folder, answers, ended, **table)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def called(made: Connection, tool: str = "look", **args: Any) -> Any:
    """What a tool answers, with the definition that the server has now."""
    return (await made.call(tool, made.definitions[tool].pin, args, lambda *_: None)).value


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (
            {"says": "no licence found", "initialize": {"error": {"code": 1, "message": "I do not start"}}},
            "I do not start; it said last: no licence found",
        ),
        (
            {"says": "I do not start", "initialize": {"error": {"code": 1, "message": "I do not start"}}},
            "I do not start",
        ),
        ({"initialize": {"error": {"code": 1, "message": "I do not start"}}}, "I do not start"),
    ],
    ids=["other words", "the same words", "none"],
)
def test_the_last_words_of_a_server_that_does_not_start_are_told(
    answers: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Once: not where they say what the error says."""
    with pytest.raises(ConnectionError) as raised:
        asyncio.run(connection_to(tmp_path, answers).open())
    assert str(raised.value) == told


def test_a_server_that_is_late_is_told_with_its_last_words(tmp_path: Path) -> None:
    """Whoever waits reads how long it had, and what it was busy with, if it began within that time."""
    script = "import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(86400)"

    def told(limit: float) -> str:
        with pytest.raises(ConnectionError, match=f"^it was not ready within {limit:g} s") as raised:
            asyncio.run(connection_to(tmp_path, {}, args=["-S", "-c", script], start_timeout_s=limit).open())
        return str(raised.value)

    assert any(told(limit).endswith(" s; it said last: loading") for limit in (0.4, 2.0, 10.0, 50.0))


def test_a_connection_that_was_closed_is_not_opened(tmp_path: Path) -> None:
    """Nothing is started, and whoever calls is told why nothing can be called."""

    async def go() -> None:
        made = connection_to(tmp_path, {})
        with pytest.raises(ConnectionError, match="it is not connected"):
            await made.ping()
        await made.close()
        with pytest.raises(ConnectionError, match="it was closed before it was started"):
            await made.open()
        assert not made.alive and not (tmp_path / "logs").exists()
        async with connected(tmp_path, TOOLS) as opened:
            assert opened.alive and opened.who == "replying 1" and opened.reason == ""
            await opened.close()
            assert not opened.alive
            with pytest.raises(ConnectionError, match="it was closed"):
                await opened.ping()

    asyncio.run(go())


def test_an_error_of_a_tool_is_told_as_the_tool_says_it(tmp_path: Path) -> None:
    """A tool that fails, an error of the protocol and an answer that is none are errors of the call: the
    server stays.
    """
    answers = {
        "tools/list": {
            "tools": [{**TOOL, "name": name} for name in ("fails", "mute", "refuses", "odd", "slow")]
        },
        "tools/call fails": {"isError": True, "content": [{"type": "text", "text": "no such page"}]},
        "tools/call mute": {"isError": True, "content": []},
        "tools/call refuses": {"error": {"code": -32602, "message": "wrong\narguments"}},
        "tools/call odd": {"content": 7},
        "tools/call slow": {"error": {"code": -32001, "message": "took too long"}},
    }
    told = {
        "fails": "no such page",
        "mute": "the tool failed and does not say why",
        "refuses": "the server answered with an error: wrong arguments",
    }

    async def go() -> None:
        async with connected(tmp_path, answers) as made:
            for tool, text in told.items():
                with pytest.raises(ToolError) as raised:
                    await called(made, tool)
                assert str(raised.value) == text
            assert await called(made, "odd") == "7"
            with pytest.raises(TimeoutError, match="took too long"):
                await called(made, "slow")
            await made.ping()  # it does not know this, which is an answer, too
            assert made.alive and made.reason == ""

    asyncio.run(go())


def test_structured_content_is_the_value_of_an_answer(tmp_path: Path) -> None:
    """As JSON, for checks and macros."""

    async def go() -> None:
        async with connected(
            tmp_path, {**TOOLS, "tools/call": {"content": [], "structuredContent": {"degrees": [1, 2]}}}
        ) as made:
            assert await called(made) == {"degrees": [1, 2]}

    asyncio.run(go())


def test_a_server_is_pinged_in_the_words_of_its_protocol(tmp_path: Path) -> None:
    """One of before 2026 knows `ping`."""

    async def go() -> None:
        async with connected(tmp_path, {**TOOLS, "ping": {"exit": 3}}) as made:
            with pytest.raises(ConnectionError, match="exit code 3"):
                await made.ping()

    asyncio.run(go())


def test_only_what_was_approved_is_called(tmp_path: Path) -> None:
    """A tool that is gone, one that is never offered and one that was changed are named with the reason."""
    answers = {"tools/list": {"tools": [TOOL, {**TOOL, "name": "g\u0430st"}]}, "tools/call": {"content": []}}

    async def go() -> None:
        async with connected(tmp_path, answers) as made:
            for tool, pin, told in (
                ("gone", "x", "the server no longer has the tool r:gone"),
                ("g\u0430st", "x", "r:g\u0430st is not called: its name has other characters"),
                ("look", "x", "r:look is not called: its definition has changed since it was approved"),
            ):
                with pytest.raises(ToolError, match=told):
                    await made.call(tool, pin, {}, lambda *_: None)
            assert await called(made) == ""

    asyncio.run(go())


def test_progress_is_told_with_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a share between 0 and 1 where the whole is known, in the server's words or in numbers; what follows
    too closely is left out.
    """
    reports = [
        {"progress": 1, "total": 4, "message": "a page"},
        {"progress": 2, "total": 4},
        {"progress": 3},
        {"progress": 9, "total": 4},
        {"progress": -1, "total": 4},
        {"progress": 5, "total": 0},
        {"progress": 6, "total": -1},
    ]
    answers = {**TOOLS, "tools/call": {"content": [], "progress": reports}}

    async def told() -> list[tuple[str, float | None]]:
        found: list[tuple[str, float | None]] = []
        async with connected(tmp_path, answers) as made:
            await made.call(
                "look", made.definitions["look"].pin, {}, lambda text, share: found.append((text, share))
            )
            await made.ping()
        return found

    monkeypatch.setattr(connections, "_BETWEEN_S", 0.0)
    assert asyncio.run(told()) == [
        ("a page", 0.25),
        ("2 of 4", 0.5),
        ("3", None),
        ("9 of 4", 1.0),
        ("-1 of 4", 0.0),
        ("5", None),
        ("6 of -1", None),
    ]
    monkeypatch.setattr(connections, "_BETWEEN_S", 30.0)
    assert asyncio.run(told()) == [("a page", 0.25)]


@pytest.mark.parametrize(
    ("answers", "tools"),
    [
        ({**WITH_ALL, **TOOLS, "resources/list": {"resources": [A_FILE]}}, ["look", "read_resource"]),
        (
            {
                **WITH_ALL,
                **TOOLS,
                "resources/list": {"resources": []},
                "resources/templates/list": {"resourceTemplates": [A_TEMPLATE]},
            },
            ["look", "read_resource"],
        ),
        (
            {
                **WITH_ALL,
                **TOOLS,
                "resources/list": {"resources": []},
                "resources/templates/list": {"resourceTemplates": []},
            },
            ["look"],
        ),
        ({**WITH_ALL, **TOOLS}, ["look"]),
        ({**TOOLS, "resources/list": {"resources": [A_FILE]}}, ["look"]),
    ],
    ids=["a resource", "a template of addresses", "none", "cannot list them", "does not say that it has any"],
)
def test_a_server_with_resources_has_a_tool_for_them(
    answers: dict[str, Any], tools: list[str], tmp_path: Path
) -> None:
    """And one without has none."""

    async def go() -> None:
        async with connected(tmp_path, answers) as made:
            assert (sorted(made.definitions), made.refused) == (tools, {})

    asyncio.run(go())


def test_a_tool_of_the_server_called_read_resource_is_its_own(tmp_path: Path) -> None:
    """It is called like any other."""
    answers = {
        **WITH_ALL,
        "tools/list": {"tools": [{**TOOL, "name": "read_resource"}]},
        "resources/list": {"resources": [A_FILE]},
        "tools/call": {"content": [{"type": "text", "text": "mine"}]},
    }

    async def go() -> None:
        async with connected(tmp_path, answers) as made:
            assert (list(made.definitions), made.refused) == (["read_resource"], {})
            assert made.definitions["read_resource"].pin != READ_RESOURCE.pin
            assert await called(made, "read_resource") == "mine"

    asyncio.run(go())


def test_resources_are_listed_and_read(tmp_path: Path) -> None:
    """Page by page, each with what it is in the best words there are; by address all of its contents."""
    answers = {
        **WITH_ALL,
        "resources/list": {"resources": [A_FILE], "nextCursor": "two"},
        "resources/list two": {"resources": [{**A_FILE, "title": "The second", "uri": "notes://b"}]},
        "resources/templates/list": {
            "resourceTemplates": [{**A_TEMPLATE, "title": "A day", "description": "What is\non"}]
        },
        "resources/read notes://a": {
            "contents": [{"uri": "notes://a", "text": "one"}, {"uri": "notes://a2", "text": "two"}]
        },
    }

    async def go() -> None:
        async with connected(tmp_path, answers) as made:
            listed = "notes://a  a\nnotes://b  The second\nnotes://{day}  What is on"
            assert [await called(made, "read_resource"), (await made.resource("")).value] == [listed, listed]
            assert (
                await called(made, "read_resource", uri="notes://a") == "[notes://a]\none\n[notes://a2]\ntwo"
            )
            with pytest.raises(ToolError, match="no resources/read"):
                await called(made, "read_resource", uri="notes://c")
        empty = {
            **WITH_ALL,
            "resources/list": {"resources": []},
            "resources/templates/list": {"resourceTemplates": []},
        }
        async with connected(tmp_path, empty) as made:
            assert (await made.resource("")).value == "[the server has no resources]"

    asyncio.run(go())


def test_a_list_without_end_is_read_for_fifty_pages(tmp_path: Path) -> None:
    """A server that always has another page holds nobody up."""
    page = {"tools": [TOOL], "nextCursor": "more"}

    async def go() -> None:
        async with connected(tmp_path, {"tools/list": page}) as made:
            assert list(made.definitions) == ["look"]
            assert made.refused == {"look": "the server has two tools of that name; the first one counts"}

    asyncio.run(go())


def test_prompts_are_listed_and_filled_in(tmp_path: Path) -> None:
    """One message is its text, several are under their roles; a server that has none is not asked."""

    def message(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": {"type": "text", "text": text}}

    answers = {
        **WITH_ALL,
        "prompts/list": {"prompts": [{"name": "one"}], "nextCursor": "two"},
        "prompts/list two": {"prompts": [{"name": "two"}]},
        "prompts/get one": {"messages": [message("user", "hello")]},
        "prompts/get two": {"messages": [message("user", "hello"), message("assistant", "yes?")]},
    }

    async def go() -> None:
        async with connected(tmp_path, answers) as made:
            assert [one.name for one in await made.prompts()] == ["one", "two"]
            assert await made.prompt("one", {}) == "hello"
            assert await made.prompt("two", {}) == "user:\nhello\n\nassistant:\nyes?"
        async with connected(tmp_path, {"prompts/list": answers["prompts/list two"]}) as made:
            assert await made.prompts() == []

    asyncio.run(go())


def test_the_end_of_an_open_connection_is_told_once_with_the_reason(tmp_path: Path) -> None:
    """One that was closed by us, or never was open, does not end by itself."""

    async def go() -> None:
        ended: list[str] = []
        async with connected(tmp_path, TOOLS, ended):
            pass
        with pytest.raises(ConnectionError):
            await connection_to(
                tmp_path, {"initialize": {"error": {"code": 1, "message": "no"}}}, ended
            ).open()
        assert ended == []
        answers = {**TOOLS, "tools/call": {"exit": 3}}
        async with connected(tmp_path, answers, ended) as made:
            with pytest.raises(ConnectionError, match=r"^it ended with exit code 3; it said last: lost$"):
                await called(made)
            assert (ended, made.reason, made.alive) == (
                ["it ended with exit code 3; it said last: lost"],
                ended[0],
                False,
            )
        assert len(ended) == 1

    asyncio.run(go())


# What is almost as the protocol says.


def listing(*tools: Any, **more: Any) -> dict[str, Any]:
    """Answers of a server with these tools."""
    return {
        "tools/list": {"tools": [*tools], **more},
        "tools/call": {"content": [{"type": "text", "text": "OK"}]},
    }


RECURSIVE = {
    "type": "object",
    "properties": {"next": {"$ref": "#"}, "x": True},
    "$defs": {"a": {"$ref": "#/$defs/a"}},
}


@pytest.mark.parametrize(
    ("odd", "refused"),
    [
        ({"name": "odd"}, ""),
        (
            {
                "name": "odd",
                "inputSchema": None,
                "description": None,
                "annotations": None,
                "outputSchema": None,
                "_meta": None,
            },
            "",
        ),
        ({"name": "odd", "inputSchema": {"type": "object", "properties": {"x": True, "y": False}}}, ""),
        ({"name": "odd", "inputSchema": {"type": "object", "properties": None, "required": None}}, ""),
        ({"name": "odd", "inputSchema": RECURSIVE}, ""),
        ({"name": "odd", "inputSchema": {"type": "object"}, "outputSchema": {"type": "objekt"}}, ""),
        ({"name": "odd", "inputSchema": {"type": "object"}, "outputSchema": True}, ""),
        ({"name": "odd", "inputSchema": {}}, "odd"),
        ({"name": "odd", "inputSchema": True}, "odd"),
        ({"name": "odd", "inputSchema": []}, "odd"),
        ({"name": "odd", "inputSchema": {"type": "object"}, "description": 7}, "odd"),
        (
            {
                "name": "odd",
                "inputSchema": {
                    "type": "object",
                    "properties": {"x": {"enum": [f"option {n}" for n in range(5_500)]}},
                },
            },
            "odd",
        ),
        ({"name": "an odd/name", "inputSchema": {"type": "object"}}, "an odd/name"),
        ({"name": "名前", "inputSchema": {"type": "object"}}, "名前"),
        ({"name": "", "inputSchema": {"type": "object"}}, ""),
        ({"name": "look", "inputSchema": {"type": "object"}}, "look"),
        ({"inputSchema": {"type": "object"}}, "number 1 of tools"),
        ({"name": 7, "inputSchema": {"type": "object"}}, "number 1 of tools"),
        ("odd", "number 1 of tools"),
        (None, "number 1 of tools"),
    ],
)
def test_one_odd_tool_takes_no_other_with_it(odd: Any, refused: str, tmp_path: Path) -> None:
    """A definition is fixed where it says enough, else left out by name with the reason; all others can be
    called.
    """

    async def go() -> None:
        async with connected(tmp_path, listing(odd, TOOL)) as made:
            assert await called(made) == "OK"
            assert refused in made.refused or not refused
            if not made.refused:
                assert await called(made, "odd", x=1) == "OK"

    asyncio.run(go())


def test_a_listing_that_is_odd_itself_is_read(tmp_path: Path) -> None:
    """A cursor that is null or a number, and a note that is no object."""
    for more in ({"nextCursor": None}, {"_meta": None}, {"_meta": []}):

        async def go(more: dict[str, Any] = more) -> None:
            async with connected(tmp_path, listing(TOOL, **more)) as made:
                assert await called(made) == "OK"

        asyncio.run(go())


NAN = float("nan")


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"_meta": {}}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": ["OK", {"type": "text", "text": "more"}]}, "OK\nmore"),
        ({"content": [{"text": "OK"}]}, "OK"),
        ({"content": [{"type": "text", "text": "OK", "annotations": None, "_meta": None}]}, "OK"),
        ({"content": [{"type": "text", "text": {"a": 1}}]}, '{"a": 1}'),
        ({"content": [{"type": "text"}]}, "[text, not shown: it is not as the protocol says]"),
        (
            {"content": [{"type": "hologram", "data": 7}, {"type": "text", "text": "OK"}]},
            "[hologram, not shown: it is not as the protocol says]\nOK",
        ),
        ({"content": [{"type": "image"}]}, "[image, not shown: it is not as the protocol says]"),
        (
            {"content": [{"type": "image", "data": "#", "mimeType": "image/png"}]},
            "[image image/png, 0 bytes, not shown: it is not Base64]",
        ),
        ({"content": [None, 7]}, "7"),
        (
            {
                "content": [{"type": "text", "text": "OK"}],
                "structuredContent": None,
                "isError": None,
                "_meta": None,
            },
            "OK",
        ),
        (
            {"content": [{"type": "text", "text": "OK"}], "structuredContent": {"a": NAN}},
            {"text": "OK", "structured": {"a": "NaN"}},
        ),
        (
            {"content": [], "structuredContent": {"a": [float("inf"), -float("inf"), 1.5]}},
            {"a": ["Infinity", "-Infinity", 1.5]},
        ),
        ({"content": [], "structuredContent": [1, 2]}, {"result": [1, 2]}),
        ({"content": [{"type": "text", "text": "OK"}], "isError": "false"}, "OK"),
        ({"content": "OK"}, "OK"),
        ({"content": {"type": "text", "text": "OK"}}, "OK"),
    ],
)
def test_an_answer_that_is_almost_usual_is_read(result: Any, value: Any, tmp_path: Path) -> None:
    """What can be read of it is the answer; what cannot is named."""

    async def go() -> None:
        async with connected(tmp_path, {**TOOLS, "tools/call": result}) as made:
            assert await called(made) == value

    asyncio.run(go())


@pytest.mark.parametrize(
    "more", [{}, {"structuredContent": {"a": "one"}}, {"structuredContent": {}}, {"structuredContent": [1]}]
)
def test_an_answer_that_does_not_fit_its_schema_is_kept(more: dict[str, Any], tmp_path: Path) -> None:
    """A tool has acted when it answers: words of an answer that does not fit the outputSchema reach the model,
    with a note, and so does the structured part.
    """
    shape = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    (listed,) = TOOLS["tools/list"]["tools"]
    tools = {"tools/list": {"tools": [{**listed, "outputSchema": shape}]}}
    answer = {"content": [{"type": "text", "text": "order 7 was sent"}], **more}

    async def go() -> None:
        async with connected(tmp_path, {**tools, "tools/call": answer}) as made:
            text = str(await called(made))
            assert "order 7 was sent" in text
            assert "does not fit the tool's outputSchema" in text
            assert "structured" in text or not more.get("structuredContent")

    asyncio.run(go())


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"error": {"code": "E_LIMIT", "message": "no quota"}}, "no quota"),
        ({"error": {"code": 7, "message": None}}, '"code": 7'),
        ({"error": {"message": "no quota"}}, "no quota"),
        ({"error": "no quota"}, "no quota"),
        ({"result": ["no quota"]}, "no quota"),
        ({"result": "no quota"}, "no quota"),
        ({}, "no object"),
    ],
)
def test_a_response_of_another_form_is_an_error_of_its_call(
    reply: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Its words are told at once, not when the time is up."""
    script = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line); first = m.get('method') == 'initialize'; listing = m.get('method') "
        "== 'tools/list'\n"
        f"    known = {{'protocolVersion': '2025-06-18', 'capabilities': {{'tools': {{}}}}, "
        f"'serverInfo': {{'name': 's', 'version': '1'}}}}\n"
        f"    body = {{'result': known}} if first else {{'result': {TOOLS['tools/list']!r}}} if "
        f"listing else {reply!r}\n"
        "    'id' in m and print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], **body}), flush=True)\n"
    )

    async def go() -> None:
        async with connected(tmp_path, {}, args=["-S", "-c", script]) as made:
            with pytest.raises(ToolError, match=words):
                await called(made)
            assert made.alive

    asyncio.run(go())


def test_resources_and_prompts_that_are_almost_usual_are_read(tmp_path: Path) -> None:
    """One that is not is left out, and contents that are not whole are shown as far as they go."""
    answers = {
        **WITH_ALL,
        **TOOLS,
        "resources/list": {"resources": [{"name": "no address"}, A_FILE, None]},
        "resources/templates/list": {"resourceTemplates": [{"name": "x"}, A_TEMPLATE]},
        "prompts/list": {"prompts": [{"title": "no name"}, {"name": "good", "description": None}]},
        "resources/read notes://a": {
            "contents": [{"text": "held"}, {"uri": "notes://b", "text": None}, "bare"]
        },
    }

    async def go() -> None:
        async with connected(tmp_path, answers) as made:
            listed = (await made.resource("")).value
            assert "notes://a" in str(listed)
            assert "notes://{day}" in str(listed)
            assert [one.name for one in await made.prompts()] == ["good"]
            assert (
                await made.resource("notes://a")
            ).value == "[notes://a]\nheld\n[notes://b]\n\n[notes://a]\nbare"

    asyncio.run(go())
