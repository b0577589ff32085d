"""The command `kestrel` with all of its commands; here are those that begin runs and go on with them.

Commands return objects, or coroutines of them; the front end shows them.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Annotated, Any

import typer

from kestrel_lab.cli.command_table import SETTINGS
from kestrel_lab.cli.commands.chat import chatting
from kestrel_lab.cli.commands.decide import deciding
from kestrel_lab.cli.commands.doctor import Doctor, config, known_models, run_diagnostics
from kestrel_lab.cli.commands.eval.batches import batching
from kestrel_lab.cli.commands.eval.blame import blaming
from kestrel_lab.cli.commands.eval.ci import building
from kestrel_lab.cli.commands.eval.commits import compare_commits, comparing
from kestrel_lab.cli.commands.eval.exchange import exchanging, import_files
from kestrel_lab.cli.commands.eval.import_suite import importing
from kestrel_lab.cli.commands.eval.init import beginning
from kestrel_lab.cli.commands.eval.labels import judging
from kestrel_lab.cli.commands.eval.scans import aligning, scanning
from kestrel_lab.cli.commands.eval.site import publishing
from kestrel_lab.cli.commands.eval.suites import evals
from kestrel_lab.cli.commands.home import home
from kestrel_lab.cli.commands.macros import macros, skills
from kestrel_lab.cli.commands.mcp import mcp
from kestrel_lab.cli.commands.memory import memory
from kestrel_lab.cli.commands.notebooks import notebooks, scenarios
from kestrel_lab.cli.commands.rules import rules as rules_app
from kestrel_lab.cli.commands.runs import collecting, finding
from kestrel_lab.cli.commands.runs import runs as runs_app
from kestrel_lab.cli.commands.search import search
from kestrel_lab.cli.commands.serve import serving
from kestrel_lab.cli.commands.time import clock
from kestrel_lab.cli.commands.trust import tainting, trust
from kestrel_lab.cli.commands.workflows import workflows
from kestrel_lab.cli.frontend import (
    RunId,
    ShowOptions,
    flag_names,
    follow_work,
    frontend_of,
    limits_of,
    option_groups,
    run_options,
    takes_flags,
)
from kestrel_lab.cli.router import router
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Approver
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.runtime.forks.copy_changes import ForkChanges
from kestrel_lab.runtime.options import LimitOptions, ResumeOptions, RunOptions
from kestrel_lab.runtime.run import Run
from kestrel_lab.tools.tool import Toolbox

app = typer.Typer(**SETTINGS)
evals.add_typer(comparing)
evals.add_typer(exchanging)
evals.add_typer(judging)
evals.add_typer(batching)
evals.add_typer(building)
evals.add_typer(scanning)
evals.add_typer(publishing)
evals.add_typer(importing)
app.add_typer(evals, name="eval")
app.add_typer(macros, name="macros")
app.add_typer(skills, name="skills")
app.add_typer(memory, name="memory")
app.add_typer(mcp, name="mcp")
app.add_typer(scenarios, name="scenario")
app.add_typer(notebooks, name="notebook")
app.add_typer(router, name="router")
app.add_typer(rules_app, name="rules")
app.add_typer(runs_app, name="runs")
app.add_typer(deciding)
app.add_typer(finding)
app.add_typer(collecting)
app.add_typer(workflows)
app.add_typer(clock)
app.add_typer(beginning)
app.add_typer(serving)
app.add_typer(search)
app.command(epilog="Example: kestrel trust --show")(trust)
app.command(epilog="Example: kestrel home --move, where .kestrel lies in the workspace")(home)
app.add_typer(tainting)
app.add_typer(chatting)
app.add_typer(aligning)
app.add_typer(blaming)
app.command("compare", epilog="The same as: kestrel eval compare SUITE BASE HEAD")(compare_commits)
app.command("import", epilog="The same as: kestrel eval import FILE…")(import_files)

Goal = Annotated[list[str] | None, typer.Argument(help="What to do, in your own words.")]


@app.command(epilog='Example: kestrel run "Count the Python files" --approve auto:medium --workspace src')
@takes_flags(RunOptions, LimitOptions)
@option_groups
def run(
    ctx: typer.Context,
    goal: Goal = None,
    *,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Continue this run; one that failed goes on in a new run, with what it has."
        ),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Notebook: begin a new conversation.")] = False,
    how: ShowOptions,
) -> Any:
    """Run a goal: the agent calls tools, asks before risky calls, and answers."""
    if resume is None:
        return _begin(ctx, ctx.params, how)
    if goal:
        raise UsageError("give a goal or --resume, not both")
    _check_resumed(ctx.params)
    return _begin(ctx, ctx.params, how, resume)


@app.command(
    epilog='Example: kestrel orchestrate "Find out why the tests fail and say what to change" --rounds 1'
)
@takes_flags(RunOptions, LimitOptions, without=("plan", "inputs", "runner", "follow"))
@option_groups
def orchestrate(
    ctx: typer.Context,
    goal: Goal = None,
    *,
    rounds: Annotated[int | None, typer.Option(help="The largest number of repairs of the answer.")] = None,
    steps: Annotated[int | None, typer.Option(help="The largest number of steps of the plan.")] = None,
    how: ShowOptions,
) -> Any:
    """Run a goal in stages: bootstrap, gather, plan, execute, verify, repair, commit; the same as `run --plan
    standard`.
    """
    inputs = [
        f"{key}={value}" for key, value in (("rounds", rounds), ("max_steps", steps)) if value is not None
    ]
    return _begin(ctx, {**ctx.params, "plan": "standard", "inputs": inputs}, how)


@app.command(epilog="Example: %kestrel fix, in the cell below the one that failed")
@takes_flags(ResumeOptions, LimitOptions)
@option_groups
def fix(
    ctx: typer.Context,
    wish: Annotated[
        list[str] | None, typer.Argument(metavar="[WORDS]...", help="What else to know or to do.")
    ] = None,
    *,
    how: ShowOptions,
) -> Any:
    """Fix the cell of this notebook that failed last: the agent is given the cell, its traceback and the
    variables that it names.
    """
    return _begin(ctx, {**ctx.params, "goal": [frontend_of(ctx).failed_cell(" ".join(wish or ()))]}, how)


def _begin(
    ctx: typer.Context, words: Mapping[str, Any], how: ShowOptions, resume: str | None = None
) -> Coroutine[Any, Any, Run]:
    """Start a run, or resume one: every option of the command that is a run option of the same name is
    one.
    """
    frontend = frontend_of(ctx)
    options = run_options(words, RunOptions if resume is None else ResumeOptions)
    if resume is None and not options.get("plan") and not words.get("new"):
        options |= {
            name: value for name, value in frontend.goes_on_with().items() if options.get(name) is None
        }

    def begin(approver: Approver | None) -> Run:
        from kestrel_lab.runtime import start  # what works on runs is loaded when one is to begin

        lab = frontend.lab()
        usual = lab.limits if resume is None else lab.get(resume).report.limits
        given = {**options, "approver": approver, "limits": limits_of(words, usual)}
        if resume is None:
            # One text stays as it is: it may know what of it a person wrote.
            first, *rest = words["goal"] or ("",)
            return lab.start(" ".join((first, *rest)) if rest else first, **given)
        return _going_on(start.resume(lab, resume, **given))

    return follow_work(ctx, how, begin)


def _check_resumed(words: Mapping[str, Any]) -> None:
    """Raise `UsageError` for an option of `kestrel run` that a run keeps from its beginning."""
    flags = {name: flag for name, flag in flag_names(RunOptions).items() if name in run_options(words)}
    if "follow" in flags:
        raise UsageError(
            "--resume goes on with the run itself, --follow with its conversation in a new run: give "
            "one of them"
        )
    if kept := {name: flag for name, flag in flags.items() if name not in ResumeOptions.__annotations__}:
        raise UsageError(
            f"a run that is resumed keeps its {', '.join(kept)}: leave {', '.join(kept.values())} out"
        )


@app.command(epilog="Example: kestrel resume RUN --cycles 60, where a run has reached its limit of turns")
@takes_flags(ResumeOptions, LimitOptions)
def resume(
    ctx: typer.Context,
    run_id: RunId,
    *,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take the run over even from a session that works on it, which then writes nothing more.",
        ),
    ] = False,
) -> Any:
    """Continue a run where its log ends; one that failed goes on in a new run, with what it has.

    The same as `run --resume RUN`.
    """

    def begin(approver: Approver | None) -> Run:
        from kestrel_lab.runtime import start

        lab = frontend_of(ctx).lab()
        raised = limits_of(ctx.params, lab.get(run_id).report.limits)
        given = {**run_options(ctx.params, ResumeOptions), "approver": approver, "limits": raised}
        return _going_on(start.resume(lab, run_id, take_over=take_over, **given))

    return follow_work(ctx, ShowOptions(), begin)


@app.command()
def cancel(ctx: typer.Context, run_id: RunId) -> str:
    """End a run for good, whichever process works on it.

    A run that was only interrupted can be resumed instead.
    """
    run = frontend_of(ctx).lab().get(run_id)
    if run.status.terminal:
        raise UsageError(f"run {run.id} is {run.status} already")
    run.cancel()
    return f"run {run.id} is cancelled; {run.report.way_on}"


@app.command(epilog="Example: kestrel fork RUN --at 12 --model openai/gpt-5, then: kestrel diff RUN FORK")
@takes_flags(ResumeOptions, LimitOptions)
def fork(
    ctx: typer.Context,
    run_id: RunId,
    *,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The last event that both runs share; by default the last call of the model."
        ),
    ] = None,
    answer: Annotated[str | None, typer.Option(help="Use this as the model's answer at event N.")] = None,
    result: Annotated[str | None, typer.Option(help="Use this as the tool's result at event N.")] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Work in the folder itself, with its files of now, instead of a private copy."
        ),
    ] = False,
) -> Any:
    """Start a new run from an event of another run, with something changed; the old run and your files stay
    as they are.
    """

    def begin(approver: Approver | None) -> Run:
        from kestrel_lab.runtime import start

        lab = frontend_of(ctx).lab()
        raised = _raised(ctx, lab.get(run_id))
        given = {**run_options(ctx.params, ResumeOptions), "approver": approver, "limits": raised}
        return start.fork(lab, run_id, at=at, answer=answer, result=result, in_place=in_place, **given)

    return follow_work(ctx, ShowOptions(), begin)


@app.command(epilog="Example: kestrel apply FORK --dry-run, then: kestrel apply FORK")
def apply(
    ctx: typer.Context,
    run_id: RunId,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH]...", help="Only these files and folders.")
    ] = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the difference and change nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Take over also what something else has changed in your files since."),
    ] = False,
) -> ForkChanges:
    """Take what a fork changed in its private copy over into your files, as far as they are what the fork
    began with.
    """
    run = frontend_of(ctx).lab().get(run_id)
    return run.files.changes if dry_run else run.apply(*(paths or ()), force=force)


@app.command()
def tools(ctx: typer.Context) -> Toolbox:
    """List the tools with their danger levels, and the names that offer those which not every run gets."""
    return frontend_of(ctx).lab().registry.toolbox


@app.command()
def models(ctx: typer.Context) -> Any:
    """List the models that can be used now, and how to set up others."""
    return known_models(frontend_of(ctx).lab())


app.command(epilog="Example: kestrel config cache refresh")(config)


@app.command()
def doctor(ctx: typer.Context) -> Doctor:
    """Check what is set up and what is missing, and show how to fix it."""
    return run_diagnostics(frontend_of(ctx).lab())


def _raised(ctx: typer.Context, run: Run) -> Limits | None:
    """Return the limits of a run with those that the command names; `None` where it names none."""
    usual = run.report.limits
    return None if (given := limits_of(ctx.params, usual)) == usual else given


def _going_on(run: Run) -> Run:
    """`run` to be resumed; raises `UsageError` for a cancelled one: that was a decision."""
    if run.status is RunStatus.CANCELLED:
        raise UsageError(f"run {run.id} was cancelled ({run.reason}) and is not resumed; {run.report.way_on}")
    return run
