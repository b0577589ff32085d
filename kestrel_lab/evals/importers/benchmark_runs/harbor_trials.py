"""Trials of Harbor: the folder of each, with the rewards in its `result.json`, and the job around them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers.imported_run import (
    Recording,
    Records,
    WholeUsage,
    described_task,
    record_digest,
    reward_score,
    unreadable_record,
)
from kestrel_lab.evals.importers.json_fields import UNREADABLE, Broken, JsonFields, parse_json
from kestrel_lab.views.formatting import format_count

TRIAL: Final = "result.json"
"""What Harbor writes of a trial, in the folder above that of its agent, and of a job, above its trials."""
_VERDICTS: Final = frozenset({"verifier_result", "exception_info", "agent_info", "agent_result"})


def is_harbor_trial(value: Any) -> bool:
    """Return whether a JSON value is what Harbor writes of a trial."""
    return isinstance(value, dict) and "task_name" in value and bool(_VERDICTS & value.keys())


def is_harbor_job(value: Any) -> bool:
    """Return whether a JSON value is what Harbor writes of a job, which has trials."""
    return isinstance(value, dict) and "n_total_trials" in value and "stats" in value


def is_trial_folder(folder: Path) -> bool:
    """Return whether a folder is that of a trial: all in it belongs to that trial."""
    return (folder / TRIAL).is_file() and any((folder / name).is_dir() for name in ("agent", "verifier"))


def trial_files(folder: Path) -> Iterator[Path]:
    """Yield the results of the trials in a folder."""
    for file in sorted(folder.rglob(TRIAL)):
        if is_trial_folder(file.parent):
            yield file


def read_trial_result(path: Path) -> JsonFields | Broken:
    """Return what Harbor says of a trial, or why that cannot be read."""
    try:
        return JsonFields(parse_json(path.read_bytes()), str(path), [], whole=True)
    except (*UNREADABLE, OSError) as error:
        return unreadable_record(shown_path(path), "no result of a trial", error)


def read_job(value: dict[str, Any], source: str, path: Path) -> Records:
    """Yield what a job planned and has no result of: those trials are in no rate."""
    left_out: list[Broken] = []
    planned = JsonFields(value, source, left_out, whole=True).count("n_total_trials")
    yield from left_out
    ended = sum(1 for _ in trial_files(path.parent))
    if planned is not None and planned > ended:
        yield Broken(
            shown_path(path),
            f"the job planned {format_count(planned, 'trial')}; {planned - ended:,} of them have no result "
            "and are in no rate",
        )


def harbor_trial(trial: JsonFields, conversations: Sequence[Recording], path: Path) -> Recording:
    """Return the recording of a trial: what Harbor says of it, and what its agent said, step by step.

    A task is done if every reward is 1 or more. A trial that ended with an exception, or without a reward
    that is a number, has broken, unless its rewards say that it was done all the same.
    """
    task = trial.label("task_name", "trial_name") or path.parent.name
    scores = [
        reward_score(name, reward)
        for rewards in [trial.fields("verifier_result").fields("rewards")]
        for name in rewards
        if (reward := rewards.number(name)) is not None
    ]
    if not trial.label("task_name"):
        trial.note("task_name", f"it is missing, and {task!r} stands in its place")
    exception = trial.fields("exception_info")
    if exception and not (exception.text("exception_message") or exception.text("exception_type")):
        trial.note("exception_info", "it says neither what was raised nor why")
    error = one_line(exception.text("exception_message") or exception.text("exception_type"), 300)
    done = bool(scores) and all(bool(score["passed"]) for score in scores)
    first = conversations[0] if conversations else _without_conversation(trial, task, path)
    agent, spent = trial.fields("agent_info"), trial.fields("agent_result")
    model = _model_of(trial) or first.model
    if model == "unknown":
        model = _model_of_sibling(trial, path)
    began, ended = trial.time("started_at"), trial.time("finished_at")
    usage = WholeUsage(
        tokens_in=spent.count("n_input_tokens"),
        tokens_out=spent.count("n_output_tokens"),
        tokens_cached=spent.count("n_cache_tokens"),
        cost_usd=spent.amount("cost_usd"),
    )
    broke = not scores or (bool(exception) and not done)
    return replace(
        first,
        digest=record_digest("harbor", trial.label("id", "trial_name"), [one.digest for one in conversations])
        if conversations
        else first.digest,
        messages=[message for one in conversations for message in one.messages] or first.messages,
        model=model,
        began=first.began if began is None else began,
        seconds=ended - began
        if began is not None and ended is not None and ended >= began
        else first.seconds,
        suite=f"harbor:{trial.label('source') or 'tasks'}",
        scenario=task,
        config="/".join(filter(None, (agent.label("name"), "" if model == "unknown" else model))) or model,
        error=(error or first.error) if broke else "",
        reason="" if broke else error,
        scores=tuple(scores),
        passed=None if broke else done,
        unjudged="" if scores else "it has no reward that is a number",
        usage=usage if usage.as_json() else first.usage,
        # Last: what is read above is noted while it is read.
        left_out=(*(part for one in conversations for part in one.left_out), *trial.left_out),
    )


def _without_conversation(trial: JsonFields, task: str, path: Path) -> Recording:
    """Return a recording of a trial whose agent wrote no trajectory."""
    return Recording(
        format="atif",
        source=str(path),
        id=trial.label("trial_name", "id") or path.parent.name,
        digest=record_digest("harbor", path.parent.name, dict(trial)),
        model="unknown",
        messages=[described_task(f"Task {task} of Harbor; the trial has no trajectory")],
        facts={"result": dict(trial)},
    )


def _model_of(trial: JsonFields) -> str:
    """Return the model that Harbor names; empty where it names none."""
    about = trial.fields("agent_info").fields("model_info")
    named = about.text("name")
    if named and (provider := about.text("provider")) and not named.startswith(f"{provider}/"):
        return f"{provider}/{named}"
    return named or trial.fields("config").fields("agent").text("model_name")


def _model_of_sibling(trial: JsonFields, path: Path) -> str:
    """Return the model of another trial of the job by the same agent, as trajectories name it.

    A trial that broke before its agent began names none, and belongs to the same configuration.
    """
    agent = trial.fields("agent_info").label("name")
    for file in sorted(path.parent.parent.glob("*/agent/trajectory.json")):
        sibling = read_trial_result(file.parent.parent / TRIAL)
        if isinstance(sibling, Broken) or sibling.fields("agent_info").label("name") != agent:
            continue
        try:
            document = json.loads(file.read_bytes())
            if name := JsonFields(document, str(file), []).fields("agent").text("model_name"):
                return name
        except (*UNREADABLE, OSError):
            # It is named where that trial is read.
            continue
    return "unknown"
