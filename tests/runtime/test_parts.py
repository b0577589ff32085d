"""The parts that a session is composed of work alone: a registry without a log, a history without a
session.
"""

from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.mcp.servers import McpServers
from kestrel_lab.runtime.options import LabOptions, fill
from kestrel_lab.runtime.registry import Registry
from kestrel_lab.runtime.run import RunHistory
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.sandbox.levels import Sandbox


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_a_registry_finds_models_and_tools(tmp_path: Path) -> None:
    """By name, with the nearest one in the error; options that change hold from then on."""
    first, second = ScriptedModel(["a"], name="first"), ScriptedModel(["b"], name="second")
    options = fill(LabOptions, {"model": first, "models": {"other": second}, "tools": [add], "env": {}})
    servers = McpServers({}, RuntimeSupervisor(), env={}, logs=tmp_path)
    registry = Registry(options, tmp_path, servers, Sandbox(), native_tools())
    assert (registry.resolve_model(None), registry.resolve_model("other"), registry.given_model(None)) == (
        first,
        second,
        first,
    )
    assert "add" in registry.toolbox
    assert registry.resolve_tools(["add"]).names == ("add",)
    with pytest.raises(UsageError, match="there is no tool 'ad'; did you mean 'add'"):
        registry.resolve_tools(["ad"])
    registry.options = fill(LabOptions, {"model": second, "env": {}})
    assert registry.resolve_model(None) is second


def test_a_history_lists_and_compares_runs(tmp_path: Path) -> None:
    """What is in a log is listed and counted, with the nearest id for a run that is not there; nothing works
    on it.
    """
    store = SessionStore(tmp_path / "kestrel.db")
    history = RunHistory(store)
    for name, scenario in (("r1", ""), ("r2", ""), ("r3", "s")):
        store.create_run(
            name,
            RunStarted(
                goal=name, workspace=str(tmp_path), model="m", model_kind="scripted", scenario=scenario
            ),
        )
    assert (set(history.runs().index), set(history.runs(trials=True).index), history.count()) == (
        {"r1", "r2"},
        {"r1", "r2", "r3"},
        2,
    )
    assert (history.get("r1").goal, history.live, history.diff("r1", "r1").shared) == ("r1", {}, 1)
    with pytest.raises(UsageError, match="r"):
        history.get("r9")
    with pytest.raises(UsageError, match="waits for no approval"):
        history.decide("r1", granted=True, by="ann", how="command")
    store.close()
