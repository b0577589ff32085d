"""Blame: find the turn that made a run fail by re-running forks of it, and try lines that would repair it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.labels import BLAME
from kestrel_lab.core.events.union import ModelCalled, RunScanned, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Model, OnDelta
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.blame.receipt import Receipt, keep_receipt, read_receipt
from kestrel_lab.evals.blame.rerun import Rerun, Reruns, Turn, open_reruns
from kestrel_lab.evals.options import RerunOptions
from kestrel_lab.evals.scanners.scanner import Finding
from kestrel_lab.models.wrapper import ModelWrapper
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_count

_MOST_BROKEN: Final = 3
"""Re-runs that break one after the other, after which no more are made."""
_PROPOSALS: Final = 3


async def blame_run(
    lab: Services,
    run_id: str,
    how: RerunOptions,
    *,
    each: int = 1,
    changes: Sequence[str] = (),
    repair: bool = False,
    tries: int = 10,
) -> Receipt:
    """Find the decisive turn of a failed run; see `Evaluations.blame`."""
    reruns = await open_reruns(lab, run_id, how)
    if len(reruns.turns) < 2:
        raise UsageError(
            f"a model answered {format_count(len(reruns.turns), 'turn')} of run {run_id}: with less than two "
            "there is nothing to choose from"
        )
    if earlier := earlier_receipt(reruns, how.get("model")):
        reruns.made += earlier.reruns
        reruns.model = earlier.model
    receipt = await _search(reruns, each)
    await asyncio.to_thread(_mark, reruns, receipt)
    if changes or repair:
        lines = [*changes] or await propose_changes(lab, reruns, receipt, how.get("model"))
        receipt = await _try_changes(reruns, receipt, lines, tries)
    return receipt


def earlier_receipt(reruns: Reruns, model: str | Model | None) -> Receipt | None:
    """Return what is known of the run by the same checks and `model`, the receipt's own by default."""
    earlier = read_receipt(reruns.lab.home, reruns.run.id)
    now = _receipt(reruns)
    name = model if isinstance(model, str) or model is None else model.name
    if earlier is None or (earlier.checks, earlier.turns) != (now.checks, now.turns):
        return None
    # Another model has other rates.
    return earlier if name in (None, earlier.model.partition(" (")[0]) else None


def _mark(reruns: Reruns, receipt: Receipt) -> None:
    """Record what is blamed as findings of the run, by which its turn is shown marked wherever the run is."""
    findings: list[dict[str, Json]] = []
    ends = [turn.seq for turn in reruns.turns[1:]] + [len(reruns.records) + 1]
    for step in receipt.steps:
        records = reruns.records[reruns.turns[step - 1].seq - 1 : ends[step - 1] - 1]
        own = [record for record in records if isinstance(record.event, ModelCalled | ToolCalled)]
        found = Finding(
            text=f"{receipt.headline}. Turn {step}: {reruns.turns[step - 1].did}",
            events=tuple(record.eid for record in own),
            value=receipt.posterior[step],
        )
        calls: list[Json] = [record.event.call for record in own]  # type: ignore[attr-defined]  # both have one
        findings.append({**found.as_json(BLAME), "calls": calls})
    said = RunScanned(scanners={BLAME: "1"}, upto=reruns.records[-1].seq, findings=findings)
    reruns.lab.store.decide(reruns.run.id, said)


async def _search(reruns: Reruns, each: int) -> Receipt:
    """Make forks until the decisive turn is known or the budget ends; what was found is kept after each."""
    receipt, home = _receipt(reruns), reruns.lab.home
    while not receipt.search.over():
        turn = reruns.turns[receipt.search.next() - 1]
        if ended := reruns.ended(each * reruns.share(turn)) or breaks(reruns.made):
            receipt = _receipt(reruns, ended)
            break
        reruns.report(f"turn {turn.number} anew; {one_line(receipt.headline, 100)}")
        try:
            await _together(reruns, turn, each)
        finally:
            receipt = _receipt(reruns)
            keep_receipt(home, receipt)
    keep_receipt(home, receipt)
    return receipt


async def _together(reruns: Reruns, turn: Turn, each: int) -> None:
    """Make `each` forks at once, and raise the first error when all have ended."""
    ends = await asyncio.gather(*(reruns.once(turn) for _ in range(each)), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


def breaks(made: Sequence[Rerun]) -> str:
    """Return why no more re-runs make sense after the last ones; empty while they do."""
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


async def _try_changes(reruns: Reruns, receipt: Receipt, lines: Sequence[str], tries: int) -> Receipt:
    """Make the likeliest turn anew `tries` times with each line before the model, in rounds, so that a budget
    that ends leaves all of them with as many; tries of an earlier blame count.
    """
    turn, ended, left = receipt.likeliest, receipt.ended, Counter[str]()
    for line in lines:
        left[line] = tries - sum((one.line, one.turn) == (line, turn.number) for one in reruns.made)
    while left := +left:
        if why := reruns.ended(reruns.share(turn)) or breaks(reruns.made):
            ended = why
            break
        line = max(left, key=left.__getitem__)
        reruns.report(f"turn {turn.number} anew with “{one_line(line, 100)}”")
        left[line] -= 1
        await reruns.once(turn, wrap=lambda model, line=line: _WithLine(model=model, line=line), line=line)  # type: ignore[misc]
        keep_receipt(reruns.lab.home, _receipt(reruns))
    receipt = replace(_receipt(reruns, ended), untried=dict(left))
    keep_receipt(reruns.lab.home, receipt)
    return receipt


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
