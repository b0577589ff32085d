"""`kestrel eval run`, and what is done with the trials of one suite: summaries, grading again, ablations."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.command_table import GroupedCommands
from kestrel_lab.cli.eval_options import (
    CommitLine,
    Execution,
    Outputs,
    ReportOptions,
    Stored,
    StoredParts,
    Suite,
    SuiteAtCommit,
    run_measurement,
    save_outputs,
)
from kestrel_lab.cli.frontend import command_group, frontend_of, option_groups, output_file
from kestrel_lab.core.drawing.matplotlib_figure import save_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.options import AblationOptions, Parts

if TYPE_CHECKING:
    from kestrel_lab.lab import Lab


evals = command_group(
    "Measure agents: run suites of scenarios, compare two commits, decide gates.",
    cls=GroupedCommands,
    no_args_is_help=True,
)


@evals.command("run", epilog="Example: kestrel eval run evals/smoke.yaml --epochs 3 --report out/smoke.html")
@option_groups
def run_suite(
    ctx: typer.Context,
    suite: Suite,
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="This model in place of the suite's configurations; may be repeated."
        ),
    ] = None,
    execution: Execution,
    reports: ReportOptions,
    csv: Annotated[Path | None, output_file("Write one row per trial to this file.")] = None,
    line: CommitLine,
    suite_at_commit: SuiteAtCommit = False,
) -> Any:
    """Run every scenario with every model configuration, as often as `epochs` says.

    Each finished trial is stored at once. --resume continues an interrupted run; no stored trial is run
    again. The exit code is 1 if every trial broke. How many have to pass is decided by kestrel eval gate.
    With --commits the suite is run at each of these commits in turn where results are missing, each in a
    worktree of its own; your files stay as they are.

    Published suites need their packages (pip install --no-deps bfcl-eval agentdojo, and the extra
    benchmarks): kestrel eval run 'bfcl:multi_turn_base?limit=20' --model local
    """
    if execution.configs and model:
        raise UsageError(
            "--config picks configurations of the suite and --model takes their place: give one of the two"
        )
    chosen: Any = {name: name for name in model} if model else execution.configs
    if line.commits and (reports.junit is not None or reports.markdown is not None):
        raise UsageError(
            "--junit and --markdown are about one commit; with --commits write --report or --csv"
        )
    if not line.commits and (line != CommitLine() or suite_at_commit):
        raise UsageError(
            "--every, --last and --suite-at-commit choose among --commits: give some, such as "
            "--commits v1.0..HEAD"
        )
    if line.commits and replace(execution, configs=None, epochs=None, reuse=False) != Execution():
        msg = (
            "--resume, --retry-errors, --early-stopping, --batch, --cluster, --cassette(s), --scenario, "
            "--family and --tag are about one run of a suite: leave them out with --commits"
        )
        raise UsageError(msg)

    def work(lab: Lab, reporter: Any) -> Any:
        if line.commits:
            return lab.evals.eval_commits(
                suite,
                configs=chosen,
                epochs=execution.epochs,
                reporter=reporter,
                own_suite=suite_at_commit,
                **asdict(line),
            )
        return lab.eval(suite, reporter=reporter, **{**execution.given(), "configs": chosen})

    # Of commits only --report is asked for, see above.
    return run_measurement(ctx, work, reports.write, csv=csv)


@evals.command(
    "ablate",
    epilog="Example: kestrel eval ablate evals/smoke.yaml --file AGENTS.md --budget 200 --report "
    "out/ablation.html",
)
@option_groups
def ablate_guidance(
    ctx: typer.Context,
    suite: Suite,
    *,
    file: Annotated[
        str,
        typer.Option(
            "--file", "-f", metavar="PATH", help="The guidance file, from the top of the suite's repository."
        ),
    ],
    how: AblationOptions,
    parts: Parts,
    outputs: Outputs,
) -> Any:
    """Find out which paragraphs of AGENTS.md, or of another guidance file, help: the effect of each on
    success, tokens and cost, with its interval.

    Each trial has some of the paragraphs and its twin has the others, so every trial tells of every
    paragraph. Stored trials are taken: asked again with a larger budget it goes on. What the budget does not
    decide is called "no difference shown".
    """
    given: Any = {**asdict(how), **asdict(parts)}
    return run_measurement(
        ctx,
        lambda lab, reporter: lab.evals.ablate(suite, file, reporter=reporter, **given),
        index=True,
        **asdict(outputs),
    )


@evals.command("rescore", epilog="Example: kestrel eval rescore evals/smoke.yaml --report out/again.html")
@option_groups
def rescore_trials(
    ctx: typer.Context,
    suite: Suite,
    *,
    which: StoredParts,
    reports: ReportOptions,
) -> Any:
    """Score the stored trials of a suite by its present checks; no model is asked and no tool is called.

    Checks of answer, conduct, trajectory and spending are read from the log. Those of files, commands and
    models keep their old scores, and the report says so. New scores are stored beside the old ones.
    """
    again: Any = asdict(which)
    return run_measurement(
        ctx, lambda lab, _: lab.evals.rescore(suite, **again), lambda found: reports.write(found.result)
    )


@evals.command("summary", epilog="Example: kestrel eval summary evals/smoke.yaml --by family")
@option_groups
def summarise_trials(
    ctx: typer.Context,
    suite: Suite,
    *,
    by: Annotated[
        str,
        typer.Option(
            help="Group the rows by config, family, scenario, or any column of the frame: metadata of "
            "scenarios, outcome, model."
        ),
    ] = "config",
    tries: Annotated[
        bool, typer.Option("--tries", help="Show pass@k and pass^k for every k up to the epochs.")
    ] = False,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="Show this metric; may be repeated.")
    ] = None,
    plot: Annotated[
        Path | None, output_file("Draw the first metric by family to this PNG or SVG file.")
    ] = None,
    csv: Annotated[Path | None, output_file("Write all metrics with their intervals to this file.")] = None,
    which: StoredParts,
) -> Any:
    """Show rates and metrics of the stored trials of a suite with their 95 % intervals; nothing is run."""
    found = (
        frontend_of(ctx).lab().evals.stored(suite, by=by, metrics=metric or [], tries=tries, **asdict(which))
    )
    save_outputs(found, csv=csv)
    if plot is not None:
        save_figure(found.plot(*(metric or [])[:1]), plot)
    return found


@evals.command(
    "calibration", epilog="Example: kestrel eval calibration evals/work.yaml --out out/reliability.png --keep"
)
@option_groups
def show_calibration(
    ctx: typer.Context,
    suite: Suite,
    *,
    stored: Stored,
    out: Annotated[
        Path | None,
        output_file("Draw the reliability diagram to this PNG or SVG file; one per configuration."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Show beside later answers of the same model how often such a confidence was right.",
        ),
    ] = False,
) -> Any:
    """Show whether stored trials of a suite were right as often as their confidence says; nothing is run."""
    from kestrel_lab.evals.stored.calibration import keep_calibrations, stored_calibrations

    lab = ctx.find_root().obj.lab()
    found = stored_calibrations(lab, suite, commit=stored.commit, configs=stored.configs)
    written = [f"written: {path}" for path in found.write(out)] if out is not None else []
    kept = keep_calibrations(lab, found) if keep else []
    return replace(found, notes=(*found.notes, *written, *kept))


@evals.command(
    "injection",
    epilog="Example: kestrel eval injection agentdojo:banking --attack important_instructions --limit 50",
)
def measure_injections(
    ctx: typer.Context,
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="agentdojo:workspace, agentdojo:banking, agentdojo:slack or agentdojo:travel.",
        ),
    ],
    *,
    attack: Annotated[
        str, typer.Option(help="An attack of AgentDojo, e.g. direct or important_instructions.")
    ] = "important_instructions",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The model under attack; by default a script that obeys every injection it reads.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only the N first tasks, and the N first attacked ones."),
    ] = None,
    csv: Annotated[Path | None, output_file("Write the rates with their intervals to this file.")] = None,
) -> Any:
    """Measure prompt injection with containment and without: tasks done, and attacks that succeed.

    Judged by AgentDojo's own functions (pip install --no-deps agentdojo, and the extra benchmarks).
    """
    from kestrel_lab.evals.studies.prompt_injection import measure_injection

    chosen: Any = {"model": model, "limit": limit}
    return run_measurement(
        ctx,
        lambda lab, reporter: measure_injection(lab, suite, attack, reporter=reporter, **chosen),
        csv=csv,
    )
