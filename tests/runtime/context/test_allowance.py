"""Parallel steps do not pass together a limit that each alone would keep: what a call may use is reserved
before it is made.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import LimitError
from kestrel_lab.core.events.union import ModelCalled
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.protocols import ModelKind, OnDelta
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.context.budget import Allowance
from kestrel_lab.runtime.run import Run

WIDE = 6
TOGETHER = Plan(steps=tuple(Step(id=f"s{number}", goal=f"s{number}") for number in range(WIDE)))
AFTER_ONE = Plan(
    steps=(
        Step(id="first", goal="first"),
        *(Step(id=f"s{n}", goal=f"s{n}", depends_on=("first",)) for n in range(WIDE)),
    )
)


class Priced:
    """A model that is slow, so that whoever may ask it asks together; each call costs the next of `costs`,
    the last again and again.
    """

    def __init__(self, costs: Sequence[float], *, kind: ModelKind = "scripted", tokens: int = 0) -> None:
        self.name, self.kind = "priced", kind
        self._costs, self._tokens = costs, tokens
        self.asked = self.now = self.most = 0

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer once everybody else had the time to ask."""
        cost = self._costs[min(self.asked, len(self._costs) - 1)]
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(300):
            await asyncio.sleep(0)
        self.now -= 1
        return ModelAnswer(
            text="done", model=self.name, usage=Usage(cost_usd=cost, tokens_in=self._tokens, model_calls=1)
        )


def carried_out(folder: Path, model: Priced, plan: Plan, limits: Limits, session: Lab | None = None) -> Run:
    """A run of the plan with that model."""
    opened = session or Lab(folder / "home", env={})
    run = asyncio.run(opened.run("spend", plan=plan, model=model, limits=limits, workspace=folder, tools=[]))  # type: ignore[arg-type]
    if session is None:
        opened.close()
    return run


def unlimited(self: Allowance, model: Priced) -> bool:
    """The mutant: there is always room."""
    return True


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_turns_are_never_more_than_the_limit(turns: int, tmp_path: Path) -> None:
    """Of six steps that ask together as many are let through as there are turns left."""
    session = Lab(tmp_path / "home", env={})
    run = asyncio.run(
        session.run(
            "spend",
            plan=TOGETHER,
            model=Priced([0.0]),
            limits=Limits(cycles=turns),
            workspace=tmp_path,
            tools=[],
        )
    )
    asked = sum(isinstance(event, ModelCalled) for event in run.events())
    session.close()
    assert (run.status, run.outcome, asked) == (RunStatus.FAILED, "limit", turns)


def test_money_passes_the_limit_by_one_call_at_most(tmp_path: Path) -> None:
    """When a call's cost is known, those that would pass the limit together are made one after the other; the
    first that finds none left ends the run.
    """
    model = Priced([0.03])
    run = carried_out(tmp_path, model, AFTER_ONE, Limits(cost_usd=0.1))
    assert (run.outcome, model.most, model.asked) == ("limit", 1, 4)
    assert 0.1 <= run.usage.cost_usd < 0.13


def test_tokens_pass_the_limit_by_one_call_at_most(tmp_path: Path) -> None:
    """The same of tokens."""
    model = Priced([0.0], tokens=300)
    run = carried_out(tmp_path, model, AFTER_ONE, Limits(tokens=1_000))
    assert (run.outcome, model.most, run.usage.tokens) == ("limit", 1, 1_200)


def test_with_room_for_all_they_are_made_together(tmp_path: Path) -> None:
    """A limit that is far away slows nobody down, and neither does one of money where calls cost nothing."""
    model = Priced([0.03])
    assert carried_out(tmp_path, model, AFTER_ONE, Limits(cost_usd=1.0)).status is RunStatus.COMPLETE
    assert model.most == WIDE
    free = Priced([0.0], kind="real")
    assert carried_out(tmp_path, free, AFTER_ONE, Limits(cost_usd=0.001)).status is RunStatus.COMPLETE
    assert free.most == WIDE


def test_a_call_may_cost_twice_as_much_as_the_largest(tmp_path: Path) -> None:
    """Calls that become dearer, each up to twice as dear, do not pass the limit by more than one either."""
    model = Priced([0.01, 0.02, 0.02, 0.04, 0.04, 0.08])
    run = carried_out(tmp_path, model, AFTER_ONE, Limits(cost_usd=0.1))
    assert 0.1 <= run.usage.cost_usd < 0.1 + 0.08


def test_of_a_real_model_the_first_call_is_made_alone(tmp_path: Path) -> None:
    """Nobody knows what it costs; afterwards, in later runs of the session too, they are made together as far
    as there is room.
    """
    session = Lab(tmp_path / "home", env={})
    dear = Priced([0.6], kind="real")
    run = carried_out(tmp_path, dear, TOGETHER, Limits(cost_usd=1.0), session)
    assert (run.outcome, dear.most, dear.asked) == ("limit", 1, 2)
    cheap = Priced([0.01], kind="real")
    cheap.name = "cheap"
    assert carried_out(tmp_path, cheap, TOGETHER, Limits(cost_usd=1.0), session).status is RunStatus.COMPLETE
    assert cheap.most == WIDE - 1
    assert carried_out(tmp_path, cheap, TOGETHER, Limits(cost_usd=1.0), session).status is RunStatus.COMPLETE
    assert cheap.most == WIDE
    session.close()


def test_a_call_that_fails_makes_room(tmp_path: Path) -> None:
    """Whoever waits goes on when a call ends badly, and nobody waits for ever."""

    class Broken(Priced):
        async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
            await super().__call__(request, on_delta)
            raise RuntimeError("the model broke")

    model = Broken([0.0], kind="real")
    run = carried_out(tmp_path, model, TOGETHER, Limits(cost_usd=1.0))
    assert (run.status, model.asked, model.most) == (RunStatus.FAILED, WIDE, 1)


def test_without_reservation_the_limits_are_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: with room for everybody six calls spend at once."""
    monkeypatch.setattr(Allowance, "_has_room", unlimited)
    model = Priced([0.03])
    assert carried_out(tmp_path, model, AFTER_ONE, Limits(cost_usd=0.1)).usage.cost_usd > 0.13
    assert model.most == WIDE


def room(cycles: int) -> list[bool]:
    """Whether each of three steps that begin a turn is let through before any of the turns is recorded, then
    a fourth after one was.
    """
    state = RunState()
    allowance = Allowance(Limits(cycles=cycles), state, {})

    def check() -> None:
        if (
            sum(conversation.cycles for conversation in state.conversations.values()) + allowance.unrecorded
            >= cycles
        ):
            raise LimitError("cycles", "reached")

    async def scene() -> list[bool]:
        let_through = []
        for step in ("a", "b", "c", "d"):
            if step == "d":
                state.conversation("a").cycles = 1
            try:
                await allowance.reserve(f"{step}.m1", step, 1, Priced([0.0]), check)
            except LimitError:
                let_through.append(False)
            else:
                let_through.append(True)
        return let_through

    return asyncio.run(scene())


def test_a_turn_counts_from_its_reservation_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """While requests are put together their turns are taken already; the mutant, which counts what is
    recorded, takes too many.
    """
    assert (room(2), room(4)) == ([True, True, False, False], [True] * 4)
    monkeypatch.setattr(Allowance, "unrecorded", 0)
    assert room(2) == [True] * 4
