"""Where tests are run, and what becomes of what they leave."""

import subprocess
import sys
from pathlib import Path

from folders import state_folder

CHILD = "import sys, pathlib, folders; print(folders.state_folder(pathlib.Path(sys.argv[1])), flush=True); sys.stdin.read()"


def test_a_run_without_a_workspace_works_in_an_empty_folder() -> None:
    """Not in the checkout, which each fork of it would copy, and nothing of an earlier test is there."""
    assert not Path.cwd().is_relative_to(Path(__file__).parents[1])
    assert not [*Path.cwd().iterdir()]


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    """That of a process that lives is left alone, and whatever is not such a folder."""
    (tmp_path / "other").mkdir()
    (tmp_path / "kestrel-tests-file").touch()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        (theirs / "log").write_text("kept")
        mine = state_folder(tmp_path)
        assert (theirs / "log").read_text() == "kept"
        process.kill()
    next_one = state_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "other",
        "kestrel-tests-file",
        mine.name,
        next_one.name,
    }
