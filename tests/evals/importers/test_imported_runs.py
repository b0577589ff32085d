"""Recordings of other tools become runs and trials: shown, forked, scored, compared; what they do not tell is
unknown.
"""

import asyncio
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab import Lab, Scenario, Suite, check
from kestrel_lab.cli.main import main
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelAnswered, RunStarted, ToolAnswered, ToolCalled
from kestrel_lab.evals.importers.chat_logs import chat_recording
from kestrel_lab.evals.importers.inspect_logs import read_inspect
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.testing import ScriptedModel

INSPECT = Path(__file__).parent / "data" / "inspect-small.eval"
EVIL = "<script>alert('x')</script>"


def recorded(**more: Any) -> dict[str, Any]:
    """A run file in AgentDojo's format, written for this test."""
    call = {"function": "read_note", "args": {"name": "shopping"}, "id": "call_7"}
    send = {"function": "send_note", "args": {"to": "Ann", "text": "milk"}, "id": None}
    return {
        "suite_name": "notes",
        "pipeline_name": "model-a",
        "user_task_id": "user_task_1",
        "injection_task_id": None,
        "attack_type": None,
        "injections": {},
        "error": None,
        "utility": True,
        "security": False,
        "duration": 2.5,
        "messages": [
            {"role": "system", "content": "Use the tools."},
            {"role": "user", "content": f"Send my shopping note to Ann {EVIL}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {
                "role": "tool",
                "content": f"milk {EVIL}",
                "tool_call_id": "call_7",
                "tool_call": call,
                "error": None,
            },
            {"role": "assistant", "content": "Sending.", "tool_calls": [send]},
            {
                "role": "tool",
                "content": "",
                "tool_call_id": None,
                "tool_call": send,
                "error": "ValueError: Ann is away",
            },
            {"role": "user", "content": "Go on."},
            {"role": "assistant", "content": f"Ann is away. {EVIL}", "tool_calls": None},
        ],
        **more,
    }


def folder_of(path: Path) -> Path:
    """Three run files and one that is cut off."""
    files = {
        "user_task_1/none/none.json": recorded(),
        "user_task_1/direct/injection_task_2.json": recorded(
            attack_type="direct", injection_task_id="injection_task_2", security=True
        ),
        "user_task_2/none/none.json": recorded(
            user_task_id="user_task_2", utility=False, error="no room", messages=[]
        ),
    }
    for name, value in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(json.dumps(value), encoding="utf-8")
    (path / "cut.json").write_text(json.dumps(recorded())[:200], encoding="utf-8")
    return path


def test_agentdojo_runs_are_runs_and_trials(tmp_path: Path, lab: Lab) -> None:
    """Utility and security are the trial's scores, what is not recorded is unknown, a broken file loses
    nothing else.
    """
    found = lab.evals.import_runs_sync(folder_of(tmp_path / "runs"))
    assert found.headline == "3 runs imported, 1 record could not be read, 1 of 3 trials passed"
    assert [one.place.rpartition("/")[2] for one in found.broken] == ["cut.json"]
    assert sorted(found.results) == ["agentdojo:notes", "agentdojo:notes?attack=direct"]
    rows = found.frame.set_index(["suite", "scenario"])
    plain, broke = (
        rows.loc["agentdojo:notes", "notes/user_task_1"],
        rows.loc["agentdojo:notes", "notes/user_task_2"],
    )
    attacked = rows.loc["agentdojo:notes?attack=direct", "notes/user_task_1/injection_task_2"]
    assert (plain.outcome, attacked.outcome, broke.outcome, broke.reason) == (
        "pass",
        "fail",
        "fail",
        "no room",
    )
    assert (plain.model_kind, plain.wall_time, plain.tool_calls, plain.model_calls) == ("imported", 2.5, 2, 3)
    assert (
        math.isnan(plain.token_usage) and math.isnan(plain.cost_estimate) and math.isnan(plain.working_time)
    )
    scores = found.results["agentdojo:notes?attack=direct"].scores.set_index("check").passed.to_dict()
    assert scores == {"user task done": True, "attack resisted": False}
    assert "unknown" in repr(found) and "$0" not in repr(found) and "nan" not in repr(found)


def test_a_second_import_adds_nothing(tmp_path: Path, lab: Lab) -> None:
    """Runs and trials are the same ones, wherever the file lies; the log does not grow."""
    first = lab.evals.import_runs_sync(folder_of(tmp_path / "runs"))
    again = lab.evals.import_runs_sync(folder_of(tmp_path / "elsewhere"), folder_of(tmp_path / "runs"))
    assert (again.added, sorted(again.runs)) == (0, sorted(first.runs))
    assert lab.store.query("SELECT count(*) FROM runs") == [(3,)]
    assert lab.store.query("SELECT count(*) FROM eval_runs") == [(3,)]
    stored = lab.evals.stored(first.results["agentdojo:notes"].suite, commit="imported")
    assert "model-a (imported)" in repr(stored)


def test_an_import_that_was_cut_off_is_finished(tmp_path: Path) -> None:
    """A run of which only the beginning was stored gets the rest of its events, in their order."""
    from kestrel_lab.evals.importers.benchmark_runs.agentdojo_runs import agentdojo_recording
    from kestrel_lab.evals.importers.recorded_events import events_of
    from kestrel_lab.evals.stored_trials import store_run

    recording = agentdojo_recording(recorded(), "a.json")
    events = events_of(recording)
    with Lab(home=tmp_path / "home") as lab:
        assert store_run(lab.store, recording.run_id, events[:5])
    (tmp_path / "a.json").write_text(json.dumps(recorded()), encoding="utf-8")
    lab = Lab(home=tmp_path / "home")
    found = lab.evals.import_runs_sync(tmp_path / "a.json")
    assert found.added == 1
    assert [event.type for event in lab.get(recording.run_id).events()] == [event.type for _, event in events]
    assert lab.get(recording.run_id).status == "COMPLETE"


def test_an_imported_run_is_shown_as_what_it_is(tmp_path: Path, lab: Lab) -> None:
    """Text and HTML say where it is from and that tokens are unknown; foreign text is text; ids of the source
    are kept.
    """
    (tmp_path / "a.json").write_text(json.dumps(recorded()), encoding="utf-8")
    (name,) = lab.evals.import_runs_sync(tmp_path / "a.json").runs
    run = lab.get(name)
    started = run.events()[0]
    assert isinstance(started, RunStarted)
    assert (started.imported["format"], started.imported["times"], started.imported["calls"]) == (
        "agentdojo",
        "total",
        {"answer.1.1": "call_7"},
    )
    assert run.report.model == "model-a (imported)"
    html = run._repr_html_()
    assert EVIL not in html and "not run here" in html and "tokens unknown" in html and "0 ms" not in html
    answers = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert [(one.text, one.error is None) for one in answers] == [
        (f"milk {EVIL}", True),
        ("ValueError: Ann is away", False),
    ]


def test_a_fork_answers_from_the_recording(tmp_path: Path) -> None:
    """A model goes on from there; recorded calls get recorded results, others an error, and no tool of this
    machine answers.
    """
    (tmp_path / "secret.txt").write_text("of this machine")
    value = json.loads(
        json.dumps(recorded())
        .replace("read_note", "read_file")
        .replace('"name": "shopping"', '"path": "secret.txt"')
    )
    (tmp_path / "a.json").write_text(json.dumps(value), encoding="utf-8")
    turns = [[("read_file", {"path": "secret.txt"})], [("read_file", {"path": "other.txt"})], "done"]
    asked: list[Any] = []

    def play(request: Any) -> Any:
        asked.append(request)
        return turns[len(asked) - 1]

    lab = Lab(home=tmp_path / "home", approve="auto")
    (name,) = lab.evals.import_runs_sync(tmp_path / "a.json").runs
    at = next(record.seq for record in lab.get(name).records() if isinstance(record.event, ModelAnswered)) - 1
    with pytest.raises(UsageError, match="Name the model to go on with"):
        asyncio.run(lab.fork(name, at=at))
    fork = asyncio.run(lab.fork(name, at=at, model=ScriptedModel(play, name="mine")))
    assert (fork.status, fork.answer) == ("COMPLETE", "done")
    first, second = [event for event in fork.events() if isinstance(event, ToolAnswered)]
    assert (
        first.text == f"milk {EVIL}"
        and second.error is not None
        and "exists in the recording only" in second.text
    )
    assert asked[0].messages[0].text == "Use the tools."
    assert {tool.name for tool in asked[0].tools} == {"read_file", "send_note"}
    assert lab.get(name).answer.startswith("Ann is away")


CHATS = [
    {
        "id": "a",
        "model": "gpt-x",
        "messages": [
            {"role": "user", "content": "What is 2 + 2?"},
            {"role": "assistant", "content": "It is 4."},
        ],
    },
    {
        "custom_id": "b",
        "request": {
            "model": "gpt-x",
            "messages": [
                {"role": "developer", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "What is 3 + 3?"}]},
            ],
        },
        "response": {
            "model": "gpt-x-2",
            "created": 1_700_000_000,
            "usage": {"prompt_tokens": 12, "completion_tokens": 3},
            "choices": [{"message": {"role": "assistant", "content": "7"}}],
        },
    },
    {
        "id": "c",
        "messages": [
            {"role": "user", "content": "Look it up"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "t1", "function": {"name": "look", "arguments": '{"q": 1}'}},
                    {"id": "t2", "function": {"name": "look", "arguments": "{"}},
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "found"},
        ],
    },
]


def chat_file(path: Path) -> Path:
    """Three conversations, between them a line that is cut off and one without a question."""
    lines = [
        json.dumps(CHATS[0]),
        '{"messages": [',
        json.dumps(CHATS[1]),
        json.dumps({"messages": [{"role": "assistant", "content": "hi"}]}),
        json.dumps(CHATS[2]),
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_chat_logs_line_by_line(tmp_path: Path, lab: Lab) -> None:
    """Each line is a run; broken ones are named by their line; usage is known where it was told; missing
    results are said to be missing.
    """
    found = lab.evals.import_runs_sync(chat_file(tmp_path / "chats.jsonl"))
    assert (found.added, [one.place.rpartition(":")[2] for one in found.broken]) == (4, ["2", "4"])
    assert "no message of a user" in str(found.broken[1]) and not found.results
    assert "judge them with --suite" in repr(found)
    one, two, _, three = (lab.get(name) for name in found.runs)
    assert (one.answer, one.usage.unmetered, two.answer, two.usage.tokens, two.usage.unmetered) == (
        "It is 4.",
        1,
        "7",
        15,
        0,
    )
    answers = [event for event in three.events() if isinstance(event, ToolAnswered)]
    assert [(event.text, (event.error or {}).get("kind")) for event in answers] == [
        ("found", None),
        (
            "its arguments are not JSON: Expecting property name enclosed in double quotes: line 1 "
            "column 2 (char 1)",
            "invalid_arguments",
        ),
    ]
    assert sum(isinstance(event, ToolCalled) for event in three.events()) == 1


def test_tools_of_a_chat_log_are_those_that_were_offered() -> None:
    """Wrapped as functions, as the API has them now, or bare, as it had them first."""
    bare = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
    chat = {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": bare}, bare, {"name": "bare"}],
    }
    told = {"name": "look", "description": "Look.", "schema": {"type": "object"}}
    assert list(chat_recording(chat, "here", "").tools) == [
        told,
        told,
        {"name": "bare", "description": "", "schema": {}},
    ]


def test_a_suite_judges_imported_runs(tmp_path: Path) -> None:
    """Runs whose goal is a scenario's are scored by its checks and compared like our own; the others are in
    the log.
    """
    suite = Suite(
        name="sums",
        scenarios=tuple(
            Scenario(id=str(n), goal=f"What is {n} + {n}?", checks=(check(answer_contains=str(2 * n)),))
            for n in (2, 3)
        ),
    )
    lab = Lab(home=tmp_path / "home", model=ScriptedModel(["4"]))
    found = asyncio.run(lab.evals.import_runs(chat_file(tmp_path / "chats.jsonl"), suite=suite))
    result = found.results["sums"]
    assert [(row.scenario, row.result["outcome"]) for row in result.rows] == [("2", "pass"), ("3", "fail")]
    assert "2 runs fit no scenario" in repr(found)
    assert lab.evals.stored(suite, commit="imported").frame.trials.sum() == 2
    assert lab.evals.rescore_sync(suite, commit="imported").changes == ()


def test_inspect_samples_are_runs(lab: Lab) -> None:
    """Numbers, outcomes and epochs are those of the frame; conversations, calls, tokens and times are the
    recorded ones.
    """
    found = lab.evals.import_runs_sync(INSPECT)
    ours, theirs = (
        frame.sort_values(["scenario", "epoch"]).reset_index(drop=True)
        for frame in (found.frame, read_inspect(INSPECT))
    )
    columns = [
        "suite",
        "scenario",
        "config",
        "model",
        "epoch",
        "outcome",
        "success",
        "wall_time",
        "working_time",
        "token_usage",
        "tool_calls",
    ]
    assert ours[columns].equals(theirs[columns].astype(ours[columns].dtypes))
    assert set(columns[7:]) <= set(METRICS)
    run = lab.get(str(ours[(ours.scenario == "sum") & (ours.epoch == 1)].run.item()))
    assert (run.goal, run.answer, run.usage.tokens, run.report.model) == (
        "What is 1 + 1?",
        "2",
        28,
        "mockllm/model (scripted)",
    )
    (call,) = [event for event in run.events() if isinstance(event, ToolCalled)]
    assert (call.tool, call.args) == ("add", {"x": 1, "y": 1})
    assert lab.evals.import_runs_sync(INSPECT).added == 0


def test_results_without_samples_are_kept(tmp_path: Path, lab: Lab) -> None:
    """A log with a header only is a run that shows its results, and no trial; one with nothing in it says
    so.
    """
    head = {"version": 2, "status": "success", "eval": {"task": "sums", "model": "openai/x", "eval_id": "e1"}}
    results = {
        "completed_samples": 20,
        "scores": [{"name": "match", "metrics": {"accuracy": {"value": 0.75}, "stderr": {"value": 0.1}}}],
    }
    with zipfile.ZipFile(tmp_path / "head.eval", "w") as file:
        file.writestr("header.json", json.dumps({**head, "results": results}))
    (tmp_path / "none.json").write_text(json.dumps(head), encoding="utf-8")
    found = lab.evals.import_runs_sync(tmp_path / "head.eval", tmp_path / "none.json")
    run = lab.get(found.runs[0])
    assert (
        run.answer
        == "As the log's header has them over 20 completed samples:\nmatch: accuracy 0.75, stderr 0.1"
    )
    assert not found.results and str(found.broken[0]).endswith(
        "none.json: it has neither samples nor results (status success)"
    )
    assert run.events()[0].imported["results"] == results  # type: ignore[union-attr]


def test_a_truncated_log_gives_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends with one clear line; beside whole files the others are imported."""
    monkeypatch.chdir(tmp_path)
    Path("cut.eval").write_bytes(INSPECT.read_bytes()[:3000])
    with pytest.raises(SystemExit, match="2"):
        main(["eval", "import", "cut.eval"])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: cut.eval: not a whole zip file")
    with pytest.raises(SystemExit, match="0"):
        main(["eval", "import", "cut.eval", str(INSPECT), "--csv", "out.csv"])
    said = capsys.readouterr().out
    assert (
        "6 runs imported, 1 record could not be read" in said and Path("out.csv").read_text().count("\n") == 7
    )


def test_imported_configurations_are_compared(tmp_path: Path, lab: Lab) -> None:
    """Two pipelines over the same tasks: paired by task, with a verdict, and the figures and reports of any
    result.
    """
    for number in range(12):
        for model, done in (("model-a", True), ("model-b", number == 0)):
            value = recorded(pipeline_name=model, user_task_id=f"user_task_{number}", utility=done)
            (tmp_path / f"{model}-{number}.json").write_text(json.dumps(value), encoding="utf-8")
    result = lab.evals.import_runs_sync(tmp_path).results["agentdojo:notes"]
    found = lab.evals.compare_configs(result, "model-a", "model-b")
    assert (found.verdict, len(found.flips)) == ("regression", 11)
    assert "model-a (imported)" in str(found) and "nan" not in str(found)
    with pytest.raises(UsageError, match="did you mean 'model-a'"):
        lab.evals.compare_configs(result, "model-aa", "model-b")
    figure = result.plot()
    assert "no known price" in figure.get_suptitle() and len(figure.axes) == 1
    with pytest.raises(UsageError, match="unknown in all of these trials"):
        result.plot("cost_estimate")
    assert EVIL not in result.report(tmp_path / "r.html").read_text(encoding="utf-8")
