"""Tool calling for models that have none: the prompt describes the tools, and the model replies in JSON.

The reply is `{"tool": …, "arguments": …}` or `{"answer": …}`, enforced by a JSON schema where the server supports one. It is
parsed leniently, so a server that ignores the schema works too: the first JSON object of a known form counts, and plain text
is an answer. A call that cannot be parsed goes back to the model with the problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.models.prompted_tools.parser import AnswerText, read_said
from kestrel_lab.models.prompted_tools.prompt import brief_prompt, reply_schema, required_only, tool_prompt
from kestrel_lab.models.wrapper import ModelWrapper

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kestrel_lab.core.protocols import Model, OnDelta


@dataclass(frozen=True, slots=True)
class TextToolModel(ModelWrapper):
    """`model` with tool calling; requests without tools pass through with tool messages as plain text.

    One tool is called per turn. Only the text of an answer is streamed, never the JSON around it.
    """

    model: Model
    thought: bool = field(default=False, kw_only=True)
    """Let the model write a thought before each call or answer (ReAct); it is the text beside a call."""
    max_result_chars: int = field(default=4000, kw_only=True)
    """Longer tool results are shown to the model with their middle left out."""
    brief: bool = field(default=False, kw_only=True)
    """For a very small model: the system message is only what it needs to call tools, optional arguments are not
    offered, one worked example of a tool that does not exist comes before the conversation, the first reply is a tool
    call, since left to itself such a model makes an answer up, and after the same call twice it has to answer."""

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer or ask for a tool; raises what the wrapped model raises."""
        messages = [self._as_text(message, json=bool(request.tools)) for message in request.messages]
        if not request.tools:
            return await self.model(replace(request, messages=messages), on_delta)
        offered = tuple(map(required_only, request.tools)) if self.brief else request.tools
        prompt = brief_prompt(offered) if self.brief else tool_prompt(offered, thought=self.thought, answer=request.schema)
        schema = reply_schema(
            () if self.brief and _repeats(request) else offered,
            thought=self.thought,
            answer=request.schema,
            call_first=self.brief and not _looked(request),
        )
        asked = replace(
            request,
            messages=_briefed(messages, prompt) if self.brief else _with_system(messages, prompt),
            tools=(),
            schema=schema,
        )
        shown = AnswerText(on_delta)
        said = await self.model(asked, shown.add)
        number = 1 + sum(len(message.calls) for message in request.messages)
        text, calls = read_said(said.text, tools=[tool.name for tool in request.tools], call_id=f"call_{number}")
        if not calls:
            shown.finish(text)
        finish = "tool_calls" if calls and said.finish == "stop" else said.finish
        return replace(said, text=text, calls=calls, finish=finish)

    def _as_text(self, message: Message, *, json: bool) -> Message:
        if message.role == "tool":
            result, _ = head_tail(message.text, self.max_result_chars)
            return Message(role="user", text=f"Result of {message.name or 'the tool'}: {result}")
        if message.calls:
            return Message(role="assistant", text="\n".join(self._said(message)))
        if message.role == "assistant" and json:
            # Earlier answers keep the form that is asked for: a small model imitates what it sees.
            return Message(role="assistant", text=dumps({"answer": message.text}))
        return message

    def _said(self, message: Message) -> Iterable[str]:
        for number, call in enumerate(message.calls):
            if call.problem and message.text:  # it was no call that could be read: these were its words
                yield message.text
                continue
            said: dict[str, Json] = {"tool": call.name, "arguments": call.args}
            yield dumps({"thought": message.text, **said} if self.thought and message.text and not number else said)


_EXAMPLE = (
    Message(role="user", text="What is in the box? Use look."),
    Message(role="assistant", text=dumps({"tool": "look", "arguments": {"where": "box"}})),
    Message(role="user", text="Result of look: a dog"),
    Message(role="assistant", text=dumps({"answer": "The result of look is: a dog"})),
)
"""Without the example the local model hardly ever calls a tool with an argument of its own; it mixes two examples up."""


def _looked(request: ModelRequest) -> bool:
    return any(message.role == "tool" for message in request.messages)


def _repeats(request: ModelRequest) -> bool:
    said = [[(call.name, call.args) for call in message.calls] for message in request.messages if message.calls]
    return len(said) > 1 and said[-1] == said[-2]


def _briefed(messages: list[Message], prompt: str) -> list[Message]:
    spoken = [message for message in messages if message.role != "system"]
    return [Message(role="system", text=prompt), *_EXAMPLE, *spoken]


def _with_system(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0].role == "system":
        return [replace(messages[0], text=f"{messages[0].text}\n\n{text}"), *messages[1:]]
    return [Message(role="system", text=text), *messages]
