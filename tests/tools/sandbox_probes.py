"""What a command in a sandbox tries in order to get out, and the host it tries it on: run as a script, by any
user.
"""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec

import kestrel_lab
from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.command_lines import launch_for
from kestrel_lab.tools.sandbox.launcher_client import run_blocking
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.seccomp import AF_INET, AF_INET6, filter_program
from kestrel_lab.tools.shell.environment import clean_environment

PROBES = r"""
import ctypes, json, os, signal, socket, sys
host = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
found = {}

def probe(name):
    def run(attempt):
        try:
            found[name] = bool(attempt())
        except (OSError, ProcessLookupError):
            found[name] = False
    return run

def reads(path, what):
    return what in open(path, "rb").read()

def writes(path):
    open(path, "w").write("x")
    return False  # the host looks whether it is there

def connects(family, kind, address):
    with socket.socket(family, kind) as one:
        one.settimeout(2)
        one.connect(address)
        return True

def sends(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"udp", address)

def pair_sends(path):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"pair", path)

def in_child(attempt):
    child = os.fork()
    if child == 0:
        os._exit(0 if attempt() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def mounts():
    os.makedirs("mnt", exist_ok=True)
    done = libc.mount(b"none", b"mnt", b"tmpfs", 0, None) == 0
    if done:
        libc.umount2(b"mnt", 0)
    return done

def memory():
    lines = open(f"/proc/{host['pid']}/maps").read().splitlines()
    start = int(next(line for line in lines if " rw-p " in line).split("-")[0], 16)
    with open(f"/proc/{host['pid']}/mem", "rb") as file:
        file.seek(start)
        return len(file.read(16)) == 16

def swaps_git():
    os.rename(".git", "moved")
    os.makedirs(".git/hooks")
    open(".git/hooks/post-commit", "w").write("x")

probe("key in the parent's environment")(lambda: reads(f"/proc/{host['pid']}/environ", b"sk-very-secret"))
probe("kernel connection file")(lambda: reads(host["kernel"], b"hmac"))
probe("ssh key")(lambda: reads(host["ssh"], b"PRIVATE"))
probe("log of the lab")(lambda: reads(".kestrel/kestrel.db", b"log"))
probe("passwords")(lambda: reads("/etc/shadow", b"root:"))
probe("TCP to the host")(lambda: connects(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", host["tcp"])))
probe("UDP to the host")(lambda: sends(("127.0.0.1", host["udp"])))
probe("Unix socket")(lambda: connects(socket.AF_UNIX, socket.SOCK_STREAM, "docker.sock"))
probe("abstract Unix socket")(lambda: connects(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + host["abstract"]))
probe("Unix datagram from a pair")(lambda: pair_sends("log.sock"))
probe("signal to the parent")(lambda: os.kill(host["pid"], 0) is None)
probe("memory of the parent")(memory)
probe("write into home")(lambda: writes(host["home"] + "/.bashrc"))
probe("write into /etc")(lambda: writes(host["etc"]))
probe("write through a link")(lambda: writes("link"))
probe("mode of a file in home")(lambda: os.chmod(host["moded"], 0o777))
probe("git hook")(lambda: writes(".git/hooks/pre-commit"))
def opens(*paths):
    for path in paths:
        try:
            os.close(os.open(path, os.O_WRONLY))
            return True
        except OSError:
            pass
    return False

def folder_left_open():
    return any(os.path.isdir(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))

probe("settings of the kernel")(lambda: opens("/proc/self/comm", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches"))
probe("settings in /sys")(lambda: opens("/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state"))
probe("folder of the host left open")(folder_left_open)
probe("root's number")(lambda: os.geteuid() == 0)
probe("git commondir")(lambda: writes(".git/commondir"))
probe("git settings")(lambda: writes(".git/config"))
probe("git moved away")(swaps_git)
probe("mount")(lambda: in_child(mounts))
probe("new user namespace")(lambda: in_child(lambda: libc.unshare(0x10000000) == 0))
probe("io_uring")(lambda: libc.syscall(425, 1, ctypes.create_string_buffer(120)) >= 0)
probe("processes of the host")(lambda: reads(f"/proc/{host['pid']}/cmdline", b"sandbox_probes"))
open("worked", "w").write("x")
print(json.dumps(found))
"""


def escapes(start, *, etc: Path) -> list[str]:
    """Which probes get out of what `start` makes of an argv and a workspace; the host looks for itself what
    was done to it.
    """
    folder = Path(tempfile.mkdtemp(prefix="probed-", dir="/var/tmp")).resolve()
    try:
        home, workspace = folder / "home", folder / "workspace"
        for place in (
            home / ".ssh",
            home / ".local/share/jupyter/runtime",
            workspace / ".git/hooks",
            workspace / ".kestrel",
        ):
            place.mkdir(parents=True)
        (home / ".ssh/id_rsa").write_text("PRIVATE")
        (home / "moded").write_text("x")
        (home / "moded").chmod(0o600)
        kernel = home / ".local/share/jupyter/runtime/kernel-1.json"
        kernel.write_text("hmac")
        (workspace / ".kestrel/kestrel.db").write_text("log")
        (workspace / "link").symlink_to(folder / "linked")
        os.environ["HOME"] = str(home)
        sockets = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        sockets[0].bind(str(workspace / "docker.sock"))
        sockets[1].bind("\0" + folder.name)
        for one in sockets:
            one.listen()
        tcp = socket.create_server(("127.0.0.1", 0))
        datagrams = [
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        ]
        datagrams[0].bind(("127.0.0.1", 0))
        datagrams[1].bind(str(workspace / "log.sock"))
        host = {
            "pid": os.getpid(),
            "kernel": str(kernel),
            "ssh": str(home / ".ssh/id_rsa"),
            "tcp": tcp.getsockname()[1],
            "udp": datagrams[0].getsockname()[1],
            "abstract": folder.name,
            "home": str(home),
            "etc": str(etc),
            "moded": str(home / "moded"),
        }
        code, output = run_blocking(
            start([sys.executable, "-I", "-S", "-c", PROBES, json.dumps(host)], workspace), 30
        )
        if code != 0 or not (workspace / "worked").exists():
            raise AssertionError((code, output))
        found = json.loads(output.splitlines()[-1])
        for name, one in zip(("UDP to the host", "Unix datagram from a pair"), datagrams, strict=True):
            one.settimeout(0.05)
            try:
                found[name] = bool(one.recv(10))
            except TimeoutError:
                found[name] = False
        found |= {
            "write into home": (home / ".bashrc").exists(),
            "write into /etc": etc.exists(),
            "write through a link": (folder / "linked").exists(),
            "mode of a file in home": (home / "moded").stat().st_mode & 0o777 != 0o600,
            "git hook": any((workspace / name / "hooks/pre-commit").exists() for name in (".git", "moved")),
            "git commondir": (workspace / ".git/commondir").exists()
            or (workspace / "moved/commondir").exists(),
            "git settings": any((workspace / name / "config").exists() for name in (".git", "moved")),
            "git moved away": (workspace / ".git/hooks/post-commit").exists(),
        }
        for one in (*sockets, *datagrams, tcp):
            one.close()
        return sorted(name for name, out in found.items() if out)
    finally:
        etc.unlink(missing_ok=True)
        shutil.rmtree(folder)


def matrix() -> dict[str, list[str]]:
    """The escapes at every level that can be had here, and of the mutants."""
    etc = Path(f"/etc/kestrel-probe-{os.getpid()}")
    plain = clean_environment()

    def at(level, sandbox=Sandbox()):
        return lambda argv, workspace: launch_for(
            level, argv, workspace=workspace, env=plain, sandbox=sandbox
        )

    def open_to_unix(argv, workspace):
        return replace(
            at(Level.S3)(argv, workspace), program=filter_program((socket.AF_UNIX, AF_INET, AF_INET6))
        )

    def with_landlock_alone(argv, workspace):
        nothing_refused = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
        return replace(at(Level.S1)(argv, workspace), program=nothing_refused)

    starts = {level.name: at(level) for level in Level if not probe_level(level, Sandbox())}
    if "S3" in starts:
        starts |= {"S3, network": at(Level.S3, Sandbox(network=True)), "S3, Unix sockets": open_to_unix}
    if "S1" in starts:
        starts |= {"S1, no filter": with_landlock_alone}
    return {name: escapes(start, etc=etc) for name, start in starts.items()}


def as_nobody(script: Path) -> dict[str, list[str]] | None:
    """The matrix as an unprivileged user sees it, from a process of root's; `None` where no Python can be run
    by that user.
    """
    folder = Path(tempfile.mkdtemp(prefix="nobody-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        ignored = shutil.ignore_patterns("__pycache__")
        for package in (kestrel_lab, msgspec):  # all that the probes import
            shutil.copytree(Path(package.__file__).parent, folder / package.__name__, ignore=ignored)
        shutil.copy(script, folder / script.name)
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
        become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
        for python in (sys.executable, "/usr/bin/python3"):
            # Started anew by itself: setpriv gives up the rights of root only as it starts the first one.
            version = (
                f"import subprocess, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]} or "
                "subprocess.call([sys.executable, '-c', '']))"
            )
            if (
                subprocess.run(
                    [*become, python, "-c", version], capture_output=True, check=False, cwd="/"
                ).returncode
                == 0
            ):
                env = {
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(folder),
                    "OPENAI_API_KEY": "sk-very-secret",
                    "PYTHONDONTWRITEBYTECODE": "1",
                }
                done = subprocess.run(
                    [*become, python, str(folder / script.name)],
                    capture_output=True,
                    text=True,
                    env=env,
                    cwd="/",
                    timeout=100,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
                return json.loads(done.stdout)
        return None
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    signal.alarm(100)
    print(json.dumps(matrix()))
