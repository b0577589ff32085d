"""The scheduler of steps, against a reference that is too simple to be wrong."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import PATIENCE_S, becomes

from kestrel_lab.core.errors import ApprovalRequired, LimitError, RunError, StoreError, ToolError, UsageError
from kestrel_lab.core.events.union import Event, StepFinished
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.runtime.execution.scheduler import StepScheduler


def step(name: str, *needs: str, alone: bool = False) -> Step:
    """A step."""
    return Step(id=name, goal=f"do {name}", depends_on=needs, parallelizable=not alone)


@dataclass
class Work:
    """Does steps, and keeps what happened in which order."""

    ticks: dict[str, int] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    began: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    under_way: list[Step] = field(default_factory=list)
    most: int = 0
    most_alone: int = 0
    done_at_start: dict[str, set[str]] = field(default_factory=dict)
    told: dict[str, StepFinished] = field(default_factory=dict)

    async def __call__(self, item: Step) -> None:
        """Take as many turns of the event loop as the step lasts, then end or fail."""
        self.began.append(item.id)
        self.done_at_start[item.id] = {name for name, event in self.told.items() if event.ok}
        self.under_way.append(item)
        self.most = max(self.most, len(self.under_way))
        self.most_alone = max(self.most_alone, sum(other.exclusive for other in self.under_way))
        try:
            for _ in range(self.ticks.get(item.id, 1)):
                await asyncio.sleep(0)
            if item.id in self.errors:
                raise self.errors[item.id]
            self.ended.append(item.id)
        finally:
            self.under_way.remove(item)

    def hear(self, event: Event) -> None:
        """Keep what is told of a step; twice would be wrong."""
        assert isinstance(event, StepFinished)
        assert event.step not in self.told
        self.told[event.step] = event


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A random acyclic plan, its steps written in any order, some of them exclusive."""
    size = draw(st.integers(1, 9))
    steps = [
        step(
            f"s{n}",
            *(f"s{m}" for m in range(n) if draw(st.integers(0, 3)) == 0),
            alone=draw(st.integers(0, 3)) == 0,
        )
        for n in range(size)
    ]
    return Plan(steps=tuple(draw(st.permutations(steps))))


def after(plan: Plan, roots: set[str]) -> set[str]:
    """The reference: all that depends on `roots`, found by repeating until nothing is added."""
    found: set[str] = set()
    while more := {s.id for s in plan.steps if s.id not in found and set(s.depends_on) & (roots | found)}:
        found |= more
    return found


@settings(max_examples=300, deadline=None)
@given(plan=plans(), seed=st.data())
def test_a_plan_is_carried_out_by_its_rules(plan: Plan, seed: st.DataObject) -> None:
    """Over random plans, durations, failures, limits and steps done before.

    Each step whose needs succeed runs exactly once and only after them; at most `limit` run at once,
    exclusive ones never together and always in the plan's order; exactly the dependants of failed steps are
    skipped; the error names both.
    """
    names = [s.id for s in plan.steps]
    ticks = {name: seed.draw(st.integers(0, 4)) for name in names}
    failing = {name for name in names if seed.draw(st.integers(0, 5)) == 0}
    limit = seed.draw(st.integers(1, 5))
    before = {s.id for s in plan.order()[: seed.draw(st.integers(0, len(names) // 2))]}
    work = Work(ticks=ticks, errors={name: ToolError(f"no {name}") for name in failing})
    scheduler = StepScheduler(plan, work, emit=work.hear, finished=dict.fromkeys(before, True))

    caught = ""
    try:
        asyncio.run(scheduler.run_parallel(limit))
    except RunError as error:
        caught = str(error)

    failed = {name for name in failing - before if name not in after(plan, failing - before)}
    skipped = after(plan, failed) - before
    runs = set(names) - before - skipped
    assert (sorted(work.began), set(work.ended)) == (sorted(runs), runs - failed)
    for s in plan.steps:
        if s.id in runs:
            assert set(s.depends_on) <= work.done_at_start[s.id] | before
    assert (work.most <= limit, work.most_alone <= 1) == (True, True)
    exclusive = [s.id for s in plan.order() if s.exclusive and s.id in runs]
    assert [name for name in work.began if name in exclusive] == exclusive
    assert {name for name, event in work.told.items() if event.ok} == runs - failed
    assert {name for name, event in work.told.items() if event.reason.startswith("skipped: step ")} == skipped
    assert all(name in caught for name in failed | skipped)
    assert bool(caught) == bool(failed)


@given(plan=plans())
def test_ready_steps_empty_the_plan(plan: Plan) -> None:
    """Finishing whatever is ready, round by round, finishes every step once."""
    finished: list[str] = []
    while ready := StepScheduler.get_ready_steps(plan, finished):
        finished += [s.id for s in ready]
    assert sorted(finished) == sorted(s.id for s in plan.steps)


def test_a_failure_skips_dependants_and_not_siblings() -> None:
    """What failed, what was skipped and why, as told and as raised."""
    plan = Plan(steps=(step("a"), step("b", "a"), step("c", "b"), step("d"), step("e", "d")))
    work = Work(errors={"a": ToolError("disk gone")})
    with pytest.raises(RunError) as caught:
        asyncio.run(StepScheduler(plan, work, emit=work.hear).run_parallel(2))
    assert str(caught.value) == "step 'a' failed: disk gone; skipped: b, c"
    assert {name: (event.ok, event.reason) for name, event in work.told.items()} == {
        "a": (False, "disk gone"),
        "b": (False, "skipped: step 'a' failed"),
        "c": (False, "skipped: step 'a' failed"),
        "d": (True, ""),
        "e": (True, ""),
    }


def test_no_layers() -> None:
    """A step begins when its own needs are done, while a slow step beside them goes on."""
    plan = Plan(steps=(step("slow"), step("a"), step("b", "a"), step("c", "b")))
    work = Work(ticks={"slow": 50})
    asyncio.run(StepScheduler(plan, work, emit=work.hear).run_parallel(4))
    assert work.ended == ["a", "b", "c", "slow"]


@pytest.mark.parametrize(
    "stop",
    [
        ApprovalRequired("r", "launch", {}),
        LimitError("cycles", "enough"),
        StoreError("disk full"),
        RuntimeError("a defect"),
    ],
)
def test_what_is_no_failure_of_a_step_stops_the_plan(stop: Exception) -> None:
    """Nothing more is started, steps under way are finished and told of, then it is raised as it is."""
    plan = Plan(steps=(step("stops"), step("beside"), step("later", "beside"), step("never", "stops")))
    work = Work(ticks={"beside": 20}, errors={"stops": stop})
    with pytest.raises(type(stop)) as caught:
        asyncio.run(StepScheduler(plan, work, emit=work.hear).run_parallel(4))
    assert caught.value is stop
    assert (work.began, list(work.told)) == (["stops", "beside"], ["beside"])


def test_an_error_comes_before_a_wish_for_approval() -> None:
    """Of two reasons to stop the one that is an error is raised."""
    plan = Plan(steps=(step("asks"), step("breaks")))
    work = Work(errors={"asks": ApprovalRequired("r", "launch", {}), "breaks": StoreError("disk full")})
    with pytest.raises(StoreError, match="disk full"):
        asyncio.run(StepScheduler(plan, work).run_parallel(2))


def test_cancellation_reaches_every_step() -> None:
    """Cancelled, every step under way is cancelled and awaited before the cancellation goes on; nothing else
    begins.
    """
    plan = Plan(steps=(*(step(f"s{n}") for n in range(5)), step("after", "s0")))
    begun: list[str] = []
    seen: list[str] = []

    async def forever(item: Step) -> None:
        begun.append(item.id)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            seen.append(item.id)

    async def scene() -> None:
        task = asyncio.create_task(StepScheduler(plan, forever).run_parallel(3))
        await becomes(lambda: len(begun) == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert sorted(seen) == ["s0", "s1", "s2"]


def test_a_step_that_is_cancelled_from_within_cancels_the_plan() -> None:
    """A cancellation that comes out of a step stops the others too."""
    work = Work(ticks={"b": 1000}, errors={"a": asyncio.CancelledError()})
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(StepScheduler(Plan(steps=(step("a"), step("b"))), work, emit=work.hear).run_parallel(2))
    assert (work.ended, work.told) == ([], {})


def test_at_least_one_step_at_once() -> None:
    """A limit of none is refused."""
    with pytest.raises(UsageError, match="not 0"):
        asyncio.run(StepScheduler(Plan.single("go"), Work()).run_parallel(0))


def test_the_critical_path_decides() -> None:
    """Twelve steps of equal length with a longest chain of three take as long as three, not as twelve."""
    steps = [step(f"s{n}", *([f"s{n - 4}"] if n >= 4 else [])) for n in range(12)]
    under_way: list[asyncio.Future[None]] = []

    async def work(_: Step) -> None:
        under_way.append(asyncio.get_running_loop().create_future())
        await under_way[-1]

    async def lengths() -> list[int]:
        """How many are under way when all that can begin has begun; then they end together."""
        seen = []
        task = asyncio.create_task(StepScheduler(Plan(steps=tuple(steps)), work).run_parallel(12))
        while not task.done():
            for _ in range(100):
                await asyncio.sleep(0)
            seen.append(len(under_way))
            while under_way:
                under_way.pop().set_result(None)
        return seen

    assert asyncio.run(asyncio.wait_for(lengths(), PATIENCE_S)) == [
        4,
        4,
        4,
        0,
    ]  # the last time nothing is left


def test_a_failure_that_was_dealt_with_is_left() -> None:
    """Resumed, a step whose failure another one dealt with is not tried again, nor is what was skipped
    between; others are.
    """
    steps = (
        Step(id="bad", goal="x"),
        Step(id="between", goal="x", depends_on=("bad",)),
        Step(id="repair", goal="x", depends_on=("between",), after_failure=True),
        Step(id="end", goal="x", depends_on=("between", "repair")),
        Step(id="mad", goal="x"),
    )
    ran: list[str] = []

    async def run_step(step: Step) -> None:
        ran.append(step.id)

    finished = {"bad": False, "between": False, "repair": True, "mad": False}
    scheduler = StepScheduler(Plan(steps=steps), run_step, finished=finished, skipped=("between",))
    asyncio.run(scheduler.run_parallel(4))
    assert ran == ["end", "mad"]
    ran.clear()
    asyncio.run(StepScheduler(Plan(steps=steps), run_step, finished={"bad": False}).run_parallel(1))
    assert ran == ["bad", "between", "repair", "end", "mad"]
