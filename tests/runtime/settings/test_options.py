"""What a run, a suite or a lab is given: an option that does not exist is refused and named, one that does is
obeyed.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab import Lab
from kestrel_lab.core.errors import UnknownOption, UsageError
from kestrel_lab.core.run_types import Limits
from kestrel_lab.runtime import start
from kestrel_lab.runtime.options import (
    LabOptions,
    LimitOptions,
    ResumeOptions,
    RunOptions,
    check_options,
    check_resumable,
    fill,
    started_with,
    table,
)
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.workspace.macros import WorkspaceMacros
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool


@tool(danger_level="medium")
def write() -> str:
    """Write."""
    return "written"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A lab in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    opened = Lab(model=ScriptedModel([[("write", {})], "done"]), tools=[write], env={})
    yield opened
    opened.close()


def test_every_way_in_takes_the_options_of_the_table() -> None:
    """Whatever begins a run, goes on with one or opens a lab shows the options of its table, with defaults:
    a run's are those of its lab.
    """
    run, resume, opened = (set(kind.__annotations__) for kind in (RunOptions, ResumeOptions, LabOptions))
    for way in (
        Lab.start,
        Lab.run,
        Lab.run_sync,
        Lab.chat,
        Lab.websearch,
        Lab.websearch_sync,
        WorkspaceMacros.run,
    ):
        assert run <= inspect.signature(way).parameters.keys()
    for way in (Lab.resume, Lab.fork):
        assert resume | {"output"} <= inspect.signature(way).parameters.keys()
    for way in (Lab.__init__, Services.__init__):
        assert opened <= inspect.signature(way).parameters.keys()
    shown = inspect.signature(Lab.__init__).parameters["verify"]
    assert (shown.default, shown.annotation) == ("warn", str)
    of_run = inspect.signature(Lab.run).parameters["verify"]
    assert (of_run.default, of_run.annotation) == (None, str | None)
    assert inspect.signature(Lab.run).parameters["workspace"].default == "."


def test_every_option_says_what_it_means() -> None:
    """Each option of each table has a phrase for help texts: no capital, no full stop."""
    for kind in (LabOptions, RunOptions, LimitOptions):
        assert table(kind).keys() == kind.__annotations__.keys()
        for name, opt in table(kind).items():
            assert opt.meaning, name
            assert not opt.meaning.endswith("."), name


def test_options_hold_for_several_runs(lab: Lab) -> None:
    """A dictionary of options is given to several runs, a part of it anew; a run that goes on refuses what it
    keeps from its beginning.
    """
    usual: RunOptions = {"approve": "deny", "limits": Limits(cycles=5), "instructions": "Be short."}
    denied = lab.run_sync("go", **usual)
    again: RunOptions = {
        **usual,
        "approve": "auto",
        "model": ScriptedModel([[("write", {})], "done"]),
    }
    granted = lab.run_sync("go", **again)
    assert ("denied" in denied.results["answer.1.1"], granted.results["answer.1.1"]) == (True, "written")
    assert denied.report.limits == granted.report.limits == Limits(cycles=5)
    with pytest.raises(UsageError, match="keeps its instructions: leave that out"):
        check_resumable(started_with(usual))
    fork = asyncio.run(
        lab.fork(
            granted.id,
            approve="deny",
            at=4,
            model=ScriptedModel(lambda _: [("write", {})]),
            limits=Limits(cycles=2),
        )
    )
    assert fork.report.limits.cycles == 2
    with pytest.raises(UsageError, match="cache"):
        lab.run_sync("go", cache="sometimes")


def test_none_is_what_the_lab_has(lab: Lab) -> None:
    """An option that is `None` is one that was left out, for a run and for a lab; a bound may be `None`."""
    lab.change(approve="deny")
    run = lab.run_sync("go", approve=None, verify=None, form=None, cache=None)
    assert "denied" in run.results["answer.1.1"]
    opened = fill(LabOptions, {"approve": None, "checkpoint_every": None, "sandbox_memory": None})
    assert (opened["approve"], opened["checkpoint_every"], opened["sandbox_memory"]) == ("ask", None, None)


CALLS: dict[str, Callable[[Lab], Any]] = {
    "Lab": lambda lab: Lab(home=lab.home / "x", aprove="deny"),  # type: ignore[call-arg]
    "Services": lambda lab: Services(lab.home / "x", limit=Limits()),  # type: ignore[call-arg]
    "start": lambda lab: lab.start("go", approv="deny"),  # type: ignore[call-arg]
    "run": lambda lab: lab.run("go", approv="deny"),  # type: ignore[call-arg]
    "run_sync": lambda lab: lab.run_sync("go", approv="deny"),  # type: ignore[call-arg]
    "resume with": lambda lab: lab.resume("r", takeover=True),  # type: ignore[call-arg]
    "resume": lambda lab: lab.resume("r", approv="deny"),  # type: ignore[call-arg]
    "start.fork": lambda lab: start.fork(lab, "r", approv="deny"),  # type: ignore[call-arg]
    "fork": lambda lab: lab.fork("r", approv="deny"),  # type: ignore[call-arg]
    "websearch": lambda lab: lab.websearch("q", model="none", approv="deny"),  # type: ignore[call-arg]
    "websearch_sync": lambda lab: lab.websearch_sync("q", model="none", approv="deny"),
    "macros.run": lambda lab: lab.macros.run("m", {}, approv="deny"),  # type: ignore[call-arg]
    "eval": lambda lab: lab.eval("s.yaml", epoch=3),  # type: ignore[call-arg]
    "eval_sync": lambda lab: lab.eval_sync("s.yaml", epoch=3),
    "compare": lambda lab: lab.compare(suite="s.yaml", epoch=3),  # type: ignore[call-arg]
    "compare_sync": lambda lab: lab.compare_sync(suite="s.yaml", epoch=3),
    "eval_commits": lambda lab: lab.evals.eval_commits("s.yaml", "A..B", epoch=3),
    "history_sync": lambda lab: lab.evals.history_sync("s.yaml", metrics="tokens"),
    "bisect": lambda lab: lab.evals.bisect("s.yaml", "A", max_trial=3),
    "rescore_sync": lambda lab: lab.evals.rescore_sync("s.yaml", comit="A"),
    "stored": lambda lab: lab.evals.stored("s.yaml", comit="A"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", CALLS)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest(name: str, lab: Lab) -> None:
    """Wherever options are taken one that is misspelt raises, with the one that was meant; nothing has begun
    by then.
    """

    async def scene() -> None:
        given = CALLS[name](lab)
        if inspect.isawaitable(given):
            await given

    with pytest.raises(UnknownOption, match=r"has no option '\w+'; did you mean '\w+'\?") as caught:
        asyncio.run(scene())
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, UsageError)
    assert lab.store.runs() == []


def test_the_mutant_that_swallows_options_is_seen(lab: Lab) -> None:
    """A function that takes anything, as the fork of earlier versions did, goes on under the old policy where
    the checked one refuses.
    """

    def fork(approve: str = "auto", **options: Any) -> str:
        return approve

    assert fork(approv="deny") == "auto"
    with pytest.raises(UnknownOption, match="did you mean 'approve'"):
        check_options(lambda approve="auto": approve)(approv="deny")  # type: ignore[call-arg]
    assert "approve" in inspect.signature(Lab.fork).parameters  # help and completion see the options


def test_settings_that_do_not_exist_are_refused(lab: Lab) -> None:
    """`configure`, which `%kestrel config` calls, names the nearest setting; a right one is in force at
    once.
    """
    with pytest.raises(UsageError, match="unknown setting 'aprove': did you mean 'approve'"):
        lab.configure("aprove", "deny")
    assert lab.configure("approve", "deny")["approve"] == lab.options["approve"] == "deny"


def test_a_fork_obeys_the_limits_and_the_policy_it_is_given(lab: Lab, tmp_path: Path) -> None:
    """`limits=` and `approve=` of a fork hold there and not in the parent, and in what becomes of the
    fork.
    """
    parent = lab.run_sync("go", approve="auto")
    again = ScriptedModel(lambda _: [("write", {})])
    fork = asyncio.run(lab.fork(parent.id, at=4, model=again, limits=Limits(cycles=2)))
    assert (fork.reason, fork.report.limits.cycles, parent.report.limits.cycles) == (
        "the limit of 2 model turns is reached",
        2,
        20,
    )
    child = asyncio.run(lab.fork(fork.id, model=again))
    assert child.report.limits.cycles == 2
    denied = asyncio.run(lab.fork(parent.id, at=4, approve="deny"))
    assert "error" in denied.results["answer.1.1"] and "denied" in denied.results["answer.1.1"]


def test_a_lab_takes_every_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a lab is given wins over the files, and `config` says where it came from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kestrel.toml").write_text('containment = "on"\nverify = "warn"\ncycles = 7\n')
    options = inspect.signature(Lab.__init__).parameters.keys()
    assert LabOptions.__annotations__.keys() <= options
    lab = Lab(
        containment="strict",
        verify="off",
        form="brief",
        abstain=0.5,
        network=True,
        checkpoint_every=3,
        provider="ollama",
        api_base="http://localhost:1",
        network_home=True,
        limits=Limits(cycles=3, seconds=None, calls_per_turn=2),
        expand=True,
        env={},
    )
    assert (
        lab.options["containment"],
        lab.options["verify"],
        lab.options["form"],
        lab.ports.abstain,
        lab.options["checkpoint_every"],
    ) == ("strict", "off", "brief", 0.5, 3)
    assert (
        lab.options.get("provider"),
        lab.options.get("api_base"),
        lab.registry.sources.settings.expand,
        lab.sandbox.network,
    ) == ("ollama", "http://localhost:1", True, True)
    assert lab.limits == Limits(cycles=3, seconds=None, calls_per_turn=2)
    assert (lab.settings["cycles"], lab.settings["seconds"], lab.settings.items["containment"].source) == (
        3,
        None,
        "Lab(…)",
    )
    lab.close()
    other = Lab(env={})
    assert (other.limits.cycles, other.options["containment"]) == (7, "on")
    other.close()
    with pytest.raises(UsageError, match="containment"):
        Lab(containment="sometimes", env={})


def test_a_lab_is_one_object(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its runs share is on the lab itself, its skills, macros and notes are those of the folder one is in
    now, and a misspelt part is an error.
    """
    assert lab.run_sync("go", approve="auto").id in lab.runs().index and lab.history.count() == 1
    (there := tmp_path / "there").mkdir()
    monkeypatch.chdir(there)
    assert {part.workspace for part in (lab.skills, lab.macros, lab.memory)} == {there}
    with pytest.raises(AttributeError):
        lab.modle = "none"  # type: ignore[attr-defined]


def test_what_a_run_was_given_stays(lab: Lab) -> None:
    """Changing options of a lab changes nothing for a run that works: it has those of its beginning, while the
    services are the lab's own.
    """

    async def scene() -> None:
        run = lab.start("go", approve="auto")
        assert run.ctx is not None and run.ctx.services is lab
        lab.change(containment="off", checkpoint_every=1)
        given = run.ctx.given
        assert (given.containment, given.usual["checkpoint_every"]) == ("on", 10)
        with pytest.raises(AttributeError):
            given.model = run.ctx.given.model  # type: ignore[misc]
        await run.wait()

    asyncio.run(scene())
