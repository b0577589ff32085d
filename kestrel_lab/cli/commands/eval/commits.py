"""`kestrel eval compare, gate, history, bisect`: what changes along commits."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.eval_options import (
    Budget,
    CommitLine,
    Configs,
    Execution,
    FailOnOption,
    Margin,
    Outputs,
    ReportOptions,
    Suite,
    SuiteAtCommit,
    Turns,
    parse_comparison,
    run_measurement,
    suite_and_words,
)
from kestrel_lab.cli.frontend import command_group, option_groups, output_file
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.options import Parts, TrialOptions

if TYPE_CHECKING:
    from kestrel_lab.evals.commits.comparison import Comparison
    from kestrel_lab.evals.commits.sequential_compare import Design, TrialPlan
    from kestrel_lab.evals.execution.result import EvalResult
    from kestrel_lab.lab import Lab


comparing = command_group("")


@comparing.command("compare", epilog="Example: kestrel eval compare evals/smoke.yaml main HEAD --family add")
@option_groups
def compare_commits(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE] [BASE] [HEAD]",
            help="The suite file, unless --suite names it; the commit to compare with (auto, the "
            "default: the nearest one on main with "
            "results); the commit in question (HEAD). With --arms: names of configurations, the first "
            "to compare the others with.",
        ),
    ] = None,
    *,
    suite: Annotated[
        str, typer.Option("--suite", "-s", help="A suite file (YAML), if it is not the first word.")
    ] = "",
    arms: Annotated[
        bool, typer.Option("--arms", help="Compare configurations of the suite as it is now, not commits.")
    ] = False,
    trials: TrialOptions,
    reports: ReportOptions,
    margin: Margin = 0.05,
    suite_at_commit: SuiteAtCommit = False,
    from_divergence: Annotated[
        bool,
        typer.Option(
            "--from-divergence",
            help="Share the answers of models up to the first request in which the commits differ.",
        ),
    ] = False,
    turns: Turns,
) -> Any:
    """Run a suite at two commits, where results are missing, and show what changed.

    Each commit is checked out in a worktree of its own; your files, index and HEAD stay as they are. With
    --arms configurations are compared instead, those with other guidance for instance: kestrel eval compare
    SUITE none head v1 --arms Stored trials of them count, and only what is missing is run. With --budget
    trials are made in turns, and looked at while they come, until the difference is decided: kestrel eval
    compare SUITE main HEAD --budget 200trials
    """
    design = turns.design
    if arms:
        if trials.configs or suite_at_commit:
            raise UsageError(
                "--config and --suite-at-commit are about commits; with --arms the words are the "
                "configurations"
            )
        own, compared = suite_and_words(words or [], suite)
        if design is not None and turns.plan:
            return plan_of(own, design, trials)

        async def tell_apart(lab: Lab, reporter: Any) -> Comparison:
            from kestrel_lab.evals.suites.loader import load_suite  # loads pydantic

            chosen = compared or [one.name for one in load_suite(own).configs]
            if len(chosen) < 2:
                raise UsageError(
                    f"two configurations are compared at least, and there is only {chosen[0]}: name some more"
                )
            how: Any = {**asdict(trials), "reporter": reporter}
            if design is not None:
                base, head, *more = chosen
                if more:
                    raise UsageError("two configurations are compared in turns: name the two")
                del how["configs"], how["epochs"]
                return await lab.evals.compare_in_turns(own, base, head, design=design, **how)
            how |= {"configs": chosen, "reuse": True, "outside_git": True}
            found = await lab.eval(own, **how)
            return lab.evals.compare_configs(found, *chosen, margin=margin)

        return run_measurement(ctx, tell_apart, reports.write)
    file, base, head = parse_comparison(words or [], suite)
    if design is not None and turns.plan:
        return plan_of(file, design, trials)
    how: Any = {**asdict(trials), "margin": margin, "own_suite": suite_at_commit or None}
    how["design"] = design
    how["from_divergence"] = from_divergence
    return run_measurement(
        ctx,
        lambda lab, reporter: lab.compare(base, head, suite=file, reporter=reporter, **how),
        reports.write,
    )


def plan_of(suite: str, design: Design, trials: TrialOptions) -> TrialPlan:
    """Return what a design can tell apart with the selected scenarios of a suite."""
    from kestrel_lab.evals.commits.sequential_compare import TrialPlan
    from kestrel_lab.evals.suites.loader import load_suite

    return TrialPlan(
        suite=load_suite(suite).select(
            scenarios=trials.scenarios, families=trials.families, tags=trials.tags
        ),
        design=design,
    )


@comparing.command(
    "gate", epilog="Example: kestrel eval gate evals/smoke.yaml --against main --markdown out/gate.md"
)
@option_groups
def decide_gates(
    ctx: typer.Context,
    suite: Suite,
    *,
    against: Annotated[
        str,
        typer.Option(
            metavar="COMMIT",
            help="Also compare HEAD with this commit, both as committed; auto: the nearest one on main "
            "with results.",
        ),
    ] = "",
    execution: Execution,
    reports: ReportOptions,
    margin: Margin = 0.05,
    fail_on: FailOnOption = "worse",
    budget: Budget,
) -> Any:
    """Run a suite and decide its gates. Exit code 0: all hold; 1: one is violated, or HEAD is worse; 2: a
    bound is not shown; 3: not decided because something is broken. Where the trials do not tell whether HEAD
    is better or worse, that is said and is no error, unless --fail-on uncertain.

    With --budget trials are made in turns, and looked at while they come, until all gates hold, one is
    violated, or one cannot hold any more: kestrel eval gate SUITE --budget 200trials

    A replay (--cassette replay) that asks for what was not recorded is code 3. A first commit has nothing
    that --against auto could compare it with: only the suite's own gates are decided.

    Gates are written in the suite file: `gates: [{success_rate: {at_least: 0.8}}, {cost_estimate: {at_most:
    0.02, config: small}}]`. A bound holds, or is violated, where the whole 95 % interval is on one side of
    it.
    """
    from kestrel_lab.evals.suites.loader import load_suite  # loads pydantic

    design = budget.gate_design(against=against, execution=execution)
    # What a comparison of commits takes, too.
    common = {name: getattr(execution, name) for name in ("configs", "epochs", "cassette", "cassettes")}
    if against and execution != Execution(**common):
        raise UsageError(
            "--against compares whole suites as their files say, and uses stored trials: leave out "
            "--scenario, --family, "
            "--tag, --reuse, --resume, --retry-errors, --early-stopping and --cluster"
        )
    parts = {one.name: getattr(execution, one.name) for one in fields(Parts)}
    if not against and not load_suite(suite).select(**parts).gates:
        raise UsageError(
            f"{suite} declares no gates to decide: write some under 'gates', or compare with a commit "
            "(--against)"
        )

    async def work(lab: Lab, reporter: Any) -> Any:
        found: EvalResult | Comparison
        if against:
            how: Any = {**common, "margin": margin, "alone": True, "fail_on": fail_on}
            found = await lab.compare(against, "HEAD", suite=suite, reporter=reporter, **how)
        elif design is not None:
            how = {one.name: getattr(execution, one.name) for one in fields(TrialOptions)}
            del how["epochs"]
            found = await lab.evals.gate_in_turns(suite, design=design, reporter=reporter, **how)
        else:
            found = await lab.eval(suite, reporter=reporter, **execution.given())
        reports.write(found)
        return found.gates()

    return run_measurement(ctx, work)


Metric = Annotated[
    str,
    typer.Option(
        "--metric", "-m", help="success_rate, error_rate, score, or a column such as cost_estimate."
    ),
]


@comparing.command(
    "history",
    epilog="Example: kestrel eval history evals/smoke.yaml --metric cost_estimate --plot out/cost.png",
)
@option_groups
def history(
    ctx: typer.Context,
    suite: Suite,
    *,
    metric: Metric = "success_rate",
    line: CommitLine,
    config: Configs = None,
    any_version: Annotated[
        bool, typer.Option("--any-version", help="Also trials of scenarios that have changed since.")
    ] = False,
    outputs: Outputs,
) -> Any:
    """Show a metric over commits from stored results, and the commits at which it changes; nothing is run.

    Without --commits these are HEAD and its ancestors that have results.

    A history without a change shows one in at most 5 % of cases. `kestrel eval run SUITE --commits A..B`
    makes the results.
    """
    of: Any = {**asdict(line), "configs": config, "metric": metric, "any_version": any_version}
    return run_measurement(ctx, lambda lab, _: lab.evals.history(suite, **of), **asdict(outputs))


@comparing.command(
    "bisect", epilog="Example: kestrel eval bisect evals/smoke.yaml v1.2 HEAD --metric success_rate"
)
def bisect(
    ctx: typer.Context,
    suite: Suite,
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A commit at which the metric was good.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A later commit at which it is worse.")] = "HEAD",
    *,
    metric: Metric = "success_rate",
    margin: Annotated[
        float,
        typer.Option(help="The largest drop that is not bad: in points for a rate, otherwise relative."),
    ] = 0.05,
    max_trials: Annotated[
        int, typer.Option(help="The largest number of trials to run now; stored trials are reused.")
    ] = 500,
    alpha: Annotated[float, typer.Option(help="The accepted probability of naming a wrong commit.")] = 0.05,
    config: Configs = None,
    plot: Annotated[Path | None, output_file("Write the plot to this file: .png, .svg or .pdf.")] = None,
) -> Any:
    """Find the first commit at which a metric is worse. Exit code 0: found; 1: not found, or not certain.

    Trials are repeated at one commit after the other, as often as each question needs; asked again, it goes
    on where it was.
    """
    how: Any = {
        "metric": metric,
        "margin": margin,
        "max_trials": max_trials,
        "alpha": alpha,
        "configs": config,
    }
    return run_measurement(
        ctx, lambda lab, reporter: lab.evals.bisect(suite, good, bad, reporter=reporter, **how), plot=plot
    )
