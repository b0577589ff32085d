"""What a run, a suite or a lab is given: an option that does not exist is refused and named, one that does is obeyed."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab import Lab
from kestrel_lab.core.errors import UnknownOption, UsageError
from kestrel_lab.core.run_types import Limits
from kestrel_lab.runtime.mcp.discovery import ExpansionSettings
from kestrel_lab.runtime.options import checked
from kestrel_lab.runtime.session import Session
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


CALLS: dict[str, Callable[[Lab], Any]] = {
    "Lab": lambda lab: Lab(home=lab.home / "x", aprove="deny"),  # type: ignore[call-arg]
    "Session": lambda lab: Session(lab.home / "x", limit=Limits()),  # type: ignore[call-arg]
    "start": lambda lab: lab.start("go", approv="deny"),  # type: ignore[call-arg]
    "run": lambda lab: lab.run("go", approv="deny"),  # type: ignore[call-arg]
    "run_sync": lambda lab: lab.run_sync("go", approv="deny"),  # type: ignore[call-arg]
    "restart": lambda lab: lab.restart("r", takeover=True),  # type: ignore[call-arg]
    "resume": lambda lab: lab.resume("r", approv="deny"),  # type: ignore[call-arg]
    "start_fork": lambda lab: lab.start_fork("r", approv="deny"),  # type: ignore[call-arg]
    "fork": lambda lab: lab.fork("r", approv="deny"),  # type: ignore[call-arg]
    "websearch": lambda lab: lab.websearch("q", model="none", approv="deny"),  # type: ignore[call-arg]
    "websearch_sync": lambda lab: lab.websearch_sync("q", model="none", approv="deny"),
    "macros.run": lambda lab: lab.macros.run("m", {}, approv="deny"),  # type: ignore[call-arg]
    "eval": lambda lab: lab.eval("s.yaml", epoch=3),  # type: ignore[call-arg]
    "eval_sync": lambda lab: lab.eval_sync("s.yaml", epoch=3),
    "compare": lambda lab: lab.compare(suite="s.yaml", epoch=3),  # type: ignore[call-arg]
    "compare_sync": lambda lab: lab.compare_sync(suite="s.yaml", epoch=3),
    "eval_commits": lambda lab: lab.eval_commits("s.yaml", "A..B", epoch=3),
    "history_sync": lambda lab: lab.history_sync("s.yaml", metrics="tokens"),
    "bisect": lambda lab: lab.bisect("s.yaml", "A", max_trial=3),
    "rescore_sync": lambda lab: lab.rescore_sync("s.yaml", comit="A"),
    "stored": lambda lab: lab.stored("s.yaml", comit="A"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", CALLS)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest(name: str, lab: Lab) -> None:
    """Wherever options are taken one that is misspelt raises, with the one that was meant; nothing has begun by then."""

    async def scene() -> None:
        given = CALLS[name](lab)
        if inspect.isawaitable(given):
            await given

    with pytest.raises(UnknownOption, match=r"has no option '\w+'; did you mean '\w+'\?") as caught:
        asyncio.run(scene())
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, UsageError)
    assert lab.store.runs() == []


def test_the_mutant_that_swallows_options_is_seen(lab: Lab) -> None:
    """A function that takes anything, as the fork of earlier versions did, goes on under the old policy where the checked one refuses."""

    def fork(approve: str = "auto", **options: Any) -> str:
        return approve

    assert fork(approv="deny") == "auto"
    with pytest.raises(UnknownOption, match="did you mean 'approve'"):
        checked(lambda approve="auto": approve)(approv="deny")  # type: ignore[call-arg]
    assert "approve" in inspect.signature(Session.start_fork).parameters  # help and completion see the options


def test_settings_that_do_not_exist_are_refused(lab: Lab) -> None:
    """`configure`, which `%kestrel config` calls, names the nearest setting; a right one is in force at once."""
    with pytest.raises(UsageError, match="unknown setting 'aprove': did you mean 'approve'"):
        lab.configure("aprove", "deny")
    assert lab.configure("approve", "deny")["approve"] == lab.approve == "deny"


def test_a_fork_obeys_the_limits_and_the_policy_it_is_given(lab: Lab, tmp_path: Path) -> None:
    """`limits=` and `approve=` of a fork hold there and not in the parent, and in what becomes of the fork."""
    parent = lab.run_sync("go", approve="auto")
    again = ScriptedModel(lambda _: [("write", {})])
    fork = asyncio.run(lab.fork(parent.id, at=4, model=again, limits=Limits(cycles=2)))
    assert (fork.reason, fork.limits.cycles, parent.limits.cycles) == ("the limit of 2 model turns is reached", 2, 20)
    child = asyncio.run(lab.fork(fork.id, model=again))
    assert child.limits.cycles == 2
    denied = asyncio.run(lab.fork(parent.id, at=4, approve="deny"))
    assert "error" in denied.results["answer.1.1"] and "denied" in denied.results["answer.1.1"]


def test_a_lab_takes_every_option_of_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `Session` can be given `Lab` can: it wins over the files, and `config` says where it came from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kestrel.toml").write_text('containment = "on"\nverify = "warn"\ncycles = 7\n')
    options = inspect.signature(Lab.__init__).parameters.keys()
    assert inspect.signature(Session.__init__).parameters.keys() <= options
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
        expansion=ExpansionSettings(expand=True),
        env={},
    )
    assert (lab.containment, lab.verify, lab.form, lab.ports.abstain, lab.checkpoint_every) == ("strict", "off", "brief", 0.5, 3)
    assert (lab.provider, lab.api_base, lab.expansion.expand, lab.sandbox.network) == ("ollama", "http://localhost:1", True, True)
    assert lab.limits == Limits(cycles=3, seconds=None, calls_per_turn=2)
    assert (lab.settings["cycles"], lab.settings["seconds"], lab.settings.items["containment"].source) == (3, None, "Lab(…)")
    lab.close()
    other = Lab(env={})
    assert (other.limits.cycles, other.containment) == (7, "on")
    other.close()
    with pytest.raises(UsageError, match="containment"):
        Lab(containment="sometimes", env={})
