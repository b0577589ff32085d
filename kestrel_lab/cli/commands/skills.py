"""`kestrel skills …`: folders of instructions that agents load when a task needs them."""

from __future__ import annotations

from typing import Annotated

import typer

from kestrel_lab.cli.frontend import frontend_of
from kestrel_lab.core.errors import UsageError
from kestrel_lab.runtime.workspace.skills import ShownSkill, WorkspaceSkills

skills = typer.Typer(
    help="List the skills (SKILL.md) that agents here can load, and those that they cannot, with the reason; show one.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Place = Annotated[str, typer.Option(help="The workspace whose skills are meant.")]


@skills.callback()
def list_skills(ctx: typer.Context, *, workspace: Place = ".") -> WorkspaceSkills | None:
    """List the skills (SKILL.md) that agents here can load, and those that they cannot, with the reason; show one."""
    if ctx.invoked_subcommand is None:
        return frontend_of(ctx).lab().session.skills.at(workspace)
    if workspace != ".":
        raise UsageError(
            f"write --workspace behind {ctx.invoked_subcommand}: kestrel skills {ctx.invoked_subcommand} … --workspace {workspace}"
        )
    return None


@skills.command(epilog="Example: kestrel skills show pdf-processing")
def show(
    ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="The skill.")], *, workspace: Place = "."
) -> ShownSkill:
    """Show what a skill says, and which files it has."""
    return frontend_of(ctx).lab().session.skills.at(workspace).get(name)
