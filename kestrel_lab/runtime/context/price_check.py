"""A limit of money that cannot be kept, since the price of a model is not known: it is said once a run."""

from __future__ import annotations

from kestrel_lab.core.events.union import BudgetWarned
from kestrel_lab.core.protocols import Model
from kestrel_lab.runtime.context.run_context import RunContext


def check_price(ctx: RunContext, model: Model) -> None:
    """Say before a call of `model` that the limit of money cannot be kept, if its price is not known."""
    if getattr(model, "priced", None) is False:
        warn_unpriced(ctx, model)


def warn_unpriced(ctx: RunContext, model: Model) -> None:
    """Say so once a run, if there is such a limit."""
    limit = ctx.given.limits.cost_usd
    if ctx.unpriced_told or ctx.state.usage.unpriced > 1 or limit is None:
        return
    ctx.unpriced_told = True
    text = (
        f"the price of {model.name} is not known: its cost is not counted and the limit of ${limit:g} cannot "
        "stop it"
    )
    ctx.emit(BudgetWarned(limit="cost_usd", message=text))
