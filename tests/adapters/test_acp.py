"""The agent client protocol from both sides: our client drives our server, a scripted model behind it; and an
agent that misbehaves.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waits import PATIENCE_S, LoopClock

from kestrel_lab import Lab
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    ModelAnswered,
    ModelDelta,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.run_types import Limits
from kestrel_lab.host.homes import default_home

AGENT = """
import asyncio, sys
from acp import run_agent, InitializeResponse, NewSessionResponse, PromptResponse, \
update_agent_message_text, start_tool_call, update_tool_call, text_block, tool_content
from acp.schema import PermissionOption, ToolCallUpdate, UsageUpdate, Cost, AgentCapabilities


class Agent:
    def on_connect(self, conn):
        self.client = conn

    async def initialize(self, protocol_version, **more):
        return InitializeResponse(protocol_version=1, agent_capabilities=AgentCapabilities())

    async def new_session(self, cwd, **more):
        return NewSessionResponse(session_id="s1")

    async def prompt(self, session_id, prompt, **more):
        async def tell(update):
            await self.client.session_update(session_id=session_id, update=update)

        if "hang" in prompt[-1].text:
            await tell(update_agent_message_text("I look."))
            await asyncio.sleep(86_400)
        if "die" in prompt[-1].text:
            sys.stderr.write("out of memory"); sys.stderr.flush()
            import os; os._exit(7)
        await tell(update_agent_message_text("I look."))
        for number in (1, 2):  # two calls of one turn
            await tell(start_tool_call(f"c{number}", "look", kind="read", status="pending", raw_input={"n": \
number}))
        for number in (2, 1):
            await tell(update_tool_call(f"c{number}", status="completed", \
content=[tool_content(text_block(f"r{number}"))]))
        await tell(start_tool_call("c3", "Delete all", kind="delete", status="pending"))
        options = [PermissionOption(option_id="y", name="Yes", kind="allow_once"), \
PermissionOption(option_id="n", name="No", kind="reject_once")]
        call = ToolCallUpdate(tool_call_id="c3", title="Delete all", kind="delete", raw_input={"path": "a"})
        answer = await self.client.request_permission(session_id=session_id, tool_call=call, options=options)
        granted = getattr(answer.outcome, "option_id", "") == "y"
        await tell(update_tool_call("c3", status="completed" if granted else "failed"))
        await tell(update_agent_message_text("gone" if granted else "kept"))
        await tell(UsageUpdate(used=1, size=9, cost=Cost(amount=0.5, currency="USD"), \
session_update="usage_update"))
        return PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id, **more):
        pass


asyncio.run(run_agent(Agent()))
"""


async def ran(
    folder: Path, command: str, goal: str = "Look and delete", **options: Any
) -> tuple[Any, list[Any]]:
    """A run of that ACP agent that has ended, and all that was shown of it."""
    (folder / "work").mkdir(exist_ok=True)
    seen: list[Any] = []
    lab = options.pop("lab", {})
    listeners = [lambda _, event: seen.append(event), *lab.pop("listeners", [])]
    env = {**os.environ, "HOME": str(folder)}
    async with Lab(home=folder / "home", env=env, listeners=listeners, **lab) as made:
        run = await made.start(goal, runner=f"acp:{command}", workspace=folder / "work", **options).wait()
        run.events()
        return run, seen


def of(events: list[Any], *kinds: type[Any]) -> list[Any]:
    """The events of these kinds."""
    return [event for event in events if isinstance(event, kinds)]


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """The command of a small agent, written for these tests."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(AGENT)
    program = tmp_path / "agent" / "run"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/agent/agent.py\n")
    program.chmod(0o755)
    return str(program)


def test_lines_that_are_no_object_are_passed_over(tmp_path: Path, agent: str) -> None:
    """A batch, a number: what an agent writes beside messages does not hold the run up."""
    source = tmp_path / "agent" / "agent.py"
    source.write_text("print('[1]'); print(3); print('hello', flush=True)\n" + AGENT)
    run, _ = asyncio.run(ran(tmp_path, agent, "Look", approve="auto"))
    assert (run.status, run.answer) == ("COMPLETE", "gone"), run.reason


def test_an_editor_that_sends_no_object_is_told_so(tmp_path: Path) -> None:
    """As an error of the protocol, also at the very end of the input; what comes after is answered."""
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}})
    done = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", "acp"],
        input=f"[1]\n{asked}\n3",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    problems = [one["error"] for one in told if "error" in one]
    assert [(one["code"], one["message"]) for one in problems] == [
        (-32600, "a message is a JSON object, not [1]"),
        (-32600, "a message is a JSON object, not 3"),
    ]
    assert [one["result"]["protocolVersion"] for one in told if "result" in one] == [1]
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_an_agent_that_looks_for_a_terminal_finds_one(tmp_path: Path, agent: str) -> None:
    """Behind ACP, whose input and output are pipes: its errors go to a terminal that it can open."""
    source = tmp_path / "agent" / "agent.py"
    source.write_text(
        "import sys\nif not sys.stderr.isatty(): sys.exit('no terminal')\nopen('/dev/tty', "
        "'w').write('drawn')\n" + AGENT
    )
    run, _ = asyncio.run(ran(tmp_path, agent, "Look", approve="auto"))
    assert (run.status, run.answer) == ("COMPLETE", "gone"), run.reason


@pytest.mark.parametrize("granted", [True, False])
def test_an_acp_agent_is_a_runner(tmp_path: Path, agent: str, granted: bool) -> None:
    """Its calls are events, those of a turn together; its permission request is an approval, and the answer
    reaches it.
    """
    asked: list[ApprovalAsked] = []

    async def approver(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(question)
        return ApprovalGiven(call=question.call, granted=granted, by="ann", how="click")

    run, events = asyncio.run(ran(tmp_path, agent, approver=approver))
    assert run.status == "COMPLETE", run.reason
    assert [(turn.text, len(turn.calls)) for turn in of(events, ModelAnswered)] == [
        ("I look.", 2),
        ("", 1),
        ("gone" if granted else "kept", 0),
    ]
    results = of(events, ToolAnswered)
    assert [result.text for result in results[:2]] == ["r2", "r1"]
    assert (results[2].error is None, len(of(events, ToolCalled))) == (granted, 3 if granted else 2)
    assert [(question.tool, question.args["path"], question.danger) for question in asked] == [
        ("delete", "a", "HIGH")
    ]
    assert (run.usage.cost_usd, "".join(delta.text for delta in of(events, ModelDelta))) == (
        0.5,
        f"I look.{'gone' if granted else 'kept'}",
    )


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("offered", [("always",), ("always", "once")])
def test_an_agent_that_offers_only_lasting_answers_gets_one(
    tmp_path: Path, agent: str, granted: bool, offered: tuple[str, ...]
) -> None:
    """The person, who is told what a yes means there, is taken at their word; an answer for one call goes
    before one for all.
    """
    source = tmp_path / "agent" / "agent.py"
    options = ", ".join(
        f"PermissionOption(option_id='{a[0]}{b}', name='{a}', kind='{a}_{b}')"
        for b in offered
        for a in ("allow", "reject")
    )
    text = re.sub(r"options = \[.*\]", f"options = [{options}]", source.read_text())
    text = text.replace('option_id", "") == "y"', 'option_id", "").startswith("a")').replace(
        '"gone" if', 'repr(answer.outcome) + "gone" if'
    )
    source.write_text(text.replace('else "kept"', 'else repr(answer.outcome) + "kept"'))
    asked: list[ApprovalAsked] = []

    async def approver(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(question)
        return ApprovalGiven(call=question.call, granted=granted, by="ann", how="click")

    run, events = asyncio.run(ran(tmp_path, agent, approver=approver))
    assert run.status == "COMPLETE", run.reason
    assert f"option_id='{'a' if granted else 'r'}{offered[-1]}'" in of(events, ModelAnswered)[-1].text
    assert ["every later call" in question.preview for question in asked] == [len(offered) == 1]


def test_an_agent_that_dies_says_why(tmp_path: Path, agent: str) -> None:
    """The reason has its exit code and its last words."""
    run, _ = asyncio.run(ran(tmp_path, agent, "die"))
    assert run.status == "FAILED" and "exit code 7; it said last: out of memory" in run.reason


def test_an_agent_that_hangs_is_ended(tmp_path: Path, agent: str) -> None:
    """The limit of time ends it."""

    def let_time_pass(_: str, event: Any) -> None:
        if isinstance(event, ModelDelta):
            LoopClock().skip(61)

    run, _ = asyncio.run(
        ran(tmp_path, agent, "hang", limits=Limits(seconds=60), lab={"listeners": [let_time_pass]})
    )
    assert run.status == "FAILED" and run.reason == "the limit of 60 s of work is reached"


@pytest.mark.parametrize("granted", [True, False])
def test_our_agent_works_in_an_editor(tmp_path: Path, granted: bool) -> None:
    """`kestrel acp` as an editor sees it, our own client in its place: text, calls, a question and its
    answer, and a failure of the model.
    """
    rule = {
        "when": ".",
        "turns": [[{"tool": "write_file", "args": {"path": "a.txt", "content": "x"}}], "Done."],
    }
    (tmp_path / "script.yaml").write_text(json.dumps({"rules": [rule]}))
    asked: list[ApprovalAsked] = []

    async def approver(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(question)
        return ApprovalGiven(call=question.call, granted=granted, by="ann", how="click")

    command = f"{sys.executable} -m kestrel_lab acp --model scripted:{tmp_path}/script.yaml --approve ask"
    run, events = asyncio.run(
        ran(tmp_path, command, "Write a file", approver=approver, lab={"sandbox": "S0"})
    )
    assert run.status == "COMPLETE", run.reason
    assert run.answer == "Done."
    assert [question.args["path"] for question in asked] == ["a.txt"]
    assert (tmp_path / "work" / "a.txt").exists() is granted
    (result,) = of(events, ToolAnswered)
    assert (result.error is None) is granted and [turn.text for turn in of(events, ModelAnswered)] == [
        "",
        "Done.",
    ]
    with Lab(home=default_home(tmp_path / "work", os.environ)) as there:  # its own log has the run too
        assert there.get(there.runs().index[0]).goal == "Write a file"


AGENT_2 = """
import base64, json, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def tell(**update):
    send(method="session/update", params={"sessionId": "s2", "update": update})

def heard():
    return json.loads(sys.stdin.readline())

def call(known, **more):
    tell(sessionUpdate="tool_call_update", toolCallId=known, **more)

hello = heard()
assert hello["params"]["protocolVersion"] == 2, hello
assert hello["params"]["info"]["name"] == "kestrel-lab" and hello["params"]["capabilities"] == {}
send(id=hello["id"], result={"protocolVersion": 2, "capabilities": {"session": {}}, \
"info": {"name": "a", "version": "1"}})
new = heard()
send(id=new["id"], result={"sessionId": "s2", "configOptions": []})
asked = heard()
send(id=asked["id"], result={})
tell(sessionUpdate="user_message", messageId="u", content=asked["params"]["prompt"])
tell(sessionUpdate="state_update", state="running")
tell(sessionUpdate="agent_thought_chunk", messageId="t", content={"type": "text", "text": "hm"})
tell(sessionUpdate="agent_message_chunk", messageId="m", content={"type": "text", "text": "I "})
tell(sessionUpdate="agent_message", messageId="m", content=[{"type": "text", "text": "I look."}])
call("c1", title="look", kind="_peek", status="pending", rawInput={"n": 1})
tell(sessionUpdate="tool_call_content_chunk", toolCallId="c1", \
content={"type": "content", "content": {"type": "text", "text": "r1"}})
tell(sessionUpdate="terminal_output_chunk", terminalId="x", data=base64.b64encode(b"out").decode())
print(json.dumps([{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s2", "update": \
{"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c1", "content": {"type": "terminal", \
"terminalId": "x"}}}}]), flush=True)
call("c1", status="completed", title=None)
call("c2", title="Delete all", kind="delete", status="pending", rawInput={"path": "a"})
send(id=9, method="session/request_permission", params={"sessionId": "s2", "title": "Delete?", \
"subject": {"type": "tool_call", "toolCall": {"toolCallId": "c2"}}, \
"options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}, \
{"optionId": "n", "name": "No", "kind": "reject_once"}, {"optionId": "z", "name": "Z", "kind": "_z"}]})
tell(sessionUpdate="state_update", state="requires_action")
granted = heard()["result"]["outcome"].get("optionId") == "y"
call("c2", status="completed" if granted else "cancelled")
tell(sessionUpdate="agent_message", messageId="m2", content=[{"type": "text", "text": "gone"}])
tell(sessionUpdate="usage_update", used=1, size=9, cost={"amount": 0.5, "currency": "USD"})
tell(sessionUpdate="state_update", state="idle", stopReason="end_turn")
sys.stdin.readline()
"""


def written(folder: Path, code: str) -> str:
    """Return the command of an agent with that code."""
    (folder / "agent").mkdir(exist_ok=True)
    (folder / "agent" / "agent2.py").write_text(code)
    program = folder / "agent" / "run2"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {folder}/agent/agent2.py\n")
    program.chmod(0o755)
    return str(program)


async def ran_by(folder: Path, runner: str, **options: Any) -> tuple[Any, list[Any]]:
    """Return a run of that runner that has ended, and its events."""
    (folder / "work").mkdir(exist_ok=True)
    async with Lab(home=folder / "home", env={**os.environ, "HOME": str(folder)}) as lab:
        run = await lab.start(
            "Look", runner=runner, workspace=folder / "work", approve="auto", **options
        ).wait()
        return run, list(run.events())


def test_version_2_becomes_the_same_events(tmp_path: Path) -> None:
    """Upserts, chunks, terminals and permissions of the draft are calls, results and approvals; the run ends
    with the idle state and not with the prompt's response.
    """
    run, events = asyncio.run(ran_by(tmp_path, f"acp2:{written(tmp_path, AGENT_2)}"))
    assert (run.status, run.answer) == ("COMPLETE", "gone"), run.reason
    answers = of(events, ModelAnswered)
    assert [one.text for one in answers] == ["I look.", "", "gone"]
    assert [call["name"] for one in answers for call in one.calls] == ["look", "delete"]
    assert [one.text for one in of(events, ToolAnswered)] == ["r1\nout", ""]
    assert answers[-1].cost_usd == 0.5


def test_the_lower_version_is_accepted_and_a_higher_one_refused(tmp_path: Path, agent: str) -> None:
    """An agent that knows version 1 only works under either name; one that insists on version 2 is refused
    where that was not offered, with the name that offers it.
    """
    run, _ = asyncio.run(ran_by(tmp_path, f"acp2:{agent}"))
    assert (run.status, run.answer) == ("COMPLETE", "gone"), run.reason
    insists = AGENT_2.replace('assert hello["params"]', 'True or hello["params"]')
    run, _ = asyncio.run(ran_by(tmp_path, f"acp:{written(tmp_path, insists)}"))
    assert "speaks version 2 of the protocol, and was offered 1: name it acp2:COMMAND" in run.reason


def test_a_limit_of_money_ends_the_work(tmp_path: Path, agent: str) -> None:
    """An agent that reports its cost while it works is ended at the limit, though it would go on for ever."""
    source = tmp_path / "agent" / "agent.py"
    spends = AGENT.replace(
        'await tell(update_agent_message_text("I look."))\n        for',
        'await tell(update_agent_message_text("I look."))\n        await tell(UsageUpdate(used=1, size=9, '
        'cost=Cost(amount=0.5, currency="USD"), session_update="usage_update"))\n        '
        "await asyncio.sleep(86_400)\n        for",
    )
    assert spends != AGENT
    source.write_text(spends)
    run, events = asyncio.run(ran_by(tmp_path, f"acp:{agent}", limits=Limits(cost_usd=0.4)))
    assert (run.status, run.reason) == ("FAILED", "the limit of $0.4 is reached: $0.5000 spent")
    assert [one.cost_usd for one in of(events, ModelAnswered)] == [0.5]
