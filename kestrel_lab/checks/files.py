"""Checks of the files that a run left in its workspace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Trial, TrialStart
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.host.log_files import open_no_log

_NEEDS_CHANGE: Final = "it takes a tool that can change files"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileContains:
    """A file of the workspace contains a text, character by character."""

    path: str
    text: str

    def __post_init__(self) -> None:
        require_inside(self.path)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.path} contains {one_line(self.text, 40)!r}"

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the file, of which the first two million bytes are read, is as it should be."""
        content, problem = read_workspace_file(trial.workspace, self.path)
        passed = not problem and self._fits(content)
        reason = problem or f"it holds {one_line(content, 120)!r}"
        return Score(check=self.label, passed=passed, value=float(passed), reason="" if passed else reason)

    def out_of_reach(self, start: TrialStart) -> str:
        """Return why no agent can pass it: the file is not like that, and no tool can change it."""
        if start.files is None or _can_change_files(start):
            return ""
        content = start.files.get(self.path)
        return "" if content is not None and self._fits(content) else _NEEDS_CHANGE

    def _fits(self, content: str) -> bool:
        return self.text in content


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEquals(FileContains):
    """A file of the workspace is exactly this text, but for white space at its end and the kind of line
    ends.
    """

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.path} is {one_line(self.text, 40)!r}"

    def _fits(self, content: str) -> bool:
        return split_lines(content.rstrip()) == split_lines(self.text.rstrip())


@dataclass(frozen=True, kw_only=True, slots=True)
class FileAbsent:
    """Nothing is at this path of the workspace."""

    path: str

    def __post_init__(self) -> None:
        require_inside(self.path)

    @property
    def label(self) -> str:
        """The check in words."""
        return f"{self.path} is absent"

    def out_of_reach(self, start: TrialStart) -> str:
        """Return why no agent can pass it: the file is there, and no tool can remove it."""
        if start.files is None or _can_change_files(start):
            return ""
        return _NEEDS_CHANGE if self.path in start.files else ""

    async def __call__(self, trial: Trial) -> Score:
        """Pass when there is neither file, folder nor link."""
        place = trial.workspace / self.path
        passed = not (place.exists() or place.is_symlink())
        return Score(
            check=self.label,
            passed=passed,
            value=float(passed),
            reason="" if passed else f"{self.path} is there",
        )


def _can_change_files(start: TrialStart) -> bool:
    """Return whether the agent is offered a tool that may change files: any that has an effect."""
    return any(effect != "pure" for effect in start.tools.values())


def require_inside(path: str) -> None:
    """Raise `UsageError` for a path that may lead out of the workspace."""
    parts = PurePosixPath(path)
    if not path.strip() or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise UsageError(
            f"a file check looks inside the workspace: {path!r} must be a relative path without '..'"
        )


def read_workspace_file(workspace: Path, path: str) -> tuple[str, str]:
    """Return the text of a file, and why it has none: one of both is empty."""
    place = (workspace / path).resolve()
    if not place.is_relative_to(workspace.resolve()):
        return "", f"{path} is a link that leads out of the workspace"
    # Not `open` first: a named pipe that a run left behind would block for ever.
    if not place.is_file():
        return "", f"{path} is not a file" if place.exists() else f"there is no {path}"
    try:
        with os.fdopen(open_no_log(place), "rb") as file:
            # A file that the agent grew without end must not fill the memory of the judge.
            content = file.read(2_000_000)
    except OSError as error:
        return "", f"{path} cannot be read: {error.strerror or error}"
    return content.decode("utf-8", "replace"), ""
