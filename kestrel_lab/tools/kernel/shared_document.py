"""The shared document of jupyter-collaboration: cells changed in the model that all pages of a notebook have (optional extra `collab`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

from kestrel_lab.core.errors import ToolError
from kestrel_lab.tools.kernel.documents import Cell, Document, JupyterServer, Swap, connected, swapped

T = TypeVar("T")


def shared_document(server: JupyterServer) -> Document | None:
    """Return the shared document of a notebook; `None` where the client is not installed or the server has no collaboration."""
    if find_spec("jupyter_nbmodel_client") is None:
        return None
    import httpx

    try:
        with connected(server.url, server.token) as client:
            served = client.get("api/collaboration/room/").status_code  # a websocket: a plain request is refused, but not as unknown
    except httpx.HTTPError:
        return None
    return None if served == httpx.codes.NOT_FOUND else SharedDocument(server)


@dataclass(frozen=True, slots=True)
class SharedDocument:
    """The cells of a notebook that its pages edit together."""

    server: JupyterServer
    how: str = "the shared document of jupyter-collaboration"

    def read(self, whole: str = "") -> list[Cell]:
        """Return the cells as they stand in all pages."""
        return self._with(lambda model: list(model.as_dict()["cells"]))

    def swap(self, swap: Swap, *, force: bool = False) -> str:
        """Change a cell for everybody; what others type meanwhile into other cells is merged."""

        def change(model: Any) -> str:
            cells: list[Cell] = model.as_dict()["cells"]
            after = swapped(cells, swap, force=force)
            place = next(place for place, cell in enumerate(after if swap.before is None else cells) if cell["id"] == swap.cell)
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
