"""`run.files`: where a run has its files, what they are, and what a fork changed in its private copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.eventlog.connection import process_name
from kestrel_lab.runtime.forks.copy_changes import ForkChanges, apply_changes, changes_of
from kestrel_lab.views.html.table_view import TextView

if TYPE_CHECKING:
    from kestrel_lab.core.json_types import Json
    from kestrel_lab.eventlog.store import SessionStore
    from kestrel_lab.runtime.run import Run


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RunFiles(TextView):
    """Where a run has its files: in the workspace itself, or a fork in a private copy of it."""

    # Weak, because the handle holds this: circles stay in memory until Python looks for them.
    _handle: ref[Run]
    _id: str
    _store: SessionStore

    @property
    def _run(self) -> Run:
        """The handle that this belongs to; where nobody holds it any more, another one of the same run."""
        from kestrel_lab.runtime.run import Run

        return self._handle() or Run(self._store, self._id)

    @property
    def workspace(self) -> Path:
        """The folder that the run is about."""
        return Path(self._run._state.project)

    @property
    def folder(self) -> Path:
        """Where it works."""
        return Path(self._run._state.folder)

    @property
    def source(self) -> str:
        """What a private copy was made of; empty without one."""
        return str(self._copy.get("source", ""))

    @property
    def exact(self) -> bool:
        """Whether a private copy certainly began with the files of its event."""
        return bool(self._copy.get("exact", True))

    @property
    def notes(self) -> tuple[str, ...]:
        """What in a private copy is not as it was in the workspace."""
        notes = self._copy.get("notes")
        return tuple(map(str, notes)) if isinstance(notes, list) else ()

    @property
    def changes(self) -> ForkChanges:
        """What a fork has changed in its private copy that the workspace does not have, as a difference.

        Raises as `apply` does.
        """
        # Which is about runs, whose files these are.
        from kestrel_lab.runtime.conversation import (
            conversation_runs,
        )

        run = self._run
        run._store.flush()
        return changes_of(run._store, run.id, run._state, conversation_runs(run._store, run.id))

    def apply(self, *paths: str, force: bool = False) -> ForkChanges:
        """Take what a fork changed in its private copy over into the workspace, all or the given paths;
        returns the difference.

        The workspace has to have what the fork began with in these places: where something else has changed
        one, the run that was forked for example, `UsageError` names it and nothing is written, unless `force`
        says that what is there may be lost. The git folder of the copy is not taken over. It is an event of
        the run. Raises `UsageError` also for a run that is still working or has no copy.
        """
        run = self._run
        if run.task is not None and not run.task.done():
            raise UsageError(
                f"run {run.id} is still working: apply its changes when it has ended or is interrupted"
            )
        done, event = apply_changes(self.changes, process_name(), paths, force=force)
        if done.changes:
            run._store.decide(run.id, event)
            run._state = run._store.state(run.id)
        return done

    @property
    def _copy(self) -> dict[str, Json]:
        return self._run._state.private_copy

    def __repr__(self) -> str:
        if self.folder == self.workspace:
            return f"files: {sanitize_text(str(self.workspace))}, the workspace itself"
        sure = "" if self.exact else " (not certainly those of that moment)"
        lines = [
            f"files: {self.folder}, a private copy of {self.workspace}, made of {self.source}{sure}",
            *self.notes,
        ]
        return "\n  ".join(map(sanitize_text, lines))
