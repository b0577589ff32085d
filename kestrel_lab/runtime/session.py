"""Where everything is put together: a log, models, tools, a policy; out come runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import RunResumed, RunStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.plan_shapes import foreseen
from kestrel_lab.core.protocols import Approver, Middleware, Model
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.run_types import Limits, RunStatus, new_run_id
from kestrel_lab.core.version import __version__
from kestrel_lab.eventlog import run_status as owner
from kestrel_lab.eventlog.connection import process_name
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.memory.memory import NoteMemory
from kestrel_lab.middleware.cache import cache_mode
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.permissions.rulebook import GivenRules, rulebook
from kestrel_lab.runtime.agent.macro_calls import offer_macros
from kestrel_lab.runtime.agent.system_prompt import citing, system_prompt
from kestrel_lab.runtime.approvals.scope import ruled, rules_as_json
from kestrel_lab.runtime.context.budget import Dearest
from kestrel_lab.runtime.context.dependencies import Ports
from kestrel_lab.runtime.context.gatherers import FileGatherer, IndexedGatherer
from kestrel_lab.runtime.context.tool_cache import ToolCaching
from kestrel_lab.runtime.context.toolboxes import Tools, known_tools, offered
from kestrel_lab.runtime.execution.steps import check_steps, not_of
from kestrel_lab.runtime.launcher import Launching, Setup
from kestrel_lab.runtime.mcp.discovery import ExpansionSettings, installed_servers
from kestrel_lab.runtime.mcp.health import missing_servers
from kestrel_lab.runtime.mcp.servers import McpServers
from kestrel_lab.runtime.operations.find_files import session_indexes
from kestrel_lab.runtime.operations.registry import OPERATIONS
from kestrel_lab.runtime.operations.verify_plan import NONE, form_for, parse_form, parse_level, verified
from kestrel_lab.runtime.options import ForkOptions, RestartOptions, ResumeOptions, RunListener, RunOptions, checked
from kestrel_lab.runtime.registry import tried_before
from kestrel_lab.runtime.resume import branch_of, check_whole, continuation, records_to_fork
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.security import containment as contain
from kestrel_lab.runtime.security.file_taint import FileTaint
from kestrel_lab.runtime.security.tool_declarations import declared
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.runtime.workflows.loader import MakesPlan, plan_for
from kestrel_lab.tools.builtin import native_tools, web_tools
from kestrel_lab.tools.code_search import retrieval_tools
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.interaction import task_tools
from kestrel_lab.tools.memory_tools import memory_tools
from kestrel_lab.tools.sandbox.levels import AUTO, DEFAULT_MEMORY_GIB, Sandbox
from kestrel_lab.tools.timeparse.session_time import handshake
from kestrel_lab.tools.tool import Toolbox
from kestrel_lab.tools.web.fetch import Reach


class Session(Launching):
    """Starts, resumes and lists runs over one log."""

    @checked
    def __init__(
        self,
        home: str | Path = ".kestrel",
        model: str | Model | None = None,
        approve: str = "ask",
        *,
        tools: Tools = (),
        models: Mapping[str, Model] | None = None,
        middleware: Iterable[Middleware] = (),
        listeners: Iterable[RunListener] = (),
        limits: Limits | None = None,
        checkpoint_every: int | None = 10,
        provider: str | None = None,
        api_base: str | None = None,
        sandbox: str = AUTO,
        network: bool = False,
        sandbox_memory: float | None = DEFAULT_MEMORY_GIB,
        cache: str = "use",
        cache_url: str | None = None,
        containment: str = "on",
        verify: str = "warn",
        abstain: float | None = None,
        network_home: bool = False,
        form: str = NONE,
        env: Mapping[str, str] | None = None,
        mcp: Mapping[str, ServerConfig] | None = None,
        rules: GivenRules = None,
        expansion: ExpansionSettings | None = None,
    ) -> None:
        """Open the log under `home` (made if need be).

        Args:
            home: Folder of the log.
            model: What runs use unless told otherwise; `None` finds one (see `kestrel doctor`).
            approve: Approval policy: `ask`, `auto`, `auto:LEVEL` or `deny`.
            tools: Offered to every run beside the native tools: tools, functions, names of tools or of groups of them; one that is called like a tool of the web replaces it.
            models: Models by names of your own, for runs and for single steps of plans.
            middleware: Put around every call, of models and of tools: hooks before and after thinking and
                acting. It sees a tool call before it is asked about; what it answers is what is recorded.
            listeners: Told of every event of every run, from `run_started` to the last state transition:
                called with the run and the event on the run's event loop; must not block.
            limits: Bounds of runs that bring none of their own.
            checkpoint_every: After so many model turns of a run a snapshot of it is kept (past twenty times as many,
                after a twentieth more turns); `None` for only when it waits for approval, is stopped or fails.
            provider: Provider of model names that do not say theirs.
            api_base: Address of an OpenAI-compatible server.
            sandbox: How commands that tools start are held in: `S3`, `S2`, `S1`, `S0` (not at all), or `auto` for the
                best that works here; where none does, each call is CRITICAL. See `kestrel doctor`.
            network: Whether commands in a sandbox may use the network.
            sandbox_memory: The most GiB of memory that a command in a sandbox may have, with all it starts; `None` for no bound.
            cache: Whether stored answers of pure tools are used: `use`, `off`, `refresh` them, or `replay` them only.
            cache_url: A Redis server that keeps them; the folder by default.
            containment: Whether a person is asked, whatever the policy, when a model that has read what others wrote wants an
                effect: `on`, `strict` (files of the workspace count as written by others) or `off`. See `engine.containment`.
            verify: What is done about the claims of answers, for runs that do not say it: see `engine.verified`.
            abstain: The confidence that an answer has to state, from 0 to 1; a run whose answer states less ends FAILED and
                says so. Answers that state none are given.
            network_home: Whether `home` may lie on a network file system, where a log may be damaged.
            form: Which form answers have to have, for runs that do not say it: `none`, `auto` (as fits the goal, of runs
                without a plan) or the name of a contract, see `answers.contracts`.
            env: Environment variables to read; the process's by default.
            mcp: Servers of tools by name; started when one of their tools is called.
            rules: Of every run: a file of rules, or tables as in one; see `kestrel_lab.tools.rules`.
            expansion: How far runs may go to find tools they lack.
        """
        Policy.parse(approve)
        self.rules = rulebook(rules)
        self.home = Path(home)
        self.model = model
        self.approve = approve
        self.verify = parse_level(verify)
        self.form = parse_form(form)
        self.middleware = tuple(middleware)
        self.listeners = tuple(listeners)
        self.limits = limits or Limits()
        self.checkpoint_every = checkpoint_every
        self.provider = provider
        self.api_base = api_base
        self.sandbox = Sandbox.parse(sandbox, network=network, hidden=[self.home.resolve()], memory_gib=sandbox_memory)
        self.containment = contain.read_mode(containment)
        self.env = os.environ if env is None else env
        self.redactor = Redactor.of(self.env)
        self.indexes = session_indexes(self.home)
        offered_on_request = [*task_tools(), *memory_tools(), *web_tools(Reach(env=self.env)), *retrieval_tools(self.indexes)]
        self.supervisor = RuntimeSupervisor()
        self.cache = ToolCaching(self.home / "cache", cache, cache_url, self.supervisor)
        self.expansion = expansion or ExpansionSettings()
        servers = {**installed_servers(self.sources.root, mcp or (), Path.cwd()), **(mcp or {})}
        self.mcp = McpServers(servers, self.supervisor, env=self.env, logs=self.home / "logs", sandbox=lambda: self.sandbox)
        """Servers of tools: `table()`, `check`, `approve`, `withdraw`."""
        self._tools = known_tools([*native_tools(), *offered_on_request], tools, self.mcp.names)
        self.store = SessionStore(self.home / "kestrel.db", network=network_home)
        self.ports = Ports(memory=NoteMemory(self.store), gatherer=IndexedGatherer(self.indexes, FileGatherer()), abstain=abstain)
        """Memory, search, clock and patience of the runs to come."""
        self._models: dict[str, Model] = dict(models or {})
        self._runs: dict[str, Run] = {}
        self.files = FileTaint(lambda: self.store)
        self._dearest: Dearest = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @checked
    def start(
        self,
        goal: str,
        *,
        model: str | Model | None = None,
        tools: Tools | Toolbox | None = None,
        limits: Limits | None = None,
        workspace: str | Path | Workspace = ".",
        approve: str | None = None,
        rules: GivenRules = None,
        approver: Approver | None = None,
        instructions: str = "",
        config: str = "",
        scenario: str = "",
        plan: Plan | MakesPlan | str | Path | None = None,
        inputs: Mapping[str, Json] | None = None,
        verify: str | None = None,
        form: str | None = None,
        resolve: Callable[[str], Model] | None = None,
        ports: Ports | None = None,
        cache: str | None = None,
        containment: str | None = None,
        expand: bool | None = None,
    ) -> Run:
        """Begin a run on the running event loop and return at once.

        Args:
            goal: What to do.
            model: Name or object; the session's by default.
            tools: Names of known tools or of groups of them (`default`, `web`, …), tools, or functions. By default
                those without a group, and what the plan names.
            limits: The session's by default.
            workspace: The only folder that file tools may touch.
            approve: Policy of this run; the session's by default.
            rules: More rules, for this run and what becomes of it. They lift nothing that other rules forbid or ask about.
            approver: Who is asked; with nobody, a call that must be asked about raises
                `ApprovalRequired` from `Run.wait`.
            instructions: Added to the system message.
            config: Name of the model configuration, for suites.
            scenario: Id of the scenario, for suites.
            plan: Steps to carry out, each an agent's goal or a tool's call; `goal` then says what they are
                for. Also the name of a shipped workflow, a workflow file, or whatever makes a plan for a goal,
                such as an `LLMAgent`. Without it one agent works on the goal. All steps share the limits. The
                run's answer is what the steps answer that no other step waits for.
            inputs: Values for the inputs that a workflow declares.
            verify: What is done about the answer's claims: `off`, `warn`, `repair`, `judge` or `quality`; the session's by default.
            form: The form that the answer has to have: `brief`, `plan`, `patch`, `explanation`, `research`, `auto` (as fits what
                the goal asks for; without a plan only) or `none`; the session's by default.
            resolve: Finds the models that single steps name; `resolve_model` by default.
            ports: Memory, search, clock and patience of this run; the session's by default.
            cache: How stored answers of tools are used, see `Session`; as the session does by default.
            containment: Of this run, the session's by default; who takes the run up has the session's.
            expand: Whether it may look for servers of tools that it lacks, and ask to install one; as set by default.

        Raises:
            UsageError: An empty goal, an unknown model, tool or policy, a workspace that is no folder, a
                sandbox level that was named and cannot be had, a workflow that is not in order, a step of the plan with a tool or arguments that cannot be.
        """
        if not goal.strip():
            msg = "the goal is empty: say what the run should do"
            raise UsageError(msg)
        chosen = self.resolve_model(model)
        bounds = limits or self.limits
        held = self.containment if containment is None else contain.read_mode(containment)
        place = workspace if isinstance(workspace, Workspace) else Workspace(Path(workspace))
        policy = ruled(approve or self.approve, self.rules, own := rulebook(rules), place)
        level = parse_level(verify or self.verify)
        planned = plan_for(plan, goal, inputs)
        formed = form_for(form, self.form, planned)
        planned = verified(planned, goal, level, formed)
        steps = () if planned is None else foreseen(planned.steps)
        known, late = self.known_at_once(tools, steps)
        toolbox, growth = self.grown(offer_macros(declared(known, self.store), self.store, place), place.root, expand)
        self._check_sandbox(toolbox, place)
        check_steps(not_of(late, steps), toolbox, OPERATIONS, resolve or self.resolve_model)
        run_id = new_run_id()
        met = handshake((ports or self.ports).now())
        started = RunStarted(
            goal=goal,
            workspace=str(place.root),
            model=chosen.name,
            model_kind=chosen.kind,
            system=system_prompt(bounds, instructions, met.line, citing(level, formed, toolbox)),
            tools=offered(toolbox),
            limits=bounds.as_json(),
            policy=policy.text,
            rules=rules_as_json(own),
            config=config,
            scenario=scenario,
            package=__version__,
            plan={} if planned is None else planned.as_json(),
            time=met.as_json(),
        )
        state = RunState()
        state.apply(started, self.store.create_run(run_id, started))
        setup = Setup(
            model=chosen,
            toolbox=toolbox,
            workspace=place,
            limits=bounds,
            policy=policy,
            approver=approver,
            resolve=resolve or self.resolve_model,
            ports=replace(ports or self.ports, look=level != "off"),
            missing=missing_servers(self.mcp, but=late) if tools is None else (),
            equip=self.equipping(late, tools, steps, toolbox),
            cache_mode=None if cache is None else cache_mode(cache),
            containment=held,
            growth=growth,
        )
        return self._launch(run_id, state, setup, planned or Plan.single(goal))

    async def run(self, goal: str, **options: Unpack[RunOptions]) -> Run:
        """`start` and wait for the end; takes the same options.

        Returns the run also when it ended FAILED: look at `status` and `reason`. Raises
        `ApprovalRequired` when a call needs a person and no approver was given.
        """
        place = options.get("workspace", ".")
        failed = await self.prepare(options.get("tools"), place.root if isinstance(place, Workspace) else Path(place))
        with tried_before(failed):
            run = self.start(goal, **options)
        return await run.wait()

    @checked
    def restart(
        self,
        run_id: str,
        *,
        model: str | Model | None = None,
        tools: Tools | Toolbox | None = None,
        approve: str | None = None,
        approver: Approver | None = None,
        take_over: bool = False,
        limits: Limits | None = None,
        cache: str | None = None,
    ) -> Run:
        """Go on with a run where its log ends; on the running event loop, returns at once.

        A run that ended FAILED or CANCELLED behind a completed stage goes on in a new run, which shares what is done by
        reference: see `engine.continuation`. Any other run that has ended is returned as it is, and so is one that this
        session works on. The plan is the one in the log, whatever has become of its file; when it needs something that
        is gone, the stage is named. `limits` are the run's from here on, and count what was used before. Calls whose outcome the last session left
        unknown are repeated only if that is harmless, otherwise they are asked about. A run that another session works
        on, of this process or another, is taken from it only with `take_over`: nothing the other one does is written any
        more, and it ends with `Fenced` when it notices, at the latest before its next tool call with an effect. Only of a
        call that it is in the middle of the effect may still come, which is why that call is asked about. Raises `UsageError`
        when there is no such run, when another session works on it, or when its model or tools cannot be had again; `Damaged`
        when its events are not those that were written.
        """
        self.store.flush()
        row = self.store.run(run_id)
        known = self._runs.get(run_id)
        if known is not None and known.working:
            return known
        check_whole(self.store, run_id)
        state = self.store.state(run_id)
        given: ResumeOptions = {"model": model, "tools": tools, "approve": approve, "approver": approver, "cache": cache}
        if state.status in (RunStatus.FAILED, RunStatus.CANCELLED) and (found := continuation(self.store.records(run_id))) is not None:
            return self._begin_fork(run_id, found.at, given, limits=limits, stage=found.stage)
        if state.started is None or state.status.terminal:
            return Run(self.store, run_id, state)
        if not take_over and owner.at_work(row.owner, run_id):
            raise owner.taken(run_id, row.owner)
        setup = self._again(state.started, state, given, limits)
        if not self.store.claim(row):
            raise owner.taken(run_id, self.store.run(run_id).owner)
        for record in self.store.records(run_id, after=state.events):  # written until the claim
            state.apply(record.event, record.at)
        if state.status.terminal:
            return Run(self.store, run_id, state)
        bounds = {} if limits is None else limits.as_json()
        resumed = RunResumed(by=process_name(), model=setup.model.name, model_kind=setup.model.kind, limits=bounds)
        return self._launch(run_id, state, setup, state.planned, resumed)

    async def resume(self, run_id: str, **options: Unpack[RestartOptions]) -> Run:
        """`restart` and wait for the end; takes the same options. The run that comes back may be a new one."""
        return await self.restart(run_id, **options).wait()

    def run_sync(self, goal: str, **options: Unpack[RunOptions]) -> Run:
        """`run` for scripts; inside a running event loop (a notebook) it works too and blocks it."""
        return run_blocking(self.run(goal, **options))

    def close(self) -> None:
        """End the MCP servers, write what is queued and close the log."""
        self.mcp.close()
        self.indexes.close()
        self.store.close()
        self.cache.close()

    @checked
    def start_fork(
        self,
        run_id: str,
        *,
        at: int | None = None,
        answer: str | None = None,
        result: str | None = None,
        model: str | Model | None = None,
        tools: Tools | Toolbox | None = None,
        approve: str | None = None,
        approver: Approver | None = None,
        cache: str | None = None,
        limits: Limits | None = None,
    ) -> Run:
        """Begin a new run that shares the events of another up to number `at`; on the running event loop, returns at once.

        The parent stays as it is, and may still be working. Model, tools, policy and whoever is asked may be
        given anew, as for `restart`; `limits` count what the shared events used. A question that was open at
        `at` is asked again; a tool call that had begun is treated as `restart` does.

        Args:
            run_id: The run to fork.
            at: The last event shared, any before the run's end; by default its last `model_called`, or with
                `result` its last `tool_called`. A model that was being asked there is asked again.
            answer: What the model called at `at` is to have answered, in its place.
            result: What the tool called at `at` is to have answered, in its place.
            model: See `restart`, like all that follow.
            tools: Offered from there on.
            approve: Policy from there on.
            approver: Who is asked.
            cache: How stored answers of tools are used.
            limits: Of the fork and what becomes of it; the parent's by default.

        Raises:
            UsageError: No such run or event, one after the end, one that an answer or a result cannot follow,
                a model or tools that cannot be had again.
            Damaged: An event up to `at` is not what was written.
        """
        given: ResumeOptions = {"model": model, "tools": tools, "approve": approve, "approver": approver, "cache": cache}
        return self._begin_fork(run_id, at, given, answer=answer, result=result, limits=limits)

    def _begin_fork(
        self,
        run_id: str,
        at: int | None,
        options: ResumeOptions,
        *,
        answer: str | None = None,
        result: str | None = None,
        limits: Limits | None = None,
        stage: str = "",
    ) -> Run:
        self.store.flush()
        self.store.run(run_id)
        branch = branch_of(run_id, records_to_fork(self.store, run_id, at), at, answer=answer, result=result)
        state = branch.state
        setup = self._again(branch.began, state, options, limits)
        source, policy = self.store.origin(run_id, branch.at), setup.policy.text
        forked = branch.forked(source, setup.model, setup.toolbox, policy=policy, by=process_name(), stage=stage, limits=limits)
        fork_id = new_run_id()
        now = self.store.fork_run(fork_id, forked, state.status, branch.given)
        opening = (forked,) if branch.given is None else (forked, branch.given)
        for event in opening:
            state.apply(event, now)
        return self._launch(fork_id, state, setup, state.planned, told=opening)

    async def fork(
        self, run_id: str, *, at: int | None = None, answer: str | None = None, result: str | None = None, **options: Unpack[ForkOptions]
    ) -> Run:
        """`start_fork` and wait for the end; takes the same options."""
        return await self.start_fork(run_id, at=at, answer=answer, result=result, **options).wait()
