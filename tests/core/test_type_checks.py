"""Claims about which values of Python code fit a declared type."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest

from kestrel_lab.checks.decorator import check
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Check
from kestrel_lab.core.yaml.type_checks import is_of_type
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool

GOOD = check(answer_contains="4")


@pytest.mark.parametrize(
    ("value", "kind", "fits"),
    [
        (1, float, True),
        (True, float, False),
        ("0.5", float | None, False),
        (None, float | None, True),
        (GOOD, Check, True),
        ({"answer_contains": "4"}, Check, False),
        ((GOOD,), tuple[Check, ...], True),
        ([GOOD], tuple[Check, ...], True),
        ((GOOD, {}), tuple[Check, ...], False),
        ({}, Mapping[str, int], True),
        ("a", Literal["a"], True),
        ("b", Literal["a"], False),
        (1, Annotated[int, "note"], True),
        (object(), Any, True),
    ],
)
def test_what_fits(value: object, kind: Any, fits: bool) -> None:
    """A value fits its own type, a number a wider one, and what a file says fits none."""
    assert is_of_type(value, kind) is fits


@pytest.mark.parametrize(
    "more",
    [
        {"checks": ({"answer_contains": "4"},)},
        {"checks": "answer_contains"},
        {"place": {"files": {"a": "b"}}},
        {"at_least": "0.5"},
        {"limits": 3},
        {"weight": "2"},
        {"environment": object()},
    ],
)
def test_a_scenario_written_as_in_a_file_is_refused(more: dict[str, Any]) -> None:
    """A field of Python code that is written as in a file is refused where it is written, by name."""
    with pytest.raises(UsageError, match=next(iter(more))):
        Scenario(**{"id": "a", "goal": "go", "checks": (GOOD,), **more})


@pytest.mark.parametrize(
    "more", [{"gates": ({"success_rate": {"at_least": 0.5}},)}, {"metrics": (len,)}, {"epochs": "2"}]
)
def test_a_suite_written_as_in_a_file_is_refused(more: dict[str, Any]) -> None:
    """So is one of the suite."""
    with pytest.raises(UsageError, match=next(iter(more))):
        Suite(name="s", scenarios=(Scenario(id="a", goal="go", checks=(GOOD,)),), **more)


def test_a_missing_number_in_metadata_ends_no_suite(tmp_path: Any) -> None:
    """Metadata from a row of a table may lack a number: the trial is stored, without it."""
    scenario = Scenario(id="a", goal="go", checks=[GOOD], metadata={"hard": float("nan"), "n": 2})
    suite = Suite(name="s", scenarios=(scenario,), gates=(Gate(metric="success_rate", at_least=0.5),))
    (row,) = Lab(home=tmp_path, model=ScriptedModel(lambda _: "4")).eval_sync(suite).rows
    assert (row.outcome, row.result["metadata"]) == ("pass", {"hard": None, "n": 2})


def test_a_default_of_another_library_is_refused() -> None:
    """A function that is called gets its default as it is: what only a library understands is refused."""
    from pydantic import Field

    def count(n: int = Field(5, ge=1)) -> str:
        """Count."""
        return str(n)

    def within(n: Annotated[int, Field(default=5)]) -> str:
        """Count."""
        return str(n)

    def anything(n: Any = Field(5)) -> str:
        """Count."""
        return str(n)

    for function in (count, within, anything):
        with pytest.raises(UsageError, match="parameter 'n' of tool"):
            tool(function)
