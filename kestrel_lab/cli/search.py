"""`kestrel search` and `kestrel index`: what a folder holds for a question, why a file is or is not found, and what that rests on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kestrel_lab.cli.face import Face
from kestrel_lab.engine.searching import Found, FoundFiles
from kestrel_lab.retrieval.explain import Explained

search = typer.Typer()

Folder = Annotated[str, typer.Option("--folder", metavar="FOLDER", help="The folder to search; it need not be a repository.")]


@search.command("search", epilog='Example: kestrel search "how are cookies kept over redirects" --folder src')
def search_files(
    ctx: typer.Context,
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="What is sought: words, names, a whole error report.")],
    *,
    folder: Folder = ".",
    top: Annotated[int, typer.Option(help="How many files at most; up to twice as many where they cover too little.")] = 10,
    explain: Annotated[str, typer.Option(metavar="PATH", help="Say instead why this file is found or not.")] = "",
    trace: Annotated[bool, typer.Option("--trace", help="Show every step of the search too.")] = False,
    loop: Annotated[bool, typer.Option("--loop", help="Search round by round and give key files, gaps and coverage.")] = False,
) -> Found | Explained | FoundFiles:
    """Find the files and places of a folder that have to do with a question, best first, with why."""
    lab, text = _face(ctx).lab(), " ".join(query)
    if explain:
        return lab.searching(folder).explain(text, explain, top_k=top)
    if loop:
        return lab.searching(folder).find_files(text, top_k=top)
    return lab.searching(folder).search(text, top_k=top, trace=trace)


@search.command(epilog="Example: kestrel index --folder ~/project")
def index(
    ctx: typer.Context,
    *,
    folder: Folder = ".",
    status: Annotated[bool, typer.Option("--status", help="Only say how it stands; change nothing.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Throw the index away and build it anew.")] = False,
) -> Any:
    """Build the index of a folder, or bring it up to date; runs then gather what a goal needs from it."""
    lab = _face(ctx).lab()
    if status:
        return lab.searching(folder).status()
    return _face(ctx).wait(lambda reporter: lab.searching(folder).build(reporter, rebuild=rebuild))


def _face(ctx: typer.Context) -> Face:
    face: Face = ctx.find_root().obj
    return face
