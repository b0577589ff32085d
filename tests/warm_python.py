"""A Python that has the package imported when it is started: what starts `sys.executable -m kestrel_lab` or a
kernel gets a fork of a process that waits for it. A real start takes a second or two of processor time, most of
it imports.

The program is a client that hands its three streams, its folder and its environment to `serve`, and ends as
the fork ends; the fork is killed when the client is. Anything else gets a real Python.
What a test claims of the start itself, or at a terminal, needs the real one.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

MODULES = (
    "kestrel_lab.cli.app",
    "kestrel_lab.evals.execution.remote_trials",
    "kestrel_lab.notebook.magics",
    "kestrel_lab.testing",
    "ipykernel.kernelapp",
    "pandas",
)
_LONGEST = 100_000
"""Bytes of an order: arguments, folder and environment."""
_CLIENT = """\
#!{python} -IS
import json, os, signal, socket, sys
if sys.argv[1:2] != ["-m"] or sys.argv[2].split(".")[0] not in {warm!r}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    order = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [order], [0, 1, 2])
    fork = int(server.recv(10))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(fork, number))
    os._exit(int(server.recv(10)))
"""


@contextmanager
def warm_python(folder: Path, *modules: str) -> Iterator[Path]:
    """Start the process that is forked, with its program in `folder`; the program.

    It has `modules` of the tests imported, too, each of which can be run by `-m`.
    """
    program = folder / "python"
    warm = ("kestrel_lab", "ipykernel_launcher", *modules)
    program.write_text(_CLIENT.format(python=sys.executable, address=str(folder / "s"), warm=warm))
    program.chmod(0o700)
    command = [sys.executable, __file__, str(folder / "s"), *modules]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)} if modules else None
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield program


def _serve(address: str) -> list[str]:
    """Fork for each client until standard input ends; in the fork return the words of its command."""
    forks: dict[int, socket.socket] = {}
    ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    with (
        selectors.DefaultSelector() as ready,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(address)
        listener.listen()
        for watched in (0, ended, listener):
            ready.register(watched, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        while True:
            for key, _ in ready.select():
                if key.fileobj == 0:
                    for pid in forks:
                        os.killpg(pid, signal.SIGKILL)
                    os._exit(0)
                elif key.fileobj == ended:
                    os.read(ended, 1_000)
                    with suppress(ChildProcessError):  # none is left
                        while (found := os.waitpid(-1, os.WNOHANG))[0]:
                            client = forks.pop(found[0])
                            if client in ready.get_map():
                                ready.unregister(client)
                            with suppress(OSError):  # the client was killed
                                client.send(str(os.waitstatus_to_exitcode(found[1]) & 255).encode())
                            client.close()
                elif key.fileobj is listener:
                    client, _ = listener.accept()
                    order, streams, _, _ = socket.recv_fds(client, _LONGEST, 3)
                    if pid := os.fork():
                        os.setpgid(pid, pid)
                        client.send(str(pid).encode())
                        forks[pid] = client
                        ready.register(client, selectors.EVENT_READ, pid)
                        for stream in streams:
                            os.close(stream)
                    else:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        for other in (client, *forks.values()):
                            other.close()
                        return _become(*json.loads(order), streams)
                else:  # a client says nothing: it was killed
                    os.killpg(key.data, signal.SIGKILL)
                    ready.unregister(key.fileobj)


def _become(words: list[str], folder: str, env: dict[str, str], streams: list[int]) -> list[str]:
    """Take over the streams, the folder and the environment of a client; its words."""
    with suppress(PermissionError):  # whoever comes first makes the group
        os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:1] = [folder, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    return words


if __name__ == "__main__":
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads on import who its kernels end with
    address, *own = sys.argv[1:]
    for name in (*MODULES, *own):
        import_module(name)
    gc.freeze()
    program = str(Path(address).with_name("python"))
    sys.argv = _serve(address)
    sys.executable = program  # what it starts is warm, too
    sys.modules.pop(sys.argv[0], None)  # it is run again, by another name, as after a real start
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
