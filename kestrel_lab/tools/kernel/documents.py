"""Notebook documents: the cells of the notebook whose kernel this is, read and changed through whatever this
machine has.

In this order: the page that shows the notebook (its unsaved cells too); the shared document of
jupyter-collaboration; the saved file, through the contents API of the Jupyter server that the kernel belongs
to, or beside VS Code; else only `set_next_input`. A cell is changed only if it still is as expected. All of
this blocks: call it in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from kestrel_lab.core.errors import ConflictError, ToolError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import escape_surrogates
from kestrel_lab.core.text_files import decode_text, replace_text
from kestrel_lab.tools.kernel.live_kernel import is_attended

if TYPE_CHECKING:
    import httpx

    from kestrel_lab.tools.kernel.live_kernel import LiveKernel

T = TypeVar("T")
Cell = dict[str, Any]
"""A cell in nbformat's form: `id`, `cell_type`, `source`, `metadata`; code also `outputs`, `execution_count`.
"""
_HTTP_S: Final = 20.0
_IDS = (4, 5)
"""The version of nbformat from which cells have ids."""


def cell_of(source: str, kind: str, ident: str) -> Cell:
    """Return a new cell."""
    code: Cell = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"id": ident, "cell_type": kind, "source": source, "metadata": {}, **code}


def output_text(cell: Cell | None) -> str:
    """Return what a cell has put out, as text; errors as their traceback, images by their type."""
    parts = []
    for output in (cell or {}).get("outputs") or ():
        data = output.get("data") or {}
        text = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback") or ())
        if output.get("output_type") == "error" and not text:
            text = f"{output.get('ename')}: {output.get('evalue')}"
        parts += ["".join(text)] if text else []
        parts += [f"[{kind}]" for kind in data if kind.startswith("image/")]
    return "\n".join(part.rstrip("\n") for part in parts)


@dataclass(frozen=True, slots=True)
class Swap:
    """One cell in the place of another: an insertion without `before`, a deletion without `after`."""

    before: Cell | None
    after: Cell | None
    below: str = ""
    """The id of the cell above; empty at the top."""

    @property
    def cell(self) -> str:
        """The id of the cell."""
        return str((self.before or self.after or {}).get("id"))

    def undone(self) -> Swap:
        """Return the change back."""
        return Swap(self.after, self.before, self.below)

    def left(self, now: Cell | None) -> bool:
        """Return true if a cell is as this change left it: source, or, if only outputs changed, their stored
        text.
        """
        if not same_cell(now, self.after):
            return False
        put_out = output_text(self.after) if same_cell(self.before, self.after) else ""
        return not put_out or output_text(now) == put_out

    def as_json(self) -> dict[str, Json]:
        """Return the change as an event has it."""
        return {"before": self.before, "after": self.after, "below": self.below}

    @classmethod
    def from_json(cls, stored: dict[str, Json]) -> Swap:
        """Return the change stored in an event."""
        return cls(
            cast("Cell | None", stored["before"]), cast("Cell | None", stored["after"]), str(stored["below"])
        )


def same_cell(a: Cell | None, b: Cell | None) -> bool:
    """Return true if two cells have the same source and kind, or both are missing."""
    if a is None or b is None:
        return a is b
    return (a["cell_type"], a["source"]) == (b["cell_type"], b["source"])


def swap_cell(cells: list[Cell], swap: Swap, *, force: bool = False) -> list[Cell]:
    """Return the cells after a change.

    Raises `ConflictError` if the cell differs from what the change expects; with `force` only if it is gone.
    """
    places = {str(cell["id"]): place for place, cell in enumerate(cells)}
    place = places.get(swap.cell)
    if swap.before is None:
        if place is not None or swap.after is None:
            raise ConflictError(f"there is a cell {swap.cell} already: nothing was changed")
        if swap.below and swap.below not in places and not force:
            raise ConflictError(
                f"the cell {swap.below} above is not there any more: nothing was changed; read the "
                "notebook again"
            )
        place = places.get(swap.below, len(cells) - 1) + 1 if swap.below else 0
        return [*cells[:place], swap.after, *cells[place:]]
    if place is None:
        raise ConflictError(
            f"the cell {swap.cell} is not there any more: nothing was changed; read the notebook again"
        )
    if not force and not same_cell(cells[place], swap.before):
        raise ConflictError(
            f"the cell {swap.cell} was changed since: nothing was changed; read the notebook again"
        )
    changed = [] if swap.after is None else [{**cells[place], **swap.after}]
    return [*cells[:place], *changed, *cells[place + 1 :]]


class Document(Protocol):
    """The cells of one notebook.

    Unsupported operations raise `ToolError`; losing another's change raises `ConflictError`.
    """

    @property
    def how(self) -> str:
        """Backend, for the log and `kestrel doctor`."""

    def read(self, whole: str = "") -> list[Cell]:
        """Return the cells in order, of outputs at least the text; complete cells for ids starting with
        `whole`.
        """

    def swap(self, swap: Swap, *, force: bool = False) -> str:
        """Apply one change if the cell is as expected; return a note for the person, usually empty."""


class Page(Document, Protocol):
    """The document of a page that shows the notebook."""

    def here(self) -> bool:
        """True if a page answers."""


def document_of(kernel: LiveKernel) -> Document:
    """Return the best document of the notebook of `kernel` that works now."""
    page, shell = kernel.page, kernel.shell
    if page is not None and page.here():
        return page
    server = next(servers_of(kernel_id(shell)), None)
    if server is not None:
        return shared_document(server) or SavedNotebook(server, shell)
    if name := shell.user_ns.get("__vsc_ipynb_file__"):
        return SavedNotebook(NotebookFile(Path(str(name))), shell)
    return NextInput(shell)


def kernel_id(shell: Any) -> str:
    """Return a Jupyter server's id for the kernel of a shell; empty if there is none."""
    file = Path(str(getattr(getattr(shell.kernel, "parent", None), "connection_file", "") or "")).stem
    return file.removeprefix("kernel-") if file.startswith("kernel-") else ""


# The shared document of jupyter-collaboration (optional extra `collab`): the model that all pages of a
# notebook have.


def shared_document(server: JupyterServer) -> Document | None:
    """Return the shared document of a notebook; `None` without the client or the server's collaboration."""
    if find_spec("jupyter_nbmodel_client") is None:
        return None
    import httpx

    try:
        with jupyter_client(server.url, server.token) as client:
            # A websocket: a plain request is refused, but not as unknown.
            served = client.get("api/collaboration/room/").status_code
    except httpx.HTTPError:
        return None
    return None if served == httpx.codes.NOT_FOUND else SharedDocument(server)


@dataclass(frozen=True, slots=True)
class SharedDocument:
    """The cells of a notebook that its pages edit together."""

    server: JupyterServer
    how: str = "the shared document of jupyter-collaboration"

    def read(self, whole: str = "") -> list[Cell]:
        """Return the cells as all pages show them."""
        return self._with(lambda model: list(model.as_dict()["cells"]))

    def swap(self, swap: Swap, *, force: bool = False) -> str:
        """Change a cell for everybody; concurrent typing in other cells is merged."""

        def change(model: Any) -> str:
            cells: list[Cell] = model.as_dict()["cells"]
            after = swap_cell(cells, swap, force=force)
            place = next(
                place
                for place, cell in enumerate(after if swap.before is None else cells)
                if cell["id"] == swap.cell
            )
            if swap.before is None:
                model.insert(place, after[place])
            elif swap.after is None:
                model.delete_cell(place)
            else:
                model[place] = after[place]
            return ""

        return self._with(change)

    def _with(self, act: Callable[[Any], T]) -> T:
        """Do something with the model; in a thread of its own, since this one may have an event loop."""
        from jupyter_nbmodel_client import NbModelClient, get_notebook_websocket_url

        url = get_notebook_websocket_url(self.server.url, self.server.path, token=self.server.token or None)

        async def work() -> T:
            async with NbModelClient(url, path=self.server.path, username="kestrel") as model:
                if not model.synced:
                    raise ToolError("the shared document of the notebook did not answer: try again")
                return act(model)

        with ThreadPoolExecutor(1) as alone:
            try:
                return alone.submit(asyncio.run, work()).result()
            except OSError as error:
                raise ToolError(f"the shared document of the notebook cannot be reached: {error}") from error


# The saved file.


@dataclass(frozen=True, slots=True)
class Saved:
    """A notebook as it is saved."""

    notebook: dict[str, Any]
    version: str
    modified: float
    """Seconds since 1970."""


_NEWER = (
    "the file of the notebook was changed by something else meanwhile: nothing was changed; read the "
    "notebook again"
)
_UNSAVED = (
    "the notebook has changes that are not saved, so its file must not be changed: ask the user to "
    "save it (Ctrl+S), then try again"
)


@dataclass(frozen=True, slots=True)
class JupyterServer:
    """The contents API of the server that the kernel belongs to."""

    url: str
    token: str
    path: str
    """The notebook, as the server names it."""
    how: str = "the contents API of the Jupyter server"

    def load(self) -> Saved:
        """Return what the server has."""
        model = self._ask("GET", {"content": "1", "type": "notebook", "hash": "1"})
        return Saved(
            model["content"], _version(model), datetime.fromisoformat(model["last_modified"]).timestamp()
        )

    def store(self, notebook: dict[str, Any], version: str) -> None:
        """Save a notebook if the server's has that version."""
        # The API has no conditional request: JupyterLab compares in the same way before it saves.
        if _version(self._ask("GET", {"content": "0", "hash": "1"})) != version:
            raise ConflictError(_NEWER)
        self._ask("PUT", {}, {"type": "notebook", "format": "json", "content": notebook})

    def _ask(self, method: str, params: dict[str, str], body: dict[str, Any] | None = None) -> dict[str, Any]:
        from urllib.parse import quote

        import httpx

        try:
            with jupyter_client(self.url, self.token) as client:
                answer = client.request(
                    method, f"api/contents/{quote(self.path)}", params=params, json=body
                ).raise_for_status()
        except httpx.HTTPError as error:
            raise ToolError(
                f"the Jupyter server did not carry it out: {type(error).__name__}: {error}"
            ) from error
        return dict(answer.json())


def _version(model: dict[str, Any]) -> str:
    return str(model.get("hash") or model["last_modified"])


def jupyter_client(url: str, token: str) -> httpx.Client:
    """Return a client for a Jupyter server of this machine."""
    import httpx

    return httpx.Client(
        base_url=url,
        headers={"Authorization": f"token {token}"} if token else {},
        timeout=_HTTP_S,
        trust_env=False,
    )


def servers_of(kernel: str) -> Iterator[JupyterServer]:
    """Yield the running servers of this user that have a notebook with that kernel."""
    import httpx
    from jupyter_core.paths import jupyter_runtime_dir

    # What `jupyter server list` reads; the package that has the function need not be installed beside a
    # kernel.
    for file in sorted(Path(jupyter_runtime_dir()).glob("jpserver-*.json")) if kernel else ():
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            os.kill(int(stored["pid"]), 0)
            with jupyter_client(stored["url"], stored.get("token", "")) as client:
                sessions = client.get("api/sessions").raise_for_status().json()
            for session in sessions:
                if session["type"] == "notebook" and (session["kernel"] or {}).get("id") == kernel:
                    yield JupyterServer(stored["url"], stored.get("token", ""), session["path"])
        # Gone, being written, or another user's.
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            httpx.HTTPError,
        ):
            continue


@dataclass(frozen=True, slots=True)
class NotebookFile:
    """A notebook file that an editor without a server has open."""

    path: Path
    how: str = "the notebook file"

    def load(self) -> Saved:
        """Return what the file holds."""
        content = self.path.read_bytes()
        notebook = json.loads(decode_text(content, self.path.name).text)
        # In a file texts may be lists of lines.
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
        return Saved(notebook, hashlib.sha256(content).hexdigest(), self.path.stat().st_mtime)

    def store(self, notebook: dict[str, Any], version: str) -> None:
        """Replace the file atomically if it has that version; encoding and line ends are kept."""
        if self.load().version != version:
            raise ConflictError(_NEWER)
        before = decode_text(self.path.read_bytes(), self.path.name)
        text = escape_surrogates(json.dumps(notebook, indent=1, ensure_ascii=False))
        ended = text + "\n" if before.text.endswith("\n") else text
        temporary = self.path.with_name(f".{self.path.name}.kestrel")
        temporary.write_bytes(replace_text(before, ended, self.path.name).content)
        temporary.chmod(self.path.stat().st_mode & 0o777)
        temporary.replace(self.path)


class SavedNotebook:
    """The saved file as document; it is changed only if the person has no unsaved changes."""

    def __init__(self, storage: JupyterServer | NotebookFile, shell: Any) -> None:
        self.how = storage.how
        self._storage, self._shell = storage, shell

    def read(self, whole: str = "") -> list[Cell]:
        """Return the saved cells."""
        return list(self._load().notebook["cells"])

    def swap(self, swap: Swap, *, force: bool = False) -> str:
        """Change the saved cells; `ConflictError` while the notebook has changes that are not saved."""
        saved = self._load()
        if _is_unsaved(self._shell, saved):
            raise ConflictError(_UNSAVED)
        saved.notebook["cells"] = swap_cell(saved.notebook["cells"], swap, force=force)
        self._storage.store(saved.notebook, saved.version)
        return (
            "written into the saved file: the editor asks at its next save whether to reload it, which "
            "shows the change ('Revert' in JupyterLab)"
        )

    def _load(self) -> Saved:
        try:
            saved = self._storage.load()
        except (OSError, ValueError) as error:
            raise ToolError(f"the saved notebook cannot be read: {error}") from error
        if (saved.notebook["nbformat"], saved.notebook["nbformat_minor"]) < _IDS or not all(
            "id" in cell for cell in saved.notebook["cells"]
        ):
            raise ToolError(
                "the cells of the saved notebook have no ids: it has to be saved once in a newer "
                "Jupyter (nbformat 4.5)"
            )
        return saved


def _is_unsaved(shell: Any, saved: Saved) -> bool:
    """Return true if the running cell differs in the saved notebook: it was not saved since it was typed."""
    request = shell.kernel.get_parent("shell") or {}
    code, began = request.get("content", {}).get("code"), request.get("header", {}).get("date")
    if not code or not isinstance(began, datetime) or saved.modified > began.timestamp():
        return False
    return code not in {cell["source"] for cell in saved.notebook["cells"]}


def running_cell(shell: Any) -> str:
    """Return the id of the running cell; empty if the front end does not send it."""
    request = shell.kernel.get_parent("shell") or {}
    return str(request.get("metadata", {}).get("cellId") or "")


# Nothing but the kernel.


class NextInput:
    """Fallback without a document: inserts one cell below the running one; the past is in `In` and `Out`."""

    how = "set_next_input"

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def read(self, whole: str = "") -> list[Cell]:
        """Return what ran in this kernel as cells without ids."""
        entered, given = self._shell.user_ns.get("In", []), self._shell.user_ns.get("Out", {})
        cells = []
        for number, source in enumerate(entered[1:], 1):
            cell = cell_of(source, "code", f"In[{number}]")
            if number in given:
                cell["outputs"] = [
                    {"output_type": "execute_result", "data": {"text/plain": repr(given[number])[:1_000]}}
                ]
            cells.append(cell | {"execution_count": number})
        return cells

    def swap(self, swap: Swap, *, force: bool = False) -> str:
        """Propose a new cell, the first of an execution only."""
        if swap.before is not None or swap.after is None:
            raise ToolError(
                "only new cells can be proposed here: neither a page nor a Jupyter server gives access "
                "to the notebook"
            )
        # Nbclient, papermill and nbconvert drop the proposal.
        if not is_attended(self._shell):
            raise ToolError(
                "a program executes this notebook, so no cell can be added to it: nothing was changed; "
                "put it into the answer"
            )
        if any(one.get("source") == "set_next_input" for one in self._shell.payload_manager.read_payload()):
            raise ConflictError(
                "a cell was proposed already: front ends take one of each execution; put everything "
                "into that one"
            )
        self._shell.set_next_input(swap.after["source"])
        return "it appears below this cell when that ends; only the user can take it away"
