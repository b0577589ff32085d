"""Undo of code in a kernel: values as they were, several calls in order, and what cannot be restored."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from shells import Kernel

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())


def test_three_calls_are_undone_in_order(tmp_path: Path) -> None:
    """After each undo the variables are those from before that call, and lists keep being the same list."""
    kernel = Kernel(tmp_path)
    before, items = kernel.ns["df"].copy(), kernel.ns["items"]
    kernel.execute("df['month'] = df.day.dt.month; items.append(3)")
    second = kernel.ns["df"].copy()
    kernel.execute("df = df.dropna(); table['b'] = 2; arr[0] = 9; new = 1")
    kernel.adopt("x = 5")

    assert kernel.ns["x"] == 5
    assert str(kernel.live.undo()) == "undone: x = 5 (restored x)"
    assert kernel.ns["x"] == 3
    assert sorted(kernel.live.undo().restored) == ["arr", "df", "new", "table"]
    pd.testing.assert_frame_equal(kernel.ns["df"], second)
    assert (kernel.ns["table"], list(kernel.ns["arr"]), "new" in kernel.ns) == (
        {"a": [1]},
        [0, 1, 2, 3, 4],
        False,
    )
    kernel.live.undo()
    pd.testing.assert_frame_equal(kernel.ns["df"], before)
    assert (kernel.ns["items"], kernel.ns["items"] is items) == ([1, 2], True)
    with pytest.raises(UsageError, match="no code of an agent has changed a variable"):
        kernel.live.undo()


def test_a_call_is_undone_with_all_that_came_after_it(tmp_path: Path) -> None:
    """The newest is undone first; what both changed is as it was before the first."""
    kernel = Kernel(tmp_path)
    kernel.execute("x = 4")
    kernel.execute("x = 5; y = 1")
    undone = kernel.live.undo(call="x = 4")

    assert (undone.calls, kernel.ns["x"], "y" in kernel.ns) == (["x = 5; y = 1", "x = 4"], 3, False)


def test_an_exception_does_not_hide_what_was_done_before_it(tmp_path: Path) -> None:
    """Code that fails half-way can be undone too."""
    kernel = Kernel(tmp_path)
    ran = kernel.execute("x = 4; items.append(1); 1/0")
    kernel.live.undo()

    assert "ZeroDivisionError" in ran.error
    assert (kernel.ns["x"], kernel.ns["items"]) == (3, [1, 2])


def test_what_others_changed_since_is_not_overwritten(tmp_path: Path) -> None:
    """A cell of the user's after the call: undo names the variable, and goes on only by force."""
    kernel = Kernel(tmp_path)
    kernel.execute("x = 4; items.append(3)")
    kernel.shell.run_cell("items.append('mine')")

    with pytest.raises(UsageError, match="items changed since, by something else"):
        kernel.live.undo()
    kernel.live.undo(force=True)
    assert (kernel.ns["x"], kernel.ns["items"]) == (3, [1, 2])


def test_what_cannot_be_undone_is_named_before(tmp_path: Path) -> None:
    """An object of a class of the user's, changed inside, is on the card; the rest is restored and it is
    named again.
    """
    kernel = Kernel(tmp_path, "class Model:\n    fitted = False\nmodel = Model(); x = 3")
    code = "model.weights = [1]; x = 4"
    preview = kernel.preview(code)
    kernel.execute(code)
    undone = kernel.live.undo()

    assert "(cannot be undone: it is a Model)" in preview.text
    assert (undone.restored, undone.missing) == (["x"], {"model": "it is a Model"})


def test_an_object_that_was_only_replaced_is_given_back_itself(tmp_path: Path) -> None:
    """A name that stands for another object afterwards gets the old one back, of whatever class it is."""
    kernel = Kernel(tmp_path, "class Model: pass\nmodel = Model()")
    model = kernel.ns["model"]
    kernel.execute("model = Model()")
    undone = kernel.live.undo()

    assert (undone.missing, kernel.ns["model"] is model) == ({}, True)


def test_old_states_are_dropped_for_memory_and_said(tmp_path: Path) -> None:
    """Beyond the bound the oldest copy of the kernel goes; its call then says what it could not restore."""
    kernel = Kernel(tmp_path, "import numpy as np\nbig = np.zeros(3_000_000)")
    kernel.live.undo_stack._most = 10_000_000
    given_up = [one for n in range(3) for one in kernel.execute(f"big[:] = {n + 1}").given_up]
    first = kernel.live.undo_stack.calls[0][1]
    undone = kernel.live.undo(call=first)

    assert first in given_up
    assert undone.missing == {"big": "its old state was dropped to save memory"}
