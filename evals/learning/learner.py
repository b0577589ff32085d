"""A simulated agent, no model: it works by trial and error, but uses a note or a macro that it is offered, four times of five.

It is the same in all configurations. What it is told and offered makes the difference, and that is what the suite measures:
whether what one run learned reaches the next, in a form that spares it turns. How much a real model makes of notes is another question.
"""

from __future__ import annotations

import random
import re

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.messages import ModelAnswer, ModelRequest, ToolRequest

HEEDS = 0.8
"""How often it looks at what it is told and offered at all."""

Said = str | tuple[str, dict[str, Json]]


def learner(request: ModelRequest) -> ModelAnswer:
    """The next turn of the task that the goal names."""
    first = next(message.text for message in request.messages if message.role == "user")
    heeds = (
        random.Random(content_key(request.seed, first.split("\n")[0])).random() < HEEDS  # noqa: S311
    )  # the same again for the same seed
    results = [message.text for message in request.messages if message.role == "tool"]
    if found := re.match(r"What is (\w+) in (\S+)\?", first):
        said = _look_up(found[1], found[2], first if heeds else "", results)
    elif found := re.match(r"Put (\w+) into (\S+), ", first):
        said = _put(found[1], found[2], request if heeds else None, results)
    else:
        said = "I do not know what to do."
    usage = Usage(
        tokens_in=sum(len(message.text) for message in request.messages) // 4, tokens_out=len(str(said)) // 4
    )
    if isinstance(said, str):
        return ModelAnswer(text=said, usage=usage)
    return ModelAnswer(
        calls=(ToolRequest(id=f"{len(results)}", name=said[0], args=said[1]),),
        usage=usage,
        finish="tool_calls",
    )


def _look_up(key: str, name: str, first: str, results: list[str]) -> Said:
    """Read the file where a note says it is; without one where the goal says, and then look for it."""
    if results and (value := re.search(rf"\b{key} = (\w+)", results[-1])):
        return f"{key} is {value[1]}."
    noted = re.search(
        rf'read_file with [^\n]*\\"{re.escape(name)}\\"[^\n]*It worked with \{{\\"path\\":\\"([^"\\]+)', first
    )
    match len(results):
        case 0:
            return "read_file", {"path": noted[1] if noted else name}
        case 1:
            return "glob", {"pattern": f"**/{name}"}
        case 2:
            return "read_file", {
                "path": next(
                    (line.strip() for line in results[-1].splitlines() if line.strip().endswith(name)), name
                )
            }
    return f"I could not find {key}."


def _put(word: str, path: str, request: ModelRequest | None, results: list[str]) -> Said:
    """Three calls, or the macro that makes the same three."""
    offered = next(
        (tool.description for tool in (request.tools if request else ()) if tool.name == "macro_run"), ""
    )
    macro = re.search(r"- (\w*write_file\w*)\(path, content\)", offered)
    steps: list[Said] = [
        ("write_file", {"path": path, "content": word}),
        ("file_exists", {"path": path}),
        ("read_file", {"path": path}),
    ]
    if macro:
        steps = [("macro_run", {"name": macro[1], "args": {"path": path, "content": word}})]
    return steps[len(results)] if len(results) < len(steps) else "It is there."
