"""Trajectory checks: the order in which a run called its tools, and the arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.tool_kinds import KINDS, tool_kind
from kestrel_lab.core.events.union import ApprovalGiven, ModelAnswered, Record, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Trial, TrialStart
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import LogCheck, Score

Mode = Literal["exact", "in_order", "any_order", "precision", "recall"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeCall:
    """A tool call of a run that was answered."""

    tool: str
    args: dict[str, Json]
    ok: bool


def made_calls(records: Iterable[Record]) -> list[MadeCall]:
    """Return the calls of a run in the order in which they were requested, whichever of several at once ended
    first.

    Failed calls and answers from a store are among them; what was given by hand in a fork is not.
    """
    # Calls that are made together end in any order: they are listed as the model asked.
    asked: dict[str, dict[str, Json]] = {}
    edited: dict[str, dict[str, Json]] = {}
    answers: dict[str, ToolAnswered] = {}
    for event in (record.event for record in records):
        match event:
            case ModelAnswered(calls=calls):
                for call in calls:
                    args = call.get("args")
                    asked.setdefault(str(call["id"]), args if isinstance(args, dict) else {})
            case ToolCalled(call=name, args=used):
                asked[name] = used
            case ApprovalGiven(call=name, granted=True, args=dict() as changed):
                edited[name] = changed
            case ToolAnswered(call=name, given=False):
                asked.setdefault(name, {})
                answers[name] = event
    return [
        MadeCall(tool=answers[name].tool, args=edited.get(name, args), ok=answers[name].error is None)
        for name, args in asked.items()
        if name in answers
    ]


def is_wanted(call: MadeCall, name: str, kind: str = "") -> bool:
    """Return whether a call is one of the tool of this name, or of a tool of this kind."""
    return call.tool == name if name else tool_kind(call.tool, call.args) == kind


def missing_tool(start: TrialStart, name: str, kind: str = "") -> str:
    """Return the need for a tool of this name, or of this kind, where the agent is offered none; else an
    empty text.
    """
    if name:
        return "" if name in start.tools else f"it takes the tool {name!r}"
    offered = any(tool_kind(tool) == kind for tool in start.tools)
    return "" if offered else f"it takes a tool of the kind {kind!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsInOrder(LogCheck):
    """The tools were called with success one after the other; other calls may be between.

    A tool is its name, or `{kind: command}` for any of a kind.
    """

    final = "pass"
    names: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise UsageError("tools_in_order needs at least one tool")
        for name in self.names:
            _read_expected(name, "tools_in_order")

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{', then '.join(_tool_text(name) for name in self.names)}"

    def out_of_reach(self, start: TrialStart) -> str:
        """Return which of the tools the agent is not offered."""
        return _missing_tools(start, self.names, "tools_in_order")

    async def __call__(self, trial: Trial) -> Score:
        """Pass when all are there in this order; `value` is the share that is, up to the first that is
        missing.
        """
        made = [call for call in made_calls(trial.records) if call.ok]
        wanted = [_read_expected(name, "tools_in_order") for name in self.names]
        found = 0
        for call in made:
            found += found < len(wanted) and _call_matches(wanted[found], call)
        passed = found == len(self.names)
        reason = (
            ""
            if passed
            else f"no {_tool_text(self.names[found])} after "
            f"{_tool_text(self.names[found - 1]) if found else 'the beginning'}; "
            f"{_called_text([call.tool for call in made])}"
        )
        return Score(check=self.label, passed=passed, value=found / len(self.names), reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryMatch(LogCheck):
    """The run's tool calls are those expected, as far as `mode` asks.

    An expected call is a tool's name, or `{tool: …, args: {…}}`, which a call fits that has at least these
    arguments with these values; in place of `tool` it may have a `kind` of tools. No call counts twice. The
    value is

    - `exact`: the calls that agree in order, over the larger number of calls; 1 for the same calls and no
      others
    - `in_order`: the expected calls that were made in this order, as a share; others may be between
    - `any_order`, `recall`: the expected calls that were made, as a share
    - `precision`: the calls made that were expected, as a share

    and the check passes when it is at least `at_least`.
    """

    calls: tuple[Any, ...]
    mode: Mode = "in_order"
    at_least: float = 1.0

    def __post_init__(self) -> None:
        if not self.calls or not 0 < self.at_least <= 1:
            raise UsageError(
                f"trajectory_match needs calls, and at_least above 0 up to 1, not {self.at_least}"
            )
        for call in self.calls:
            _read_expected(call)

    @property
    def label(self) -> str:
        """The check in words."""
        share = "" if self.at_least == 1 else f" at least {self.at_least:g}"
        return (
            f"calls {self.mode.replace('_', ' ')}{share}: "
            f"{one_line(', '.join(map(_tool_text, self.calls)), 60)}"
        )

    def out_of_reach(self, start: TrialStart) -> str:
        """Return which of the calls needs a tool that the agent is not offered, where all of them are asked
        for.
        """
        if self.at_least < 1 or self.mode == "precision":
            return ""
        return _missing_tools(start, self.calls)

    async def __call__(self, trial: Trial) -> Score:
        """Pass when enough agrees."""
        made = made_calls(trial.records)
        fits = [
            [_call_matches(expected, call) for call in made] for expected in map(_read_expected, self.calls)
        ]
        value = self._value(fits, len(made))
        # A share such as 2 / 3 is written as .67 or .66 in a file only by mistake; rounding errors are
        # forgiven.
        passed = value >= self.at_least - 1e-9
        return Score(
            check=self.label,
            passed=passed,
            value=value,
            reason="" if passed else _called_text([call.tool for call in made]),
        )

    def _value(self, fits: Sequence[Sequence[bool]], made: int) -> float:
        match self.mode:
            case "exact":
                return _common(fits, made) / max(len(fits), made)
            case "in_order":
                return _common(fits, made) / len(fits)
            case "precision":
                return _count_matches(fits) / made if made else 0.0
            case _:
                return _count_matches(fits) / len(fits)


def _read_expected(call: object, check: str = "trajectory_match") -> tuple[str, str, dict[str, Json]]:
    """Return the name, the kind and the arguments of an expected call."""
    if isinstance(call, str):
        return call, "", {}
    if isinstance(call, dict) and set(call) <= {"tool", "kind", "args"}:
        tool, kind, args = call.get("tool", ""), call.get("kind", ""), call.get("args") or {}
        named = isinstance(tool, str) and bool(tool) != bool(kind) and (not kind or kind in KINDS)
        if named and isinstance(args, dict):
            return tool, kind, args
    raise UsageError(
        f"{check}: a call is a tool's name, {{tool: …, args: {{…}}}} or {{kind: {'|'.join(KINDS)}}}, not "
        f"{one_line(repr(call))}"
    )


def _missing_tools(start: TrialStart, calls: Iterable[object], check: str = "trajectory_match") -> str:
    """Return the needs of expected calls for tools that the agent is not offered."""
    expected = [_read_expected(call, check) for call in calls]
    missing = dict.fromkeys(missing_tool(start, name, kind) for name, kind, _ in expected)
    return ", and ".join(filter(None, missing))


def _tool_text(call: object) -> str:
    name, kind, _ = _read_expected(call)
    return name or f"a tool of the kind {kind}"


def _call_matches(expected: tuple[str, str, dict[str, Json]], call: MadeCall) -> bool:
    name, kind, args = expected
    return is_wanted(call, name, kind) and all(
        key in call.args and call.args[key] == value for key, value in args.items()
    )


def _common(fits: Sequence[Sequence[bool]], made: int) -> int:
    """Return the length of the longest common subsequence."""
    before = [0] * (made + 1)
    for row in fits:
        now = [0]
        for place, fit in enumerate(row):
            now.append(before[place] + 1 if fit else max(now[place], before[place + 1]))
        before = now
    return before[-1]


def _count_matches(fits: Sequence[Sequence[bool]]) -> int:
    """Return how many expected calls can each be matched with a call of their own: a maximum matching."""
    # It is large and rarely needed, so it is loaded on use.
    import networkx as nx

    graph: nx.Graph[tuple[str, int]] = nx.Graph()
    expected = [("expected", row) for row in range(len(fits))]
    graph.add_nodes_from(expected)
    graph.add_edges_from(
        (expected[row], ("made", call))
        for row, made in enumerate(fits)
        for call, fit in enumerate(made)
        if fit
    )
    # The matching names each pair both ways.
    return len(nx.bipartite.hopcroft_karp_matching(graph, expected)) // 2


def _called_text(tools: Sequence[str]) -> str:
    return f"called: {one_line(', '.join(tools), 120)}" if tools else "no tool was called"
