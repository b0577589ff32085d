"""The claim that several calls a turn save model turns."""

import asyncio
from pathlib import Path

from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel, Turn

FILES = {"a.py": "import os\n", "b.py": "import sys\n", "c.py": "x = 1\n", "d.py": "import re\n"}


def analyst(request: ModelRequest) -> Turn:
    """Asks for every file it has not read yet, then says which of them import something."""
    paths = {call.id: str(call.args["path"]) for message in request.messages for call in message.calls}
    read = {
        paths[m.call_id]: m.text
        for m in request.messages
        if m.role == "tool" and not m.text.startswith("error:")
    }
    missing = sorted(FILES.keys() - read.keys())
    if missing:
        return [("read_file", {"path": path}) for path in missing]
    return "imports: " + ", ".join(path for path in sorted(read) if "import" in read[path])


def slow_analyst(request: ModelRequest) -> Turn:
    """Asks for one file at a time."""
    said = analyst(request)
    return said if isinstance(said, str) else said[:1]


def test_reading_together_needs_fewer_turns(tmp_path: Path) -> None:
    """The same analysis of a folder takes two model turns with all files in one turn and five with one file a
    turn, and gives the same answer.
    """
    folder = tmp_path / "repository"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    session = Lab(tmp_path / "home", model=ScriptedModel(analyst), approve="deny")
    together = asyncio.run(session.run("Which files import something?", workspace=folder))
    single = asyncio.run(
        session.run("Which files import something?", workspace=folder, model=ScriptedModel(slow_analyst))
    )
    session.close()
    assert together.answer == single.answer == "imports: a.py, b.py, d.py"
    assert (together.usage.model_calls, single.usage.model_calls) == (2, 5)
