"""What a project's settings weaken holds only when the user trusts them as they are."""

import shutil
import subprocess
import tomllib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main
from kestrel_lab.cli.settings_file import write_setting
from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.host.homes import default_home
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.options import SETTINGS, Opt
from kestrel_lab.runtime.project_trust import TrustedFiles, files_from_repository, ignored_notice
from kestrel_lab.runtime.settings import Settings, find_weakenings, load_settings, mcp_servers

WEAK = """
approve = "auto"
sandbox = "S0"
network = true
containment = "off"
cost_usd = 500
seconds = "none"
api_base = "https://example.org/v1"
home = "/elsewhere"
model = "scripted:evil.yaml"
expand = true
mcp_allow = ["a==1"]

[[rules]]
tool = "bash"
verdict = "allow"

[[rules]]
tool = "write_file"
verdict = "deny"

[mcp.servers.x]
command = "x"
danger = "safe"
effect = "pure"
"""
STRICT = (
    'approve = "deny"\nsandbox = "S3"\ncontainment = "strict"\ncost_usd = 0.5\ncycles = 3\ntokens = '
    '9\ncache = "off"\nverify = "repair"\n'
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a folder of settings of their own."""
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that brings settings."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / "kestrel.toml").write_text(WEAK)
    return folder


def values(settings: Settings) -> dict[str, object]:
    """Every value in force."""
    return {setting.key: setting.value for setting in settings}


def test_what_a_project_weakens_is_ignored_until_it_is_trusted(project: Path, env: dict[str, str]) -> None:
    """Every weakening setting has its default, the rule that forbids holds, and each ignored line is named;
    trusted, all hold.
    """
    settings = load_settings(project, env)
    assert values(settings) == {
        **{key: known.default for key, known in SETTINGS.items()},
        "home": str(default_home(project, env)),
    }
    assert [rule.verdict for rule in settings.rules] == ["deny"]
    assert mcp_servers(project, env)["x"].trust.danger is Danger.MEDIUM
    lines = {one.key: one.line for one in settings.ignored}
    assert lines == {
        "approve": 2,
        "sandbox": 3,
        "network": 4,
        "containment": 5,
        "cost_usd": 6,
        "seconds": 7,
        "api_base": 8,
        "home": 9,
        "model": 10,
        "expand": 11,
        "mcp_allow": 12,
        "rules": 14,
        "mcp": 22,
    }
    assert (
        "kestrel.toml is not trusted, so these settings are ignored: approve = auto (line 2), "
        in ignored_notice(settings.ignored)
    )
    assert "\n" not in ignored_notice(settings.ignored)
    path = project / "kestrel.toml"
    TrustedFiles.of(env).add(path, _table(path))
    assert load_settings(project, env).ignored == ()
    assert load_settings(project, env)["approve"] == "auto"
    assert mcp_servers(project, env)["x"].trust.danger is Danger.SAFE


def _table(path: Path) -> dict[str, object]:
    return tomllib.loads(path.read_text())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("500", "501"),
        lambda text: text.replace(
            'tool = "write_file"\nverdict = "deny"', 'tool = "write_file"\nverdict = "ask"'
        ),
        lambda text: f'form = "plan"\n{text}' if "form" not in text else text,
        lambda text: text.replace('command = "x"', 'command = "y"'),
    ],
)
def test_trust_ends_with_any_change_of_the_settings(project: Path, env: dict[str, str], change) -> None:
    """Also with a change that makes nothing weaker: a rule that forbade may be gone.

    A comment changes no setting.
    """
    path = project / "kestrel.toml"
    TrustedFiles.of(env).add(path, _table(path))
    path.write_text("# said\n" + path.read_text())
    assert load_settings(project, env).ignored == ()
    path.write_text(change(path.read_text()))
    assert load_settings(project, env)["approve"] == "ask"


def test_trust_is_of_a_place(project: Path, env: dict[str, str], tmp_path: Path) -> None:
    """The same file elsewhere, and another file here, are not trusted along."""
    path = project / "kestrel.toml"
    TrustedFiles.of(env).add(path, _table(path))
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    (other / "kestrel.toml").write_text(WEAK)
    assert load_settings(other, env)["approve"] == "ask"
    (project / "pyproject.toml").write_text('[tool.kestrel]\nverify = "off"\n[tool.x]\na = 1\n')
    found = load_settings(project, env)
    assert (found["approve"], found["verify"], [one.line for one in found.ignored]) == ("auto", "warn", [2])


def test_what_makes_safer_always_holds(project: Path, env: dict[str, str]) -> None:
    """Stricter settings of a file that nobody trusts are obeyed, beside weaker ones of the same file too."""
    (project / "kestrel.toml").write_text(f"{STRICT}network = true\n")
    settings = load_settings(project, env)
    assert {
        key: settings[key]
        for key in ("approve", "sandbox", "containment", "cost_usd", "cycles", "tokens", "cache", "verify")
    } == {
        "approve": "deny",
        "sandbox": "S3",
        "containment": "strict",
        "cost_usd": 0.5,
        "cycles": 3,
        "tokens": 9,
        "cache": "off",
        "verify": "repair",
    }
    assert [one.key for one in settings.ignored] == ["network"]


@pytest.mark.parametrize(
    "model", ["openai/gpt-5", "ollama/qwen3:8b", "gpt-5+web", "ollama/qwen3 > openai/gpt-5", "none"]
)
def test_a_plain_model_is_no_weakening(project: Path, env: dict[str, str], model: str) -> None:
    """Which provider's model a project works with may be said by the project."""
    (project / "kestrel.toml").write_text(f'model = "{model}"\n')
    assert load_settings(project, env)["model"] == model


def test_a_setting_without_an_order_weakens(
    project: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: a setting to which somebody forgot to give an order counts as weakening, one that is called
    harmless does not.
    """
    plain = SETTINGS["form"]
    (project / "kestrel.toml").write_text('form = "plan"\n')
    assert find_weakenings(project / "kestrel.toml", {"form": "plan"}) == []
    monkeypatch.setitem(SETTINGS, "form", Opt(plain.default, plain.meaning, read=plain.read))
    assert [one.key for one in load_settings(project, env).ignored] == ["form"]


def test_a_user_says_it_for_many_projects(project: Path, env: dict[str, str], tmp_path: Path) -> None:
    """The variable names everything or folders; it and other variables are the user's own."""
    for word, approve in (
        ("all", "auto"),
        ("1", "auto"),
        (str(tmp_path), "auto"),
        (f"/x:{project}", "auto"),
        ("0", "ask"),
        ("/x", "ask"),
    ):
        assert load_settings(project, {**env, "KESTREL_TRUST": word})["approve"] == approve, word
    settings = load_settings(project, {**env, "KESTREL_APPROVE": "auto:high"})
    assert (settings["approve"], "approve" in {one.key for one in settings.ignored}) == ("auto:high", False)


def test_what_a_person_sets_here_is_trusted(project: Path, env: dict[str, str]) -> None:
    """`kestrel config` writes what counts; but not what was ignored in the file along with it."""
    write_setting(project, "seconds", "600", env)
    assert load_settings(project, env)["approve"] == "ask"
    (project / "kestrel.toml").write_text(STRICT)
    write_setting(project, "approve", "auto", env)
    assert (load_settings(project, env)["approve"], load_settings(project, env)["cycles"]) == ("auto", 3)
    write_setting(project, "network", "true", env)
    assert load_settings(project, env)["network"] is True


def test_the_command_shows_trusts_and_withdraws(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """`kestrel config` says what is not trusted, `kestrel trust --show` by which line; after `kestrel trust`
    it holds, until it is withdrawn.
    """
    monkeypatch.chdir(project)
    monkeypatch.delenv("KESTREL_TRUST", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (project / "kestrel.toml").write_text('cycles = 3\napprove = "auto"\n')

    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        told = capsys.readouterr()
        return told.out + told.err

    assert "not trusted" in said("config", "approve")
    assert "approve = auto (line 2)" in said("trust", "--show")
    assert "not trusted" in said("config")
    assert "trusted in its present state; it weakens\n  approve = auto (line 2)" in said("trust")
    assert "not trusted" not in said("config")
    assert "no longer trusted" in said("trust", "--withdraw")
    assert "not trusted" in said("config", "approve")


def test_a_lab_obeys_what_code_says(
    project: Path, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Without trust a lab asks, and one line says why; what code gives is the user's own."""
    monkeypatch.chdir(project)
    with closing(Lab(home=tmp_path / "home", env=env)) as lab:
        assert (
            lab.options["approve"],
            lab.sandbox.level,
            lab.sandbox.network,
            lab.limits.cost_usd,
        ) == (
            "ask",
            None,
            False,
            1.0,
        )
    assert capsys.readouterr().err.count("kestrel trust") == 1
    with closing(Lab(home=tmp_path / "home", approve="auto", sandbox="S0", env=env)) as lab:
        assert (
            lab.options["approve"],
            lab.sandbox.name,
            [one.key for one in lab.settings.ignored][:1],
        ) == (
            "auto",
            "S0",
            ["network"],
        )


def test_a_store_that_cannot_be_read_is_told(project: Path, env: dict[str, str], tmp_path: Path) -> None:
    """A damaged store trusts nothing and says what to do; it is readable by its owner only."""
    path = project / "kestrel.toml"
    trusted = TrustedFiles.of(env)
    trusted.add(path, _table(path))
    assert trusted.store.stat().st_mode & 0o077 == 0
    assert replace(trusted, always="").remove(path)
    trusted.store.write_text("{")
    with pytest.raises(Exception, match="run kestrel trust again"):
        load_settings(project, env)


def test_a_home_that_the_repository_brings_is_not_used(
    project: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that git tracks was written by others; one that merely lies there is one's own.

    Trust is of what is tracked.
    """
    (project / ".git").rmdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    (project / "kestrel.toml").unlink()
    monkeypatch.chdir(project)
    Lab(home=".kestrel", env=env).close()
    Lab(env=env).close()
    subprocess.run(["git", "add", "-f", ".kestrel/kestrel.db"], cwd=project, check=True)
    with pytest.raises(UsageError, match="comes with the repository"):
        Lab(env=env)
    Lab(home=".kestrel", env=env).close()
    trusted = TrustedFiles.of(env)
    trusted.add(Path(".kestrel"), files_from_repository(Path(".kestrel")))
    Lab(env=env).close()
    (project / ".kestrel" / "more").write_text("x")
    subprocess.run(["git", "add", "-f", ".kestrel/more"], cwd=project, check=True)
    with pytest.raises(UsageError, match="comes with the repository"):
        Lab(env=env)
    shutil.move(project / ".kestrel", project / "real")
    (project / ".kestrel").symlink_to("real")
    subprocess.run(["git", "add", "-Af", "."], cwd=project, check=True)
    with pytest.raises(UsageError, match="comes with the repository"):
        Lab(env=env)
