"""Every command with its options and defaults. Commands return objects, or coroutines of them; the front end shows them."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.commands.commits import along_commits
from kestrel_lab.cli.commands.doctor import Doctor, examine, known_models
from kestrel_lab.cli.commands.evals import compare_commits, evals
from kestrel_lab.cli.commands.macros import macros
from kestrel_lab.cli.commands.mcp import mcp
from kestrel_lab.cli.commands.memory import memory
from kestrel_lab.cli.commands.notebooks import notebooks
from kestrel_lab.cli.commands.rules import RulesFile
from kestrel_lab.cli.commands.rules import rules as rules_app
from kestrel_lab.cli.commands.scenarios import scenarios
from kestrel_lab.cli.commands.search import search, searching
from kestrel_lab.cli.commands.serve import serving
from kestrel_lab.cli.commands.taint import tainting
from kestrel_lab.cli.commands.time import clock
from kestrel_lab.cli.commands.trust import trust
from kestrel_lab.cli.commands.workflows import Inputs, workflows
from kestrel_lab.cli.commands.workflows import values as workflow_inputs
from kestrel_lab.cli.frontend import (
    ApprovalTimeout,
    Approve,
    As,
    AsJson,
    Background,
    Cache,
    Cost,
    Cycles,
    Model,
    RunId,
    Seconds,
    ShowOptions,
    Tokens,
    ToolNames,
    WorkFolder,
    frontend_of,
)
from kestrel_lab.cli.overview import SETTINGS
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import plain
from kestrel_lab.runtime.context.run_options import ResumeChanges, RunChanges
from kestrel_lab.runtime.diff import RunDiff
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.settings import Settings
from kestrel_lab.tools.tool import Toolbox

app = typer.Typer(**SETTINGS)
evals.add_typer(along_commits)
app.add_typer(evals, name="eval")
app.add_typer(macros, name="macros")
app.add_typer(memory, name="memory")
app.add_typer(mcp, name="mcp")
app.add_typer(scenarios, name="scenario")
app.add_typer(notebooks, name="notebook")
app.add_typer(rules_app, name="rules")
app.add_typer(workflows)
app.add_typer(clock)
app.add_typer(serving)
app.add_typer(search)
app.add_typer(searching)
app.command(epilog="Example: kestrel trust --show")(trust)
app.add_typer(tainting)
app.command("compare", epilog="The same as: kestrel eval compare SUITE BASE HEAD")(compare_commits)

Goal = Annotated[list[str] | None, typer.Argument(help="What to do, in your words.")]


@app.command(epilog='Example: kestrel run "Count the Python files" --approve auto:medium --workspace src')
def run(
    ctx: typer.Context,
    goal: Goal = None,
    *,
    model: Model = None,
    approve: Approve = None,
    rules: RulesFile = None,
    workspace: WorkFolder = ".",
    tools: ToolNames = None,
    cycles: Cycles = None,
    cost: Cost = None,
    seconds: Seconds = None,
    tokens: Tokens = None,
    plan: Annotated[str | None, typer.Option(metavar="NAME|FILE", help="Workflow to follow: see `kestrel plans`.")] = None,
    inputs: Inputs = None,
    cache: Cache = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with this run; one that failed goes on behind its last completed stage.")
    ] = None,
    expand: Annotated[
        bool | None,
        typer.Option("--expand/--no-expand", help="Let it look for MCP servers with tools that it lacks, and ask to install one."),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="What is done about the answer's claims: off, warn, repair, judge, quality (a report, nothing changed)."
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option(metavar="FORM", help="What the answer has to look like: brief, plan, patch, explanation, research, auto.")
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="Parameter of the model: temperature, top_p, max_tokens, seed, stop, reasoning_effort, response_format, timeout_s.",
        ),
    ] = None,
    images: Annotated[list[str] | None, typer.Option("--image", metavar="FILE", help="Image beside the goal, for models that see.")] = None,
    name: As = "",
    background: Background = False,
    approval_timeout: ApprovalTimeout = None,
    as_json: AsJson = False,
    control: Annotated[
        str, typer.Option(metavar="stdio", help="Terminal: tell what happens as JSON lines, and take decisions so: see `schema control`.")
    ] = "",
) -> Any:
    """Run a goal: the agent calls tools, asks before risky calls, and answers."""
    if control not in {"", "stdio"}:
        msg = f"--control {control}: it is stdio"
        raise UsageError(msg)
    if resume is None:
        return _begin(ctx, ctx.params)
    if goal:
        msg = "give a goal or --resume, not both"
        raise UsageError(msg)
    if plan is not None or inputs or verify is not None or form is not None:
        msg = "a run that is resumed keeps its plan: leave --plan, --input, --verify and --form out"
        raise UsageError(msg)
    if params or images:
        msg = "a run that is resumed keeps its parameters and images: leave --param and --image out"
        raise UsageError(msg)
    if rules is not None:
        msg = "a run that is resumed keeps its rules, under those of kestrel.toml as they are now: leave --rules out"
        raise UsageError(msg)
    return _begin(ctx, ctx.params, resume)


@app.command(epilog='Example: kestrel orchestrate "Find out why the tests fail and say what to change" --rounds 1')
def orchestrate(
    ctx: typer.Context,
    goal: Goal = None,
    *,
    model: Model = None,
    approve: Approve = None,
    workspace: WorkFolder = ".",
    tools: ToolNames = None,
    rules: RulesFile = None,
    rounds: Annotated[int | None, typer.Option(help="How often the answer is repaired at most.")] = None,
    steps: Annotated[int | None, typer.Option(help="How many steps the plan has at most.")] = None,
    cycles: Cycles = None,
    cost: Cost = None,
    seconds: Seconds = None,
    tokens: Tokens = None,
    cache: Cache = None,
    name: As = "",
    background: Background = False,
    approval_timeout: ApprovalTimeout = None,
    as_json: AsJson = False,
) -> Any:
    """Run a goal in stages: bootstrap, gather, plan, execute, verify, repair, commit; the same as `run --plan standard`."""
    inputs = [f"{key}={value}" for key, value in (("rounds", rounds), ("max_steps", steps)) if value is not None]
    return _begin(ctx, {**ctx.params, "plan": "standard", "inputs": inputs})


def _begin(ctx: typer.Context, words: Mapping[str, Any], resume: str | None = None) -> Coroutine[Any, Any, Run]:
    """Start a run, or resume one: every option of the command that is a run option of the same name is one."""
    frontend = frontend_of(ctx)
    screen = frontend.screen(ShowOptions(**{one.name: words[one.name] for one in fields(ShowOptions) if one.name in words}))
    known = RunChanges.__annotations__ if resume is None else ResumeChanges.__annotations__
    options: dict[str, Any] = {name: value for name, value in words.items() if name in known}
    if options["tools"] is not None:
        options["tools"] = [word.strip() for word in str(words["tools"]).split(",") if word.strip()]
    if options.get("inputs"):
        options["inputs"] = workflow_inputs(words["inputs"])
    if options.get("params"):
        options["params"] = {name: _value(str(text)) for name, text in workflow_inputs(words["params"], "--param").items()}
    options = {name: value for name, value in options.items() if name != "images" or value}
    limits = {"cycles": words["cycles"], "cost_usd": words["cost"], "seconds": words["seconds"], "tokens": words["tokens"]}
    limits = {key: value for key, value in limits.items() if value is not None}

    async def follow() -> Run:
        lab = frontend.lab()
        async with screen:
            options["approver"] = screen.approver
            usual = lab.session.limits if resume is None else lab.get(resume).report.limits
            options["limits"] = replace(usual, **limits) if limits else usual
            if resume is None:
                return await screen.show(lab.start(" ".join(words["goal"] or ()), **options))
            return await screen.show(_going_on(lab.session.restart(resume, **options)))

    return follow()


def _value(text: str) -> Json:
    """Return a parameter's value: JSON where it is JSON, else text."""
    try:
        return loads(text)
    except ValueError:
        return text


@app.command()
def resume(
    ctx: typer.Context,
    run_id: RunId,
    *,
    model: Annotated[str | None, typer.Option(help="Another model from here on.")] = None,
    approve: Annotated[str | None, typer.Option(help="Another approval policy from here on.")] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Also from a live session, which then writes nothing more.")] = False,
) -> Any:
    """Go on with a run where its log ends, or behind its last completed stage if it failed; the same as `run --resume RUN`."""
    frontend = frontend_of(ctx)
    screen = frontend.screen(ShowOptions())

    async def follow() -> Run:
        async with screen:
            session = frontend.lab().session
            run = session.restart(run_id, model=model, approve=approve, approver=screen.approver, take_over=take_over)
            return await screen.show(_going_on(run))

    return follow()


@app.command()
def cancel(ctx: typer.Context, run_id: RunId) -> str:
    """End a run for good, whoever works on it; one that was only interrupted need not be cancelled, it can be resumed."""
    run = frontend_of(ctx).lab().get(run_id)
    if run.status.terminal:
        msg = f"run {run.id} is {run.status} already"
        raise UsageError(msg)
    run.cancel()
    return f"run {run.id} is cancelled; {run.report.way_on}"


@app.command(epilog="Example: kestrel fork RUN --at 12 --model openai/gpt-5, then: kestrel diff RUN FORK")
def fork(
    ctx: typer.Context,
    run_id: RunId,
    *,
    at: Annotated[int | None, typer.Option(metavar="N", help="The last event to share; the last question to the model by default.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model from there on.")] = None,
    answer: Annotated[str | None, typer.Option(help="What the model asked at event N is to have answered.")] = None,
    result: Annotated[str | None, typer.Option(help="What the tool called at event N is to have answered.")] = None,
    approve: Annotated[str | None, typer.Option(help="Another approval policy from there on.")] = None,
) -> Any:
    """Go on from an event of a run in a new run, with something changed; the old run stays as it is."""
    frontend = frontend_of(ctx)
    screen = frontend.screen(ShowOptions())

    async def follow() -> Run:
        async with screen:
            start = frontend.lab().session.start_fork
            run = start(run_id, at=at, answer=answer, result=result, model=model, approve=approve, approver=screen.approver)
            return await screen.show(run)

    return follow()


@app.command()
def diff(
    ctx: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="Id of a run.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Id of another, for example a fork of it.")],
) -> RunDiff:
    """Show where two runs part, and what each did from there on."""
    return frontend_of(ctx).lab().diff(a, b)


@app.command()
def show(
    ctx: typer.Context,
    run_id: RunId,
    *,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page to this file instead.")] = None,
    call: Annotated[
        str | None, typer.Option(metavar="CALL", help="Print what this call was answered, whole; 'all' lists the calls.")
    ] = None,
) -> Run | Path | str:
    """Show a run: its calls, its answer, what it used, what it waits for."""
    found = frontend_of(ctx).lab().get(run_id)
    if call is not None:
        return repr(found.results) if call == "all" else plain(found.results[call])
    return found if html is None else found.report(html)


@app.command()
def runs(
    ctx: typer.Context,
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    trials: Annotated[bool, typer.Option("--trials", help="Also those that suites started.")] = False,
) -> Any:
    """List the newest runs."""
    return frontend_of(ctx).lab().runs(limit=limit, trials=trials)


@app.command()
def approve(
    ctx: typer.Context,
    run_id: RunId,
    *,
    always: Annotated[bool, typer.Option("--always", help="Do not ask about the same tool again in this run.")] = False,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    answer: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Answer what the agent asks; once for each question, in their order.")
    ] = None,
) -> str:
    """Say yes to what a run waits for, or answer its question; a session that waits goes on at once."""
    frontend = frontend_of(ctx)
    scope = "run" if always else "once"
    decided = frontend.lab().decide(run_id, granted=True, by=frontend.user, how="command", reason=reason, scope=scope, answers=answer or ())
    return (
        f"{'answered' if answer else 'approved'}: {', '.join(decided)}. If no session is waiting, go on with: kestrel run --resume {run_id}"
    )


@app.command()
def deny(ctx: typer.Context, run_id: RunId, *, reason: Annotated[str, typer.Option(help="Why; the model is told.")] = "") -> str:
    """Say no to what a run waits for; the model is told and may find another way."""
    frontend = frontend_of(ctx)
    decided = frontend.lab().decide(run_id, granted=False, by=frontend.user, how="command", reason=reason)
    return f"denied: {', '.join(decided)}. If no session is waiting, go on with: kestrel run --resume {run_id}"


@app.command()
def tools(ctx: typer.Context) -> Toolbox:
    """List the tools with their danger, and with which word those are offered that not every run gets."""
    return frontend_of(ctx).lab().session.registry.toolbox


@app.command()
def models(ctx: typer.Context) -> Any:
    """List the models that can be used now, and what to type for others."""
    return known_models(frontend_of(ctx).lab())


@app.command(epilog="Example: kestrel config cache refresh")
def config(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="SETTING", help="Show only this one.")] = None,
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="Change it: in kestrel.toml, or for the session of a notebook.")
    ] = None,
) -> Settings:
    """Show every setting and rule, its value and where it came from; or change a setting."""
    if key is not None and value is not None:
        return frontend_of(ctx).configure(key, value)
    settings = frontend_of(ctx).lab().settings
    return settings if key is None else settings.only(key)


@app.command()
def doctor(ctx: typer.Context) -> Doctor:
    """Check what is configured, what is missing, and what to type."""
    return examine(frontend_of(ctx).lab())


def _going_on(run: Run) -> Run:
    """`run`, which was to be resumed; raises `UsageError` for one that somebody cancelled: that is a decision."""
    if run.status is RunStatus.CANCELLED:
        msg = f"run {run.id} was cancelled ({run.reason}) and is not resumed; {run.report.way_on}"
        raise UsageError(msg)
    return run


def wrong_usage(error: typer.TyperException) -> str:
    """What was wrong with the words of a command, as one sentence without its full stop."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    return str(text).strip().rstrip(".")
