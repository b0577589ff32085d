"""Responses of litellm, streamed and whole, as answers: text, thinking, calls, refusal, how the answer
ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.json_types import loads
from kestrel_lab.core.messages import ModelAnswer, ThinkingDelta, ThinkingPart
from kestrel_lab.models.chat_format import CallPieces, from_wire, wire_name
from kestrel_lab.models.litellm.cost import ReportedUsage, read_usage
from kestrel_lab.models.litellm.web_sources import Source, sources_of
from kestrel_lab.models.litellm.wire import StreamError, lines_of, repaired_chunk, repaired_events
from kestrel_lab.models.written_calls import ThinkingText, read_calls

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelRequest
    from kestrel_lab.core.protocols import OnDelta

_CUT = {
    "max_tokens": "length",
    "model_length": "length",
    "MAX_TOKENS": "length",
    "safety": "content_filter",
    "SAFETY": "content_filter",
}
"""Words of providers that litellm passes on, for those of the format."""


_CHAT_HANDLER = "ChatCompletionStreamingHandler"
"""How the classes of litellm are called that read streams of chat completions."""


class Response:
    """The part of an answer that has come in."""

    def __init__(self, on_delta: OnDelta, *, signed: bool) -> None:
        """Pass text on to `on_delta` as it comes; signatures of thinking are kept where the provider wants
        them back (`signed`).
        """
        self.model = ""
        self.usage: ReportedUsage | None = None
        self._sent = False
        self._calls = CallPieces()
        self._finish = "stop"
        self._sources: tuple[Source, ...] = ()
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._blocks: list[_Block] = []
        self._signed = signed
        self._text = ThinkingText(on_delta)
        self._on_delta = on_delta
        self._last: Any = None
        self._wrong: StreamError | None = None

    async def follow(self, stream: Any) -> None:
        """Take the chunks of a stream as they come."""
        # litellm drops parts of chunks: those of the OpenAI client are read before, and those that a handler
        # of its own parses.
        if type(source := stream.completion_stream).__name__ == "AsyncStream":
            self._repair_bytes(source.response)
            stream.completion_stream = self._with_all(source)
        elif (parse := getattr(source, "chunk_parser", None)) is not None:
            if any(kind.__name__.endswith(_CHAT_HANDLER) for kind in type(source).__mro__):
                source.streaming_response = self._lines(source.streaming_response)
            source.chunk_parser = lambda chunk: parse(self._noted(chunk))
        try:
            async for chunk in stream:
                self.add(chunk)
            if self._wrong is not None:
                raise self._wrong
            # Usage that was asked for through `extra_body` is added by litellm when a stream is over.
            self._count(getattr(self._last, "_hidden_params", {}).get("usage"))
        except Exception:
            # Litellm makes another error of it, without the server's words.
            if self._wrong is not None:
                raise self._wrong from None
            raise
        finally:
            await stream.aclose()

    def _repair_bytes(self, response: Any) -> None:
        """Have the OpenAI client read the repaired stream."""
        received, what = response.aiter_bytes, response.headers.get("content-type", "").partition(";")[0]

        async def repaired() -> AsyncIterator[bytes]:
            async for text in self._checked(lines_of(received()), what):
                yield f"data: {text}\n\n".encode("utf-8", "replace")

        response.aiter_bytes = repaired

    async def _lines(self, received: AsyncIterator[str]) -> AsyncIterator[str]:
        """Yield the lines of the repaired stream, for a handler of litellm."""
        async for text in self._checked(received, ""):
            yield f"data: {text}"

    async def _checked(self, lines: AsyncIterator[str], what: str) -> AsyncIterator[str]:
        try:
            async for text in repaired_events(lines, what, self._count_sent):
                yield text
        except StreamError as error:
            self._wrong = error
            raise

    async def _with_all(self, stream: Any) -> AsyncIterator[Any]:
        """Yield the chunks with blocks as text, and note what litellm passes over: refusals, and thinking in
        blocks.
        """
        try:
            async for chunk in stream:
                for choice in chunk.choices[:1]:
                    choice.delta.content = self._text_of(
                        getattr(choice.delta, "refusal", None), choice.delta.content
                    )
                yield chunk
        finally:
            await stream.close()

    def _noted(self, chunk: Any) -> Any:
        """Return a chunk that is still JSON with blocks as text, and note what litellm passes over."""
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        delta = (
            choices[0].get("delta")
            if isinstance(choices, list) and choices and isinstance(choices[0], dict)
            else None
        )
        if isinstance(delta, dict):
            text = self._text_of(delta.get("refusal"), delta.get("content"))
            delta |= {"content": text} if "content" in delta else {}
        return chunk

    def _text_of(self, refusal: Any, content: Any) -> Any:
        """Note a refusal, and thinking in blocks; return the text of blocks, and any other content as it
        is.
        """
        if isinstance(refusal, str) and refusal:
            self._refusal.append(refusal)
        if not isinstance(content, list):
            return content
        text, thought = split_blocks(content)
        self._think(thought)
        return text

    def take(self, answer: Any) -> None:
        """Take an answer that came whole, as litellm's object or as the JSON that the server sent.

        It is read as a stream of one chunk, so that both are read with the same care.
        """
        body = answer if isinstance(answer, dict) else answer.model_dump(warnings=False)
        self._sources = sources_of(answer)
        self._count(body.get("usage"))
        self.add(_as_chunk({**body, "usage": None}))

    def add(self, chunk: Any) -> None:
        """Take one chunk of a stream."""
        self._last = chunk
        self.model = chunk.model or self.model
        self._count(getattr(chunk, "usage", None))
        for choice in chunk.choices[:1]:
            self._add(choice, choice.delta)

    def answer(self, request: ModelRequest) -> ModelAnswer:
        """Return what has come in as the answer to `request`, without its usage."""
        text, written = self._text.finish()
        thinking = self._thinking() or tuple(ThinkingPart(text=block) for block in written)
        text = text.lstrip("\n") if thinking else text
        calls, finish = self._calls.requests(), _CUT.get(self._finish, self._finish)
        if request.tools and not calls:
            offered = {wire_name(tool.name) for tool in request.tools}
            text, calls = read_calls(
                text, offered, (message.text for message in request.messages if message.role != "assistant")
            )
            finish = "tool_calls" if calls and finish == "stop" else finish
        if self._refusal and not calls:
            said = "".join(self._refusal)
            self._on_delta(said)
            text, finish = f"{text}{said}", "refusal"
        return ModelAnswer(
            text=text,
            calls=from_wire(calls, request.tools),
            finish=finish,
            sources=self._sources,
            thinking=thinking,
        )

    def _add(self, choice: Any, said: Any) -> None:
        self._finish = choice.finish_reason or self._finish
        reasoning = getattr(said, "reasoning_content", None) or ""
        self._think(reasoning)
        if text := said.content:
            self._text.add(text)
        fields = getattr(said, "provider_specific_fields", None) or {}
        if refusal := fields.get("refusal"):
            self._refusal.append(str(refusal))
        for block in getattr(said, "thinking_blocks", None) or ():
            if not isinstance(block, Mapping):
                continue
            self._add_block(block)
            if not reasoning and (thought := block.get("thinking")):
                self._on_delta(ThinkingDelta(thought))
        # Only the calls of a stream have an index.
        for place, call in enumerate(said.tool_calls or ()):
            own = getattr(call, "provider_specific_fields", None) or {}
            signature = own.get("thought_signature") or ""
            self._calls.add(
                getattr(call, "index", place), call.id, call.function.name, call.function.arguments, signature
            )

    def _think(self, piece: str) -> None:
        if piece:
            self._reasoning.append(piece)
            self._on_delta(ThinkingDelta(piece))

    def _add_block(self, block: Mapping[str, Any]) -> None:
        """Take a block of thinking, or a piece of one: a signature ends it."""
        if data := block.get("data"):
            self._blocks.append(_Block(redacted=data, done=True))
            return
        if not self._blocks or self._blocks[-1].done:
            self._blocks.append(_Block())
        last = self._blocks[-1]
        last.text.append(block.get("thinking") or "")
        last.signature = (block.get("signature") or "") if self._signed else ""
        last.done = bool(last.signature)

    def _thinking(self) -> tuple[ThinkingPart, ...]:
        blocks = tuple(
            ThinkingPart(text="".join(one.text), signature=one.signature, redacted=one.redacted)
            for one in self._blocks
        )
        reasoning = "".join(self._reasoning)
        if any(one.text or one.redacted for one in blocks):
            return blocks
        return (ThinkingPart(text=reasoning),) if reasoning.strip() else ()

    def _count_sent(self, usage: Any) -> None:
        """Take the numbers as the server sent them: litellm makes tokens read of a sum alone."""
        self.usage = read_usage(usage) or self.usage
        self._sent = self.usage is not None

    def _count(self, usage: Any) -> None:
        if usage is not None and not self._sent:
            self.usage = read_usage(usage) or self.usage


@dataclass(slots=True)
class _Block:
    """A block of thinking on its way."""

    text: list[str] = field(default_factory=list)
    signature: str = ""
    redacted: str = ""
    done: bool = False


def split_blocks(blocks: list[Any]) -> tuple[str, str]:
    """Return the text and the thinking in a content of blocks, whose forms differ between servers."""
    texts: list[str] = []
    thoughts: list[str] = []
    for block in blocks:
        if not isinstance(block, Mapping):
            texts.append(block if isinstance(block, str) else "")
            continue
        inner = (
            block.get("thinking") or block.get("reasoning") or block.get("text") or block.get("refusal") or ""
        )
        pieces = (
            [inner]
            if isinstance(inner, str)
            else [part["text"] for part in inner if isinstance(part, Mapping) and "text" in part]
        )
        (thoughts if block.get("type") in ("thinking", "reasoning") else texts).extend(pieces)
    return "".join(texts), "".join(thoughts)


def completion_of(body: Any) -> dict[str, Any] | None:
    """Return the chat completion that a server sent, as text or as JSON; `None` for anything else."""
    try:
        completion: Any = loads(body) if isinstance(body, str) else body
    except ValueError:
        return None
    choices = completion.get("choices") if isinstance(completion, dict) else None
    if not isinstance(choices, list) or not any(isinstance(choice, dict) for choice in choices):
        return None
    return {**completion, "choices": [choice for choice in choices if isinstance(choice, dict)]}


def _as_chunk(completion: dict[str, Any]) -> SimpleNamespace:
    """Return a chat completion as the one chunk of a stream, with all that is read of chunks."""
    chunk = repaired_chunk(completion)
    choices = []
    for choice in chunk["choices"]:
        delta = dict(choice["delta"])
        content = delta.get("content")
        if isinstance(content, list):
            text, thought = split_blocks(content)
            delta |= {"content": text} | ({"reasoning_content": thought} if thought else {})
        fields = delta.get("provider_specific_fields")
        fields = fields if isinstance(fields, dict) else {}
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            fields = {"refusal": refusal, **fields}
        calls = [
            SimpleNamespace(**{"id": None, **call, "function": SimpleNamespace(**_function(call))})
            for call in delta.get("tool_calls") or ()
        ]
        named = {"content": None, **delta, "tool_calls": calls, "provider_specific_fields": fields}
        finish = choice.get("finish_reason")
        choices.append(SimpleNamespace(delta=SimpleNamespace(**named), finish_reason=finish))
    model = chunk.get("model")
    return SimpleNamespace(model=model if isinstance(model, str) else "", choices=choices, usage=None)


def _function(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"name": function.get("name"), "arguments": function.get("arguments")}
