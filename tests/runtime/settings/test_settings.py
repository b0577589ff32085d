"""Where settings come from, and what is said about wrong ones."""

from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.run_types import Limits
from kestrel_lab.host.homes import default_home
from kestrel_lab.runtime.mcp.discovery import ExpansionSettings
from kestrel_lab.runtime.options import LabOptions, fill
from kestrel_lab.runtime.registry import mcp_expansion
from kestrel_lab.runtime.settings import Settings, load_settings


def test_defaults_need_no_file(tmp_path: Path) -> None:
    """With no file and no variable everything has its default, and says so."""
    (tmp_path / ".git").mkdir()
    settings = load_settings(tmp_path, {})
    assert {item.key: item.value for item in settings} == {
        "home": str(default_home(tmp_path, {})),
        "model": None,
        "provider": None,
        "api_base": None,
        "approve": "ask",
        "sandbox": "auto",
        "sandbox_memory": 4.0,
        "network": False,
        "cache": "use",
        "cache_url": None,
        "containment": "on",
        "expand": False,
        "mcp_registry": None,
        "mcp_catalogue": None,
        "mcp_allow": (),
        "verify": "warn",
        "abstain": None,
        "network_home": False,
        "form": "none",
        "pty": False,
        "guidance_files": "AGENTS.md, CLAUDE.md",
        "skills": "workspace, home",
        "otel": "off",
        "cycles": 20,
        "cost_usd": 1.0,
        "seconds": 300.0,
        "tokens": None,
        "wall_seconds": None,
        "model_seconds": 600.0,
        "messages": None,
        "context_tokens": None,
        "checkpoint_every": 10,
    }
    assert {item.source for item in settings} == {"default"}
    assert settings.limits == Limits()
    assert all(item.meaning for item in settings)


def test_the_last_one_wins(tmp_path: Path) -> None:
    """`pyproject.toml` beats defaults, `kestrel.toml` beats it, the environment beats all; each says where it
    is from.
    """
    project, own = tmp_path / "pyproject.toml", tmp_path / "kestrel.toml"
    project.write_text('[tool.kestrel]\nmodel = "a"\nhome = "p"\ncycles = 3\n')
    own.write_text('model = "b"\ncost_usd = 2\napprove = "auto:low"\n')
    below = tmp_path / "one" / "two"
    below.mkdir(parents=True)
    settings = load_settings(
        below,
        {
            "KESTREL_TRUST": "all",
            "KESTREL_MODEL": "c",
            "KESTREL_TOKENS": "500",
            "KESTREL_SECONDS": "none",
            "KESTREL_HOME": "",
        },
    )
    found = {item.key: (item.value, item.source) for item in settings if item.source != "default"}
    assert found == {
        "home": ("p", str(project)),
        "cycles": (3, str(project)),
        "cost_usd": (2.0, str(own)),
        "approve": ("auto:low", str(own)),
        "model": ("c", "KESTREL_MODEL"),
        "tokens": (500, "KESTREL_TOKENS"),
        "seconds": (None, "KESTREL_SECONDS"),
    }
    assert settings.limits == Limits(cycles=3, cost_usd=2.0, seconds=None, tokens=500)


def test_the_nearest_folder_with_settings_counts(tmp_path: Path) -> None:
    """Files of a folder further up are not mixed in, and nothing beyond the repository is read."""
    (tmp_path / "kestrel.toml").write_text('model = "far"\nhome = "far"\n')
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / "kestrel.toml").write_text('model = "near"\n')
    settings = load_settings(inner / "deep", {})
    assert (settings["model"], settings["home"]) == ("near", str(default_home(inner / "deep", {})))
    other = tmp_path / "repository"
    (other / ".git").mkdir(parents=True)
    (other / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert load_settings(other, {})["model"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('modle = "x"', r"kestrel\.toml: unknown setting 'modle': did you mean 'model'\?"),
        ("cycles = 2.5", r"kestrel\.toml: setting 'cycles': must be a whole number \(found 2\.5\)"),
        ('cycles = "many"', r"kestrel\.toml: setting 'cycles': .*\(found 'many'\)"),
        ("seconds = -1", r"kestrel\.toml: setting 'seconds': must be positive \(found -1\)"),
        ("seconds = nan", r"kestrel\.toml: setting 'seconds': must be positive"),
        ("tokens = inf", r"kestrel\.toml: setting 'tokens': must be positive"),
        ("cost_usd = true", r"kestrel\.toml: setting 'cost_usd': must be a number"),
        ("home = 3", r"kestrel\.toml: setting 'home': must be a text"),
        ('approve = "always"', r"kestrel\.toml: setting 'approve': unknown approval policy 'always'"),
        ("model = ", r"kestrel\.toml is not TOML"),
    ],
)
def test_a_wrong_setting_names_file_and_key(content: str, message: str, tmp_path: Path) -> None:
    """Whatever is wrong, the message says in which file, which key, and what was found."""
    (tmp_path / "kestrel.toml").write_text(content)
    with pytest.raises(UsageError, match=message):
        load_settings(tmp_path, {})


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    """A bad value in the environment names the variable; a key of pyproject.toml names that file."""
    with pytest.raises(UsageError, match=r"^KESTREL_CYCLES: setting 'cycles'"):
        load_settings(tmp_path, {"KESTREL_CYCLES": "x"})
    (tmp_path / "pyproject.toml").write_text('[tool.kestrel]\nhmoe = "x"\n')
    with pytest.raises(UsageError, match=r"pyproject\.toml: unknown setting 'hmoe': did you mean 'home'\?"):
        load_settings(tmp_path, {})


def _expansion(settings: Settings) -> ExpansionSettings:
    of_labs = {one.key: one.value for one in settings if one.key in LabOptions.__annotations__}
    return mcp_expansion(fill(LabOptions, of_labs))


def test_what_is_installed_unasked_is_named_exactly(tmp_path: Path) -> None:
    """A list in a file, or words with commas in the environment; a pattern that could mean more is refused
    with its place.
    """
    (tmp_path / "kestrel.toml").write_text('expand = true\nmcp_allow = ["mcp-server-time==2026.10.*"]\n')
    settings = load_settings(tmp_path, {"KESTREL_TRUST": "all"})
    assert _expansion(settings) == ExpansionSettings(expand=True, allow=("mcp-server-time==2026.10.*",))
    named = load_settings(tmp_path, {"KESTREL_MCP_ALLOW": "a==1, npm:@b/c==2.0.0", "KESTREL_EXPAND": "off"})
    assert _expansion(named) == ExpansionSettings(allow=("a==1", "npm:@b/c==2.0.0"))
    with pytest.raises(
        UsageError, match=r"KESTREL_MCP_ALLOW: setting 'mcp_allow': 'mcp-\*' is not NAME==VERSION"
    ):
        load_settings(tmp_path, {"KESTREL_MCP_ALLOW": "mcp-*"})
