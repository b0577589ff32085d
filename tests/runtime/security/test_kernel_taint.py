"""Words of others that go through the variables of a kernel: between steps, between runs in one notebook, and
into files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import pytest
from desk import ORDER, OVER, Desk, desk_at, read

from kestrel_lab.core.events.union import FilesTainted, ToolAnswered
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.security.kernel_taint import KernelTaint
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk of its own."""
    with desk_at(tmp_path) as made:
        yield made


def python(code: str) -> tuple[str, dict[str, str]]:
    """The call that runs code."""
    return ("run_python", {"code": code})


FETCH: Callable[[Desk], Any] = lambda desk: ("web_fetch", {"url": desk.web.url("/page")})  # noqa: E731


def two_steps(desk: Desk, first: list[Any], second: list[Any], **how: Any) -> Run:
    """A run with a step that makes the calls of `first`, and one after it, which is told nothing of it, with
    those of `second`.
    """

    def play(request: Any) -> Any:
        said = sum(message.role == "assistant" for message in request.messages)
        calls = first if any(message.text.endswith("go first") for message in request.messages) else second
        return [calls[said]] if said < len(calls) else "done"

    steps = (Step(id="a", goal="go first"), Step(id="b", goal="go second", depends_on=("a",)))
    return desk.run(model=ScriptedModel(play), plan=Plan(steps=steps), tools=("kernel",), **how)


def overwrote(desk: Desk) -> bool:
    """Whether the user's notes are gone."""
    return (desk.place / "notes.txt").read_text() == "pwned"


READS = {
    "file": [python("g = open('summary.md').read()")],
    "author": [FETCH, python("g = 6 * 7")],
    "failed": [FETCH, python("g = 1 / 0")],
}
LOOKS = {
    "print": [python("print(g)")],
    "value": [python("g")],
    "inspect": [("inspect_variable", {"name": "g"})],
    "list": [("list_variables", {})],
    "file": [python("open('new.md', 'w').write(g)"), read("new.md")],
}


@pytest.mark.parametrize(
    ("reads", "looks"), [*((one, "print") for one in READS), *(("file", one) for one in LOOKS)]
)
def test_a_variable_taints_the_step_that_looks_at_it(desk: Desk, reads: str, looks: str) -> None:
    """A step puts what it read into a variable; a step that reads the variable may not act unasked."""
    desk.write()
    allowed = {"rules": [{"tool": "run_python", "verdict": "allow"}], "goal": "run g = 6 * 7 or g = 1 / 0 at"}
    first = [one(desk) if callable(one) else one for one in READS[reads]]
    run = two_steps(desk, first, [*LOOKS[looks], OVER], **allowed)
    answers = [event.error for event in run.events() if isinstance(event, ToolAnswered)]
    assert [error and error["kind"] for error in answers[: len(first)]] == [None] * (len(first) - 1) + [
        "raised" if reads == "failed" else None
    ]
    assert not overwrote(desk)
    told = [
        event.read
        for event in run.events()
        if isinstance(event, FilesTainted) and event.step == "b" and event.ended
    ]
    assert any("the kernel, in which run" in one for one in told)


def test_what_is_written_from_a_variable_is_tainted_for_later_runs(desk: Desk) -> None:
    """The file that a clean step wrote with a tainted variable is known to a later run."""
    desk.write()
    two_steps(desk, READS["file"], [python("open('new.md', 'w').write(g.upper())")])
    assert (desk.place / "new.md").exists()
    assert not desk.obeys(read("new.md"))


def test_a_kernel_that_read_nobody_asks_nothing(desk: Desk) -> None:
    """Variables that code computed before anything foreign was read, and in another run, hold nobody up."""
    desk.write()
    two_steps(desk, [python("g = 6 * 7")], [python("print(g)"), OVER])
    assert overwrote(desk)
    two_steps(desk, READS["file"], [])
    assert desk.obeys(python("print(6 * 7)"), tools=("kernel",))  # its kernel is another


def test_what_code_reads_after_a_kernel_is_tainted_does_not_ask_by_itself(desk: Desk) -> None:
    """Looking at a tainted kernel is free, and so is everything that would be free after reading the file
    itself.
    """
    desk.write()
    run = two_steps(
        desk, READS["file"], [python("print(g)"), ("list_directory", {"path": "."}), read("notes.txt")]
    )
    assert [event.error for event in run.events() if isinstance(event, ToolAnswered)] == [None] * 4


def test_runs_of_one_notebook_share_its_kernel(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run of the notebook, in another session too, that reads the variable of an earlier one may not
    act unasked.
    """
    shell: Any = IPython.core.interactiveshell.InteractiveShell()
    shell.kernel = SimpleNamespace(get_parent=lambda _: {})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    look = ("inspect_variable", {"name": "g"})
    shell.user_ns["g"] = 1
    assert desk.obeys(look, tools=("kernel",))
    desk.run(
        FETCH(desk),
        python(f"g = {ORDER!r}"),
        tools=("kernel",),
        rules=[{"tool": "run_python", "verdict": "allow"}],
        containment="off",
    )
    assert shell.user_ns["g"] == ORDER
    assert not desk.obeys(look, tools=("kernel",))
    desk.session()
    assert not desk.obeys(look, tools=("kernel",))


def test_the_attack_catches_a_kernel_that_forgets(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate bug: nobody marks kernels. Then the second step acts."""
    desk.write()
    monkeypatch.setattr(KernelTaint, "mark", lambda *_: None)
    two_steps(desk, READS["file"], [*LOOKS["print"], OVER])
    assert overwrote(desk)
