"""A person's declarations of undeclared tools: untrusted answers, and reach to others.

Asked once, when it matters, and stored in the home for this definition of the tool. Until then both are
assumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from kestrel_lab.core.calls import Call
from kestrel_lab.core.events.union import ApprovalAsked
from kestrel_lab.core.json_types import content_key
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.tools.tool import Tool, Toolbox

QUESTIONS: Final = {
    "reaches": "May a call of {tool} send something to others, or change something outside of this run?",
    "reads": "May answers of {tool} hold what others wrote, such as mails, tickets or pages?",
}
_NO, _YES = "no", "yes"


def definition_hash(tool: Tool) -> str:
    """A hash of the tool's definition, the source of its function included."""
    try:
        source = _source(tool.function)
    except (OSError, TypeError):
        # Typed in a plain interpreter, or built in.
        source = ""
    return content_key(tool.name, tool.version, tool.description, tool.schema, source)


@lru_cache(maxsize=1_000)
def _source(function: Callable[..., Any]) -> str:
    # Which reads and parses a file, and each run begins with its tools.
    return inspect.getsource(function)


def with_declarations(tools: Iterable[Tool], store: SessionStore) -> Toolbox:
    """Return the tools with stored declarations added to undeclared ones; queries the log once."""
    box = Toolbox(tools)
    if not [tool for tool in box if tool.unsaid - {"files"}]:
        return box
    said: dict[str, list[tuple[str, bool]]] = {}
    for known, question, answer in store.query("SELECT tool, question, answer FROM tool_flows"):
        said.setdefault(known, []).append((question, bool(answer)))
    return (
        Toolbox([_with_answers(tool, said) if tool.unsaid - {"files"} else tool for tool in box])
        if said
        else box
    )


def _with_answers(tool: Tool, said: Mapping[str, list[tuple[str, bool]]]) -> Tool:
    for question, yes in said.get(definition_hash(tool), ()):
        tool = with_declaration(tool, question, yes=yes)
    return tool


def with_declaration(tool: Tool, question: str, *, yes: bool) -> Tool:
    """The tool with one of the questions answered."""
    left = tool.unsaid - {question}
    if question == "reads":
        return replace(
            tool, unsaid=left, reads=(*(tool.flow.reads - {"untrusted"}), *(("untrusted",) if yes else ()))
        )
    if question == "reaches" and yes and tool.flow.reaches in {"nothing", "address"}:
        return replace(tool, unsaid=left, reaches="others")
    return replace(tool, unsaid=left)


def store_declaration(tool: Tool, question: str, store: SessionStore, *, yes: bool) -> None:
    """Keep an answer for all runs of the home."""
    sql = (
        "INSERT OR REPLACE INTO tool_flows(tool, question, answer, at) VALUES (?, ?, ?, unixepoch('subsec'))"
    )
    store.execute(sql, (definition_hash(tool), question, int(yes)), f"what {tool.name} does")


def declaration_question(tool: str, question: str, call: Call) -> ApprovalAsked:
    """The question, as it is put to a person on behalf of a call."""
    return ApprovalAsked(
        call=f"{call.id}?{question}",
        step=call.step,
        tool=tool,
        args={
            "question": f"{QUESTIONS[question].format(tool=tool)} It does not say so itself.",
            "options": [_NO, _YES],
        },
        danger=call.danger.name,
        key="",
        why="question",
        question=declaration_id(tool, question, call),
    )


def declaration_id(tool: str, question: str, call: Call) -> str:
    """The id of such a question."""
    return f"{call.id}?{question}:{tool}"


def read_name(name: str) -> tuple[str, str] | None:
    """Tool and question that such an id is about; `None` for any other id."""
    _, mark, rest = name.rpartition("?")
    question, colon, tool = rest.partition(":")
    return (tool, question) if mark and colon and question in QUESTIONS else None


def read_answer(answer: str | None) -> bool | None:
    """Return the answer; `None` if it is neither yes nor no."""
    return {_NO: False, "n": False, _YES: True, "y": True}.get((answer or "").strip().casefold())
