"""Macro mining: proposes macros for repeated tool sequences in the log, with varying parts as parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ApprovalGiven, ModelAnswered, Record, ToolAnswered
from kestrel_lab.core.expressions.templates import escape_template
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.tools.macros import MACRO_RUN, Macro, MacroStep
from kestrel_lab.views.html.table_view import TextView

LENGTHS = range(8, 1, -1)
"""Possible numbers of calls in a macro, largest first."""
MIN_OCCURRENCES = 3
MAX_PROPOSALS = 20
_MAX_NODES = 2_000
"""Values of one result that arguments are compared with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastCall:
    """A successful tool call of a run."""

    run: str
    tool: str
    args: dict[str, Json]
    result: Json = None
    """`None` also if the log has only part of it."""

    @property
    def kind(self) -> tuple[str, ...]:
        """The tool and the names of its arguments, which calls share that are the same step of a macro."""
        return (self.tool, *sorted(self.args))


@dataclass(frozen=True, kw_only=True, slots=True)
class MacroProposal(TextView):
    """A macro that would have replaced calls of past runs."""

    macro: Macro
    occurrences: int
    """Number of non-overlapping occurrences of the sequence."""
    runs: tuple[str, ...]
    """Ids of the runs in which it was."""
    saved_calls: int
    """Number of calls the macro would have saved so far."""

    def __repr__(self) -> str:
        found = f"called {self.occurrences} times in {format_count(len(self.runs), 'run')}"
        return f"proposed: {self.macro!r}\n  {found}; would have saved {self.saved_calls} calls"


def past_calls(records: Iterable[Record], seen: set[str]) -> list[list[PastCall]]:
    """Return the successful calls of a run's agents in order, one list per conversation.

    A macro splits its conversation: no sequence spans it. Events with ids in `seen` are skipped and new ids
    are added, so that events shared by forks count once.
    """
    new = [record for record in records if record.eid not in seen]
    seen.update(record.eid for record in new)
    answers: dict[str, ToolAnswered] = {}
    edited: dict[str, dict[str, Json]] = {}
    for event in (record.event for record in new):
        if isinstance(event, ToolAnswered) and event.error is None and not event.given:
            answers[event.call] = event
        elif isinstance(event, ApprovalGiven) and event.granted and event.args is not None:
            edited[event.call] = event.args
    conversations: dict[str, list[list[PastCall]]] = defaultdict(lambda: [[]])
    for record in new:
        if not isinstance(record.event, ModelAnswered):
            continue
        for asked in record.event.calls:
            name, args, conversation = str(asked["id"]), asked.get("args"), conversations[record.event.step]
            if asked["name"] == MACRO_RUN:
                conversation.append([])
            elif name in answers and isinstance(args, dict):
                said = answers[name]
                result = None if said.truncated else said.text if said.value is None else said.value
                conversation[-1].append(
                    PastCall(run=record.run_id, tool=said.tool, args=edited.get(name, args), result=result)
                )
    return [part for conversation in conversations.values() for part in conversation if part]


def propose_macros(
    conversations: Sequence[Sequence[PastCall]], existing: Iterable[Macro] = ()
) -> list[MacroProposal]:
    """Macros for sequences of 2 to 8 calls that occur at least 3 times: the 20 that would have saved most
    calls, best first.

    A sequence is given by its tools and the names of their arguments. An argument that is always the same
    becomes a constant, one that is always found in the result of an earlier call a reference to it, any other
    a parameter. No call counts for two proposals, nor for one and an existing macro; the same call made again
    and again is not a sequence. The longest and most frequent sequences are considered first, so that a part
    of one is proposed only for calls outside it.
    """
    known = list(existing)
    taken = {macro.name for macro in known}
    found: list[MacroProposal] = []
    chosen = _chosen(_Field([[call.kind for call in conversation] for conversation in conversations]), known)
    for places, length in sorted(chosen, key=lambda choice: -len(choice[0]) * (choice[1] - 1)):
        times = [conversations[conversation][start : start + length] for conversation, start in places]
        macro = _generalise_calls(times, taken)
        if macro is not None:
            taken.add(macro.name)
            runs = tuple(dict.fromkeys(calls[0].run for calls in times))
            found.append(
                MacroProposal(
                    macro=macro, occurrences=len(times), runs=runs, saved_calls=len(times) * (length - 1)
                )
            )
        if len(found) == MAX_PROPOSALS:
            break
    return found


def _chosen(calls: _Field, known: list[Macro]) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Yield the places and the length of each sequence that could be a macro; no call is in two of them."""
    for macro in known:
        calls.claim(
            calls.free(tuple((step.tool, *sorted(step.args)) for step in macro.steps)), len(macro.steps)
        )
    for length in LENGTHS:
        counted = sorted(
            ((len(calls.free(kinds)), kinds) for kinds in calls.sequences(length)),
            key=lambda pair: (-pair[0], pair[1]),
        )
        for _, kinds in counted:
            # Again: others of this length may have taken some.
            places = calls.free(kinds)
            if len(places) >= MIN_OCCURRENCES and not calls.is_repetition(kinds):
                calls.claim(places, length)
                yield places, length


Kinds = tuple[tuple[str, ...], ...]


class _Field:
    """The places of calls by kind, and the calls that are claimed by a macro."""

    def __init__(self, conversations: list[list[tuple[str, ...]]]) -> None:
        self._conversations = conversations
        self._claimed: set[tuple[int, int]] = set()
        self._places: dict[int, dict[Kinds, list[tuple[int, int]]]] = {}

    def sequences(self, length: int) -> Iterator[Kinds]:
        """Return every sequence of that length that occurs often enough for a macro."""
        return (kinds for kinds, places in self._all(length).items() if len(places) >= MIN_OCCURRENCES)

    def free(self, kinds: Kinds) -> list[tuple[int, int]]:
        """Return the places of a sequence, from left to right, without claimed calls and overlaps."""
        found: list[tuple[int, int]] = []
        end = (-1, 0)
        for conversation, start in self._all(len(kinds)).get(kinds, []):
            behind = conversation > end[0] or start >= end[1]
            if behind and not any(
                (conversation, start + offset) in self._claimed for offset in range(len(kinds))
            ):
                found.append((conversation, start))
                end = (conversation, start + len(kinds))
        return found

    def claim(self, places: Iterable[tuple[int, int]], length: int) -> None:
        """Exclude the calls at `places` from other sequences."""
        self._claimed.update(
            (conversation, start + offset) for conversation, start in places for offset in range(length)
        )

    def is_repetition(self, kinds: Kinds) -> bool:
        """Return whether a sequence only repeats a shorter one, which covers as many calls."""
        periods = [period for period in range(1, len(kinds)) if kinds[period:] == kinds[:-period]]
        covered = len(self.free(kinds)) * len(kinds)
        return any(len(self.free(kinds[:period])) * period >= covered for period in periods)

    def _all(self, length: int) -> dict[Kinds, list[tuple[int, int]]]:
        if length not in self._places:
            found = self._places[length] = defaultdict(list)
            for number, conversation in enumerate(self._conversations):
                for start in range(len(conversation) - length + 1):
                    found[tuple(conversation[start : start + length])].append((number, start))
        return self._places[length]


@dataclass(slots=True)
class _Parameters:
    """The parameters found so far; arguments with the same values are one parameter."""

    names: dict[str, str] = field(default_factory=dict)
    """By the values it had."""
    schemas: dict[str, Json] = field(default_factory=dict)

    def name(self, wish: str, tool: str, values: list[Json]) -> str:
        key = dumps(values)
        if key not in self.names:
            name = _free_name(re.sub(r"\W", "_", wish), {*self.schemas, "previous", "steps"})
            self.names[key] = name
            self.schemas[name] = {"type": _types(values), "description": f"{wish} of {tool}"}
        return self.names[key]


def _generalise_calls(times: list[Sequence[PastCall]], taken: set[str]) -> Macro | None:
    """Return the macro that makes each of `times`, given the right arguments; `None` if there is none."""
    parameters = _Parameters()
    steps = []
    try:
        for place, call in enumerate(times[0]):
            args = {name: _argument(name, place, times, parameters) for name in call.args}
            steps.append(MacroStep(tool=call.tool, args=args))
        tools = [step.tool for step in steps]
        return Macro(
            name=_free_name(
                "_".join(dict.fromkeys(re.sub(r"\W", "_", tool) for tool in tools))[:60].lstrip("0123456789_")
                or "macro",
                taken,
            ),
            description=f"What agents did here {len(times)} times, call by call.",
            schema={
                "type": "object",
                "properties": parameters.schemas,
                "required": list(parameters.schemas),
                "additionalProperties": False,
            },
            steps=tuple(steps),
        )
    except UsageError:
        # Arguments too long or too deep for a template.
        return None


def _argument(name: str, place: int, times: list[Sequence[PastCall]], parameters: _Parameters) -> Json:
    """Return an argument of call `place`: a constant, a reference to an earlier result, or a parameter."""
    values = [calls[place].args[name] for calls in times]
    if len({dumps(value) for value in values}) == 1:
        return escape_template(values[0])
    for earlier in reversed(range(place)):
        common = _places(times[0][earlier].result, values[0])
        for calls, value in zip(times, values, strict=True):
            common = common and common & _places(calls[earlier].result, value)
        if common:
            return f"{{{{steps[{earlier}].content{min(common, key=lambda path: (len(path), path))}}}}}"
    return f"{{{{{parameters.name(name, times[0][place].tool, values)}}}}}"


def _places(result: Json, value: Json) -> set[str]:
    """Return the paths in `result` to exactly `value`; none for common values such as `true`."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return set()
    wanted = dumps(value)
    # The text of a whole has that of each part in it, and is quickly made.
    if wanted not in dumps(result):
        return set()
    return {
        path
        for path, part in _values_with_paths(result)
        if type(part) is type(value) and dumps(part) == wanted
    }


def _values_with_paths(result: Json) -> Iterator[tuple[str, Json]]:
    """Yield a result and the values in it, each with its path."""
    todo: list[tuple[str, Json]] = [("", result)]
    # Grows behind what is being looked at.
    for path, value in islice(todo, _MAX_NODES):
        yield path, value
        if isinstance(value, list):
            todo += [(f"{path}[{place}]", item) for place, item in enumerate(value)]
        elif isinstance(value, dict):
            todo += [(f"{path}.{key}", item) for key, item in value.items() if re.fullmatch(r"[\w-]+", key)]


def _types(values: list[Json]) -> Json:
    names = {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    kinds = {names[type(value)] for value in values}
    if "number" in kinds:
        kinds.discard("integer")
    return kinds.pop() if len(kinds) == 1 else [*sorted(kinds)]


def _free_name(name: str, taken: Iterable[str]) -> str:
    known = set(taken)
    name = name if name[:1].isalpha() or name.startswith("_") else f"x_{name}"
    number = 2
    fresh = name
    while fresh in known:
        fresh, number = f"{name}_{number}", number + 1
    return fresh
