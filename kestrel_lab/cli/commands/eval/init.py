"""`kestrel init`: a first suite, with a notebook and a file for CI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.starter.files import Forge, Project, suggested_model, write_starter

beginning = typer.Typer()


@beginning.command("init", epilog="Example: kestrel init --yes, then type what it shows")
def initialise(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder to begin in.")] = Path(),
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take what fits.")] = False,
    suites: Annotated[
        str | None, typer.Option("--suites", metavar="DIR", help="The folder of the suite, in FOLDER; evals.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model that is to work later; none is asked now.")
    ] = None,
    ci: Annotated[
        str | None, typer.Option(metavar="FORGE", help="A file for github, gitlab or none; as the folder is.")
    ] = None,
) -> Any:
    """Write a first suite: three scenarios with checks, example answers, a notebook, kestrel.toml and a file
    for CI.

    The folder's language, tests and README are looked at. Nothing is overwritten, and no model is asked: the
    example answers make everything work without a key. In a terminal three questions are asked at most.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: make it first")
    asks = not yes and sys.stdin.isatty() and sys.stdout.isatty()

    def answer(given: str | None, question: str, usual: str) -> str:
        if given is not None or not asks:
            return given or usual
        return str(typer.prompt(question, default=usual))

    place = answer(suites, "Folder for suites", "evals")
    known = Path(place)
    if known.is_absolute() or ".." in known.parts or not known.parts:
        raise UsageError(f"--suites {place}: name a folder inside {folder}")
    chosen = answer(model, "Model that is to work later", suggested_model(os.environ))
    forge = answer(ci, "CI: github, gitlab or none", Project.at(folder).forge)
    known_forge = next((one for one in get_args(Forge) if one == forge), None)
    if known_forge is None:
        raise UsageError(f"--ci {forge}: it is one of {', '.join(get_args(Forge))}")
    return write_starter(
        folder, folder=known.as_posix(), model=chosen, forge=known_forge, chosen=asks or model is not None
    )
