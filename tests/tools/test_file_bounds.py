"""Tools for files at their bounds: the largest that is shown whole, the first that is not, and what is no
plain file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import ConflictError
from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.tools.files import fingerprints, lock, ripgrep
from kestrel_lab.tools.files.edit import replace_exact, unified_diff
from kestrel_lab.tools.files.fingerprints import CHANGING, MOST_TREE_LINES, PathFingerprint, is_fresh
from kestrel_lab.tools.files.glob import compile_pattern
from kestrel_lab.tools.files.inotify import MOST, OpenWatch
from kestrel_lab.tools.files.lock import lock_directory, read_whole
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext

BOX = native_tools()


def use(root: Path, name: str, **args: Any) -> Any:
    """Validate and run a native tool."""
    made = BOX.get(name)
    return asyncio.run(
        made.run(made.validate(args), ToolContext(workspace=Workspace(root), run_id="r", call_id="c"))
    )


def preview(root: Path, name: str, **args: Any) -> str:
    """What a person is shown before the call."""
    made = BOX.get(name)
    assert made.preview is not None
    return made.preview(made.validate(args), ToolContext(workspace=Workspace(root)))


def state(root: Path, name: str, **args: Any) -> Any:
    """The fingerprint of a call."""
    made = BOX.get(name)
    assert made.fingerprint is not None
    found = made.fingerprint(made.validate(args), ToolContext(workspace=Workspace(root)))
    return found if isinstance(found, str | None) else asyncio.run(_awaited(found))


async def _awaited(found: Any) -> Any:
    return await found


@pytest.mark.parametrize(("offset", "limit"), [(0, 1), (1, 0), (-1, -1)])
def test_lines_count_from_one(tmp_path: Path, offset: int, limit: int) -> None:
    """Neither the first line nor the number of lines may be less."""
    (tmp_path / "f").write_text("a\n")
    with pytest.raises(ValueError, match=f"offset and limit count from 1, not {min(offset, limit)}"):
        use(tmp_path, "read_file", path="f", offset=offset, limit=limit)


def test_a_file_that_just_fits_is_read_whole(tmp_path: Path) -> None:
    """18,000 characters in one line or in two; one more is left for the next call."""
    for text in ("x" * 18_000, "x" * 9_000 + "\n" + "y" * 8_999):
        (tmp_path / "f").write_text(text)
        assert use(tmp_path, "read_file", path="f") == text
    (tmp_path / "f").write_text("x" * 9_000 + "\n" + "y" * 9_000)
    assert use(tmp_path, "read_file", path="f").endswith("\n[lines 1 to 1 of 2, go on with offset=2]")
    (tmp_path / "f").write_text("x" * 18_001)
    assert use(tmp_path, "read_file", path="f").endswith("[the last 1 characters of line 1 are left out]")


def test_files_read_together_share_one_answer(tmp_path: Path) -> None:
    """Each has its part of what one answer holds, and none less than 500 characters."""
    (tmp_path / "f").write_text("x" * 18_000)
    both = use(tmp_path, "batch_read", paths=["f", "f"])
    assert both.count("[the last 9,000 characters of line 1 are left out]") == 2
    assert use(tmp_path, "batch_read", paths=["f"] * 60).count("[the last 17,500 characters") == 60
    with pytest.raises(ValueError, match="paths is empty"):
        use(tmp_path, "batch_read", paths=[])


def test_listings_are_cut_at_their_bounds_and_say_how_much_is_left(tmp_path: Path) -> None:
    """500 names, 200 paths and 400 lines of a tree are shown; of one more there is word."""
    for number in range(200):
        (tmp_path / f"{number:03}").touch()
    assert len(use(tmp_path, "glob", pattern="*").splitlines()) == 200
    (tmp_path / "200").touch()
    assert use(tmp_path, "glob", pattern="*").splitlines()[-1] == "[1 more: use a narrower pattern or path]"
    for number in range(201, MOST_TREE_LINES):
        (tmp_path / f"{number:03}").touch()
    assert len(use(tmp_path, "tree").splitlines()) == MOST_TREE_LINES + 1
    at_bound = state(tmp_path, "tree")
    (tmp_path / "400").touch()
    assert use(tmp_path, "tree").splitlines()[-2:] == [
        "  399",
        "[more: use a smaller depth or a directory further down]",
    ]
    assert state(tmp_path, "tree") != at_bound
    past = state(tmp_path, "tree")
    for number in range(401, 500):
        (tmp_path / f"{number:03}").touch()
    assert past == state(tmp_path, "tree")
    assert len(use(tmp_path, "list_directory").splitlines()) == 500
    (tmp_path / "500").touch()
    assert use(tmp_path, "list_directory").splitlines()[-2:] == ["499", "[1 more]"]
    with pytest.raises(ValueError, match="depth counts from 1, not 0"):
        use(tmp_path, "tree", depth=0)


def test_depth_counts_levels(tmp_path: Path) -> None:
    """One is the directory alone, each more one level."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/b/c/f").touch()
    depths = [len(use(tmp_path, "tree", depth=depth).splitlines()) - 1 for depth in (1, 2, 3, 4, 5)]
    assert depths == [1, 2, 3, 4, 4]


def test_what_is_no_regular_file_is_named_as_such(tmp_path: Path) -> None:
    """A socket is neither read nor replaced nor deleted, and listed as what it is."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        assert use(tmp_path, "file_exists", path="s") == "yes, but s is not a regular file"
        assert use(tmp_path, "list_directory") == "s (not a file)"
        for name, args in (("read_file", {}), ("write_file", {"content": "a"}), ("delete_file", {})):
            with pytest.raises(PermissionError, match="pipe or socket, not a file"):
                use(tmp_path, name, path="s", **args)
        assert Workspace(tmp_path).stamps((), "", 9) == {"s": ()}


def test_what_a_write_would_change_is_shown_before(tmp_path: Path) -> None:
    """A diff, or why there is none."""
    (tmp_path / "f").write_text("a\n")
    (tmp_path / "b").write_bytes(b"\0")
    assert preview(tmp_path, "write_file", path="f", content="b\n") == "--- f\n+++ f\n@@ -1,1 +1,1 @@\n-a\n+b"
    assert preview(tmp_path, "write_file", path="new", content="b\n").endswith("@@ -0,0 +1,1 @@\n+b")
    assert (
        preview(tmp_path, "write_file", path="f", content="a\n")
        == "f would hold just what it holds now, if anything"
    )
    assert preview(tmp_path, "write_file", path="b", content="").startswith(
        "no diff can be shown: b is a binary file"
    )
    assert preview(tmp_path, "edit_file", path="f", old="a", new="c").endswith("-a\n+c")
    assert preview(tmp_path, "edit_file", path="gone", old="a", new="c").startswith(
        "this edit would fail: gone does not exist"
    )


def test_writing_what_a_file_holds_already_needs_no_reading(tmp_path: Path) -> None:
    """Nothing is lost by it, so it is no conflict; with other content of the same size it is one."""
    (tmp_path / "f").write_text("same")
    made, ctx = BOX.get("write_file"), ToolContext(workspace=Workspace(tmp_path))
    ctx.versions.known = {"f": "another version"}
    assert str(asyncio.run(made.run({"path": "f", "content": "same"}, ctx))).startswith("replaced f")
    with pytest.raises(ConflictError, match="something else changed it since you read"):
        asyncio.run(made.run({"path": "f", "content": "else"}, ctx))


@pytest.mark.parametrize("count", [4, 5, 6])
def test_repeated_text_is_placed_up_to_five_times(count: int) -> None:
    """The first five lines are named; an ellipsis only where there are more."""
    with pytest.raises(ValueError, match="occurs") as caught:
        replace_exact("x\n" * count, "x", "y", everywhere=False)
    assert (
        f"occurs {count} times (lines {'1, 2, 3, 4, 5'[: 3 * min(count, 5) - 2]}{', …' if count > 5 else ''})"
        in str(caught.value)
    )


def test_edits_keep_line_ends_and_a_blank_text_gets_no_advice() -> None:
    """A file with CRLF is edited in CRLF only where the text is not there as given."""
    assert replace_exact("a\r\nb\r\n", "a\nb", "c\nd", everywhere=False) == "c\r\nd\r\n"
    assert replace_exact("a\r\nb\nc\n", "b\nc", "x\ny", everywhere=False) == "a\r\nx\ny\n"
    with pytest.raises(ValueError, match=r"old was not found$"):
        replace_exact("a\n", " \n", "x", everywhere=False)


def test_a_diff_of_very_much_says_only_how_many_lines(tmp_path: Path) -> None:
    """What is equal at both ends costs nothing; more than 20,000 lines between are not compared."""
    before = "same\n" * 100 + "".join(f"{number}\n" for number in range(20_000 - 3)) + "tail\n"
    changed = before.replace("\n0\n", "\nzero\n")
    assert unified_diff(before, changed, "f").splitlines()[2] == "@@ -98,7 +98,7 @@"
    many = "".join(f"a{number}\n" for number in range(20_001))
    assert (
        unified_diff("same\n" * 100 + many, "same\n" * 100 + "b\n", "f")
        == "--- f\n+++ f\n@@ lines 98 to 20101 became 4 lines @@"
    )
    assert unified_diff("a\n" * 3, "a\n" * 5, "f") == "--- f\n+++ f\n@@ -1,3 +1,5 @@\n a\n a\n a\n+a\n+a"


@given(st.sampled_from(["f", "./f", "d/../f", "{root}/f"]), st.sampled_from(["../f", "/elsewhere"]))
def test_every_spelling_of_a_path_is_one_path(
    tmp_path_factory: pytest.TempPathFactory, spelling: str, outside: str
) -> None:
    """An answer is stored under it; a path that leads out, and an argument that is no path, stay as they
    are.
    """
    root = tmp_path_factory.getbasetemp()
    found = PathFingerprint(("path", "paths"), lambda *_: None).spelled(
        {
            "path": spelling.format(root=root),
            "paths": [spelling.format(root=root), outside, 3],
            "other": "./f",
        },
        Workspace(root),
    )
    assert found == {"path": "f", "paths": ["f", outside, 3], "other": "./f"}


@pytest.mark.parametrize(
    ("age_s", "whole_second", "fresh"),
    [(0.0, False, True), (1.0, False, False), (1.0, True, True), (4.0, True, False)],
)
def test_a_stamp_is_fresh_as_long_as_a_second_change_may_leave_it(
    age_s: float, whole_second: bool, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that keeps whole seconds needs some of them."""
    changed = 1_700_000_000_000_000_000 + (0 if whole_second else 1_000_000)
    monkeypatch.setattr(time, "time", lambda: changed / 1e9 + age_s)
    assert is_fresh((1, 2, 3, changed, changed)) is fresh


def test_what_is_searched_has_a_state_of_its_names_or_of_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names alone for `glob`, contents for `grep`; too many to compare have none, and what has just changed
    none yet.
    """
    monkeypatch.setattr(fingerprints, "_FRESH_S", 0.0)
    monkeypatch.setattr(fingerprints, "_COARSE_FRESH_S", 0.0)
    monkeypatch.setattr(fingerprints, "_MOST_WATCHED", 2)
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("one")
    names, contents = state(tmp_path, "glob", pattern="*"), state(tmp_path, "grep", pattern="x")
    single = state(tmp_path, "grep", pattern="x", path="f")
    assert None not in (names, contents, single)
    assert single.count(":") == 4
    (tmp_path / "f").write_text("other")
    assert state(tmp_path, "glob", pattern="*") == names
    assert state(tmp_path, "grep", pattern="x") != contents
    assert state(tmp_path, "grep", pattern="x", path="f") != single
    monkeypatch.setattr(fingerprints, "_FRESH_S", 1e9)
    monkeypatch.setattr(fingerprints, "_COARSE_FRESH_S", 1e9)
    assert state(tmp_path, "grep", pattern="x") == state(tmp_path, "batch_read", paths=["f"]) == CHANGING
    (tmp_path / "g").touch()
    assert state(tmp_path, "glob", pattern="*") is state(tmp_path, "grep", pattern="x") is None
    assert state(tmp_path, "grep", pattern="x", path="../x") is None


def test_stamps_of_a_tree_leave_out_what_is_to_be_left_and_end_early(tmp_path: Path) -> None:
    """Folders have empty stamps, files five numbers; what is skipped or left is not there, nor what is below
    it.
    """
    for path in ("a/b/f", "a/g", ".git/h", "home/i", "link"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "out").symlink_to(tmp_path.parent)
    found = Workspace(tmp_path).stamps({".git"}, "home", 100)
    assert {path: len(stamp) for path, stamp in found.items()} == {
        "a": 0,
        "a/b": 0,
        "a/b/f": 5,
        "a/g": 5,
        "link": 5,
        "out": 0,
    }
    assert len(Workspace(tmp_path).stamps((), "", 3)) == 4
    assert len(Workspace(tmp_path).stamps((), "", 1)) == 2


def test_a_pattern_may_stand_for_256(tmp_path: Path) -> None:
    """And not for 257, however the braces lie."""
    names = ",".join(f"n{number}" for number in range(256))
    assert compile_pattern(f"{{{names}}}").fullmatch("d/n255")
    with pytest.raises(ValueError, match="more than 256"):
        compile_pattern(f"{{{names},more}}")
    assert compile_pattern("{a,b}" * 8).fullmatch("abababab")
    with pytest.raises(ValueError, match="more than 256"):
        compile_pattern("{a,b}" * 9)


def test_whoever_opens_a_watched_file_is_noticed(tmp_path: Path) -> None:
    """By any name; not a look at its state. Where it cannot be known it counts as opened."""
    (tmp_path / "f").write_text("a")
    (tmp_path / "g").write_text("a")
    os.link(tmp_path / "f", tmp_path / "same")
    watch = OpenWatch([tmp_path / "f", tmp_path / "gone"])
    (tmp_path / "g").read_text()
    (tmp_path / "f").stat()
    assert watch.opened() is False
    (tmp_path / "same").read_text()
    assert watch.opened() is watch.opened() is True
    watch.close()
    later = OpenWatch([tmp_path / "f"])
    (tmp_path / "f").read_text()
    later.close()
    assert later.opened() is True
    assert OpenWatch(()).opened() is False
    assert OpenWatch([tmp_path / "f"] * (MOST + 1)).opened() is True
    at_bound = OpenWatch([tmp_path / "f"] * MOST)
    assert at_bound.opened() is False
    at_bound.close()


def test_a_folder_that_others_keep_locked_is_given_up_on_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how long it was tried; a lock that becomes free meanwhile is taken."""
    monkeypatch.setattr(lock, "WAIT_S", 0.05)
    other, mine = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(
            TimeoutError,
            match=r"f was not changed: another process has held the lock on its folder for 0\.05 s",
        ):
            with lock_directory(mine, "f"):
                pass
        fcntl.flock(other, fcntl.LOCK_UN)
        with lock_directory(mine, "f"), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)
        os.close(mine)


def test_a_file_is_read_whole_up_to_its_limit() -> None:
    """Also one that lies about its size, as those of the kernel do."""
    fd = os.memfd_create("file")
    try:
        os.write(fd, b"12345")
        for limit in (5, 6):
            os.lseek(fd, 0, os.SEEK_SET)
            assert read_whole(fd, "f", limit) == b"12345"
        os.lseek(fd, 0, os.SEEK_SET)
        with pytest.raises(ValueError, match=r"f is too large to read at once \(5 bytes, limit 4\)"):
            read_whole(fd, "f", 4)
    finally:
        os.close(fd)
    fd = os.open("/proc/self/status", os.O_RDONLY)
    try:
        whole = read_whole(fd, "status")
        os.lseek(fd, 0, os.SEEK_SET)
        assert b"Threads:" in whole
        with pytest.raises(ValueError, match=r"too large to read at once \(100 bytes, limit 100\)"):
            read_whole(fd, "status", 100)
    finally:
        os.close(fd)


def test_searches_that_cannot_be_carried_out_whole_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NUL is refused in the pattern and in the names; a search that takes too long returns what it has."""
    (tmp_path / "f").write_text("needle " + "x" * (300 - 7) + "\n")
    for args in ({"pattern": "a\0"}, {"pattern": "a", "files": "\0"}):
        with pytest.raises(ValueError, match="the pattern contains a NUL"):
            use(tmp_path, "grep", **args)
    assert use(tmp_path, "grep", pattern="needle") == "f:1: " + (tmp_path / "f").read_text().rstrip()
    (tmp_path / "f").write_text("needle " + "x" * 300 + "\n")
    shown = use(tmp_path, "grep", pattern="needle")
    assert shown.startswith("f:1: needle x") and shown.endswith("x…") and len(shown) == 306
    monkeypatch.setattr(ripgrep, "_TIMEOUT_S", 0.0)
    assert "stopped after 0 seconds: search a smaller directory" in use(tmp_path, "grep", pattern="needle")
