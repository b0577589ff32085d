"""Commits of repositories as workspaces: fetched once, then copied for each trial."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.scenario_parts import GitCheckout
from kestrel_lab.evals.suite import Suite
from kestrel_lab.host.filesystem import lock_file
from kestrel_lab.host.git import Repository, copy_commit, run_git

_ADDRESS: Final = re.compile(r"(?:https|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")


def check_place(place: GitCheckout) -> None:
    """Raise `UsageError` for a commit that is not a hash, which may be another one tomorrow, or an address
    that git is not to be given.
    """
    if not re.fullmatch(r"[0-9a-f]{7,40}", place.commit):
        raise UsageError(
            "commit is a hash of 7 to 40 digits, which always means the same, not "
            f"{one_line(place.commit, 60)!r}: git rev-parse says it"
        )
    if _ADDRESS.fullmatch(place.repository):
        if len(place.commit) < 40:
            raise UsageError(
                f"commit: {place.commit} is too short, a repository elsewhere is asked for all 40 digits"
            )
    elif "://" in place.repository or "::" in place.repository or place.repository.startswith("-"):
        raise UsageError(
            "repository is a folder, or an address with https, ssh, git or file, not "
            f"{one_line(place.repository, 80)!r}"
        )


def checkout_folder(suite: Suite, place: GitCheckout, home: Path) -> Path:
    """Return the folder under `home` into which `make_checkout` puts the commit; a note beside it says where
    the commit comes from.

    Raises `UsageError` when a folder is not a repository or has no such commit; other machines are not asked
    yet.
    """
    source, commit = place.repository, place.commit
    if not _ADDRESS.fullmatch(source):
        source, commit = _find_repository(suite.resolve(source), commit)
    folder = home.absolute() / "checkouts" / content_key(source, commit)[:20]
    note = folder.with_suffix(".txt")
    if not note.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{commit} {source}\n", encoding="utf-8")
    return folder


async def make_checkout(place: GitCheckout, folder: Path) -> None:
    """Make the checkout in `folder`, as `checkout_folder` found it, if it is not there; raises `UsageError`
    with git's own words.
    """
    if _folder_exists(folder):
        return
    async with lock_file(folder.with_suffix(".lock")):
        if _folder_exists(folder):
            return
        commit, _, source = folder.with_suffix(".txt").read_text(encoding="utf-8").strip().partition(" ")
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            await copy_commit(_source(source), commit, made)
            os.rename(made, folder)  # a folder that another process has made meanwhile is no error  # noqa: PTH104
        except OSError:
            if not _folder_exists(folder):
                raise
        except UsageError as error:
            raise UsageError(f"commit {commit} of {source} cannot be checked out: {error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _folder_exists(folder: Path) -> bool:
    return folder.is_dir()


def _source(kept: str) -> str | Path:
    """A folder of this machine, or an address."""
    if kept.startswith("file://"):
        return Path(url2pathname(urlsplit(kept).path))
    return kept if _ADDRESS.fullmatch(kept) else Path(kept)


def _find_repository(folder: Path, commit: str) -> tuple[str, str]:
    """Return where the repository of a folder is kept, the same for all of its worktrees, and the full
    hash.
    """
    repository = Repository.around(folder) if folder.is_dir() else None
    if repository is None:
        raise UsageError(f"{folder} is not a git repository")
    done = run_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    whole = done.stdout.decode().strip()
    if not whole.startswith(commit):
        raise UsageError(f"the repository {folder} has no commit {commit}")
    return str(repository.common), whole
