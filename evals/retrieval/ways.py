"""Ways to search that no agent is offered, to compare the offered ones with: each a tool that tells its files like a look-up."""

from __future__ import annotations

import asyncio
import atexit
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

import apsw

from kestrel_lab import tool
from kestrel_lab.core.events.calls import RetrievalStep
from kestrel_lab.retrieval.hits import Hit, Retrieval
from kestrel_lab.retrieval.indexing.file_list import files_of, read_text, skip_reason
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.search import Search
from kestrel_lab.retrieval.trace_events import events_of
from kestrel_lab.runtime.context.gatherers import FileGatherer
from kestrel_lab.tools.tool import ToolContext


@tool(danger_level="safe", effect="pure", version="1", reads="workspace", reaches="nothing")
async def words(query: str, context: ToolContext, top_k: int = 10) -> list[str]:
    """Find files by how many different words of a question they have: what `gather` does where there is no index.

    Args:
        query: The question.
        context: The run.
        top_k: Files to return.
    """
    found = await FileGatherer()(query, context.workspace.root, top_k)
    return _told(query, "words", [source.path for source in found.sources], context)


@tool(danger_level="safe", effect="pure", version="1", reads="workspace", reaches="nothing")
async def full_text(query: str, context: ToolContext, top_k: int = 10) -> list[str]:
    """Find files by full-text search as it comes with SQLite: paths and texts, every word of the question, BM25.

    Args:
        query: The question.
        context: The run.
        top_k: Files to return.
    """
    return _told(
        query, "full text", await asyncio.to_thread(_ranked, context.workspace.root, query, top_k), context
    )


@tool(danger_level="safe", effect="pure", version="1", reads="workspace", reaches="nothing")
async def search(query: str, context: ToolContext, top_k: int = 10) -> list[str]:
    """Find files by the first part of `search_code` alone: its ranking, without second looks.

    Args:
        query: The question.
        context: The run.
        top_k: Files to return.
    """
    found = await asyncio.to_thread(_searched, context.workspace.root, query, top_k)
    return _tell(found, context)


def _told(query: str, name: str, paths: list[str], context: ToolContext) -> list[str]:
    """The paths, told in the log like those of a look-up."""
    hits = tuple(Hit(path=path, first=1, last=1, text="", hash="", how=name, why="") for path in paths)
    steps = (RetrievalStep(step="", retriever=name, query=query, found=len(paths), chosen=paths),)
    return _tell(
        Retrieval(query=query, hits=hits, steps=steps, stopped="limit" if paths else "nothing"), context
    )


def _tell(found: Retrieval, context: ToolContext) -> list[str]:
    for event in events_of(found):
        if context.looked_up is not None:
            context.looked_up(event)
    return [hit.path for hit in found.hits]


def _ranked(folder: Path, query: str, top_k: int) -> list[str]:
    match = " OR ".join(f'"{word}"' for word in dict.fromkeys(re.findall(r"\w+", query)))
    sql = "SELECT path FROM files WHERE files MATCH ? ORDER BY rank LIMIT ?"
    connection = apsw.Connection(str(_table(folder)), flags=apsw.SQLITE_OPEN_READONLY)
    return [str(row[0]) for row in connection.execute(sql, (match, top_k))]


def _searched(folder: Path, query: str, top_k: int) -> Retrieval:
    index = CodeIndex(folder, _home())
    index.refresh()
    return Search(index)(query, top_k)


@cache
def _table(folder: Path) -> Path:
    """The same files that the index reads, in a table of their own."""
    place = Path(tempfile.mkstemp(suffix=".db", dir=_home())[1])
    connection = apsw.Connection(str(place))
    connection.execute("CREATE VIRTUAL TABLE files USING fts5(path, text)")
    with connection:
        for path in files_of(folder):
            if not skip_reason(path, (folder / path).stat().st_size) and isinstance(
                text := read_text(folder, path), tuple
            ):
                connection.execute("INSERT INTO files VALUES (?, ?)", (path, text[0]))
    connection.close()
    return place


@cache
def _home() -> Path:
    """Beside the index of the session, so that one way does not build what another is timed with; removed at exit."""
    home = Path(tempfile.mkdtemp(prefix="kestrel-ways-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home
