"""Running suites: what comes out, what is stored, how errors count, and what it costs."""

import asyncio
import json
import subprocess
import sys

import pytest
from waits import Meeting

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.checks.files import FileContains
from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.run_types import Limits
from kestrel_lab.evals.execution import runner
from kestrel_lab.evals.execution.prepare import prepare_suite
from kestrel_lab.evals.execution.runner import TrialsToRun, plan_trials, run_suite, run_trials
from kestrel_lab.evals.scenario_parts import InlineFiles, PackageSource
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.result_table import COLUMNS
from kestrel_lab.lab import Lab
from kestrel_lab.testing import FixedCheck, RecordingReporter, ScriptedModel


def by_goal(request):
    """A model that knows some goals: it writes files on request, loops, fails, and is wrong."""
    goal = next(message.text for message in request.messages if message.role == "user")
    done = any(message.role == "tool" for message in request.messages)
    if goal == "break":
        return ModelError("the provider is down")
    if goal == "loop":
        return [("list_directory", {"path": "."})]
    if goal == "write" and not done:
        return [("write_file", {"path": "out.txt", "content": "hello"})]
    return "wrong" if goal == "err" else "the answer is 42"


MODEL = ScriptedModel(by_goal, name="by goal")
RIGHT = AnswerContains(texts=("42",))


def scenario(name, *, goal=None, checks=(RIGHT,), **rest):
    """A scenario named `name`, with the goal of that name."""
    return Scenario(id=name, goal=goal or name, checks=checks, **rest)


@pytest.fixture
def lab(tmp_path):
    """A session over a fresh log."""
    session = Lab(tmp_path / "home", env={})
    yield session
    session.close()


def evaluate(lab, suite, **options):
    """The result of a suite, with the model above unless told otherwise."""
    return asyncio.run(run_suite(lab, suite, **({"configs": {"m": MODEL}} | options)))


MIXED = Suite(
    name="mixed",
    scenarios=(
        scenario("ask"),
        scenario("err", family="hard"),
        scenario("break"),
        scenario("write", checks=(FileContains(path="out.txt", text="hello"),), tools=("write_file",)),
        scenario("loop", limits={"cycles": 3}),
    ),
    epochs=2,
)


def test_one_tidy_row_per_trial(lab):
    """Rows are scenario × configuration × epoch, in order, with outcome, metrics and where to look."""
    frame = evaluate(lab, MIXED).frame
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame["scenario"]) == [
        name for name in ("ask", "err", "break", "write", "loop") for _ in range(2)
    ]
    assert list(frame["epoch"]) == [1, 2] * 5
    assert list(frame.loc[frame["epoch"] == 1, "outcome"]) == ["pass", "fail", "error", "pass", "fail"]
    assert set(frame["model_kind"]) == {"scripted"}
    first = frame[frame["epoch"] == 1].set_index("scenario")
    assert dict(first["reason"]) == {
        "ask": "",
        "err": "answer contains '42': missing '42'; answered 'wrong'",
        "break": "the provider is down",
        "write": "",
        "loop": "the limit of 3 model turns is reached",
    }
    assert dict(first["tool_calls"]) == {"ask": 0, "err": 0, "break": 0, "write": 1, "loop": 3}
    assert dict(first["success"]) == {"ask": 1, "err": 0, "break": 0, "write": 1, "loop": 0}
    assert [lab.get(run).goal for run in first["run"]] == ["ask", "err", "break", "write", "loop"]


def test_broken_trials_count_as_failed_unless_excluded(lab):
    """Errors are in the denominator by default, can be left out on purpose, and are counted either way."""
    kept = evaluate(lab, MIXED).summary().loc["m"]
    left_out = evaluate(lab, MIXED.model_copy(update={"count_errors": "exclude"})).summary().loc["m"]
    assert (kept["success_rate"], kept["trials"], kept["errors"]) == (0.4, 10, 2)
    assert (left_out["success_rate"], left_out["trials"], left_out["errors"]) == (0.5, 10, 2)
    assert kept["low"] < 0.4 < kept["high"]


def test_a_broken_check_is_an_error_not_a_verdict(lab):
    """A check that cannot form an opinion breaks its trial and no other."""

    class Broken:
        label = "broken"

        async def __call__(self, trial):
            raise RuntimeError("no idea")

    rows = evaluate(lab, Suite(name="s", scenarios=(scenario("a", checks=(Broken(),)), scenario("b")))).rows
    assert [(row.result["outcome"], row.result["reason"]) for row in rows] == [
        ("error", "the check 'broken' failed: RuntimeError: no idea"),
        ("pass", ""),
    ]


def test_scores_are_tidy_too(lab):
    """One row per trial and check, passed or not."""
    suite = Suite(name="s", scenarios=(scenario("a", checks=(RIGHT, FixedCheck(passes=False))),))
    result = evaluate(lab, suite)
    assert result.scores.to_dict("records") == [
        {
            "scenario": "a",
            "config": "m",
            "epoch": 1,
            "check": "answer contains '42'",
            "passed": True,
            "value": 1.0,
            "reason": "",
            "grading_cost": 0.0,
        },
        {
            "scenario": "a",
            "config": "m",
            "epoch": 1,
            "check": "fixed",
            "passed": False,
            "value": 0.0,
            "reason": "as scripted",
            "grading_cost": 0.0,
        },
    ]
    assert list(result.frame["score"]) == [0.5]


def test_trials_are_stored_at_once(lab):
    """Every finished trial is in the log with its metrics, also when the suite was stopped in the middle."""

    async def interrupted():
        def stop(done, total, note):
            if done == 3:
                task.cancel()

        task = asyncio.ensure_future(
            run_suite(lab, MIXED, configs={"m": MODEL}, reporter=stop, concurrency=1)
        )
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    lab.store.flush()
    stored = stored_trials(lab.store, suite="mixed")
    # What ended while the third was on its way to the disk is there as well.
    assert [(row.scenario, row.epoch, row.result["outcome"]) for row in stored][:3] == [
        ("ask", 1, "pass"),
        ("err", 1, "fail"),
        ("break", 1, "error"),
    ]
    assert stored[0].metrics["model_calls"] == 1.0


def test_trials_run_at_once_within_bounds(lab):
    """No more trials at once than the suite allows, and fewer for a configuration that says so."""
    meetings = {"fast": Meeting(2), "alone": Meeting(1), "both": Meeting(3)}

    class Slow:
        kind = "scripted"

        def __init__(self, name):
            self.name = name

        async def __call__(self, request, on_delta):
            async with meetings[self.name], meetings["both"]:
                await asyncio.sleep(0.01)
            return await MODEL(request, on_delta)

    suite = Suite(
        name="s",
        scenarios=tuple(scenario(f"s{n}") for n in range(12)),
        configs=(Config(name="fast"), Config(name="alone", concurrency=1)),
        concurrency=3,
    )
    ready = prepare_suite(lab, suite, models={"fast": Slow("fast"), "alone": Slow("alone")})
    rows = asyncio.run(
        run_trials(
            TrialsToRun(
                lab=lab,
                ready=ready,
                asks=plan_trials(suite, code="", git_sha=""),
                on_row=lambda row: None,
            )
        )
    )
    assert len(rows) == 24
    assert (meetings["alone"].most, meetings["both"].most) == (1, 3)
    assert meetings["fast"].most <= 3


def test_progress_is_told(lab):
    """The reporter hears of each trial, with counts of outcomes."""
    reporter = RecordingReporter()
    evaluate(
        lab, Suite(name="s", scenarios=(scenario("ask"), scenario("err"))), reporter=reporter, concurrency=1
    )
    told = [
        (done, total, note.partition(" · ")[0]) for done, total, note in reporter.reports
    ]  # on a slow machine more is said
    assert list(dict.fromkeys(told)) == [(0, 2, ""), (1, 2, "1 passed"), (2, 2, "1 passed, 1 failed")]


def test_settings_reach_the_model(lab):
    """Temperature and seed are in every request; the seed moves with the epoch, limits of a configuration
    win.
    """
    seen = []

    class Watched:
        name, kind = "watched", "scripted"

        async def __call__(self, request, on_delta):
            seen.append((request.temperature, request.seed))
            return await MODEL(request, on_delta)

    suite = Suite(
        name="s",
        scenarios=(scenario("loop", limits={"cycles": 5}),),
        configs=(Config(name="c", temperature=0.5, seed=7, limits={"cycles": 1}),),
        epochs=2,
    )
    ready = prepare_suite(lab, suite, models={"c": Watched()})
    rows = asyncio.run(
        run_trials(
            TrialsToRun(
                lab=lab,
                ready=ready,
                asks=plan_trials(suite, code="", git_sha=""),
                on_row=lambda row: None,
            )
        )
    )
    assert sorted(seen) == [(0.5, 7), (0.5, 8)]
    assert ready.limits(suite.scenarios[0], suite.configs[0], Limits(tokens=9)) == Limits(cycles=1, tokens=9)
    assert rows[0].result["reason"] == "the limit of 1 model turns is reached"


def test_each_trial_has_its_own_folder(lab, tmp_path):
    """What one trial writes no other sees; folders are gone afterwards, or kept when asked."""
    write = scenario(
        "write",
        checks=(parse_check({"file_contains": {"path": "out.txt", "text": "hello"}}),),
        tools=("write_file",),
    )
    look = scenario(
        "look",
        goal="42",
        checks=tuple(
            map(
                parse_check,
                [{"file_absent": "out.txt"}, {"file_contains": {"path": "d/in.txt", "text": "x"}}],
            )
        ),
        place=InlineFiles(files={"d/in.txt": "x"}),
    )
    suite = Suite(name="s", scenarios=(write, look), epochs=2)
    result = evaluate(lab, suite, keep=True)
    assert [row.result["outcome"] for row in result.rows] == ["pass"] * 4
    kept = sorted(
        str(path.relative_to(folder))
        for folder in (tmp_path / "home" / "trials").iterdir()
        for path in folder.rglob("*.txt")
    )
    assert kept == ["d/in.txt", "d/in.txt", "out.txt", "out.txt"]


def test_a_package_is_read_in_place(lab):
    """An installed package is the workspace, read-only, and its files are there to be read."""

    def read(request):
        if not any(message.role == "tool" for message in request.messages):
            return [("read_file", {"path": "convert.py"}), ("write_file", {"path": "x", "content": "y"})]
        return " ".join(message.text for message in request.messages if message.role == "tool")

    package = scenario(
        "p",
        place=PackageSource(package="networkx"),
        tools=("read_file", "write_file"),
        checks=(AnswerContains(texts=("to_networkx_graph",)), parse_check({"file_absent": "x"})),
    )
    row = evaluate(lab, Suite(name="s", scenarios=(package,)), configs={"m": ScriptedModel(read)}).rows[0]
    assert (row.result["outcome"], row.result["reason"]) == ("pass", "")


def test_what_is_not_there_is_told_before_the_first_trial(lab, tmp_path):
    """Missing packages, tools and scripts end the suite at once, each with what to do."""
    missing = scenario("p", place=PackageSource(package="no_such_package"))
    with pytest.raises(UsageError, match="pip install no_such_package"):
        evaluate(lab, Suite(name="s", scenarios=(scenario("a"), missing)))
    with pytest.raises(UsageError, match="there is no tool 'red_file'; did you mean 'read_file'"):
        evaluate(lab, Suite(name="s", scenarios=(scenario("a", tools=("red_file",)),)))
    with pytest.raises(UsageError, match=r"names 'no\.yaml', which does not exist"):
        evaluate(
            lab,
            Suite(name="s", scenarios=(scenario("a"),), path=tmp_path / "s.yaml"),
            configs={"m": "scripted:no.yaml"},
        )
    assert lab.store.runs() == []


SUITE_FILE = """\
tools_from: [tools.py]
instructions_from: prompt.md
configs: [{name: script, model: "scripted:script.yaml"}]
scenarios:
  - id: twice
    goal: double 21
    checks: [{answer_contains: "42"}, {tool_used: double}]
"""
SCRIPT = """\
rules:
  - when: double
    turns:
      - [{tool: double, args: {n: 21}}]
      - It is 42.
"""
TOOLS = '''\
from kestrel_lab import tool
from helper import FACTOR

@tool(danger_level="safe", effect="pure")
def double(n: int) -> int:
    """Double a number."""
    return FACTOR * n
'''


def project(folder):
    """An agent project: suite, script, tools, prompt."""
    files = {
        "suite.yaml": SUITE_FILE,
        "script.yaml": SCRIPT,
        "tools.py": TOOLS,
        "helper.py": "FACTOR = 2\n",
        "prompt.md": "Use tools.",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "suite.yaml"


def test_a_project_brings_tools_prompt_and_script(lab, tmp_path):
    """Tools of Python files, instructions and scripts are taken from beside the suite, and leave nothing
    there.
    """
    path = project(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = asyncio.run(run_suite(lab, path))
    assert [
        (row.result["outcome"], row.result["model"], row.result["model_kind"]) for row in result.rows
    ] == [("pass", "scripted:script.yaml", "scripted")]
    run = lab.get(str(result.rows[0].result["run"]))
    assert "Use tools." in run.events()[0].system
    assert [p for p in sorted(tmp_path.rglob("*")) if "home" not in p.parts] == [
        p for p in before if "home" not in p.parts
    ]


def git(folder, *args):
    """Run git with a fixed identity."""
    return subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", *args],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_stored_trials_are_reused_and_the_rest_explained(lab, tmp_path):
    """A rerun at the same commit takes what is stored; changed parts are run again, with the reason."""
    repo = tmp_path / "repo"
    repo.mkdir()
    path = project(repo)
    git(repo, "init", "-q")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "one")

    def again(**options):
        result = asyncio.run(run_suite(lab, path, reuse=True, **options))
        told = "\n".join(result.lines())
        assert all((why in told) is (why != "not run before") for why in result.why)
        assert (".gitignore" in told) is any("code" in why for why in result.why)
        return len(result.rows), result.reused, result.why

    assert again() == (1, 0, {"not run before": 1})
    assert again() == (1, 1, {})
    assert again(epochs=3) == (3, 1, {"not run before": 2})
    path.write_text(SUITE_FILE.replace("double 21", "please double 21"))
    assert again() == (1, 0, {"its scenario changed, the code changed": 1})
    path.write_text(SUITE_FILE)
    assert again() == (1, 1, {})
    (repo / "helper.py").write_text("FACTOR = 3\n")
    assert again() == (1, 0, {"the code changed": 1})
    (repo / "silent.yaml").write_text("rules:\n  - when: nothing of the kind\n    turns: [never]\n")
    silent = {"silent": "scripted:silent.yaml"}
    assert [again(configs=silent)[2] for _ in range(2)] == [{"not run before": 1}, {"it broke before": 1}]
    shas = {row.git_sha for row in stored_trials(lab.store, suite="suite")}
    head = git(repo, "rev-parse", "HEAD")
    assert head in shas
    assert all(sha == head or sha.startswith(f"{head}-dirty.") for sha in shas)


def test_outside_git_nothing_is_reused(lab, tmp_path):
    """Without a commit nothing tells whether code changed, so everything is run, and that is said."""
    path = project(tmp_path)
    asyncio.run(run_suite(lab, path))
    result = asyncio.run(run_suite(lab, path, reuse=True))
    assert (result.reused, list(result.why.values())) == (0, [1])


def test_models_in_order_are_a_configuration(lab, tmp_path):
    """`a > b` names two scripts beside the suite as it does for a run: the second answers where the first
    says nothing; a route may name them, too.
    """
    path = project(tmp_path)
    (tmp_path / "silent.yaml").write_text("rules: [{when: double, turns: ['', '']}]\n")
    both = "scripted:silent.yaml > scripted:script.yaml"
    given = {"both": both, "routed": Config(name="routed", routes={"code": "none", "otherwise": both})}
    result = asyncio.run(run_suite(lab, path, configs=given))
    ends = {row.config: (row.result["outcome"], row.result["model_kind"]) for row in result.rows}
    assert ends == {"both": ("pass", "scripted"), "routed": ("pass", "scripted")}
    assert result.rows[0].result["model"].count("scripted:") == 2


def test_configurations_can_be_chosen_and_given(lab, tmp_path):
    """By name, or new ones by a model's name, a model or a whole configuration."""
    path = project(tmp_path)
    suite = load_suite(path)
    given = {
        "a": "scripted:script.yaml",
        "b": MODEL,
        "c": Config(name="x", model="scripted:script.yaml", seed=3),
    }
    result = asyncio.run(run_suite(lab, suite, configs=given))
    assert [(row.config, row.result["outcome"]) for row in result.rows] == [
        ("a", "pass"),
        ("b", "fail"),
        ("c", "pass"),
    ]
    with pytest.raises(UsageError, match="no configuration 'scrip'; did you mean 'script'"):
        asyncio.run(run_suite(lab, suite, configs=["scrip"]))
    with pytest.raises(UsageError, match="configuration 'a' is a model's name, a model or a Config, not int"):
        asyncio.run(run_suite(lab, suite, configs={"a": 3}))


BENCH = """
import asyncio, json, sys
from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.lab import Lab
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.testing import ScriptedModel
session = Lab(sys.argv[1], env={})
model = ScriptedModel([[("list_directory", {"path": "."})], "the answer is 42"])
scenarios = tuple(Scenario(id=f"s{n}", goal="g", checks=(AnswerContains(texts=("42",)),)) for n in range(500))
asyncio.run(run_suite(session, Suite(name="warm", scenarios=scenarios[:5]), configs={"m": model}))
result = asyncio.run(run_suite(session, Suite(name="bench", scenarios=scenarios, concurrency=10), \
configs={"m": model}))
passed = sum(row.result["outcome"] == "pass" for row in result.rows)
memory = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps([passed, memory, "pandas" in sys.modules]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_overhead_is_small(tmp_path):
    """500 trials with a tool call each: under 80 MB, and no pandas."""
    out = subprocess.run(
        [sys.executable, "-c", BENCH, str(tmp_path / "home")], check=True, capture_output=True, text=True
    ).stdout
    passed, megabytes, pandas = json.loads(out)
    assert (passed, pandas) == (500, False)
    assert megabytes < 80


PLAN = """
kind: plan
name: house
steps:
  - {id: build, goal: build, produces: [house]}
  - {id: check, operation: verify, args: {answer: "{{house}}", rounds: 0, criteria: [it has a roof]}, \
consumes: [house]}
"""


def test_a_result_that_is_not_good_enough_is_a_failure_not_an_error(tmp_path):
    """A trial whose plan says itself that its criteria are not met has failed; it did not break, and is not
    left out of rates.
    """

    def says(request):
        if "Judge an answer" not in request.messages[-1].text:
            return "no roof"
        return (
            '{"criteria": [{"criterion": 1, "met": false, "why": "no roof", "evidence": []}], '
            '"confidence": 1}'
        )

    (tmp_path / "house.yaml").write_text(PLAN)
    suite = Suite(
        name="houses",
        scenarios=(Scenario(id="house", goal="a house", checks=(FixedCheck(passes=True),)),),
        configs=(Config(name="planned", plan="house.yaml"),),
    )
    session = Lab(tmp_path / "home", ScriptedModel(says), env={})
    (row,) = asyncio.run(run_suite(session, suite.model_copy(update={"path": tmp_path / "suite.yaml"}))).rows
    assert row.result["outcome"] == "fail"
    assert "the answer does not meet its criteria after 0 repairs" in row.result["reason"]
    session.close()


def test_all_that_is_missing_is_told_at_once(lab, tmp_path):
    """Tools, folders, models and plans that are not there: one line each, before the first trial."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "configs: [{name: a, model: nobodys-model}, {name: b, model: 'scripted:none.yaml'}, {name: c, "
        "model: local, plan: nowhere}]\n"
        "scenarios:\n"
        "  - {id: a, goal: g, tools: [grpe], checks: [{answer_contains: x}]}\n"
        "  - {id: b, goal: g, workspace: {folder: gone}, checks: [{answer_contains: x}]}\n"
        "  - {id: c, goal: g, workspace: {package: no_such_package}, checks: [{answer_contains: x}]}\n"
    )
    with pytest.raises(UsageError) as caught:
        prepare_suite(lab, load_suite(path))
    told = ["grpe", "gone", "no_such_package", "nobodys-model", "none.yaml", "nowhere"]
    assert [word in line for word, line in zip(told, str(caught.value).splitlines(), strict=True)] == [
        True
    ] * 6


def test_too_many_epochs_are_refused(tmp_path):
    """Epochs beyond those that a suite may have would be taken for trials of a search."""
    session = Lab(home=tmp_path)
    suite = Suite(
        name="s",
        scenarios=(Scenario(id="a", goal="x", checks=(RIGHT,)),),
        configs=(Config(name="c"),),
        epochs=1001,
    )
    with pytest.raises(UsageError, match=r"1,001 epochs are more than 1,000"):
        asyncio.run(run_suite(session, suite, configs={"c": MODEL}))
    session.close()


def test_of_several_errors_none_is_lost(lab, monkeypatch):
    """Two trials that cannot be made at all: the first error is raised, and the other is a note of it."""

    async def fails(session, ready, ask, **_):
        await asyncio.sleep(0)
        raise UsageError(f"no {ask.scenario.id}")

    monkeypatch.setattr(runner, "run_trial", fails)
    with pytest.raises(UsageError, match="no a") as error:
        evaluate(lab, Suite(name="s", scenarios=(scenario("a"), scenario("b"))))
    assert error.value.__notes__ == ["at the same time: UsageError: no b"]
