"""Texts kept whole beside the log: under a hash, within bounds, read in pieces."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import PATIENCE_S

from kestrel_lab.core.errors import StoreError
from kestrel_lab.eventlog.large_results import ResultStore, offsets_of, piece_of

PIECES = st.sampled_from(("\n", "\r\n", " a")) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
TEXT = st.lists(PIECES, max_size=12).map("".join)


@given(text=TEXT.filter(len), offset=st.integers(0, 70), limit=st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_a_piece_is_a_slice(
    text: str, offset: int, limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is kept is read back by characters, whatever bytes and line ends they are; lines begin where they
    do in the text.
    """
    store = ResultStore(tmp_path_factory.mktemp("r"))
    name, chars = store.keep(text)
    path = store.path(name)
    assert path is not None
    assert (chars, piece_of(path, offset, limit)) == (len(text), text[offset : offset + limit])
    starts = [0, *(place + 1 for place, sign in enumerate(text) if sign == "\n")]
    assert offsets_of(path, range(1, len(starts) + 1)) == {
        line: start for line, start in enumerate(starts, 1)
    }


def test_equal_texts_are_one_file_for_its_owner_alone(tmp_path: Path) -> None:
    """A text has the name of its content, and nobody else may read it; names that are none lead nowhere."""
    store = ResultStore(tmp_path / "r")
    first, again, other = store.keep("x" * 100), store.keep("x" * 100), store.keep("y")
    assert first == again != other
    (tmp_path / "r" / "secret.txt").write_text("s")
    assert [store.path(name) for name in ("secret", "../r/secret", "", first[0] + "/", "0" * 32)] == [
        None
    ] * 5
    assert (os.stat(tmp_path / "r").st_mode & 0o777, os.stat(store.path(first[0]) or "").st_mode & 0o777) == (
        0o700,
        0o600,
    )
    assert len(list((tmp_path / "r").glob("*.txt"))) == 3
    assert list((tmp_path / "r").glob(".*")) == []


def test_one_text_is_bounded_and_so_are_all(tmp_path: Path) -> None:
    """Of a text the beginning is kept; when the folder is full those go that were not used for longest, never
    the newest.
    """
    store = ResultStore(tmp_path, most_bytes=1_000, room_bytes=3_000)
    name, chars = store.keep("é" * 5_000)
    assert chars == 500
    assert (store.path(name) or Path()).read_text() == "é" * 500
    names = [store.keep(str(number) * 1_000)[0] for number in range(2)]
    for age, old in enumerate((name, *names)):
        os.utime(store.path(old) or "", (age, age))
    piece_of(store.path(name) or Path(), 0, 1)  # used again
    newest = store.keep("n" * 1_000)[0]
    assert [store.path(one) is not None for one in (name, *names, newest)] == [True, False, False, True]
    assert ResultStore(tmp_path, room_bytes=10).keep("z" * 100)[1] == 100


def test_what_cannot_be_kept_fails_nothing(tmp_path: Path) -> None:
    """Without a place to write, keeping is given up with a warning."""
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not kept whole"):
        assert ResultStore(tmp_path / "file").keep("text") == ("", 0)


def test_threads_keep_at_once(tmp_path: Path) -> None:
    """Equal and different texts kept by several threads while room is made are each there or gone, never in
    part.
    """
    store = ResultStore(tmp_path, room_bytes=20_000)

    def work() -> None:
        for number in range(30):
            store.keep(str(number) * 1_000)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(set(path.read_text())) <= 2 for path in tmp_path.glob("*.txt"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 30_000


_FLOOD = """
import resource, sys
from pathlib import Path
from kestrel_lab.core.errors import StoreError
from kestrel_lab.eventlog.large_results import ResultStore
store = ResultStore(Path(sys.argv[1]))
piece = b"0123456789abcdef" * 4096
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
spool = store.spool()
for _ in range(2**30 // len(piece)):
    spool.feed(piece)
name, chars = spool.close()
print(spool.total, chars, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_flood_takes_no_memory(tmp_path: Path) -> None:
    """A gigabyte that comes in pieces is counted, its first 50 MB are kept, and memory grows by less than 50
    MB.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FLOOD, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    total, chars, grown = map(int, done.stdout.split())
    assert (total, chars) == (2**30, 50_000_000)
    assert grown * (1 if sys.platform == "darwin" else 1024) < 50_000_000


def test_a_kept_text_that_was_changed_is_told(tmp_path: Path) -> None:
    """A text is named by its hash: any changed, added or missing byte is found when it is asked for.

    A name is not a path.
    """
    store = ResultStore(tmp_path / "results")
    name, _ = store.keep("kept\n" * 10)
    path = store.path(name)
    assert path is not None
    content = path.read_bytes()
    for changed in (content[:-1], content + b"\0", b"K" + content[1:], b""):
        path.write_bytes(changed)
        with pytest.raises(StoreError, match="is not what was kept there"):
            store.path(name)
    path.write_bytes(content)
    assert store.path(name) == path
    assert store.path("../" + name) is None


def test_bytes_are_kept_under_their_hash(tmp_path: Path) -> None:
    """As they are, whatever they are; nothing at all has no name and no file."""
    store = ResultStore(tmp_path / "r")
    content = bytes(range(256))
    assert store.keep_bytes(content) == hashlib.sha256(content).hexdigest()[:32]
    assert (store.path(store.keep_bytes(content)) or Path()).read_bytes() == content
    assert (store.keep_bytes(b""), store.keep("")) == ("", ("", 0))
    assert len(list((tmp_path / "r").iterdir())) == 1


def test_room_is_made_until_a_tenth_is_free(tmp_path: Path) -> None:
    """What just fits stays; one more, and those that were not used for longest go; so does what a writer left
    that was killed a day ago.
    """
    for number in range(10):
        ResultStore(tmp_path, room_bytes=1_000).keep(str(number) * 100)
    assert len(list(tmp_path.iterdir())) == 10
    for number, path in enumerate(sorted(tmp_path.iterdir(), key=lambda path: path.read_text())):
        os.utime(path, (number, number))
    fresh, old = tmp_path / ".fresh.part", tmp_path / ".old.part"
    for part, age in ((fresh, 3_600), (old, 90_000)):
        part.write_text("x" * 5_000)
        os.utime(part, (time.time() - age,) * 2)
    ResultStore(tmp_path, room_bytes=1_000).keep("n" * 100)
    assert {path.read_text()[0] for path in tmp_path.glob("*.txt")} == {*"23456789n"}
    assert (fresh.exists(), old.exists()) == (True, False)


def test_a_text_that_failed_once_is_given_up(tmp_path: Path) -> None:
    """With one warning, however much more of it comes, also where it fails at the very end; nothing is left
    of it.
    """
    (tmp_path / "file").write_text("")
    spool = ResultStore(tmp_path / "file").spool()
    with pytest.warns(UserWarning, match="not kept whole"):
        spool.feed(b"piece")
    spool.feed(b"piece")  # a warning would be an error
    assert (spool.total, spool.close()) == (10, ("", 0))

    class NoPlace(ResultStore):
        def settle(self, temporary: Path, name: str, size: int) -> None:
            raise OSError("no room")

    with pytest.warns(UserWarning, match="not kept whole: no room"):
        assert NoPlace(tmp_path / "r").keep("text") == ("", 0)
    assert list((tmp_path / "r").iterdir()) == []
