"""Several processes: lines that are not messages, clients that vanish, and runs of others that are followed,
decided and stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from people import InMemory, OnLines, until
from waits import PATIENCE_S

from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.server.controller import Control
from kestrel_lab.server.protocol import MESSAGE_BYTES
from kestrel_lab.testing import ScriptedModel

MODEL = ScriptedModel([[("write_file", {"path": "a.txt", "content": "hi"})], "written"])


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """A session with a scripted model."""
    opened = Lab(tmp_path / "home", model=MODEL, env={})
    yield opened
    opened.close()


def test_lines_that_are_no_messages_get_typed_errors_and_the_run_goes_on(
    session: Lab, workspace: Path
) -> None:
    """Garbage, other JSON, depth, bytes that are no text, a line in pieces, lines too long and one cut off:
    each is named, none obeyed.
    """

    async def body() -> None:
        async with Control(session, can_start=True, workspace=workspace) as control:
            program = OnLines(control)
            run = await program.start("go")
            asked = await program.asked()
            decision = json.dumps(
                {
                    "type": "approve",
                    "id": "late",
                    "run": run,
                    "question": asked["question"],
                    "key": asked["key"],
                }
            ).encode()
            program.write(b"garbage\n[1]\n\n" + b"[" * 10_000 + b"\n\xff\xfe\n{}\n")
            huge = b'{"type":"approve","x":"' + b"y" * (3 * MESSAGE_BYTES)
            await asyncio.to_thread(program.write, huge + b'"}\n' + b"z" * (MESSAGE_BYTES + 1) + b"\n")
            await until(lambda: len(program.of("error")) == 7)
            assert [one["code"] for one in program.of("error")] == ["bad_message"] * 5 + ["too_large"] * 2
            program.write(decision[:30])  # half a message is none
            assert session.store.decision(run, asked["question"]) is None
            program.write(decision[30:] + b"\n" + decision[:30])
            await program.ended()
            await program.leave()
            assert program.of("error")[-1]["code"] == "cut_off"
            assert [one["re"] for one in program.of("accepted")][-1] == "late"
        assert session.get(run).status is RunStatus.COMPLETE

    asyncio.run(body())


def test_a_reader_that_stops_reading_holds_up_no_run(session: Lab, workspace: Path) -> None:
    """With the pipe full the run still completes; and a pipe that nobody holds any more ends the client, not
    the run.
    """

    async def body() -> None:
        async with Control(session, can_start=True, workspace=workspace) as control:
            program, steady = OnLines(control), InMemory(control)
            program._hearing.cancel()
            os.set_blocking(program.writing, False)
            with contextlib.suppress(BlockingIOError):
                while True:  # until nothing is taken any more, because no reply is
                    os.write(program.writing, b"nonsense\n" * 100)
                    await asyncio.sleep(0)
            run = await steady.start("go")
            assert (await steady.approve(await steady.asked())).startswith("accepted")
            await steady.ended()
            assert session.get(run).status is RunStatus.COMPLETE
            os.close(program.reading)  # it is gone: so is all that was kept for it
            await until(program.transport.closed.is_set)
            await until(lambda: program.link not in control.links and program.link._queue.qsize() < 10)
            os.close(program.writing)
            await steady.leave()

    asyncio.run(body())


def test_a_run_of_another_process_is_followed_decided_and_stopped(session: Lab, workspace: Path) -> None:
    """Both runs are listed as worked on; a yes wakes the one at once; the other is stopped only by force, and
    its process notices.
    """
    command = [
        sys.executable,
        str(Path(__file__).parent / "other_process.py"),
        str(session.home),
        str(workspace),
    ]

    async def body(first: str, second: str) -> float:
        async with Control(session, user="ann") as control:
            ann = InMemory(control)
            await ann.watch()
            assert {one["id"]: one["worked_on"] for one in ann.of("runs")[0]["runs"]} == {
                first: True,
                second: True,
            }
            await ann.follow(first)
            await ann.follow(second)
            asked = {
                one["run"]: one
                for one in await until(lambda: ann.of("approval") if len(ann.of("approval")) == 2 else None)
            }
            edited = await ann.approve(asked[first], args={"path": "a.txt"})
            assert (
                edited.startswith("bad_arguments") and "content" in edited
            )  # a tool that is known here can be checked
            began = time.monotonic()
            assert (await ann.approve(asked[first])).startswith("accepted")
            called = await until(
                lambda: next((one for one in ann.of("event") if one["event"]["type"] == "tool_called"), None)
            )
            took = time.monotonic() - began
            assert (called["run"], called["event"]["tool"]) == (first, "write_file")
            refused = await ann.say(type="cancel", run=second)
            assert (refused["code"], "force" in refused["todo"]) == ("at_work_elsewhere", True)
            assert (await ann.say(type="cancel", run=second, force=True))["type"] == "accepted"
            await until(lambda: {one["run"] for one in ann.of("end")} == {first, second})
            assert (await ann.deny(asked[second])).startswith("ended")
            await ann.leave()
            return took

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        first, second = other.stdout.readline().split()
        took = asyncio.run(body(first, second))
        print(f"the other process went on after {took * 1000:.0f} ms")
        assert other.stdout.readline() == "COMPLETE\n"
        assert session.store.run(second).status is RunStatus.CANCELLED
        other.kill()  # it waits for a person who never comes, and would notice with its next word
    assert {path.name for path in workspace.iterdir()} == {"a.txt"}


SCRIPT = """
rules:
  - when: write
    turns:
      - - {tool: write_file, args: {path: a.txt, content: hi}}
      - written
"""


def test_another_program_drives_a_run_by_lines(tmp_path: Path) -> None:
    """`kestrel run --control stdio` tells nothing but messages on standard output, obeys decisions, and its
    exit code is 0.
    """
    (tmp_path / "script.yaml").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "kestrel_lab",
        "run",
        "write",
        "--model",
        "scripted:script.yaml",
        "--control",
        "stdio",
    ]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": tmp_path,
    }
    with subprocess.Popen(command, **pipes) as driven:
        assert driven.stdout is not None and driven.stdin is not None
        kinds = []
        for line in driven.stdout:
            message = json.loads(line)
            kinds.append(message["type"])
            if message["type"] == "approval":
                said = {
                    "type": "approve",
                    "run": message["run"],
                    "question": message["question"],
                    "key": message["key"],
                }
                driven.stdin.write(json.dumps(said) + "\n")
                driven.stdin.flush()
        assert driven.wait(PATIENCE_S) == 0
        assert (kinds[0], kinds[-1], kinds.count("approval"), kinds.count("decided")) == (
            "hello",
            "end",
            1,
            1,
        )
    assert (tmp_path / "a.txt").read_text() == "hi"
