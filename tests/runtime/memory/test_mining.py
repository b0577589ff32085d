"""Sequences that agents repeat are found, generalised and used: the fourth time in one call."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab import Lab
from kestrel_lab.core.calls import Result
from kestrel_lab.core.errors import ToolError, UsageError
from kestrel_lab.core.events.union import MacroFinished, ModelAnswered, Record, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.runtime.memory.macro_mining import PastCall, past_calls, propose_macros
from kestrel_lab.testing import ScriptedApprover, ScriptedModel
from kestrel_lab.tools.argument_schema import ToolArgumentsError
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.macros import Macro, run_macro


def call(tool_name: str, result: Json = "ok", run: str = "r", **args: Json) -> PastCall:
    """A call that succeeded."""
    return PastCall(run=run, tool=tool_name, args=args, result=result)


def workflow(number: int) -> list[PastCall]:
    """Find, read, note: one constant, one parameter, one reference into JSON, one to text."""
    run, path, text = f"r{number}", f"src/{number}.py", f"content {number}"
    return [
        call("find", {"hits": [{"path": "x"}, {"path": path}]}, run, pattern=f"p{number}", depth=2),
        call("read", text, run, path=path),
        call("note", "kept", run, text=text, tag=f"p{number}", note="{{x}} ${y}"),
    ]


def test_a_repeated_sequence_becomes_a_macro() -> None:
    """Equal arguments are constants, those found in earlier results references, others parameters, alike ones
    one parameter.
    """
    (found,) = propose_macros([workflow(1), workflow(2), [call("other"), *workflow(3)]])
    assert [step.as_json() for step in found.macro.steps] == [
        {"type": "tool", "name": "find", "args": {"pattern": "{{pattern}}", "depth": 2}},
        {"type": "tool", "name": "read", "args": {"path": "{{steps[0].content.hits[1].path}}"}},
        {
            "type": "tool",
            "name": "note",
            "args": {"text": "{{steps[1].content}}", "tag": "{{pattern}}", "note": "{{{{x}} $${y}"},
        },
    ]
    assert found.macro.schema == {
        "type": "object",
        "properties": {"pattern": {"type": "string", "description": "pattern of find"}},
        "required": ["pattern"],
        "additionalProperties": False,
    }
    assert (found.macro.name, found.occurrences, found.runs, found.saved_calls) == (
        "find_read_note",
        3,
        ("r1", "r2", "r3"),
        6,
    )
    assert "would have saved 6 calls" in repr(found)


def test_twice_is_not_enough_and_once_more_is() -> None:
    """Three occurrences are needed, in one run or in several."""
    assert propose_macros([workflow(1), workflow(2)]) == []
    (found,) = propose_macros([workflow(1) + workflow(2) + workflow(3)])
    assert (found.occurrences, [step.tool for step in found.macro.steps]) == (3, ["find", "read", "note"])


def test_a_reference_must_hold_every_time() -> None:
    """An argument that was in the result only twice of three times is a parameter."""
    third = workflow(3)
    third[1] = call("read", "content 3", "r3", path="elsewhere")
    (found,) = propose_macros([workflow(1), workflow(2), third])
    assert found.macro.steps[1].args == {"path": "{{path}}"}
    assert list(found.macro.parameters) == ["pattern", "path"]


def test_parameters_have_the_types_they_had() -> None:
    """Whole and decimal numbers are numbers, several types are all named, and a name that means results is
    not taken.
    """
    values: list[list[Json]] = [[1, 2, 3], [1, 2.5, 3], ["a", None, "b"], [[1], [2], []], [True, False, True]]
    conversations = [
        [call("a", steps=v[0], n=v[1], t=v[2], items=v[3], flag=v[4]), call("b")]
        for v in zip(*values, strict=True)
    ]
    (found,) = propose_macros(conversations)
    assert {name: about["type"] for name, about in found.macro.parameters.items()} == {
        "steps_2" if name == "steps" else name: kind
        for name, kind in {
            "steps": "integer",
            "n": "number",
            "t": ["null", "string"],
            "items": "array",
            "flag": "boolean",
        }.items()
    }


def test_the_longest_comes_first_and_no_call_counts_twice() -> None:
    """Where a long sequence repeats its parts are not proposed too; where they also occur elsewhere often
    enough, they are.
    """
    long = [[call("a"), call("b"), call("c"), call("d")]] * 3
    assert [[step.tool for step in found.macro.steps] for found in propose_macros(long)] == [
        ["a", "b", "c", "d"]
    ]
    both = propose_macros(long + [[call("b"), call("c")]] * 3)
    assert [([step.tool for step in found.macro.steps], found.occurrences) for found in both] == [
        (["a", "b", "c", "d"], 3),
        (["b", "c"], 3),
    ]


def test_one_call_over_and_over_is_no_sequence() -> None:
    """Ten reads in a row are not a macro, and a pair ten times over is that pair; a sequence that ends as it
    began is one.
    """
    assert propose_macros([[call("read", path=str(n)) for n in range(10)]] * 3) == []
    (framed,) = propose_macros([[call("read", x=1), call("edit", x=1), call("read", x=1)]] * 3)
    assert [step.tool for step in framed.macro.steps] == ["read", "edit", "read"]
    (found,) = propose_macros(
        [[call("a", x=n), call("b", x=n)] for n in range(3)] + [[call("a", x=9), call("b", x=9)] * 9]
    )
    assert ([step.tool for step in found.macro.steps], found.occurrences) == (["a", "b"], 12)


def test_what_is_a_macro_already_is_not_proposed() -> None:
    """Neither the same sequence nor a part of it; a macro's name is not given twice."""
    conversations = [workflow(number) for number in range(1, 4)]
    (found,) = propose_macros(conversations)
    assert propose_macros(conversations, [found.macro]) == []
    again = propose_macros(
        [[call("find", pattern="x"), call("read", path="y"), call("note", text="z")]] * 3, [found.macro]
    )
    assert [proposal.macro.name for proposal in again] == ["find_read_note_2"]


names = st.sampled_from("abc")
values: st.SearchStrategy[Json] = st.sampled_from([1, 2, "x", "{{y}}", "${z", True, None, ["x"], {"k": "x"}])
calls = st.builds(lambda name, x, result: call(name, result, x=x), names, values, values)


class Replay:
    """Answers a macro's calls with what they answered then, and keeps what it was asked."""

    def __init__(self, then: list[PastCall]) -> None:
        self.then = then
        self.asked: list[tuple[str, dict[str, Json]]] = []

    def begin(self, *_: Any) -> None:
        """Nothing."""

    def end(self, **_: Any) -> None:
        """Nothing."""

    async def __call__(self, place: int, tool: str, args: dict[str, Json]) -> Any:
        """The answer of then."""
        self.asked.append((tool, args))
        return Result(value=self.then[place - 1].result)


@given(conversations=st.lists(st.lists(calls, max_size=9), max_size=6))
def test_a_proposal_does_what_was_done(conversations: list[list[PastCall]]) -> None:
    """Over random logs: with the right arguments a proposed macro makes exactly the calls of each of its
    occurrences.
    """
    for found in propose_macros(conversations):
        kinds = [(step.tool, *sorted(step.args)) for step in found.macro.steps]
        assert found.occurrences >= 3
        matching = 0
        for conversation in conversations:
            for start in range(len(conversation) - len(kinds) + 1):
                then = conversation[start : start + len(kinds)]
                if [past.kind for past in then] == kinds:
                    matching += _makes(found.macro, then)
        assert matching >= found.occurrences


def _makes(macro: Macro, then: list[PastCall]) -> bool:
    """Whether some arguments make `macro` do exactly these calls: each parameter is what stands where it is
    first used.
    """
    args: dict[str, Json] = {}
    for step, past in zip(macro.steps, then, strict=True):
        for key, value in step.args.items():
            if isinstance(value, str) and value.startswith("{{") and value[2:-2] in macro.parameters:
                args.setdefault(value[2:-2], past.args[key])
    replay = Replay(then)
    try:
        asyncio.run(run_macro(macro, macro.arguments(args), replay))
    except (ToolError, ToolArgumentsError):
        return False
    return replay.asked == [(past.tool, past.args) for past in then]


@tool
async def find(pattern: str) -> dict[str, Any]:
    """Find files."""
    return {"files": [f"{pattern}.py"]}


@tool
async def read(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


@tool(danger_level="high")
async def publish(text: str, place: str = "wiki") -> str:
    """Publish a text."""
    return f"published on {place}"


def by_hand(word: str) -> ScriptedModel:
    """The workflow, one call at a time, with a mistake that did not help."""
    return ScriptedModel(
        [
            [("find", {"pattern": word}), ("raed", {})],
            [("read", {"path": f"{word}.py"})],
            [("publish", {"text": f"text of {word}.py"})],
            "published",
        ]
    )


def test_three_times_by_hand_the_fourth_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workflow done in three runs is proposed, accepted, and offered; a fourth run does it in one call,
    approved as before.
    """
    monkeypatch.chdir(tmp_path)
    lab = Lab(tools=[find, read, publish], env={})
    for number, word in enumerate(("one", "two", "three")):
        assert (lab.macros.proposals() == []) is True, number
        lab.run_sync("publish", model=by_hand(word), approve="auto")
    (found,) = lab.macros.proposals()
    assert (found.occurrences, len(found.runs), found.saved_calls) == (3, 3, 6)
    assert "find_read_publish(pattern)" in repr(lab.macros)
    assert "proposed, 3 times" in lab.macros._repr_html_()
    kept = lab.macros.accept("find_read_publish", called="publish_found")
    assert [step.args for step in kept.steps] == [
        {"pattern": "{{pattern}}"},
        {"path": "{{steps[0].content.files[0]}}"},
        {"text": "{{steps[1].content}}"},
    ]
    assert (lab.macros.list(), lab.macros.proposals()) == ([kept], [])

    script = ScriptedModel(
        [[("macro_run", {"name": "publish_found", "args": {"pattern": "four"}})], "published"]
    )
    approver = ScriptedApprover([True])
    run = lab.run_sync("publish", model=script, approver=approver)
    events = run.events()
    assert [
        event.calls[0]["name"] for event in events if isinstance(event, ModelAnswered) and event.calls
    ] == ["macro_run"]
    assert [(event.tool, event.args) for event in events if isinstance(event, ToolCalled)][1:] == [
        ("find", {"pattern": "four"}),
        ("read", {"path": "four.py"}),
        ("publish", {"text": "text of four.py", "place": "wiki"}),
    ]
    assert [event.ok for event in events if isinstance(event, MacroFinished)] == [True]
    assert (run.answer, run.usage.model_calls, lab.macros.proposals()) == ("published", 2, [])
    again = lab.macros.run_sync("publish_found", {"pattern": "five"}, model=ScriptedModel([]), approve="auto")
    assert "text of five.py" in again.answer
    lab.close()


def test_what_is_proposed_is_accepted_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not proposed is refused with what is; so is one that is taken."""
    monkeypatch.chdir(tmp_path)
    lab = Lab(tools=[find, read, publish], env={})
    with pytest.raises(UsageError, match=r"no macro 'x' is proposed .*; known: none"):
        lab.macros.accept("x")
    for word in ("one", "two", "three"):
        lab.run_sync("publish", model=by_hand(word), approve="auto")
    with pytest.raises(UsageError, match="did you mean 'find_read_publish'"):
        lab.macros.accept("find_read_pub")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert lab.macros.at(elsewhere).proposals() == []
    lab.close()


def test_only_successful_calls_count_and_forks_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that failed, were denied or given by hand are left out; what a fork shares with its parent is not
    there twice.
    """
    monkeypatch.chdir(tmp_path)
    lab = Lab(tools=[find, read, publish], env={})
    run = lab.run_sync("publish", model=by_hand("one"), approver=ScriptedApprover([False]))
    records: list[Record] = run.records()
    seen: set[str] = set()
    (conversation,) = past_calls(records, seen)
    assert [(past.tool, past.args, past.result) for past in conversation] == [
        ("find", {"pattern": "one"}, {"files": ["one.py"]}),
        ("read", {"path": "one.py"}, "text of one.py"),
    ]
    fork = asyncio.run(lab.fork(run.id, model=by_hand("one"), approver=ScriptedApprover([True])))
    assert past_calls(fork.records(), seen) == []
    at = next(
        record.seq
        for record in records
        if isinstance(record.event, ToolCalled) and record.event.tool == "read"
    )
    given = asyncio.run(
        lab.fork(run.id, at=at, result="a gift", model=by_hand("one"), approver=ScriptedApprover([True]))
    )
    assert [
        event.given for event in given.events() if isinstance(event, ToolAnswered) and event.tool == "read"
    ] == [True]
    assert [[past.tool for past in conversation] for conversation in past_calls(given.records(), set())] == [
        ["find", "publish"]
    ]
    lab.close()
