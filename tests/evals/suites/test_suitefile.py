"""Suite files: what they say, and what a reader is told who made a mistake."""

import json
from pathlib import Path

import jsonschema
import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.checks.files import FileContains
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.yaml.reader import parse_yaml, read_yaml
from kestrel_lab.evals.scenario_parts import FolderCopy, InlineFiles, PackageSource
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.evals.suites.json_schemas import schema_text
from kestrel_lab.evals.suites.loader import load_suite

FULL = """\
name: smoke
epochs: 2
concurrency: 3
count_errors: exclude
instructions: Be brief.
instructions_from: prompt.md
tools_from: [tools.py]
defaults:
  family: questions
  tools: [read_file]
  limits: {cycles: 5, seconds: 30}
configs:
  - openai/gpt-5
  - {name: local, model: local, temperature: 0, seed: 7, concurrency: 1, limits: {cycles: 9}}
scenarios:
  - id: capital
    goal: What is the capital of France?
    checks:
      - answer_contains: Paris
  - id: copy
    goal: Copy in.txt to out.txt
    family: files
    workspace: {files: {in.txt: hello}}
    tools: [read_file, write_file]
    limits: {cycles: 8, cost_usd: null}
    approve: auto
    expected: hello
    tags: [quick]
    weight: 2
    checks:
      - file_contains: {path: out.txt, text: hello}
  - id: source
    goal: Where?
    workspace:
      package: networkx
    checks: [{answer_contains: x}]
  - id: folder
    goal: Where?
    workspace:
      folder: data
    checks: [{answer_contains: x}]
"""


def written(folder: Path, text: str) -> Path:
    """A suite file with `text`."""
    path = folder / "smoke.yaml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """The message with which a suite file is refused, seen from its folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        load_suite(written(tmp_path, text))
    return str(caught.value)


def test_everything_is_read(tmp_path):
    """Each key arrives where it belongs; defaults fill in, limits are merged."""
    path = written(tmp_path, FULL)
    paris, hello, x = (
        AnswerContains(texts=("Paris",)),
        FileContains(path="out.txt", text="hello"),
        AnswerContains(texts=("x",)),
    )
    common = {"family": "questions", "tools": ("read_file",), "limits": {"cycles": 5, "seconds": 30}}
    assert load_suite(path) == Suite(
        name="smoke",
        epochs=2,
        concurrency=3,
        count_errors="exclude",
        instructions="Be brief.",
        instructions_from="prompt.md",
        tools_from=("tools.py",),
        configs=(
            Config(name="openai/gpt-5", model="openai/gpt-5"),
            Config(name="local", model="local", temperature=0, seed=7, concurrency=1, limits={"cycles": 9}),
        ),
        scenarios=(
            Scenario(id="capital", goal="What is the capital of France?", checks=(paris,), **common),
            Scenario(
                id="copy",
                goal="Copy in.txt to out.txt",
                checks=(hello,),
                family="files",
                place=InlineFiles(files={"in.txt": "hello"}),
                tools=("read_file", "write_file"),
                limits={"cycles": 8, "seconds": 30, "cost_usd": None},
                approve="auto",
                expected="hello",
                tags=("quick",),
                weight=2,
            ),
            Scenario(
                id="source", goal="Where?", checks=(x,), place=PackageSource(package="networkx"), **common
            ),
            Scenario(id="folder", goal="Where?", checks=(x,), place=FolderCopy(folder="data"), **common),
        ),
        path=path,
    )


def test_the_smallest_suite(tmp_path):
    """A goal and a check are enough; the file's name is the suite's."""
    suite = load_suite(written(tmp_path, "scenarios:\n- {id: a, goal: b, checks: [{answer_contains: c}]}\n"))
    assert (suite.name, suite.epochs, suite.concurrency, suite.count_errors) == ("smoke", 1, 4, "fail")
    assert suite.configs == (Config(name="default"),)


def test_policies_without_a_word():
    """Throw-away folders let the run do anything short of critical; an installed package is only read."""
    inline, package = (
        Scenario(id="a", goal="b", checks=(), place=place)
        for place in (InlineFiles(), PackageSource(package="x"))
    )
    assert (inline.policy, package.policy) == ("auto", "deny")


SCENARIO = "scenarios:\n  - id: a\n    goal: b\n    checks:\n      - answer_contains: c\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SCENARIO + "  - id: x\n    gaol: y\n    checks: [{answer_contains: c}]\n",
            "smoke.yaml:6: scenarios[1].goal: is missing\nsmoke.yaml:7: scenarios[1].gaol: unknown key; "
            "did you mean 'goal'?",
        ),
        ("epoch: 2\n" + SCENARIO, "smoke.yaml:1: epoch: unknown key; did you mean 'epochs'?"),
        ("epochs: 0\n" + SCENARIO, "smoke.yaml:1: epochs: must be greater than or equal to 1, not 0"),
        ("epochs: two\n" + SCENARIO, "smoke.yaml:1: epochs: must be a whole number, not 'two'"),
        ("name: 12\n" + SCENARIO, "smoke.yaml:1: name: must be text, not 12; put it in quotes"),
        (
            "count_errors: ignore\n" + SCENARIO,
            "smoke.yaml:1: count_errors: must be 'fail' or 'exclude', not 'ignore'",
        ),
        (
            "configs: [{name: a, temprature: 1}]\n" + SCENARIO,
            "smoke.yaml:1: configs[0].temprature: unknown key; did you mean 'temperature'?",
        ),
        ("configs: local\n" + SCENARIO, "smoke.yaml:1: configs: must be a list, not 'local'"),
        (
            "configs: [a, a]\n" + SCENARIO,
            "smoke.yaml:1: configs[1]: the configuration name 'a' is used already at smoke.yaml:1: "
            "configs[0]",
        ),
        (
            SCENARIO + "    limits: {cycle: 3}\n",
            "smoke.yaml:6: scenarios[0].limits.cycle: unknown key; did you mean 'cycles'?",
        ),
        (
            SCENARIO + "    limits: {cycles: -3}\n",
            "smoke.yaml:6: scenarios[0].limits: limit 'cycles' must be a positive whole number or "
            "None, not -3",
        ),
        (
            SCENARIO + "      - answer_contian: c\n",
            "smoke.yaml:6: scenarios[0].checks[1]: 'answer_contian' is not a check; did you mean "
            "'answer_contains'?",
        ),
        (
            SCENARIO + "    workspace: {folder: a, package: b}\n",
            "smoke.yaml:6: scenarios[0].workspace: a workspace is one of files, folder, package, and "
            "repository with commit, not folder and package",
        ),
        (
            SCENARIO + "    workspace: {files: {../x: y}}\n",
            "smoke.yaml:6: scenarios[0].workspace: the file '../x' must be a relative path without '..'",
        ),
        (
            SCENARIO + "    approve: ask\n",
            "smoke.yaml:6: scenarios[0].approve: a suite cannot ask anybody for approval: write 'auto', "
            "'auto:LEVEL' or 'deny'",
        ),
        (
            SCENARIO + "    approve: never\n",
            "smoke.yaml:6: scenarios[0].approve: unknown approval policy 'never': known: ask, auto, deny",
        ),
        (
            SCENARIO + SCENARIO.removeprefix("scenarios:\n"),
            "smoke.yaml:6: scenarios[1]: the scenario name 'a' is used already at smoke.yaml:2: scenarios[0]",
        ),
        (
            "scenarios: []\n",
            "smoke.yaml:1: the suite has no scenarios: write some under 'scenarios', or name files "
            "under 'scenarios_from'",
        ),
        ("- a\n", "smoke.yaml:1: must be a mapping of keys to values, not ['a']"),
        ("", "smoke.yaml:1: must be a mapping of keys to values, not nothing"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path, monkeypatch, text, message):
    """File, line, key, what is wrong and the nearest right spelling."""
    assert refusal(tmp_path, monkeypatch, text) == message


def test_many_mistakes_are_told_at_once(tmp_path, monkeypatch):
    """Up to forty lines, then how many more there are."""
    message = refusal(tmp_path, monkeypatch, "scenarios:\n" + "- {}\n" * 15)
    assert message.count("\n") == 40
    assert message.endswith("… and 5 more")


def test_all_mistakes_of_a_file_are_told_in_one_round(tmp_path, monkeypatch):
    """Wrong keys and wrong values, scenarios, gates, configurations and files taken in, from top to bottom;
    what follows from a mistake is not told.
    """
    (tmp_path / "more.yaml").write_text(
        "scenarios:\n  - {id: a, goal: 1, checks: [{tool_used: 3}]}\n  - oh\n"
    )
    text = """\
epochs: two
configs: [{name: a, temprature: 1}, {name: a, limits: {cycles: -1}}]
cassette: {mode: repaly, volatile: ['(']}
gates:
  - success_rat: {at_least: 0.5}
  - success_rate: {at_leest: 0.5}
  - success_rate: {at_least: 0.5, family: far}
scenarios:
  - id: a
    gaol: x
    family: far
    checks: [{answer_contian: c}, {answer_matches: '('}]
  - id: b
    goal: x
    tags: [1]
    workspace: {repository: ., commit: main}
    checks: [{recall_at: {items: [a], k: 0}}]
  - id: b
    goal: y
    checks: []
scenarios_from: [none.yaml, more.yaml]
"""
    lines = refusal(tmp_path, monkeypatch, text).splitlines()
    assert [line.rpartition("; ")[0] or line for line in lines] == [
        "smoke.yaml:1: epochs: must be a whole number, not 'two'",
        "smoke.yaml:2: configs[0].temprature: unknown key",
        "smoke.yaml:2: configs[1].limits: limit 'cycles' must be a positive whole number or None, not -1",
        "smoke.yaml:2: configs[1]: the configuration name 'a' is used already at smoke.yaml:2: configs[0]",
        "smoke.yaml:3: cassette.mode: must be 'off', 'record', 'replay' or 'refresh', not 'repaly'",
        "smoke.yaml:3: cassette.volatile[0]: '(' is not a regular expression: missing ), unterminated "
        "subpattern at position 0",
        "smoke.yaml:5: gates[0]: there is no metric 'success_rat' to set a bound for",
        "smoke.yaml:6: gates[1].success_rate.at_leest: unknown key",
        "smoke.yaml:9: scenarios[0].goal: is missing",
        "smoke.yaml:10: scenarios[0].gaol: unknown key",
        "smoke.yaml:12: scenarios[0].checks[0]: 'answer_contian' is not a check",
        "smoke.yaml:12: scenarios[0].checks[1]: answer_matches: '(' is not a regular expression: "
        "missing ), unterminated subpattern at position 0",
        "smoke.yaml:15: scenarios[1].tags[0]: must be text, not 1",
        "smoke.yaml:16: scenarios[1].workspace: commit is a hash of 7 to 40 digits, which always means "
        "the same, not 'main': git rev-parse says it",
        "smoke.yaml:17: scenarios[1].checks[0]: recall_at needs k of at least 1, and at_least from 0 "
        "to 1, not 0 and 1.0",
        "smoke.yaml:18: scenarios[2]: the scenario name 'b' is used already at smoke.yaml:13: scenarios[1]",
        "smoke.yaml:20: scenarios[2].checks: must not be empty",
        "smoke.yaml:21: scenarios_from[0]: there is no scenario file 'none.yaml', neither beside the "
        "suite nor at the top of its repository",
        "more.yaml:2: scenarios[0].goal: must be text, not 1",
        "more.yaml:2: scenarios[0].checks[0]: tool_used.name is text, not 3",
        "more.yaml:2: scenarios[0]: the scenario name 'a' is used already at smoke.yaml:9: scenarios[0]",
        "more.yaml:3: scenarios[1]: must be a mapping of keys to values, not 'oh'",
    ]


def test_scenarios_are_selected_by_name_family_and_tag(tmp_path):
    """Within one of them any will do, of several all must hold; what fits nothing is answered with the
    nearest.
    """
    suite = load_suite(written(tmp_path, FULL + "gates: [{success_rate: {at_least: 0.5, family: files}}]\n"))

    def ids(**wanted):
        cut = suite.select(**wanted)
        return [scenario.id for scenario in cut.scenarios], len(cut.gates)

    assert ids(families=["files"]) == (["copy"], 1)
    assert ids(families=["questions"]) == (["capital", "source", "folder"], 0)
    assert ids(tags=["quick"]) == (["copy"], 1)
    assert ids(scenarios=["c*", "folder"]) == (["capital", "copy", "folder"], 1)
    assert ids(scenarios=["c*"], families=["questions"]) == (["capital"], 0)
    for wanted, why in (
        ({"families": ["file"]}, "the suite has no family 'file'; did you mean 'files'"),
        ({"tags": ["slow"]}, "the suite has no tag 'slow'; known: quick"),
        ({"scenarios": ["x*"]}, r"the suite has no scenario 'x\*'"),
        ({"scenarios": ["capital"], "tags": ["quick"]}, "matches all of the given names, families and tags"),
    ):
        with pytest.raises(UsageError, match=why):
            suite.select(**wanted)


def test_names_are_found_beside_the_file_or_at_the_top(tmp_path):
    """A suite's files are looked for in its folder, then at the top of its repository, never outside."""
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "evals"
    folder.mkdir()
    for place in (tmp_path / "tools.py", tmp_path / "both", folder / "both"):
        place.write_text("")
    suite = load_suite(written(folder, SCENARIO))
    assert suite.root == tmp_path
    assert suite.resolve("tools.py") == tmp_path / "tools.py"
    assert suite.resolve("both") == folder / "both"
    for name, why in (
        ("nothing", "which does not exist; looked in"),
        ("../..", "outside its repository"),
        (str(tmp_path), "write it relative"),
    ):
        with pytest.raises(UsageError, match=why):
            suite.resolve(name)


def test_a_suite_can_be_read_for_another_checkout(tmp_path):
    """With `at`, what the suite names is looked for there."""
    other = tmp_path / "other"
    (other / "evals").mkdir(parents=True)
    (other / ".git").write_text("gitdir: x")
    suite = load_suite(written(tmp_path, SCENARIO), at=other / "evals" / "smoke.yaml")
    assert (suite.root, suite.path) == (other, other / "evals" / "smoke.yaml")


def test_select(tmp_path):
    """A suite is cut down by name; a wrong name is answered with the nearest."""
    suite = load_suite(written(tmp_path, FULL))
    cut = suite.select(configs=["local"], scenarios=["copy"], epochs=5)
    assert ([c.name for c in cut.configs], [s.id for s in cut.scenarios], cut.epochs) == (
        ["local"],
        ["copy"],
        5,
    )
    with pytest.raises(UsageError, match="no configuration 'lokal'; did you mean 'local'"):
        suite.select(configs=["lokal"])


def test_definitions_leave_out_what_changes_nothing(tmp_path):
    """Renaming a configuration or weighing a scenario does not make results stale; a changed goal does."""
    suite = load_suite(written(tmp_path, FULL))
    assert Config(name="a", model="m").definition() == Config(name="b", model="m", concurrency=1).definition()
    heavy = load_suite(written(tmp_path, FULL.replace("weight: 2", "weight: 3"))).scenarios[1]
    other = load_suite(written(tmp_path, FULL.replace("Copy in.txt", "Move in.txt"))).scenarios[1]
    assert suite.scenarios[1].definition() == heavy.definition() != other.definition()


@pytest.mark.parametrize(("kind", "files"), [("suite", ["evals"]), ("scenario", ["scenarios"])])
def test_the_schema_is_for_editors(kind, files):
    """An editor finds no fault with the suites and scenarios that come with the project, and finds one with a
    misspelt key.
    """
    validator = jsonschema.Draft202012Validator(json.loads(schema_text(kind)))
    root = Path(__file__).parents[3]
    paths = [path for folder in files for path in sorted((root / folder).glob("*.yaml"))]
    assert paths
    for path in paths:
        value = read_yaml(path).value
        assert [error.message for error in validator.iter_errors(value)] == [], path
        assert list(validator.iter_errors({**value, "scenarois": []}))
    assert kind == "scenario" or list(validator.iter_errors(parse_yaml(FULL, "full").value)) == []
    assert list(
        validator.iter_errors({"scenarios": [{"id": "a", "goal": "b", "checks": [{"answer_contian": "c"}]}]})
    )


def test_scenarios_come_from_files_too(tmp_path: Path) -> None:
    """Scenario files are found beside the suite; their defaults go before the suite's; mistakes name the file
    they are in.
    """
    (tmp_path / "more.yaml").write_text(
        "defaults: {family: far}\nscenarios:\n  - {id: b, goal: go, checks: [{answer_contains: x}]}\n"
    )
    suite = tmp_path / "suite.yaml"
    text = (
        "defaults: {family: near, limits: {cycles: 3}}\nscenarios_from: [more.yaml]\nscenarios:\n  - "
        "{id: a, goal: go, checks: [{answer_contains: x}]}\n"
    )
    suite.write_text(text)
    loaded = load_suite(suite)
    assert [(s.id, s.family, s.limits) for s in loaded.scenarios] == [
        ("a", "near", {"cycles": 3}),
        ("b", "far", {"cycles": 3}),
    ]
    (tmp_path / "more.yaml").write_text("scenarios:\n  - {id: b, gaol: go, checks: [{answer_contains: x}]}\n")
    with pytest.raises(
        UsageError, match=r"more.yaml:2: scenarios\[0\].gaol: unknown key; did you mean 'goal'"
    ):
        load_suite(suite)
    suite.write_text("scenarios_from: [none.yaml]\n")
    with pytest.raises(
        UsageError, match=r"suite.yaml:1: scenarios_from\[0\]: there is no scenario file 'none.yaml'"
    ):
        load_suite(suite)
    suite.write_text("name: empty\n")
    with pytest.raises(UsageError, match="the suite has no scenarios"):
        load_suite(suite)


def test_what_python_code_gets_wrong_is_a_usage_error():
    """A scenario made in Python refuses unknown names and other types as a file does; a copy is checked too,
    and nothing can be set.
    """
    with pytest.raises(UsageError, match=r"Scenario: gaol: unknown key; did you mean 'goal'"):
        Scenario(id="a", gaol="g", goal="g", checks=())
    with pytest.raises(UsageError, match=r"Config: seed: must be a whole number, not '7'"):
        Config(name="a", seed="7")
    one = Scenario(id="a", goal="g", checks=(), tags=["quick"])
    assert one.tags == ("quick",)
    with pytest.raises(UsageError, match="epochs and concurrency are at least 1"):
        Suite(name="s", scenarios=(one,)).model_copy(update={"epochs": 0})
    with pytest.raises(ValueError, match="frozen"):
        one.goal = "another"


def test_turns_and_containment_are_written_in_a_file_and_what_only_python_has_is_not(tmp_path, monkeypatch):
    """The keys of a file are the fields of a scenario, but for values that no file can hold."""
    text = "scenarios:\n  - {id: a, goal: g, turns: [And then?], containment: strict, checks: [{tool_used: x}]}\n"
    (one,) = load_suite(written(tmp_path, text)).scenarios
    assert (one.turns, one.containment) == (("And then?",), "strict")
    told = refusal(tmp_path, monkeypatch, text.replace("turns: [And then?]", "environment: x") + "path: x\n")
    assert "smoke.yaml:2: scenarios[0].environment: unknown key" in told
    assert "smoke.yaml:3: path: unknown key" in told
