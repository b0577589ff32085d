"""Tool calls and thinking that a model writes into its text: `<tool_call>`, `functions.x(…)`,
`multi_tool_use.parallel`, `<think>`.

Forms: Hermes and Qwen (`<tool_call>` around JSON or around `<function=x><parameter=y>`), GLM (`<arg_key>`),
Llama 3 (`<function=x>{…}`, `<|python_tag|>{…}`, bare JSON), Mistral (`[TOOL_CALLS]`), Kimi
(`<|tool_call_begin|>`), DeepSeek (`<｜tool▁call▁begin｜>`), Anthropic's `<invoke>`, and OpenAI's
internal names `functions.x` and `multi_tool_use.parallel`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from kestrel_lab.core.json_types import Json, content_key, loads, readable
from kestrel_lab.core.messages import ThinkingDelta, ToolRequest

PARALLEL = "multi_tool_use.parallel"
"""The name under which some models of OpenAI put several calls into one."""
_PREFIX = "functions."
_DECODER = json.JSONDecoder(strict=False)
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_NAME = r"[\w.:-]+"
_JSON_AFTER = re.compile(
    # An object with name and arguments, or a list of them, follows.
    rf"""<tool_call>\s*(?=\{{)|<\|python_tag\|>\s*(?=\{{)|\[TOOL_CALLS\]\s*(?=\[|\{{)
    |<function=(?P<llama>{_NAME})>\s*(?=\{{)
    |\[TOOL_CALLS\]\s*(?P<mistral>{_NAME})\s*\[ARGS\]\s*(?=\{{)
    |<\|tool_call_begin\|>\s*(?P<kimi>{_NAME}?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{{)
    |<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<deepseek>{_NAME})(?:<｜tool▁sep｜>|\s*```json)\s*(?=\{{)
    |^[ \t]*(?:to=)?(?P<internal>(?:functions\.|multi_tool_use\.){_NAME})\s*\(?\s*(?=\{{)""",
    re.VERBOSE | re.MULTILINE,
)
_AFTER_JSON = re.compile(
    r"\s*(?:\)|```)?\s*(?:</tool_call>|</function>|<\|tool_call_end\|>|<｜tool▁call▁end｜>|<\|eom_id\|>|<\|eot_id\|>)?\s*;?(?:\s*</tool_call>)?"
)
_TAGGED = re.compile(
    rf"""<tool_call>\s*<function=(?P<qwen>{_NAME})>(?P<qwen_args>.*?)</function>\s*(?:</tool_call>)?
    |<function=(?P<bare>{_NAME})>(?P<bare_args>(?:\s*<parameter=.*?</parameter>)*)\s*</function>
    |<tool_call>\s*(?P<glm>{_NAME})\s*(?P<glm_args>(?:<arg_key>.*?</arg_value>\s*)*)</tool_call>
    |<invoke\ name="(?P<invoke>{_NAME})">(?P<invoke_args>.*?)</invoke>""",
    re.VERBOSE | re.DOTALL,
)
_PARAMETER = re.compile(
    r"""<parameter=(?P<a>[\w.-]+)>\n?(?P<av>.*?)\n?</parameter>
    |<arg_key>(?P<b>[\w.-]+)</arg_key>\s*<arg_value>(?P<bv>.*?)</arg_value>
    |<parameter\ name="(?P<c>[\w.-]+)">(?P<cv>.*?)</parameter>""",
    re.VERBOSE | re.DOTALL,
)
_LEFT_OVER = re.compile(
    r"</?(?:\w+:)?(?:function_calls|tool_calls?)>|<\|tool_calls_section_(?:begin|end)\|>|<｜tool▁calls▁(?:begin|end)｜>"
)
_MAY_HOLD = re.compile(
    r"tool_call|function|multi_tool_use|TOOL_CALLS|python_tag|tool▁call|<invoke|\A\s*(?:```json\s*)?\{"
)
_NAMED = re.compile(rf'"name"\s*:\s*"({_NAME})"')
_FENCED = re.compile(r"\A\s*```(?:json)?\s*(\{.*\})\s*```\s*\Z", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    """A call found in text."""

    name: str
    args: Json
    start: int
    end: int


def own_name(name: str, offered: Collection[str]) -> str:
    """Return the tool meant by `name`: without `functions.`, if only that is `offered`."""
    bare = name.removeprefix(_PREFIX)
    return bare if name not in offered and bare in offered else name


def expand_calls(requests: Iterable[ToolRequest], offered: Collection[str]) -> tuple[ToolRequest, ...]:
    """Return `requests` under the names of `offered`; `multi_tool_use.parallel` is split into its calls."""
    found: list[ToolRequest] = []
    for request in requests:
        parts = request.args.get("tool_uses")
        if request.name != PARALLEL or PARALLEL in offered or not isinstance(parts, list):
            found.append(replace(request, name=own_name(request.name, offered)))
            continue
        for number, part in enumerate(parts, 1):
            name, args = _name_and_args(part)
            problem = "" if isinstance(args, dict) else f"the arguments of {name!r} must be a JSON object"
            own = own_name(name, offered)
            found.append(
                ToolRequest(
                    id=f"{request.id}.{number}",
                    name=own,
                    args=args if isinstance(args, dict) else {},
                    problem=problem,
                )
            )
    return tuple(found)


def read_calls(
    text: str, offered: Collection[str], read: Iterable[str] = ()
) -> tuple[str, tuple[ToolRequest, ...]]:
    """Return `text` without the calls that it ends with, and these calls; only calls of `offered` tools
    count.

    If text follows the last call, it is an example. If the call occurs in one of the texts `read` (answers of
    tools and others), it is a quote. Neither counts: a person who can write to a file
    that a model quotes must not be able to make it call something.
    """
    if not _MAY_HOLD.search(text):
        return text, ()
    written = [
        one for one in _calls_in(text) if own_name(one.name, offered) in offered or one.name == PARALLEL
    ]
    # Text after a call explains it as an example.
    if not written or _LEFT_OVER.sub("", text[written[-1].end :]).strip():
        return text, ()
    quoted = {_key(one) for said in read if _MAY_HOLD.search(said) for one in _calls_in(said)}
    meant = [one for one in written if _key(one) not in quoted]
    # One quoted call makes the whole text a quotation: which of its calls are the model's own is unknown.
    if len(meant) < len(written):
        return text, ()
    requests = expand_calls((_request(number, one) for number, one in enumerate(meant, 1)), offered)
    if not all(request.name in offered for request in requests):
        return text, ()
    return _LEFT_OVER.sub("", text[: written[0].start]).strip(), requests


def _key(one: _Written) -> str:
    return content_key(one.name.removeprefix(_PREFIX), one.args)


def _request(number: int, one: _Written) -> ToolRequest:
    if isinstance(one.args, dict):
        return ToolRequest(id=f"call_{number}", name=one.name, args=one.args)
    return ToolRequest(
        id=f"call_{number}",
        name=one.name,
        problem=f"the arguments of {one.name!r} must be a JSON object: {readable(one.args)[:200]}",
    )


def _calls_in(text: str) -> Iterator[_Written]:
    at = 0
    while True:
        found = min(
            (hit for hit in (_JSON_AFTER.search(text, at), _TAGGED.search(text, at)) if hit),
            key=lambda hit: hit.start(),
            default=None,
        )
        if found is None:
            break
        if found.re is _TAGGED:
            kind = next(name for name in ("qwen", "bare", "glm", "invoke") if found[name] is not None)
            yield _Written(
                name=found[kind],
                args=_parameters(found[f"{kind}_args"]),
                start=found.start(),
                end=found.end(),
            )
            at = found.end()
            continue
        try:
            value, at = _DECODER.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            named = next((word for word in found.groups() if word), "") or next(
                iter(_NAMED.findall(text, found.end())), ""
            )
            # The JSON is cut off or invalid. The call is returned all the same, so that the model gets an
            # error and can repeat it.
            if named:
                yield _Written(name=named, args=text[found.end() :], start=found.start(), end=len(text))
            return
        close = _AFTER_JSON.match(text, at)
        at = close.end() if close else at
        name = next((word for word in found.groups() if word), "")
        for part in value if isinstance(value, list) and not name else [value]:
            own, args = (name.removeprefix("to="), part) if name else _name_and_args(part)
            if own:
                yield _Written(name=own, args=args, start=found.start(), end=at)
    if not at:
        yield from _bare_calls(text)


def _bare_calls(text: str) -> Iterator[_Written]:
    """Yield the call in a text that is only a JSON object with a name and arguments."""
    fenced = _FENCED.match(text)
    try:
        value = loads(fenced[1] if fenced else text.strip())
    except ValueError:
        return
    name, args = _name_and_args(value)
    if (
        name
        and isinstance(args, dict)
        and isinstance(value, dict)
        and any(word in value for word in _ARGUMENTS)
    ):
        yield _Written(name=name, args=args, start=0, end=len(text))


def _name_and_args(part: Json) -> tuple[str, Json]:
    if not isinstance(part, dict):
        return "", {}
    inner = part.get("function")
    body = inner if isinstance(inner, dict) else part
    name = body.get("name") or body.get("recipient_name") or (inner if isinstance(inner, str) else "")
    args = next((body[word] for word in _ARGUMENTS if word in body), {})
    if isinstance(args, str):
        try:
            args = loads(args)
        except ValueError:
            return str(name), args
    return (name if isinstance(name, str) else ""), args


def _parameters(text: str) -> dict[str, Json]:
    """Return arguments written in tags; JSON values other than quoted texts are parsed."""
    found: dict[str, Json] = {}
    for hit in _PARAMETER.finditer(text):
        kind = next(name for name in "abc" if hit[name] is not None)
        value: Json = hit[f"{kind}v"]
        try:
            read = loads(str(value))
        except ValueError:
            read = value
        found[hit[kind]] = value if isinstance(read, str) else read
    return found


# Thinking in the text.

_TAGS = {"<think>": "</think>", "<thinking>": "</thinking>", "[THINK]": "[/THINK]"}
_UNOPENED = re.compile(r"^[ \t]*</think(?:ing)?>[ \t]*$\n*", re.MULTILINE)


class ThinkingText:
    """Divides text that comes in pieces into the answer and the thinking in `<think>`, `<thinking>` or
    `[THINK]`.

    A block begins at the beginning of a line, outside of fenced code. An opening tag that nothing closes
    begins thinking only before any text of the answer. A closing tag alone in its line that nothing opened
    ends thinking that began with the text, as the prompt templates of some models open the block themselves.
    """

    def __init__(self, on_text: Callable[[str], object]) -> None:
        """Pass the text of the answer on to `on_text` as it comes, and the thinking as `ThinkingDelta`."""
        self._on_text = on_text
        self._said: list[str] = []
        self._thought: list[list[str]] = []
        self._held = ""
        self._close = ""
        self._line = ""
        self._fenced = False
        self._behind = False

    def add(self, piece: str) -> None:
        """Take the next piece."""
        text, self._held = self._held + piece, ""
        out: list[str] = []
        # An index, as the rest of a long text is not to be copied for each line.
        at = 0
        while at < len(text):
            if self._close:
                self._pass(out)
                out.clear()
                at = self._inside(text, at)
            else:
                at = self._outside(text, at, out)
        self._pass(out)

    def finish(self) -> tuple[str, tuple[str, ...]]:
        """Return the text of the answer and the blocks of thinking."""
        if self._close:
            self._thought[-1].append(self._held)
            # Nothing closed it, so it was no block.
            if any(piece.strip() for piece in self._said):
                self._pass([self._close.replace("/", ""), *self._thought.pop()])
        elif self._held:
            self._pass([self._held])
        self._held = self._close = ""
        text = "".join(self._said)
        thought = ["".join(pieces).strip() for pieces in self._thought]
        if (
            not self._thought
            and "</think" in text
            and (end := _UNOPENED.search(text))
            and "```" not in text[: end.start()]
        ):
            thought, text = [text[: end.start()].strip()], text[end.end() :]
        return (text.strip() if thought else text), tuple(block for block in thought if block)

    def _pass(self, pieces: list[str]) -> None:
        if text := "".join(pieces):
            self._said.append(text)
            self._on_text(text)

    def _think(self, piece: str) -> None:
        self._thought[-1].append(piece)
        if piece:
            self._on_text(ThinkingDelta(piece))

    def _inside(self, text: str, at: int) -> int:
        """Consume thinking from `at`; return where it ends."""
        end = text.find(self._close, at)
        if end < 0:
            kept = max(at, len(text) - len(self._close) + 1)
            self._think(text[at:kept])
            self._held = text[kept:]
            return len(text)
        self._think(text[at:end])
        at = end + len(self._close)
        self._close, self._line, self._behind = "", "", True
        return at

    def _outside(self, text: str, at: int, out: list[str]) -> int:
        """Consume a line of the answer, or the tag that starts thinking, from `at`; return where it ends."""
        if self._behind and text[at] == "\n":
            return at + 1
        self._behind = False
        end = text.find("\n", at) + 1
        line = text[at : end or len(text)]
        if not self._line and not self._fenced:
            begun = line.lstrip(" \t")
            opened = next((tag for tag in _TAGS if begun.startswith(tag)), "")
            if opened:
                self._close = _TAGS[opened]
                self._thought.append([])
                return text.index(opened, at) + len(opened)
            if not end and any(tag.startswith(begun) for tag in _TAGS):
                self._held = line
                return len(text)
        out.append(line)
        self._line = (self._line + line[:80])[:80]
        if end:
            self._fenced ^= self._line.lstrip().startswith("```")
            self._line = ""
        return end or len(text)
