"""`kestrel notebook …` and `kestrel scenario …`: execute notebooks; make either from a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.frontend import command_group, frontend_of, output_file
from kestrel_lab.evals.notebooks.parameters import parse_parameters
from kestrel_lab.evals.notebooks.run import CELL_TIMEOUT_S, run_notebook

notebooks = command_group(
    "Execute notebooks headless, with parameters; make one of the code that a run executed, or run "
    "that code again.",
    no_args_is_help=True,
)


@notebooks.command(
    "run",
    epilog="Example: kestrel notebook run notebooks/01_first_run.ipynb -p epochs=3 --out out/first.ipynb",
)
def run(
    ctx: typer.Context,
    notebook: Annotated[Path, typer.Argument(metavar="NB", help="The notebook to execute.")],
    *,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="NAME=VALUE",
            help="Value (JSON, else text) of a parameter; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        output_file("Write the executed notebook to this file; by default the notebook itself is replaced."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one cell may take.")] = CELL_TIMEOUT_S,
    cwd: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the notebook works; the current folder by default."),
    ] = None,
    junit: Annotated[Path | None, output_file("Write JUnit XML, one test case per cell.")] = None,
    markdown: Annotated[Path | None, output_file("Write a Markdown summary.")] = None,
) -> Any:
    """Execute a notebook in a fresh kernel and keep its outputs; a risky call ends it (exit code 3) instead
    of waiting for a person.

    Parameters are assigned in a cell after the one tagged `parameters`, as papermill does.
    """
    frontend = frontend_of(ctx)
    values = parse_parameters(parameter or ())

    async def work(reporter: Any) -> Any:
        result = await run_notebook(
            notebook, out, parameters=values, timeout=timeout, cwd=cwd, reporter=reporter
        )
        if junit is not None:
            result.junit(junit)
        if markdown is not None:
            markdown.parent.mkdir(parents=True, exist_ok=True)
            markdown.write_text(result.markdown(), encoding="utf-8")
        return result

    return frontend.wait(work)


EndedRun = Annotated[
    str, typer.Argument(metavar="RUN", help="Id of a run that has ended, as `kestrel runs` lists them.")
]


@notebooks.command(
    "from-run",
    epilog="Example: kestrel notebook from-run RUN --out sales.ipynb, then: kestrel notebook run sales.ipynb",
)
def from_run(
    ctx: typer.Context,
    run_id: EndedRun,
    *,
    out: Annotated[
        Path | None, output_file("The new file; RUN.ipynb in the current folder by default.")
    ] = None,
) -> str:
    """Make a notebook of the Python code that a run and the conversation before it executed; it runs without
    a model.

    Undone and stopped calls are left out and named. Numbers of an answer name the cells in whose outputs they
    stand.
    """
    made = frontend_of(ctx).lab().evals.notebook_from(run_id)
    return f"{made.write(out or Path(f'{run_id}.ipynb'))}: {made!r}"


@notebooks.command(epilog="Example: kestrel notebook recompute RUN")
def recompute(
    ctx: typer.Context,
    run_id: EndedRun,
    *,
    workspace: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder that the code reads; the workspace of the run by default."
        ),
    ] = None,
    copy: Annotated[
        bool,
        typer.Option("--copy", help="Work in a throw-away copy of that folder, for code that writes files."),
    ] = False,
) -> Any:
    """Run the code of a run again in a sandbox, without a model, and compare each output with the recorded
    one (exit code 1 if one differs).

    The code cannot change files: what writes some fails with PermissionError and so differs, unless --copy
    gives it a copy of the folder.
    """
    frontend = frontend_of(ctx)
    evals = frontend.lab().evals
    return frontend.wait(
        lambda reporter: evals.recompute(run_id, workspace=workspace, copy=copy, reporter=reporter)
    )


scenarios = command_group("Make scenarios for suites.", no_args_is_help=True)


@scenarios.callback()
def _group() -> None:
    """Make scenarios for suites."""


@scenarios.command(
    "from-run",
    epilog="Example: kestrel scenario from-run RUN --out evals/found.yaml, then: kestrel eval run "
    "evals/found.yaml",
)
def scenario_from_run(
    ctx: typer.Context,
    run_id: EndedRun,
    *,
    out: Annotated[Path | None, output_file("Write the scenario to this new file instead.")] = None,
) -> str | Path:
    """Draft a scenario from a run for you to review: goal, tools, limits, workspace, and checks of what
    happened.
    """
    draft = frontend_of(ctx).lab().evals.scenario_from(run_id, beside=None if out is None else out.parent)
    return draft.text.rstrip("\n") if out is None else draft.write(out)
