"""What the table of an MCP server may say, and what is said about wrong ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.mcp.approvals import Approvals, Definition, check_definitions
from kestrel_lab.mcp.config import ServerConfig, Trust, read_server
from kestrel_lab.runtime.settings import mcp_servers


def test_servers_come_from_both_files_and_settings_win(tmp_path: Path) -> None:
    """`.mcp.json` as other programs write it, `[mcp.servers.NAME]` beside; each says which file it is from."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "kestrel.toml").write_text(
        'cycles = 3\n[mcp.servers.time]\ncommand = "mine"\ndanger = "low"\n[mcp.servers.time.tools.now]\neffect = "pure"\n'
    )
    servers = {
        "time": {"command": "theirs"},
        "web": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${KEY}"}},
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
    """The command is shown whole, with the names of its variables; a value that is a secret by its name is not."""
    table = {"command": "x", "args": ["-m", "a b"], "env": {"API_TOKEN": "s3cret", "GH_TOKEN": "${GH}", "DEBUG": "1"}}
    assert read_server("a", table).shown == '"API_TOKEN=…" "GH_TOKEN=${GH}" DEBUG=1 x -m "a b"'


def test_what_another_programs_file_says_harms_nothing(tmp_path: Path) -> None:
    """Keys that only that program knows are left out, a server that is switched off stays so, one that cannot be used says why."""
    servers = {
        "a": {"command": "x", "alwaysAllow": ["*"], "danger": "safe", "timeout": 5},
        "b": {"command": "y", "disabled": True},
        "my server": {"command": "z"},
        "old": {"type": "sse", "url": "http://x"},
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    found = mcp_servers(tmp_path, {})
    assert [(one.enabled, bool(one.problem)) for one in found.values()] == [(True, False), (False, False), (False, True), (False, True)]
    assert found["a"].trust == Trust(danger=Danger.MEDIUM, effect="opaque")
    assert "sse transport is not supported" in found["old"].problem


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"mcpServers": []}', '{"mcpServers": {"a": 1}}', "[" * 100_000])
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    """Whatever is in a `.mcp.json`, the error names it."""
    (tmp_path / ".mcp.json").write_text(text)
    with pytest.raises(UsageError, match=r"mcp\.json"):
        mcp_servers(tmp_path, {})


@given(st.lists(st.sampled_from(["command", "args", "env", "cwd"]), min_size=1))
def test_approval_is_for_one_exact_command(changes: list[str]) -> None:
    """Any change of program, arguments, variables or folder makes another server of it; trust and time limits do not."""
    same = ServerConfig(name="a", command="x", args=("1",), env={"A": "${A}"}, cwd="/")
    other = {"command": "y", "args": ("1", "2"), "env": {"A": "b"}, "cwd": "/tmp"}
    changed = ServerConfig(
        name="a", **({"command": "x", "args": ("1",), "env": {"A": "${A}"}, "cwd": "/"} | {key: other[key] for key in changes})
    )  # type: ignore[arg-type]
    assert changed.key != same.key
    assert (
        ServerConfig(name="a", command="x", args=("1",), env={"A": "${A}"}, cwd="/", timeout_s=1, trust=Trust(danger=Danger.SAFE)).key
        == same.key
    )


def _definition(**fields: Any) -> Definition:
    return Definition(name="t", fields={"name": "t", "inputSchema": {"type": "object"}, **fields})


def test_pins_cover_every_field_and_no_order(tmp_path: Path) -> None:
    """Description, nested schema text, annotations and unknown fields change the pin; the order of keys does not, nor does keeping it."""
    plain = _definition(description="d", annotations={"a": 1, "b": 2})
    assert _definition(annotations={"b": 2, "a": 1}, description="d").pin == plain.pin
    others = [
        _definition(description="e", annotations={"a": 1, "b": 2}),
        _definition(description="d", annotations={"a": 1, "b": 3}),
        _definition(description="d", annotations={"a": 1, "b": 2}, new=1),
        _definition(
            description="d", annotations={"a": 1, "b": 2}, inputSchema={"type": "object", "properties": {"x": {"description": "y"}}}
        ),
    ]
    assert len({plain.pin, *(other.pin for other in others)}) == 5
    server = ServerConfig(name="a", command="x")
    approvals = Approvals(tmp_path / "deep" / "mcp.json")
    assert approvals.tools(server) is None
    approvals.approve(server, {"t": plain})
    assert approvals.tools(server) == {"t": plain}
    assert approvals.path.stat().st_mode & 0o077 == 0
    assert (approvals.withdraw(server), approvals.withdraw(server), approvals.tools(server)) == (True, False, None)
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
    """Whatever a server says of a tool, it is offered or refused with a reason, and what is offered has no hidden characters."""
    kept, refused = check_definitions([Definition(name=name, fields={"name": name, "inputSchema": value, "x": value})])
    assert len(kept) + len(refused) == 1
    assert all(refused.values())


OWN = {"command": "x", "at_least": "S1", "untrusted": False, "content": ["body"]}


def test_a_server_whose_answers_are_its_own() -> None:
    """A person may say so of a command without network in a sandbox; who approves it is told, and approves exactly that."""
    made = read_server("notes", OWN)
    assert (made.trust.untrusted, made.trust.content) == (False, ("body",))
    assert "answers of all tools are its own" in made.shown
    assert made.key != read_server("notes", {**OWN, "untrusted": True}).key
    one = read_server("notes", {"command": "x", "at_least": "S1", "tools": {"look": {"untrusted": False}}})
    assert (one.trust_in("look").untrusted, one.trust_in("send").untrusted) == (False, True)


@pytest.mark.parametrize("more", [{"at_least": ""}, {"network": True}, {"command": "", "url": "https://x.example/"}])
def test_answers_of_a_server_with_network_are_never_its_own(more: dict[str, Any]) -> None:
    """What can reach others, or is not held in, may answer what others wrote."""
    table = {key: value for key, value in {**OWN, **more}.items() if value != ""}
    with pytest.raises(UsageError, match="untrusted = false is for a command without network"):
        read_server("notes", table)
