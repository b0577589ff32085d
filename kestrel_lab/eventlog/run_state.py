"""From events to the state they describe: the one definition of what a log means.

`RunState` is mutated by `apply` for speed: a frozen copy per event would make long runs quadratic. It is
never written anywhere and can always be rebuilt by `fold`; resuming a run is `fold` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    ContextCompacted,
    CouncilDecided,
    Event,
    FolderChanged,
    KernelChanged,
    KernelUndone,
    MacroFinished,
    MacroStarted,
    McpCandidateFound,
    McpInstalled,
    MemoryRecalled,
    MemoryStored,
    ModelAnswered,
    ModelCalled,
    ModelEscalated,
    PlanExtended,
    PlanProposed,
    Prompted,
    Record,
    RunFinished,
    RunForked,
    RunInterrupted,
    RunResumed,
    RunStarted,
    StageFinished,
    StageStarted,
    StateTransition,
    StepFinished,
    StepRetried,
    StepStarted,
    TaskChanged,
    ToolAnswered,
    ToolCalled,
    ToolsAdded,
    ToolsShown,
    VoteCast,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message
from kestrel_lab.core.plan import Plan, Step, conversation_step
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.usage import UsageMeter
from kestrel_lab.eventlog.conversation import Conversation, OpenMacro, read_images
from kestrel_lab.eventlog.large_results import StoredText

_COUNTED: set[type] = set()
"""Types of events that change nothing but counts, as `RunState.apply` found out."""


@dataclass(kw_only=True, slots=True)
class RunState:
    """Everything a session must know to go on with a run."""

    status: RunStatus = RunStatus.PLANNING
    started: RunStarted | None = None
    """With the model, tools and policy of the fork, in a forked run."""
    private_copy: dict[str, Json] = field(default_factory=dict)
    """The fork's private copy of the workspace, see `RunForked.private_copy`; empty if it has none."""
    model_kind: str = "real"
    """`real` only if every model that worked on the run so far is."""
    plan: dict[str, Json] = field(default_factory=dict)
    conversations: dict[str, Conversation] = field(default_factory=dict)
    finished_steps: dict[str, bool] = field(default_factory=dict)
    skipped_steps: set[str] = field(default_factory=set)
    """Those of them that were not carried out."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why steps failed or were skipped."""
    outputs: dict[str, Json] = field(default_factory=dict)
    """What finished operations gave, by step."""
    stages: dict[str, int] = field(default_factory=dict)
    """Stages that began, with the number of their attempt."""
    checkpoints: dict[str, StageFinished] = field(default_factory=dict)
    """The last checkpoint of each step of a stage."""
    begun: dict[str, ToolCalled] = field(default_factory=dict)
    """Calls that were started and have no answer: after a crash their outcome is unknown."""
    macros: dict[str, OpenMacro] = field(default_factory=dict)
    """Macros under way, by the call that runs them."""
    questions: dict[str, ApprovalAsked] = field(default_factory=dict)
    """Questions nobody has answered."""
    decisions: dict[str, ApprovalGiven] = field(default_factory=dict)
    """Answers by question."""
    always: set[str] = field(default_factory=set)
    """Tools that need no further approval in this run."""
    same: set[str] = field(default_factory=set)
    """Keys of calls that need none."""
    like: dict[str, list[str]] = field(default_factory=dict)
    """Patterns of commands that need none, by tool."""
    shows: dict[str, str] = field(default_factory=dict)
    """By call, the key of the preview that a person said yes to; empty where they changed the arguments."""
    writers: dict[str, list[str]] = field(default_factory=dict)
    """By path, the steps that changed a file, in order."""
    bound: dict[str, str] = field(default_factory=dict)
    """The key that each decision is bound to, by question."""
    recalled: set[str] = field(default_factory=set)
    """Ids of the notes that were given to it."""
    kept: set[str] = field(default_factory=set)
    """Ids of the notes it left for later runs."""
    kernels: dict[str, str] = field(default_factory=dict)
    """By call whose code changed a kernel and was not undone, the name of that kernel."""
    tasks: dict[str, TaskChanged] = field(default_factory=dict)
    """The task list, by number."""
    shown: dict[str, list[str]] = field(default_factory=dict)
    """Tools that each step's model was offered out of too many to show, in order; under "" for all steps."""
    questions_shown: dict[str, int] = field(default_factory=dict)
    """How many questions of a step they were chosen for."""
    candidates: dict[str, McpCandidateFound] = field(default_factory=dict)
    """Servers that could be had, by their names in the catalogue or registry."""
    servers: dict[str, McpInstalled] = field(default_factory=dict)
    """Those that were installed in the run, by name."""
    meter: UsageMeter = field(default_factory=UsageMeter)
    """What it has used: tokens, money, calls and seconds."""
    branches: dict[str, str] = field(default_factory=dict)
    """Steps of sub-agents, by the call that delegated to them."""
    votes: dict[str, VoteCast] = field(default_factory=dict)
    """What members of councils said, by the step in which they did."""
    escalated: set[str] = field(default_factory=set)
    """Steps in which another model or tier took over."""
    councils: dict[str, CouncilDecided] = field(default_factory=dict)
    """How councils decided, by step."""
    wholes: dict[str, StoredText] = field(default_factory=dict)
    """Answers that were too long to show, by the names under which they are kept whole."""
    answer: str = ""
    finished: RunFinished | None = None
    interrupted: bool = False
    """Whether work on it was broken off and nobody has taken it up since."""
    events: int = 0

    @property
    def project(self) -> str:
        """The workspace, by which memory, macros and approvals know the run."""
        return "" if self.started is None else self.started.workspace

    @property
    def folder(self) -> str:
        """Where its files are: the workspace, or the private copy of a fork."""
        return str(self.private_copy["folder"]) if self.private_copy else self.project

    @property
    def usage(self) -> Usage:
        """Tokens, money and calls."""
        return self.meter.usage

    @property
    def working_s(self) -> float:
        """Seconds spent on anything but waiting, the time between sessions left out."""
        return self.meter.working_s

    @property
    def open_s(self) -> float:
        """Seconds in which a session had the run open."""
        return self.meter.working_s + self.meter.waiting_s + self.meter.idle_s

    @property
    def planned(self) -> Plan:
        """The plan the run follows; raises `UsageError` if the log holds one that is not valid."""
        if self.started is None:
            raise StoreError("the run has no beginning in the log, so it has no plan")
        stored = self.plan or self.started.plan
        return Plan.from_json(stored) if stored else Plan.single(self.started.goal)

    @property
    def left(self) -> tuple[Step, ...]:
        """The steps of its plan that are not done."""
        return tuple(step for step in self.planned.steps if not self.finished_steps.get(step.id))

    def conversation(self, step: str) -> Conversation:
        """The conversation of `step`, begun if need be."""
        if (known := self.conversations.get(step)) is None:
            known = self.conversations[step] = Conversation()
        return known

    def spent(self, step: str) -> dict[str, float]:
        """Return what `step` and the sub-agents below it have used of `cost_usd`, `tokens` and `seconds`."""
        # Recursive, since a sub-agent may delegate as well; each spends from the share of the one above.
        total = dict(self.conversation(step).used)
        for name in [
            name for name, conversation in self.conversations.items() if conversation.within == step
        ]:
            for limit, amount in self.spent(name).items():
                total[limit] = total.get(limit, 0) + amount
        return total

    def macro_of(self, call: str) -> OpenMacro | None:
        """The macro under way that `call` is one of the calls of, if it is."""
        return self.macros.get(call.rpartition("/")[0])

    def apply(self, event: Event, at: float) -> None:  # one case per event  # noqa: C901, PLR0915
        """Take one event in."""
        self.events += 1
        self.meter.take(event, at)
        if type(event) in _COUNTED:
            return
        match event:
            case ModelCalled():
                conversation = self.conversation(event.step)
                conversation.cycles += 1
                conversation.asked = True
                conversation.files |= conversation.read
                conversation.read.clear()
            case ModelAnswered():
                self._model_answered(event)
            case ToolCalled():
                self.begun[event.call] = event
            case ToolAnswered():
                self._tool_answered(event)
            case ContextCompacted():
                self._compacted(event)
            case FolderChanged():
                self.conversation(event.step).folder = event.folder
            case MacroStarted():
                self.macros[event.call] = OpenMacro(started=event)
            case MacroFinished():
                if event.call in self.macros:
                    self.macros[event.call].finished = True
            case ApprovalAsked():
                self.questions[event.question or event.call] = event
            case ApprovalGiven():
                self._decided(event)
            case StateTransition():
                self.status = RunStatus(event.target)
            case RunStarted():
                self.started, self.model_kind, self.private_copy = event, event.model_kind, event.private_copy
                self._take_over(event.earlier)
            case RunResumed():
                self._resumed(event)
            case RunInterrupted():
                self.interrupted = True
            case RunForked():
                self._forked(event)
            case PlanProposed():
                self.plan = event.plan
            case PlanExtended():
                self._extended(event)
            case StageStarted():
                self.stages[event.stage] = event.attempt
            case StageFinished():
                self.checkpoints[event.task] = event
            case StepStarted():
                self.conversation(event.step).began = self.conversation(event.step).began or at
                self._step_started(event)
            case Prompted():
                self._prompted(event)
            case StepRetried():
                self._retried(event)
            case StepFinished():
                self._step_finished(event)
            case MemoryRecalled():
                self.recalled.update(str(note["id"]) for note in event.notes if "id" in note)
            case MemoryStored():
                if "id" in event.note:
                    self.kept.add(str(event.note["id"]))
            case KernelChanged():
                self.kernels[event.call] = event.kernel
            case KernelUndone():
                self._undone(event)
            case TaskChanged():
                self.tasks[event.task] = event
            case ModelEscalated():
                self.escalated.add(event.step)
            case VoteCast():
                self.votes[event.step] = event
            case CouncilDecided():
                self.councils[event.step] = event
            case ToolsAdded():
                if self.started is not None:
                    self.started = replace(self.started, tools=[*self.started.tools, *event.tools])
            case ToolsShown():
                self._tools_shown(event)
            case McpCandidateFound():
                self.candidates[event.server] = event
            case McpInstalled():
                self.servers[event.server] = event
            case RunFinished():
                self.finished, self.answer = event, event.answer
            case _:  # no case above has a condition beside the type, so this holds for all of the type
                _COUNTED.add(type(event))

    def _take_over(self, earlier: Mapping[str, Any]) -> None:
        """Take over what the earlier run recalled; its messages follow when this run's agent begins."""
        self.recalled.update(earlier.get("recalled", ()))
        self.wholes |= {name: StoredText(**whole) for name, whole in earlier.get("wholes", {}).items()}

    def _extended(self, event: PlanExtended) -> None:
        steps = cast("list[Json]", self.plan.get("steps", []))
        self.plan = {**self.plan, "steps": [*steps, *event.steps]}
        if event.artifacts:
            self.plan["artifacts"] = {
                **cast("dict[str, Json]", self.plan.get("artifacts", {})),
                **event.artifacts,
            }

    def _compacted(self, event: ContextCompacted) -> None:
        conversation = self.conversation(event.step)
        conversation.results |= event.results
        wholes: Mapping[str, Any] = event.wholes
        self.wholes |= {name: StoredText(**whole) for name, whole in wholes.items()}
        if event.summary:
            conversation.summary, conversation.upto = event.summary, event.upto
            conversation.cycles += self.conversations.pop(event.by, Conversation()).cycles

    def _joined_by(self, model_kind: str) -> None:
        self.model_kind = self.model_kind if model_kind == "real" else model_kind

    def _resumed(self, event: RunResumed) -> None:
        self.interrupted = False
        self._joined_by(event.model_kind)
        if event.limits and self.started is not None:
            self.started = replace(self.started, limits=event.limits)

    def _forked(self, event: RunForked) -> None:
        """Go on without what was asked in the parent and not answered there: the fork asks for itself."""
        self.interrupted = False
        self.private_copy = event.private_copy or self.private_copy
        self._joined_by(event.model_kind)
        if self.started is not None:
            limits = event.limits or self.started.limits
            self.started = replace(
                self.started,
                model=event.model,
                model_kind=event.model_kind,
                tools=event.tools,
                policy=event.policy,
                limits=limits,
            )
        self.questions.clear()
        for conversation in self.conversations.values():
            conversation.cycles -= conversation.asked
            conversation.asked = False
            conversation.borrowed = bool(conversation.session)

    def _step_started(self, event: StepStarted) -> None:
        # A resumed run gives a failed step another try.
        self.finished_steps.pop(event.step, None)
        self.skipped_steps.discard(event.step)
        if event.model:
            self._joined_by(event.model_kind)
        if event.parent:
            self.branches[event.call] = event.step
            self.conversation(event.step).within, self.conversation(event.step).limits = (
                event.parent,
                event.limits,
            )
        if not self.conversation(event.step).messages and event.goal:
            self._say(
                event.step,
                f"{event.goal}\n\n{event.context}" if event.context else event.goal,
                event.system,
                event.images,
            )

    def _say(self, step: str, text: str, system: str | None, images: list[dict[str, Json]]) -> None:
        conversation = self.conversation(step)
        if not conversation.messages:
            said = system if system is not None else self.started.system if self.started is not None else ""
            if said:
                conversation.messages.append(Message(role="system", text=said))
            if (
                self.started is not None
                and self.started.earlier
                and step == conversation_step(self.started.plan)
            ):
                earlier: Mapping[str, Any] = self.started.earlier
                conversation.messages += [
                    Message.from_json(body, earlier=True) for body in earlier["messages"]
                ]
                conversation.files |= earlier.get("files", {})
        conversation.messages.append(Message(role="user", text=text, images=read_images(images)))
        conversation.prompts += 1

    def _prompted(self, event: Prompted) -> None:
        self._say(event.step, event.text, event.system, event.images)
        conversation = self.conversation(event.step)
        conversation.again = event.again
        if event.again:
            conversation.prompts -= 1
            del conversation.replies[-1:]

    def _retried(self, event: StepRetried) -> None:
        conversation = self.conversation(event.step)
        # A new try.
        if (last := self.checkpoints.get(event.step)) is not None and last.status == "failed":
            conversation.earlier, conversation.waited_s = event.attempt - 1, 0.0
        conversation.attempt, conversation.error = event.attempt, ""
        conversation.waited_s += event.wait_s
        conversation.asked = False

    def _step_finished(self, event: StepFinished) -> None:
        self.finished_steps[event.step] = event.ok
        if event.skipped:
            self.skipped_steps.add(event.step)
        if event.reason:
            self.reasons[event.step] = event.reason
        if event.output is not None:
            self.outputs[event.step] = event.output

    def _tools_shown(self, event: ToolsShown) -> None:
        shown = self.shown.setdefault(event.step, [])
        shown += [name for name in event.tools if name not in shown]
        if event.messages:
            self.questions_shown[event.step] = event.messages

    def _model_answered(self, event: ModelAnswered) -> None:
        if event.replayed:
            self._joined_by("replay")
        self.conversation(event.step).answered(event)

    def _undone(self, event: KernelUndone) -> None:
        """Note in the conversations with the answers of these calls that their effects were undone."""
        note = (
            "\n[the user has undone this call since"
            + "".join(f"; not {what}: {why}" for what, why in event.missing.items())
            + "]"
        )
        for call in event.calls:
            self.kernels.pop(call, None)
            for conversation in self.conversations.values():
                conversation.annotate(call, note)

    def _tool_answered(self, event: ToolAnswered) -> None:
        self.begun.pop(event.call, None)
        if event.whole:
            self.wholes[event.whole] = StoredText(call=event.call, tool=event.tool, chars=event.chars)
        conversation = self.conversation(event.step)
        # The calls of a sub-agent count for themselves.
        if event.call not in self.branches:
            conversation.use(seconds=event.seconds)
        conversation.session = event.session or conversation.session
        for path, version in event.knows.items():
            (conversation.files if path in event.changed else conversation.read)[path] = str(version)
        for path in event.changed:
            conversation.read.pop(path, None)
            self.writers.setdefault(path, []).append(event.step)
        if (macro := self.macro_of(event.call)) is not None:
            macro.answers[event.call] = event
            return
        self.macros.pop(event.call, None)
        conversation.take_answer(event)
        if not conversation.requests:
            conversation.value = event.value
            if event.error is not None:
                conversation.error = str(event.error.get("message", event.text))
                conversation.problem = str(event.error.get("kind", ""))
                conversation.passing = bool(event.error.get("transient"))
        if (
            conversation.requests
            and len(conversation.answers) >= len(conversation.requests)
            and not conversation.open_requests
        ):
            conversation.end_turn()

    def _decided(self, event: ApprovalGiven) -> None:
        question = event.question or event.call
        asked = self.questions.pop(question, None)
        self.decisions[question] = event
        if asked is None:
            return
        self.bound[question] = asked.key
        if event.granted and asked.shows:
            self.shows[asked.call] = asked.shows if event.args is None else ""
        if event.granted and event.args is None and event.scope in ("same", "like"):
            self.same.add(asked.key)
            if event.scope == "like" and asked.offer:
                self.like.setdefault(asked.tool, []).append(asked.offer)
        if event.granted and event.scope == "run":
            self.always.add(asked.tool)


def fold(records: Iterable[Record]) -> RunState:
    """The state that a log describes; a prefix of the log gives the state at that time."""
    state = RunState()
    for record in records:
        state.apply(record.event, record.at)
    return state
