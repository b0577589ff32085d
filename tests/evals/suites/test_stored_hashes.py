"""Hashes of suites: results that are stored stay comparable."""

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.checks.files import FileContains
from kestrel_lab.core.json_types import content_key
from kestrel_lab.evals.guidance import Guidance
from kestrel_lab.evals.scenario_parts import GitCheckout, InlineFiles, PackageSource
from kestrel_lab.evals.seed_notes import GivenNote
from kestrel_lab.evals.suite import CassetteUse, Config, Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite

FILE = """\
name: pinned
epochs: 2
instructions: Be brief.
tools_from: [tools.py]
grader: openai/gpt-5
cassette: replay
gates: [{success_rate: {at_least: 0.5, config: local}}]
defaults:
  family: questions
  tools: [read_file]
  limits: {cycles: 5, seconds: 30}
  notes: [{name: port, text: The port is 8080., age_days: 2}]
configs:
  - openai/gpt-5
  - {name: local, model: local, temperature: 0, seed: 7, params: {top_p: 0.5}, limits: {cycles: 9}}
  - {name: guided, model: m, learning: true, tools: [], verify: repair, guidance: {text: {AGENTS.md: Be kind.}}}
  - {name: other, runner: claude-code, model: opus, plan: research, inputs: {a: 1}}
scenarios:
  - {id: capital, goal: What is the capital of France?, checks: [{answer_contains: Paris}]}
  - id: copy
    goal: Copy in.txt to out.txt
    before: [Look around]
    workspace: {files: {in.txt: hello}}
    limits: {cycles: 8, cost_usd: null}
    approve: auto
    expected: hello
    output: {type: object, properties: {a: {type: integer}}}
    notes: [{name: own, text: x, tags: [y]}]
    checks: [{file_contains: {path: out.txt, text: hello}}, {turns_at_most: 3}]
  - {id: source, goal: Where?, workspace: {package: networkx}, checks: [{answer_contains: x}]}
  - {id: folder, goal: Where?, workspace: {folder: data}, tools: [], checks: [{answer_contains: x}]}
"""

MADE = Suite(
    name="made",
    cassette=CassetteUse(mode="record"),
    instructions_from="prompt.md",
    configs=(
        Config(name="default"),
        Config(
            name="whole numbers", temperature=0, seed=1, limits={"seconds": 30}, tools=("grep",), form="brief"
        ),
        Config(name="none", guidance=Guidance(), routes={"otherwise": "m"}),
        Config(name="some", guidance=Guidance(files={"notes/how.md": "So."})),
    ),
    scenarios=(
        Scenario(id="a", goal="g", checks=(AnswerContains(texts=("x",)),)),
        Scenario(
            id="b",
            goal="g",
            checks=(FileContains(path="out.txt", text="hello"),),
            place=InlineFiles(files={"in.txt": "hello"}),
            tools=("read_file",),
            limits={"seconds": 30, "cycles": None},
            turns=("And then?",),
            containment="strict",
            before=("Look",),
            notes=(GivenNote(name="port", text="The port is 8080.", age_days=2, ttl_days=3),),
            output={"type": "integer"},
            expected=["x", 1],
            tags=("quick",),
            weight=2,
        ),
        Scenario(id="c", goal="g", checks=(), place=PackageSource(package="networkx")),
        Scenario(
            id="d", goal="g", checks=(), place=GitCheckout(repository=".", commit="0123456"), approve="deny"
        ),
    ),
)


def hashes(suite: Suite) -> list[str]:
    """The hashes that stored results hold of a suite, its scenarios and its configurations."""
    return [
        content_key(suite.definition())[:12],
        *(content_key(one.id, one.definition())[:12] for one in suite.scenarios),
        *(content_key(one.task())[:12] for one in suite.scenarios),
        *(content_key(one.name, one.definition(), False)[:12] for one in suite.configs),
    ]


def test_a_suite_file_has_the_hashes_of_results_that_are_stored(tmp_path):
    """The hashes were computed by an earlier version: another one would part old results from new ones."""
    (tmp_path / "pinned.yaml").write_text(FILE, encoding="utf-8")
    assert (
        hashes(load_suite(tmp_path / "pinned.yaml"))
        == "3030c5f3e29f 70b3e4b7590a 18d21eb95816 223c09fbe191 d6f3d8b99583 7f3b23fc2fac 92c87b1571ca e8a516c5a022 fd8afaecc98a 890cc092f210 38eb1616e503 b73449971a42 9482cc33ea33".split()
    )


def test_a_suite_made_in_python_has_the_hashes_of_results_that_are_stored():
    """A whole number stays one, as it was written, in limits and temperatures too."""
    assert (
        hashes(MADE)
        == "1c1ed61b62eb e452dee8f983 46b08c023ecb c7e82147180e b91421b4c24f e076f0e2fa96 5923405b982b 81b982333ccd bad63214deba 474d46cf8bd3 f24b902d21bd 742dcd6a6965 f7aca38571fa".split()
    )
