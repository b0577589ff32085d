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
from harness import ORDER, OVER, Harness, harness_at, read

from kestrel_lab.core.events.union import FilesTainted, ToolAnswered
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.security.kernel_taint import KernelTaint
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A harness of its own."""
    with harness_at(tmp_path) as made:
        yield made


def python(code: str) -> tuple[str, dict[str, str]]:
    """The call that runs code."""
    return ("run_python", {"code": code})


FETCH: Callable[[Harness], Any] = lambda harness: ("web_fetch", {"url": harness.web.url("/page")})  # noqa: E731


def two_steps(harness: Harness, first: list[Any], second: list[Any], **how: Any) -> Run:
    """A run with a step that makes the calls of `first`, and one after it, which is told nothing of it, with
    those of `second`.
    """

    def play(request: Any) -> Any:
        said = sum(message.role == "assistant" for message in request.messages)
        calls = first if any(message.text.endswith("go first") for message in request.messages) else second
        return [calls[said]] if said < len(calls) else "done"

    steps = (Step(id="a", goal="go first"), Step(id="b", goal="go second", depends_on=("a",)))
    return harness.run(model=ScriptedModel(play), plan=Plan(steps=steps), tools=("kernel",), **how)


def overwrote(harness: Harness) -> bool:
    """Whether the user's notes are gone."""
    return (harness.place / "notes.txt").read_text() == "pwned"


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
def test_a_variable_taints_the_step_that_looks_at_it(harness: Harness, reads: str, looks: str) -> None:
    """A step puts what it read into a variable; a step that reads the variable may not act unasked."""
    harness.write()
    allowed = {"rules": [{"tool": "run_python", "verdict": "allow"}], "goal": "run g = 6 * 7 or g = 1 / 0 at"}
    first = [one(harness) if callable(one) else one for one in READS[reads]]
    run = two_steps(harness, first, [*LOOKS[looks], OVER], **allowed)
    answers = [event.error for event in run.events() if isinstance(event, ToolAnswered)]
    assert [error and error["kind"] for error in answers[: len(first)]] == [None] * (len(first) - 1) + [
        "raised" if reads == "failed" else None
    ]
    assert not overwrote(harness)
    told = [
        event.read
        for event in run.events()
        if isinstance(event, FilesTainted) and event.step == "b" and event.ended
    ]
    assert any("the kernel, in which run" in one for one in told)


def test_what_is_written_from_a_variable_is_tainted_for_later_runs(harness: Harness) -> None:
    """The file that a clean step wrote with a tainted variable is known to a later run."""
    harness.write()
    two_steps(harness, READS["file"], [python("open('new.md', 'w').write(g.upper())")])
    assert (harness.place / "new.md").exists()
    assert not harness.obeys(read("new.md"))


def test_a_kernel_that_read_nobody_asks_nothing(harness: Harness) -> None:
    """Variables that code computed before anything foreign was read, and in another run, hold nobody up."""
    harness.write()
    two_steps(harness, [python("g = 6 * 7")], [python("print(g)"), OVER])
    assert overwrote(harness)
    two_steps(harness, READS["file"], [])
    assert harness.obeys(python("print(6 * 7)"), tools=("kernel",))  # its kernel is another


def test_what_code_reads_after_a_kernel_is_tainted_does_not_ask_by_itself(harness: Harness) -> None:
    """Looking at a tainted kernel is free, and so is everything that would be free after reading the file
    itself.
    """
    harness.write()
    run = two_steps(
        harness, READS["file"], [python("print(g)"), ("list_directory", {"path": "."}), read("notes.txt")]
    )
    assert [event.error for event in run.events() if isinstance(event, ToolAnswered)] == [None] * 4


def test_runs_of_one_notebook_share_its_kernel(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run of the notebook, in another session too, that reads the variable of an earlier one may not
    act unasked.
    """
    shell: Any = IPython.core.interactiveshell.InteractiveShell()
    shell.kernel = SimpleNamespace(get_parent=lambda _: {})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    look = ("inspect_variable", {"name": "g"})
    shell.user_ns["g"] = 1
    assert harness.obeys(look, tools=("kernel",))
    harness.run(
        FETCH(harness),
        python(f"g = {ORDER!r}"),
        tools=("kernel",),
        rules=[{"tool": "run_python", "verdict": "allow"}],
        containment="off",
    )
    assert shell.user_ns["g"] == ORDER
    assert not harness.obeys(look, tools=("kernel",))
    harness.session()
    assert not harness.obeys(look, tools=("kernel",))


def test_the_attack_catches_a_kernel_that_forgets(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate bug: nobody marks kernels. Then the second step acts."""
    harness.write()
    monkeypatch.setattr(KernelTaint, "mark", lambda *_: None)
    two_steps(harness, READS["file"], [*LOOKS["print"], OVER])
    assert overwrote(harness)
