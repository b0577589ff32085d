"""Taint tracking: which untrusted and private sources each step of a run has read, as a fold over its events.

Being a fold it survives resuming and forking. The context decides, not the arguments: a model that has read
untrusted text may be obeying it, whatever its call looks like. Each step has its own context; taint flows
between steps through artifacts, files, task lists and notes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from kestrel_lab.core.calls import Call
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    FilesTainted,
    MemoryRecalled,
    ModelAnswered,
    ModelCalled,
    PlanExtended,
    PlanProposed,
    RunForked,
    RunStarted,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.expressions.templates import is_chained
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message
from kestrel_lab.core.notes import untrusted_taint
from kestrel_lab.core.plan import conversation_step
from kestrel_lab.runtime.security.argument_texts import (
    Passage,
    call_label,
    strip_punctuation,
    texts_in,
    workspace_prompt_texts,
)
from kestrel_lab.runtime.security.authority import (
    further_call_text,
    further_calls,
    stated_effects,
    without_scheme,
)
from kestrel_lab.runtime.security.tool_declarations import read_answer, read_name
from kestrel_lab.tools.data_flow import UNKNOWN, Flow
from kestrel_lab.tools.interaction import STATE_EFFECTS

OURS = frozenset({"denied", "invalid_arguments", "unknown_tool", "limit"})
"""Kinds of errors that the engine writes itself: their text comes from no tool."""
_READ_ALL = frozenset({"verify", "commit"})
"""Operations that read the answers of every step."""
_WORD = re.compile(r"[^\W\d_]+")
_NEWS = 16
"""Letters an answer must add to the known text to be able to carry an instruction."""
_ADDRESS = re.compile(r"\S*[.:/]\S*")


@dataclass(frozen=True)
class Context:
    """The sources that the author of a call may have read, in the order in which they were read."""

    untrusted: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    """Of the whole run."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """By source, the undeclared tool whose answers may contain words of others."""

    @cached_property
    def doubted(self) -> frozenset[str]:
        """The undeclared tools behind the untrusted sources; empty for a source that is surely untrusted."""
        return frozenset([self.doubts.get(source, "") for source in self.untrusted])

    @cached_property
    def private_tools(self) -> frozenset[str]:
        """The tools that have answered what is private."""
        return frozenset([source.partition(" ")[0] for source in self.private])


@dataclass(slots=True)
class Taint:
    """The taint of every step so far."""

    known: Callable[[str], Flow] = lambda _: UNKNOWN
    """Returns the flow of a tool that the log does not describe."""
    strict: bool = False
    """True if the workspace's files count as untrusted from the start."""
    words: list[str] = field(default_factory=list)
    """The texts that the user wrote, in order."""
    _heard: tuple[int, frozenset[str]] = (0, frozenset())
    """Of how many of `words` the single words are known, and these."""
    passages: list[Passage] = field(default_factory=list)
    """Answers of tools, in order."""
    rows: dict[tuple[str, ...], list[dict[str, Json]]] = field(default_factory=dict)
    """Contents of answer fields that only the user or a service writes, one object each, by fields."""
    calls_of: dict[str, set[str]] = field(default_factory=dict)
    """By tool, the calls that were made or are about to be."""
    _made: dict[str, set[str]] = field(default_factory=dict)
    """By key, the same; without those of `_unkeyed`."""
    _unkeyed: list[Call] = field(default_factory=list)
    stated: dict[str, int] = field(default_factory=dict)
    """By tool, how many calls the model stated before it had read anything foreign."""
    stated_values: dict[str, list[Json]] = field(default_factory=dict)
    """By tool, the argument values that it stated with them."""
    allowed_together: dict[str, str] = field(default_factory=dict)
    """By call, the key under which a person allowed it together with another one."""
    refused: set[str] = field(default_factory=set)
    """Calls that a person denied together with another one."""
    closed: bool = False
    """True if a person denied all further calls of the run with such findings."""
    liked: dict[str, list[Mapping[str, Json]]] = field(default_factory=dict)
    """By tool whose similar calls a person allowed, the arguments of the calls shown."""
    agreed: set[str] = field(default_factory=set)
    """Calls, by key, that a person allowed for the whole run though three things met in them."""
    doubts: dict[str, str] = field(default_factory=dict)
    """By source, the undeclared tool whose answers may contain words of others."""
    said_of: dict[tuple[str, str], bool] = field(default_factory=dict)
    """By tool and question, a person's answer in this run, see `runtime.security.tool_declarations`."""
    put: set[tuple[str, str]] = field(default_factory=set)
    """Questions of this kind asked in this run, with any answer."""
    _sources: dict[str, Any] = field(default_factory=dict)
    """By call of an earlier turn, what is known of its answer; see `Passage`."""
    _root: str = ""
    _flows: dict[str, Flow] = field(default_factory=dict)
    _steps: dict[str, dict[str, None]] = field(default_factory=dict)
    _private: dict[str, None] = field(default_factory=dict)
    _guidance: list[str] = field(default_factory=list)
    """The untrusted sources in the system message."""
    _seen: dict[str, Context] = field(default_factory=dict)
    """By step, what its model had read when it was asked last."""
    _args: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    _levels: dict[str, str] = field(default_factory=dict)
    _plan: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    _makers: dict[str, list[str]] = field(default_factory=dict)
    _grown: dict[str, list[str]] = field(default_factory=dict)
    _files: dict[str, str] = field(default_factory=dict)
    _anywhere: str = ""
    _traced: dict[str, str] = field(default_factory=dict)
    """By call that was checked for files, the source of the words it read."""
    _asked: dict[str, ApprovalAsked] = field(default_factory=dict)
    _chained: set[str] = field(default_factory=set)
    _branches: dict[str, str] = field(default_factory=dict)
    """By call of `delegate` without an answer, the step of the sub-agent."""

    def context(self, call: Call) -> Context:
        """Return what the author of `call` had read: the model when it was asked, a step without model at its
        start.
        """
        seen = self._seen.get(call.step)
        # No model, or a call whose arguments hold earlier answers: a part of a macro, or one that refers to
        # them.
        if seen is None or "/" in call.id.removeprefix(call.step) or call.id in self._chained:
            return self._context(call.step)
        return seen

    def _context(self, step: str) -> Context:
        return Context(tuple(self._steps.get(step, ())), tuple(self._private), self.doubts)

    def allows(self, call: Call) -> bool:
        """Return whether a person has agreed to this very call."""
        allowed = self.allowed_together.get(call.id)
        return (bool(self.agreed) or allowed is not None) and (call.key in self.agreed or call.key == allowed)

    @property
    def clean(self) -> bool:
        """True if no untrusted text came into the run."""
        return not any(self._steps.values())

    @property
    def said(self) -> set[str]:
        """The words of the user, without the punctuation around them."""
        return {strip_punctuation(word) for text in self.words for word in text.split()}

    def named_by_user(self, args: Mapping[str, Json]) -> bool:
        """Return true if every text in `args` is an address from the user's words, with or without scheme: no
        new data.
        """
        said = {without_scheme(word) for word in self.said}
        texts = [text for _, text in texts_in(dict(args)) if text]
        return bool(texts) and all(
            without_scheme(text) in said and _ADDRESS.fullmatch(text) is not None for text in texts
        )

    def apply(self, event: Event) -> None:  # one case per event  # noqa: C901
        """Take one event in."""
        match event:
            case ToolCalled():
                self._called(event)
            case ToolAnswered():
                self._answered(event)
            case ModelCalled():
                self._seen[event.step] = self._context(event.step)
            case ModelAnswered():
                self._chained |= {str(call.get("id")) for call in event.calls if is_chained(call.get("args"))}
                self._args |= {
                    str(call.get("id")): cast("dict[str, Json]", call.get("args") or {})
                    for call in event.calls
                }
            case FilesTainted() if not event.call:
                self._into(event.step, [event.read])
            case FilesTainted():
                self._traced[event.call] = event.read
                for call in event.also:
                    self._traced.setdefault(call, "")
            case StepStarted():
                self._begun(event)
            case RunStarted():
                self._root = str(event.private_copy.get("folder") or event.workspace)
                self.words += [event.goal, *(text for _, text in texts_in(event.plan))]
                self._offered(event.tools)
                self._guided(event)
                self._planned(event.plan)
                self._take_over(event.earlier, conversation_step(event.plan))
            case RunForked():
                self._root = str(event.private_copy.get("folder") or self._root)
                self._offered(event.tools)
            case PlanProposed():
                self._planned(event.plan)
            case PlanExtended():
                self._extended(event)
            case MemoryRecalled():
                self._recalled(event)
            case ApprovalAsked() if event.contained:
                self._asked[event.question or event.call] = event
            case ApprovalGiven():
                self._decided(event)
            case _:
                pass

    def carried(self, messages: Iterable[Message]) -> dict[str, Json]:
        """Return what a run that follows this one has to know of the taint of `messages`, as JSON; see
        `RunStarted.earlier`.

        Everything that any step has read counts: the answer may hold words of all of it.
        """
        known = {passage.text: passage for passage in self.passages}
        sources: dict[str, Json] = {
            message.call_id: {
                "source": one.source,
                "private": one.private,
                "untrusted": one.untrusted,
                "tool": one.tool,
            }
            for message in messages
            if message.role == "tool" and (one := known.get(message.text)) is not None
        }
        return {
            "untrusted": list(
                dict.fromkeys(source for sources in self._steps.values() for source in sources)
            ),
            "doubts": {**self.doubts},
            "private": [*self._private],
            "words": [*self.words],
            "sources": {**self._sources, **sources},
        }

    def _take_over(self, earlier: Mapping[str, Any], step: str) -> None:
        """Begin with the taint of the conversation that the run goes on with."""
        if not earlier:
            return
        self.words[:0] = earlier.get("words", ())
        self.doubts |= earlier.get("doubts", {})
        self._private |= dict.fromkeys(earlier.get("private", ()))
        self._into(step, earlier.get("untrusted", ()))
        self._sources = dict(earlier.get("sources", {}))
        texts = {body.get("call_id"): body.get("text", "") for body in earlier["messages"]}
        self.passages += [
            Passage(text=texts[call], **about) for call, about in self._sources.items() if call in texts
        ]

    def _offered(self, tools: Iterable[Mapping[str, Json]]) -> None:
        for tool in tools:
            if (flow := Flow.from_json(tool)) is not None:
                self._flows[str(tool.get("name"))] = flow

    def _guided(self, event: RunStarted) -> None:
        """Take in what every agent is given of the workspace's own guidance, as if each had read the file."""
        for passage in workspace_prompt_texts(event, strict=self.strict):
            self.passages.append(passage)
            self._private[passage.source] = None
            self._guidance += [passage.source] if passage.untrusted else []

    def _planned(self, plan: Mapping[str, Json]) -> None:
        for step in cast("list[Mapping[str, Json]]", plan.get("steps") or []):
            self._add(step)

    def _add(self, step: Mapping[str, Json]) -> None:
        name = str(step.get("id"))
        if name in self._plan:
            return
        self._plan[name] = step
        if not step.get("tool"):
            self._into(name, self._guidance)
        for made in cast("list[str]", step.get("produces") or []):
            self._makers.setdefault(f"{step.get('scope') or ''}/{made}", []).append(name)

    def _extended(self, event: PlanExtended) -> None:
        """Record that the author of a step writes its goal, arguments and inputs."""
        for step in event.steps:
            self._add(step)
            name = str(step.get("id"))
            self._grown.setdefault(event.step, []).append(name)
            self._into(name, self._steps.get(event.step, ()))

    def _begun(self, event: StepStarted) -> None:
        name, step = event.step, self._plan.get(event.step)
        # Its goal was written by a model that read what its parent had read.
        if event.parent:
            self._into(name, self._steps.get(event.parent, ()))
            self._branches[event.call] = name
        if step is None:
            return
        consumed = cast("list[str]", step.get("consumes") or [])
        givers = [
            maker
            for made in consumed
            for maker in self._makers.get(f"{step.get('scope') or ''}/{made}", ())
            if maker != name
        ]
        operation = str(step.get("operation") or "")
        # It gets the outcomes of the steps it waits for.
        if operation:
            givers += cast("list[str]", step.get("depends_on") or [])
            if parent := step.get("parent"):
                givers.append(str(parent))
        if operation in _READ_ALL:
            givers = list(self._steps)
        for giver in self._with_grown(givers):
            self._into(name, self._steps.get(giver, ()))

    def _with_grown(self, names: Iterable[str]) -> Iterator[str]:
        todo, done = list(names), set[str]()
        while todo:
            if (name := todo.pop()) not in done:
                done.add(name)
                yield name
                todo += self._grown.get(name, ())

    def _into(self, step: str, sources: Iterable[str]) -> None:
        self._steps.setdefault(step, {}).update(dict.fromkeys(sources))

    def _recalled(self, event: MemoryRecalled) -> None:
        if event.notes:
            self._private["memory"] = None
        for note in event.notes:
            if taint := untrusted_taint(str(note.get("taint") or "")):
                self._into(event.step, [f"note {note.get('id', '')} (from {taint})"])

    def count(self, call: Call) -> None:
        """Count a call as made."""
        self._unkeyed.append(call)
        self.calls_of.setdefault(call.target, set()).add(call.id)

    def made(self, call: Call) -> set[str]:
        """Return the ids of the calls that are the same request and were made, or are about to be."""
        while self._unkeyed:  # a key is a hash of all arguments, and few runs have a rule that asks for it
            one = self._unkeyed.pop()
            self._made.setdefault(one.key, set()).add(one.id)
        return self._made.get(call.key, set())

    def _called(self, event: ToolCalled) -> None:
        self._args[event.call] = event.args
        self._levels[event.call], flow = event.sandbox, self._flow(event.tool, event.sandbox)
        call = Call(id=event.call, kind="tool", target=event.tool, args=event.args, step=event.step)
        foreign = self.context(call).untrusted
        self.count(call)
        if event.tool == STATE_EFFECTS and not foreign:
            for tool, times, values in stated_effects(event.args):
                self.stated[tool] = self.stated.get(tool, 0) + times
                self.stated_values.setdefault(tool, []).extend(values)
        path = event.args.get("path")
        if event.call in self._traced and (flow.reaches == "workspace" or flow.unsaid):
            # what it wrote is recorded when it is known; only a server may write unobserved
            return
        # In the log of an earlier version.
        if flow.reaches == "workspace" and isinstance(path, str):
            if foreign:
                self._files[self._file(path)] = f"a file written after {foreign[-1]}"
        elif flow.reaches in {"workspace", "anything"} and (foreign or "untrusted" in flow.reads):
            self._anywhere = self._anywhere or f"files that {event.tool} may have written"

    def _answered(self, event: ToolAnswered) -> None:
        args = self._args.pop(event.call, {})
        if (agent := self._branches.pop(event.call, "")) and (sources := tuple(self._steps.get(agent, ()))):
            self._into(event.step, sources)
            self.passages.append(
                Passage(
                    f"{call_label(event.tool, args)} after {sources[-1]}",
                    event.text,
                    private=False,
                    untrusted=True,
                )
            )
        flow = self._flow(event.tool, self._levels.pop(event.call, ""))
        if event.error is not None and event.error.get("kind") in OURS:
            return
        source = call_label(event.tool, args)
        read = self._traced.pop(event.call, "")
        doubted = "reads" in flow.unsaid
        if doubted and (said := self.said_of.get((event.tool, "reads"))) is not None:
            doubted, flow = (
                False,
                replace(flow, reads=flow.reads - {"untrusted"} | ({"untrusted"} if said else set())),
            )
        foreign = f"{source}: {read}" if read else self._foreign(flow, args, source)
        if doubted and (foreign == source or (not foreign and self._news(event.text, args))):
            foreign = f"{source} (nobody has said whether its answers hold what others wrote)"
            self.doubts[foreign] = event.tool
        self._keep_rows(flow, event.value)
        private = bool(flow.reads & {"private", "workspace"})
        if flow.reads or foreign:
            self.passages.append(Passage(foreign or source, event.text, private, bool(foreign), event.tool))
        if foreign:
            self._into(event.step, [foreign])
        if "run" in flow.reads:
            for other in list(self._steps):
                self._into(event.step, self._steps[other])
        if private:
            self._private[source] = None

    def _keep_rows(self, flow: Flow, value: Json) -> None:
        if flow.own:
            objects = (
                one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)
            )
            self.rows.setdefault(flow.own, []).extend(
                {name: one.get(name) for name in flow.own} for one in objects
            )

    def _news(self, text: str, args: Mapping[str, Json]) -> bool:
        """Return true if an answer contains more than its arguments and the user's words: else it carries no
        others' words.
        """
        count, heard = self._heard
        heard = heard.union(*(_WORD.findall(said.casefold()) for said in self.words[count:]))
        self._heard = len(self.words), heard
        given = {word for _, one in texts_in(dict(args)) for word in _WORD.findall(one.casefold())}
        letters = 0
        for match in _WORD.finditer(text.casefold()):
            if (word := match[0]) not in heard and word not in given:
                letters += len(word)
                if letters >= _NEWS:
                    return True
        return False

    def _foreign(self, flow: Flow, args: Mapping[str, Json], source: str) -> str:
        """Return whose words an answer contains; empty for none but the tool's own."""
        if "untrusted" in flow.reads:
            return source
        if "workspace" not in flow.reads:
            return ""
        if self._anywhere:
            return f"{source}: {self._anywhere}"
        if self.strict:
            return source
        paths = args.get("paths")
        places = [str(path) for path in paths] if isinstance(paths, list) else [str(args.get("path") or ".")]
        for place in map(self._file, places):
            for file, why in self._files.items():
                if place in {".", file} or file.startswith(f"{place}/"):
                    return f"{source}: {why}"
        return ""

    def _decided(self, event: ApprovalGiven) -> None:
        asked_for = self._asked.pop(event.question or event.call, None)
        if asked_for is not None and event.how != "policy":
            self._contained(asked_for, event)
        if (asked := read_name(event.question)) is not None:
            self._declared(*asked, read_answer(event.answer) if event.granted else None)
        elif event.answer is not None and event.granted:
            self.words.append(event.answer)

    def _contained(self, asked: ApprovalAsked, given: ApprovalGiven) -> None:
        """Process the answer to a question on several calls; edited arguments concern no other call."""
        if given.args is not None:
            return
        wanted = [further_call_text(one) for one in further_calls(asked.contained)]
        if not given.granted:
            self.refused |= {call.id for call in wanted}
            self.closed = self.closed or given.scope == "run"
            return
        self.allowed_together |= {call.id: call.key for call in wanted}
        if given.scope != "once":
            self.agreed |= {
                call.key for call in (*wanted, Call(id="", kind="tool", target=asked.tool, args=asked.args))
            }
        if given.scope == "run":
            for call in (*wanted, Call(id="", kind="tool", target=asked.tool, args=asked.args)):
                self.liked.setdefault(call.target, []).append(call.args)

    def _declared(self, tool: str, question: str, yes: bool | None) -> None:
        self.put.add((tool, question))
        if yes is None:
            return
        self.said_of[tool, question] = yes
        for source in [
            source for source, whose in self.doubts.items() if (whose, question) == (tool, "reads")
        ]:
            del self.doubts[source]
            for sources in self._steps.values() if not yes else ():
                sources.pop(source, None)
        # Also what was computed from its doubts.
        for step, seen in self._seen.items():
            kept = self._steps.get(step, ())
            self._seen[step] = Context(
                tuple(source for source in seen.untrusted if source in kept), seen.private, self.doubts
            )

    def _flow(self, tool: str, sandbox: str) -> Flow:
        return (self._flows.get(tool) or self.known(tool)).at(sandbox)

    def _file(self, path: str) -> str:
        """A path as every spelling of it has it."""
        normal = posixpath.normpath(path.replace("\\", "/") or ".")
        if self._root and (normal == self._root or normal.startswith(f"{self._root}/")):
            normal = posixpath.relpath(normal, self._root)
        return normal.casefold()
