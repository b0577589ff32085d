"""Records that are broken in any way cost themselves alone, and are told with their place: every importer,
damaged at random.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_formats import RECORDED

from kestrel_lab import Lab
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.json_fields import LONGEST_LINE

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
CHAT = {
    "id": "k1",
    "model": "m",
    "created": 1_700_000_000,
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "cost": 0.1},
    "tools": [
        {
            "type": "function",
            "function": {"name": "add", "description": "d", "parameters": {"type": "object"}},
        }
    ],
    "metadata": {"scenario": "s"},
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Add"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ],
    "choices": [{"message": {"role": "assistant", "content": "1"}}],
}
DOJO = {
    "pipeline_name": "p",
    "suite_name": "banking",
    "user_task_id": "u1",
    "injection_task_id": "i1",
    "attack_type": "direct",
    "utility": True,
    "security": False,
    "duration": 1.5,
    "error": None,
    "injections": {},
    "messages": [
        {"role": "user", "content": [{"type": "text", "content": "Pay"}]},
        {
            "role": "assistant",
            "content": "I pay",
            "tool_calls": [{"function": "pay", "args": {"to": "x"}, "id": "c1"}],
        },
        {"role": "tool", "content": "paid", "tool_call_id": "c1", "error": None},
    ],
}
SAMPLE = {
    "id": "a",
    "epoch": 1,
    "uuid": "z",
    "input": "Q",
    "target": "A",
    "total_time": 1.0,
    "working_time": 1.0,
    "attachments": {},
    "scores": {
        "match": {"value": "C", "explanation": "e"},
        "grade": {"value": {"length": 120, "correct": True}},
    },
    "model_usage": {"m": {"total_tokens": 5, "output_tokens": 2, "total_cost": 0.1}},
    "messages": [
        {"id": "1", "role": "user", "content": "Q"},
        {
            "id": "2",
            "role": "assistant",
            "content": [{"type": "text", "text": "hm"}],
            "tool_calls": [{"id": "c", "function": "f", "arguments": {}}],
        },
        {"id": "3", "role": "tool", "content": "r", "tool_call_id": "c"},
        {"id": "4", "role": "assistant", "content": "A"},
    ],
    "events": [
        {
            "event": "model",
            "completed": "2026-01-01T00:00:00+00:00",
            "working_time": 0.5,
            "tools": [{"name": "f", "description": "d", "parameters": {}}],
            "output": {
                "choices": [{"message": {"id": "2"}}],
                "usage": {"total_tokens": 5, "output_tokens": 2, "total_cost": 0.1},
            },
        },
        {"event": "tool", "id": "c", "completed": "2026-01-01T00:00:01+00:00", "working_time": 0.1},
    ],
}
LOG = {
    "version": 2,
    "status": "success",
    "eval": {"task": "t", "model": "openai/m", "model_generate_config": {"temperature": 0}, "eval_id": "e"},
    "results": {"scores": [{"name": "match", "metrics": {"accuracy": {"value": 1}}}]},
    "samples": [SAMPLE],
}
CLAUDE = [
    {
        "type": "user",
        "uuid": "u1",
        "parentUuid": None,
        "sessionId": "s",
        "timestamp": "2026-11-01T10:00:00Z",
        "message": {"role": "user", "content": "Look"},
    },
    {
        "type": "assistant",
        "uuid": "a1",
        "parentUuid": "u1",
        "sessionId": "s",
        "message": {
            "id": "m1",
            "model": "c",
            "usage": {"input_tokens": 1, "output_tokens": 2},
            "content": [
                {"type": "text", "text": "I look"},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
    },
    {
        "type": "user",
        "uuid": "r1",
        "parentUuid": "a1",
        "sessionId": "s",
        "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "f"}]},
    },
]
CODEX = [
    {
        "timestamp": "2026-11-01T10:00:00Z",
        "type": "session_meta",
        "payload": {"id": "x", "cwd": "/", "base_instructions": {"text": "hi"}},
    },
    {"type": "turn_context", "payload": {"model": "g"}},
    {
        "type": "response_item",
        "payload": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look"}]},
    },
    {
        "type": "response_item",
        "payload": {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c"},
    },
    {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c", "output": "f"}},
    {
        "type": "event_msg",
        "payload": {
            "type": "token_count",
            "info": {"last_token_usage": {"input_tokens": 1, "output_tokens": 2}},
        },
    },
]
ROUTES = [
    {"prompt": "p", "task": "t", "scores": {"a": 1, "b": 0.5}, "costs": {"a": 0.1}},
    {"prompt": "q", "scores": {"a": 0, "b": 1}},
]


def _fact(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}


def _span(known: str, name: str, *facts: dict[str, Any]) -> dict[str, Any]:
    times = {"startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000001000000000"}
    attributes = [_fact("gen_ai.operation.name", name), *facts]
    return {
        "traceId": "t",
        "spanId": known,
        "parentSpanId": "" if known == "a" else "a",
        **times,
        "attributes": attributes,
        "status": {},
        "events": [],
    }


OTEL = [
    {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            _span("a", "invoke_agent", _fact("gen_ai.agent.name", "n")),
                            _span(
                                "b",
                                "chat",
                                _fact(
                                    "gen_ai.input.messages",
                                    [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
                                ),
                                _fact(
                                    "gen_ai.output.messages",
                                    [
                                        {
                                            "role": "assistant",
                                            "parts": [
                                                {"type": "tool_call", "id": "c", "name": "f", "arguments": {}}
                                            ],
                                        }
                                    ],
                                ),
                                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "3"}},
                            ),
                            _span(
                                "c",
                                "execute_tool",
                                _fact("gen_ai.tool.call.id", "c"),
                                _fact("gen_ai.tool.call.result", "r"),
                            ),
                        ]
                    }
                ]
            }
        ]
    }
]

FORMATS: dict[str, list[Any]] = {
    "chat.jsonl": [CHAT],
    "dojo.json": [DOJO],
    "log.json": [LOG],
    "claude.jsonl": CLAUDE,
    "codex.jsonl": CODEX,
    "otel.jsonl": OTEL,
    "routes.jsonl": ROUTES,
}
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1e308,
    float("inf"),
    float("nan"),
    10**30,
    "",
    "x",
    "\ud800",
    "2026-13-45",
    [],
    [None],
    [[]],
    {},
    {"a": 1},
    {"": None},
    [{}],
    ["a", 1],
    {"type": "text"},
    {"role": "exit"},
]


def damage(value: Any, dice: random.Random) -> Any:
    """Change one place of a value: drop it, swap its type, repeat it, or give it another name."""
    places: list[tuple[Any, Any]] = []

    def walk(one: Any) -> None:
        for key, part in one.items() if isinstance(one, dict) else enumerate(one):
            places.append((one, key))
            if isinstance(part, dict | list):
                walk(part)

    walk(value if isinstance(value, dict | list) else ())
    if not places:
        return value
    holder, key = dice.choice(places)
    match dice.randrange(4):
        case 0:
            del holder[key]
        case 1 | 2:
            holder[key] = copy.deepcopy(dice.choice(ODD))
        case _:
            if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            else:
                holder[f"{key}x"] = holder.pop(key)
    return value


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_records_raise_nothing_raw(tmp_path: Path, name: str) -> None:
    """Dropped keys, swapped types and cut lines: what cannot be read is told, and the sound file beside it is
    always imported.
    """
    import_damaged(tmp_path, name, FORMATS[name], 250)


@pytest.mark.long
@pytest.mark.parametrize("name", RECORDED)
def test_damaged_trajectories_raise_nothing_raw(tmp_path: Path, name: str) -> None:
    """The same of the forms of other agents and of traces."""
    import_damaged(tmp_path, name, RECORDED[name][1], 12)


def import_damaged(tmp_path: Path, name: str, lines: list[Any], tries: int) -> None:
    """Import a recording so often, damaged each time in another way."""
    dice = random.Random(f"bad {name}")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "sound.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "Hi"}]})
    )
    with Lab(home=tmp_path / "home", env={}) as lab:
        runs: set[str] = set()
        for _ in range(tries):
            records = copy.deepcopy(lines)
            for _ in range(dice.choice([1, 1, 2, 5])):
                records = (
                    damage(records, dice)
                    if len(records) > 1 or dice.random() < 0.02
                    else [damage(records[0], dice)]
                    if records
                    else records
                )
            text = "\n".join(json.dumps(one) for one in records)
            content = text.encode("utf-8")
            if dice.random() < 0.2:
                content = content[: dice.randrange(len(content) + 1)]
            if dice.random() < 0.1:
                content = content.replace(b"e", b"\xff", 1)
            if dice.random() < 0.2:  # as other programs write files
                content = dice.choice([b"\xef\xbb\xbf", b""]) + content.replace(b"\n", b"\r\n")
            (tmp_path / "in" / name).write_bytes(content)
            found = lab.evals.import_runs_sync(tmp_path / "in")
            assert found.runs or found.broken
            runs.update(found.runs)
            assert "sound.jsonl" not in repr([str(one) for one in found.broken])
            repr(found), found.table(), found.frame, found.summary()
        for known in runs:
            run = lab.get(known)
            assert run.events()
            repr(run), run._repr_html_()


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_whole_has_nothing_broken(tmp_path: Path, name: str, lab: Lab) -> None:
    """The records that are damaged above are read without a complaint as they are."""
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(one) for one in FORMATS[name]))
    found = lab.evals.import_runs_sync(path)
    assert found.broken == ()
    assert len(found.runs) + len(found.frame) >= 1


CASES: list[tuple[str, Callable[[], dict[str, Any]], str]] = [
    (
        "a role of another tool",
        lambda: {**CHAT, "messages": [*CHAT["messages"], {"role": "exit", "content": "submitted"}]},
        "messages[4]: left out: a message has the role 'exit'",
    ),
    (
        "an answer to no call",
        lambda: {
            **CHAT,
            "messages": [CHAT["messages"][1], {"role": "tool", "tool_call_id": "gone", "content": "?"}],
        },
        "messages[1]: left out: it answers the call 'gone', which no message before it makes",
    ),
    ("a choice without a message", lambda: {**CHAT, "choices": [{}]}, "messages[4]: left out: TypeError"),
    ("fewer choices", lambda: {**CHAT, "choices": []}, ""),
]


@pytest.mark.parametrize(("value", "told"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_bad_message_costs_itself(
    tmp_path: Path, value: Callable[[], dict[str, Any]], told: str, lab: Lab
) -> None:
    """The conversation is imported without it, its place is told, and the run says what was left out."""
    path = tmp_path / "chats.jsonl"
    path.write_text(
        json.dumps(value()) + "\n" + json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n"
    )
    found = lab.evals.import_runs_sync(path)
    assert len(found.runs) == 2
    assert [told in str(one) for one in found.broken] == ([True] if told else [])
    assert all("chats.jsonl:1" in str(one) for one in found.broken)
    (started,) = [event for event in lab.get(found.runs[0]).events() if event.type == "run_started"]
    assert [told in one for one in started.imported.get("left_out", [])] == ([True] if told else [])


def test_one_bad_line_of_routing_data_costs_itself(tmp_path: Path, lab: Lab) -> None:
    """A prompt with fewer scores, one that is no text, a line that was cut: the other prompts are rows."""
    path = tmp_path / "routes.jsonl"
    path.write_bytes(
        b'{"prompt": "a", "strong": 1, "weak": 0}\n{"prompt": "b", "strong": 1}\n{"prompt": "c", '
        b'"strong": 1, "weak": "no"}\n'
        b'{"prompt": "\xff", "strong": 1, "weak": 0}\n{"prompt": "d", "strong": 0, "weak": '
        b'1}\n{"prompt": "e", "str'
    )
    found = lab.evals.import_runs_sync(path)
    assert found.frame["prompt"].tolist() == ["a", "a", "d", "d"]
    assert [str(one).split(":")[1] for one in found.broken] == ["2", "3", "4", "6"]


SESSION = {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "Go"}}
PROMPT = {"prompt": "p", "strong": 1, "weak": 0}
LINES: dict[str, tuple[list[dict[str, Any]], int]] = {
    "chat": ([{**CHAT, "id": "k1"}, {**CHAT, "id": "k2"}], 2),
    "claude-code": ([{**SESSION, "uuid": "u1"}, {**SESSION, "uuid": "u2", "parentUuid": "u1"}], 1),
    "routing": ([PROMPT, {**PROMPT, "prompt": "q"}], 2),
}
"""By reader of lines, two lines and how many runs, or prompts, they make."""


@pytest.mark.parametrize("ending", [b"\n", b""], ids=["between", "at-the-end"])
@pytest.mark.parametrize("form", LINES)
def test_a_line_that_is_too_long_costs_itself(tmp_path: Path, lab: Lab, form: str, ending: bytes) -> None:
    """A line over the limit is named with its number, and never parsed; those around it are imported, in each
    reader of lines, and also where the file ends within it.
    """
    values, expected = LINES[form]
    first, second = (json.dumps(value).encode() + b"\n" for value in values)
    too_long = json.dumps({**values[0], "note": "x" * (2 * LONGEST_LINE + 1)}).encode() + ending
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"".join([first, too_long, second] if ending else [first, second, too_long]))
    imported = lab.evals.import_runs_sync(path)
    place = f"{path.name}:{2 if ending else 3}: not read: the line is longer than 32 MB"
    assert [str(part).endswith("make several of its record") for part in imported.broken] == [True]
    assert place in str(imported.broken[0])
    count = len(imported.runs) if imported.data is None else imported.data["prompt"].nunique()
    assert count == expected


def test_logs_with_and_without_epochs_are_one_table(tmp_path: Path, lab: Lab) -> None:
    """Suites that were tried once have a dash where others have pass@k."""
    once = {**LOG, "eval": {"task": "once", "model": "openai/m"}}
    more = {
        **LOG,
        "eval": {"task": "more", "model": "openai/m"},
        "samples": [{**SAMPLE, "uuid": f"z{n}", "epoch": n} for n in (1, 2)],
    }
    for name, value in (
        ("a-once", once),
        ("b-more", more),
        ("c-once", {**once, "eval": {"task": "also once", "model": "openai/m"}}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    found = lab.evals.import_runs_sync(tmp_path)
    headings, rows = found.table()
    assert headings.index("pass@2") < headings.index("trials")
    assert [dict(zip(headings, row, strict=True))["pass@2"] for row in rows] == ["–", "100 %", "–"] or rows[
        1
    ][headings.index("pass@2")] != "–"
    assert len(found.summary()) == 3
    repr(found)


def test_several_scores_of_one_scorer_stay_apart(tmp_path: Path) -> None:
    """A length is no verdict: each score has its column, and the trial passes by the one that is a verdict;
    without one that is unknown.
    """

    def value(score: Any, known: str) -> dict[str, Any]:
        return {**SAMPLE, "id": known, "uuid": known, "scores": {"grade": {"value": score}}}

    samples = [
        value({"length": 120, "correct": True}, "right"),
        value({"length": 90, "correct": "I"}, "wrong"),
        value({"length": 7, "tone": 0.5}, "unknown"),
        value({"style": True, "correct": False}, "two verdicts"),
        value({"only": 1}, "one"),
    ]
    (tmp_path / "log.json").write_text(json.dumps({**LOG, "samples": samples}))
    frame = (
        Lab(home=tmp_path / "home", env={})
        .evals.import_runs_sync(tmp_path / "log.json")
        .frame.set_index("scenario")
    )
    assert frame["outcome"].to_dict() == {
        "right": "pass",
        "wrong": "fail",
        "unknown": "error",
        "two verdicts": "error",
        "one": "pass",
    }
    assert frame["score.grade.length"].tolist()[:3] == [120, 90, 7]
    assert frame["score.grade.correct"].tolist()[:2] == [1, 0]
    assert (frame["score"]["right"], frame["score"]["wrong"]) == (1, 0)
    assert (
        "gives several scores (length, tone), and no one of them alone is a verdict"
        in frame["reason"]["unknown"]
    )


def test_paths_may_be_in_a_list(tmp_path: Path, lab: Lab) -> None:
    """One by one, in a list, or both; an empty list is refused in words."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": name}]}))
    assert (
        len(
            lab.evals.import_runs_sync(
                [tmp_path / "a.jsonl", str(tmp_path / "b.jsonl")], tmp_path / "c.jsonl"
            ).runs
        )
        == 3
    )
    for nothing in ((), ([],)):
        with pytest.raises(UsageError, match="name a file or a folder to import"):
            lab.evals.import_runs_sync(*nothing)
