"""`kestrel eval batches`: what has come of the batches that suites asked at their providers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.eval_options import run_measurement

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter
    from kestrel_lab.lab import Lab

batching = typer.Typer()
"""Commands of `kestrel eval`."""


@batching.command("batches", epilog="Example: kestrel eval batches evals/smoke.yaml")
def show_batches(
    ctx: typer.Context,
    suite: Annotated[
        str | None, typer.Argument(metavar="[SUITE]", help="Only those of this suite, by its file or name.")
    ] = None,
    *,
    stored: Annotated[
        bool, typer.Option("--stored", help="Do not ask the providers; show what is known.")
    ] = False,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Stop those that go on; the next run with --batch begins anew."),
    ] = False,
) -> Any:
    """Show the batches of kestrel eval run --batch: their state, what has come, what it cost.

    Providers are asked how far they are, and what has come is stored. The cost is that of the batch, and of
    the same answers if asked for one by one. kestrel eval run SUITE --batch goes on with the suite.
    """
    file = suite if suite and Path(suite).is_file() else None

    async def look(lab: Lab, _: Reporter) -> Any:
        from kestrel_lab.evals.execution.batch_table import batch_table
        from kestrel_lab.evals.suites.loader import load_suite  # loads pydantic

        name = load_suite(file).name if file else suite
        found = await batch_table(lab, name, look=not stored, cancel=cancel)
        return "no batches yet: kestrel eval run SUITE --batch makes some" if found.empty else found

    return run_measurement(ctx, look)
