"""Results of a team on a real PostgreSQL server: pushed by one machine, pulled by another, with kills, crowds
and hostile rows between.
"""

import asyncio
import json
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest
from postgres_server import PASSWORD, PostgresServer
from waits import PATIENCE_S

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.cli.main import main
from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events.union import EVENT_TYPES, to_json
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.commits.round_pairs import side_by_side
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.reuse import reusable_rows
from kestrel_lab.evals.execution.runner import plan_trials, run_suite
from kestrel_lab.evals.shared import shared_trials
from kestrel_lab.evals.shared.transfer import SharedResults, Transfer
from kestrel_lab.evals.stored.rescore import rescore_trials
from kestrel_lab.evals.stored.summary import summarise_stored
from kestrel_lab.evals.stored_trials import (
    EvalRow,
    LaterScores,
    later_scores,
    merge_scores,
    merge_trial,
    store_run,
    store_trial,
    stored_scores,
    stored_trials,
)
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import RecordingReporter, ScriptedModel

pytestmark = pytest.mark.slow

SECRET = "correct-horse-battery"
SUITE = Suite(
    name="demo",
    scenarios=tuple(
        Scenario(id=f"s{number}", goal=f"say {number}", checks=(AnswerContains(texts=("1",)),))
        for number in range(3)
    ),
    configs=(Config(name="c", model="m"),),
    epochs=2,
)


@contextmanager
def machine(tmp_path, name, **env):
    """A session with a log of its own."""
    with Lab(tmp_path / name, env=env) as session:
        yield session


def tried(session, answer="it is 1", suite=SUITE):
    """Run the suite, whose model always answers so."""
    asyncio.run(run_suite(session, suite, configs={"c": ScriptedModel(lambda _: answer)}))


def made(number, *, suite="demo", scenario=None, config="c", epoch=1, sha="a" * 40, **result):
    """A trial that nobody ran."""
    told = {
        "family": "",
        "model": "m",
        "model_kind": "scripted",
        "outcome": "pass",
        "scores": [],
        "reason": "",
        "run": f"r{number}",
        "weight": 1.0,
        **result,
    }
    return EvalRow(
        id=f"t{number:016x}",
        scenario=scenario or f"s{number}",
        result=told,
        metrics={"working_time": 0.1 * number},
        git_sha=sha,
        created_at=1e9 + number,
        suite=suite,
        config=config,
        epoch=epoch,
        key="",
    )


def keep(session, *rows):
    """Store trials."""
    for row in rows:
        store_trial(session.store, row)
    session.store.flush()


def push(session, url, *suites, **options) -> Transfer:
    """Push."""
    return SharedResults(session).push_sync(url, *suites, **options)


def pull(session, url, *suites, **options) -> Transfer:
    """Pull."""
    return SharedResults(session).pull_sync(url, *suites, **options)


def numbers(session, suite=SUITE):
    """All numbers of a summary."""
    return [
        sorted((name, repr(value)) for name, value in record.items())
        for record in summarise_stored(session, suite).records
    ]


@pytest.fixture(scope="module")
def team(postgres: PostgresServer) -> str:
    """The address of a database."""
    return postgres.database("team")


@pytest.fixture
def url(team: str, postgres: PostgresServer) -> str:
    """The address of the database, which is empty again: a new one takes five times as long."""
    everybody_else = "FROM pg_stat_activity WHERE datname = 'team' AND pid <> pg_backend_pid()"
    postgres.sql(
        f"SELECT pg_terminate_backend(pid) {everybody_else}",
        "DROP SCHEMA IF EXISTS kestrel CASCADE",
        "SELECT 1",
        database="team",
    )
    return team


def test_another_machine_has_the_same_numbers(tmp_path, url):
    """Summary and scores there are those of here, to the last digit; each pulled trial says who made it;
    reuse takes it.
    """
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        tried(a)
        asyncio.run(
            rescore_trials(
                a,
                SUITE.model_copy(
                    update={
                        "scenarios": tuple(
                            s.model_copy(update={"checks": (AnswerContains(texts=("2",)),)})
                            for s in SUITE.scenarios
                        )
                    }
                ),
            )
        )
        assert push(a, url).trials == 6
        pulled = pull(b, url)
        assert (pulled.trials, pulled.suites[0].scores, pulled.refused) == (6, 6, ())
        assert numbers(b) == numbers(a)
        here, there = stored_trials(a.store), stored_trials(b.store)
        assert [(r.id, r.metrics, r.key, r.created_at) for r in there] == [
            (r.id, r.metrics, r.key, r.created_at) for r in here
        ]
        assert [r.result["scores"] for r in stored_scores(b.store, suite="demo")] == [
            r.result["scores"] for r in stored_scores(a.store, suite="demo")
        ]
        assert len({r.result["origin"] for r in there}) == 1 and "@" in there[0].result["origin"]
        assert not any("sitting" in row.result for row in there)
        asks = plan_trials(SUITE, code="c", git_sha="c")
        keys = [
            replace(row, key=ask.identity.key, id=f"x{n}")
            for n, (row, ask) in enumerate(zip(there, asks, strict=True))
        ]
        keep(b, *keys)
        assert len(reusable_rows(b.store, SUITE, asks).rows) == 6


def test_twice_is_once(tmp_path, url, postgres):
    """A second push or pull adds nothing; what is new since goes alone; what was pulled is not another trial
    when it is pushed on.
    """
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        keep(a, *map(made, range(5)))
        assert push(a, url).trials == 5
        assert [(one.trials, one.there) for one in push(a, url).suites] == [(0, 5)]
        keep(a, made(5))
        assert [(one.trials, one.there) for one in push(a, url).suites] == [(1, 5)]
        assert [(one.trials, one.there) for one in pull(b, url).suites] == [(6, 0)]
        assert [(one.trials, one.there) for one in pull(b, url).suites] == [(0, 6)]
        assert [(one.trials, one.there, one.scores) for one in push(b, url).suites] == [(0, 6, 0)]
        assert [(one.trials, one.there) for one in pull(a, url).suites] == [(0, 6)]
        assert [row.result.get("origin") for row in stored_trials(a.store)] == [None] * 6
        onward = push(b, postgres.database("onward"))
        assert onward.trials == 6
        (origins,) = zip(
            *postgres.sql("SELECT DISTINCT result::json ->> 'origin' FROM kestrel.trials", database="onward"),
            strict=True,
        )
        assert origins == (stored_trials(b.store)[0].result["origin"],)


def test_suites_are_named_by_name_or_file(tmp_path, url):
    """Only the named ones go; an unknown one is an error that names the nearest; a dry run changes nothing,
    not even a table.
    """
    file = tmp_path / "demo.yaml"
    file.write_text(
        "name: demo\nconfigs: [{name: c, model: none}]\nscenarios: [{id: s, goal: g, checks: "
        "[{answer_contains: x}]}]\n"
    )
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        keep(a, made(1), made(2, suite="other"), made(3, suite="third"))
        dry = push(a, url, file, dry_run=True)
        assert (dry.trials, [one.suite for one in dry.suites]) == (1, ["demo"])
        assert "1 trial would be pushed to postgresql://…@127.0.0.1" in repr(dry)
        with pytest.raises(
            UsageError, match=r"there are no trials of suite 'demo' on postgresql.*none at all"
        ):
            pull(b, url, "demo")
        assert pull(b, url).suites == ()
        assert push(a, url, file, "other").trials == 2
        with pytest.raises(UsageError, match=r"no trials of suite 'dem' in .*did you mean 'demo'"):
            push(a, url, "dem")
        assert pull(b, url, "other", dry_run=True).trials == 1
        assert stored_trials(b.store) == []
        assert pull(b, url, "other").trials == 1
        assert [row.suite for row in stored_trials(b.store)] == ["other"]


def test_the_progress_is_told(tmp_path, url):
    """After each page, over all suites."""
    with machine(tmp_path, "a") as a:
        keep(a, *(made(number) for number in range(250)), made(999, suite="other"))
        reporter = RecordingReporter()
        push(a, url, reporter=reporter)
        assert [told[:2] for told in reporter.reports] == [(200, 251), (250, 251), (251, 251)]


def test_no_secret_leaves_the_machine(tmp_path, url, postgres):
    """Secrets of the environment and what looks like a key are in no row; the digest is the same, so a push
    without the variable finds nothing new.
    """
    key = "sk-" + "a1" * 20
    row = made(
        1,
        reason=f"401 for {SECRET}",
        answer=f"use {key}",
        scores=[{"check": "c", "passed": False, "value": 0.5, "reason": SECRET}],
    )
    with machine(tmp_path, "a", SOME_API_KEY=SECRET) as a:
        keep(a, row)
        assert push(a, url).trials == 1
        text = json.dumps(postgres.sql("SELECT * FROM kestrel.trials", database="team"), default=str)
        assert SECRET not in text
        assert key not in text
        assert text.count("[REDACTED]") == 3
        assert stored_trials(a.store) == [row]
    with machine(tmp_path, "a") as a:
        assert [(one.trials, one.there) for one in push(a, url).suites] == [(0, 1)]


def test_another_trial_of_the_same_id_is_refused(tmp_path, url, postgres):
    """It is named, both stay as they are, those beside it are transferred, and the exit code says so."""
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        keep(a, made(1), made(2))
        keep(b, made(1, outcome="fail"), made(3))
        assert push(a, url).exit_code == 0
        pushed = push(b, url)
        assert (pushed.trials, pushed.exit_code) == (1, 1)
        assert f"trial {made(1).id} is another one here than on postgresql://…@127.0.0.1" in repr(pushed)
        pulled = pull(b, url)
        assert (pulled.trials, pulled.exit_code, len(pulled.refused)) == (1, 1, 1)
        assert [row.result["outcome"] for row in stored_trials(b.store)] == ["fail", "pass", "pass"]
        assert {
            outcome
            for (outcome,) in postgres.sql(
                "SELECT result::json ->> 'outcome' FROM kestrel.trials", database="team"
            )
        } == {"pass"}


def test_newer_tables_are_refused(tmp_path, url, postgres):
    """With what to do; nothing is read or written."""
    with machine(tmp_path, "a") as a:
        keep(a, made(1))
        push(a, url)
        postgres.sql("UPDATE kestrel.results_version SET number = 2", "SELECT 1", database="team")
        for way in (push, pull):
            with pytest.raises(
                UsageError, match=r"newer kestrel_lab \(tables 2, this one knows 1\): upgrade it"
            ):
                way(a, url)


def test_a_server_that_cannot_be_used_is_told(tmp_path, url, postgres, monkeypatch):
    """A wrong password, no server, no right to make tables, no such database: one line, no password."""
    with machine(tmp_path, "a") as a:
        keep(a, made(1))
        postgres.sql(
            "DROP ROLE IF EXISTS reader", f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'", "SELECT 1"
        )
        told = {
            postgres.url("team", password="wrong-secret"): "password authentication failed",
            postgres.url("nowhere"): 'database "nowhere" does not exist',
            postgres.url("team", user="reader"): "permission denied for database team",
            f"postgresql://me:wrong-secret@/db?host={tmp_path}": "No such file",
            "mysql://me:wrong-secret@host/db": "must begin with postgresql://",
        }
        for address, why in told.items():
            with pytest.raises((UsageError, StoreError), match=why) as failed:
                push(a, address)
            assert "wrong-secret" not in str(failed.value)
            assert PASSWORD not in str(failed.value)
        monkeypatch.setitem(sys.modules, "asyncpg", None)
        with pytest.raises(
            UsageError, match=r"a store of shared results on a PostgreSQL server needs its client"
        ):
            push(a, url)


def test_who_may_only_read_can_pull(tmp_path, url, postgres):
    """Pulling needs no more than the right to read."""
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        keep(a, made(1))
        push(a, url)
        postgres.sql(
            "DROP ROLE IF EXISTS guest", f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'", "SELECT 1"
        )
        postgres.sql(
            "GRANT USAGE ON SCHEMA kestrel TO guest",
            "GRANT SELECT ON ALL TABLES IN SCHEMA kestrel TO guest",
            "SELECT 1",
            database="team",
        )
        assert pull(b, postgres.url("team", user="guest"), runs=True).trials == 1
        keep(b, made(2))
        with pytest.raises(StoreError, match="permission denied for table trials"):
            push(b, postgres.url("team", user="guest"))
        postgres.sql("DROP OWNED BY guest", "DROP ROLE guest", "SELECT 1", database="team")


def worker(way, url, home):
    """A process that pushes or pulls."""
    script = Path(__file__).with_name("push_worker.py")
    return subprocess.Popen(
        [sys.executable, str(script), way, url, str(home)], stdout=subprocess.PIPE, text=True
    )


def test_pushes_of_several_machines_merge(tmp_path, url, postgres):
    """Three machines push to an empty database at once, some of the trials being the same: all are there,
    once.
    """
    every = set()
    for name in range(3):
        with machine(tmp_path, f"m{name}") as session:
            rows = [made(number) for number in range(name * 200, name * 200 + 600)]
            keep(session, *rows)
            every |= {row.id for row in rows}
    workers = [worker("push", url, tmp_path / f"m{name}") for name in range(3)]
    told = [one.communicate(timeout=PATIENCE_S)[0] for one in workers]
    assert [one.returncode for one in workers] == [0] * 3
    assert sum(int(text.split()[-1]) for text in told) == len(every) == 1_000
    assert {name for (name,) in postgres.sql("SELECT id FROM kestrel.trials", database="team")} == every


@pytest.mark.parametrize("way", ["push", "pull"])
def test_a_kill_leaves_whole_trials_and_is_gone_on_from(way, tmp_path, url, postgres):
    """Killed -9 behind its first page, nothing half is there; made again, it transfers the rest, and every
    later score is there, too.
    """
    with machine(tmp_path, "a") as a:
        keep(a, *map(made, range(3_000)))
        for number in range(0, 3_000, 7):
            later = replace(
                made(number),
                result={
                    **made(number).result,
                    "rescored": {"suite": "h", "from": made(number).id, "at": 1.0, "kept": []},
                },
            )
            shared = LaterScores(
                trial=later.id, suite_hash="h", result=later.result, key="", created_at=2e9 - 1e9
            )
            merge_scores(a.store, shared)
        a.store.flush()
        if way == "pull":
            assert push(a, url).trials == 3_000
    work = worker(way, url, tmp_path / ("a" if way == "push" else "b"))
    assert work.stdout is not None
    with work:
        while "page" not in work.stdout.readline():
            pass
        work.kill()
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        if way == "push":
            there = {name for (name,) in postgres.sql("SELECT id FROM kestrel.trials", database="team")}
            scored = {name for (name,) in postgres.sql("SELECT trial FROM kestrel.scores", database="team")}
            assert len(there) % 200 == 0 and len(there) >= 200
            assert scored == {made(number).id for number in range(0, 3_000, 7)} & there
            again = push(a, url)
        else:
            there = {row.id for row in stored_trials(b.store)}
            again = pull(b, url)
        assert (again.trials, again.refused) == (3_000 - len(there), ())
        if way == "pull":
            ids = [made(number).id for number in range(3_000)]
            assert [row.id for row in stored_trials(b.store)] == ids
            assert len(later_scores(b.store, ids)) == len(range(0, 3_000, 7))


def test_a_server_that_dies_meanwhile_is_an_error(tmp_path):
    """It is named, and the push is made again when it is back."""
    server = PostgresServer()
    try:
        server.start()
        with machine(tmp_path, "a") as a:
            keep(a, *map(made, range(500)))
            with pytest.raises(StoreError, match=r"postgresql://…@127\.0\.0\.1"):
                push(
                    a,
                    server.url(),
                    reporter=lambda done, *_: server.stop() if server.process is not None else None,
                )
            server.start()
            assert [(one.trials, one.there) for one in push(a, server.url()).suites] == [(300, 200)]
    finally:
        server.close()


def test_runs_come_with_their_trials(tmp_path, url):
    """With `runs` a transcript, calibration and rescoring work there; the run is marked as from elsewhere and
    belongs to no folder.
    """
    with machine(tmp_path, "a", SOME_API_KEY=SECRET) as a, machine(tmp_path, "b") as b:
        tried(a, f"it is 1 {SECRET}")
        assert push(a, url).trials == 6
        assert [(one.there, one.runs) for one in push(a, url, runs=True).suites] == [(6, 6)]
        assert [(one.there, one.runs) for one in push(a, url, runs=True).suites] == [(6, 0)]
        assert pull(b, url, runs=True, dry_run=True).suites[0].runs == 6
        assert pull(b, url).trials == 6
        assert asyncio.run(rescore_trials(b, SUITE)).left_out == {
            "left out: the log of the run is not in this store": 6
        }
        assert [(one.there, one.runs) for one in pull(b, url, runs=True).suites] == [(6, 6)]
        assert [(one.there, one.runs) for one in pull(b, url, runs=True).suites] == [(6, 0)]
        run = str(stored_trials(b.store)[0].result["run"])
        ours, theirs = a.store.records(run), b.store.records(run)
        assert [r.event.type for r in theirs] == [r.event.type for r in ours]
        assert [r.at for r in theirs] == [r.at for r in ours]
        began = theirs[0].event
        assert (began.workspace, began.policy, began.imported["format"]) == ("", "ask", "kestrel")
        assert began.imported["source"] == stored_trials(b.store)[0].result["origin"]
        assert SECRET not in json.dumps([str(r.event) for r in theirs])
        assert b.store.damage(run) is None
        assert b.store.run(run).status is RunStatus.COMPLETE
        assert len(asyncio.run(rescore_trials(b, SUITE)).result.rows) == 6
        assert [(one.there, one.runs) for one in pull(a, url, runs=True).suites] == [(6, 0)]
        assert a.store.records(run)[0].event.workspace != ""


HOSTILE = {
    "result = 'garbage'": "not JSON|Expecting|Invalid",
    "result = jsonb_set(result::jsonb, '{outcome}', '\"great\"')::text": "result.outcome",
    "result = jsonb_set(result::jsonb, '{weight}', '-1')::text": "result.weight",
    'result = jsonb_set(result::jsonb, \'{scores}\', \'[{"check": 1, "passed": true, "value": '
    "1}]')::text": "result.scores.0.check",
    "result = jsonb_set(result::jsonb, '{run}', '\"../../etc/passwd\"')::text": "result.run",
    "result = jsonb_set(result::jsonb, '{model}', to_jsonb(E'm\\x1b[31m'::text))::text": "result.model",
    "result = repeat('[', 500000)": "nested",
    "result = '\"' || repeat('x', 2000000) || '\"'": "result",
    'metrics = \'{"working_time": "1"}\'': "metrics.working_time",
    "metrics = '{\"working_time\": NaN}'": "NaN",
    "id = '../../x'": "id",
    "id = E'x\\x1b]0;owned\\x07'": "id",
    "scenario = E'a\\nb'": "scenario",
    "suite = E'demo\\x1b[2J'": "suite",
    "config = E'c\\u0085'": "config",
    "git_sha = '--upload-pack=touch /tmp/x'": "git_sha",
    "created_at = 'Infinity'": "created_at",
    "created_at = 1e12": "from the future",
    "epoch = -1": "epoch",
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_hostile_row_is_refused(change, tmp_path, url, postgres):
    """Whatever stands in the shared table, a row that is no trial is refused and named, harmless to print,
    and the one beside it is pulled.
    """
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        keep(a, made(1), made(2))
        push(a, url)
        postgres.sql(
            f"UPDATE kestrel.trials SET {change} WHERE id = '{made(1).id}'", "SELECT 1", database="team"
        )
        reporter = RecordingReporter()
        pulled = pull(b, url, reporter=reporter)
        assert [row.id for row in stored_trials(b.store)] == [made(2).id]
        assert (pulled.trials, len(pulled.refused), pulled.exit_code) == (1, 1, 1)
        assert re.search(HOSTILE[change], pulled.refused[0].why), pulled.refused[0].why
        assert "\x1b" not in repr(pulled) + pulled._repr_html_() + "".join(
            note for _, _, note in reporter.reports
        )
        assert "\x07" not in repr(pulled)


def test_hostile_text_is_shown_as_text(tmp_path, url, postgres):
    """Text that may be anything is escaped wherever it is shown: in a page, a table and a terminal."""
    bad = "<script>alert(1)</script>\x1b[2J"
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        hostile = made(
            1,
            outcome="fail",
            reason=bad,
            scores=[{"check": bad, "passed": False, "value": 0.0, "reason": bad}],
        )
        keep(a, replace(hostile, scenario="<img src=x onerror=alert(1)>"))
        push(a, url)
        pulled = pull(b, url)
        assert pulled.trials == 1
        summary = summarise_stored(b, SUITE, by="scenario")
        assert "<img" not in summary._repr_html_()
        page = (
            EvalResult(suite=SUITE, rows=tuple(stored_trials(b.store)), store=b.store)
            .report(tmp_path / "r.html")
            .read_text()
        )
        assert "<script>alert" not in page
        assert "<img src=x" not in page


def test_a_trial_that_was_changed_on_the_server_is_refused(tmp_path, url, postgres):
    """A failure that somebody turned into a pass in the tables of the team is not pulled; the trial beside it
    is, and is sealed here.
    """
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        keep(a, made(1, outcome="fail"))
        keep(a, made(2, outcome="fail"))
        push(a, url)
        postgres.sql(
            "UPDATE kestrel.trials SET result = replace(result, '\"fail\"', '\"pass\"') "
            f"WHERE id = '{made(1).id}'",
            "SELECT 1",
            database="team",
        )
        pulled = pull(b, url)
        assert [row.id for row in stored_trials(b.store)] == [made(2).id]
        assert "is not what was pushed" in str(pulled.refused[0])
        assert b.store.query("SELECT sealed FROM heads") == [(1,)]


@pytest.mark.parametrize(
    "attack",
    ["other type", "unknown type", "not ended", "illegal way", "after its end", "no list", "own run"],
)
def test_a_hostile_log_is_refused(attack, tmp_path, url, postgres):
    """Events that are none, or not those of a run that ended, are refused before any of them is stored; no
    run of ours is added to.
    """
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        tried(a, suite=SUITE.model_copy(update={"scenarios": SUITE.scenarios[:1], "epochs": 1}))
        push(a, url, runs=True)
        ((text,),) = postgres.sql("SELECT events FROM kestrel.runs", database="team")
        events = json.loads(text)
        run = str(stored_trials(a.store)[0].result["run"])
        match attack:
            case "other type":
                events[0][2]["goal"] = {"not": "text"}
            case "unknown type":
                events[1][1] = "pwned"
            case "not ended":
                events = events[:-1]
            case "illegal way":
                events = [event for event in events if event[1] != "state_transition" or event is events[-1]]
            case "after its end":
                events = [*events, events[1]]
            case "no list":
                events = {"a": 1}
            case "own run":
                b.store.create_run(run, replace(a.store.records(run)[0].event, goal="mine"))
                b.store.flush()
        postgres.sql(
            f"UPDATE kestrel.runs SET events = $x${json.dumps(events)}$x$", "SELECT 1", database="team"
        )
        pulled = pull(b, url, runs=True)
        assert pulled.trials == 1
        if attack == "own run":
            assert [r.event.goal for r in b.store.records(run)] == ["mine"]
            assert pulled.suites[0].runs == 0
        else:
            assert len(pulled.refused) == 1
            assert f"the log of trial {stored_trials(a.store)[0].id}" in str(pulled.refused[0])
            assert b.store.records(run) == []


def test_the_fields_of_every_event_are_checked():
    """Each event with an example of each of its fields passes, and with a wrong type in any of them does
    not.
    """
    examples = {
        "str": "x",
        "int": 1,
        "float": 0.5,
        "bool": True,
        "dict": {},
        "list": [],
        "tuple": (),
        "Json": "x",
    }
    for kind, event in EVENT_TYPES.items():
        body = {
            one.name: examples[str(one.type).partition("[")[0].partition(" ")[0]] for one in fields(event)
        }
        assert to_json(shared_trials._event(kind, body)) == body
        for one in fields(event):
            if str(one.type) != "Json":
                with pytest.raises(ValueError, match=one.name):
                    shared_trials._event(kind, {**body, one.name: object()})


def test_a_log_that_was_pulled_in_part_is_completed(tmp_path, url):
    """A pull that was killed in the middle of a log goes on with it."""
    with machine(tmp_path, "a") as a, machine(tmp_path, "b") as b:
        tried(a, suite=SUITE.model_copy(update={"scenarios": SUITE.scenarios[:1], "epochs": 1}))
        push(a, url, runs=True)
        run = str(stored_trials(a.store)[0].result["run"])
        events = shared_trials.checked_events(
            run, shared_trials.events_text(a.store.records(run), a.redactor), "x"
        )
        store_run(b.store, run, events[:4])
        b.store.flush()
        assert not b.store.run(run).status.terminal
        assert [(one.trials, one.runs) for one in pull(b, url, runs=True).suites] == [(1, 1)]
        assert [record.event for record in b.store.records(run)] == [event for _, event in events]
        assert b.store.run(run).status is RunStatus.COMPLETE


def test_two_pulls_into_one_log_at_once_do_not_collide(tmp_path):
    """A trial, or scores, that came in meanwhile are left alone."""
    with machine(tmp_path, "a") as a:
        later = LaterScores(trial=made(1).id, suite_hash="h", result=made(1).result, key="", created_at=1e9)
        for _ in range(2):
            merge_trial(a.store, made(1)).result(PATIENCE_S)
            merge_scores(a.store, later).result(PATIENCE_S)
        assert stored_trials(a.store) == [made(1)]
        assert later_scores(a.store, [made(1).id]) == [later]


def test_a_trial_that_nobody_could_pull_is_not_pushed(tmp_path, url, postgres):
    """It is refused here already, by name."""
    with machine(tmp_path, "a") as a:
        keep(a, made(1, scenario="two\nlines"), made(2), made(3, answer="x" * 2_000_000))
        pushed = push(a, url)
        assert pushed.trials == 1
        assert [made(1).id in pushed.refused[0].why, made(3).id in pushed.refused[1].why] == [True, True]


def test_times_of_different_machines_are_not_compared():
    """Trials of two machines may lie side by side by their clocks: their times say nothing of the commits."""
    base = [made(4 * epoch + (epoch % 2), epoch=epoch) for epoch in range(6)]
    head = [made(4 * epoch + 1 - (epoch % 2), epoch=epoch) for epoch in range(6)]
    assert side_by_side(base, head).epochs
    elsewhere = [replace(row, result={**row.result, "origin": "ann@host"}) for row in head]
    assert side_by_side(base, elsewhere).note == "not compared: the trials were made on different machines"
    assert side_by_side(
        [replace(row, result={**row.result, "origin": "ann@host"}) for row in base], elsewhere
    ).epochs


FILES = {
    "suite.yaml": "name: sums\nepochs: 2\nconfigs: [{name: script, model: 'scripted:script.yaml'}]\n"
    "scenarios:\n"
    + "".join(
        f"  - {{id: s{n}, goal: add {n}, checks: [{{answer_contains: '{n % 3}'}}]}}\n" for n in range(6)
    ),
    "script.yaml": "rules:\n  - when: add\n    turns: ['it is 1']\n",
    ".gitignore": ".kestrel/\n",
}


def git(folder, *words):
    """Run git with a fixed identity."""
    command = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "commit.gpgsign=false",
        *words,
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_comparisons_on_another_machine_are_the_same(tmp_path, url, monkeypatch):
    """In a clone of the repository, what was pulled is compared and looked back on with the same numbers, and
    nothing is run.
    """
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    git(here, "init", "-q", "-b", "main")
    for name, text in FILES.items():
        (here / name).write_text(text)
    git(here, "add", "-A")
    git(here, "commit", "-qm", "one")
    (here / "script.yaml").write_text(FILES["script.yaml"].replace("it is 1", "it is 1 or 2"))
    git(here, "commit", "-qam", "two")
    git(tmp_path, "clone", "-q", str(here), str(there))

    def measured(folder):
        monkeypatch.chdir(folder)
        with Lab(home=folder / ".kestrel") as lab:
            if folder == there:
                assert lab.evals.shared.pull_sync(url, "suite.yaml").trials == 24
            compared = lab.compare_sync("HEAD~1", "HEAD", suite="suite.yaml")
            looked_back = lab.evals.history_sync("suite.yaml", metric="token_usage")
            if folder == here:
                assert lab.evals.shared.push_sync(url).trials == 24
            else:
                assert (compared.base.reused, compared.head.reused) == (12, 12)
                assert (
                    set(looked_back.frame["origin"]) == {str(compared.head.rows[0].result["origin"])} != {""}
                )
            return compared.frame, looked_back.summary(), looked_back.steps

    for one, other in zip(measured(here), measured(there), strict=True):
        pd.testing.assert_frame_equal(one, other)


def test_the_lab_and_the_command_line_do_it(tmp_path, url, monkeypatch, capsys):
    """`lab.evals.shared`, `kestrel eval push` and `pull`; frames have the column `origin`."""
    monkeypatch.chdir(tmp_path)
    with Lab(home=tmp_path / "a") as lab:
        keep(lab, made(1))
    monkeypatch.setenv("KESTREL_HOME", str(tmp_path / "a"))

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main(["eval", *words])
        return ended.value.code

    assert run("push", url, "demo") == 0
    assert "1 trial pushed to postgresql://…@127.0.0.1" in capsys.readouterr().out
    monkeypatch.setenv("KESTREL_HOME", str(tmp_path / "b"))
    assert run("pull", url, "--dry-run") == 0
    assert "would be pulled" in capsys.readouterr().out
    assert run("pull", url) == 0
    with Lab(home=tmp_path / "b") as lab:
        assert asyncio.run(lab.evals.shared.pull(url)).suites[0].there == 1
        (row,) = stored_trials(lab.store)
        assert EvalResult(suite=SUITE, rows=(row,), store=lab.store).frame["origin"].tolist() == [
            row.result["origin"]
        ]
    assert run("push", "postgresql://me:secret@127.0.0.1:1/db") == 2
    assert "secret" not in capsys.readouterr().err
