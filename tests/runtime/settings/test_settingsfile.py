"""One setting is changed: in a file of which nothing else changes, or in a lab at work."""

import tomllib
from pathlib import Path

import pytest

from kestrel_lab import Lab
from kestrel_lab.cli.main import main
from kestrel_lab.cli.settings_file import write_setting
from kestrel_lab.core.errors import UsageError
from kestrel_lab.runtime.settings import load_settings

FILE = """# mine
approve = "auto"   # why not

cache = "off"

[mcp.servers.time]
command = "mcp-server-time"
cache = "not this one"
"""


def test_one_line_changes(tmp_path: Path) -> None:
    """The line of the setting is replaced, or a new one added before the first table; comments and everything
    else stay.
    """
    path = tmp_path / "kestrel.toml"
    path.write_text(FILE)
    assert write_setting(tmp_path, "cache", "refresh") == path
    assert path.read_text() == FILE.replace('cache = "off"', 'cache = "refresh"')
    write_setting(tmp_path, "cycles", "7")
    assert path.read_text() == FILE.replace('cache = "off"', 'cache = "refresh"\ncycles = 7')
    write_setting(tmp_path, "network", "true")
    assert [
        load_settings(tmp_path, {"KESTREL_TRUST": "all"})[key]
        for key in ("cache", "cycles", "network", "approve")
    ] == [
        "refresh",
        7,
        True,
        "auto",
    ]
    assert [child.name for child in tmp_path.iterdir()] == ["kestrel.toml"]


def test_a_file_is_made_where_settings_are(tmp_path: Path) -> None:
    """Without a `kestrel.toml` one is made: beside the `pyproject.toml` that holds, else in the folder
    itself.
    """
    (tmp_path / "pyproject.toml").write_text('[tool.kestrel]\ncache = "off"\n')
    below = tmp_path / "a"
    below.mkdir()
    assert write_setting(below, "cache", "use") == tmp_path / "kestrel.toml"
    assert load_settings(below, {})["cache"] == "use"
    alone = tmp_path / "b"
    (alone / ".git").mkdir(parents=True)
    assert write_setting(alone, "model", 'a"b\n').read_text() == 'model = "a\\"b\\n"\n'
    assert load_settings(alone, {})["model"] == 'a"b\n'


@pytest.mark.parametrize(
    ("before", "key", "value", "message"),
    [
        ("", "cahce", "off", "did you mean 'cache'"),
        ("", "cache", "of", "did you mean 'off'"),
        ("", "cycles", "many", "must be a number"),
        ("", "cycles", "-1", "must be positive"),
        ('model = """\ncache = "x"\n"""\n', "cache", "off", 'write cache = "off" into it by hand'),
        ("cycles = [\n1]", "cycles", "3", "setting 'cycles'"),
    ],
)
def test_what_cannot_be_set_changes_nothing(
    before: str, key: str, value: str, message: str, tmp_path: Path
) -> None:
    """An unknown setting, a value it cannot have and a file that only a person understands are refused; the
    file stays as it is.
    """
    path = tmp_path / "kestrel.toml"
    path.write_text(before)
    with pytest.raises(UsageError, match=message):
        write_setting(tmp_path, key, value)
    assert path.read_text() == before


def test_a_lab_is_changed_for_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed is in force for later runs and says so; what a lab is made with stays, and so does
    every file.
    """
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="unknown cache mode"):
        Lab(home=tmp_path / "h", cache="maybe", env={})
    lab = Lab(home=tmp_path / "h", cache="off", env={})
    assert (lab.cache.mode, lab.settings.items["cache"].source) == ("off", "Lab(…)")
    shown = repr(lab.configure("cache", "replay"))
    assert (lab.cache.mode, "replay" in shown, "this session" in shown) == ("replay", True, True)
    lab.configure("cycles", "3")
    lab.configure("approve", "auto:low")
    lab.configure("network", "on")
    assert (lab.limits.cycles, lab.options["approve"], lab.sandbox.network) == (
        3,
        "auto:low",
        True,
    )
    for key, message in {
        "home": "cannot be changed",
        "cahce": "did you mean 'cache'",
        "cache_url": "cannot be changed",
    }.items():
        with pytest.raises(UsageError, match=message):
            lab.configure(key, "x")
    with pytest.raises(UsageError, match="unknown cache mode"):
        lab.configure("cache", "x")
    assert lab.cache.mode == "replay"
    assert not list(tmp_path.glob("*.toml"))
    lab.close()


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    """An address in the table of settings has no user and no password."""
    settings = load_settings(tmp_path, {"KESTREL_CACHE_URL": "redis://me:secret@host/0"})
    assert "secret" not in repr(settings) + settings._repr_html_()
    assert "redis://…@host/0" in repr(settings)
    assert settings["cache_url"] == "redis://me:secret@host/0"


def test_the_command_shows_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kestrel config SETTING VALUE` writes the file and shows what is in force, which a variable may still
    decide.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KESTREL_CACHE", raising=False)

    def kestrel(*words: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return end.value.code, " ".join((told.out + told.err).split())

    assert kestrel("config", "cache", "refresh")[0] == 0
    assert tomllib.loads((tmp_path / "kestrel.toml").read_text()) == {"cache": "refresh"}
    assert "cache refresh kestrel.toml" in kestrel("config", "cache")[1]
    monkeypatch.setenv("KESTREL_CACHE", "off")
    assert "cache off KESTREL_CACHE" in kestrel("config", "cache", "use")[1]
    code, told = kestrel("config", "cahce", "use")
    assert (code, "did you mean 'cache'" in told) == (2, True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# x\r\ncycles = 3\r\n", b"# x\r\ncycles = 7\r\n"),
        (b"# x\r\n\r\n[mcp]\r\n", b"# x\r\ncycles = 7\r\n\r\n[mcp]\r\n"),
        (b"# x\x0cy\nmodel = 'a'", b"# x\x0cy\nmodel = 'a'\ncycles = 7\n"),
        ("model = 'a\u2028b'\ncycles = 3".encode(), "model = 'a\u2028b'\ncycles = 7\n".encode()),
        (b"", b"cycles = 7\n"),
    ],
)
def test_a_setting_is_written_with_the_line_ends_of_the_file(
    tmp_path: Path, before: bytes, after: bytes
) -> None:
    """CRLF stays, what only looks like a line end is left alone, and so is the mode of the file."""
    path = tmp_path / "kestrel.toml"
    path.write_bytes(before)
    path.chmod(0o640)
    if b"\x0c" in before:
        with pytest.raises(ValueError, match=r"kestrel\.toml"):  # TOML has no form feed
            write_setting(tmp_path, "cycles", "7")
        return
    write_setting(tmp_path, "cycles", "7")
    assert path.read_bytes() == after
    assert path.stat().st_mode & 0o777 == 0o640
