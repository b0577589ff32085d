"""Comparing commits of a real git repository, without touching the user's checkout."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.commits.compare import compare_commits
from kestrel_lab.evals.commits.sequential_compare import Design
from kestrel_lab.evals.commits.worktrees import environment_for, requirements_of, temporary_worktree
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.lab import Lab
from kestrel_lab.testing import RecordingReporter, ScriptedModel

pytestmark = pytest.mark.slow

SUITE = """\
name: sums
epochs: 1
tools_from: [tools.py]
instructions_from: prompt.md
configs: [{name: script, model: "scripted:script.yaml"}]
defaults: {tools: [add]}
scenarios:
  - {id: s0, goal: add 0, checks: [{command_succeeds: [python, -c, 'import sys']}, {tool_used: add}]}
""" + "".join(f"  - {{id: s{n}, goal: add {n}, checks: [{{tool_used: add}}]}}\n" for n in range(1, 7))
SCRIPT = """\
rules:
  - when: add
    turns:
      - [{tool: add, args: {a: 1, b: 2}}]
      - Done.
"""
TOOLS = '''\
from kestrel_lab import tool
from adding import plus

@tool(danger_level="safe", effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    print("tools may print")
    return plus(a, b)
'''
GOOD = "def plus(a, b):\n    return a + b\n"
BAD = "def plus(a, b):\n    raise ValueError('no longer works')\n"


def git(folder, *args):
    """Run git with a fixed identity."""
    return subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", *args],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def commit(repo, name, **files):
    """Write files, commit them and tag the commit."""
    for path, text in files.items():
        (repo / path.replace("__", ".")).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", name)
    git(repo, "tag", name)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project whose second commit changes nothing that matters and whose third breaks a helper of its
    tool.
    """
    folder = tmp_path_factory.mktemp("compared") / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(
        folder,
        "good",
        suite__yaml=SUITE,
        script__yaml=SCRIPT,
        tools__py=TOOLS,
        adding__py=GOOD,
        prompt__md="Add.",
        __gitignore=".kestrel/\n",
    )
    commit(folder, "same", prompt__md="Add well.")
    commit(folder, "bad", adding__py=BAD)
    return folder


@pytest.fixture
def repo(made, tmp_path):
    """A copy of that project."""
    return Path(shutil.copytree(made, tmp_path / "repo"))


@pytest.fixture
def lab(repo):
    """A session whose home is inside the project, as usual."""
    session = Lab(repo / ".kestrel", env={})
    yield session
    session.close()


def state(repo):
    """All that must not change: files, index, HEAD, refs, stash, worktrees."""
    files = {}
    for place, folders, names in os.walk(repo):
        folders[:] = [name for name in folders if name not in (".kestrel", ".git")]
        files |= {os.path.join(place, name): Path(place, name).read_bytes() for name in names}
    index = hashlib.sha256((repo / ".git" / "index").read_bytes()).hexdigest()
    said = [
        git(repo, *words.split())
        for words in (
            "--no-optional-locks status --porcelain",
            "rev-parse HEAD",
            "show-ref",
            "stash list",
            "worktree list",
        )
    ]
    return files, index, said, (repo / ".git" / "HEAD").read_text()


def test_commits_in_turns_end_when_they_are_told_apart(repo, lab):
    """With a budget both commits are run in turns until the worse one is shown, and no trial after that."""
    design = Design(trials=140)
    found = asyncio.run(lab.compare("good", "bad", suite=repo / "suite.yaml", design=design))
    assert found.verdict == "regression"
    assert found.sequence.pairs < 70
    assert len(stored_trials(lab.store, suite="sums")) == 2 * found.sequence.pairs
    again = asyncio.run(lab.compare("good", "bad", suite=repo / "suite.yaml", design=design))
    assert [side.reused for side in (again.base, again.head)] == [found.sequence.pairs] * 2


def test_a_worse_commit_is_a_regression(repo, lab):
    """Seven scenarios that all stop passing: the verdict, the numbers, the flips; the second time nothing is
    run; the way back is an improvement.
    """
    reporter = RecordingReporter()
    found = asyncio.run(compare_commits(lab, "good", "bad", suite=repo / "suite.yaml", reporter=reporter))
    assert found.verdict == "regression"
    row = found.frame.set_index("metric").loc["success_rate"]
    assert (row["base"], row["head"], row["difference"], row["verdict"], row["scenarios"], row["scope"]) == (
        1.0,
        0.0,
        -1.0,
        "regression",
        7,
        "scenarios like these",
    )
    assert row["p"] == pytest.approx(2 / 2**7)
    assert row["high"] < 0
    assert list(found.flips["scenario"]) == [f"s{n}" for n in range(7)]
    assert set(found.flips["reason"]) == {"add used: all 1 calls of add failed"}
    assert reporter.reports[0] == (0, 14, "")
    done, total, note = reporter.reports[-1]
    assert (done, total, note.partition(" · ")[0]) == (14, 14, "7 passed, 7 failed")
    assert str(found).startswith("REGRESSION: good (")
    assert "script (scripted)" in str(found)
    assert "script (scripted)" in found._repr_html_()
    assert lab.get(found.flips["head_run"][0]).goal == "add 0"

    again = RecordingReporter()
    same = asyncio.run(compare_commits(lab, "good", "bad", suite=repo / "suite.yaml", reporter=again))
    assert (same.base.reused, same.head.reused, again.reports) == (
        7,
        7,
        [(14, 14, "14 taken from earlier runs")],
    )
    assert same.frame.equals(found.frame)
    assert (
        asyncio.run(compare_commits(lab, "bad", "good", suite=repo / "suite.yaml")).verdict == "improvement"
    )


def test_equal_commits_are_no_regression(repo, lab):
    """A harmless change: seven scenarios do not suffice to call it stable, and it is never called worse."""
    found = asyncio.run(compare_commits(lab, "good", "same", suite=repo / "suite.yaml"))
    assert found.verdict == "inconclusive"
    assert found.flips.empty
    wide = asyncio.run(compare_commits(lab, "good", "same", suite=repo / "suite.yaml", margin=0.6))
    assert wide.verdict == "stable"


def test_scripts_compare_chosen_scenarios(repo):
    """`compare_sync` passes its options on: only scenarios that are named are made and compared; a name that
    fits nothing is told first.
    """
    with Lab(repo / ".kestrel", env={}) as lab:
        found = lab.compare_sync("good", "bad", suite=repo / "suite.yaml", scenarios=["s1", "s2"], margin=0.2)
        with pytest.raises(UsageError, match="no family"):
            lab.compare_sync("good", "bad", suite=repo / "suite.yaml", families=["nope"])
    assert (found.base.name, found.head.name, found.margin) == ("good", "bad", 0.2)
    assert [row.scenario for row in (*found.base.rows, *found.head.rows)] == ["s1", "s2", "s1", "s2"]
    assert sorted(found.flips["scenario"]) == ["s1", "s2"]
    assert [row.result["outcome"] for row in found.head.rows] == ["fail", "fail"]


def test_the_users_checkout_is_not_touched(repo, lab):
    """Files, index, HEAD, branches, stash and list of worktrees are as before, also with uncommitted work; no
    hook of the user is run.
    """
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {repo}/hooked\n")
    hook.chmod(0o755)
    (repo / "tools.py").write_text("this is not even Python")
    (repo / "new.txt").write_text("unsaved")
    git(repo, "add", "new.txt")
    (repo / "new.txt").write_text("changed again")
    before = state(repo)
    found = asyncio.run(compare_commits(lab, "good", "bad", suite=repo / "suite.yaml"))
    assert found.verdict == "regression"
    assert state(repo) == before
    assert list((repo / ".kestrel" / "worktrees").iterdir()) == []


def test_cancelling_leaves_nothing_behind(repo, lab):
    """A comparison that is stopped removes its worktrees and ends its processes; finished trials are kept."""

    async def stopped():
        def stop(done, total, note):
            if done == 3:
                task.cancel()

        task = asyncio.ensure_future(
            compare_commits(lab, "good", "bad", suite=repo / "suite.yaml", reporter=stop)
        )
        with pytest.raises(asyncio.CancelledError):
            await task

    before = state(repo)
    asyncio.run(stopped())
    assert state(repo) == before
    assert list((repo / ".kestrel" / "worktrees").iterdir()) == []
    lab.store.flush()
    assert len(stored_trials(lab.store, suite="sums")) >= 3


def test_left_behind_worktrees_are_cleared(repo, lab):
    """What a killed process left is removed by the next comparison; that of a living one is not."""

    async def leave():
        async with temporary_worktree(repo, git(repo, "rev-parse", "good").strip(), lab.home) as mine:
            gone = mine.with_name("abc-999999999-ffff")
            git(repo, "worktree", "move", str(mine), str(gone))
            gone.rename(mine)  # as if process 999999999 had made and left it
            git(repo, "worktree", "repair", str(mine))
            left = mine.with_name("def-999999999-ffff")
            git(repo, "worktree", "add", "--quiet", "--detach", str(left), "good")
            async with temporary_worktree(repo, git(repo, "rev-parse", "bad").strip(), lab.home) as other:
                return mine.exists(), left.exists(), other.exists()

    assert asyncio.run(leave()) == (True, False, True)


def test_many_worktrees_at_once(repo, lab):
    """Git fails at a worktree that another git is just making, so they are made and removed in turn, whoever
    asks.
    """

    async def one():
        async with temporary_worktree(repo, "HEAD", lab.home) as place:
            return (place / "suite.yaml").exists()

    async def all_at_once():
        return await asyncio.gather(*(one() for _ in range(12)))

    assert asyncio.run(all_at_once()) == [True] * 12


def test_what_cannot_be_compared_is_told(repo, lab, tmp_path):
    """Unknown commits, the same commit twice, a suite outside git, a commit without the tools, a model
    object.
    """

    def refusal(base, head, suite=repo / "suite.yaml"):
        with pytest.raises(UsageError) as caught:
            asyncio.run(compare_commits(lab, base, head, suite=suite))
        return str(caught.value)

    assert refusal("good", "nowhere") == f"'nowhere' is not a commit, branch or tag of {repo}"
    assert refusal("--all", "good") == "'--all' is not a name of a commit"
    assert "are the same commit" in refusal("bad", "HEAD")
    (tmp_path / "alone.yaml").write_text(SUITE)
    assert "is not in a git repository" in refusal("a", "b", tmp_path / "alone.yaml")
    commit(repo, "broken", tools__py="import no_such_module\n")
    assert "No module named 'no_such_module'" in refusal("good", "broken")
    (repo / "suite.yaml").write_text(
        SUITE.replace('configs: [{name: script, model: "scripted:script.yaml"}]\n', "")
    )
    lab.change(model=ScriptedModel(["x"]))
    assert "cannot use a model object" in refusal("good", "bad")
    assert list((repo / ".kestrel" / "worktrees").iterdir()) == []


def test_scenarios_that_a_commit_lacks_are_left_out(repo, lab):
    """A scenario whose folder is new cannot be tried at the old commit; it is named and not counted as
    failed.
    """
    (repo / "data").mkdir()
    commit(
        repo,
        "more",
        suite__yaml=SUITE
        + "  - {id: new, goal: add, workspace: {folder: data}, checks: [{tool_used: add}]}\n",
        adding__py=GOOD,
    )
    (repo / "data" / "x").write_text("x")
    commit(repo, "most", prompt__md="!")
    found = asyncio.run(compare_commits(lab, "good", "most", suite=repo / "suite.yaml"))
    assert list(found.base.skipped) == ["new"]
    assert found.head.skipped == {}
    assert found.frame["scenarios"].tolist()[0] == 7
    assert "scenario new is left out" in str(found)


def wheel(folder, version):
    """A wheel of the package `summing` in that version, made by hand."""
    path = folder / f"summing-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("summing.py", f"VERSION = {version!r}\n")
        file.writestr(
            f"summing-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: summing\nVersion: {version}\n",
        )
        file.writestr(
            f"summing-{version}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr(f"summing-{version}.dist-info/RECORD", "")


@pytest.mark.long
@pytest.mark.timeout(180)
def test_changed_requirements_get_an_environment(repo, lab):
    """A commit that requires something else runs with that installed, in an environment made once."""
    tools = TOOLS.replace("from adding import plus", "import summing\nfrom adding import plus").replace(
        "plus(a, b)", "summing.VERSION"
    )
    for version in ("1.0", "2.0"):
        wheel(repo, version)
        commit(
            repo,
            f"v{version}",
            tools__py=tools,
            adding__py=GOOD,
            requirements__txt=f"./summing-{version}-py3-none-any.whl\n",
        )
    commit(repo, "now", requirements__txt="")
    # The command a check runs is of that environment too: this process has no such package.
    suite = SUITE.replace("{tool_used: add}", "{tool_used: add}, {answer_contains: Done}").replace(
        "import sys", "import summing"
    )
    (repo / "suite.yaml").write_text(suite)
    reporter = RecordingReporter()
    found = asyncio.run(compare_commits(lab, "v1.0", "v2.0", suite=repo / "suite.yaml", reporter=reporter))
    assert {row.result["outcome"] for row in (*found.base.rows, *found.head.rows)} == {"pass"}
    notes = [note for _, _, note in reporter.reports if "environment" in note]
    assert len(notes) == 2
    versions = [lab.get(str(side.rows[0].result["run"])).events() for side in (found.base, found.head)]
    assert [next(e.text for e in events if e.type == "tool_answered") for events in versions] == [
        "1.0",
        "2.0",
    ]
    assert len([place for place in (repo / ".kestrel" / "envs").iterdir() if place.is_dir()]) == 2


def test_an_environment_is_made_once(tmp_path):
    """Two that need the same environment at the same time: one makes it, the other waits and uses it."""
    current, tree, notes = tmp_path / "current", tmp_path / "tree", []
    current.mkdir()
    tree.mkdir()
    (tree / "requirements.txt").write_text("# nothing\n")

    async def both():
        return await asyncio.gather(
            *(environment_for(current, tree, tmp_path / "home", notes.append) for _ in range(2))
        )

    one, other = asyncio.run(both())
    assert one == other
    assert notes.count("creating an environment for changed requirements") == 1
    assert one.env["PATH"].startswith(str(one.python.parent))


def test_only_what_is_required_makes_an_environment(tmp_path):
    """A new version number or lint rule in pyproject.toml needs no new environment; a new dependency does."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for folder, text in (
        (one, 'version = "1"\ndependencies = ["a"]'),
        (two, 'version = "2"\ndependencies = ["a"]'),
        (three, 'version = "1"\ndependencies = ["b"]'),
    ):
        folder.mkdir()
        (folder / "pyproject.toml").write_text(f"[project]\n{text}\n")
    assert requirements_of(one) == requirements_of(two) != requirements_of(three)


def test_the_worker_says_what_it_refuses(tmp_path):
    """A worker that cannot begin answers with one message and ends."""
    order = '{"suite": "%s", "at": "x", "configs": null, "epochs": 1}\n' % (tmp_path / "no.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "kestrel_lab.evals.execution.remote_trials"],
        input=order,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert '"refused"' in done.stdout
    assert "cannot be read" in done.stdout


def test_a_commit_with_an_earlier_kestrel_lab_is_served_by_its_own_worker(repo, lab):
    """A checkout that brings the package itself may have the worker under an earlier name; that one is
    started.
    """
    package = repo / "kestrel_lab" / "evals"
    package.mkdir(parents=True)
    (repo / "kestrel_lab" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "worker.py").write_text("""print('{"refused": "served by the earlier worker"}')\n""")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "own")
    with pytest.raises(UsageError, match="served by the earlier worker"):
        asyncio.run(compare_commits(lab, "bad", "HEAD", suite=repo / "suite.yaml"))
