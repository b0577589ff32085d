"""Loading litellm happens in the background where it can, is announced, and is no time of a call or a
trial.
"""

import asyncio
import os
import sys
import threading
import time

import pytest
from waits import PATIENCE_S

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.events.union import Progress
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest
from kestrel_lab.core.usage import IdleTime
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.models.fallback import EscalatingModel
from kestrel_lab.models.litellm import library
from kestrel_lab.models.resolve import prepare_in_background
from kestrel_lab.models.retry import with_retries
from kestrel_lab.models.wrapper import leaf_models
from kestrel_lab.runtime.supervision.model_guard import guard_model
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor

REQUEST = ModelRequest(messages=[Message(role="user", text="hi")])


class Slow:
    """A hosted model that has to load something for a while once."""

    name = "slow"
    kind = "real"
    preparing = "loading the library"

    def __init__(self, seconds=0.3, error=None):
        self.seconds, self.error = seconds, error
        self.ready = False
        self.calls = self.prepared = 0

    async def prepare(self):
        self.prepared += 1
        await asyncio.sleep(self.seconds)
        self.ready = True

    async def __call__(self, request, on_delta):
        assert self.ready
        self.calls += 1
        if self.error is not None and self.calls == 1:
            await asyncio.sleep(self.seconds)
            raise self.error
        return ModelAnswer(text="42", usage=Usage(model_calls=1, unpriced=1))


def test_what_is_loaded_once_is_announced_and_waited_for() -> None:
    """The time of loading is time of waiting, told to whoever watches; the second call does not load."""
    model, told, idle = Slow(), [], IdleTime()
    around = guard_model(with_retries(model), RuntimeSupervisor(), told.append, idle=idle)
    asyncio.run(around(REQUEST, lambda _: None))
    assert idle.queued >= 0.25  # of .3 s
    assert [event.text for event in told if isinstance(event, Progress)] == ["loading the library", ""]
    asyncio.run(around(REQUEST, lambda _: None))
    assert (model.prepared, model.calls) == (1, 2)


def test_an_attempt_that_the_endpoint_lost_is_no_work() -> None:
    """The seconds of an attempt that failed in a passing way are given back; those of a refused one are the
    caller's.
    """
    for error, lost in (
        (ModelError("no answer in time", transient=True), True),
        (ModelError("bad request", caller=True), False),
    ):
        model, back = Slow(error=error), []
        model.ready = True
        idle = IdleTime(give_back=back.append)
        around = guard_model(
            with_retries(model, first_wait_s=0.0), RuntimeSupervisor(), lambda _: None, idle=idle
        )
        if lost:
            assert asyncio.run(around(REQUEST, lambda _: None)).text == "42"
            assert sum(back) >= 0.25  # of .3 s
            assert idle.backoff >= 0.25  # of .3 s
        else:
            with pytest.raises(ModelError, match="bad request"):
                asyncio.run(around(REQUEST, lambda _: None))
            assert back == []


def test_no_trial_waits_for_what_is_loaded_once(tmp_path) -> None:
    """A suite loads before its first trial, so that the trial says nothing of loading."""
    model = Slow()
    session = Lab(tmp_path / "home", approve="deny")
    suite = Suite(
        name="s", scenarios=(Scenario(id="s", goal="look", checks=(AnswerContains(texts=("42",)),)),)
    )
    row = asyncio.run(run_suite(session, suite, configs={"m": model})).rows[0]
    records = session.store.records(str(row.result["run"]))
    session.close()
    assert model.calls == 1
    assert not [
        record for record in records if isinstance(record.event, Progress) and "loading" in record.event.text
    ]


def test_models_inside_others_are_found() -> None:
    """Retries and stand-ins are looked through."""
    one, other = Slow(), Slow()
    assert list(leaf_models(EscalatingModel(models=(with_retries(one), other)))) == [one, other]


def test_loading_in_the_background_begins_once_and_only_for_hosted_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a key nothing is loaded; with one a thread begins, once."""
    loaded = threading.Event()
    monkeypatch.setattr(library, "_begun", threading.Event())
    monkeypatch.setattr(library, "_import_quietly", loaded.set)
    assert not prepare_in_background({})
    assert not loaded.is_set()
    assert prepare_in_background({"OPENAI_API_KEY": "k"})
    assert loaded.wait(PATIENCE_S)
    assert not prepare_in_background({"OPENAI_API_KEY": "k"})


@pytest.mark.parametrize(
    ("model", "wanted"),
    [("openai/gpt-5", True), ("anthropic/claude", False), ("local", False), ("none", False)],
)
def test_loading_waits_for_a_model_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, model: str, wanted: bool
) -> None:
    """A lab of a model whose provider has no key, or that is no provider's, loads nothing."""
    monkeypatch.setattr(library, "_begun", threading.Event())
    monkeypatch.setattr(library, "_import_quietly", lambda: None)
    assert prepare_in_background({"OPENAI_API_KEY": "k"}, model) is wanted


def test_loading_keeps_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that loads begins after a pause, and on Linux below the priority of all others, however low
    that is.
    """
    seen: list[tuple[float, int]] = []
    returned, loaded = threading.Event(), threading.Event()
    before = set(threading.enumerate())  # threads that other tests began may load at any time

    def load() -> None:
        if threading.current_thread() in before:
            return
        assert returned.wait(PATIENCE_S), "who begins the thread waits for it"
        here = threading.get_native_id() if sys.platform == "linux" else 0
        seen.append((time.monotonic(), os.getpriority(os.PRIO_PROCESS, here)))
        loaded.set()

    monkeypatch.setattr(library, "_begun", threading.Event())
    monkeypatch.setattr(library, "_import_quietly", load)
    began = time.monotonic()
    assert library.load_in_background()
    returned.set()
    assert loaded.wait(PATIENCE_S)
    assert seen[0][0] - began >= 0.25  # of .3 s
    if sys.platform == "linux":
        assert seen[0][1] == min(19, os.getpriority(os.PRIO_PROCESS, 0) + library._NICE)
