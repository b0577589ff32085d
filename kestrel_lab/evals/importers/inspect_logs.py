"""Logs of Inspect (`.eval` and `.json`) as recordings, and as tidy frames: one row per sample and epoch, in
the columns of our own trials.

The format is that of the UK AI Security Institute's Inspect: a zip file with `header.json`, or
`_journal/start.json` where the run did not end, and `samples/ID_epoch_N.json`; or all of it in one JSON file.
Nothing of Inspect is needed, and nothing in a log is run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers.imported_run import (
    UNREADABLE,
    Broken,
    ImportedCall,
    ImportedMessage,
    Recording,
    Records,
    offered_tool,
    read_messages,
    record_digest,
    seconds_of,
    unreadable_record,
)
from kestrel_lab.evals.importers.inspect_scores import (
    judgements,
    main_verdict,
    mark_of,
    parts_of_score,
    scores_by_scorer,
)
from kestrel_lab.evals.importers.zip_of_json import ZipOfJson
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.summaries.result_table import COLUMNS

if TYPE_CHECKING:
    import pandas as pd


_ATTACHED: Final = "attachment://"


def read_inspect(*paths: str | Path, passes: float = 1.0) -> pd.DataFrame:
    """One row per sample and epoch of the logs, with the columns of `EvalResult.frame` and one `score.SCORER`
    for each scorer.

    `scenario` is the sample's id, `config` the model with its settings where it has any, `success` 1 or 0:
    whether the first scorer gave at least `passes`. `score` is the mean over scorers, where words count as in
    Inspect (C 1, P 0.5, I and N 0). Several scores of one scorer have a column each, `score.SCORER.NAME`, and
    are in no mean; the first scorer's are a success only by one that alone is a verdict (true or false, or
    such a word). A sample that broke, was never scored or has no verdict has outcome `error` and no success,
    since Inspect leaves it out of its rates. `model_kind` is `scripted` for Inspect's mock model. Times are
    in seconds, costs in US dollars; what a log does not tell is missing.

    Raises `UsageError` with the file, and the part of it, for what is not a whole log.
    """
    # pandas takes half a second to load, and only frames need it.
    import pandas as pd

    rows = [row for path in paths for row in _rows(Path(path), passes)]
    scorers = list(dict.fromkeys(key for row in rows for key in row if key.startswith("score.")))
    for row in rows:
        row["passed"] = None if math.isnan(row["success"]) else bool(row["success"])
        row["why"] = row["reason"]
    return pd.DataFrame(rows, columns=[*COLUMNS, *scorers]).astype({"passed": "boolean"})


def is_inspect(path: Path) -> bool:
    """Whether the file looks like a log of Inspect, by its first characters."""
    with path.open("rb") as file:
        head = file.read(4096)
    return head.startswith(b"PK\x03\x04") or (
        head.lstrip()[:1] == b"{"
        and b'"version"' in head
        and re.search(rb'"eval"\s*:\s*\{', head) is not None
    )


def _rows(path: Path, passes: float) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    found = 0
    for place, head, sample in log_samples(path):
        if isinstance(sample, UsageError):
            raise sample
        if sample is None:
            continue
        try:
            yield sample_row(head["eval"], sample, passes)
        except UNREADABLE as error:
            raise UsageError(
                f"{shown_path(path)}: {place} is not a sample of an Inspect log "
                f"({type(error).__name__}: {one_line(str(error), 100)})"
            ) from error
        found += 1
    if not found:
        raise UsageError(f"{shown_path(path)}: it contains no samples")


def log_samples(path: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield the place of each sample, the log's header, and the sample; at last the header again, with `None`
    for a sample.

    Of a zip file only one sample at a time is in memory; one that cannot be read is the `UsageError` that
    says why. Raises `UsageError` for what is no log.
    """
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    if not zipped:
        log = _read_json_log(path)
        head = _log_header(path, log)
        samples = log.get("samples")
        for number, sample in enumerate(samples if isinstance(samples, list) else ()):
            yield f"samples[{number}]", head, sample
        yield "", head, None
        return
    with ZipOfJson(path) as parts:
        named = next((name for name in ("header.json", "_journal/start.json") if name in parts.names), None)
        if named is None:
            raise UsageError(
                f"{shown_path(path)}: a zip file, but no log of Inspect: it has neither header.json "
                "nor _journal/start.json"
            )
        head = _log_header(path, parts.read(named))
        for name in parts.names:
            if name.startswith("samples/") and name.endswith(".json"):
                try:
                    sample = parts.read(name)
                except UsageError as error:
                    sample = error
                yield name, head, sample
        yield "", head, None


def _read_json_log(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{shown_path(path)}: not a log of Inspect: neither a zip file nor whole JSON "
            f"({one_line(str(error), 100)})"
        ) from error


def _log_header(path: Path, head: Any) -> dict[str, Any]:
    """Return what a log says beside its samples; its part `eval` says what was evaluated."""
    about = head.get("eval") if isinstance(head, dict) else None
    if (
        not isinstance(about, dict)
        or not isinstance(about.get("task"), str)
        or not isinstance(about.get("model"), str)
    ):
        raise UsageError(
            f"{shown_path(path)}: not a log of Inspect: nothing under 'eval' names a task and a model"
        )
    return cast("dict[str, Any]", head)


def sample_row(about: dict[str, Any], sample: dict[str, Any], passes: float) -> dict[str, Any]:
    """Return a sample as a row of a frame, see `read_inspect`."""
    scores = scores_by_scorer(sample)
    marks = {
        part: mark_of(raw) for name, value in scores.items() for part, raw in parts_of_score(name, value)
    }
    error = sample.get("error")
    headline, unjudged = main_verdict(scores)
    values = [mark for mark in judgements(scores, headline).values() if not math.isnan(mark)]
    counts = error is None and not math.isnan(headline)
    success = float(headline >= passes) if counts else math.nan
    limit = sample.get("limit")
    return {
        "suite": about["task"],
        "scenario": str(sample["id"]),
        "family": "",
        "config": _config(about),
        "model": about["model"],
        "model_kind": "scripted" if about["model"].startswith("mockllm/") else "real",
        "epoch": int(sample["epoch"]),
        "outcome": ("pass" if success else "fail") if counts else "error",
        "success": success,
        "score": sum(values) / len(values) if values else math.nan,
        "wall_time": _number(sample.get("total_time")),
        "working_time": _number(sample.get("working_time")),
        **_tokens(sample.get("model_usage") or {}),
        **_calls(sample),
        "reason": one_line(str(error["message"] if isinstance(error, dict) else error), 500)
        if error is not None
        else f"limit: {limit['type']}"
        if limit
        else ""
        if counts
        else unjudged or "not scored",
        "run": str(sample.get("uuid") or ""),
        "git_sha": str((about.get("revision") or {}).get("commit") or ""),
        "weight": 1.0,
        **{f"score.{name}": mark for name, mark in marks.items()},
    }


def _config(about: dict[str, Any]) -> str:
    given = {"solver": about.get("solver") or None}
    for part in ("task_args_passed", "model_generate_config", "solver_args_passed"):
        given |= about.get(part) or {}
    settings = ", ".join(
        f"{key}={one_line(str(value), 40)}" for key, value in given.items() if value is not None
    )
    return f"{about['model']} [{settings}]" if settings else str(about["model"])


def _tokens(usage: dict[str, Any]) -> dict[str, float]:
    """Tokens and known costs over all models; what a cache gave counts as read, as in the totals of
    Inspect.
    """
    totals = [_number(one.get("total_tokens")) for one in usage.values()]
    written = [_number(one.get("output_tokens")) for one in usage.values()]
    costs = [one["total_cost"] for one in usage.values() if one.get("total_cost") is not None]
    return {
        "token_usage": sum(totals),
        # Inspect's total includes what the cache gave, and its `input_tokens` does not.
        "tokens_in": sum(totals) - sum(written),
        "tokens_out": sum(written),
        "cost_estimate": float(sum(costs)),
    }


def _calls(sample: dict[str, Any]) -> dict[str, float]:
    """Calls of models and tools: from the events, or the conversation where a log has no events; and how many
    have no price.
    """
    events = [event.get("event") for event in sample.get("events") or () if not event.get("pending")]
    said = [message for message in sample.get("messages") or () if message.get("role") == "assistant"]
    models = events.count("model") if events else len(said)
    tools = events.count("tool") if events else sum(len(message.get("tool_calls") or ()) for message in said)
    priced = all(one.get("total_cost") is not None for one in (sample.get("model_usage") or {}).values())
    return {
        "model_calls": float(models),
        "tool_calls": float(tools),
        "unpriced_calls": 0.0 if priced else float(models),
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def inspect_recordings(path: Path, *, passes: float = 1.0) -> Records:
    """Yield a recording for each sample of a log; a log with results and no samples is one recording of its
    results.

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
            except UNREADABLE as error:
                yield unreadable_record(
                    f"{shown_path(path)}: {place}", "not a sample of an Inspect log", error
                )
        elif not found:
            try:
                yield _results(path, head)
            except UNREADABLE as error:
                yield unreadable_record(
                    shown_path(path), "no samples, and no results of an Inspect log", error
                )


def _results(path: Path, head: dict[str, Any]) -> Recording | Broken:
    """Return what a log without samples says: its results, as they are; no trial is made of them."""
    about, results = head["eval"], head.get("results") or {}
    lines = [
        f"{one['name']}: "
        + ", ".join(f"{name} {metric['value']:g}" for name, metric in (one.get("metrics") or {}).items())
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
        digest=record_digest("inspect", about, results),
        model=about["model"],
        kind="scripted" if about["model"].startswith("mockllm/") else "imported",
        messages=[
            ImportedMessage(
                role="user", text=f"Results of Inspect's task {about['task']}; the log has no samples"
            )
        ],
        summary="\n".join((f"As the log's header has them{of}:", *lines)),
        facts={"results": results},
    )


def _recording(about: dict[str, Any], sample: dict[str, Any], source: str, passes: float) -> Recording:
    row = sample_row(about, sample, passes)
    scores = scores_by_scorer(sample)
    marks = judgements(scores, main_verdict(scores)[0])
    raw = sample.get("scores") or {}
    attached = sample.get("attachments") or {}
    messages = sample.get("messages") or []
    events = sample.get("events") or ()
    spent = {
        _message_id(event): event
        for event in events
        if event.get("event") == "model" and not event.get("pending")
    }
    tools = {event["id"]: event for event in events if event.get("event") == "tool" and event.get("id")}
    error = sample.get("error")
    total = sample.get("total_time")
    said, left_out = read_messages(
        messages,
        lambda message: (
            None
            if message["role"] == "system"
            else _read_message(message, spent.get(message.get("id")), tools, attached)
        ),
        source,
    )
    # The sample broke before anything was said.
    if not any(one.role == "user" for one in said):
        asked = (
            _text(sample.get("input"), attached)
            or f"Sample {sample['id']} of {about['task']}; the log has no messages"
        )
        said.insert(0, ImportedMessage(role="user", text=asked))
    offered = {tool["name"]: tool for event in spent.values() for tool in event.get("tools") or ()}
    return Recording(
        format="inspect",
        source=source,
        id=str(sample.get("uuid") or f"{about.get('eval_id', '')}/{sample['id']}/{sample['epoch']}"),
        digest=record_digest("inspect", about, sample),
        model=about["model"],
        kind="scripted" if about["model"].startswith("mockllm/") else "imported",
        system="\n\n".join(
            _text(message.get("content"), attached)
            for message in messages
            if isinstance(message, dict) and message.get("role") == "system"
        ),
        messages=said,
        tools=tuple(map(offered_tool, offered.values())),
        began=seconds_of(sample.get("started_at")),
        seconds=None if total is None else float(total),
        error=row["reason"] if error is not None else "",
        reason="" if error is not None or row["outcome"] == "error" else row["reason"],
        unjudged=main_verdict(scores)[1] if scores else "",
        suite=row["suite"],
        scenario=row["scenario"],
        config=row["config"],
        epoch=row["epoch"],
        scores=tuple(
            {
                "check": name,
                "passed": mark >= passes,
                "value": mark,
                "reason": one_line(
                    str(raw[name].get("explanation") or "") if isinstance(raw.get(name), dict) else "", 500
                ),
            }
            for name, mark in marks.items()
            if not math.isnan(mark)
        ),
        passed=None if row["outcome"] == "error" else row["outcome"] == "pass",
        metrics={
            name: value
            for name, value in row.items()
            if (name in METRICS or (name.startswith("score.") and name.removeprefix("score.") not in scores))
            and not math.isnan(value)
        },
        facts={"target": sample.get("target"), "scores": scores},
        left_out=left_out,
    )


def _message_id(event: dict[str, Any]) -> Any:
    choices = (event.get("output") or {}).get("choices") or [{}]
    return (choices[0].get("message") or {}).get("id")


def _read_message(
    message: dict[str, Any], spent: dict[str, Any] | None, tools: dict[str, Any], attached: dict[str, str]
) -> ImportedMessage:
    text = _text(message.get("content"), attached)
    match message["role"]:
        case "assistant":
            usage = ((spent or {}).get("output") or {}).get("usage") or {}
            asked = [
                ImportedCall(
                    tool=call["function"],
                    args=_resolve_attachments(call.get("arguments") or {}, attached),
                    id=call.get("id") or "",
                    problem=str(call.get("parse_error") or ""),
                )
                for call in message.get("tool_calls") or ()
            ]
            total, written = usage.get("total_tokens"), usage.get("output_tokens")
            return ImportedMessage(
                role="assistant",
                text=text,
                calls=tuple(asked),
                model=str(message.get("model") or ""),
                at=seconds_of((spent or {}).get("completed")),
                seconds=float((spent or {}).get("working_time") or 0.0),
                cost_usd=usage.get("total_cost"),
                tokens_in=None if total is None or written is None else total - written,
                tokens_out=written,
            )
        case "tool":
            event = tools.get(message.get("tool_call_id") or "") or {}
            error = message.get("error")
            said = str(error.get("message") if isinstance(error, dict) else error) if error else ""
            return ImportedMessage(
                role="tool",
                text=text,
                call=message.get("tool_call_id") or "",
                error=said,
                at=seconds_of(event.get("completed")),
                seconds=float(event.get("working_time") or 0.0),
            )
        case "user":
            return ImportedMessage(role="user", text=text)
    raise ValueError(f"a message has the role {message['role']!r}")


def _text(content: Any, attached: dict[str, str]) -> str:
    """Return a text; of content in parts those that are text, the others named.

    An input may be a list of messages.
    """
    if isinstance(content, list):
        return "\n\n".join(filter(None, (_part(part, attached) for part in content)))
    return str(_resolve_attachments(content, attached) or "")


def _part(part: Any, attached: dict[str, str]) -> str:
    if not isinstance(part, dict):
        return _text(part, attached)
    if "role" in part:
        return _text(part.get("content"), attached)
    return str(
        _resolve_attachments(
            part.get("text") or part.get("reasoning") or f"[{part.get('type', 'part')}]", attached
        )
    )


def _resolve_attachments(value: Any, attached: dict[str, str]) -> Any:
    """Return the value with what Inspect keeps apart, long texts, in its place."""
    if isinstance(value, dict):
        return {key: _resolve_attachments(one, attached) for key, one in value.items()}
    if isinstance(value, list):
        return [_resolve_attachments(one, attached) for one in value]
    if isinstance(value, str) and value.startswith(_ATTACHED):
        return attached.get(value.removeprefix(_ATTACHED), value)
    return value
