"""The digest of everything that the models of a trial were asked and answered, where no chance was involved.

Scripts and recordings answer the same whenever they are asked the same. Two trials with equal digests are
therefore the same trial made twice, and not two samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Model, OnDelta
from kestrel_lab.models.cassettes.recorder import answer_content, request_content
from kestrel_lab.models.cassettes.scrub import Scrubber, folder_hidden, map_texts
from kestrel_lab.models.wrapper import ModelWrapper

_CLOCK: Final = re.compile(r"(?<=When this session began it was )[^.]*(?=\.)")
"""The time in the instructions of a run, see `Handshake.line`."""


class ConversationDigest:
    """Collects the calls of a trial in `workspace`."""

    def __init__(self, workspace: Path) -> None:
        hide, scrub = folder_hidden(workspace), Scrubber()
        self._hide: Callable[[str], str] = lambda text: _CLOCK.sub("", scrub(hide(text)))
        self._calls: list[str] = []
        self._chance = False

    def around(self, model: Model) -> Model:
        """Return `model`, whose calls are collected; those of a real model are not, as it may answer
        differently next time.
        """
        if model.kind == "real":
            self._chance = True
            return model
        return _Collected(model=model, calls=self._calls, hide=self._hide)

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
    hide: Callable[[str], str] = field(repr=False)

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Ask the model, and collect what was asked and answered; a call that fails is collected with its
        request alone.
        """
        # The name is not part of it: a script is named by its whole path, which is another one in each
        # checkout.
        asked = map_texts(cast("Json", request_content("", request)), self.hide)
        answered: Json = None
        try:
            answer = await self.model(request, on_delta)
            answered = map_texts(cast("Json", {**answer_content(answer), "model": ""}), self.hide)
        finally:
            self.calls.append(content_key(asked, answered))
        return answer
