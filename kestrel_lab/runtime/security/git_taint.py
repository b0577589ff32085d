"""Objects of a workspace's repositories that may hold tainted content: loose ones, and those in packs.

What git shows of an earlier commit it reads from one of these files, whatever the command is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kestrel_lab.host.git import Repository, run_git
from kestrel_lab.runtime.security.file_readings import MOST_BYTES, is_text_object
from kestrel_lab.tools.sandbox.autorun_watch import autorun_watch
from kestrel_lab.tools.sandbox.gitdir.git_guard import git_folders

_MOST_PACKED = 8 << 20
"""Bytes of objects in packs that are read, those first whose size is like that of a tainted file."""
_HEAD_BYTES = 512


@dataclass(slots=True)
class GitObjects:
    """Finds objects; what was read is remembered as long as its file stays as it is."""

    _texts: dict[str, tuple[tuple[int, ...], bool]] = field(default_factory=dict)
    """By path of a loose object, its stamp, and whether it is a text."""
    _packs: dict[str, tuple[tuple[object, ...], list[bytes] | None]] = field(default_factory=dict)
    """By folder of packs, what they were, and texts in them."""

    def tainted(
        self,
        root: str,
        since_ns: float,
        sizes: Collection[int],
        source_of_file: Callable[[str], str],
        source_of_text: Callable[[bytes, int], str],
    ) -> dict[str, str]:
        """Return the files of objects with tainted content, by path, each with the source of its words.

        `since_ns` is when the first tainted content was made, `sizes` are those of tainted files.
        """
        found: dict[str, str] = {}
        for path in self._loose(root, since_ns):
            if source := source_of_file(path):
                found[path] = source
        for path, texts, changed_ns in self._packed(root, since_ns, sizes):
            if texts is None:
                found[path] = "a repository that is too large to be searched"
            for text in texts or ():
                if source := source_of_text(text, changed_ns):
                    found[path] = source
                    break
        return found

    def _loose(self, root: str, since_ns: float) -> Iterator[str]:
        """Yield paths of the loose objects that were made since then and are files, commits or tags."""
        for objects in _object_folders(root):
            for folder in _scan(objects):
                if not folder.is_dir(follow_symlinks=False) or len(folder.name) != 2:
                    continue
                if folder.stat(follow_symlinks=False).st_ctime_ns < since_ns:
                    continue
                for entry in _scan(folder.path):
                    status = entry.stat(follow_symlinks=False)
                    new = status.st_ctime_ns >= since_ns and stat.S_ISREG(status.st_mode)
                    if new and self._is_text(entry.path, status):
                        yield os.path.relpath(entry.path, root)

    def _packed(
        self, root: str, since_ns: float, sizes: Collection[int]
    ) -> Iterator[tuple[str, list[bytes] | None, int]]:
        """Yield paths of packs that were made since then, with the texts in their repository's packs, and the
        time at which they were made. Texts that git cannot list in its time are `None`.
        """
        for objects in _object_folders(root):
            new: dict[str, os.stat_result] = {}
            for entry in _scan(f"{objects}/pack"):
                if entry.name.endswith(".pack") and (found := entry.stat()).st_ctime_ns >= since_ns:
                    new[entry.path] = found
            if not new:
                continue
            key = (*sorted((path, found.st_ctime_ns) for path, found in new.items()), *sorted(sizes))
            if self._packs.get(objects, ((), []))[0] != key:
                self._packs[objects] = (key, _read_packs(Path(objects).parent, sizes))
            for path, found in new.items():
                yield os.path.relpath(path, root), self._packs[objects][1], found.st_ctime_ns

    def _is_text(self, path: str, status: os.stat_result) -> bool:
        stamp = (status.st_ino, status.st_ctime_ns, status.st_size)
        seen = self._texts.get(path)
        if seen is not None and seen[0] == stamp:
            return seen[1]
        try:
            with Path(path).open("rb") as file:
                self._texts[path] = (stamp, is_text_object(file.read(_HEAD_BYTES)))
        except OSError:
            return False
        return self._texts[path][1]


def _object_folders(root: str) -> Iterator[str]:
    """Yield the folders of objects of the repositories in a workspace, and of the one around it."""
    watch = autorun_watch(root)
    watch.look()
    around = Repository.around(Path(root))
    places = dict.fromkeys(git_folders(watch.gitdirs))
    for place in {**places, **({} if around is None else {str(around.common): None})}:
        yield f"{place}/objects"


def _read_packs(gitdir: Path, sizes: Collection[int]) -> list[bytes] | None:
    """Return files, commits and tags of a repository, those first whose size is near one of `sizes`."""
    form = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
    listed = run_git(gitdir, "cat-file", "--batch-all-objects", form)
    if listed.returncode:
        return None
    found: list[tuple[float, int, bytes]] = []
    for line in listed.stdout.rstrip(b"\n").split(b"\n") if listed.stdout else []:
        name, kind, size = line.split()
        if kind != b"tree" and int(size) <= MOST_BYTES:
            distance = min((abs(int(size) - tainted) / tainted for tainted in sizes), default=0.0)
            found.append((distance, int(size), name))
    wanted, total = [], 0
    for _, length, name in sorted(found):
        total += length
        if total > _MOST_PACKED:
            break
        wanted.append(name)
    answer = run_git(gitdir, "cat-file", "--batch", "--buffer", stdin=b"\n".join(wanted) + b"\n")
    return None if answer.returncode else list(_contents_in(answer.stdout))


def _contents_in(answer: bytes) -> Iterator[bytes]:
    """Yield the contents that `git cat-file --batch` answered."""
    position = 0
    while (end := answer.find(b"\n", position)) >= 0:
        fields, position = answer[position:end].split(), end + 1
        if len(fields) == 3:  # an object that is missing has two
            length = int(fields[2])
            yield answer[position : position + length]
            position += length + 1


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
