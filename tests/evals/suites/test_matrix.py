"""Configurations as a product, by routes and with tools of their own."""

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.suites.loader import expand_matrix, load_suite
from kestrel_lab.lab import Lab

SCENARIO = "scenarios: [{id: a, goal: Fix the bug in a.py, checks: [answer_contains: big]}]\n"
SCRIPT = "rules: [{when: '.', turns: [I am %s.]}]\n"


def test_every_combination_once():
    """As many configurations as the axes have values in product, called after what differs."""
    made = expand_matrix({"model": ["a", "b"], "plan": {"one": "", "pev": "pev"}, "temperature": [0.0]})
    assert made == [
        {"name": f"{model} {name}", "model": model, "plan": plan, "temperature": 0.0}
        for model in "ab"
        for name, plan in (("one", ""), ("pev", "pev"))
    ]


@pytest.mark.parametrize(
    ("matrix", "told"),
    [
        ({"modle": ["a"]}, "no axis 'modle'; did you mean 'model'"),
        ({"model": []}, "has no values"),
        ({"seed": list(range(300))}, "300 configurations"),
    ],
)
def test_what_cannot_be_expanded(matrix, told):
    """Axes that do not exist, are empty, or explode are refused."""
    with pytest.raises(UsageError, match=told):
        expand_matrix(matrix)


def test_a_suite_with_routes_tools_and_a_matrix(tmp_path):
    """Routes written in a configuration choose the model, tools of a configuration replace those of the
    scenario, and both are keyed.
    """
    for name in ("big", "small"):
        (tmp_path / f"{name}.yaml").write_text(SCRIPT % name)
    suite = tmp_path / "s.yaml"
    suite.write_text(
        SCENARIO
        + "configs:\n"
        + "  - {name: routed, routes: {code: 'scripted:big.yaml', otherwise: 'scripted:small.yaml'}}\n"
        + "  - {name: bare, model: 'scripted:big.yaml', tools: []}\n"
        + "matrix: {model: {large: 'scripted:big.yaml', little: 'scripted:small.yaml'}}\n"
    )
    frame = Lab(home=tmp_path / "home").eval_sync(suite).frame.set_index("config")
    assert frame["outcome"].to_dict() == {"routed": "pass", "bare": "pass", "large": "pass", "little": "fail"}
    assert frame["model_kind"].unique().tolist() == ["scripted"]
    loaded = load_suite(suite)
    assert len({str(config.definition()) for config in loaded.configs}) == 4
    assert loaded.configs[2].definition().keys() == {"model", "temperature", "seed", "limits"}


def test_a_configuration_without_tools_has_none(tmp_path):
    """An empty list is a choice: the tools of the scenario are not offered in its place."""
    suite = tmp_path / "s.yaml"
    script = "rules: [{when: ., turns: [[{tool: glob, args: {pattern: '*'}}], done]}]\n"
    (tmp_path / "model.yaml").write_text(script)
    suite.write_text(
        "name: s\nscenarios: [{id: a, goal: look, tools: [glob], checks: [{tool_used: glob}]}]\n"
        "configs: [{name: bare, model: 'scripted:model.yaml', tools: []}, {name: usual, model: "
        "'scripted:model.yaml'}]\n"
    )
    frame = Lab(home=tmp_path / "home").eval_sync(suite).frame.set_index("config")
    runs = {name: Lab(home=tmp_path / "home").get(run) for name, run in frame["run"].items()}
    offered = {name: [tool["name"] for tool in run.events()[0].tools] for name, run in runs.items()}
    assert offered == {"bare": [], "usual": ["glob"]}


def test_mistakes_are_told_with_their_place(tmp_path):
    """Both a model and routes, a wrong kind and a wrong value in a matrix are refused before anything
    runs.
    """
    suite = tmp_path / "s.yaml"
    suite.write_text(
        SCENARIO
        + "configs: [{name: x, model: local, routes: {otherwise: local}}]\nmatrix: {temperature: [-1.0]}\n"
    )
    with pytest.raises(UsageError) as caught:
        load_suite(suite)
    assert "s.yaml:2" in str(caught.value)
    assert "both model and routes" in str(caught.value)
    assert "s.yaml:3" in str(caught.value)
    assert "temperature" in str(caught.value)
    suite.write_text(SCENARIO + "configs: [{name: x, routes: {cod: local, otherwise: local}}]\n")
    with pytest.raises(UsageError, match="did you mean 'code'"):
        Lab(home=tmp_path / "home").eval_sync(suite)
    suite.write_text(SCENARIO + "configs: [{name: x, tools: [grap]}]\n")
    with pytest.raises(UsageError, match="configuration 'x': there is no tool 'grap'"):
        Lab(home=Lab(home=tmp_path / "home").home).eval_sync(suite)
