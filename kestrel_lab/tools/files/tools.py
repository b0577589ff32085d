"""Tools that read, write, list and search the files of the workspace."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable
from typing import Any, Final

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.core.text_files import Text, decode_text, lines_with_ends, replace_text
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.edit import Edit, replace_exact, replace_in_order, unified_diff
from kestrel_lab.tools.files.fingerprints import (
    MOST_TREE_LINES,
    contents_fingerprint,
    names_fingerprint,
    path_fingerprint,
    paths_fingerprint,
    tree_fingerprint,
)
from kestrel_lab.tools.files.glob import compile_pattern
from kestrel_lab.tools.files.lock import LockedFile
from kestrel_lab.tools.files.ripgrep import search_file, search_tree
from kestrel_lab.tools.files.workspace import quoted_path
from kestrel_lab.tools.sandbox.autorun_watch import with_autorun_warning
from kestrel_lab.tools.tool import ToolContext

_READ_CHARS = 18_000
"""Most characters of one read: less than a model is shown, so that the note on the range is never cut off."""
_MOST_ENTRIES = 500
_MOST_PATHS = 200
_MOST_RESULTS = 1_000
_DIFF_CHARS = 4_000
_MARKS: Final = {"directory": "/", "symlink": " (symlink)", "other": " (not a file)", "file": ""}
"""Suffix of a name in a listing, by kind of entry."""
_READING: Final[dict[str, Any]] = {
    "danger_level": Danger.SAFE,
    "effect": "pure",
    "reads": "workspace",
    "reaches": "nothing",
}
"""Declaration of tools that only read the workspace."""
_WRITING: Final[dict[str, Any]] = {
    "danger_level": Danger.MEDIUM,
    "reads": "workspace",
    "reaches": "workspace",
    "thread": True,
}


@tool(**_READING, version="2", thread=True, fingerprint=path_fingerprint)
def read_file(path: str, ctx: ToolContext, offset: int = 1, limit: int = 2000) -> str:
    """Read a text file and return its exact text. A note in brackets at the end tells if there is more of it.

    Args:
        path: File, relative to the workspace.
        ctx: The run it works for.
        offset: Line to begin with, counted from 1.
        limit: Number of lines at most.

    """
    return _read(ctx, path, offset, limit, _READ_CHARS)


@tool(**_READING, version="2", thread=True, fingerprint=paths_fingerprint)
def batch_read(paths: list[str], ctx: ToolContext) -> str:
    """Read several text files at once, e.g. to compare them. A file that cannot be read is reported, the
    others are returned.

    Args:
        paths: Files, relative to the workspace.
        ctx: The run it works for.

    """
    if not paths:
        raise ValueError("paths is empty: name at least one file")
    share = max(_READ_CHARS // len(paths), 500)
    parts = []
    for path in paths:
        try:
            text = _read(ctx, path, 1, 2000, share)
        except (OSError, ValueError) as error:
            text = f"[not read: {error}]"
        parts.append(f"=== {path} ===\n{text}")
    return "\n".join(parts)


def preview_write(args: dict[str, Json], ctx: ToolContext) -> str:
    """Return what `write_file` would change, as a diff."""
    path, content = str(args.get("path")), str(args.get("content"))
    try:
        before = ctx.workspace.read_text(path)
    except FileNotFoundError:
        before = None
    except (OSError, ValueError) as error:
        return f"no diff can be shown: {error}"
    try:
        made = replace_text(before, content, path)
    except ValueError as error:
        return f"this write would fail: {error}"
    shown = "\n".join([*made.notes, _change("" if before is None else before.text, made.text, path)]).strip(
        "\n"
    )
    return with_autorun_warning(path, shown) or f"{path} would hold just what it holds now, if anything"


def preview_edit(args: dict[str, Json], ctx: ToolContext) -> str:
    """Return what `edit_file` would change, as a diff, or why it would not."""
    old, new, everywhere = str(args.get("old")), str(args.get("new")), bool(args.get("replace_all"))
    return _preview(args, ctx, "this edit", lambda text: replace_exact(text, old, new, everywhere=everywhere))


def _preview(args: dict[str, Json], ctx: ToolContext, what: str, change: Callable[[str], str]) -> str:
    path = str(args.get("path"))
    try:
        before = ctx.workspace.read_text(path).text
        after = change(before)
    except (OSError, ValueError) as error:
        return f"{what} would fail: {error}"
    return with_autorun_warning(path, _change(before, after, path))


@tool(**_WRITING, effect="idempotent", version="2", preview=preview_write)
def write_file(path: str, content: str, ctx: ToolContext) -> str:
    """Write a text file, with its directories; an existing file is replaced as a whole and the change
    returned as a diff.

    Args:
        path: File, relative to the workspace.
        content: The whole text of the file.
        ctx: The run it works for.

    Note:
        An existing file keeps its encoding and line ends, or the answer says what became of them.

    Raises:
        ConflictError: If the file holds what the step of the call has not seen: see `tools.files.versions`.

    """
    with ctx.workspace.locked(path, make=True) as file:
        held = _held(file)
        known = _text(held, path)
        made = replace_text(known, content, path)
        # Nothing is lost by writing the same again, so it needs no reading.
        before = held if held == made.content else ctx.versions.check(file)
        new = file.write_bytes(made.content)
        ctx.versions.replaced(file, before, made.content, new=new)
    lines = content.count("\n") + (not content.endswith("\n") and content != "")
    size = len(made.content)
    done = (
        f"{'created' if new else 'replaced'} {path} ({lines} {'line' if lines == 1 else 'lines'}, "
        f"{size:,} bytes)"
    )
    notes = (
        list(made.notes)
        if new or known is not None
        else ["what it held was not text, or too large to read; it is utf-8 now"]
    )
    diff = (
        ""
        if new
        else head_tail(_change(None if known is None else known.text, made.text, path), _DIFF_CHARS)[0]
    )
    return "\n".join([done, *(f"[{note}]" for note in notes), *([diff] if diff else [])])


@tool(**_WRITING, effect="opaque", version="1", preview=preview_edit)
def edit_file(path: str, old: str, new: str, ctx: ToolContext, replace_all: bool = False) -> str:
    """Replace text in a file and return the change as a diff. The old text must be exact and occur once.

    Args:
        path: File, relative to the workspace.
        old: The exact text to replace, with its indentation.
        new: The text to put in its place.
        ctx: The run it works for.
        replace_all: Replace every occurrence instead of a single one.

    """
    return _edit(path, ctx, lambda text: replace_exact(text, old, new, everywhere=replace_all))


def preview_edits(args: dict[str, Json], ctx: ToolContext) -> str:
    """Return what `multi_edit` would change, as a diff, or why it would not."""
    given = args.get("edits")
    edits = [Edit(**edit) for edit in given] if isinstance(given, list) else []  # type: ignore[arg-type]  # validated before
    return _preview(args, ctx, "these edits", lambda text: replace_in_order(text, edits))


@tool(**_WRITING, effect="opaque", version="1", preview=preview_edits)
def multi_edit(path: str, edits: list[Edit], ctx: ToolContext) -> str:
    """Make several exact replacements in one file, all of them or none, and return the change as a diff.

    Args:
        path: File, relative to the workspace.
        edits: Replacements, each made in what the ones before it left; each old text must be exact and occur
            once.
        ctx: The run it works for.

    """
    return _edit(path, ctx, lambda text: replace_in_order(text, edits))


@tool(**_READING, version="1", thread=True, fingerprint=path_fingerprint, shows="names")
def list_directory(ctx: ToolContext, path: str = ".") -> str:
    """List what a directory holds, one name per line; directories end with /.

    Args:
        ctx: The run it works for.
        path: Directory, relative to the workspace.

    """
    names = [quoted_path(entry.path) + _MARKS[entry.kind] for entry in ctx.workspace.listdir(path)]
    if len(names) > _MOST_ENTRIES:
        names[_MOST_ENTRIES:] = [f"[{len(names) - _MOST_ENTRIES} more]"]
    return "\n".join(names) or f"[{path} is empty]"


@tool(**_READING, version="1", thread=True, fingerprint=path_fingerprint, shows="names")
def file_exists(path: str, ctx: ToolContext) -> str:
    """Tell whether a path exists in the workspace and whether it is a file or a directory.

    Args:
        path: Path relative to the workspace.
        ctx: The run it works for.

    """
    try:
        status = ctx.workspace.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"no, {path} does not exist"
    if stat.S_ISDIR(status.st_mode):
        return f"yes, {path} is a directory"
    return (
        f"yes, {path} is a file of {status.st_size:,} bytes"
        if stat.S_ISREG(status.st_mode)
        else f"yes, but {path} is not a regular file"
    )


@tool(**_READING, version="1", thread=True, fingerprint=names_fingerprint, shows="names")
def glob(pattern: str, ctx: ToolContext, path: str = ".") -> str:
    """Find files by name, e.g. `*.py` (at any depth) or `src/**/test_*.py`. Returns one path per line.

    Args:
        pattern: `*` and `?` within a name, `**/` for any directories, `{a,b}` for either.
        ctx: The run it works for.
        path: Directory to look in.

    """
    matches = compile_pattern(pattern).fullmatch
    base = ctx.workspace.relative(path)
    found: list[str] = []
    count = 0
    for entry in ctx.workspace.walk(path):
        if entry.kind == "file" and matches(entry.path):
            count += 1
            if count <= _MOST_PATHS:
                found.append(quoted_path(_join_path(base, entry.path)))
    if count > _MOST_PATHS:
        found.append(f"[{count - _MOST_PATHS:,} more: use a narrower pattern or path]")
    return "\n".join(found) or f"[no file matches {pattern}]"


@tool(**_READING, version="2", fingerprint=contents_fingerprint, shows="lines")
async def grep(
    pattern: str,
    ctx: ToolContext,
    path: str = ".",
    files: str = "",
    ignore_case: bool = False,
    literal: bool = False,
    max_results: int = 100,
) -> str:
    """Search file contents for a regular expression. Returns lines as `path:line: text`.

    What a .gitignore in the searched directory names is left out.

    Args:
        pattern: Regular expression (ripgrep's: no look-around), matched within a line.
        ctx: The run it works for.
        path: Directory or file to search.
        files: Only files with such names, e.g. `*.py`.
        ignore_case: Take upper and lower case as equal.
        literal: Take the pattern as plain text.
        max_results: Lines to return at most.

    """
    if not 1 <= max_results <= _MOST_RESULTS:
        raise ValueError(f"max_results must be from 1 to {_MOST_RESULTS}, not {max_results}")
    flags = (
        ["--ignore-case"] * ignore_case
        + ["--fixed-strings"] * literal
        + ([f"--glob={files}"] if files else [])
    )
    base = ctx.workspace.relative(path)
    # The search gets the open file or directory, so that nothing can be swapped for it.
    fd = ctx.workspace.open(path)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            found = await search_tree(fd, pattern, flags, max_results)
        else:
            found = await search_file(fd, pattern, flags, max_results)
    finally:
        os.close(fd)
    lines = [
        f"{quoted_path(_join_path(base, match.path) if match.path else base)}:{match.line}: {match.text}"
        for match in found.matches
    ]
    if found.incomplete:
        lines.append(f"[{found.incomplete}]")
    return "\n".join(lines) or f"[nothing matches {pattern}]"


@tool(**_READING, version="1", thread=True, fingerprint=tree_fingerprint, shows="names")
def tree(ctx: ToolContext, path: str = ".", depth: int = 3) -> str:
    """Show directories and files as an indented tree.

    Args:
        ctx: The run it works for.
        path: Directory to begin with.
        depth: How many levels to show.

    """
    if depth < 1:
        raise ValueError(f"depth counts from 1, not {depth}")
    lines = [f"{ctx.workspace.relative(path)}/"]
    for entry in ctx.workspace.walk(path, depth=depth):
        if len(lines) > MOST_TREE_LINES:
            lines.append("[more: use a smaller depth or a directory further down]")
            break
        lines.append("  " * (entry.path.count("/") + 1) + quoted_path(entry.name) + _MARKS[entry.kind])
    return "\n".join(lines)


def _join_path(base: str, path: str) -> str:
    return path if base == "." else posixpath.join(base, path)


def _edit(path: str, ctx: ToolContext, change: Callable[[str], str]) -> str:
    """Change the present content of a file under its lock, and return the diff."""
    with ctx.workspace.locked(path) as file:
        content = file.read_bytes()
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        before = decode_text(content, path)
        try:
            text = change(before.text)
        except ValueError as error:
            raise ValueError(f"{path} was not changed: {error}") from None
        if text == before.text:
            raise ValueError(f"{path} was not changed: the edits undo each other")
        ctx.versions.as_shown()
        after = before.encode(text, path)
        file.write_bytes(after)
        ctx.versions.edited(file, content, after)
    return head_tail(unified_diff(before.text, text, path), _DIFF_CHARS)[0]


def _held(file: LockedFile) -> bytes | None:
    """Return what the file holds; `None` for what is missing or cannot be read."""
    file.status()  # raises for what is no file
    try:
        return file.read_bytes()
    except (OSError, ValueError):
        return None


def _text(content: bytes | None, path: str) -> Text | None:
    """Return the text of a file; `None` if missing or not text."""
    try:
        return None if content is None else decode_text(content, path)
    except ValueError:
        return None


def _change(before: str | None, after: str, path: str) -> str:
    """Return the change as a diff; empty if there is none or it is unknown."""
    return "" if before is None or before == after else unified_diff(before, after, path)


def _read(ctx: ToolContext, path: str, offset: int, limit: int, chars: int) -> str:
    if offset < 1 or limit < 1:
        raise ValueError(f"offset and limit count from 1, not {min(offset, limit)}")
    content = ctx.workspace.read_text(path)
    relative = ctx.workspace.relative(path)
    if (version := ctx.workspace.noted(relative)) is not None:
        ctx.versions.knows[relative] = version
    lines = lines_with_ends(content.text)
    if not lines:
        return f"[{path} is empty]"
    if offset > len(lines):
        raise ValueError(f"{path} has {len(lines)} lines, so none from line {offset} on")
    text, last = _window(lines, offset, limit, chars)
    notes = []
    if offset > 1 or last < len(lines):
        notes.append(
            f"lines {offset} to {last} of {len(lines)}"
            + (f", go on with offset={last + 1}" if last < len(lines) else "")
        )
    if len(text) > chars:
        text, cut = text[:chars], len(text) - chars
        notes.append(f"the last {cut:,} characters of line {last} are left out")
    if content.encoding != "utf-8":
        notes.append(f"the file is {content.encoding}")
    return f"{text.removesuffix(chr(10))}\n[{'; '.join(notes)}]" if notes else text


def _window(lines: list[str], offset: int, limit: int, chars: int) -> tuple[str, int]:
    """Whole lines from `offset` on, as many as fit but at least one, and the number of the last."""
    taken: list[str] = []
    room = chars
    for line in lines[offset - 1 : offset - 1 + limit]:
        if taken and len(line) > room:
            break
        taken.append(line)
        room -= len(line)
    return "".join(taken), offset + len(taken) - 1
