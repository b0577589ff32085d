"""OpenTelemetry spans of a run by the GenAI semantic conventions, computed from its events.

Source: OpenTelemetry, Semantic conventions for generative AI (1.41, status: development): `invoke_agent`,
`invoke_workflow`, `chat`, `execute_tool`, and the event `gen_ai.evaluation.result`. Attributes that the
conventions do not have begin with `kestrel.`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.models.providers import FURTHER, owner_of, provider_of

AGENT: Final = "kestrel_lab"
"""`gen_ai.agent.name` of an agent that is a run."""
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""Names of the conventions for providers that have another name here."""
_PARAMS: Final = ("temperature", "top_p", "max_tokens", "seed")
_FINISH: Final = {"tool_calls": "tool_call"}

Attributes: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a span of another trace, or of an earlier session of the run."""

    trace: int
    span: int
    kind: str
    """`fork`, `resume` or `follow`."""


@dataclass(kw_only=True, slots=True)
class Span:
    """One operation of a run.

    Ids are hashes of run and operation, so that a run has the same ones whenever it is exported.
    """

    key: str
    trace: int
    id: int
    parent: int
    """0 for none."""
    name: str
    began: float
    ended: float = 0.0
    client: bool = False
    """Whether it is a call of another service (kind CLIENT), not an operation of this process (INTERNAL)."""
    attributes: Attributes = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    results: list[tuple[float, Attributes]] = field(default_factory=list)
    """Events `gen_ai.evaluation.result`, each with its time."""
    error: str | None = None
    """What went wrong in words, empty where these are not exported; `None` where nothing went wrong."""

    def fail(self, kind: str, message: str) -> None:
        """Give the span the status ERROR."""
        self.attributes["error.type"] = kind or "_OTHER"
        self.error = message


def spans_of(
    run: str, records: Iterable[e.Record], *, conversation: str = "", content: bool = False
) -> list[Span]:
    """Return the spans of a stored run in the order in which they ended; see `SpanFold`.

    What has not ended in the log ends with its last event and has the attribute `kestrel.unfinished`.
    """
    fold = SpanFold(run, conversation=conversation, content=content)
    found: list[Span] = []
    for record in records:
        if isinstance(record.event, e.RunForked):
            # What came before are the parent's spans.
            found.clear()
        found += fold.take(record.event, record.at)
    return found + fold.close()


def evaluation_span(
    run: str, last: Span, name: str, at: float, scores: Sequence[Mapping[str, Any]], *, content: bool
) -> Span:
    """Return the span of a trial's scores (`check`, `passed`, `value`, `reason`), a child of `last`."""
    span = Span(
        key=name,
        trace=last.trace,
        id=_span_id(run, f"evaluate/{name}"),
        parent=last.id,
        name=f"evaluate {name}",
        began=at,
        ended=at,
    )
    span.attributes = {"kestrel.run": run}
    for score in scores:
        result = _result(
            str(score["check"]),
            passed=bool(score["passed"]),
            why=str(score.get("reason") or "") if content else "",
        )
        span.results.append((at, {**result, "gen_ai.evaluation.score.value": float(score["value"])}))
    return span


class SpanFold:
    """Turns the events of one run into spans, one event at a time.

    Run: one root span in each session that worked on it, each later one with a link to the one before. Fork:
    a trace of its own, whose root has a link to the parent's span in which it parts; the shared events are
    the parent's alone. The goal, messages, arguments, results and error texts are in the spans only with
    `content`.
    """

    def __init__(self, run: str, *, conversation: str = "", content: bool = False) -> None:
        """`conversation` is the id of the conversation's first run; by default the run itself."""
        self._run, self._conversation, self._content = run, conversation or run, content
        self._trace = _trace_id(run)
        self._open: dict[str, Span] = {}
        """By key, in the order in which they began."""
        self._state = RunState() if content else None
        self._started: e.RunStarted | None = None
        self._model = ""
        self._steps: dict[str, e.StepStarted] = {}
        self._times: dict[str, int] = {}
        self._now = 0.0

    def take(self, event: e.Event, at: float) -> list[Span]:
        """Take one event in, and return the spans that ended with it."""
        if self._state is not None:
            self._state.apply(event, at)
        ended = self._take(event, at)
        self._now = max(self._now, at)
        return ended

    def close(self) -> list[Span]:
        """End what is open with the last event; the innermost span first."""
        found = []
        for key in reversed(list(self._open)):
            self._open[key].attributes["kestrel.unfinished"] = True
            found += self._end(key, self._now)
        return found

    def _take(self, event: e.Event, at: float) -> list[Span]:  # one case per event  # noqa: C901
        match event:
            case e.RunStarted():
                self._started = event
                links = (
                    (Link(_trace_id(event.follows), _span_id(event.follows, "run"), "follow"),)
                    if event.follows
                    else ()
                )
                self._begin_run(at, event.model, event.model_kind, links)
            case e.RunForked():
                self._forked(event, at)
            case e.RunResumed():
                return self._resumed(event, at)
            case e.RunInterrupted():
                return self.close()
            case e.RunFinished():
                self._finished(event)
            case e.StateTransition() if RunStatus(event.target).terminal:
                return [*self._end_all(at, but="run"), *self._end("run", at)]
            case e.StepStarted():
                self._steps[event.step] = event
                self._begin_step(event, at)
            case e.StepFinished() | e.StepRetried():
                return self._step_ended(event, at)
            case e.ModelCalled():
                self._model_called(event, at)
            case e.ModelAnswered():
                return self._model_answered(event, at)
            case e.ToolCalled():
                self._begin_tool(event, at)
            case e.ToolAnswered():
                return self._tool_answered(event, at)
            case e.MacroStarted() if span := self._open.get(f"call/{event.call}"):
                span.attributes["kestrel.macro"] = event.macro
            case e.VerifierStarted():
                self._begin(
                    f"verify/{event.step}/{event.verifier}",
                    f"evaluate {event.verifier}",
                    self._step(event.step, at),
                    at,
                    {"kestrel.step": event.step},
                )
            case e.VerifierFinished():
                return self._verified(event, at)
            case _:
                pass
        return []

    def _begin(
        self,
        key: str,
        name: str,
        parent: Span | None,
        at: float,
        attributes: Attributes,
    ) -> Span:
        self._times[key] = self._times.get(key, 0) + 1
        span = Span(
            key=key,
            trace=self._trace,
            id=_span_id(self._run, key, self._times[key]),
            parent=0 if parent is None else parent.id,
            name=name,
            began=at,
            attributes=attributes,
        )
        self._open[key] = span
        return span

    def _end(self, key: str, at: float) -> list[Span]:
        span = self._open.pop(key, None)
        if span is None:
            return []
        span.ended = max(at, span.began)
        return [span]

    def _end_all(self, at: float, *, but: str = "", within: str = "") -> list[Span]:
        """End what is open, the innermost first: all, or what belongs to one step."""
        ours = [
            key
            for key, span in self._open.items()
            if key != but and (not within or span.attributes.get("kestrel.step") == within)
        ]
        return [span for key in reversed(ours) for span in self._end(key, at)]

    def _begin_run(self, at: float, model: str, model_kind: str, links: tuple[Link, ...]) -> None:
        started = self._started
        workflow = started is not None and bool(started.plan)
        self._model = model
        attributes = {"gen_ai.operation.name": "invoke_workflow"} if workflow else self._agent(AGENT, model)
        attributes |= {
            "kestrel.run": self._run,
            "gen_ai.conversation.id": self._conversation,
            "kestrel.model_kind": model_kind,
        }
        if started is not None:
            facts = {
                "gen_ai.agent.version": started.package,
                "kestrel.scenario": started.scenario,
                "kestrel.config": started.config,
            }
            attributes |= {name: fact for name, fact in facts.items() if fact}
            if self._content:
                attributes["gen_ai.input.messages"] = _dumps(
                    [_message(Message(role="user", text=started.goal))]
                )
        self._begin(
            "run", "invoke_workflow" if workflow else f"invoke_agent {AGENT}", None, at, attributes
        ).links = links

    def _forked(self, event: e.RunForked, at: float) -> None:
        """Leave what is shared to the parent, and begin the trace of the fork."""
        inner = next(reversed(self._open), "run")
        parted = _span_id(event.parent, inner, self._times.get(inner, 1))
        self._open.clear()
        self._times.clear()
        self._begin_run(at, event.model, event.model_kind, (Link(_trace_id(event.parent), parted, "fork"),))

    def _resumed(self, event: e.RunResumed, at: float) -> list[Span]:
        """End what the last session left open, and begin the root of this one."""
        left, before = self.close(), _span_id(self._run, "run", self._times.get("run", 1))
        self._begin_run(
            at, event.model or self._model, event.model_kind, (Link(self._trace, before, "resume"),)
        )
        return left

    def _finished(self, event: e.RunFinished) -> None:
        # Cancelled after the last session had left it.
        if (root := self._open.get("run")) is None:
            return
        root.attributes["kestrel.outcome"] = event.outcome
        if event.outcome not in ("complete", "cancelled"):
            root.fail(event.limit or event.outcome, event.reason if self._content else "")
        if self._content and event.answer:
            root.attributes["gen_ai.output.messages"] = _dumps(
                [_message(Message(role="assistant", text=event.answer), "stop")]
            )

    def _begin_step(self, event: e.StepStarted, at: float) -> Span:
        """Begin a step; a sub-agent's span lies below the call that delegated to it."""
        parent = self._open.get(f"call/{event.call}") if event.parent else None
        agent = bool(event.goal) and (
            bool(event.parent) or (self._started is not None and bool(self._started.plan))
        )
        attributes: Attributes = {"kestrel.step": event.step}
        if agent:
            attributes |= self._agent(event.step, event.model or self._model)
            attributes["gen_ai.conversation.id"] = self._conversation
        name = f"invoke_agent {event.step}" if agent else f"step {event.step}"
        return self._begin(f"step/{event.step}", name, parent or self._open.get("run"), at, attributes)

    def _step(self, step: str, at: float) -> Span | None:
        """Return the span of a step, begun anew in a resumed session; the run's if it never began."""
        if (span := self._open.get(f"step/{step}")) is not None:
            return span
        return self._begin_step(self._steps[step], at) if step in self._steps else self._open.get("run")

    def _step_ended(self, event: e.StepFinished | e.StepRetried, at: float) -> list[Span]:
        span = self._open.get(f"step/{event.step}")
        if span is None:
            return []
        if isinstance(event, e.StepRetried) or not event.ok:
            span.fail(
                event.error_class if isinstance(event, e.StepRetried) else "failed",
                event.reason if self._content else "",
            )
        return [*self._end_all(at, but=span.key, within=event.step), *self._end(span.key, at)]

    def _model_called(self, event: e.ModelCalled, at: float) -> None:
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            **_model_attributes(event.model),
            "gen_ai.conversation.id": self._conversation,
            "kestrel.step": event.step,
        }
        started = self._started
        if started is not None:
            attributes |= {
                f"gen_ai.request.{name}": value
                for name in _PARAMS
                if (value := started.params.get(name)) is not None
            }
        if self._state is not None:
            sent = self._state.conversation(event.step).sent
            system = [
                {"type": "text", "content": one.text} for one in sent if one.role == "system" and one.text
            ]
            if system:
                attributes["gen_ai.system_instructions"] = _dumps(system)
            attributes["gen_ai.input.messages"] = _dumps(
                [_message(one) for one in sent if one.role != "system"]
            )
            if self._state.started is not None and event.tools:
                attributes["gen_ai.tool.definitions"] = _dumps(
                    [_definition(tool) for tool in self._state.started.tools]
                )
        self._begin(
            f"call/{event.call}",
            f"chat {attributes['gen_ai.request.model']}",
            self._step(event.step, at),
            at,
            attributes,
        ).client = True

    def _model_answered(self, event: e.ModelAnswered, at: float) -> list[Span]:
        span = self._open.get(f"call/{event.call}")
        # What a person wrote in a model's place is no call.
        if span is None or event.given:
            return []
        finish = _FINISH.get(event.finish, event.finish)
        span.attributes |= {
            "gen_ai.response.model": vendor_name(event.model)[1],
            "gen_ai.response.finish_reasons": [finish],
        }
        if event.metered:
            counts = {
                "input_tokens": event.tokens_in,
                "output_tokens": event.tokens_out,
                "cache_read.input_tokens": event.tokens_cached,
                "cache_creation.input_tokens": event.tokens_cache_written,
                "reasoning.output_tokens": event.tokens_reasoning,
            }
            span.attributes |= {
                f"gen_ai.usage.{name}": number for name, number in counts.items() if number or "." not in name
            }
        facts = {
            "cost_usd": event.cost_usd,
            "cached": event.cached or None,
            "replayed": event.replayed or None,
        }
        span.attributes |= {f"kestrel.{name}": fact for name, fact in facts.items() if fact is not None}
        if event.error is not None:
            span.fail(str(event.error.get("kind")), str(event.error.get("message")) if self._content else "")
        elif self._content:
            parts = [
                {"type": "reasoning", "content": one["text"]} for one in event.thinking if one.get("text")
            ]
            parts += [{"type": "text", "content": event.text}] if event.text else []
            parts += [_call(str(one["id"]), str(one["name"]), one["args"]) for one in event.calls]
            span.attributes["gen_ai.output.messages"] = _dumps(
                [{"role": "assistant", "parts": parts, "finish_reason": finish}]
            )
        return self._end(span.key, at)

    def _begin_tool(self, event: e.ToolCalled | e.ToolAnswered, at: float) -> Span:
        key = f"call/{event.call}"
        # Another attempt of the same call has no span of its own.
        if (known := self._open.get(key)) is not None:
            return known
        # The macro that it is part of.
        around = self._open.get(f"call/{event.call.rpartition('/')[0]}")
        if around is None or "kestrel.macro" not in around.attributes:
            around = self._step(event.step, at)
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": event.tool,
            "gen_ai.tool.call.id": event.call,
            "gen_ai.tool.type": "function",
            "kestrel.step": event.step,
        }
        if isinstance(event, e.ToolCalled) and self._content:
            attributes["gen_ai.tool.call.arguments"] = _dumps(event.args)
        return self._begin(key, f"execute_tool {event.tool}", around, at, attributes)

    def _tool_answered(self, event: e.ToolAnswered, at: float) -> list[Span]:
        if event.given:
            return []
        # Of one that was denied no call began.
        span = self._open.get(f"call/{event.call}") or self._begin_tool(event, at)
        if event.cached:
            span.attributes["kestrel.cached"] = True
        if event.error is not None:
            span.fail(str(event.error.get("kind")), str(event.error.get("message")) if self._content else "")
        if self._content:
            span.attributes["gen_ai.tool.call.result"] = event.text
        return self._end(span.key, at)

    def _verified(self, event: e.VerifierFinished, at: float) -> list[Span]:
        key = f"verify/{event.step}/{event.verifier}"
        span = self._open.get(key) or self._begin(
            key, f"evaluate {event.verifier}", self._step(event.step, at), at, {}
        )
        span.results.append(
            (
                at,
                _result(
                    event.verifier, passed=event.passed, why="; ".join(event.issues) if self._content else ""
                ),
            )
        )
        return self._end(key, at)

    def _agent(self, name: str, model: str) -> Attributes:
        return {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            **_model_attributes(model),
        }


def vendor_name(model: str) -> tuple[str, str]:
    """Return the provider's name in the conventions (`_OTHER` if unknown), and its name of the model."""
    prefix, _, rest = model.partition("/")
    if rest and (provider_of(prefix) is not None or prefix in FURTHER):
        return _PROVIDERS.get(prefix, prefix), rest
    owner = owner_of(model)
    return ("_OTHER" if owner is None else _PROVIDERS.get(owner.prefix, owner.prefix)), model


def _model_attributes(model: str) -> Attributes:
    provider, name = vendor_name(model)
    return {"gen_ai.provider.name": provider, "gen_ai.request.model": name}


def _trace_id(run: str) -> int:
    # OpenTelemetry has 16 bytes for a trace and 8 for a span.
    return int.from_bytes(hashlib.sha256(f"trace\0{run}".encode()).digest()[:16])


def _span_id(run: str, key: str, time: int = 1) -> int:
    """Return the id of an operation; `time` distinguishes attempts, and the sessions of a run."""
    return int.from_bytes(hashlib.sha256(f"span\0{run}\0{key}\0{time}".encode()).digest()[:8])


def _result(name: str, *, passed: bool, why: str) -> Attributes:
    found: Attributes = {
        "gen_ai.evaluation.name": name,
        "gen_ai.evaluation.score.label": "pass" if passed else "fail",
    }
    return found | ({"gen_ai.evaluation.explanation": why} if why else {})


def _message(message: Message, finish: str = "") -> dict[str, Json]:
    parts: list[Json]
    if message.role == "tool":
        parts = [{"type": "tool_call_response", "id": message.call_id, "response": message.text}]
    else:
        parts = [{"type": "text", "content": message.text}] if message.text else []
        parts += [_call(call.id, call.name, call.args) for call in message.calls]
    return {"role": message.role, "parts": parts, **({"finish_reason": finish} if finish else {})}


def _call(name: str, tool: str, args: Json) -> dict[str, Json]:
    return {"type": "tool_call", "id": name, "name": tool, "arguments": args}


def _definition(tool: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "type": "function",
        "name": tool["name"],
        **({"description": tool["description"]} if tool.get("description") else {}),
    }


def _dumps(value: Any) -> str:
    """Return structured content as JSON text, which every backend reads."""
    return json.dumps(value, ensure_ascii=False)
