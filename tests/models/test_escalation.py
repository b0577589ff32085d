"""Several models as one: who is asked, who answers, what it costs, and what a run's log tells of it."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import OpenAIServer, Reply

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import DependencyError, ModelError, UsageError
from kestrel_lab.core.events.union import ModelAnswered, ModelDelta, ModelEscalated, RunStarted
from kestrel_lab.core.messages import ModelAnswer, ModelRequest, ToolRequest, TriedModel
from kestrel_lab.core.protocols import Model, ModelKind, OnDelta
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.models.fallback import EscalatingModel, cut_off, empty, plainly_unsure, unreadable
from kestrel_lab.models.resolve import choose_model
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import RecordingListener, ScriptedModel, conversation
from kestrel_lab.views.run_text import run_text
from kestrel_lab.views.run_view import view_of

# pydantic's remark about litellm's own types, which the package silences when it loads litellm; each test's
# filters begin anew.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier"
)

REQUEST = ModelRequest(messages=conversation(("user", "hi")))
CHEAP, DEAR = (
    Usage(tokens_in=10, tokens_out=1, model_calls=1, cost_usd=0.5),
    Usage(tokens_in=10, tokens_out=5, model_calls=1, cost_usd=2.0),
)


@dataclass
class Plays:
    """Gives one answer, or raises one error."""

    name: str
    turn: ModelAnswer | Exception
    kind: ModelKind = "real"
    asked: list[ModelRequest] = field(default_factory=list)

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self.asked.append(request)
        if isinstance(self.turn, Exception):
            raise self.turn
        for piece in self.turn.text.split():
            on_delta(piece)
        return self.turn


def ask(*models: Model, **options: Any) -> tuple[ModelAnswer, list[str]]:
    """The answer of these in turn, and what was streamed."""
    heard: list[str] = []
    return asyncio.run(EscalatingModel(models=models, **options)(REQUEST, heard.append)), heard


GOOD = ModelAnswer(text="good answer", usage=DEAR, model="b-2026")
BAD = ModelAnswer(text="half of an", usage=CHEAP, finish="length", model="a-2026")
DOWN = ModelError("no connection", transient=True)


def test_the_first_good_answer_is_taken() -> None:
    """A model that answers well is the only one asked, and its answer comes whole."""
    spare = Plays("b", GOOD)
    assert ask(Plays("a", GOOD), spare) == (GOOD, ["good answer"])
    assert spare.asked == []


@pytest.mark.parametrize(
    ("turn", "reason", "used"),
    [
        (DOWN, "no connection", Usage()),
        (DependencyError("a", "recovering", "model a is recovering"), "model a is recovering", Usage()),
        (ModelError("the provider fell over"), "the provider fell over", Usage()),
        (BAD, "its answer was cut off at its output limit", CHEAP),
        (ModelAnswer(usage=CHEAP), "its answer is empty", CHEAP),
        (
            ModelAnswer(calls=(ToolRequest(id="1", name="grep", problem="not JSON"),), usage=CHEAP),
            "it asked for grep with arguments that cannot be read",
            CHEAP,
        ),
    ],
)
def test_the_next_one_takes_over(turn: ModelAnswer | Exception, reason: str, used: Usage) -> None:
    """A failure and an answer that will not do lead to the next model; what was tried is told, with what it
    used.
    """
    answer, heard = ask(Plays("a", turn), Plays("b", GOOD))
    assert answer == replace(GOOD, tried=(TriedModel(model="a", reason=reason, then="b", usage=used),))
    assert heard == ["good", "answer"]


def test_the_callers_fault_is_not_passed_on() -> None:
    """A refused key or request is raised at once: another model would not fix it, and the caller must
    know.
    """
    spare = Plays("b", GOOD)
    with pytest.raises(ModelError, match=r"^401: check the key$"):
        ask(Plays("a", ModelError("401: check the key", caller=True)), spare)
    assert spare.asked == []


def test_when_all_fail_the_last_error_names_the_others() -> None:
    """The error of the last model is raised, as what it is, with who was asked before and why that failed."""
    with pytest.raises(
        ModelError, match=r"^busy \(asked before: a: no connection; b: no connection\)$"
    ) as caught:
        ask(
            Plays("a", DOWN),
            Plays("b", DOWN),
            Plays("c", ModelError("busy", transient=True, retry_after_s=3)),
        )
    assert (caught.value.transient, caught.value.retry_after_s, len(caught.value.tried)) == (True, 3, 2)
    with pytest.raises(DependencyError, match=r"^b is failed \(asked before: a: no connection\)$") as dead:
        ask(Plays("a", DOWN), Plays("b", DependencyError("b", "failed", "b is failed")))
    assert (dead.value.dependency, dead.value.state) == ("b", "failed")


def test_an_answer_stands_when_nobody_does_better() -> None:
    """Where all later models fail, the last answer given is better than none; its usage is counted once."""
    answer, heard = ask(Plays("a", BAD), Plays("b", DOWN), Plays("c", DOWN))
    assert (answer.text, answer.usage, heard) == (BAD.text, CHEAP, ["half of an"])
    assert [(one.model, one.then, one.usage) for one in answer.tried] == [
        ("a", "b", Usage()),
        ("b", "c", Usage()),
        ("c", "a", Usage()),
    ]


def test_the_last_answer_always_will_do() -> None:
    """The last model is not judged: there is nobody to ask next."""
    assert ask(Plays("a", DOWN), Plays("b", BAD))[0].text == BAD.text


def test_what_is_good_enough_can_be_told() -> None:
    """Any function from an answer to a reason decides."""
    answer, _ = ask(Plays("a", GOOD), Plays("b", BAD), unsure=lambda answer: "too sure of itself")
    assert (answer.text, answer.tried[0].reason) == (BAD.text, "too sure of itself")


@given(
    text=st.sampled_from(["", " \n", "x", "I do not know"]),
    problem=st.sampled_from([None, "", "not JSON"]),
    finish=st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_doubts_are_facts(text: str, problem: str | None, finish: str) -> None:
    """Doubt follows from emptiness, the finish and unreadable arguments alone; what an answer says is not
    interpreted.
    """
    calls = () if problem is None else (ToolRequest(id="1", name="t", problem=problem),)
    answer = ModelAnswer(text=text, calls=calls, finish=finish)
    assert bool(empty(answer)) == (problem is None and not text.strip())
    assert bool(cut_off(answer)) == (finish == "length")
    assert bool(unreadable(answer)) == bool(problem)
    assert plainly_unsure(answer) == (empty(answer) or cut_off(answer) or unreadable(answer))


def test_it_says_what_it_is_made_of() -> None:
    """Its name is all names; it is real only if all are; it calls tools itself only if all do."""
    real, script = Plays("a", GOOD), ScriptedModel(["x"], name="b")
    assert (EscalatingModel(models=(real, real)).kind, EscalatingModel(models=(real, script)).kind) == (
        "real",
        "scripted",
    )
    assert EscalatingModel(models=(real, script)).name == "a > b"
    assert isinstance(EscalatingModel(models=(real,)), Model)


def test_models_before_the_last_are_not_streamed() -> None:
    """As long as another one may take over, the answer is asked for whole."""
    first, last = Plays("a", BAD), Plays("b", GOOD)
    ask(first, last)
    assert (first.asked[0].stream, last.asked[0].stream) == (False, True)


def test_names_of_several_models(tmp_path: Path) -> None:
    """`a > b` is understood wherever a model is named, each part as it would be alone; nonsense is
    refused.
    """
    made: list[str] = []

    def make(rest: str) -> Model:
        made.append(rest)
        return ScriptedModel(["x"], name=f"play:{rest}")

    chosen = choose_model(
        "play:1 >  openai/x > play:2", env={"OPENAI_API_KEY": "k"}, factories={"play": make}
    )
    assert isinstance(chosen, EscalatingModel)
    assert (chosen.name, chosen.kind, made) == ("play:1 > openai/x > play:2", "scripted", ["1", "2"])
    for wrong in ("play:1 > ", " > play:1", ">", "play:1 > play:1", "play:1 > > play:2"):
        with pytest.raises(UsageError, match="must name different models"):
            choose_model(wrong, env={}, factories={"play": make})
    with pytest.raises(UsageError, match="unknown model provider 'opnai'"):
        choose_model("play:1 > opnai/x", env={}, factories={"play": make})


def test_a_run_tells_of_it(session: Lab, workspace: Path) -> None:
    """Log, usage and view of a run whose first model is cut off: each model has its own answer and its own
    usage.
    """
    seen = RecordingListener()

    async def scene(server: OpenAIServer) -> Run:
        run = session.start("go", model="openai/small > openai/large", workspace=workspace)
        run.subscribe(seen)
        return await run.wait()

    with OpenAIServer(
        [Reply(text="half of", finish="length", usage=(100, 9)), Reply(text="whole", usage=(100, 20))]
    ) as server:
        session.change(api_base=server.api_base)
        run = asyncio.run(scene(server))
        asked = server.requests()
    assert run.reason == ""
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "whole")
    started = run.events()[0]
    assert isinstance(started, RunStarted)
    assert (started.model, started.model_kind) == ("openai/small > openai/large", "real")
    answers = [event for event in run.events() if isinstance(event, ModelAnswered)]
    assert [
        (a.model.removesuffix("-served"), a.text, a.tokens_in, a.tokens_out, a.error is None) for a in answers
    ] == [
        ("openai/small", "", 100, 9, False),
        ("large", "whole", 100, 20, True),
    ]
    reason = "its answer was cut off at its output limit"
    (escalated,) = [event for event in run.events() if isinstance(event, ModelEscalated)]
    assert escalated == ModelEscalated(
        step="answer", source="openai/small", target="openai/large", reason=reason
    )
    assert (run.usage.tokens_in, run.usage.tokens_out, run.usage.model_calls) == (200, 29, 2)
    assert [(a["model"], bool(a.get("stream"))) for a in asked] == [("small", False), ("large", True)]
    assert "".join(event.text for event in seen.events if isinstance(event, ModelDelta)) == "whole"
    view = view_of(run.records())
    assert view.meter.usage.tokens == 229
    text = run_text(view)
    assert f"info: openai/large takes over from openai/small: {reason}" in text
    assert "answer:\n  whole" in text
    assert fold(run.records()).conversation("answer").cycles == 1
