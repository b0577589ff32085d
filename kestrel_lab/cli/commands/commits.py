"""`kestrel eval history` and `kestrel eval bisect`: a suite along the commits of a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.eval_options import Configs, Suite, csv_to, measured, plot_to, report_to

along_commits = typer.Typer()

Metric = Annotated[str, typer.Option("--metric", "-m", help="success_rate, error_rate, score, or a column such as cost_estimate.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plot to this file: .png, .svg or .pdf.")]


@along_commits.command("history", epilog="Example: kestrel eval history evals/smoke.yaml --metric cost_estimate --plot out/cost.png")
def history(
    ctx: typer.Context,
    suite: Suite,
    *,
    metric: Metric = "success_rate",
    commits: Annotated[str, typer.Option(metavar="A..B", help="The commits; by default HEAD and its ancestors that have results.")] = "",
    every: Annotated[int, typer.Option(metavar="N", help="Only every N-th commit, counted from the newest.")] = 1,
    last: Annotated[int | None, typer.Option(metavar="N", help="Only the N newest of them.")] = None,
    config: Configs = None,
    any_version: Annotated[bool, typer.Option("--any-version", help="Also trials of scenarios that have changed since.")] = False,
    plot: Plot = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report to this file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one row per trial to this file.")] = None,
) -> Any:
    """Show a metric over commits from stored results, and the commits at which it changes; nothing is run.

    A history without a change shows one in at most 5 % of cases. `kestrel eval run SUITE --commits A..B` makes the results.
    """
    of: Any = {"commits": commits, "every": every, "last": last, "configs": config, "metric": metric, "any_version": any_version}
    return measured(ctx, lambda lab, _: lab.evals.history(suite, **of), report_to(report), csv_to(csv), plot_to(plot))


@along_commits.command("bisect", epilog="Example: kestrel eval bisect evals/smoke.yaml v1.2 HEAD --metric success_rate")
def bisect(
    ctx: typer.Context,
    suite: Suite,
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A commit at which the metric was good.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A later commit at which it is worse.")] = "HEAD",
    *,
    metric: Metric = "success_rate",
    margin: Annotated[float, typer.Option(help="The largest drop that is not bad: in points for a rate, otherwise relative.")] = 0.05,
    max_trials: Annotated[int, typer.Option(help="The largest number of trials to run now; stored trials are reused.")] = 500,
    alpha: Annotated[float, typer.Option(help="The accepted probability of naming a wrong commit.")] = 0.05,
    config: Configs = None,
    plot: Plot = None,
) -> Any:
    """Find the first commit at which a metric is worse. Exit code 0: found; 1: not found, or not certain.

    Trials are repeated at one commit after the other, as often as each question needs; asked again, it goes on
    where it was.
    """
    how: Any = {"metric": metric, "margin": margin, "max_trials": max_trials, "alpha": alpha, "configs": config}
    return measured(ctx, lambda lab, reporter: lab.evals.bisect(suite, good, bad, reporter=reporter, **how), plot_to(plot))
