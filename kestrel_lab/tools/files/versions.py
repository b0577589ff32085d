"""File versions: a change that a step has not seen is not overwritten in silence.

A call that replaces or removes a whole file (`write_file`, `delete_file`) is refused when

- its step has read or written the file before, and somebody changed it since;
- its step has not, and another step of the run that it does not come after changed it;
- its step has not, and the file changed after the step began.

So the first write of a file that was there before needs no reading. Edits name the text that they replace and
are made in whatever the file holds by then; a step that did not know the file before an edit does not know it
afterwards. What a person approved is what is done, or nothing is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kestrel_lab.core.errors import ConflictError
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.tools.files.lock import LockedFile, version_of

MOST_KEPT: Final = 10_000_000
"""Bytes of a file that a call changed which are kept so that the change can be undone."""
_HUNK = re.compile(r"(?m)^@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")


@dataclass(kw_only=True, slots=True)
class Versions:
    """The versions that one call knows, and those it leaves for the next; none outside of a run."""

    known: Mapping[str, str] = field(default_factory=dict)
    """By path as seen from the workspace, the version that the step knows."""
    since: float = 0.0
    """Start of the step; 0 if unknown."""
    other: Callable[[str], str] = lambda _path: ""
    """The step that changed a path and that this one does not come after; empty for none."""
    as_shown: Callable[[], None] = lambda: None
    """Raises `ConflictError` if the call would not do any more what a person was shown."""
    knows: dict[str, str] = field(default_factory=dict)
    """Versions the step knows from now on."""
    changed: list[str] = field(default_factory=list)
    """The paths that the call changed."""
    keep: Callable[[bytes], str] = lambda _content: ""
    """Stores a file's old content next to the log; returns its name, or an empty text."""
    before: dict[str, dict[str, Json]] = field(default_factory=dict)
    """By changed path, what undoes the change: see `ToolAnswered.before`."""

    def check(self, file: LockedFile) -> bytes | None:
        """Return the file's content, `None` if missing or unreadable; `ConflictError` if the step has not
        seen it.
        """
        status = file.status()
        try:
            before = file.read_bytes()
        except (OSError, ValueError):
            # Too large, or closed to us: nobody knows it.
            before, version = None, "?"
        else:
            version = version_of(before)
        if status is not None and (why := self._unseen(file.relative, version, status.st_ctime)):
            raise ConflictError(
                f"{file.path} was not changed: {why}; read it, then decide what is to become of it"
            )
        self.as_shown()
        return before

    def _unseen(self, path: str, version: str, changed_at: float) -> str:
        """Return why the step does not know this version of a file, if that matters; else empty."""
        if (known := self.known.get(path)) is not None:
            return "" if known == version else "something else changed it since you read or wrote it last"
        if other := self.other(path):
            return f"step {other!r} changed it, and you have not read it since"
        return (
            "it was changed after you began, and you have not read it"
            if self.since and changed_at > self.since
            else ""
        )

    def replaced(self, file: LockedFile, before: bytes | None, content: bytes, *, new: bool) -> None:
        """Record that the call replaced `before` by `content`; `None` for a `new` or unreadable file."""
        self.knows[file.relative] = version_of(content)
        self.changed.append(file.relative)
        if new or before is not None:
            self._keep(file.relative, before, content)

    def deleted(self, file: LockedFile, trash: str) -> None:
        """Keep that the call moved the file to the path `trash`."""
        self.knows[file.relative] = version_of(None)
        self.changed.append(file.relative)
        self.before[file.relative] = {"trash": trash, "after": version_of(None)}

    def edited(self, file: LockedFile, before: bytes, after: bytes) -> None:
        """Keep that the call changed a part of the file."""
        if self.known.get(file.relative) == version_of(before):
            self.knows[file.relative] = version_of(after)
        self.changed.append(file.relative)
        self._keep(file.relative, before, after)

    def _keep(self, path: str, before: bytes | None, after: bytes) -> None:
        if before == after or len(before or b"") > MOST_KEPT:
            return
        blob = self.keep(before) if before else ""
        if blob or not before:
            self.before[path] = {"blob": blob, "existed": before is not None, "after": version_of(after)}


def preview_key(preview: str) -> str:
    """Equal for previews that show the same change, also if it moved to other lines."""
    return content_key(_HUNK.sub("@@", preview))
