"""The digest of a trial's conversation: the same whatever was remembered on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.messages import Message, ModelRequest, ToolSpec
from kestrel_lab.evals.execution.conversation_digest import ConversationDigest
from kestrel_lab.models.cassettes.recorder import answer_content, request_content
from kestrel_lab.models.cassettes.scrub import Scrubber, folder_hidden, map_texts
from kestrel_lab.testing import ScriptedModel

_PIECES = st.sampled_from(
    [
        "hello",
        "/tmp/space",
        "/tmp/space/a.txt",
        "/tmp/spaceship",
        "seconds: 1.5",
        "\n",
        "sk-ant-REDACTED",
        "When this session began it was Monday, 9:00.",
        " ",
        "x" * 5_000,
    ]
)
_TEXTS = st.lists(_PIECES, max_size=4).map("".join)
_TOOLS = st.builds(
    ToolSpec,
    name=st.just("look"),
    description=_TEXTS,
    schema=st.fixed_dictionaries({"type": st.just("object"), "description": _TEXTS}),
)
_REQUESTS = st.builds(
    ModelRequest,
    messages=st.lists(st.builds(Message, role=st.just("user"), text=_TEXTS), min_size=1, max_size=3),
    tools=st.lists(_TOOLS, max_size=2).map(tuple),
)


@given(requests=st.lists(_REQUESTS, min_size=1, max_size=4))
def test_the_digest_is_that_of_every_text_scrubbed_anew(requests: list[ModelRequest]) -> None:
    """What is remembered of tools and texts changes nothing, also where two requests differ in them."""
    clock = "When this session began it was "
    hide, scrub, place = folder_hidden(Path("/tmp/space")), Scrubber(), Path("/tmp/space")

    def hidden(text: str) -> str:
        text = scrub(hide(text))
        first, *rest = text.split(clock)
        return first + "".join(f"{clock}.{part.partition('.')[2]}" for part in rest)

    digest, calls = ConversationDigest(place), []
    model = digest.around(ScriptedModel(lambda request: f"{request.messages[-1].text}!"))

    async def ask() -> None:
        for request in requests:
            answer = await model(request, lambda _: None)
            told: Any = {**answer_content(answer), "model": ""}
            calls.append(
                content_key(
                    map_texts(cast("Any", request_content("", request)), hidden), map_texts(told, hidden)
                )
            )

    asyncio.run(ask())
    assert digest.value == content_key("conversation/1", sorted(calls))[:16]
