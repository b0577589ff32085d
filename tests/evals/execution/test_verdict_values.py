"""Values of users' checks and metrics: whatever they return, the suite goes on."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kestrel_lab import Lab, Scenario, Suite, check, metric
from kestrel_lab.checks.python_function import score_of
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import CheckError
from kestrel_lab.core.scores import Score
from kestrel_lab.testing import ScriptedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Detailed(Score):
    """A score with more."""

    detail: Any = None


class Unprintable:
    """A value that says nothing."""

    def __repr__(self) -> str:
        raise RuntimeError("bad repr")


class Lying:
    """An array that breaks."""

    def item(self) -> Any:
        """Fail."""
        raise RuntimeError("on another device")


def generated() -> Any:
    """A generator."""
    yield True


def evaluated(tmp_path: Path, *, returns: Callable[[], Any], **more: Any) -> dict[str, Any]:
    """The result of the only trial of a suite whose check returns that."""

    @check
    def c(trial: Any) -> Any:
        return returns()

    suite = Suite(name="c", scenarios=(Scenario(id="a", goal="g", checks=(c,)),), **more)
    # Closed, because what is left open is open until the process ends, and there are a hundred of these.
    with Lab(home=tmp_path, model=ScriptedModel(lambda _: "4")) as lab:
        found = lab.eval_sync(suite)
        (row,) = found.rows
        assert found.frame.outcome.tolist() == [row.result["outcome"]]
        assert repr(found)
    return {**row.result, "metrics": row.metrics}


async def later(value: Any) -> Any:
    """A value that is awaited for."""
    await asyncio.sleep(0)
    return value


KEPT: list[tuple[Callable[[], Any], float]] = [
    (lambda: np.bool_(True), 1.0),
    (lambda: np.bool_(False), 0.0),
    (lambda: np.float64(0.5), 0.5),
    (lambda: np.float32(1), 1.0),
    (lambda: np.float16(0.5), 0.5),
    (lambda: np.int64(1), 1.0),
    (lambda: np.uint8(0), 0.0),
    (lambda: np.array(0.25), 0.25),
    (lambda: np.array([1.0]), 1.0),
    (lambda: pd.Series([0.5]).mean(), 0.5),
    (lambda: pd.Series([True]).all(), 1.0),
    (lambda: Decimal("0.5"), 0.5),
    (lambda: Fraction(1, 4), 0.25),
    (lambda: (np.float64(1.0), "why"), 1.0),
    (lambda: (np.bool_(False), np.str_("why")), 0.0),
    (lambda: (True, None), 1.0),
    (lambda: Detailed(check="d", passed=np.bool_(True), value=np.float64(0.75), detail=object()), 0.75),  # type: ignore[arg-type]  # the point
    (lambda: Score(check="s", passed=False, value=0.5, reason="r", usage=Usage(tokens_in=3)), 0.5),
    (lambda: later(np.float64(0.5)), 0.5),
    (lambda: later(later(True)), 1.0),
]
NO_NUMBER: list[Callable[[], Any]] = [
    lambda: None,
    lambda: pd.NA,
    lambda: pd.NaT,
    lambda: math.inf,
    lambda: 10**400,
    lambda: Decimal("sNaN"),
    lambda: complex(1, 0),
    lambda: "1",
    lambda: b"1",
    lambda: np.str_("1"),
    lambda: np.array([1.0, 0.0]),
    lambda: np.array([]),
    lambda: pd.Series([1.0, 0.0]),
    lambda: pd.DataFrame({"a": [1]}),
    lambda: [True],
    lambda: (True, "a", "b"),
    lambda: (),
    lambda: {"passed": True},
    lambda: Score(check="s", passed=True, value=math.nan),
    lambda: Score(check="s", passed=None, value=1.0),  # type: ignore[arg-type]  # the point
    generated,
    lambda: iter([True]),
    lambda: Unprintable(),
    lambda: Lying(),
    lambda: score_of,
]
UNUSABLE = [
    *NO_NUMBER,
    lambda: math.nan,
    lambda: np.nan,
    lambda: Decimal("NaN"),
    lambda: np.float32("nan"),
    lambda: -1,
    lambda: 1.5,
    lambda: (True, ValueError("why")),
]


@pytest.mark.parametrize(("returns", "value"), KEPT)
def test_numbers_of_any_library_are_kept(returns: Callable[[], Any], value: float, tmp_path: Path) -> None:
    """The score is stored as Python's own number, with the reason as text."""
    result = evaluated(tmp_path, returns=returns)
    (score,) = result["scores"]
    assert (score["value"], type(score["value"]), type(score["passed"]), type(score["reason"])) == (
        value,
        float,
        bool,
        str,
    )
    assert result["outcome"] == ("pass" if score["passed"] else "fail")


@pytest.mark.parametrize("returns", UNUSABLE)
def test_what_is_no_verdict_is_named_in_its_trial(returns: Callable[[], Any], tmp_path: Path) -> None:
    """The trial is an error with the name of the check; the suite ends with its report."""
    result = evaluated(tmp_path, returns=returns)
    assert result["outcome"] == "error"
    assert "c returned" in result["reason"]


@pytest.mark.parametrize(
    "error", [SystemExit(1), ValueError("no"), ExceptionGroup("two", [ValueError("no")]), StopIteration("no")]
)
def test_what_a_check_or_metric_raises_is_named_in_its_trial(error: BaseException, tmp_path: Path) -> None:
    """Leaving the process is no way out of a suite."""

    def raises(*_: Any) -> Any:
        raise error

    result = evaluated(tmp_path, returns=raises)
    assert result["outcome"] == "error"
    assert type(error).__name__ in result["reason"]
    metrics = (metric(lambda records: raises()),)
    result = evaluated(tmp_path, returns=lambda: True, metrics=metrics)
    assert result["outcome"] == "error"
    assert type(error).__name__ in result["reason"]


@pytest.mark.parametrize("returns", [one for one, _ in KEPT[:13]])
def test_a_metric_may_be_a_number_of_any_library(returns: Callable[[], Any], tmp_path: Path) -> None:
    """It is stored as a float."""

    @metric
    def mine(records: Any) -> Any:
        return returns()

    result = evaluated(tmp_path, returns=lambda: True, metrics=(mine,))
    assert result["outcome"] == "pass"
    assert type(result["metrics"]["mine"]) is float


@pytest.mark.parametrize("returns", [lambda: math.nan, lambda: np.float32("nan"), lambda: Decimal("NaN")])
def test_nan_of_any_library_says_that_a_run_has_no_value(returns: Callable[[], Any], tmp_path: Path) -> None:
    """It is neither a value nor an error."""

    @metric
    def mine(records: Any) -> Any:
        return returns()

    result = evaluated(tmp_path, returns=lambda: True, metrics=(mine,))
    assert result["outcome"] == "pass"
    assert "mine" not in result["metrics"]


async def no_metric(records: Any) -> float:
    """Metrics are not awaited for."""
    return 1.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("returns", [*NO_NUMBER, lambda: no_metric(())])
def test_a_metric_that_is_no_number_is_named_and_the_others_are_kept(
    returns: Callable[[], Any], tmp_path: Path
) -> None:
    """One bad metric costs its trial, not the suite, and not the values of the others."""

    @metric
    def bad(records: Any) -> Any:
        return returns()

    @metric
    def good(records: Any) -> float:
        return 7.0

    result = evaluated(tmp_path, returns=lambda: True, metrics=(bad, good))
    assert result["outcome"] == "error"
    assert "the metric 'bad'" in result["reason"]
    assert result["metrics"]["good"] == 7.0
    assert "bad" not in result["metrics"]


@pytest.mark.parametrize("value", [True, np.float64(0.5), None, "yes"])
def test_a_check_of_ones_own_class_is_read_as_carefully(value: Any, tmp_path: Path) -> None:
    """A class with `label` and a call that returns no `Score`, awaited for or not, does not end the suite."""

    @dataclass(frozen=True)
    class Own:
        label: str = "own"
        needs: str = ""

        def definition(self) -> dict[str, Any]:
            """What it depends on."""
            return {}

        def __call__(self, trial: Any) -> Any:
            """Judge."""
            return value

    suite = Suite(name="c", scenarios=(Scenario(id="a", goal="g", checks=(Own(),)),))  # type: ignore[arg-type]  # the point
    (row,) = Lab(home=tmp_path, model=ScriptedModel(lambda _: "4")).eval_sync(suite).rows
    assert row.result["outcome"] == {True: "pass", 0.5: "fail"}.get(value, "error")


def test_the_reason_of_an_unusable_score_names_it() -> None:
    """It says what came back and what would do."""
    with pytest.raises(
        CheckError, match="c returned None; a check returns True, False, a number from 0 to 1"
    ):
        score_of("c", None)
