"""`kestrel eval import, push, pull, view`: results from elsewhere, and for others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from kestrel_lab.cli.commands.serve import only_in_a_terminal
from kestrel_lab.cli.eval_options import (
    run_measurement,
)
from kestrel_lab.cli.frontend import command_group, frontend_of, option_groups, output_file

if TYPE_CHECKING:
    from kestrel_lab.lab import Lab


exchanging = command_group("")


@exchanging.command("view", epilog="Example: kestrel eval view, then open the address that it prints")
def view_results(
    ctx: typer.Context,
    suite: Annotated[
        str,
        typer.Argument(metavar="SUITE", help="A suite file, or the name of a stored suite, to begin with."),
    ] = "",
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; any free one if left out.")
    ] = 0,
) -> None:
    """Show the stored eval runs of all suites on a web page of this machine, live while one is going on.

    The page of each is the one of --report. With the file of a suite it also says tags and expected values.
    """
    from kestrel_lab.evals.suites.loader import load_suite  # loads pydantic

    only_in_a_terminal("eval view")
    lab = frontend_of(ctx).lab()
    loaded = (
        load_suite(suite) if suite and (suite.endswith((".yaml", ".yml")) or Path(suite).is_file()) else None
    )
    asyncio.run(_serve_view(lab, loaded, suite if loaded is None else loaded.name, port))


async def _serve_view(lab: Lab, suite: Any, name: str, port: int) -> None:
    from kestrel_lab.evals.stored.view_server import serving_view, stored_suite  # loads starlette and uvicorn

    chosen = f"&{urlencode({'suite': name, 'run': stored_suite(lab.store, name)})}" if name else ""
    async with serving_view(lab, suite, port=port) as (address, work):
        store = lab.store.path
        typer.echo(f"Eval runs of {store}. Ctrl-C stops the server. Open this link:", err=True)
        typer.echo(f"{address.link}{chosen}")
        await work


def _known_formats() -> str:
    from kestrel_lab.evals.importers.formats import TITLES  # readers are slow to load

    return "\n".join(("These can be imported, each known by what is in the file:", *TITLES))


@exchanging.command(
    "import", epilog="Example: kestrel eval import logs/2026-11-22_task.eval --csv out/trials.csv"
)
def import_files(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE…", help="Recordings, or folders of them. Without any, the known formats are listed."
        ),
    ] = None,
    *,
    suite: Annotated[
        Path | None,
        typer.Option(
            metavar="SUITE", help="Judge the runs by the checks of this suite, by scenario id or goal."
        ),
    ] = None,
    csv: Annotated[Path | None, output_file("Write one row per trial to this file.")] = None,
) -> Any:
    """Import what other tools recorded: runs to show, fork, score and compare like our own, and their rates
    with 95 % intervals.

    Nothing in the files is run, and Inspect need not be installed. Importing a file again adds nothing. A
    record that cannot be read is reported with its place. What broke there counts as its own tool counts it.
    """
    if not files:
        return _known_formats()
    return run_measurement(
        ctx, lambda lab, reporter: lab.evals.import_runs(*files, suite=suite, reporter=reporter), csv=csv
    )


Server = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="postgresql://USER@HOST/DATABASE; the password from PGPASSWORD or a password file, as for psql.",
    ),
]


@dataclass(frozen=True, slots=True)
class Transferred:
    """What is pushed or pulled."""

    suites: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SUITE]…", help="Only these suites, by file or name; all by default."),
    ] = None
    runs: Annotated[
        bool,
        typer.Option(
            "--runs", help="Also the logs of the runs behind the trials, for transcripts and rescore."
        ),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be transferred.")] = False


@exchanging.command(
    "push", epilog="Example: kestrel eval push postgresql://kestrel@db.example.org/results evals/smoke.yaml"
)
@option_groups
def push_results(ctx: typer.Context, url: Server, *, what: Transferred) -> Any:
    """Push the stored trials of suites to a PostgreSQL server that a team shares.

    Only what is not there yet is sent, without secrets; a push that was interrupted is simply made again.
    Exit code 1: a trial was refused.
    """
    frontend = frontend_of(ctx)
    shared = frontend.lab().evals.shared
    how: Any = {"runs": what.runs, "dry_run": what.dry_run}
    return frontend.wait(lambda reporter: shared.push(url, *(what.suites or ()), reporter=reporter, **how))


@exchanging.command(
    "pull", epilog="Example: kestrel eval pull postgresql://kestrel@db.example.org/results evals/smoke.yaml"
)
@option_groups
def pull_results(ctx: typer.Context, url: Server, *, what: Transferred) -> Any:
    """Pull the trials of suites that a team shares, to count beside those made here in summary, compare and
    history.

    Each row is checked before it is stored; column origin of frames says who made it. Exit code 1: a trial
    was refused.
    """
    frontend = frontend_of(ctx)
    shared = frontend.lab().evals.shared
    how: Any = {"runs": what.runs, "dry_run": what.dry_run}
    return frontend.wait(lambda reporter: shared.pull(url, *(what.suites or ()), reporter=reporter, **how))
