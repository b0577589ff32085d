"""The workspace cannot be left, and what is written is whole."""

import asyncio
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ToolAnswered
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.files import safe_open as confine
from kestrel_lab.tools.files.directory_walk import Entry
from kestrel_lab.tools.files.safe_open import has_openat2, open_beneath, walk_beneath
from kestrel_lab.tools.files.workspace import Workspace

PARTS = ["..", ".", "", "sub", "in", "out", "abs", "a.txt", "secret", "root", "loop", "é", "\ud800"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace directory with files, links in and out, and a secret beside it."""
    (tmp_path / "secret").write_text("SECRET")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "sub" / "b.txt").write_text("b")
    (root / "in").symlink_to("sub")
    (root / "out").symlink_to("..")
    (root / "abs").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    (root / "file_out").symlink_to("../secret")
    os.mkfifo(root / "fifo")
    return root


@pytest.fixture(params=["openat2", "walk"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel's confinement, and the one for kernels without it."""
    if request.param == "walk":
        monkeypatch.setattr(confine, "has_openat2", lambda: False)
    elif not has_openat2():
        pytest.skip("this kernel has no openat2")
    return str(request.param)


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "sub/../../secret",
        "/etc/passwd",
        "out/secret",
        "abs/secret",
        "file_out",
        "in/../../secret",
        "loop",
        "loop/x",
        "/",
    ],
)
def test_no_path_leads_out(place: Path, path: str, either_way: str) -> None:
    """Dots, absolute paths and symlinks that leave are refused, in reading, looking and writing, and the
    secret stays.
    """
    workspace = Workspace(place)
    for attempt in (
        workspace.read_bytes,
        workspace.stat,
        workspace.listdir,
        lambda p: workspace.write_text(p, "x"),
    ):
        with pytest.raises((PermissionError, NotADirectoryError)):
            attempt(path)
    assert (place.parent / "secret").read_text() == "SECRET"


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=6))
def test_no_composed_path_reads_the_secret(place: Path, parts: list[str]) -> None:
    """However parts are joined, a read gives what is inside or an error."""
    with suppress(OSError, ValueError):
        assert Workspace(place).read_bytes("/".join(parts)) in {b"a", b"b"}


def test_paths_inside_are_reached_in_every_spelling(place: Path) -> None:
    """Relative, with dots, absolute under the root, and through a symlink that stays inside."""
    workspace = Workspace(place)
    for path in ("sub/b.txt", "./sub//b.txt", "sub/../sub/b.txt", str(place / "sub" / "b.txt")):
        assert workspace.read_text(path).text == "b"
    if has_openat2():
        assert workspace.read_text("in/b.txt").text == "b"
    alias = place.parent / "alias"
    alias.symlink_to(place)
    assert Workspace(alias).read_text(alias / "a.txt").text == "a"


def test_odd_paths_are_refused_with_reasons(place: Path, either_way: str) -> None:
    """NUL, overlong names, pipes, devices and magic links neither block nor open anything."""
    workspace = Workspace(place)
    with pytest.raises(ValueError, match="NUL"):
        workspace.read_bytes("a.txt\0.png")
    with pytest.raises(OSError, match="File name too long"):
        workspace.read_bytes("x" * 300)
    with pytest.raises(OSError, match="File name too long"):
        workspace.write_text("x" * 300, "")
    for way in (
        lambda: workspace.read_bytes("fifo"),
        lambda: workspace.write_text("fifo", "x"),
    ):  # one that blocks never comes back
        with pytest.raises(PermissionError, match="pipe or socket"):
            way()
    with pytest.raises(IsADirectoryError, match="sub is a directory"):
        workspace.read_bytes("sub")
    with pytest.raises(NotADirectoryError):
        workspace.read_bytes("a.txt/b")
    if sys.platform == "linux":
        with pytest.raises((PermissionError, NotADirectoryError)):
            Workspace(Path(f"/proc/{os.getpid()}")).read_bytes("root/etc/passwd")
        with pytest.raises(PermissionError, match="device"):
            Workspace(Path("/dev")).read_bytes("null")


def test_a_nul_is_refused_below_the_workspace_too(place: Path) -> None:
    """The system call would cut the path there, so the function that makes it refuses by itself."""
    fd = os.open(place, os.O_RDONLY)
    try:
        with pytest.raises(ValueError, match="NUL"):
            open_beneath(fd, "a.txt\0x", os.O_RDONLY, 0, follow=True)
    finally:
        os.close(fd)


def test_a_missing_file_is_answered_with_the_nearest(place: Path) -> None:
    """The message names what is there, for missing directories of any depth too."""
    workspace = Workspace(place)
    with pytest.raises(FileNotFoundError, match=r"^sub/b\.tx does not exist; did you mean 'sub/b\.txt'\?$"):
        workspace.read_bytes("sub/b.tx")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        workspace.read_bytes("a/" * 1500 + "b")


_SWAPPER = """
import os, sys
root = sys.argv[1]
os.chdir(root)
print("ready", flush=True)
while os.getppid() == int(sys.argv[2]):
    for _ in range(200):
        os.rename("d", "real"); os.rename("link", "d")
        os.rename("d", "link"); os.rename("real", "d")
"""


@contextmanager
def swapping(root: Path) -> Iterator[None]:
    """Another process that keeps replacing the directory `d` by a symlink that leads out, and back."""
    with subprocess.Popen(
        [sys.executable, "-c", _SWAPPER, str(root), str(os.getpid())], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def _openat2(root: Path, path: str) -> int:
    return Workspace(root).open(path)


def _walk(root: Path, path: str) -> int:
    fd = os.open(root, os.O_RDONLY)
    try:
        return walk_beneath(fd, path, os.O_RDONLY, 0)
    finally:
        os.close(fd)


def _realpath_then_open(root: Path, path: str) -> int:
    """The mutant: looks first and opens later."""
    real = os.path.realpath(root / path)
    if not real.startswith(f"{root}/"):
        raise PermissionError(errno.EACCES, "outside", path)
    return os.open(root / path, os.O_RDONLY)


def _race(
    root: Path, opener: Callable[[Path, str], int], enough: Callable[[Counter[bytes]], bool]
) -> Counter[bytes]:
    """How many opens gave the file inside, how many the one outside, and how many nothing, when that is
    `enough`.
    """
    found: Counter[bytes] = Counter()
    until = time.monotonic() + PATIENCE_S
    while not enough(found) and time.monotonic() < until:
        try:
            fd = opener(root, "d/file")
        except OSError:
            found[b""] += 1
        else:
            found[os.read(fd, 10)] += 1
            os.close(fd)
    return found


def test_a_racing_symlink_swap_never_escapes_and_the_race_catches_a_mutant(tmp_path: Path) -> None:
    """3,000 opens each way during swaps: none lands outside.

    Checking a path before opening it, as the mutant does, lands there.
    """
    root = tmp_path.resolve() / "root"
    (root / "d").mkdir(parents=True)
    (root / "d" / "file").write_text("inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside")
    (root / "link").symlink_to("../outside")
    with swapping(root):
        for opener in (_openat2, _walk):
            # A swapper that has no processor for a while swaps nothing: more opens are needed then.
            found = _race(
                root, opener, lambda found: found.total() >= 3_000 and min(found[b"inside"], found[b""]) > 0
            )
            assert (found[b"inside"] > 0, found[b""] > 0, found[b"outside"]) == (True, True, 0)
        assert _race(root, _realpath_then_open, lambda found: found[b"outside"] > 0)[b"outside"] == 1


def test_writing_replaces_as_a_whole_and_keeps_the_mode(tmp_path: Path) -> None:
    """Directories are made, the mode stays, no temporary file is left, and a hard link keeps the old
    content.
    """
    workspace = Workspace(tmp_path)
    assert workspace.write_text("a/b/c.sh", "one") is True
    os.chmod(tmp_path / "a/b/c.sh", 0o750)
    os.link(tmp_path / "a/b/c.sh", tmp_path / "other")
    assert workspace.write_text("a/b/c.sh", "two") is False
    assert (tmp_path / "a/b/c.sh").read_text() == "two"
    assert (tmp_path / "other").read_text() == "one"
    assert stat.S_IMODE((tmp_path / "a/b/c.sh").stat().st_mode) == 0o750
    assert os.listdir(tmp_path / "a/b") == ["c.sh"]
    with pytest.raises(IsADirectoryError):
        workspace.write_text("a/b", "x")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """A character the encoding lacks, and a file size limit reached half-way, change nothing."""
    workspace = Workspace(tmp_path)
    workspace.write_text("f", "old")
    with pytest.raises(ValueError, match="f is latin-1, which has no '€'"):
        workspace.write_text("f", "€", "latin-1")
    code = (
        "import resource, signal, sys; from pathlib import Path; from "
        "kestrel_lab.tools.files.workspace import Workspace\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, "
        "(1000, 1000))\n"
        "try: Workspace(Path(sys.argv[1])).write_bytes('f', b'x' * 5000)\n"
        "except OSError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == "f: File too large\n"
    assert ((tmp_path / "f").read_text(), os.listdir(tmp_path)) == ("old", ["f"])


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    """While a file is rewritten again and again, every read gives one version or the other."""
    workspace = Workspace(tmp_path)
    versions = {b"a" * 300_000, b"b" * 300_000}
    workspace.write_bytes("f", b"a" * 300_000)
    code = (
        "import sys; from pathlib import Path; from kestrel_lab.tools.files.workspace import Workspace\n"
        "w = Workspace(Path(sys.argv[1])); print('ready', flush=True)\n"
        "for i in range(300): w.write_bytes('f', b'ab'[i % 2 : i % 2 + 1] * 300_000)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while process.poll() is None:
            assert workspace.read_bytes("f") in versions
    assert process.returncode == 0


@pytest.mark.parametrize(
    "path",
    [".git/hooks/pre-commit", ".git/config", ".GIT/config", "sub/.git/hooks/x", ".kestrel/log.db", ".git"],
)
def test_protected_directories_are_never_written(place: Path, path: str) -> None:
    """What other programs run or trust is out of reach, also through a symlinked name."""
    workspace = Workspace(place)
    (place / ".git" / "hooks").mkdir(parents=True)
    (place / "g").symlink_to(".git")
    for attempt in (path, path.replace(".git", "g", 1) if path.startswith(".git/") else path):
        with pytest.raises((PermissionError, NotADirectoryError)):
            workspace.write_text(attempt, "x")
        with pytest.raises((PermissionError, NotADirectoryError)):
            workspace.open(attempt, os.O_WRONLY | os.O_CREAT)
    assert list((place / ".git").rglob("*")) == [place / ".git" / "hooks"]


@pytest.mark.parametrize("path", ["kestrel.toml", "sub/kestrel.toml", "KESTREL.toml", ".mcp.json"])
def test_settings_are_never_written(place: Path, path: str) -> None:
    """What says which calls go on unasked is not for the one who makes the calls."""
    workspace = Workspace(place)
    for write in (
        lambda: workspace.write_text(path, "x"),
        lambda: workspace.open(path, os.O_WRONLY | os.O_CREAT),
    ):
        with pytest.raises(PermissionError, match="is protected"):
            write()
    assert not (place / path).exists()


def test_only_our_table_of_a_project_file_is_protected(place: Path) -> None:
    """A `pyproject.toml` may be written as long as `[tool.kestrel]` stays as it is, in whatever way it is
    spelled.
    """
    workspace, ours = Workspace(place), '[tool.kestrel]\napprove = "ask"\n'
    workspace.write_text("pyproject.toml", "[project]\n")
    for text in (ours, "tool.kestrel.approve = 'auto'", '[[tool."kestrel".rules]]'):
        with pytest.raises(PermissionError, match=r"its \[tool.kestrel\] is protected"):
            workspace.write_text("pyproject.toml", text)
    (place / "pyproject.toml").write_text(ours)
    workspace.write_text("pyproject.toml", f'[project]\nname = "x"\n{ours}')
    for text in ("", "[project]\n", "no TOML [", ours.replace("ask", "auto")):
        with pytest.raises(PermissionError, match=r"its \[tool.kestrel\] is protected"):
            workspace.write_text("pyproject.toml", text)
    assert workspace.read_text("pyproject.toml").text.endswith(ours)


def test_a_read_only_workspace_reads_and_refuses_writes(place: Path) -> None:
    """Every way of writing is refused with the reason."""
    workspace = Workspace(place, read_only=True)
    assert workspace.read_text("a.txt").text == "a"
    with pytest.raises(PermissionError, match="read-only"):
        workspace.write_text("n", "x")
    for flags in (os.O_RDWR, os.O_TRUNC, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(PermissionError, match="read-only"):
            workspace.open("a.txt", flags)
    assert not (place / "n").exists()


def test_a_root_that_is_no_directory_is_a_usage_error(tmp_path: Path) -> None:
    """The message says what to do."""
    with pytest.raises(UsageError, match="create it, or name another"):
        Workspace(tmp_path / "missing")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("é\r\n".encode(), ("é\r\n", "utf-8")),
        (b"\xef\xbb\xbfx", ("x", "utf-8-sig")),
        ("né".encode("utf-16"), ("né", "utf-16")),
        (b"caf\xe9", ("café", "latin-1")),
        (b"", ("", "utf-8")),
    ],
)
def test_text_is_decoded_and_goes_back_to_the_same_bytes(
    tmp_path: Path, content: bytes, expected: tuple[str, str]
) -> None:
    """The encoding found is the one to write with."""
    workspace = Workspace(tmp_path)
    (tmp_path / "f").write_bytes(content)
    read = workspace.read_text("f")
    assert (read.text, read.encoding) == expected
    workspace.write_text("g", read.text, read.encoding)
    assert (tmp_path / "g").read_bytes() == content


def test_binary_and_huge_files_are_refused(tmp_path: Path) -> None:
    """A read says what the file is instead of returning noise or filling the memory."""
    workspace = Workspace(tmp_path)
    (tmp_path / "b").write_bytes(b"\x89PNG\0\0")
    with pytest.raises(ValueError, match=r"b is a binary file \(6 bytes\), not text"):
        workspace.read_text("b")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(ValueError, match=r"huge is too large to read at once \(1,000,000,000,000 bytes"):
        workspace.read_bytes("huge")


def test_listing_and_walking(place: Path) -> None:
    """Entries are sorted, symlinks named but not entered, and skipped directories left out."""
    workspace = Workspace(place)
    (place / "node_modules" / "x").mkdir(parents=True)
    assert [replace(entry, stamp=()) for entry in workspace.listdir("sub")] == [
        Entry(path="b.txt", kind="file", size=1)
    ]
    assert [(entry.path, entry.kind) for entry in workspace.walk()] == [
        ("a.txt", "file"),
        ("abs", "symlink"),
        ("fifo", "other"),
        ("file_out", "symlink"),
        ("in", "symlink"),
        ("loop", "symlink"),
        ("out", "symlink"),
        ("sub", "directory"),
        ("sub/b.txt", "file"),
    ]
    assert [entry.path for entry in workspace.walk(skip=(), depth=1) if entry.kind == "directory"] == [
        "node_modules",
        "sub",
    ]


def test_no_file_descriptor_is_left_open(place: Path) -> None:
    """Success and every kind of refusal close what they opened."""
    if sys.platform != "linux":
        pytest.skip("counts descriptors in /proc")
    workspace = Workspace(place)
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a.txt", "sub", "fifo", "nope", "out/secret", "sub/nope/x"):
        for attempt in (
            workspace.read_text,
            workspace.stat,
            workspace.listdir,
            lambda p: workspace.write_text(p, "x"),
        ):
            with suppress(OSError, ValueError):
                attempt(path)
    list(workspace.walk())
    assert len(os.listdir("/proc/self/fd")) == before


# Odd names and odd files.

ODD = {
    b"caf\xe9.txt": '"caf\\udce9.txt"',
    b"new\nline.txt": '"new\\nline.txt"',
    b"\x1b[31mred.txt": '"\\u001b[31mred.txt"',
    b'"quoted".txt': '"\\"quoted\\".txt"',
    b"x" * 251 + b".txt": "x" * 251 + ".txt",
    "e\u0301.txt".encode(): "e\u0301.txt",
    "\u00e9.txt".encode(): "\u00e9.txt",
    b"A.txt": "A.txt",
    b"a.txt": "a.txt",
    b"-rf.txt": "-rf.txt",
}


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with files of odd names, and with what is no file."""
    for name in ODD:
        (tmp_path / os.fsdecode(name)).write_text("needle\n")
    os.mkdir(tmp_path / os.fsdecode(b"dir\xff"))
    (tmp_path / os.fsdecode(b"dir\xff/in.txt")).write_text("needle\n")
    for name in ("fifo", "fifo.txt"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "link.txt").symlink_to("fifo")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    return tmp_path


def run_calls(folder: Path, home: Path, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """What a run in that folder answers to these calls."""
    model = ScriptedModel([[call] for call in calls] + ["done"])
    run = asyncio.run(Lab(home=home, model=model, approve="auto:critical").run("go", workspace=folder))
    assert run.answer == "done"
    return [event.text for event in run.events() if isinstance(event, ToolAnswered)]


def test_odd_names_are_listed_as_a_model_can_write_them(
    odd: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each is one line in every listing, a JSON text where it cannot be shown; with that text as argument the
    file is read and written.
    """
    home = tmp_path_factory.mktemp("home")
    calls: list[tuple[str, dict[str, Any]]] = [
        *(
            ("list_directory", {}),
            ("glob", {"pattern": "*.txt"}),
            ("grep", {"pattern": "needle"}),
            ("tree", {}),
        ),
    ]
    listed, globbed, grepped, drawn = run_calls(odd, home, *calls)
    for shown in ODD.values():
        assert shown in listed.split("\n")
        assert shown in globbed.split("\n")
        assert f"{shown}:1: needle" in grepped.split("\n")
        assert f"  {shown}" in drawn.split("\n")
    assert '"dir\\udcff/in.txt":1: needle' in grepped.split("\n")
    for shown in ODD.values():
        path = json.loads(shown) if shown.startswith('"') else shown
        read, there, wrote = run_calls(
            *(odd, home),
            ("read_file", {"path": path}),
            ("file_exists", {"path": path}),
            ("write_file", {"path": path, "content": "new\n"}),
        )
        assert (read, there.startswith("yes, "), wrote.startswith("replaced ")) == ("needle\n", True, True)


@pytest.mark.parametrize(
    "path", ["fifo", "fifo.txt", "link.txt", "loop.txt", "y" * 300, "a/" * 3_000, "n\ud800", "\0", "dir", ""]
)
def test_no_call_hangs_or_ends_the_run_on_what_is_no_file(
    path: str, odd: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every file tool says what is wrong with a pipe, a loop, a name that is too long or that no file system
    has.
    """
    if path == "dir":
        path = os.fsdecode(b"dir\xff")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": path}),
        ("batch_read", {"paths": [path, "A.txt"]}),
        ("write_file", {"path": path, "content": "x"}),
        ("edit_file", {"path": path, "old": "a", "new": "b"}),
        ("delete_file", {"path": path}),
        ("grep", {"pattern": "x", "path": path}),
        ("file_exists", {"path": path}),
    ]
    answers = run_calls(odd, tmp_path_factory.mktemp("home"), *calls)
    assert all("UnicodeEncodeError" not in answer for answer in answers)
    assert answers[0].startswith("error: ")
    assert "needle" in answers[1]
    assert all(answer.startswith("error: ") for answer in answers[2:4])


def test_a_workspace_that_is_not_utf8_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Before anything is begun; the folder above it works."""
    folder = tmp_path / os.fsdecode(b"w\xff")
    folder.mkdir()
    with pytest.raises(
        UsageError, match=r"w\\udcff has a name that is not UTF-8: rename the folder, or name another"
    ):
        Workspace(folder)
    assert run_calls(tmp_path, tmp_path / "home", ("list_directory", {}))[0].split("\n")[-1] == '"w\\udcff"/'


def test_what_vanishes_while_it_is_listed_is_no_error(tmp_path: Path) -> None:
    """A folder that is emptied meanwhile by another thread is walked to its end, any number of times."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            (tmp_path / "d/e").mkdir(parents=True, exist_ok=True)
            (tmp_path / "d/e/f").write_text("x")
            shutil.rmtree(tmp_path / "d", ignore_errors=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            list(Workspace(tmp_path).walk())
    finally:
        stop.set()
        thread.join()
