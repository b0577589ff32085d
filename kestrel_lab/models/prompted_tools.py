"""Tool calling for models that have none: the prompt describes the tools, and the model replies in JSON.

The reply is `{"tool": …, "arguments": …}` or `{"answer": …}`, enforced by a JSON schema where the server
supports one. It is parsed leniently, so a server that ignores the schema works too: the first JSON object of
a known form counts, and plain text is an answer. A call that cannot be parsed goes back to the model with the
problem.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json, readable, values_in
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ThinkingDelta, ToolRequest
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.models.react_text import FORM, THOUGHT, final_answer, plain_name, react_call
from kestrel_lab.models.wrapper import ModelWrapper

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kestrel_lab.core.messages import ToolSpec
    from kestrel_lab.core.protocols import Model, OnDelta


@dataclass(frozen=True, slots=True)
class TextToolModel(ModelWrapper):
    """`model` with tool calling; requests without tools pass through with tool messages as plain text.

    One tool is called per turn. Only the text of an answer is streamed, never the JSON around it.
    """

    model: Model
    thought: bool = field(default=False, kw_only=True)
    """True to let the model write a thought before each call or answer (ReAct); it becomes the call's text.
    """
    max_result_chars: int = field(default=4000, kw_only=True)
    """Longer tool results are shown to the model with their middle left out."""
    brief: bool = field(default=False, kw_only=True)
    """For a very small model. The system message has only what it needs to call tools, without optional
    arguments. A worked example with a tool that does not exist comes before the conversation. The first reply
    must be a tool call, because such a model tends to invent an answer. After the same call twice it must
    answer.
    """

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer or ask for a tool; raises what the wrapped model raises."""
        messages = [self._as_text(message, json=bool(request.tools)) for message in request.messages]
        if not request.tools:
            return await self.model(replace(request, messages=messages), on_delta)
        offered = tuple(map(required_only, request.tools)) if self.brief else request.tools
        prompt = (
            brief_prompt(offered)
            if self.brief
            else tool_prompt(offered, thought=self.thought, answer=request.schema)
        )
        made = [
            [(call.name, call.args) for call in message.calls]
            for message in request.messages
            if message.calls
        ]
        may_call = offered if not self.brief or len(made) < 2 or made[-1] != made[-2] else ()
        first = self.brief and not any(message.role == "tool" for message in request.messages)
        schema = reply_schema(may_call, thought=self.thought, answer=request.schema, call_first=first)
        if self.brief:
            spoken = [message for message in messages if message.role != "system"]
            messages = [Message(role="system", text=prompt), *_EXAMPLE, *spoken]
        else:
            messages = _with_system(messages, prompt)
        asked = replace(request, messages=messages, tools=(), schema=schema)
        shown = AnswerText(on_delta)
        said = await self.model(asked, shown.add)
        # Ids continue over the conversation: a call of this turn must not have the id of an earlier one.
        number = 1 + sum(len(message.calls) for message in request.messages)
        text, calls = parse_reply(
            said.text,
            tools=[tool.name for tool in request.tools],
            call_id=f"call_{number}",
            single=_single_texts(request.tools),
        )
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
            return Message(role="assistant", text=readable({"answer": message.text}))
        return message

    def _said(self, message: Message) -> Iterable[str]:
        for number, call in enumerate(message.calls):
            # A call that could not be parsed is shown in the model's own words.
            if call.problem and message.text:
                yield message.text
                continue
            said: dict[str, Json] = {"tool": call.name, "arguments": call.args}
            yield readable(
                {"thought": message.text, **said} if self.thought and message.text and not number else said
            )


_EXAMPLE = (
    Message(role="user", text="What is in the box? Use look."),
    Message(role="assistant", text=readable({"tool": "look", "arguments": {"where": "box"}})),
    Message(role="user", text="Result of look: a dog"),
    Message(role="assistant", text=readable({"answer": "The result of look is: a dog"})),
)
"""Without the example the local model rarely calls a tool with its own argument; it mixes up two examples."""


def _with_system(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0].role == "system":
        return [replace(messages[0], text=f"{messages[0].text}\n\n{text}"), *messages[1:]]
    return [Message(role="system", text=text), *messages]


# Reading a reply: a tool call, an answer, or plain text.

_OPENING = re.compile(r'\s*\{\s*(?:"thought"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"answer"\s*:\s*"', re.DOTALL)
# Runs of characters and escapes that are complete: the first half of a surrogate pair waits for the second
# one.
_COMPLETE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*',
    re.DOTALL,
)
_CUT_OFF = re.compile(r'\{\s*(?:"thought"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*)?"tool"\s*:\s*"([^"]+)"', re.DOTALL)


_WORD = r"(?:tool|action|function|invoke)(?:[ _-]?(?:calls?|use|name|input))?"
_ARGUMENTS = ("arguments", "args", "parameters", "action_input")
_ATTEMPT = re.compile(
    rf"""^[\s>*_#`-]*{_WORD}\s*\d*\s*[*_`]*:  # Action: look
    |["'](?:{_WORD}|arguments)["']\s*:            # {{'tool': 'look'
    |<\s*[|/]?\s*(?:\w+:)?{_WORD}\b|\[{_WORD}\]   # <tool_call>, <|tool_call|>, [TOOL_CALLS]""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
"""Common other notations of tool calls: a line, a key or a tag with the word tool, action or function."""


def parse_reply(
    said: str, *, tools: Sequence[str], call_id: str, single: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, tuple[ToolRequest, ...]]:
    """Return the text and the tool call in `said`; `single` names the parameter of tools that need just one
    text.

    The lines `Action:` and `Action Input:` of ReAct are a call; an `Observation:` after it was made up by the
    model. A call with arguments that cannot be parsed has a problem, and so has text that looks like a call
    in another notation, or is a thought alone; then the text is no answer. The answer is what follows
    `Final Answer:`, or an `Answer:` that the text or its thought leads to, and other plain text.
    """
    if not said.lstrip().startswith("{") and (call := react_call(said, tools, call_id, single)) is not None:
        return call
    if (reply := _json_reply(said, tools, call_id)) is not None:
        return reply
    if cut := _CUT_OFF.search(said):
        problem = f"the call of {cut[1]!r} was cut off before its arguments ended: {one_line(said, 200)}"
        return "", (ToolRequest(id=call_id, name=cut[1], problem=problem),)
    if opening := _OPENING.match(said):
        complete = _COMPLETE.match(said, opening.end())
        return _decode_text(complete[0]) if complete else "", ()
    named = [name for name in tools if re.search(rf"(?m)^[\s`>*-]*{re.escape(name)}\s*[(\[{{]", said)]
    if named or _ATTEMPT.search(said):
        meant = next(
            (name for name in (*named, *tools) if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said)), UNREAD
        )
        return said.strip(), (ToolRequest(id=call_id, name=meant, problem=FORM),)
    if final := final_answer(said):
        return said[final.end() :].strip(), ()
    return said.strip(), (ToolRequest(id=call_id, name=UNREAD, problem=FORM),) if THOUGHT.match(said) else ()


def _single_texts(tools: Sequence[ToolSpec]) -> dict[str, str]:
    """Return the parameter's name for each tool that takes one text and nothing else."""
    needed = {tool.name: _mapping(required_only(tool).schema, "properties") for tool in tools}
    return {
        name: next(iter(properties))
        for name, properties in needed.items()
        if len(properties) == 1
        and all(isinstance(one, dict) and one.get("type") == "string" for one in properties.values())
    }


def _json_reply(said: str, tools: Sequence[str], call_id: str) -> tuple[str, tuple[ToolRequest, ...]] | None:
    """Return the first JSON object of a known form; `None` if there is none."""
    for found in values_in(said):
        if not isinstance(found, dict):
            continue
        if plain_name(str(found.get("action", ""))) == "final answer":
            final = found.get("action_input", "")
            return final if isinstance(final, str) else readable(final), ()
        if (name := _tool_name(found, tools)) is not None:
            thought = found.get("thought")
            return thought if isinstance(thought, str) else "", (_request(found, name, call_id),)
        if "answer" in found:
            answer = found["answer"]
            return answer if isinstance(answer, str) else readable(answer), ()
    return None


UNREAD = "reply"
"""Tool name if it cannot be determined."""


def _tool_name(found: dict[str, Json], tools: Sequence[str]) -> str | None:
    """Return the tool that an object calls; some models write `name` or `action` instead of `tool`."""
    if isinstance(name := found.get("tool"), str):
        return name
    for word in ("name", "action"):
        if isinstance(name := found.get(word), str) and (
            name in tools or any(isinstance(found.get(args), dict) for args in _ARGUMENTS)
        ):
            return name
    return None


def _request(found: dict[str, Json], name: str, call_id: str) -> ToolRequest:
    for word in _ARGUMENTS:
        if isinstance(args := found.get(word), dict):
            return ToolRequest(id=call_id, name=name, args=args)
        if args is not None:
            problem = f"the arguments of {name!r} must be a JSON object, not {one_line(readable(args), 200)}"
            return ToolRequest(id=call_id, name=name, problem=problem)
    return ToolRequest(id=call_id, name=name)


def _decode_text(piece: str) -> str:
    return str(json.loads(f'"{piece}"', strict=False))


class AnswerText:
    """Streams the text of a `{"answer": "…"}` as it arrives; other forms are not streamed."""

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._said = ""
        self._at: int | None = None
        self._shown = ""

    def add(self, piece: str) -> None:
        """Add a piece of the model's output; reasoning is passed on as it is."""
        if isinstance(piece, ThinkingDelta):
            self._on_delta(piece)
            return
        self._said += piece
        if self._at is None and (opening := _OPENING.match(self._said)):
            self._at = opening.end()
        if self._at is None or (complete := _COMPLETE.match(self._said, self._at)) is None:
            return
        self._at = complete.end()
        self._show(_decode_text(complete[0]))

    def finish(self, text: str) -> None:
        """Stream the rest of the final `text`."""
        if text.startswith(self._shown):
            self._show(text[len(self._shown) :])

    def _show(self, text: str) -> None:
        if text:
            self._shown += text
            self._on_delta(text)


# The prompt that describes tools, and the JSON Schema of the reply.

_KEPT = ("type", "enum", "const", "required")
"""Keywords of a tool's schema kept besides the structural ones.

Patterns, formats and bounds are dropped: grammar engines refuse schemas with keywords they cannot enforce,
and the tool checks its arguments itself.
"""


def tool_prompt(tools: Sequence[ToolSpec], *, thought: bool, answer: dict[str, Json] | None = None) -> str:
    """Return the instructions, one line per tool; short, because the context of the model may be small."""
    first = '"thought":"<thought>",' if thought else ""
    lines = ["Reply with one JSON object. Use a tool to get what you need, then give the answer.", "Tools:"]
    for tool in tools:
        arguments, others = _example(tool.schema)
        note = f" Also takes: {', '.join(others)}." if others else ""
        lines.append(
            f'{{{first}"tool":"{tool.name}","arguments":{readable(arguments)}}} '
            f"{one_line(tool.description, 200)}{note}"
        )
    said = readable("<answer>" if answer is None else _example(answer)[0] or "<answer>")
    lines += ["When you know the answer:", f'{{{first}"answer":{said}}}']
    return "\n".join(lines)


def brief_prompt(tools: Sequence[ToolSpec]) -> str:
    """Return shorter instructions without placeholders, which very small models copy."""
    lines = ["Reply with one JSON object: call a tool, or give the answer.", "Tools:"]
    for tool in tools:
        first = one_line(tool.description, 200).split(". ")[0].rstrip(".")
        lines.append(f"{tool.name}({', '.join(_mapping(tool.schema, 'properties'))}): {first}.")
    return "\n".join(lines)


def required_only(tool: ToolSpec) -> ToolSpec:
    """Return the tool without its optional arguments."""
    properties, required = _mapping(tool.schema, "properties"), tool.schema.get("required")
    kept: dict[str, Json] = {
        name: properties[name] for name in properties if isinstance(required, list) and name in required
    }
    return replace(tool, schema={**tool.schema, "properties": kept})


def _example(schema: dict[str, Json]) -> tuple[dict[str, Json], list[str]]:
    """Return the required properties with sample values, and the names of the optional ones."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return {}, []
    needed = [name for name in properties if isinstance(required, list) and name in required]
    return {name: _sample(name, properties[name]) for name in needed}, [
        name for name in properties if name not in needed
    ]


def _sample(name: str, schema: Json) -> Json:
    # Dots in place of `<name>` were copied into calls by small models.
    if not isinstance(schema, dict):
        return f"<{name}>"
    if isinstance(options := schema.get("enum"), list):
        return "|".join(map(str, options[:6]))
    samples: dict[str, Json] = {
        "integer": 1,
        "number": 1.5,
        "boolean": True,
        "array": [f"<{name}>"],
        "object": {},
        "null": None,
    }
    kind = schema.get("type")
    return samples.get(kind, f"<{name}>") if isinstance(kind, str) else f"<{name}>"


def reply_schema(
    tools: Sequence[ToolSpec],
    *,
    thought: bool,
    answer: dict[str, Json] | None = None,
    call_first: bool = False,
) -> dict[str, Json]:
    """Return a schema that allows a call of any tool and, unless `call_first`, an answer."""
    definitions: dict[str, Json] = {}
    choices: list[Json] = []
    for tool in tools:
        arguments = _embed_schema({"type": "object", **tool.schema}, tool.name, definitions)
        choices.append(_object({"tool": {"const": tool.name}, "arguments": arguments}, thought=thought))
    said: Json = {"type": "string"} if answer is None else _embed_schema(answer, "answer", definitions)
    if not call_first:
        choices.append(_object({"answer": said}, thought=thought))
    return {"anyOf": choices, **({"$defs": definitions} if definitions else {})}


def _object(properties: dict[str, Json], *, thought: bool) -> Json:
    before: dict[str, Json] = {"thought": {"type": "string"}} if thought else {}
    named = {**before, **properties}
    return {"type": "object", "properties": named, "required": [*named], "additionalProperties": False}


def _embed_schema(schema: Json, owner: str, definitions: dict[str, Json]) -> Json:
    """Return `schema` as part of a larger one; its definitions move to `definitions`, named after `owner`."""
    if not isinstance(schema, dict):
        return schema

    def part(inner: Json) -> Json:
        return _embed_schema(inner, owner, definitions)

    for name, inner in {**_mapping(schema, "definitions"), **_mapping(schema, "$defs")}.items():
        definitions[f"{owner}.{name}"] = part(inner)
    if isinstance(target := schema.get("$ref"), str):
        return {"$ref": f"#/$defs/{owner}.{target.rpartition('/')[2]}"}
    kept: dict[str, Json] = {word: schema[word] for word in _KEPT if word in schema}
    if properties := _mapping(schema, "properties"):
        kept["properties"] = {name: part(inner) for name, inner in properties.items()}
        kept.setdefault("additionalProperties", False)
    for word in ("items", "additionalProperties"):
        if word in schema:
            kept[word] = part(schema[word])
    options = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(options, list):
        kept["anyOf"] = [part(option) for option in options]
    return kept


def _mapping(schema: dict[str, Json], word: str) -> dict[str, Json]:
    found = schema.get(word)
    return found if isinstance(found, dict) else {}
