"""The digest of everything that the models of a trial were asked and answered, where no chance was involved.

Scripts and recordings answer the same whenever they are asked the same. Two trials with equal digests are
therefore the same trial made twice, and not two samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from json.encoder import encode_basestring as json_text
from pathlib import Path
from typing import Final

from kestrel_lab.core.json_types import content_key, sorted_json, text_key
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ToolSpec
from kestrel_lab.core.protocols import Model, OnDelta
from kestrel_lab.models.cassettes.recorder import (
    answer_content,
    message_content,
    settings_content,
    tools_content,
)
from kestrel_lab.models.cassettes.scrub import Scrubber, folder_hidden
from kestrel_lab.models.wrapper import ModelWrapper

_CLOCK: Final = re.compile(r"(?<=When this session began it was )[^.]*(?=\.)")
"""The time in the instructions of a run, see `Handshake.line`."""


_scrub: Final = Scrubber()
_LONGEST: Final = 4_000
"""Characters of a text that is remembered once it was scrubbed."""


def _scrub_once(text: str) -> str:
    return _CLOCK.sub("", _scrub(text))


# Every request repeats the instructions, the tools and the messages so far, and most trials of a suite share
# the first two.
_remembered: Final = lru_cache(maxsize=2_000)(_scrub_once)


class ConversationDigest:
    """Collects the calls of a trial in `workspace`."""

    def __init__(self, workspace: Path, like: ConversationDigest | None = None) -> None:
        """`like` is that of another trial in the same folder: what it found out is not found out again."""
        self._hide_folder = folder_hidden(workspace) if like is None else like._hide_folder
        self._calls: list[str] = []
        self._chance = False
        self._tools: list[tuple[tuple[ToolSpec, ...], str]] = [((), "[]")] if like is None else like._tools
        """One element: the tools of the last request, and their JSON text."""
        self._messages: dict[int, tuple[Message, str]] = {}
        """By identity, the JSON text of messages: each request repeats those of the one before."""

    def around(self, model: Model) -> Model:
        """Return `model`, whose calls are collected; those of a real model are not, as it may answer
        differently next time.
        """
        if model.kind == "real":
            self._chance = True
            return model
        return _Collected(model=model, calls=self._calls, json=self._json, asked=self._asked)

    def key(self, name: str, request: ModelRequest) -> str:
        """Return a hash of a request to the model `name`, equal for the same request of another trial:
        folder, clock and secrets are no part of it.
        """
        tools = self._json_of_tools(request.tools)
        return text_key(f"[{self._asked(name, request, '[]')},{tools}]")

    def _asked(self, name: str, request: ModelRequest, tools: str = "") -> str:
        """Return `request_content`, what is hidden left out, as sorted JSON; `tools` replaces its tools."""
        messages = ",".join(map(self._json_of_message, request.messages))
        return (
            f'{{"messages":[{messages}],"model":{self._json(name)},'
            f'"settings":{self._json(settings_content(request))},'
            f'"tools":{tools or self._json_of_tools(request.tools)}}}'
        )

    def _json(self, content: object) -> str:
        """Return the `sorted_json` of `content` with every text hidden in it, but no key: both in one go."""
        if isinstance(content, str):
            return json_text(self._hide(content))
        if isinstance(content, dict):
            pairs = [f"{json_text(str(key))}:{self._json(content[key])}" for key in sorted(content)]
            return f"{{{','.join(pairs)}}}"
        if isinstance(content, list):
            return f"[{','.join(map(self._json, content))}]"
        return sorted_json(content)

    def _json_of_message(self, message: Message) -> str:
        known = self._messages.get(id(message))
        if known is None:
            # The message is kept too: else another one could get its identity.
            self._messages[id(message)] = known = message, self._json(message_content(message))
        return known[1]

    def _json_of_tools(self, tools: tuple[ToolSpec, ...]) -> str:
        """Return the JSON of the tools; nearly always they are those of the request before."""
        known = self._tools[0]
        if tools != known[0]:
            known = self._tools[0] = tools, self._json(tools_content(tools))
        return known[1]

    def _hide(self, text: str) -> str:
        text = self._hide_folder(text)
        return _remembered(text) if len(text) <= _LONGEST else _scrub_once(text)

    @property
    def value(self) -> str:
        """The digest; empty where a real model was among those that were asked, and where none was asked."""
        # Steps and sub-agents that run side by side ask in any order.
        return (
            "" if self._chance or not self._calls else content_key("conversation/1", sorted(self._calls))[:16]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Collected(ModelWrapper):
    model: Model
    calls: list[str] = field(repr=False)
    json: Callable[[object], str] = field(repr=False)
    asked: Callable[[str, ModelRequest], str] = field(repr=False)

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Ask the model, and collect what was asked and answered; a call that fails is collected with its
        request alone.
        """
        # The name is not part of it: a script is named by its whole path, which is another one in each
        # checkout.
        asked, answered = self.asked("", request), "null"
        try:
            answer = await self.model(request, on_delta)
            answered = self.json({**answer_content(answer), "model": ""})
        finally:
            self.calls.append(text_key(f"[{asked},{answered}]"))
        return answer
