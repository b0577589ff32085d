"""Attempts of code to have an effect from a preview, and the place in which each would be seen: run as a
script, prints what got out.

The arguments are a part of the lockdown that is left out (`landlock`, `seccomp`, `descriptors` or `memory`) and
the attempts that are made; by default nothing is left out, and all are made.
"""

import asyncio
import contextlib
import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import sqlite3
import struct
import sys
import tempfile
import time
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

from kestrel_lab.tools.kernel import lockdown
from kestrel_lab.tools.kernel.live_kernel import LiveKernel
from kestrel_lab.tools.sandbox import observer

OFF, *ONLY = sys.argv[1:] or [""]
HOME = Path(tempfile.mkdtemp(prefix="attempts-"))
PLACE = HOME / "work"
PLACE.mkdir()
os.chdir(PLACE)

if OFF == "landlock":
    lockdown.landlock.restrict_process = lambda *_, **__: None
    refuse = observer._Call.refuse
    # What Landlock rules is also refused by the observer, whom a swapped path may deceive.
    observer._Call.refuse = lambda call, refusal, error: (
        call._go_on() if error == errno.EACCES else refuse(call, refusal, error)
    )
if OFF == "seccomp":
    lockdown.landlock.filter_observed = lambda _: os.pipe()[0]
if OFF == "descriptors":
    lockdown.close_others = lambda _: None
if OFF == "memory":
    lockdown._unshare_memory = lambda: None

(PLACE / "data.csv").write_text("a\n1\n")
(PLACE / "old").write_text("old")
(PLACE / "deep").mkdir()
pipes = []
for name in ("pipe", "deep/pipe"):
    os.mkfifo(PLACE / name)
    pipes.append(os.open(PLACE / name, os.O_RDWR | os.O_NONBLOCK))
    os.write(pipes[-1], b"safe")
victim = os.fork()
if victim == 0:  # a process of the same user, which waits
    os.setpgid(0, 0)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    time.sleep(600)
    os._exit(0)

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(50)
listener.settimeout(0)
port = listener.getsockname()[1]
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 0))
datagrams.settimeout(0)
abstract = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
abstract.bind(f"\0attempts-{os.getpid()}")
abstract.settimeout(0)
named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
named.bind(str(HOME / "socket"))
named.settimeout(0)
inherited, peer = socket.socketpair()  # as the kernel's own sockets are
peer.settimeout(0)
pipe_read, pipe_write = os.pipe()
os.set_blocking(pipe_read, False)
opened = os.open(HOME / "opened", os.O_RDWR | os.O_CREAT)
shared = mmap.mmap(-1, 4096)
shared[:4] = b"safe"
(HOME / "mapped").write_bytes(b"safe" + bytes(4092))
mapped_fd = os.open(HOME / "mapped", os.O_RDWR)
mapped = mmap.mmap(mapped_fd, 4096)
database = sqlite3.connect(HOME / "log.db", isolation_level=None)
database.execute("pragma journal_mode=wal")
database.execute("create table t(x)")
word = struct.pack("16s", b"memory-of-parent")
buffer = bytearray(word)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
os.environ["KEPT"] = "safe"
signalled = []
for number in (signal.SIGUSR1, signal.SIGIO, signal.SIGWINCH, signal.SIGURG):
    signal.signal(number, lambda number, _: signalled.append(number))
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
nice = os.getpriority(os.PRIO_PROCESS, 0)
affinity = os.sched_getaffinity(0)
PID = os.getpid()


def received(receiver):
    with contextlib.suppress(BlockingIOError, OSError):
        return bool(receiver.recv(100))
    return False


def accepted():
    with contextlib.suppress(BlockingIOError, OSError):
        listener.accept()
        return True
    return False


def gone(path):
    return not path.exists()


def alive():
    return Path(f"/proc/{victim}/stat").read_text().split()[2] != "Z"


def emptied():
    """Whether a pipe of the workspace holds something else than what was put into it; puts it back."""
    found = []
    for fd in pipes:
        with contextlib.suppress(BlockingIOError):
            found.append(os.read(fd, 100))
        os.write(fd, b"safe")
    return found != [b"safe", b"safe"]


def piped():
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(pipe_read, 10))
    return False


C = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\n"
ATTEMPTS = [
    ("write a file by open", "open('out.txt', 'w').write('x')", lambda: (PLACE / "out.txt").exists()),
    (
        "write a file by os.open",
        "import os; os.write(os.open('out2.txt', os.O_CREAT | os.O_WRONLY), b'x')",
        lambda: (PLACE / "out2.txt").exists(),
    ),
    (
        "write a file by libc",
        C + "libc.syscall(2, b'out3.txt', 65, 0o644)",
        lambda: (PLACE / "out3.txt").exists(),
    ),
    (
        "write beside the workspace",
        f"import os; os.open({str(HOME / 'beside')!r}, os.O_CREAT | os.O_WRONLY)",
        lambda: (HOME / "beside").exists(),
    ),
    ("delete a file", "import os; os.remove('old')", lambda: gone(PLACE / "old")),
    ("rename a file", "import os; os.rename('data.csv', 'moved.csv')", lambda: gone(PLACE / "data.csv")),
    (
        "cut a file short",
        C + "libc.truncate(b'data.csv', 0)",
        lambda: (PLACE / "data.csv").exists() and not (PLACE / "data.csv").read_bytes(),
    ),
    ("make a folder", "import os; os.mkdir('folder')", lambda: (PLACE / "folder").exists()),
    (
        "make a link out of the scratch folder",
        "import os, tempfile; os.symlink('/etc', 'link')",
        lambda: os.path.lexists(PLACE / "link"),
    ),
    ("make a pipe with a name", "import os; os.mkfifo('fifo')", lambda: (PLACE / "fifo").exists()),
    (
        "change a mode",
        "import os; os.chmod('data.csv', 0o777)",
        lambda: (PLACE / "data.csv").exists() and (PLACE / "data.csv").stat().st_mode & 0o777 == 0o777,
    ),
    (
        "change a time",
        "import os; os.utime('data.csv', (1, 1))",
        lambda: (PLACE / "data.csv").exists() and (PLACE / "data.csv").stat().st_mtime < 100,
    ),
    (
        "set an attribute",
        "import os; os.setxattr('data.csv', 'user.x', b'1')",
        lambda: (PLACE / "data.csv").exists() and "user.x" in os.listxattr(PLACE / "data.csv"),
    ),
    (
        "run a program",
        f"import subprocess; subprocess.run(['/bin/sh', '-c', 'echo x > {PLACE}/program'])",
        lambda: (PLACE / "program").exists(),
    ),
    (
        "run a command",
        f"import os; os.system('echo x > {PLACE}/command')",
        lambda: (PLACE / "command").exists(),
    ),
    (
        "stay as a process",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(30)\n    os._exit(0)",
        lambda: left_processes() > 0,
    ),
    (
        "read a pipe with a name",
        "import os; os.read(os.open('pipe', os.O_RDONLY | os.O_NONBLOCK), 4)",
        emptied,
    ),
    (
        "read a pipe by libc",
        C + "libc.read(libc.open(b'deep/pipe', 0x800), ctypes.create_string_buffer(4), 4)",
        emptied,
    ),
    ("write to a pipe with a name", C + "libc.write(libc.open(b'pipe', 0x801), b'more', 4)", emptied),
    ("connect by TCP", f"import socket; socket.create_connection(('127.0.0.1', {port}))", accepted),
    (
        "send by UDP",
        f"import socket; socket.socket(2, 2).sendto(b'x', {datagrams.getsockname()})",
        lambda: received(datagrams),
    ),
    (
        "send to an abstract socket",
        f"import socket; socket.socket(1, 2).sendto(b'x', {abstract.getsockname()!r})",
        lambda: received(abstract),
    ),
    (
        "send to a named socket",
        f"import socket; socket.socket(1, 2).sendto(b'x', {named.getsockname()!r})",
        lambda: received(named),
    ),
    (
        "send to a socket by a pair",
        f"import socket; socket.socketpair(1, 2)[0].sendto(b'x', {abstract.getsockname()!r})",
        lambda: received(abstract),
    ),
    (
        "write to a socket of the kernel",
        f"import os; os.write({inherited.fileno()}, b'x')",
        lambda: received(peer),
    ),
    ("write to a socket object of the kernel", "KERNEL_SOCKET.send(b'x')", lambda: received(peer)),
    ("write to a pipe of the kernel", f"import os; os.write({pipe_write}, b'x')", piped),
    (
        "write to an open file of the kernel",
        f"import os; os.pwrite({opened}, b'x', 0)",
        lambda: (HOME / "opened").stat().st_size > 0,
    ),
    (
        "write to the kernel's database",
        "DATABASE.execute('insert into t values (1)')",
        lambda: database.execute("select count(*) from t").fetchone()[0] > 0,
    ),
    ("kill a process", f"import os; os.kill({victim}, 9)", lambda: not alive()),
    ("signal the kernel", f"import os; os.kill({PID}, 10)", lambda: 10 in signalled),
    ("signal by a raw call", C + f"libc.syscall(234, {PID}, {PID}, 23)", lambda: signal.SIGURG in signalled),
    ("signal by a queue", C + f"libc.sigqueue({PID}, 28, None)", lambda: signal.SIGWINCH in signalled),
    (
        "signal by the owner of a descriptor",
        f"import os, fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, 8, {PID})\nfcntl.fcntl(r, 4, "
        "fcntl.fcntl(r, 3) | 0x2000)\nos.write(w, b'x')",
        lambda: signal.SIGIO in signalled,
    ),
    (
        "write the kernel's memory by /proc",
        f"f = OPEN('/proc/{PID}/mem', 'r+b', 0)\nf.seek({address})\nf.write(b'x' * 16)",
        lambda: bytes(buffer) != word,
    ),
    (
        "write the kernel's memory by a call",
        C + "import struct\nb = ctypes.create_string_buffer(b'x' * 16)\nv = struct.pack('QQ', "
        f"ctypes.addressof(b), 16)\nw = struct.pack('QQ', {address}, 16)\nlibc.syscall(311, {PID}, "
        "v, 1, w, 1, 0)",
        lambda: bytes(buffer) != word,
    ),
    (
        "trace the kernel",
        C + f"assert libc.ptrace(0x4206, {victim}, None, None) == 0",
        lambda: "TracerPid:\t0" not in Path(f"/proc/{victim}/status").read_text(),
    ),
    (
        "change the environment",
        "import os; os.environ['KEPT'] = 'lost'; os.putenv('KEPT', 'lost')",
        lambda: os.environ["KEPT"] != "safe" or b"KEPT=lost" in Path("/proc/self/environ").read_bytes(),
    ),
    ("write shared memory", "SHARED[:4] = b'lost'", lambda: shared[:4] != b"safe"),
    ("write a mapped file", "MAPPED[:4] = b'lost'", lambda: mapped[:4] != b"safe"),
    (
        "write a mapped file by its address",
        C + "a = ctypes.addressof(ctypes.c_char.from_buffer(MAPPED))\nctypes.memmove(a, b'lost', 4)",
        lambda: mapped[:4] != b"safe",
    ),
    (
        "leave shared memory behind",
        C + "libc.syscall(29, 0x4B4C, 4096, 0o1600)",
        lambda: " 19276 " in Path("/proc/sysvipc/shm").read_text(),
    ),
    (
        "write POSIX shared memory",
        "from multiprocessing import shared_memory; shared_memory.SharedMemory('attempts', True, 64)",
        lambda: Path("/dev/shm/attempts").exists(),
    ),
    (
        "use io_uring",
        C + "p = ctypes.create_string_buffer(120)\nfd = libc.syscall(425, 2, p)\nassert fd >= 0\nOUT('ring')",
        lambda: told("ring"),
    ),
    (
        "bound the kernel's files",
        C + f"import struct\nlibc.syscall(302, {PID}, 7, struct.pack('QQ', 64, 64), None)",
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE) != limits,
    ),
    (
        "slow the kernel down",
        f"import os; os.setpriority(0, {PID}, 15)",
        lambda: os.getpriority(os.PRIO_PROCESS, 0) != nice,
    ),
    (
        "move the kernel to one processor",
        f"import os; os.sched_setaffinity({PID}, {{0}})",
        lambda: os.sched_getaffinity(0) != affinity,
    ),
    (
        "get a new namespace",
        C + "assert libc.unshare(0x10000000) == 0; OUT('namespace')",
        lambda: told("namespace"),
    ),
    (
        "read a key",
        "import os; os.path.expanduser('~'); assert OPEN('/etc/shadow').read(); OUT('key')",
        lambda: told("key"),
    ),
    (
        "read the kernel's environment",
        f"assert OPEN('/proc/{PID}/environ').read(); OUT('environ')",
        lambda: told("environ"),
    ),
    ("change a variable", "VICTIM.append(1)", lambda: shell.user_ns["VICTIM"] != []),
    (
        "write by a thread",
        "import threading, os\nt = threading.Thread(target=lambda: os.open('threaded', os.O_CREAT | "
        "os.O_WRONLY))\nt.start(); t.join()",
        lambda: (PLACE / "threaded").exists(),
    ),
    (
        "write at its end",
        "import atexit, os\natexit.register(lambda: os.open('late', os.O_CREAT | os.O_WRONLY))",
        lambda: (PLACE / "late").exists(),
    ),
    (
        "ask the kernel's loop to write",
        "import os\nLOOP.call_soon_threadsafe(lambda: os.open('looped', os.O_CREAT | os.O_WRONLY))",
        lambda: (PLACE / "looped").exists(),
    ),
]


def left_processes():
    found = [one for one in Path("/proc").iterdir() if one.name.isdigit()]
    mine = 0
    for one in found:
        with contextlib.suppress(OSError):
            text = (one / "stat").read_text().rpartition(")")[2].split()
            same = (one / "cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()
            mine += same and int(one.name) not in (PID, victim) and text[0] != "Z"
    return mine


TOLD = set()


def told(word):
    """Whether the copy printed it: that is its only way to say that a call was not refused."""
    return word in TOLD


shell = InteractiveShell.instance()
kernel = LiveKernel(shell)


async def main():
    shell.user_ns |= {
        "KERNEL_SOCKET": inherited,
        "DATABASE": database,
        "SHARED": shared,
        "MAPPED": mapped,
        "VICTIM": [],
        "OPEN": open,
    }
    shell.user_ns |= {"LOOP": asyncio.get_running_loop(), "OUT": lambda word: print("TOLD", word)}
    succeeded, previews = [], 0
    for name, code, happened in ATTEMPTS:
        if ONLY and name not in ONLY:
            continue
        preview = await kernel.preview(code, str(PLACE))
        previews += "no preview" not in preview.text or "died" in preview.text
        TOLD.clear()
        TOLD.update(
            line.removeprefix("TOLD ") for line in preview.printed.splitlines() if line.startswith("TOLD ")
        )
        await asyncio.sleep(0.01)
        if happened():
            succeeded.append(name)
    return {"attempts": len(ATTEMPTS), "previews": previews, "succeeded": succeeded}


result = asyncio.run(main())
with contextlib.suppress(ProcessLookupError):
    os.kill(victim, signal.SIGKILL)
os.waitpid(victim, 0)
Path("/dev/shm/attempts").unlink(missing_ok=True)
libc = ctypes.CDLL(None)
libc.shmctl(libc.shmget(0x4B4C, 0, 0), 0, None)  # 0: remove it
print(json.dumps(result))
os._exit(0)
