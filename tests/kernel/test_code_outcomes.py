"""How a call of code ended is the same wherever it is shown: raised is an error, not a green tick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel_lab import Lab, Plan, Step
from kestrel_lab.checks.trajectory import made_calls
from kestrel_lab.core.events.union import ModelAnswered, ToolAnswered
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.kernel.own_kernel import OwnKernel
from kestrel_lab.views.rows import CallRow

pytestmark = [
    pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem()),
    pytest.mark.timeout(300),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose runs need nobody."""
    with Lab(home=tmp_path / "home", approve="auto") as made:
        yield made


def test_code_that_raised_has_an_error_mark_everywhere(tmp_path: Path, lab: Lab) -> None:
    """Row, text, HTML, table of calls and the log agree; the model reads the whole output, and the run goes
    on.
    """
    codes = [[("run_python", {"code": code})] for code in ("print('before'); 1/0", "print('after')")]
    run = lab.run_sync("compute", model=ScriptedModel([*codes, "done"]), tools=["kernel"], workspace=tmp_path)
    view = run.report.view()
    rows = [row for row in view.rows.values() if isinstance(row, CallRow)]
    failed, _ = answered = [event for event in run.events() if isinstance(event, ToolAnswered)]

    assert [row.state for row in rows] == ["error", "ok"]
    assert "✗ run_python" in repr(run.report) and "✓ run_python" in repr(run.report)
    assert run._repr_html_().count("✗") == 1
    assert [event.error and event.error["kind"] for event in answered] == ["raised", None]
    assert failed.error is not None and failed.error["message"] == "ZeroDivisionError: division by zero"
    assert failed.text.startswith("before\n") and failed.text.endswith("ZeroDivisionError: division by zero")
    assert [call.ok for call in made_calls(run.records())] == [False, True]
    assert (run.status, sum(isinstance(event, ModelAnswered) for event in run.events())) == (
        RunStatus.COMPLETE,
        3,
    )


def test_code_that_took_too_long_says_so(tmp_path: Path) -> None:
    """Why it ended is told, not the exception that broke it off."""
    kernel = OwnKernel(tmp_path, None)
    try:
        ran = kernel.execute("while True: pass", 0.5)
    finally:
        kernel.close()

    assert ran.reason == "the code took more than 0.5 s and was stopped"


def test_a_step_whose_code_raised_has_failed(tmp_path: Path, lab: Lab) -> None:
    """Nothing that waits for it goes on as if its code had worked."""
    plan = Plan(
        steps=(
            Step(id="sum", tool="run_python", args={"code": "sum([1, 'a'])"}, produces=("total",)),
            Step(id="tell", goal="tell the total", consumes=("total",)),
        )
    )

    run = lab.run_sync("add up", model=ScriptedModel(["never"]), plan=plan, workspace=tmp_path)

    assert run.status is RunStatus.FAILED
    assert "TypeError" in run.reason
