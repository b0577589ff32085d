"""`kestrel eval site`: the stored results of all suites as static pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.frontend import frontend_of

publishing = typer.Typer()
"""Commands of `kestrel eval`."""


@publishing.command("site", epilog="Example: kestrel eval site public, then publish that folder")
def write_static_site(
    ctx: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    suites: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SUITE]…", help="Only these suites, by file or name; all by default."),
    ] = None,
    *,
    pages: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Eval runs of each suite with a page of all trials; 0: none."),
    ] = 10,
) -> Any:
    """Write a static site of stored results: all suites, the history of each, pages of the newest eval runs.

    It works without a server and without network. Pages of eval runs hold transcripts: publish only what may
    be read, or write none with --pages 0.
    """
    from kestrel_lab.evals.stored.site import write_site
    from kestrel_lab.evals.suites.loader import load_suite

    named = suites or []
    files = [one for one in named if Path(one).is_file()]
    return write_site(
        frontend_of(ctx).lab().store,
        out,
        names=[one for one in named if one not in files],
        files=[load_suite(one) for one in files],
        pages=pages,
    )
