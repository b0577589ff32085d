"""Replies in the text form of ReAct: `Thought:`, `Action:` with `Action Input:`, `Final Answer:` (Yao et al.
2022, and the libraries after it).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json, values_in
from kestrel_lab.core.messages import ToolRequest
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORM = (
    'what you said is neither a call that can be read nor an answer; say just {"tool": "<tool>", '
    '"arguments": {…}} or {"answer": "<answer>"}'
)
"""Sent to a model whose reply cannot be parsed."""
_FINAL = re.compile(r"^[\s>*_#`-]*final answer\s*[*_`]*:[*_`]*", re.IGNORECASE | re.MULTILINE)
THOUGHT = re.compile(r"[\s>*_#`-]*thought\s*\d*\s*[*_`]*:", re.IGNORECASE)
_ANSWER = re.compile(r"^[\s>*_#`-]*answer\s*[*_`]*:[*_`]*", re.IGNORECASE | re.MULTILINE)
_ACTION = re.compile(
    r"^[ \t]*[*_#-]*[ \t]*action\s*\d*\s*[*_`]*:[*_`]*[ \t]*(?P<name>\S[^\n]*)$", re.IGNORECASE | re.MULTILINE
)
_ACTION_INPUT = re.compile(r"\s*[*_#-]*[ \t]*action[ _]input\s*\d*\s*[*_`]*:[*_`]*", re.IGNORECASE)
_OBSERVATION = re.compile(r"^[ \t]*[*_#-]*[ \t]*observation\s*\d*\s*[*_`]*:", re.IGNORECASE | re.MULTILINE)


def final_answer(said: str) -> re.Match[str] | None:
    """Return where the answer starts; a line `Answer:` inside other text is part of that text."""
    if final := [*_FINAL.finditer(said)]:
        return final[-1]
    return _ANSWER.match(said) or (_ANSWER.search(said) if THOUGHT.match(said) else None)


def react_call(
    said: str, tools: Sequence[str], call_id: str, single: Mapping[str, str]
) -> tuple[str, tuple[ToolRequest, ...]] | None:
    """Return the call in `Action:` and `Action Input:`, with the text before; `None` if there is none.

    Several actions, or an action next to an answer, are refused as ambiguous.
    """
    end = _OBSERVATION.search(said)
    text = said[: end.start()] if end else said
    actions = [match for match in _ACTION.finditer(text) if _ACTION_INPUT.match(text, match.end())]
    if not actions:
        return None
    name, behind = _named_tool(actions[0]["name"], tools), _ACTION_INPUT.match(text, actions[0].end())
    given = text[behind.end() if behind else len(text) :]
    if plain_name(name) == "final answer" and len(actions) == 1:
        return given.strip(), ()
    if len(actions) > 1 or final_answer(text):
        problem = (
            "it asks for "
            f"{'several actions' if len(actions) > 1 else 'an action and gives an answer'}: say one of "
            "them"
        )
        return said.strip(), (ToolRequest(id=call_id, name=name, problem=problem),)
    args = _action_input(re.sub(r"\A\s*```(?:json)?\s*|\s*```\s*\Z", "", given).strip(), single.get(name, ""))
    if args is None:
        problem = (
            f"the action input of {name!r} must be a JSON object, not "
            f"{one_line(given.strip(), 200)!r}: {FORM}"
        )
        return said.strip(), (ToolRequest(id=call_id, name=name, problem=problem),)
    return THOUGHT.sub("", said[: actions[0].start()], count=1).strip(), (
        ToolRequest(id=call_id, name=name, args=args),
    )


def _action_input(given: str, parameter: str) -> dict[str, Json] | None:
    """Return the arguments of an action input; text that is no object fills the only `parameter`, if any."""
    if given.lower() in ("", "none", "null", "n/a"):
        return {}
    if given.startswith("{"):
        found = next(values_in(given), None)
        return found if isinstance(found, dict) else None
    if not parameter or "\n" in given:
        return None
    quoted = re.fullmatch(r"([\"'])(.*)\1", given)
    return {parameter: quoted[2] if quoted else given}


def _named_tool(written: str, tools: Sequence[str]) -> str:
    """Return the tool a line names, ignoring case and marks; the text itself if it is none of them."""
    same = [name for name in tools if plain_name(name) == plain_name(written)]
    return same[0] if len(same) == 1 else written.strip().strip("`*\"'")


def plain_name(written: str) -> str:
    """Return a name in small letters, without marks around it."""
    return written.strip().strip("`*\"'.[]()").casefold()
