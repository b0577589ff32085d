"""How old the stored trials of a comparison are, and whether the endpoint that they asked is still the same.

A hosted model may change behind its name. So stored trials of one do not count where they are much older
than those they are compared with, or where the endpoint says that another model answers now. Replayed,
scripted and local models do not age.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.views.formatting import format_count

MOST_DAYS: Final = 14.0
"""How much older than the others stored trials of a hosted model may be."""
_DAY_S: Final = 86_400.0
_LOCAL: Final = ("ollama/", "ollama_chat/", "lm_studio/", "hosted_vllm/", "local")
"""How the names of models begin that run where their user decides what they are."""
_REMEDY: Final = "remove their runs (kestrel runs remove), then compare again: what is missing is run"


def is_hosted(row: EvalRow) -> bool:
    """Return whether a model answered that somebody else may change."""
    return row.model_kind == "real" and not str(row.result.get("model", "")).startswith(_LOCAL)


def served_names(rows: Iterable[EvalRow]) -> frozenset[str]:
    """Return what the endpoints of hosted models said answered; of trials of earlier versions nothing."""
    return frozenset(name for row in rows if is_hosted(row) for name in row.served)


def outdated_base(
    base: Sequence[EvalRow], head: Sequence[EvalRow], most_days: float = MOST_DAYS
) -> dict[str, str]:
    """Return the configurations whose two sides cannot be compared, each with the reason.

    Trials of one moment can be, however long ago that was.
    """
    before, after = (
        group_values((row.config, row) for row in rows if is_hosted(row)) for rows in (base, head)
    )
    reasons = {}
    for config in before.keys() & after.keys():
        older, newer = sorted((before[config], after[config]), key=_last_time)
        days = (_last_time(newer) - min(row.created_at for row in older)) / _DAY_S
        names = served_names(older), served_names(newer)
        count = f"{format_count(len(older), 'stored trial')} do not count"
        # A router asks several models, now this one and now that one.
        renamed = names[0] != names[1] and min(map(len, names)) == 1
        if renamed and _asked_models(older) == _asked_models(newer):
            span = f"{_day(_last_time(older))} and {_day(_last_time(newer))}"
            change = f"from {_name_list(names[0])} to {_name_list(names[1])}"
            reasons[config] = f"the endpoint changed between {span}, {change}: {count}; {_REMEDY}"
        elif days > most_days:
            reasons[config] = (
                f"the oldest trials are {days:.0f} days older than those they are compared with, and a "
                f"hosted model may have changed ({most_days:.0f} days at most): {count}; {_REMEDY}"
            )
    return reasons


def apart_note(base: Sequence[EvalRow], head: Sequence[EvalRow]) -> str:
    """Return what to know where hosted models answered all of one side before any of the other; else
    nothing.
    """
    times = [[row.created_at for row in rows if is_hosted(row)] for rows in (base, head)]
    if not all(times) or (max(times[0]) >= min(times[1]) and max(times[1]) >= min(times[0])):
        return ""
    return (
        "the trials of both sides were not made side by side: what changed at the endpoint in between would "
        "look like a change of the code"
    )


def age_text(rows: Sequence[EvalRow], now: float) -> str:
    """Return how old trials of hosted models are and what answered; empty without any."""
    hosted = [row for row in rows if is_hosted(row)]
    if not hosted:
        return ""
    days = max(0.0, now - min(row.created_at for row in hosted)) / _DAY_S
    age = "made today" if days < 1 else f"up to {days:.0f} days old"
    names = served_names(hosted)
    return f"{age}, answered by {_name_list(names)}" if names else age


def _asked_models(rows: Iterable[EvalRow]) -> set[object]:
    return {row.result.get("model") for row in rows}


def _last_time(rows: Sequence[EvalRow]) -> float:
    return max(row.created_at for row in rows)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _name_list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
