"""Suites with scores, choices, metadata, commands before, simulated users and votes, from file to frame."""

import asyncio

import pytest
from jsonschema import Draft202012Validator

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import Prompted
from kestrel_lab.core.json_types import loads
from kestrel_lab.core.yaml.reader import parse_yaml
from kestrel_lab.evals.execution.runner import run_suite, run_trials
from kestrel_lab.evals.reports.gate_decisions import decide_gates
from kestrel_lab.evals.suites.json_schemas import schema_text
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

SUITE = """
name: scored
epochs: 3
reducer: at_least_2
grader: scripted:user.yaml
configs: [{name: one, model: "scripted:model.yaml"}]
gates: [{"score:terms": {at_least: 0.1}}]
scenarios:
  - id: credit
    goal: Name a, b and c.
    at_least: 0.6
    metadata: {topic: letters, level: 1}
    checks:
      - {answer_contains: [alpha, beta, gamma], name: terms, weight: 3}
      - {starts_with: never, weight: 1}
      - {ends_with: never, weight: 0}
  - id: files
    goal: Count it.
    before: [{command: "printf 'one\\ntwo' > made.txt"}]
    metadata: {topic: files}
    checks: [{file_contains: {path: made.txt, text: two}}]
  - id: shoes
    goal: I want to return shoes.
    user: {instructions: You bought red shoes., turns: 3}
    metadata: {topic: talk}
    checks: [{answer_contains: refund}]
  - id: capital
    goal: Capital of Australia?
    choices: {options: [Sydney, Canberra, Perth], right: B, shuffle: true}
    checks: [{turns_at_most: 1}]
  - id: votes
    goal: Why?
    checks:
      - graded: {rubric: good, models: ["scripted:yes.yaml", "scripted:no.yaml", "scripted:yes.yaml"]}
"""
MODEL = """
rules:
  - {when: "return shoes", turns: ['Which colour?', 'You get a refund.']}
  - {when: "Name a", turns: ['alpha and beta and gamma']}
  - {when: "Capital", turns: ['ANSWER: C']}
  - {when: ".", turns: ['ok']}
"""
USER = """
rules:
  - {when: ".", turns: ['(the goal)', 'The red shoes.', 'DONE']}
"""


@pytest.fixture
def result(tmp_path):
    """The suite, run once."""
    files = {
        "suite.yaml": SUITE,
        "model.yaml": MODEL,
        "user.yaml": USER,
        "yes.yaml": 'rules: [{when: ".", turns: [\'{"score": 1, "why": "good"}\']}]',
        "no.yaml": 'rules: [{when: ".", turns: [\'{"score": 0, "why": "bad"}\']}]',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with Lab(tmp_path / "home", env={}) as lab:
        yield asyncio.run(run_suite(lab, load_suite(tmp_path / "suite.yaml")))


def test_a_suite_of_scores_from_file_to_frame(result):
    """Weights and thresholds decide, names are columns, metadata groups, users talk, graders vote."""
    told = {row.scenario: (row.outcome, row.why) for row in result.rows}
    assert {name: outcome for name, (outcome, _) in told.items()} == dict.fromkeys(
        ["credit", "files", "shoes", "capital", "votes"], "pass"
    ), told
    frame = result.frame.set_index("scenario")
    assert set(frame.loc["credit", "score"]) == {0.75}
    assert set(frame.loc["credit", "score:terms"]) == {1.0}
    assert set(frame.loc["votes", "score"]) == {2 / 3}
    by = result.by("topic").set_index("topic")
    assert list(by.index) == ["letters", "files", "talk", "unknown"]
    assert by.loc["letters", "score"] == 0.75
    assert "mean score" in result.table()[0]
    assert [one.verdict for one in decide_gates(result.suite, result.rows)] != []
    shoes = next(row for row in result.rows if row.scenario == "shoes")
    prompts = [one.event.text for one in result.store.records(shoes.run) if isinstance(one.event, Prompted)]
    assert prompts == ["I want to return shoes.", "The red shoes."]
    assert shoes.metrics["model_calls"] == 2, "the user's calls are in no number of the run"
    assert "user_cost" not in next(row for row in result.rows if row.scenario == "files").metrics


def test_the_simulated_user_is_paid_by_the_trial(tmp_path):
    """What the model that plays the user costs is in the trial's cost, and apart."""

    async def make(work):
        for name in work.ready.graders:
            work.ready.graders[name] = ScriptedModel(
                ["(the goal)", "Red.", "DONE"], usage=Usage(cost_usd=0.25)
            )
        return await run_trials(work)

    for name, text in (("suite.yaml", SUITE), ("model.yaml", MODEL), ("user.yaml", USER)):
        (tmp_path / name).write_text(text)
    suite = load_suite(tmp_path / "suite.yaml")
    with Lab(tmp_path / "home", env={}) as lab:
        (row,) = asyncio.run(run_suite(lab, suite, make=make, scenarios=["shoes"], epochs=1)).rows
    assert (row.metrics["cost_estimate"], row.metrics["user_cost"]) == (0.5, 0.5)


def test_every_k_and_reducers(result):
    """pass@k and pass^k for every k up to the epochs, and what a reducer makes of the epochs."""
    rows = [row for row in result.rows if row.scenario != "votes"]
    failed = {("files", 1), ("files", 2), ("shoes", 3)}
    changed = tuple(
        type(row)(
            **{name: getattr(row, name) for name in row.__dataclass_fields__}
            | {"result": row.result | {"outcome": "fail"}}
        )
        if (row.scenario, row.epoch) in failed
        else row
        for row in rows
    )
    other = type(result)(suite=result.suite, rows=changed, store=result.store)
    every = other.pass_at()
    assert list(every.index) == [("one", 1), ("one", 2), ("one", 3)]
    assert list(every["pass_hat"]) == pytest.approx([3 / 4, (1 + 1 + 0 + 1 / 3) / 4, 2 / 4])
    assert list(every["pass_at"]) == pytest.approx([3 / 4, (1 + 1 + 2 / 3 + 1) / 4, 1])
    for how, rate in {"mean": 0.75, "mode": 0.75, "max": 1, "min": 0.5, "at_least_2": 0.75}.items():
        assert other.reduced(how)["reduced"].item() == pytest.approx(rate), how
    assert "at_least_2" in other.table()[0]
    with pytest.raises(UsageError, match="no reducer 'best'"):
        other.reduced("best")


def test_a_command_before_that_fails_breaks_the_trial(tmp_path):
    """The agent is not asked; the reason names the command and what it said."""
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "suite.yaml").write_text(
        "configs: [{name: one, model: 'scripted:model.yaml'}]\n"
        "scenarios: [{id: a, goal: g, before: [{command: 'echo no such data; exit 3'}], "
        "checks: [{turns_at_most: 1}]}]\n"
    )
    with Lab(tmp_path / "home", env={}) as lab:
        (row,) = asyncio.run(run_suite(lab, load_suite(tmp_path / "suite.yaml"))).rows
    assert row.outcome == "error"
    assert "exit code 3: no such data" in row.reason
    assert row.metrics["model_calls"] == 0


def test_the_schema_knows_all(tmp_path):
    """What suites may write fits the JSON Schema, and a mistake within inner checks does not."""
    validator = Draft202012Validator(loads(schema_text("suite")))
    value = parse_yaml(SUITE, "s").value
    assert list(validator.iter_errors(value)) == []
    value["scenarios"][1]["checks"] = [{"any_of": [{"not": {"answer_contain": "x"}}]}]
    assert list(validator.iter_errors(value))


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("choices: {options: [a], right: A}", "choices are 2 to 26 options, not 1"),
        ("choices: {options: [a, b], right: C}", "'C' is neither the letter, the number nor the text"),
        ("checks: [{number: x}]", "number.value is a number, not 'x'"),
        ("checks: [{number: 1}], at_least: 2", "at_least"),
        ("checks: [{number: 1}], before: [{command: ''}]", "before"),
    ],
)
def test_mistakes_have_their_place(tmp_path, scenario, message):
    """Each is told with file and line."""
    (tmp_path / "s.yaml").write_text(f"scenarios:\n  - {{id: a, goal: g, {scenario}}}\n")
    with pytest.raises(UsageError) as caught:
        load_suite(tmp_path / "s.yaml")
    assert message in str(caught.value)
    assert "s.yaml:2: scenarios[0]" in str(caught.value)
