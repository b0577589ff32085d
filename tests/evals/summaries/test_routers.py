"""Routers measured, configurations against their price, and public routing data read: known answers, laws,
mistakes.
"""

import json
import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.routing_metrics import router_curve, routers_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.routing_data import read_routing
from kestrel_lab.evals.summaries.pareto import pareto_frontier


def test_known_areas():
    """Two prompts, one of which gains: asked first the area is 3/4, asked last 1/4, and without an opinion
    1/2.
    """
    areas = [router_curve("r", score, [1.0, 1.0], [0.0, 1.0]).apgr.mean for score in ([1, 0], [0, 1], [1, 1])]
    assert areas == [0.75, 0.25, 0.5]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=2, max_size=30))
def test_laws(items):
    """A router's area and its opposite's are one together, ties or not; scores matter by their order only."""
    score, strong, weak = ([float(item[n]) for item in items] for n in range(3))
    if sum(strong) <= sum(weak):
        with pytest.raises(UsageError, match="no gap"):
            router_curve("r", score, strong, weak)
        return
    curve = router_curve("r", score, strong, weak)
    opposite = router_curve("r", [-s for s in score], strong, weak)
    assert curve.apgr.mean + opposite.apgr.mean == pytest.approx(1.0)
    assert router_curve("r", [3 * s - 7 for s in score], strong, weak).quality == curve.quality
    assert curve.quality[0] == pytest.approx(sum(weak) / len(weak))
    assert curve.quality[-1] == pytest.approx(sum(strong) / len(strong))


def test_chance_is_within_its_interval_and_equal_scores_do_not_narrow_it():
    """Over 40 sets of prompts without signal the interval holds one half in at least 34, also where scores
    are few and equal.
    """
    for values in (2, 10_000):
        held = 0
        for seed in range(40):
            draw = random.Random(seed)
            strong = [float(draw.random() < 0.8) for _ in range(400)]
            weak = [float(draw.random() < 0.5) for _ in range(400)]
            found = router_curve("r", [draw.randrange(values) for _ in range(400)], strong, weak).apgr
            held += found.low <= 0.5 <= found.high
        assert held >= 34, (values, held)


@pytest.mark.parametrize(
    ("score", "strong", "weak", "told"),
    [
        ([], [], [], "not 0, 0 and 0"),
        ([1], [1, 2], [0], "not 1, 2 and 1"),
        ([float("nan")], [1], [0], "finite"),
        ([1], [0], [1], "no gap"),
    ],
)
def test_what_is_no_router(score, strong, weak, told):
    """Lengths that differ, numbers that are none, and a strong model that is weaker are refused."""
    with pytest.raises(UsageError, match=told):
        router_curve("r", score, strong, weak)


def test_data_of_others(tmp_path):
    """Both forms become rows per prompt and model; odd line ends within prompts, contaminated prompts and
    broken lines are told apart.
    """
    file = tmp_path / "a.jsonl"
    lines = [
        {"prompt": "one\u2028two", "domain": "d", "strong": 1, "weak": 0, "contaminated": 0},
        {"prompt": "three", "domain": "d", "strong": 1, "weak": 1, "contaminated": 1},
        {"prompt": "four", "task": "t", "scores": {"a": 0.5, "b": 1}},
    ]
    file.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n")
    assert read_routing(file)[["scenario", "family", "config", "success"]].to_numpy().tolist() == [
        [1, "d", "strong", 1.0],
        [1, "d", "weak", 0.0],
        [3, "t", "a", 0.5],
        [3, "t", "b", 1.0],
    ]
    file.write_text('{"prompt": "x", "strong": 1}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl:1: not a prompt with scores"):
        read_routing(file)
    with pytest.raises(UsageError, match="no prompts"):
        read_routing(tmp_path / "b.jsonl" if (tmp_path / "b.jsonl").write_text("\n") else file)


def trials():
    """Three configurations over four scenarios; `worse` is beaten by `cheap` in both, `unpriced` has a call
    of unknown price.
    """
    rows = []
    for config, wins, cost, unpriced in (
        ("cheap", 2, 0.01, 0),
        ("dear", 4, 0.1, 0),
        ("worse", 1, 0.05, 0),
        ("unpriced", 4, 0.0, 1),
    ):
        rows += [
            {
                "config": config,
                "scenario": f"s{n}",
                "success": float(n < wins),
                "cost_estimate": cost,
                "unpriced_calls": unpriced,
            }
            for n in range(4)
        ]
    return pd.DataFrame(rows)


def test_the_front():
    """What nothing beats in both is on the front; a configuration without price is named, not drawn as
    free.
    """
    found = pareto_frontier(trials())
    assert found.frame[["config", "front"]].to_numpy().tolist() == [
        ["cheap", True],
        ["worse", False],
        ["dear", True],
    ]
    assert found.left_out == ("unpriced",)
    assert "unpriced" in found._repr_html_()
    axes = found.plot().axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "cost per trial, USD (1 without a known one left out)",
        "success rate",
    )
    with pytest.raises(UsageError, match="did you mean 'cost_estimate'"):
        pareto_frontier(trials(), price="cost_estimat")


def test_names_are_text():
    """A configuration's name is neither markup in HTML nor a formula in a plot."""
    frame = trials().replace({"config": {"cheap": "<b>$x$</b>"}})
    assert "<b>" not in pareto_frontier(frame)._repr_html_()
    assert "tex2jax_ignore" in pareto_frontier(frame)._repr_html_()
    pareto_frontier(frame).plot().canvas.draw()


def test_the_plot_of_routers():
    """Axes say what they are; each router's area is in the legend."""
    axes = routers_figure([router_curve("mine", [1, 0], [1, 1], [0, 1])]).axes[0]
    assert axes.get_xlabel() == "prompts sent to the strong model, %"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "mine (APGR 0.750)",
        "chance (APGR 0.500)",
    ]
