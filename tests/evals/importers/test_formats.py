"""Recordings of other tools, each in its form: what is said, called and answered is carried over, a file is known
by what is in it, and what only reads is no action.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_formats import (
    ANTHROPIC,
    ATIF,
    GEMINI_LINES,
    GOAL,
    LANGSMITH,
    MESSAGES,
    OPENHANDS,
    OPENHANDS_SDK,
    RECORDED,
    RUN,
    SWE,
    TAU,
)

from kestrel_lab import Lab
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.tool_kinds import command_line, tool_kind
from kestrel_lab.core.events.union import ModelAnswered, Prompted, RunStarted, ToolAnswered, ToolCalled
from kestrel_lab.evals.importers.formats import FORMATS, TITLES, read_file
from kestrel_lab.evals.importers.imported_run import Recording
from kestrel_lab.evals.importers.json_fields import Broken
from kestrel_lab.evals.importers.recorded_events import events_of
from kestrel_lab.runtime.run import Run

HOWTO = Path(__file__).parents[3] / "docs" / "howto" / "import.md"


def written(path: Path, lines: list[Any]) -> Path:
    """A file of JSON lines; one line is a file of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def imported(tmp_path: Path, name: str) -> Run:
    """The first run of a recording, imported without loss."""
    lab = Lab(home=tmp_path / "home", env={})
    found = lab.evals.import_runs_sync(written(tmp_path / name, RECORDED[name][1]))
    assert found.broken == ()
    return lab.get(found.runs[0])


@pytest.mark.parametrize("name", RECORDED)
def test_everything_that_was_said_and_done_is_carried_over(tmp_path: Path, name: str) -> None:
    """A look, a change by a command and the answer: the same run, whichever tool recorded it. The look changes
    nothing, the command is one, whatever the tools are called.
    """
    run = imported(tmp_path, name)
    events = run.events()
    began = events[0]
    assert isinstance(began, RunStarted) and began.imported["format"] == RECORDED[name][0]
    answers = [event for event in events if isinstance(event, ModelAnswered)]
    assert run.goal == GOAL and run.answer == "It is sum now."
    texts = [answer.text.split("\n\n```")[0].removesuffix("\n\n[image]") for answer in answers]
    one_turn = name == "trajectory.json"
    assert texts == (["I look."] if one_turn else ["I look.", "I change it."]) + ["It is sum now."]
    looked, changed = [event for event in events if isinstance(event, ToolCalled)]
    reads = "cat" if name.startswith("mini") else ""
    assert (looked.effect == "pure") == (not reads) and changed.effect == "opaque"
    assert command_line(changed.tool, changed.args) in (RUN, f"{RUN}\n")
    assert tool_kind(changed.tool, changed.args) == "command"
    results = [event for event in events if isinstance(event, ToolAnswered)]
    assert "total = 1" in results[0].text and [result.error for result in results] == [None, None]
    assert [action.kind for action in run.report.actions] == ["command"] * (2 if reads else 1)


def test_numbers_are_counted_alike_or_unknown(tmp_path: Path) -> None:
    """Tokens of the cache are among those read, thoughts among those written, in every format that tells them;
    a price that is not told is unknown.
    """
    counted = {}
    for name in ("trajectory.json", "session-1.json", "opencode.json", "langfuse.jsonl", "output.jsonl"):
        first = next(
            event for event in imported(tmp_path / name, name).events() if type(event) is ModelAnswered
        )
        counted[name] = (first.tokens_in, first.tokens_out, first.tokens_cached, first.cost_usd)
    assert counted == {
        "trajectory.json": (30, 4, 10, 0.25),
        "session-1.json": (30, 4, 10, None),
        "opencode.json": (30, 4, 10, 0.25),
        "langfuse.jsonl": (30, 4, 10, 0.25),
        "output.jsonl": (30, 4, 0, 0.25),
    }
    unknown = [
        event for event in imported(tmp_path / "x", "messages.json").events() if type(event) is ModelAnswered
    ]
    assert not any(event.metered for event in unknown) and {event.cost_usd for event in unknown} == {None}


@pytest.mark.parametrize("name", ["swe.traj", "opencode.json"])
def test_what_a_recording_compares_says_which_calls_changed_files(tmp_path: Path, name: str) -> None:
    """Diffs of SWE-agent's states and snapshots of OpenCode: a call after which nothing differs touched nothing."""
    results = [event for event in imported(tmp_path, name).events() if isinstance(event, ToolAnswered)]
    first, second = (result.touched for result in results)
    assert first == [] and second is not None and [file.rpartition("/")[2] for file in second] == ["shop.py"]


def test_trials_of_others_are_trials(tmp_path: Path, lab: Lab) -> None:
    """tau-bench's reward and OpenHands' report are scores, under the model and task of their files."""
    lost = [{**TAU[0], "reward": 0.0, "trial": 0}]
    tau = written(tmp_path / "gpt-4o-airline.json", [[*TAU, *lost]])
    found = lab.evals.import_runs_sync(tau, written(tmp_path / "output.jsonl", RECORDED["output.jsonl"][1]))
    frame = found.frame[["suite", "scenario", "config", "epoch", "outcome"]]
    assert sorted(map(tuple, frame.itertuples(index=False))) == [
        ("shops", "shop-1", "m", 1, "pass"),
        ("tau-bench:airline", "3", "gpt-4o", 1, "fail"),
        ("tau-bench:airline", "3", "gpt-4o", 2, "pass"),
    ]


def test_trials_of_harbor_have_their_rewards(tmp_path: Path, lab: Lab) -> None:
    """A folder of jobs: each trajectory is a trial with its task, agent and reward, and no other file is one."""
    for name, reward in (("shop__a", 1.0), ("shop__b", 0.0), ("shop__c", None)):
        trial = tmp_path / "jobs" / name
        result = {
            "task_name": "shop",
            "source": "shops",
            "agent_info": {"name": "helper"},
            "verifier_result": None if reward is None else {"rewards": {"reward": reward}},
            "exception_info": {"exception_type": "AgentTimeoutError"} if reward is None else None,
        }
        written(trial / "result.json", [result])
        written(trial / "config.json", [{}])
        written(trial / "verifier" / "ctrf.json", [{}])
        written(trial / "agent" / "trajectory.json", [{**ATIF, "session_id": name}])
    found = lab.evals.import_runs_sync(tmp_path / "jobs")
    frame = found.frame[["suite", "scenario", "config", "outcome"]]
    assert found.broken == () and sorted(map(tuple, frame.itertuples(index=False))) == [
        ("harbor:shops", "shop", "helper/m", "error"),
        ("harbor:shops", "shop", "helper/m", "fail"),
        ("harbor:shops", "shop", "helper/m", "pass"),
    ]


@pytest.mark.parametrize("events", [OPENHANDS, OPENHANDS_SDK])
def test_a_folder_of_events_is_one_session(tmp_path: Path, events: list[Any], lab: Lab) -> None:
    """Event 10 stands behind event 9, and other files beside the folder are their own."""
    folder = tmp_path / "in" / "sessions" / "s1" / "events"
    repeated = [*events, *({"kind": "PauseEvent", "source": "user"} for _ in range(4))]
    for number, event in enumerate(repeated):
        written(folder / f"{number}.json", [event])
    written(tmp_path / "in" / "messages.json", [MESSAGES])
    found = lab.evals.import_runs_sync(tmp_path / "in")
    assert (len(found.runs), found.broken) == (2, ())


def _only(path: Path) -> tuple[list[Recording], list[str]]:
    found = list(read_file(path))
    return [one for one in found if isinstance(one, Recording)], [
        str(one) for one in found if isinstance(one, Broken)
    ]


@pytest.mark.parametrize(
    ("name", "spoil", "place"),
    [
        ("swe.traj", lambda lines: lines[0]["history"].insert(3, {"role": "critic"}), "history[3]"),
        ("mini-2.traj.json", lambda lines: lines[0]["messages"].insert(2, "x"), "messages[2]"),
        ("openhands.json", lambda lines: lines[0].insert(2, {"observation": 1}), "[2]"),
        ("session-2.jsonl", lambda lines: lines.insert(4, {"id": "z", "type": "gemini"}), ""),
        (
            "opencode.json",
            lambda lines: lines[0]["messages"].insert(1, {"info": {"role": "user"}}),
            "messages[1]",
        ),
        (
            "langsmith.jsonl",
            lambda lines: lines.insert(1, {"run_type": "llm", "inputs": {}, "start_time": 3}),
            ":2",
        ),
        ("phoenix.json", lambda lines: lines[0]["data"].insert(1, {"span_kind": "LLM"}), "data[1]"),
        ("messages.jsonl", lambda lines: lines.insert(1, {"role": "critic"}), ":2"),
        ("trajectory.json", lambda lines: lines[0]["steps"].insert(2, {"source": "critic"}), "steps[2]"),
    ],
)
def test_one_bad_record_costs_itself(tmp_path: Path, name: str, spoil: Any, place: str) -> None:
    """It is told with its place, and everything else is there."""
    lines = json.loads(json.dumps(RECORDED[name][1]))
    spoil(lines)
    runs, broken = _only(written(tmp_path / name, lines))
    sound, _ = _only(written(tmp_path / "sound" / name, RECORDED[name][1]))
    told = [*broken, *(str(one) for run in runs for one in run.left_out)]
    assert [[m.text for m in run.messages] for run in runs] == [
        [m.text for m in run.messages] for run in sound
    ] or (name == "session-2.jsonl")
    assert len(told) == (0 if name == "session-2.jsonl" else 1) and all(place in one for one in told)


def test_an_unknown_file_is_told_what_is_known(tmp_path: Path, lab: Lab) -> None:
    """The error names the formats; a text that is no JSON is told so."""
    with pytest.raises(UsageError) as found:
        lab.evals.import_runs_sync(written(tmp_path / "x.json", [{"weights": [1, 2]}]))
    assert all(title.partition(":")[0] in str(found.value) for title in TITLES)
    (tmp_path / "y.json").write_text("print('x')")
    with pytest.raises(UsageError, match=r"not JSON.*formats that are known: .*ATIF"):
        lab.evals.import_runs_sync(tmp_path / "y.json")


def test_calls_that_go_on_are_one_conversation_and_others_are_not(tmp_path: Path) -> None:
    """Of a trace with a second agent, whose messages begin anew, two runs are made."""
    other = {
        **LANGSMITH[1],
        "id": "other",
        "inputs": {"messages": [{"role": "user", "content": "Which language is this?"}]},
        "outputs": {"choices": [{"message": {"role": "assistant", "content": "Python"}}]},
    }
    runs, broken = _only(written(tmp_path / "trace.jsonl", [*LANGSMITH, other]))
    assert not broken and [(run.goal, run.answer) for run in runs] == [
        (GOAL, "It is sum now."),
        ("Which language is this?", "Python"),
    ]


def test_what_was_taken_back_is_not_said(tmp_path: Path, lab: Lab) -> None:
    """A rewound message of Gemini CLI is gone, and a user's later one is a message of a user."""
    later = {"id": "e", "type": "user", "content": "And tax?", "timestamp": "2026-11-01T10:00:06.000Z"}
    found = lab.evals.import_runs_sync(written(tmp_path / "s.jsonl", [*GEMINI_LINES, later]))
    events = lab.get(found.runs[0]).events()
    assert [event.text for event in events if isinstance(event, Prompted)] == ["And tax?"]
    assert "Never mind" not in repr(events)


def test_declared_effects_stand_before_names(tmp_path: Path, lab: Lab) -> None:
    """A hint of the tool's server is believed, whatever the tool's name sounds like."""
    chat = {
        "messages": json.loads(
            json.dumps(MESSAGES).replace('"bash"', '"mcp__shop__renew"').replace("read_file", "get_x")
        ),
        "tools": [
            {"function": {"name": "mcp__shop__renew"}, "annotations": {"readOnlyHint": True}},
            {"function": {"name": "get_x"}, "annotations": {"readOnlyHint": False}},
        ],
    }
    run = lab.get(lab.evals.import_runs_sync(written(tmp_path / "c.jsonl", [chat])).runs[0])
    assert [(call.tool, call.effect) for call in run.events() if isinstance(call, ToolCalled)] == [
        ("get_x", "opaque"),
        ("mcp__shop__renew", "pure"),
    ]


def test_claims_are_checked_in_runs_of_others(tmp_path: Path, lab: Lab) -> None:
    """A run that only looked and says that it changed a file is marked; one that changed it is not."""
    liar = json.loads(json.dumps(MESSAGES[:4]))
    liar.append({"role": "assistant", "content": "I updated `shop.py`: total is sum now."})
    honest = [*MESSAGES[:-1], liar[-1]]
    concerns = []
    for name, messages in (("a.json", liar), ("b.json", honest)):
        run = lab.get(lab.evals.import_runs_sync(written(tmp_path / name, [messages])).runs[0])
        concerns.append([str(issue) for issue in run.report.concerns])
    assert "updated" in concerns[0][0] and concerns[1] == []


def test_an_edit_of_one_file_is_none_of_another(tmp_path: Path, lab: Lab) -> None:
    """The file that an editing tool names is the one that it changed, whatever the agent."""
    messages = [
        {"role": "user", "content": GOAL},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "1", "name": "Edit", "input": {"file_path": "/w/shop.py"}}
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "done"}]},
        {"role": "assistant", "content": "I updated `shop.py`. I updated `tax.py`."},
    ]
    run = lab.get(lab.evals.import_runs_sync(written(tmp_path / "a.json", [messages])).runs[0])
    assert [action.files for action in run.report.actions] == [("/w/shop.py",)]
    (concern,) = run.report.concerns
    assert "tax.py" in str(concern["what"])


def test_the_documentation_lists_what_is_read() -> None:
    """The table of the page has every format and no other."""
    rows = [line for line in HOWTO.read_text().splitlines() if line.startswith("| ") and "| ---" not in line][
        1:
    ]
    assert [f"{row.split('|')[1].strip()}: {row.split('|')[2].strip()}" for row in rows[: len(TITLES)]] == [
        title if ": " in title else f"{title}: –" for title in TITLES
    ]
    assert len({form.name for form in FORMATS}) == len(TITLES)


def test_lists_of_both_makers_are_read(tmp_path: Path) -> None:
    """A system message of a list is the run's, thoughts stay beside the text."""
    (openai,), _ = _only(written(tmp_path / "o.json", [MESSAGES]))
    (anthropic,), _ = _only(written(tmp_path / "a.json", [ANTHROPIC]))
    assert openai.system == "You help."
    assert [one.thinking for one in anthropic.messages if one.role == "assistant"] == ["", "sed does it", ""]
    assert SWE["environment"] == _only(written(tmp_path / "s.traj", [SWE]))[0][0].scenario


_CALLED = {"name": "add", "args": {"x": 1}, "id": "c1"}
_LANGCHAIN = [
    {"type": "human", "content": "Add"},
    {"type": "ai", "content": "", "tool_calls": [_CALLED]},
    {"type": "tool", "content": "1", "tool_call_id": "c1"},
    {"type": "ai", "content": "It is 1"},
]
_ITEMS = [
    {"role": "user", "content": "Add"},
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"x": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "1"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 1"}]},
]
_ANTHROPIC = [
    {"role": "user", "content": "Add"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"x": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "1"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "It is 1"}]},
]
_GEMINI = [
    {"role": "user", "parts": [{"text": "Add"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "add", "args": {"x": 1}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": 1}}]},
    {"role": "model", "parts": [{"text": "It is 1"}]},
]
_SERIALISED = [
    {"lc": 1, "id": ["langchain", "messages", f"{one['type']}Message"], "kwargs": one} for one in _LANGCHAIN
]


@pytest.mark.parametrize(
    "value",
    [
        _LANGCHAIN,
        [{"type": one["type"], "data": {k: v for k, v in one.items() if k != "type"}} for one in _LANGCHAIN],
        _SERIALISED,
        _ITEMS,
        _GEMINI,
        {"messages": _LANGCHAIN},
        {"model": "m", "system": "Be brief.", "messages": _ANTHROPIC},
        {"input": _ITEMS[:1], "output": _ITEMS[1:], "usage": {"input_tokens": 2, "output_tokens": 3}},
        {"contents": _GEMINI},
    ],
    ids=["flat", "data", "kwargs", "items", "parts", "langchain", "anthropic", "response", "gemini"],
)
def test_conversations_of_every_maker_are_the_same(tmp_path: Path, value: Any) -> None:
    """LangChain, Anthropic, Gemini and the items of OpenAI's responses, as a list or in an object."""
    path = tmp_path / "said.json"
    path.write_text(json.dumps(value))
    (found,), broken = _only(path)
    assert (broken, found.left_out, found.answer) == ([], (), "It is 1")
    assert [one.role for one in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert [(call.tool, call.args) for call in found.messages[1].calls] == [("add", {"x": 1})]
    assert found.messages[2].text == "1"


@pytest.mark.parametrize(
    ("tool", "answer", "refuted"),
    [
        ("send_money", "I created `summary.md`.", True),
        ("send_money", "I ran the tests.", True),
        ("send_money", "I paid the rent.", False),
        ("create_user", "I sent an email to Ann.", True),
        ("create_event", "I sent an invitation to Ann.", False),
        ("create_user", "I deleted the old account.", True),
        ("git_unstar", "I removed your star.", False),
        ("download_file", "I saved `summary.md`.", False),
        ("do_anything", "I created `summary.md` and sent it.", False),
        ("mcp__shop__send_money", "I created `summary.md`.", False),
        ("git_get_keys", "I added the key.", True),
        ("cart_total", "I added the shoes.", True),
    ],
)
def test_a_tool_excuses_what_its_name_may_mean(tmp_path: Path, tool: str, answer: str, refuted: bool) -> None:
    """Claims of an imported run are refuted unless a call may have done it: names that say something exclude the
    rest, names that say nothing exclude nothing.
    """
    calls = [{"id": "c1", "function": {"name": tool, "arguments": "{}"}}]
    said = [
        {"role": "user", "content": "Do it"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "assistant", "content": answer},
    ]
    (found,), _ = _only(written(tmp_path / "said.json", [said]))
    ended = next(event for _, event in events_of(found) if event.type == "run_finished")
    assert bool(ended.concerns) == refuted
