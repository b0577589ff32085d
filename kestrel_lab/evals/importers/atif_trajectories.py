"""Trajectories in ATIF, the Agent Trajectory Interchange Format of Harbor, of any version from 1.0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from kestrel_lab.core.events.union import Record
from kestrel_lab.evals.importers.benchmark_runs.harbor_trials import TRIAL, harbor_trial, read_trial_result
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    Records,
    WholeUsage,
    declared_effects,
    described_task,
    offered_tools,
    read_calls,
    record_digest,
    unreadable_record,
)
from kestrel_lab.evals.importers.json_fields import UNREADABLE, Broken, JsonFields, parse_json
from kestrel_lab.evals.importers.recorded_events import events_of
from kestrel_lab.telemetry.atif import difference, outcome_error, trajectory_of


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
    result = path.parent.parent / TRIAL
    if path.parent.name == "agent" and result.is_file():
        trial = read_trial_result(result)
        if isinstance(trial, Broken):
            yield trial
            yield _read_trajectory(value, source)
        else:
            yield harbor_trial(trial, [_read_trajectory(value, source, task=trial.text("task_name"))], result)
    else:
        yield _read_trajectory(value, source)
    yield from _sub_agents(value, source)


def trial_recordings(value: dict[str, Any], source: str, path: Path) -> Records:
    """Yield the recording of a trial of Harbor from its `result.json`, with the trajectory of its agent, or
    those of its steps; one without a trajectory is a trial, too.
    """
    left_out: list[Broken] = []
    trial = JsonFields(value, source, left_out, whole=True)
    folder, task = path.parent, trial.label("task_name", "trial_name") or path.parent.name
    files = [folder / "agent" / "trajectory.json"]
    if not files[0].is_file():
        files = sorted(folder.glob("steps/*/agent/trajectory.json"))
    conversations: list[Recording] = []
    inner: list[Recording | Broken] = []
    for file in files:
        try:
            trajectory = parse_json(file.read_bytes())
            if not is_atif(trajectory):
                raise ValueError("it is no ATIF trajectory")
            conversations.append(_read_trajectory(trajectory, str(file), task=task))
            inner += _sub_agents(trajectory, str(file))
        except (*UNREADABLE, OSError) as error:
            yield unreadable_record(str(file), "the trajectory of this trial cannot be read", error)
    yield harbor_trial(trial, conversations, path)
    yield from inner


def _sub_agents(value: Mapping[str, Any], source: str) -> Records:
    left_out: list[Broken] = []
    for inner in JsonFields(value, source, left_out, whole=True).objects("subagent_trajectories"):
        try:
            trajectory = dict(inner)
            yield _read_trajectory(trajectory, inner.place)
            yield from _sub_agents(trajectory, inner.place)
        except UNREADABLE as error:
            yield unreadable_record(inner.place, "no trajectory of a sub-agent", error)
    yield from left_out


def _read_trajectory(value: dict[str, Any], source: str, *, task: str = "") -> Recording:
    """Return the recording of a trajectory; of a trial's `task` also where nobody asked anything."""
    left_out: list[Broken] = []
    record = JsonFields(value, source, left_out, whole=True)
    agent, totals = record.fields("agent"), record.fields("final_metrics")
    system: list[str] = []
    messages: list[ImportedMessage] = []
    for step in record.objects("steps"):
        try:
            if step.get("source") == "system" and not messages:
                system.append(step.content("message").text)
            else:
                messages += _read_step(step)
        except UNREADABLE as error:
            left_out.append(Broken(step.place, f"left out: {type(error).__name__}: {error}"))
    if not any(message.role == "user" for message in messages):
        if system:
            # Some agents write their task as the system message.
            messages.insert(0, ImportedMessage(role="user", text=system.pop()))
        elif task:
            messages.insert(0, described_task(f"Task {task}; the trajectory has no message of a user"))
    trajectory_id = record.label("trajectory_id", "session_id")
    tools = agent.objects("tool_definitions")
    recording = Recording(
        format="atif",
        source=source,
        id=trajectory_id,
        digest=record_digest("atif", value),
        model=agent.text("model_name") or "unknown",
        system="\n\n".join(system),
        messages=messages,
        tools=offered_tools(tools),
        declared=declared_effects(tools),
        error=outcome_error(value),
        usage=WholeUsage(
            tokens_in=totals.count("total_prompt_tokens"),
            tokens_out=totals.count("total_completion_tokens"),
            tokens_cached=totals.count("total_cached_tokens"),
            cost_usd=totals.amount("total_cost_usd"),
        ),
        facts={"agent": f"{agent.label('name')} {agent.label('version')}".strip()},
        left_out=tuple(left_out),
    )
    records = [
        Record(run_id=recording.run_id, seq=seq, eid="", at=at, event=event)
        for seq, (at, event) in enumerate(events_of(recording), 1)
    ]
    rest = difference(trajectory_of(recording.run_id, records), value)
    return replace(
        recording, facts={**recording.facts, "atif": rest} if rest is not None else recording.facts
    )


def _read_step(step: JsonFields) -> Iterator[ImportedMessage]:
    at, content = step.time("timestamp"), step.content("message")
    if step["source"] in ("user", "system"):
        role: Literal["user", "note"] = "user" if step["source"] == "user" else "note"
        yield ImportedMessage(role=role, text=content.text, at=at)
        yield from _read_results(step, [])
        return
    if step["source"] != "agent":
        raise ValueError(f"its source is {step['source']!r}, neither system, user nor agent")
    calls = read_calls(step.objects("tool_calls"), _read_call)
    metrics = step.fields("metrics")
    yield ImportedMessage(
        role="assistant",
        text=content.text,
        thinking="\n\n".join(filter(None, (step.text("reasoning_content"), content.thinking))),
        calls=calls,
        at=at,
        tokens_in=metrics.count("prompt_tokens"),
        tokens_out=metrics.count("completion_tokens"),
        tokens_cached=metrics.count("cached_tokens") or 0,
        tokens_reasoning=metrics.fields("extra").count("reasoning_tokens") or 0,
        cost_usd=metrics.amount("cost_usd"),
        model=step.text("model_name"),
    )
    yield from _read_results(step, [call.id for call in calls])


def _read_call(call: JsonFields) -> ImportedCall:
    effect = call.fields("extra").text("effect")
    return ImportedCall(
        tool=call["function_name"],
        args=call["arguments"],
        id=call.label("tool_call_id"),
        pure=effect == "pure" if effect else None,
    )


def _read_results(step: JsonFields, open_calls: list[str]) -> Iterator[ImportedMessage]:
    """Yield what a step was answered: results of its calls, and what its environment reported without one."""
    for result in step.fields("observation").objects("results"):
        try:
            call, text = result.label("source_call_id"), result.content("content").text
            if open_calls and (not call or call in open_calls):
                open_calls.remove(call or open_calls[0])
                yield _read_result(result, call, text)
            elif call:
                raise ValueError(f"it answers the call {call!r}, which its step does not make")
            elif text:
                yield ImportedMessage(role="note" if step["source"] == "system" else "user", text=text)
        except UNREADABLE as error:
            result.left_out.append(unreadable_record(result.place, "no result", error))


def _read_result(result: JsonFields, call: str, text: str) -> ImportedMessage:
    extra = result.fields("extra")
    error = extra.get("error")
    message = error.get("message") if isinstance(error, Mapping) else error
    return ImportedMessage(
        role="tool",
        text=text,
        call=call,
        error=str(message or "failed") if error else "",
        seconds=extra.amount("seconds") or 0.0,
        changed=tuple(extra.texts("changed")),
        touched=tuple(extra.texts("touched")) if extra.get("touched") is not None else None,
    )
