"""Start, resume and fork: begin a run with what its lab has at that moment, and start its task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from kestrel_lab.adapters.adapter import is_adapter
from kestrel_lab.answers.contracts import NONE
from kestrel_lab.answers.output_types import OutputType, T
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import (
    BudgetWarned,
    Event,
    HealthChanged,
    PlanProposed,
    RunForked,
    RunResumed,
    RunStarted,
    StateTransition,
    StepStarted,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ModelParams
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.plan_shapes import all_steps
from kestrel_lab.core.protocols import Approver, Model
from kestrel_lab.core.run_types import (
    FilledGoal,
    Limits,
    RunReference,
    RunStatus,
    new_run_id,
    run_id_of,
)
from kestrel_lab.core.step import Step
from kestrel_lab.eventlog import run_status as owner
from kestrel_lab.eventlog.connection import process_name
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.host.version import __version__
from kestrel_lab.permissions.rulebook import (
    Rulebook,
    policy_for,
    read_rulebook,
    rules_as_json,
    rules_from_json,
)
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.context.dependencies import Series
from kestrel_lab.runtime.context.file_history import FileHistory
from kestrel_lab.runtime.context.guidance import (
    GivenTexts,
    citation_instructions,
    guidance_texts,
    system_prompt,
)
from kestrel_lab.runtime.context.history import PastTurn
from kestrel_lab.runtime.context.images import store_images
from kestrel_lab.runtime.context.recorded_tools import RECORDED, recorded_tools, recorded_tools_of
from kestrel_lab.runtime.context.run_context import Given, RunContext
from kestrel_lab.runtime.context.tool_selection import MCP_INSTALL, Growth
from kestrel_lab.runtime.context.toolboxes import Tools
from kestrel_lab.runtime.conversation import inherited_history
from kestrel_lab.runtime.execution.steps import check_steps, steps_without
from kestrel_lab.runtime.fork import branch_of, records_to_fork
from kestrel_lab.runtime.forks.private_copy import carry_taint, copy_for_fork, remove_copy
from kestrel_lab.runtime.lifecycle import carry_out, record_stop
from kestrel_lab.runtime.operations.registry import OPERATIONS
from kestrel_lab.runtime.operations.verify_plan import (
    form_for,
    with_output_type,
    with_verification,
)
from kestrel_lab.runtime.options import (
    LabOptions,
    ResumeOptions,
    RunOptions,
    StartOptions,
    check_resumable,
    guidance_names,
    skill_sources,
    started_with,
)
from kestrel_lab.runtime.registry import missing_servers, skip_failed_servers, watch_servers
from kestrel_lab.runtime.resume import check_whole, resume_point
from kestrel_lab.runtime.run import Run, interrupt_run, is_working
from kestrel_lab.runtime.security import containment as contain
from kestrel_lab.runtime.security.tool_declarations import with_declarations
from kestrel_lab.runtime.workflows.loader import plan_for, workflow_servers
from kestrel_lab.tools.data_flow import UNKNOWN, Flow
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.kernel.cells import GROUP as CELL_TOOLS
from kestrel_lab.tools.kernel.kernel_tools import GROUP as KERNEL_TOOLS
from kestrel_lab.tools.kernel.live_kernel import live_shell
from kestrel_lab.tools.macros import MacroRegistry, offer_macros, offered_macros
from kestrel_lab.tools.sandbox.select import choose_level, is_tested
from kestrel_lab.tools.skills import LOAD_SKILL, Skill, find_skills, with_skills
from kestrel_lab.tools.timeparse.session_time import session_time
from kestrel_lab.tools.tool import Toolbox

if TYPE_CHECKING:
    from kestrel_lab.answers.output_types import OutputForm
    from kestrel_lab.runtime.services import Services


def _folder_of(workspace: str, copy: Mapping[str, Json]) -> str:
    return str(copy.get("folder") or workspace)


def start(
    lab: Services,
    goal: str,
    *,
    output: type[T] | OutputForm | None = None,
    history: Sequence[PastTurn] = (),
    **given: Unpack[RunOptions],
) -> Run[T]:
    """Begin a run on the running event loop and return at once; see `Lab.start`.

    A run with a `history` goes on behind these turns, as if the agent had made them: nothing is done again.
    """
    return _begin(lab, goal, started_with(given, output), history)


def _begin(lab: Services, goal: str, options: StartOptions, history: Sequence[PastTurn] = ()) -> Run:
    if not isinstance(goal, str):
        raise UsageError(f"the goal is of type {type(goal).__name__}: say in words what the run should do")
    if not goal.strip():
        raise UsageError("the goal is empty: say what the run should do")
    registry, usual = lab.registry, lab.options
    earlier: dict[str, Json] = {}
    began: RunStarted | None = None
    if (follow := options.get("follow")) is not None:
        options, earlier, began = _following(lab, follow, options)
    rules = read_rulebook(options.get("rules"))
    plan, output, citations = _plan_of(options, goal, usual)
    _add_servers_of_workflow(lab, options.get("plan"))
    steps = () if plan is None else all_steps(plan.steps)
    given = _given_anew(lab, options, rules, output, look=citations[0] != "off")
    place, model = given.workspace, given.model
    if is_adapter(model):
        model.check(place.root)
        if options.get("tools") is None and plan is None:
            # It brings its own, and no server has to be started for it.
            options = {**options, "tools": ()}
    known, late = _known_tools(lab, options, steps)
    # Operations ask models what needs no guidance.
    agents = plan is None or any(step.goal and not step.operation for step in steps)
    texts = GivenTexts()
    if agents and not is_adapter(model):
        read = partial(_given_texts, lab, place, trial=bool(options["scenario"]))
        texts = once(given.ports.series, "texts", place, read)
    copy = {} if began is None or str(place.root) != began.private_copy.get("folder") else began.private_copy
    project = began.workspace if began is not None and copy else str(place.root)
    toolbox, growth = _set_up(
        lab,
        known,
        place,
        project,
        texts.skills,
        expand=options.get("expand"),
        steps=steps_without(late, steps) if late else steps,
        resolve=given.resolve,
        series=given.ports.series,
    )
    if LOAD_SKILL not in toolbox:
        texts = replace(texts, skills={})
    met = session_time(given.ports.now())
    system = system_prompt(
        given.limits,
        options["instructions"],
        met.line,
        citation_instructions(*citations, toolbox),
        texts.prompt,
        offered_macros(toolbox),
    )
    given = replace(given, options=options, skills=texts.skills)
    ctx = _context(lab, new_run_id(), given, RunState(private_copy=copy), (toolbox, growth))
    started = RunStarted(
        goal=str(goal),
        said=goal.said if isinstance(goal, FilledGoal) else "",
        workspace=project,
        private_copy=copy,
        model=model.name,
        model_why=registry.why_model(options.get("model")),
        model_kind=model.kind,
        system=system,
        tools=[tool.named for tool in toolbox],
        limits=given.limits.as_json(),
        policy=given.policy.text,
        rules=rules_as_json(rules),
        config=options["config"],
        scenario=options["scenario"],
        package=__version__,
        plan={} if plan is None else plan.as_json(),
        follows="" if follow is None else run_id_of(follow),
        earlier=earlier,
        output={} if output is None else output.schema,
        guidance=texts.entries(system),
        time=met.as_json(),
        params=ModelParams.of(options.get("params")).as_json(),
        images=store_images(options["images"], place, lab.store) if options["images"] else [],
    )
    keep = given.ports.stored_behind
    ctx.state.apply(started, lab.store.create_run(ctx.run_id, started, keep=keep))
    past = _past_events(lab, ctx, plan, history) if history else ()
    ctx.equip = registry.equipping(ctx, late, options.get("tools"), steps)
    missing = missing_servers(lab.mcp, but=late) if options.get("tools") is None and lab.mcp.servers else ()
    return _launch(lab, ctx, plan or Plan.single(goal), opening=(started, *past), missing=missing)


def _add_servers_of_workflow(lab: Services, plan: object) -> None:
    """Add the MCP servers that a workflow file names to those of the lab; raises `UsageError` for one that
    nobody has approved.
    """
    if not isinstance(plan, str | Path):
        return
    servers = workflow_servers(plan)
    lab.mcp.add(servers)
    for server in servers:
        if lab.mcp.approvals.tools(server) is None:
            raise UsageError(
                f"MCP server {server.name!r} of {server.source} is not approved: kestrel mcp check "
                f"{server.name} --plan {plan} shows it, kestrel mcp approve {server.name} --plan {plan} "
                "allows it"
            )


def _past_events(
    lab: Services, ctx: RunContext, plan: Plan | None, history: Sequence[PastTurn]
) -> tuple[Event, ...]:
    """Record turns that are given as the run's own, and return their events; refuses a plan."""
    if plan is not None:
        raise UsageError("turns are given to one agent that works on the goal: leave the plan out, or them")
    assert ctx.state.started is not None
    single = Plan.single(ctx.state.started.goal)
    step = single.steps[0].id
    past: list[Event] = [
        PlanProposed(plan=single.as_json()),
        StateTransition(source=RunStatus.PLANNING, target=RunStatus.EXECUTING),
        StepStarted(step=step, goal=ctx.state.started.goal),
    ]
    for number, turn in enumerate(history, start=1):
        past += turn.events(step, number, ctx.given.model.name)
    for event in past:
        lab.store.append(ctx.run_id, event)
        ctx.state.apply(event, time.time())
    return tuple(past)


def _plan_of(
    options: StartOptions, goal: str, usual: LabOptions
) -> tuple[Plan | None, OutputType | None, tuple[str, str]]:
    """Return the plan of a run, `None` for an agent alone, the form of its answer as a type, and how its
    answer is verified and cites: a level and a form of answers.
    """
    level = options.get("verify") or usual["verify"]
    wanted, inputs, form_of_value = options.get("plan"), options.get("inputs"), options.get("output")
    if form_of_value is None:
        form_of_value = getattr(wanted, "output", None)
    output = None if form_of_value is None else OutputType.of(form_of_value)
    plan = plan_for(wanted, goal, inputs) if wanted is not None or inputs else None
    form = form_for(options.get("form"), usual["form"] if output is None else NONE, plan)
    if output is not None:
        plan = with_output_type(plan, goal, output, form)
    return with_verification(plan, goal, level, form), output, (level, form)


def _given_anew(
    lab: Services, options: StartOptions, rules: Rulebook, output: OutputType | None, *, look: bool
) -> Given:
    """Return what a run that begins is given, its skills left out: they are not known before its tools."""
    folder = options["workspace"]
    place = folder if isinstance(folder, Workspace) else Workspace(Path(folder))
    return Given(
        options=options,
        usual=lab.options,
        model=lab.registry.resolve_model(options.get("model")),
        workspace=place,
        policy=policy_for(options.get("approve") or lab.options["approve"], lab.rules, rules, place.root),
        limits=options.get("limits") or lab.limits,
        output=output,
        resolve=options.get("resolve") or lab.registry.resolve_model,
        ports=replace(options.get("ports") or lab.ports, look=look),
        sandbox=(options.get("ports") or lab.ports).sandbox or lab.sandbox,
        skills={},
        containment=cast("contain.Containment", options.get("containment") or lab.options["containment"]),
    )


def _known_tools(
    lab: Services, options: StartOptions, steps: Sequence[Step]
) -> tuple[Toolbox, tuple[str, ...]]:
    """Return the tools that a run begins with, and the servers that have to be started for the others."""
    known, late = lab.registry.known_at_once(options.get("tools"), steps)
    # In a notebook; a suite is the same anywhere.
    if options.get("tools") is None and not options["scenario"] and live_shell() is not None:
        known += (
            tool
            for tool in lab.registry.toolbox
            if tool.group in (KERNEL_TOOLS, CELL_TOOLS) and tool not in known
        )
    return known, late


def _following(
    lab: Services, follow: RunReference, options: StartOptions
) -> tuple[StartOptions, dict[str, Json], RunStarted]:
    """Return the options of a run that follows another, with that run's own where none are given, what it
    takes over, and how that began.
    """
    began, earlier = inherited_history(lab.store, run_id_of(follow), partial(_flow_of, lab))
    tools, rules = options.get("tools"), options.get("rules")
    given: StartOptions = {
        **options,
        "model": _model_again(lab, began, options.get("model")),
        "tools": recorded_tools_of(began) if tools is None else tools,
        "workspace": _folder_of(began.workspace, began.private_copy)
        if options["workspace"] == "."
        else options["workspace"],
        "rules": rules_from_json(began.rules) if rules is None else rules,
    }
    return given, earlier, began


def _given_texts(lab: Services, place: Workspace, *, trial: bool) -> GivenTexts:
    """Return the guidance and skills of a workspace as they are now; a `trial` has no skills of whoever
    runs it.
    """

    def tainted(path: str) -> str:
        return lab.files.source(str(place.root), path) if lab.files.known() else ""

    names = guidance_names(lab.options["guidance_files"])
    return guidance_texts(place, names, _skills(lab, place, trial=trial), lab.redactor.text, tainted)


def _skills(lab: Services, place: Workspace, *, trial: bool) -> list[Skill]:
    """Return the skills of a workspace and of the user; of the workspace alone in a `trial`, which is not
    to depend on who runs it.
    """
    sources = skill_sources(lab.options["skills"])
    if trial:
        sources = tuple(source for source in sources if source == "workspace")
    return find_skills(place.root, sources, lab.env)


def _flow_of(lab: Services, tool: str) -> Flow:
    known, _ = lab.registry.known_at_once(None)
    return known.get(tool).flow if tool in known else UNKNOWN


def resume(
    lab: Services,
    reference: RunReference,
    *,
    take_over: bool = False,
    output: type[T] | OutputForm | None = None,
    **given: Unpack[ResumeOptions],
) -> Run[T]:
    """Go on with a run where its log ends, on the running event loop; returns at once. See `Lab.resume`."""
    run_id, options, store = run_id_of(reference), started_with(given, output), lab.store
    store.flush()
    row = store.run(run_id)
    known = lab.history.live.get(run_id)
    if known is not None and is_working(known):
        return known
    check_whole(store, run_id)
    state = store.state(run_id)
    if (
        state.status in (RunStatus.FAILED, RunStatus.CANCELLED)
        and (found := resume_point(store.records(run_id))) is not None
    ):
        return fork(lab, run_id, at=found[0], stage=found[1], in_place=True, output=output, **given)
    kind = OutputType.of(options.get("output"))
    if state.started is None or state.status.terminal:
        return Run(store, run_id, state, run=partial(run, lab), output=kind, blame=lab.history.blame)
    if not take_over and owner.at_work(row.owner, run_id):
        raise owner.busy_message(run_id, row.owner)
    ctx = _again(lab, run_id, run_id, state.started, state, options, {})
    if not store.claim(row):
        raise owner.busy_message(run_id, store.run(run_id).owner)
    for record in store.records(run_id, after=state.events):  # written until the claim
        state.apply(record.event, record.at)
    if state.status.terminal:
        return Run(store, run_id, state, run=partial(run, lab), output=kind, blame=lab.history.blame)
    limits = options.get("limits")
    bounds = {} if limits is None else limits.as_json()
    resumed = RunResumed(
        by=process_name(), model=ctx.given.model.name, model_kind=ctx.given.model.kind, limits=bounds
    )
    return _launch(lab, ctx, state.planned, resumed=resumed)


def fork(
    lab: Services,
    reference: RunReference,
    *,
    at: int | None = None,
    answer: str | None = None,
    result: str | None = None,
    stage: str = "",
    in_place: bool = False,
    files: Path | None = None,
    kept: StartOptions | None = None,
    output: type[T] | OutputForm | None = None,
    **given: Unpack[ResumeOptions],
) -> Run[T]:
    """Begin a run that shares events of another, on the running event loop; returns at once. See `Lab.fork`.

    `stage` is the last completed stage of a run that is resumed so. `files` is a folder as the parent began
    with it, where its own may be gone, as that of a trial is. `kept` are options that the parent was given
    and no log has: `ports`, `resolve` and `containment`. With a `scenario` it counts as a run of a suite.
    """
    run_id, options, store = run_id_of(reference), started_with(given, output), lab.store
    store.flush()
    store.run(run_id)
    branch = branch_of(run_id, records_to_fork(store, run_id, at), at, answer=answer, result=result)
    fork_id = new_run_id()
    live, copy = branch.state.folder, branch.state.private_copy
    if not in_place:
        branch.state.private_copy = copy = copy_for_fork(
            store, lab.recorders.store, fork_id, run_id, branch.state, branch.at, files
        )
    try:
        ctx = _again(lab, fork_id, run_id, branch.began, branch.state, options, kept or {})
    except BaseException:
        if not in_place:
            remove_copy(lab.home, fork_id)
        raise
    limits = options.get("limits")
    forked = RunForked(
        parent=store.origin(run_id, branch.at),
        at=branch.at,
        model=ctx.given.model.name,
        model_kind=ctx.given.model.kind,
        tools=[tool.named for tool in ctx.toolbox],
        policy=ctx.given.policy.text,
        given="" if branch.given is None else "result" if answer is None else "answer",
        by=process_name(),
        stage=stage,
        limits={} if limits is None else limits.as_json(),
        private_copy=copy,
    )
    scenario = (kept or {}).get("scenario", "")
    now = store.fork_run(fork_id, forked, branch.state.status, branch.given, scenario=scenario)
    opening = (forked,) if branch.given is None else (forked, branch.given)
    for event in opening:
        ctx.state.apply(event, now)
    begun = _launch(lab, ctx, ctx.state.planned, opening=opening)
    if not in_place:
        carry_taint(ctx, live)
    return begun


async def run(
    lab: Services,
    goal: str,
    *,
    output: type[T] | OutputForm | None = None,
    **options: Unpack[RunOptions],
) -> Run[T]:
    """Begin a run and wait for its end; see `Lab.run`."""
    given = started_with(options, output)  # before servers are started: a wrong value is reported at once
    place = given["workspace"]
    failed = await lab.registry.prepare(
        given.get("tools"), place.root if isinstance(place, Workspace) else Path(place)
    )
    with skip_failed_servers(failed):
        return await watched(
            lab,
            lambda approver: _begin(lab, goal, {**given, "approver": approver}),
            given.get("approver"),
        )


async def watched(
    lab: Services, begin: Callable[[Approver | None], Run[T]], approver: Approver | None
) -> Run[T]:
    """Begin a run and wait for its end, shown where somebody looks; they are asked for approval where nobody
    else is.
    """
    watcher = lab.surroundings.watcher() if lab.surroundings is not None else None
    begun = begin(approver or watcher)
    if watcher is None:
        return await begun.wait()
    watcher.follow(begun)
    try:
        return await begun.wait()
    finally:
        watcher.close()


async def stop(lab: Services) -> None:
    """Interrupt the runs that this lab works on and wait until each has written that down; they can
    be resumed.
    """
    for working in list(lab.history.live.values()):
        interrupt_run(working)
    await asyncio.gather(*lab.tasks, return_exceptions=True)  # each run's log says how it ended


def _again(
    lab: Services,
    run_id: str,
    earlier: str,
    began: RunStarted,
    state: RunState,
    options: StartOptions,
    kept: StartOptions,
) -> RunContext:
    """Return the context of a run that goes on behind the events of `earlier`: with what is given anew,
    else with what it began with, of which the log does not have what is `kept`.
    """
    check_resumable(options)
    options = {**options, **kept}
    registry = lab.registry
    if state.private_copy and not Path(state.folder).is_dir():
        raise UsageError(
            f"the private copy of run {earlier} is gone ({state.folder} was removed): fork the run "
            "that it was forked from again"
        )
    place = Workspace(Path(state.folder)).also_known_as(Path(began.workspace))
    if (tools := options.get("tools")) is None:
        tools = _tools_again(lab, earlier, began, state)
    known, late = registry.known_at_once(tools)
    # The skills that its model was shown, as they are now.
    shown = {str(one["skill"]) for one in began.guidance if "skill" in one}
    found = _skills(lab, place, trial=bool(began.scenario)) if shown else []
    skills = {skill.name: skill for skill in found if skill.name in shown}
    tools_now = _set_up(
        lab,
        known,
        place,
        began.workspace,
        skills,
        expand=any(item["name"] == MCP_INSTALL for item in began.tools),
        steps=steps_without(late, state.left),
        resolve=options.get("resolve") or registry.resolve_model,
        state=state,
    )
    output = OutputType.of(options.get("output"))
    if output is not None and output.schema != began.output:
        raise UsageError(
            f"run {run_id} was begun with another output: give the type that it was begun with, or none"
        )
    given = Given(
        options={**options, "params": began.params},
        usual=lab.options,
        model=_model_again(lab, began, options.get("model")),
        workspace=place,
        policy=policy_for(
            options.get("approve") or began.policy, lab.rules, rules_from_json(began.rules), place.root
        ),
        limits=options.get("limits") or Limits(**cast("dict[str, Any]", began.limits)),
        output=output or (OutputType(began.output) if began.output else None),
        resolve=options.get("resolve") or registry.resolve_model,
        ports=options.get("ports") or lab.ports,
        sandbox=lab.sandbox,
        skills=skills,
        containment=cast("contain.Containment", options.get("containment") or lab.options["containment"]),
    )
    ctx = _context(lab, run_id, given, state, tools_now)
    ctx.equip = registry.equipping(ctx, late, tools, state.left)
    return ctx


def once(series: Series | None, what: str, place: Workspace, make: Callable[[], T]) -> T:
    """Return what the runs of a series in `place` have in common, which `make` makes for the first of them.

    It is made for each without a series, and in a workspace that runs can write in.
    """
    if series is None or not place.read_only:
        return make()
    key = what, str(place.root)
    if key not in series:
        series[key] = make()
    return cast("T", series[key])


def _set_up(
    lab: Services,
    known: Toolbox,
    place: Workspace,
    project: str,
    skills: Mapping[str, Skill],
    *,
    expand: bool | None,
    steps: Sequence[Step],
    resolve: Callable[[str], Model],
    state: RunState | None = None,
    series: Series | None = None,
) -> tuple[Toolbox, Growth | None]:
    """Return the tools that a run is offered and what finds more; `state` is that of a run that goes on.

    Raises `UsageError` where the steps to come need what is not there, or a sandbox does not work.
    """
    macros = MacroRegistry(lab.store, project)
    toolbox = with_declarations(known, lab.store)
    listed = once(series, "macros", place, macros.list)
    if listed or (state is not None and state.macros):
        toolbox = offer_macros(toolbox, macros, listed, state)
    if skills:
        toolbox = with_skills(toolbox, skills)
    toolbox, growth = lab.registry.grown(toolbox, place.root, expand)
    sandbox = lab.sandbox
    # A level that is known not to work here is refused before the run begins. Trying one takes long: where
    # nobody has tried it, the run does, see `Registry.equipping`.
    if sandbox.level is not None and is_tested(sandbox) and any(tool.sandbox is not None for tool in toolbox):
        choose_level(sandbox, place.root)
    check_steps(steps, toolbox, OPERATIONS, resolve)
    return toolbox, growth


def _tools_again(lab: Services, earlier: str, began: RunStarted, state: RunState) -> Tools:
    store = lab.store
    names = recorded_tools_of(began)
    if not any(tool.get("version") == RECORDED for tool in began.tools):
        return names
    recording = store.records(store.origin(earlier, 1))  # all of it, also what comes behind the fork
    recorded = recorded_tools(began.tools, recording, after=state.events)
    theirs = {tool.name for tool in recorded}
    return [*(name for name in names if name not in theirs), *recorded]


def _model_again(lab: Services, began: RunStarted, model: str | Model | None) -> Model:
    if model is None and began.model_kind != "real" and not began.model.startswith("scripted:"):
        wanted = lab.options.get("model")
        if began.model_kind == "imported":
            msg = (
                f"{began.model!r} answered in another tool: the run is imported. Name the model to "
                "go on with: --model NAME, or model=…"
            )
            raise UsageError(msg)
        if wanted is None or isinstance(wanted, str) or wanted.name != began.model:
            msg = (
                f"the run used the {began.model_kind} model {began.model!r}, which only exists in "
                "memory: pass model=… to go on"
            )
            raise UsageError(msg)
        return wanted
    return lab.registry.resolve_model(model or began.model)


def _context(
    lab: Services,
    run_id: str,
    given: Given,
    state: RunState,
    tools: tuple[Toolbox, Growth | None],
) -> RunContext:
    """Return the context of a run, whose sandbox may read the skills of its user and what its private copy
    shares with other folders.
    """
    own = (skill.root for skill in given.skills.values() if skill.own)
    shared = cast("list[Json]", state.private_copy.get("objects") or [])
    if readable := (*own, *(Path(str(one)) for one in shared)):
        given = replace(given, sandbox=replace(given.sandbox, readable=readable))
    return RunContext(
        run_id=run_id,
        given=given,
        services=lab,
        state=state,
        toolbox=tools[0],
        growth=tools[1],
        history=FileHistory(lab.recorders, given.workspace),
    )


def _launch(
    lab: Services,
    ctx: RunContext,
    plan: Plan,
    *,
    opening: tuple[Event, ...] = (),
    resumed: RunResumed | None = None,
    missing: tuple[HealthChanged, ...] = (),
) -> Run:
    """Start the task of a run whose first events are in the log; `missing` names servers that cannot be
    used.
    """
    run_id, state = ctx.run_id, ctx.state
    ctx.begin(opening)
    begun = Run(
        lab.store, run_id, state, run=partial(run, lab), output=ctx.given.output, blame=lab.history.blame
    )
    ctx.listeners.extend(partial(listener, begun) for listener in lab.options["listeners"])
    if resumed is not None:
        ctx.emit(resumed)
    for event in opening:
        ctx.tell(event)
    if ctx.given.containment == "off":
        ctx.emit(BudgetWarned(limit="containment", message=contain.OFF))
    approvals = RunApprovals(ctx)
    task = asyncio.get_running_loop().create_task(
        carry_out(ctx, approvals, plan), name=f"kestrel run {run_id}"
    )
    lab.tasks.add(task)
    begun.ctx, begun.approvals, begun.task = ctx, approvals, task
    lab.history.live[run_id] = begun
    owner.AT_WORK.add((lab.store.session, run_id))
    unsubscribe = watch_servers(ctx, lab.supervisor)
    for one in missing:
        ctx.emit(one)

    def forget(done: asyncio.Task[None]) -> None:
        if unsubscribe is not None:
            unsubscribe()
        lab.kernels.end(run_id)
        ctx.history.close()
        lab.tasks.discard(done)
        lab.history.live.pop(run_id, None)
        owner.AT_WORK.discard((lab.store.session, run_id))
        if done.cancelled() and not (state.status.terminal or state.interrupted):  # before its first step
            record_stop(ctx)

    task.add_done_callback(forget)
    return begun
