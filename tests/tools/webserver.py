"""A server for tests of what asks the web: it answers any bytes, at any pace, and keeps what it was asked."""

from __future__ import annotations

import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Send = Callable[[bytes], None]
Route = bytes | Callable[[Send], None]
"""The whole answer as it goes over the wire, or who sends it."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class WebServer:
    """Listens on loopback."""

    routes: Mapping[str, Route]
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    def url(self, path: str = "/") -> str:
        """An address here."""
        return f"http://127.0.0.1:{self.port}{path}"


def answer(
    body: bytes | str = b"", status: str = "200 OK", kind: str = "text/plain", **headers: str
) -> bytes:
    """A complete answer."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


@contextmanager
def serving(routes: Mapping[str, Route], certificate: Path | None = None) -> Iterator[WebServer]:
    """Serve `routes`, by path; `certificate` is a file with key and certificate for TLS."""
    made = WebServer(routes)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            made.connections += 1
            try:
                self._answer()
            except OSError:  # the other end has gone: that is what is tested
                pass

        def _answer(self) -> None:
            if certificate is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(certificate)
                self.connection = context.wrap_socket(self.connection, server_side=True)
                self.rfile: Any = self.connection.makefile("rb")
            first = self.rfile.readline().decode("latin-1").split()
            headers = {}
            while (line := self.rfile.readline().strip()) != b"":
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            body = self.rfile.read(int(headers.get("content-length", 0)))
            made.asked.append(Asked(first[0], first[1], headers, body))
            route = made.routes.get(first[1].partition("?")[0], answer("nothing here", "404 Not Found"))
            if callable(route):
                route(self.connection.sendall)
            else:
                self.connection.sendall(route)
            if certificate is not None:
                self.connection.close()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
