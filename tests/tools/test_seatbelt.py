"""The profile for macOS, as text: what it allows, in which order, and what it refuses to name. None of this ran on macOS."""

import sys
from pathlib import Path

import pytest

from kestrel_lab.tools.sandbox.canary import why_not
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.mounts import secret_places
from kestrel_lab.tools.sandbox.seatbelt import can_seatbelt, profile, seatbelt_launch


def text(**options: object) -> str:
    """A profile for one workspace."""
    given = {"read": [Path("/data/in")], "write": [Path("/srv/space")], "private": Path("/private/tmp/own"), "sandbox": Sandbox()}
    return profile(**{**given, **options})  # type: ignore[arg-type]


def test_everything_is_refused_but_what_is_named() -> None:
    """The first rule denies all; writing is allowed in the workspace, the private folder and a few devices only."""
    lines = text().splitlines()
    assert lines[:2] == ["(version 1)", "(deny default)"]
    body = text().replace("\n", " ")
    assert '(allow file-write*   (subpath "/srv/space")   (subpath "/private/tmp/own"))' in body
    assert body.count("(allow file-write") == 2
    assert '(subpath "/data/in")' in body
    assert not any(word in body for word in ('(subpath "/")', "(allow default)", "(allow network", "system-socket", "(allow file-read*)"))


def test_the_last_rule_holds_so_what_is_guarded_comes_last() -> None:
    """Keys, hooks and settings of git, and the lab's own folder are denied behind all that is allowed; so is what the lab hides."""
    body = text(sandbox=Sandbox(hidden=(Path("/srv/space/secret"),)))
    last_allowed = max(body.rindex("(allow file-read*"), body.rindex("(allow file-write*"), body.rindex("(allow file-write-data"))
    for place in (
        "/srv/space/.git/hooks",
        "/srv/space/.git/config",
        "/srv/space/.kestrel",
        "/srv/space/secret",
        *map(str, secret_places()[:5]),
    ):
        assert body.index(f'"{Path(place).resolve()}"', body.index("(deny file-read*")) > last_allowed
    assert body.index("(deny file-read*") > last_allowed


def test_the_network_is_there_where_it_is_asked_for() -> None:
    """And nowhere else."""
    assert "(allow network-outbound (remote ip))" in text(sandbox=Sandbox(network=True))
    assert "network" not in text()


@pytest.mark.parametrize("name", ['a"b', "a\\b", 'x") (allow default) ("', "ü ö"])
def test_a_path_cannot_write_rules(name: str) -> None:
    """Quotes and backslashes in a name stay in its string: parsed as the language does, the profile has the same rules as ever."""
    body = text(write=[Path("/work") / name])
    outside, inside, escaped = "", False, False
    for sign in body:
        if escaped:
            escaped = False
        elif inside and sign == "\\":
            escaped = True
        elif sign == '"':
            inside = not inside
        elif not inside:
            outside += sign
    assert "(allow default)" not in outside
    assert (inside, outside.count("(") - outside.count(")")) == (False, 0)


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "a\udcffb"])
def test_a_path_that_cannot_be_named_is_refused(name: str) -> None:
    """Rather than put something else in its place."""
    with pytest.raises((PermissionError, ValueError)):
        text(write=[Path("/work") / name])


def test_a_command_is_started_with_it(tmp_path: Path) -> None:
    """By its full name, in its folder, with a home and temporary files of its own."""
    launch = seatbelt_launch(
        ["bash", "-c", "true"],
        read=[],
        write=[tmp_path],
        private=tmp_path / "own",
        folder=tmp_path,
        env={"A": "1", "HOME": "/x"},
        sandbox=Sandbox(),
    )
    assert (launch.argv[:2], launch.argv[3:]) == (("/usr/bin/sandbox-exec", "-p"), ("bash", "-c", "true"))
    assert (launch.cwd, dict(launch.env)) == (str(tmp_path), {"A": "1", "HOME": str(tmp_path / "own"), "TMPDIR": str(tmp_path / "own")})


@pytest.mark.skipif(sys.platform != "darwin", reason="for macOS")
def test_where_it_is_used_it_holds() -> None:
    """On macOS the canary decides; where it passes, nothing got out."""
    assert not can_seatbelt() or why_not(Level.S1, Sandbox()) == "" or "canary got out" in why_not(Level.S1, Sandbox())
