"""New attacks on endpoints that hang, servers of tools that start, the local server, and files of suites and
notebooks.
"""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waits import PATIENCE_S

sys.path.insert(0, str(Path(__file__).parents[1] / "evals"))
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from hanging_server import HangingServer
from test_idle_connections import crowd, listed
from test_mcp import call, hostile, make, say  # `make` is a fixture  # noqa: F401

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import DependencyError, ModelError, UsageError
from kestrel_lab.core.events.union import ToolAnswered
from kestrel_lab.core.messages import Message, ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.execution.trial import hung_endpoint
from kestrel_lab.evals.notebooks.run import run_notebook
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.runtime import start
from kestrel_lab.server.controller import Control
from kestrel_lab.server.serve import serve_control
from kestrel_lab.testing import ScriptedModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Litellm is loaded once: seconds that would count as working time of the first run."""
    with HangingServer("silent") as server, pytest.raises(ModelError):
        asyncio.run(
            replace(at(server), timeout_s=0.05)(
                ModelRequest(messages=[Message(role="user", text="hi")]), print
            )
        )


def at(server: HangingServer) -> LiteLLMModel:
    return LiteLLMModel("openai/any", api_base=server.api_base, api_key="k")


def test_a_grader_that_hangs_breaks_the_trial(session: Lab) -> None:
    """The agent has answered; who judges it drips: the trial says nothing of the agent."""
    checks = (parse_check({"graded": {"rubric": "Is it kind?", "model": "judge"}}),)
    with HangingServer("drip") as server:
        session.registry._models["judge"] = at(server)
        suite = Suite(
            name="g", scenarios=(Scenario(id="s", goal="g", checks=checks, limits={"model_seconds": 0.3}),)
        )
        row = asyncio.run(run_suite(session, suite, configs={"m": ScriptedModel(["hello"])})).rows[0]
    assert row.result["outcome"] == "error"
    assert "within 0.3 s" in str(row.result["reason"])


def test_one_of_several_steps_hangs(session: Lab) -> None:
    """Steps side by side: one has its answer, the endpoint of the other hangs until the time is up.

    It is the endpoint's error.
    """
    plan = Plan(steps=(Step(id="quick", goal="say hi", model="quick"), Step(id="stuck", goal="say ho")))
    session.registry._models["quick"] = ScriptedModel(["hi"])
    for seconds in (1.0, 10.0, 100.0):  # a busy machine may not have asked the endpoint within the first
        with HangingServer("token") as server:
            run = asyncio.run(
                session.run("both", model=at(server), plan=plan, limits=Limits(seconds=seconds))
            )
        end = run._state.finished
        assert end is not None
        if hangs := "its endpoint hangs" in hung_endpoint(run.records(), end):
            break
    assert (end.limit, hangs) == ("seconds", True)


def test_a_slow_tool_before_the_limit_is_the_agents_time(session: Lab) -> None:
    """The tool is what is under way when the time is up: no endpoint is blamed."""
    plan = Plan(steps=(Step(id="only", tool="bash", args={"command": "sleep 30"}),))
    run = asyncio.run(
        session.run("wait", model=ScriptedModel([]), plan=plan, approve="auto", limits=Limits(seconds=0.5))
    )
    end = run._state.finished
    assert end is not None and end.outcome == "limit"
    assert hung_endpoint(run.records(), end) == ""


def test_two_runs_that_begin_at_once_share_a_new_server(make: Any, workspace: Path) -> None:  # noqa: F811
    """Neither waits in vain, both have the tools, and there is one connection."""
    session = make(h=hostile("slow=0.3"))

    async def go() -> list[Any]:
        model = [ScriptedModel([call("h:echo", text=word), say("ok")]) for word in ("a", "b")]
        runs = [session.start("go", model=one, tools=["h:*"], workspace=workspace) for one in model]
        return [await run.wait() for run in runs]

    runs = asyncio.run(go())
    said = [[event.text for event in run.events() if isinstance(event, ToolAnswered)] for run in runs]
    assert ([run.status for run in runs], said) == ([RunStatus.COMPLETE] * 2, [["a"], ["b"]])


def test_everybody_who_waits_for_a_server_that_is_closed_gets_an_error(make: Any, tmp_path: Path) -> None:  # noqa: F811
    """Three wait, one of them for the connection and the others for their turn: nobody is cancelled, nobody
    is left waiting.
    """
    (tmp_path / "gate").mkdir()
    gate = tmp_path / "gate" / "open"
    session = make(h=hostile(f"until={gate}", start_timeout_s=PATIENCE_S))

    async def go() -> list[Any]:
        waiting = [asyncio.ensure_future(session.mcp.check("h")) for _ in range(3)]
        while not gate.with_name("open.came").exists():
            await asyncio.sleep(0.01)
        gate.write_text("x")  # for those whose turn comes after it was closed
        await session.mcp.aclose()
        return await asyncio.gather(*waiting, return_exceptions=True)

    ends = asyncio.run(go())
    assert len(ends) == 3
    assert not [
        end for end in ends if isinstance(end, BaseException) and not isinstance(end, DependencyError)
    ]


def test_resuming_a_run_whose_server_was_never_started_does_not_block(
    make: Any,  # noqa: F811
    workspace: Path,
    tmp_path: Path,
) -> None:
    """The approvals are gone, so the tools of the run have to be had anew: in the run, which then goes on."""
    first = make(h=hostile())
    script = [call("h:echo", text="a"), call("h:echo", text="b"), say("done")]
    run = first.run_sync("go", model=ScriptedModel(script), tools=["h:*"], workspace=workspace)
    (tmp_path / "config" / "kestrel" / "mcp.json").unlink()
    at_call = next(record.seq for record in run.records() if record.event.type == "model_called")

    async def go() -> Any:
        forked = start.fork(first, run.id, at=at_call, model=ScriptedModel(script))
        return await forked.wait()

    assert asyncio.run(go()).status is RunStatus.COMPLETE


def test_a_slow_head_after_a_good_request_is_not_waited_for(tmp_path: Path) -> None:
    """A connection that was answered once and then dribbles a head is closed; 400 of them keep nobody out."""
    session = Lab(tmp_path / "home", model=ScriptedModel(["done"]), env={})

    async def body() -> None:
        async with (
            Control(session, always=True) as control,
            serve_control(control, request_s=1.0) as (address, _),
        ):
            good = b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\nGET / HT" % address.port
            async with crowd(address, good) as found:
                assert await listed(address) == 200
                reader, writer = found[-1]
                with pytest.raises(ConnectionError):
                    while True:
                        writer.write(b"T")
                        await writer.drain()
                        await asyncio.sleep(0.02)
                assert reader is not None

    asyncio.run(body())
    session.close()


@pytest.mark.parametrize("field", ["epochs", "concurrency", "retry_errors"])
def test_an_absurd_number_in_a_suite_is_a_clear_error(tmp_path: Path, field: str) -> None:
    """Ten to the thirtieth of anything is refused with its place, or does nothing that could fail."""
    (tmp_path / "s.yaml").write_text(
        f"name: s\n{field}: {10**30}\nscenarios: [{{id: a, goal: g, checks: [{{answer_contains: "
        f"x}}]}}]\nconfigs: [{{name: m, model: local}}]\n"
    )
    with pytest.raises(UsageError, match=field):
        load_suite(tmp_path / "s.yaml")


@pytest.mark.parametrize("name", ["bfcl:multi_turn_base", "agentdojo:banking"])
def test_an_absurd_limit_of_a_benchmark_is_a_clear_error(name: str) -> None:
    """It is said what the most is."""
    with pytest.raises(UsageError, match="a limit is at most 1,000,000,000"):
        load_suite(f"{name}?limit={10**30}")


_CELL = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "execution_count": None}
_WHOLE = {"cells": [_CELL], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize(
    "text",
    [
        *(
            json.dumps(_WHOLE | more)
            for more in (
                {"cells": 5},
                {"cells": None},
                {"cells": [None]},
                {"cells": [{**_CELL, "source": [5]}]},
                {"cells": [{**_CELL, "source": 5}]},
                {"cells": [{**_CELL, "cell_type": "zz"}]},
                {"cells": [{**_CELL, "outputs": None}]},
                {"cells": [{**_CELL, "source": "\ud800"}]},
                {"metadata": []},
                {"metadata": {"kernelspec": "x"}},
                {"metadata": {"kernelspec": None}},
                {"metadata": {"kernelspec": {"name": 5}}},
                {"nbformat": 99},
                {"nbformat": "4"},
                {"nbformat": None},
                {"nbformat": -1},
                {"nbformat_minor": "x"},
            )
        ),
        "[" * 100_000,
        '{"nbformat": 4, "nbformat_minor": ' + "9" * 5_000 + "}",
        "",
        "null",
        "\x00",
    ],
)
def test_a_broken_notebook_is_told_as_such(tmp_path: Path, text: str) -> None:
    """Whatever is wrong with it: one sentence that names the file, and nothing is run or written."""
    (tmp_path / "n.ipynb").write_text(text)
    with pytest.raises(UsageError, match=r"n\.ipynb cannot be read as a notebook"):
        asyncio.run(run_notebook(tmp_path / "n.ipynb", tmp_path / "out.ipynb"))
    assert not (tmp_path / "out.ipynb").exists()
