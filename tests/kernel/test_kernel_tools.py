"""The tools of the group `kernel` in a notebook: lists, one variable, code that was approved, and what the
model reads of it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import pytest
from shells import Kernel, quiet_shell

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, Danger
from kestrel_lab.core.errors import CodeError, ConflictError, ToolError
from kestrel_lab.core.events.union import KernelChanged, KernelPreviewed
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.kernel.capture import IMAGES, MOST_IMAGES, MOST_PRINTED, Output
from kestrel_lab.tools.kernel.kernel_tools import execution_text, kernel_tools, new_kernel_notice
from kestrel_lab.tools.kernel.live_kernel import HEADLESS, ExecutionResult, is_attended, kernel_of, live_shell
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.kernel.own_kernel import Kernels
from kestrel_lab.tools.kernel.variables import Change
from kestrel_lab.tools.tool import CodeContext, ToolContext

PNG = IMAGES["image/png"] + b"..."
TOOLS = {made.name: made for made in kernel_tools(Kernels())}


class Harness:
    """A shell of a notebook, the calls made there, and what they record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shell = quiet_shell()
        self.shell.kernel = SimpleNamespace(get_parent=lambda _: {})
        self.shell.user_ns |= {"x": 3, "items": [1]}
        self.events: list[Any] = []

    def context(self, call: str = "c", **about: Any) -> ToolContext:
        """What a call is given."""
        options: dict[str, Any] = {"live": True, "step": "s", "danger": Danger.HIGH, **about}
        code = CodeContext(emit=lambda event, _: self.events.append(event), **options)
        return ToolContext(workspace=Workspace(self.folder), run_id="r", call_id=call, code=code)

    def use(self, name: str, args: dict[str, Any], **about: Any) -> str:
        """Run a tool."""
        made = TOOLS[name]
        return str(asyncio.run(made.run(made.validate(args), self.context(**about))))


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A shell in a kernel."""
    made = Harness(tmp_path)
    monkeypatch.setattr(IPython, "get_ipython", lambda: made.shell)
    return made


def test_variables_of_the_notebook_are_listed_and_inspected(harness: Harness) -> None:
    """A name that is nearly right is suggested."""
    assert harness.use("list_variables", {}) == "x: int, 3\nitems: list, [1]"
    assert harness.use("inspect_variable", {"name": "items"}) == "items: list, [1]"
    with pytest.raises(ToolError, match=r"there is no variable 'item'; .*items"):
        harness.use("inspect_variable", {"name": "item"})
    del harness.shell.user_ns["x"], harness.shell.user_ns["items"]
    with pytest.raises(ToolError, match="there is no variable 'item'; there are none yet"):
        harness.use("inspect_variable", {"name": "item"})


def test_off_a_notebook_and_in_a_suite_the_run_has_a_kernel_of_its_own(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has no variables before its first code, whatever the notebook has."""
    assert harness.use("list_variables", {}, live=False) == "there are no variables yet"
    assert harness.use("inspect_variable", {"name": "x"}, live=False) == "there are no variables yet"
    harness.shell.kernel = None
    assert live_shell() is None
    assert harness.use("list_variables", {}) == "there are no variables yet"
    with pytest.raises(ToolError, match="only within a run"):
        asyncio.run(TOOLS["run_python"].run({"code": "1"}, ToolContext(workspace=Workspace(harness.folder))))


def test_approved_code_runs_in_the_kernel_and_is_recorded(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer has what it printed, gave and changed; the person sees it too; what raises is an error,
    recorded by its last line.
    """
    assert harness.use("run_python", {"code": "items.append(x)\nprint('hi')\nitems"}, sandbox=IN_KERNEL) == (
        "hi\n[1, 3]\n[items: [1] → [1, 3]]"
    )
    assert "hi\n" in capsys.readouterr().out
    with pytest.raises(CodeError, match=r"^ZeroDivisionError: division by zero$") as raised:
        harness.use("run_python", {"code": "y = 1\n1/0"}, sandbox=f"{IN_KERNEL} with network")
    told = raised.value.output
    assert "ZeroDivisionError" in told and told.endswith("[y: new int, 1]") and not raised.value.stopped
    first, second = harness.events
    assert isinstance(first, KernelChanged) and isinstance(second, KernelChanged)
    assert (first.call, first.step, first.how, first.error, first.undoable, first.code) == (
        "c",
        "s",
        "executed",
        "",
        True,
        "",
    )
    assert first.kernel == kernel_of(harness.shell).id
    assert second.error == "ZeroDivisionError: division by zero"
    for sandbox in ("", "S1"):
        with pytest.raises(ToolError, match="not approved to run in the kernel"):
            harness.use("run_python", {"code": "z = 1"}, sandbox=sandbox)
    assert "z" not in harness.shell.user_ns


@pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())
def test_what_was_previewed_is_taken_over_if_it_is_still_no_more_than_that(harness: Harness) -> None:
    """One preview a call, recorded once; a result that is more dangerous than what was decided on is
    refused.
    """
    dry_run = TOOLS["run_python"].dry_run
    assert dry_run is not None
    args = {"code": "x = x + 1"}
    first, second = (asyncio.run(dry_run(dict(args), harness.context())) for _ in range(2))
    assert first == second
    assert first is not None
    assert (first.danger, first.sandbox, first.text) == (Danger.MEDIUM, PREVIEWED, "x: 3 → 4")
    assert [type(event) for event in harness.events] == [KernelPreviewed]
    with pytest.raises(ConflictError, match="what this code does now is not what it did in its preview"):
        harness.use("run_python", args, sandbox=PREVIEWED, danger=Danger.LOW)
    assert harness.shell.user_ns["x"] == 3
    assert harness.use("run_python", args, sandbox=PREVIEWED, danger=Danger.MEDIUM) == "[x: 3 → 4]"
    assert (harness.shell.user_ns["x"], harness.events[-1].how) == (4, "adopted")
    with pytest.raises(ConflictError, match="what this code does now"):
        harness.use("run_python", {"code": "items.append(1)"}, sandbox=PREVIEWED, call="other")
    assert asyncio.run(dry_run(dict(args), harness.context(live=False))) is None


def test_a_model_is_told_when_the_kernel_is_another_one() -> None:
    """The calls whose variables are gone are named; not where the kernel is one of theirs, nor before the
    first.
    """

    def about(**earlier: str) -> CodeContext:
        return CodeContext(emit=lambda *_: None, earlier=earlier)

    assert new_kernel_notice(about(c1="old", c2="old"), "new").startswith(
        "[the kernel in which c1, c2 ran is gone"
    )
    assert new_kernel_notice(about(c1="old", c2="new"), "new") == new_kernel_notice(about(), "new") == ""


def result(*changes: Change, **output: Any) -> ExecutionResult:
    """What came of some code."""
    return ExecutionResult("executed", Output(**output), "", changes)


@pytest.mark.parametrize(
    ("ran", "text"),
    [
        (result(), "[no output]"),
        (result(printed=[("stdout", "a\n"), ("stderr", "b\n")]), "a\nb"),
        (result(displayed=[({"text/plain": "shown"}, {})]), "shown"),
        (
            result(displayed=[({"image/png": PNG, "text/plain": "<Figure>"}, {})]),
            "[figure 1: image/png, 11 bytes, shown to the user]",
        ),
        (result(error="E: 1"), "E: 1"),
        (result(error="E: 1", traceback="Traceback\nE: 1"), "Traceback\nE: 1"),
        (
            result(Change(name="x", kind="new", text="new int, 1", lost="why")),
            "[x: new int, 1 (cannot be undone: why)]",
        ),
        (
            ExecutionResult("executed", Output(), "2", given_up=("c1", "c2")),
            "2\n[changes inside of objects by c1, c2 cannot be undone any more: too much memory was held]",
        ),
    ],
)
def test_what_a_model_reads_of_code(ran: ExecutionResult, text: str) -> None:
    """Printed, displayed, given, raised, drawn and changed, a line each."""
    assert execution_text(ran) == text


def test_a_cell_has_outputs_in_the_form_of_a_notebook() -> None:
    """Streams in order, display data with images as text, the result, and the exception."""
    output = Output(
        printed=[("stdout", "a")],
        displayed=[({"image/png": PNG}, {"width": 1})],
        error="KeyError: 'k: v'",
        traceback="one\ntwo",
    )
    assert ExecutionResult("executed", output, "", bundle={"text/plain": "2"}).outputs == [
        {"output_type": "stream", "name": "stdout", "text": "a"},
        {
            "output_type": "display_data",
            "data": {"image/png": base64.b64encode(PNG).decode()},
            "metadata": {"width": 1},
        },
        {
            "output_type": "execute_result",
            "data": {"text/plain": "2"},
            "metadata": {},
            "execution_count": None,
        },
        {"output_type": "error", "ename": "KeyError", "evalue": "'k: v'", "traceback": ["one", "two"]},
    ]
    assert result().outputs == []


def test_output_is_bounded_while_it_comes() -> None:
    """What is printed beyond the bound is counted; of images only real ones, and so many."""
    output = Output()
    output.printing("stdout", "a" * (MOST_PRINTED - 1))
    output.printing("stdout", "bc")
    output.printing("stderr", "d")
    assert [(stream, len(text)) for stream, text in output.printed] == [("stdout", MOST_PRINTED)]
    assert output.text.endswith("ab\n… 2 more characters were printed")
    output.displayed = [
        ({"image/png": base64.b64encode(PNG).decode()}, {}),
        ({"image/png": b"no image"}, {}),
        ({"image/jpeg": PNG}, {}),
    ]
    assert output.images == [("image/png", PNG)]
    output.displayed = [({"image/png": PNG}, {})] * (MOST_IMAGES + 1)
    assert len(output.images) == MOST_IMAGES


@pytest.mark.parametrize(
    ("request_", "headless", "attended"),
    [
        ({"content": {"allow_stdin": True}}, "", True),
        ({"content": {"allow_stdin": True}}, "1", False),
        ({"content": {}}, "", False),
        (None, "", False),
    ],
)
def test_a_notebook_is_attended_where_somebody_could_type(
    request_: dict[str, Any] | None, headless: str, attended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that execute notebooks say that nobody can; a shell without a kernel is no notebook."""
    monkeypatch.setenv(HEADLESS, headless)
    assert is_attended(SimpleNamespace(kernel=SimpleNamespace(get_parent=lambda _: request_))) is attended
    assert is_attended(SimpleNamespace(kernel=None)) is is_attended(SimpleNamespace()) is False


def test_output_is_reported_line_by_line_while_code_runs(tmp_path: Path) -> None:
    """Prints, logs of handlers that were made before, and bars reach who watches while the code runs; a flood
    is thinned out, and nothing of it is lost in the end.
    """
    kernel, told = Kernel(tmp_path), list[str]()

    def ran(code: str) -> ExecutionResult:
        told.clear()
        return asyncio.run(kernel.live.execute(code, str(tmp_path), "r", "c", show=False, report=told.append))

    kernel.shell.user_ns["told"] = told
    assert ran("print('one', 'two')\nprint(len(told))").output.text == "one two\n1\n"
    assert told == ["one two\n", "1\n"]
    ran("import sys\nfor n in range(3): print(f'\\r{n}', end='', file=sys.stderr, flush=True)")
    assert told == ["\r0", "\r1", "\r2"]
    flood = ran("for n in range(1000): print(n)")
    assert (len(told) < 100, flood.output.text.count("\n")) == (True, 1000)


def test_a_log_handler_of_an_earlier_cell_writes_to_the_call(tmp_path: Path) -> None:
    """It holds the stream of the kernel, which stands for that of the code while it runs, and not after."""
    kernel, written = Kernel(tmp_path), list[str]()

    class KernelStream(io.StringIO):
        pub_thread = None

        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    kernel.shell.user_ns["stream"] = stream = KernelStream()
    code = "import logging; log = logging.Logger('train'); log.addHandler(logging.StreamHandler(stream))"
    kernel.shell.run_cell(code)
    kernel.live.panels = {"r"}
    before, sys.stderr = sys.stderr, stream
    try:
        assert kernel.execute("log.warning('loss 0.1')").output.text == "loss 0.1\n"
    finally:
        sys.stderr = before
    kernel.shell.run_cell("log.warning('later')")
    assert written == ["later\n"]


def test_a_panel_has_text_and_figures_and_the_cell_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a panel shows the run nothing is shown twice; where none does, all is below the cell."""
    kernel = Kernel(tmp_path)
    for shown, panels in (("text\n", set[str]()), ("", {"r"})):
        kernel.live.panels = panels
        kernel.execute("print('text')")
        assert capsys.readouterr().out == shown


def test_a_stop_that_came_before_the_code_is_not_lost(tmp_path: Path) -> None:
    """Pressed while the variables are looked at, it waits in the event loop: the code does not begin."""
    kernel = Kernel(tmp_path)

    async def stopped() -> None:
        call = asyncio.create_task(kernel.live.execute("began = True", str(tmp_path), "r", "c"))
        asyncio.get_running_loop().call_later(0.001, call.cancel)
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(stopped())
    assert "began" not in kernel.ns
