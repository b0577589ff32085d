"""ATIF: a run as a trajectory in the Agent Trajectory Interchange Format, computed from its events.

Source: Harbor, RFC 0001 (Agent Trajectory Interchange Format), versions 1.0 to 1.8. Facts without a
field in the format are in `extra`: what a call does, and why one failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import RunStatus

VERSION: Final = "ATIF-v1.7"
"""The first version with everything that is written here: sub-agents inside of a trajectory, and calls of no
model.
"""
AGENT: Final = "kestrel_lab"
_TOTALS: Final = {
    "prompt_tokens": "total_prompt_tokens",
    "completion_tokens": "total_completion_tokens",
    "cached_tokens": "total_cached_tokens",
    "cost_usd": "total_cost_usd",
}


def trajectory_of(run: str, records: Iterable[e.Record]) -> dict[str, Json]:
    """Return a run as an ATIF trajectory.

    Steps of a plan and sub-agents that asked a model are embedded trajectories, to which the step or call
    refers that began them. What is not known is left out: times of an imported run without any, tokens and
    costs that were not counted. A run that was imported from ATIF and not continued is the file that it came
    from.
    """
    fold = _Fold(run)
    for record in records:
        fold.take(record.event, record.at)
    return fold.trajectory()


def write_trajectory(run: str, records: Iterable[e.Record], path: Path) -> int:
    """Write a run as an ATIF file; returns how many steps it has."""
    document = trajectory_of(run, records)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"{json.dumps(document, ensure_ascii=False, indent=2)}\n"
    # A lone surrogate, which a model may send, becomes its escape in JSON.
    path.write_bytes(text.encode("utf-8", "backslashreplace"))
    return len(cast("list[Json]", document["steps"]))


@dataclass
class _Part:
    """What one step of a plan, or one sub-agent, did."""

    name: str
    parent: str = ""
    call: str = ""
    model: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def asked_a_model(self) -> bool:
        return any("model_name" in step for step in self.steps)


class _Fold:
    def __init__(self, run: str) -> None:
        self._run = run
        self._started = e.RunStarted(goal="", workspace="", model="")
        self._parts: dict[str, _Part] = {}
        self._calls: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        """By call, the step and the call in it."""
        self._ended = e.RunFinished(outcome="")
        self._forked = False

    def take(self, event: e.Event, at: float) -> None:
        """Take the next event."""
        match event:
            case e.RunStarted():
                self._started = event
            case e.RunForked():
                self._forked = True
            case e.RunFinished():
                self._ended = event
            case e.StepStarted() if event.step not in self._parts:
                self._begin(event, at)
            case e.Prompted():
                self._say(event.step, at, "user", event.text)
            case e.Progress() if self._started.imported:
                self._say(next(reversed(self._parts), ""), at, "system", event.text)
            case e.ModelAnswered() if event.error is None:
                self._answered(event, at)
            case e.ToolCalled():
                self._called(event, at)
            case e.ToolAnswered():
                self._tool_answered(event, at)
            case _:
                pass

    def _begin(self, event: e.StepStarted, at: float) -> None:
        self._parts[event.step] = _Part(
            event.step, event.parent, event.call, event.model or self._started.model
        )
        system = self._started.system if event.system is None else event.system
        if event.goal and system:
            self._say(event.step, at, "system", system)
        if event.goal:
            if not event.parent and len(self._parts) == 1:
                self._say_earlier(event.step)
            said = self._say(event.step, at, "user", event.goal)
            if event.context:
                said["extra"] = {"context": event.context}

    def _say_earlier(self, step: str) -> None:
        """Repeat the texts of the conversation that the run goes on with, marked as copied."""
        for message in cast("list[dict[str, Any]]", self._started.earlier.get("messages") or []):
            if message.get("role") in ("user", "assistant") and message.get("text"):
                source = "agent" if message["role"] == "assistant" else "user"
                self._say(step, None, source, str(message["text"]))["is_copied_context"] = True

    def _say(self, step: str, at: float | None, source: str, text: str) -> dict[str, Any]:
        said: dict[str, Any] = {"source": source, "message": text}
        if at is not None and self._started.imported.get("times", "each") == "each":
            said = {"timestamp": datetime.fromtimestamp(at, UTC).isoformat(), **said}
        self._parts.setdefault(step, _Part(step)).steps.append(said)
        return said

    def _answered(self, event: e.ModelAnswered, at: float) -> None:
        step = self._say(event.step, at, "agent", event.text)
        step["model_name"] = event.model
        thought = "\n\n".join(str(part["text"]) for part in event.thinking if part.get("text"))
        if thought:
            step["reasoning_content"] = thought
        if event.calls:
            step["tool_calls"] = [self._asked(step, call) for call in event.calls]
        if metrics := _metrics(event):
            step["metrics"] = metrics

    def _asked(self, step: dict[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
        known = str(call["id"])
        theirs = cast("dict[str, str]", self._started.imported.get("calls") or {})
        asked: dict[str, Any] = {
            "tool_call_id": theirs.get(known, known),
            "function_name": str(call["name"]),
            "arguments": call["args"],
        }
        if call.get("problem"):
            asked["extra"] = {"problem": call["problem"]}
        self._calls[known] = (step, asked)
        return asked

    def _called(self, event: e.ToolCalled, at: float) -> None:
        # No model asked for it.
        if event.call not in self._calls:
            step = self._say(event.step, at, "agent", "")
            step["llm_call_count"] = 0
            step["tool_calls"] = [
                self._asked(step, {"id": event.call, "name": event.tool, "args": event.args})
            ]
        if event.effect != "opaque":
            self._calls[event.call][1]["extra"] = {"effect": event.effect}

    def _tool_answered(self, event: e.ToolAnswered, at: float) -> None:
        if event.call not in self._calls:
            self._called(e.ToolCalled(call=event.call, step=event.step, tool=event.tool, args={}), at)
        step, asked = self._calls[event.call]
        result: dict[str, Any] = {"source_call_id": asked["tool_call_id"], "content": event.text}
        extra = {
            "error": event.error,
            "changed": event.changed or None,
            "touched": event.touched,
            "seconds": round(event.seconds, 6) or None,
        }
        if kept := {name: value for name, value in extra.items() if value is not None}:
            result["extra"] = kept
        step.setdefault("observation", {"results": []})["results"].append(result)

    def trajectory(self) -> dict[str, Json]:
        """Return the whole."""
        parts = [part for part in self._parts.values() if part.steps]
        top = [part for part in parts if not part.parent]
        workflow = bool(self._started.plan) or len(top) != 1
        root = self._overview(top) if workflow else top[0]
        inner = [part for part in parts if part is not root and part.asked_a_model]
        for part in inner:
            if part.parent and part.call in self._calls:
                step, asked = self._calls[part.call]
                _refer(step, str(asked["tool_call_id"]), self._name(part))
        found = self._document(root, self._run)
        if inner:
            found["subagent_trajectories"] = [self._document(part, self._name(part)) for part in inner]
        ended = self._ended
        if ended.outcome:
            found["extra"] = {"outcome": ended.outcome, **({"reason": ended.reason} if ended.reason else {})}
        rest = self._started.imported.get("atif")
        return cast("dict[str, Json]", found if rest is None or self._forked else patched(found, rest))

    def _name(self, part: _Part) -> str:
        return f"{self._run}/{part.name}"

    def _overview(self, top: list[_Part]) -> _Part:
        """Return the steps of a plan as one trajectory, of which those that asked a model are parts."""
        root = _Part("", model=self._started.model)
        root.steps.append({"source": "user", "message": self._started.goal})
        for part in top:
            if part.asked_a_model:
                step: dict[str, Any] = {
                    "source": "agent",
                    "message": f"step {part.name}",
                    "llm_call_count": 0,
                }
                _refer(step, None, self._name(part))
                root.steps.append(step)
            else:
                root.steps += [step for step in part.steps if step["source"] == "agent"]
        if self._ended.answer:
            root.steps.append({"source": "agent", "message": self._ended.answer, "llm_call_count": 0})
        return root

    def _document(self, part: _Part, name: str) -> dict[str, Any]:
        started = self._started
        format_name = str(started.imported.get("format") or "")
        agent: dict[str, Any] = {
            "name": format_name or AGENT,
            "version": "unknown" if format_name else started.package or "unknown",
            "model_name": part.model or started.model,
        }
        if tools := [_definition(tool) for tool in started.tools]:
            agent["tool_definitions"] = tools
        steps = [{"step_id": number, **step} for number, step in enumerate(part.steps, 1)]
        return {
            "schema_version": VERSION,
            "session_id": self._run,
            "trajectory_id": name,
            "agent": agent,
            "steps": steps,
            "final_metrics": {**_totals(part.steps), "total_steps": len(steps)},
        }


def _metrics(event: e.ModelAnswered) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if event.metered:
        found = {"prompt_tokens": event.tokens_in, "completion_tokens": event.tokens_out}
        if event.tokens_cached:
            found["cached_tokens"] = event.tokens_cached
        more = {
            "reasoning_tokens": event.tokens_reasoning,
            "cache_creation_tokens": event.tokens_cache_written,
        }
        if any(more.values()):
            found["extra"] = {name: count for name, count in more.items() if count}
    if event.cost_usd is not None:
        found["cost_usd"] = event.cost_usd
    return found


def _totals(steps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over the model's answers; one that is not known of an answer has no sum."""
    asked = [step.get("metrics") or {} for step in steps if "model_name" in step]
    found: dict[str, Any] = {}
    for name, total in _TOTALS.items():
        known = [metrics[name] for metrics in asked if name in metrics]
        if known and (len(known) == len(asked) or name == "cached_tokens"):
            found[total] = sum(known)
    return found


def _definition(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": str(tool["name"]), "description": str(tool.get("description") or "")}
    return {
        "type": "function",
        "function": {**function, "parameters": tool.get("schema") or {"type": "object"}},
    }


def _refer(step: dict[str, Any], call: str | None, name: str) -> None:
    """Let the result of a call, or a step, refer to an embedded trajectory."""
    results = step.setdefault("observation", {"results": []})["results"]
    found = next((one for one in results if call is not None and one.get("source_call_id") == call), None)
    if found is None:
        results.append(found := {} if call is None else {"source_call_id": call})
    found.setdefault("subagent_trajectory_ref", []).append({"trajectory_id": name})


# What a trajectory of others has and our events do not: kept as a difference, so that it comes out again.


def difference(ours: Any, theirs: Any) -> Any:
    """Return what makes `theirs` of `ours`, see `patched`; `None` for equal JSON."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = {
            key: change
            for key, value in theirs.items()
            if (change := difference(ours[key], value) if key in ours else {"is": value}) is not None
        }
        gone = [key for key in ours if key not in theirs]
        return {"keys": keys, "gone": gone} if keys or gone else None
    if isinstance(ours, list) and isinstance(theirs, list):
        items = {
            str(place): change
            for place, (mine, value) in enumerate(zip(ours, theirs, strict=False))
            if (change := difference(mine, value)) is not None
        }
        more = theirs[len(ours) :]
        if not items and not more and len(ours) == len(theirs):
            return None
        return {"items": items, "more": more, "length": len(theirs)}
    return None if ours == theirs and type(ours) is type(theirs) else {"is": theirs}


def patched(ours: Any, change: Any) -> Any:
    """Return JSON with a difference applied to it."""
    if "is" in change:
        return change["is"]
    if "keys" in change:
        kept = {key: value for key, value in ours.items() if key not in change["gone"]}
        return kept | {
            key: patched(ours.get(key), one) if key in ours else one["is"]
            for key, one in change["keys"].items()
        }
    items = [
        patched(value, change["items"][str(place)]) if str(place) in change["items"] else value
        for place, value in enumerate(ours[: change["length"]])
    ]
    return items + change["more"]


def outcome_error(document: Mapping[str, Any]) -> str:
    """Return why a run that was exported here ended with an error; empty for any other trajectory."""
    extra = document.get("extra")
    if not isinstance(extra, dict) or extra.get("outcome") != "error":
        return ""
    return str(extra.get("reason") or RunStatus.FAILED)
