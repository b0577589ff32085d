"""Other people's agents as runners, played by `player.py` from streams in the programs' forms: nothing here
asks a real model.
"""

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import acp.schema
import psutil
import pytest
from player import heard, install, stream_of
from waits import LoopClock, becomes

from kestrel_lab import Lab
from kestrel_lab.adapters.agent_client_protocol import usage_of
from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.actions import actions_of
from kestrel_lab.core.events.tool_kinds import tool_kind
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    BudgetWarned,
    ModelAnswered,
    ModelCalled,
    ModelDelta,
    Prompted,
    Record,
    RunForked,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.run_types import Limits
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.run import Run, interrupt_run

NAMES = ("claude-code", "codex", "gemini", "opencode")
PROGRAM = {"claude-code": "claude"}
GOAL = "What is the price?"


class Place:
    """A machine on which agent programs are installed that play streams."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.home, self.programs = folder / "work", folder / "home", folder / "programs"
        (folder / "user").mkdir()
        self.workspace.mkdir()
        self.user = folder / "user"

    def plays(self, name: str, stream: list[Any]) -> None:
        """Install a player of the stream in the place of the program."""
        install(self.programs, PROGRAM.get(name, name), stream)

    def lab(self, **options: Any) -> Lab:
        """A lab on that machine."""
        env = {"PATH": f"{self.programs / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(self.user)}
        return Lab(home=self.home, env=env, **options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine with nothing installed."""
    return Place(tmp_path)


def of(events: Any, *kinds: type[Any]) -> list[Any]:
    """The events of these kinds."""
    return [event for event in events if isinstance(event, kinds)]


async def ended(place: Place, name: str, **options: Any) -> tuple[Any, list[Any]]:
    """A run of that runner, and its events."""
    async with place.lab(**options.pop("lab", {})) as lab:
        run = await lab.start(
            GOAL, runner=name, workspace=place.workspace, **{"approve": "auto", **options}
        ).wait()
        return run, list(run.events())


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_becomes_the_events_of_a_run(place: Place, name: str) -> None:
    """Three turns, two calls of which one fails, tokens as the program counts them, and the sandbox that held
    it: the same for every program.
    """
    place.plays(name, stream_of(name))
    run, events = asyncio.run(ended(place, name))
    assert run.status == "COMPLETE", run.reason
    assert (run.answer, run.report.model) == ("The price is 3.", name)
    turns, results = of(events, ModelAnswered), of(events, ToolAnswered)
    assert [(turn.text, len(turn.calls)) for turn in turns] == [
        ("I look.", 1),
        ("", 1),
        ("The price is 3.", 0),
    ]
    assert [(result.text, result.error is not None) for result in results] == [
        ("price = 3", False),
        ("exit code 1", True),
    ]
    assert all("S" in call.sandbox and call.args for call in of(events, ToolCalled))
    assert (run.usage.tokens_in, run.usage.tokens_out, run.usage.tokens_cached, run.usage.unmetered) == (
        75,
        40,
        60,
        0,
    )
    told = run.usage.cost_usd if name in ("claude-code", "opencode") else run.usage.unpriced
    assert told == pytest.approx(0.0123 if name in ("claude-code", "opencode") else 1)
    assert [event.call for event in of(events, ModelCalled)] == [turn.call for turn in turns]


def test_questions_of_the_program_are_approvals(place: Place) -> None:
    """Claude Code waits for the answer; a denied call is one in the log, and a rule decides as for any
    call.
    """
    place.plays("claude-code", stream_of("claude-code"))
    asked: list[ApprovalAsked] = []

    async def approver(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(question)
        return ApprovalGiven(
            call=question.call,
            granted=len(asked) == 1,
            by="ann",
            how="click",
            reason="" if len(asked) == 1 else "not now",
        )

    _, events = asyncio.run(ended(place, "claude-code", approve="ask", approver=approver))
    assert [(question.tool, question.args, question.danger) for question in asked] == [
        ("Bash", {"command": "python shop.py"}, "HIGH")
    ]
    assert of(events, ToolCalled)[1].leave == "ann"
    sent = heard(place.workspace)[-1]["response"]["response"]  # type: ignore[index]
    assert sent == {"behavior": "allow", "updatedInput": {"command": "python shop.py"}}
    _, events = asyncio.run(ended(place, "claude-code", approve="ask", approver=approver))
    assert of(events, ToolAnswered)[1].error["kind"] == "denied" and len(of(events, ToolCalled)) == 1
    assert "not now" in heard(place.workspace)[-1]["response"]["response"]["message"]  # type: ignore[index]
    rules = [{"tool": "Bash", "command": "python ...", "verdict": "allow"}]
    _, events = asyncio.run(ended(place, "claude-code", approve="ask", rules=rules, approver=approver))
    assert "rule" in of(events, ToolCalled)[1].leave and len(asked) == 2


@pytest.mark.parametrize("name", ["codex", "gemini", "opencode"])
def test_a_program_that_asks_nobody_is_asked_about(place: Place, name: str) -> None:
    """Leave is needed before it begins; without it, it never starts."""
    place.plays(name, stream_of(name))
    run, events = asyncio.run(ended(place, name, approve="deny"))
    assert run.status == "FAILED" and "was not allowed to begin" in run.reason
    assert [given.granted for given in of(events, ApprovalGiven)] == [False]
    assert not (place.workspace / "heard.jsonl").exists()


@pytest.mark.parametrize(
    ("limit", "ends"),
    [({"cycles": 1}, "1 model turns"), ({"cost_usd": 0.004}, "$0.004"), ({"tokens": 30}, "30 tokens")],
)
def test_a_limit_ends_the_program(place: Place, limit: dict[str, Any], ends: str) -> None:
    """Turns, dollars and tokens are counted as the program tells them; past a limit it is gone, however it
    goes on.
    """
    stream = stream_of("opencode")
    place.plays("opencode", [*stream[:4], {"player": "hang"}])
    run, events = asyncio.run(ended(place, "opencode", limits=Limits(**limit)))
    assert run.status == "FAILED" and ends in run.reason
    assert len(of(events, ModelAnswered)) == 1 and len(of(events, ToolAnswered)) == 1


def test_a_program_that_hangs_is_ended_at_the_limit_of_time(place: Place) -> None:
    """No process is left, and the model call says that it was stopped."""
    place.plays("codex", [*stream_of("codex")[:4], {"player": "hang"}])

    async def scene() -> tuple[Run, list[Any]]:
        async with place.lab() as lab:
            run = lab.start(
                GOAL, runner="codex", workspace=place.workspace, approve="auto", limits=Limits(seconds=60)
            )
            await becomes((place.workspace / "heard.jsonl").exists, "the program")
            LoopClock().skip(61)
            return await run.wait(), list(run.events())

    run, events = asyncio.run(scene())
    assert run.status == "FAILED" and run.reason == "the limit of 60 s of work is reached"
    assert of(events, ModelAnswered)[-1].error["kind"] == "cancelled"
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if f"{place.programs}/player.py" in line]


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (
            [{"player": "exit", "code": 3, "words": "no login\n"}],
            "codex ended without an answer: exit code 3; it said last: no login",
        ),
        ([{"type": "turn.failed", "error": {"message": "quota"}}], "codex failed: quota"),
        (
            [{"type": "item.completed", "item": {"id": "x"}}],
            "codex wrote a line that cannot be understood (KeyError",
        ),
        (["hello", {"player": "exit", "code": 0, "words": ""}], "it said last: hello"),
    ],
)
def test_a_program_that_fails_says_why(place: Place, stream: list[Any], says: str) -> None:
    """Its exit code and last words, its own error, or the line that could not be read are the reason."""
    place.plays("codex", stream)
    run, events = asyncio.run(ended(place, "codex"))
    assert run.status == "FAILED" and says in run.reason
    assert of(events, ModelAnswered)[-1].error["kind"] == "failed"


def test_a_program_that_is_not_there_says_how_to_get_it(place: Place) -> None:
    """The error names the program and how it is installed."""
    with pytest.raises(UsageError, match=r"no program 'codex' .*npm install -g @openai/codex"):
        asyncio.run(ended(place, "codex", lab={"sandbox": "S0"}))


def test_an_interrupted_run_goes_on_in_the_session_of_the_program(place: Place) -> None:
    """It is started with the id of its session and told to go on; an open call is answered as of unknown
    outcome.
    """
    stream = stream_of("claude-code")
    place.plays("claude-code", [*stream[:9], {"player": "hang"}])

    async def stopped() -> str:
        async with place.lab() as lab:
            second = asyncio.Event()
            run = lab.start(GOAL, runner="claude-code", workspace=place.workspace, approve="auto")
            async for event in run.events():
                if isinstance(event, ToolAnswered):
                    second.set()
                if second.is_set():
                    break
            interrupt_run(run)
            return run.id

    known = asyncio.run(stopped())
    place.plays("claude-code", [*stream[:2], *stream[12:]])

    async def resumed() -> tuple[Run, list[Any]]:
        async with place.lab() as lab:
            run = await lab.resume(known)
            return run, list(run.events())

    run, events = asyncio.run(resumed())
    assert (run.status, run.answer) == ("COMPLETE", "The price is 3.")
    argv, _, told = heard(place.workspace)[-3:]
    assert (
        "--resume=5f0c2a1e-0000-4000-8000-000000000001" in argv["argv"]
        and "--fork-session" not in argv["argv"]
    )  # type: ignore[index]
    assert "stopped in the middle" in told["message"]["content"][0]["text"]  # type: ignore[index]
    assert of(events, ModelAnswered)[-1].session.endswith("@a4")


@pytest.mark.parametrize("granted", [True, False])
def test_a_decision_that_comes_later_holds_when_the_program_asks_again(place: Place, granted: bool) -> None:
    """With nobody here the run stops and waits; what was decided then answers the same question of the
    resumed program.
    """
    stream = stream_of("claude-code")
    place.plays("claude-code", stream)

    async def waiting() -> str:
        async with place.lab() as lab:
            run = lab.start(GOAL, runner="claude-code", workspace=place.workspace, approve="ask")
            with pytest.raises(ApprovalRequired):
                await run.wait()
            (asked,) = run.questions
            run.decide(ApprovalGiven(call=asked.call, granted=granted, by="ann", how="command"))
            return run.id

    known = asyncio.run(waiting())
    place.plays("claude-code", [*stream[:5], *stream[8:]])

    async def resumed() -> tuple[Run, list[Any]]:
        async with place.lab() as lab:
            run = await lab.resume(known)
            return run, list(run.events())

    run, events = asyncio.run(resumed())
    assert run.status == "COMPLETE", run.reason
    assert len(of(events, ApprovalAsked)) == 1
    assert heard(place.workspace)[-1]["response"]["response"]["behavior"] == ("allow" if granted else "deny")  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "in_place"), [("claude-code", True), ("claude-code", False), ("codex", False)]
)
def test_a_fork_goes_on_from_its_place(place: Place, name: str, in_place: bool) -> None:
    """Claude Code takes up a copy of its session behind the message in question; another program is told the
    conversation in a new one.

    So is Claude Code in a private copy of the workspace: it looks for a session in the folder where that was
    begun.
    """
    place.plays(name, stream_of(name))

    async def forked() -> tuple[list[Any], Path]:
        async with place.lab() as lab:
            run = await lab.run(GOAL, runner=name, workspace=place.workspace, approve="auto")
            at = [record.seq for record in run.records() if isinstance(record.event, ModelCalled)][1]
            again = await lab.fork(run.id, at=at, in_place=in_place)
            return list(again.events()), again.files.folder

    events, folder = asyncio.run(forked())
    assert len(of(events, RunForked)) == 1
    argv = [line["argv"] for line in heard(folder) if "argv" in line][-1]  # type: ignore[index,operator]
    if in_place:
        assert [word for word in argv if word.startswith(("--resume", "--fork"))] == [
            "--resume=5f0c2a1e-0000-4000-8000-000000000001",
            "--fork-session",
            "--resume-session-at=u1",
        ]
    else:
        said = str(heard(folder))  # on the command line or on standard input
        assert (
            "resume" not in argv
            and not any(word.startswith("--resume") for word in argv)
            and "price = 3" in said
            and GOAL in said
        )


def test_a_follow_up_tells_the_conversation(place: Place) -> None:
    """A run that follows another one of any runner tells it what was said."""
    place.plays("codex", stream_of("codex"))

    async def followed() -> None:
        async with place.lab() as lab:
            first = await lab.run(GOAL, runner="codex", workspace=place.workspace, approve="auto")
            await lab.run("And with tax?", follow=first, approve="auto")

    asyncio.run(followed())
    said = [line["argv"] for line in heard(place.workspace) if "argv" in line][-1][-1]  # type: ignore[index,operator]
    assert "The price is 3." in said and said.endswith("And with tax?")


def test_the_sandbox_holds_the_program(place: Place, tmp_path: Path) -> None:
    """It writes the workspace and its own folder and nothing else."""
    stream = [
        {"player": "write", "path": str(path)}
        for path in (tmp_path / "user" / ".codex" / "a", tmp_path / "user" / "b", tmp_path / "c")
    ]
    place.plays("codex", [*stream, *stream_of("codex")])
    run, _ = asyncio.run(ended(place, "codex"))
    assert run.answer == "The price is 3."
    there = [
        (tmp_path / name).exists() for name in ("user/.codex/a", "user/b", "c")
    ]  # what it writes elsewhere is gone with its sandbox
    assert there == [True, False, False]


def test_a_runner_is_named_wherever_a_model_is(place: Place, tmp_path: Path) -> None:
    """As `runner=` with a model of its own, as a model's name, and in a suite's configuration."""
    place.plays("codex", stream_of("codex"))
    run, _ = asyncio.run(ended(place, "codex", model="gpt-x"))
    assert run.report.model == "codex:gpt-x" and heard(place.workspace)[0]["argv"][4:6] == ["-m", "gpt-x"]  # type: ignore[index]
    suite = tmp_path / "shop.yaml"
    suite.write_text(
        "name: shop\nscenarios: [{id: price, goal: What is the price?, checks: [{answer_contains: "
        "'3'}]}]\nconfigs:\n"
        "  - {name: theirs, runner: codex, model: gpt-x}\n  - {name: also, model: 'codex:gpt-x'}\n"
    )
    assert [config.model for config in load_suite(suite).configs] == ["codex:gpt-x", "codex:gpt-x"]
    with place.lab() as lab:
        frame = lab.eval_sync(suite).frame
    assert frame[["config", "outcome"]].to_numpy().tolist() == [["theirs", "pass"], ["also", "pass"]]
    with pytest.raises(UsageError, match="names what it runs"):
        asyncio.run(ended(place, "acp:x", model="y"))


def test_a_turn_that_begins_before_the_last_is_done_waits_in_the_log(place: Place) -> None:
    """Results in any order: each belongs to its call, and the conversation is one that can be resumed."""
    stream = stream_of("claude-code")
    place.plays("claude-code", [*stream[:7], stream[8], stream[11], stream[7], *stream[12:]])
    run, events = asyncio.run(ended(place, "claude-code"))
    assert (run.status, run.answer) == ("COMPLETE", "The price is 3.")
    told = of(events, ModelAnswered, ToolAnswered)
    assert [event.text for event in told] == ["I look.", "price = 3", "", "exit code 1", "The price is 3."]
    assert [event.call for event in told] == [
        "answer.m1",
        "answer.1.1",
        "answer.m2",
        "answer.2.1",
        "answer.m3",
    ]


def test_codex_counts_a_session_once(place: Place) -> None:
    """A session that is taken up tells the sum of all its turns: what was counted before is left out."""
    place.plays("codex", stream_of("codex"))

    async def asked_again() -> Run:
        async with place.lab() as lab:
            run = await lab.run(
                GOAL, runner="codex", workspace=place.workspace, approve="auto", output={"type": "integer"}
            )
            run.events()
            return run

    run = asyncio.run(asked_again())
    assert [line["argv"][4:6] for line in heard(place.workspace)][1:] == [
        ["resume", "01a2076c-01a9-7d60-a0b8-000000000001"]
    ] * 2  # type: ignore[index,call-overload]
    assert (run.usage.tokens_in, run.status) == (75, "FAILED")


def test_text_is_shown_while_it_is_written(place: Place) -> None:
    """Pieces that the program streams are pieces of the model call under way."""
    place.plays("claude-code", stream_of("claude-code"))
    seen: list[Any] = []
    asyncio.run(ended(place, "claude-code", lab={"listeners": [lambda _, event: seen.append(event)]}))
    (delta,) = of(seen, ModelDelta)
    assert (delta.call, delta.text) == ("answer.m1", "I look.") and not of(seen, Prompted)


@pytest.mark.parametrize("runner", ["codex", "acp:no-such-agent --acp"])
def test_a_program_that_is_absent_is_refused_before_anything_is_asked(runner: str, tmp_path: Path) -> None:
    """Nobody is asked for leave, no run is begun, and the error says what to install."""
    with (
        Lab(home=tmp_path / "home", env={"PATH": str(tmp_path)}) as lab,
        pytest.raises(
            UsageError, match=r"there is no program '(codex|no-such-agent)' on this machine: install it"
        ),
    ):
        try:
            lab.run_sync("go", runner=runner, workspace=tmp_path)
        finally:
            assert len(lab.runs()) == 0


def test_an_unknown_runner_is_no_model(tmp_path: Path) -> None:
    """A misspelt runner is answered with the nearest one; it is not looked for among models."""
    with (
        Lab(home=tmp_path / "home") as lab,
        pytest.raises(UsageError, match="there is no runner 'claude-cod'; did you mean 'claude-code'"),
    ):
        lab.run_sync("go", runner="claude-cod", workspace=tmp_path)


def asking(args: dict[str, Any], asked: list[ApprovalAsked]) -> Any:
    """A person, or a script in their place, who allows each call with these arguments."""

    async def approver(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(question)
        return ApprovalGiven(call=question.call, granted=True, by="ann", how="click", args=args)

    return approver


def test_edited_arguments_reach_a_program_that_takes_them(place: Place) -> None:
    """Claude Code runs the command that a person put in place of its own, although no tool of ours has its
    name.
    """
    place.plays("claude-code", stream_of("claude-code"))
    run, events = asyncio.run(
        ended(place, "claude-code", approve="ask", approver=asking({"command": "true"}, []))
    )
    assert run.status == "COMPLETE", run.reason
    sent = heard(place.workspace)[-1]["response"]["response"]  # type: ignore[index]
    assert sent == {"behavior": "allow", "updatedInput": {"command": "true"}} and of(events, ToolCalled)[
        1
    ].args == {"command": "true"}


def test_arguments_that_cannot_be_edited_are_refused(place: Place) -> None:
    """Of a program that takes none the person reads so and is asked again; the same answer again is a denial,
    not a loop without end.
    """
    asked: list[ApprovalAsked] = []
    place.plays("codex", stream_of("codex"))
    run, _ = asyncio.run(ended(place, "codex", approve="ask", approver=asking({"goal": "other"}, asked)))
    assert len(asked) == 2 and "takes no other arguments" in asked[1].why
    assert (
        run.status == "FAILED"
        and "not allowed to begin" in run.reason
        and not (place.workspace / "heard.jsonl").exists()
    )


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        (
            "opencode",
            {"type": "step_finish", "sessionID": "s", "part": {"reason": "length", "tokens": {}}},
            "cut off",
        ),
        (
            "claude-code",
            {"type": "result", "subtype": "success", "result": "Half", "stop_reason": "max_tokens"},
            "cut off",
        ),
        (
            "claude-code",
            {"type": "result", "subtype": "success", "result": "Half", "stop_reason": "refusal"},
            "refused",
        ),
    ],
)
def test_an_answer_that_is_cut_off_says_so(place: Place, name: str, line: dict[str, Any], says: str) -> None:
    """A program that tells how its answer ended is believed."""
    place.plays(
        name,
        [{"type": "text", "sessionID": "s", "part": {"text": "Half"}}, line]
        if name == "opencode"
        else [line],
    )
    run, _ = asyncio.run(ended(place, name))
    assert run.answer == "Half" and says in run.reason


def test_a_number_that_is_none_is_an_error_of_the_program(place: Place) -> None:
    """The run fails with the line in its reason; nothing else escapes."""
    place.plays("codex", [{"type": "turn.completed", "usage": {"input_tokens": "many"}}])
    run, _ = asyncio.run(ended(place, "codex"))
    assert run.status == "FAILED" and "cannot be understood" in run.reason


@pytest.mark.parametrize("name", NAMES)
def test_one_kind_is_the_same_for_every_program(place: Place, name: str) -> None:
    """Four programs ran the same command under four names: `tool_used: {kind: command}` holds for each, and the
    program's own name stands beside it. What they read alone is no action.
    """
    own = {
        "claude-code": "Bash",
        "codex": "command_execution",
        "gemini": "run_shell_command",
        "opencode": "bash",
    }
    stream = json.loads(json.dumps(stream_of(name)).replace("python shop.py", "grep -rn price ."))
    place.plays(name, stream)
    _, events = asyncio.run(ended(place, name))
    calls = [event for event in of(events, ToolCalled) if event.args.get("command") == "grep -rn price ."]
    assert [(call.tool, tool_kind(call.tool, call.args)) for call in calls] == [(own[name], "command")]
    records = [
        Record(run_id="r", seq=n, eid="", at=0.0, event=replace(event, error=None))
        if isinstance(event, ToolAnswered)
        else Record(run_id="r", seq=n, eid="", at=0.0, event=event)
        for n, event in enumerate(events, 1)
    ]
    check = parse_check({"tool_used": {"kind": "command"}})
    trial = Trial(goal=GOAL, answer="", records=tuple(records), workspace=place.workspace)
    assert asyncio.run(check(trial)).passed
    assert all(action.kind == "command" for action in actions_of(events))
    assert len(actions_of(events)) == (2 if name == "codex" else 1)  # it reads by a command


@pytest.mark.parametrize("name", ["codex", "gemini"])
def test_a_cost_that_nobody_reports_is_said_before_the_run(place: Place, name: str) -> None:
    """Before the program is asked for anything, and once."""
    place.plays(name, stream_of(name))
    _, events = asyncio.run(ended(place, name))
    warned = [place for place, event in enumerate(events) if isinstance(event, BudgetWarned)]
    asked = next(place for place, event in enumerate(events) if isinstance(event, ModelCalled))
    assert len(warned) == 1
    assert warned[0] < asked
    assert (
        f"{name} does not report what it spends: the limit of $1 cannot stop it" in events[warned[0]].message
    )


TERMINAL = """#!{python}
import json, os, sys
if not all(os.isatty(fd) for fd in (0, 1, 2)):
    sys.exit("stdout is not a terminal")
sys.stdout.write("\\x1b[?25l\\x1b]0;title\\x07spinner |\\rspinner /\\r\\x1b[2K")
for line in open({stream!r}):
    sys.stdout.write("\\x1b[32m" + line.rstrip() + "\\x1b[0m\\n")
sys.stderr.write("size %dx%d\\n" % tuple(os.get_terminal_size()))
sys.stdout.flush()
import time; time.sleep(86_400)
"""


@pytest.mark.parametrize("pty", [True, False])
def test_a_program_that_needs_a_terminal_has_one(place: Place, pty: bool) -> None:
    """With `pty` its input, output and errors are a terminal, in the sandbox, and what it writes is read
    without colours and what it draws over; without, it refuses to work. It is killed at the end.
    """
    place.plays("opencode", stream_of("opencode"))
    program = place.programs / "bin" / "opencode"
    program.write_text(TERMINAL.format(python=sys.executable, stream=str(place.programs / "opencode.jsonl")))
    if not pty:
        run, _ = asyncio.run(ended(place, "opencode"))
        assert "stdout is not a terminal" in run.reason
        return
    run, events = asyncio.run(ended(place, "opencode", pty=True))
    assert run.status == "COMPLETE", run.reason
    assert len(of(events, ToolAnswered)) == 2
    assert not [
        one for one in psutil.process_iter(["cmdline"]) if str(program) in (one.info["cmdline"] or ())
    ]


def test_thoughts_are_among_the_tokens_written(place: Place) -> None:
    """Gemini CLI counts them in its total alone; agents that speak ACP say by their total what is counted apart."""
    stream = json.loads(json.dumps(stream_of("gemini")).replace('"total_tokens": 115', '"total_tokens": 120'))
    place.plays("gemini", stream)
    run, _ = asyncio.run(ended(place, "gemini"))
    assert (run.usage.tokens_in, run.usage.tokens_out, run.usage.tokens_reasoning) == (75, 45, 5)
    told = {"input_tokens": 10, "output_tokens": 4, "cached_read_tokens": 6, "thought_tokens": 3}
    for total, counted in ((23, (16, 7)), (20, (16, 4)), (14, (10, 4))):
        used = usage_of(acp.schema.Usage(total_tokens=total, **told))
        assert (used.tokens_in, used.tokens_out, used.tokens_cached, used.tokens_reasoning) == (
            *counted,
            6,
            3,
        )
