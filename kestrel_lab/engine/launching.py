"""What a session does to have a run begin or go on: find again what it works with, and start its task."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import BudgetWarned, Event, RunResumed, RunStarted
from kestrel_lab.core.limits import Limits
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Middleware, Model
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.engine import containment as contain
from kestrel_lab.engine import owner
from kestrel_lab.engine.allowance import Dearest
from kestrel_lab.engine.approvals import ApprovalDesk
from kestrel_lab.engine.archive import Archive
from kestrel_lab.engine.caching import ToolCaching
from kestrel_lab.engine.context import RunContext
from kestrel_lab.engine.equipment import Equipment
from kestrel_lab.engine.life import end_cancelled, live
from kestrel_lab.engine.macros import offer_macros, tools_begun_with
from kestrel_lab.engine.mcphealth import tell_of_servers
from kestrel_lab.engine.operations import OPERATIONS
from kestrel_lab.engine.options import ResumeOptions, RunListener
from kestrel_lab.engine.ports import Ports
from kestrel_lab.engine.ruled import ruled, rules_from_json
from kestrel_lab.engine.run import Run
from kestrel_lab.engine.setup import Setup
from kestrel_lab.engine.showing import MCP_INSTALL
from kestrel_lab.engine.steps import check_steps
from kestrel_lab.engine.supervisor import RuntimeSupervisor
from kestrel_lab.log.fold import RunState
from kestrel_lab.middleware.cache import cache_mode
from kestrel_lab.tools.registry import Toolbox
from kestrel_lab.tools.rules.book import Rulebook
from kestrel_lab.tools.sandbox.choose import choose
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.workspace import Workspace


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
    _dearest: Dearest

    def _again(self, began: RunStarted, state: RunState, given: ResumeOptions, limits: Limits | None) -> Setup:
        """What a run goes on with: what is given anew, else what it began with."""
        tools, place = given.get("tools"), Workspace(Path(began.workspace))
        toolbox = offer_macros(self.resolve_tools(tools if tools is not None else tools_begun_with(began)), self.store, place, state)
        toolbox, growth = self.grown(toolbox, place.root, any(item["name"] == MCP_INSTALL for item in began.tools))
        check_steps(state.left, toolbox, OPERATIONS, self.resolve_model)
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
            growth=growth,
        )

    def _check_sandbox(self, toolbox: Toolbox, place: Workspace) -> None:
        """Raise `UsageError` before a run begins when the level that was named cannot be had for its commands."""
        if self.sandbox.level is not None and any(tool.sandbox is not None for tool in toolbox):
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
            dearest=self._dearest,
            checkpoint_every=self.checkpoint_every,
        )
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
            if done.cancelled() and not state.status.terminal:  # before its first step
                end_cancelled(ctx)

        task.add_done_callback(forget)
        return run
