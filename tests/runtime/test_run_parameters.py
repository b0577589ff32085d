"""Parameters and images of a run: given once, sent with every request, kept in the log, part of what
identifies a recording or a trial.
"""

import asyncio
import base64
from dataclasses import replace
from pathlib import Path

import pytest

from kestrel_lab.agents import LLMAgent
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import RunStarted, ToolAnswered
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import (
    ImagePart,
    Message,
    ModelAnswer,
    ModelParams,
    ModelRequest,
    ThinkingPart,
    ToolRequest,
)
from kestrel_lab.evals.execution.prepare import TunedModel
from kestrel_lab.evals.suite import Config
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.models.cassettes.recorder import answer_content, answer_of, request_content
from kestrel_lab.runtime import start
from kestrel_lab.runtime.context.images import images_html
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import ToolContext

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


class Notes:
    """A scripted model that notes requests."""

    name = "notes"
    kind = "scripted"

    def __init__(self, *answers):
        self.answers, self.asked = [*answers, ModelAnswer(text="done")], []

    async def __call__(self, request, on_delta):
        self.asked.append((request, tuple(request.messages)))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_parameters_reach_every_request_and_the_log(session: Lab, workspace: Path) -> None:
    """A run's parameters are in its requests and its first event; those of an agent go before them."""
    model = Notes()
    run = asyncio.run(
        session.run(
            "go",
            model=model,
            workspace=workspace,
            params={"top_p": 0.5, "stop": "END", "reasoning_effort": "low"},
        )
    )
    request = model.asked[0][0]
    assert (request.top_p, request.stop, request.reasoning_effort, request.temperature) == (
        0.5,
        ("END",),
        "low",
        None,
    )
    assert run.records()[0].event.params == {"top_p": 0.5, "stop": ["END"], "reasoning_effort": "low"}
    agent = LLMAgent("a", params={"reasoning_effort": "high"})
    asyncio.run(
        session.run(
            "go",
            model=model,
            workspace=workspace,
            plan=agent,
            params={"top_p": 0.5, "reasoning_effort": "low"},
        )
    )
    assert (model.asked[-1][0].top_p, model.asked[-1][0].reasoning_effort) == (0.5, "high")


def test_a_fork_keeps_the_parameters(session: Lab, workspace: Path) -> None:
    """What goes on with a run asks as the run did."""
    model = Notes()
    run = asyncio.run(session.run("go", model=model, workspace=workspace, params={"seed": 3}))

    async def forked():
        return await start.fork(session, run.id, at=5, model=model).wait()

    asyncio.run(forked())
    assert model.asked[-1][0].seed == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"top_q": 1}, "there is no model parameter 'top_q'; did you mean 'top_p'?"),
        ({"top_p": 2}, "the model parameter top_p cannot be 2"),
        ({"max_tokens": 0}, "max_tokens cannot be 0"),
        ({"seed": "x"}, "seed cannot be 'x'"),
        ({"stop": [""]}, "stop cannot be"),
        ({"temperature": True}, "temperature cannot be True"),
    ],
)
def test_wrong_parameters_are_refused_at_once(session: Lab, workspace: Path, given, words: str) -> None:
    """A name that does not exist and a value that cannot be are one line, before anything is written."""
    with pytest.raises(UsageError) as caught:
        asyncio.run(session.run("go", model=Notes(), workspace=workspace, params=given))
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["verify", "approve", "containment", "form", "cache", "instructions"])
def test_a_text_that_is_none_is_refused_at_once(session: Lab, workspace: Path, name: str) -> None:
    """By the name of the option, before a run begins: `verify=True` reads as if it turned something on."""
    with pytest.raises(UsageError, match=f"{name}= has to be a text, not True"):
        session.start("g", model=Notes(), workspace=workspace, **{name: True})
    assert session.history.runs().empty


def test_parameters_identify_a_recording_and_a_trial() -> None:
    """They are part of the keys; without any, keys are those of earlier versions."""
    plain = ModelRequest(messages=[Message(role="user", text="hi")])
    assert request_content("m", plain)["settings"] == {}
    assert set(request_content("m", plain)["messages"][0]) == {"role", "text"}
    tuned = ModelParams(top_p=0.5, stop=("E",), reasoning_effort="low").over(plain)
    assert request_content("m", tuned)["settings"] == {"top_p": 0.5, "stop": ["E"], "reasoning_effort": "low"}
    assert "params" not in Config(name="a").definition()
    assert Config(name="a", params={"top_p": 0.5}).definition()["params"] == {"top_p": 0.5}


def test_a_recorded_answer_keeps_its_thinking() -> None:
    """Thinking and signatures of calls come back from a cassette, so that the next request is the same."""
    call = ToolRequest(id="call_1", name="grep", args={}, signature="s")
    answer = ModelAnswer(
        text="a", calls=(call,), thinking=(ThinkingPart(text="t", signature="x"), ThinkingPart(redacted="r"))
    )
    again = answer_of(answer_content(answer))
    assert (again.thinking, again.calls) == (answer.thinking, answer.calls)
    said = Message(role="assistant", text="a", calls=(call,), thinking=answer.thinking)
    assert request_content("m", ModelRequest(messages=[said]))["messages"][0]["thinking"] == [
        {"text": "t", "signature": "x"},
        {"redacted": "r"},
    ]


def test_a_suite_file_gives_parameters_to_configurations(tmp_path: Path) -> None:
    """A configuration and an axis of the matrix may have them; a wrong one is told with its line."""
    file = tmp_path / "s.yaml"
    body = "name: s\nscenarios:\n  - id: a\n    goal: g\n    checks: [{answer_contains: x}]\n"
    file.write_text(f"{body}configs:\n  - name: c\n    params: {{reasoning_effort: low}}\n")
    assert load_suite(file).configs[0].params == {"reasoning_effort": "low"}
    file.write_text(
        f"{body}matrix:\n  params:\n    low: {{reasoning_effort: low}}\n    high: {{reasoning_effort: "
        f"high}}\n"
    )
    assert [config.params["reasoning_effort"] for config in load_suite(file).configs] == ["low", "high"]
    file.write_text(f"{body}configs:\n  - name: c\n    params: {{top_q: 1}}\n")
    with pytest.raises(UsageError, match="no model parameter 'top_q'"):
        load_suite(file)


def test_a_tuned_model_fills_in_only_what_is_open() -> None:
    """What a request sets itself stays."""
    model = Notes()
    tuned = TunedModel(model=model, params=ModelParams(temperature=0.5, seed=2))
    asyncio.run(tuned(ModelRequest(messages=[], temperature=0.0), print))
    assert (model.asked[0][0].temperature, model.asked[0][0].seed) == (0.0, 2)


def test_images_of_a_user_are_beside_the_goal(session: Lab, workspace: Path) -> None:
    """A file and bytes reach the model with their data; the log holds their names only."""
    (workspace / "a.png").write_bytes(PNG)
    model = Notes()
    run = asyncio.run(
        session.run(
            "what is it?", model=model, workspace=workspace, images=["a.png", ImagePart.of(PNG, "image/png")]
        )
    )
    sent = next(message for message in model.asked[0][1] if message.role == "user")
    assert [base64.b64decode(image.data) for image in sent.images] == [PNG, PNG]
    assert base64.b64encode(PNG).decode() not in str([record.event for record in run.records()])
    (workspace / "text.png").write_text("not a picture")
    (workspace / "photo.png").write_bytes(b"\xff\xd8\xff\xe0 a JPEG under another name")
    asyncio.run(session.run("go", model=model, workspace=workspace, images=["photo.png"]))
    assert (
        model.asked[-1][1][-1].images[0].media_type == "image/jpeg"
    )  # providers refuse an image of another type than is said
    with pytest.raises(UsageError, match=r"images=\['a.png'\]"):
        asyncio.run(session.run("go", model=model, workspace=workspace, images="a.png"))
    for wrong in (["no.png"], ["notes.txt"], ["text.png"], [ImagePart(media_type="image/png", blob="x")]):
        with pytest.raises(UsageError):
            asyncio.run(session.run("go", model=model, workspace=workspace, images=wrong))


def test_images_of_a_tool_are_beside_its_result(session: Lab, workspace: Path) -> None:
    """What a tool shows is named in its answer's event and reaches the model; one that is gone is named in
    the text.
    """

    @tool(danger_level="safe")
    async def plot(context: ToolContext) -> str:
        """Draw."""
        context.show(ImagePart.of(PNG, "image/png"))
        return "drawn"

    model = Notes(ModelAnswer(calls=(ToolRequest(id="c", name="plot"),)))
    run = asyncio.run(session.run("draw", model=model, workspace=workspace, tools=[plot]))
    (answered,) = [record.event for record in run.records() if isinstance(record.event, ToolAnswered)]
    name = ImagePart.of(PNG, "image/png").blob
    assert answered.images == [{"media_type": "image/png", "blob": name}]
    saved, page = run._repr_html_(), run.report(workspace / "run.html").read_text()
    assert all(
        f'src="data:image/png;base64,{base64.b64encode(PNG).decode()}"' in html for html in (saved, page)
    )
    given = RunStarted(goal="look", workspace=".", model="toy", images=answered.images)
    assert "images not shown here, as they are large: 1" in images_html([given], session.store, most=10)
    forged: list[dict[str, Json]] = [{"media_type": 'image/png" onload="x', "blob": name}]
    assert images_html([replace(given, images=forged)], session.store) == ""
    result = model.asked[1][1][-1]
    assert (result.role, base64.b64decode(result.images[0].data)) == ("tool", PNG)
    session.store.results.path(name).unlink()

    place = next(record.seq for record in run.records() if isinstance(record.event, ToolAnswered))

    async def forked():
        return await start.fork(session, run.id, model=model, tools=[plot], at=place).wait()

    asyncio.run(forked())
    assert model.asked[-1][1][-1].text == "drawn\n[1 image no longer kept]"
    assert "<img" not in run._repr_html_()
