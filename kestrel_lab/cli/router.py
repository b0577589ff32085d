"""`kestrel router …`: a router learned from results, and what it was measured to be worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.eval_options import Stored, save_outputs
from kestrel_lab.cli.frontend import command_group, frontend_of, option_groups, output_file
from kestrel_lab.core.errors import UsageError

router = command_group(
    "Learn from results which model to choose for a prompt; no model is called for that.",
    no_args_is_help=True,
)

Plot = Annotated[Path | None, output_file("Draw quality against cost to this file.")]


@router.command(
    "fit",
    epilog="Example: kestrel router fit evals/smoke.yaml --out router.json, then: kestrel run GOAL "
    "--model router:router.json",
)
@option_groups
def fit(
    ctx: typer.Context,
    suite: Annotated[
        str | None, typer.Argument(metavar="[SUITE]", help="A suite whose stored trials are learned from.")
    ] = None,
    *,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="In place of a suite: JSON Lines {prompt, scores: {MODEL: 0…1}, costs: {MODEL: COST}}.",
        ),
    ] = None,
    out: Annotated[Path, output_file("Write the router to this file.", "--out")] = Path("router.json"),
    cost_weight: Annotated[
        float, typer.Option(help="How much success one unit of price is worth; 0: only success counts.")
    ] = 0.0,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=PRICE", help="The price of a call of a model; for each model."),
    ] = None,
    stored: Stored,
    plot: Plot = None,
) -> object:
    """Fit a router and measure it on prompts that it was not fitted on; where no gain is clear, it takes the
    best single model.
    """
    from kestrel_lab.evals.studies.router_data import routing_frame
    from kestrel_lab.evals.studies.router_fit import fit_router

    if (suite is None) == (data is None):
        raise UsageError("give a suite whose trials are stored, or --data FILE")
    found: Any = data
    if data is None:
        found = routing_frame(
            frontend_of(ctx).lab(), str(suite), commit=stored.commit, configs=stored.configs
        )
    fitted = fit_router(found, cost_weight=cost_weight, prices=_prices(price) if price else None)
    fitted.save(out)
    save_outputs(fitted, plot=plot)
    return fitted


@router.command("report", epilog="Example: kestrel router report router.json --plot out/router.png")
def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A router that `fit` wrote.")],
    *,
    plot: Plot = None,
) -> object:
    """Show what a router was measured to be worth when it was fitted."""
    from kestrel_lab.evals.studies.router_report import read_fitted

    fitted = read_fitted(file)
    save_outputs(fitted, plot=plot)
    return fitted


def _prices(given: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in given:
        name, _, number = one.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError as error:
            raise UsageError(f"--price {one}: write MODEL=PRICE, a number") from error
    return found
