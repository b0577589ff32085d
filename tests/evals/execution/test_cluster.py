"""Claims about trials on a Dask cluster: a real scheduler and two workers as processes, one of which is
killed half-way.
"""

import asyncio
import signal
import socket
import subprocess
import sys
from collections import Counter

import pytest
from ports import free_port
from waits import until

from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.messages import ModelAnswer
from kestrel_lab.evals.execution.dask_cluster import Dispatch, on_cluster
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool

pytest.importorskip("distributed", reason="the cluster extra is not installed")

SUITE = """\
tools_from: [tools.py]
epochs: 8
configs: [{name: script, model: "scripted:script.yaml"}]
scenarios:
  - {id: one, goal: double 21, checks: [{answer_contains: "42"}, {tool_used: double}]}
  - {id: two, goal: double 4, checks: [{answer_contains: "42"}]}
  - {id: three, goal: break, checks: [{answer_contains: "42"}]}
"""
SCRIPT = """\
rules:
  - when: double
    turns:
      - [{tool: double, args: {n: 21}}]
      - It is 42.
"""
TOOLS = '''\
import time
from kestrel_lab import tool

@tool(danger_level="safe")
def double(n: int) -> int:
    """Double a number, slowly."""
    time.sleep(0.1)
    return 2 * n
'''


@pytest.fixture
def suite(tmp_path):
    """A suite file with tools and a script."""
    for name, text in {"suite.yaml": SUITE, "script.yaml": SCRIPT, "tools.py": TOOLS}.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "suite.yaml"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a scheduler, and its two workers."""
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    base = dict(cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    scheduler = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "distributed.cli.dask_scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-dashboard",
        ],
        **base,
    )
    until(lambda: listens(port))
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "distributed.cli.dask_worker",
                address,
                "--no-nanny",
                "--nthreads",
                "2",
                "--no-dashboard",
                "--memory-limit",
                "0",
                "--local-directory",
                str(folder),
            ],
            **base,
        )
        for _ in range(2)
    ]
    yield address, workers
    for process in (*workers, scheduler):
        process.kill()
        process.wait()


def listens(port):
    """Whether somebody does."""
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def results(result):
    """What of the trials must be the same wherever they are made."""
    return [
        (
            row.scenario,
            row.config,
            row.epoch,
            row.key,
            row.result["outcome"],
            row.result["reason"],
            row.metrics["tool_calls"],
            row.result["model"],
            row.result["identity"],
        )
        for row in result.rows
    ]


def test_a_worker_is_killed_and_nothing_is_missing_or_twice(cluster, suite, tmp_path):
    """All trials are there once, with the keys, outcomes and runs that they have when they are made here."""
    address, workers = cluster
    here, there = Lab(tmp_path / "here", env={}), Lab(tmp_path / "there", env={})
    local = asyncio.run(run_suite(here, suite, concurrency=8))

    def kill(done, total, note):
        if done == 6 and workers[0].poll() is None:
            workers[0].send_signal(signal.SIGKILL)

    result = asyncio.run(run_suite(there, suite, reporter=kill, make=on_cluster(address), retry_errors=1))
    assert workers[0].wait() == -signal.SIGKILL
    assert results(result) == results(local)
    there.store.flush()
    stored = Counter(row.key for row in stored_trials(there.store, suite="suite"))
    assert (len(stored), set(stored.values())) == (24, {1})
    for row in result.rows:
        run, same = (
            there.get(str(row.result["run"])),
            here.get(str(local.rows[result.rows.index(row)].result["run"])),
        )
        assert [event.type for event in run.events()] == [event.type for event in same.events()]
        assert (run.status, run.answer, run.reason) == (same.status, same.answer, same.reason)
    broke = [row for row in result.rows if row.result["outcome"] == "error"]
    assert [len(row.result["attempts"]) for row in broke] == [1] * 8
    assert asyncio.run(run_suite(there, suite, resume=True, make=on_cluster(address))).reused == 24
    here.close()
    there.close()


def test_a_mutant_is_caught(cluster, suite, tmp_path, monkeypatch):
    """Had an attempt the name of its scenario in the cluster, epochs would get each other's results: that is
    found.
    """
    address, _ = cluster
    session = Lab(tmp_path / "home", env={})
    monkeypatch.setattr(Dispatch, "task", lambda self, ask, attempt: f"{self._name}-{ask.scenario.id}")
    with pytest.raises(StoreError, match="E_TRIAL_EXISTS"):
        asyncio.run(run_suite(session, suite, epochs=2, make=on_cluster(address)))
    session.close()


class Hello:
    """Passes for a real model."""

    name, kind = "openai/any", "real"

    async def __call__(self, request, on_delta):
        return ModelAnswer(text="hello")


def test_workers_replay_recordings(cluster, tmp_path):
    """Recordings in a folder of one's own are replayed by the workers as they are here; no model is asked."""
    address, _ = cluster
    suite = tmp_path / "taped.yaml"
    suite.write_text(
        "configs: [{name: one, model: openai/any}]\nscenarios: [{id: a, goal: talk, checks: "
        "[{answer_contains: hello}]}]\nepochs: 2\n"
    )
    here = Lab(tmp_path / "here", models={"openai/any": Hello()}, env={})
    asyncio.run(run_suite(here, suite, cassette="record", cassettes=tmp_path / "mine"))
    there = Lab(tmp_path / "there", env={})
    replay = {"cassette": "replay", "cassettes": tmp_path / "mine"}
    result = asyncio.run(run_suite(there, suite, **replay, make=on_cluster(address)))
    assert [(row.result["outcome"], row.result["model_kind"]) for row in result.rows] == [
        ("pass", "replay")
    ] * 2
    assert results(result) == results(asyncio.run(run_suite(here, suite, **replay)))
    here.close()
    there.close()


def test_rules_hold_on_workers(cluster, suite, tmp_path):
    """What a rule of the session forbids, no worker does."""
    address, _ = cluster
    strict = Lab(tmp_path / "strict", env={}, rules=[{"tool": "double", "verdict": "deny"}])
    result = asyncio.run(run_suite(strict, suite, scenarios=["one"], epochs=1, make=on_cluster(address)))
    assert [row.result["outcome"] for row in result.rows] == ["fail"]
    assert results(result) == results(asyncio.run(run_suite(strict, suite, scenarios=["one"], epochs=1)))
    strict.close()


def test_trials_end_early_on_workers(cluster, suite, tmp_path):
    """Early stopping that is asked for with the command is that of the workers, too."""
    address, _ = cluster
    suite.write_text(SUITE.replace("{tool_used: double}", "{tool_not_used: double}"))
    lab = Lab(tmp_path / "early", env={})
    how = {"scenarios": ["one"], "epochs": 1, "early_stopping": True}
    there = asyncio.run(run_suite(lab, suite, **how, make=on_cluster(address)))
    here = asyncio.run(run_suite(lab, suite, **how))
    assert results(there) == results(here)
    assert [row.ended_early for row in there.rows] == [True]
    lab.close()


def test_a_suite_that_differs_there_is_refused(cluster, suite, tmp_path):
    """What cannot be sent is refused before the first trial, with what to do."""
    address, _ = cluster
    session = Lab(tmp_path / "home", env={})

    @tool
    def own() -> str:
        """Own."""
        return ""

    with pytest.raises(UsageError, match="can only run what stands in the suite file"):
        asyncio.run(run_suite(session, suite, configs={"m": ScriptedModel(["x"])}, make=on_cluster(address)))
    with pytest.raises(UsageError, match="folders of trials cannot be kept"):
        asyncio.run(run_suite(session, suite, keep=True, make=on_cluster(address)))
    with pytest.raises(UsageError, match="record without --cluster, then replay with it"):
        asyncio.run(run_suite(session, suite, cassette="refresh", make=on_cluster(address)))
    other = Lab(tmp_path / "other", env={}, tools=[own])
    with pytest.raises(UsageError, match="the tools own of this session cannot be sent to a cluster"):
        asyncio.run(run_suite(other, suite, make=on_cluster(address)))
    assert session.store.runs() == other.store.runs() == []
    other.close()
    session.close()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("tcp://127.0.0.1:9", "no Dask scheduler answers at tcp://127.0.0.1:9"),
        ("nonsense", "'nonsense' is not the address of a Dask scheduler"),
        ("", "'' is not the address"),
        ("ftp://x:1", "'ftp://x:1' is not the address"),
    ],
)
def test_nobody_there(suite, tmp_path, address, told):
    """An address where no scheduler answers is said to be one."""
    lab = Lab(tmp_path / "home", env={})
    with pytest.raises(UsageError, match=told):
        asyncio.run(lab.eval(suite, epochs=1, cluster=address))
    lab.close()
