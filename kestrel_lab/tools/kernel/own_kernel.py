"""Separate kernels for runs without a notebook: started on first use, interrupted, killed, restarted."""

from __future__ import annotations

import ast
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import ToolError
from kestrel_lab.tools.kernel.capture import COLOURS, Output
from kestrel_lab.tools.kernel.kernel_process import INSPECT, LIST
from kestrel_lab.tools.kernel.live_kernel import ExecutionResult
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.shell.environment import clean_environment

EXECUTE_S = 120.0
"""Most seconds of one call; then it is interrupted."""
START_S = 60.0
"""Most seconds from the start of the process to its first answer."""
GRACE_S = 5.0
"""Seconds that interrupted code may take to end; then the kernel is killed."""
MOST_FLOOD = 20_000_000
"""Characters after which code that prints is interrupted: it is in a loop."""
_SIGNED = "hmac-sha256"
_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


class _Client:
    """The two channels of a kernel that code needs; unlike the blocking client of jupyter_client it makes no
    event loop for each thread.
    """

    def __init__(self, place: str, key: str) -> None:
        import zmq
        from jupyter_client.session import Session

        self._session: Any = Session(key=key.encode(), signature_scheme=_SIGNED)
        self._context: Any = zmq.Context()
        self._shell, self._iopub = self._context.socket(zmq.DEALER), self._context.socket(zmq.SUB)
        self._iopub.setsockopt(zmq.SUBSCRIBE, b"")
        self._shell.connect(f"ipc://{place}-1")
        self._iopub.connect(f"ipc://{place}-2")

    def ask(self, kind: str, **content: Any) -> str:
        """Send a request; returns its id."""
        return str(self._session.send(self._shell, kind, content)["header"]["msg_id"])

    def published(self, seconds: float) -> dict[str, Any] | None:
        """Return the next message the kernel publishes; `None` if none comes in time."""
        return self._next(self._iopub, seconds)

    def reply(self, message: str, seconds: float) -> dict[str, Any]:
        """Return the content of the reply to a request; empty if none comes in time.

        Replies to earlier requests are dropped.
        """
        while (found := self._next(self._shell, seconds)) is not None:
            if found["parent_header"].get("msg_id") == message:
                return dict(found["content"])
        return {}

    def _next(self, socket: Any, seconds: float) -> dict[str, Any] | None:
        if not socket.poll(int(seconds * 1_000)):
            return None
        _, parts = self._session.feed_identities(socket.recv_multipart())
        return dict(self._session.deserialize(parts))

    def close(self) -> None:
        """Close both channels."""
        self._context.destroy(linger=0)


class OwnKernel:
    """A kernel in a sandboxed process. Methods block, and run from any thread, one at a time."""

    def __init__(self, workspace: Path, memory: int | None, *, writable: bool = True) -> None:
        """Start it when it is first used, in the folder `workspace`, with at most `memory` bytes; unless
        `writable`, it only reads that folder.
        """
        self.id = ""
        """Names the process; empty before the first."""
        self._workspace, self._memory, self._writable = workspace, memory, writable
        self._process: subprocess.Popen[bytes] | None = None
        self._client: _Client | None = None
        self._scratch = ""
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def execute(self, code: str, seconds: float = EXECUTE_S) -> ExecutionResult:
        """Run `code`; raises `ToolError` if the kernel died or was killed, and the next call starts a new
        one.
        """
        with self._lock:
            self._stopped.clear()
            if self._process is None:
                self._start()
            output = Output()
            assert self._client is not None
            self._collect(
                self._client.ask(
                    "execute_request",
                    code=code,
                    silent=False,
                    store_history=True,
                    user_expressions={},
                    allow_stdin=False,
                ),
                output,
                seconds,
            )
        return ExecutionResult("executed", output, output.value or "")

    def listed(self) -> str:
        """Return a line for each variable."""
        return self._evaluated(f"{LIST}()")

    def inspected(self, name: str) -> str:
        """Return a description of a variable; raises `ToolError` if there is none."""
        return self._evaluated(f"{INSPECT}({name!r})")

    def _evaluated(self, expression: str) -> str:
        with self._lock:
            self._stopped.clear()
            if self._process is None or self._client is None:
                return "there are no variables yet"
            message = self._client.ask(
                "execute_request",
                code="",
                silent=True,
                store_history=False,
                allow_stdin=False,
                user_expressions={"value": expression},
            )
            self._collect(message, Output(), EXECUTE_S)
            reply = self._client.reply(message, GRACE_S).get("user_expressions", {}).get("value", {})
        if reply.get("status") != "ok":
            raise ToolError(
                f"{reply.get('ename', 'error')}: {reply.get('evalue', 'the kernel did not answer')}"
            )
        return str(ast.literal_eval(reply["data"]["text/plain"]))

    def interrupt(self) -> None:
        """Stop the code that runs, from any thread."""
        self._stopped.set()

    def close(self) -> None:
        """End the process and clean up; repeated calls do nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = ""

    def _start(self) -> None:
        if reason := lockdown_problem():
            raise ToolError(
                f"no kernel can be started here, because its code could not be sandboxed: {reason}"
            )
        # The folder is of mode 0700: a process that can reach the sockets in it can run code in the kernel.
        self._scratch = tempfile.mkdtemp(prefix="kestrel-kernel-")
        file = Path(self._scratch) / "connection.json"
        key = secrets.token_hex(16)
        about = {"transport": "ipc", "ip": f"{self._scratch}/s", "key": key, "signature_scheme": _SIGNED}
        file.write_text(
            json.dumps({**about, **{name: number for number, name in enumerate(_PORTS, 1)}}), encoding="utf-8"
        )
        env = {
            **clean_environment(),
            "HOME": self._scratch,
            "TMPDIR": self._scratch,
            "IPYTHONDIR": self._scratch,
        }
        env |= {
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "MPLCONFIGDIR": self._scratch,
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        words = [
            sys.executable,
            "-m",
            "kestrel_lab.tools.kernel.kernel_process",
            str(file),
            str(self._workspace),
            self._scratch,
        ]
        log = Path(self._scratch) / "log.txt"
        with log.open("wb") as written:
            self._process = subprocess.Popen(
                [*words, str(self._memory or 0), "writes" if self._writable else "reads"],
                cwd=self._workspace,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.id = secrets.token_hex(6)
        self._client = _Client(f"{self._scratch}/s", key)
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            # Messages that a kernel publishes before this side has subscribed are lost. So it is asked until
            # a published message has arrived.
            if (
                self._client.reply(self._client.ask("kernel_info_request"), 1.0)
                and self._client.published(1.0) is not None
            ):
                return
        said = log.read_text(encoding="utf-8", errors="replace")[-2_500:]
        self.close()
        raise ToolError(f"the kernel did not start: {said or 'it said nothing'}")

    def _collect(self, message: str, output: Output, seconds: float) -> None:
        """Collect the kernel's messages on a request until it is done."""
        until, interrupted = time.monotonic() + seconds, ""
        while True:
            assert self._process is not None
            assert self._client is not None
            published = self._client.published(0.2)
            if (
                published is not None
                and published["parent_header"].get("msg_id") == message
                and _take_message(published, output)
            ):
                break
            if (code := self._process.poll()) is not None:
                self.close()
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                raise ToolError(
                    f"the kernel died ({how}): its variables are gone, the next call begins with a new one"
                )
            late = time.monotonic() > until
            if interrupted and late:
                self.close()
                raise ToolError(
                    f"{interrupted}, and did not stop when it was interrupted: its kernel was killed, "
                    "the variables are gone"
                )
            if not interrupted and (
                late or self._stopped.is_set() or output.kept + output.dropped > MOST_FLOOD
            ):
                stopped = (
                    "the code was interrupted" if self._stopped.is_set() else "the code prints without end"
                )
                interrupted = f"the code took more than {seconds:g} s" if late else stopped
                # As Stop does: the code may clean up, and the variables stay.
                os.kill(self._process.pid, signal.SIGINT)
                until = time.monotonic() + GRACE_S
        if interrupted:
            output.traceback = f"{interrupted} and was stopped\n{output.traceback}"


def _take_message(published: dict[str, Any], output: Output) -> bool:
    """Take in one message; returns whether it was the last of its request."""
    content = published["content"]
    match published["msg_type"]:
        case "stream":
            output.printing(content["name"], content["text"])
        case "display_data":
            output.displayed.append((content["data"], content.get("metadata", {})))
        case "execute_result":
            output.value = str(content["data"].get("text/plain", ""))
        case "error":
            output.error = f"{content['ename']}: {content['evalue']}"
            output.traceback = COLOURS.sub("", "\n".join(content["traceback"]))
        case "status":
            return bool(content["execution_state"] == "idle")
    return False


class Kernels:
    """The kernels of a session, by run."""

    def __init__(self) -> None:
        self._kernels: dict[str, OwnKernel] = {}
        self._lock = threading.Lock()

    def of(self, run: str, workspace: Path, memory: int | None) -> OwnKernel:
        """Return the kernel of a run."""
        with self._lock:
            return self._kernels.setdefault(run, OwnKernel(workspace, memory))

    def end(self, run: str) -> None:
        """End the kernel of a run, if it has one."""
        with self._lock:
            kernel = self._kernels.pop(run, None)
        if kernel is not None:
            kernel.close()

    def close(self) -> None:
        """End all of them."""
        for run in list(self._kernels):
            self.end(run)
