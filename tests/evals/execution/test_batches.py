"""Suites over a provider's batch endpoint: rounds, kills, partial results, money."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from batch_server import BatchServer

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.evals.execution.batch_log import stored_batches
from kestrel_lab.evals.execution.batch_table import batch_table
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.testing import ScriptedModel

NAME = "openai/gpt-4o-mini"


def two_turns(body):
    """A model that lists the folder first, and then says the number in its goal."""
    if body["messages"][-1]["role"] == "tool":
        return f"it is {goal_of(body)}"
    return [("list_directory", {"path": "."})]


def goal_of(body):
    """The goal of the trial that sent a request."""
    return next(one["content"] for one in body["messages"] if one["role"] == "user")


def suite_of(number, **rest):
    """A suite of scenarios whose goals are their numbers."""
    return Suite(
        name="batched",
        scenarios=tuple(
            Scenario(
                id=f"s{place}",
                goal=f"say {place}",
                checks=(AnswerContains(texts=(f"say {place}",)),),
                place=InlineFiles(files={"a.txt": "a"}),
                **rest,
            )
            for place in range(number)
        ),
        configs=(Config(name="m", model=NAME),),
    )


@pytest.fixture
def server():
    with BatchServer(two_turns) as made:
        yield made


@pytest.fixture
def lab(tmp_path, server):
    session = Lab(tmp_path / "home", env={"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": server.api_base})
    yield session
    session.close()


def evaluate(lab, suite, **options):
    return asyncio.run(run_suite(lab, suite, **({"batch": True} | options)))


def test_all_trials_that_wait_go_into_one_batch_per_round(lab, server):
    """Twelve trials of two turns take two batches of twelve requests and no single call; time limits do not
    count the wait, and the cost is that of batches, with the usual one beside it.
    """
    result = evaluate(lab, suite_of(12, limits={"seconds": 60, "wall_seconds": 0.05}))
    assert [row.outcome for row in result.rows] == ["pass"] * 12, result.rows[0].reason
    assert [len(bodies) for bodies in server.requests()] == [12, 12]
    assert server.direct == []
    paid = 1000 * 0.15e-6 + 100 * 0.6e-6
    assert result.rows[0].metrics["cost_estimate"] == pytest.approx(2 * paid / 2)
    assert any(
        f"2 batches brought 24 answers for ${12 * paid:.4f} instead of ${24 * paid:.4f}" in note
        for note in result.notes
    )
    assert all(not batch.answers for batch in stored_batches(lab.store)), "the runs have the answers"


@pytest.mark.long
def test_a_second_run_asks_anew(lab, server):
    """A finished run with batches is not taken for the next one's answers."""
    evaluate(lab, suite_of(2))
    evaluate(lab, suite_of(2))
    assert [len(bodies) for bodies in server.requests()] == [2, 2, 2, 2]


@pytest.mark.parametrize(("rest", "batches", "direct"), [("again", [6, 3, 6], 0), ("direct", [6, 6], 3)])
def test_a_batch_that_comes_back_half(lab, server, rest, batches, direct):
    """What came is kept; the rest is sent again, or asked directly where that was asked for, and it is said."""
    server.fails = lambda body, batch: "expired" if batch == 0 and int(goal_of(body)[4:]) % 2 else ""
    result = evaluate(lab, suite_of(6), batch_rest=rest)
    assert [row.outcome for row in result.rows] == ["pass"] * 6
    assert [len(bodies) for bodies in server.requests()][:2] == batches[:2]
    assert sum(map(len, server.requests())) == sum(batches)
    assert len(server.direct) == direct
    what = "sent again" if rest == "again" else "asked for directly, at the full price"
    assert any(f"with 3 of 6 answers: the rest was {what}" in note for note in result.notes)


def test_a_request_that_the_provider_refuses_breaks_its_trial_alone(lab, server):
    """A refused request is not sent again, and the others go on."""
    server.fails = lambda body, batch: "400 too long" if goal_of(body) == "say 1" else ""
    result = evaluate(lab, suite_of(3))
    assert [row.outcome for row in result.rows] == ["pass", "error", "pass"]
    assert "400: too long" in result.rows[1].reason


def test_a_provider_that_refuses_stops_the_run_and_the_next_one_goes_on(lab, server):
    """A refused key breaks no trial: the run stops with its error, and once that is put right goes on."""
    server.refuses = 1
    with pytest.raises(ModelError, match="bad key"):
        evaluate(lab, suite_of(2))
    assert stored_trials(lab.store) == []
    assert [row.outcome for row in evaluate(lab, suite_of(2)).rows] == ["pass"] * 2
    assert [len(bodies) for bodies in server.requests()] == [2, 2]


CHILD = """
import asyncio, sys
sys.path.insert(0, {here!r})
from test_batches import suite_of, evaluate, Lab
evaluate(Lab({home!r}, env={env!r}), suite_of(3))
"""


def killed_run(lab, server, tmp_path, when):
    """Run the suite in a process that is killed at the `when`-th batch, after the provider made it and before
    the process heard of it.
    """
    here, env = os.path.dirname(__file__), dict(lab.env)
    code = CHILD.format(here=here, home=str(tmp_path / "home"), env=env)
    paths = os.pathsep.join(path for path in sys.path if path)
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths})

    def created():
        if len(server.batches) == when:
            child.send_signal(signal.SIGKILL)
            child.wait()

    server.created = created
    child.wait(timeout=60)
    server.created = lambda: None


@pytest.mark.long
@pytest.mark.parametrize("forgets", [False, True])
def test_a_batch_of_a_killed_process_is_found_and_not_paid_twice(lab, server, tmp_path, forgets):
    """Killed between the submission of the second round and the storing of its id: the next run takes the
    answers of the first round from the log, and finds the second by the name that was sent with it. A provider
    that forgets the name, the mutant, is paid again for that round, and for that one alone.
    """
    killed_run(lab, server, tmp_path, 2)
    assert [len(bodies) for bodies in server.requests()] == [3, 3]
    server.forgets_names = forgets
    result = evaluate(lab, suite_of(3))
    assert [row.outcome for row in result.rows] == ["pass"] * 3, result.rows[0].reason
    assert [len(bodies) for bodies in server.requests()] == [3, 3, *([3] if forgets else [])]
    evaluate(lab, suite_of(3))
    assert len(server.batches) == 4 + forgets, "the run was finished"


def test_one_can_look_at_what_has_come(lab, server):
    """The table shows a batch that goes on, and its answers and cost when it has ended, without the suite."""
    server.hold.set()

    async def stop_while_it_waits():
        running = asyncio.create_task(run_suite(lab, suite_of(3), batch=True))
        while not any(batch.provider_id for batch in stored_batches(lab.store)):
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        first = await batch_table(lab)
        server.hold.clear()
        return first, await batch_table(lab, "batched"), await batch_table(lab, "other")

    waiting, ended, other = asyncio.run(stop_while_it_waits())
    shown = ["state", "answers", "cost"]
    assert waiting[shown].to_numpy().tolist() == [["in_progress", "0 of 3", ""]]
    assert ended[shown].to_numpy().tolist() == [["completed", "3 of 3", "$0.0003 of $0.0006"]]
    assert other.empty
    assert [row.outcome for row in evaluate(lab, suite_of(3)).rows] == ["pass"] * 3
    assert [len(bodies) for bodies in server.requests()] == [3, 3], "the first round was taken from the log"


def test_what_has_no_batch_endpoint_is_said_before_the_first_trial(lab, server):
    """A provider without a batch endpoint, and a suite without any provider, are told with what to do."""
    one = suite_of(1)
    with pytest.raises(UsageError, match=r"groq/x: no batch endpoint of groq can be used.*without --batch"):
        evaluate(lab, one, configs={"g": LiteLLMModel("groq/x", api_key="k")})
    with pytest.raises(UsageError, match="nothing can go into a batch"):
        evaluate(lab, one, configs={"s": ScriptedModel(["say 0"])})


@pytest.mark.long
def test_few_trials_are_asked_directly(lab, server):
    """`batch_above` batches only what is more than that."""
    evaluate(lab, suite_of(2), batch=False, batch_above=2)
    assert (len(server.batches), len(server.direct)) == (0, 4)
    evaluate(lab, suite_of(3), batch=False, batch_above=2)
    assert len(server.batches) == 2


def test_a_price_that_is_not_known_is_said(lab, server):
    """A model without a price for batches counts as unpriced; the usual price is not taken for it."""
    result = evaluate(lab, suite_of(1), configs={"m": LiteLLMModel("openai/mine", api_base=server.api_base)})
    assert result.rows[0].metrics["unpriced_calls"] == 2
    assert any("the price of 2 of them in a batch is not known" in note for note in result.notes)


def test_lines_are_in_the_provider_s_form(server):
    """A line has the model's own name, the tools in OpenAI's form, and only parameters the model knows."""
    from kestrel_lab.core.messages import Message, ModelRequest, ToolSpec
    from kestrel_lab.models.litellm.batch import BatchEndpoint

    request = ModelRequest(
        messages=[Message(role="user", text="hi")],
        tools=(ToolSpec(name="t", description="d", schema={"type": "object", "properties": {}}),),
        temperature=0.5,
    )
    line = json.loads(BatchEndpoint(LiteLLMModel("openai/o3", api_key="k")).line("k1", request))
    assert (line["custom_id"], line["url"]) == ("k1", "/v1/chat/completions")
    assert line["body"].keys() == {"model", "messages", "tools"}
    assert line["body"]["model"] == "o3"
