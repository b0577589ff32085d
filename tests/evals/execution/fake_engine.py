"""A container engine on a Unix socket in the form of docker's HTTP interface.

A container's commands run in the folder that is bound into it, as children of this process. An image is a
dictionary of files at its working folder.
"""

from __future__ import annotations

import io
import json
import re
import signal
import socketserver
import struct
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

HERE = "/app"


class FakeEngine(socketserver.ThreadingUnixStreamServer):
    """An engine with images that are there, and images that it can pull."""

    daemon_threads = True

    def __init__(self, socket: Path, *, here: dict[str, dict[str, str]], podman: bool = False) -> None:
        super().__init__(str(socket), _Handler)
        self.images = dict(here)
        self.far: dict[str, dict[str, str]] = {}
        self.podman = podman
        self.containers: dict[str, dict[str, Any]] = {}
        self.removed: list[dict[str, Any]] = []
        self.execs: dict[str, dict[str, Any]] = {}
        self.ran: list[list[str]] = []
        self.built: list[list[str]] = []

    def __enter__(self) -> FakeEngine:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: a client that goes away is part of what is tested."""

    def kill_all(self) -> None:
        """Kill what runs."""
        for one in self.execs.values():
            if one.get("process") is not None and one["process"].poll() is None:
                one["process"].send_signal(signal.SIGKILL)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeEngine

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def address_string(self) -> str:
        return "socket"

    def do_GET(self) -> None:
        path, asked = self._asked()
        if path == "/version":
            self._json(
                {"Version": "28.0", "Components": [{"Name": "Podman Engine"}] if self.server.podman else []}
            )
        elif found := re.fullmatch(r"/images/(.+)/json", path):
            known = found[1] in self.server.images
            about = {"Id": found[1], "Config": {"WorkingDir": HERE}}
            self._json(about if known else {"message": f"no such image: {found[1]}"}, 200 if known else 404)
        elif found := re.fullmatch(r"/containers/(.+)/archive", path):
            self._archive(self.server.images[self.server.containers[found[1]]["Image"]], asked["path"][0])
        elif found := re.fullmatch(r"/exec/(.+)/json", path):
            self._json({"ExitCode": self.server.execs[found[1]]["code"]})

    def do_POST(self) -> None:
        path, asked = self._asked()
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        if path == "/images/create":
            name = asked["fromImage"][0].removesuffix(":latest")
            if name in self.server.far:
                self.server.images[name] = self.server.far[name]
            self._json({"status": "done"} if name in self.server.far else {"error": f"{name} is nowhere"})
        elif path == "/build":
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                self.server.built.append(sorted(archive.getnames()))
            self.server.images["sha256:built"] = {}
            self._json({"aux": {"ID": "sha256:built"}})
        elif path == "/containers/create":
            name = f"c{len(self.server.containers) + len(self.server.removed)}"
            self.server.containers[name] = json.loads(content)
            self._json({"Id": name}, 201)
        elif found := re.fullmatch(r"/containers/(.+)/exec", path):
            name = f"e{len(self.server.execs)}"
            self.server.execs[name] = {"container": found[1], "code": None, **json.loads(content)}
            self._json({"Id": name}, 201)
        elif found := re.fullmatch(r"/exec/(.+)/start", path):
            self._run(self.server.execs[found[1]])
        else:
            self._json({}, 204)

    def do_DELETE(self) -> None:
        path, _ = self._asked()
        self.server.removed.append(self.server.containers.pop(path.rpartition("/")[2]))
        self._json({}, 204)

    def _run(self, wanted: dict[str, Any]) -> None:
        command = wanted["Cmd"]
        self.server.ran.append(command)
        self.send_response(200)
        self.send_header("content-type", "application/vnd.docker.raw-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        # What would reach this machine is not run here.
        if command[-1] == "kill -9 -1" or command[0] == "chown":
            wanted["code"] = 0
            if command[0] != "chown":
                self.server.kill_all()
            return
        folder, _, root = self.server.containers[wanted["container"]]["HostConfig"]["Binds"][0].rpartition(
            ":"
        )
        place = Path(folder) / PurePosixPath(wanted["WorkingDir"]).relative_to(root)
        process = subprocess.Popen(
            command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        wanted["process"] = process
        assert process.stdout is not None
        while piece := process.stdout.read1():
            self.wfile.write(struct.pack(">BxxxI", 1, len(piece)) + piece)
            self.wfile.flush()
        process.stdout.close()
        wanted["code"] = process.wait()

    def _archive(self, files: dict[str, str], path: str) -> None:
        if path != HERE:
            self._json({"message": "no such path"}, 404)
            return
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(f"app/{name}")
                if text.startswith("->"):
                    member.type, member.linkname = tarfile.SYMTYPE, text[2:]
                else:
                    member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        self._send(packed.getvalue(), "application/x-tar", 200)

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return unquote(re.sub(r"^/v1\.\d+", "", parts.path)), parse_qs(parts.query)

    def _json(self, body: Any, status: int = 200) -> None:
        self._send(b"" if status == 204 else json.dumps(body).encode(), "application/json", status)

    def _send(self, body: bytes, kind: str, status: int) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
