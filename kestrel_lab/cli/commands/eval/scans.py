"""`kestrel eval scan` and `kestrel eval clusters`, and `kestrel align`: look through recorded runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.eval_options import StoredParts, run_measurement, save_outputs
from kestrel_lab.cli.frontend import frontend_of, option_groups, output_file
from kestrel_lab.evals.options import read_rubric

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter
    from kestrel_lab.lab import Lab

scanning = typer.Typer()
"""Commands of `kestrel eval`."""
aligning = typer.Typer()

Runs = Annotated[
    list[str], typer.Argument(metavar="SUITE|RUN…", help="A suite, by its file or its name, or ids of runs.")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Read(StoredParts):
    """The options of commands that look through stored runs."""

    model: Annotated[str | None, typer.Option("--model", "-m", help="The model that reads.")] = None
    csv: Annotated[Path | None, output_file("Write one row per finding or failure to this file.")] = None

    def given(self) -> dict[str, Any]:
        """Return the options as `Evaluations` takes them."""
        return {name: value for name, value in asdict(self).items() if name != "csv"}


@scanning.command("scan", epilog="Example: kestrel eval scan evals/smoke.yaml --scanner loop")
@option_groups
def scan_runs(
    ctx: typer.Context,
    what: Runs,
    *,
    scanner: Annotated[
        list[str] | None,
        typer.Option(
            "--scanner",
            "-s",
            metavar="NAME|FILE.py:NAME",
            help="Only this scanner; may be repeated. With --model the name of a shipped rubric.",
        ),
    ] = None,
    rubric: Annotated[
        str,
        typer.Option(
            metavar="TEXT|@FILE", help="With --model: what it looks for, in place of a shipped one."
        ),
    ] = "",
    read: Read,
) -> Any:
    """Look through stored runs for loops, refusals, orders obeyed that stood in what was read, and more.

    Without --model nothing is asked: the shipped scanners are deterministic. What is found is stored with the
    run, and `found:NAME` is a measure of the suite: in summary, frames, gates and compare.
    """

    def work(lab: Lab, reporter: Reporter) -> Any:
        return lab.evals.scan(
            what[0] if len(what) == 1 else what,
            *(scanner or []),
            rubric=read_rubric(rubric),
            reporter=reporter,
            **read.given(),
        )

    return run_measurement(ctx, work, csv=read.csv)


@scanning.command("clusters", epilog="Example: kestrel eval clusters evals/smoke.yaml")
@option_groups
def cluster_failures(
    ctx: typer.Context,
    what: Runs,
    *,
    read: Read,
) -> Any:
    """Group stored failures by their calls, errors and words, with counts by configuration and examples.

    A cluster keeps its name from one day to the next while most of what tells it apart stays. With --model a
    sentence says what its failures have in common.
    """

    def work(lab: Lab, _reporter: Reporter) -> Any:
        chosen = what[0] if len(what) == 1 else what
        return lab.evals.clusters(chosen, **read.given())

    return run_measurement(ctx, work, csv=read.csv)


@aligning.command("align", epilog="Example: kestrel align 3f2a9c 81b0de --report aligned.html")
def align_runs(
    ctx: typer.Context,
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="Ids of two runs or more.")],
    *,
    report: Annotated[Path | None, output_file("Write a page of the runs side by side to this file.")] = None,
    csv: Annotated[Path | None, output_file("Write one row per aligned step to this file.")] = None,
) -> Any:
    """Align recorded runs: which steps correspond, where they differ first, and what each did from there.

    Forks of each other are aligned exactly up to where they part, other runs by their calls and texts.
    """
    found = frontend_of(ctx).lab().align(*runs)
    save_outputs(found, report=report, csv=csv)
    return found
