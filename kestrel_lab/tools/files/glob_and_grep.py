"""Tools that find files by name, text by pattern, and show how directories are laid out."""

from __future__ import annotations

import os
import posixpath
import stat

from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.fingerprints import MOST_TREE_LINES, contents_fingerprint, names_fingerprint, tree_fingerprint
from kestrel_lab.tools.files.glob import compile_pattern
from kestrel_lab.tools.files.ripgrep import search_file, search_tree
from kestrel_lab.tools.files.tools import MARKS, READING
from kestrel_lab.tools.tool import ToolContext

_MOST_PATHS = 200
_MOST_RESULTS = 1_000


@tool(**READING, version="1", thread=True, fingerprint=names_fingerprint, shows="names")
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
                found.append(_below(base, entry.path))
    if count > _MOST_PATHS:
        found.append(f"[{count - _MOST_PATHS:,} more: use a narrower pattern or path]")
    return "\n".join(found) or f"[no file matches {pattern}]"


@tool(**READING, version="2", fingerprint=contents_fingerprint, shows="lines")
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
    flags = ["--ignore-case"] * ignore_case + ["--fixed-strings"] * literal + ([f"--glob={files}"] if files else [])
    base = ctx.workspace.relative(path)
    fd = ctx.workspace.open(path)  # the search gets the open file or directory, so that nothing can be swapped for it
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            found = await search_tree(fd, pattern, flags, max_results)
        else:
            found = await search_file(fd, pattern, flags, max_results)
    finally:
        os.close(fd)
    lines = [f"{_below(base, match.path) if match.path else base}:{match.line}: {match.text}" for match in found.matches]
    if found.incomplete:
        lines.append(f"[{found.incomplete}]")
    return "\n".join(lines) or f"[nothing matches {pattern}]"


@tool(**READING, version="1", thread=True, fingerprint=tree_fingerprint, shows="names")
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
        lines.append("  " * (entry.path.count("/") + 1) + entry.name + MARKS[entry.kind])
    return "\n".join(lines)


def _below(base: str, path: str) -> str:
    return path if base == "." else posixpath.join(base, path)
