"""Suites of promptfoo, pydantic-evals, Inspect and Harbor are read without being run, and written all or not."""

import asyncio
import json
from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Trial
from kestrel_lab.evals.importers.suites.read import import_suite
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.tools.sandbox.levels import Level, Sandbox

PROMPTFOO = """
prompts: ['Say {{what}} in {{language}}', 'file://two.txt']
providers:
  - openai:chat:gpt-4o-mini
  - id: anthropic:messages:claude-x
    label: claude
    config: {temperature: 0.5, max_tokens: 9, tools: []}
  - python:mine.py
defaultTest:
  vars: {language: French}
  assert: [{type: not-icontains, value: sorry}]
templates: &shared {type: contains, value: '{{what}}!', metric: said, weight: 2}
tests:
  - description: A greeting
    vars: {what: [hello, bye]}
    threshold: 0.5
    assert:
      - *shared
      - {type: javascript, value: output.length < 9}
      - {type: assert-set, threshold: 0.5, assert: [{type: starts-with, value: A}, {type: is-json}]}
  - file://more.csv
scenarios:
  - config: [{vars: {what: one}}, {vars: {what: two}}]
    tests: [{assert: [{type: regex, value: '(?<x>[0-9])'}]}]
evaluateOptions: {repeat: 3}
"""
CSV = 'what,__expected,__expected2\nup,"icontains-any: a, b",latency: 500\ndown,exactly down,\n'
PYDANTIC = """
name: kinds
cases:
  - name: one
    inputs: {question: How many?}
    expected_output: '4'
    metadata: {level: easy}
    evaluators: [{Contains: {value: F, case_sensitive: false}}, {HasMatchingSpan: {query: {}}}]
evaluators: [EqualsExpected, {MaxDuration: 2}, Own]
"""
INSPECT = """
import os
from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import Sample, hf_dataset
from inspect_ai.scorer import choice, match, pattern
from inspect_ai.solver import generate, multiple_choice, system_message, use_tools

os.system("touch RAN")
TOP = "Be " + "brief."

def record(row):
    words = row["q"].strip().split(" ")
    return Sample(input=" ".join(words), target=str(row["a"]), metadata={"n": len(words)})

@task
def sums(level: str = "easy"):
    if os.environ.get("HARD"):
        level = "hard"
    return Task(
        dataset=hf_dataset("org/sums", sample_fields=record),
        solver=[system_message(TOP), use_tools([own_tool()]), generate()],
        scorer=match(numeric=True),
        epochs=Epochs(4, "at_least_2"),
        message_limit=7,
    )

@task
def choices():
    return Task(
        dataset=[Sample(input="Capital?", choices=["Oslo", "Rome"], target="B", id="c")],
        solver=multiple_choice(shuffle=True),
        scorer=[choice(), pattern(r"answer: (\\w)")],
    )

@task
def needs(path):
    return Task(dataset=[Sample(input=open(path).read())], scorer=mine())
"""
SIBLING = """
import os
os.system("touch RAN")
KINDS = {name: number for number, name in enumerate(["a", "b"])}

def load(limit, **more):
    chosen = {*KINDS, "c"} | {"d"} - {"a"}
    if not chosen:
        raise ValueError("nothing")
    def record(row, letters="AB"):
        choices = [one for part in row["parts"] for one in part.split(",") if one]
        return Sample(
            input=f"{len(chosen)} {row['q']:>3}", choices=choices, target=letters[row["right"]],
            metadata={"kind": next(KINDS), "size": 2 * len(choices)},
        )
    return hf_dataset("org/data", split="test", sample_fields=record, **more).filter(lambda one: one.ok)[:limit]
"""
WORKED_OUT = """
from pathlib import Path
from inspect_ai import Task, task
from .sibling import load
from inspect_evals.one.sibling import KINDS

@solver
def own():
    async def solve(state, generate):
        return state
    return solve

@task
def worked(limit: int = 3, solver=None, rounds: int = 2 * 2):
    assert limit
    settings = dict(max_tokens=9, top_k=3)
    return Task(
        dataset=load(limit, trust=True),
        solver=solver or [system_message(" and ".join(KINDS)), own(), multiple_choice()],
        scorer=choice(),
        sandbox=("docker", str(Path(__file__).parent / "compose.yaml")),
        config=GenerateConfig(temperature=0.5, **settings),
        message_limit=rounds * 3,
    )

@task
def grows():
    text = "x"
    for one in range(100):
        text = text.replace("x", "xx")
    return Task(dataset=[Sample(input=text)], scorer=match())
"""
TOML = """
version = "1.0"
[metadata]
category = "files"
difficulty = "easy"
[verifier]
timeout_sec = 20
[agent]
timeout_sec = 60
[environment]
memory_mb = 100
"""


def write(folder: Path, **files: str) -> Path:
    """The folder with these files."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def verdicts(suite: Suite, scenario: str, answer: str) -> dict[str, bool]:
    """What the checks of a scenario say of an answer, by label."""
    (one,) = [one for one in suite.scenarios if one.id == scenario]
    trial = Trial(goal="g", answer=answer, records=(), workspace=Path("/nowhere"))
    return {check.label: asyncio.run(check(trial)).passed for check in one.checks}


def lost(tmp_path: Path) -> str:
    """The list of what was not carried over."""
    return (tmp_path / "out.not-carried.md").read_text()


def test_promptfoo(tmp_path):
    """Prompts, variables in lists, CSV, scenarios, weights, thresholds, and what has to be run is named."""
    write(
        tmp_path,
        promptfooconfig_DOT_yaml=PROMPTFOO,
        two_DOT_txt='[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "{{what}}"}]',
        more_DOT_csv=CSV,
    )
    made = import_suite(tmp_path, out=tmp_path / "out.yaml")
    suite = load_suite(made.path)
    assert len(suite.scenarios) == 2 * (2 + 2 + 2)
    first = suite.scenarios[0]
    assert (first.id, first.goal, first.at_least) == ("a-greeting-prompt-1", "Say hello in French", 0.5)
    assert suite.scenarios[1].goal == "Be kind.\n\nhello"
    assert verdicts(suite, "a-greeting-prompt-1", "Ahello!") == {
        "not: answer contains 'sorry'": True,
        "said: answer contains 'hello!'": True,
        "all of: answer starts with 'A'; answer is JSON": True,
    }
    assert list(verdicts(suite, "test-2-prompt-1", "b").values()) == [True, True, True]
    assert list(verdicts(suite, "test-3-prompt-1", "exactly Down").values()) == [True, False]
    assert (suite.epochs, [one.model for one in suite.configs]) == (
        3,
        ["openai/gpt-4o-mini", "anthropic/claude-x"],
    )
    told = lost(tmp_path)
    for words in ("the assertion javascript", "'python:mine.py', which does not exist here", "--model NAME"):
        assert words in told


def test_pydantic_evals(tmp_path):
    """Cases, expected outputs, metadata and evaluators; own evaluators are named with the nearest way."""
    source = write(tmp_path, data_DOT_yaml=PYDANTIC) / "data.yaml"
    suite = load_suite(import_suite(source, out=tmp_path / "out.yaml").path)
    (one,) = suite.scenarios
    assert (one.goal, one.expected, dict(one.metadata)) == ("How many?", "4", {"level": "easy"})
    assert list(verdicts(suite, "one", "4").values()) == [True, True, False]
    assert "the evaluator Own" in lost(tmp_path)
    assert "tool_used, tools_in_order" in lost(tmp_path)


def test_inspect_is_read_and_never_run(tmp_path, monkeypatch):
    """Datasets in the file and in a table, solvers and scorers; what would have to be run has its line."""
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path, tasks_DOT_py=INSPECT, rows_DOT_jsonl='{"q": " 2 + 2 ", "a": 4}\n') / "tasks.py"
    suite = load_suite(import_suite(source, out="out.yaml", task="sums", data=tmp_path / "rows.jsonl").path)
    (one,) = suite.scenarios
    assert (one.goal, suite.instructions, suite.epochs, suite.reducer) == (
        "2 + 2",
        "Be brief.",
        4,
        "at_least_2",
    )
    assert (dict(one.metadata), dict(one.limits)) == ({"n": 3}, {"messages": 7})
    assert verdicts(suite, "sums-1", "I say 4.") == {"answer gives the number 4": True}
    told = lost(tmp_path)
    assert "the tool own_tool" in told
    assert "whether os.environ.get" in told or "would have to be run" in told
    assert not (tmp_path / "RAN").exists()
    both = import_suite(source, out="both.yaml")
    scenario = load_suite(both.path).scenarios[0]
    right = scenario.checks[-1].right[0]
    assert f"{right}) Rome" in scenario.goal
    assert [row.where for row in both.draft.missing if "needs" in row.where] == ["needs, line 36"]


def test_python_is_worked_out_as_far_as_it_is_needed(tmp_path):
    """Files beside a task are read, values computed, closures called; what is not known is told where it is
    needed and costs nothing else; what grows without end is refused.
    """
    source = write(tmp_path / "one", sibling_DOT_py=SIBLING, task_DOT_py=WORKED_OUT) / "task.py"
    (tmp_path / "rows.jsonl").write_text('{"q": "How?", "parts": ["x,y", ""], "right": 1}\n')
    made = import_suite(source, out=tmp_path / "out.yaml", task="worked", data=tmp_path / "rows.jsonl")
    suite = load_suite(made.path)
    (one,) = suite.scenarios
    assert (one.goal.split("\n")[0], dict(one.metadata), dict(one.limits)) == (
        "4 How?",
        {"size": 4},
        {"messages": 12},
    )
    assert suite.instructions == "a and b"
    assert (suite.configs[0].temperature, suite.configs[0].params["max_tokens"]) == (0.5, 9)
    assert {one.what for one in made.draft.missing} == {
        "the argument sandbox",
        "the setting top_k",
        "the solver own",
        "the choice of samples by filter",
        "the choice of samples by slice",
        "metadata that would have to be run: kind",
    }
    with pytest.raises(UsageError, match=r"too large.*load_dataset.'org/data', split='test'"):
        import_suite(source, out=tmp_path / "all.yaml")
    assert not (tmp_path / "RAN").exists()


def test_promptfoo_of_many_files(tmp_path):
    """Names with stars, loops over objects, lists of objects and texts that end in empty lines, none of which
    a suite without them has; a test without assertions is a remark and no loss.
    """
    write(
        tmp_path,
        promptfooconfig_DOT_yaml=(
            "prompts: ['p*.txt']\nproviders: ['file://model.yaml']\n"
            "tests: ['file://tests/*.yaml']\ndefaultTest: {vars: {said: [{user: Hi}, {user: Bye}]}}\n"
        ),
        p1_DOT_txt="{% for one in said %}{% for role, text in one %}{{role}} {{ text | dump }}. {% endfor %}{% endfor %}",
        p2_DOT_txt="Sum up {{what}}",
        model_DOT_yaml="{id: 'replicate:a/b', config: {max_completion_tokens: 7}}",
        tests__a_DOT_yaml='[{vars: {what: "this\\n\\n"}}]',
    )
    made = import_suite(tmp_path, out=tmp_path / "out.yaml")
    suite = load_suite(made.path)
    assert [one.goal for one in suite.scenarios] == ['user "Hi". user "Bye". ', "Sum up this\n\n"]
    assert (suite.configs[0].model, suite.configs[0].params["max_tokens"]) == ("replicate/a/b", 7)
    assert not made.draft.missing


def test_harbor(tmp_path):
    """Instruction, copied files, the Dockerfile and hidden tests, which judge the workspace at its own path."""
    task = write(
        tmp_path / "tasks" / "write-it",
        task_DOT_toml=TOML,
        instruction_DOT_md="Write 'done' to /app/out.txt.",
        environment__Dockerfile="FROM ubuntu\nWORKDIR /app\nCOPY given.txt /app/\nRUN make\n",
        environment__given_DOT_txt="given",
        tests__test_DOT_sh=(
            "#!/bin/sh\nif grep -q done /app/out.txt; then echo 0.5; else echo 0; fi > /logs/verifier/reward.txt\n"
        ),
    )
    suite = load_suite(import_suite(task.parent, out=tmp_path / "out.yaml").path)
    (one,) = suite.scenarios
    assert (one.goal, one.family, dict(one.limits)) == (
        "Write 'done' to /app/out.txt.",
        "files",
        {"seconds": 60},
    )
    assert (one.root, suite.resolve(one.dockerfile).read_text().split()[1]) == ("/app", "ubuntu")
    assert suite.resolve(one.place.folder).joinpath("given.txt").read_text() == "given"
    space = tmp_path / "space"
    space.mkdir()
    (space / "out.txt").write_text("done")
    sandbox = Sandbox(level=Level.S3, root=one.root)
    trial = Trial(goal="g", answer="", records=(), workspace=space, resolve=suite.resolve, sandbox=sandbox)
    score = asyncio.run(one.checks[0](trial))
    assert (score.passed, score.value) == (False, 0.5)
    assert not (tmp_path / "out.not-carried.md").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "x: 1\n", "no configuration of promptfoo"),
        ("a.py", "import os\n", "no function with @task"),
        ("a.py", "def (:\n", "a.py:1: is not Python"),
        ("a.toml", "", "no suite that can be read"),
        ("a.yaml", "prompts: [a]\ntests: 'file://gen.py'\n", "gen.py, which would have to be run"),
        ("a.yaml", "prompts: ['file://../../secret.txt']\n", "lies outside"),
        ("a.yaml", "a: &a [*a]\nprompts: [x]\n", "aliases make more than"),
        (
            "a.py",
            "from x import task\n@task\ndef t():\n    return Task(dataset=make(), scorer=match())\n",
            "fetched",
        ),
    ],
)
def test_nothing_is_half_written(tmp_path, name, text, message):
    """What cannot be carried over is said with its place, and no file is left."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        import_suite(tmp_path / name, out=tmp_path / "out.yaml")
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_a_file_that_is_there_stays(tmp_path):
    """Neither the suite nor its list replaces a file."""
    source = write(tmp_path, data_DOT_yaml=PYDANTIC) / "data.yaml"
    (tmp_path / "out.not-carried.md").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        import_suite(source, out=tmp_path / "out.yaml")
    assert not (tmp_path / "out.yaml").exists()


def promptfoo(tmp_path, config, **files):
    """What a configuration of promptfoo becomes: the suite, and what is said not to be carried over."""
    write(tmp_path, promptfooconfig_DOT_yaml=config, **files)
    made = import_suite(tmp_path, out=tmp_path / "out.yaml")
    return load_suite(made.path), [f"{one.where}: {one.what}" for one in made.draft.missing]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c"])
def test_promptfoo_tests_in_json_lines_are_lines_of_files(tmp_path, separator):
    """A separator inside of a text ends no line, and a line that is none costs itself alone."""
    rows = [
        json.dumps(
            {"vars": {"x": f"a{separator}{n}"}, "assert": [{"type": "contains", "value": "a"}]},
            ensure_ascii=False,
        )
        for n in range(2)
    ]
    suite, lost = promptfoo(
        tmp_path,
        "prompts: ['say {{x}}']\nproviders: ['openai:gpt-5-mini']\ntests: file://t.jsonl\n",
        t_DOT_jsonl="\n".join(
            [
                rows[0],
                "{",
                "5",
                rows[1],
            ]
        ),
    )
    assert [scenario.goal for scenario in suite.scenarios] == [f"say a{separator}0", f"say a{separator}1"]
    assert len(lost) == 2 and "t.jsonl:2" in lost[0] and "it is no mapping, but 5" in lost[1]


def test_suites_of_other_tools_are_named_with_the_way_to_bring_them(tmp_path):
    """By content or by name: whose it is and what to do."""
    write(tmp_path, a_DOT_yaml="instruction: Do it\nparser_name: pytest\n", b_DOT_ipynb="{}")
    with pytest.raises(UsageError, match="Terminal-Bench: a task: convert it with Harbor"):
        import_suite(tmp_path / "a.yaml")
    with pytest.raises(UsageError, match="no suite that can be read, but a file of a notebook"):
        import_suite(tmp_path / "b.ipynb")


def test_promptfoo_says_what_it_drops(tmp_path):
    """A variable that only the provider reads, graders that are not here, thresholds and weights that are none."""
    suite, lost = promptfoo(
        tmp_path,
        """
prompts: ['say {{x}}']
providers: ['openai:gpt-5-mini']
defaultTest: {options: {provider: {text: {id: 'openai:gpt-5', config: {temperature: 0}}}}}
tests:
  - vars: {x: a, temperature_of_tool: 3}
    threshold: '0.5'
    assert:
      - {type: contains, value: a, threshold: 0.9, weight: heavy}
      - {type: llm-rubric, value: it is kind, provider: 'file://grader.js', threshold: 1.5}
      - {type: llm-rubric, value: it is short, provider: 'anthropic:messages:claude-x'}
  - {vars: {x: b}, metadata: 5, threshold: 0.5, assert: [{type: contains, value: b}], options: {provider: 'openai:other'}}
""",
    )
    said = "\n".join(lost)
    assert suite.grader == "openai/gpt-5"
    for part in (
        "the settings of the grader openai/gpt-5",
        "vars.temperature_of_tool: the variable temperature_of_tool, which no prompt and no assertion reads",
        "the threshold '0.5'",
        "the threshold 0.9 of contains",
        "the weight 'heavy'",
        "the grader 'file://grader.js', which does not exist here",
        "the threshold 1.5 of llm-rubric",
        "the grader openai/other of one test",
        "tests[1].metadata: metadata: it is no mapping, but 5",
    ):
        assert part in said, part
    assert [scenario.at_least for scenario in suite.scenarios] == [None, 0.5]
