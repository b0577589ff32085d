"""How far it is from `%kestrel` to the log: files and functions of the package, counted on a run with one
turn.
"""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.testing import ScriptedModel

PACKAGE = str(Path(kestrel_lab.__file__).parent) + os.sep


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A shell without a screen, with the extension and a lab."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KESTREL_HEADLESS", "1")
    ip = InteractiveShell()
    ip.run_line_magic("load_ext", "kestrel_lab")
    ip.user_ns["lab"] = Lab(tmp_path / "home", ScriptedModel(lambda _: "done"), env={})
    yield ip
    ip.run_line_magic("unload_ext", "kestrel_lab")
    ip.user_ns["lab"].close()


class Counted:
    """The calls of functions of the package, in all threads, and how many there were when a function was
    first entered.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.functions: set[CodeType] = set()
        self.at: dict[str, tuple[int, int]] = {}
        """Files and functions that were entered by then."""

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        """Count a call."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            self.calls += 1
            self.functions.add(code)
            if code.co_qualname not in self.at:
                functions = self.functions.copy()  # other threads add to it
                self.at[code.co_qualname] = (len({one.co_filename for one in functions}), len(functions))


def test_a_goal_is_in_the_log_after_few_steps(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """`Lab.start` is called within 12 files, the first commit asked for within 40 files and 150
    functions; the run takes 900 calls.

    A run that goes on with a conversation reads that one first; this one begins anew. Settings are read and
    commands are built when a shell first needs them, which is not counted.
    """
    shell.run_line_magic("kestrel", 'run "Say done"')
    counted = Counted()
    threading.setprofile(counted)
    sys.setprofile(counted)
    try:
        run = shell.run_line_magic("kestrel", 'run --new "Say done"')
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # nothing counts any more
    assert run.answer == "done"
    files, _ = counted.at[Lab.start.__qualname__]
    assert files <= 12
    files, functions = counted.at[SessionStore.create_run.__qualname__]
    assert (files <= 40, functions <= 150) == (True, True)
    assert counted.calls <= 900
    capsys.readouterr()
