"""What a session does to have a run begin or go on: find again what it works with, and start its task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import BudgetWarned, Event, HealthChanged, RunResumed, RunStarted
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Approver, Middleware, Model
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.run_types import Limits
from kestrel_lab.eventlog import run_status as owner
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.middleware.cache import CacheMode, cache_mode
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.permissions.rulebook import Rulebook
from kestrel_lab.runtime.agent.macro_calls import offer_macros, tools_begun_with
from kestrel_lab.runtime.approvals.decide import ApprovalDesk
from kestrel_lab.runtime.approvals.scope import ruled, rules_from_json
from kestrel_lab.runtime.context.budget import Dearest
from kestrel_lab.runtime.context.dependencies import Ports
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.context.tool_cache import ToolCaching
from kestrel_lab.runtime.context.tool_selection import MCP_INSTALL, Growth
from kestrel_lab.runtime.execution.steps import check_steps, not_of
from kestrel_lab.runtime.lifecycle import live, stop
from kestrel_lab.runtime.mcp.health import tell_of_servers
from kestrel_lab.runtime.operations.registry import OPERATIONS
from kestrel_lab.runtime.options import ResumeOptions, RunListener
from kestrel_lab.runtime.registry import Equipment
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.run_history import Archive
from kestrel_lab.runtime.security import containment as contain
from kestrel_lab.runtime.security.containment import Containment
from kestrel_lab.runtime.security.file_taint import FileTaint
from kestrel_lab.runtime.security.tool_declarations import declared
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.sandbox.select import choose, tried
from kestrel_lab.tools.tool import Toolbox

# What a run works with, once it has been found and checked.


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Model, tools, place, bounds, and who decides."""

    model: Model
    toolbox: Toolbox
    workspace: Workspace
    limits: Limits
    policy: Policy
    approver: Approver | None
    resolve: Callable[[str], Model]
    """The model of a name, for steps that have one of their own."""
    ports: Ports
    containment: Containment
    missing: tuple[HealthChanged, ...] = ()
    """What is configured and cannot be used: told at the beginning, and done without."""
    cache_mode: CacheMode | None = None
    """How the tool cache is used; `None` for as the session says."""
    equip: Callable[[RunContext], Awaitable[None]] | None = None
    """Has servers started for the run whose tools it is to have; `None` where there are none."""
    growth: Growth | None = None
    """What finds more tools for the run."""


class Launching(Archive, Equipment):
    """Begins runs, and goes on with them."""

    rules: Rulebook
    middleware: tuple[Middleware, ...]
    listeners: tuple[RunListener, ...]
    checkpoint_every: int | None
    sandbox: Sandbox
    containment: contain.Containment
    redactor: Redactor
    cache: ToolCaching
    ports: Ports
    supervisor: RuntimeSupervisor
    _tasks: set[asyncio.Task[None]]
    files: FileTaint
    _dearest: Dearest

    def _again(self, began: RunStarted, state: RunState, given: ResumeOptions, limits: Limits | None) -> Setup:
        """What a run goes on with: what is given anew, else what it began with."""
        tools, place = given.get("tools"), Workspace(Path(began.workspace))
        named = tools if tools is not None else tools_begun_with(began)
        known, late = self.known_at_once(named)
        toolbox = offer_macros(declared(known, self.store), self.store, place, state)
        toolbox, growth = self.grown(toolbox, place.root, any(item["name"] == MCP_INSTALL for item in began.tools))
        check_steps(not_of(late, state.left), toolbox, OPERATIONS, self.resolve_model)
        self._check_sandbox(toolbox, place)
        return Setup(
            model=self._model_again(began, given.get("model")),
            toolbox=toolbox,
            workspace=place,
            limits=limits or Limits(**cast("dict[str, Any]", began.limits)),
            policy=ruled(given.get("approve") or began.policy, self.rules, rules_from_json(began.rules), place),
            approver=given.get("approver"),
            resolve=self.resolve_model,
            ports=self.ports,
            cache_mode=None if (mode := given.get("cache")) is None else cache_mode(mode),
            containment=self.containment,
            equip=self.equipping(late, named, state.left, toolbox),
            growth=growth,
        )

    def _check_sandbox(self, toolbox: Toolbox, place: Workspace) -> None:
        """Raise `UsageError` before a run begins when the level that was named is known not to be had for its commands.

        Trying it takes long: where nobody has, the run does, see `Equipment.equipping`.
        """
        if self.sandbox.level is not None and tried(self.sandbox) and any(tool.sandbox is not None for tool in toolbox):
            choose(self.sandbox, place.root)

    def _model_again(self, began: RunStarted, model: str | Model | None) -> Model:
        if model is None and began.model_kind != "real" and not began.model.startswith("scripted:"):
            wanted = self.model
            if wanted is None or isinstance(wanted, str) or wanted.name != began.model:
                msg = f"the run used the {began.model_kind} model {began.model!r}, which only exists in memory: pass model=… to go on"
                raise UsageError(msg)
            return wanted
        return self.resolve_model(model or began.model)

    def _launch(
        self,
        run_id: str,
        state: RunState,
        setup: Setup,
        plan: Plan,
        resumed: RunResumed | None = None,
        told: tuple[Event, ...] = (),
    ) -> Run:
        ctx = RunContext(
            run_id=run_id,
            store=self.store,
            state=state,
            model=setup.model,
            toolbox=setup.toolbox,
            workspace=setup.workspace,
            limits=setup.limits,
            policy=setup.policy,
            approver=setup.approver,
            resolve=setup.resolve,
            sandbox=self.sandbox,
            redactor=self.redactor,
            cache=self.cache,
            cache_mode=setup.cache_mode,
            middleware=self.middleware,
            ports=setup.ports,
            containment=setup.containment,
            growth=setup.growth,
            supervisor=self.supervisor,
            files=self.files,
            dearest=self._dearest,
            checkpoint_every=self.checkpoint_every,
        )
        if setup.equip is not None:
            ctx.equip = partial(setup.equip, ctx)
        run = Run(self.store, run_id, state)
        ctx.listeners.extend(partial(listener, run) for listener in self.listeners)
        if resumed is not None:
            ctx.emit(resumed)
        elif state.started is not None:
            for event in told or (state.started,):
                ctx.tell(event)
        if setup.containment == "off":
            ctx.emit(BudgetWarned(limit="containment", message=contain.OFF))
        desk = ApprovalDesk(ctx)
        task = asyncio.get_running_loop().create_task(live(ctx, desk, plan), name=f"kestrel run {run_id}")
        self._tasks.add(task)
        run.attach(ctx, desk, task)
        self._runs[run_id] = run
        owner.began(self.store.session, run_id)
        unsubscribe = tell_of_servers(ctx, self.supervisor)
        for missing in setup.missing:
            ctx.emit(missing)

        def forget(done: asyncio.Task[None]) -> None:
            unsubscribe()
            self._tasks.discard(done)
            self._runs.pop(run_id, None)
            owner.ended(self.store.session, run_id)
            if done.cancelled() and not (state.status.terminal or state.interrupted):  # before its first step
                stop(ctx)

        task.add_done_callback(forget)
        return run
