"""Code search tools: look things up in an index of the workspace by meaning, by name and by use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kestrel_lab.core.calls import Danger, format_count
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.retrieval.code_graph import Graph, NameUse
from kestrel_lab.retrieval.hits import Hit, Retrieval, missing_words_phrase, nothing_found
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.trace_events import events_of
from kestrel_lab.retrieval.workspace_indexes import WorkspaceIndexes
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool, ToolContext

GROUP = "retrieval"
_MOST_HITS = 50
_MOST_USES = 200


def retrieval_tools(indexes: WorkspaceIndexes) -> list[Tool]:
    """`search_code`, `find_definition` and `find_references`, offered to runs that name them or
    `retrieval`.
    """

    async def ready(ctx: ToolContext) -> tuple[CodeIndex, str]:
        loop = asyncio.get_running_loop()

        def report(text: str, share: float | None) -> None:
            loop.call_soon_threadsafe(ctx.progress, text, share)

        return await asyncio.to_thread(indexes.ready, ctx.workspace.root, report)

    @tool(
        danger_level=Danger.SAFE,
        effect="pure",
        version="1",
        reads="workspace",
        shows="lines",
        reaches="nothing",
    )
    async def search_code(query: str, ctx: ToolContext, top_k: int = 8) -> str:
        """Find the files and places that have to do with a question, an error report or a task, best first,
        with why.

        Finds by words and by names of files, modules, functions and classes; a whole bug report or traceback
        can be given.

        Args:
            query: What is sought, in plain words; the more it says the better.
            ctx: The run it works for.
            top_k: Files to return, from 1 to 50; more where they cover too little of the question.

        """
        if not 1 <= top_k <= _MOST_HITS:
            raise ValueError(f"top_k must be from 1 to {_MOST_HITS}, not {top_k}")
        index, note = await ready(ctx)
        found = await asyncio.to_thread(indexes.cascade(index), query, top_k)
        if ctx.looked_up is not None:
            for event in events_of(found):
                ctx.looked_up(event)
        return _hits_text(found, note)

    @tool(
        danger_level=Danger.SAFE,
        effect="pure",
        version="1",
        reads="workspace",
        shows="lines",
        reaches="nothing",
    )
    async def find_definition(name: str, ctx: ToolContext) -> str:
        """Show where a function, class, method or constant is defined, with its first lines.

        Args:
            name: Its name, or `Class.method`.
            ctx: The run it works for.

        """
        index, note = await ready(ctx)
        graph = Graph(index)
        hits = await asyncio.to_thread(graph.definitions, name.strip())
        if not hits:
            near = await asyncio.to_thread(graph.near, name.strip())
            return _with_note(f"[nothing called {name} is defined here; {near}]", note)
        return _with_note("\n\n".join(map(_hit_text, hits[:_MOST_HITS])), note)

    @tool(
        danger_level=Danger.SAFE,
        effect="pure",
        version="1",
        reads="workspace",
        shows="lines",
        reaches="nothing",
    )
    async def find_references(name: str, ctx: ToolContext) -> str:
        """List the lines that use a name: its definition, imports, calls and other uses, as `path:line: kind:
        text`.

        Args:
            name: Name of a function, class, method, constant or variable.
            ctx: The run it works for.

        """
        index, note = await ready(ctx)
        return _with_note(_uses_text(await asyncio.to_thread(Graph(index).uses, name.strip()), name), note)

    return [replace(made, group=GROUP) for made in (search_code, find_definition, find_references)]


def _uses_text(uses: Sequence[NameUse], name: str) -> str:
    order = {"definition": 0, "import": 1, "call": 2, "use": 3}
    ordered = sorted(uses, key=lambda use: (order[use.kind], use.path, use.line))
    lines = [f"{use.path}:{use.line}: {use.kind}: {use.text}" for use in ordered]
    if len(lines) > _MOST_USES:
        lines = [*lines[:_MOST_USES], f"[{len(uses) - _MOST_USES:,} more: use grep with a path]"]
    return "\n".join(lines) or f"[nothing uses {name}]"


def _hits_text(found: Retrieval, note: str) -> str:
    if not found.hits:
        return _with_note(f"[{nothing_found(found.gaps)}]", note)
    missing = f"; {missing_words_phrase(found.gaps)}" if found.gaps else ""
    end = (
        f"[{format_count(len(found.hits), 'file')} cover{'s' * (len(found.hits) == 1)} "
        f"{found.coverage:.0%} of the question{missing}]"
    )
    return _with_note("\n\n".join([*map(_hit_text, found.hits), end]), note)


def _hit_text(hit: Hit) -> str:
    lines: Sequence[str] = hit.text.split("\n")
    numbered = "\n".join(f"{number:>6}  {line.rstrip()}" for number, line in enumerate(lines, hit.first))
    return f"{sanitize_text(hit.place)}  ({sanitize_text(hit.why)})\n{numbered}"


def _with_note(text: str, note: str) -> str:
    return f"{text}\n[{note}]" if note else text
