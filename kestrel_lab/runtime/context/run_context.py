"""What a run carries with it: where its events go, what it may use, how far it may go."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kestrel_lab.answers.output_types import OutputType
from kestrel_lab.core.errors import LimitError, RunError, StoreError, stops_task
from kestrel_lab.core.events.union import (
    EVENT_TYPES,
    CheckpointSaved,
    Event,
    LiveEvent,
    ModelAnswered,
    StateTransition,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ToolSpec
from kestrel_lab.core.plan_shapes import all_steps
from kestrel_lab.core.protocols import Listener, Model
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.run_types import EARLY_STOPPING, Limits, RunStatus
from kestrel_lab.core.step import Step
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.middleware.hooks import Moment, Phase
from kestrel_lab.models.prompted_tools import TextToolModel
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.runtime.context.budget import Allowance, WorkClock, seconds_left
from kestrel_lab.runtime.context.dependencies import Ports
from kestrel_lab.runtime.context.file_history import FileHistory
from kestrel_lab.runtime.context.guidance import NestedGuidance
from kestrel_lab.runtime.context.run_services import RunServices
from kestrel_lab.runtime.context.tool_selection import MOST_SHOWN, Growth, select_tools
from kestrel_lab.runtime.options import LabOptions, StartOptions, guidance_names
from kestrel_lab.runtime.security.containment import Containment, TaintLog
from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.tools import read_result as reading
from kestrel_lab.tools.data_flow import UNKNOWN, Flow
from kestrel_lab.tools.delegation import DELEGATE, describe_for_team
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.skills import LOAD_SKILL, READS, Skill
from kestrel_lab.tools.tool import Tool, Toolbox

# Events without secrets: what a failure says may quote an address, a header or a file.

_FOREIGN = ("error", "reason", "message")
"""Fields with words of errors.

What tools answer is redacted where it comes from, before anything keeps it; what is asked for stays exact.
"""
_OF_KIND = {
    kind: tuple(name for name in kind.__struct_fields__ if name in _FOREIGN) for kind in EVENT_TYPES.values()
}


def without_secrets(event: Event, redactor: Redactor) -> Event:
    """`event`, or one like it whose words about what went wrong hold no secret."""
    changed = {}
    for name in _OF_KIND[type(event)]:
        if (said := getattr(event, name)) and (clean := redactor.json(said)) != said:
            changed[name] = clean
    return replace(event, **changed) if changed else event  # the type of a field stays what it was


_SMALL_IMAGE = 100_000
"""Bytes of a state that are packed in less time than a thread takes to begin and tell of its end."""
MOST_QUEUED = 1_024
"""Events that may wait for the log before a run waits for it: what is queued is written in a tenth of a
second.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What a run was asked to do with, from its beginning to its end."""

    options: StartOptions
    """What its caller gave."""
    usual: LabOptions
    """What its lab had in place of what was not given, when the run began."""
    model: Model
    workspace: Workspace
    policy: Policy
    limits: Limits
    output: OutputType | None
    """The form of its answer."""
    resolve: Callable[[str], Model]
    """Finds the model of a name, for steps that have one of their own."""
    ports: Ports
    """What operations ask for that is neither a model nor a tool."""
    sandbox: Sandbox
    """How commands that tools start are held in."""
    skills: Mapping[str, Skill]
    """By name, the skills that its agents can load."""
    containment: Containment
    """Whether what others wrote may lead to effects without a person: see `security.containment`."""


@dataclass(kw_only=True)
class RunContext:
    """A run while a session works on it: what it was `given`, the `services` of its lab, and all that changes
    as it goes, of which `state` is what the log says.
    """

    run_id: str
    given: Given
    services: RunServices
    state: RunState
    toolbox: Toolbox
    history: FileHistory
    """Keeps what files hold before and after calls that may change them."""
    listeners: list[Listener] = field(default_factory=list)
    growth: Growth | None = None
    """What finds more tools for the run; `None` for a run that keeps those it began with."""
    equip: Callable[[], Awaitable[None]] | None = None
    """Has servers started whose tools the run is to have, before its first step; `None` where there are none.
    """
    nested: NestedGuidance | None = None
    """Tells agents of guidance in folders; `None` for a workspace without guidance."""
    delegate: Callable[[Step, str, str, str, float], Awaitable[Json]] | None = None
    """Has a sub-agent work on a goal; set while the plan is carried out."""
    flow: TaintLog = field(init=False)
    """Whose words its models have read."""
    allowance: Allowance = field(init=False)
    clock: WorkClock = field(init=False)
    # By call, dry runs that were still at work when the question was asked.
    dry_runs: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one call, of all steps, that may change what others of its kind change too."""
    cancelled: bool = False
    """Whether somebody decided that the run ends."""
    task: asyncio.Task[None] | None = None
    """What works on the run."""
    _turns_kept: int = field(init=False)
    _specs: dict[tuple[str, ...] | None, tuple[ToolSpec, ...]] = field(default_factory=dict)
    _reading: Toolbox | None = None
    _queued: bool = False
    """Whether an event was recorded since the last commit was asked for."""
    _asking: list[asyncio.Future[None]] | None = None
    """Who waits for a commit that will be asked for when the event loop turns over; `None` for nobody."""
    _waiting: list[asyncio.Future[None]] | None = None
    """Who waits for the commit that was asked for last; `None` when it is done."""
    _failure: BaseException | None = None
    unpriced_told: bool = False
    """Whether somebody was told that the limit of money cannot be kept."""
    _in_order: bool = True
    """Whether the state was made of the events in the order of the log; a decision from elsewhere may come
    between.
    """

    def begin(self, opening: tuple[Event, ...]) -> None:
        """Set up what depends on the events so far; called once, when the first events of the run are in
        `state`.

        `opening` are those of them that this session wrote.
        """
        limits, state = self.given.limits, self.state
        self.clock = WorkClock(
            seconds_left(limits.seconds, state.working_s), seconds_left(limits.wall_seconds, state.open_s)
        )
        self.allowance = Allowance(limits, state, self.services.max_usage)
        self._turns_kept = self.state.usage.model_calls
        earlier = (lambda: opening) if len(opening) == state.events else partial(self._earlier, state.events)
        self.flow = TaintLog(
            earlier, Taint(known=_flows_of(self.toolbox), strict=self.given.containment == "strict")
        )
        self._specs[None] = tuple(self.toolbox.specs())
        if self.growth is not None:
            self.growth.attach(self)
        if state.started is not None and state.started.guidance:
            self.nested = NestedGuidance(
                self.given.workspace, guidance_names(self.given.usual["guidance_files"])
            )

    @property
    def began(self) -> Mapping[str, Json]:
        """The time at the run's beginning, as `RunStarted.time`; empty in a log of an earlier version."""
        return {} if self.state.started is None else self.state.started.time

    def emit(self, event: Event, *, urgent: bool = False, shown: Event | None = None) -> None:
        """Record `event`, apply it to the state and pass it to the listeners; deltas are passed on only.

        If `shown` is given, listeners get that: the same event with words that the log must not have.
        """
        if _OF_KIND[type(event)]:
            event = without_secrets(event, self.services.redactor)
        if not isinstance(event, LiveEvent):
            at = time.time()
            self.services.store.record(self.run_id, event, at, self._refused, urgent=urgent)
            self._queued = True
            self.state.apply(event, at)
            self.flow.take(event)
            if isinstance(event, ModelAnswered):
                self.allowance.note(event)
        if self.listeners:
            self.tell(event if shown is None else shown)

    def _due(self) -> bool:
        """Whether a snapshot is; in a long run after a twentieth more turns, so that their cost grows as the
        run does, not as its square.
        """
        turns, every = self.state.usage.model_calls, self.given.usual["checkpoint_every"]
        due = every is not None and turns - self._turns_kept >= max(every, turns // 20)
        if due:
            self._turns_kept = turns
        return due

    def checkpoint(self, reason: str) -> None:
        """Keep a snapshot of the run as it is now.

        A log that cannot be read is reported where it is needed.
        """
        with suppress(StoreError):
            self.services.store.flush()
            self._tell_of(self.services.store.checkpoint(self.run_id, reason))

    def _tell_of(self, saved: CheckpointSaved | None) -> None:
        if saved is not None:
            self.emit(saved)

    def adopt(self, event: Event, at: float) -> None:
        """Take in an event that is in the log already."""
        self._in_order = False  # it may stand before events that were applied earlier
        self.services.store.kept.pop(self.run_id, None)  # they lack it
        self.state.apply(event, at)
        self.flow.take(event)
        self.tell(event)

    def tell(self, event: Event) -> None:
        """Pass `event` to the listeners; one that fails is reported to the event loop and removed."""
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except BaseException as error:  # a listener must not end the run
                if stops_task(error):
                    raise
                self.listeners.remove(listener)
                asyncio.get_running_loop().call_exception_handler(
                    {
                        "message": f"a listener of run {self.run_id} failed and was removed",
                        "exception": error,
                    }
                )

    def go(self, target: RunStatus, reason: str = "") -> None:
        """Change the run's state."""
        # For that nobody waits: it shares a commit with what follows.
        waited_for = target is not RunStatus.EXECUTING and not self.given.ports.stored_behind
        self.emit(StateTransition(source=self.state.status, target=target, reason=reason), urgent=waited_for)

    async def sleep(self, seconds: float) -> None:
        """Wait between attempts of a step; that is not work."""
        self.clock.hold()
        try:
            await self.given.ports.sleep(seconds)
        finally:
            self.clock.release()

    async def yield_control(self, *, turn: bool = True) -> None:
        """Let the event loop turn over before the next model call, and before a single tool call; not without
        `turn`.

        A model that never suspends (a script, a recording) and tools that never do (plain functions, stored
        answers) would otherwise keep deadlines, cancellation and listeners from being heard. Waits for the
        log where it lags far behind, because stopping has to wait for what is queued. Raises `LimitError`
        past a deadline of the run and where it cannot succeed any more, the store's error if an event was
        refused.
        """
        if turn:
            await asyncio.sleep(0)
        self.check_going()
        early_stopping = self.given.ports.early_stopping
        if early_stopping is not None or self.services.store.backlog > MOST_QUEUED:
            await self.on_disk()
        if early_stopping is not None and (why := await early_stopping(self.run_id)):
            raise LimitError(EARLY_STOPPING, why)
        if self._due():
            image = self.services.store.image(self.run_id, self.state) if self._in_order else None
            with suppress(StoreError):
                if image is not None and len(image.body) < _SMALL_IMAGE:
                    self._tell_of(self.services.store.checkpoint(self.run_id, "cycles", image))
                else:  # its cost grows with the run: in a thread, or nothing else would be heard meanwhile
                    self._tell_of(
                        await asyncio.to_thread(self.services.store.checkpoint, self.run_id, "cycles", image)
                    )

    @property
    def interrupted(self) -> bool:
        """Whether the work is being broken off while neither a person nor a limit ends the run: then whoever
        resumes it goes on.
        """
        return self.stopping and not (self.cancelled or self.clock.expired)

    def break_off(self) -> None:
        """Interrupt the run, because a Ctrl-C reached a tool, or whoever was asked, instead of the event
        loop.
        """
        if self.task is not None:
            self.task.cancel()
        handler = signal.getsignal(signal.SIGINT)
        if (
            threading.current_thread() is threading.main_thread()
            and callable(handler)
            and handler is not signal.default_int_handler
        ):
            signal.raise_signal(signal.SIGINT)  # whatever else runs on the loop is to hear of it too

    @property
    def stopping(self) -> bool:
        """Whether the run is being stopped, for whatever reason: nothing new may begin."""
        return self.task is not None and self.task.cancelling() > 0

    def out_of_time(self, limit: str) -> LimitError:
        """What ends the run past the deadline of that limit."""
        what = "s of work" if limit == "seconds" else "s since it began"
        return LimitError(limit, f"the limit of {getattr(self.given.limits, limit):g} {what} is reached")

    def check_going(self) -> None:
        """Raise what `yield_control` raises, without letting anything else go on first."""
        if self.stopping:  # the cancelled task ignored it
            raise asyncio.CancelledError
        self._check_going()

    def _check_going(self) -> None:
        if self._failure is not None:
            raise self._failure
        if limit := self.clock.overdue:
            raise self.out_of_time(limit)

    async def on_disk(self) -> None:
        """Wait until everything emitted so far is committed; raises the store's error if something was
        refused.
        """
        loop = asyncio.get_running_loop()
        if self._queued and self._asking is None:
            self._asking = []
            # Not at once: the other calls of a turn record that they begin, and share the commit.
            loop.call_soon(self._ask_for_commit, loop)
        # A caller that emitted nothing still has to wait for what others emitted.
        waiting = self._waiting if self._asking is None else self._asking
        if waiting is not None:
            waiting.append(waiter := loop.create_future())
            await waiter
        if self._failure is not None:
            raise self._failure

    def _ask_for_commit(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._asking, self._queued = self._asking or [], None, False
        self._waiting = waiting
        try:
            self.services.store.on_disk().add_done_callback(
                lambda done: (
                    None
                    if loop.is_closed()
                    else loop.call_soon_threadsafe(self._committed, waiting, done.exception())
                )
            )
        except Exception as error:  # the log was closed, for example: nobody may wait forever  # noqa: BLE001
            self._committed(waiting, error)

    def _committed(self, waiting: list[asyncio.Future[None]], error: BaseException | None) -> None:
        if self._waiting is waiting:
            self._waiting = None
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None) if error is None else waiter.set_exception(error)

    def model_of(self, step: Step) -> Model:
        """The model that works on `step`."""
        model = self.given.resolve(step.model) if step.model else self.given.model
        return TextToolModel(model, thought=True) if step.react else model

    @property
    def tools(self) -> Toolbox:
        """The tools that can be called now: `toolbox`, and what reads on in answers as soon as one was too
        long to show.
        """
        if not self.state.wholes or reading.NAME in self.toolbox:
            return self.toolbox
        if self._reading is None:
            self._reading = Toolbox([*self.toolbox, reading.read_result])
        return self._reading

    def offered(self, step: Step) -> tuple[str, ...] | None:
        """Names of the tools that `step` may ask for; `None` for all of `toolbox`."""
        names = None if step.tools is None else tuple(name for name in step.tools if name in self.toolbox)
        if self.growth is not None and names is not None:
            names = self.growth.allowed(names)
        names = () if step.operation and names is None else names
        if DELEGATE in self.toolbox:
            names = self._with_delegate(step, self.toolbox.names if names is None else names)
        if self.given.skills and names and LOAD_SKILL not in names and READS in names:
            names = (*names, LOAD_SKILL)
        if names == () or self.tools is self.toolbox:
            return names
        return (*(self.toolbox.names if names is None else names), reading.NAME)

    def _with_delegate(self, step: Step, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return `names` with the tool `delegate` where `step` may use it: a team, or a step of the plan that
        names it or is in a plan without teams.
        """
        others = tuple(name for name in names if name != DELEGATE)
        conversation = self.state.conversations.get(step.id)
        if step.team:
            return (*others, DELEGATE)
        if not step.goal or (conversation is not None and conversation.within):
            return others
        alone = step.tools is None and not any(other.team for other in all_steps(self.state.planned.steps))
        return names if alone or step.tools is not None else others

    def specs_of(self, step: Step) -> tuple[ToolSpec, ...]:
        """The tools offered to the model of `step`, see `runtime.context.tool_selection`."""
        names = self.offered(step)
        if (len(self.tools) if names is None else len(names)) > MOST_SHOWN:
            names = select_tools(step.id, names, self.tools, self.state, self.emit)
        if names not in self._specs:
            self._specs[names] = self.tools.only(names or ()).specs()
        if step.team:
            return tuple(
                describe_for_team(spec, step.members, step.team) if spec.name == DELEGATE else spec
                for spec in self._specs[names]
            )
        return self._specs[names]

    def grow(self, tools: Iterable[Tool]) -> None:
        """Have these tools too from now on; those of a name that is known take its place."""
        new = tuple(tools)
        names = {tool.name for tool in new}
        self.toolbox = Toolbox([*(tool for tool in self.toolbox if tool.name not in names), *new])
        self._specs, self._reading = {None: self.toolbox.specs()}, None
        self.flow.taint.known = _flows_of(self.toolbox)

    def system_of(self, step: Step) -> str | None:
        """The system message of `step` where it is not the run's."""
        if not step.instructions.strip() or self.state.started is None:
            return None
        return f"{self.state.started.system}\n\n{step.instructions.strip()}"

    def check_limits(self, step: Step) -> None:
        """Raise `LimitError` if the next model turn, of `step`, would pass a limit of the run; `RunError` for
        one of the step.

        Raises the store's error if an event was refused: nothing the model says would be kept.
        """
        self._check_going()
        if step.turns is not None and self.state.conversation(step.id).cycles >= step.turns:
            raise RunError(f"there was no answer within the step's {step.turns} model turns")
        self._check_shares(step.id)
        limits, used = self.given.limits, self.state.usage
        turns = (
            sum(conversation.cycles for conversation in self.state.conversations.values())
            + self.allowance.unrecorded
        )
        if limits.cycles is not None and turns >= limits.cycles:
            raise LimitError("cycles", f"the limit of {limits.cycles} model turns is reached")
        if limits.cost_usd is not None and used.cost_usd >= limits.cost_usd:
            raise LimitError(
                "cost_usd", f"the limit of ${limits.cost_usd:g} is reached: ${used.cost_usd:.4f} spent"
            )
        if limits.tokens is not None and (tokens := used.tokens) >= limits.tokens:
            raise LimitError("tokens", f"the limit of {limits.tokens:,} tokens is reached: {tokens:,} used")
        if (
            limits.messages is not None
            and sum(len(conversation.messages) for conversation in self.state.conversations.values())
            >= limits.messages
        ):
            raise LimitError("messages", f"the limit of {limits.messages:,} messages is reached")

    def _check_shares(self, name: str) -> None:
        """Raise `RunError` if `name`, or an agent that it works for, has used its share of the run."""
        while (conversation := self.state.conversations.get(name)) is not None and conversation.within:
            spent = self.state.spent(name)
            for limit, bound in conversation.limits.items():
                if spent.get(limit, 0) >= bound:
                    raise RunError(
                        f"agent {name!r} has used its share of the run: {spent.get(limit, 0):g} of "
                        f"{bound:g} {limit}"
                    )
            name = conversation.within

    def _earlier(self, count: int) -> list[Event]:
        """The first `count` events of the run; raises `StoreError` rather than return fewer: whoever asks
        would forget what was read.
        """
        records = self.services.store.records(self.run_id)
        if len(records) < count:  # the beginning of a run or a fork may still be queued
            self.services.store.flush()
            records = self.services.store.records(self.run_id)
        if len(records) < count:
            raise StoreError(
                f"the log of run {self.run_id} has {len(records)} events of the {count} that the "
                "session had read"
            )
        return [record.event for record in records[:count]]

    def _refused(self, error: Exception) -> None:
        self._failure = self._failure or error


def _flows_of(toolbox: Toolbox) -> Callable[[str], Flow]:
    """Return what finds the flow of a tool by its name.

    It holds the tools and not the run: a run that refers to itself stays in memory until Python looks for
    such circles, and a suite makes thousands of runs.
    """

    def flow_of(name: str) -> Flow:
        found = reading.read_result if name == reading.NAME else toolbox.find(name)
        return UNKNOWN if found is None else found.flow

    return flow_of


def in_notebook(ctx: RunContext) -> bool:
    """Return whether code of the run runs in the kernel of a notebook, if there is one: it is no trial of a
    suite.
    """
    return not ctx.given.options["scenario"] and not (
        ctx.state.started is not None and ctx.state.started.scenario
    )


async def call_hooks(ctx: RunContext, moment: Moment, step: str = "", **more: Any) -> None:
    """Call the user's hooks of a moment, of the agent of `step`; raises `RunError` where one raises."""
    hooks = ctx.given.usual.get("hooks")
    if hooks is None or not hooks.wants(moment):
        return
    conversation = ctx.state.conversations.get(step)
    progress = (
        {}
        if conversation is None
        else {
            "cycle": conversation.cycles,
            "messages": tuple(conversation.sent),
            "calls": conversation.open_requests,
        }
    )
    known = {
        "moment": moment,
        "run": ctx.run_id,
        "status": str(ctx.state.status),
        "usage": ctx.state.usage,
        "step": step,
    }
    await hooks.call(Phase(**{**known, **progress, **more}))
