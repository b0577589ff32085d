"""A suite along the commits of a real repository: run, looked back on, searched for the commit that broke
it.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_rows import row
from waits import until

from kestrel_lab.cli.main import main
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.commits.bisect import find_first_bad
from kestrel_lab.evals.commits.bisect_result import BisectSearch
from kestrel_lab.evals.commits.compare import compare_commits
from kestrel_lab.evals.commits.interleaved_trials import CommitTrials
from kestrel_lab.evals.commits.run_history import run_commits, stored_history
from kestrel_lab.evals.execution.reuse import Reuse
from kestrel_lab.evals.execution.runner import plan_trials
from kestrel_lab.evals.git import commits_in, first_parents, line_between, merged_branch
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import RecordingReporter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]

SUITE = """\
name: sums
epochs: 2
tools_from: [tools.py]
configs: [{name: script, model: "scripted:script.yaml"}]
defaults: {tools: [add]}
scenarios:
"""
SCENARIOS = "".join(f"  - {{id: s{n}, goal: add {n}, checks: [{{tool_used: add}}]}}\n" for n in range(4))
SCRIPT = "rules:\n  - when: add\n    turns:\n      - [{tool: add, args: {a: 1, b: 2}}]\n      - Done.\n"
TOOLS = '''\
from kestrel_lab import tool
from adding import plus

@tool(danger_level="safe", effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return plus(a, b)
'''
GOOD, BAD = (
    "def plus(a, b):\n    return a + b\n",
    "def plus(a, b):\n    raise ValueError('no longer works')\n",
)


def git(folder, *args):
    """Run git with a fixed identity."""
    command = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "commit.gpgsign=false",
        *args,
    ]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(repo, name, files):
    """Write files, commit them and tag the commit."""
    for path, text in files.items():
        (repo / path).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", f"{name}: a change")
    git(repo, "tag", name)


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    """Commits c0 to c6: c2 cannot be imported, c4 breaks the tool, c5 merges a branch of two commits."""
    folder = tmp_path_factory.mktemp("along") / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    first = {
        "suite.yaml": SUITE + SCENARIOS,
        "script.yaml": SCRIPT,
        "tools.py": TOOLS,
        "adding.py": GOOD,
        ".gitignore": ".kestrel/\n",
    }
    commit(folder, "c0", first)
    commit(folder, "c1", {"notes.txt": "1"})
    commit(folder, "c2", {"adding.py": "import no_such_module\n"})
    commit(folder, "c3", {"adding.py": GOOD})
    git(folder, "checkout", "-qb", "side")
    commit(folder, "side1", {"side.txt": "1"})
    commit(folder, "side2", {"side.txt": "2"})
    git(folder, "checkout", "-q", "main")
    commit(folder, "c4", {"adding.py": BAD})
    git(folder, "merge", "-q", "--no-ff", "-m", "c5: a merge", "side")
    git(folder, "tag", "c5")
    commit(folder, "c6", {"notes.txt": "6"})
    return folder


@pytest.fixture(scope="module")
def lab(repo):
    """A session that the tests of this module share: what one makes the next finds."""
    session = Lab(repo / ".kestrel", env={})
    yield session
    session.close()


@pytest.fixture(scope="module")
def made(repo, lab):
    """The suite at all commits but the first."""
    return asyncio.run(run_commits(lab, repo / "suite.yaml", "c0..c6"))


def sha(repo, name):
    return git(repo, "rev-parse", f"{name}^{{commit}}")


def test_what_names_mean(repo):
    """Ranges follow first parents without their start, lists keep their order, some can be taken; nonsense is
    refused.
    """

    def names(text, **some):
        return [c.subject[:2] for c in asyncio.run(commits_in(repo, text, **some))]

    assert names("c0..c6") == ["c1", "c2", "c3", "c4", "c5", "c6"]
    assert names("c3..") == ["c4", "c5", "c6"]
    assert names("c0..c6", every=2) == ["c2", "c4", "c6"]
    assert names("c0..c6", every=2, last=2) == ["c4", "c6"]
    assert names("c6, c1,c6") == ["c6", "c1"]
    assert [c.subject[:2] for c in asyncio.run(line_between(repo, "c3", "c6"))] == ["c3", "c4", "c5", "c6"]
    for text, some, words in (
        ("c6..c0", {}, "holds no commits"),
        ("c0...c6", {}, "write A..B"),
        ("nowhere", {}, "is not a commit, branch or tag"),
        (" , ", {}, "name some commits"),
        ("--all..c1", {}, "is not a name of a commit"),
        ("c0..c6", {"every": 0}, "at least 1"),
        ("c0..c6", {"last": 0}, "at least 1"),
    ):
        with pytest.raises(UsageError, match=words):
            asyncio.run(commits_in(repo, text, **some))
    for good, bad, words in (
        ("c6", "c0", "not an ancestor"),
        ("side1", "c6", "by a merge"),
        ("c1", "c1", "the same commit"),
    ):
        with pytest.raises(UsageError, match=words):
            asyncio.run(line_between(repo, good, bad))


def test_any_subject_can_be_read(tmp_path):
    """A commit message with separators, markup and bytes that are no text is one subject."""
    git(tmp_path, "init", "-q", "-b", "main")
    message = tmp_path / "message"
    message.write_bytes("one\u2028two\x0cthree <b>$x$</b> \x85 ".encode() + b"\xff end\n\nbody\n")
    git(tmp_path, "commit", "-q", "--allow-empty", "-F", str(message))
    (found,) = asyncio.run(commits_in(tmp_path, "HEAD"))
    assert found.subject.startswith("one\u2028two\x0cthree <b>$x$</b>")
    assert found.subject.encode().endswith(b" end")


def test_a_range_of_commits_gives_one_frame(repo, lab, made):
    """One row per trial with its commit, oldest first; the one that cannot be run is named; again nothing is
    run.
    """
    frame = made.frame
    assert list(dict.fromkeys(frame["subject"].str[:2])) == ["c1", "c3", "c4", "c5", "c6"]
    assert frame.groupby("commit").size().tolist() == [8] * 5
    assert frame.groupby(frame["subject"].str[:2])["success"].mean().to_dict() == {
        "c1": 1.0,
        "c3": 1.0,
        "c4": 0.0,
        "c5": 0.0,
        "c6": 0.0,
    }
    assert made.headline == "suite sums: success_rate at 5 of 6 commits, 40 trials"
    assert any("c2: a change: cannot be run: tools_from names tools.py" in line for line in made.lines())
    reporter = RecordingReporter()
    again = asyncio.run(run_commits(lab, repo / "suite.yaml", "c3..c6", reporter=reporter))
    assert (again.lines()[-1], reporter.reports) == (
        "of these trials stored before: 24",
        [(24, 24, "24 taken from earlier runs")],
    )
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "worktree", "list").count("\n") == 0


def test_the_commits_take_turns(lab, made):
    """Epoch 1 of every commit is made before epoch 2 of any, in the opposite order."""
    rows = sorted((row for c in made.commits for row in c.rows), key=lambda row: row.created_at)
    order = list(dict.fromkeys((row.epoch, row.git_sha) for row in rows))
    shas = [c.commit.sha for c in made.commits if c.rows]
    assert order == [*((1, sha) for sha in shas), *((2, sha) for sha in reversed(shas))]


def test_history_is_what_is_stored_with_its_step(repo, lab, made, tmp_path):
    """Nothing is run; the step is at the commit that broke it; text, table, page and picture show it."""
    found = asyncio.run(stored_history(lab, repo / "suite.yaml"))
    assert [c.commit.subject[:2] for c in found.commits] == ["c1", "c3", "c4", "c5", "c6"]
    (step,) = found.steps.to_dict("records")
    assert (step["commit"], step["before"], step["after"], step["change"]) == (
        sha(repo, "c4"),
        1.0,
        0.0,
        "worse",
    )
    assert step["p"] < 0.025
    summary = found.summary()
    assert summary["value"].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert summary["step"].tolist()[2] == -1.0
    assert summary["step"].isna().sum() == 4
    assert f"step at {sha(repo, 'c4')[:10]} c4: a change [script]: 100 % → 0 % (worse)" in str(found)
    assert "step, worse" in found._repr_html_()
    assert "data:image/png" in found.report(tmp_path / "page.html").read_text()
    axes = found.plot().axes[0]
    assert axes.get_title() == "Suite sums: success rate by commit"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("commit, oldest first", "success rate, 95 % interval")
    cost = found.of("tool_calls")
    assert cost.steps.empty
    assert cost.plot().axes[0].get_ylabel() == "tool calls, calls, 95 % interval"
    few = asyncio.run(stored_history(lab, repo / "suite.yaml", commits="c0..c6", every=2, last=2))
    assert [c.commit.subject[:2] for c in few.commits] == ["c4", "c6"]


def test_results_of_another_suite_are_not_mixed_in(repo, lab, made):
    """A changed scenario leaves its old trials out and says so, unless they are asked for; an unknown range
    has none.
    """
    before = (repo / "suite.yaml").read_text()
    try:
        (repo / "suite.yaml").write_text(before.replace("goal: add 3", "goal: add three"))
        found = asyncio.run(stored_history(lab, repo / "suite.yaml"))
        assert set(found.frame["scenario"]) == {"s0", "s1", "s2"}
        everything = asyncio.run(stored_history(lab, repo / "suite.yaml", any_version=True))
        # Counted and not written down: the log is shared with the test that bisects, which adds trials if it
        # comes before.
        stored = sum(everything.frame["scenario"] == "s3")
        assert stored >= 10
        told = [int(line.split()[0]) for line in found.lines() if "stored trials of other scenarios" in line]
        assert len(told) == 1, found.lines()
        assert 10 <= told[0] <= stored  # those of a search are told apart
        assert set(everything.frame["scenario"]) == {"s0", "s1", "s2", "s3"}
    finally:
        (repo / "suite.yaml").write_text(before)
    with pytest.raises(UsageError, match="no results of suite 'sums' are stored for these commits"):
        asyncio.run(stored_history(lab, repo / "suite.yaml", commits="c0"))


def test_bisect_names_the_commit_and_goes_on_where_it_was(repo, lab, made):
    """Too few trials leave it open; asked again it uses them, steps over the broken commit, and names c4."""
    suite = repo / "suite.yaml"
    first = asyncio.run(find_first_bad(lab, suite, "c0", "c4", BisectSearch(max_trials=20)))
    assert (first.verdict, first.exit_code, first.first_bad, first.made) == ("inconclusive", 1, None, 16)
    assert "could not be shown to be worse" in first.headline
    reporter = RecordingReporter()
    found = asyncio.run(find_first_bad(lab, suite, "c0", "c4", reporter=reporter))
    assert (found.verdict, found.exit_code) == ("found", 0)
    assert found.first_bad is not None
    assert found.first_bad.sha == sha(repo, "c4")
    assert found.reused == 16
    said = {row["subject"][:2]: row["decided"] for row in found.frame.to_dict("records")}
    assert said == {"c0": "good (given)", "c2": "skipped", "c3": "good", "c4": "bad (given)"}
    assert reporter.reports[-1][0] == found.made <= 40
    assert any("skipped" in line and "No module named 'no_such_module'" in line for line in found.lines())
    again = asyncio.run(find_first_bad(lab, suite, "c0", "c4"))
    assert (again.made, again.first_bad) == (0, found.first_bad)
    assert found.headline in str(found)
    assert "c4: a change" in found._repr_html_()
    assert (
        found.plot().axes[0].get_title() == "Suite sums: search for the first commit with worse success rate"
    )


def test_a_bisection_that_ends_at_a_merge_says_how_to_look_into_the_branch(repo, lab):
    """Only first parents are followed, so the fall of a merged branch is the merge's; the next search begins
    where the branch did.
    """
    begun, last = asyncio.run(merged_branch(repo, "c5"))
    assert (begun, last) == (sha(repo, "c3"), sha(repo, "side2"))
    assert asyncio.run(merged_branch(repo, "c4")) is None
    found = asyncio.run(find_first_bad(lab, repo / "suite.yaml", "c0", "c4"))
    assert not any("merge" in line for line in found.lines())
    told = replace(found, merged=(begun, last)).lines()
    assert (
        f"it is a merge: kestrel eval bisect SUITE {begun[:10]} {last[:10]} looks for the commit of "
        "the merged branch" in told
    )


def test_bisect_says_what_it_cannot_do(repo, lab):
    """An end that cannot be run, no line between the ends, an unknown metric, impossible bounds."""
    for good, bad, more, words in (
        ("c2", "c6", {}, "the good commit .* cannot be measured, .*no_such_module"),
        ("c6", "c0", {}, "not an ancestor"),
        ("c0", "c6", {"metric": "sucess_rate"}, "did you mean 'success_rate'"),
        ("c0", "c6", {"margin": 2.0}, "margin between 0 and 1"),
        ("c0", "c6", {"max_trials": 0}, "max_trials at least 1"),
    ):
        with pytest.raises(UsageError, match=words):
            asyncio.run(find_first_bad(lab, repo / "suite.yaml", good, bad, BisectSearch(**more)))


def test_the_baseline_is_the_nearest_ancestor_with_results(repo, lab, made):
    """`auto` takes the newest commit of main before HEAD whose results are all stored, over one that has
    none.
    """
    found = asyncio.run(compare_commits(lab, "auto", "c6", suite=repo / "suite.yaml"))
    assert (found.base.sha, found.base.reused, found.base.title) == (
        sha(repo, "c5"),
        8,
        f"auto ({sha(repo, 'c5')[:10]})",
    )
    git(repo, "branch", "-f", "work", "side2")
    from_side = asyncio.run(compare_commits(lab, "auto", "work", suite=repo / "suite.yaml"))
    assert (from_side.base.sha, from_side.verdict) == (
        sha(repo, "c3"),
        "stable",
    )  # the script is asked the same at both
    (line,) = {c.sha for c in asyncio.run(first_parents(repo, "c0"))}
    assert line == sha(repo, "c0")
    with pytest.raises(UsageError, match="is the first commit: there is no earlier commit"):
        asyncio.run(compare_commits(lab, "auto", "c0", suite=repo / "suite.yaml"))


def test_commits_can_run_their_own_suite(repo, lab, tmp_path):
    """With the suite of each commit one has five scenarios where the suite of now has four; one without a
    suite is left out.
    """
    git(tmp_path, "clone", "-q", str(repo), "copy")
    copy = tmp_path / "copy"
    git(copy, "checkout", "-q", "-b", "more", "c3")
    commit(
        copy,
        "five",
        {"suite.yaml": SUITE + SCENARIOS + "  - {id: s4, goal: add 4, checks: [{tool_used: add}]}\n"},
    )
    git(copy, "rm", "-q", "suite.yaml")
    commit(copy, "none", {"notes.txt": "none"})
    (copy / "suite.yaml").write_text(SUITE + SCENARIOS)
    session = Lab(copy / ".kestrel", env={})
    try:
        found = asyncio.run(run_commits(session, copy / "suite.yaml", "five,none", epochs=1, own_suite=True))
    finally:
        session.close()
    assert [len(c.rows) for c in found.commits] == [5, 0]
    assert "suite.yaml" in found.commits[1].why
    assert str(copy) not in found.commits[1].why


def killed_early(repo, home):
    """A session on the log of `kestrel eval run --commits` that was killed when trials were there, and how
    many.
    """
    env = {**os.environ, "KESTREL_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "kestrel_lab", "eval", "run", "suite.yaml", "--commits", "c0,c4"]
    session = Lab(home, env={})
    with subprocess.Popen(
        command, cwd=repo, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        until(lambda: stored_trials(session.store, suite="sums") or process.poll() is not None)
        process.kill()
    return session, len(stored_trials(session.store, suite="sums"))


def test_a_killed_run_goes_on_where_it_was(repo):
    """`kestrel eval run --commits` killed hard in the middle: asked again, no trial is missing and none is
    made twice.
    """
    for number in range(20):  # who looks too late finds it done
        session, before = killed_early(repo, repo / ".kestrel" / f"killed{number}")
        if before < 16:
            break
        session.close()
    try:
        assert 0 < before < 16
        found = asyncio.run(run_commits(session, repo / "suite.yaml", "c0,c4"))
        rows = stored_trials(session.store, suite="sums")
    finally:
        session.close()
    assert len(rows) == len({row.key for row in rows}) == len(found.frame) == 16
    assert found.notes == (f"of these trials stored before: {before}",)
    assert git(repo, "worktree", "list").count("\n") == 0


def kestrel(capsys, *words):
    """The command in this process: its exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(["eval", *words])
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def test_the_commands(repo, lab, made, tmp_path, monkeypatch, capsys):
    """`history` and `bisect` print what they found, write pictures and tables, and say by exit code whether
    it was found.
    """
    monkeypatch.chdir(repo)
    picture, rows = tmp_path / "new" / "h.svg", tmp_path / "rows.csv"
    code, out, err = kestrel(capsys, "history", "suite.yaml", "--plot", str(picture), "--csv", str(rows))
    assert (code, err) == (0, f"wrote {rows}\nwrote {picture}\n")
    assert "suite sums: success_rate at 5 commits, 40 trials" in out
    assert "100 % → 0 % (worse)" in out
    assert "</svg>" in picture.read_text()
    assert len(rows.read_text().splitlines()) == 41
    code, out, _ = kestrel(capsys, "bisect", "suite.yaml", "c5", "c6", "--max-trials", "1")
    assert (code, out.count("INCONCLUSIVE: ")) == (1, 1)
    assert "asked again with more trials (--max-trials) it goes on from here" in out
    for words, said in (
        (("history", "suite.yaml", "--plot", "x.bmpp"), "does not end in the name of a picture format"),
        (("history", "suite.yaml", "--metric", "costs"), "there is no metric 'costs'"),
        (("run", "suite.yaml", "--last", "2"), "choose among --commits"),
        (("run", "suite.yaml", "--commits", "c5..c6", "--junit", "x.xml"), "are about one commit"),
    ):
        code, _, err = kestrel(capsys, *words)
        assert (code, said in " ".join(err.split())) == (2, True), err


def test_what_a_commit_has_to_make(tmp_path):
    """Neither what is stored nor what the commit cannot try, and nothing at all for a commit that cannot be
    run; all rows are in order.
    """
    suite = Suite(
        name="s", scenarios=tuple(Scenario(id=name, goal="g", checks=()) for name in "abc"), epochs=2
    )
    asks = plan_trials(suite, code="c" * 40, git_sha="c" * 40)
    rows = {ask.identity.key: row(ask.scenario.id, "pass", epoch=ask.epoch, config="default") for ask in asks}
    stored = {asks[0].identity.key: rows[asks[0].identity.key]}
    work = CommitTrials(
        name="c",
        sha="c" * 40,
        suite=suite,
        asks=asks,
        found=Reuse(rows=stored),
        skipped={"b": "its folder is gone"},
    )
    assert [(ask.scenario.id, ask.epoch) for ask in work.todo] == [("c", 1), ("a", 2), ("c", 2)]
    work.made.extend(rows[ask.identity.key] for ask in reversed(work.todo))
    assert [(one.scenario, one.epoch) for one in work.all_rows] == [("a", 1), ("a", 2), ("c", 1), ("c", 2)]
    work.broken = "it cannot be imported"
    assert work.todo == []


def test_a_bisection_of_judged_trials_is_refused_before_the_first_one(tmp_path):
    """Nothing corrects a judge's verdicts while trials are made; a metric that no model decides is searched."""
    (tmp_path / "s.yaml").write_text(
        "configs: [{name: one, model: 'scripted:m.yaml'}]\n"
        "scenarios: [{id: a, goal: g, checks: [{any_of: [{graded: {rubric: good}}, {answer_contains: x}]}]}]\n"
    )
    (tmp_path / "m.yaml").write_text("rules: [{when: '.', turns: [x]}]\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    with Lab(tmp_path / "home", env={}) as lab:
        asked = [find_first_bad(lab, tmp_path / "s.yaml", "HEAD", "HEAD")]
        asked += [
            find_first_bad(lab, tmp_path / "s.yaml", "HEAD", "HEAD", BisectSearch(metric="model_calls"))
        ]
        with pytest.raises(UsageError, match=r"a bisection is decided by verdicts.*--metric"):
            asyncio.run(asked[0])
        with pytest.raises(UsageError, match="HEAD") as other:
            asyncio.run(asked[1])
        assert "judge" not in str(other.value)
        assert not stored_trials(lab.store)
