"""Notebooks through the contents API of a Jupyter server, spoken to as a client does; the server here is a
small one of the test's own.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kestrel_lab.core.errors import ConflictError, ToolError
from kestrel_lab.tools.kernel import documents
from kestrel_lab.tools.kernel.documents import (
    JupyterServer,
    NextInput,
    NotebookFile,
    SavedNotebook,
    Swap,
    cell_of,
    document_of,
    kernel_id,
    same_cell,
    servers_of,
    shared_document,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Server:
    """A server with one notebook, whose kernel has the id `abc`."""

    def __init__(self) -> None:
        self.cells = [cell_of("a", "code", "c0"), cell_of("b", "code", "c1")]
        self.version, self.token, self.asked = 1, "t0k3n", list[str]()
        self.sessions: list[dict[str, Any]] = [
            {"type": "console", "kernel": {"id": "abc"}, "path": "console"},
            {"type": "notebook", "kernel": None, "path": "dead.ipynb"},
            {"type": "notebook", "kernel": {"id": "other"}, "path": "other.ipynb"},
            {"type": "notebook", "kernel": {"id": "abc"}, "path": "folder/my book.ipynb"},
        ]
        self.room = 404
        served = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer(*served.answer("GET", self.path, self.headers.get("Authorization"), b""))

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(*served.answer("PUT", self.path, self.headers.get("Authorization"), body))

            def answer(self, status: int, said: object) -> None:
                self.send_response(status)
                body = json.dumps(said).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, method: str, path: str, authorization: str | None, body: bytes) -> tuple[int, object]:
        """Status and JSON."""
        parts = urlsplit(path)
        self.asked.append(f"{method} {parts.path}")
        if authorization != (f"token {self.token}" if self.token else None):
            return 403, {}
        if parts.path == "/api/sessions":
            return 200, self.sessions
        if parts.path == "/api/collaboration/room/":
            return self.room, {}
        if parts.path != "/api/contents/folder/my%20book.ipynb":
            return 404, {}
        if method == "PUT":
            given = json.loads(body)
            assert (given["type"], given["format"]) == ("notebook", "json")
            self.cells, self.version = given["content"]["cells"], self.version + 1
        model: dict[str, Any] = {
            "hash": f"h{self.version}",
            "last_modified": NOW.isoformat(),
            "content": None,
        }
        if parse_qs(parts.query).get("content") == ["1"]:
            model["content"] = {"nbformat": 4, "nbformat_minor": 5, "cells": self.cells}
        return 200, model

    def notebook(self, token: str = "t0k3n") -> JupyterServer:
        """The notebook as a client names it."""
        return JupyterServer(self.url, token, "folder/my book.ipynb")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that answers until the end of the test."""
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where servers tell of themselves."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def shell(connection: str = "/x/kernel-abc.json", **variables: str) -> Any:
    """A shell in a kernel of that connection file, which runs a cell with source `a`."""
    request = {"content": {"code": "a"}, "header": {"date": NOW}, "metadata": {}}
    kernel = SimpleNamespace(get_parent=lambda _: request, parent=SimpleNamespace(connection_file=connection))
    return SimpleNamespace(kernel=kernel, user_ns=variables)


def test_a_notebook_of_a_server_is_read_and_changed(server: Server) -> None:
    """A change is written whole, under the version that was read, and tells the person about the reload."""
    document = SavedNotebook(server.notebook(), shell())
    assert [cell["id"] for cell in document.read()] == ["c0", "c1"]
    assert document.how == "the contents API of the Jupyter server"
    assert "reload" in document.swap(Swap(server.cells[1], {**server.cells[1], "source": "new"}))
    assert ([cell["source"] for cell in server.cells], server.version) == (["a", "new"], 2)
    saved = server.notebook().load()
    assert (saved.version, saved.modified) == ("h2", NOW.timestamp())
    with pytest.raises(ConflictError, match="changed by something else meanwhile"):
        server.notebook().store(saved.notebook, "h1")
    assert server.version == 2


@pytest.mark.parametrize(("token", "status"), [("wrong", "403"), ("", "403")])
def test_a_server_that_refuses_is_named_with_its_answer(server: Server, token: str, status: str) -> None:
    """The status comes with the error."""
    with pytest.raises(
        ToolError, match=f"the Jupyter server did not carry it out: HTTPStatusError.*{status}"
    ):
        SavedNotebook(server.notebook(token), shell()).read()
    server.token = ""
    assert len(SavedNotebook(server.notebook(""), shell()).read()) == 2


def test_what_was_typed_after_the_last_save_is_respected(server: Server) -> None:
    """The cell that runs is not in the saved notebook, and the notebook was not saved since it began."""
    document = SavedNotebook(server.notebook(), shell())
    server.cells[0]["source"] = "older"
    delete = Swap(server.cells[1], None)
    with pytest.raises(ConflictError, match="not saved"):
        document.swap(delete)
    server.cells[0]["source"] = "a"
    document.swap(delete)
    assert [cell["id"] for cell in server.cells] == ["c0"]


@pytest.mark.parametrize(
    ("code", "began", "refused"),
    [
        ("typed", NOW, True),
        ("typed", NOW - timedelta(seconds=1), False),
        ("", NOW, False),
        ("typed", None, False),
        ("b", NOW, False),
    ],
)
def test_only_code_that_began_after_the_save_tells_of_unsaved_changes(
    server: Server, code: str, began: datetime | None, refused: bool
) -> None:
    """Where the kernel does not know what runs or since when, nothing is known against the change."""
    kernel = SimpleNamespace(get_parent=lambda _: {"content": {"code": code}, "header": {"date": began}})
    document = SavedNotebook(server.notebook(), SimpleNamespace(kernel=kernel))
    new = Swap(None, cell_of("new", "code", "n"), "c0")
    if refused:
        with pytest.raises(ConflictError, match="not saved"):
            document.swap(new)
    else:
        document.swap(new)
    assert len(server.cells) == 3 - refused


def test_the_server_of_a_kernel_is_found_by_what_servers_tell_of_themselves(
    server: Server, runtime: Path
) -> None:
    """Files of servers that are gone, half-written or refuse are passed over; so are sessions that are no
    notebook of this kernel.
    """
    running = {"pid": os.getpid(), "url": server.url, "token": "t0k3n"}
    for name, told in {
        "jpserver-1.json": "{half",
        "jpserver-2.json": json.dumps({**running, "pid": 2**22 - 1}),
        "jpserver-3.json": json.dumps({**running, "url": "http://127.0.0.1:9/"}),
        "jpserver-4.json": json.dumps({**running, "token": "wrong"}),
        "jpserver-5.json": json.dumps({"pid": os.getpid()}),
        "jpserver-6.json": json.dumps(running),
        "other.json": json.dumps(running),
    }.items():
        (runtime / name).write_text(told)
    assert list(servers_of("abc")) == [server.notebook()]
    assert (list(servers_of("")), list(servers_of("nobody"))) == ([], [])


def test_a_kernel_is_known_by_its_connection_file() -> None:
    """By a server's only: another front end names the file otherwise."""
    assert [kernel_id(shell(file)) for file in ("/x/kernel-abc.json", "/x/conn-abc.json", "")] == [
        "abc",
        "",
        "",
    ]
    assert kernel_id(SimpleNamespace(kernel=SimpleNamespace())) == ""


def test_the_best_document_that_works_is_taken(
    server: Server, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that answers, else the server's, else the editor's file, else nothing but a proposal."""
    (runtime / "jpserver-1.json").write_text(
        json.dumps({"pid": os.getpid(), "url": server.url, "token": "t0k3n"})
    )

    def found(page: Any = None, connection: str = "/x/kernel-abc.json", **variables: str) -> Any:
        kernel: Any = SimpleNamespace(page=page, shell=shell(connection, **variables))
        return document_of(kernel)

    here, gone = SimpleNamespace(here=lambda: True), SimpleNamespace(here=lambda: False)
    assert found(here) is here
    assert found(gone).how == found().how == "the contents API of the Jupyter server"
    by_editor = found(connection="", __vsc_ipynb_file__=str(runtime / "t.ipynb"))
    assert isinstance(by_editor, SavedNotebook) and by_editor.how == "the notebook file"
    assert isinstance(found(connection=""), NextInput)
    monkeypatch.setattr(documents, "find_spec", lambda _: object())
    assert isinstance(found(), SavedNotebook)
    for room in (400, 200, 403):
        server.room = room
        assert found().how == "the shared document of jupyter-collaboration"
    assert shared_document(JupyterServer("http://127.0.0.1:9/", "", "t.ipynb")) is None
    monkeypatch.setattr(documents, "find_spec", lambda _: None)
    assert shared_document(server.notebook()) is None


def test_a_notebook_file_keeps_its_mode_and_its_form(tmp_path: Path) -> None:
    """Sources that are lists of lines are read as text; what is no notebook is named."""
    path = tmp_path / "t.ipynb"
    path.write_text(
        json.dumps(
            {
                "nbformat": 4,
                "nbformat_minor": 5,
                "cells": [{**cell_of("", "code", "c0"), "source": ["é\n", "b"]}],
            }
        )
    )
    path.chmod(0o640)
    document = SavedNotebook(NotebookFile(path), shell())
    document.swap(Swap(None, cell_of("new", "markdown", "n"), "c0"))
    assert [cell["source"] for cell in document.read()] == ["é\nb", "new"]
    assert (path.stat().st_mode & 0o777, "é" in path.read_text("utf-8"), sorted(tmp_path.iterdir())) == (
        0o640,
        True,
        [path],
    )
    for content in ("no json", '{"nbformat": 4, "nbformat_minor": 5, "cells": [{"source": "a"}]}'):
        path.write_text(content)
        with pytest.raises(ToolError, match=r"cannot be read|have no ids"):
            document.read()


def test_a_cell_is_as_a_change_left_it() -> None:
    """By source and kind; where only outputs were changed by their text, and where none was kept by nothing
    more.
    """
    cell = cell_of("a", "code", "c")
    put_out = {**cell, "outputs": [{"output_type": "stream", "text": ["1\n"]}]}
    other = {**cell, "outputs": [{"output_type": "stream", "text": "2\n"}]}
    for swap, now, left in (
        (Swap(cell, put_out), put_out, True),
        (Swap(cell, put_out), other, False),
        (Swap(put_out, cell), other, True),
        (Swap(cell, {**put_out, "source": "b"}), {**other, "source": "b"}, True),
        (Swap(cell, {**put_out, "source": "b"}), put_out, False),
        (Swap(cell, None), None, True),
        (Swap(cell, None), cell, False),
        (Swap(None, cell), None, False),
    ):
        assert swap.left(now) is left
    assert not same_cell(cell, {**cell, "cell_type": "markdown"})
