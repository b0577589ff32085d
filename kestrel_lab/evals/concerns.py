"""What a look at answers found questionable, counted by kind: made-up files, names, numbers and so on, configuration by configuration.

Answers of trials are looked at where the configuration says `verify: warn` or more. A trial that was not looked at, or did
not reach an answer, is in no rate: nothing found and nobody looked are not the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import Record, RunFinished
from kestrel_lab.log.store import EvalRow
from kestrel_lab.verification.engine import CHECKS

PREFIX: Final = "concerns:"
_KIND: Final = {check.__name__: kind for kind, checks in CHECKS.items() for check in checks} | {"support": "support"}
KINDS: Final = tuple(dict.fromkeys(_KIND.values()))
"""`files`, `names`, `code` … as `verification.engine.CHECKS` has them, and `support`: most of what it says is weakly held up."""
CONCERN_COLUMNS: Final = ("config", "kind", "share", "low", "high", "trials")


def looked_at(records: Iterable[Record]) -> list[dict[str, Any]] | None:
    """What a look at the run's answer found, kind by kind known; `None` where nobody looked."""
    end = next((record.event for record in records if isinstance(record.event, RunFinished)), None)
    if end is None or not end.looked:
        return None
    return [one for one in end.concerns if one.get("check") in _KIND]


def concerns(records: Iterable[Record]) -> float:
    """How much a look at the answer found that is not minor; `nan` where nobody looked."""
    found = looked_at(records)
    return math.nan if found is None else sum(one.get("severity") != "minor" for one in found)


def concern_kinds(records: Iterable[Record]) -> dict[str, float]:
    """For each kind, as `concerns:KIND`, 1 if anything of it was found, minor things among it, else 0; empty where nobody looked."""
    found = looked_at(records)
    if found is None:
        return {}
    kinds = {_KIND[str(one["check"])] for one in found}
    return {f"{PREFIX}{kind}": float(kind in kinds) for kind in KINDS}


def concern_rates(rows: Iterable[EvalRow], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record per configuration and kind: the share of its trials with any such concern, of those that were looked at.

    `records` are those of `Reducer.grouped` for the rows. Raises `UsageError` where no answer was looked at.
    """
    looked = Counter(row.config for row in rows if "concerns" in row.metrics)
    rates = [
        {
            "config": record["config"],
            "kind": name.removeprefix(PREFIX),
            "share": record[name],
            "low": record[f"{name}_low"],
            "high": record[f"{name}_high"],
            "trials": looked[record["config"]],
        }
        for record in records
        for name in record
        if name.startswith(PREFIX) and not name.endswith(("_low", "_high")) and not math.isnan(record[name])
    ]
    if not rates:
        msg = "no answer of these trials was looked at: write `verify: warn` into their configurations and run them again"
        raise UsageError(msg)
    return rates
