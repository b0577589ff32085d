"""Sessions of Claude Code and Codex and OpenTelemetry traces become runs.

The lines are of the programs' forms and written for these tests.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab import Lab, Scenario, Suite, check
from kestrel_lab.cli.main import main
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelAnswered, Prompted, ToolAnswered, ToolCalled
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel


def written(path: Path, lines: list[Any]) -> Path:
    """A file of JSON lines; a text stands for itself."""
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines),
        encoding="utf-8",
    )
    return path


def claude(
    known: str,
    parent: str | None,
    content: Any,
    *,
    kind: str = "user",
    answer: str = "",
    second: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """A line of a session of Claude Code."""
    message: dict[str, Any] = {"role": kind, "content": content}
    if kind == "assistant":
        usage = {
            "input_tokens": 3,
            "cache_read_input_tokens": 40,
            "cache_creation_input_tokens": 7,
            "output_tokens": 11,
        }
        message |= {"id": answer, "model": "claude-model", "usage": usage}
    return {
        "type": kind,
        "uuid": known,
        "parentUuid": parent,
        "isSidechain": False,
        "sessionId": "s-1",
        "cwd": "/src/shop",
        "version": "2.1.0",
        "timestamp": f"2026-11-01T10:00:{second:02}.000Z",
        "message": message,
        **more,
    }


def use(call: str, command: str) -> dict[str, Any]:
    """A part of an answer that asks for a command."""
    return {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": command}}


def result(call: str, text: Any, *, failed: bool = False) -> list[dict[str, Any]]:
    """What a command gave."""
    return [{"type": "tool_result", "tool_use_id": call, "content": text, "is_error": failed}]


SESSION = [
    {"type": "summary", "summary": "Prices", "leafUuid": "x"},
    claude(
        "u0", None, "<local-command-caveat>not for the model to answer</local-command-caveat>", isMeta=True
    ),
    claude("u1", "u0", "Which files name a price?", second=1),
    claude(
        "a1",
        "u1",
        [{"type": "thinking", "thinking": "…", "signature": "z"}, {"type": "text", "text": "I look."}],
        kind="assistant",
        answer="m1",
        second=2,
    ),
    claude("a2", "a1", [use("t1", "grep -l price *")], kind="assistant", answer="m1", second=3),
    claude("a3", "a2", [use("t2", "ls gone")], kind="assistant", answer="m1", second=3),
    claude("r1", "a2", result("t1", [{"type": "text", "text": "shop.py"}]), second=4),
    claude("r2", "a3", result("t2", "no such folder", failed=True), second=5),
    claude("a4", "r2", [{"type": "text", "text": "Only shop.py."}], kind="assistant", answer="m2", second=6),
    claude("u2", "a4", "And tax?", second=7),
    claude("a5", "u2", [{"type": "text", "text": "None."}], kind="assistant", answer="m3", second=8),
]


def texts(run: Run) -> list[tuple[str, str]]:
    """What was said in a run, in order."""
    said = {Prompted: "user", ModelAnswered: "model", ToolAnswered: "tool"}
    return [
        (said[type(event)], event.text)
        for event in run.events()
        if isinstance(event, Prompted | ModelAnswered | ToolAnswered)
    ]


def test_a_session_of_claude_code_is_a_run(tmp_path: Path) -> None:
    """An answer on several lines is one turn with its calls; errors, times, tokens and the session's facts
    are kept; a fork goes on.
    """
    lab = Lab(home=tmp_path / "home")
    found = lab.evals.import_runs_sync(written(tmp_path / "s.jsonl", SESSION))
    assert (found.headline, found.broken) == ("1 run imported", ())
    run = lab.get(found.runs[0])
    assert run.goal == "Which files name a price?"
    assert texts(run) == [
        ("model", "I look."),
        ("tool", "shop.py"),
        ("tool", "no such folder"),
        ("model", "Only shop.py."),
        ("user", "And tax?"),
        ("model", "None."),
    ]
    calls = [event for event in run.events() if isinstance(event, ToolCalled)]
    assert [(call.tool, call.args["command"]) for call in calls] == [
        ("Bash", "grep -l price *"),
        ("Bash", "ls gone"),
    ]
    answers = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert [answer.error is not None for answer in answers] == [False, True]
    assert (run.usage.tokens_in, run.usage.tokens_out, run.usage.model_calls) == (150, 33, 3)
    assert run.usage.tokens_cached == sum(
        line["message"]["usage"].get("cache_read_input_tokens", 0)
        for line in {
            line["message"].get("id"): line for line in SESSION if "usage" in line.get("message", {})
        }.values()
    )
    began = run.events()[0]
    assert began.imported["cwd"] == "/src/shop" and "local-command-caveat" in began.system  # type: ignore[union-attr]

    async def forked() -> Run:
        async with Lab(home=tmp_path / "home", model="none") as again:
            at = next(n for n, event in enumerate(run.events(), 1) if isinstance(event, Prompted))
            return await again.fork(run.id, at=at, model=ScriptedModel(["", "", "Shop only."]))

    assert asyncio.run(forked()).answer == "Shop only."
    assert lab.evals.import_runs_sync(tmp_path / "s.jsonl").added == 0


def test_branches_and_sub_agents_of_a_session_are_runs(tmp_path: Path, lab: Lab) -> None:
    """Going back to an earlier message leaves a branch, which is kept; a sub-agent's lines are a conversation
    of their own.
    """
    back = [
        claude("u3", "a4", "And stock?", second=9),
        claude("b1", "u3", [{"type": "text", "text": "stock.py"}], kind="assistant", answer="m4", second=10),
        claude("c1", None, "Count the files.", isSidechain=True, second=11),
        claude(
            "c2",
            "c1",
            [{"type": "text", "text": "Nine."}],
            kind="assistant",
            answer="m5",
            isSidechain=True,
            second=12,
        ),
    ]
    runs = [
        lab.get(one) for one in lab.evals.import_runs_sync(written(tmp_path / "s.jsonl", SESSION + back)).runs
    ]
    assert [(run.goal, run.answer) for run in runs] == [
        ("Which files name a price?", "None."),
        ("Which files name a price?", "stock.py"),
        ("Count the files.", "Nine."),
    ]
    assert [text for _, text in texts(runs[1])] == [
        "I look.",
        "shop.py",
        "no such folder",
        "Only shop.py.",
        "And stock?",
        "stock.py",
    ]


def codex(kind: str, payload: dict[str, Any], second: int = 0) -> dict[str, Any]:
    """A line of a rollout file of Codex."""
    return {"timestamp": f"2026-11-01T10:00:{second:02}.000Z", "type": kind, "payload": payload}


def item(kind: str, **more: Any) -> dict[str, Any]:
    """An item of the conversation."""
    return codex("response_item", {"type": kind, **more})


def spoken(role: str, text: str) -> dict[str, Any]:
    """A message."""
    return item(
        "message",
        role=role,
        content=[{"type": "output_text" if role == "assistant" else "input_text", "text": text}],
    )


COUNT = codex(
    "event_msg",
    {"type": "token_count", "info": {"last_token_usage": {"input_tokens": 20, "output_tokens": 5}}},
)
ROLLOUT = [
    codex(
        "session_meta",
        {
            "id": "r-1",
            "cwd": "/src/shop",
            "cli_version": "0.169.0",
            "base_instructions": {"text": "Be brief."},
        },
    ),
    codex("turn_context", {"model": "gpt-model"}),
    spoken("user", "<environment_context>\n<cwd>/src/shop</cwd>\n</environment_context>"),
    spoken("user", "Which files name a price?"),
    codex("event_msg", {"type": "user_message", "message": "Which files name a price?"}),
    item("reasoning", encrypted_content="…"),
    spoken("assistant", "I look."),
    item("function_call", name="exec_command", arguments='{"cmd": "grep -l price *"}', call_id="c1"),
    COUNT,
    item("function_call_output", call_id="c1", output="shop.py"),
    item("custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c2"),
    item("custom_tool_call_output", call_id="c2", output={"content": "refused", "success": False}),
    spoken("assistant", "Only shop.py."),
    COUNT,
]


def test_a_rollout_of_codex_is_a_run(tmp_path: Path, lab: Lab) -> None:
    """Its items are the conversation, its events are not told twice; tokens belong to the answers before
    them.
    """
    run = lab.get(lab.evals.import_runs_sync(written(tmp_path / "rollout.jsonl", ROLLOUT)).runs[0])
    assert (run.goal, run.answer, run.report.model) == (
        "Which files name a price?",
        "Only shop.py.",
        "gpt-model (imported)",
    )
    assert [text for _, text in texts(run)] == ["I look.", "shop.py", "", "refused", "Only shop.py."]
    calls = [event for event in run.events() if isinstance(event, ToolCalled)]
    assert [(call.tool, call.args) for call in calls] == [
        ("exec_command", {"cmd": "grep -l price *"}),
        ("apply_patch", {"input": "*** Begin Patch"}),
    ]
    assert (run.usage.tokens_in, run.usage.tokens_out, run.usage.unmetered) == (40, 10, 1)


def span(
    name: str, known: str, parent: str, second: int, *, failed: str = "", **facts: Any
) -> dict[str, Any]:
    """A span in OTLP's JSON form."""

    def held(value: Any) -> dict[str, Any]:
        return (
            {"intValue": str(value)}
            if isinstance(value, int)
            else {"stringValue": value if isinstance(value, str) else json.dumps(value)}
        )

    told = [{"key": f"gen_ai.{key.replace('__', '.')}", "value": held(value)} for key, value in facts.items()]
    times = {"startTimeUnixNano": f"{second}000000000", "endTimeUnixNano": f"{second + 2}000000000"}
    status = {"status": {"code": 2, "message": failed}} if failed else {}
    return {
        "traceId": "t1",
        "spanId": known,
        "parentSpanId": parent,
        "name": name,
        "attributes": told,
        **times,
        **status,
    }


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    """What an exporter sends."""
    return {
        "resourceSpans": [
            {"resource": {"attributes": []}, "scopeSpans": [{"scope": {"name": "t"}, "spans": list(spans)}]}
        ]
    }


ASKED = {"role": "user", "parts": [{"type": "text", "content": "Which files name a price?"}]}
CALLS = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "c1", "name": "grep", "arguments": {"pattern": "price"}}],
    "finish_reason": "tool_call",
}
GAVE = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "shop.py"}]}
SAID = {"role": "assistant", "parts": [{"type": "text", "content": "Only shop.py."}], "finish_reason": "stop"}
USED = {"usage__input_tokens": 9, "usage__output_tokens": 4, "response__model": "gpt-model"}
SPANS = [
    span(
        "chat",
        "02",
        "01",
        100,
        operation__name="chat",
        input__messages=[ASKED],
        output__messages=[CALLS],
        **USED,
    ),
    span(
        "execute_tool grep",
        "03",
        "01",
        103,
        operation__name="execute_tool",
        tool__name="grep",
        tool__call__id="c1",
    ),
    span(
        "chat",
        "04",
        "01",
        106,
        operation__name="chat",
        input__messages=[ASKED, CALLS, GAVE],
        output__messages=[SAID],
        **USED,
    ),
    span("invoke_agent shop", "01", "", 99, operation__name="invoke_agent", agent__name="shop"),
]


@pytest.mark.parametrize("lines", [True, False])
def test_a_trace_is_a_run(tmp_path: Path, lines: bool, lab: Lab) -> None:
    """Each model call adds what is new in its messages; times and tokens are those of the spans, however the
    file is laid out.
    """
    path = tmp_path / ("trace.jsonl" if lines else "trace.json")
    if lines:
        written(path, [request(SPANS[2], SPANS[3]), request(*SPANS[:2])])
    else:
        path.write_text(json.dumps(request(*SPANS), indent=2))
    run = lab.get(lab.evals.import_runs_sync(path).runs[0])
    assert (run.goal, run.answer, run.usage.tokens, run.usage.model_calls) == (
        "Which files name a price?",
        "Only shop.py.",
        26,
        2,
    )
    (answer,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert (answer.text, answer.seconds) == ("shop.py", 2.0)
    assert run.events()[0].imported["agent"] == "shop"  # type: ignore[union-attr]


def test_a_trace_without_messages_says_what_to_do(tmp_path: Path, lab: Lab) -> None:
    """Most instrumentations record no content unless they are told to."""
    bare = request(span("chat", "02", "", 100, operation__name="chat", **USED))
    found = lab.evals.import_runs_sync(written(tmp_path / "t.jsonl", [bare, *map(request, SPANS)]))
    assert len(found.runs) == 1 and "record content" in str(found.broken[0])


@pytest.mark.parametrize("name", ["traceId", "spanId", "parentSpanId"])
def test_an_id_that_is_no_text_loses_its_span_alone(tmp_path: Path, name: str, lab: Lab) -> None:
    """It is named with its line; the other spans are a run. A list of paths is as good as paths."""
    odd = request({**SPANS[0], name: {"a": 1}})
    path = written(tmp_path / "t.jsonl", [odd, request(*SPANS)])
    found = lab.evals.import_runs_sync([path])
    assert len(found.runs) == 1
    assert [str(one).partition(": ")[2] for one in found.broken] == [
        "no span (TypeError: an id is a text, not {'a': 1})"
    ]
    with pytest.raises(UsageError, match="import_runs takes paths of files and folders, not 3"):
        lab.evals.import_runs_sync(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "lines", "at"), [("claude-code", SESSION, 5), ("codex", ROLLOUT, 8)])
def test_a_bad_line_is_named_and_loses_no_other(
    name: str,
    lines: list[Any],
    at: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line is reported with file and number, and so is what refers to it; the rest is a run.

    `kestrel import` shows it.
    """
    monkeypatch.chdir(tmp_path)
    path = written(
        tmp_path / f"{name}.jsonl", [*lines[: at - 1], json.dumps(lines[at - 1])[:60], *lines[at:]]
    )
    with pytest.raises(SystemExit, match="0"):
        main(["import", str(path)])
    said = capsys.readouterr().out
    assert "1 run imported, 2 records could not be read" in said
    assert f"{path.name}:{at}: not JSON" in said and "which no line before it makes" in said
    lab = Lab()
    (known,) = lab.runs().index
    assert lab.get(known).answer == ("None." if name == "claude-code" else "Only shop.py.")


def test_sessions_are_scored_by_a_suite(tmp_path: Path, lab: Lab) -> None:
    """A session whose goal is a scenario's is judged by its checks and stands beside our own trials."""
    suite = Suite(
        name="shop",
        scenarios=(
            Scenario(
                id="price", goal="Which files name a price?", checks=(check(answer_contains="shop.py"),)
            ),
        ),
    )
    rollout = written(tmp_path / "rollout.jsonl", ROLLOUT)
    found = lab.evals.import_runs_sync(rollout, suite=suite)
    assert found.frame[["config", "outcome"]].to_numpy().tolist() == [["gpt-model", "pass"]]
