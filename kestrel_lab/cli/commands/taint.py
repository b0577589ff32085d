"""`kestrel taint`: which files hold words of others, and which of them somebody vouches for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kestrel_lab.cli.frontend import frontend_of
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line, plain
from kestrel_lab.tools.files.workspace import Workspace

tainting = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@tainting.command(epilog="Example: kestrel taint summary.md --trust")
def taint(
    ctx: typer.Context,
    paths: Annotated[list[Path] | None, typer.Argument(help="Files or folders; the current folder by default.")] = None,
    *,
    trust: Annotated[bool, typer.Option("--trust", help="Trust the present content of these files, which you have read.")] = False,
) -> str:
    """List the files that runs wrote after reading untrusted text; a run that reads such a file may follow instructions in it."""
    frontend = frontend_of(ctx)
    files, here = frontend.lab().session.files, Path.cwd().resolve()
    files.refresh()
    if trust and not paths:
        raise UsageError("name the files that you have read: kestrel taint PATH --trust")
    found: dict[Path, str] = {}
    for path in paths or [Path()]:
        if not path.exists():
            raise UsageError(f"there is no {path}")
        place = path.resolve()
        root = here if place.is_relative_to(here) else place if place.is_dir() else place.parent
        below = files.below(Workspace(root), place.relative_to(root))
        found |= {place / name: why for name, why in below.items()}
    if not found:
        return "no file here is known to hold untrusted text"
    if trust:
        for place in found:
            files.trust(place)
        return f"trusted until their content changes: {', '.join(plain(str(place)) for place in found)}"
    return "\n".join(f"{plain(str(place))}: {one_line(why, 300)}" for place, why in found.items())
