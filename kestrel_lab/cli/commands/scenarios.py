"""`kestrel scenario …`: scenarios made from what runs did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kestrel_lab.cli.frontend import frontend_of

scenarios = typer.Typer(
    help="Make scenarios for suites.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@scenarios.callback()
def _group() -> None:
    """Make scenarios for suites."""


@scenarios.command(
    "from-run", epilog="Example: kestrel scenario from-run RUN --out evals/found.yaml, then: kestrel eval run evals/found.yaml"
)
def from_run(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run that has ended, as `kestrel runs` lists them.")],
    *,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the scenario to this new file instead.")] = None,
) -> str | Path:
    """Draft a scenario from a run for you to review: goal, tools, limits, workspace, and checks of what happened."""
    frontend = frontend_of(ctx)
    draft = frontend.lab().evals.scenario_from(run_id, beside=None if out is None else out.parent)
    return draft.text.rstrip("\n") if out is None else draft.write(out)
