"""Trash: deleted files are moved to a folder of the run in the workspace and can be restored."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from contextlib import suppress

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.directory_walk import closing_fd
from kestrel_lab.tools.files.edit import unified_diff
from kestrel_lab.tools.files.lock import stat_entry
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext

TRASH = ".kestrel/trash"
"""Folder of deleted files: one folder per run, in it a numbered one per deletion with the old path."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def preview_delete(args: dict[str, Json], ctx: ToolContext) -> str:
    """Return what `delete_file` would delete, as a diff if it is text."""
    path = str(args.get("path"))
    try:
        return unified_diff(ctx.workspace.read_text(path).text, "", path)
    except ValueError as error:
        return f"{error}; it would be moved to {TRASH}"
    except OSError as error:
        return f"this deletion would fail: {error}"


@tool(
    danger_level=Danger.MEDIUM,
    effect="idempotent",
    version="1",
    thread=True,
    preview=preview_delete,
    reads="workspace",
    shows="names",
    reaches="workspace",
)
def delete_file(path: str, ctx: ToolContext) -> str:
    """Delete a file. It is kept in a trash, from which restore_file brings it back.

    Args:
        path: File or symlink, relative to the workspace; not a directory.
        ctx: The run it works for.

    Raises:
        ConflictError: If the file holds what the step of the call has not seen: see `tools.files.versions`.

    """
    workspace, relative = ctx.workspace, ctx.workspace.relative(path)
    workspace.check_writable(relative)
    if kept := _kept_by(ctx, relative):
        # This very call has already deleted the file before a crash; its answer was lost.
        return f"deleted {relative} (kept as {kept})"
    workspace.check_settings(relative, b"")
    with workspace.locked(path) as file:
        status = stat_entry(file.name, file.directory)
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(f"{path} is a directory: delete the files in it")
        if stat.S_ISREG(status.st_mode):
            ctx.versions.check(file)
        elif not stat.S_ISLNK(status.st_mode):
            raise PermissionError(f"{path} is a device, pipe or socket, not a file")
        kept = posixpath.join(_new_folder(ctx), relative)
        with workspace.directory(posixpath.dirname(kept)) as trash:
            os.rename(file.name, file.name, src_dir_fd=file.directory, dst_dir_fd=trash)
        ctx.versions.deleted(file, kept)
    return f"deleted {relative} (kept as {kept})"


@tool(
    danger_level=Danger.MEDIUM,
    effect="opaque",
    version="1",
    thread=True,
    reads="workspace",
    shows="names",
    reaches="workspace",
)
def restore_file(path: str, ctx: ToolContext) -> str:
    """Bring back a file that delete_file deleted in this run, as it was when it was deleted last.

    Args:
        path: Where the file was, relative to the workspace; nothing may be there now.
        ctx: The run it works for.

    """
    workspace, relative = ctx.workspace, ctx.workspace.relative(path)
    workspace.check_writable(relative)
    deleted = _deletions(ctx)
    kept = next((entry for entry in reversed(deleted) if _old_path(entry) == relative), None)
    if kept is None:
        names = sorted({_old_path(entry) for entry in deleted})
        known = (
            did_you_mean(relative, names)
            if names
            else "this run has deleted nothing that is still in the trash"
        )
        raise FileNotFoundError(f"{path} is not in the trash of this run; {known}")
    restore_from_trash(workspace, path, kept)
    ctx.versions.changed.append(relative)
    return f"restored {relative}"


def restore_from_trash(workspace: Workspace, path: str, kept: str) -> None:
    """Move the file `kept` from the trash to `path`; raises `FileExistsError` if `path` exists."""
    with (
        workspace.locked(path, make=True) as file,
        workspace.directory(posixpath.dirname(kept), make=False) as trash,
    ):
        name, directory = file.name, file.directory
        if stat_entry(name, directory) is not None:
            raise FileExistsError(f"{path} exists: nothing was restored; delete or rename it first")
        try:
            # A rename would replace a file that appeared meanwhile; a link fails instead.
            os.link(name, name, src_dir_fd=trash, dst_dir_fd=directory, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError:
            # A file system without hard links.
            os.rename(name, name, src_dir_fd=trash, dst_dir_fd=directory)
        else:
            os.unlink(name, dir_fd=trash)


def _run_folder(ctx: ToolContext) -> str:
    return f"{TRASH}/{_UNSAFE.sub('_', ctx.run_id) or 'no-run'}"


def _deletions(ctx: ToolContext) -> list[str]:
    """Return what the trash of the run holds, in the order of deletion:
    `.kestrel/trash/RUN/NUMBER-CALL/old/path`.
    """
    folder = _run_folder(ctx)
    try:
        found = list(ctx.workspace.walk(folder, skip=()))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{folder}/{entry.path}" for entry in found if entry.kind != "directory" and "/" in entry.path]


def _old_path(kept: str) -> str:
    return kept.split("/", 4)[4]


def _kept_by(ctx: ToolContext, relative: str) -> str:
    """Return where this call already moved the file; empty if it did not, or a new file is in its place."""
    mark = f"-{_UNSAFE.sub('_', ctx.call_id)}"
    if not ctx.call_id or ctx.workspace.exists(relative):
        return ""
    return next(
        (
            kept
            for kept in _deletions(ctx)
            if _old_path(kept) == relative and kept.split("/")[3].endswith(mark)
        ),
        "",
    )


def _new_folder(ctx: ToolContext) -> str:
    workspace, folder = ctx.workspace, _run_folder(ctx)
    call = _UNSAFE.sub("_", ctx.call_id)
    with workspace.directory(posixpath.dirname(TRASH)) as ours:
        os.fchmod(ours, 0o700)
    with workspace.directory(TRASH) as trash:
        os.fchmod(trash, 0o700)
        if stat_entry(".gitignore", trash) is None:
            with suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with closing_fd(os.open(".gitignore", flags, 0o600, dir_fd=trash)) as fd:
                    os.write(fd, b"*\n")
    with workspace.directory(folder) as place:
        os.fchmod(place, 0o700)
        number = len(os.listdir(place))
        while True:
            number += 1
            name = f"{number:05}-{call}"
            # Another call of this turn was faster.
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=place)
                return f"{folder}/{name}"
