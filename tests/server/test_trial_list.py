"""The trials of suites, as clients of the server list them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stored_trials import store_trial, stored_trials
from kestrel_lab.lab import Lab
from kestrel_lab.server import protocol
from kestrel_lab.server.controller import Control

SUITE = """\
name: demo
epochs: 2
configs: [{name: one, model: "scripted:script.yaml"}]
scenarios:
  - {id: good, goal: talk, checks: [{answer_contains: hello}]}
  - {id: bad, goal: talk, checks: [{answer_contains: bye}]}
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Lab]:
    """A session that ran a suite."""
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "script.yaml").write_text("rules:\n  - when: talk\n    turns: [hello]\n")
    opened = Lab(tmp_path / "home", env={})
    asyncio.run(run_suite(opened, tmp_path / "suite.yaml"))
    yield opened
    opened.close()


def send(session: Lab, **message: Any) -> protocol.ServerMessage:
    """Return the reply to a message."""

    async def asked() -> protocol.ServerMessage:
        async with Control(session) as control:
            link = control.connect()
            await link.receive()
            await link.send({"id": "7", **message})
            return await link.receive()

    return asyncio.run(asked())


def ask(session: Lab, **words: str) -> protocol.Trials:
    """Return the reply to `trials`."""
    reply = send(session, type="trials", **words)
    assert isinstance(reply, protocol.Trials), reply
    assert reply.re == "7"
    return reply


def test_eval_runs_and_their_trials(session: Lab) -> None:
    """Counts by outcome; of one eval run each trial with its verdict, its reason and a run that can be
    followed, failures first.
    """
    (found,) = ask(session).eval_runs
    assert (found.suite, found.trials, found.passed, found.failed, found.broke, found.of, found.commit) == (
        "demo",
        4,
        2,
        2,
        0,
        4,
        "",
    )
    reply = ask(session, suite="demo", eval_run=found.eval_run)
    assert [(one.scenario, one.epoch, one.outcome) for one in reply.trials] == [
        ("bad", 1, "fail"),
        ("bad", 2, "fail"),
        ("good", 1, "pass"),
        ("good", 2, "pass"),
    ]
    assert "bye" in reply.trials[0].reason
    assert {one.run for one in reply.trials} == {row.run for row in stored_trials(session.store)}
    assert ask(session, suite="other", eval_run=found.eval_run).trials == []


def test_trials_of_no_eval_run_are_together_by_commit(session: Lab) -> None:
    """Those made at a commit or pulled; a run that this log does not have is no link."""
    row = stored_trials(session.store)[0]
    told = {key: value for key, value in row.result.items() if key != "sitting"} | {"run": "r-elsewhere"}
    for number in range(3):
        store_trial(
            session.store, replace(row, id=f"t{number}", result=told, git_sha="c" * 40, epoch=number + 1)
        )
    found = next(one for one in ask(session).eval_runs if one.commit)
    assert (found.eval_run, found.trials) == ("c" * 40, 3)
    assert {one.run for one in ask(session, suite="demo", eval_run=found.eval_run).trials} == {""}


def test_trials_are_found_by_their_words(session: Lab) -> None:
    """Words of answers and filters find them, newest first, with the words told apart; what is wrong is
    refused.
    """
    found = send(session, type="find", query="HELLO", filters={"check": "failed"}, limit=1)
    assert isinstance(found, protocol.Found)
    (hit,) = found.runs
    assert (hit.task, hit.ended, hit.where) == ("bad", "fail: answer contains 'bye'", "answer")
    assert [text for text, marked in hit.parts if marked] == ["hello"]
    assert "tool" in found.filters
    rest = send(session, type="find", query="HELLO", filters={"check": "failed"}, after=found.after)
    assert isinstance(rest, protocol.Found)
    assert len(rest.runs) == 1 and rest.runs[0].run != hit.run and rest.after is None
    none = send(session, type="find", query="***")
    assert isinstance(none, protocol.Found) and (none.runs, len(none.notes)) == ([], 1)
    for wrong in (
        {"filters": {"modle": "x"}},
        {"filters": {"wait": "1"}},
        {"filters": {"epoch": "two"}},
    ):
        assert isinstance(send(session, type="find", **wrong), protocol.Refused)
