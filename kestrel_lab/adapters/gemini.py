"""Gemini CLI as a runner, without approvals: `gemini --output-format stream-json`.

With approvals use `acp:gemini --acp`. Source: Gemini CLI's documentation of its headless mode; lines compared
with those of version 0.61.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kestrel_lab.adapters.adapter import Capabilities, Note, Reported, Task, ToolDone
from kestrel_lab.adapters.subprocess_reader import AgentProgram, Reader
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import ModelAnswer, ToolRequest


def _arguments(task: Task, model: str) -> Sequence[str]:
    prompt = task.said(resumed=bool(task.session))
    more = [*(("-m", model) if model else ()), *(("--resume", task.session) if task.session else ())]
    return [
        "--output-format",
        "stream-json",
        "--approval-mode",
        "yolo",
        "--skip-trust",
        *more,
        f"--prompt={prompt}",
    ]


class _Reader(Reader):
    def take(self, line: Mapping[str, Any]) -> Iterable[Reported]:
        kind = line.get("type")
        if kind == "init":
            self.session, self.model = str(line["session_id"]), str(line.get("model") or "")
        elif kind == "message" and line["role"] == "assistant":
            yield from self.idle()
            self.parts.text += str(line["content"])
            self.task.delta(str(line["content"]))
        elif kind == "tool_use":
            known = str(line["tool_id"])
            self.parts.calls[known] = ToolRequest(
                id=known, name=str(line["tool_name"]), args=dict(line.get("parameters") or {})
            )
        elif kind == "tool_result":
            yield from self.idle()
            failed = line.get("status") == "error"
            said = (line.get("error") or {}).get("message") if failed else line.get("output")
            yield ToolDone(
                call=str(line["tool_id"]), text=str(said or ""), error=failed, session=self.session
            )
        elif kind == "error":
            yield Note(text=f"gemini: {line.get('message')}")
        elif kind == "result":
            yield from self._result(line)

    def _result(self, line: Mapping[str, Any]) -> Iterable[Reported]:
        self.ended = True
        yield from self.idle()
        stats = line.get("stats") or {}
        read, written, whole = (
            int(stats.get(name) or 0) for name in ("input_tokens", "output_tokens", "total_tokens")
        )
        # It counts what the model thought in the total alone; other programs count it as written.
        thought = max(0, whole - read - written)
        yield self.parts.turn(
            ModelAnswer(
                usage=Usage(
                    tokens_in=read,
                    tokens_out=written + thought,
                    tokens_reasoning=thought,
                    tokens_cached=int(stats.get("cached") or 0),
                    unpriced=1,
                ),
                model=self.model,
            ),
            self.session,
            counted=bool(stats),
        )
        if line.get("status") != "success":
            raise ModelError(
                f"gemini failed: {(line.get('error') or {}).get('message') or line.get('status')}"
            )


GEMINI: Final = AgentProgram(
    name="gemini",
    executable="gemini",
    capabilities=Capabilities(streams=True, resume="end"),
    arguments=_arguments,
    reader=_Reader,
    state=(".gemini",),
    install="npm install -g @google/gemini-cli",
    terminal=True,
)
