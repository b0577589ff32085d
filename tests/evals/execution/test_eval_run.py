"""Claims about suites that are cut off: nothing acknowledged is lost or made again, under kill -9 too; and
about attempts and progress.
"""

import ast
import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from made_rows import row
from waits import Meeting

import kestrel_lab
from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.messages import ModelAnswer
from kestrel_lab.evals.execution import eval_run as eval_run_module
from kestrel_lab.evals.execution.eval_run import EvalRun, last_eval_run
from kestrel_lab.evals.execution.progress import EvalProgress, slowdowns_since
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stored_trials import store_trial, stored_trials
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.testing import RecordingReporter, ScriptedModel

SUITE = Suite(
    name="s",
    scenarios=tuple(
        Scenario(id=f"s{n}", goal=f"g{n}", checks=(AnswerContains(texts=("yes",)),)) for n in range(6)
    ),
)
YES = ScriptedModel(lambda request: "yes")


@pytest.fixture
def lab(tmp_path):
    """A session over a fresh log."""
    session = Lab(tmp_path / "home", env={})
    yield session
    session.close()


def evaluate(lab, suite=SUITE, model=YES, **options):
    """The result of a suite with one model."""
    return asyncio.run(run_suite(lab, suite, configs={"m": model}, **options))


def cut_off(lab, after, suite=SUITE):
    """Run the suite and stop it when so many trials were acknowledged."""

    async def scene():
        def stop(done, total, note):
            if done == after:
                task.cancel()

        task = asyncio.ensure_future(run_suite(lab, suite, configs={"m": YES}, reporter=stop, concurrency=1))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    lab.store.flush()
    return stored_trials(lab.store, suite=suite.name)


def sittings(folder: Path, trials: int, kills: int, seed: int, mutant: str = "") -> None:
    """What must hold of so many trials under so many kills."""
    worker = Path(__file__).with_name("eval_run_worker.py")
    done = subprocess.run(
        [sys.executable, worker, folder, str(trials), str(kills), str(seed), mutant],
        capture_output=True,
        text=True,
    )
    told = json.loads(done.stdout)
    assert told[-1].pop() == f"result {trials}"
    store = SessionStore(folder / "kestrel.db")
    stored = Counter(row.key for row in stored_trials(store, suite="many"))
    store.close()
    acknowledged = Counter(key for sitting in told for key in sitting)
    assert (len(stored), stored.total()) == (trials, trials)
    assert set(acknowledged) <= set(stored)
    assert set(acknowledged.values()) == {1}
    assert sum(map(bool, told)) > kills // 2  # it was really killed at work, not before


@pytest.mark.long
def test_twenty_kills_lose_and_repeat_nothing(tmp_path):
    """500 trials, the process killed twenty times at random moments and resumed: 500 results, none that was
    acknowledged made again.
    """
    sittings(tmp_path, 500, 20, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("mutant", ["late", "forgetful"])
def test_mutants_are_caught_by_kills(tmp_path, mutant):
    """Storing trials thirty at a time, or not looking at what is there, is found."""
    with pytest.raises(AssertionError):
        sittings(tmp_path, 200, 2, seed=3, mutant=mutant)


def test_what_was_cut_off_is_named_and_resumed_trials(lab):
    """A new run says that an earlier one was cut off; `resume` takes its trials as they are and makes the
    rest; then there is nothing left.
    """
    stored = cut_off(lab, 2)
    assert 2 <= len(stored) < 6
    result = evaluate(lab, resume=True)
    assert (len(result.rows), result.reused) == (6, len(stored))
    assert result.notes == (
        f"going on with the last run: {len(stored)} trials of it there, {6 - len(stored)} left",
    )
    assert {row.id for row in stored} < {row.id for row in result.rows}
    assert len(stored_trials(lab.store, suite="s")) == 6
    again = evaluate(lab, resume=True)
    assert (again.reused, [row.id for row in again.rows]) == (6, [row.id for row in result.rows])
    lab.store.flush()
    assert last_eval_run(lab.store, SUITE).notice == ""


def test_a_new_run_says_that_one_was_cut_off(lab):
    """The reporter hears of it before the first trial, and the result repeats it; the new run is a sitting of
    its own.
    """
    stored = len(cut_off(lab, 2))
    reporter = RecordingReporter()
    result = evaluate(lab, reporter=reporter)
    notice = f"an earlier run of this suite was cut off after {stored} of 6 trials: --resume goes on with it"
    assert (reporter.reports[0], result.notes, result.reused) == ((0, 6, notice), (notice,), 0)
    assert notice in str(result)
    assert notice in result._repr_html_()
    assert evaluate(lab).notes == ()


def test_who_begins_anew_by_mistake_can_still_go_back(lab):
    """A run that was cut off is not lost when another one is begun and cut off, too: both are gone on
    with.
    """
    first = cut_off(lab, 4)
    both = cut_off(lab, 1)
    assert len(both) > len(first)
    assert f"cut off after {len(first)} of 6 trials" in last_eval_run(lab.store, SUITE).notice
    result = evaluate(lab, resume=True)
    assert (len(result.rows), result.reused) == (6, len({row.key for row in both}))
    lab.store.flush()
    assert last_eval_run(lab.store, SUITE).notice == ""
    assert evaluate(lab, resume=True).reused == 6


def test_resume_makes_again_what_changed(lab):
    """Trials of a scenario that was changed since are not taken; all others are."""
    cut_off(lab, 3)
    taken = {row.scenario for row in stored_trials(lab.store, suite="s")}
    first, *rest = SUITE.scenarios
    changed = Suite(name="s", scenarios=(Scenario(id=first.id, goal="another", checks=first.checks), *rest))
    result = evaluate(lab, changed, resume=True)
    assert (len(result.rows), result.reused) == (6, len(taken - {first.id}))


def test_a_run_that_goes_on_elsewhere_is_not_taken_over(lab):
    """While the process that began the last run is there, it cannot be resumed, and nobody is told that it
    was cut off.
    """
    (made, *_) = evaluate(lab).rows
    alive = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = Owner.here("x")
    other = f"{here.process.rpartition(':')[0]}:{alive.pid}"
    store_trial(
        lab.store,
        EvalRun(id="e1", of=9, by=other).mark(
            type(made)(
                **{f: getattr(made, f) for f in made.__slots__}
                | {"id": "t0", "created_at": made.created_at + 9}
            )
        ),
    ).result()
    try:
        with pytest.raises(
            UsageError, match=rf"still going on in process {other}; wait for it, or stop it first"
        ):
            evaluate(lab, resume=True)
        assert evaluate(lab).notes == ()
    finally:
        alive.communicate(b"\n")


class Flaky:
    """A model that breaks so often for each goal that names it, then answers."""

    name, kind = "flaky", "scripted"

    def __init__(self, times):
        self.times, self.asked = times, Counter()

    async def __call__(self, request, on_delta):
        goal = request.messages[-1].text
        self.asked[goal] += 1
        if goal in {"g1", "g4"} and self.asked[goal] <= self.times:
            raise ModelError(f"down, time {self.asked[goal]}")
        return ModelAnswer(text="no" if goal == "g2" else "yes")


def test_only_what_broke_is_made_again(lab):
    """A trial that broke is made again at the end, as often as asked; one that failed is not.

    Each attempt is kept and shown.
    """
    model = Flaky(2)
    result = evaluate(lab, model=model, retry_errors=2)
    assert [row.result["outcome"] for row in result.rows] == ["pass", "pass", "fail", "pass", "pass", "pass"]
    assert model.asked == {"g0": 1, "g1": 3, "g2": 1, "g3": 1, "g4": 3, "g5": 1}
    assert list(result.frame["attempts"]) == [1, 3, 1, 1, 3, 1]
    attempts = result.rows[1].result["attempts"]
    assert [one["reason"] for one in attempts] == ["down, time 1", "down, time 2"]
    assert [lab.get(one["run"]).reason for one in attempts] == ["down, time 1", "down, time 2"]
    assert result.notes == ("2 trials broke and were made again: see column attempts",)


def test_what_breaks_for_good_stays_an_error(lab):
    """After the last attempt the trial is an error, counted as one trial and as failed, with all attempts
    told.
    """
    result = evaluate(lab, model=Flaky(99), retry_errors=1)
    assert [row.result["outcome"] for row in result.rows] == [
        "pass",
        "error",
        "fail",
        "pass",
        "error",
        "pass",
    ]
    assert (len(result.rows), result.rows[1].result["reason"], len(result.rows[1].result["attempts"])) == (
        6,
        "down, time 2",
        1,
    )
    assert result.summary().loc["m", "success_rate"] == 0.5


def test_nothing_is_made_again_unless_asked(lab):
    """By default an error is an error; the suite may say otherwise, and a negative number is refused."""
    model = Flaky(1)
    assert evaluate(lab, model=model).frame["attempts"].max() == 1
    with pytest.raises(UsageError, match="retry_errors is at least 0, not -1"):
        evaluate(lab, retry_errors=-1)


def test_progress_is_one_line():
    """After the first second the line has speed, time left, cost, trials at once, and what an endpoint asked
    for.
    """
    now = 0.0
    supervisor = RuntimeSupervisor(clock=lambda: now, random=lambda: 0.0)
    reporter = RecordingReporter()
    progress = EvalProgress(reporter, 10, [], supervisor=supervisor, clock=lambda: now)
    progress.running = 4
    progress.count(row("a", "pass", cost_estimate=0.25))
    endpoint = supervisor.watch("openai/x", "model")
    tickets = [endpoint.turns.throttle.enter() for _ in range(2)]
    for ticket in tickets:
        endpoint.turns.throttle.refused(ticket, 5.0)
    now = 2.0
    progress.count(row("b", "error", cost_estimate=0.25))
    now = 100.0
    progress.tell()
    assert reporter.reports == [
        (0, 10, ""),
        (1, 10, "1 passed"),
        (
            2,
            10,
            "1 passed, 1 broke · 1.0/s · 8.0 s left · $0.50 · 4 trials at once · openai/x: it asked to "
            "slow down once, 5 calls at once, next in 3.0 s",
        ),
        (
            2,
            10,
            "1 passed, 1 broke · 1.2/min · 6 min 40 s left · $0.50 · 4 trials at once · openai/x: it "
            "asked to slow down once, 5 calls at once",
        ),
    ]
    assert slowdowns_since(supervisor, {}) == [
        "openai/x asked to slow down once and refused 2 calls; at the end 5 at once"
    ]
    assert slowdowns_since(supervisor, {"openai/x": (1, 2)}) == []


def test_a_suites_bound_holds_for_an_endpoint(lab):
    """No more calls at once than the suite, or the configuration, allows; afterwards the endpoint is free
    again.
    """
    together = Meeting(3)

    class Real:
        name, kind = "own/real", "real"

        async def __call__(self, request, on_delta):
            async with together:
                await asyncio.sleep(0.005)
            return ModelAnswer(text="yes")

    suite = Suite(name="s", scenarios=SUITE.scenarios, epochs=3, concurrency=3, configs=(Config(name="m"),))
    result = asyncio.run(run_suite(lab, suite, configs={"m": Real()}))
    assert (len(result.rows), together.most) == (18, 3)
    (endpoint,) = lab.supervisor.watched
    assert endpoint.turns.throttle.bound == float("inf")


def test_equal_scenarios_and_configurations_are_told_apart(lab):
    """Two rows of a dataset may ask the same, and a configuration may be compared with itself: each has
    trials of its own.
    """
    twins = Suite(
        name="s",
        scenarios=tuple(
            Scenario(id=name, goal="g", checks=SUITE.scenarios[0].checks) for name in ("one", "two")
        ),
    )
    asyncio.run(run_suite(lab, twins, configs={"a": YES, "b": YES}, scenarios=["two"]))
    result = asyncio.run(run_suite(lab, twins, configs={"a": YES, "b": YES}, resume=True))
    assert result.reused == 2
    assert [(row.scenario, row.config) for row in result.rows] == [
        ("one", "a"),
        ("one", "b"),
        ("two", "a"),
        ("two", "b"),
    ]
    assert len({row.key for row in result.rows}) == 4


def test_an_eval_run_is_not_resumed_twice_at_once(lab, tmp_path):
    """While one session of this process resumes an eval run, another is refused; when it has ended, nothing
    is left to lock.
    """
    stored = len(cut_off(lab, 2))  # a busy machine may store another one before it stops
    other = Lab(tmp_path / "home", env={})
    refused = []

    def resume_too(done, total, note):
        if stored < done < total and not refused:
            with pytest.raises(UsageError, match="still going on") as error:
                asyncio.run(run_suite(other, SUITE, configs={"m": YES}, resume=True))
            refused.append(str(error.value))

    class InAThread:
        def __call__(self, done, total, note):
            worker = threading.Thread(target=resume_too, args=(done, total, note))
            worker.start()
            worker.join()

    assert len(evaluate(lab, resume=True, reporter=InAThread()).rows) == 6
    other.close()
    assert len(refused) == 1
    assert list((tmp_path / "home" / "eval-runs").iterdir()) == []
    assert len(stored_trials(lab.store, suite="s")) == 6


@pytest.mark.parametrize("checked", [True, False], ids=["", "mutant"])
def test_an_eval_run_that_another_session_finished_meanwhile_is_not_repeated(
    lab, tmp_path, checked, monkeypatch
):
    """Between the look at what is there and the lock, another session resumes it and ends: this one is refused
    then. The mutant, which does not look again, runs the same trials a second time.
    """
    stored = len(cut_off(lab, 2))
    if not checked:
        monkeypatch.setattr(eval_run_module, "stored_number", lambda *_: stored)
    other = Lab(tmp_path / "home", env={})
    resumed = []

    def resume_first(done, total, note):
        if not resumed:
            worker = threading.Thread(
                target=lambda: resumed.append(
                    asyncio.run(run_suite(other, SUITE, configs={"m": YES}, resume=True))
                )
            )
            worker.start()
            worker.join()

    if checked:
        with pytest.raises(UsageError, match=r"another session went on with eval run .* just now; repeat"):
            evaluate(lab, resume=True, reporter=resume_first)
    else:
        evaluate(lab, resume=True, reporter=resume_first)
    assert len(resumed) == 1
    runs = len(lab.store.runs(limit=100))
    other.close()
    assert (runs == 6) == checked
    assert (len(stored_trials(lab.store, suite="s")) == 6) == checked


def test_no_module_of_evals_keeps_state():
    """What evals and checks remember is in objects that somebody holds, not in sets, lists and dictionaries
    of a module.
    """
    kept = []
    for package in ("evals", "checks"):
        for file in Path(kestrel_lab.__file__).parent.joinpath(package).rglob("*.py"):
            for node in ast.parse(file.read_text()).body:
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                empty = isinstance(value, ast.List | ast.Dict | ast.Set) and not ast.unparse(value).strip(
                    "[]{}"
                )
                made = isinstance(value, ast.Call) and ast.unparse(value.func) in (
                    "set",
                    "dict",
                    "list",
                    "deque",
                    "WeakKeyDictionary",
                )
                if empty or (made and not value.args):
                    kept.append(f"{file.name}:{node.lineno}")
    assert kept == []
