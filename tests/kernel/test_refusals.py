"""What a preview is refused: the parent sees it, whatever way the code takes and whatever it does with the
error, and nothing is adopted on top of it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from shells import Kernel

from kestrel_lab.core.calls import Danger
from kestrel_lab.tools.kernel.caches import LibraryCaches
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.sandbox.observer import Observer

pytestmark = pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())

SETUP = """
import ctypes, mmap, os, pathlib, shutil, socket, sqlite3, subprocess, threading, io, glob
import numpy as np, pandas as pd
libc = ctypes.CDLL(None, use_errno=True)
"""
READS = {
    "open": "v = open(P).read()",
    "io.open": "v = io.open(P, 'rb').read()",
    "pathlib": "v = pathlib.Path(P).read_text()",
    "os.open": "v = os.read(os.open(P, os.O_RDONLY), 5)",
    "a relative path": "v = open(os.path.relpath(P)).read()",
    "a folder's descriptor": "v = os.open('out.txt', os.O_RDONLY, dir_fd=os.open(D, os.O_PATH))",
    "a link in the workspace": "v = open('link.txt').read()",
    "a folder that is a link": "v = open('linked/out.txt').read()",
    "libc": "v = libc.open(P.encode(), 0)\nif v < 0: raise OSError",
    "a raw call": "v = libc.syscall(257, -100, P.encode(), 0)\nif v < 0: raise OSError",
    "openat2": "v = libc.syscall(437, -100, P.encode(), (ctypes.c_uint64 * 3)(), 24)\nif v < 0: raise OSError",
    "mmap": "v = mmap.mmap(os.open(P, os.O_RDONLY), 0, access=mmap.ACCESS_READ)[:5]",
    "listdir": "v = os.listdir(D)",
    "scandir": "v = [entry.name for entry in os.scandir(D)]",
    "libc's opendir": "libc.opendir.restype = ctypes.c_void_p\nv = libc.opendir(D.encode())\nif not v: raise OSError",
    "glob": "v = glob.glob(D + '/*')\nif not v: raise OSError",
    "numpy": "v = np.fromfile(P, dtype=np.uint8).tolist()",
    "pandas": "v = pd.read_csv(P).columns.tolist()",
    "sqlite": "v = sqlite3.connect(f'file:{P}?mode=ro', uri=True).execute('select 1 from sqlite_master').fetchall()",
    "shutil": "v = shutil.copy(P, 'copy.txt')",
    "a thread": "found = []\ndef work():\n    try: found.append(open(P).read())\n    except OSError: pass\n"
    "t = threading.Thread(target=work); t.start(); t.join(); v = found[0]; del t, work",
}
OTHERS = {
    "write": "fd = os.open(D + '/new.txt', os.O_CREAT | os.O_WRONLY)",
    "write by libc": "if libc.open(P.encode(), 1) < 0: raise OSError",
    "creat": "if libc.creat(P.encode(), 0) < 0: raise OSError",
    "truncate": "os.truncate(P, 0)",
    "truncate by libc": "if libc.truncate(P.encode(), 0) < 0: raise OSError",
    "mkdir": "os.mkdir(D + '/new')",
    "mkdir by libc": "if libc.mkdir((D + '/new').encode(), 0o700) < 0: raise OSError",
    "mknod": "os.mknod(D + '/new')",
    "mkfifo": "os.mkfifo('fifo')",
    "unlink": "os.unlink(P)",
    "unlink by libc": "if libc.unlink(P.encode()) < 0: raise OSError",
    "rmdir": "os.rmdir(D)",
    "rename": "os.rename(P, P + '2')",
    "rename of an own file": "open('a.txt', 'w').close(); os.rename('a.txt', 'b.txt')",
    "rename by libc": "if libc.rename(P.encode(), b'stolen.txt') < 0: raise OSError",
    "link": "os.link(P, 'hard.txt')",
    "symlink": "os.symlink(P, 'soft.txt')",
    "chmod": "os.chmod(P, 0o600)",
    "fchmod by libc": "if libc.fchmod(0, 0o600) < 0: raise OSError",
    "chown": "os.chown(P, 0, 0)",
    "utime": "os.utime(P)",
    "setxattr": "os.setxattr(P, 'user.x', b'1')",
    "kill": "os.kill(os.getppid(), 0)",
    "kill by libc": "if libc.kill(os.getppid(), 0) < 0: raise OSError",
    "a process": "subprocess.run(['true'])",
    "fork": "pid = os.fork()",
    "fork by libc": "pid = libc.fork()\nif pid < 0: raise OSError\nif pid == 0: os._exit(0)",
    "exec": "os.execv('/bin/true', ['true'])",
    "TCP": "socket.create_connection(('127.0.0.1', 9), 1)",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "a Unix socket": "socket.socket(socket.AF_UNIX)",
    "a socket by libc": "if libc.socket(2, 1, 0) < 0: raise OSError",
    "a name by libc": "r = ctypes.c_void_p()\nif libc.getaddrinfo(b'example.org', None, None, ctypes.byref(r)): "
    "raise OSError",
    "priority": "os.setpriority(os.PRIO_PROCESS, 0, 5)",
    "limits of another process": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
    "a namespace": "if libc.unshare(0x10000000) < 0: raise OSError",
    "shared memory": "if libc.shmget(0x4B4C, 4096, 0o1600) < 0: raise OSError",
    "POSIX shared memory": "from multiprocessing import shared_memory\n"
    "shared_memory.SharedMemory('kestrel-refused', True, 64)",
}
CAUGHT = (
    "P, D = {path!r}, {folder!r}\ntry:\n{code}\n    v = 'given'\nexcept BaseException:\n    v = 'default'"
)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """A kernel in a workspace with links to a file and a folder outside."""
    outside, work = tmp_path_factory.mktemp("outside"), tmp_path_factory.mktemp("work")
    (outside / "out.txt").write_text("a,b\n1,2\n")
    (work / "link.txt").symlink_to(outside / "out.txt")
    (work / "linked").symlink_to(outside)
    return Kernel(work, f"{SETUP}\noutside = {str(outside)!r}")


def caught(kernel: Kernel, code: str) -> str:
    """Code that swallows whatever a piece of code raises, and goes on with another value."""
    folder = kernel.ns["outside"]
    indented = "\n".join(f"    {line}" for line in code.split("\n"))
    return CAUGHT.format(path=os.path.join(folder, "out.txt"), folder=folder, code=indented)


@pytest.mark.parametrize("door", [*READS, *OTHERS])
def test_a_refusal_that_code_swallows_is_a_refusal(
    kernel: Kernel, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is HIGH, named on the card, and nothing is taken over."""
    monkeypatch.chdir(kernel.folder)
    preview = kernel.preview(caught(kernel, {**READS, **OTHERS}[door]))

    assert not preview.adoptable
    assert preview.danger is Danger.HIGH
    assert "wants to " in preview.text
    if door in READS:
        path = os.path.join(kernel.ns["outside"], "" if "dir" in door or door == "glob" else "out.txt")
        assert f"wants to read {path.rstrip('/')}" in preview.text, preview.text


def test_a_refusal_that_nobody_observed_would_be_adopted(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deliberate bug: without the observer's notes the default value passes."""
    monkeypatch.setattr(Observer, "note", lambda *_: None)
    assert kernel.preview(caught(kernel, READS["libc"])).refused == ()


ALLOWED = {
    "a file of the workspace": "v = open('plain.txt').read()",
    "a file of the workspace by libc": "fd = ctypes.CDLL(None).open(b'plain.txt', 0)\nv = os.read(fd, 5); os.close(fd); del fd",
    "a folder of the workspace": "v = os.listdir('.')",
    "what is not there": "v = os.path.exists('/nowhere/x')\ntry: open('/nowhere/x')\nexcept OSError: pass",
    "what cannot be made": "os.makedirs('/usr', exist_ok=True); v = 1",
    "a status of a file outside": "v = os.stat(outside).st_size, os.path.exists(outside)",
    "a temporary file": "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x'); v = f.tell()",
    "nowhere": "with open(os.devnull, 'w') as f: f.write('x')\nv = 1",
    "its own descriptors": "v = len(os.listdir('/proc/self/fd')) > 0",
    "the machine": "v = os.cpu_count(), len(open('/proc/meminfo').read()) > 0",
    "a library": "import colorsys; v = colorsys.rgb_to_hsv(0, 0, 0)",
    "a thread": "t = threading.Thread(target=print); t.start(); t.join(); del t; v = 1",
    "a lot of memory that it does not use": "v = np.empty(10**9, np.uint8).nbytes",
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_what_is_refused_nothing_is_taken_over(
    kernel: Kernel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the workspace, the machine and libraries, and what fails outside of a preview, too."""
    monkeypatch.chdir(kernel.folder)
    (kernel.folder / "plain.txt").write_text("plain")
    preview = kernel.preview(f"{ALLOWED[kind]}\ndel f" if " as f" in ALLOWED[kind] else ALLOWED[kind])

    assert preview.refused == ()
    assert preview.adoptable, preview.unfit


def test_caches_of_libraries_are_read_and_secrets_in_them_are_not(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of an installed library is readable; a token, a key, another program's cache and a link out of it
    are refused.
    """
    key = "hf_" + "a1" * 17
    files = {
        "matplotlib/fontlist.json": "{}",
        "pandas/deep/down/data.bin": "x" * 100_000,
        "numpy/tokenizer.json": "{}",
        "numpy/special_tokens_map.json": "{}",
        "fontconfig/list": "x",
        "numpy/token": "x",
        "numpy/credentials.json": "{}",
        "numpy/stored_tokens": f"[me]\nvalue = {key}",
        "google-chrome/page": "x",
        "mozilla/page": "x",
        "unknown": "x",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "numpy/out").symlink_to(Path(kernel.ns["outside"]) / "out.txt")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    read = {
        name: kernel.preview(f"v = open({str(tmp_path / name)!r}).read()").adoptable
        for name in [*files, "numpy/out"]
    }

    assert [name for name, adoptable in read.items() if adoptable] == list(files)[:5]
    assert not LibraryCaches.of_user({"XDG_CACHE_HOME": str(tmp_path)}).named


def test_a_library_is_imported_by_an_adoption(kernel: Kernel) -> None:
    """One that is installed; a module of the workspace is code that was not approved."""
    sys.modules.pop("colorsys", None)
    preview = kernel.preview("import colorsys\nhue = colorsys.rgb_to_hsv(1, 0, 0)[0]")
    assert (preview.danger, preview.imports) == (Danger.LOW, ("colorsys",))
    assert "imports colorsys, which is installed" in preview.text
    kernel.live.adopt(preview, "r", "c1")
    assert kernel.ns["colorsys"] is sys.modules["colorsys"]
    assert kernel.ns["hue"] == 0.0


def test_a_value_that_names_a_temporary_file_of_the_preview_is_not_taken_over(kernel: Kernel) -> None:
    """The file is gone with the preview."""
    preview = kernel.preview("import tempfile; place = tempfile.mkdtemp()")
    assert preview.unfit == "a value names a temporary file, which only the preview has"
