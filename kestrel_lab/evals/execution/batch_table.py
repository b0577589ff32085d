"""The batches of the log as a table, looked at anew at their providers."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import KestrelError
from kestrel_lab.evals.execution.batch_log import Batch, finish_eval_run, stored_batches
from kestrel_lab.evals.execution.batches import endpoint_of, submit, take_answers
from kestrel_lab.models.litellm.batch import BatchState
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_duration

if TYPE_CHECKING:
    import pandas as pd


async def batch_table(
    lab: Services, suite: str | None = None, *, look: bool = True, cancel: bool = False
) -> pd.DataFrame:
    """Return a row per batch, newest first: what it is for, its state, how much has come, what it cost.

    With `look` those that go on are looked at, and what has come is stored. With `cancel` their providers
    are asked to stop them, and the next `eval run --batch` of the suite begins anew.
    """
    import pandas as pd

    batches = stored_batches(lab.store, suite=suite)
    seen = await asyncio.gather(
        *(_look(lab, one, cancel=cancel) for one in batches if one.open and (look or cancel))
    )
    if cancel:
        for eval_run in {batch.eval_run for batch in batches}:
            await asyncio.to_thread(finish_eval_run, lab.store, eval_run)
    states = dict(seen)
    rows = [_row(batch, states.get(batch.id, "")) for batch in reversed(batches)]
    columns = ["batch", "suite", "model", "state", "answers", "cost", "age"]
    return pd.DataFrame(rows, columns=columns).set_index("batch")


async def _look(lab: Services, batch: Batch, *, cancel: bool) -> tuple[str, BatchState | str]:
    """Return the state of a batch, or why it is not known; what a batch that has ended brought is stored."""
    try:
        endpoint = endpoint_of(batch, lab.env)
        await submit(lab.store, batch, endpoint)
        if not batch.open:
            return batch.id, batch.status
        if cancel:
            await endpoint.cancel(batch.provider_id)
        state = await endpoint.state(batch.provider_id)
        if state.ended:
            await take_answers(lab.store, batch, endpoint, state)
    except KestrelError as error:
        return batch.id, str(error)
    return batch.id, state


def _row(batch: Batch, seen: BatchState | str) -> dict[str, str]:
    total = len(batch.keys)
    done = seen.done if batch.open and isinstance(seen, BatchState) else batch.done
    usual = f" of ${batch.full_usd:.4f}" if batch.full_usd else ""
    cost = f"unknown{usual}" if batch.unpriced else f"${batch.cost_usd:.4f}{usual}"
    going_on = seen.status if isinstance(seen, BatchState) else seen
    return {
        "batch": batch.id,
        "suite": batch.suite,
        "model": batch.model,
        "state": batch.status or going_on or ("submitted" if batch.provider_id else "planned"),
        "answers": f"{done:,} of {total:,}",
        "cost": cost if batch.done else "",
        "age": format_duration(time.time() - batch.at),
    }
