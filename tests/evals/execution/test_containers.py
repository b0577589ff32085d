"""Scenarios with an image, a dockerfile or an absolute root."""

import asyncio

import pytest
from fake_engine import FakeEngine

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.cli.commands.doctor import run_diagnostics
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ToolAnswered, ToolCalled
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.sandbox.container import find_engine
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.select import level_problem

FILES = {"data.txt": "of the image", "mine.txt": "of the image", "python": "->/usr/bin/python3"}


@pytest.fixture
def socket(tmp_path):
    return tmp_path / "engine.sock"


@pytest.fixture
def engine(socket):
    with FakeEngine(socket, here={"task:1": FILES}) as made:
        yield made


@pytest.fixture
def lab(tmp_path, socket):
    session = Lab(tmp_path / "home", env={"DOCKER_HOST": f"unix://{socket}"})
    yield session
    session.close()


def run(lab, model, *checks, **rest):
    """Run one scenario with the tools bash and read_file."""
    scenario = Scenario(
        id="s",
        goal="g",
        checks=tuple(map(parse_check, checks)),
        tools=("bash", "read_file"),
        place=InlineFiles(files={"mine.txt": "of the scenario"}),
        **rest,
    )
    suite = Suite(name="contained", scenarios=(scenario,))
    return asyncio.run(run_suite(lab, suite, configs={"m": ScriptedModel(model)}))


def answers(lab, row):
    """What the tools of a trial said."""
    return [one.event.text for one in lab.store.records(row.run) if isinstance(one.event, ToolAnswered)]


COMMAND = [
    [("bash", {"command": "cat data.txt mine.txt > out.txt; echo done"})],
    [("read_file", {"path": "/app/out.txt"})],
    "ready",
]
CHECK = {"command_succeeds": ["grep", "-q", "of the imageof the scenario", "out.txt"]}


def test_commands_and_checks_run_in_the_image(lab, engine):
    """The workspace is at the image's working folder, with the image's files below those of the scenario;
    commands and checks run there, file tools find its absolute paths, and the container is removed.
    """
    row = run(lab, COMMAND, CHECK, image="task:1").rows[0]
    assert (row.outcome, row.reason) == ("pass", "")
    assert "of the imageof the scenario" in answers(lab, row)[-1]
    held = [one.event.sandbox for one in lab.store.records(row.run) if isinstance(one.event, ToolCalled)]
    assert held[0] == "container"
    (host,) = (one["HostConfig"] for one in engine.removed if "HostConfig" in one)
    assert (host["NetworkMode"], host["SecurityOpt"]) == ("none", ["no-new-privileges"])
    assert engine.containers == {}


def test_an_image_is_pulled_or_built_once(lab, engine, tmp_path):
    """An image that is not there is pulled; a dockerfile is built with its folder."""
    engine.far["far/task"] = FILES
    assert run(lab, COMMAND, CHECK, image="far/task").rows[0].outcome == "pass"
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "suite.yaml").write_text(
        "name: built\nconfigs: [{name: m, model: 'scripted:say.yaml'}]\n"
        "scenarios: [{id: s, goal: g, dockerfile: Dockerfile, checks: [{command_succeeds: ['true']}]}]\n"
    )
    suite = load_suite(tmp_path / "suite.yaml")
    result = asyncio.run(run_suite(lab, suite, configs={"m": ScriptedModel(["ready"])}, epochs=3))
    assert [row.outcome for row in result.rows] == ["pass"] * 3
    assert len(engine.built) == 1
    assert "./Dockerfile" in engine.built[0]


def test_a_command_whose_time_is_up_is_killed(lab, engine):
    """A command that takes too long ends with everything it started, and the next one works."""
    slow = [
        [("bash", {"command": "sleep 86400", "timeout_s": 0.2})],
        [("bash", {"command": "echo on"})],
        "ok",
    ]
    row = run(lab, slow, {"command_succeeds": ["true"]}, image="task:1").rows[0]
    said = answers(lab, row)
    assert "took longer than 0.2 seconds" in said[0]
    assert "stdout:\non" in said[1]


@pytest.mark.parametrize(
    ("rest", "what"),
    [
        (
            {"image": "far/nothing"},
            "scenario 's': the image 'far/nothing' cannot be pulled: far/nothing is nowhere",
        ),
        ({"image": "task:1", "dockerfile": "D"}, "names an image and a dockerfile"),
        ({"dockerfile": "no/such"}, "names 'no/such', which does not exist"),
    ],
)
def test_what_cannot_be_had_is_said_before_the_first_trial(lab, engine, rest, what):
    """An image that nobody has, and two at once, stop the suite before any trial."""
    with pytest.raises(UsageError, match=what):
        run(lab, COMMAND, CHECK, **rest)
    assert lab.runs(trials=True).empty


def test_without_an_engine_an_image_needs_a_root(lab):
    """No engine: the suite does not begin, and says what to do."""
    with pytest.raises(UsageError, match=r"'s': it needs task:1, and no container engine answers.*root:"):
        run(lab, COMMAND, CHECK, image="task:1")
    found = next(one for one in run_diagnostics(lab).findings if one.what == "containers")
    assert found.ok is None
    assert "no engine answers" in found.found


@pytest.mark.skipif(bool(level_problem(Level.S3, Sandbox())), reason="no sandbox of level S3 here")
def test_without_an_engine_a_root_is_in_the_sandbox(lab):
    """Commands find the workspace at the absolute path, file tools too, and the result says what was missing."""
    command = [
        [("bash", {"command": "pwd; cat /app/mine.txt; echo of the imageof the scenario > /app/out.txt"})],
        [("read_file", {"path": "/app/out.txt"})],
        "ready",
    ]
    result = run(
        lab, command, {"command_succeeds": ["test", "-f", "/app/out.txt"]}, image="task:1", root="/app"
    )
    assert (result.rows[0].outcome, result.rows[0].reason) == ("pass", "")
    said = answers(lab, result.rows[0])
    assert "/app\nof the scenario" in said[0]
    assert "of the imageof the scenario" in said[1]
    assert any("in the sandbox at /app, without what task:1 installs" in note for note in result.notes)


def test_without_an_engine_what_an_image_installs_breaks_the_trial(lab, tmp_path):
    """No engine, and a Dockerfile that installs: the trial says nothing of the agent, counts, and asks nobody."""
    (tmp_path / "D").write_text("FROM python:3.12\nWORKDIR /app\nRUN pip install \\\n  numpy\n")
    asked = []

    def answer(request):
        asked.append(request)
        return "done"

    check = parse_check({"answer_contains": "done"})
    plain = Scenario(id="plain", goal="g", checks=(check,), tools=())
    built = Scenario(id="built", goal="g", checks=(check,), tools=(), dockerfile="D", root="/app")
    suite = Suite(name="contained", scenarios=(plain, built), path=tmp_path / "suite.yaml")
    result = asyncio.run(run_suite(lab, suite, configs={"m": ScriptedModel(answer)}))
    assert {row.scenario: row.outcome for row in result.rows} == {"plain": "pass", "built": "error"}
    broke = next(row for row in result.rows if row.outcome == "error")
    assert "no container engine answers here" in broke.reason
    assert result.frame["success"].mean() == 0.5 and len(asked) == 1


@pytest.mark.parametrize("root", ["app", "/usr/share/x", "/", "/a/../b"])
def test_a_root_is_absolute_and_not_the_system_s(root):
    """A relative root, the root of all, and what belongs to the system are refused when a suite is read."""
    with pytest.raises((UsageError, ValueError), match="root"):
        Scenario(id="s", goal="g", checks=(), root=root)


def test_doctor_names_the_engine(socket, lab):
    """Podman is recognised by its own name."""
    with FakeEngine(socket, here={}, podman=True):
        found = asyncio.run(find_engine(lab.env))
        assert found is not None
        assert found.name == "podman 28.0"
