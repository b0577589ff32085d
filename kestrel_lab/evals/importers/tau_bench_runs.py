"""Runs of tau-bench (`historical_trajectories`, results of its `run.py`): a list of tries, each with its
conversation and its reward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kestrel_lab.evals.importers.chat_logs import chat_messages
from kestrel_lab.evals.importers.imported_run import (
    Recording,
    read_parts,
    record_digest,
)


def is_tau_bench(value: Any) -> bool:
    """Return whether a JSON value is one try of tau-bench."""
    return isinstance(value, dict) and {"task_id", "reward", "traj"} <= value.keys()


def tau_bench_recording(value: dict[str, Any], source: str, path: Path) -> Recording:
    """Return the recording of a try: a trial with its reward.

    Model and domain are in the file's name alone, as in `gpt-4o-airline.json`. Raises `KeyError`, `TypeError`
    or `ValueError` for another shape.
    """
    system: list[str] = []
    said, left_out = read_parts(
        ((f"{source} traj[{number}]", one) for number, one in enumerate(value["traj"])),
        lambda message: chat_messages(message, system),
    )
    domain = next((one for one in ("airline", "retail", "telecom") if one in path.stem), "")
    model = path.stem.replace(f"-{domain}", "") if domain else path.stem
    reward, info = float(value["reward"]), value.get("info") or {}
    # The benchmark counts a task as done from a reward of 1 on.
    passed = reward >= 1.0
    task = str(value["task_id"])
    trial = int(value.get("trial") or 0)
    return Recording(
        format="tau-bench",
        source=source,
        id=f"{path.stem}/{task}/{trial}",
        digest=record_digest("tau-bench", path.stem, value),
        model=model,
        system="\n\n".join(system),
        messages=said,
        error=str(info.get("error") or ""),
        suite=f"tau-bench:{domain}" if domain else "tau-bench",
        scenario=task,
        config=model,
        epoch=trial + 1,
        scores=(
            {
                "check": "reward",
                "passed": passed,
                "value": reward,
                "reason": "" if passed else f"the reward is {reward:g}",
            },
        ),
        passed=passed,
        facts={"reward_info": info.get("reward_info") or {}, "user_cost": info.get("user_cost")},
        left_out=left_out,
    )
