"""The plan `standard` against a real model endpoint that fails, comes back, or stays away, and in processes
that are killed.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from openai_server import OpenAIServer, Reply
from standard import ANSWER, GOAL, as_reply, furnish, kind_of, said, verdict
from waits import PATIENCE_S

from kestrel_lab.core.events.union import Record, RunForked, StageFinished
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.store import RunRow, SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.supervision.failure_kinds import RetryBudget
from kestrel_lab.runtime.supervision.health import HealthPolicy
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor

pytestmark = pytest.mark.slow


class Endpoint(OpenAIServer):
    """A server that answers by what it is asked; it may go away when it is asked something, and kill who
    asks.
    """

    def __init__(self) -> None:
        super().__init__([Reply()])
        self.asked: list[str] = []
        self.fails: dict[str, int] = {}
        """How often each kind of question finds nobody."""
        self.kills: dict[str, Path] = {}
        """For each kind of question, the file with the process to kill, once."""

    def take(self, body: bytes, headers: dict[str, str]) -> Reply:
        """The answer, unless something happens."""
        messages = json.loads(body)["messages"]
        kind = kind_of(next(message["content"] for message in messages if message["role"] == "user"))
        with self._lock:
            if self.fails.get(kind, 0):
                self.fails[kind] -= 1
                raise ConnectionError
            self.asked.append(kind)
            if (victim := self.kills.pop(kind, None)) is not None:
                os.kill(int(victim.read_text()), signal.SIGKILL)
                raise ConnectionError
        turns = sum(message["role"] == "assistant" for message in messages)
        return Reply(**as_reply(said(kind, turns, [verdict(True, True)], 0)))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """The server, until the end of the test."""
    with Endpoint() as server:
        yield server


def session_with(tmp_path: Path, budget: RetryBudget) -> Lab:
    """A session whose supervisor does not wait by itself, so that the stages have to."""
    session = Lab(tmp_path / "home", env={})
    policy = HealthPolicy(open_s=0.1, open_max_s=0.2, restarts=100)
    session.supervisor = RuntimeSupervisor(policy, patience_s=0.0, interval_s=0.05)
    session.ports = replace(session.ports, budget=budget)
    return session


def orchestrated(session: Lab, endpoint: Endpoint, workspace: Path) -> Run:
    """A run of the plan with the endpoint's model."""
    model = LiteLLMModel("openai/test", api_base=endpoint.api_base, api_key="none")
    return asyncio.run(session.run(GOAL, plan="standard", model=model, workspace=furnish(workspace)))


@pytest.mark.parametrize("kind", ["plan", "write", "judge", "notes"])
def test_an_endpoint_that_comes_back_costs_nothing_but_time(
    kind: str, endpoint: Endpoint, tmp_path: Path, workspace: Path
) -> None:
    """Connections break in the middle of a stage, and later they do not: the session finishes, each question
    answered once.
    """
    endpoint.fails = {kind: 2}
    session = session_with(tmp_path, RetryBudget(attempts=4, first_wait_s=0.2))
    run = orchestrated(session, endpoint, workspace)
    assert (run.status, run.answer) == (RunStatus.COMPLETE, ANSWER)
    assert endpoint.asked == ["plan", "read", "read", "write", "judge", "notes"]
    rows = run.report.stages()
    retried = rows[rows["status"] == "retrying"]
    assert (len(retried), set(retried["error_class"])) == (2, {"transient"})
    session.close()


def test_an_endpoint_that_stays_away_ends_the_session(
    endpoint: Endpoint, tmp_path: Path, workspace: Path
) -> None:
    """Nobody listens any more: after its attempts the session is FAILED, class dependency, and says what to
    do; then it goes on.
    """
    session = session_with(tmp_path, RetryBudget(attempts=3, first_wait_s=0.1, gate_s=0.5))
    take = endpoint.take

    def last(body: bytes, headers: dict[str, str]) -> Reply:
        reply = take(body, headers)
        if endpoint.asked[-1] == "write":
            endpoint.fails = dict.fromkeys(["judge", "notes"], 1_000)
            threading.Thread(target=lambda: (endpoint.shutdown(), endpoint.server_close())).start()
            time.sleep(0.3)
        return reply

    endpoint.take = last  # type: ignore[method-assign]
    run = orchestrated(session, endpoint, workspace)
    assert run.status is RunStatus.FAILED
    assert endpoint.api_base in run.reason
    assert "(dependency after 3 attempts)" in run.reason
    assert "then resume the run" in run.reason
    rows = run.report.stages()
    assert rows[rows["stage"] == "verify"][["status", "attempt"]].values.tolist() == [
        ["retrying", 1],
        ["retrying", 2],
        ["failed", 3],
    ]
    assert rows["error_class"].tolist()[-1] == "dependency"
    with Endpoint() as back:
        again = asyncio.run(
            session.resume(run.id, model=LiteLLMModel("openai/test", api_base=back.api_base, api_key="none"))
        )
        assert (again.status, again.answer, back.asked) == (RunStatus.COMPLETE, ANSWER, ["judge", "notes"])
        (forked,) = [event for event in again.events() if isinstance(event, RunForked)]
        assert forked.stage == "execute"
    session.close()


@dataclass
class Worker:
    """The process that forks."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def do(self, **order: Any) -> int:
        """Carry out an order; the exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({key: str(value) for key, value in order.items()}) + "\n")
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for all tests here."""
    command = [sys.executable, str(Path(__file__).with_name("standard_worker.py"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    yield Worker(process)
    process.communicate(timeout=PATIENCE_S)


MOMENTS = [
    ("stage", "bootstrap"),
    ("stage", "gather"),
    ("question", "plan"),
    ("question", "write"),
    ("question", "judge"),
    ("question", "notes"),
]
"""One in each stage."""


@pytest.mark.parametrize(("what", "name"), MOMENTS)
@pytest.mark.long
def test_killed_in_any_stage_a_session_goes_on_behind_it(
    what: str, name: str, endpoint: Endpoint, worker: Worker, tmp_path: Path
) -> None:
    """SIGKILL as a stage begins or amid its question: `kestrel run --resume` asks again only what it was
    killed over.
    """
    furnish(tmp_path / "work")
    if what == "question":
        endpoint.kills = {name: tmp_path / "pid"}
    assert (
        worker.do(folder=tmp_path, api_base=endpoint.api_base, stage=name if what == "stage" else "")
        == -signal.SIGKILL
    )
    row, before = logged(tmp_path)
    assert row.status is RunStatus.EXECUTING

    assert worker.do(folder=tmp_path, api_base=endpoint.api_base, resume=row.id) == 0

    once = {"plan": 1, "read": 2, "write": 1, "judge": 1, "notes": 1}
    assert Counter(endpoint.asked) == Counter(once) + Counter([name] if what == "question" else [])
    row, after = logged(tmp_path)
    assert (row.status, after[: len(before)]) == (RunStatus.COMPLETE, before)
    assert ANSWER.split(",", maxsplit=1)[0] in (tmp_path / "told").read_text()
    done = [
        (record.event.stage, record.event.task) for record in after if isinstance(record.event, StageFinished)
    ]
    assert len(done) == len(set(done)) == 7


def logged(folder: Path) -> tuple[RunRow, list[Record]]:
    """The only run of the log there, and its records."""
    store = SessionStore(folder / "home" / "kestrel.db")
    try:
        (row,) = store.runs()
        return row, store.records(row.id)
    finally:
        store.close()


@pytest.mark.long
def test_the_counting_notices_a_stage_that_is_done_again(
    endpoint: Endpoint, worker: Worker, tmp_path: Path
) -> None:
    """A mutant that begins anew instead of resuming asks the plan's questions twice, which the test above
    would see.
    """
    furnish(tmp_path / "work")
    worker.do(folder=tmp_path, api_base=endpoint.api_base, stage="execute")
    assert worker.do(folder=tmp_path, api_base=endpoint.api_base, stage="") == 0
    assert Counter(endpoint.asked)["plan"] == 2
