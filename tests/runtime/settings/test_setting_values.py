"""Values of settings: which are accepted and as what, which make something less safe, and which MCP servers a
folder has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.run_types import Limits
from kestrel_lab.runtime.settings import LIMITS, find_weakenings, load_settings, mcp_servers


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("network", "ON", True),
        ("network", "yes", True),
        ("network", "true", True),
        ("network", "no", False),
        ("network", "off", False),
        ("network", True, True),
        ("seconds", "none", None),
        ("seconds", "2.5", 2.5),
        ("seconds", 1, 1.0),
        ("cycles", "3", 3),
        ("cycles", 3.0, 3),
        ("cycles", "None", None),
        ("abstain", 1, 1.0),
        ("abstain", "none", None),
        ("sandbox", "s2", "S2"),
        ("sandbox", "auto", "auto"),
        ("containment", False, "off"),
        ("otel", True, "on"),
        ("otel", False, "off"),
        ("otel", "content", "content"),
        ("guidance_files", False, "off"),
        ("mcp_allow", " a==1 ,, b==2.*", ("a==1", "b==2.*")),
        ("mcp_allow", [], ()),
        ("approve", "auto:low", "auto:LOW"),
    ],
)
def test_a_setting_is_read_as_what_it_means(tmp_path: Path, key: str, given: Any, value: Any) -> None:
    """From the environment as text, from code as it is; the source is kept."""
    settings = load_settings(tmp_path, {}).given("here", **{key: given})
    found = settings[key]
    assert (
        (str(found).lower(), type(found)) == (str(value).lower(), type(value))
        if key in ("sandbox", "approve")
        else found == value
    )
    assert settings.items[key].source == "here"
    if isinstance(given, str):
        assert load_settings(tmp_path, {f"KESTREL_{key.upper()}": given})[key] == found


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("network", "maybe", "must be on or off"),
        ("network", 1, "must be on or off"),
        ("seconds", [1], "must be a number"),
        ("seconds", 0, "must be positive"),
        ("cycles", "2.5", "must be a whole number"),
        ("abstain", 1.01, "must be a share from 0 to 1"),
        ("mcp_allow", 3, "must be a list of NAME==VERSION"),
        ("mcp_allow", [3], "must be a list of NAME==VERSION"),
        ("model", 3, "must be a text"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tmp_path: Path, key: str, given: Any, message: str) -> None:
    """With the key and what it has to be."""
    with pytest.raises(UsageError, match=f"here: setting '{key}': {message}"):
        load_settings(tmp_path, {}).given("here", **{key: given})


@pytest.mark.parametrize(
    ("line", "weakens"),
    [
        ('home = ".kestrel/deep"', False),
        ('home = "/elsewhere"', True),
        ('home = "~/x"', True),
        ('model = "scripted:file"', True),
        ('model = "openai/x > scripted:file"', True),
        ('model = "x//y"', True),
        ('provider = "anything"', False),
        ('api_base = "http://x"', True),
        ('approve = "deny"', False),
        ('approve = "ask"', False),
        ('approve = "auto"', True),
        ('approve = "auto:low"', False),
        ('approve = "auto:medium"', True),
        ('sandbox = "S3"', False),
        ('sandbox = "auto"', False),
        ('sandbox = "S2"', True),
        ('sandbox = "S0"', True),
        ("network = true", True),
        ("network = false", False),
        ("sandbox_memory = 0.5", False),
        ('sandbox_memory = "none"', True),
        ('containment = "strict"', False),
        ('containment = "off"', True),
        ('verify = "off"', True),
        ('verify = "judge"', False),
        ("abstain = 0.5", False),
        ('skills = "off"', False),
        ('skills = "workspace"', False),
        ('skills = "workspace, /elsewhere"', True),
        ('otel = "on"', True),
        ("cycles = 1", False),
        ("cycles = 1000000", True),
        ('cost_usd = "none"', True),
        ('tokens = "none"', False),
        ('cache = "replay"', False),
    ],
)
def test_what_makes_something_less_safe_than_by_default(
    tmp_path: Path, line: str, weakens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a project may say so only once it is trusted; what is as safe or safer always holds."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "kestrel.toml"
    path.write_text(f"# first line\n{line}\n")
    key = line.partition(" =")[0]
    settings = load_settings(tmp_path, {})
    assert [(one.key, one.line) for one in settings.ignored] == ([(key, 2)] if weakens else [])
    assert (settings.items[key].source == "default") is weakens
    trusting = load_settings(tmp_path, {"KESTREL_TRUST": "all"})
    assert trusting.ignored == () and trusting.items[key].source != "default"
    if trusting[key] is not None:
        assert settings.given("here", **{key: trusting[key]}).ignored == ()


def test_rules_that_allow_are_weakenings_and_others_are_not(tmp_path: Path) -> None:
    """By their number, so that the others of the file hold."""
    path = tmp_path / "kestrel.toml"
    path.write_text(
        '[[rules]]\ntool = "bash"\nverdict = "deny"\n\n[[rules]]\ntool = "grep"\nverdict = '
        '"allow"\n\n[[rules]]\ntool = "glob"\nverdict = "ask"\n'
    )
    settings = load_settings(tmp_path, {})
    assert [rule.verdict for rule in settings.rules] == ["deny", "ask"]
    assert [(one.key, one.number, one.line > 3) for one in settings.ignored] == [("rules", 2, True)]
    told = [row[0] for row in settings.table()[1]]
    assert told.count("rules") == 3
    only = settings.only("cycles")
    assert ([one.key for one in only], only.ignored) == (["cycles"], ())
    with pytest.raises(UsageError, match=r"unknown setting 'cycle'.*cycles"):
        settings.only("cycle")


def test_limits_of_runs_are_those_that_are_set(tmp_path: Path) -> None:
    """Each under its own name."""
    assert load_settings(tmp_path, {}).limits == Limits()
    given = load_settings(tmp_path, {}).given("here", cycles=3, seconds=9)
    assert (given.limits.cycles, given.limits.seconds) == (3, 9.0)
    assert set(LIMITS) <= {one.key for one in given}


def test_an_address_is_shown_without_its_password(tmp_path: Path) -> None:
    """In the table too."""
    settings = load_settings(tmp_path, {"KESTREL_CACHE_URL": "redis://me:secret@host:1/0"})
    assert "secret" not in str(settings.table()) and "host" in settings.items["cache_url"].shown
    assert settings.items["model"].shown == "None"


def test_servers_of_a_folder_come_from_both_kinds_of_files(tmp_path: Path) -> None:
    """The nearest `.mcp.json` up to the repository, and the settings, which win; what is said of less danger
    counts only when trusted.
    """
    root, folder = tmp_path / "repo", tmp_path / "repo" / "deep"
    folder.mkdir(parents=True)
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"outside": {"command": "out"}}}')
    (root / ".git").mkdir()
    (root / ".mcp.json").write_text(
        '{"mcpServers": {"one": {"command": "json"}, "two": {"command": "json"}}}'
    )
    (root / "kestrel.toml").write_text(
        '[mcp.servers.two]\ncommand = "toml"\ndanger = "SAFE"\n\n[mcp.servers.two.tools.x]\ndanger = "LOW"\n'
    )
    found = mcp_servers(folder, {})
    assert sorted(found) == ["one", "two"]
    assert [found[name].command for name in ("one", "two")] == ["json", "toml"]
    assert found["two"].trust.danger > Danger.SAFE
    assert mcp_servers(folder, {"KESTREL_TRUST": "all"})["two"].trust.danger == Danger.SAFE
    weak = find_weakenings(
        root / "kestrel.toml", {"mcp": {"servers": {"two": {"command": "toml", "danger": "SAFE"}}}}
    )
    assert [(one.key, one.shown) for one in weak] == [("mcp", "mcp server two: less danger of *")]


@pytest.mark.parametrize(
    "content",
    [
        "mcp = 3",
        "[mcp]\nservers = 3",
        '[mcp]\nserver = "x"',
        '[mcp.servers.x]\ncommand = "a"\n[mcp.other]\na = 1',
    ],
)
def test_servers_that_are_not_tables_are_refused(tmp_path: Path, content: str) -> None:
    """With the form that they have to have."""
    (tmp_path / "kestrel.toml").write_text(content)
    with pytest.raises(UsageError, match=r"kestrel\.toml: write MCP servers as \[mcp\.servers\.NAME\]"):
        mcp_servers(tmp_path, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [("[tool]\nkestrel = 3", "tool.kestrel must be a table"), ("tool = 3", ""), ("[tool.other]\na = 1", "")],
)
def test_a_project_file_without_settings_is_none(tmp_path: Path, content: str, message: str) -> None:
    """A table of that name has to be one; without it the search goes on above."""
    (tmp_path / "kestrel.toml").write_text("cycles = 3\n")
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(content)
    if message:
        with pytest.raises(UsageError, match=message):
            load_settings(folder, {})
    else:
        assert load_settings(folder, {})["cycles"] == 3
