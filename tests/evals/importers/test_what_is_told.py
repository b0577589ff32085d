"""What recordings tell of answers, of what was used and of whose they are: nothing is lost, nothing is made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_formats import ATIF, GOAL, MESSAGES, MINI_2, OPENHANDS_SDK, OTLP, RECORDED, SWE, TAU
from test_bad_records import LOG, OTEL, SAMPLE
from test_formats import written

from kestrel_lab import Lab
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelAnswered, RunStarted
from kestrel_lab.evals.importers.formats import read_file
from kestrel_lab.evals.importers.imported_run import Recording, WholeUsage
from kestrel_lab.evals.importers.json_fields import Broken
from kestrel_lab.evals.importers.other_tools import OTHER_TOOLS, name_other_tool

SECRET = "gAAAAABencrypted"


def recordings(path: Path) -> list[Recording]:
    """The recordings of a file, of which everything can be read."""
    found = list(read_file(path))
    assert not [one for one in found if isinstance(one, Broken)]
    return [one for one in found if isinstance(one, Recording)]


def _with_reasoning() -> dict[str, list[Any]]:
    """Files in which a model thinks before it answers, each as its tool writes it."""
    inspect_part = {"type": "reasoning", "reasoning": SECRET, "redacted": True, "summary": "It adds."}
    answer = [inspect_part, {"type": "text", "text": "4"}]
    messages = [
        {"id": "1", "role": "user", "content": "2 + 2?"},
        {"id": "2", "role": "assistant", "content": answer},
    ]
    otel_parts = [{"type": "reasoning", "content": "It adds."}, {"type": "text", "content": "4"}]
    spans = json.loads(json.dumps(OTEL))
    attributes = spans[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][1]["attributes"]
    attributes[2]["value"] = {"stringValue": json.dumps([{"role": "assistant", "parts": otel_parts}])}
    anthropic = [
        {"type": "thinking", "thinking": "It adds.", "signature": SECRET},
        {"type": "text", "text": "4"},
    ]
    return {
        "log.json": [{**LOG, "samples": [{**SAMPLE, "messages": messages}]}],
        "otel.jsonl": spans,
        "anthropic.json": [
            [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": anthropic}]
        ],
        "responses.json": [
            {
                "input": "2 + 2?",
                "output": [
                    {"type": "reasoning", "summary": [], "encrypted_content": SECRET},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "4"}],
                    },
                ],
            }
        ],
        "deepseek.json": [
            [
                {"role": "user", "content": "2 + 2?"},
                {"role": "assistant", "reasoning_content": "It adds.", "content": "4"},
            ]
        ],
        "tags.json": [
            [
                {"role": "user", "content": "2 + 2?"},
                {"role": "assistant", "content": "<think>\nIt adds.\n</think>\n\n4"},
            ]
        ],
        "langchain.json": [
            [
                {"type": "human", "content": "2 + 2?"},
                {
                    "type": "ai",
                    "content": [
                        {"type": "reasoning", "reasoning": "It adds."},
                        {"type": "text", "text": "4"},
                    ],
                },
            ]
        ],
        "atif.json": [
            {
                **ATIF,
                "subagent_trajectories": None,
                "steps": [
                    {"step_id": 1, "source": "user", "message": "2 + 2?"},
                    {"step_id": 2, "source": "agent", "message": "4", "reasoning_content": "It adds."},
                ],
            }
        ],
        "gemini.json": [
            {
                "sessionId": "s",
                "projectHash": "h",
                "messages": [
                    {"id": "a", "type": "user", "content": "2 + 2?"},
                    {
                        "id": "b",
                        "type": "gemini",
                        "content": [{"text": "It adds.", "thought": True}, {"text": "4"}],
                    },
                ],
            }
        ],
        "openhands.json": [
            [
                {
                    "kind": "MessageEvent",
                    "source": "user",
                    "llm_message": {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]},
                },
                {
                    "kind": "MessageEvent",
                    "source": "agent",
                    "llm_message": {
                        "role": "assistant",
                        "content": [{"type": "text", "text": "4"}],
                        "thinking_blocks": [
                            {"type": "thinking", "thinking": "It adds.", "signature": SECRET}
                        ],
                    },
                },
            ]
        ],
    }


@pytest.mark.parametrize("name", _with_reasoning())
def test_reasoning_is_no_part_of_an_answer(tmp_path: Path, name: str) -> None:
    """What a model thought stands apart from its answer, and what is encrypted stands nowhere."""
    (recording,) = recordings(written(tmp_path / name, _with_reasoning()[name]))
    assert recording.answer == "4"
    assert SECRET not in "".join(message.text + message.thinking for message in recording.messages)
    thoughts = [message.thinking for message in recording.messages if message.thinking]
    assert all("adds" in thought for thought in thoughts)
    assert bool(thoughts) is (name not in ("responses.json", "gemini.json"))


def test_what_is_handed_to_the_finishing_tool_is_the_answer(tmp_path: Path) -> None:
    """Of ATIF and of OpenHands' SDK: the last words are the argument of `finish`, and a result may follow."""
    finish = {"tool_call_id": "f", "function_name": "finish", "arguments": {"message": "It is sum now."}}
    steps = [
        {"step_id": 1, "source": "user", "message": GOAL},
        {
            "step_id": 2,
            "source": "agent",
            "message": "Done.",
            "tool_calls": [finish],
            "observation": {"results": [{"source_call_id": "f", "content": "ok"}]},
        },
    ]
    atif = {**ATIF, "steps": steps, "subagent_trajectories": None}
    sdk = [
        OPENHANDS_SDK[1],
        {
            "kind": "ActionEvent",
            "source": "agent",
            "thought": [],
            "action": {"kind": "FinishAction", "message": "It is sum now."},
            "tool_name": "finish",
            "tool_call_id": "f",
            "llm_response_id": "r",
        },
        {
            "kind": "ObservationEvent",
            "source": "environment",
            "tool_name": "finish",
            "tool_call_id": "f",
            "observation": {"kind": "FinishObservation", "content": [{"type": "text", "text": "ok"}]},
        },
    ]
    for name, lines in (("t.json", [atif]), ("e.json", [sdk])):
        assert [one.answer for one in recordings(written(tmp_path / name, lines))] == ["It is sum now."]


def test_a_submission_is_the_answer(tmp_path: Path) -> None:
    """SWE-agent and mini-swe-agent end with a command; what they submitted is their answer."""
    swe = {**SWE, "history": SWE["history"][:-1], "info": {**SWE["info"], "submission": "diff --git"}}
    mini = json.loads(json.dumps(MINI_2))
    mini["messages"] = mini["messages"][:-2]
    mini["info"]["submission"] = "diff --git"
    for name, value in (("a.traj", swe), ("b.traj.json", mini)):
        assert [one.answer for one in recordings(written(tmp_path / name, [value]))] == ["diff --git"]


def test_what_the_whole_used_is_the_usage_of_the_run(tmp_path: Path, lab: Lab) -> None:
    """Totals of SWE-agent and ATIF are the run's, where its calls tell nothing; what is not told is unknown."""
    stats = {"tokens_sent": 90, "tokens_received": 8, "instance_cost": 0.5, "api_calls": 3}
    swe = {**SWE, "info": {"exit_status": "submitted", "model_stats": stats}}
    totals = {
        "total_prompt_tokens": 50,
        "total_completion_tokens": 5,
        "total_cached_tokens": 20,
        "total_cost_usd": 0.1,
    }
    steps = [{key: value for key, value in step.items() if key != "metrics"} for step in ATIF["steps"]]
    atif = {**ATIF, "steps": steps, "final_metrics": totals, "subagent_trajectories": None}
    usages = {}
    for name, value in (("a.traj", swe), ("t.json", atif), ("m.json", MESSAGES)):
        run = lab.get(lab.evals.import_runs_sync(written(tmp_path / name, [value])).runs[0])
        usages[name] = (
            run.usage.tokens_in,
            run.usage.tokens_out,
            run.usage.tokens_cached,
            run.usage.cost_usd,
            run.usage.unmetered > 0,
            run.usage.unpriced > 0,
        )
    assert usages == {
        "a.traj": (90, 8, 0, 0.5, False, False),
        "t.json": (50, 5, 20, 0.1, False, False),
        "m.json": (0, 0, 0, 0.0, True, True),
    }


def test_cached_tokens_of_traces_are_among_those_read(tmp_path: Path) -> None:
    """OpenTelemetry's GenAI conventions count what the cache gave among the tokens read."""
    spans = json.loads(json.dumps(OTEL))
    spans[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][1]["attributes"] += [
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 7}},
        {"key": "gen_ai.usage.cache_read.input_tokens", "value": {"intValue": "2"}},
        {"key": "gen_ai.usage.reasoning.output_tokens", "value": {"intValue": "5"}},
    ]
    (recording,) = recordings(written(tmp_path / "t.jsonl", spans))
    answer = next(message for message in recording.messages if message.role == "assistant")
    counted = (answer.tokens_in, answer.tokens_out, answer.tokens_cached, answer.tokens_reasoning)
    assert counted == (3, 7, 2, 5)


def test_usage_that_is_absent_is_unknown_in_trials(tmp_path: Path, lab: Lab) -> None:
    """A try of tau-bench tells neither tokens nor money: its row has none, and no 0."""
    frame = lab.evals.import_runs_sync(written(tmp_path / "gpt-4o-airline.json", [TAU])).frame
    assert frame[["tokens_in", "tokens_out", "cost_estimate"]].isna().all(axis=None)
    sample = {key: value for key, value in SAMPLE.items() if key not in ("model_usage", "events")}
    log = written(tmp_path / "log.json", [{**LOG, "samples": [sample]}])
    frame = lab.evals.import_runs_sync(log).frame
    assert frame[["tokens_in", "tokens_out", "cost_estimate"]].isna().all(axis=None)


def test_a_folder_of_the_sdk_is_read_in_order_with_its_state(tmp_path: Path) -> None:
    """Events are named by number and a random id, of which only the number orders them; `base_state.json` beside
    the folder has the model and what was used.
    """
    folder = tmp_path / "conversation" / "events"
    ids = ("9f", "00", "a1", "7", "33", "2b", "e0", "15")
    for number, (event, ending) in enumerate(zip(OPENHANDS_SDK, ids, strict=True)):
        written(folder / f"event-{number:05d}-{ending * 8}.json", [event])
    tokens = {"prompt_tokens": 40, "completion_tokens": 6, "cache_read_tokens": 10}
    metrics = {"accumulated_cost": 0.25, "accumulated_token_usage": tokens}
    state = {"agent": {"llm": {"model": "openai/m"}}, "stats": {"usage_to_metrics": {"agent": metrics}}}
    written(folder.parent / "base_state.json", [state])
    with Lab(home=tmp_path / "home", env={}) as lab:
        found = lab.evals.import_runs_sync(folder.parent)
        assert (len(found.runs), found.broken) == (1, ())
        run = lab.get(found.runs[0])
        answers = [event.text for event in run.events() if isinstance(event, ModelAnswered)]
        assert answers == ["I look.", "I change it.", "It is sum now."]
        began = run.events()[0]
        assert isinstance(began, RunStarted) and began.model == "openai/m"
        assert (run.usage.tokens_in, run.usage.tokens_out, run.usage.cost_usd) == (40, 6, 0.25)


def test_imported_runs_are_listed_unless_they_are_trials(tmp_path: Path, lab: Lab) -> None:
    """A run of ATIF, of SWE-agent or of a chat is one of the user's; a trial is with its suite."""
    for name in ("trajectory.json", "swe.traj", "mini-2.traj.json", "messages.json"):
        written(tmp_path / name, RECORDED[name][1])
    written(tmp_path / "gpt-4o-airline.json", [TAU])
    found = lab.evals.import_runs_sync(tmp_path)
    listed = set(lab.runs().index)
    trials = {row.result["run"] for result in found.results.values() for row in result.rows}
    assert listed == set(found.runs) - trials and len(trials) == 1


def test_files_of_other_tools_are_named_with_the_way_to_bring_them(tmp_path: Path, lab: Lab) -> None:
    """By name or by content: whose it is and what to do, before the list of formats that are read."""
    path = written(tmp_path / "results.json", [{"evalId": "e", "results": {"results": []}}])
    with pytest.raises(
        UsageError, match=r"a file of promptfoo: results .* import-suite for its configuration"
    ):
        lab.evals.import_runs_sync(path)
    path = written(tmp_path / "all_preds.jsonl", [{"instance_id": "a", "model_patch": ""}])
    with pytest.raises(UsageError, match="a file of SWE-bench: predictions: import the trajectories"):
        lab.evals.import_runs_sync(path)
    assert len({tool.title for tool in OTHER_TOOLS}) > 15 and all(tool.way for tool in OTHER_TOOLS)
    assert name_other_tool(Path("x.json"), {"weights": [1]}) == ""


def test_what_the_whole_used_is_known_in_parts() -> None:
    """A cost without tokens is a cost; half of the tokens is no sum."""
    assert WholeUsage(tokens_in=3, cost_usd=0.5).metrics() == {"cost_estimate": 0.5, "unpriced_calls": 0.0}
    assert WholeUsage().as_json() == {} and OTLP
