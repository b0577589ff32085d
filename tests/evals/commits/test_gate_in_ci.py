"""What `kestrel eval gate --against` does on the commits that a server meets: the first, a shallow clone, an
unchanged one, a replayed one, a new suite.
"""

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree as ET

import in_process
import pytest

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.commits.no_difference import same_conversations
from kestrel_lab.evals.execution.prepare import prepare_suite
from kestrel_lab.evals.execution.runner import plan_trials, run_suite
from kestrel_lab.evals.execution.trial import run_trial
from kestrel_lab.evals.suites.cassettes import with_cassette
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.models.cassettes.recorder import AbsentModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]

SCENARIOS = "".join(
    f"  - {{id: s{n}, goal: talk of {n}, checks: [{{answer_contains: hello}}]}}\n" for n in range(20)
)
SUITE = f"""\
name: demo
configs: [{{name: one, model: "scripted:script.yaml"}}]
gates: [{{success_rate: {{at_least: 0.8}}}}]
scenarios:
{SCENARIOS}"""
SCRIPT = "rules:\n  - when: talk\n    turns: [hello]\n"
REAL = SUITE.replace("scripted:script.yaml", "openai/any")


class Hello:
    """Passes for a real model; `wrong` are goals that it answers badly."""

    name, kind = "openai/any", "real"

    def __init__(self, *wrong: str) -> None:
        self.wrong = wrong

    async def __call__(self, request, on_delta):
        goal = request.messages[-1].text
        return ModelAnswer(text="bye" if any(goal.endswith(word) for word in self.wrong) else "hello")


def git(folder: Path, *words: str) -> str:
    """Run git with a fixed identity."""
    command = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "commit.gpgsign=false",
        *words,
    ]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, name: str, **files: str) -> None:
    """Write files and commit all there is."""
    for path, text in files.items():
        (folder / path.replace("__", ".")).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", name, "--allow-empty")


def record(folder: Path, *wrong: str) -> None:
    """Record the suite anew."""
    lab = Lab(folder / ".kestrel" / "recording", models={"openai/any": Hello(*wrong)}, env={})
    asyncio.run(run_suite(lab, load_suite(folder / "suite.yaml"), cassette="refresh"))
    lab.close()


def gate(folder: Path, *words: str, suite: str = "suite.yaml") -> tuple[int, str]:
    """Run `kestrel eval gate`; return its exit code and what it says, on one line."""
    done = in_process.kestrel(folder, "eval", "gate", suite, "--against", "auto", *words)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository of one commit, whose suite is a script."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "first", suite__yaml=SUITE, script__yaml=SCRIPT, __gitignore=".kestrel/\n")
    return folder


@pytest.fixture
def replayed(tmp_path: Path) -> Path:
    """A repository of one commit, whose suite was recorded."""
    folder = tmp_path / "replayed"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "suite.yaml").write_text(REAL)
    record(folder)
    commit(folder, "first", __gitignore=".kestrel/\n")
    return folder


def test_a_first_commit_is_compared_with_nothing(repo):
    """The suite's own gates decide, and it is said; a gate that is violated still is."""
    code, told = gate(repo, "--junit", "j.xml", "--markdown", "m.md", "--report", "r.html")
    assert (code, "HEAD is the first commit: there is no earlier commit to compare with" in told) == (0, True)
    change = ET.parse(repo / "j.xml").getroot().findall(".//testsuite[@name='demo.gates']/testcase")[1]
    assert [child.tag for child in change if child.tag != "properties"] == ["skipped"]
    assert "### ❔ Nothing to compare with" in (repo / "m.md").read_text()
    assert "NO BASE" in (repo / "r.html").read_text()
    commit(repo, "bad", script__yaml=SCRIPT.replace("hello", "bye"))
    git(repo, "checkout", "-q", "--orphan", "alone")
    commit(repo, "alone")
    git(repo, "branch", "-q", "-D", "main")
    git(repo, "branch", "-q", "-m", "main")
    assert gate(repo)[0] == 1


def test_a_first_commit_without_gates_whose_trials_broke_is_not_green(repo):
    """With nothing to compare with and no bound, at least something has to have run."""
    commit(repo, "first", suite__yaml=SUITE.replace("gates: [{success_rate: {at_least: 0.8}}]\n", ""))
    git(repo, "update-ref", "refs/heads/main", git(repo, "commit-tree", "HEAD^{tree}", "-m", "only").strip())
    assert gate(repo)[0] == 0
    broken = (repo / "suite.yaml").read_text().replace("talk of", "shout of")
    commit(repo, "broken", suite__yaml=broken)
    git(repo, "update-ref", "refs/heads/main", git(repo, "commit-tree", "HEAD^{tree}", "-m", "only").strip())
    assert gate(repo)[0] == 3


def test_a_shallow_clone_is_told_how_to_get_more(repo, tmp_path):
    """It is not taken for a first commit, which would be green; with more commits it is compared."""
    commit(repo, "second", readme__md="!")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", str(clone))
    code, told = gate(clone)
    assert code == 3
    assert "git fetch --deepen" in told
    assert "fetch-depth: 0" in told
    git(clone, "fetch", "-q", "--deepen", "1")
    assert gate(clone)[0] == 0


def test_a_branch_of_the_server_is_suggested(repo, tmp_path):
    """A checkout of a server has no local main."""
    git(repo, "checkout", "-qb", "topic")
    commit(repo, "second", readme__md="!")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repo), str(clone))
    done = in_process.kestrel(clone, "eval", "gate", "suite.yaml", "--against", "main")
    assert (done.returncode, "there is origin/main" in done.stderr) == (3, True)
    assert gate(clone)[0] == 0  # auto finds it


@pytest.mark.parametrize("change", [{}, {"readme__md": "!"}], ids=["same files", "a file that nothing reads"])
def test_an_unchanged_commit_has_no_difference(repo, change):
    """20 of 20 on both sides is no doubt where nothing can differ, and a code that a server takes for
    success.
    """
    commit(repo, "second", **change)
    code, told = gate(repo)
    assert (code, "no difference" in told, "inconclusive" in told) == (0, True, False)


def test_what_changed_is_not_called_unchanged(repo):
    """Equal rates are no proof where a script was asked something else, or a real model answered."""
    commit(
        repo,
        "second",
        suite__yaml=SUITE.replace("gates:", "instructions_from: prompt.md\ngates:"),
        prompt__md="Be kind.",
    )
    commit(repo, "third", prompt__md="Be rude.")
    code, told = gate(repo)
    assert code == 0
    assert gate(repo, "--fail-on", "uncertain")[0] == 2
    assert "no scenario changed, and it takes 72 that do not to rule out a change of 5 points" in told
    with Lab(repo / "home", models={"openai/any": Hello()}, env={}) as lab:
        rows = [lab.eval_sync(repo / "suite.yaml", configs={"one": "openai/any"}).rows for _ in range(2)]
    assert not same_conversations(*rows)


def test_each_commit_is_replayed_from_its_own_recordings(replayed):
    """The prompt of the new commit is in its recordings alone, and the old one is compared by its own: no
    model is asked.
    """
    code, told = gate(replayed, "--cassette", "replay")
    assert (code, "no base" in told) == (0, True)
    (replayed / "prompt.md").write_text("Be kind.")
    (replayed / "suite.yaml").write_text(REAL.replace("gates:", "instructions_from: prompt.md\ngates:"))
    record(replayed, *(str(n) for n in range(20)))
    commit(replayed, "worse")
    (replayed / "suite.yaml").write_text(REAL.replace("gates:", "instructions_from: prompt.md\ngates:"))
    (replayed / "prompt.md").write_text("Be rude.")
    record(replayed)
    commit(replayed, "better")
    code, told = gate(replayed, "--cassette", "replay")
    assert (code, "unrecorded" in told) == (0, False)
    there = in_process.kestrel(replayed, "eval", "compare", "suite.yaml", "--cassette", "replay")
    assert "IMPROVEMENT" in there.stdout
    back = in_process.kestrel(
        replayed, "eval", "compare", "suite.yaml", "HEAD", "HEAD~1", "--cassette", "replay"
    )
    assert "REGRESSION" in back.stdout


def test_a_replay_of_an_unchanged_commit_has_no_difference(replayed):
    """The same answers to the same requests."""
    commit(replayed, "second", readme__md="!")
    code, told = gate(replayed, "--cassette", "replay")
    assert (code, "same conversations on both sides" in told) == (0, True)


def test_one_call_that_was_not_recorded_stops_a_gate(replayed):
    """One changed prompt of twenty leaves the rate above the bound; the exit code is 3 and the line says what
    to do.
    """
    suite = REAL.replace("talk of 7,", "speak of 7,")
    (replayed / "suite.yaml").write_text(suite)
    for words in (["gate"], ["run"]):
        done = in_process.kestrel(
            replayed, "eval", *words, "suite.yaml", "--cassette", "replay", "--junit", "j.xml"
        )
        told = " ".join(done.stdout.split())
        assert done.returncode == 3, done.stderr
        assert "scenario s7, epoch 1: not recorded: message 2 (user) changed (turn 1 with openai/any" in told
        assert "kestrel eval run suite.yaml --cassette record" in told
    commit(replayed, "second")
    code, told = gate(replayed, "--cassette", "replay", "--junit", "j.xml")
    assert (code, "UNRECORDED" in told, "scenario s7" in told) == (3, True, True)
    cases = ET.parse(replayed / "j.xml").getroot().findall(".//testsuite[@name='demo.gates']/testcase[error]")
    assert [case.get("name") for case in cases] == ["every call is recorded [one (replay)]"]


@dataclass(frozen=True)
class Forgiving:
    """A check that asks a judge, and passes whatever becomes of that."""

    label: str = "forgiving"

    async def __call__(self, trial):
        with suppress(ModelError):
            await trial.grader("judge")(
                ModelRequest(messages=(Message(role="user", text="good?"),)), lambda _: None
            )
        return Score(check=self.label, passed=True, value=1.0, reason="")


def test_a_caller_that_goes_on_without_an_answer_is_no_replay(replayed):
    """A judge whose answer was never recorded leaves a trial that would pass; it is broken all the same."""
    suite = with_cassette(load_suite(replayed / "suite.yaml"), "replay", None)
    first = suite.scenarios[0].model_copy(update={"checks": (Forgiving(),)})
    session = Lab(replayed / ".kestrel" / "home", env={})
    ready = replace(
        prepare_suite(session, suite.model_copy(update={"scenarios": (first,)})),
        graders={"judge": AbsentModel(name="openai/any")},
    )
    (ask,) = plan_trials(ready.suite, code="", git_sha="")
    row = asyncio.run(run_trial(session, ready, ask))
    session.close()
    assert (row.outcome, len(row.unrecorded), row.reason) == ("error", 1, row.unrecorded[0])
    assert row.reason.startswith("not recorded: ")


def test_recordings_are_not_made_in_a_worktree(replayed):
    """It is thrown away, and they with it."""
    commit(replayed, "second")
    code, told = gate(replayed, "--cassette", "record")
    assert (code, "kestrel eval run suite.yaml --cassette record" in told) == (3, True)


def test_a_scenario_that_the_base_never_recorded_is_left_out(replayed):
    """It says nothing of the base; the others are compared."""
    (replayed / "suite.yaml").write_text(
        REAL + "  - {id: new, goal: talk of new, checks: [{answer_contains: hello}]}\n"
    )
    record(replayed)
    commit(replayed, "second")
    code, told = gate(replayed, "--cassette", "replay")
    assert (code, "scenario new is left out: it is not in the recordings of this commit" in told) == (0, True)


def test_a_new_suite_runs_with_the_code_of_the_old_commit(repo, monkeypatch):
    """The old commit has neither the suite nor its script; the tool that both call is that of each commit."""
    tool = (
        "from kestrel_lab import tool\n\n@tool(danger_level='safe', effect='pure')\ndef greet() -> "
        "str:\n    '''Greet.'''\n    return {!r}\n"
    )
    commit(repo, "old", tools__py=tool.format("hello from the old one"))
    (repo / "evals").mkdir()
    (repo / "evals" / "script.yaml").write_text(
        "rules:\n  - when: talk\n    turns:\n      - [{tool: greet, args: {}}]\n      - done\n"
    )
    (repo / "evals" / "judge.py").write_text(
        "def old(trial):\n    return any('the old one' in str(record.event) for record in "
        "trial.records), 'new'\n"
    )
    suite = SUITE.replace(
        "name: demo", "name: fresh\ntools_from: [tools.py]\ndefaults: {tools: [greet]}"
    ).replace("{answer_contains: hello}", "{python_check: 'judge:old'}")
    (repo / "evals" / "fresh.yaml").write_text(suite)
    commit(repo, "new", tools__py=tool.format("hello from the new one"))
    # Checks in Python run in the sandbox, which does not have the warm one.
    monkeypatch.setattr(sys, "executable", str(Path(sys.prefix, "bin", "python")))
    done = in_process.kestrel(repo, "eval", "compare", "evals/fresh.yaml", "HEAD~1", "HEAD")
    assert "REGRESSION" in done.stdout, done.stdout + done.stderr
    assert "does not have this suite: its code ran with the present suite" in " ".join(done.stdout.split())
    # What came from the present checkout is part of what was tried: other files, other trials.
    (repo / "evals" / "judge.py").write_text("def old(trial):\n    return True\n")
    again = in_process.kestrel(repo, "eval", "compare", "evals/fresh.yaml", "HEAD~1", "HEAD")
    assert "HEAD~1" in again.stdout
    assert "20 trials, 0 of them stored before" in again.stdout


@pytest.mark.long
def test_commits_share_answers_up_to_where_they_ask_for_something_else(repo, monkeypatch):
    """Both ask the same first and differ in what their tool says: the first answer is asked for once."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "models"))
    from openai_server import OpenAIServer, Reply

    class Caller(OpenAIServer):
        def take(self, body, headers):
            super().take(body, headers)
            said = json.loads(body)["messages"][-1]
            return Reply(text="hello") if said["role"] == "tool" else Reply(calls=(("greet", "{}"),))

    tool = (
        "from kestrel_lab import tool\n\n@tool(danger_level='safe', effect='pure')\ndef greet() -> str:\n"
        "    'Greet.'\n    return {!r}\n"
    )
    suite = REAL.replace("name: demo", "name: demo\ntools_from: [tools.py]\ndefaults: {tools: [greet]}")
    suite = suite.replace(SCENARIOS, "  - {id: s, goal: talk, checks: [{answer_contains: hello}]}\n")
    commit(repo, "old", suite__yaml=suite, tools__py=tool.format("one"))
    commit(repo, "new", tools__py=tool.format("another"))
    with Caller([Reply()]) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.api_base)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        words = ("eval", "compare", "suite.yaml", "HEAD~1", "HEAD", "--from-divergence")
        done = in_process.kestrel(repo, *words)
        told = " ".join(done.stdout.split())
        assert "1 of 4 answers of models were those of the other side" in told, told + done.stderr
        assert len(server.bodies) == 3
        refused = in_process.kestrel(repo, *words, "--cassette", "record")
        assert "leave cassettes out" in refused.stderr


def test_where_the_results_of_main_come_from_is_said(repo, tmp_path):
    """Made here, stored before, or pulled."""
    commit(repo, "second", readme__md="!")
    assert "20 trials, 0 of them stored before" in gate(repo)[1]
    assert "20 trials, 20 of them stored before" in gate(repo)[1]
    with Lab(in_process.home_of(repo), env={}) as lab:
        rows = lab.store.query("SELECT result_json FROM eval_runs LIMIT 1")
    assert "origin" not in json.loads(rows[0][0])
