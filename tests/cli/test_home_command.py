"""`kestrel home`: the log is kept outside of the folder that one works in, and found again after either was
moved.
"""

import json
import os
from pathlib import Path

import pytest
from in_process import home_of, kestrel

from kestrel_lab import Lab
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.homes import RECORD, default_home, moved_notice, own_home, state_folder

SCRIPT = "rules:\n- when: .\n  turns: [done]\n"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a script for the model, and a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (folder := tmp_path / "shop").mkdir()
    (folder / "s.yaml").write_text(SCRIPT)
    return folder


def run(folder: Path, goal: str) -> None:
    """A run of the folder."""
    assert kestrel(folder, "run", goal, "--model", "scripted:s.yaml").returncode == 0


def test_the_log_is_kept_outside_of_the_workspace(shop: Path, tmp_path: Path) -> None:
    """In a folder with a readable name, private, that says whose it is; the workspace stays as it was, also
    through a link.
    """
    run(shop, "one")
    home = home_of(shop)
    assert home.parent == tmp_path / "state" / "kestrel" and home.name.startswith("shop-")
    assert {path.name for path in shop.iterdir()} == {"s.yaml"}
    assert (home.stat().st_mode & 0o777, home.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    assert json.loads((home / RECORD).read_text())["workspace"] == str(shop)
    (tmp_path / "link").symlink_to(shop)
    assert home_of(tmp_path / "link") == home
    assert f"{home} (one per workspace)" in kestrel(shop, "home").stdout
    (shop / "sub").mkdir()
    assert home_of(shop / "sub") != home  # as before: each folder has its own


def test_a_log_in_the_workspace_goes_on_being_used(shop: Path) -> None:
    """As long as there is no other; one that appears when there is another, from a command or an archive,
    counts for nothing.
    """
    Lab(home=shop / ".kestrel", env={}).close()
    run(shop, "one")
    assert home_of(shop) == shop / ".kestrel"
    assert "it lies in the workspace" in kestrel(shop, "home").stdout
    other = shop.parent / "other"
    other.mkdir()
    (other / "s.yaml").write_text(SCRIPT)
    run(other, "two")
    Lab(home=other / ".kestrel", env={}).close()
    assert home_of(other) == own_home(other, os.environ)
    assert "has a log too, which is not used" in kestrel(other, "home").stdout


def test_a_home_is_moved(shop: Path, tmp_path: Path) -> None:
    """Out of the workspace, to a folder that is named, and back; its runs come with it, and what is open is
    left alone.
    """
    with Lab(home=shop / ".kestrel", env={}) as lab:
        opened = kestrel(shop, "home", "--move")
        assert (opened.returncode, "is open, here or in another process" in opened.stderr) == (2, True)
        assert lab.store.runs() == []
    run(shop, "one")
    assert "moved" in kestrel(shop, "home", "--move").stdout
    assert not (shop / ".kestrel").exists() and "one" in kestrel(shop, "runs").stdout
    assert kestrel(shop, "home", "--move", str(tmp_path / "kept")).returncode == 0
    assert (tmp_path / "kept" / "kestrel.db").exists() and "one" in kestrel(shop, "runs").stdout
    assert "found by the link" in kestrel(shop, "home").stdout
    assert kestrel(shop, "home", "--move").returncode == 0
    assert home_of(shop).is_dir() and not home_of(shop).is_symlink() and "one" in kestrel(shop, "runs").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--move"], "there is no log of"),
        (["--move", "--take"], "give one of them"),
        (["--take"], "name the home to take over"),
        (["--take", "gone-1"], "gone-1 is no home of a workspace"),
        (["somewhere"], "say what is to be done with somewhere"),
    ],
)
def test_what_cannot_be_moved_is_said(shop: Path, words: list[str], said: str) -> None:
    """Exit code 2, and what to do."""
    done = kestrel(shop, "home", *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_home_that_a_setting_names_is_not_moved(shop: Path) -> None:
    """The setting would still name the old place."""
    (shop / "kestrel.toml").write_text('home = "kept"\n')
    done = kestrel(shop, "home", "--move")
    assert done.returncode == 2 and "home is set by" in done.stderr


def test_a_folder_that_is_full_is_not_written_over(shop: Path, tmp_path: Path) -> None:
    """Nothing is lost on the way."""
    run(shop, "one")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "x").touch()
    assert "is there already" in kestrel(shop, "home", "--move", str(tmp_path / "kept")).stderr
    assert "lies in the home itself" in kestrel(shop, "home", "--move", str(home_of(shop) / "deep")).stderr
    assert "one" in kestrel(shop, "runs").stdout


def test_a_workspace_that_was_moved_says_where_its_runs_are(shop: Path, tmp_path: Path) -> None:
    """The notice names the command, which takes the runs over; `kestrel home` lists homes whose workspace is
    gone.
    """
    run(shop, "one")
    home = home_of(shop)
    moved = shop.rename(tmp_path / "store")
    told = kestrel(moved, "runs").stderr
    assert f"kestrel home --take {home.name}" in told and str(shop) in told
    assert home.name in kestrel(moved, "home").stdout
    assert "are those of" in kestrel(moved, "home", "--take", home.name).stdout
    assert (
        "one" in kestrel(moved, "runs").stdout and not home.exists() and moved_notice(moved, os.environ) == ""
    )
    assert "which is there" in kestrel(tmp_path, "home", "--take", home_of(moved).name).stderr


def test_runs_are_never_replaced_by_those_of_another_folder(shop: Path, tmp_path: Path) -> None:
    """A folder that has runs of its own keeps them."""
    run(shop, "one")
    home, moved = home_of(shop), shop.rename(tmp_path / "store")
    run(moved, "two")
    assert "has runs of its own" in kestrel(moved, "home", "--take", home.name).stderr
    assert "two" in kestrel(moved, "runs").stdout


def test_where_nothing_can_be_kept_outside_the_log_is_in_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a user without a home folder; a name of signs and spaces is still a name."""
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_folder({}) is None and default_home(tmp_path, {}) == tmp_path / ".kestrel"
    (odd := tmp_path / "a b/ñ: ?".replace("/", "_")).mkdir()
    assert default_home(odd, {"XDG_STATE_HOME": str(tmp_path)}).name.startswith("a-b_ñ-")
    assert state_folder({"XDG_STATE_HOME": "relative"}) is None


def test_a_session_without_a_home_records_whose_it_is(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that is named says nothing of a workspace: several may share it."""
    monkeypatch.chdir(shop)
    with Lab(home="named", env={}) as lab:
        assert not (lab.home / RECORD).exists()
    store = SessionStore(home_of(shop) / "kestrel.db")
    store.close()
    with Lab() as lab:
        assert json.loads((lab.home / RECORD).read_text())["workspace"] == str(shop)
