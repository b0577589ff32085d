"""No repository makes a git call of ours start a program, whatever its settings, attributes and hooks
name.
"""

import asyncio
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel_lab.answers.contracts import patch_problem
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.commits.worktrees import temporary_worktree
from kestrel_lab.evals.git import code_version, commits_in, nearest_baseline
from kestrel_lab.evals.scenario_parts import GitCheckout
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.suites.repository_checkouts import checkout_folder, make_checkout
from kestrel_lab.host.git import Repository, git_program, run_git, run_git_outside
from kestrel_lab.retrieval.explain import explain_rank
from kestrel_lab.retrieval.indexing.file_list import files_of
from kestrel_lab.retrieval.indexing.git_history import head_of
from kestrel_lab.retrieval.indexing.index import CodeIndex

WHO = (
    "-c",
    "user.name=a",
    "-c",
    "user.email=a@b.c",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "init.defaultBranch=main",
)


def git(folder: Path, *words: str) -> str:
    """Git as a person uses it."""
    return subprocess.run(
        ["git", *WHO, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def repository(folder: Path) -> Path:
    """Two commits, the first tagged `one`, and a file that is ignored."""
    folder.mkdir()
    git(folder, "init", "-q")
    for number in ("one", "two"):
        (folder / "a.py").write_text(f"def {number}(): ...\n")
        (folder / ".gitignore").write_text("*.log\n")
        (folder / "x.log").write_text("x")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", number)
        git(folder, "tag", number)
    return folder


def trap(folder: Path) -> tuple[Path, Callable[[], list[str]]]:
    """A program that notes that it was run, and who ran."""
    program, log = folder / "trap", folder / "trapped"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {log}\nexit 0\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program, lambda: log.read_text().splitlines() if log.exists() else []


def everything_of_ours(folder: Path, home: Path) -> tuple[object, ...]:
    """What each of our calls says of a repository with a changed file `a.py`."""
    index = CodeIndex(folder, home)
    index.refresh()
    explained = explain_rank(index, "one", "x.log").reason
    index.close()
    place = GitCheckout(repository=folder.name, commit=head_of(folder)[:12])
    suite = Suite(
        name="s", scenarios=(Scenario(id="a", goal="g", checks=(), place=place),), path=folder.parent / "s"
    )
    made = checkout_folder(suite, place, home)

    async def evals() -> tuple[object, ...]:
        await make_checkout(place, made)
        async with temporary_worktree(folder, "one", home) as tree:
            text = (tree / "a.py").read_text()
            version = await code_version(tree)
        commits = [commit.subject for commit in await commits_in(folder, "one,two")]
        base, _ = await nearest_baseline(folder, "HEAD", lambda _: True)
        return text, version.changes, commits, base.subject, bool((await code_version(folder)).changes)

    patch = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-def changed(): ...\n+def more(): ...\n"
    of_evals = asyncio.run(evals())
    return files_of(folder), explained, (made / "a.py").read_text(), patch_problem(patch, folder), of_evals


EXPECTED = (
    [".gitattributes", ".gitignore", "a.py"],
    "it is not listed: ignored by the rule .gitignore:1:*.log",
    "def two(): ...\n",
    "",
    ("def one(): ...\n", "", ["one", "two"], "one", True),
)


def hostile_settings(program: Path) -> str:
    """Every setting that the installed git knows, each naming the program; and where it says so, by the name
    that attributes use.
    """
    listed = subprocess.run(
        ["git", "help", "--config"], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    lines = []
    for key in listed:
        if not re.fullmatch(r"[A-Za-z][\w.<>*()|/-]*\.[\w<>*-]+", key) or key.startswith("include"):
            continue
        section, *middle, name = re.sub(r"\([^)]*\)|<[^>]*>|\*", "x", key).split(".")
        lines.append(f'[{section} "{".".join(middle)}"]' if middle else f"[{section}]")
        lines.append(f"\t{name} = {program}")
    for driver in ('filter "x"', 'diff "x"', 'merge "x"'):
        lines += [
            f"[{driver}]",
            *(
                f"\t{key} = {program}"
                for key in ("clean", "smudge", "process", "command", "textconv", "driver")
            ),
        ]
    lines += [
        '[alias]\n\tls-files = "!' + str(program) + '"',
        "[core]",
        f"\tfsmonitor = {program}",
        f"\thooksPath = {program.parent}/hooks",
    ]
    assert len(lines) > 1000
    return "\n".join(lines) + "\n"


def make_hostile(folder: Path, program: Path, settings: str) -> None:
    """Give a repository such settings, by an include too, attributes for every file, every hook, and a
    change.
    """
    (folder / ".gitattributes").write_text("* filter=x diff=x merge=x text\n")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* filter=x diff=x merge=x\n")
    (folder / "a.py").write_text("def changed(): ...\n")
    for place in (folder / ".git" / "hooks", program.parent / "hooks"):
        place.mkdir(exist_ok=True)
        for hook in (
            "post-checkout",
            "post-index-change",
            "reference-transaction",
            "fsmonitor-watchman",
            "pre-auto-gc",
            "post-commit",
        ):
            shutil.copy(program, place / hook)
    (folder / ".git" / "more").write_text(settings)
    (folder / ".git" / "config").write_text(f"[include]\n\tpath = more\n{settings}")


def test_no_setting_of_a_repository_runs_or_disturbs_anything(tmp_path: Path) -> None:
    """With every setting that git knows set to a program, with attributes and hooks, each call says what it
    says without, and none runs.
    """
    program, trapped = trap(tmp_path)
    folder = repository(tmp_path / "repo")
    make_hostile(folder, program, hostile_settings(program))
    assert everything_of_ours(folder, tmp_path / "home") == EXPECTED
    assert trapped() == []


def test_the_trap_catches_git_as_it_is_usually_called(tmp_path: Path) -> None:
    """The mutant: the same repository and git called with its own folder runs the monitor, filters and
    hooks.
    """
    program, trapped = trap(tmp_path)
    folder = repository(tmp_path / "repo")
    make_hostile(
        folder,
        program,
        f'[core]\n\tfsmonitor = {program}\n[filter "x"]\n\tclean = {program}\n\tsmudge = {program}\n',
    )
    for words in (
        ("ls-files", "--others"),
        ("diff", "HEAD"),
        ("worktree", "add", "-q", "--detach", str(tmp_path / "w"), "one"),
    ):
        before = len(trapped())
        subprocess.run(["git", *words], cwd=folder, check=False, capture_output=True)
        assert len(trapped()) > before, words


@pytest.mark.parametrize("bare", [False, True])
def test_where_a_repository_is_found(tmp_path: Path, bare: bool) -> None:
    """In folders of it, in its worktrees, and bare; an empty `.git` folder is none, and a `.git` file that
    leads nowhere ends the search.
    """
    folder = repository(tmp_path / "repo")
    if bare:
        git(tmp_path, "clone", "-q", "--bare", "repo", "b.git")
        found = Repository.around(tmp_path / "b.git")
        assert found == Repository(top=None, own=tmp_path / "b.git", common=tmp_path / "b.git")
        assert run_git(tmp_path / "b.git", "rev-parse", "HEAD").stdout.decode().strip() == git(
            folder, "rev-parse", "HEAD"
        )
        return
    (folder / "deep" / ".git").mkdir(parents=True)
    assert Repository.around(folder / "deep") == Repository(
        top=folder, own=folder / ".git", common=folder / ".git"
    )
    git(folder, "worktree", "add", "-q", "../tree")
    tree = tmp_path / "tree"
    assert Repository.around(tree) == Repository(
        top=tree, own=folder / ".git/worktrees/tree", common=folder / ".git"
    )
    (tree / ".git").write_text("gitdir: nowhere\n")
    assert Repository.around(tree) is None
    assert run_git(tree, "ls-files").returncode != 0


def test_what_a_user_set_about_files_still_counts(tmp_path: Path) -> None:
    """What a repository says of its files, and the names that are ignored everywhere, are taken over."""
    folder = repository(tmp_path / "repo")
    (tmp_path / "everywhere").write_text("*.tmp\n")
    git(folder, "config", "core.excludesFile", str(tmp_path / "everywhere"))
    (folder / "b.tmp").write_text("")
    (folder / "c.py").write_text("")
    assert files_of(folder) == [".gitignore", "a.py", "c.py"]
    (folder / "a.py").chmod(0o755)
    assert asyncio.run(code_version(folder)).changes
    (folder / "c.py").unlink()
    git(folder, "config", "core.fileMode", "false")
    assert asyncio.run(code_version(folder)).changes == ""


def test_git_is_never_found_where_agents_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `git` in the repository, in the current folder or at a relative place of PATH is not the one that is
    run; without another, that is said.
    """
    program, trapped = trap(tmp_path)
    folder = repository(tmp_path / "repo")
    here = tmp_path / "here"
    for place in (folder / "bin", here):
        place.mkdir()
        shutil.copy(program, place / "git")
    monkeypatch.chdir(here)
    (tmp_path / "link").symlink_to(folder / "bin")
    monkeypatch.setenv(
        "PATH",
        os.pathsep.join(
            [str(folder / "bin"), "", ".", "bin", str(here), str(tmp_path / "link"), os.environ["PATH"]]
        ),
    )
    assert files_of(folder) == [".gitignore", "a.py", "bin/git"]
    assert trapped() == []
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:.:{here}")
    with pytest.raises(UsageError, match="install git"):
        git_program(folder)
    assert (run_git(folder, "ls-files").returncode, trapped()) == (127, [])


def test_calls_see_the_logs_heads_and_ignored_names_of_a_repository(tmp_path: Path) -> None:
    """What a person sees: the reflog, names of heads such as ORIG_HEAD, and what `info/exclude` ignores; in a
    worktree those of its own.
    """
    folder = repository(tmp_path / "repo")
    (folder / "b.py").write_text("b\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "second")
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "exclude").write_text("*.tmp\n")
    (folder / "x.tmp").write_text("")
    for words in (
        ("reflog",),
        ("rev-parse", "ORIG_HEAD"),
        ("rev-parse", "HEAD@{1}"),
        ("status", "--short"),
        ("log", "-g", "--oneline", "main"),
    ):
        assert run_git(folder, *words).stdout.decode().strip() == git(folder, *words).strip(), words
    assert run_git(folder, "rev-parse", "ORIG_HEAD").returncode == 0


def test_a_git_file_is_read_whole_or_is_none(tmp_path: Path) -> None:
    """It has to say `gitdir:` and nothing before; a folder without objects or refs is no repository."""
    folder = repository(tmp_path / "repo")
    place = tmp_path / "place"
    place.mkdir()
    for text, found in (
        (f"gitdir: {folder / '.git'}\n", True),
        (f"x gitdir: {folder / '.git'}\n", False),
        ("gitdir: \n", False),
    ):
        (place / ".git").write_text(text)
        assert (Repository.around(place) is not None) is found, text
    for missing in ("objects", "refs", "HEAD"):
        part = repository(tmp_path / missing) / ".git" / missing
        shutil.rmtree(part) if part.is_dir() else part.unlink()
        assert Repository.around(tmp_path / missing) is None, missing


def test_without_git_a_call_outside_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its exit code and its words, as any failure."""
    assert (
        run_git_outside(tmp_path, "hash-object", "--stdin", stdin=b"a").stdout.decode().strip()
        == "2e65efe2a145dda7ee51d1741299f848e5bf752e"
    )
    assert run_git_outside(tmp_path, "rev-parse", "HEAD").returncode not in (0, 127)
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = run_git_outside(tmp_path, "version")
    assert (ended.returncode, b"install git" in ended.stderr) == (127, True)


@pytest.mark.parametrize("kind", ["blob:none", "tree:0"])
def test_what_a_partial_clone_lacks_is_said_with_the_command_that_fetches_it(
    kind: str, tmp_path: Path
) -> None:
    """A commit whose files were never fetched cannot be checked out; the advice, followed, makes it work."""
    there = repository(tmp_path / "there")
    git(there, "config", "uploadpack.allowFilter", "true")
    git(there, "config", "uploadpack.allowAnySHA1InWant", "true")
    here = tmp_path / "here"
    git(tmp_path, "clone", "-q", f"--filter={kind}", f"file://{there}", str(here))

    async def files_of_one() -> str:
        async with temporary_worktree(here, "origin/main~1", tmp_path / "home") as place:
            return (place / "a.py").read_text()

    with pytest.raises(UsageError, match="partial clone") as raised:
        asyncio.run(files_of_one())
    advice = re.search(r"git -C (\S+) (fetch .*), and", str(raised.value))
    assert advice is not None
    assert Path(advice[1]) == here
    git(here, *advice[2].split())
    assert asyncio.run(files_of_one()) == "def one(): ...\n"


def test_another_failure_in_a_partial_clone_has_no_such_advice(tmp_path: Path) -> None:
    """A name that no commit has is no missing object."""
    there = repository(tmp_path / "there")
    git(there, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{there}", str(tmp_path / "here"))
    with pytest.raises(UsageError) as raised:
        asyncio.run(commits_in(tmp_path / "here", "nowhere..HEAD"))
    assert "partial" not in str(raised.value)
