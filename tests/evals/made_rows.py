"""Rows of trials made by hand, for claims about what is said of them."""

from collections.abc import Sequence

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Config, Scenario, Suite

NOTHING = dict.fromkeys(METRICS, 0.0)
"""Every metric of a trial that did nothing."""


def row(
    scenario: str,
    outcome: str,
    *,
    config: str = "c",
    epoch: int = 1,
    reason: str = "",
    family: str = "",
    group: str = "",
    **metrics: float,
) -> EvalRow:
    """One trial."""
    result = {
        "family": family,
        **({"group": group} if group else {}),
        "model": "m",
        "model_kind": "scripted",
        "outcome": outcome,
        "scores": [],
        "reason": reason,
        "run": f"r-{scenario}-{epoch}",
        "weight": 1.0,
    }
    return EvalRow(
        id=f"{scenario}{config}{epoch}",
        scenario=scenario,
        result=result,
        metrics={**NOTHING, **metrics},
        git_sha="",
        created_at=0.0,
        suite="demo",
        config=config,
        epoch=epoch,
        key="",
    )


def rows(*outcomes: str, **more: object) -> list[EvalRow]:
    """Trials of one scenario each."""
    return [row(f"s{number}", outcome, **more) for number, outcome in enumerate(outcomes)]


def suite(
    *gates: object, configs: Sequence[str] = ("c",), count_errors: str = "fail", name: str = "demo"
) -> Suite:
    """A suite that the rows may be of."""
    scenario = Scenario(id="s0", goal="g", checks=(AnswerContains(texts=("x",)),))
    return Suite(
        name=name,
        scenarios=(scenario,),
        configs=tuple(Config(name=name) for name in configs),
        gates=gates,
        count_errors=count_errors,
    )
