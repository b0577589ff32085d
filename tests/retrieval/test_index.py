"""The index of a folder: the same however it came about, shared, resumed, repaired, and complete in what it
leaves out.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.retrieval.explain import explain_rank
from kestrel_lab.retrieval.indexing import index as indexing
from kestrel_lab.retrieval.indexing.chunks import cut_chunks
from kestrel_lab.retrieval.indexing.file_list import files_of
from kestrel_lab.retrieval.indexing.index import FEW_FILES, CodeIndex
from kestrel_lab.retrieval.search import Search

NAMES = ("a.py", "b.md", "sub/c.py", "sub/d.txt", "e.js")
WORDS = ("alpha", "beta", "gamma_delta", "HTTPServer")
QUERY = "alpha beta gamma_delta HTTPServer"


def held(index: CodeIndex) -> tuple[object, ...]:
    """Everything an index says of a folder, whatever numbers it has for it."""
    files = index.rows("SELECT path, hash, language, title, skipped FROM files ORDER BY path")
    chunks = index.rows(
        "SELECT path, first, last, kind, name FROM chunks JOIN files ON files.id = file ORDER BY path, first"
    )
    symbols = index.rows(
        "SELECT path, qualified, kind, symbols.first FROM symbols JOIN files ON files.id = file ORDER "
        "BY path, 4, 2"
    )
    edges = index.rows(
        "SELECT path, target, names, line FROM edges JOIN files ON files.id = file ORDER BY path, "
        "line, target"
    )
    ranked = [
        (one.path, round(one.score, 9), tuple(sorted(one.parts)))
        for one in Search(index).ranking(QUERY).files
    ]
    return files, chunks, symbols, edges, ranked


def write(folder: Path, name: str, words: list[str]) -> None:
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(
        "".join(
            f"def {word}():\n    return '{word}'\n\n\n"
            if name.endswith(".py")
            else f"# {word}\n\n{word} it is\n"
            for word in words
        )
    )


Edits = st.lists(
    st.tuples(st.sampled_from(NAMES), st.none() | st.lists(st.sampled_from(WORDS), max_size=3)),
    min_size=1,
    max_size=5,
)


def differs_after(edits: list[tuple[str, list[str] | None]], folder: Path) -> bool:
    """Whether an index that followed edits, one refresh after each, differs from one made at the end."""
    kept = CodeIndex(folder, folder.parent / "kept")
    for name, words in edits:
        if words is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write(folder, name, words)
        kept.refresh()
    fresh = CodeIndex(folder, folder.parent / "fresh")
    fresh.refresh()
    differs = held(kept) != held(fresh)
    kept.close()
    fresh.close()
    return differs


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(edits=Edits)
def test_an_index_that_follows_edits_is_one_made_afresh(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, list[str] | None]]
) -> None:
    """Whatever is written, changed and deleted in between: files, chunks, symbols, imports and ranking are
    those of a new index.
    """
    folder = tmp_path_factory.mktemp("made") / "work"
    folder.mkdir()
    assert not differs_after(edits, folder)


def test_an_index_that_misses_deletions_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deliberate bug, deleted files stay, makes the law above fail."""
    (tmp_path / "work").mkdir()
    remove = indexing.remove_files
    monkeypatch.setattr(indexing, "remove_files", lambda connection, paths: remove(connection, []))
    assert differs_after([("a.py", ["alpha"]), ("b.md", ["beta"]), ("a.py", None)], tmp_path / "work")


def test_an_edit_is_seen_at_once_also_where_size_and_time_are_the_same(tmp_path: Path) -> None:
    """A change between two looks is found by content, even if whoever made it put the modification time
    back.
    """
    index = CodeIndex(tmp_path / "work", tmp_path / "home")
    write(tmp_path / "work", "a.py", ["alpha"])
    index.refresh()
    before = (tmp_path / "work/a.py").stat()
    (tmp_path / "work/a.py").write_text((tmp_path / "work/a.py").read_text().replace("alpha", "omega"))
    os.utime(tmp_path / "work/a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    done = index.refresh()
    assert (done.changed, [row[0] for row in index.rows("SELECT qualified FROM symbols")]) == (1, ["omega"])
    assert index.refresh().changed == 0
    index.close()


PLACES = {
    "kept.py": b"def sandbox():\n    pass\n",
    ".env": b"TOKEN=sandbox\n",
    "deploy/id_rsa": b"sandbox key\n",
    "image.bin": b"\0sandbox\0",
    "large.txt": b"sandbox\n" * 200_000,
    "ignored.log": b"sandbox\n",
    ".gitignore": b"*.log\n",
    "other.py": b"x = 1\n",
    "node_modules/m.js": b"function sandbox() {}\n",
    "empty.py": b"",
}


@pytest.mark.parametrize("repository", [True, False])
def test_every_file_has_an_explanation(tmp_path: Path, repository: bool) -> None:
    """In a repository and in a plain folder: secrets, binaries, large and ignored files are not in the index,
    and each says why.
    """
    folder = tmp_path / "work"
    for name, content in PLACES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "link.py").symlink_to("kept.py")
    if repository:
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    index = CodeIndex(folder, tmp_path / "home")
    index.refresh()
    said = {
        name: explain_rank(index, "sandbox", name)
        for name in [*PLACES, "link.py", "no/such.py", "deploy", "/etc/passwd"]
    }
    states = {
        **dict.fromkeys(("image.bin", ".env", "deploy/id_rsa", "large.txt", "link.py"), "unread"),
        **dict.fromkeys(("ignored.log", "node_modules/m.js"), "ignored"),
        **dict.fromkeys(("other.py", "empty.py", ".gitignore"), "unmatched"),
        **dict.fromkeys(("no/such.py", "deploy", "/etc/passwd"), "missing"),
        "kept.py": "found",
    }
    assert {name: one.state for name, one in said.items()} == states
    assert "secrets" in said[".env"].reason
    assert "1,000,000" in said["large.txt"].reason
    assert said["kept.py"].reason.startswith("ranked 1 of 1 ")
    assert all(
        "sandbox" not in str(row)
        for row in index.rows("SELECT * FROM chunks JOIN files ON files.id = file WHERE path <> 'kept.py'")
    )
    index.close()


def test_a_folder_that_its_repository_ignores_is_listed_all_the_same(tmp_path: Path) -> None:
    """An installed package in the `.venv` of a checkout is a workspace like any other."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("held/\n")
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "a.py").write_text("x = 1\n")
    assert files_of(tmp_path / "held") == ["a.py"]
    assert files_of(tmp_path) == [".gitignore"]


def test_repositories_within_one_are_indexed_by_their_own_rules(tmp_path: Path) -> None:
    """Submodules and repositories in a subfolder are found like in a plain folder; what they or the outer one
    ignore is not.
    """
    quiet = ["git", "-c", "protocol.file.allow=always", "-c", "user.name=n", "-c", "user.email=e"]
    folder, origin = tmp_path / "work", tmp_path / "origin"
    for name, repository in (
        ("kept.py", folder),
        ("inner.py", folder / "nested"),
        ("vendored.py", origin),
        ("x.py", folder / "ignored"),
    ):
        repository.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("def heron(): ...\n")
        (repository / "own.log").write_text("heron\n")
        (repository / ".gitignore").write_text("*.log\nignored/\n")
        subprocess.run([*quiet, "init", "-q"], cwd=repository, check=True)
    subprocess.run([*quiet, "add", "."], cwd=origin, check=True)
    subprocess.run([*quiet, "commit", "-qm", "first"], cwd=origin, check=True)
    subprocess.run(
        [*quiet, "submodule", "--quiet", "add", str(origin), "deep/vendor"], cwd=folder, check=True
    )
    (folder / "loop").symlink_to(".")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "copy.py").write_text("heron\n")
    assert [path for path in files_of(folder) if path.endswith((".py", ".log"))] == [
        "deep/vendor/vendored.py",
        "kept.py",
        "nested/inner.py",
    ]
    index = CodeIndex(folder, tmp_path / "home")
    index.refresh()
    assert "ignored by the rule" in explain_rank(index, "heron", "ignored/x.py").reason
    assert "symbolic link" in explain_rank(index, "heron", "loop/kept.py").reason
    index.close()


def guesses(index: CodeIndex, query: str) -> list[str]:
    """The files of which an explanation says what is not so, by a reading of our own: no word, or a place
    that they do not have.
    """
    places = {one.path: place for place, one in enumerate(Search(index).ranking(query).files, 1)}
    wrong = []
    for path in files_of(index.workspace):
        said = explaining(index, query, path)
        text = (index.workspace / path).read_text(errors="replace").lower()
        if said.place != places.get(path) or (
            said.state == "unmatched" and any(word in text for word in query.split())
        ):
            wrong.append(path)
    return wrong


explaining = explain_rank


def test_an_explanation_never_guesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every file of the package itself the place told is the place it has; one that says `no word` for all
    but the first is caught.
    """
    folder = tmp_path / "work"
    folder.mkdir()
    source = Path(indexing.__file__).parent
    for path in source.glob("*.py"):
        (folder / path.name).write_bytes(path.read_bytes())
    index = CodeIndex(folder, tmp_path / "home")
    index.refresh()
    assert guesses(index, "grammar") == []

    def guessing(index: CodeIndex, query: str, path: str) -> object:
        said = explain_rank(index, query, path)
        return (
            said
            if said.state == "found" and said.place == 1
            else type(said)(path=path, state="unmatched", reason="no word of it is there")
        )

    monkeypatch.setitem(globals(), "explaining", guessing)
    assert guesses(index, "grammar") != []
    index.close()


BUILD = """
import sys
from kestrel_lab.retrieval.indexing.index import CodeIndex
def tell(done, total, note):
    print(done, total, flush=True)
    if len(sys.argv) > 3:
        sys.stdin.read()  # waits here to be killed
print(CodeIndex(sys.argv[1], sys.argv[2]).refresh(tell).changed, flush=True)
"""


def many(folder: Path, count: int) -> None:
    for number in range(count):
        write(folder, f"m{number}.py", ["alpha", f"word{number}"])


def test_a_killed_build_goes_on_and_two_builders_agree(tmp_path: Path) -> None:
    """What was written before the kill is not read again; two processes at once leave one index, the same as
    one alone.
    """
    folder, home = tmp_path / "work", tmp_path / "home"
    many(folder, 100)
    first = subprocess.Popen(
        [sys.executable, "-c", BUILD, folder, home, "stop"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "40 100\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    index = CodeIndex(folder, home)
    assert (index.complete, index.rows("SELECT count(*) FROM files")) == (False, [(40,)])
    both = [
        subprocess.Popen([sys.executable, "-c", BUILD, folder, home], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    changed = [int(one.communicate(timeout=PATIENCE_S)[0].split("\n")[-2]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sum(changed) == 60
    alone = CodeIndex(folder, tmp_path / "alone")
    alone.refresh()
    assert held(index) == held(alone)
    index.close()
    alone.close()


@pytest.mark.parametrize("where", ["head", "middle", "nonsense"])
def test_a_damaged_index_is_made_anew_and_said(tmp_path: Path, where: str) -> None:
    """Whether its head, its middle or all of it is lost: the next search has the whole folder, and the note
    says what happened.
    """
    folder, home = tmp_path / "work", tmp_path / "home"
    many(folder, 20)
    index = CodeIndex(folder, home)
    index.refresh()
    whole = held(index)
    index.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    index.close()
    content = bytearray(index.path.read_bytes())
    if where == "nonsense":
        content = bytearray(b"no database at all" * 300)
    else:
        start = 0 if where == "head" else 4096
        content[start : start + (4096 if where == "head" else len(content))] = os.urandom(
            4096 if where == "head" else len(content) - 4096
        )
    index.path.write_bytes(content)
    again = CodeIndex(folder, home)
    note = again.up_to_date(60)
    assert held(again) == whole
    assert "damaged" in note
    again.close()


def test_what_is_indexed_can_be_searched_while_the_rest_is_built(tmp_path: Path) -> None:
    """A build in the background tells how far it is; a search in the middle finds what is there; a closed one
    ends.
    """
    folder = tmp_path / "work"
    many(folder, 90)
    index = CodeIndex(folder, tmp_path / "home")
    seen: list[tuple[int, int, int]] = []
    other = CodeIndex(folder, tmp_path / "home")
    index.start(lambda done, total, _: seen.append((done, total, len(Search(other).ranking("alpha").files))))
    assert index.wait(PATIENCE_S).finished
    assert seen == [(40, 90, 40), (80, 90, 80), (90, 90, 90)]
    index.close()


def test_a_few_files_are_waited_for_and_many_are_not(tmp_path: Path) -> None:
    """What a run reads of a small folder does not depend on how busy the machine is: a replay asks the same."""
    few = tmp_path / "few"
    many(few, 20)
    index = CodeIndex(few, tmp_path / "home")
    assert (index.up_to_date(0.0), len(Search(index).ranking("alpha").files)) == ("", 20)
    index.close()
    large = tmp_path / "large"
    many(large, FEW_FILES + 1)
    index = CodeIndex(large, tmp_path / "home")
    looked = threading.Event()

    def hold(_done: int, _total: int, _note: str) -> None:
        looked.wait(PATIENCE_S)

    # The build stands still meanwhile, however quick the machine is.
    assert "still being built" in index.up_to_date(0.0, hold)
    looked.set()
    index.close()


def test_several_threads_may_ask_one_index_at_once(tmp_path: Path) -> None:
    """Each finds it complete, and what was written before it asked; none meets a thread that is not begun."""
    folder = tmp_path / "work"
    many(folder, 5)
    index = CodeIndex(folder, tmp_path / "home")

    def ask(number: int) -> tuple[str, int]:
        write(folder, f"n{number}.py", [f"own{number}"])
        note = index.up_to_date(60)
        return note, len(Search(index).ranking(f"own{number}").files)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(24))) == [("", 1)] * 24
    index.close()


def test_a_folder_that_is_not_there_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    """Also from the thread."""
    with pytest.raises(UsageError, match="not a folder"):
        CodeIndex(tmp_path / "none", tmp_path / "home").up_to_date(10)


@settings(max_examples=60, deadline=None)
@given(
    path=st.sampled_from(
        [
            "a.py",
            "a.js",
            "a.ts",
            "a.tsx",
            "a.java",
            "a.go",
            "a.rs",
            "a.c",
            "a.cpp",
            "a.md",
            "a.ipynb",
            "a.dat",
        ]
    ),
    text=st.text(alphabet="defclass f(){}:;=\n\t#`'\"\\<>/*ä\r", max_size=200) | st.text(max_size=60),
)
def test_every_line_is_in_exactly_one_chunk(path: str, text: str) -> None:
    """Whatever the text and the language, also where the code is wrong."""
    lines = text.split("\n")
    count = len(lines) - (lines[-1] == "")
    assert sorted(
        n for chunk in cut_chunks(path, text).chunks for n in range(chunk.first, chunk.last + 1)
    ) == list(range(1, count + 1))


SOURCES = {
    "a.js": (
        "export function load(x) { }\nclass Store { get(k) { return k }\n handler = () => 1; size = 2; "
        "}\nconst add = (a, b) => a + b\n"
        "module.exports.late = () => 1;\nStore.prototype.put = function () {};\nlocal.x = 1;\n",
        {"load", "Store", "Store.get", "Store.handler", "add", "late", "Store.put"},
    ),
    "a.ts": (
        "interface Shape { area(): number }\nexport abstract class Box implements Shape { area = 1; "
        "abstract go(): void; on = () => 1 }\n"
        "type Id = string\nexport namespace N { export function f() {} }\ndeclare function g(): void;\n",
        {"Shape", "Shape.area", "Box", "Box.go", "Box.on", "Id", "N", "N.f", "g"},
    ),
    "a.java": (
        "class Stack { static final int A = 1, B = 2; int top() { return 1; }\n enum K { ONE } }\n",
        {"Stack", "Stack.A", "Stack.B", "Stack.top", "Stack.K", "Stack.K.ONE"},
    ),
    "a.go": (
        "package p\ntype Node struct{}\nfunc (n *Node[T]) Next() int { return 1 }\nfunc Make() "
        "{}\nconst A, B = 1, 2\nvar V = 1\n"
        "type Do interface { It() error }\ntype Same = Node\n",
        {"Node", "Node.Next", "Make", "A", "B", "V", "Do", "Do.It", "Same"},
    ),
    "a.rs": (
        "struct Ring;\nimpl<T> Ring<T> { fn turn(&self) {} }\nfn main() {}\nmod other;\ntrait Draw { "
        'fn draw(&self); }\nextern "C" { fn c(); }\n',
        {"Ring", "Ring.turn", "main", "Draw", "Draw.draw", "c"},
    ),
    "a.c": (
        "#define SIZE 3\nstruct pair { int a; };\nstatic int *sum(int a) { return 0; }\nint "
        "known(int);\ntypedef int (*back)(void *);\n"
        "typedef struct node { int v; } node_t;\nstruct later;\n",
        {"SIZE", "pair", "sum", "known", "back", "node_t", "node"},
    ),
    "a.h": ("class Tree { public: void grow(); };\nint plain(int);\n", {"Tree", "Tree.grow", "plain"}),
    "a.cpp": (
        "namespace n { class Tree { void grow() {} operator bool() const { return true; } }; }\nint "
        "Tree::cut() { return 1; }\nclass Later;\n"
        "namespace a::b { void f() {} }\ntemplate <class T> void Box<T>::put() {}\nconst std::string& "
        "name(const std::string& s) { return s; }\n"
        "bool operator<(const A& a, const A& b) { return true; }\n",
        {
            "n",
            "n.Tree",
            "n.Tree.grow",
            "n.Tree.operator bool",
            "Tree.cut",
            "a.b",
            "a.b.f",
            "Box.put",
            "name",
            "operator<",
        },
    ),
    "a.py": (
        "LIMIT = 3\n@decorated\nclass A:\n    async def run(self): ...\n    def x(self): ...\nif "
        "LIMIT:\n    def late(): ...\n",
        {"LIMIT", "A", "A.run", "A.x", "late"},
    ),
}


@pytest.mark.parametrize("path", SOURCES)
def test_each_language_gives_its_symbols(path: str) -> None:
    """Functions, classes and methods of every language that is parsed, under their full names."""
    text, names = SOURCES[path]
    assert {symbol.qualified for symbol in cut_chunks(path, text).symbols} == names


def test_a_refresh_without_changes_is_quick(tmp_path: Path) -> None:
    """Looking whether anything changed takes a small part of what building took."""
    folder = tmp_path / "work"
    many(folder, 150)
    index = CodeIndex(folder, tmp_path / "home")
    built = index.refresh().seconds
    time.sleep(0.06)  # files settle: those changed just before they were read are looked at again
    index.refresh()
    assert min(index.refresh().seconds for _ in range(5)) < built
    index.close()
