"""Codex as a runner: `codex exec --json`, without approvals; it reports threads, turns and items.

Source: Codex's documentation of its non-interactive mode; lines compared with those of version 0.169.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kestrel_lab.adapters.adapter import Capabilities, Note, Reported, Task, ToolDone
from kestrel_lab.adapters.subprocess_reader import AgentProgram, Reader
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import ModelAnswer, ToolRequest
from kestrel_lab.tools.sandbox.levels import Level

_NO_CALL: Final = frozenset({"agent_message", "reasoning", "error", "todo_list"})
_COUNTED: Final = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_output_tokens")
_ABOUT: Final = frozenset({"id", "type", "status", "aggregated_output", "exit_code", "result", "error"})
"""Fields of an item that are no arguments."""


def _arguments(task: Task, model: str) -> Sequence[str]:
    # Its own sandbox cannot be put up inside ours.
    held = (
        ("--dangerously-bypass-approvals-and-sandbox",)
        if task.level > Level.S0
        else ("--sandbox", "workspace-write")
    )
    more = ["--json", "--skip-git-repo-check", *held, *(("-m", model) if model else ())]
    prompt = task.said(resumed=bool(task.session))
    return [
        "exec",
        *more,
        *(("resume", task.session.partition("@")[0]) if task.session else ()),
        "--",
        prompt,
    ]


class _Reader(Reader):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        # A session that is taken up goes on counting where it was counted last.
        counted = task.session.partition("@")[2]
        self._before = [int(number) for number in counted.split(",")] if counted else [0, 0, 0, 0]
        self._reported: set[str] = set()

    def take(self, line: Mapping[str, Any]) -> Iterable[Reported]:
        kind = line.get("type")
        if kind == "thread.started":
            self.session = str(line["thread_id"])
        elif kind in ("item.started", "item.completed"):
            yield from self._item(line["item"], done=kind == "item.completed")
        elif kind == "turn.completed":
            self.ended = True
            used = line.get("usage") or {}
            counted = [int(used.get(name) or 0) for name in _COUNTED]
            read, written, cached, thought = (
                max(0, now - then) for now, then in zip(counted, self._before, strict=True)
            )
            yield self.parts.turn(
                ModelAnswer(
                    usage=Usage(
                        tokens_in=read,
                        tokens_out=written,
                        tokens_cached=cached,
                        tokens_reasoning=thought,
                        unpriced=1,
                    )
                ),
                f"{self.session}@{','.join(map(str, counted))}",
            )
        elif kind == "turn.failed":
            raise ModelError(
                f"codex failed: {(line.get('error') or {}).get('message') or 'it does not say why'}"
            )
        elif kind == "error":
            yield Note(text=f"codex: {line.get('message')}")

    def _item(self, item: Mapping[str, Any], *, done: bool) -> Iterable[Reported]:
        kind, known = str(item["type"]), str(item["id"])
        if kind in _NO_CALL:
            if kind == "agent_message" and done:
                if self.parts.text:  # one message follows another
                    yield self.parts.turn(session=self.session)
                self.parts.text = str(item["text"])
            elif kind == "error" and done:
                yield Note(text=f"codex: {item['message']}")
            return
        if known not in self._reported:
            self._reported.add(known)
            name = str(item.get("tool") or kind)
            args = (
                item.get("arguments")
                if kind == "mcp_tool_call"
                else {key: value for key, value in item.items() if key not in _ABOUT}
            )
            self.parts.calls[known] = ToolRequest(
                id=known, name=name, args=args if isinstance(args, dict) else {"arguments": args}
            )
        if done:
            yield from self.idle()
            said = item.get("error") or item.get("aggregated_output") or item.get("result") or ""
            yield ToolDone(
                call=known,
                text=said if isinstance(said, str) else json.dumps(said),
                error=item.get("status") in ("failed", "declined"),
                session=self.session,
            )


CODEX: Final = AgentProgram(
    name="codex",
    executable="codex",
    capabilities=Capabilities(resume="end"),
    arguments=_arguments,
    reader=_Reader,
    state=(".codex",),
    install="npm install -g @openai/codex",
)
