"""Claude Code as a runner: `claude -p` with streams of JSON both ways, its permission prompts answered over
its standard input.

Sources: Claude Code, CLI reference (headless mode, `--output-format stream-json`); the control messages
(`can_use_tool`) as its published SDK for Python sends and answers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kestrel_lab.adapters.adapter import (
    DANGERS,
    Capabilities,
    Decision,
    Note,
    Permission,
    Reported,
    Task,
    ToolDone,
)
from kestrel_lab.adapters.subprocess_reader import AgentProgram, Reader
from kestrel_lab.core.calls import Danger, Usage
from kestrel_lab.core.errors import LimitError, ModelError
from kestrel_lab.core.events.tool_kinds import NAMED_KINDS
from kestrel_lab.core.messages import ModelAnswer, ToolRequest

_LIMITS: Final = {"error_max_turns": "cycles", "error_max_budget_usd": "cost_usd"}
_FINISHES: Final = {"max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "refusal"}
"""Words of its provider for an answer that is not whole; other reasons end a turn as it should."""


def _arguments(task: Task, model: str) -> Sequence[str]:
    session, _, message = task.session.partition("@")
    return [
        *(
            "-p",
            "--output-format",
            "stream-json",
            "--input-format",
            "stream-json",
            "--verbose",
            "--include-partial-messages",
        ),
        *("--permission-prompt-tool", "stdio", "--permission-mode", "default"),
        *(("--model", model) if model else ()),
        *(("--append-system-prompt", task.instructions) if task.instructions else ()),
        *(("--max-turns", str(task.turns)) if task.turns is not None else ()),
        *(("--max-budget-usd", f"{task.cost_usd:g}") if task.cost_usd is not None else ()),
        *((f"--resume={session}",) if session else ()),
        *(
            ("--fork-session", *((f"--resume-session-at={message}",) if message else ()))
            if session and task.copy
            else ()
        ),
    ]


class _Reader(Reader):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._message, self._answer, self._place = "", ModelAnswer(), ""
        self._used = Usage()
        self._asked: dict[str, str] = {}
        """By call, the id of the question about it."""

    def begin(self) -> Sequence[Mapping[str, Any]]:
        images = [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": image.media_type, "data": image.data},
            }
            for image in self.task.images
        ]
        content = [
            *images,
            {"type": "text", "text": self.task.prompt if self.task.session else self.task.transcript},
        ]
        return [
            {
                "type": "control_request",
                "request_id": "begin",
                "request": {"subtype": "initialize", "hooks": None},
            },
            {
                "type": "user",
                "message": {"role": "user", "content": content},
                "parent_tool_use_id": None,
                "session_id": "",
            },
        ]

    def take(self, line: Mapping[str, Any]) -> Iterable[Reported | Permission]:
        self.session = str(line.get("session_id") or self.session)
        kind = line.get("type")
        if line.get("parent_tool_use_id"):
            yield from _of_sub_agent(line)
        elif kind == "stream_event":
            delta = line["event"].get("delta") or {}
            if delta.get("type") == "text_delta":
                self.task.delta(str(delta["text"]))
        elif kind == "assistant":
            yield from self._assistant(line)
        elif kind == "user":
            yield from self.idle()
            self._place = f"{self.session}@{line.get('uuid') or ''}"
            content = line["message"]["content"]
            for part in content if isinstance(content, list) else ():
                if part["type"] == "tool_result":
                    failed = bool(part.get("is_error"))
                    yield ToolDone(
                        call=part["tool_use_id"],
                        text=_text(part.get("content")),
                        error=failed,
                        session=self._place,
                    )
        elif kind == "control_request" and line["request"]["subtype"] == "can_use_tool":
            yield from self.idle()
            asked = line["request"]
            name, call = str(asked["tool_name"]), str(asked.get("tool_use_id") or line["request_id"])
            self._asked[call] = line["request_id"]
            yield Permission(
                request=ToolRequest(id=call, name=name, args=dict(asked["input"])),
                danger=_danger(name),
            )
        elif kind == "result":
            yield from self._result(line)

    def _assistant(self, line: Mapping[str, Any]) -> Iterable[Reported]:
        message = line["message"]
        if self.parts and message.get("id") != self._message:
            yield from self.idle()
        self._message = str(message.get("id") or "")
        for part in message["content"]:
            if part["type"] == "text":
                self.parts.text += part["text"]
            elif part["type"] == "tool_use":
                self.parts.calls[part["id"]] = ToolRequest(
                    id=part["id"], name=part["name"], args=dict(part["input"])
                )
        finish = _FINISHES.get(str(message.get("stop_reason")), "stop")
        self._answer = ModelAnswer(
            model=str(message.get("model") or ""), usage=_usage(message.get("usage") or {}), finish=finish
        )
        self._place = f"{self.session}@{line.get('uuid') or ''}"

    def idle(self) -> Iterable[Reported]:
        # The last answer has no calls: it is reported with its cost.
        if self.parts.calls:
            yield self._turn(self._answer.usage)

    def _turn(self, usage: Usage) -> Reported:
        self._used += usage
        return self.parts.turn(replace(self._answer, usage=usage), self._place)

    def _result(self, line: Mapping[str, Any]) -> Iterable[Reported]:
        self.ended = True
        # A streamed answer begins before it is known.
        if finish := _FINISHES.get(str(line.get("stop_reason"))):
            self._answer = replace(self._answer, finish=finish)
        cost = line.get("total_cost_usd")
        whole = _usage(line.get("usage") or {})
        # The parts of an answer come with what was used when it began; only the end has the sums.
        rest = Usage(
            tokens_in=max(0, whole.tokens_in - self._used.tokens_in),
            tokens_out=max(0, whole.tokens_out - self._used.tokens_out),
            tokens_cached=max(0, whole.tokens_cached - self._used.tokens_cached),
            tokens_cache_written=max(0, whole.tokens_cache_written - self._used.tokens_cache_written),
            cost_usd=float(cost or 0.0),
            unpriced=int(cost is None),
        )
        if not self.parts:
            self.parts.text = str(line.get("result") or "")
        yield self._turn(rest)
        if limit := _LIMITS.get(str(line.get("subtype"))):
            raise LimitError(limit, f"claude-code reached the limit that it was given: {line['subtype']}")
        if line.get("is_error"):
            errors = line.get("errors") or [line.get("result") or line.get("subtype")]
            raise ModelError(f"claude-code failed: {'; '.join(map(str, errors))}")

    def reply(self, asked: Permission, decided: Decision) -> Mapping[str, Any]:
        args = asked.request.args if decided.args is None else dict(decided.args)
        answer = (
            {"behavior": "allow", "updatedInput": args}
            if decided.granted
            else {"behavior": "deny", "message": decided.reason}
        )
        return {
            "type": "control_response",
            "response": {
                "subtype": "success",
                "request_id": self._asked.pop(asked.request.id),
                "response": answer,
            },
        }


def _danger(name: str) -> Danger:
    if name == "TodoWrite":  # its own list
        return Danger.SAFE
    # Only names in the table: what a name sounds like decides about no approval.
    return DANGERS.get(NAMED_KINDS.get(name.lower(), ""), Danger.HIGH)


def _of_sub_agent(line: Mapping[str, Any]) -> Iterable[Reported]:
    content = line.get("message", {}).get("content")
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "tool_use":
            yield Note(text=f"a sub-agent calls {part.get('name')}")


def _usage(usage: Mapping[str, Any]) -> Usage:
    cached, written = (
        int(usage.get("cache_read_input_tokens") or 0),
        int(usage.get("cache_creation_input_tokens") or 0),
    )
    return Usage(
        tokens_in=int(usage.get("input_tokens") or 0) + cached + written,
        tokens_out=int(usage.get("output_tokens") or 0),
        tokens_cached=cached,
        tokens_cache_written=written,
    )


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return str(content or "")
    return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in content)


CLAUDE_CODE: Final = AgentProgram(
    name="claude-code",
    executable="claude",
    capabilities=Capabilities(streams=True, approvals=True, edits=True, resume="any", cost=True, images=True),
    arguments=_arguments,
    reader=_Reader,
    state=(".claude", ".claude.json"),
    install="npm install -g @anthropic-ai/claude-code",
)
