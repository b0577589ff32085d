"""A commit of a repository as a workspace: exactly that commit, and nothing that came later."""

import asyncio
import subprocess

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.execution.workspaces import trial_workspace, workspace_source
from kestrel_lab.evals.scenario_parts import GitCheckout
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.suites.repository_checkouts import checkout_folder, make_checkout


def git(folder, *args):
    """What a git command says."""
    who = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "commit.gpgsign=false",
    )
    return subprocess.run(
        ["git", *who, *args], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def commits(tmp_path):
    """A repository in `repo` with two commits: a question, and its solution."""
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q")
    found = []
    for text in ("question", "solution"):
        (repo / "a.txt").write_text(text)
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", text)
        found.append(git(repo, "rev-parse", "HEAD"))
    return found


def suite_at(folder, place):
    """A suite in `folder` with one scenario that works on the commit."""
    return Suite(
        name="s", scenarios=(Scenario(id="a", goal="g", checks=(), place=place),), path=folder / "s.yaml"
    )


def look(folder, place, keep_in=None):
    """What is in the workspace of a trial: the file, what git knows, whether it can be worked on."""
    suite = suite_at(folder, place)
    (scenario,) = suite.scenarios
    source = workspace_source(suite, scenario, folder / "home")

    async def inside():
        async with trial_workspace(scenario, source, keep_in) as workspace:
            text = (workspace.root / "a.txt").read_text()
            log = git(workspace.root, "log", "--all", "--format=%s")
            objects = git(
                workspace.root, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)"
            ).split()
            (workspace.root / "a.txt").write_text("changed")
            return (
                text,
                log,
                objects.count("commit"),
                git(workspace.root, "diff", "--stat").split()[0],
                (workspace.root / ".git/FETCH_HEAD").exists(),
            )

    return asyncio.run(inside())


@pytest.mark.parametrize("address", [False, True])
def test_a_trial_has_the_commit_and_no_later_one(tmp_path, commits, address):
    """From a folder or an address: the files of the commit, a repository of it alone, fresh for each
    trial.
    """
    place = GitCheckout(
        repository=(tmp_path / "repo").as_uri() if address else "repo",
        commit=commits[0] if address else commits[0][:8],
    )
    expected = ("question", "question", 1, "a.txt", False)
    assert [look(tmp_path, place), look(tmp_path, place)] == [expected, expected]
    assert (tmp_path / "repo" / "a.txt").read_text() == "solution"
    assert len([path for path in (tmp_path / "home" / "checkouts").iterdir() if path.is_dir()]) == 1


def test_many_may_need_it_at_once(tmp_path, commits):
    """Several that make the same checkout at the same time, in one loop and in two, end with one."""
    place = GitCheckout(repository="repo", commit=commits[1])
    folder = checkout_folder(suite_at(tmp_path, place), place, tmp_path / "home")

    async def several():
        await asyncio.gather(*(make_checkout(place, folder) for _ in range(4)))

    async def two_loops():
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, several()) for _ in range(2)))

    asyncio.run(two_loops())
    assert (folder / "a.txt").read_text() == "solution"
    assert [path for path in folder.parent.iterdir() if path.is_dir()] == [folder]


@pytest.mark.parametrize(
    ("workspace", "told"),
    [
        (
            "{repository: repo, commit: main}",
            "commit is a hash of 7 to 40 digits, which always means the same, not 'main'",
        ),
        (
            "{repository: 'https://example.org/x.git', commit: abcdef1}",
            "abcdef1 is too short, a repository elsewhere is asked for all 40 digits",
        ),
        (
            "{repository: 'ext::sh -c id', commit: abcdef1}",
            "repository is a folder, or an address with https, ssh, git or file",
        ),
        ("{repository: '--upload-pack=id', commit: abcdef1}", "repository is a folder, or an address"),
        (
            "{repository: repo}",
            "a workspace is one of files, folder, package, and repository with commit, not repository",
        ),
        ("{repository: repo, commit: abcdef1, package: x}", "not package and repository and commit"),
    ],
)
def test_what_cannot_be_a_place_is_refused(tmp_path, workspace, told):
    """Names that move, addresses that are commands, half of what is needed."""
    path = tmp_path / "s.yaml"
    path.write_text(
        f"scenarios:\n  - {{id: a, goal: b, checks: [{{answer_contains: c}}], workspace: {workspace}}}\n"
    )
    with pytest.raises(UsageError) as caught:
        load_suite(path)
    assert told in str(caught.value)


def test_what_is_not_there_is_told_before_the_first_trial(tmp_path, commits):
    """A folder that is not a repository, a commit it does not have; an address is asked at the first trial,
    in git's own words.
    """
    (tmp_path / "plain").mkdir()
    for place, told in (
        (GitCheckout(repository="repo", commit="0" * 40), "has no commit 0000"),
        (GitCheckout(repository="plain", commit=commits[0]), "plain is not a git repository"),
        (GitCheckout(repository="nowhere", commit=commits[0]), "which does not exist"),
        (
            GitCheckout(repository=(tmp_path / "gone").as_uri(), commit=commits[0]),
            "cannot be checked out: git",
        ),
    ):
        with pytest.raises(UsageError, match=told):
            look(tmp_path, place)
