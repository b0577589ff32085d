"""Samples of Inspect logs as recordings: messages, calls, usage and times of each; and the results of logs without samples."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers.imported_run import Asked, Broken, Recording, Records, Said, digest
from kestrel_lab.evals.importers.inspect_logs import log_samples, sample_row
from kestrel_lab.evals.metrics import METRICS

_ATTACHED: Final = "attachment://"


def inspect_recordings(path: Path, *, passes: float = 1.0) -> Records:
    """Yield a recording for each sample of a log; a log with results and no samples is one recording of its results.

    Raises `UsageError` with the file for what is not a whole log.
    """
    found = False
    for place, head, sample in log_samples(path):
        if isinstance(sample, UsageError):
            found = True
            yield Broken(f"{shown_path(path)}: {place}", str(sample).removeprefix(f"{shown_path(path)}: "))
        elif sample is not None:
            found = True
            try:
                yield _recording(head["eval"], sample, f"{path}: {place}", passes)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                yield Broken(
                    f"{shown_path(path)}: {place}", f"not a sample of an Inspect log ({type(error).__name__}: {one_line(str(error), 100)})"
                )
        elif not found:
            yield _results(path, head)


def _results(path: Path, head: dict[str, Any]) -> Recording | Broken:
    """Return what a log without samples says: its results, as they are; no trial is made of them."""
    about, results = head["eval"], head.get("results") or {}
    lines = [
        f"{one['name']}: " + ", ".join(f"{name} {metric['value']:g}" for name, metric in (one.get("metrics") or {}).items())
        for one in results.get("scores") or ()
    ]
    if not lines:
        return Broken(shown_path(path), f"it has neither samples nor results (status {head.get('status')})")
    number = results.get("completed_samples")
    of = f" over {number:,} completed samples" if isinstance(number, int) else ""
    return Recording(
        format="inspect",
        source=str(path),
        id=str(about.get("eval_id") or about.get("run_id") or ""),
        digest=digest("inspect", about, results),
        model=about["model"],
        kind=_kind(about),
        messages=[Said(role="user", text=f"Results of Inspect's task {about['task']}; the log has no samples")],
        summary="\n".join((f"As the log's header has them{of}:", *lines)),
        facts={"results": cast("Json", results)},
    )


def _recording(about: dict[str, Any], sample: dict[str, Any], source: str, passes: float) -> Recording:
    row = sample_row(about, sample, passes)
    marks = {key.removeprefix("score."): value for key, value in row.items() if key.startswith("score.")}
    raw = sample.get("scores") or {}
    attached = sample.get("attachments") or {}
    messages = sample.get("messages") or []
    spent = {
        _message_id(event): event for event in sample.get("events") or () if event.get("event") == "model" and not event.get("pending")
    }
    tools = {event["id"]: event for event in sample.get("events") or () if event.get("event") == "tool" and event.get("id")}
    error = sample.get("error")
    total = sample.get("total_time")
    said = [_said(message, spent.get(message.get("id")), tools, attached) for message in messages if message["role"] != "system"]
    if not any(one.role == "user" for one in said):  # a sample that broke before anything was said
        said.insert(
            0,
            Said(
                role="user",
                text=_text(sample.get("input"), attached) or f"Sample {sample['id']} of {about['task']}; the log has no messages",
            ),
        )
    offered = {tool["name"]: tool for event in spent.values() for tool in event.get("tools") or ()}
    return Recording(
        format="inspect",
        source=source,
        id=str(sample.get("uuid") or f"{about.get('eval_id', '')}/{sample['id']}/{sample['epoch']}"),
        digest=digest("inspect", about, sample),
        model=about["model"],
        kind=_kind(about),
        system="\n\n".join(_text(message.get("content"), attached) for message in messages if message["role"] == "system"),
        messages=said,
        tools=tuple(
            {"name": name, "description": str(tool.get("description") or ""), "schema": tool.get("parameters") or {}}
            for name, tool in offered.items()
        ),
        began=_time(sample.get("started_at")),
        seconds=None if total is None else float(total),
        error=row["reason"] if error is not None else "",
        reason="" if error is not None or row["outcome"] == "error" else row["reason"],
        suite=row["suite"],
        scenario=row["scenario"],
        config=row["config"],
        epoch=row["epoch"],
        scores=tuple(
            {
                "check": name,
                "passed": mark >= passes,
                "value": mark,
                "reason": one_line(str((raw.get(name) or {}).get("explanation") or ""), 500),
            }
            for name, mark in marks.items()
            if not math.isnan(mark)
        ),
        passed=None if row["outcome"] == "error" else row["outcome"] == "pass",
        metrics={name: row[name] for name in METRICS if name in row and not math.isnan(row[name])},
        facts={"target": sample.get("target"), "scores": cast("Json", {name: score.get("value") for name, score in raw.items()})},
    )


def _kind(about: dict[str, Any]) -> Any:
    return "scripted" if about["model"].startswith("mockllm/") else "imported"


def _message_id(event: dict[str, Any]) -> Any:
    choices = (event.get("output") or {}).get("choices") or [{}]
    return (choices[0].get("message") or {}).get("id")


def _said(message: dict[str, Any], spent: dict[str, Any] | None, tools: dict[str, Any], attached: dict[str, str]) -> Said:
    text = _text(message.get("content"), attached)
    match message["role"]:
        case "assistant":
            usage = ((spent or {}).get("output") or {}).get("usage") or {}
            asked = [
                Asked(tool=call["function"], args=_resolved(call.get("arguments") or {}, attached), id=call.get("id") or "", problem=str(call.get("parse_error") or ""))
                for call in message.get("tool_calls") or ()
            ]  # fmt: skip
            total, written = usage.get("total_tokens"), usage.get("output_tokens")
            return Said(
                role="assistant", text=text, calls=tuple(asked), model=str(message.get("model") or ""), at=_time((spent or {}).get("completed")),
                seconds=float((spent or {}).get("working_time") or 0.0), cost_usd=usage.get("total_cost"),
                tokens_in=None if total is None or written is None else total - written, tokens_out=written,
            )  # fmt: skip
        case "tool":
            event = tools.get(message.get("tool_call_id") or "") or {}
            error = message.get("error")
            said = str(error.get("message") if isinstance(error, dict) else error) if error else ""
            return Said(
                role="tool", text=text, call=message.get("tool_call_id") or "", error=said, at=_time(event.get("completed")),
                seconds=float(event.get("working_time") or 0.0),
            )  # fmt: skip
        case "user":
            return Said(role="user", text=text)
    raise ValueError(f"a message has the role {message['role']!r}")


def _text(content: Any, attached: dict[str, str]) -> str:
    """Return a text; of content in parts those that are text, the others named. An input may be a list of messages."""
    if isinstance(content, list):
        return "\n\n".join(filter(None, (_part(part, attached) for part in content)))
    return str(_resolved(content, attached) or "")


def _part(part: Any, attached: dict[str, str]) -> str:
    if not isinstance(part, dict):
        return _text(part, attached)
    if "role" in part:
        return _text(part.get("content"), attached)
    return str(_resolved(part.get("text") or part.get("reasoning") or f"[{part.get('type', 'part')}]", attached))


def _resolved(value: Any, attached: dict[str, str]) -> Any:
    """Return the value with what Inspect keeps apart, long texts, in its place."""
    if isinstance(value, dict):
        return {key: _resolved(one, attached) for key, one in value.items()}
    if isinstance(value, list):
        return [_resolved(one, attached) for one in value]
    if isinstance(value, str) and value.startswith(_ATTACHED):
        return attached.get(value.removeprefix(_ATTACHED), value)
    return value


def _time(text: Any) -> float | None:
    return None if not text else datetime.fromisoformat(str(text)).timestamp()
