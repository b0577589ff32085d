"""`kestrel eval import-suite`: suites of promptfoo, pydantic-evals, Inspect and Harbor as suites of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.frontend import output_file

importing = typer.Typer()
"""Commands of `kestrel eval`."""


@importing.command(
    "import-suite", epilog="Example: kestrel eval import-suite promptfooconfig.yaml --out evals/prompts.yaml"
)
def import_foreign_suite(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="A configuration of promptfoo, a dataset of pydantic-evals (.yaml, .json), a task file of "
            "Inspect (.py), or a task folder of Harbor or a folder of them.",
        ),
    ],
    *,
    out: Annotated[
        Path | None, output_file("Write this suite file; NAME.suite.yaml by default. It must be new.")
    ] = None,
    task: Annotated[str, typer.Option(help="One of several tasks in a file of Inspect.")] = "",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE",
            help="Rows of an Inspect dataset that would have to be fetched (CSV, JSON Lines …).",
        ),
    ] = None,
) -> Any:
    """Write a suite of another tool as one of ours, and list what was not carried over with the nearest way.

    Nothing of the file is run. The list is shown, and stands as NAME.not-carried.md beside the suite. Either
    all is written or nothing.
    """
    from kestrel_lab.evals.importers.suites.read import import_suite  # loads pydantic

    return import_suite(source, out=out, task=task, data=data)
