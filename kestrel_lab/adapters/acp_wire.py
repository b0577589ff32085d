"""The messages of the agent client protocol on a program's pipes, in version 1 whatever the program speaks.

Version 2 is a draft (published 20 July 2026, to be used behind a flag; see agentclientprotocol.com,
`protocol/v2/migration`), and the library `agent-client-protocol` knows version 1 only. So messages of a
connection that negotiated version 2 are translated: what came as a state is a prompt's response here, upserts
are calls and their updates, and the subject of a permission is its call. What version 1 has no word for is
left out.
"""

from __future__ import annotations

import base64
import json
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kestrel_lab.core.json_types import dumps

KINDS: Final = frozenset(
    {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}
)
_STOPS: Final = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
_OPTIONS: Final = frozenset({"allow_once", "allow_always", "reject_once", "reject_always"})
_SAME: Final = frozenset({"agent_message_chunk", "usage_update"})

Message = dict[str, Any]


@dataclass(kw_only=True, slots=True)
class AcpWire:
    """A transport for the library `acp`. It offers `version` and takes the version that the program answers
    with, if that is not a higher one.
    """

    reader: StreamReader
    writer: StreamWriter
    refused: Callable[[bytes], None]
    """Takes lines that are no messages."""
    version: int = 1
    """Offered, and then the one that is spoken."""
    _waiting: deque[Message] = field(default_factory=deque)
    _begins: set[int | str] = field(default_factory=set)
    """Ids of `initialize`."""
    _prompts: dict[str, int | str] = field(default_factory=dict)
    """By session, the id of the prompt that has no response yet."""
    _said: dict[str, str] = field(default_factory=dict)
    """Text by message, as far as it was passed on."""
    _calls: dict[str, list[Message]] = field(default_factory=dict)
    """Content by call."""
    _terminals: dict[str, bytes] = field(default_factory=dict)

    async def send(self, message: Message) -> None:
        """Write a message."""
        if message.get("method") == "initialize":
            self._begins.add(message["id"])
            message = {**message, "params": self._offer(message["params"])}
        elif message.get("method") == "session/prompt" and self.version > 1:
            self._prompts[message["params"]["sessionId"]] = message["id"]
        self.writer.write(dumps(message).encode() + b"\n")
        await self.writer.drain()

    async def receive(self) -> Message | None:
        """Return the next message; `None` at the end."""
        while not self._waiting:
            if not (line := await self.reader.readline()):
                return None
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            # Version 2 may send several in a list.
            several = found if isinstance(found, list) and self.version > 1 else [found]
            for one in several:
                if isinstance(one, dict):
                    self._waiting.extend(self._translated(one))
                elif line.strip():
                    self.refused(line)
        return self._waiting.popleft()

    async def close(self) -> None:
        """No-op: the program's pipes are closed with it."""

    def _offer(self, params: Message) -> Message:
        """Return the parameters of `initialize` for both versions: what a program does not know it leaves."""
        if self.version == 1:
            return params
        about = params.get("clientInfo")
        return {**params, "protocolVersion": self.version, "capabilities": {}, "info": about}

    def _translated(self, message: Message) -> Iterator[Message]:
        if message.get("id") in self._begins and "method" not in message:
            self._begins.discard(message["id"])
            yield self._begun(message)
        elif self.version == 1:
            yield message
        elif message.get("method") == "session/update":
            for update in self._update(message["params"]["sessionId"], message["params"]["update"]):
                yield {**message, "params": {**message["params"], "update": update}}
            yield from self._ended(message["params"]["sessionId"], message["params"]["update"])
        elif message.get("method") == "session/request_permission":
            yield {**message, "params": _asked(message)}
        elif message.get("id") not in self._prompts.values() or "error" in message:
            yield message
        # The response to a prompt says only that it was accepted.

    def _begun(self, message: Message) -> Message:
        result = message.get("result")
        if not isinstance(result, dict):
            return message
        spoken = result.get("protocolVersion")
        if not isinstance(spoken, int) or not 0 < spoken <= self.version:
            text = f"the agent speaks version {spoken} of the protocol, and was offered {self.version}"
            advice = ": name it acp2:COMMAND" if spoken == 2 else ""
            return {**_head(message), "error": {"code": -32600, "message": text + advice}}
        self.version = spoken
        if spoken == 1:
            return message
        session = (result.get("capabilities") or {}).get("session")
        if session is None:
            text = "the agent has no sessions"
            return {**_head(message), "error": {"code": -32600, "message": text}}
        can = {
            "sessionCapabilities": {"resume": {}},
            "promptCapabilities": {"image": (session.get("prompt") or {}).get("image") is not None},
        }
        return {**_head(message), "result": {"protocolVersion": 2, "agentCapabilities": can}}

    def _update(self, session: str, update: Message) -> Iterator[Message]:
        kind = update.get("sessionUpdate")
        if kind in _SAME:
            if kind == "agent_message_chunk":
                text = (update.get("content") or {}).get("text") or ""
                self._said[update["messageId"]] = self._said.get(update["messageId"], "") + text
            yield update
        elif kind == "agent_message":
            text = "".join(str(part.get("text") or "") for part in update.get("content") or ())
            before = self._said.get(update["messageId"], "")
            self._said[update["messageId"]] = text
            # A message that was replaced by another one cannot be taken back: what is new is said after it.
            if new := text.removeprefix(before):
                yield {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": new}}
        elif kind in ("tool_call_update", "tool_call_content_chunk"):
            yield self._call(update)
        elif kind == "terminal_update" and isinstance(update.get("output"), dict):
            self._terminals[update["terminalId"]] = base64.b64decode(update["output"]["data"])
        elif kind == "terminal_output_chunk":
            known = update["terminalId"]
            self._terminals[known] = self._terminals.get(known, b"") + base64.b64decode(update["data"])

    def _call(self, update: Message) -> Message:
        known = update["toolCallId"]
        new = known not in self._calls
        kept = self._calls.setdefault(known, [])
        if update["sessionUpdate"] == "tool_call_content_chunk":
            kept.append(update["content"])
            fields: Message = {}
        else:
            if "content" in update:
                kept[:] = update["content"] or []
            fields = {name: value for name, value in update.items() if value is not None}
        return {
            **_call_fields(fields),
            "toolCallId": known,
            "sessionUpdate": "tool_call" if new else "tool_call_update",
            "content": [self._content(part) for part in kept],
            **({"title": fields.get("title") or known} if new else {}),
        }

    def _content(self, part: Message) -> Message:
        if part.get("type") == "content":
            return part
        if part.get("type") == "terminal":
            text = self._terminals.get(part["terminalId"], b"").decode("utf-8", "replace")
        else:
            changed = [str(one.get("path") or one.get("newPath") or "") for one in part.get("changes") or ()]
            text = f"[change of {', '.join(filter(None, changed))}]" if changed else f"[{part.get('type')}]"
        return {"type": "content", "content": {"type": "text", "text": text}}

    def _ended(self, session: str, update: Message) -> Iterator[Message]:
        """Yield the response to the prompt when the agent is idle for a reason."""
        if update.get("sessionUpdate") != "state_update" or update.get("state") != "idle":
            return
        if (why := update.get("stopReason")) is not None and session in self._prompts:
            yield {
                "jsonrpc": "2.0",
                "id": self._prompts.pop(session),
                "result": {"stopReason": why if why in _STOPS else "refusal"},
            }


def _asked(message: Message) -> Message:
    """Return the parameters of a question as version 1 has them: the call it is about, and the options."""
    params = message["params"]
    subject = params.get("subject") or {}
    if subject.get("type") == "tool_call":
        call = _call_fields({k: v for k, v in subject["toolCall"].items() if v is not None})
    elif subject.get("type") == "command":
        call = {
            "title": subject["command"],
            "kind": "execute",
            "rawInput": {"command": subject["command"], "cwd": subject["cwd"]},
        }
        if subject.get("toolCallId"):
            call["toolCallId"] = subject["toolCallId"]
    else:
        call = {"title": params["title"]}
    call.setdefault("toolCallId", f"asked-{message['id']}")
    options = [one for one in params["options"] if one.get("kind") in _OPTIONS]
    return {"sessionId": params["sessionId"], "toolCall": call, "options": options}


def _call_fields(update: Message) -> Message:
    """Return the fields of a call with words of version 1: its enumerations are closed."""
    fields: Message = {
        name: update[name] for name in ("toolCallId", "title", "rawInput", "rawOutput") if name in update
    }
    if "kind" in update:
        fields["kind"] = update["kind"] if update["kind"] in KINDS else "other"
    if "status" in update:
        known = update["status"] in ("pending", "in_progress", "completed")
        fields["status"] = update["status"] if known else "failed"
    return fields


def _head(message: Message) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"]}
