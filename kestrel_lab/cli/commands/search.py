"""`kestrel search`, `index` and `websearch`: search a folder or the web, and show the evidence."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kestrel_lab.agents import SearchAgent
from kestrel_lab.cli.frontend import ShowOptions, follow_work, frontend_of, option_groups, run_options
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Approver
from kestrel_lab.retrieval.explain import FileExplanation
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.workspace.search import (
    FoundFiles,
    SearchResult,
    WorkspaceSearch,
    evidence_of,
    search_model,
)

search = typer.Typer()

Folder = Annotated[
    str, typer.Option("--folder", metavar="FOLDER", help="The folder to search; it need not be a repository.")
]


@search.command("search", epilog='Example: kestrel search "how are cookies kept over redirects" --folder src')
def search_files(
    ctx: typer.Context,
    query: Annotated[
        list[str],
        typer.Argument(metavar="QUERY", help="What to look for: words, names, a whole error report."),
    ],
    *,
    folder: Folder = ".",
    top: Annotated[
        int, typer.Option(help="Most files; up to twice as many where these cover too little.")
    ] = 10,
    explain: Annotated[
        str, typer.Option(metavar="PATH", help="Explain instead why this file is or is not found.")
    ] = "",
    trace: Annotated[bool, typer.Option("--trace", help="Show every step of the search too.")] = False,
    loop: Annotated[
        bool, typer.Option("--loop", help="Search round by round and give key files, gaps and coverage.")
    ] = False,
) -> SearchResult | FileExplanation | FoundFiles:
    """Find the files and lines of a folder that are about a question, best first, and say why."""
    lab, text = frontend_of(ctx).lab(), " ".join(query)
    if explain:
        return WorkspaceSearch(lab.indexes, folder).explain(text, explain, top_k=top)
    if loop:
        return WorkspaceSearch(lab.indexes, folder).find_files(text, top_k=top)
    return WorkspaceSearch(lab.indexes, folder).search(text, top_k=top, trace=trace)


@search.command(epilog="Example: kestrel index --folder ~/project")
def index(
    ctx: typer.Context,
    *,
    folder: Folder = ".",
    status: Annotated[
        bool, typer.Option("--status", help="Show the state of the index; change nothing.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Delete the index and build it again.")] = False,
) -> Any:
    """Build or update the search index of a folder; runs then use it to gather what a goal needs."""
    lab = frontend_of(ctx).lab()
    if status:
        return WorkspaceSearch(lab.indexes, folder).status()
    return frontend_of(ctx).wait(
        lambda reporter: WorkspaceSearch(lab.indexes, folder).build(reporter, rebuild=rebuild)
    )


# Facts from the web with the words they rest on, and the evidence of searches made before.


@search.command(epilog='Example: kestrel websearch "When was Python 3.13 released?" --approve auto:medium')
@option_groups
def websearch(
    ctx: typer.Context,
    question: Annotated[list[str] | None, typer.Argument(help="What to find out.")] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model by name; one that ends with +web searches by itself; none gives results without "
            "facts."
        ),
    ] = None,
    approve: Annotated[
        str | None,
        typer.Option(help="ask, auto, auto:LEVEL or deny. Searching is low, reading a page medium."),
    ] = None,
    queries: Annotated[
        int, typer.Option(min=1, max=8, help="The largest number of queries to the search engine.")
    ] = 3,
    results: Annotated[
        int, typer.Option(min=1, max=20, help="The largest number of results of each query.")
    ] = 8,
    pages: Annotated[int, typer.Option(min=0, max=12, help="The largest number of pages to read.")] = 4,
    grounded: Annotated[
        bool, typer.Option("--grounded", help="Let the model's own web search find the pages, if it has one.")
    ] = False,
    show: Annotated[
        str, typer.Option(metavar="RUN", help="Show the evidence of an earlier search instead.")
    ] = "",
    how: ShowOptions,
) -> Any:
    """Search the web for an answer: facts, each with quotes from the pages that support it."""
    frontend = frontend_of(ctx)
    text = " ".join(question or ()).strip()
    if bool(text) == bool(show):
        raise UsageError("give a question, or --show RUN for the evidence of a search made before, not both")
    if show:
        found = evidence_of(frontend.lab().get(show))
        return found.to_json() if how.as_json else found
    agent = SearchAgent(queries=queries, results=results, pages=pages, grounded=grounded)

    def begin(approver: Approver | None) -> Run:
        lab = frontend.lab()
        given = {
            **run_options(ctx.params),
            "model": search_model(lab, model, grounded=grounded),
            "approver": approver,
            "plan": agent,
        }
        return lab.start(text, **given)

    return follow_work(ctx, how, begin)
