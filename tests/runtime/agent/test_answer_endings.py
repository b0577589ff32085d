"""How an answer ended is part of the outcome; a model that falls silent is asked once; what an endpoint lost
is no time of the agent.
"""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.events.union import ModelAnswered, Prompted, RunFinished
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ThinkingPart, ToolRequest
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.agent.loop import SILENT


class Says:
    """A scripted model that gives these answers, the last one again and again, and notes what it was
    asked.
    """

    name = "says"
    kind = "scripted"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked: list[tuple[Message, ...]] = []

    async def __call__(self, request: ModelRequest, on_delta) -> ModelAnswer:
        self.asked.append(tuple(request.messages))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


LOOK = ModelAnswer(
    calls=(ToolRequest(id="c", name="list_directory"),),
    finish="tool_calls",
    thinking=(ThinkingPart(text="hm", signature="s"),),
)
NOTHING = ModelAnswer()


def run_of(session: Lab, workspace: Path, *answers: ModelAnswer):
    model = Says(*answers)
    return asyncio.run(session.run("look", model=model, workspace=workspace)), model


def end_of(run) -> RunFinished:
    """The event of the run's end."""
    return next(record.event for record in run.records() if isinstance(record.event, RunFinished))


@pytest.mark.parametrize(
    ("finish", "words"),
    [("length", "output limit"), ("content_filter", "content filter"), ("refusal", "the model refused")],
)
def test_the_ending_of_an_answer_is_in_the_outcome(
    session: Lab, workspace: Path, finish: str, words: str
) -> None:
    """A run whose answer is cut off, withheld or refused is COMPLETE, and says what is wrong with its
    answer.
    """
    run, _ = run_of(session, workspace, ModelAnswer(text="The beginning", finish=finish))
    assert (run.status, run.outcome, run.answer) == ("COMPLETE", "complete", "The beginning")
    assert words in run.reason
    assert end_of(run).finish == finish


def test_a_silent_end_is_asked_once(session: Lab, workspace: Path) -> None:
    """After calls a model says nothing: it is asked for an answer, and gives it."""
    run, model = run_of(session, workspace, LOOK, NOTHING, ModelAnswer(text="Two files."))
    assert (run.status, run.answer, run.reason) == ("COMPLETE", "Two files.", "")
    assert model.asked[-1][-1].text == SILENT
    assert [record.event.again for record in run.records() if isinstance(record.event, Prompted)] == [True]


def test_a_model_that_stays_silent_has_an_empty_answer(session: Lab, workspace: Path) -> None:
    """It is asked once, not again; the run is COMPLETE, and says that its answer is empty."""
    run, model = run_of(session, workspace, LOOK, NOTHING)
    assert (run.status, run.answer, len(model.asked)) == ("COMPLETE", "", 3)
    assert end_of(run).finish == "empty"
    assert "the answer is empty" in run.reason


def test_a_model_that_does_nothing_at_all_fails(session: Lab, workspace: Path) -> None:
    """Without a call and without a text there is nothing that could be complete."""
    run, model = run_of(session, workspace, NOTHING)
    assert (run.status, run.outcome, len(model.asked)) == ("FAILED", "error", 1)
    assert "neither text nor a tool call" in run.reason


def test_an_answer_that_is_withheld_is_not_asked_for_again(session: Lab, workspace: Path) -> None:
    """A content filter gives nothing the second time either."""
    run, model = run_of(session, workspace, ModelAnswer(finish="content_filter"))
    assert (run.status, run.answer, len(model.asked)) == ("COMPLETE", "", 1)


def test_thinking_is_in_the_log_and_goes_back(session: Lab, workspace: Path) -> None:
    """Thinking stands in the event of its answer and in the next request, as it came; a run that is resumed
    has it too.
    """
    run, model = run_of(session, workspace, LOOK, ModelAnswer(text="Done."))
    (answered, _) = [record.event for record in run.records() if isinstance(record.event, ModelAnswered)]
    assert answered.thinking == [{"text": "hm", "signature": "s"}]
    assert (
        next(message for message in model.asked[1] if message.role == "assistant").thinking == LOOK.thinking
    )
    state = session.store.state(run.id)
    assert [message.thinking for message in state.conversation("answer").messages if message.calls] == [
        LOOK.thinking
    ]


@pytest.mark.parametrize(
    "answers", [(LOOK, NOTHING), (ModelAnswer(text="4", finish="length"),)], ids=["silent", "cut off"]
)
def test_trials_without_a_whole_answer_stay_in_every_rate(
    session: Lab, answers: tuple[ModelAnswer, ...]
) -> None:
    """Such a trial is judged by its checks: failed here, never an error that is left out; its row says how
    the answer ended.
    """
    suite = Suite(
        name="s", scenarios=(Scenario(id="s", goal="look", checks=(AnswerContains(texts=("42",)),)),)
    )
    row = asyncio.run(run_suite(session, suite, configs={"m": Says(*answers)})).rows[0]
    assert row.result["outcome"] == "fail"
    assert row.result["finish"] in ("empty", "length")
    assert "answer" in row.result["reason"]
