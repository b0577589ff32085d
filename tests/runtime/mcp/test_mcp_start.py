"""Runs that begin while servers of tools are started for them: nothing blocks, what fails is told, what
changes reaches them.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_mcp import call, hostile, make, say  # `make` is a fixture  # noqa: F401
from waits import PATIENCE_S

from kestrel_lab.core.errors import DependencyError, UsageError
from kestrel_lab.core.events.union import HealthChanged, RunStarted, ToolAnswered, ToolsAdded
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime import registry as equipment
from kestrel_lab.testing import ScriptedModel

Make = Callable[..., Lab]


async def opens_the_gate(gate: Path) -> None:
    """Let a server go on that waits for `gate`, as soon as it waits."""
    came = gate.with_name(f"{gate.name}.came")
    while not came.exists():
        await asyncio.sleep(0.01)
    gate.write_text("x")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that a server waits for at its start; only this event loop writes it."""
    (tmp_path / "gate").mkdir()
    return tmp_path / "gate" / "open"


@pytest.mark.parametrize("named", [["h:*"], ["h:echo"], None])
@pytest.mark.parametrize("how", ["start", "run"])
def test_the_event_loop_goes_on_while_a_server_starts(
    make: Make,  # noqa: F811
    workspace: Path,
    gate: Path,
    how: str,
    named: Any,
) -> None:
    """The server is ready only after a task of the same event loop ran; the run then has its tools, and so
    does who takes it up.
    """
    session = make(h=hostile(f"until={gate}", start_timeout_s=PATIENCE_S))
    model = ScriptedModel([call("h:echo", text="hi"), say("done")])

    async def go() -> Any:
        opener = asyncio.ensure_future(opens_the_gate(gate))
        options: dict[str, Any] = {"model": model, "tools": named, "workspace": workspace}
        run = (
            await session.run("go", **options)
            if how == "run"
            else await session.start("go", **options).wait()
        )
        await opener
        return run

    run = asyncio.run(go())
    (answered,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert (run.status, answered.text) == (RunStatus.COMPLETE, "hi")
    began = run._state.started
    assert isinstance(began, RunStarted)
    assert "h:echo" in {str(item["name"]) for item in began.tools}
    assert any(isinstance(event, ToolsAdded) for event in run.events()) == (how == "start")
    again = session.store.state(run.id).started
    assert again is not None and again.tools == began.tools


def test_mutant_that_waits_for_the_server_in_start_blocks_the_loop(
    make: Make,  # noqa: F811
    workspace: Path,
    gate: Path,
) -> None:
    """With tools that are had at once, as they were, the gate stays shut until the server is given up."""
    session = make(h=hostile(f"until={gate}", start_timeout_s=1))

    async def go() -> None:
        opener = asyncio.ensure_future(opens_the_gate(gate))
        await asyncio.sleep(0)
        with pytest.raises(DependencyError, match="not ready within 1 s"):
            session.registry.resolve_tools(["h:*"])
        assert not gate.exists()
        opener.cancel()  # on a slow machine the server has not even begun to wait

    asyncio.run(go())


@pytest.mark.parametrize("how", ["start", "run"])
@pytest.mark.parametrize(
    "named",
    [["bad:*", "good:*"], ["good:echo", "bad:anything"], ["good:*", "bad:*", "read_file", "gone:*"]],
    ids=lambda names: names[-1],
)
def test_a_broken_server_beside_a_good_one_is_told_and_done_without(
    make: Make,  # noqa: F811
    workspace: Path,
    how: str,
    named: list[str],
) -> None:
    """Whatever is named of it: an event, a line of the run as it is shown, and the good one works."""
    session = make(bad=hostile("exits"), good=hostile("banner"), gone={"command": "no-such-program"})
    model = ScriptedModel([call("good:echo", text="hi"), say("done")])

    async def go() -> Any:
        options: dict[str, Any] = {"model": model, "tools": named, "workspace": workspace}
        return (
            await session.run("go", **options)
            if how == "run"
            else await session.start("go", **options).wait()
        )

    run = asyncio.run(go())
    assert run.status is RunStatus.COMPLETE
    told = {
        event.dependency: event.reason
        for event in run.events()
        if isinstance(event, HealthChanged) and event.source == ""
    }
    assert sorted(told) == ["server bad", *(["server gone"] if "gone:*" in named else [])]
    assert "no licence found" in told["server bad"]
    assert "server bad" in repr(run.report) and "none of its tools are offered" in repr(run.report)
    assert not any(str(item["name"]).startswith("bad:") for item in run._state.started.tools)


def test_a_run_goes_on_when_every_server_that_was_named_is_broken(make: Make, workspace: Path) -> None:  # noqa: F811
    """It has the other tools and says what is missing; a second run says it again."""
    session = make(bad=hostile("exits"), gone={"command": "no-such-program"})
    for _ in range(2):
        run = session.run_sync(
            "go", model=ScriptedModel(["done"]), tools=["bad:*", "gone:*"], workspace=workspace
        )
        told = {
            event.dependency
            for event in run.events()
            if isinstance(event, HealthChanged) and event.source == ""
        }
        assert (run.status, told) == (RunStatus.COMPLETE, {"server bad", "server gone"})


@pytest.mark.parametrize("named", [["h:*", "gut:*"], ["gut:echo"], ["gut:*", "h:echo"]])
def test_a_name_that_no_server_has_is_refused_before_anything_begins(
    make: Make,  # noqa: F811
    workspace: Path,
    named: list[str],
) -> None:
    """The nearest name is offered, no run is in the log and no server was started."""
    session = make(h=hostile())

    async def go() -> None:
        session.start("go", model=ScriptedModel(["done"]), tools=named, workspace=workspace)

    with pytest.raises(UsageError, match="there is no MCP server 'gut'"):
        asyncio.run(go())
    assert session.store.runs() == []
    assert session.mcp.servers["h"].connection is None


def test_a_plan_that_needs_a_broken_server_says_so(make: Make, workspace: Path) -> None:  # noqa: F811
    """The run fails with the step and the tool, after the server was named; a plan for a good one is carried
    out.
    """
    session = make(bad=hostile("exits"), good=hostile("banner"))

    def plan(server: str) -> Plan:
        return Plan(steps=(Step(id="only", tool=f"{server}:echo", args={"text": "x"}),))

    async def go(server: str) -> Any:
        return await session.start(
            "go", model=ScriptedModel([]), plan=plan(server), workspace=workspace
        ).wait()

    assert asyncio.run(go("good")).answer == "x"
    with pytest.raises(UsageError, match=r"step 'only'.*bad:echo"):
        asyncio.run(go("bad"))
    (failed,) = [row for row in session.store.runs() if row.status is RunStatus.FAILED]
    assert "server bad" in repr(session.get(failed.id).report)


def test_a_run_that_is_cancelled_while_a_server_starts_ends_cancelled(
    make: Make,  # noqa: F811
    workspace: Path,
    gate: Path,
) -> None:
    """It does not wait for the server, and the server is ended."""
    session = make(h=hostile(f"until={gate}", start_timeout_s=PATIENCE_S))

    async def go() -> Any:
        run = session.start("go", model=ScriptedModel(["done"]), tools=["h:*"], workspace=workspace)
        while not gate.with_name("open.came").exists():
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        return run

    assert asyncio.run(go()).status is RunStatus.CANCELLED


@pytest.mark.parametrize("stuck", ["until", "listless"])
def test_closing_a_server_that_opens_does_not_cancel_who_opens_it(
    make: Make,  # noqa: F811
    tmp_path: Path,
    gate: Path,
    stuck: str,
) -> None:
    """Whether it has not come or does not list its tools: who waits gets an error that says so, and can go
    on.
    """
    mark = gate.with_name("open.came") if stuck == "until" else gate
    session = make(h=hostile(f"{stuck}={gate}", start_timeout_s=PATIENCE_S))

    async def go() -> str:
        opening = asyncio.ensure_future(session.mcp.check("h"))
        while not mark.exists():
            await asyncio.sleep(0.01)
        await session.mcp.aclose()
        with pytest.raises(DependencyError, match="it was closed before it was ready"):
            await opening
        return "went on"

    assert asyncio.run(go()) == "went on"


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside of the workspace: S1 cannot keep the log out of a command's reach within it."""
    return tmp_path_factory.mktemp("outside")


def test_a_setting_of_the_sandbox_reaches_servers(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known or running: the table says the new level at once, and the next call is made to a server that is
    held in at it.
    """
    monkeypatch.chdir(tmp_path)
    lab = Lab(
        home=outside / "home",
        approve="auto",
        sandbox="S0",
        env={"XDG_CONFIG_HOME": str(tmp_path / "c")},
        mcp={"h": hostile()},
    )
    try:
        lab.mcp.learn("h")
        first = lab.mcp.servers["h"].connection
        assert (
            first is not None
            and first.level is not None
            and (first.level.name, lab.mcp.row("h").sandbox) == ("S0", "S0")
        )
        lab.configure("sandbox", "S1")
        model = ScriptedModel([call("h:echo", text="hi"), say("done")])
        run = lab.run_sync("go", model=model, tools=["h:*"], workspace=tmp_path)
        now = lab.mcp.servers["h"].connection
        assert [event.text for event in run.events() if isinstance(event, ToolAnswered)] == ["hi"]
        assert now is not first and now is not None and now.level is not None and now.level.name == "S1"
        assert not first.alive
    finally:
        lab.close()


def test_a_server_with_a_sandbox_of_its_own_keeps_it(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its table says goes before the setting: it is not restarted."""
    monkeypatch.chdir(tmp_path)
    lab = Lab(
        home=outside / "home",
        sandbox="S0",
        env={"XDG_CONFIG_HOME": str(tmp_path / "c")},
        mcp={"h": hostile(sandbox="S1")},
    )
    try:
        lab.mcp.learn("h")
        first = lab.mcp.servers["h"].connection
        lab.configure("sandbox", "auto")
        assert not lab.mcp.servers["h"].outdated
        assert first is not None and first.alive
    finally:
        lab.close()


@pytest.fixture
def untried() -> Iterator[None]:
    """No level of the sandbox was tried in this process."""
    from kestrel_lab.tools.sandbox import select as choose

    kept = dict(choose._VERDICTS)
    choose._VERDICTS.clear()
    yield
    choose._VERDICTS.update(kept)


def test_a_level_is_never_tried_on_the_event_loop(
    tmp_path: Path, workspace: Path, untried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins with a level that nobody has tried has it tried in a thread; one that cannot be had
    fails the run.
    """
    import threading

    from kestrel_lab.tools.sandbox import select as choose

    asked: list[threading.Thread] = []
    real = choose.probe_level
    monkeypatch.setattr(
        choose, "probe_level", lambda *args: (asked.append(threading.current_thread()), real(*args))[1]
    )
    session = Lab(tmp_path / "home", env={}, sandbox="S1")

    async def go() -> Any:
        return await session.start("go", model=ScriptedModel(["done"]), workspace=workspace).wait()

    assert asyncio.run(go()).status is RunStatus.COMPLETE
    session.close()
    assert asked and threading.main_thread() not in asked
    assert equipment.is_tested(session.sandbox)
