"""Typed results: `output=…` asks for a value, has it repaired twice, and `run.value` computes it from the
log. All models here are scripted.
"""

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, field_validator

from kestrel_lab import Lab, LLMAgent
from kestrel_lab.core.errors import RunFailed, UsageError
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import OnDelta
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.step import Step
from kestrel_lab.models.chat_format import object_schema, response_format
from kestrel_lab.testing import ScriptedModel


class Place(BaseModel):
    """A line of a file."""

    path: str
    line: int

    @field_validator("line")
    @classmethod
    def counted(cls, line: int) -> int:
        """Lines are counted from 1."""
        if line < 1:
            msg = "lines are counted from 1"
            raise ValueError(msg)
        return line


@pytest.mark.parametrize(
    ("output", "said", "value"),
    [
        (Place, '{"path": "a.py", "line": 3}', Place(path="a.py", line=3)),
        (Place, 'Here it is:\n```json\n{"path": "a.py", "line": 3}\n```', Place(path="a.py", line=3)),
        (list[Place], '[{"path": "a\\nb", "line": 3}]', [Place(path="a\nb", line=3)]),
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (dict[str, int], '{"value": 3}', {"value": 3}),
        (int, "42", 42),
        (Literal["yes", "no"], "yes", "yes"),
        (Literal["yes", "no"], '"no"', "no"),
        (str, "plain words", "plain words"),
        (int | None, '{"value": null}', None),
        ({"type": "object", "required": ["a"]}, '{"a": 1}', {"a": 1}),
    ],
)
def test_an_answer_is_a_value(session: Lab, output: Any, said: str, value: Any) -> None:
    """Of any type, alone, in a fence or as providers wrap it; from the log it is the same, plain where the
    type is not given again.
    """
    run = asyncio.run(session.run("go", model=ScriptedModel([said]), output=output))
    assert run.value == value
    assert session.get(run.id, output=output).value == value
    plain = session.get(run.id).value
    assert plain == (
        value.model_dump()
        if isinstance(value, Place)
        else [one.model_dump() for one in value]
        if output == list[Place]
        else value
    )


def test_it_is_repaired_twice(session: Lab) -> None:
    """The model is told what does not fit, by the schema and by a validator; it is asked with the schema each
    time.
    """
    asked: list[ModelRequest] = []
    told: list[str] = []

    def turns(request: ModelRequest) -> str:
        asked.append(request)
        told.append(request.messages[-1].text)
        return ["no JSON", '{"path": "a", "line": 0}', '{"path": "a", "line": 1}'][len(asked) - 1]

    run = asyncio.run(session.run("go", model=ScriptedModel(turns), output=Place))
    assert run.value.line == 1
    assert ("there is no JSON" in told[1], "line: Value error, lines are counted from 1" in told[2]) == (
        True,
        True,
    )
    assert all(request.schema == Place.model_json_schema() for request in asked)
    assert (
        '"line"' in asked[0].messages[0].text
    )  # the system message has the schema, for models without response_format


def test_what_cannot_be_had_is_said(session: Lab) -> None:
    """The run fails with the reason, and so does its value; so does the value of a run that was asked for
    none.
    """
    run = asyncio.run(session.run("go", model=ScriptedModel(["a", "b", "c"]), output=Place))
    assert (run.status, run.outcome) == (RunStatus.FAILED, "error")
    with pytest.raises(
        RunFailed,
        match=r"has no value, it ended FAILED: .*could not be used after 3 attempts: there is no JSON",
    ):
        run.value
    with pytest.raises(UsageError, match="was not asked for a value"):
        asyncio.run(session.run("go", model=ScriptedModel(["a"]))).value
    with pytest.raises(UsageError, match="the schema of the type given now is not the one in the log"):
        session.get(
            asyncio.run(session.run("go", model=ScriptedModel(["4"]), output=int)).id, output=str
        ).value


@pytest.mark.parametrize("output", [7, {"type": "nothing"}, "no.such:Type", "tests:Type"])
def test_no_type(session: Lab, output: Any) -> None:
    """What is no type is refused before the run begins; a name imports nothing."""
    with pytest.raises(UsageError, match="output"):
        asyncio.run(session.run("go", model=ScriptedModel(["4"]), output=output))


class Stuck(ScriptedModel):
    """Answers once, then never."""

    def __init__(self) -> None:
        super().__init__(["wrong"], name="one")
        self.reached = asyncio.Event()

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer, or wait for ever."""
        if any(message.role == "assistant" for message in request.messages):
            self.reached.set()
            await asyncio.Event().wait()
        return await super().__call__(request, on_delta)


def test_it_survives_resume_and_fork(tmp_path: Path) -> None:
    """A run that broke off at a repair goes on in another session with the same schema, and its value is of
    the type given there.
    """

    async def broken() -> str:
        model = Stuck()
        async with Lab(tmp_path, model=model) as first:
            run = first.start("go", output=Place)
            await model.reached.wait()
        return run.id

    name = asyncio.run(broken())
    with Lab(tmp_path, model=ScriptedModel(["wrong", '{"path": "a", "line": 2}'], name="one")) as second:
        with pytest.raises(UsageError, match="another output"):
            asyncio.run(second.resume(name, output=int))
        resumed = asyncio.run(second.resume(name, output=Place))
        assert resumed.value == Place(path="a", line=2)
        forked = asyncio.run(second.fork(resumed.id, answer='{"path": "b", "line": 3}', output=Place))
        assert forked.value == Place(path="b", line=3)


def test_agents_plans_and_workflows(session: Lab, tmp_path: Path) -> None:
    """An agent has an output; of a plan it is the last step's; a tool's answer is checked; a workflow file
    names a schema.
    """
    said = '{"path": "a", "line": 3}'
    assert asyncio.run(
        session.run("go", model=ScriptedModel([said]), plan=LLMAgent("finder", output=Place))
    ).value == Place(path="a", line=3)
    two = Plan(
        steps=(Step(id="a", goal="first", produces=("x",)), Step(id="b", goal="then", consumes=("x",)))
    )
    model = ScriptedModel(lambda request: said if "then" in request.messages[-1].text else "words")
    assert asyncio.run(session.run("go", model=model, plan=two, output=Place)).value.line == 3
    (tmp_path / "n.txt").write_text("words")
    tool = Plan(steps=(Step(id="read", tool="read_file", args={"path": "n.txt"}),))
    run = asyncio.run(session.run("go", model=ScriptedModel([]), plan=tool, output=int, workspace=tmp_path))
    assert (run.outcome, "not what output= asks for" in run.reason) == ("unmet", True)
    flow = tmp_path / "flow.yaml"
    flow.write_text(
        "kind: plan\nsteps: [{id: a, goal: '{{goal}}'}]\noutput: {type: array, items: {type: integer}}\n"
    )
    assert asyncio.run(session.run("go", model=ScriptedModel(["[1, 2]"]), plan=flow)).value == [1, 2]
    own = Plan(steps=(Step(id="a", goal="x", schema={"type": "object"}),))
    with pytest.raises(UsageError, match="has a schema of its own"):
        asyncio.run(session.run("go", model=ScriptedModel([]), plan=own, output=int))
    with pytest.raises(UsageError, match="output type and the form 'brief'"):
        asyncio.run(session.run("go", model=ScriptedModel([]), form="brief", output=int))


def test_a_suite_asks_for_values(tmp_path: Path) -> None:
    """`output` of a scenario holds for its runs, and a change of it makes other trials."""
    suite = """\
    configs: [{{name: a, model: "scripted:script.yaml"}}]
    scenarios: [{{id: s, goal: go, output: {}, checks: [{{answer_contains: "2"}}]}}]
    """
    (tmp_path / "script.yaml").write_text("rules: [{when: go, turns: ['[1, 2]', '[1, 2]', '[1, 2]']}]\n")
    keys = []
    with Lab(tmp_path / "home", env={}) as lab:
        for schema, passes in (("{type: array}", 1.0), ("{type: boolean}", 0.0)):
            (tmp_path / "suite.yaml").write_text(suite.format(schema))
            result = asyncio.run(lab.eval(tmp_path / "suite.yaml"))
            keys.append(result.rows[0].key)
            assert result.rows[0].result["outcome"] == ("pass" if passes else "error")
    assert len(set(keys)) == 2


def test_providers_get_objects() -> None:
    """A value that is no object is asked for as that of a key, with the definitions where references find
    them.
    """
    schema: Any = {"type": "array", "items": {"$ref": "#/$defs/P"}, "$defs": {"P": {"type": "object"}}}
    sent: Any = response_format(object_schema(schema))["json_schema"]
    assert sent["schema"]["properties"]["value"] == {"type": "array", "items": {"$ref": "#/$defs/P"}}
    assert sent["schema"]["$defs"] == schema["$defs"]
