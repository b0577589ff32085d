"""What the table of an MCP server may say, and what is said about wrong ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import content_key, dumps
from kestrel_lab.mcp.approvals import Approvals, Definition, check_definitions
from kestrel_lab.mcp.config import OAuth, ServerConfig, Trust, read_mcp_json, read_server
from kestrel_lab.runtime.settings import mcp_servers


def test_servers_come_from_both_files_and_settings_win(tmp_path: Path) -> None:
    """`.mcp.json` as other programs write it, `[mcp.servers.NAME]` beside; each says which file it is
    from.
    """
    (tmp_path / ".git").mkdir()
    (tmp_path / "kestrel.toml").write_text(
        'cycles = 3\n[mcp.servers.time]\ncommand = "mine"\ndanger = '
        '"low"\n[mcp.servers.time.tools.now]\neffect = "pure"\n'
    )
    servers = {
        "time": {"command": "theirs"},
        "web": {
            "type": "http",
            "url": "https://example.org/mcp",
            "headers": {"Authorization": "Bearer ${KEY}"},
        },
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    below = tmp_path / "below"
    below.mkdir()
    found = mcp_servers(below, {"KESTREL_TRUST": "all"})
    assert {name: (one.command or one.url, Path(one.source).name) for name, one in found.items()} == {
        "time": ("mine", "kestrel.toml"),
        "web": ("https://example.org/mcp", ".mcp.json"),
    }
    assert found["time"].trust_in("now") == Trust(danger=Danger.LOW, effect="pure")
    assert found["time"].trust_in("other") == Trust(danger=Danger.LOW)
    assert found["web"].trust_in("any") == Trust(danger=Danger.MEDIUM, effect="opaque")
    assert found["web"].filled_headers({"KEY": "k"}) == {"Authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("a b", {"command": "x"}, "a name has up to 32"),
        ("a__b", {"command": "x"}, "a name has up to 32"),
        ("a", {}, "one of them"),
        ("a", {"command": "x", "url": "http://x"}, "one of them"),
        ("a", {"comand": "x"}, "did you mean 'command'"),
        ("a", {"command": "x", "args": "-v"}, "must be a list of texts"),
        ("a", {"command": "x", "env": {"A": 1}}, "must be a text"),
        ("a", {"url": "ftp://x"}, "must begin with http"),
        ("a", {"type": "sse", "url": "http://x"}, "sse transport is not supported"),
        ("a", {"command": "x", "danger": "lo"}, "did you mean 'LOW'"),
        ("a", {"command": "x", "tools": {"t": {"effect": "none"}}}, "unknown effect 'none'"),
        ("a", {"command": "x", "timeout_s": 0}, "must be a positive number"),
        ("a", "x", "must be a table"),
    ],
)
def test_what_is_wrong_is_named(name: str, table: Any, said: str) -> None:
    """Each mistake is refused with the server and what to write."""
    with pytest.raises(UsageError, match=said):
        read_server(name, table, "kestrel.toml")


def test_a_secret_written_into_a_table_is_not_shown() -> None:
    """The command is shown whole, with the names of its variables; a value that is a secret by its name is
    not.
    """
    table = {
        "command": "x",
        "args": ["-m", "a b"],
        "env": {"API_TOKEN": "s3cret", "GH_TOKEN": "${GH}", "DEBUG": "1"},
    }
    assert read_server("a", table).shown == '"API_TOKEN=…" "GH_TOKEN=${GH}" DEBUG=1 x -m "a b"'


def test_what_another_programs_file_says_harms_nothing(tmp_path: Path) -> None:
    """Keys that only that program knows are left out, a server that is switched off stays so, one that cannot
    be used says why.
    """
    servers = {
        "a": {"command": "x", "alwaysAllow": ["*"], "danger": "safe", "timeout": 5},
        "b": {"command": "y", "disabled": True},
        "my server": {"command": "z"},
        "old": {"type": "sse", "url": "http://x"},
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    found = mcp_servers(tmp_path, {})
    assert [(one.enabled, bool(one.problem)) for one in found.values()] == [
        (True, False),
        (False, False),
        (False, True),
        (False, True),
    ]
    assert found["a"].trust == Trust(danger=Danger.MEDIUM, effect="opaque")
    assert "sse transport is not supported" in found["old"].problem


@pytest.mark.parametrize(
    "text", ["[", "[]", "{}", '{"mcpServers": []}', '{"mcpServers": {"a": 1}}', "[" * 100_000]
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    """Whatever is in a `.mcp.json`, the error names it."""
    (tmp_path / ".mcp.json").write_text(text)
    with pytest.raises(UsageError, match=r"mcp\.json"):
        mcp_servers(tmp_path, {})


@given(st.lists(st.sampled_from(["command", "args", "env", "cwd"]), min_size=1))
def test_approval_is_for_one_exact_command(changes: list[str]) -> None:
    """Any change of program, arguments, variables or folder makes another server of it; trust and time limits
    do not.
    """
    same = ServerConfig(name="a", command="x", args=("1",), env={"A": "${A}"}, cwd="/")
    other = {"command": "y", "args": ("1", "2"), "env": {"A": "b"}, "cwd": "/tmp"}
    changed = ServerConfig(
        name="a",
        **(
            {"command": "x", "args": ("1",), "env": {"A": "${A}"}, "cwd": "/"}
            | {key: other[key] for key in changes}
        ),
    )  # type: ignore[arg-type]
    assert changed.key != same.key
    assert (
        ServerConfig(
            name="a",
            command="x",
            args=("1",),
            env={"A": "${A}"},
            cwd="/",
            timeout_s=1,
            trust=Trust(danger=Danger.SAFE),
        ).key
        == same.key
    )


def _definition(**fields: Any) -> Definition:
    return Definition(name="t", fields={"name": "t", "inputSchema": {"type": "object"}, **fields})


def test_pins_cover_every_field_and_no_order(tmp_path: Path) -> None:
    """Description, nested schema text, annotations and unknown fields change the pin; the order of keys does
    not, nor does keeping it.
    """
    plain = _definition(description="d", annotations={"a": 1, "b": 2})
    assert _definition(annotations={"b": 2, "a": 1}, description="d").pin == plain.pin
    others = [
        _definition(description="e", annotations={"a": 1, "b": 2}),
        _definition(description="d", annotations={"a": 1, "b": 3}),
        _definition(description="d", annotations={"a": 1, "b": 2}, new=1),
        _definition(
            description="d",
            annotations={"a": 1, "b": 2},
            inputSchema={"type": "object", "properties": {"x": {"description": "y"}}},
        ),
    ]
    assert len({plain.pin, *(other.pin for other in others)}) == 5
    server = ServerConfig(name="a", command="x")
    approvals = Approvals(tmp_path / "deep" / "mcp.json")
    assert approvals.tools(server) is None
    approvals.approve(server, {"t": plain})
    assert approvals.tools(server) == {"t": plain}
    assert approvals.path.stat().st_mode & 0o077 == 0
    assert (approvals.withdraw(server), approvals.withdraw(server), approvals.tools(server)) == (
        True,
        False,
        None,
    )
    approvals.path.write_text("{")
    with pytest.raises(UsageError, match="approve the MCP servers again"):
        approvals.tools(server)


@given(
    st.text(max_size=20),
    st.recursive(
        st.text(max_size=5) | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=8,
    ),
)
def test_no_definition_breaks_the_vetting(name: str, value: Any) -> None:
    """Whatever a server says of a tool, it is offered or refused with a reason, and what is offered has no
    hidden characters.
    """
    kept, refused = check_definitions(
        [Definition(name=name, fields={"name": name, "inputSchema": value, "x": value})]
    )
    assert len(kept) + len(refused) == 1
    assert all(refused.values())


OWN = {"command": "x", "at_least": "S1", "untrusted": False, "content": ["body"]}


def test_a_server_whose_answers_are_its_own() -> None:
    """A person may say so of a command without network in a sandbox; who approves it is told, and approves
    exactly that.
    """
    made = read_server("notes", OWN)
    assert (made.trust.untrusted, made.trust.content) == (False, ("body",))
    assert "answers of all tools are its own" in made.shown
    assert made.key != read_server("notes", {**OWN, "untrusted": True}).key
    one = read_server("notes", {"command": "x", "at_least": "S1", "tools": {"look": {"untrusted": False}}})
    assert (one.trust_in("look").untrusted, one.trust_in("send").untrusted) == (False, True)


@pytest.mark.parametrize(
    "more", [{"at_least": ""}, {"network": True}, {"command": "", "url": "https://x.example/"}]
)
def test_answers_of_a_server_with_network_are_never_its_own(more: dict[str, Any]) -> None:
    """What can reach others, or is not held in, may answer what others wrote."""
    table = {key: value for key, value in {**OWN, **more}.items() if value != ""}
    with pytest.raises(UsageError, match="untrusted = false is for a command without network"):
        read_server("notes", table)


@pytest.mark.parametrize(
    ("fields", "hidden"),
    [
        ({"description": "send\u200bkeys"}, "send"),
        ({"inputSchema": {"type": "object", "properties": {"a": {"description": "x\u202ey"}}}}, "x"),
        ({"inputSchema": {"type": "object", "properties": {"a\u200b": {}}}}, "a"),
        ({"x": [1, ["plain", "sm\u0000all"]]}, "sm"),
        ({"description": "two\r\nlines\tand a tab", "x": [None, 1.5, True, {"a": ["b"]}]}, ""),
    ],
    ids=["in a text", "in a schema", "in a name", "in a list", "nowhere"],
)
def test_hidden_characters_are_found_wherever_they_are(fields: dict[str, Any], hidden: str) -> None:
    """And shown with the reason; a tool without them is offered."""
    kept, refused = check_definitions([_definition(**fields)])
    assert (list(kept), list(refused)) == (([], ["t"]) if hidden else (["t"], []))
    assert all(f"its definition has hidden characters: {hidden}" in why for why in refused.values())


def test_a_definition_may_be_so_long_and_no_longer() -> None:
    """64,000 characters with all of its fields."""
    room = 64_000 - len(dumps(_definition(description="").fields))
    assert check_definitions([_definition(description="d" * room)])[1] == {}
    assert check_definitions([_definition(description="d" * (room + 1))])[1] == {
        "t": "its definition has 64,001 characters, more than 64,000"
    }


def test_a_server_may_have_so_many_tools_and_no_more() -> None:
    """Five hundred are offered; that there are more is told, and they are not looked at."""
    tools = [Definition(name=f"t{number}", fields={"name": f"t{number}"}) for number in range(502)]
    assert check_definitions(tools[:500]) == ({tool.name: tool for tool in tools[:500]}, {})
    kept, refused = check_definitions(tools)
    assert (len(kept), refused) == (500, {"…": "the server has more than 500 tools"})


def test_a_tool_is_described_in_the_best_words_there_are() -> None:
    """Its description, else its title, else its name; arguments that are not told are any."""
    assert _definition(description="d", title="t").description == "d"
    assert [_definition(description="", title="T").description, _definition().description] == ["T", "t"]
    assert Definition(name="t", fields={"inputSchema": "x"}).schema == {"type": "object", "properties": {}}


def test_approvals_are_kept_beside_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the environment says, else in the home folder; what cannot be written says what to do."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Approvals.of({"XDG_CONFIG_HOME": "/c"}).path == Path("/c/kestrel/mcp.json")
    assert (
        Approvals.of({}).path
        == Approvals.of({"XDG_CONFIG_HOME": ""}).path
        == tmp_path / ".config/kestrel/mcp.json"
    )
    (tmp_path / "file").write_text("")
    blocked = Approvals(tmp_path / "file" / "mcp.json")
    assert blocked.tools(ServerConfig(name="a", command="x")) is None
    with pytest.raises(UsageError, match=r"cannot be written .*set XDG_CONFIG_HOME"):
        blocked.approve(ServerConfig(name="a", command="x"), {})
    for content in ("[]", '{"KEY": 1}', '{"KEY": {"tools": []}}'):
        server = ServerConfig(name="a", command="x")
        odd = Approvals(tmp_path / "mcp.json")
        odd.path.write_text(content.replace("KEY", server.key))
        assert odd.tools(server) is None


def test_approvals_of_before_stay_valid() -> None:
    """A server without any freedom has the key that it had before there were freedoms and logins; each login
    has its own.
    """
    plain = ServerConfig(name="a", command="x", args=("-v",), env={"A": "b"})
    assert plain.key == content_key("a", "x", ["-v"], {"A": "b"}, "", "", {})
    keys = {
        ServerConfig(name="a", url="https://x", oauth=OAuth(client_id=client)).key
        for client in ("", "one", "two")
    }
    assert len(keys) == 3


def test_variables_of_a_login_are_filled_in() -> None:
    """What is secret may come from the environment; the rest is as it stands."""
    given = {
        name: f"${{{name.upper()}}}" for name in ("client_id", "client_secret", "private_key", "id_token")
    }
    filled = ServerConfig(name="a", url="https://x", oauth=OAuth(**given, scope="${S}")).filled_oauth(
        {name.upper(): name for name in given}
    )
    assert filled == OAuth(**{name: name for name in given}, scope="${S}")
    with pytest.raises(UsageError, match="needs the environment variable ID_TOKEN"):
        ServerConfig(name="a", url="https://x", oauth=OAuth(id_token="${ID_TOKEN}")).filled_oauth({})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"command": "x", "comand": "y"}, "^f: MCP server 'a': unknown key 'comand'"),
        ({"command": "x", "args": "-v"}, r"args: must be a list of texts \(found '-v'\)$"),
        ({"command": "x", "command\0": "y"}, "unknown key"),
        ({"command": "x\0"}, "command: must be a text"),
        ({"command": "x", "network": 1}, "network: must be true or false"),
        ({"command": "x", "tools": []}, "tools: must be a table with a table for each tool"),
        ({"command": "x", "tools": {"t": 1}}, "tool 't': must be a table with danger or effect"),
        ({"command": "x", "untrusted": 0}, "untrusted must be true or false, and content a list"),
        ({"command": "x", "content": "body"}, "untrusted must be true or false, and content a list"),
        ({"command": "x", "content": [1]}, "untrusted must be true or false, and content a list"),
        ({"command": "x", "oauth": {}}, "which may have oauth"),
        ({"url": "https://x", "oauth": 1}, "^f: MCP server 'a': oauth: must be a table$"),
        ({"url": "https://x", "oauth": {"id_token": "t", "client_id": "c"}}, "where it has an id_token$"),
        (
            {"url": "https://x", "oauth": {"client_credentials": True, "client_id": "c"}},
            "client_id and issuer",
        ),
        (
            {
                "url": "https://x",
                "oauth": {
                    "client_credentials": True,
                    "client_id": "c",
                    "issuer": "i",
                    "client_secret": "s",
                    "private_key": "k",
                },
            },
            "one of them",
        ),
    ],
)
def test_each_key_has_its_kind_of_value(table: dict[str, Any], said: str) -> None:
    """What stands there instead is named with its file, unless it may be a secret."""
    with pytest.raises(UsageError, match=said):
        read_server("a", table, "f")
    with pytest.raises(UsageError, match=r"^MCP server 'a b': a name has"):
        read_server("a b", table)


def test_what_a_table_leaves_out_is_as_it_is_for_all(tmp_path: Path) -> None:
    """A tool has the trust of its server in what it does not say; a level that is not said is the lowest that
    holds anything in.
    """
    made = read_server(
        "a",
        {
            "command": "x",
            "danger": "low",
            "effect": "pure",
            "content": ["b"],
            "tools": {"t": {"danger": "high"}, "u": {"effect": "opaque"}},
        },
    )
    assert made.tools == {
        "t": Trust(danger=Danger.HIGH, effect="pure", content=("b",)),
        "u": Trust(danger=Danger.LOW, effect="opaque", content=("b",)),
    }
    assert (made.network, made.enabled, made.sandbox, made.only) == (False, True, None, None)
    whole = {
        "client_id": "c",
        "client_secret": "s",
        "issuer": "i",
        "id_endpoint": "e",
        "id_client": "d",
        "id_token": "t",
        "port": 7,
    }
    assert read_server("a", {"url": "https://x", "oauth": whole}).oauth == OAuth(**whole)  # type: ignore[arg-type]
    assert read_mcp_json(tmp_path / "none") == {}
