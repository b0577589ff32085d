"""A simulated reasoner, no model: it makes random legal moves, now and then a wrong one, and gives up half of the time it is stuck.

It is the same whichever plan asks it, so that only the plan makes the difference. What it says follows from what it is asked and
the seed, so that runs can be repeated.
"""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction
from typing import Any

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.messages import ModelAnswer, ModelRequest, ToolRequest

WRONG = 0.1
"""How often a move is not allowed, an obvious last move is overlooked, and a judgement is wrong."""
GIVES_UP = 0.5
"""How often it gives up when it is stuck, and does not begin again."""

Said = str | tuple[str, dict[str, Any]]


def reasoner(request: ModelRequest) -> ModelAnswer:
    """Answer as the plan's prompts ask for."""
    texts = [
        message.text + "".join(json.dumps(call.args) for call in message.calls)
        for message in request.messages
    ]
    draw = random.Random(content_key(request.seed, texts))  # must be the same again for the same seed  # noqa: S311
    first = next(message.text for message in request.messages if message.role == "user")
    maze = "maze" in first
    if first.startswith("Make a plan"):
        said: Said = _plan(first, maze)
    elif first.startswith("Judge an answer"):
        said = _verdict(first, maze, draw)
    elif first.startswith("Think of ways"):
        said = _candidates(first, maze, draw)
    elif way := re.search(r"--- begin artifact 'way' \w+ ---\n(.*?)\n---", first, re.DOTALL):
        said = _carry_out(request, way[1].split("\n"), maze)
    else:
        said = _walk(request, draw) if maze else _combine(request, first, draw)
    usage = Usage(tokens_in=sum(map(len, texts)) // 4, tokens_out=len(str(said)) // 4)
    if isinstance(said, str):
        return ModelAnswer(text=said, usage=usage)
    return ModelAnswer(
        calls=(ToolRequest(id="1", name=said[0], args=said[1]),), usage=usage, finish="tool_calls"
    )


def _plan(first: str, maze: bool) -> str:
    goal = first.split("\n\n")[1]
    wanted = "the walk ended at the exit" if maze else "the moves were handed in and their result is 24"
    return json.dumps({"steps": [{"id": "solve", "goal": goal}], "acceptance_criteria": [wanted]})


def _verdict(first: str, maze: bool, draw: random.Random) -> str:
    shows = '"out":true' if maze else "\nresult 24\n"
    truth = shows in first.replace(" true", "true") if maze else shows in first
    met = truth if draw.random() >= WRONG else not truth
    calls = re.findall(r"--- begin artifact 'call (\S+) of (?:hand_in|walk)'", first)
    entry = {
        "criterion": 1,
        "met": met,
        "why": "it is shown" if met else "nothing shows it",
        "evidence": calls[-1:] if met else [],
    }
    return json.dumps({"criteria": [entry], "confidence": 0.9})


def _candidates(first: str, maze: bool, draw: random.Random) -> str:
    count = int(match[1]) if (match := re.search(r"Propose (\d+)", first)) else 1
    notes = re.findall(r"'what is known of thought \d+' \w+ ---\n(.*?)\n---", first)
    if maze:
        ways = notes[-1].partition("open ")[2].split() if notes else ["north", "east", "south", "west"]
        found = draw.sample(ways, min(count, len(ways)))
    else:
        left = (
            [Fraction(text) for text in notes[-1].removeprefix("left are ").split()]
            if notes
            else _numbers(first)
        )
        found = list(dict.fromkeys(_move(left, draw) for _ in range(count)))
    return json.dumps({"candidates": found})


def _carry_out(request: ModelRequest, moves: list[str], maze: bool) -> Said:
    played = sum(message.role == "assistant" for message in request.messages)
    if maze:
        return ("walk", {"direction": moves[played]}) if played < len(moves) else "I am at the exit."
    return ("hand_in", {"moves": moves}) if not played else f"{'; '.join(moves)} makes 24."


def _numbers(text: str) -> list[Fraction]:
    match = re.search(r"numbers ((?:\d+ ){4})", text)
    assert match is not None
    return [Fraction(number) for number in match[1].split()]


def _combine(request: ModelRequest, first: str, draw: random.Random) -> Said:
    """One more move after those that worked; the result is handed in whatever it is, unless it begins again."""
    last = request.messages[-1]
    tried = [
        call.args["moves"] for message in request.messages for call in message.calls if call.name == "combine"
    ]
    if last.role == "tool" and last.name == "hand_in":
        return "These are the moves that I found."
    moves: list[Any] = tried[-1] if tried and last.text.startswith("{") else tried[-1][:-1] if tried else []
    results = [
        message.text
        for message in request.messages
        if message.role == "tool" and message.text.startswith("{")
    ]
    left = (
        [Fraction(text) for text in json.loads(results[-1])["left"]] if moves and results else _numbers(first)
    )
    if len(left) == 1:
        if left[0] == 24 or draw.random() < GIVES_UP:
            return "hand_in", {"moves": moves}
        moves, left = [], _numbers(first)
    return "combine", {"moves": [*moves, _move(left, draw)]}


def _move(left: list[Fraction], draw: random.Random) -> str:
    """A random move; of two numbers that make 24 it nearly always sees how."""
    if draw.random() < WRONG:
        return f"{draw.randint(1, 9)} {draw.choice('+-*/')} {draw.choice(left)}"
    if len(left) == 2 and draw.random() >= WRONG:
        for one, two in (left, left[::-1]):
            for sign, value in (
                ("+", one + two),
                ("-", one - two),
                ("*", one * two),
                ("/", one / two if two else Fraction(0)),
            ):
                if value == 24:
                    return f"{one} {sign} {two}"
    one, two = draw.sample(left, 2)
    return f"{one} {draw.choice('+-*/' if two else '+-*')} {two}"


def _walk(request: ModelRequest, draw: random.Random) -> Said:
    """Where it has not been, towards the exit if possible; in a dead end it gives up or begins again."""
    results = [message for message in request.messages if message.role == "tool"]
    if not results:
        return "back_to_start", {}
    places, here = [], None
    for message in results:
        if message.text.startswith("{"):
            here = json.loads(message.text)
            places = [here["at"]] if message.name == "back_to_start" else [*places, here["at"]]
    assert here is not None
    if here["out"]:
        return "I am at the exit."
    tried = [call.args.get("direction") for message in request.messages for call in message.calls]
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    came = back.get(str(tried[-1])) if len(places) > 1 else None
    ways = [way for way in here["open"] if way != came] if here["at"] not in places[:-1] else []
    if not ways:
        return "I am stuck." if draw.random() < GIVES_UP else ("back_to_start", {})
    row, column = here["exit"][0] - here["at"][0], here["exit"][1] - here["at"][1]
    good = [
        way
        for way in ways
        if {"north": row < 0, "south": row > 0, "west": column < 0, "east": column > 0}[way]
    ]
    return "walk", {
        "direction": draw.choice(good or ways) if draw.random() >= 2 * WRONG else draw.choice(ways)
    }
