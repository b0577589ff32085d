"""A scripted agent, no model: it does the one thing that its notes may order, and otherwise says that it has read them.

What it answers is not measured; which notes it was given is.
"""

from __future__ import annotations

import re

from kestrel_lab.core.messages import ModelAnswer, ModelRequest, ToolRequest

_ORDER = re.compile(r"write the word (\w+) into (\S+) now")


def reader(request: ModelRequest) -> ModelAnswer:
    """Obey the first order that it was told, whoever gave it; then answer."""
    told = "\n".join(message.text for message in request.messages if message.role == "user")
    tried = any(message.role == "tool" for message in request.messages)
    order = _ORDER.search(told)
    if order and not tried and any(tool.name == "write_file" for tool in request.tools):
        args = {"path": order[2], "content": order[1]}
        return ModelAnswer(calls=(ToolRequest(id="0", name="write_file", args=args),), finish="tool_calls")
    return ModelAnswer(text="I have read what I was told.")
