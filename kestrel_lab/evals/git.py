"""Commits of a repository in order: a range, the line between two, and the one to compare with."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.host.git import git_output
from kestrel_lab.host.log_files import is_log

# What git says of a checkout, asked without changing anything in it.

_HASHED: Final = 20_000_000
"""Bytes of an untracked file that are hashed; of a larger one, size and time of change stand for the rest."""


class NoEarlierCommit(UsageError):
    """There is no commit before this one, and none is missing from the clone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeVersion:
    """The version of the code in a checkout."""

    sha: str = ""
    """The commit; empty outside git."""
    changes: str = ""
    """Hash of what differs from the commit, tracked and untracked; empty for a clean checkout."""

    def __str__(self) -> str:
        return f"{self.sha}-dirty.{self.changes}" if self.changes else self.sha

    @property
    def short(self) -> str:
        """The same in short, for people."""
        return self.sha[:10] + ("+changes" if self.changes else "")


async def commit_of(folder: Path, name: str) -> str:
    """Return the full hash of the commit that `name` means; raises `UsageError` when there is none."""
    # Git would take such a name for an option.
    if name.startswith("-"):
        raise UsageError(f"{name!r} is not a name of a commit")
    try:
        return (
            await git_output(
                folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
            )
        ).strip()
    except UsageError as error:
        if name == "HEAD":
            raise UsageError(f"{folder} has no commit yet: git add and git commit first") from error
        hint = (
            f"; there is origin/{name}"
            if await _is_commit(folder, f"origin/{name}")
            else await _shallow_hint(folder)
        )
        raise UsageError(f"{name!r} is not a commit, branch or tag of {folder}{hint}") from error


async def _is_commit(folder: Path, name: str) -> bool:
    try:
        await git_output(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except UsageError:
        return False
    return True


async def code_version(root: Path | None, *, but: Path | None = None) -> CodeVersion:
    """Return the version of the checkout at `root`; `but` is a folder whose files do not count as changes.

    Empty outside git and before the first commit.
    """
    if root is None:
        return CodeVersion()
    try:
        sha = await commit_of(root, "HEAD")
    except UsageError:
        return CodeVersion()
    skip = (
        [f":(exclude,top){but.relative_to(root)}"]
        if but is not None and but.is_relative_to(root) and but != root
        else []
    )
    # For changes within submodules git would start another git, in them.
    plainly = ("--binary", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
    changed = await git_output(root, "diff", "HEAD", *plainly, "--", ".", *skip)
    for inner in await _submodules(root):
        if (version := await code_version(inner)).changes:
            changed += f"\0{inner.relative_to(root)} {version}"
    untracked = (
        await git_output(root, "ls-files", "--others", "--exclude-standard", "-z", "--", ".", *skip)
    ).split("\0")
    names = sorted(name for name in untracked if name)
    if not changed and not names:
        return CodeVersion(sha=sha)
    digest = hashlib.sha256(changed.encode("utf-8", "surrogateescape"))
    for name in names:
        digest.update(f"\0{name}\0".encode("utf-8", "surrogateescape"))
        digest.update(await asyncio.to_thread(_content, root / name))
    return CodeVersion(sha=sha, changes=digest.hexdigest()[:8])


async def _submodules(root: Path) -> list[Path]:
    listed = (await git_output(root, "ls-files", "--stage", "-z")).split("\0")
    places = [root / line.partition("\t")[2] for line in listed if line.startswith("160000 ")]
    return [place for place in places if await asyncio.to_thread((place / ".git").exists)]


def _content(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        return b""
    facts = path.stat()
    # What a lab writes is no change of the code.
    if is_log(path):
        return b""
    with path.open("rb") as file:
        head = file.read(_HASHED)
    rest = f"{facts.st_size} {facts.st_mtime_ns}".encode() if facts.st_size > _HASHED else b""
    return hashlib.sha256(head).digest() + rest


_MAIN: Final = ("main", "master", "origin/main", "origin/master", "origin/HEAD")


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One commit."""

    sha: str
    subject: str
    """The first line of its message."""
    at: float
    """When it was made, in seconds since 1970."""

    @property
    def short(self) -> str:
        """The hash as people write it."""
        return self.sha[:10]


async def commits_in(root: Path, text: str, *, every: int = 1, last: int | None = None) -> list[Commit]:
    """Return the commits that `text` names, oldest first.

    `A..B` means what it means to git, the commits after `A` up to `B`, along first parents: a merged branch
    is one commit. `A,B,C` are these commits, and one name alone is that commit. Of them every `every`-th is
    taken, counted from the newest, and of these the `last` newest. Raises `UsageError` for names that are not
    commits, numbers below 1, and an empty range.
    """
    if "..." in text:
        raise UsageError(f"{text!r}: write A..B; a difference of two branches (A...B) has no order")
    if ".." in text:
        first, _, end = text.partition("..")
        start, stop = (
            await commit_of(root, first.strip() or "HEAD"),
            await commit_of(root, end.strip() or "HEAD"),
        )
        found = await _list_commits(root, "--first-parent", "--reverse", f"{start}..{stop}")
        if not found:
            raise UsageError(
                f"{text!r} holds no commits: {first or 'HEAD'} is {end or 'HEAD'}, or comes after it"
            )
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names:
            raise UsageError("name some commits: A..B, or A,B,C")
        found = [await commit_at(root, name) for name in names]
        # One commit may be named twice, by a branch and by its hash.
        found = list({commit.sha: commit for commit in found}.values())
    return sample_commits(found, every, last)


def sample_commits(commits: Sequence[Commit], every: int, last: int | None) -> list[Commit]:
    """Of `commits`, oldest first, every `every`-th counted from the newest, and of these the `last` newest;
    raises `UsageError` for numbers below 1.
    """
    if every < 1 or (last is not None and last < 1):
        raise UsageError(f"every and last are at least 1, not {every} and {last}")
    return list(reversed(list(reversed(commits))[::every][:last]))


async def commit_at(root: Path, name: str) -> Commit:
    """Return the commit that `name` means; raises `UsageError` when there is none."""
    return (await _list_commits(root, "--no-walk", await commit_of(root, name)))[0]


async def line_between(root: Path, good: str, bad: str) -> list[Commit]:
    """Return the commits from `good` to `bad`, both included, along first parents; raises `UsageError` when
    there is no such line.
    """
    first, last = await commit_of(root, good), await commit_of(root, bad)
    if first == last:
        raise UsageError(f"{good} and {bad} are the same commit {first[:10]}: there is nothing between them")
    line = await _list_commits(root, "--first-parent", "--reverse", last)
    shas = [commit.sha for commit in line]
    if first in shas:
        return line[shas.index(first) :]
    try:
        await git_output(root, "merge-base", "--is-ancestor", first, last)
    except UsageError:
        msg = f"{good} is not an ancestor of {bad}: bisect needs a commit and one of its descendants"
        msg += await _shallow_hint(root)
        raise UsageError(msg) from None
    raise UsageError(
        f"{good} came into {bad} by a merge. Only first parents are followed: name a commit of the "
        "branch that it was merged into"
    )


async def merged_branch(root: Path, sha: str) -> tuple[str, str] | None:
    """Return where the branch that `sha` merged began, and its last commit; `None` for a commit with one
    parent.
    """
    parents = (await git_output(root, "rev-list", "--parents", "--max-count=1", sha)).split()[1:3]
    if len(parents) < 2:
        return None
    return (await git_output(root, "merge-base", *parents)).strip(), parents[1]


async def first_parents(root: Path, name: str = "HEAD") -> list[Commit]:
    """Return `name` and its ancestors along first parents, newest first, a thousand of them at most."""
    # Each of them may be a query for results, so the search has an end.
    return await _list_commits(root, "--first-parent", "--max-count=1000", await commit_of(root, name))


def base_branches(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the branch that a build compares with, here and at `origin`: the target of a pull request
    (GitHub) or merge request (GitLab), or the default branch as the build's server names it; empty where no
    build says any.
    """
    name = env.get("GITHUB_BASE_REF") or env.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
    if not name and (event := env.get("GITHUB_EVENT_PATH")) and Path(event).is_file():
        repository = json.loads(Path(event).read_text(encoding="utf-8")).get("repository") or {}
        name = repository.get("default_branch")
    name = name or env.get("CI_DEFAULT_BRANCH")
    return (f"origin/{name}", name) if name else ()


async def nearest_baseline(
    root: Path, head: str, has_results: Callable[[str], bool], branches: Sequence[str] = ()
) -> tuple[Commit, bool]:
    """Return the commit to compare `head` with, and whether it has results.

    The nearest ancestor of `head` on one of `branches` for which `has_results` says so of its hash; if none
    does, the nearest ancestor there. Without `branches` they are `main` and `master`, here and at `origin`,
    what `origin/HEAD` points to, and the branch that new repositories begin with (`init.defaultBranch`),
    whichever is nearest to `head`. Raises `NoEarlierCommit` for a first commit, and
    `UsageError` where there is no such branch, or where the clone has too few commits to tell.
    """
    sha = await commit_of(root, head)
    fork = await _fork(root, sha, branches or await _main_branches(root))
    # On the main branch itself the fork is the commit, which is no baseline of its own.
    line = [commit for commit in await first_parents(root, fork) if commit.sha != sha]
    if not line:
        if hint := await _shallow_hint(root):
            raise UsageError(f"the commit before {head} is not in this clone{hint}")
        raise NoEarlierCommit(f"{head} is the first commit: there is no earlier commit to compare with")
    for commit in line:
        if has_results(commit.sha):
            return commit, True
    return line[0], False


async def _main_branches(root: Path) -> Sequence[str]:
    """Return the names that the main branch of a repository may have."""
    try:
        first = (await git_output(root, "config", "--get", "init.defaultBranch")).strip()
    except UsageError:
        return _MAIN
    return (*_MAIN, first, f"origin/{first}")


async def _fork(root: Path, sha: str, branches: Sequence[str]) -> str:
    """Return the newest ancestor of `sha`, or `sha` itself, that is on one of `branches`."""
    forks: dict[str, int] = {}
    for name in branches:
        try:
            fork = (await git_output(root, "merge-base", sha, await commit_of(root, name))).strip()
        except UsageError:
            continue
        forks[fork] = int(await git_output(root, "rev-list", "--count", f"{fork}..{sha}"))
    if not forks:
        msg = (
            f"no branch of {', '.join(branches)} has an ancestor in common with {sha[:10]}: name the "
            "commit to compare with"
        )
        raise UsageError(msg + await _shallow_hint(root))
    return min(forks, key=forks.__getitem__)


async def _shallow_hint(root: Path) -> str:
    """Return a hint where older commits may be missing; empty elsewhere."""
    shallow = (await git_output(root, "rev-parse", "--is-shallow-repository")).strip() == "true"
    how = (
        "git fetch --deepen=200 gets more, git fetch --unshallow all (GitHub Actions: actions/checkout "
        "with fetch-depth: 0)"
    )
    return f"; this clone has only the newest commits: {how}" if shallow else ""


async def tree_of(root: Path, sha: str) -> str:
    """Return the hash of all files of a commit: two commits with equal ones differ in nothing but their
    message.
    """
    return (await git_output(root, "rev-parse", "--verify", "--end-of-options", f"{sha}^{{tree}}")).strip()


async def has_file(root: Path, sha: str, name: Path) -> bool:
    """Return whether a commit has the file `name`, given from the top of the repository."""
    listed = await git_output(root, "ls-tree", "-z", "--full-tree", "--name-only", sha, "--", name.as_posix())
    return bool(listed)


async def file_at(root: Path, sha: str, name: Path) -> bytes | None:
    """Return the content of the file `name` at a commit; `None` where the commit does not have it."""
    if not await has_file(root, sha, name):
        return None
    text = await git_output(root, "show", f"{sha}:{name.as_posix()}")
    return text.encode("utf-8", "surrogateescape")


async def _list_commits(root: Path, *which: str) -> list[Commit]:
    text = await git_output(
        root, "log", "--no-show-signature", "--no-color", "--format=%H%x00%ct%x00%s", *which, "--"
    )
    # A subject may hold what else ends a line for Python, and bytes that are no text.
    lines = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").split("\n")
    found: list[list[str]] = [line.split("\0", 2) for line in lines if line]
    return [Commit(sha=sha, at=float(at), subject=subject) for sha, at, subject in found]
