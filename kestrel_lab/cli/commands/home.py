"""`kestrel home`: where the log of the current folder is kept, and how it is moved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from kestrel_lab.core.errors import UsageError
from kestrel_lab.runtime.settings import load_settings
from kestrel_lab.runtime.workspace.home import HomeFolder, home_of, move_home, take_home


def home(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="With --move, where to; with --take, which home.")
    ] = "",
    *,
    move: Annotated[
        bool,
        typer.Option(
            "--move", help="Move the home to FOLDER; by default out of the workspace, to the usual place."
        ),
    ] = False,
    take: Annotated[
        bool,
        typer.Option(
            "--take", help="Take over the home of a workspace that is gone: this folder, before it was moved."
        ),
    ] = False,
) -> HomeFolder | str:
    """Show where runs of this folder are kept (the home), and the homes of folders that are gone; or move
    it.
    """
    here, setting = Path.cwd(), load_settings(Path.cwd(), os.environ).items["home"]
    if move and take:
        raise UsageError(
            "--move is for the home of this folder, --take for that of another: give one of them"
        )
    if not move and not take:
        if folder:
            raise UsageError(f"say what is to be done with {folder}: kestrel home --move {folder}, or --take")
        return home_of(here, os.environ, Path(setting.value), setting.source)
    if setting.source != "default":
        raise UsageError(
            f"home is set by {setting.source}: change it there, and move the folder {setting.value} yourself"
        )
    if take:
        if not folder:
            raise UsageError("name the home to take over: kestrel home lists those whose workspace is gone")
        return take_home(here, os.environ, folder)
    return move_home(here, os.environ, Path(folder) if folder else None)
