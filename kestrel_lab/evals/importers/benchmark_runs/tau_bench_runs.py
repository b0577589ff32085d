"""Runs of tau-bench (`historical_trajectories`, results of its `run.py`): a list of tries, each with its
conversation and its reward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kestrel_lab.evals.importers.chat_logs import chat_messages
from kestrel_lab.evals.importers.imported_run import (
    Recording,
    described_task,
    read_parts,
    record_digest,
    reward_score,
)
from kestrel_lab.evals.importers.json_fields import Broken, JsonFields


def is_tau_bench(value: Any) -> bool:
    """Return whether a JSON value is one try of tau-bench, be it one that broke and has not all of it."""
    return isinstance(value, dict) and "task_id" in value and ("traj" in value or "reward" in value)


def tau_bench_recording(value: dict[str, Any], source: str, path: Path) -> Recording:
    """Return the recording of a try: a trial with its reward. One that broke has the outcome `error`, with or
    without a conversation.

    Model and domain are in the file's name alone, as in `gpt-4o-airline.json`. Raises `ValueError` for a try
    that names no task.
    """
    left_out: list[Broken] = []
    record = JsonFields(value, source, left_out, whole=True)
    system: list[str] = []
    messages = read_parts(record.parts("traj"), lambda message: chat_messages(message, system), left_out)
    task, trial = record.label("task_id"), record.count("trial") or 0
    if not task:
        raise ValueError("it names no task")
    # A try that broke at once has no conversation, and is a try.
    if not any(message.role == "user" and message.text.strip() for message in messages):
        messages.insert(
            0, described_task(f"Task {task} of tau-bench; the recording has no message of a user")
        )
    domain = next((name for name in ("airline", "retail", "telecom") if name in path.stem), "")
    model = path.stem.replace(f"-{domain}", "") if domain else path.stem
    reward, info = record.number("reward"), record.fields("info")
    error = info.text("error")
    # The benchmark counts a task as done from a reward of 1 on.
    scores = () if reward is None else (reward_score("reward", reward),)
    return Recording(
        format="tau-bench",
        source=source,
        id=f"{path.stem}/{task}/{trial}",
        digest=record_digest("tau-bench", path.stem, value),
        model=model,
        system="\n\n".join(system),
        messages=messages,
        error=error,
        suite=f"tau-bench:{domain}" if domain else "tau-bench",
        scenario=task,
        config=model,
        epoch=trial + 1,
        scores=scores,
        # What broke has a reward of 0 there, and counts as failed unless a suite leaves it out.
        passed=bool(scores[0]["passed"]) if scores and not error else None,
        unjudged="" if scores else "it has no reward that is a number",
        facts={"reward_info": dict(info.fields("reward_info")), "user_cost": info.amount("user_cost")},
        left_out=tuple(left_out),
    )
