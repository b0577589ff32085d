"""A suite recorded once, over real HTTP, gives the same results elsewhere: without the server, without a key,
on another day.
"""

import asyncio
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from openai_server import OpenAIServer, Reply

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelAnswered
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.result_table import summarise_configurations, summary_table
from kestrel_lab.lab import Lab
from kestrel_lab.views.run_view import view_of

# litellm quiets this itself when it is loaded; a test that loaded it before has taken that back.
pytestmark = pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict")
KEY = "sk-test-abcdefghijklmnopqrstuvwxyz"
SUITE = """\
name: s
epochs: 2
grader: judge
configs:
  - {name: flow, model: any, plan: flow.yaml}
  - {name: plain, model: any, seed: 3}
  - {name: same, model: any, seed: 3, concurrency: 1}
scenarios:
  - id: read
    goal: Say what a.txt says.
    workspace: {files: {a.txt: hello}}
    tools: [bash]
    tags: [quick]
    checks: [{graded: Is it right?}, {answer_contains: hello}]
  - id: other
    goal: Say what b.txt says.
    workspace: {files: {b.txt: hello}}
    tools: [bash]
    checks: [{answer_contains: hello}]
"""
FLOW = """\
kind: plan
name: flow
description: Knows the time, then asks a model of its own.
steps:
  - {id: bootstrap, operation: bootstrap, args: {goal: "{{goal}}"}, consumes: [goal], produces: [context]}
  - {id: work, goal: "{{goal}}", model: other, consumes: [goal, context]}
"""


class Answering(OpenAIServer):
    """Looks where it is and at the file, then answers, each time with another number."""

    def __init__(self):
        super().__init__([Reply()])
        self.count = 0

    def take(self, body, headers):
        super().take(body, headers)
        asked = json.loads(body)
        with self._lock:
            self.count += 1
        if asked["model"] == "judge":
            return Reply(text='{"score": 1, "why": "it is"}')
        if asked["messages"][-1]["role"] == "tool":
            where, text = asked["messages"][-1]["content"].split()[-2:]
            return Reply(text=f"In {where} it says {text} ({self.count}). {KEY}", usage=(self.count, 5))
        return Reply(calls=(("bash", json.dumps({"command": "pwd; cat *.txt"})),))


def measured(folder, mode, *, env=None, api_base=None, suite="s.yaml", **options):
    """A suite in `folder`, by a session of its own; what its store holds of the runs comes with it."""
    lab = Lab(folder / "home", env=env or {}, api_base=api_base)
    try:
        result = asyncio.run(run_suite(lab, folder / suite, cassette=mode, **options))
        runs = {row.result["run"]: lab.store.records(str(row.result["run"])) for row in result.rows}
        kinds = {row.result["run"]: lab.store.run(str(row.result["run"])).model_kind for row in result.rows}
        page = result.report(folder / "report.html").read_text()
    finally:
        lab.close()
    return result, runs, kinds, page


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The suite after a recording: its folder, the result, how often the server was asked."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "s.yaml").write_text(SUITE)
    (folder / "flow.yaml").write_text(FLOW)
    with Answering() as server:
        result, *_ = measured(folder, "record", env={"OPENAI_API_KEY": KEY}, api_base=server.api_base)
        asked = len(server.bodies)
        again, *_ = measured(folder, "record", env={"OPENAI_API_KEY": KEY}, api_base=server.api_base)
        assert len(server.bodies) == asked
    return folder, result, asked, again


@pytest.fixture
def elsewhere(recorded, tmp_path):
    """Suite and recordings in another folder, made years ago; nothing else."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(recorded[0], folder, ignore=shutil.ignore_patterns("home", "report.html"))
    today = datetime.now(UTC)
    for path in (folder / "cassettes" / "s").iterdir():
        path.write_text(
            path.read_text()
            .replace(f"{today:%Y-%m-%d}", "2001-02-03")
            .replace(f"{today:%A}", "Saturday")
            .replace(f"{today:%G-W%V}", "2001-W05")
        )
    return folder


def told(result):
    """What a trial's outcome is, without what belongs to the run and the folder."""
    return [
        (
            row.scenario,
            row.config,
            row.epoch,
            row.result["outcome"],
            str(row.result["answer"]).split(" it says ")[-1].replace(KEY, "<secret>"),
            row.metrics["token_usage"],
            row.metrics["model_calls"],
            [score["passed"] for score in row.result["scores"]],
        )
        for row in result.rows
    ]


def test_a_recording_asks_for_each_call_once(recorded):
    """Every trial has answers of its own, also of an equal configuration; what is recorded is not asked for
    again, and says so.
    """
    folder, result, asked, again = recorded
    assert {(row.result["outcome"], row.result["reason"]) for row in result.rows} == {("pass", "")}
    assert len({row.result["answer"] for row in result.rows}) == 12
    # Two turns a trial, and a judgement of those of one scenario.
    assert asked == 2 * 12 + 6
    assert told(again) == told(result)
    assert {row.result["model_kind"] for row in result.rows} == {"real"}
    assert {row.result["model_kind"] for row in again.rows} == {"replay"}
    assert [path.name for path in sorted((folder / "cassettes" / "s").iterdir())] == [
        "other.jsonl",
        "read.jsonl",
    ]
    assert not [
        path
        for path in (folder / "cassettes").rglob("*.jsonl")
        if KEY in path.read_text() or "/tmp" in path.read_text()
    ]


def test_it_replays_elsewhere(recorded, elsewhere):
    """No server, no key, another folder, another day: equal answers, tokens and scores, all of it called a
    replay.
    """
    result, runs, kinds, page = measured(elsewhere, "replay", env={"KESTREL": "no key"})
    assert told(result) == told(recorded[1])
    assert {row.result["model_kind"] for row in result.rows} == set(kinds.values()) == {"replay"}
    answers = [
        record.event
        for records in runs.values()
        for record in records
        if isinstance(record.event, ModelAnswered)
    ]
    assert len(answers) == 24
    assert all(answer.replayed and answer.tokens_out for answer in answers)
    view = view_of(next(iter(runs.values())))
    assert view.head.model_kind == "replay"
    note = "Tokens and cost are those of the recording, times those of the replay."
    assert all(note in text for text in (str(result), result._repr_html_(), result.markdown(), page))
    assert set(result.frame["model_kind"]) == {"replay"}
    assert [
        name.endswith("(replay)")
        for name in (
            row[0]
            for row in summary_table(summarise_configurations(result.rows, result.suite.count_errors))[1]
        )
    ] == [True] * 3


def test_what_changed_is_told(elsewhere):
    """A changed prompt breaks the trials that it concerns, says which message and how, and asks nobody."""
    suite = elsewhere / "s.yaml"
    suite.write_text(
        SUITE.replace("name: s\n", "name: s\ninstructions: Be quick.\n").replace(
            "tools: [bash]", "tools: [bash, grep]", 1
        )
    )
    result, *_ = measured(elsewhere, "replay")
    assert {row.result["outcome"] for row in result.rows} == {"error"}
    reasons = {
        row.scenario: str(row.result["reason"]).splitlines() for row in result.rows if row.config == "plain"
    }
    assert (
        "not recorded: tools that were not offered: grep; message 1 (system) changed (turn 1 with openai/any"
        in reasons["read"][0]
    )
    assert "+ Be quick." in reasons["other"]
    assert "message 1 (system) changed" in reasons["other"][0]


def test_only_what_is_there_is_replayed(elsewhere):
    """More epochs than recorded are not made up; a suite without recordings is refused before the first
    trial.
    """
    result, *_ = measured(elsewhere, "replay", epochs=3, configs=["flow"], tags=["quick"])
    assert [(row.epoch, row.result["outcome"]) for row in result.rows] == [
        (1, "pass"),
        (2, "pass"),
        (3, "error"),
    ]
    assert "this is epoch 3, which needs an answer of its own" in str(result.rows[2].result["reason"])
    with pytest.raises(UsageError, match=r"there are no recordings in .*nowhere"):
        measured(elsewhere, "replay", cassettes=elsewhere / "nowhere")
    with pytest.raises(UsageError, match="not 'repaly'; did you mean 'replay'"):
        measured(elsewhere, "repaly")
    with pytest.raises(UsageError, match="not used while cassettes are off"):
        measured(elsewhere, None, cassettes=elsewhere)


def test_a_suite_says_it_itself(elsewhere):
    """`cassette: replay` in the file is enough, with a folder and what is volatile if need be; the command's
    word goes first.
    """
    suite = elsewhere / "s.yaml"
    shutil.move(elsewhere / "cassettes" / "s", elsewhere / "taped")
    suite.write_text("cassette: {mode: replay, folder: taped, volatile: ['x+y']}\n" + SUITE)
    result, *_ = measured(elsewhere, None)
    assert {row.result["outcome"] for row in result.rows} == {"pass"}
    use = load_suite(suite).cassette
    assert (use.mode, use.folder, use.volatile) == ("replay", elsewhere / "taped", ("x+y",))
    assert load_suite(suite).definition()["cassette"] == "replay"
    with pytest.raises(UsageError, match="no provider is known for the model"):
        measured(elsewhere, "off")


def test_a_script_needs_no_recordings(tmp_path):
    """A suite without a real model runs in every mode, and nothing is written."""
    (tmp_path / "script.yaml").write_text("rules: [{when: '.', turns: [hello]}]\n")
    (tmp_path / "s.yaml").write_text(
        "configs: ['scripted:script.yaml']\nscenarios: [{id: a, goal: g, checks: [{answer_contains: "
        "hello}]}]\n"
    )
    for mode in ("record", "replay", "refresh"):
        result, *_ = measured(tmp_path, mode)
        assert [(row.result["outcome"], row.result["model_kind"]) for row in result.rows] == [
            ("pass", "scripted")
        ]
    assert not (tmp_path / "cassettes").exists()


def test_shipped_recordings_replay(tmp_path):
    """The calls of the smoke suite's local model, as they are kept in the repository, are all that CI needs
    for it.
    """
    lab = Lab(tmp_path / "home", env={})
    suite = Path(__file__).parents[2] / "evals" / "smoke.yaml"
    result = asyncio.run(run_suite(lab, suite, configs=["local"], cassette="replay"))
    lab.close()
    reasons = {row.scenario: row.result["reason"] for row in result.rows if row.result["outcome"] == "error"}
    assert reasons == {}, (
        "record it again: kestrel eval run evals/smoke.yaml --config local --cassette refresh"
    )
    assert {row.result["model_kind"] for row in result.rows} == {"replay"}
