"""Trials in are trials out: what broke before anybody said a word is in the denominator, or named beside the rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_formats import OPENHANDS_ROW, TAU
from test_bad_records import DOJO, LOG, SAMPLE
from test_formats import written

from kestrel_lab import Lab
from kestrel_lab.evals.importers.coding_agents.swe_agents import repository_of_instance

TRAJECTORY = {
    "schema_version": "ATIF-v1.4",
    "agent": {"name": "a", "version": "1", "model_name": "m"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "hi"},
        {"step_id": 2, "source": "agent", "message": "done"},
    ],
}


def harbor_trial(job: Path, name: str, **result: Any) -> None:
    """The folder of a trial; without `trajectory` its agent wrote none."""
    trajectory = result.pop("trajectory", True)
    (job / name / "agent").mkdir(parents=True)
    about = {
        "task_name": name,
        "trial_name": name,
        "source": "tb",
        "agent_info": {"name": "a", "version": "1"},
    }
    written(job / name / "result.json", [about | result])
    written(job / name / "config.json", [{"task": {}}])
    if trajectory:
        written(job / name / "agent" / "trajectory.json", [{**TRAJECTORY, "session_id": name}])


def test_trials_of_harbor_without_a_trajectory_are_trials(tmp_path: Path, lab: Lab) -> None:
    """Five trials, two of which broke, are 20 % of 5 in one configuration, and the job's own files are none."""
    job = tmp_path / "job"
    passed, failed = ({"verifier_result": {"rewards": {"reward": reward}}} for reward in (1.0, 0.0))
    harbor_trial(job, "t1", **passed)
    harbor_trial(job, "t2", **failed)
    harbor_trial(job, "t3", **failed, exception_info={"exception_type": "AgentTimeoutError"})
    harbor_trial(
        job,
        "t4",
        verifier_result=None,
        exception_info={"exception_type": "AgentSetupError", "exception_message": "npm failed"},
        trajectory=False,
    )
    harbor_trial(job, "t5", **failed, trajectory=False)
    written(job / "config.json", [{"jobs_dir": "jobs"}])
    written(job / "result.json", [{"id": "j", "n_total_trials": 7, "stats": {"n_trials": 5}}])
    found = lab.evals.import_runs_sync(tmp_path)
    (result,) = found.results.values()
    assert {row.scenario: row.result["outcome"] for row in result.rows} == {
        "t1": "pass",
        "t2": "fail",
        "t3": "error",
        "t4": "error",
        "t5": "fail",
    }
    assert {row.config for row in result.rows} == {"a/m"}
    assert result.frame["success"].mean() == 0.2
    assert found.headline.endswith("1 of 5 trials passed, 2 of them broke")
    assert [str(one).partition(": ")[2] for one in found.broken] == [
        "the job planned 7 trials; 2 of them have no result and are in no rate"
    ]
    assert "npm failed" in {row.result["reason"] for row in result.rows}


def test_a_trial_whose_trajectory_is_broken_keeps_its_reward(tmp_path: Path, lab: Lab) -> None:
    """The trajectory is named, the trial counts; other files of its folder are its own."""
    harbor_trial(tmp_path, "t1", verifier_result={"rewards": {"reward": 1.0}})
    (tmp_path / "t1" / "agent" / "trajectory.json").write_text("{")
    (tmp_path / "t1" / "agent" / "session.jsonl").write_text('{"role": "user", "content": "Hi"}\n')
    found = lab.evals.import_runs_sync(tmp_path)
    assert found.frame["outcome"].tolist() == ["pass"] and len(found.runs) == 1
    assert "trajectory of this trial cannot be read" in str(found.broken[0])


@pytest.mark.parametrize("reward", ["NaN", "1e999", "true", '"1.0"', "null", "[]", "10" * 3000])
def test_a_reward_that_is_no_number_breaks_its_trial_alone(tmp_path: Path, lab: Lab, reward: str) -> None:
    """It is no pass and no fail, it stays in the denominator, and it is named."""
    tries = [{**TAU[0], "trial": trial} for trial in range(3)]
    text = json.dumps(tries).replace('"reward": 1.0', f'"reward": {reward}', 1)
    (tmp_path / "gpt-4o-airline.json").write_text(text)
    found = lab.evals.import_runs_sync(tmp_path / "gpt-4o-airline.json")
    assert sorted(found.frame["outcome"]) == ["error", "pass", "pass"]
    assert bool(found.broken) is (reward != "null")
    assert "2 of 3 trials passed, 1 of them broke" in found.headline


def test_tries_without_a_conversation_are_trials(tmp_path: Path, lab: Lab) -> None:
    """tau-bench writes `traj: []` with a reward of 0 for a try that raised."""
    broke = {"task_id": 4, "reward": 0.0, "info": {"error": "boom", "traceback": "…"}, "traj": [], "trial": 0}
    tries = [TAU[0], broke, {**broke, "task_id": 5, "info": {}}]
    found = lab.evals.import_runs_sync(written(tmp_path / "gpt-4o-retail.json", [tries]))
    assert sorted(zip(found.frame["scenario"], found.frame["outcome"], strict=True)) == [
        ("3", "pass"),
        ("4", "error"),
        ("5", "fail"),
    ]


def test_rows_that_broke_at_once_are_trials(tmp_path: Path, lab: Lab) -> None:
    """An instance of OpenHands with an error and no history is one of those that were tried."""
    broke = {
        "instance_id": "shop-2",
        "test_result": {},
        "history": [],
        "error": "no runtime",
        "metadata": OPENHANDS_ROW["metadata"],
    }
    found = lab.evals.import_runs_sync(written(tmp_path / "output.jsonl", [OPENHANDS_ROW, broke]))
    assert found.frame["outcome"].tolist() == ["pass", "error"]


def test_a_verdict_that_is_missing_is_no_verdict(tmp_path: Path, lab: Lab) -> None:
    """AgentDojo's utility of null is not false, and a sample that is null is named."""
    found = lab.evals.import_runs_sync(written(tmp_path / "d.json", [{**DOJO, "utility": None}]))
    assert found.frame["outcome"].tolist() == ["error"]
    log = written(
        tmp_path / "log.json", [{**LOG, "samples": [SAMPLE, None, {**SAMPLE, "uuid": "y", "epoch": 2}]}]
    )
    found = lab.evals.import_runs_sync(log)
    assert (len(found.frame), [str(one).partition(": ")[2] for one in found.broken]) == (
        2,
        ["samples[1]: it is null"],
    )


def test_equal_records_are_counted_once_and_said(tmp_path: Path, lab: Lab) -> None:
    """A record that stands in a file twice is one run, which the result says."""
    found = lab.evals.import_runs_sync(written(tmp_path / "gpt-4o-airline.json", [[TAU[0], TAU[0]]]))
    assert len(found.frame) == 1 and any("1 record equal to another one" in note for note in found.notes)


def test_one_odd_element_of_a_list_names_itself(tmp_path: Path, lab: Lab) -> None:
    """Tries beside which a number, a text, a list or a try without its conversation stands are all read."""
    odd = [5, "x", [], {"task_id": 9}, None]
    found = lab.evals.import_runs_sync(written(tmp_path / "gpt-4o-airline.json", [[TAU[0], *odd]]))
    assert len(found.frame) == 2 and "pass" in found.frame["outcome"].tolist()
    assert len(found.broken) == 4


def test_attacks_on_one_task_are_one_group(tmp_path: Path, lab: Lab) -> None:
    """Three attacks on one user task of AgentDojo count as one task, and so does the result: one passed of
    them all is no rate of three tasks.
    """
    for number, task in enumerate(("u1", "u1", "u1", "u2")):
        value = {**DOJO, "user_task_id": task, "injection_task_id": f"i{number}", "utility": task == "u1"}
        written(tmp_path / "in" / f"{number}.json", [value])
    (result,) = lab.evals.import_runs_sync(tmp_path / "in").results.values()
    assert sorted(result.suite.groups.values()) == ["banking/u1"] * 3 + ["banking/u2"]
    assert "4 scenarios of 2 tasks" in result.headline
    (summary,) = result.summaries()
    assert (summary["scenarios"], summary["groups"]) == (4, 2)


def test_issues_of_one_repository_are_one_group() -> None:
    """An instance of SWE-bench names its repository; any other id says nothing of one."""
    assert repository_of_instance("django__django-11099") == "django__django"
    assert repository_of_instance("my-task-7") == ""
