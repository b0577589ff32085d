"""Several edits at once, and deletions that can be undone."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.tools.files.edit import Edit, replace_in_order
from kestrel_lab.tools.files.trash import TRASH, preview_delete
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext

BOX = native_tools()


def use(root: Path, name: str, call_id: str = "", run_id: str = "r1", **args: Any) -> Any:
    """Validate and run a native tool."""
    made = BOX.get(name)
    return asyncio.run(
        made.run(made.validate(args), ToolContext(workspace=Workspace(root), run_id=run_id, call_id=call_id))
    )


def test_several_edits_are_made_in_order_and_shown_as_one_diff(tmp_path: Path) -> None:
    """Each edit sees what the ones before it left; encoding and line ends stay."""
    (tmp_path / "f").write_bytes("\ufeffone\r\ntwo\r\nthree\r\n".encode())
    edits = [{"old": "one", "new": "two"}, {"old": "two", "new": "2", "replace_all": True}]
    assert (
        use(tmp_path, "multi_edit", path="f", edits=edits)
        == "--- f\n+++ f\n@@ -1,3 +1,3 @@\n-one\r\n-two\r\n+2\r\n+2\r\n three\r"
    )
    assert (tmp_path / "f").read_bytes() == "\ufeff2\r\n2\r\nthree\r\n".encode()


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([], "edits is empty"),
        ([{"old": "a", "new": "b"}, {"old": "zzz", "new": "q"}], "edit 2 of 2: old was not found"),
        ([{"old": "a", "new": "b"}, {"old": "x", "new": "q"}], "edit 2 of 2: old occurs 2 times"),
        ([{"old": "a", "new": "b"}, {"old": "b", "new": "a"}], "undo each other"),
    ],
)
def test_one_edit_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, edits: list[dict[str, str]], message: str
) -> None:
    """All or none: the error names the edit, the file keeps its content and its time."""
    (tmp_path / "f").write_text("a\nx\nx\n")
    before = (tmp_path / "f").stat().st_mtime_ns
    with pytest.raises(ValueError, match=message):
        use(tmp_path, "multi_edit", path="f", edits=edits)
    assert ((tmp_path / "f").read_text(), (tmp_path / "f").stat().st_mtime_ns) == ("a\nx\nx\n", before)


def test_what_several_edits_would_change_can_be_seen_before(tmp_path: Path) -> None:
    """The preview is the diff of the call, or why it would fail, and changes nothing."""
    (tmp_path / "f").write_text("a\n")
    tool, ctx = BOX.get("multi_edit"), ToolContext(workspace=Workspace(tmp_path))
    assert tool.preview is not None
    good = tool.validate({"path": "f", "edits": [{"old": "a", "new": "b"}]})
    assert tool.preview(good, ctx) == "--- f\n+++ f\n@@ -1,1 +1,1 @@\n-a\n+b"
    bad = tool.validate({"path": "f", "edits": [{"old": "z", "new": "b"}]})
    assert "would fail: edit 1 of 1" in tool.preview(bad, ctx)
    assert (tmp_path / "f").read_text() == "a\n"


@settings(max_examples=40)
@given(
    st.text("ab\n", max_size=20),
    st.lists(st.tuples(st.text("ab", min_size=1, max_size=3), st.text("abc", max_size=3), st.booleans())),
)
def test_edits_together_are_edits_one_after_the_other(text: str, pairs: list[tuple[str, str, bool]]) -> None:
    """The law of `replace_in_order`: the last text of single edits, or an error and nothing."""
    edits = [Edit(*pair) for pair in pairs]
    try:
        whole = replace_in_order(text, edits)
    except ValueError:
        return
    for edit in edits:
        text = replace_in_order(text, [edit])
    assert text == whole


def test_a_deleted_file_comes_back_as_it_was(tmp_path: Path) -> None:
    """Content, mode and place; git sees neither the trash nor the file."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/f").write_bytes(b"\0\xff")
    (tmp_path / "sub/f").chmod(0o741)
    assert (
        use(tmp_path, "delete_file", call_id="c/1", path="sub/f")
        == f"deleted sub/f (kept as {TRASH}/r1/00001-c_1/sub/f)"
    )
    assert not (tmp_path / "sub/f").exists()
    assert (tmp_path / TRASH / ".gitignore").read_text() == "*\n"
    assert use(tmp_path, "restore_file", path="sub/f") == "restored sub/f"
    assert ((tmp_path / "sub/f").read_bytes(), (tmp_path / "sub/f").stat().st_mode & 0o777) == (
        b"\0\xff",
        0o741,
    )
    with pytest.raises(FileNotFoundError, match="deleted nothing that is still in the trash"):
        use(tmp_path, "restore_file", path="sub/f")


def test_the_newest_of_several_comes_back_and_nothing_is_overwritten(tmp_path: Path) -> None:
    """One path deleted twice: the later content first; a file in its place is left alone."""
    for text in ("old", "new"):
        (tmp_path / "f").write_text(text)
        use(tmp_path, "delete_file", path="f")
    (tmp_path / "f").write_text("mine")
    with pytest.raises(FileExistsError, match="nothing was restored"):
        use(tmp_path, "restore_file", path="f")
    assert (tmp_path / "f").read_text() == "mine"
    (tmp_path / "f").unlink()
    use(tmp_path, "restore_file", path="f")
    assert (tmp_path / "f").read_text() == "new"
    (tmp_path / "f").unlink()
    use(tmp_path, "restore_file", path="f")
    assert (tmp_path / "f").read_text() == "old"


def test_a_run_has_its_own_trash(tmp_path: Path) -> None:
    """What one run deleted another one cannot restore; a wrong name is answered with the right one."""
    (tmp_path / "notes.md").write_text("x")
    use(tmp_path, "delete_file", path="notes.md")
    with pytest.raises(FileNotFoundError, match="not in the trash of this run"):
        use(tmp_path, "restore_file", run_id="r2", path="notes.md")
    with pytest.raises(FileNotFoundError, match=r"notes\.md"):
        use(tmp_path, "restore_file", path="note.md")


def test_the_same_call_again_is_the_same_as_once(tmp_path: Path) -> None:
    """After a crash the call is repeated: the same answer, and a file that was made since is deleted like any
    other.
    """
    (tmp_path / "f").write_text("x")
    first = use(tmp_path, "delete_file", call_id="c1", path="f")
    assert use(tmp_path, "delete_file", call_id="c1", path="f") == first
    with pytest.raises(FileNotFoundError):
        use(tmp_path, "delete_file", call_id="c2", path="f")


def test_what_must_not_be_deleted_is_refused(tmp_path: Path) -> None:
    """Directories, protected places, what lies outside or behind a symlink, a read-only workspace; nothing is
    made on the way.
    """
    root, outside = tmp_path / "work", tmp_path / "outside"
    (root / ".git").mkdir(parents=True)
    (root / ".git/hooks").write_text("x")
    (root / "folder").mkdir()
    outside.mkdir()
    (outside / "f").write_text("x")
    (root / "link").symlink_to(outside)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))
        for path, error in {
            "folder": IsADirectoryError,
            ".": IsADirectoryError,
            ".git/hooks": PermissionError,
            "../outside/f": PermissionError,
            str(outside / "f"): PermissionError,
            "link/f": PermissionError,
            "pipe": PermissionError,
            "s": PermissionError,
            "missing/f": FileNotFoundError,
            "folder/f": FileNotFoundError,
            "f\0": ValueError,
        }.items():
            with pytest.raises(error):
                use(root, "delete_file", path=path)
    assert (outside / "f").read_text() == "x"
    assert not (root / "missing").exists()
    made = BOX.get("delete_file")
    (root / "f").write_text("x")
    with pytest.raises(PermissionError, match="read-only"):
        asyncio.run(
            made.run(made.validate({"path": "f"}), ToolContext(workspace=Workspace(root, read_only=True)))
        )


def test_a_symlink_is_deleted_itself(tmp_path: Path) -> None:
    """The link goes into the trash and comes back, what it points to is not touched."""
    (tmp_path / "f").write_text("x")
    (tmp_path / "link").symlink_to("f")
    use(tmp_path, "delete_file", path="link")
    assert (tmp_path / "f").read_text() == "x"
    use(tmp_path, "restore_file", path="link")
    assert (tmp_path / "link").readlink() == Path("f")


def test_a_trash_that_leads_out_is_not_used(tmp_path: Path) -> None:
    """A symlink in place of the trash would carry files out of the workspace: refused, and the file stays."""
    root, outside = tmp_path / "work", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / ".kestrel").symlink_to(outside)
    (root / "f").write_text("x")
    with pytest.raises(PermissionError):
        use(root, "delete_file", path="f")
    assert ((root / "f").read_text(), list(outside.iterdir())) == ("x", [])


def test_a_deletion_is_shown_before_it_is_allowed(tmp_path: Path) -> None:
    """Text as a diff, anything else in words."""
    (tmp_path / "f").write_text("a\n")
    (tmp_path / "b").write_bytes(b"\0")
    ctx = ToolContext(workspace=Workspace(tmp_path))
    assert preview_delete({"path": "f"}, ctx) == "--- f\n+++ f\n@@ -1,1 +0,0 @@\n-a"
    assert (
        preview_delete({"path": "b"}, ctx)
        == f"b is a binary file (1 bytes), not text; it would be moved to {TRASH}"
    )
    assert preview_delete({"path": "q"}, ctx).startswith("this deletion would fail: q does not exist")


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["a", "b", "d/a", "d/e/f"]), min_size=1, max_size=6))
def test_restoring_undoes_deleting(tmp_path: Path, paths: list[str]) -> None:
    """Whatever is deleted in whatever order, restoring all leaves the files as they were."""
    run = f"r{os.urandom(4).hex()}"
    deleted = []
    for path in dict.fromkeys(paths):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
        use(tmp_path, "delete_file", run_id=run, path=path)
        deleted.append(path)
    for path in reversed(deleted):
        use(tmp_path, "restore_file", run_id=run, path=path)
    assert {path: (tmp_path / path).read_text() for path in deleted} == {path: path for path in deleted}
