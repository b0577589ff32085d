"""`kestrel trust` and `kestrel taint`: which project settings count, and which files are tainted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kestrel_lab.cli.frontend import frontend_of
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line, sanitize_text, shown_path
from kestrel_lab.runtime.project_trust import TrustedFiles, Weakening, files_from_repository
from kestrel_lab.runtime.settings import find_weakenings, load_settings, setting_files
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.views.html.table_view import TextView

tainting = typer.Typer()


@dataclass(frozen=True, slots=True)
class FileTrust:
    """A file of settings, what it weakens, and its state."""

    path: Path
    weakens: tuple[Weakening, ...]
    state: str

    def lines(self) -> list[str]:
        """The file and its state, and what it weakens below."""
        return [f"{shown_path(self.path)}: {self.state}", *(f"  {one}" for one in self.weakens)]


@dataclass(frozen=True, slots=True)
class ProjectTrust(TextView):
    """The files of settings that hold here."""

    files: tuple[FileTrust, ...]

    def __repr__(self) -> str:
        nothing = (
            "there is no settings file here (kestrel.toml, or pyproject.toml with [tool.kestrel]), so "
            "there is nothing to trust"
        )
        return sanitize_text("\n".join(line for one in self.files for line in one.lines())) or nothing


def trust(
    *,
    show: Annotated[
        bool, typer.Option("--show", help="Only show what would be weakened, and the line that does so.")
    ] = False,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Stop trusting them.")] = False,
) -> ProjectTrust:
    """Trust the settings of this project as they are now: show what they weaken, and apply them from now on.

    Trust is kept outside of the project, for these very settings: after any change of them it has to be given
    again. Where nobody can type this, the variable KESTREL_TRUST names the folders that are trusted, or says
    all.
    """
    trusted = TrustedFiles.of(os.environ)
    found = []
    for path, table in setting_files(Path.cwd()):
        weak = tuple(find_weakenings(path, table))
        if withdraw:
            state = "no longer trusted" if trusted.remove(path) else "was not trusted"
        elif not weak:
            state = "weakens nothing, and applies without being trusted"
        elif show:
            state = (
                "trusted; it weakens"
                if trusted.holds(path, table)
                else "not trusted; these settings are ignored until you run kestrel trust:"
            )
        else:
            trusted.add(path, table)
            state = "trusted in its present state; it weakens"
        found.append(FileTrust(path, weak, state))
    home = Path(load_settings(Path.cwd(), os.environ)["home"])
    if holds := files_from_repository(home):
        if withdraw:
            state = "no longer trusted" if trusted.remove(home) else "was not trusted"
        elif show:
            state = (
                "trusted" if trusted.holds(home, holds) else "comes with the repository and is not trusted"
            )
        else:
            trusted.add(home, holds)
            state = "trusted, although it comes with the repository"
        found.append(FileTrust(home, (), state))
    return ProjectTrust(tuple(found))


@tainting.command(epilog="Example: kestrel taint summary.md --trust")
def taint(
    ctx: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]...", help="Files or folders; the current folder by default."),
    ] = None,
    *,
    trust: Annotated[
        bool, typer.Option("--trust", help="Trust the present content of these files, which you have read.")
    ] = False,
) -> str:
    """List the files that runs wrote after reading untrusted text; a run that reads such a file may follow
    instructions in it.
    """
    frontend = frontend_of(ctx)
    files, here = frontend.lab().files, Path.cwd().resolve()
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
        return (
            f"trusted until their content changes: {', '.join(sanitize_text(str(place)) for place in found)}"
        )
    return "\n".join(f"{sanitize_text(str(place))}: {one_line(why, 300)}" for place, why in found.items())
