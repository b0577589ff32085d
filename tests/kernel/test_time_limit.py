"""The time limit of code in the live kernel: code that works, and code that awaits."""

from __future__ import annotations

from pathlib import Path

import pytest
from shells import Kernel

from kestrel_lab.tools.kernel import live_kernel
from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = [
    pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem()),
    pytest.mark.timeout(120),
]


@pytest.mark.parametrize(
    "rest", ["while True: pass", "import asyncio; await asyncio.sleep(1000)"], ids=["busy", "awaiting"]
)
def test_code_that_takes_too_long_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    """The model is told, what it had done can be undone, and the kernel goes on."""
    monkeypatch.setattr(live_kernel, "EXECUTE_S", 0.3)
    kernel = Kernel(tmp_path)
    ran = kernel.execute(f"x = 4\n{rest}")
    left = kernel.ns["x"]
    kernel.live.undo()
    monkeypatch.setattr(live_kernel, "EXECUTE_S", 60.0)

    assert ran.error.startswith("the code took more than 0.3 s and was stopped")
    assert (left, kernel.ns["x"]) == (4, 3)
    assert kernel.execute("x + 1").given == "4"


def test_what_comes_of_code_is_the_output_of_a_cell(tmp_path: Path) -> None:
    """Streams, display data and the result in nbformat's form, which nbformat accepts; an exception with its
    traceback.
    """
    import nbformat

    kernel = Kernel(tmp_path)
    shown = "get_ipython().display_pub.publish({'text/html': '<b>c</b>'}, {})"
    code = f"import sys\nprint('a'); print('b', file=sys.stderr); {shown}; x + 1"
    executed, failed = kernel.execute(code), kernel.execute("1 / 0")
    cell = {"id": "c", "cell_type": "code", "source": code, "metadata": {}, "execution_count": None}
    for ran in (executed, failed, kernel.adopt("print('d'); y = 1; y")):
        cells = [{**cell, "outputs": list(ran.outputs)}]
        nbformat.validate(
            nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})
        )

    assert [one["output_type"] for one in executed.outputs] == [
        "stream",
        "stream",
        "display_data",
        "execute_result",
    ]
    assert executed.outputs[2]["data"]["text/html"] == "<b>c</b>"
    assert failed.outputs[-1]["ename"] == "ZeroDivisionError"


def test_text_that_was_displayed_in_a_preview_is_shown_when_it_is_taken_over(tmp_path: Path) -> None:
    """The model reads it, and the person sees it too."""
    adopted = Kernel(tmp_path).adopt("get_ipython().display_pub.publish({'text/plain': 'seen'}, {}); y = 1")

    assert [one["data"] for one in adopted.outputs] == [{"text/plain": "seen"}]
