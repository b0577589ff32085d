"""`kestrel blame` and `kestrel shrink`: which turn made a run fail, and the least that still fails."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.eval_options import run_measurement, save_outputs
from kestrel_lab.cli.frontend import option_groups, output_file

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter
    from kestrel_lab.lab import Lab

FailedRun = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of a run that failed, as `kestrel runs --trials` lists them.")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Success:
    """The options that say when a re-run succeeds, who makes it, and what all of them may cost."""

    suite: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The suite of the trial, where evals/NAME.yaml is not it; or one with the goal.",
        ),
    ] = None
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check", metavar="CHECK", help="A check as in suites, such as 'answer_contains: \"42\"'."
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Another model for the re-runs; that of the run by default."),
    ] = None
    approve: Annotated[
        str | None, typer.Option(help="Approval policy of the re-runs; that of the run by default.")
    ] = None
    runs: Annotated[
        float | None,
        typer.Option(help="Budget in runs like this one: 40 to blame (half of all need 8), 10 to shrink."),
    ] = None
    cost: Annotated[float | None, typer.Option(metavar="USD", help="Budget in US dollars.")] = None

    def given(self) -> dict[str, Any]:
        """Return the options as `Evaluations` takes them."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {"checks": given.pop("check", ()), **given}


blaming = typer.Typer()


@blaming.command("blame", epilog="Example: kestrel blame RUN --suite evals/smoke.yaml --runs 20")
@option_groups
def blame_run(
    ctx: typer.Context,
    run_id: FailedRun,
    *,
    success: Success,
    each: Annotated[int, typer.Option(min=1, help="Re-runs at once from each place.")] = 1,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--change", metavar="TEXT", help="Try this line before the model at that turn; repeatable."
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Let the model propose such lines, and try each.")
    ] = False,
    tries: Annotated[int, typer.Option(min=1, help="How often each line is tried.")] = 10,
    out: Annotated[Path | None, output_file("Write the receipt to this file, as JSON.")] = None,
    plot: Annotated[Path | None, output_file("Write the plot to this file: .png, .svg or .pdf.")] = None,
) -> Any:
    """Find the turn that made a run fail, by making turns of it anew in private copies.

    The answer is a set of turns with its probability, the success rates before and after, and the cost. That
    no single turn is to blame is an answer too. The exit code is 1 where the budget ended before either was
    shown; asked again it goes on from there.
    """

    def work(lab: Lab, reporter: Reporter) -> Any:
        return lab.evals.blame(
            run_id,
            **success.given(),
            each=each,
            change=change or (),
            repair=repair,
            tries=tries,
            reporter=reporter,
        )

    def then(found: Any) -> None:
        save_outputs(found, plot=plot)
        if out is not None:
            found.write(out)

    return run_measurement(ctx, work, then)


@blaming.command(
    "shrink", epilog="Example: kestrel shrink RUN --suite evals/smoke.yaml --out evals/found.yaml"
)
@option_groups
def shrink_run(
    ctx: typer.Context,
    run_id: FailedRun,
    *,
    success: Success,
    out: Annotated[Path | None, output_file("Write the scenario to this new file.")] = None,
) -> Any:
    """Find the least history, files, tools and guidance with which a run still fails, as a scenario.

    What is kept fails in at least 80 % of its replays, by the same checks; the exit code is 1 where nothing
    does.
    """

    def work(lab: Lab, reporter: Reporter) -> Any:
        return lab.evals.shrink(run_id, **success.given(), reporter=reporter)

    return run_measurement(ctx, work, lambda found: None if out is None else found.write(out))
