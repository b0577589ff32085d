"""A front end that shows no widgets: the kernel asks on standard input, and Stop still works."""

from __future__ import annotations

from pathlib import Path

import pytest
from typist import typist

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SETUP = """%load_ext kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
lab = Lab(model=ScriptedModel([[("write_file", {"path": "a.txt", "content": "x"})], "done"]))"""


@pytest.mark.long
def test_without_widgets_the_kernel_asks_in_words(tmp_path: Path) -> None:
    """A typed yes lets the run go on; Stop during the question interrupts the run and leaves the kernel
    alive.
    """
    with typist(tmp_path) as person:
        person.run(SETUP)
        stopped = person.run('%kestrel run "write" --as r', answer=None)
        status = person.run("print(r.status)")
        person.run('%kestrel run "write" --as r', answer="y")
        answer = person.run("print(r.answer)")

    assert "write_file (MEDIUM) asks for approval\n  path: a.txt\n  content: x\n" in stopped
    assert "stopped run " in stopped
    assert "go on: %kestrel run --resume" in stopped
    assert (status, answer, (tmp_path / "a.txt").read_text()) == ("WAITING_APPROVAL\n", "done\n", "x")
