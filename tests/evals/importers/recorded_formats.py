"""Small recordings in the forms of other tools, written by hand: of one question, a look and a change."""

from __future__ import annotations

from typing import Any

GOAL = "Rename total to sum in shop.py"
LOOK = {"command": "view", "path": "/w/shop.py"}
RUN = "sed -i s/total/sum/ shop.py"

ATIF = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "trajectory_id": "t1",
    "agent": {
        "name": "helper",
        "version": "2",
        "model_name": "m",
        "extra": {"parser": "json"},
        "tool_definitions": [
            {
                "type": "function",
                "function": {"name": "peek", "description": "d", "parameters": {}},
                "annotations": {"readOnlyHint": True},
            }
        ],
    },
    "notes": "kept",
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "timestamp": "2026-11-01T10:00:00Z", "source": "user", "message": GOAL},
        {
            "step_id": 3,
            "timestamp": "2026-11-01T10:00:02Z",
            "source": "agent",
            "model_name": "m2",
            "message": [
                {"type": "text", "text": "I look."},
                {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}},
            ],
            "reasoning_content": "It is in shop.py.",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "peek", "arguments": {"path": "shop.py"}},
                {
                    "tool_call_id": "c2",
                    "function_name": "bash_command",
                    "arguments": {"keystrokes": f"{RUN}\n"},
                },
            ],
            "observation": {"results": [{"source_call_id": "c1", "content": "total = 1"}, {"content": "$"}]},
            "metrics": {
                "prompt_tokens": 30,
                "completion_tokens": 4,
                "cached_tokens": 10,
                "cost_usd": 0.25,
                "logprobs": [-0.5, -0.25],
            },
        },
        {"step_id": 4, "source": "system", "message": "Context was summarised."},
        {"step_id": 5, "source": "agent", "message": "It is sum now.", "is_copied_context": False},
    ],
    "final_metrics": {"total_prompt_tokens": 30, "total_steps": 5},
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": "t1/sub",
            "agent": {"name": "helper", "version": "2"},
            "steps": [
                {"step_id": 1, "source": "user", "message": "Count"},
                {"step_id": 2, "source": "agent", "message": "1"},
            ],
        }
    ],
}
SWE = {
    "environment": "swe_main",
    "trajectory": [
        {
            "action": "open shop.py",
            "observation": "total = 1",
            "response": "I look.",
            "execution_time": 0.1,
            "state": {"diff": ""},
        },
        {
            "action": RUN,
            "observation": "",
            "response": "I change it.",
            "execution_time": 0.2,
            "state": {
                "diff": "diff --git a/shop.py b/shop.py\n--- a/shop.py\n+++ b/shop.py\n@@ -1 +1 @@\n-a\n+b\n"
            },
        },
    ],
    "history": [
        {"role": "system", "content": "Use one command.", "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": "An example.", "agent": "main", "is_demo": True},
        {"role": "user", "content": GOAL, "agent": "main", "message_type": "observation"},
        {
            "role": "assistant",
            "content": "I look.",
            "action": "open shop.py",
            "agent": "main",
            "message_type": "action",
        },
        {"role": "user", "content": "total = 1", "agent": "main", "message_type": "observation"},
        {
            "role": "assistant",
            "content": "I change it.",
            "action": RUN,
            "agent": "main",
            "message_type": "action",
            "tool_calls": [
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "bash", "arguments": f'{{"command": "{RUN}"}}'},
                }
            ],
        },
        {
            "role": "tool",
            "content": "",
            "agent": "main",
            "tool_call_ids": ["c2"],
            "message_type": "observation",
        },
        {"role": "assistant", "content": "It is sum now.", "action": "", "agent": "main"},
    ],
    "info": {
        "exit_status": "submitted",
        "submission": "diff",
        "model_stats": {"instance_cost": 0.5, "tokens_sent": 90, "tokens_received": 8, "api_calls": 3},
    },
}
_BLOCK = "```mswea_bash_command\n%s\n```"
MINI_1 = {
    "trajectory_format": "mini-swe-agent-1",
    "info": {
        "exit_status": "Submitted",
        "submission": "diff",
        "mini_version": "1.9",
        "model_stats": {"instance_cost": 0.5, "api_calls": 3},
        "config": {"model": {"model_name": "m"}},
    },
    "messages": [
        {"role": "system", "content": "One command an answer."},
        {"role": "user", "content": GOAL},
        {"role": "assistant", "content": "I look.\n\n" + _BLOCK % "cat shop.py"},
        {"role": "user", "content": "<returncode>0</returncode>\n<output>total = 1</output>"},
        {"role": "assistant", "content": "I change it.\n\n" + _BLOCK % RUN},
        {"role": "user", "content": "<returncode>0</returncode>"},
        {"role": "assistant", "content": "It is sum now."},
    ],
}
MINI_2 = {
    "trajectory_format": "mini-swe-agent-1.1",
    "instance_id": "shop-1",
    "info": {
        "exit_status": "Submitted",
        "mini_version": "2.1",
        "model_stats": {"instance_cost": 0.5},
        "config": {"model": {"model_name": "m"}},
    },
    "messages": [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": GOAL},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "function": {"name": "bash", "arguments": '{"command": "cat shop.py"}'}}
            ],
            "extra": {
                "actions": [{"command": "cat shop.py", "tool_call_id": "c1"}],
                "cost": 0.25,
                "timestamp": 1_790_000_000.0,
                "response": {"model": "m", "usage": {"prompt_tokens": 30, "completion_tokens": 4}},
            },
        },
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": "total = 1",
            "extra": {"returncode": 0, "timestamp": 1_790_000_001.0},
        },
        {
            "role": "assistant",
            "content": "I change it.",
            "extra": {"actions": [{"command": RUN}], "cost": 0.25},
        },
        {"role": "user", "content": "", "extra": {"returncode": 0}},
        {"role": "assistant", "content": "It is sum now.", "extra": {}},
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": "diff"}},
    ],
}


def _model_response(name: str, call: str, args: str, known: str) -> dict[str, Any]:
    return {
        "function_name": name,
        "tool_call_id": call,
        "model_response": {
            "id": known,
            "model": "m",
            "usage": {"prompt_tokens": 30, "completion_tokens": 4},
            "choices": [
                {
                    "message": {
                        "content": "",
                        "tool_calls": [{"id": call, "function": {"name": name, "arguments": args}}],
                    }
                }
            ],
        },
    }


_VIEW = _model_response("str_replace_editor", "c1", '{"command": "view", "path": "/w/shop.py"}', "r1")
_SED = _model_response("execute_bash", "c2", f'{{"command": "{RUN}"}}', "r2")
OPENHANDS = [
    {"id": 0, "source": "agent", "action": "system", "args": {"content": "You help.", "tools": []}},
    {
        "id": 1,
        "source": "user",
        "action": "message",
        "args": {"content": GOAL},
        "timestamp": "2026-11-01T10:00:00.000000",
    },
    {"id": 2, "source": "user", "action": "recall", "args": {"query": "x"}},
    {"id": 3, "source": "environment", "observation": "recall", "cause": 2, "content": "Added", "extras": {}},
    {
        "id": 4,
        "source": "agent",
        "action": "read",
        "args": {"path": "/w/shop.py", "thought": "I look."},
        "tool_call_metadata": _VIEW,
        "llm_metrics": {"accumulated_cost": 0.25},
    },
    {
        "id": 5,
        "source": "agent",
        "observation": "read",
        "cause": 4,
        "content": "total = 1",
        "extras": {"path": "/w/shop.py"},
        "tool_call_metadata": _VIEW,
    },
    {
        "id": 6,
        "source": "agent",
        "action": "run",
        "args": {"command": RUN, "thought": "I change it."},
        "tool_call_metadata": _SED,
        "llm_metrics": {"accumulated_cost": 0.5},
    },
    {
        "id": 7,
        "source": "agent",
        "observation": "run",
        "cause": 6,
        "content": "",
        "extras": {"command": RUN},
        "tool_call_metadata": _SED,
    },
    {"id": 8, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}},
    {"id": 9, "source": "agent", "action": "finish", "args": {"final_thought": "It is sum now."}},
]
OPENHANDS_ROW = {
    "instance_id": "shop-1",
    "instruction": GOAL,
    "metadata": {"llm_config": {"model": "m"}, "dataset": "shops"},
    "history": OPENHANDS,
    "test_result": {"git_patch": "diff", "report": {"resolved": True}},
    "metrics": {"accumulated_cost": 0.5},
    "error": None,
}
OPENHANDS_SDK = [
    {
        "kind": "SystemPromptEvent",
        "id": "0",
        "source": "agent",
        "system_prompt": {"type": "text", "text": "You help."},
        "tools": [
            {"type": "function", "function": {"name": "terminal", "description": "", "parameters": {}}}
        ],
    },
    {
        "kind": "MessageEvent",
        "id": "1",
        "source": "user",
        "timestamp": "2026-11-01T10:00:00",
        "llm_message": {"role": "user", "content": [{"type": "text", "text": GOAL}]},
    },
    {
        "kind": "ActionEvent",
        "id": "2",
        "source": "agent",
        "thought": [{"type": "text", "text": "I look."}],
        "action": {"kind": "FileEditorAction", **LOOK},
        "tool_name": "file_editor",
        "tool_call_id": "c1",
        "tool_call": {
            "id": "c1",
            "name": "file_editor",
            "arguments": '{"command": "view", "path": "/w/shop.py"}',
        },
        "llm_response_id": "r1",
    },
    {
        "kind": "ObservationEvent",
        "id": "3",
        "source": "environment",
        "tool_name": "file_editor",
        "tool_call_id": "c1",
        "action_id": "2",
        "observation": {"kind": "FileEditorObservation", "content": [{"type": "text", "text": "total = 1"}]},
    },
    {"kind": "ConversationStateUpdateEvent", "id": "4", "source": "environment", "key": "k", "value": 1},
    {
        "kind": "ActionEvent",
        "id": "5",
        "source": "agent",
        "thought": [{"type": "text", "text": "I change it."}],
        "action": {"kind": "TerminalAction", "command": RUN},
        "tool_name": "terminal",
        "tool_call_id": "c2",
        "llm_response_id": "r2",
    },
    {
        "kind": "ObservationEvent",
        "id": "6",
        "source": "environment",
        "tool_name": "terminal",
        "tool_call_id": "c2",
        "action_id": "5",
        "observation": {"kind": "TerminalObservation", "content": []},
    },
    {
        "kind": "MessageEvent",
        "id": "7",
        "source": "agent",
        "llm_message": {"role": "assistant", "content": [{"type": "text", "text": "It is sum now."}]},
    },
]
MESSAGES = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": GOAL},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "read_file", "content": "total = 1"},
    {
        "role": "assistant",
        "content": "I change it.",
        "tool_calls": [
            {
                "id": "c2",
                "type": "function",
                "function": {"name": "bash", "arguments": f'{{"command": "{RUN}"}}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c2", "content": ""},
    {"role": "assistant", "content": "It is sum now."},
]
ANTHROPIC = [
    {"role": "user", "content": GOAL},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "read_file", "input": {}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "total = 1"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "sed does it"},
            {"type": "text", "text": "I change it."},
            {"type": "tool_use", "id": "c2", "name": "bash", "input": {"command": RUN}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": ""}]}],
    },
    {"role": "assistant", "content": "It is sum now."},
]
TAU = [{"task_id": 3, "reward": 1.0, "trial": 1, "info": {"task": {}, "user_cost": 0.1}, "traj": MESSAGES}]
GEMINI_MESSAGES = [
    {"id": "a", "type": "user", "timestamp": "2026-11-01T10:00:00.000Z", "content": [{"text": GOAL}]},
    {
        "id": "b",
        "type": "gemini",
        "timestamp": "2026-11-01T10:00:02.000Z",
        "content": "I look.",
        "model": "m",
        "thoughts": [{"subject": "Files", "description": "one of them"}],
        "tokens": {"input": 30, "output": 3, "cached": 10, "thoughts": 1, "tool": 0, "total": 34},
        "toolCalls": [
            {
                "id": "c1",
                "name": "read_file",
                "args": {"file_path": "shop.py"},
                "status": "success",
                "timestamp": "2026-11-01T10:00:03.000Z",
                "result": [{"functionResponse": {"id": "c1", "response": {"output": "total = 1"}}}],
            }
        ],
    },
    {
        "id": "c",
        "type": "gemini",
        "content": "I change it.",
        "timestamp": "2026-11-01T10:00:04.000Z",
        "toolCalls": [
            {
                "id": "c2",
                "name": "run_shell_command",
                "args": {"command": RUN},
                "status": "success",
                "result": [{"functionResponse": {"response": {"output": ""}}}],
            }
        ],
    },
    {"id": "d", "type": "gemini", "content": "It is sum now.", "timestamp": "2026-11-01T10:00:05.000Z"},
]
_GEMINI_HEAD = {"sessionId": "s1", "projectHash": "h", "startTime": "2026-11-01T10:00:00.000Z"}
GEMINI = {**_GEMINI_HEAD, "lastUpdated": "2026-11-01T10:00:05.000Z", "messages": GEMINI_MESSAGES}
GEMINI_LINES = [
    _GEMINI_HEAD,
    {"id": "x", "type": "user", "content": "Never mind", "timestamp": "2026-11-01T09:00:00.000Z"},
    {"$rewindTo": "x"},
    *GEMINI_MESSAGES,
    {"$set": {"summary": "A rename"}},
]


def _opencode_step(number: int, *parts: dict[str, Any], after: str) -> dict[str, Any]:
    return {
        "info": {
            "id": f"m{number}",
            "role": "assistant",
            "modelID": "m",
            "providerID": "p",
            "cost": 0.25,
            "tokens": {"input": 20, "output": 3, "reasoning": 1, "cache": {"read": 10, "write": 0}},
            "time": {"created": 1_790_000_000_000 + number, "completed": 1_790_000_000_500 + number},
        },
        "parts": [
            {"type": "step-start", "snapshot": "s0"},
            *parts,
            {
                "type": "step-finish",
                "reason": "stop",
                "snapshot": after,
                "cost": 0.25,
                "tokens": {"input": 20, "output": 3, "reasoning": 1, "cache": {"read": 10, "write": 0}},
            },
            *([{"type": "patch", "hash": "s0", "files": ["/w/shop.py"]}] if after != "s0" else []),
        ],
    }


def _opencode_tool(call: str, tool: str, args: dict[str, Any], output: str) -> dict[str, Any]:
    times = {"start": 1_790_000_000_100, "end": 1_790_000_000_300}
    state = {"status": "completed", "input": args, "output": output, "title": "", "time": times}
    return {"type": "tool", "callID": call, "tool": tool, "state": state}


OPENCODE = {
    "info": {"id": "ses_1", "title": "A rename", "directory": "/w", "version": "1.18"},
    "messages": [
        {
            "info": {"id": "m0", "role": "user", "time": {"created": 1_789_999_999_000}},
            "parts": [{"type": "text", "text": GOAL}],
        },
        _opencode_step(
            1,
            {"type": "text", "text": "I look."},
            _opencode_tool("c1", "read", {"filePath": "shop.py"}, "total = 1"),
            after="s0",
        ),
        _opencode_step(
            2,
            {"type": "text", "text": "I change it."},
            _opencode_tool("c2", "bash", {"command": RUN}, ""),
            after="s1",
        ),
        _opencode_step(3, {"type": "text", "text": "It is sum now."}, after="s0"),
    ],
}
_AT = "2026-11-01T10:00:0%dZ"


def _turns() -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """What the model was shown and answered, call by call."""
    return [(MESSAGES[:n], MESSAGES[n]) for n in (2, 4, 6)]


def _langfuse(number: int, shown: list[dict[str, Any]], answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"o{number}",
        "traceId": "t1",
        "type": "GENERATION",
        "name": "llm",
        "startTime": _AT % number,
        "endTime": _AT % (number + 1),
        "input": {"messages": shown},
        "output": answer,
        "model": "m",
        "usageDetails": {"input": 20, "input_cached_tokens": 10, "output": 4, "total": 34},
        "totalCost": 0.25,
    }


LANGFUSE = [
    {"id": "o", "traceId": "t1", "type": "SPAN", "name": "root", "startTime": _AT % 0, "input": GOAL},
    *(_langfuse(number, *turn) for number, turn in enumerate(_turns())),
    {"id": "x", "traceId": "t1", "type": "TOOL", "name": "bash", "startTime": _AT % 2, "output": ""},
]
LANGFUSE_TRACE = {"id": "t1", "name": "rename", "observations": LANGFUSE, "scores": []}


def _langchain(message: dict[str, Any]) -> dict[str, Any]:
    kind = {"user": "human", "assistant": "ai"}.get(message["role"], message["role"])
    calls = [
        {
            "id": call["id"],
            "name": call["function"]["name"],
            "args": {} if call["id"] == "c1" else {"command": RUN},
        }
        for call in message.get("tool_calls") or ()
    ]
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "messages"],
        "kwargs": {
            "content": message["content"],
            "type": kind,
            "tool_calls": calls,
            "tool_call_id": message.get("tool_call_id"),
        },
    }


LANGSMITH = [
    {
        "id": "root",
        "trace_id": "root",
        "name": "agent",
        "run_type": "chain",
        "start_time": _AT % 0,
        "inputs": {},
    },
    *(
        {
            "id": f"l{number}",
            "trace_id": "root",
            "parent_run_id": "root",
            "name": "ChatModel",
            "run_type": "llm",
            "start_time": _AT % number,
            "end_time": _AT % (number + 1),
            "inputs": {"messages": [list(map(_langchain, shown))]},
            "outputs": {"generations": [[{"text": "", "message": _langchain(answer)}]]},
            "extra": {"metadata": {"ls_model_name": "m"}},
            "prompt_tokens": 30,
            "completion_tokens": 4,
        }
        for number, (shown, answer) in enumerate(_turns())
    ),
]


def _openinference(message: dict[str, Any], place: str) -> dict[str, Any]:
    found = {f"{place}.message.role": message["role"], f"{place}.message.content": message["content"]}
    if "tool_call_id" in message:
        found[f"{place}.message.tool_call_id"] = message["tool_call_id"]
    for number, call in enumerate(message.get("tool_calls") or ()):
        inner = f"{place}.message.tool_calls.{number}.tool_call"
        found |= {
            f"{inner}.id": call["id"],
            f"{inner}.function.name": call["function"]["name"],
            f"{inner}.function.arguments": call["function"]["arguments"],
        }
    return found


def _phoenix(number: int, shown: list[dict[str, Any]], answer: dict[str, Any]) -> dict[str, Any]:
    attributes = {"llm.model_name": "m", "llm.token_count.prompt": 30, "llm.token_count.completion": 4}
    for place, message in enumerate(shown):
        attributes |= _openinference(message, f"llm.input_messages.{place}")
    attributes |= _openinference(answer, "llm.output_messages.0")
    return {
        "name": "chat",
        "context": {"trace_id": "t1", "span_id": f"s{number}"},
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": _AT % number,
        "end_time": _AT % (number + 1),
        "status_code": "OK",
        "attributes": attributes,
    }


PHOENIX = [_phoenix(number, *turn) for number, turn in enumerate(_turns())]


def _otlp(span: dict[str, Any]) -> dict[str, Any]:
    """A span as the SDK of OpenTelemetry writes it, for a collector."""
    number = int(span["context"]["span_id"][1:])
    attributes = {"openinference.span.kind": "LLM", **span["attributes"]}
    return {
        "traceId": "t1",
        "spanId": f"s{number}",
        "startTimeUnixNano": str(1_790_000_000_000_000_000 + number * 10**9),
        "endTimeUnixNano": str(1_790_000_001_000_000_000 + number * 10**9),
        "attributes": [{"key": key, "value": {"stringValue": str(one)}} for key, one in attributes.items()],
    }


OTLP = {"resourceSpans": [{"scopeSpans": [{"spans": list(map(_otlp, PHOENIX))}]}]}
PRINTED = [
    {
        **{key: one for key, one in span.items() if key != "span_kind"},
        "attributes": {"openinference.span.kind": "LLM", **span["attributes"]},
    }
    for span in PHOENIX
]

RECORDED: dict[str, tuple[str, list[Any]]] = {
    "trajectory.json": ("atif", [ATIF]),
    "swe.traj": ("swe-agent", [SWE]),
    "mini-1.traj.json": ("mini-swe-agent", [MINI_1]),
    "mini-2.traj.json": ("mini-swe-agent", [MINI_2]),
    "mini-alone.json": ("mini-swe-agent", [MINI_1["messages"]]),
    "openhands.json": ("openhands", [OPENHANDS]),
    "openhands-sdk.json": ("openhands", [OPENHANDS_SDK]),
    "output.jsonl": ("openhands", [OPENHANDS_ROW]),
    "gpt-4o-airline.json": ("tau-bench", [TAU]),
    "session-1.json": ("gemini", [GEMINI]),
    "session-2.jsonl": ("gemini", GEMINI_LINES),
    "opencode.json": ("opencode", [OPENCODE]),
    "opencode-alone.json": ("opencode", [OPENCODE["messages"]]),
    "langfuse.jsonl": ("langfuse", LANGFUSE),
    "trace-t1.json": ("langfuse", [LANGFUSE_TRACE]),
    "langsmith.jsonl": ("langsmith", LANGSMITH),
    "langsmith.json": ("langsmith", [{"runs": LANGSMITH}]),
    "phoenix.json": ("phoenix", [{"data": PHOENIX}]),
    "phoenix.jsonl": ("phoenix", PHOENIX),
    "phoenix-otlp.json": ("phoenix", [OTLP]),
    "phoenix-printed.json": ("phoenix", [PRINTED]),
    "messages.json": ("messages", [MESSAGES]),
    "messages.jsonl": ("messages", MESSAGES),
    "anthropic.json": ("messages", [ANTHROPIC]),
}
"""By file, its format and its lines: what is one line is the whole file."""
