"""How often agents say that they do not know: rightly, where nothing there answers the question, and wrongly elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from kestrel_lab.checks.answer import AnswerAbstains
from kestrel_lab.evals.stats.intervals_and_tests import proportion_interval
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.verification.abstention import abstains


def abstentions(suite: Suite, rows: Iterable[EvalRow]) -> list[dict[str, Any]]:
    """One record per configuration; which scenarios cannot be answered is known by their check `answer_abstains`."""
    open_ended = {
        scenario.id
        for scenario in suite.scenarios
        if any(isinstance(check, AnswerAbstains) and check.expected for check in scenario.checks)
    }
    groups: dict[str, list[EvalRow]] = {}
    for row in rows:
        if row.result["outcome"] != "error":
            groups.setdefault(row.config, []).append(row)
    return [_record(config, found, open_ended) for config, found in groups.items()]


def _record(config: str, rows: Sequence[EvalRow], open_ended: set[str]) -> dict[str, Any]:
    unanswerable = [row for row in rows if row.scenario in open_ended]
    others = [row for row in rows if row.scenario not in open_ended]
    answered = [row for row in others if not _abstained(row)]
    passed = [float(row.result["outcome"] == "pass") for row in answered]
    return {
        "config": config,
        "unanswerable": len(unanswerable),
        **_share("abstained", unanswerable, [float(_abstained(row)) for row in unanswerable]),
        "answerable": len(others),
        **_share("abstained_wrongly", others, [float(_abstained(row)) for row in others]),
        **_share("right_when_answered", answered, passed),
    }


def _share(name: str, rows: Sequence[EvalRow], values: Sequence[float]) -> dict[str, float]:
    if not rows:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), math.nan)
    found = proportion_interval(values, [row.scenario for row in rows])
    return {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}


def _abstained(row: EvalRow) -> bool:
    return abstains(str(row.result.get("answer", "")))
