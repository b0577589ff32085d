"""Writes the database and the cassettes of this folder, with the package of an earlier commit: `python
written_at_8b1bb7c.py FOLDER`.

Made once, at 8b1bb7c: `git checkout 8b1bb7c && python …/written_at_8b1bb7c.py /tmp/kestrel-8b1bb7c`. What is
in FOLDER belongs to the test.
"""

import asyncio
import os
import sqlite3
import sys
from pathlib import Path

from kestrel_lab import Lab, Plan, Step
from kestrel_lab.core.errors import ApprovalRequired
from kestrel_lab.core.messages import ModelAnswer
from kestrel_lab.testing import ScriptedModel

HERE = Path(__file__).parent
FOLDER = Path(sys.argv[1])
WRITE = [
    [("write_file", {"path": "a.txt", "content": "one\n"})],
    [("read_file", {"path": "a.txt"})],
    "written and read",
]


class Hello:
    """Passes for a real model, which is recorded."""

    name, kind = "openai/any", "real"

    async def __call__(self, request, on_delta):
        return ModelAnswer(text="hello")


async def main() -> None:
    work = FOLDER / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    for name in ("suite.yaml", "script.yaml", "taped.yaml"):
        (work / name).write_text((HERE / name).read_text())
    lab = Lab(FOLDER / "home", env={}, models={"openai/any": Hello()})
    done = await lab.run("write a file", model=ScriptedModel(WRITE), approve="auto", workspace=work)
    place = next(record.seq for record in done.records() if record.event.type == "model_called")
    await lab.fork(done.id, at=place, model=ScriptedModel(["said otherwise"]))
    steps = (
        Step(id="read", tool="read_file", args={"path": "a.txt"}, produces=("text",)),
        Step(id="sum", goal="Sum up.", consumes=("text",)),
    )
    await lab.run(
        "sum up the file",
        plan=Plan(steps=steps),
        model=ScriptedModel(["one line"]),
        approve="auto",
        workspace=work,
    )
    try:
        await lab.run(
            "write another",
            model=ScriptedModel([[("write_file", {"path": "b.txt", "content": "two\n"})], "done"]),
            workspace=work,
        )
    except ApprovalRequired as waiting:
        print(waiting)
    lab.memory.remember("Tests are run with make test.", kind="procedure", tags=["tests"])
    lab.memory.remember("Marmalade is orange.")
    await lab.eval("suite.yaml", epochs=2)
    await lab.eval("taped.yaml", cassette="record", cassettes=FOLDER / "taped")
    lab.close()
    with sqlite3.connect(FOLDER / "home" / "kestrel.db") as log:
        log.execute("PRAGMA journal_mode=DELETE")
        log.execute("VACUUM")


asyncio.run(main())
