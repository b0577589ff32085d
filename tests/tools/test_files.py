"""Tools for files, as a model uses them."""

import asyncio
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import PATIENCE_S, until

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.text_files import end_pattern, lines_with_ends
from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.tools.files.edit import replace_exact, unified_diff
from kestrel_lab.tools.files.fingerprints import CHANGING
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext
from kestrel_lab.views.diffs import sanitize_diff

BOX = native_tools()


def use(root: Path, name: str, **args: Any) -> Any:
    """Validate and run a native tool."""
    made = BOX.get(name)
    return asyncio.run(made.run(made.validate(args), ToolContext(workspace=Workspace(root))))


def state(root: Path, name: str, **args: Any) -> str | None:
    """The fingerprint of a call."""
    made = BOX.get(name)
    assert made.fingerprint is not None
    found = made.fingerprint(made.validate(args), ToolContext(workspace=Workspace(root)))
    assert found is None or isinstance(found, str)
    return found


def test_danger_and_effect_of_the_native_tools() -> None:
    """Reading and reckoning are safe and pure, writing is not, a command is the most dangerous."""
    assert {made.name: (made.danger, made.effect) for made in BOX} == {
        "read_file": (Danger.SAFE, "pure"),
        "batch_read": (Danger.SAFE, "pure"),
        "write_file": (Danger.MEDIUM, "idempotent"),
        "edit_file": (Danger.MEDIUM, "opaque"),
        "multi_edit": (Danger.MEDIUM, "opaque"),
        "delete_file": (Danger.MEDIUM, "idempotent"),
        "restore_file": (Danger.MEDIUM, "opaque"),
        "list_directory": (Danger.SAFE, "pure"),
        "file_exists": (Danger.SAFE, "pure"),
        "glob": (Danger.SAFE, "pure"),
        "grep": (Danger.SAFE, "pure"),
        "tree": (Danger.SAFE, "pure"),
        "bash": (Danger.HIGH, "opaque"),
        "parse_relative": (Danger.SAFE, "pure"),
        "time_arithmetic": (Danger.SAFE, "pure"),
        "normalize_timezone": (Danger.SAFE, "pure"),
        "ask_user": (Danger.SAFE, "pure"),
    }
    assert {made.name for made in BOX if not made.parallel_safe} == {
        *("write_file", "edit_file", "multi_edit", "delete_file", "restore_file", "bash")
    }


def test_a_file_is_read_exactly_and_a_part_names_its_range(tmp_path: Path) -> None:
    """The whole text has nothing added; a part ends with a note that says how to go on."""
    (tmp_path / "f").write_text("one\n\ttwo \nthree\n")
    assert use(tmp_path, "read_file", path="f") == "one\n\ttwo \nthree\n"
    assert use(tmp_path, "read_file", path="f", limit=1) == "one\n[lines 1 to 1 of 3, go on with offset=2]"
    assert use(tmp_path, "read_file", path="f", offset=2) == "\ttwo \nthree\n[lines 2 to 3 of 3]"
    with pytest.raises(ValueError, match="f has 3 lines, so none from line 9 on"):
        use(tmp_path, "read_file", path="f", offset=9)
    (tmp_path / "empty").touch()
    assert use(tmp_path, "read_file", path="empty") == "[empty is empty]"
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    assert use(tmp_path, "read_file", path="latin") == "café\n[the file is latin-1]"


def test_reading_on_from_note_to_note_gives_the_whole_file(tmp_path: Path) -> None:
    """A file larger than one answer can be read in parts that fit what a model is shown, without a hole."""
    text = "".join(f"line {number} {'x' * (number % 90)}\n" for number in range(3000))
    (tmp_path / "f").write_text(text)
    read, offset = "", 1
    while offset:
        part = use(tmp_path, "read_file", path="f", offset=offset)
        assert len(part) <= BOX.get("read_file").max_chars
        body, _, note = part.rpartition("\n[")
        read += body + "\n"
        offset = int(note.partition("offset=")[2].rstrip("]") or 0)
    assert read == text
    (tmp_path / "wide").write_text("x" * 50_000)
    assert use(tmp_path, "read_file", path="wide").endswith(
        "x\n[the last 32,000 characters of line 1 are left out]"
    )


def test_batch_read_reports_what_it_cannot_read(tmp_path: Path) -> None:
    """One bad path does not lose the others."""
    (tmp_path / "a").write_text("A\n")
    (tmp_path / "b").write_bytes(b"\0")
    assert use(tmp_path, "batch_read", paths=["a", "b", "../c"]) == (
        "=== a ===\nA\n\n=== b ===\n[not read: b is a binary file (1 bytes), not text]\n"
        "=== ../c ===\n[not read: ../c is outside the workspace: use a path relative to it]"
    )


def test_write_file_says_what_it_did(tmp_path: Path) -> None:
    """Created or replaced, and how much."""
    assert use(tmp_path, "write_file", path="d/f", content="é\nx") == "created d/f (2 lines, 4 bytes)"
    diff = "--- d/f\n+++ d/f\n@@ -1,2 +1,1 @@\n-é\n-x\n\\ No newline at end of file\n+x"
    assert use(tmp_path, "write_file", path="d/f", content="x\n") == f"replaced d/f (1 line, 2 bytes)\n{diff}"
    assert use(tmp_path, "write_file", path="d/f", content="x\n") == "replaced d/f (1 line, 2 bytes)"
    assert (tmp_path / "d/f").read_text() == "x\n"


def test_edit_file_replaces_a_unique_text_and_shows_the_change(tmp_path: Path) -> None:
    """The diff has context and line numbers of the whole file; encoding and line ends stay."""
    (tmp_path / "f").write_text("".join(f"{number}\n" for number in range(1, 21)))
    assert use(tmp_path, "edit_file", path="f", old="10\n11\n", new="ten\n") == (
        "--- f\n+++ f\n@@ -7,8 +7,7 @@\n 7\n 8\n 9\n-10\n-11\n+ten\n 12\n 13\n 14"
    )
    (tmp_path / "w").write_bytes("é = 1\r\nb = 2\r\n".encode("utf-16"))
    use(tmp_path, "edit_file", path="w", old="é = 1\nb", new="é = 3\nc")
    assert (tmp_path / "w").read_bytes().decode("utf-16") == "é = 3\r\nc = 2\r\n"


def test_edit_file_explains_why_it_did_nothing(tmp_path: Path) -> None:
    """Missing, repeated, empty and equal text each get their advice, and the file stays."""
    (tmp_path / "f").write_text("def f():\n    return 1\n\ndef g():\n    return 1\n")
    for old, new, expected in (
        (
            "    return 1",
            "x",
            "f was not changed: old occurs 2 times (lines 2, 5): add lines around it until it is unique",
        ),
        ("\treturn 1", "x", "line 2 is 'return 1', but its indentation or blanks differ"),
        ("    return 1\n    pass", "x", "line 2 is 'return 1', but a line after it differs"),
        ("    returm 1", "x", "the nearest line is 2: 'return 1'"),
        ("something else entirely", "x", "no line is like it"),
        ("", "x", "old is empty"),
        ("def f", "def f", "old and new are the same"),
    ):
        with pytest.raises(ValueError, match="was not changed") as caught:
            use(tmp_path, "edit_file", path="f", old=old, new=new)
        assert expected in str(caught.value)
    assert (tmp_path / "f").read_text().count("return 1") == 2
    use(tmp_path, "edit_file", path="f", old="return 1", new="return 2", replace_all=True)
    assert (tmp_path / "f").read_text().count("return 2") == 2


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\x0c\n"]), max_size=25).map("".join),
    after=st.lists(st.sampled_from(["a\n", "b\n", "x\n", "c\x0c\n"]), max_size=25).map("".join),
    tail=st.sampled_from(["", "end"]),
)
def test_the_diff_can_be_applied(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str, tail: str
) -> None:
    """Law: `patch` turns the old text into the new one by the diff alone."""
    after += tail
    if before == after:
        return
    folder = tmp_path_factory.mktemp("patch")
    (folder / "f").write_text(before)
    diff = unified_diff(before, after, "f") + "\n"
    subprocess.run(
        ["git", "apply", "--unidiff-zero", "-p0"],
        cwd=folder,
        input=diff.encode(),
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert ((folder / "f").read_text() if (folder / "f").exists() else "") == after


@given(
    text=st.text(alphabet="ab\r\n", max_size=30),
    old=st.text(alphabet="ab\n", max_size=4),
    new=st.text(alphabet="ab\n", max_size=4),
)
def test_replacing_is_exact(text: str, old: str, new: str) -> None:
    """Law: either one place changed, everything else is as it was, and no line end is new to the file; or it
    is refused.
    """
    assert "".join(lines_with_ends(text)) == text
    ends = re.compile(end_pattern(text))
    try:
        after = replace_exact(text, old, new, everywhere=False)
    except ValueError:
        assert not old or old == new or ends.sub("\n", text).count(old) != 1 or text.count(old) != 1
        return
    same_before = next(
        (at for at, (a, b) in enumerate(zip(text, after, strict=False)) if a != b), min(len(text), len(after))
    )
    assert any(
        ends.sub("\n", text[at : at + length]) == old
        and ends.sub("\n", after[at : len(after) - len(text) + at + length]) == new
        and after.endswith(text[at + length :])
        for at in range(same_before + 1)
        for length in range(2 * len(old) + 1)
        if at + length <= len(text)
    )
    if known := set(ends.findall(text)):
        joined = (
            {"\r\n"} if not new and f"\r{old}\n" in text else set()
        )  # a lone CR that what was taken out kept from an LF
        assert set(ends.findall(after)) <= known | joined


LATIN, UTF16_BE = "é = 1\r\nb = 2\r\n".encode("latin-1"), b"\xfe\xff" + "é = 1\nb = 2\n".encode("utf-16-be")


@pytest.mark.parametrize(
    ("content", "old", "new", "expected"),
    [
        (b"a\r\nb\r\nc\r\n", "b", "B1\nB2", b"a\r\nB1\r\nB2\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "a\nx\nb", b"a\r\nx\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "a\nx\nb", b"a\r\nx\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "\nb", "\nB", b"a\r\nB\r\nc\r\n"),
        (b"a\nb\nc\n", "b", "B1\r\nB2", b"a\nB1\nB2\nc\n"),
        (b"a\r\nb", "b", "B1\nB2", b"a\r\nB1\r\nB2"),
        (b"a\nb\r\nc\n", "b", "B1\nB2", b"a\nB1\r\nB2\r\nc\n"),
        (b"a\nb\r\nc\n", "a\nb\nc", "A\nB\nC", b"A\nB\r\nC\n"),
        (b"a\rb\rc\r", "a\nb", "A\nx\nB", b"A\rx\rB\rc\r"),
        (b"10%\r20%\nb\n", "b", "B\rC\nD", b"10%\r20%\nB\rC\nD\n"),
        (b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n"),
        (b"\xef\xbb\xbfa\r\n", "a", "a\né", "\ufeffa\r\né\r\n".encode()),
        (LATIN, "b = 2", "ü = 2\nc", "é = 1\r\nü = 2\r\nc\r\n".encode("latin-1")),
        (UTF16_BE, "b = 2", "ü\nc", b"\xfe\xff" + "é = 1\nü\nc\n".encode("utf-16-be")),
    ],
)
@pytest.mark.parametrize("name", ["edit_file", "edit_file, everywhere", "multi_edit"])
def test_an_edit_keeps_encoding_and_line_ends(
    tmp_path: Path, name: str, content: bytes, old: str, new: str, expected: bytes
) -> None:
    """Whatever line ends a model writes, the file keeps its own, where it is edited too; only a change of
    nothing else is taken as given.
    """
    (tmp_path / "f").write_bytes(content)
    if name == "multi_edit":
        use(tmp_path, name, path="f", edits=[{"old": old, "new": new}])
    else:
        use(tmp_path, "edit_file", path="f", old=old, new=new, replace_all="everywhere" in name)
    assert (tmp_path / "f").read_bytes() == expected


@pytest.mark.parametrize(
    ("before", "content", "after", "told"),
    [
        (b"\xef\xbb\xbfa\n", "é\nb\n", "\ufeffé\nb\n".encode(), ""),
        (b"\xef\xbb\xbfa\n", "\ufeffé\n", "\ufeffé\n".encode(), ""),
        ("é\n".encode("utf-16"), "ü\n", "ü\n".encode("utf-16"), ""),
        (UTF16_BE, "ü\n", b"\xfe\xff" + "ü\n".encode("utf-16-be"), ""),
        (
            b"\0\0\xfe\xff" + "a\r\n".encode("utf-32-be"),
            "b\n",
            b"\0\0\xfe\xff" + "b\r\n".encode("utf-32-be"),
            "",
        ),
        (LATIN, "ü\nb\n", "ü\r\nb\r\n".encode("latin-1"), ""),
        (
            LATIN,
            "→\nb\n",
            "→\r\nb\r\n".encode(),
            "its encoding was latin-1, which does not have all of these characters, and is utf-8 now",
        ),
        (b"a\r\nb", "c\nd", b"c\r\nd", ""),
        (b"a\rb\r", "c\nd\n", b"c\rd\r", ""),
        (b"a\nb\n", "c\r\nd\r\n", b"c\r\nd\r\n", "its line ends were LF and are CRLF now"),
        (b"a\nb\r\n", "c\nd\n", b"c\nd\n", "its line ends were mixed and are LF now"),
        (b"\0\1\2", "c\n", b"c\n", "what it held was not text"),
        (b"", "c\n", b"c\n", ""),
    ],
)
def test_replacing_a_file_keeps_encoding_and_line_ends_or_says_so(
    tmp_path: Path, before: bytes, content: str, after: bytes, told: str
) -> None:
    """What is kept needs no word; what cannot be kept is in the answer and in what a person is shown
    before.
    """
    (tmp_path / "f").write_bytes(before)
    made = BOX.get("write_file")
    assert made.preview is not None
    shown = made.preview({"path": "f", "content": content}, ToolContext(workspace=Workspace(tmp_path)))
    said = use(tmp_path, "write_file", path="f", content=content)
    assert (tmp_path / "f").read_bytes() == after
    notes = [line for line in said.splitlines() if line.startswith("[")]
    assert notes == ([f"[{told}]"] if "not text" not in told else notes) if told else not notes
    assert told in said and (told in shown or "binary" in shown)
    assert use(tmp_path, "write_file", path="f", content=content).count("\n") == 0, (
        "written again it changes nothing"
    )
    assert (tmp_path / "f").read_bytes() == after


def test_an_edit_is_refused_where_the_encoding_has_no_such_character(tmp_path: Path) -> None:
    """The reason names the character and the way out, and the file stays as it is."""
    (tmp_path / "f").write_bytes(LATIN)
    with pytest.raises(
        ValueError, match="f is latin-1, which has no '→': use another character, or replace the whole file"
    ):
        use(tmp_path, "edit_file", path="f", old="b", new="→")
    assert (tmp_path / "f").read_bytes() == LATIN


def test_the_lines_of_an_old_mac_file_are_lines(tmp_path: Path) -> None:
    """Reading a part, the place of an error and a diff count the lines of a file that ends them with CR
    alone.
    """
    (tmp_path / "f").write_bytes(b"a\rb\rb\rc\r")
    assert use(tmp_path, "read_file", path="f", offset=2, limit=1).startswith("b\r\n[lines 2 to 2 of 4")
    with pytest.raises(ValueError, match=r"occurs 2 times \(lines 2, 3\)"):
        use(tmp_path, "edit_file", path="f", old="b", new="x")
    diff = use(tmp_path, "edit_file", path="f", old="c", new="d")
    assert sanitize_diff(diff) == "--- f\n+++ f\n@@ -1,4 +1,4 @@\n a\n b\n b\n-c\n+d"


def test_listing_and_existence(tmp_path: Path) -> None:
    """Short text that says what there is."""
    assert use(tmp_path, "list_directory") == "[. is empty]"
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("abc")
    (tmp_path / "l").symlink_to("f")
    assert use(tmp_path, "list_directory") == "d/\nf\nl (symlink)"
    assert use(tmp_path, "file_exists", path="f") == "yes, f is a file of 3 bytes"
    assert use(tmp_path, "file_exists", path="d") == "yes, d is a directory"
    assert use(tmp_path, "file_exists", path="f/x") == "no, f/x does not exist"


def test_a_fingerprint_changes_with_what_would_be_read(tmp_path: Path) -> None:
    """Equal while nothing changes, different after a change of equal size and time, unknown right after
    one.
    """
    file = tmp_path / "f"
    until(lambda: file.write_text("one") and state(tmp_path, "read_file", path="f") == CHANGING)
    time.sleep(0.1)
    first = state(tmp_path, "read_file", path="f")
    assert first
    assert state(tmp_path, "read_file", path="f") == first
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    file.write_text("two")
    os.utime(file, ns=times)
    time.sleep(0.1)
    assert state(tmp_path, "read_file", path="f") not in {first, None, CHANGING}
    assert state(tmp_path, "file_exists", path="gone") == "missing"
    assert state(tmp_path, "read_file", path="../x") is None
    both = state(tmp_path, "batch_read", paths=["f", "gone"])
    assert both not in {None, CHANGING}
    assert both != state(tmp_path, "batch_read", paths=["f", "f"])
    assert state(tmp_path, "batch_read", paths=["f", "../x"]) is None
    listing = state(tmp_path, "list_directory")
    (tmp_path / "new").touch()
    time.sleep(0.1)
    assert state(tmp_path, "list_directory") not in {listing, None, CHANGING}
