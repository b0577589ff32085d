"""`kestrel plans`, `kestrel plan`, `kestrel schema`: workflows to be looked at before they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.frontend import output_file
from kestrel_lab.core.plan import Plan
from kestrel_lab.runtime.options import named_values
from kestrel_lab.views.dataframes import unit_frame

workflows = typer.Typer()

PlanName = Annotated[
    str,
    typer.Option(
        "--plan", metavar="NAME|FILE", help="Workflow to follow: one of `kestrel plans`, or a YAML file."
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=VALUE", help="Input of the workflow; may be repeated."),
]


@workflows.command()
def plans(_: typer.Context) -> Any:
    """List the workflows that come with the package, for `kestrel run GOAL --plan NAME`."""
    import pandas as pd

    from kestrel_lab.runtime.workflows.loader import read_workflow, shipped_workflows  # loads pydantic

    entries = {name: read_workflow(path)[1] for name, path in shipped_workflows().items()}
    rows = [(entry.kind, ", ".join(entry.inputs), entry.description) for entry in entries.values()]
    return unit_frame(rows, columns=["kind", "inputs", "description"], index=pd.Index(entries, name="plan"))


@workflows.command(epilog='Example: kestrel plan "Why is the sky blue?" --plan react --svg plan.svg')
def plan(
    _: typer.Context,
    goal: Annotated[list[str], typer.Argument(help="The goal of the plan.")],
    *,
    name: PlanName,
    inputs: Inputs = None,
    svg: Annotated[Path | None, output_file("Write a drawing of the plan to this file instead.")] = None,
) -> Plan | Path:
    """Show the plan that a workflow makes for a goal; nothing is run."""
    from kestrel_lab.runtime.workflows.loader import load_plan  # loads pydantic

    made = load_plan(name, " ".join(goal), named_values(inputs or ()))
    if svg is None:
        return made
    svg.parent.mkdir(parents=True, exist_ok=True)
    svg.write_text(made.to_svg(), encoding="utf-8")
    return svg


@workflows.command()
def schema(
    _: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="workflow, agent, suite, scenario or control.")],
) -> Any:
    """Print the JSON Schema of workflow, agent, suite or scenario files, for editors, or of the control
    protocol.
    """
    from kestrel_lab.evals.suites.json_schemas import schema_text  # loads pydantic

    return schema_text(name).rstrip("\n")
