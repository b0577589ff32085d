"""`kestrel runs`, `find` and `gc`: list runs, find them by their words, remove them for good, and free the
room that nothing needs.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.frontend import command_group, frontend_of, option_groups
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.runtime.workspace.find import MOST, find_runs
from kestrel_lab.runtime.workspace.removal import (
    Removal,
    Swept,
    collect_garbage,
    plan_of,
    remove_in_parts,
    runs_older_than,
)
from kestrel_lab.runtime.workspace.run_filters import FILTERS

runs = command_group("List the newest runs, or remove runs.", invoke_without_command=True)
finding = typer.Typer()
collecting = typer.Typer()


@runs.callback()
def list_runs(
    ctx: typer.Context,
    *,
    limit: Annotated[int, typer.Option(min=1, help="The number of runs to list.")] = 20,
    trials: Annotated[bool, typer.Option("--trials", help="Also list the runs that suites started.")] = False,
) -> Any:
    """List the newest runs, or remove runs."""
    if ctx.invoked_subcommand is not None:
        return None
    lab = frontend_of(ctx).lab()
    found = lab.runs(limit=limit, trials=trials)
    if not found.empty:
        return found
    if not trials and not lab.runs(limit=1, trials=True).empty:
        return f"no runs in {lab.home} but those of trials: kestrel runs --trials"
    return f'no runs in {lab.home} yet: kestrel run "…" makes one'


@runs.command(epilog="Example: kestrel runs remove --older-than 30d")
def remove(
    ctx: typer.Context,
    run: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Ids of runs.")] = None,
    *,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="All that began longer ago, such as 30d, 12h or 4w.")
    ] = "",
    trials: Annotated[
        bool,
        typer.Option(
            "--trials", help="With --older-than: also runs that suites started, with their results."
        ),
    ] = False,
    children: Annotated[
        bool, typer.Option("--children", help="Also their forks and follow-ups, which share parts of them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them without asking.")] = False,
) -> Any:
    """Remove runs for good: shows what goes and what stays, and asks first.

    Their events, long results, deleted files and results of suites go, also from the files of the log. Forks
    and follow-ups keep what they share with them.
    """
    if bool(run) == bool(older_than):
        raise UsageError("name runs, or say --older-than AGE: kestrel runs lists them")
    session = frontend_of(ctx).lab()
    chosen = run or runs_older_than(session, older_than, trials=trials)
    if not chosen:
        return f"no run is older than {older_than}"
    planned = plan_of(session, chosen, children=children)
    if not yes:
        frontend_of(ctx).say(repr(planned))
        if not (sys.stdin.isatty() and typer.confirm("Remove them?")):
            return "nothing was removed: add --yes to remove them"

    async def work(reporter: Reporter) -> Removal:
        removal = planned
        for removal in remove_in_parts(session, planned):
            reporter(removal.removed, len(planned.runs), "runs removed")
            await asyncio.sleep(0)  # where Ctrl-C stops it
        return removal

    return frontend_of(ctx).wait(work)


if TYPE_CHECKING:
    Filters = Any
else:
    Filters = make_dataclass(
        "Filters",
        [
            (
                name,
                Annotated[one.kind | None, typer.Option(help=one.help, metavar=one.metavar)],
                field(default=None),
            )
            for name, one in FILTERS.items()
        ],
        frozen=True,
        kw_only=True,
    )
    """An option for each filter."""


@finding.command(epilog="Example: kestrel find refund twice --tool send_money --check failed --since 2w")
@option_groups
def find(
    ctx: typer.Context,
    query: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUERY",
            help="Words in the goal, the calls, results, errors and answers of a run; those in quotation "
            "marks stand beside each other.",
        ),
    ] = None,
    *,
    filters: Filters,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="The number of runs to show.")] = 20,
    after: Annotated[
        int | None, typer.Option(metavar="N", help="The next page: the number that the one before names.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until all runs of the log are indexed, however many.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> Any:
    """Find runs and trials by words and by what is known of them, newest first; imported ones, too."""
    frontend = frontend_of(ctx)
    store, text = frontend.lab().store, " ".join(query or ())
    chosen = {name: getattr(filters, name) for name in FILTERS}

    def look(reporter: Reporter | None = None) -> Any:
        found = find_runs(store, text, limit=limit, after=after, wait=wait, reporter=reporter, **chosen)
        return dumps(found.as_json()) if as_json else found

    async def look_long(reporter: Reporter) -> Any:
        return await asyncio.to_thread(look, reporter)

    return frontend.wait(look_long) if wait else look()


@collecting.command(epilog="Example: kestrel gc")
def gc(ctx: typer.Context) -> Swept:
    """Free the room of what no run needs any more, and rewrite the files of the log without what was
    deleted.
    """
    return collect_garbage(frontend_of(ctx).lab())
