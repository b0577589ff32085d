"""A kernel of its own off the notebook: it keeps variables, holds code in, is interrupted, dies and is begun
anew; and a run with it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel_lab import Lab
from kestrel_lab.core.errors import ToolError
from kestrel_lab.core.events.union import ToolAnswered
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.kernel.own_kernel import OwnKernel

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKernel]:
    """One kernel for all tests of the file."""
    kernel = OwnKernel(tmp_path_factory.mktemp("work"), 4 << 30)
    yield kernel
    kernel.close()


def test_variables_stay_and_are_described(kernel: OwnKernel) -> None:
    """Printed text, results, exceptions and figures come back; variables are there in the next call."""
    first = kernel.execute("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]})\nprint('hello')\nlen(df)")
    plotted = kernel.execute("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()")
    failed = kernel.execute("df['b']")

    assert (first.output.text, first.given, first.error) == ("hello\n", "2", "")
    assert kernel.listed() == "df: DataFrame, 2 rows × 1 columns"
    assert "a: int64, min 1, mean 1.5, max 2" in kernel.inspected("df")
    assert [media for media, _ in plotted.output.images] == ["image/png"]
    assert "KeyError: 'b'" in failed.error
    assert "\x1b" not in failed.error
    with pytest.raises(ToolError, match="KeyError: 'nothing'"):
        kernel.inspected("nothing")


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "open('/etc/outside', 'w')",
        "open('/proc/1/environ').read()",
        "import os; os.kill(os.getppid(), 0)",
        "import "
        "os\nget_ipython().kernel.iopub_thread.io_loop.asyncio_loop.call_soon_threadsafe(lambda: None); "
        "os.open('/tmp/outside', os.O_CREAT | os.O_WRONLY)",
    ],
)
def test_its_code_is_held_in(kernel: OwnKernel, code: str) -> None:
    """No network, no processes, no files but those of the workspace."""
    assert "PermissionError" in kernel.execute(code).error


def test_threads_of_the_kernel_are_held_in_too(kernel: OwnKernel) -> None:
    """What code has another thread of the kernel do is refused as well: the filter is around all of them."""
    ran = kernel.execute(
        "import asyncio, os, socket, concurrent.futures as cf\nthread = "
        "get_ipython().kernel.iopub_thread.io_loop.asyncio_loop\n"
        "def attempt(what):\n    done = cf.Future()\n    def go():\n        try:\n            "
        "done.set_result(what())\n"
        "        except OSError as error:\n            done.set_result(type(error).__name__)\n"
        "    thread.call_soon_threadsafe(go)\n    return done.result(10)\n"
        "[attempt(lambda: socket.socket()), attempt(lambda: os.open('/tmp/outside', os.O_CREAT | "
        "os.O_WRONLY))]"
    )

    assert ran.given == "['PermissionError', 'PermissionError']"


def test_it_writes_into_the_workspace(kernel: OwnKernel) -> None:
    """Files of the workspace are there afterwards."""
    assert kernel.execute("open('made.txt', 'w').write('hi'); open('made.txt').read()").given == "'hi'"


def test_code_that_takes_too_long_is_interrupted_and_the_variables_stay(kernel: OwnKernel) -> None:
    """An endless loop ends at its time, one that prints without end too."""
    kernel.execute("kept = 5")
    late = kernel.execute("while True: pass", seconds=1)

    assert late.error.startswith("the code took more than 1 s and was stopped")
    assert kernel.execute("kept").given == "5"


def test_a_kernel_that_dies_is_said_and_begun_anew(kernel: OwnKernel) -> None:
    """The error says that the variables are gone; the next call has a new kernel."""
    before = kernel.id
    with pytest.raises(ToolError, match=r"the kernel died \(exit code 3\): its variables are gone"):
        kernel.execute("import os; os._exit(3)")

    assert kernel.execute("'kept' in dir()").given == "False"
    assert kernel.id != before


def test_a_run_off_the_notebook_has_a_kernel_of_its_own(tmp_path: Path) -> None:
    """The tools of the group work in one kernel, which dies, is begun anew, and ends with the run; each call
    is an event.
    """
    codes = ["x = [1, 2, 3]; sum(x)", "import os; os._exit(1)", "1 + 1"]
    script = [
        *[[("run_python", {"code": code})] for code in codes[:1]],
        [("list_variables", {})],
        [("inspect_variable", {"name": "x"})],
    ]
    script += [[("run_python", {"code": code})] for code in codes[1:]]
    with Lab(home=tmp_path / "home", model=ScriptedModel([*script, "done"])) as lab:
        run = lab.run_sync("compute", workspace=tmp_path, tools=["kernel"], approve="auto")
        kernels = dict(lab.kernels._kernels)
        events = run.events()
    answers = [event.text for event in events if event.type == "tool_answered"]
    changed = [event for event in events if event.type == "kernel_changed"]

    assert answers[:3] == ["6", "x: list, [1, 2, 3]", "x: list, [1, 2, 3]"]
    assert "the kernel died" in answers[3]
    assert (
        answers[4]
        == "[the kernel in which answer.1.1 ran is gone, with its variables: run the code of these "
        "calls again first if you need them]\n2"
    )
    assert [event.how for event in changed] == ["executed", "executed"]
    assert changed[0].kernel != changed[1].kernel
    assert (run.answer, kernels) == ("done", {})


def test_a_model_that_sees_is_given_the_figures(tmp_path: Path) -> None:
    """The figure of a call is an image of its answer in the next request, with its bytes."""
    seen: list[tuple[str, bytes]] = []

    def answer(request: ModelRequest) -> object:
        last = request.messages[-1]
        seen.extend((image.media_type, base64.b64decode(image.data)[:8]) for image in last.images)
        return (
            "done"
            if last.role == "tool"
            else [("run_python", {"code": "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()"})]
        )

    with Lab(home=tmp_path / "home", model=ScriptedModel(answer)) as lab:
        run = lab.run_sync("plot", workspace=tmp_path, tools=["kernel"], approve="auto")

    assert (run.answer, seen) == ("done", [("image/png", b"\x89PNG\r\n\x1a\n")])


def test_files_that_run_by_themselves_are_reported(tmp_path: Path) -> None:
    """Code in a kernel that writes one is answered with a note, as a command is; the next code is not."""
    (tmp_path / "work").mkdir()
    with Lab(home=tmp_path / "home") as lab:
        plant, plain = ({"code": f"open({name!r}, 'w').write('x')"} for name in ("conftest.py", "plain.txt"))
        model = ScriptedModel([[("run_python", plant)], [("run_python", plain)], "done"])
        run = lab.run_sync("go", workspace=tmp_path / "work", model=model, tools=["kernel"], approve="auto")
        texts = [event.text for event in run.events() if isinstance(event, ToolAnswered)]
    assert ["conftest.py (pytest runs it" in text for text in texts] == [True, False]
