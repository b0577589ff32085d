"""Gates: declared strictly, decided only where an interval decides."""

import random
from pathlib import Path

import pytest
from made_rows import row, rows, suite

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.reports.gate_decisions import GateReport, decide_gates
from kestrel_lab.evals.reports.gate_needs import out_of_reach
from kestrel_lab.evals.suites.loader import load_suite

HALF = Gate(metric="success_rate", at_least=0.5)


def verdict(gate, trials, **more):
    """What a gate of one configuration becomes."""
    (decision,) = decide_gates(suite(gate, **more), trials)
    return decision.verdict


@pytest.mark.parametrize(
    ("gate", "trials", "expected"),
    [
        (HALF, rows(*["pass"] * 20), "ok"),
        (HALF, rows(*["fail"] * 20), "regression"),
        (HALF, rows(*["pass", "fail"] * 10), "inconclusive"),
        (HALF, rows("pass"), "inconclusive"),
        (HALF, [], "broken"),
        (HALF, rows("error", "error"), "broken"),
        (Gate(metric="success_rate", at_most=0.5), rows(*["fail"] * 20), "ok"),
        (Gate(metric="success_rate", at_most=0.5), rows(*["pass"] * 20), "regression"),
        (
            Gate(metric="wall_time", at_most=3),
            [row(f"s{n}", "pass", wall_time=1 + n % 2) for n in range(20)],
            "ok",
        ),
        (
            Gate(metric="wall_time", at_most=1),
            [row(f"s{n}", "pass", wall_time=2 + n % 2) for n in range(20)],
            "regression",
        ),
        (
            Gate(metric="cache_hits", at_least=5),
            [row(f"s{n}", "pass", cache_hits=1 + n % 2) for n in range(20)],
            "regression",
        ),
        (Gate(metric="wall_time", at_most=1), rows("pass", wall_time=0.5), "inconclusive"),
    ],
)
def test_known_verdicts(gate, trials, expected):
    """The whole interval on one side decides; one trial, or an interval across the bound, does not; nothing
    that ran is broken.
    """
    assert verdict(gate, trials) == expected


def test_trials_that_broke_are_no_regression():
    """A bound violated only because broken trials count as failed is `broken`; violated without them, it is a
    regression.
    """
    broken = rows(*["error"] * 18, "pass", "pass", reason="the provider is down")
    (decision,) = decide_gates(suite(HALF), broken)
    assert decision.verdict == "broken"
    assert "18 of 20 trials broke" in decision.why
    assert "the provider is down" in decision.why
    assert verdict(HALF, rows(*["error"] * 2, *["fail"] * 18)) == "regression"
    assert verdict(HALF, rows(*["error"] * 2, *["pass"] * 18), count_errors="exclude") == "ok"


def test_an_unknown_price_is_no_low_price():
    """A cost that leaves calls out is not shown to be low; that it is too high is."""
    gate = Gate(metric="cost_estimate", at_most=1.0)
    assert verdict(gate, [row(f"s{n}", "pass", cost_estimate=0.1 + n / 100) for n in range(9)]) == "ok"
    assert (
        verdict(gate, [row(f"s{n}", "pass", cost_estimate=0.1 + n / 100, unpriced_calls=1) for n in range(9)])
        == "inconclusive"
    )
    assert (
        verdict(gate, [row(f"s{n}", "pass", cost_estimate=9.1 + n / 100, unpriced_calls=1) for n in range(9)])
        == "regression"
    )


def test_a_gate_is_for_its_configuration_and_family():
    """Without a configuration it is decided for each; with a family, of that family's scenarios alone."""
    trials = [
        *(row(f"a{n}", "pass", config="good", family="code") for n in range(20)),
        *(row(f"b{n}", "fail", config="good", family="text") for n in range(20)),
        *(row(f"a{n}", "fail", config="bad", family="code") for n in range(20)),
    ]
    code = Gate(metric="success_rate", at_least=0.5, family="code")
    gates = [code, Gate(metric="success_rate", at_least=0.5, config="good", family="text")]
    found = decide_gates(suite(*gates, configs=("good", "bad")), trials)
    assert [(d.config, d.verdict, d.trials) for d in found] == [
        ("good (scripted)", "ok", 20),
        ("bad (scripted)", "regression", 20),
        ("good (scripted)", "regression", 20),
    ]


def test_exit_codes():
    """A violated gate outweighs a broken one, that a doubtful one; no gate at all is code 3."""
    decided = {
        name: decide_gates(suite(HALF), trials)[0]
        for name, trials in {
            "ok": rows(*["pass"] * 20),
            "no": rows(*["fail"] * 20),
            "unsure": rows("pass"),
            "none": [],
        }.items()
    }
    codes = {
        names: GateReport(suite="s", decisions=tuple(decided[name] for name in names.split())).exit_code
        for names in ("ok", "ok unsure", "ok unsure none", "unsure none no ok", "")
    }
    assert codes == {"ok": 0, "ok unsure": 2, "ok unsure none": 3, "unsure none no ok": 1, "": 3}


@pytest.mark.parametrize(
    ("gate", "scenarios", "epochs", "told"),
    [
        (
            Gate(metric="success_rate", at_least=0.8),
            1,
            3,
            "it takes 16 such trials (epochs: 16), or 16 scenarios",
        ),
        (Gate(metric="success_rate", at_least=0.8), 1, 16, ""),
        (
            Gate(metric="success_rate", at_least=0.8),
            9,
            16,
            "it takes 16 such scenarios, and repeating the same ones does not help",
        ),
        (Gate(metric="success_rate", at_least=0.8), 16, 1, ""),
        (
            Gate(metric="success_rate", at_most=0.1),
            1,
            3,
            "if no trial passes, 3 trials of 1 scenario still leave 0 to 56.1 %; it takes 35",
        ),
        (Gate(metric="recall@10", at_least=1), 5, 1, "no number of trials is enough"),
        (Gate(metric="wall_time", at_most=3), 1, 1, "one trial has no interval; it takes two or more"),
        (Gate(metric="wall_time", at_most=3), 1, 2, ""),
    ],
)
def test_a_gate_out_of_reach_is_named_with_what_it_takes(gate, scenarios, epochs, told):
    """Beforehand and in the decision; and perfect trials in that number do pass it."""
    assert (
        (told in out_of_reach(gate, [epochs] * scenarios))
        if told
        else out_of_reach(gate, [epochs] * scenarios) == ""
    )
    best = "pass" if gate.at_least is not None else "fail"
    if gate.metric == "success_rate":
        trials = [row(f"s{n}", best, epoch=epoch + 1) for n in range(scenarios) for epoch in range(epochs)]
        (decision,) = decide_gates(suite(gate), trials)
        assert (decision.verdict, told in decision.why) == ("inconclusive" if told else "ok", True)


def test_an_undecided_gate_says_what_would_decide_it():
    """At the rate that was seen so many trials suffice, indeed; at a rate on the wrong side none do."""
    gate = Gate(metric="success_rate", at_least=0.7)
    (decision,) = decide_gates(suite(gate), rows(*["pass"] * 8, *["fail"] * 2))
    assert decision.why.startswith("at this value it takes about ")
    needed = int(decision.why.split()[6])
    (then,) = decide_gates(
        suite(gate), rows(*["pass"] * round(needed * 0.8), *["fail"] * round(needed * 0.2))
    )
    assert (then.verdict, 10 < needed < 200) == ("ok", True)
    (below,) = decide_gates(suite(gate), rows(*["pass"] * 6, *["fail"] * 4))
    assert "on the wrong side of the bound" in below.why


def test_what_is_undecided_is_no_green_case():
    """A server that shows skipped cases in green would contradict the exit code."""
    report = GateReport(suite="s", decisions=decide_gates(suite(HALF), rows("pass")))
    (case,) = report.group().cases
    assert (report.exit_code, case.outcome, case.kind) == (2, "failure", "inconclusive")


def test_false_alarms_are_rare_at_the_bound():
    """With a true rate exactly at the bound, at most 5 % of gates say `regression` or `ok`; a rule that looks
    at the mean alone always does.
    """
    chance = random.Random(7)
    gate = Gate(metric="success_rate", at_least=0.7)
    alarms, hasty = 0, 0
    for _ in range(400):
        (decision,) = decide_gates(
            suite(gate), rows(*("pass" if chance.random() < 0.7 else "fail" for _ in range(40)))
        )
        alarms += decision.verdict != "inconclusive"
        hasty += decision.interval.mean < 0.7
    assert alarms <= 0.07 * 400
    assert hasty > 0.3 * 400


GATES = """\
name: s
configs: [{name: one, model: local}]
gates:
  - GATE
scenarios:
  - {id: a, family: code, goal: g, checks: [{answer_contains: x}]}
"""


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "sucess_rate: {at_least: 0.8}",
            "there is no metric 'sucess_rate' to set a bound for; did you mean 'success_rate'?",
        ),
        ("success_rate: {}", "a gate has one bound, at_least or at_most, not none"),
        (
            "success_rate: {at_least: 0.1, at_most: 0.2}",
            "a gate has one bound, at_least or at_most, not both",
        ),
        ("success_rate: {at_least: 80}", "between 0 and 1, not 80"),
        ("success_rate: {at_least: 1}", "no number of trials shows 1"),
        ("success_rate: {atleast: 0.8}", "unknown key; did you mean 'at_least'?"),
        ("success_rate: {at_least: high}", "must be a number, not 'high'"),
        ("success_rate: {at_least: 0.8, config: two}", "config: the suite has no config 'two'; known: one"),
        (
            "success_rate: {at_least: 0.8, family: cod}",
            "family: the suite has no family 'cod'; did you mean 'code'?",
        ),
        (
            "{success_rate: {at_least: 0.8}, wall_time: {at_most: 1}}",
            "a gate is one metric with its bound, not success_rate and wall_time",
        ),
    ],
)
def test_mistakes_are_told_with_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, message: str
) -> None:
    """File, line, key and what would be right."""
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(GATES.replace("GATE", written))
    with pytest.raises(UsageError) as told:
        load_suite("s.yaml")
    assert str(told.value).startswith("s.yaml:4: gates[0]")
    assert message in str(told.value)


def test_gates_are_read_and_selected(tmp_path: Path) -> None:
    """Gates change no trial's identity, and those of configurations left out are left out."""
    text = GATES.replace(
        "GATE", "success_rate: {at_least: 0.8, config: one}\n  - wall_time: {at_most: 3, family: code}"
    )
    (tmp_path / "s.yaml").write_text(text.replace("configs: [", "configs: [{name: two}, "))
    found = load_suite(tmp_path / "s.yaml")
    gates = (
        Gate(metric="success_rate", at_least=0.8, config="one"),
        Gate(metric="wall_time", at_most=3, family="code"),
    )
    assert found.gates == gates
    assert found.select(configs=["two"]).gates == gates[1:]
    assert "gates" not in found.definition()
