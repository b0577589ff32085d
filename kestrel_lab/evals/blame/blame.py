"""Blame: find the turn that made a run fail by re-running forks of it, and try lines that would repair it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Model, OnDelta, Reporter
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.blame.receipt import Receipt, Repair, keep_receipt, read_receipt, with_repairs
from kestrel_lab.evals.blame.rerun import GivenCheck, Rerun, Reruns, Turn, open_reruns
from kestrel_lab.evals.suite import Suite
from kestrel_lab.models.wrapper import ModelWrapper
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_count

_MOST_BROKEN: Final = 3
"""Re-runs that break one after the other, after which no more are made."""
_PROPOSALS: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What re-runs may cost, in whole runs and in US dollars; raises `UsageError` for nothing."""

    runs: float = 40.0
    cost: float | None = None

    def __post_init__(self) -> None:
        if self.runs <= 0 or (self.cost is not None and self.cost <= 0):
            raise UsageError(f"a budget is positive, not {self.runs:g} whole runs and {self.cost} dollars")

    def ended(self, reruns: Reruns) -> str:
        """Return why no more may be made; empty while more may."""
        if reruns.whole_runs >= self.runs:
            return f"{self.runs:g} whole runs were used up"
        if self.cost is None:
            return ""
        if any(one.cost_usd is None for one in reruns.made):
            return f"the price of {reruns.model} is not known, so that no budget of money can be kept"
        return f"{self.cost:g} dollars were used up" if reruns.cost_usd >= self.cost else ""


async def blame_run(
    lab: Services,
    run_id: str,
    *,
    suite: str | Path | Suite | None = None,
    checks: Sequence[GivenCheck] = (),
    model: str | Model | None = None,
    approve: str | None = None,
    budget: Budget,
    each: int = 1,
    changes: Sequence[str] = (),
    repair: bool = False,
    tries: int = 10,
    reporter: Reporter | None = None,
) -> Receipt:
    """Find the decisive turn of a failed run; see `Evaluations.blame`."""
    reruns = await open_reruns(lab, run_id, suite=suite, checks=checks, model=model, approve=approve)
    if len(reruns.turns) < 2:
        raise UsageError(
            f"a model answered {format_count(len(reruns.turns), 'turn')} of run {run_id}: with less than two "
            "there is nothing to choose from"
        )
    earlier = read_receipt(lab.home, run_id)
    receipt = _receipt(reruns)
    name = model if isinstance(model, str) or model is None else model.name
    if (
        earlier is not None
        and (earlier.checks, earlier.turns) == (receipt.checks, receipt.turns)
        # Another model has other rates.
        and name in (None, earlier.model.partition(" (")[0])
    ):
        reruns.made += earlier.reruns
        reruns.model = earlier.model
    receipt = await _search(lab, reruns, budget, each, reporter)
    if changes or repair:
        lines = [*changes] or await propose_changes(lab, reruns, receipt, model)
        receipt = with_repairs(receipt, await _try_changes(reruns, receipt.likeliest, lines, tries, reporter))
        receipt = replace(receipt, whole_runs=reruns.whole_runs)
        keep_receipt(lab.home, receipt)
    return receipt


async def _search(
    lab: Services, reruns: Reruns, budget: Budget, each: int, reporter: Reporter | None
) -> Receipt:
    """Make forks until the decisive turn is known or the budget ends; what was found is kept after each."""
    receipt = _receipt(reruns)
    while not receipt.search.over():
        if ended := budget.ended(reruns) or _broken(reruns.made):
            receipt = _receipt(reruns, ended)
            break
        turn = reruns.turns[receipt.search.next() - 1]
        if reporter is not None:
            note = f"turn {turn.number} anew; {one_line(receipt.headline, 100)}"
            reporter(int(reruns.whole_runs), int(budget.runs), note)
        try:
            await _together(reruns, turn, each)
        finally:
            receipt = _receipt(reruns)
            keep_receipt(lab.home, receipt)
    keep_receipt(lab.home, receipt)
    return receipt


async def _together(reruns: Reruns, turn: Turn, each: int) -> None:
    """Make `each` forks at once, and raise the first error when all have ended."""
    ends = await asyncio.gather(*(reruns.once(turn) for _ in range(each)), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


def _broken(made: Sequence[Rerun]) -> str:
    last = made[-_MOST_BROKEN:]
    if len(last) < _MOST_BROKEN or any(one.outcome != "error" for one in last):
        return ""
    return f"{_MOST_BROKEN} re-runs one after the other broke ({one_line(last[-1].reason, 160)})"


def _receipt(reruns: Reruns, ended: str = "") -> Receipt:
    unknown = any(one.cost_usd is None for one in reruns.made)
    return Receipt(
        run=reruns.run.id,
        goal=reruns.run.goal,
        checks=tuple(check.label for check in reruns.scenario.checks),
        model=reruns.model,
        turns=tuple(reruns.turns),
        reruns=tuple(reruns.made),
        whole_runs=reruns.whole_runs,
        cost_usd=None if unknown else reruns.cost_usd,
        ended=ended,
        replayed=dict(reruns.replayed),
        refused=dict(reruns.refused),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _WithLine(ModelWrapper):
    """A model that is given one more line with every request."""

    model: Model
    line: str

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Ask the model with the line behind the conversation."""
        more = Message(role="user", text=self.line)
        return await self.model(replace(request, messages=(*request.messages, more)), on_delta)


async def _try_changes(
    reruns: Reruns, turn: Turn, lines: Sequence[str], tries: int, reporter: Reporter | None
) -> list[Repair]:
    """Make the turn anew `tries` times with each line before the model."""
    repairs = []
    for place, line in enumerate(lines):
        if reporter is not None:
            reporter(place, len(lines), f"with “{one_line(line, 100)}”")
        made = [
            await reruns.once(turn, wrap=lambda model, line=line: _WithLine(model=model, line=line))  # type: ignore[misc]
            for _ in range(tries)
        ]
        told = [one for one in made if one.outcome != "error"]
        repairs.append(
            Repair(change=line, passed=sum(one.outcome == "pass" for one in told), tried=len(told))
        )
    return repairs


async def propose_changes(
    lab: Services, reruns: Reruns, receipt: Receipt, model: str | Model | None
) -> list[str]:
    """Ask a model for lines that would have kept it from the decisive turn."""
    asked = lab.registry.resolve_model(model or reruns.own_model)
    failed = next((one.reason for one in receipt.reruns if one.outcome == "fail"), "the checks failed")
    turns = "\n".join(f"{turn.number}. {turn.did}" for turn in receipt.turns)
    text = (
        f"An agent worked on this goal and failed.\n\nGoal: {reruns.run.goal}\n\nIts turns:\n{turns}\n\n"
        f"Turn {receipt.likeliest.number} was the decisive mistake. Failure: {one_line(failed, 400)}\n\n"
        f"Write {_PROPOSALS} instructions, one a line and nothing else, each of which would have kept "
        "the agent from that mistake without giving away the answer."
    )
    answer = await asked(ModelRequest(messages=(Message(role="user", text=text),)), lambda _: None)
    lines = [line.strip(" -*•0123456789.") for line in answer.text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{asked.name} proposed no change: give one with --change TEXT")
    return lines[:_PROPOSALS]
