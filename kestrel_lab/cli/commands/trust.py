"""`kestrel trust`: let the settings of this project count, also those that make something less safe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kestrel_lab.core.sanitize import plain, shown_path
from kestrel_lab.runtime.project_trust import TrustedFiles, Weakening, brought
from kestrel_lab.runtime.settings import load_settings, setting_files, weakenings
from kestrel_lab.views.html.elements import pre_html


@dataclass(frozen=True, slots=True)
class FileTrust:
    """A file of settings, what it weakens, and how it stands."""

    path: Path
    weakens: tuple[Weakening, ...]
    state: str

    def lines(self) -> list[str]:
        """The file and its state, and what it weakens below."""
        return [f"{shown_path(self.path)}: {self.state}", *(f"  {one}" for one in self.weakens)]


@dataclass(frozen=True, slots=True)
class ProjectTrust:
    """The files of settings that hold here."""

    files: tuple[FileTrust, ...]

    def __repr__(self) -> str:
        return plain("\n".join(line for one in self.files for line in one.lines())) or "there is no settings file here"

    def _repr_html_(self) -> str:
        return pre_html(repr(self))


def trust(
    *,
    show: Annotated[bool, typer.Option("--show", help="Only show what would be weakened, and the line that does so.")] = False,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Stop trusting them.")] = False,
) -> ProjectTrust:
    """Trust the settings of this project as they are now: show what they weaken, and apply them from now on.

    Trust is kept outside of the project, for these very settings: after any change of them it has to be given again.
    Where nobody can type this, the variable KESTREL_TRUST names the folders that are trusted, or says all.
    """
    trusted = TrustedFiles.of(os.environ)
    found = []
    for path, table in setting_files(Path.cwd()):
        weak = tuple(weakenings(path, table))
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
    if holds := brought(home):
        if withdraw:
            state = "no longer trusted" if trusted.remove(home) else "was not trusted"
        elif show:
            state = "trusted" if trusted.holds(home, holds) else "comes with the repository and is not trusted"
        else:
            trusted.add(home, holds)
            state = "trusted, although it comes with the repository"
        found.append(FileTrust(home, (), state))
    return ProjectTrust(tuple(found))
