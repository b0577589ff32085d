"""Programs for our own use come from folders that no agent writes to."""

import os
import stat
from pathlib import Path

import pytest

from kestrel_lab.host import programs
from kestrel_lab.host.programs import beside_python, exclude_folder, find_program


def plant(folder: Path, name: str = "bash") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text("#!/bin/sh\ntouch planted\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    exclude_folder(folder)
    return folder


@pytest.mark.parametrize(
    "how",
    [
        "in it",
        "below it",
        "by a link to the folder",
        "by a link to the program",
        "relative",
        "writable by all",
    ],
)
def test_a_program_that_an_agent_can_write_is_not_taken(
    closed: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever way a folder of the workspace comes to be on the PATH, the next one on it is taken."""
    real = plant(tmp_path / "real")
    folder = closed / "bin" if how != "in it" else closed
    plant(folder)
    on_path = str(folder)
    if how == "by a link to the folder":
        (tmp_path / "linked").symlink_to(folder)
        on_path = str(tmp_path / "linked")
    elif how == "by a link to the program":
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "bash").symlink_to(folder / "bash")
        on_path = str(tmp_path / "links")
    elif how == "relative":
        monkeypatch.chdir(closed)
        on_path = "bin"
    elif how == "writable by all":
        plant(tmp_path / "open")
        (tmp_path / "open").chmod(0o777 | stat.S_ISVTX)
        on_path = str(tmp_path / "open")
    path = os.pathsep.join([on_path, str(real.parent)])

    assert find_program("bash", path=path) == str(real)
    assert find_program("bash", path=on_path) is None
    assert find_program("bash", path="") is None


def test_a_workspace_that_only_the_caller_knows(tmp_path: Path) -> None:
    """`outside` closes a folder for one question; without it the same program is found, which the test would
    notice.
    """
    program = plant(tmp_path / "elsewhere" / "bin")
    path = str(program.parent)
    assert find_program("bash", path=path, outside=[tmp_path / "elsewhere"]) is None
    assert find_program("bash", path=path) == str(program)


def test_a_path_is_no_name(tmp_path: Path) -> None:
    """Who has a path needs no search, and gets none that leads elsewhere."""
    with pytest.raises(ValueError, match="not a plain name"):
        find_program("bin/bash")


def test_what_was_found_is_kept_until_a_workspace_is_opened_there(tmp_path: Path) -> None:
    """A program stays the one that was found; opened as a workspace, its folder is closed from then on."""
    first, second = plant(tmp_path / "a"), plant(tmp_path / "b")
    path = os.pathsep.join([str(first.parent), str(second.parent)])
    assert find_program("bash", path=path) == str(first)
    exclude_folder(first.parent)
    assert find_program("bash", path=path) == str(second)


def test_the_environment_of_this_python_comes_last_if_agents_work_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An `rg` of the environment is taken before that of the PATH, unless the environment is in the
    workspace.
    """
    own, other = plant(tmp_path / "work" / ".venv" / "bin", "rg"), plant(tmp_path / "usr", "rg")
    monkeypatch.setattr("sys.executable", str(own.parent / "python"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert beside_python("rg") == str(own)
    assert beside_python("rg", outside=[tmp_path / "work"]) == str(other)
    monkeypatch.setenv("PATH", str(own.parent))
    assert beside_python("rg", outside=[tmp_path / "work"]) == str(own)


def test_the_check_notices_a_search_that_knows_no_workspace(closed: Path) -> None:
    """A mutant that forgets the workspaces takes the planted program."""
    path = str(plant(closed / "bin").parent)
    known = set(programs._workspaces)
    try:
        programs._workspaces.clear()
        programs._found.clear()
        assert find_program("bash", path=path) == f"{path}/bash"
    finally:
        programs._workspaces.update(known)
        programs._found.clear()


def test_a_relative_folder_of_the_path_is_never_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody's workspace is: it is another one wherever the process stands."""
    program = plant(tmp_path / "bin", "lonely")
    monkeypatch.chdir(tmp_path)
    assert find_program("lonely", path="bin") is None
    assert find_program("lonely", path=os.pathsep.join(["missing", "bin", str(program.parent)])) == str(
        program
    )
