"""`result.plot(by=…)`: any column of the trials."""

from dataclasses import replace

import pytest
from made_rows import row, suite

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.execution.result import EvalResult


def made(count: int = 6) -> EvalResult:
    """Two configurations, two families, two commits."""
    trials = [
        replace(
            row(f"s{n}", "pass" if n % 2 else "fail", config=config, family=f"f{n % 2}", wall_time=n + 1.0),
            git_sha=f"{n % 2}" * 40,
        )
        for config in ("one", "two")
        for n in range(count)
    ]
    return EvalResult(suite=suite(configs=("one", "two")), rows=tuple(trials), store=None)


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("scenario", [f"s{n}" for n in range(6)]),
        ("family", ["f0", "f1"]),
        ("configuration", ["one (scripted)", "two (scripted)"]),
        ("config", ["one (scripted)", "two (scripted)"]),
        ("commit", ["0" * 10, "1" * 10]),
        ("outcome", ["fail", "pass"]),
        ("epoch", ["1"]),
    ],
)
def test_a_row_per_value(by: str, groups: list[str]) -> None:
    """Each value of the column has its row, and the title says what is drawn by what."""
    (axes,) = made().plot(by=by).axes
    assert sorted(label.get_text() for label in axes.get_yticklabels()) == sorted(groups)
    assert axes.get_title() == f"Success rate by {by}"
    (axes,) = made().plot("wall_time", by=by).axes
    assert axes.get_title() == f"Wall time by {by}"


def test_many_numbers_are_drawn_in_ranges() -> None:
    """A column of many numbers has five rows with equally many trials, the highest value in the last one."""
    (axes,) = made(40).plot(by="time").axes
    assert sorted(
        (label.get_text() for label in axes.get_yticklabels()), key=lambda text: float(text.split()[0])
    ) == [
        "1 to 9",
        "9 to 17",
        "17 to 25",
        "25 to 33",
        "33 to 40",
    ]


def test_what_cannot_be_drawn_is_said() -> None:
    """A column that is not there, with the nearest name, and one of too many values."""
    with pytest.raises(UsageError, match=r"no column 'scenaro'.*did you mean 'scenario'"):
        made().plot(by="scenaro")
    with pytest.raises(UsageError, match="run has 101 values"):
        made(101).plot(by="run")
    assert made().plot("wall_time").axes[0].get_title() == "Wall time by family"
