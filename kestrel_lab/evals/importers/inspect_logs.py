"""Logs of Inspect (`.eval` and `.json`) as recordings, and as tidy frames: one row per sample and epoch, in
the columns of our own trials.

The format is that of the UK AI Security Institute's Inspect: a zip file with `header.json`, or
`_journal/start.json` where the run did not end, and `samples/ID_epoch_N.json`; or all of it in one JSON file.
Nothing of Inspect is needed, and nothing in a log is run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers.imported_run import (
    SHARED,
    ImportedCall,
    ImportedMessage,
    Recording,
    Records,
    described_task,
    offered_tools,
    read_call,
    read_calls,
    read_parts,
    record_digest,
    unreadable_record,
)
from kestrel_lab.evals.importers.inspect_scores import (
    is_score,
    judgements,
    main_verdict,
    mark_of,
    parts_of_score,
    scores_by_scorer,
)
from kestrel_lab.evals.importers.json_fields import (
    UNREADABLE,
    Broken,
    JsonFields,
    MessageContent,
    describe_type,
    parse_json,
    read_content,
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
            record = JsonFields(sample, place, [], whole=True)
            row = sample_row(head["eval"], record, passes)
            if record.left_out:
                raise ValueError(str(record.left_out[0]))
            yield row
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
        if samples is not None and not isinstance(samples, list):
            yield "samples", head, UsageError("it is no list: none of its samples can be read")
        for number, sample in enumerate(samples if isinstance(samples, list) else ()):
            place = f"samples[{number}]"
            yield place, head, UsageError("it is null") if sample is None else sample
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
        return parse_json(path.read_bytes())
    except ValueError as error:
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


def sample_row(about: dict[str, Any], record: JsonFields, passes: float) -> dict[str, Any]:
    """Return a sample as a row of a frame, see `read_inspect`; raises `ValueError` for one without an id."""
    sample_id, epoch = record.label("id"), record.count("epoch")
    if not sample_id:
        raise ValueError("it names no sample")
    if "epoch" not in record:
        record.note("epoch", "it is missing, and counts as 1")
    scores = scores_by_scorer(record)
    marks = {
        part: mark_of(raw) for name, value in scores.items() for part, raw in parts_of_score(name, value)
    }
    error = error_of_sample(record)
    headline, unjudged = main_verdict(scores)
    values = [mark for mark in judgements(scores, headline).values() if not math.isnan(mark)]
    counts = not error and not math.isnan(headline)
    success = float(headline >= passes) if counts else math.nan
    limit = record.fields("limit").text("type")
    calls = _calls(record)
    revision = about.get("revision")
    return {
        "suite": about["task"],
        "scenario": sample_id,
        "family": "",
        "group": record.fields("metadata").label(*SHARED),
        "config": _config(JsonFields(about, "eval", record.left_out)),
        "model": about["model"],
        "model_kind": "scripted" if about["model"].startswith("mockllm/") else "real",
        "epoch": epoch if epoch is not None else 1,
        "outcome": ("pass" if success else "fail") if counts else "error",
        "success": success,
        "score": sum(values) / len(values) if values else math.nan,
        "wall_time": _or_unknown(record.amount("total_time")),
        "working_time": _or_unknown(record.amount("working_time")),
        **_tokens(record, calls["model_calls"]),
        **calls,
        "reason": error or (f"limit: {limit}" if limit else "" if counts else unjudged or "not scored"),
        "run": record.label("uuid"),
        "git_sha": str(revision.get("commit") or "") if isinstance(revision, dict) else "",
        "weight": 1.0,
        **{f"score.{name}": mark for name, mark in marks.items()},
    }


def error_of_sample(record: JsonFields) -> str:
    """Return why a sample broke; empty where it did not."""
    error = record.get("error")
    if error is None:
        return ""
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(str(message or "it broke"), 500)


def _config(about: JsonFields) -> str:
    settings = {"solver": about.get("solver") or None}
    for part in ("task_args_passed", "model_generate_config", "solver_args_passed"):
        settings |= about.fields(part)
    shown = ", ".join(
        f"{key}={one_line(str(value), 40)}" for key, value in settings.items() if value is not None
    )
    return f"{about['model']} [{shown}]" if shown else str(about["model"])


def _tokens(record: JsonFields, model_calls: float) -> dict[str, float]:
    """Tokens and known costs over all models; what a cache gave counts as read, as in the totals of
    Inspect. What a log does not tell is unknown.
    """
    usage = record.fields("model_usage")
    if "model_usage" in record and not usage and not model_calls:
        return dict.fromkeys(("token_usage", "tokens_in", "tokens_out", "cost_estimate"), 0.0)
    models = [usage.fields(name) for name in usage]
    totals = [_or_unknown(model.count("total_tokens")) for model in models]
    written = [_or_unknown(model.count("output_tokens")) for model in models]
    costs = [cost for model in models if (cost := model.amount("total_cost")) is not None]
    read_and_written = sum(totals) if totals else math.nan
    all_written = sum(written) if written else math.nan
    return {
        "token_usage": read_and_written,
        # Inspect's total includes what the cache gave, and its `input_tokens` does not.
        "tokens_in": read_and_written - all_written,
        "tokens_out": all_written,
        "cost_estimate": float(sum(costs)) if costs else math.nan,
    }


def _calls(record: JsonFields) -> dict[str, float]:
    """Calls of models and tools: from the events, or the conversation where a log has no events; and how many
    have no price.
    """
    events = [event.get("event") for event in record.objects("events") if not event.get("pending")]
    said = [message for message in record.objects("messages") if message.get("role") == "assistant"]
    models = events.count("model") if events else len(said)
    tools = events.count("tool") if events else sum(len(message.parts("tool_calls")) for message in said)
    usage = record.fields("model_usage")
    priced = bool(usage or not models) and all(
        usage.fields(name).amount("total_cost") is not None for name in usage
    )
    return {
        "model_calls": float(models),
        "tool_calls": float(tools),
        "unpriced_calls": 0.0 if priced else float(models),
    }


def _or_unknown(value: float | None) -> float:
    return math.nan if value is None else float(value)


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
                record = JsonFields(sample, f"{shown_path(path)}: {place}", [], whole=True)
                yield _recording(head["eval"], record, f"{path}: {place}", passes)
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
    about, left_out = head["eval"], list[Broken]()
    results = JsonFields(head, str(path), left_out, whole=True).fields("results")
    lines = []
    for score in results.objects("scores"):
        metrics = score.fields("metrics")
        values = {name: metrics.fields(name).number("value") for name in metrics}
        known = ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)
        lines.append(f"{score.label('name')}: {known}")
    if not lines:
        return Broken(shown_path(path), f"it has neither samples nor results (status {head.get('status')})")
    number = results.get("completed_samples")
    of = f" over {number:,} completed samples" if isinstance(number, int) else ""
    return Recording(
        format="inspect",
        source=str(path),
        id=str(about.get("eval_id") or about.get("run_id") or ""),
        digest=record_digest("inspect", about, dict(results)),
        model=about["model"],
        kind="scripted" if about["model"].startswith("mockllm/") else "imported",
        messages=[
            ImportedMessage(
                role="user", text=f"Results of Inspect's task {about['task']}; the log has no samples"
            )
        ],
        summary="\n".join((f"As the log's header has them{of}:", *lines)),
        facts={"results": dict(results)},
        left_out=tuple(left_out),
    )


def _recording(about: dict[str, Any], record: JsonFields, source: str, passes: float) -> Recording:
    row = sample_row(about, record, passes)
    scores = scores_by_scorer(record)
    marks = judgements(scores, main_verdict(scores)[0])
    conversation = _SampleConversation(record)
    error, broke = error_of_sample(record), row["outcome"] == "error"
    said = read_parts(record.parts("messages"), conversation.read, record.left_out)
    # The sample broke before anything was said.
    if not any(one.role == "user" for one in said):
        asked = conversation.text(record.get("input")).text
        task = asked or f"Sample {row['scenario']} of {about['task']}; the log has no messages"
        said.insert(0, described_task(task))
    explanations = record.fields("scores")
    for name, value in scores.items():
        if not is_score(value):
            explanations.note(name, f"it is no score: {one_line(repr(value), 40)}")
    return Recording(
        format="inspect",
        source=source,
        id=record.label("uuid") or f"{about.get('eval_id', '')}/{row['scenario']}/{row['epoch']}",
        digest=record_digest("inspect", about, dict(record)),
        model=about["model"],
        kind="scripted" if about["model"].startswith("mockllm/") else "imported",
        system="\n\n".join(conversation.system),
        messages=said,
        tools=conversation.offered(),
        began=record.time("started_at"),
        seconds=record.amount("total_time"),
        error=error,
        reason="" if error or broke else row["reason"],
        unjudged=main_verdict(scores)[1] if scores else "",
        suite=row["suite"],
        scenario=row["scenario"],
        group=row["group"],
        config=row["config"],
        epoch=row["epoch"],
        summary=record.fields("output").text("completion"),
        scores=tuple(
            {
                "check": name,
                "passed": mark >= passes,
                "value": mark,
                "reason": one_line(_explanation(explanations, name), 500),
            }
            for name, mark in marks.items()
            if not math.isnan(mark)
        ),
        passed=None if broke else row["outcome"] == "pass",
        metrics={
            name: value
            for name, value in row.items()
            if (name in METRICS or (name.startswith("score.") and name.removeprefix("score.") not in scores))
            and not math.isnan(value)
        },
        facts={"target": record.get("target"), "scores": scores},
        # Fields of the row are read for the recording, too.
        left_out=tuple(dict.fromkeys(record.left_out)),
    )


def _explanation(scores: JsonFields, name: str) -> str:
    score = scores.get(name)
    return str(score.get("explanation") or "") if isinstance(score, dict) else ""


class _SampleConversation:
    """Reads the messages of a sample, with what its events tell of them."""

    def __init__(self, record: JsonFields) -> None:
        self.system: list[str] = []
        attachments = record.get("attachments")
        self._attached: Mapping[str, Any] = attachments if isinstance(attachments, dict) else {}
        events = record.objects("events")
        self._answers = {
            _message_id(event): event
            for event in events
            if event.text("event") == "model" and not event.get("pending")
        }
        """By the id of a message, the call of the model that wrote it."""
        self._results = {
            event.label("id"): event for event in events if event.text("event") == "tool" and event.get("id")
        }
        self._nothing = JsonFields({}, record.place, record.left_out)

    def offered(self) -> tuple[dict[str, Json], ...]:
        """Return the tools that any call of the model was offered."""
        tools = [tool for event in self._answers.values() for tool in event.objects("tools")]
        return offered_tools({tool.label("name"): tool for tool in tools}.values())

    def read(self, message: JsonFields) -> list[ImportedMessage]:
        """Return a message; nothing for a system message, which is added to `system`."""
        content = self.text(message.get("content"), message.place_of("content"), message.left_out)
        match message["role"]:
            case "system":
                self.system.append(content.text)
                return []
            case "assistant":
                return [self._answer(message, content)]
            case "tool":
                return [self._result(message, content.text)]
            case "user":
                return [ImportedMessage(role="user", text=content.text)]
        raise ValueError(f"a message has the role {message['role']!r}")

    def _answer(self, message: JsonFields, content: MessageContent) -> ImportedMessage:
        event = self._answers.get(message.label("id"), self._nothing)
        usage = event.fields("output").fields("usage")
        total, written = usage.count("total_tokens"), usage.count("output_tokens")
        read = None if total is None or written is None else total - written
        return ImportedMessage(
            role="assistant",
            text=content.text,
            thinking=content.thinking,
            calls=read_calls(message.objects("tool_calls"), self._call),
            model=message.text("model"),
            at=event.time("completed"),
            seconds=event.amount("working_time") or 0.0,
            cost_usd=usage.amount("total_cost"),
            tokens_in=None if read is None or read < 0 else read,
            tokens_out=written,
            tokens_cached=usage.count("input_tokens_cache_read") or 0,
            tokens_reasoning=usage.count("reasoning_tokens") or 0,
        )

    def _call(self, call: JsonFields) -> ImportedCall:
        args = _resolve_attachments(call.get("arguments"), self._attached)
        made = read_call(call["function"], args, call.label("id"))
        problem = call.text("parse_error")
        return replace(made, problem=problem) if problem else made

    def _result(self, message: JsonFields, text: str) -> ImportedMessage:
        call = message.label("tool_call_id")
        event = self._results.get(call, self._nothing)
        error = message.get("error")
        said = error.get("message") if isinstance(error, dict) else error
        return ImportedMessage(
            role="tool",
            text=text,
            call=call,
            error=str(said or "failed") if error else "",
            at=event.time("completed"),
            seconds=event.amount("working_time") or 0.0,
        )

    def text(
        self, content: Any, place: str = "input", left_out: list[Broken] | None = None
    ) -> MessageContent:
        """Return what a message says, and what its model thought; an input may be a list of messages."""
        if (
            isinstance(content, list)
            and content
            and all(isinstance(part, dict) and "role" in part for part in content)
        ):
            inner = [self.text(message.get("content")).text for message in content]
            return MessageContent("\n\n".join(filter(None, inner)))
        resolved = _resolve_attachments(content, self._attached)
        if resolved is not None and not isinstance(resolved, str | list) and left_out is not None:
            reason = f"left out: it is neither a text nor parts of one, but {describe_type(resolved)}"
            left_out.append(Broken(place, reason))
        return read_content(resolved, place, [] if left_out is None else left_out)


def _message_id(event: JsonFields) -> str:
    choices = event.fields("output").objects("choices")
    return choices[0].fields("message").label("id") if choices else ""


def _resolve_attachments(value: Any, attached: Mapping[str, Any]) -> Any:
    """Return the value with what Inspect keeps apart, long texts, in its place."""
    if isinstance(value, dict):
        return {key: _resolve_attachments(one, attached) for key, one in value.items()}
    if isinstance(value, list):
        return [_resolve_attachments(one, attached) for one in value]
    if isinstance(value, str) and value.startswith(_ATTACHED):
        return attached.get(value.removeprefix(_ATTACHED), value)
    return value
