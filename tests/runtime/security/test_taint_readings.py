"""Words of others that a person packed, encoded or committed: whoever reads them from there is tainted."""

import base64
import bz2
import gzip
import io
import json
import lzma
import sqlite3
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import ORDER, Harness, bash, harness_at, read

from kestrel_lab.runtime.security import word_runs as word_runs_module
from kestrel_lab.runtime.security.file_readings import readings
from kestrel_lab.runtime.security.word_runs import Sketch, word_runs


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A harness of its own."""
    with harness_at(tmp_path) as made:
        yield made


def tar(content: bytes, mode: str = "w") -> bytes:
    """An archive of one file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]  # any mode
        entry = tarfile.TarInfo("a.md")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def zipped(content: bytes) -> bytes:
    """An archive of one file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.md", content)
    return made.getvalue()


def database(content: bytes) -> bytes:
    """A database with the text in a table."""
    store = sqlite3.connect(":memory:")
    store.execute("CREATE TABLE t(x)")
    store.execute("INSERT INTO t VALUES (?)", (content.decode(),))
    store.commit()
    made = bytes(store.serialize())
    store.close()
    return made


def notebook(content: bytes) -> bytes:
    """A notebook with the text as output."""
    cell = {"cell_type": "code", "source": [], "outputs": [{"text": [content.decode()]}]}
    return json.dumps({"cells": [cell], "nbformat": 4}).encode()


FORMS: dict[str, Callable[[bytes], bytes]] = {
    **{
        name: lambda content, name=name: content.decode().encode(name)
        for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8-sig")
    },
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zlib": zlib.compress,
    "tar": tar,
    "tar.gz": lambda content: tar(content, "w:gz"),
    "tar in zip": lambda content: zipped(tar(content)),
    "zip": zipped,
    "base64": base64.encodebytes,
    "base64 in one line": base64.b64encode,
    "base64 for addresses": base64.urlsafe_b64encode,
    "base64 of gzip": lambda content: base64.b64encode(gzip.compress(content)),
    "hexadecimal": lambda content: content.hex().encode(),
    "percent signs": lambda content: content.replace(b" ", b"%20").replace(b"\n", b"%0A"),
    "sqlite": database,
    "a notebook": notebook,
    "a notebook with an image": lambda content: notebook(base64.b64encode(content)),
    "among binary data": lambda content: bytes(range(256)) * 40 + content + bytes(range(256)),
}


@pytest.mark.parametrize("form", FORMS)
def test_words_are_found_in_every_form(form: str) -> None:
    """A text is a source of its packed or encoded copy."""
    plain = word_runs(ORDER.encode())
    runs = word_runs(FORMS[form](ORDER.encode()))
    assert Sketch.of(plain).is_source_of(runs, len(plain & runs))


@pytest.mark.parametrize(
    "form", ["utf-16", "utf-32", "utf-16-le", "gzip", "zip", "base64", "sqlite", "a notebook"]
)
def test_a_form_that_a_person_made_taints_its_reader(harness: Harness, form: str) -> None:
    """A run whose command reads the copy may not act unasked."""
    harness.write()
    (harness.place / "copy").write_bytes(FORMS[form](ORDER.encode()))
    (harness.place / "summary.md").unlink()
    assert not harness.obeys(bash("cat copy"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_wide_text_taints_its_reader(harness: Harness, encoding: str) -> None:
    """The tool that reads files taints, too."""
    harness.write()
    (harness.place / "copy.md").write_bytes(ORDER.encode(encoding))
    (harness.place / "summary.md").unlink()
    assert not harness.obeys(read("copy.md"))


def test_other_files_in_such_forms_stay_free(harness: Harness) -> None:
    """A packed text of a person's own, and binary data, taint nobody."""
    harness.write()
    (harness.place / "own.gz").write_bytes(gzip.compress(b"My own notes about the weather of today.\n" * 20))
    (harness.place / "data").write_bytes(bytes(range(256)) * 100)
    assert harness.obeys(bash("zcat own.gz; cat data"))


def test_what_cannot_be_unpacked_is_no_error() -> None:
    """A damaged container, a bomb and a container of itself are read as far as they go."""
    bomb = gzip.compress(bytes(50_000_000))
    for content in (
        b"\x1f\x8bxx",
        b"PK\x03\x04xx",
        b"BZhxx",
        b"\xfd7zXZ\0x",
        b"\x78\x9cxx",
        bomb,
        b"\xff\xfea",
        b"",
    ):
        assert sum(map(len, readings(content))) < 2_000_000


def test_bytes_alone_do_not_show_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: read as UTF-8 alone, a wide or packed text has no common words."""
    monkeypatch.setattr(word_runs_module, "readings", lambda content: [content.decode("utf-8", "ignore")])
    plain = word_runs(ORDER.encode())
    assert not any(
        plain & word_runs(FORMS[form](ORDER.encode())) for form in ("utf-16", "utf-32", "gzip", "base64")
    )


# Repositories.

WHO = "git -c user.name=a -c user.email=a@b.c -c commit.gpgsign=false"
COMMIT = f"git init -q -b main .; git add summary.md; {WHO} commit -qm one; "
GONE = f"git rm -q summary.md; {WHO} commit -qm two; "
READERS = {
    "show": "git show HEAD~1:summary.md",
    "show of a commit": "git show HEAD",
    "log -p": "git log -p",
    "log -S": "git log -p -S overwrites",
    "checkout": "git checkout -q HEAD~1 -- summary.md; cat summary.md",
    "restore": "git restore -s HEAD~1 summary.md; cat summary.md",
    "diff": "git diff HEAD~1",
    "cat-file": "git cat-file -p HEAD~1:summary.md",
    "cat-file --batch": "echo HEAD~1:summary.md | git cat-file --batch",
    "archive": "git archive HEAD~1 | tar xO",
    "worktree": "git worktree add -q wt HEAD~1; cat wt/summary.md",
    "grep": "git grep overwrites HEAD~1",
    "blame": "git blame HEAD~1 -- summary.md",
    "format-patch": f"{WHO} format-patch --stdout HEAD~1",
    "bundle": "git bundle create -q b HEAD; git clone -q b c; git -C c show HEAD~1:summary.md",
    "python": "python3 -c \"import zlib,glob; print([zlib.decompress(open(f,'rb').read()) for f in glob.glob('.git/objects/??/*')])\"",
}  # fmt: skip


def commit(harness: Harness, more: str = "") -> None:
    """A person commits the tainted file, and removes it."""
    harness.write()
    subprocess.run(["bash", "-ec", COMMIT + GONE + more], cwd=harness.place, check=True)


@pytest.mark.parametrize("how", READERS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_commit_that_a_person_made_taints_who_reads_it(harness: Harness, how: str, packed: bool) -> None:
    """Whatever command of git, or other program, reads the tainted file from the objects, loose or packed."""
    if packed and how == "python":
        pytest.skip("it reads loose objects")
    commit(harness, "git gc -q --prune=now" if packed else "")
    assert not harness.obeys(bash(READERS[how]))


ELSEWHERE = {
    "a stash": ("git checkout -q HEAD~1; echo more >> summary.md; " + f"{WHO} stash -q; git checkout -q main", "git stash show -p"),
    "an edited file": (f"git checkout -q -b e HEAD~1; sed -i 's/third/3rd/' summary.md; {WHO} commit -qam e; git checkout -q main", "git show e:summary.md"),
    "a clone inside": ("git clone -q . inner", "git -C inner show HEAD~1:summary.md"),
    "a message": (f"{WHO} commit -q --allow-empty -F <(git show HEAD~1:summary.md)", "git log"),
    "a tag": (f"{WHO} tag -a t -F <(git show HEAD~1:summary.md)", "git show t"),
    "a note": (f"{WHO} notes add -F <(git show HEAD~1:summary.md)", "git notes show"),
}  # fmt: skip


@pytest.mark.parametrize("how", ELSEWHERE)
def test_what_git_made_of_it_taints(harness: Harness, how: str) -> None:
    """Stashes, edited versions, clones, messages, tags and notes hold the words, too."""
    more, command = ELSEWHERE[how]
    commit(harness, more)
    assert not harness.obeys(bash(command))


def test_work_on_other_commits_stays_free(harness: Harness) -> None:
    """Log and other files of a repository with loose tainted content ask nobody."""
    harness.write()
    own = f"git init -q -b main .; echo plain > own.txt; git add own.txt; {WHO} commit -qm own; "
    subprocess.run(["bash", "-ec", own + COMMIT], cwd=harness.place, check=True)
    assert harness.obeys(bash("git log --oneline; git show HEAD~1; git show HEAD~1:own.txt"))
