"""Two games behind tools: make 24 from four numbers, and walk through a maze whose map nobody is shown."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from kestrel_lab import tool
from kestrel_lab.tools.tool import ToolContext

GOAL = Fraction(24)
STEPS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
WALLS = {"north": "N", "south": "S", "west": "W", "east": "E"}


def left_after(numbers: list[str], moves: list[str]) -> list[Fraction]:
    """The numbers that are left after moves such as `4 * 6`, each of which takes two numbers away and adds its result."""
    left = [Fraction(number) for number in numbers]
    for move in moves:
        words = move.split()
        if len(words) != 3 or words[1] not in "+-*/":
            msg = f"a move is a number, one of + - * / and a number, with blanks between, not {move!r}"
            raise ValueError(msg)
        one, sign, two = Fraction(words[0]), words[1], Fraction(words[2])
        for number in (one, two):
            if number not in left:
                msg = f"{number} is not there; left are {', '.join(map(str, left))}"
                raise ValueError(msg)
            left.remove(number)
        left.append(result(one, sign, two))
    return left


def result(one: Fraction, sign: str, two: Fraction) -> Fraction:
    """What a move makes of two numbers."""
    if sign == "/" and not two:
        msg = "nothing can be divided by 0"
        raise ValueError(msg)
    return {"+": one + two, "-": one - two, "*": one * two}[sign] if sign != "/" else one / two


@tool(danger_level="safe", effect="pure")
def combine(moves: list[str], context: ToolContext) -> dict[str, Any]:
    """Try moves of the game of 24 from the beginning, and see which numbers are left.

    Args:
        moves: All moves from the first on, each like "4 * 6".
        context: The run.
    """
    return {"left": [str(number) for number in left_after(_numbers(context), moves)]}


@tool(effect="idempotent")
def hand_in(moves: list[str], context: ToolContext) -> str:
    """Hand in a solution of the game of 24: three moves, after which 24 is left.

    Args:
        moves: All moves from the first on, each like "4 * 6".
        context: The run.
    """
    left = left_after(_numbers(context), moves)
    said = f"result {left[0]}" if len(left) == 1 else f"unfinished, {len(left)} numbers are left"
    context.workspace.write_text("result.txt", said)
    return said


@tool(danger_level="safe", effect="pure")
def look(context: ToolContext) -> dict[str, Any]:
    """Say where you stand in the maze, which ways are open and where the exit is."""
    maze = Maze.read(context)
    return maze.seen(maze.position(context))


@tool(effect="opaque")
def walk(direction: str, context: ToolContext) -> dict[str, Any]:
    """Walk north, south, east or west, on until there is a choice, a dead end or the exit.

    Args:
        direction: Where to.
        context: The run.
    """
    maze = Maze.read(context)
    path = maze.corridor(maze.position(context), direction)
    maze.stand(context, path[-1])
    return maze.seen(path[-1])


@tool(effect="idempotent")
def back_to_start(context: ToolContext) -> dict[str, Any]:
    """Go back to where the maze begins."""
    maze = Maze.read(context)
    maze.stand(context, maze.start)
    return maze.seen(maze.start)


@tool(danger_level="safe", effect="pure")
def progress(path: list[str], context: ToolContext) -> dict[str, Any]:
    """Score the first moves of a solution, without making them; wrong moves are an error.

    Args:
        path: Moves of the game of 24, or directions in the maze.
        context: The run.
    """
    if (Path(context.workspace.root) / "maze.json").exists():
        return Maze.read(context).worth(path)
    left = left_after(_numbers(context), path)
    note = f"left are {' '.join(map(str, left))}"
    if len(left) > 2:
        return {"score": 0.5, "done": False, "note": note}
    if len(left) == 2:
        near = any(_makes_goal(one, sign, two) for one, two in (left, left[::-1]) for sign in "+-*/")
        return {"score": 0.9 if near else 0.0, "done": False, "note": note}
    return {"score": float(left[0] == GOAL), "done": left[0] == GOAL, "note": note}


def _makes_goal(one: Fraction, sign: str, two: Fraction) -> bool:
    return not (sign == "/" and not two) and result(one, sign, two) == GOAL


def _numbers(context: ToolContext) -> list[str]:
    text: str = context.workspace.read_text("numbers.txt").text
    return text.split()


class Maze:
    """Cells with the sides that are open, a start and an exit."""

    def __init__(self, cells: list[list[str]], start: tuple[int, int], end: tuple[int, int]) -> None:
        self.cells, self.start, self.end = cells, start, end

    @classmethod
    def read(cls, context: ToolContext) -> Maze:
        """The maze of a run."""
        return cls.of(context.workspace.read_text("maze.json").text)

    @classmethod
    def of(cls, text: str) -> Maze:
        """The maze that a file holds."""
        found = json.loads(text)
        return cls([row.split() for row in found["cells"]], tuple(found["start"]), tuple(found["exit"]))

    def position(self, context: ToolContext) -> tuple[int, int]:
        """Where the run stands."""
        if not (Path(context.workspace.root) / "position.txt").exists():
            return self.start
        row, column = context.workspace.read_text("position.txt").text.split()[:2]
        return int(row), int(column)

    def stand(self, context: ToolContext, place: tuple[int, int]) -> None:
        """Remember where the run stands."""
        context.workspace.write_text(
            "position.txt", f"{place[0]} {place[1]}" + (" exit" if place == self.end else "")
        )

    def open(self, place: tuple[int, int]) -> list[str]:
        """The ways that are open at a place."""
        return [name for name, letter in WALLS.items() if letter in self.cells[place[0]][place[1]]]

    def corridor(self, place: tuple[int, int], direction: str) -> list[tuple[int, int]]:
        """The places on the way in a direction until there is a choice."""
        if direction not in self.open(place):
            msg = f"there is a wall in the {direction}; open are {', '.join(self.open(place))}"
            raise ValueError(msg)
        path = [place]
        while True:
            row, column = STEPS[direction]
            path.append((path[-1][0] + row, path[-1][1] + column))
            onward = [
                way for way in self.open(path[-1]) if (-STEPS[way][0], -STEPS[way][1]) != STEPS[direction]
            ]
            if path[-1] == self.end or len(onward) != 1:
                return path
            direction = onward[0]

    def seen(self, place: tuple[int, int]) -> dict[str, Any]:
        """What is told of a place."""
        return {"at": list(place), "open": self.open(place), "exit": list(self.end), "out": place == self.end}

    def worth(self, path: list[str]) -> dict[str, Any]:
        """How near to the exit a path leads; nothing for one that comes back to where it was."""
        walked = [self.start]
        for direction in path:
            walked += self.corridor(walked[-1], direction)[1:]
        place = walked[-1]
        far = abs(place[0] - self.end[0]) + abs(place[1] - self.end[1])
        again = len(walked) != len(set(walked))
        note = (
            f"at {place[0]} {place[1]}; exit {self.end[0]} {self.end[1]}; open {' '.join(self.open(place))}"
        )
        score = 0.0 if again else 1 - 0.9 * far / (len(self.cells) + len(self.cells[0]))
        return {"score": round(score, 3), "done": place == self.end and not again, "note": note}
