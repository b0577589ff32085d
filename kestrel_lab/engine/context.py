"""What a run carries with it: where its events go, what it may use, how far it may go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from kestrel_lab.core.errors import LimitError, RunError, StoreError
from kestrel_lab.core.events import BudgetWarned, Event, ModelAnswered, StateTransition, Told
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.limits import Limits
from kestrel_lab.core.messages import ToolSpec
from kestrel_lab.core.protocols import Approver, Listener, Middleware, Model
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.states import RunStatus
from kestrel_lab.core.step import Step
from kestrel_lab.engine.allowance import Allowance, Dearest
from kestrel_lab.engine.caching import ToolCaching
from kestrel_lab.engine.clock import WorkClock
from kestrel_lab.engine.containment import Containment
from kestrel_lab.engine.ports import Ports
from kestrel_lab.engine.secrecy import without_secrets
from kestrel_lab.engine.showing import Growth, shown_names
from kestrel_lab.engine.supervisor import RuntimeSupervisor
from kestrel_lab.engine.taint import Taint, TaintLog
from kestrel_lab.log.fold import RunState
from kestrel_lab.log.store import SessionStore
from kestrel_lab.middleware.cache import CacheMode
from kestrel_lab.middleware.policy import Policy
from kestrel_lab.models.textloop import TextToolModel
from kestrel_lab.tools import read_result as reading
from kestrel_lab.tools.flows import UNKNOWN, Flow
from kestrel_lab.tools.registry import Tool, Toolbox
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.workspace import Workspace


@dataclass(kw_only=True)
class RunContext:
    """Everything the parts of the engine share about one run."""

    run_id: str
    store: SessionStore
    state: RunState
    model: Model
    toolbox: Toolbox
    workspace: Workspace
    limits: Limits
    policy: Policy
    approver: Approver | None
    resolve: Callable[[str], Model]
    """The model of a name, for steps that have one of their own."""
    sandbox: Sandbox = field(default_factory=Sandbox)
    """How commands that tools start are held in."""
    redactor: Redactor = field(default_factory=Redactor)
    """Knows the secrets that neither the log nor the model nor a screen is to have."""
    cache: ToolCaching | None = None
    """Where answers of pure tools are kept; `None` for nowhere."""
    cache_mode: CacheMode | None = None
    """How it is used; `None` for as the session says at each call."""
    middleware: tuple[Middleware, ...] = ()
    """What a user put around every call: hooks before and after thinking and acting."""
    listeners: list[Listener] = field(default_factory=list)
    ports: Ports = field(default_factory=Ports)
    """What operations ask for that is neither a model nor a tool."""
    supervisor: RuntimeSupervisor = field(default_factory=RuntimeSupervisor)
    """Health of what runs of the session depend on."""
    growth: Growth | None = None
    """What finds more tools for the run; `None` for a run that keeps those it began with."""
    checkpoint_every: int | None = None
    """After how many model turns a snapshot is kept, more in a run of very many; `None` for never."""
    containment: Containment = "on"
    """Whether what others wrote may lead to effects without a person: see `engine.containment`."""
    dearest: Dearest = field(default_factory=dict)
    """What calls of models used at most."""
    flow: TaintLog = field(init=False)
    """Whose words its models have read."""
    allowance: Allowance = field(init=False)
    clock: WorkClock = field(init=False)
    _turns_kept: int = field(init=False)
    _specs: dict[tuple[str, ...] | None, tuple[ToolSpec, ...]] = field(default_factory=dict)
    _reading: Toolbox | None = None
    _last: Future[int] | None = None
    _failure: BaseException | None = None

    def __post_init__(self) -> None:
        limits, state = self.limits, self.state
        self.clock = WorkClock(_left(limits.seconds, state.working_s), _left(limits.wall_seconds, state.open_s))
        self.allowance = Allowance(limits, state, self.dearest)
        self._turns_kept = self.state.usage.model_calls
        self.flow = TaintLog(partial(self._earlier, state.events), Taint(known=self._flow_of, strict=self.containment == "strict"))
        self._specs[None] = tuple(self.toolbox.specs())
        if self.growth is not None:
            self.growth.attach(self)

    @property
    def began(self) -> Mapping[str, Json]:
        """What the run was told of the time at its beginning; empty in a log of an earlier version."""
        return {} if self.state.started is None else self.state.started.time

    def emit(self, event: Event, *, urgent: bool = False, shown: Event | None = None) -> Future[int] | None:
        """Record `event`, take it into the state and tell the listeners; deltas are only told.

        With `shown` they are told that instead: the same, with words that the log is not to have.
        """
        event = without_secrets(event, self.redactor)
        if not isinstance(event, Told):
            at = time.time()
            self._last = self.store.append(self.run_id, event, at=at, urgent=urgent)
            self._last.add_done_callback(self._note)
            self.state.apply(event, at)
            self.flow.take(event)
            if isinstance(event, ModelAnswered):
                self.allowance.note(event)
        last = self._last
        self.tell(event if shown is None else shown)
        if isinstance(event, ModelAnswered) and self._due():
            self.checkpoint("cycles")
        return last

    def _due(self) -> bool:
        """Whether a snapshot is; in a long run after a twentieth more turns, so that their cost grows as the run does, not as its square."""
        turns = self.state.usage.model_calls
        due = self.checkpoint_every is not None and turns - self._turns_kept >= max(self.checkpoint_every, turns // 20)
        if due:
            self._turns_kept = turns
        return due

    def checkpoint(self, reason: str) -> None:
        """Keep a snapshot of what is on disk of the run: of everything, unless it is just one of many (`cycles`).

        A log that cannot be read is left to whoever needs it.
        """
        with suppress(StoreError):
            if reason != "cycles":
                self.store.flush()
            if (saved := self.store.checkpoint(self.run_id, reason)) is not None:
                self.emit(saved)

    def adopt(self, event: Event, at: float) -> None:
        """Take in an event that is in the log already."""
        self.state.apply(event, at)
        self.flow.take(event)
        self.tell(event)

    def tell(self, event: Event) -> None:
        """Tell the listeners; one that fails is reported to the event loop and told no more."""
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  # whoever watches a run must not end it
                self.listeners.remove(listener)
                message = f"a listener of run {self.run_id} failed and is told no more"
                asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def go(self, target: RunStatus, reason: str = "") -> None:
        """Change the run's state."""
        waited_for = target is not RunStatus.EXECUTING  # of that nobody waits: it shares a commit with what follows
        self.emit(StateTransition(source=self.state.status, target=target, reason=reason), urgent=waited_for)

    async def sleep(self, seconds: float) -> None:
        """Wait between attempts of a step; that is no work."""
        self.clock.hold()
        try:
            await self.ports.sleep(seconds)
        finally:
            self.clock.release()

    async def on_disk(self) -> None:
        """Wait until everything emitted so far is committed; raises the store's error if something was refused."""
        if (done := self._last) is not None:
            if not done.done():
                self.store.hurry()
                await asyncio.wrap_future(done)
            self._note(done)  # its own callback may be a moment late
        if self._failure is not None:
            raise self._failure

    def model_of(self, step: Step) -> Model:
        """The model that works on `step`."""
        model = self.resolve(step.model) if step.model else self.model
        return TextToolModel(model, thought=True) if step.react else model

    @property
    def tools(self) -> Toolbox:
        """The tools that can be called now: `toolbox`, and what reads on in answers as soon as one was too long to show."""
        if not self.state.wholes or reading.NAME in self.toolbox:
            return self.toolbox
        if self._reading is None:
            self._reading = Toolbox([*self.toolbox, reading.read_result])
        return self._reading

    def offered(self, step: Step) -> tuple[str, ...] | None:
        """Names of the tools that `step` may ask for; `None` for all of `toolbox`."""
        if self.growth is not None and step.tools is not None:
            names: tuple[str, ...] | None = self.growth.allowed(step.tools)
        else:
            names = () if step.operation and step.tools is None else step.tools
        if names == () or self.tools is self.toolbox:
            return names
        return (*(self.toolbox.names if names is None else names), reading.NAME)

    def specs_of(self, step: Step) -> tuple[ToolSpec, ...]:
        """The tools that the model of `step` is told of: of very many some, see `engine.showing`."""
        names = shown_names(step.id, self.offered(step), self.tools, self.state, self.emit)
        if names not in self._specs:
            self._specs[names] = self.tools.only(names or ()).specs()
        return self._specs[names]

    def grow(self, tools: Iterable[Tool]) -> None:
        """Have these tools too from now on; those of a name that is known take its place."""
        new = tuple(tools)
        names = {tool.name for tool in new}
        self.toolbox = Toolbox([*(tool for tool in self.toolbox if tool.name not in names), *new])
        self._specs, self._reading = {None: self.toolbox.specs()}, None

    def system_of(self, step: Step) -> str | None:
        """The system message of `step` where it is not the run's."""
        if not step.instructions.strip() or self.state.started is None:
            return None
        return f"{self.state.started.system}\n\n{step.instructions.strip()}"

    def check_limits(self, step: Step) -> None:
        """Raise `LimitError` if the next model turn, of `step`, would pass a limit of the run; `RunError` for one of the step.

        Raises the store's error if an event was refused: nothing the model says would be kept.
        """
        if self._failure is not None:
            raise self._failure
        if step.turns is not None and self.state.conversation(step.id).cycles >= step.turns:
            msg = f"step {step.id!r} has used its {step.turns} model turns without an answer"
            raise RunError(msg)
        limits, usage = self.limits, self.state.usage
        turns = sum(talk.cycles for talk in self.state.conversations.values()) + self.allowance.unrecorded
        if limits.cycles is not None and turns >= limits.cycles:
            raise LimitError("cycles", f"the limit of {limits.cycles} model turns is reached")  # noqa: EM101  # the limit and the message
        if limits.cost_usd is not None and usage.cost_usd >= limits.cost_usd:
            raise LimitError("cost_usd", f"the limit of ${limits.cost_usd:g} is reached: ${usage.cost_usd:.4f} spent")  # noqa: EM101  # the limit and the message
        if limits.tokens is not None and usage.tokens >= limits.tokens:
            raise LimitError("tokens", f"the limit of {limits.tokens:,} tokens is reached: {usage.tokens:,} used")  # noqa: EM101  # the limit and the message
        if limits.messages is not None and sum(len(talk.messages) for talk in self.state.conversations.values()) >= limits.messages:
            raise LimitError("messages", f"the limit of {limits.messages:,} messages is reached")  # noqa: EM101  # the limit and the message

    def warn_unpriced(self, model: Model, before: int) -> None:
        """Say at the first unpriced call, when there were none `before`, that the cost limit cannot be watched."""
        if before == 0 < self.state.usage.unpriced and self.limits.cost_usd is not None:
            text = (
                f"the price of {model.name} is not known: its cost is not counted and the limit of ${self.limits.cost_usd:g} cannot stop it"
            )
            self.emit(BudgetWarned(limit="cost_usd", message=text))

    def _earlier(self, count: int) -> list[Event]:
        """The first `count` events of the run; raises `StoreError` rather than return fewer: whoever asks would forget what was read."""
        records = self.store.records(self.run_id)
        if len(records) < count:  # the beginning of a run or a fork may still be queued
            self.store.flush()
            records = self.store.records(self.run_id)
        if len(records) < count:
            msg = f"the log of run {self.run_id} has {len(records)} events of the {count} that the session took up"
            raise StoreError(msg)
        return [record.event for record in records[:count]]

    def _flow_of(self, tool: str) -> Flow:
        return self.tools.get(tool).flow if tool in self.tools else UNKNOWN

    def _note(self, done: Future[int]) -> None:
        self._failure = self._failure or done.exception()


def _left(limit: float | None, used: float) -> float | None:
    """Seconds that a limit leaves; never none, since a run that begins has to end by itself."""
    return None if limit is None else max(0.001, limit - used)
