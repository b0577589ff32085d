"""`kestrel eval …`: measure suites, compare commits, follow a metric along them, decide gates."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from kestrel_lab.cli.commands.serve import only_in_a_terminal
from kestrel_lab.cli.eval_options import (
    Budget,
    Commit,
    CommitLine,
    Configs,
    Execution,
    Margin,
    Outputs,
    Parts,
    ReportOptions,
    Stored,
    Suite,
    SuiteAtCommit,
    Trials,
    Turns,
    parse_comparison,
    run_measurement,
    save_outputs,
    suite_and_words,
)
from kestrel_lab.cli.frontend import command_group, frontend_of, option_groups, output_file, positive
from kestrel_lab.core.drawing.matplotlib_figure import save_figure
from kestrel_lab.core.errors import UsageError

if TYPE_CHECKING:
    from kestrel_lab.evals.commits.comparison import Comparison
    from kestrel_lab.evals.commits.sequential_compare import Design, TrialPlan
    from kestrel_lab.evals.execution.result import EvalResult
    from kestrel_lab.lab import Lab


evals = command_group(
    "Measure agents: run suites of scenarios, compare two commits, decide gates.", no_args_is_help=True
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
            "--resume, --retry-errors, --batch, --cluster, --cassette(s), --scenario, --family and --tag are "
            "about one run of a suite: leave them out with --commits"
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
        return lab.eval(suite, reporter=reporter, **{**asdict(execution), "configs": chosen})

    # Of commits only --report is asked for, see above.
    return run_measurement(ctx, work, reports.write, csv=csv)


@evals.command("compare", epilog="Example: kestrel eval compare evals/smoke.yaml main HEAD --family add")
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
    trials: Trials,
    reports: ReportOptions,
    margin: Margin = 0.05,
    suite_at_commit: SuiteAtCommit = False,
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
    how: Any = {**asdict(trials), "margin": margin, "own_suite": suite_at_commit, "design": design}
    return run_measurement(
        ctx,
        lambda lab, reporter: lab.compare(base, head, suite=file, reporter=reporter, **how),
        reports.write,
    )


def plan_of(suite: str, design: Design, trials: Trials) -> TrialPlan:
    """Return what a design can tell apart with the selected scenarios of a suite."""
    from kestrel_lab.evals.commits.sequential_compare import TrialPlan
    from kestrel_lab.evals.suites.loader import load_suite

    return TrialPlan(
        suite=load_suite(suite).select(
            scenarios=trials.scenarios, families=trials.families, tags=trials.tags
        ),
        design=design,
    )


@evals.command(
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
    budget: Budget,
) -> Any:
    """Run a suite and decide its gates. Exit code 0: all hold; 1: one is violated; 2: not certain; 3: not
    decided because something is broken.

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
            "--tag, --reuse, --resume, --retry-errors and --cluster"
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
            how: Any = {**common, "margin": margin, "alone": True}
            found = await lab.compare(against, "HEAD", suite=suite, reporter=reporter, **how)
        elif design is not None:
            how = {name: value for name, value in asdict(execution).items() if name in Trials.__annotations__}
            del how["epochs"]
            found = await lab.evals.gate_in_turns(suite, design=design, reporter=reporter, **how)
        else:
            found = await lab.eval(suite, reporter=reporter, **asdict(execution))
        reports.write(found)
        return found.gates()

    return run_measurement(ctx, work)


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
    unit: Annotated[
        str,
        typer.Option(
            help="What is left out: paragraph, section, or item (a paragraph or an item of a list)."
        ),
    ] = "paragraph",
    ref: Annotated[
        str, typer.Option(metavar="COMMIT", help="Take the file from this commit; by default as it is now.")
    ] = "",
    budget: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Run N trials at most; stored ones count.")
    ] = None,
    cost: Annotated[
        float | None,
        typer.Option(metavar="USD", callback=positive, help="Begin no trial after these have cost so much."),
    ] = None,
    parts: Parts,
    margin: Margin = 0.05,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take stored trials also where the suite is not in a git commit.")
    ] = False,
    outputs: Outputs,
) -> Any:
    """Find out which paragraphs of AGENTS.md, or of another guidance file, help: the effect of each on
    success, tokens and cost, with its interval.

    Each trial has some of the paragraphs and its twin has the others, so every trial tells of every
    paragraph. Stored trials are taken: asked again with a larger budget it goes on. What the budget does not
    decide is called "no difference shown".
    """
    how: Any = {
        "unit": unit,
        "ref": ref,
        "budget": budget,
        "cost": cost,
        "margin": margin,
        "resume": resume,
    }
    return run_measurement(
        ctx,
        lambda lab, reporter: lab.evals.ablate(suite, file, reporter=reporter, **how, **asdict(parts)),
        index=True,
        **asdict(outputs),
    )


@evals.command("rescore", epilog="Example: kestrel eval rescore evals/smoke.yaml --report out/again.html")
@option_groups
def rescore_trials(
    ctx: typer.Context,
    suite: Suite,
    *,
    commit: Commit = None,
    parts: Parts,
    reports: ReportOptions,
) -> Any:
    """Score the stored trials of a suite by its present checks; no model is asked and no tool is called.

    Checks of answer, conduct, trajectory and spending are read from the log. Those of files, commands and
    models keep their old scores, and the report says so. New scores are stored beside the old ones.
    """
    again: Any = {"commit": commit, **asdict(parts)}
    return run_measurement(
        ctx, lambda lab, _: lab.evals.rescore(suite, **again), lambda found: reports.write(found.result)
    )


@evals.command("summary", epilog="Example: kestrel eval summary evals/smoke.yaml --by family")
@option_groups
def summarise_trials(
    ctx: typer.Context,
    suite: Suite,
    *,
    commit: Commit = None,
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
    parts: Parts,
) -> Any:
    """Show rates and metrics of the stored trials of a suite with their 95 % intervals; nothing is run."""
    found = (
        frontend_of(ctx)
        .lab()
        .evals.stored(suite, commit=commit, by=by, metrics=metric or [], tries=tries, **asdict(parts))
    )
    save_outputs(found, csv=csv)
    if plot is not None:
        save_figure(found.plot(*(metric or [])[:1]), plot)
    return found


@evals.command("view", epilog="Example: kestrel eval view, then open the address that it prints")
def view_results(
    ctx: typer.Context,
    suite: Annotated[
        str,
        typer.Argument(metavar="SUITE", help="A suite file, or the name of a stored suite, to begin with."),
    ] = "",
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; any free one if left out.")
    ] = 0,
) -> None:
    """Show the stored eval runs of all suites on a web page of this machine, live while one is going on.

    The page of each is the one of --report. With the file of a suite it also says tags and expected values.
    """
    from kestrel_lab.evals.suites.loader import load_suite  # loads pydantic

    only_in_a_terminal("eval view")
    lab = frontend_of(ctx).lab()
    loaded = (
        load_suite(suite) if suite and (suite.endswith((".yaml", ".yml")) or Path(suite).is_file()) else None
    )
    asyncio.run(_serve_view(lab, loaded, suite if loaded is None else loaded.name, port))


async def _serve_view(lab: Lab, suite: Any, name: str, port: int) -> None:
    from kestrel_lab.evals.stored.view_server import serving_view, stored_suite  # loads starlette and uvicorn

    chosen = f"&{urlencode({'suite': name, 'run': stored_suite(lab.store, name)})}" if name else ""
    async with serving_view(lab, suite, port=port) as (address, work):
        store = lab.store.path
        typer.echo(f"Eval runs of {store}. Ctrl-C stops the server. Open this link:", err=True)
        typer.echo(f"{address.link}{chosen}")
        await work


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


def _known_formats() -> str:
    from kestrel_lab.evals.importers.formats import TITLES  # readers are slow to load

    return "\n".join(("These can be imported, each known by what is in the file:", *TITLES))


@evals.command("import", epilog="Example: kestrel eval import logs/2026-11-22_task.eval --csv out/trials.csv")
def import_files(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE…", help="Recordings, or folders of them. Without any, the known formats are listed."
        ),
    ] = None,
    *,
    suite: Annotated[
        Path | None,
        typer.Option(
            metavar="SUITE", help="Judge the runs by the checks of this suite, by scenario id or goal."
        ),
    ] = None,
    csv: Annotated[Path | None, output_file("Write one row per trial to this file.")] = None,
) -> Any:
    """Import what other tools recorded: runs to show, fork, score and compare like our own, and their rates
    with 95 % intervals.

    Nothing in the files is run, and Inspect need not be installed. Importing a file again adds nothing. A
    record that cannot be read is reported with its place. What broke there counts as its own tool counts it.
    """
    if not files:
        return _known_formats()
    return run_measurement(
        ctx, lambda lab, reporter: lab.evals.import_runs(*files, suite=suite, reporter=reporter), csv=csv
    )


Server = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="postgresql://USER@HOST/DATABASE; the password from PGPASSWORD or a password file, as for psql.",
    ),
]


@dataclass(frozen=True, slots=True)
class Transferred:
    """What is pushed or pulled."""

    suites: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SUITE]…", help="Only these suites, by file or name; all by default."),
    ] = None
    runs: Annotated[
        bool,
        typer.Option(
            "--runs", help="Also the logs of the runs behind the trials, for transcripts and rescore."
        ),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be transferred.")] = False


@evals.command(
    "push", epilog="Example: kestrel eval push postgresql://kestrel@db.example.org/results evals/smoke.yaml"
)
@option_groups
def push_results(ctx: typer.Context, url: Server, *, what: Transferred) -> Any:
    """Push the stored trials of suites to a PostgreSQL server that a team shares.

    Only what is not there yet is sent, without secrets; a push that was interrupted is simply made again.
    Exit code 1: a trial was refused.
    """
    frontend = frontend_of(ctx)
    shared = frontend.lab().evals.shared
    how: Any = {"runs": what.runs, "dry_run": what.dry_run}
    return frontend.wait(lambda reporter: shared.push(url, *(what.suites or ()), reporter=reporter, **how))


@evals.command(
    "pull", epilog="Example: kestrel eval pull postgresql://kestrel@db.example.org/results evals/smoke.yaml"
)
@option_groups
def pull_results(ctx: typer.Context, url: Server, *, what: Transferred) -> Any:
    """Pull the trials of suites that a team shares, to count beside those made here in summary, compare and
    history.

    Each row is checked before it is stored; column origin of frames says who made it. Exit code 1: a trial
    was refused.
    """
    frontend = frontend_of(ctx)
    shared = frontend.lab().evals.shared
    how: Any = {"runs": what.runs, "dry_run": what.dry_run}
    return frontend.wait(lambda reporter: shared.pull(url, *(what.suites or ()), reporter=reporter, **how))


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


Metric = Annotated[
    str,
    typer.Option(
        "--metric", "-m", help="success_rate, error_rate, score, or a column such as cost_estimate."
    ),
]


@evals.command(
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


@evals.command(
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
