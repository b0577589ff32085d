"""An endpoint that hangs is the endpoint's error, over real HTTP; an agent that uses up its time is a failed
trial.
"""

import asyncio
import re
from dataclasses import replace

import pytest
from hanging_server import HangingServer
from waits import until

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.events.union import ModelAnswered
from kestrel_lab.core.messages import Message, ModelRequest
from kestrel_lab.evals.execution import trial
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.runtime.supervision.model_guard import guard_model
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning"),
]
WAYS = ["silent", "headers", "token", "drip"]


def at(server, **options):
    return LiteLLMModel("openai/any", api_base=server.api_base, api_key="k", **options)


@pytest.fixture(scope="module", autouse=True)
def loaded():
    """Litellm is loaded once: seconds that would count as working time of the first trial."""
    with HangingServer("silent") as server, pytest.raises(ModelError):
        asyncio.run(
            at(server, timeout_s=0.05)(ModelRequest(messages=[Message(role="user", text="hi")]), print)
        )


def made(session, server, *, retry_errors=0, **limits):
    """The one row of a suite with one scenario, asked at that server."""
    scenario = Scenario(
        id="s", goal="look", checks=(AnswerContains(texts=("42",)),), limits={"cycles": None} | limits
    )
    suite = Suite(name="hangs", scenarios=(scenario,), retry_errors=retry_errors)
    return asyncio.run(run_suite(session, suite, configs={"m": at(server)})).rows[0]


@pytest.mark.parametrize("answered", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_trial_whose_endpoint_hangs_until_its_time_is_up_is_an_error(session, way, answered):
    """Whatever was sent of the answer, and whether turns were answered before: the trial broke, and the
    endpoint is named.
    """
    for seconds in (
        0.3,
        3.0,
        30.0,
    ):  # a machine may be so busy that the turns before take a good part of the first
        with HangingServer(way, answered=answered) as server:
            row = made(session, server, seconds=seconds)
        if row.result["outcome"] == "error":
            break
    assert (row.result["outcome"], row.result["status"]) == ("error", "FAILED")
    assert "its endpoint hangs" in row.result["reason"]


def test_a_hanging_trial_is_made_again_as_often_as_broken_ones_are(session):
    """`retry_errors` applies: two more attempts, each in the row."""
    for seconds in (0.3, 3.0, 30.0):  # a busy machine may not have asked within the first
        with HangingServer("silent") as server:
            row = made(session, server, retry_errors=2, seconds=seconds)
        if server.requests == 3:
            break
    assert server.requests == 3
    assert (row.result["outcome"], len(row.result["attempts"])) == ("error", 2)


def test_an_agent_that_uses_up_its_time_with_many_turns_has_failed(session):
    """Each turn is answered after a while until the time is up: nothing is wrong with the endpoint."""
    with HangingServer("silent", answered=10_000, latency_s=0.1) as server:
        row = made(session, server, seconds=1.5)
        if (
            row.result["outcome"] == "error"
        ):  # the machine stood still during the last turn; not for a tenth of a longer time
            row = made(session, server, seconds=60.0)
    assert row.result["outcome"] == "fail"
    assert re.search(r"limit of (1\.5|60) s", row.result["reason"])


def test_mutant_that_asks_only_whether_a_call_was_under_way_blames_the_endpoint(session, monkeypatch):
    """The mutant's rule takes the same agent for an endpoint that hangs."""
    monkeypatch.setattr(
        trial, "hung_endpoint", lambda records, end: "hung" if trial._cut_off(records) else ""
    )
    with HangingServer("silent", answered=10_000, latency_s=0.1) as server:
        # When the time is up a call is under way mostly, and on a busy machine sometimes.
        until(lambda: made(session, server, seconds=1.5).result["outcome"] == "error")


@pytest.mark.parametrize("way", WAYS)
def test_one_model_call_takes_no_longer_than_model_seconds(session, way):
    """The run has time left; the call is given up, asked again as other passing failures are, and then the
    trial broke.
    """
    with HangingServer(way) as server:
        row = made(session, server, model_seconds=0.2, seconds=60)
    assert row.result["outcome"] == "error"
    assert "within 0.2 s (setting model_seconds)" in row.result["reason"]


@pytest.mark.parametrize("bounded", [True, False])
def test_a_drip_is_never_silent_and_still_ends(bounded):
    """Without the bound on whole calls (the mutant) a server that drips is listened to for ever."""
    pieces = []

    async def ask(server):
        asked = guard_model(
            at(server, timeout_s=30),
            RuntimeSupervisor(),
            lambda _: None,
            patience_s=0,
            call_s=0.5 if bounded else None,
        )
        await asked(ModelRequest(messages=[Message(role="user", text="hi")], stream=True), pieces.append)

    async def until_heard(server):
        task = asyncio.ensure_future(ask(server))
        while len(pieces) < 40 and not task.done():
            await asyncio.sleep(0.02)
        if not bounded:
            assert not task.done()
            task.cancel()
            raise ModelError("still dripping")
        await task

    with (
        HangingServer("drip") as server,
        pytest.raises(ModelError, match=r"within 0\.5 s" if bounded else "still dripping"),
    ):
        asyncio.run(until_heard(server))


def test_a_late_answer_of_the_agent_alone_is_not_hanging():
    """The rule by itself: equal calls are the agent's time, one that is unlike all others is the
    endpoint's.
    """
    from kestrel_lab.core.events.union import ModelCalled, Record, RunFinished, RunStarted

    started = RunStarted(
        goal="g", workspace="/", model="m", model_kind="real", system="", limits={"seconds": 100.0}
    )
    end = RunFinished(outcome="limit", limit="seconds", reason="the limit is reached")

    def verdict(*seconds, last):
        events = [started]
        for number, one in enumerate((*seconds, last)):
            call = f"main.m{number}"
            error = {"kind": "cancelled", "message": ""} if number == len(seconds) else None
            events += [ModelCalled(call=call, step="main", model="m", cycle=number, messages=1, tools=0)]
            events += [ModelAnswered(call=call, step="main", model="m", seconds=one, error=error)]
        records = [
            Record(run_id="r", seq=seq, at=0.0, event=event, eid=str(seq))
            for seq, event in enumerate([*events, end], 1)
        ]
        return bool(trial.hung_endpoint(records, end)), bool(
            trial.hung_endpoint(records, replace(end, limit="cycles"))
        )

    assert verdict(30, 30, last=40) == (False, False)
    assert verdict(*[1] * 95, last=5) == (False, False)
    assert verdict(1, 1, last=98) == (True, False)
    assert verdict(last=100) == (True, False)
