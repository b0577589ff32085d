"""Questions of an MCP server to a person during a request (elicitation): forms become typed answers,
addresses are shown.

Contract: the elicitation pages of the MCP specification of 2026-07-28. Without a person nothing is opened and
nothing is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import head_tail, one_line, sanitize_text

if TYPE_CHECKING:
    from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

Ask = Callable[[str, tuple[str, ...]], Awaitable[str | None]]
"""Asks a person a question with options; returns the answer, `None` if there is nobody or they decline."""
DONE, DECLINE, LEAVE_OUT = "done", "decline", "leave it out"
_YES, _NO = "yes", "no"
_TRIES = 3
_TEXT = 2_000
_LONGEST_ADDRESS = 8_000


@dataclass(eq=False, slots=True)
class Person:
    """The person behind one request."""

    ask_person: Ask | None
    clock: asyncio.Timeout
    seconds: float
    """The time limit of the request."""
    unanswered: list[str] = field(default_factory=list)
    """Questions that nobody was here to answer."""

    async def ask(self, text: str, options: tuple[str, ...]) -> str | None:
        """Ask, with the clock stopped; `None` if there is nobody or they decline."""
        if self.ask_person is None:
            self.unanswered.append(text)
            return None
        with self.waiting():
            return await self.ask_person(text, options)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Stop the clock of the request in the block; afterwards the server has its full time again."""
        # A timeout that has expired cannot be rescheduled.
        if not self.clock.expired():
            self.clock.reschedule(None)
        try:
            yield
        finally:
            if not self.clock.expired():
                self.clock.reschedule(asyncio.get_running_loop().time() + self.seconds)


async def answer_elicitation(server: str, params: ElicitRequestParams, ask: Ask) -> ElicitResult:
    """Return the person's answer to a question of `server`; declines if there is nobody or they decline."""
    from mcp_types import ElicitRequestURLParams, ElicitResult

    if isinstance(params, ElicitRequestURLParams):
        return ElicitResult(action="accept" if await _ask_to_open(server, params, ask) else "decline")
    head = f"{server} asks: {_text(params.message)}"
    schema = dict(params.requested_schema)
    fields, required = schema.get("properties") or {}, schema.get("required") or []
    if not fields:
        return ElicitResult(
            action="accept" if await ask(head, (_YES, DECLINE)) == _YES else "decline", content={}
        )
    content: dict[str, Any] = {}
    for number, (name, said) in enumerate(fields.items(), 1):
        about = said if isinstance(said, dict) else {}
        place = f" ({number} of {len(fields)})" if len(fields) > 1 else ""
        found = await _field(
            f"{head}\n{_field_text(name, about)}{place}", about, ask, optional=name not in required
        )
        if found is None:
            return ElicitResult(action="decline")
        content |= {name: found[0]} if found else {}
    return ElicitResult(action="accept", content=content)


async def _ask_to_open(server: str, params: ElicitRequestURLParams, ask: Ask) -> bool:
    address = urlsplit(params.url)
    # Other schemes start programs (`file:`, `vscode:`), which nobody should open for a server.
    if address.scheme not in ("https", "http") or len(params.url) > _LONGEST_ADDRESS:
        return False
    where = f"{sanitize_text(params.url)}\nIt belongs to {one_line(address.hostname or 'nobody', 200)}."
    text = (
        f"{server} asks you to open an address in a browser: {_text(params.message)}\n{where} Answer "
        "when you have done there what you want to."
    )
    return await ask(text, (DONE, DECLINE)) == DONE


async def _field(
    question: str, field: dict[str, Any], ask: Ask, *, optional: bool
) -> tuple[Json, ...] | None:
    """Return the value of a field in a tuple, empty if omitted, `None` if the person declines."""
    choices = _choices(field)
    offered = list(choices) if field.get("type") != "array" else []
    suggested = [_default_text(field["default"], choices)] if "default" in field else []
    options = (
        *suggested,
        *(one for one in offered if one not in suggested),
        *([LEAVE_OUT] if optional else []),
        DECLINE,
    )
    problem = ""
    for _ in range(_TRIES):
        said = await ask(f"{question}{problem}", options)
        if said is None or said == DECLINE:
            return None
        if said == LEAVE_OUT and optional:
            return ()
        try:
            return (_value(said, field, choices),)
        except ValueError as error:
            problem = f"\nThat does not fit: {one_line(str(error), 200)}"
    return None


def _value(said: str, field: dict[str, Any], choices: dict[str, str]) -> Json:
    """Return an answer as the type that the field has; raises `ValueError`."""
    from jsonschema.validators import Draft202012Validator

    value: Json
    match field.get("type"):
        case "boolean":
            value = {_YES: True, "true": True, _NO: False, "false": False}.get(said.strip().lower(), said)
        case "integer":
            value = int(said)
        case "number":
            value = float(said)
        case "array":
            value = [choices.get(word.strip(), word.strip()) for word in said.split(",") if word.strip()]
        case _:
            value = choices.get(said, said)
    for error in Draft202012Validator(field).iter_errors(value):
        raise ValueError(error.message)
    return value


def _choices(field: dict[str, Any]) -> dict[str, str]:
    """Return the values that a field may have, by what is shown for them."""
    if field.get("type") == "boolean":
        return {_YES: "true", _NO: "false"}
    source = field.get("items") if field.get("type") == "array" else field
    source = source if isinstance(source, dict) else {}
    values = source.get("enum") or []
    titled = source.get("oneOf") or source.get("anyOf") or []
    if titled:
        return {
            _text(one.get("title") or one["const"]): str(one["const"]) for one in titled if "const" in one
        }
    names = field.get("enumNames") or values
    return {_text(name): str(value) for name, value in zip(names, values, strict=False)}


def _default_text(value: Json, choices: dict[str, str]) -> str:
    """Return a default as it would be answered."""
    if isinstance(value, bool):
        return _YES if value else _NO
    if isinstance(value, list):
        return ", ".join(_default_text(item, choices) for item in value)
    return next((shown for shown, one in choices.items() if one == value), str(value))


def _field_text(name: str, field: dict[str, Any]) -> str:
    kind = {"array": "several, separated by commas", "integer": "a whole number", "number": "a number"}.get(
        str(field.get("type")), ""
    )
    listed = f"of {', '.join(_choices(field))}" if field.get("type") == "array" else ""
    more = "; ".join(word for word in (kind, listed, one_line(str(field.get("format", "")), 40)) if word)
    title, description = _text(field.get("title") or name), _text(field.get("description", ""))
    return f"{title}{f' ({more})' if more else ''}{f': {description}' if description else ''}"


def _text(value: object) -> str:
    return head_tail(sanitize_text(str(value)), _TEXT)[0]
