"""Next actions for the reader of an answer: runnable commands, existing files and their tests."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from itertools import chain
from pathlib import Path, PurePath
from typing import Final, Literal

from kestrel_lab.answers.contracts import fenced_code
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.verification.claims import file_names
from kestrel_lab.verification.workspace_files import Files

MOST: Final = 8
_SHELLS: Final = ("sh", "bash", "shell", "console", "zsh")
_INLINE: Final = re.compile(r"`([a-z][\w.+-]*(?: [^`\n]{1,200})+)`")
_PROMPT: Final = re.compile(r"^\s*(?:\$|>|%)\s+")
_RUNNERS: Final = {"pytest", "py.test", "unittest", "tox", "nox", "jest", "vitest", "rspec", "test"}
"""Words of commands that run tests; the last one as in `npm test` and `go test`."""
_MOST_TESTS: Final = 3
_MOST_NAMED: Final = 200
"""Files and commands of an answer that are looked at."""
_MOST_CHARS: Final = 100_000
"""Characters of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextAction:
    """Something to do, that was found to be possible when it was proposed."""

    kind: Literal["command", "file", "test"]
    text: str
    """The command as it is to be typed, or the path from the workspace."""
    why: str


def next_actions(
    answer: str,
    files: Files,
    *,
    changed: Collection[str] = (),
    ran: Collection[str] = (),
    ran_last: Collection[str] = (),
) -> tuple[NextAction, ...]:
    """Return at most `MOST` actions for the reader of `answer`: tests, then commands, then files; runs
    nothing.

    `changed` are files the run wrote; `ran` are commands it ran, which are not proposed; `ran_last` are those
    behind its last change, and the tests that they ran are not proposed. A command is proposed if its program
    is installed, a file if it exists, a test if it exists and is named after a changed or mentioned file.
    """
    answer = answer[:_MOST_CHARS]
    named = [path for name in file_names(answer)[:_MOST_NAMED] for path in files.named(name)[:1]]
    written = [path for name in [*dict.fromkeys(changed)][:_MOST_NAMED] for path in files.named(name)[:1]]
    about = list(dict.fromkeys([*written, *named]))
    unique: dict[tuple[str, str], NextAction] = {}
    for each in chain(
        _tests(about, written, files, ran_last), _commands(answer, files.root, ran), _files(about, written)
    ):
        # A test is a file as well.
        if ("test", each.text) not in unique:
            unique.setdefault((each.kind, each.text), each)
        if len(unique) == MOST:
            break
    return tuple(unique.values())


def _files(about: list[str], written: list[str]) -> Iterator[NextAction]:
    for name in about:
        yield NextAction(
            kind="file", text=name, why="changed by this run" if name in written else "named in the answer"
        )


def _commands(answer: str, root: Path, ran: Collection[str]) -> Iterator[NextAction]:
    lines = [
        _PROMPT.sub("", line).strip()
        for block in fenced_code(answer, *_SHELLS)
        for line in block.splitlines()
    ]
    done = {" ".join(command.split()) for command in ran}
    for line in [*lines, *(match[1].strip() for match in _INLINE.finditer(answer))][:_MOST_NAMED]:
        text = one_line(sanitize_text(line), 300)
        # What would be shown in another form than it runs in is not proposed.
        if not text or text.startswith("#") or text != line or " ".join(text.split()) in done:
            continue
        if _runnable(text, root):
            yield NextAction(kind="command", text=text, why="proposed in the answer")


def _runnable(line: str, root: Path) -> bool:
    """Return whether the first program of a command line exists; variables in front of it are left out."""
    try:
        words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Za-z_]\w*=.*", word)]
    except ValueError:
        return False
    if len(words) < 1 or words[0].startswith("-"):
        return False
    program = words[0]
    if "/" in program:
        # Links are followed first: one in the workspace may lead to a program outside.
        path = (root / program).resolve()
        return path.is_relative_to(root) and path.is_file()
    return shutil.which(program) is not None


def _tests(
    about: list[str], written: list[str], files: Files, ran_last: Collection[str]
) -> Iterator[NextAction]:
    number = 0
    for name in about:
        for test in _tests_of(name, files):
            if any(_runs_test(command, test, files.root) for command in ran_last):
                continue
            number += 1
            if number > _MOST_TESTS:
                return
            how = "changed by this run" if name in written else "named in the answer"
            yield NextAction(
                kind="test", text=test, why=f"tests {name}, {how}" if test != name else f"a test, {how}"
            )
            if test.endswith(".py") and _has_pytest(files.root):
                yield NextAction(
                    kind="command", text=f"python -m pytest {shlex.quote(test)}", why=f"runs {test}"
                )


def _runs_test(command: str, test: str, root: Path) -> bool:
    """Return whether a command runs all of a file of tests: by its path or a folder's, or as all tests."""
    words = re.findall(r"[^\s'\"]+", command)
    # With `-k` only some tests of a file run.
    if "-k" in words or not any(PurePath(word).name in _RUNNERS for word in words):
        return False
    paths = [PurePath(word) for word in words if word != "test" and (root / word).exists()]
    return (not paths and "::" not in command) or bool({PurePath(test), *PurePath(test).parents} & {*paths})


def _tests_of(name: str, files: Files) -> list[str]:
    """Test files that bear the name of a file; itself, if it is one."""
    stem = Path(name).stem
    if stem.startswith("test_") or stem.endswith("_test"):
        return [name]
    # Brackets in the name of a file are no pattern.
    kind = escape(stem)
    patterns = (f"test_{kind}.py", f"{kind}_test.*", f"{kind}.test.*", f"{kind}.spec.*")
    return [
        path
        for path in files.paths
        if any(fnmatchcase(path.rpartition("/")[2], pattern) for pattern in patterns)
    ]


def _has_pytest(root: Path) -> bool:
    return any(
        (root / name).is_file()
        for name in ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "conftest.py")
    ) and (shutil.which("pytest") is not None)
