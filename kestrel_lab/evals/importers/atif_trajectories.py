"""Trajectories in ATIF, the Agent Trajectory Interchange Format of Harbor, of any version from 1.0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.events.union import Record
from kestrel_lab.core.sanitize import shown_path
from kestrel_lab.evals.importers.imported_run import (
    UNREADABLE,
    Broken,
    ImportedCall,
    ImportedMessage,
    Recording,
    Records,
    declared_effects,
    offered_tool,
    record_digest,
    seconds_of,
    text_of,
    unreadable_record,
)
from kestrel_lab.evals.importers.recorded_events import events_of
from kestrel_lab.telemetry.atif import difference, outcome_error, trajectory_of

TRIAL: Final = "result.json"
"""What Harbor writes of a trial, in the folder above that of its agent."""


def is_atif(value: Any) -> bool:
    """Return whether a JSON value is an ATIF trajectory."""
    return (
        isinstance(value, dict)
        and str(value.get("schema_version", "")).startswith("ATIF-v")
        and isinstance(value.get("steps"), list)
    )


def atif_recordings(value: dict[str, Any], source: str, path: Path) -> Records:
    """Yield the recording of a trajectory, and one of each trajectory of a sub-agent inside of it.

    In the folder of a trial of Harbor the first is a trial with the rewards of its `result.json`.

    A step or result that cannot be read is in `left_out`. What our events have no place for (log
    probabilities, token ids, further fields) is kept in `RunStarted.imported`, and an export of the run is
    the file again.
    """
    found, result = _recording(value, source), path.parent.parent / TRIAL
    if path.parent.name == "agent" and result.is_file():
        try:
            found = _trial(found, json.loads(result.read_bytes()))
        except (*UNREADABLE, OSError) as error:
            yield unreadable_record(shown_path(result), "no result of a trial", error)
    yield found
    yield from _sub_agents(value, source)


def _sub_agents(value: Mapping[str, Any], source: str) -> Records:
    for number, inner in enumerate(value.get("subagent_trajectories") or ()):
        place = f"{source} subagent_trajectories[{number}]"
        try:
            yield _recording(inner, place)
            yield from _sub_agents(inner, place)
        except UNREADABLE as error:
            yield unreadable_record(place, "no trajectory of a sub-agent", error)


def _trial(found: Recording, result: Mapping[str, Any]) -> Recording:
    """Return a recording with what Harbor says of its trial; a task is done if every reward is 1 or more."""
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    broke = result.get("exception_info") or {}
    scores: list[dict[str, Any]] = [
        {"check": str(name), "passed": float(reward) >= 1, "value": float(reward), "reason": ""}
        for name, reward in rewards.items()
    ]
    agent = result.get("agent_info") or {}
    return replace(
        found,
        suite=f"harbor:{result.get('source') or 'tasks'}",
        scenario=str(result["task_name"]),
        config="/".join(filter(None, (str(agent.get("name") or ""), found.model))),
        error=str(broke.get("exception_message") or broke.get("exception_type") or found.error),
        scores=tuple(scores) if scores or broke else None,
        passed=all(score["passed"] for score in scores) if scores and not broke else None,
    )


def _recording(value: dict[str, Any], source: str) -> Recording:
    agent = value["agent"]
    system: list[str] = []
    said: list[ImportedMessage] = []
    broken: list[Broken] = []
    for number, step in enumerate(value["steps"]):
        place = f"{source}: steps[{number}]"
        try:
            if step["source"] == "system" and not said:
                system.append(text_of(step["message"]))
            else:
                said += _step(step, place, broken)
        except UNREADABLE as error:
            broken.append(Broken(place, f"left out: {type(error).__name__}: {error}"))
    if not any(one.role == "user" for one in said) and system:
        # Some agents write their task as the system message.
        said.insert(0, ImportedMessage(role="user", text=system.pop()))
    known = str(value.get("trajectory_id") or value.get("session_id") or "")
    found = Recording(
        format="atif",
        source=source,
        id=known,
        digest=record_digest("atif", value),
        model=str(agent.get("model_name") or "unknown"),
        system="\n\n".join(system),
        messages=said,
        tools=tuple(
            offered_tool(tool.get("function") or tool) for tool in agent.get("tool_definitions") or ()
        ),
        declared=declared_effects(agent.get("tool_definitions") or ()),
        error=outcome_error(value),
        facts={"agent": f"{agent.get('name', '')} {agent.get('version', '')}".strip()},
        left_out=tuple(broken),
    )
    records = [
        Record(run_id=found.run_id, seq=seq, eid="", at=at, event=event)
        for seq, (at, event) in enumerate(events_of(found), 1)
    ]
    rest = difference(trajectory_of(found.run_id, records), value)
    return replace(found, facts={**found.facts, "atif": rest} if rest is not None else found.facts)


def _step(step: Mapping[str, Any], place: str, broken: list[Broken]) -> Iterator[ImportedMessage]:
    at, text = seconds_of(step.get("timestamp")), text_of(step.get("message"))
    if step["source"] == "user":
        yield ImportedMessage(role="user", text=text, at=at)
        yield from _results(step, (), place, broken)
        return
    if step["source"] == "system":
        yield ImportedMessage(role="note", text=text, at=at)
        yield from _results(step, (), place, broken)
        return
    if step["source"] != "agent":
        raise ValueError(f"its source is {step['source']!r}, neither system, user nor agent")
    calls = []
    for number, call in enumerate(step.get("tool_calls") or ()):
        try:
            calls.append(_call(call))
        except UNREADABLE as error:
            broken.append(unreadable_record(f"{place} tool_calls[{number}]", "no call", error))
    metrics = step.get("metrics") or {}
    more = metrics.get("extra") or {}
    yield ImportedMessage(
        role="assistant",
        text=text,
        thinking=str(step.get("reasoning_content") or ""),
        calls=tuple(calls),
        at=at,
        tokens_in=metrics.get("prompt_tokens"),
        tokens_out=metrics.get("completion_tokens"),
        tokens_cached=int(metrics.get("cached_tokens") or 0),
        tokens_reasoning=int(more.get("reasoning_tokens") or 0),
        cost_usd=metrics.get("cost_usd"),
        model=str(step.get("model_name") or ""),
    )
    yield from _results(step, calls, place, broken)


def _call(call: Mapping[str, Any]) -> ImportedCall:
    effect = (call.get("extra") or {}).get("effect")
    return ImportedCall(
        tool=str(call["function_name"]),
        args=call["arguments"],
        id=str(call["tool_call_id"] or ""),
        pure=None if effect is None else effect == "pure",
    )


def _results(
    step: Mapping[str, Any], calls: list[ImportedCall] | tuple[()], place: str, broken: list[Broken]
) -> Iterator[ImportedMessage]:
    """Yield what a step was answered: results of its calls, and what its environment reported without one."""
    open_calls = [call.id for call in calls]
    for number, result in enumerate((step.get("observation") or {}).get("results") or ()):
        try:
            known = str(result.get("source_call_id") or "")
            text = text_of(result.get("content"))
            if open_calls and (not known or known in open_calls):
                open_calls.remove(known or open_calls[0])
                yield _result(result, known, text)
            elif known:
                raise ValueError(f"it answers the call {known!r}, which its step does not make")
            elif text:
                yield ImportedMessage(role="note" if step["source"] == "system" else "user", text=text)
        except UNREADABLE as error:
            broken.append(unreadable_record(f"{place} observation[{number}]", "no result", error))


def _result(result: Mapping[str, Any], known: str, text: str) -> ImportedMessage:
    extra = result.get("extra") or {}
    error, touched = extra.get("error"), extra.get("touched")
    message = error.get("message") if isinstance(error, dict) else error
    return ImportedMessage(
        role="tool",
        text=text,
        call=known,
        error=str(message or "failed") if error else "",
        seconds=float(extra.get("seconds") or 0.0),
        changed=tuple(map(str, extra.get("changed") or ())),
        touched=None if touched is None else tuple(map(str, touched)),
    )
