"""`kestrel notebook …`: notebooks executed with nobody there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.frontend import frontend_of
from kestrel_lab.evals.notebooks.parameters import parse_parameters
from kestrel_lab.evals.notebooks.run import CELL_TIMEOUT_S, run_notebook

notebooks = typer.Typer(
    help="Execute notebooks headless, with parameters.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@notebooks.callback()
def _group() -> None:
    """Keeps `run` a word of its own while it is the only one."""


@notebooks.command("run", epilog="Example: kestrel notebook run notebooks/01_first_run.ipynb -p epochs=3 --out out/first.ipynb")
def run(
    ctx: typer.Context,
    notebook: Annotated[Path, typer.Argument(metavar="NB", help="The notebook.")],
    *,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Value (JSON, else text) of a parameter; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the executed notebook to this file; by default the notebook itself is replaced."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one cell may take.")] = CELL_TIMEOUT_S,
    cwd: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the notebook works; the current folder by default.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML, one test case per cell.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a Markdown summary.")] = None,
) -> Any:
    """Execute a notebook in a fresh kernel and keep its outputs; a risky call ends it (exit code 3) instead of waiting for a person.

    Parameters are assigned in a cell after the one tagged `parameters`, as papermill does.
    """
    frontend = frontend_of(ctx)
    values = parse_parameters(parameter or ())

    async def work(reporter: Any) -> Any:
        result = await run_notebook(notebook, out, parameters=values, timeout=timeout, cwd=cwd, reporter=reporter)
        if junit is not None:
            result.junit(junit)
        if markdown is not None:
            markdown.parent.mkdir(parents=True, exist_ok=True)
            markdown.write_text(result.markdown(), encoding="utf-8")
        return result

    return frontend.wait(work)
