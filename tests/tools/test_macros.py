"""What a macro is, and how a workspace keeps it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.calls import Problem, Result
from kestrel_lab.core.errors import ToolError, UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.tools.argument_schema import ToolArgumentsError
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.macros import Macro, MacroRegistry, MacroStep, macro_tool, run_macro, with_macros
from kestrel_lab.tools.tool import Toolbox

SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "repo_root": {"type": "string"},
        "query": {"type": "string", "description": "What to look for."},
        "depth": {"type": "integer", "default": 2},
    },
    "required": ["repo_root", "query"],
    "additionalProperties": False,
}
STEPS: list[Json] = [
    {"type": "tool", "name": "tree", "args": {"path": "{{repo_root}}", "depth": "{{depth}}"}},
    {
        "type": "tool",
        "name": "grep",
        "args": {"pattern": "{{query}}", "path": "{{steps[0].content.dirs[1]}}"},
    },
    {"type": "tool", "name": "note", "args": {"text": "{{query}}: ${previous.content}"}},
]


def survey(**changes: Any) -> Macro:
    """A macro of three steps."""
    return Macro.from_json(
        changes.get("name", "survey"),
        changes.get("description", "Look around."),
        changes.get("schema", SCHEMA),
        changes.get("steps", STEPS),
    )


class ScriptedParts:
    """Answers the calls of a macro from a list, and keeps what was asked and told."""

    def __init__(self, *answers: Json | Problem) -> None:
        self.answers = list(answers)
        self.log: list[Any] = []

    def begin(self, macro: str, version: int, args: dict[str, Json]) -> None:
        """Keep it."""
        self.log.append(("begin", macro, version, args))

    async def __call__(self, place: int, tool: str, args: dict[str, Json]) -> Result:
        """The next answer."""
        self.log.append((place, tool, args))
        answer = self.answers.pop(0)
        return Result(error=answer) if isinstance(answer, Problem) else Result(value=answer)

    def end(self, *, ok: bool, reason: str = "") -> None:
        """Keep it."""
        self.log.append(("end", ok, reason))


def test_a_macro_hands_values_from_step_to_step() -> None:
    """Parameters keep their type, earlier results are JSON values with parts, the answer has every result by
    number and tool.
    """
    parts = ScriptedParts({"dirs": ["a", "b"]}, ["b/x.py", 3], None)
    args = survey().arguments({"repo_root": ".", "query": "{{repo_root}}"})
    assert asyncio.run(run_macro(survey(), args, parts)) == {
        "1 tree": {"dirs": ["a", "b"]},
        "2 grep": ["b/x.py", 3],
        "3 note": None,
    }
    assert parts.log == [
        ("begin", "survey", 1, {"depth": 2, "repo_root": ".", "query": "{{repo_root}}"}),
        (1, "tree", {"path": ".", "depth": 2}),
        (2, "grep", {"pattern": "{{repo_root}}", "path": "b"}),
        (3, "note", {"text": '{{repo_root}}: ["b/x.py",3]'}),
        ("end", True, ""),
    ]


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (
            [Problem(kind="failed", message="no such folder")],
            "step 1 of 3, tree: no such folder\nSteps done before it: none.",
        ),
        (
            [{"dirs": ["a", "b"]}, Problem(kind="denied", message="not allowed")],
            "step 2 of 3, grep: not allowed\nSteps done before it: 1 tree.",
        ),
        (
            ["only text"],
            "step 2 of 3, grep: 'steps[0].content.dirs[1]': steps[0].content is a text, "
            "and steps[0].content.dirs asks for a key of an object\nSteps done before it: 1 tree.",
        ),
    ],
)
def test_a_macro_stops_where_a_step_cannot_be_done(answers: list[Any], told: str) -> None:
    """The error names step, tool and reason and says what was done; no step after it is tried."""
    parts = ScriptedParts(*answers)
    with pytest.raises(ToolError) as caught:
        asyncio.run(run_macro(survey(), {"repo_root": ".", "query": "x", "depth": 1}, parts))
    assert str(caught.value) == f"macro survey stopped at {told}"
    assert (parts.answers, parts.log[-1][:2]) == ([], ("end", False))


def one(args: Json, **more: Any) -> list[Json]:
    """Steps of which the second has these arguments."""
    return [{"type": "tool", "name": "a", "args": {}}, {"type": "tool", "name": "b", "args": args, **more}]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "no good"}, "'no good' cannot be a macro's name"),
        ({"name": "../x"}, "cannot be a macro's name"),
        ({"description": " "}, "macro 'survey' has no description"),
        ({"steps": []}, "macro 'survey' has 0 steps: give 1 to 50"),
        ({"steps": STEPS[:1] * 51}, "macro 'survey' has 51 steps"),
        ({"schema": {"type": "objekt"}}, "the schema of macro 'survey' is not JSON Schema"),
        ({"schema": {"type": "array"}}, "must describe an object"),
        (
            {"schema": {"type": "object", "properties": {"steps": {}}}, "steps": one({})},
            "has a parameter 'steps'",
        ),
        (
            {"steps": one({"x": "{{repo_rot}}"})},
            "step 2 of macro 'survey' refers to 'repo_rot': no such parameter; did you mean 'repo_root'?",
        ),
        (
            {"steps": one({"x": ["{{steps[1].content}}"]})},
            "only steps before it have results, counted from [0] to [0]",
        ),
        ({"steps": one({"x": "{{steps[0].text}}"})}, "results are previous.content and steps[0].content"),
        ({"steps": one({"x": "{{previous}}"})}, "results are previous.content and steps[0].content"),
        ({"steps": STEPS[1:]}, "step 1 of macro 'survey' refers to 'steps[0].content.dirs[1]'"),
        (
            {"steps": [{"type": "tool", "name": "a", "args": {"x": "${previous.content}"}}]},
            "there is no step before it",
        ),
        (
            {"steps": one({"x": "{{query"})},
            "step 2 of macro 'survey': '{{query' begins a reference that does not end",
        ),
        ({"steps": one({"x": float("nan")})}, "step 2 of macro 'survey'"),
        (
            {"steps": [{"type": "tool", "name": "macro_run", "args": {}}]},
            "step 1 of macro 'survey' is a macro: write its steps instead",
        ),
        ({"steps": [{"type": "tool", "name": "", "args": {}}]}, "step 1 of macro 'survey' names no tool"),
        ({"steps": [{"type": "model", "name": "x"}]}, "a step of macro 'survey' is"),
        ({"steps": one({}, extra=1)}, "a step of macro 'survey' is"),
        ({"steps": ["tree"]}, "a step of macro 'survey' is"),
    ],
)
def test_a_macro_is_valid_or_is_not_made(changes: dict[str, Any], told: str) -> None:
    """What is wrong is named: name, schema, step, reference."""
    with pytest.raises(UsageError) as caught:
        survey(**changes)
    assert told in str(caught.value)


def test_arguments_are_checked_by_the_schema_and_completed() -> None:
    """Defaults are filled in, every wrong parameter is told, and a schema cannot make the machine fetch
    anything.
    """
    assert survey().arguments({"repo_root": ".", "query": "x"}) == {
        "depth": 2,
        "repo_root": ".",
        "query": "x",
    }
    with pytest.raises(ToolArgumentsError) as caught:
        survey().arguments({"repo_root": 1, "qery": "x", "depth": "deep"})
    lines = str(caught.value).splitlines()
    assert lines[0] == "macro survey was not run, its arguments are wrong:"
    assert sorted(lines[1:-1]) == [
        "- args: 'query' is a required property",
        "- args: Additional properties are not allowed ('qery' was unexpected)",
        "- depth: 'deep' is not of type 'integer'",
        "- repo_root: 1 is not of type 'string'",
    ]
    assert lines[-1] == "use survey(repo_root, query, depth?)"
    away = survey(
        schema={"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}},
        steps=one({}),
    )
    with pytest.raises(ToolArgumentsError, match="refers to something that it does not contain"):
        away.arguments({"x": 1})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """A log of its own."""
    opened = SessionStore(tmp_path / "kestrel.db")
    yield opened
    opened.close()


def test_the_registry_keeps_versions(store: SessionStore) -> None:
    """Saving the same again changes nothing; a change is a new version; each workspace has its own; the last
    one counts.
    """
    registry, other = MacroRegistry(store, "/work"), MacroRegistry(store, "/other")
    assert registry.list() == []
    assert registry.save(survey()) == survey()
    assert registry.save(survey()).version == 1
    changed = registry.save(survey(description="Look further."))
    assert (changed.version, changed.description, registry.get("survey").version) == (2, "Look further.", 2)
    assert registry.get("survey", 1) == survey()
    assert registry.list() == [changed]
    assert other.list() == []
    other.save(survey())
    registry.remove("survey")
    assert (registry.list(), other.list()) == ([], [survey()])
    assert registry.save(survey()).version == 1


def test_macros_are_disabled_and_enabled(store: SessionStore) -> None:
    """A disabled macro stays, in the state it was saved, and a new version of it is what its maker says."""
    registry = MacroRegistry(store, "/work")
    registry.save(survey())
    assert registry.disable("survey").enabled is False
    assert registry.save(survey()).enabled is False
    assert registry.enable("survey") == survey()


def test_what_is_not_there_is_told(store: SessionStore) -> None:
    """Each operation on an unknown name raises with the nearest one."""
    registry = MacroRegistry(store, "/work")
    registry.save(survey())
    for use in (registry.get, registry.enable, registry.disable, registry.remove):
        with pytest.raises(UsageError, match="there is no macro 'survy' for /work; did you mean 'survey'"):
            use("survy")
    with pytest.raises(UsageError, match="there is no version 7 of macro 'survey'"):
        registry.get("survey", 7)


@tool
async def tree(path: str, depth: int = 1) -> str:
    """List."""
    return path * depth


@tool
async def grep(pattern: str, path: str) -> str:
    """Search."""
    return pattern + path


@tool
async def note(text: str) -> str:
    """Keep."""
    return text


def test_a_macro_is_offered_when_all_its_tools_are() -> None:
    """`macro_run` comes first; macros that need other tools are left out; with none left the toolbox stays as
    it is.
    """
    whole, part = Toolbox([tree, grep, note]), Toolbox([tree, grep])
    alone = Macro(
        name="alone",
        description="List.",
        schema={"type": "object"},
        steps=(MacroStep(tool="tree", args={"path": "."}),),
    )
    assert with_macros(whole, [survey(), alone]).names == ("macro_run", "tree", "grep", "note")
    assert with_macros(part, [survey()]) is part
    offered = with_macros(part, [survey(), alone]).get("macro_run")
    assert offered.schema["properties"]["name"]["enum"] == ["alone"]  # type: ignore[index,call-overload]


def test_the_model_is_told_every_macro() -> None:
    """Name, purpose, tools and parameters with type and meaning; the schema knows the names."""
    told = macro_tool({"survey": survey()})
    assert told.description.splitlines() == [
        "Do several tool calls in one: prefer a macro that fits to its tools. Macros:",
        "- survey(repo_root, query, depth?): Look around. Calls tree, grep, note.",
        "  - repo_root (string)",
        "  - query (string): What to look for.",
        "  - depth (integer, optional)",
    ]
    assert (told.danger.name, told.effect, told.fingerprint) == ("SAFE", "pure", None)


def test_a_macro_shows_its_steps() -> None:
    """The plain form has signature, state, purpose and numbered steps; the HTML form is that, escaped."""
    macro = survey(description="Look <around>.")
    assert repr(macro).splitlines()[:3] == [
        "macro survey(repo_root, query, depth?) · version 1",
        "  Look <around>.",
        '  1. tree {"path":"{{repo_root}}","depth":"{{depth}}"}',
    ]
    assert "Look &lt;around&gt;." in macro._repr_html_()
