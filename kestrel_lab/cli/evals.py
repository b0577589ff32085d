"""`kestrel eval …`: measure suites, compare commits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.face import Face

evals = typer.Typer(
    help="Measure agents: run suites of scenarios, compare two commits.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Suite = Annotated[str, typer.Argument(metavar="SUITE", help="A suite file (YAML).")]
Configs = Annotated[list[str] | None, typer.Option("--config", "-c", help="Only this configuration of the suite; may be repeated.")]
Epochs = Annotated[int | None, typer.Option(help="How often each scenario is repeated; the suite's number by default.")]
Report = Annotated[Path | None, typer.Option(help="Write a self-contained HTML report to this file.")]


@evals.command("run", epilog="Example: kestrel eval run evals/smoke.yaml --epochs 3 --report out/smoke.html")
def run_suite(
    ctx: typer.Context,
    suite: Suite,
    *,
    config: Configs = None,
    epochs: Epochs = None,
    report: Report = None,
    csv: Annotated[Path | None, typer.Option(help="Write one row per trial to this file.")] = None,
    reuse: Annotated[bool, typer.Option("--reuse", help="Take equal trials that were made before instead of making them again.")] = False,
) -> Any:
    """Run every scenario with every model configuration, as often as `epochs` says."""
    face: Face = ctx.find_root().obj
    lab = face.lab()

    async def work(reporter: Any) -> Any:
        result = await lab.eval(suite, configs=config, epochs=epochs, reporter=reporter, reuse=reuse)
        if report is not None:
            result.report(report)
        if csv is not None:
            csv.parent.mkdir(parents=True, exist_ok=True)
            result.frame.to_csv(csv, index=False)
        return result

    return face.wait(work)


@evals.command("compare", epilog="Example: kestrel eval compare main HEAD --suite evals/smoke.yaml")
def compare_commits(
    ctx: typer.Context,
    base: Annotated[str, typer.Argument(metavar="BASE", help="The commit to compare with: a name, tag or hash.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The commit in question.")],
    *,
    suite: Annotated[str, typer.Option("--suite", "-s", help="A suite file (YAML).")],
    config: Configs = None,
    epochs: Epochs = None,
    report: Report = None,
    margin: Annotated[float, typer.Option(help="How large a change of the success rate still counts as none.")] = 0.05,
) -> Any:
    """Run a suite at two commits, as far as results are missing, and say what changed.

    Each commit is checked out in a worktree of its own; your files, index and HEAD stay as they are.
    """
    face: Face = ctx.find_root().obj
    lab = face.lab()

    async def work(reporter: Any) -> Any:
        comparison = await lab.compare(base, head, suite=suite, configs=config, epochs=epochs, reporter=reporter, margin=margin)
        if report is not None:
            comparison.report(report)
        return comparison

    return face.wait(work)
