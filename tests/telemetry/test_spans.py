"""Spans of a run from its events, without an exporter: what each says, and that nothing that was said is in
them unless it is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kestrel_lab.core.events.union import (
    Event,
    ModelAnswered,
    ModelCalled,
    Record,
    RunFinished,
    RunStarted,
    StateTransition,
    StepFinished,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.telemetry.spans import Span, evaluation_span, spans_of

SECRET = "the launch code is 4711"
START = RunStarted(goal=SECRET, workspace="/w", model="openai/gpt", params={"temperature": 0.5})
STEP = StepStarted(step="s")
ASKED = ModelCalled(call="m", step="s", model="openai/gpt", cycle=1, messages=1)
ANSWERED = ModelAnswered(call="m", step="s", model="openai/gpt", tokens_in=9, tokens_out=0, finish="stop")
CALLED = ToolCalled(call="t", step="s", tool="bash", args={"command": SECRET})
TOLD = ToolAnswered(call="t", step="s", tool="bash", text=SECRET)
FAILED = {"kind": "timeout", "message": SECRET}


def spans(*events: Event, content: bool = False) -> dict[str, Span]:
    """The spans of a run of these events, one a second, by name."""
    records = [
        Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event)
        for n, event in enumerate((START, STEP, *events), 1)
    ]
    return {span.name: span for span in spans_of("r", records, content=content)}


ENDS: list[tuple[str, tuple[Event, ...]]] = [
    ("chat gpt", (ASKED, ModelAnswered(call="m", step="s", model="openai/gpt", error=FAILED))),
    ("execute_tool bash", (CALLED, ToolAnswered(call="t", step="s", tool="bash", text="", error=FAILED))),
    ("step s", (StepFinished(step="s", ok=False, reason=SECRET),)),
    ("invoke_agent kestrel_lab", (RunFinished(outcome="failed", reason=SECRET),)),
]


@pytest.mark.parametrize(("name", "events"), ENDS)
def test_what_went_wrong_is_in_words_only_with_content(name: str, events: tuple[Event, ...]) -> None:
    """The status is an error either way."""
    assert spans(*events)[name].error == ""
    assert spans(*events, content=True)[name].error == SECRET
    assert spans(*events)[name].attributes["error.type"] in {"timeout", "failed"}


def test_nothing_that_was_said_is_in_a_span_without_content() -> None:
    """Goal, arguments, results, reasons of scores and answers are there with it, and only then."""
    scores = [{"check": "c", "passed": False, "value": 0.5, "reason": SECRET}]
    for content in (False, True):
        said = ModelAnswered(call="m", step="s", model="openai/gpt", text=SECRET, thinking=[{"text": SECRET}])
        found = spans(
            ASKED, said, CALLED, TOLD, RunFinished(outcome="complete", answer=SECRET), content=content
        )
        judged = evaluation_span(
            "r", found["invoke_agent kestrel_lab"], "trial", 9.0, scores, content=content
        )
        for span in (*found.values(), judged):
            assert (SECRET in f"{span.attributes}{span.error}{span.results}") is (
                content and span.name != "step s"
            ), span.name


@pytest.mark.parametrize(
    ("answered", "facts"),
    [
        ({}, {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 0}),
        ({"tokens_cached": 4}, {"gen_ai.usage.cache_read.input_tokens": 4}),
        ({"cached": True}, {"kestrel.cached": True}),
        ({"replayed": True}, {"kestrel.replayed": True}),
        ({"cost_usd": 0.0}, {"kestrel.cost_usd": 0.0}),
    ],
)
def test_an_answer_of_a_model_says_what_is_known(answered: dict[str, Any], facts: dict[str, Any]) -> None:
    """Tokens of a prompt and an answer always; parts of them, a cache and a price only where there are
    any.
    """
    known = spans(ASKED, replace(ANSWERED, **answered))["chat gpt"].attributes
    optional = {
        name
        for name in known
        if name.count(".") == 3 or name.startswith("kestrel.c") or name == "kestrel.replayed"
    }
    assert facts.items() <= known.items()
    assert optional <= {*facts}


def test_the_parameters_of_the_run_are_those_of_each_request() -> None:
    """As the run was started with them."""
    assert spans(ASKED)["chat gpt"].attributes["gen_ai.request.temperature"] == 0.5


@pytest.mark.parametrize(
    "late", [ANSWERED, StepFinished(step="never", ok=True), RunFinished(outcome="cancelled")]
)
def test_the_end_of_what_never_began_is_no_span(late: Event) -> None:
    """As in the log of a run that was cancelled after its session had left it."""
    ended = StateTransition(source="EXECUTING", target="CANCELLED")
    assert [*spans(ended, late)] == [*spans(ended)]


@pytest.mark.parametrize("given", [ANSWERED, TOLD])
def test_what_a_person_wrote_is_no_call(given: ModelAnswered | ToolAnswered) -> None:
    """An answer that was given by hand in a fork ends no span and begins none."""
    found = spans(ASKED, CALLED, replace(given, given=True))
    assert all(found[name].attributes["kestrel.unfinished"] for name in ("chat gpt", "execute_tool bash"))


def test_an_answer_from_the_store_is_called_one() -> None:
    """And a call that was denied before it began has a span of its own, in its step."""
    cached = spans(ToolAnswered(call="t", step="s", tool="bash", text="", cached=True))
    assert cached["execute_tool bash"].attributes["kestrel.cached"] is True
    assert cached["execute_tool bash"].parent == cached["step s"].id
    assert "kestrel.cached" not in spans(CALLED, TOLD)["execute_tool bash"].attributes
