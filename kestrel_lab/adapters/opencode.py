"""OpenCode as a runner, without approvals: `opencode run --format json`.

With approvals use `acp:opencode acp`. Source: OpenCode's documentation of its command line; lines compared
with those of version 1.18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kestrel_lab.adapters.adapter import Capabilities, Reported, Task, ToolDone
from kestrel_lab.adapters.subprocess_reader import AgentProgram, Reader
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import ModelAnswer, ToolRequest

_FINISHES: Final = {"length": "length", "content-filter": "content_filter"}
"""Words for an answer that is not whole; other reasons end a turn as it should."""


def _arguments(task: Task, model: str) -> Sequence[str]:
    prompt = task.said(resumed=bool(task.session))
    more = [*(("--model", model) if model else ()), *(("--session", task.session) if task.session else ())]
    return ["run", "--format", "json", "--auto", *more, "--", prompt]


class _Reader(Reader):
    """Yields a turn at its end: OpenCode reports a call together with its result."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._done: list[ToolDone] = []

    def idle(self) -> Iterable[Reported]:
        return ()

    def take(self, line: Mapping[str, Any]) -> Iterable[Reported]:
        kind, part, session = line.get("type"), line.get("part") or {}, str(line.get("sessionID") or "")
        if kind == "text":
            self.parts.text += str(part["text"])
        elif kind == "tool_use":
            known, state = str(part["callID"]), part["state"]
            self.parts.calls[known] = ToolRequest(
                id=known, name=str(part["tool"]), args=dict(state.get("input") or {})
            )
            failed = state.get("status") == "error"
            self._done.append(
                ToolDone(
                    call=known,
                    text=str(state.get("error" if failed else "output") or ""),
                    error=failed,
                    session=session,
                )
            )
        elif kind == "step_finish":
            # After a turn without calls it waits for nothing and ends by itself.
            self.ended = part.get("reason") != "tool-calls"
            tokens, done, self._done = part.get("tokens") or {}, self._done, []
            cached, cost = tokens.get("cache") or {}, part.get("cost")
            usage = Usage(
                tokens_in=sum(
                    int(count or 0)
                    for count in (tokens.get("input"), cached.get("read"), cached.get("write"))
                ),
                tokens_out=int(tokens.get("output") or 0) + int(tokens.get("reasoning") or 0),
                tokens_cached=int(cached.get("read") or 0),
                tokens_cache_written=int(cached.get("write") or 0),
                tokens_reasoning=int(tokens.get("reasoning") or 0),
                cost_usd=float(cost or 0.0),
                unpriced=int(cost is None),
            )
            yield self.parts.turn(
                ModelAnswer(usage=usage, finish=_FINISHES.get(str(part.get("reason")), "stop")), session
            )
            yield from done
        elif kind == "error":
            error = line.get("error") or {}
            raise ModelError(
                f"opencode failed: {(error.get('data') or {}).get('message') or error.get('name')}"
            )


OPENCODE: Final = AgentProgram(
    name="opencode",
    executable="opencode",
    capabilities=Capabilities(resume="end", cost=True),
    arguments=_arguments,
    reader=_Reader,
    state=(".config/opencode", ".local/share/opencode", ".local/state/opencode", ".cache/opencode"),
    install="npm install -g opencode-ai",
)
