"""`kestrel macros …` and `kestrel skills …`: mined tool sequences, and instructions for agents."""

from __future__ import annotations

from typing import Annotated

import typer

from kestrel_lab.cli.frontend import command_group, frontend_of, is_listing
from kestrel_lab.runtime.workspace.macros import WorkspaceMacros
from kestrel_lab.runtime.workspace.skills import ShownSkill, WorkspaceSkills
from kestrel_lab.tools.macros import Macro

macros = command_group(
    "List macros, and sequences of calls that could become macros; accept, disable or remove them.",
    invoke_without_command=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The macro, as `kestrel macros` lists it.")]
Place = Annotated[str, typer.Option(help="The workspace whose macros are meant.")]


@macros.callback()
def list_macros(ctx: typer.Context, *, workspace: Place = ".") -> WorkspaceMacros | None:
    """List macros, and sequences of calls that could become macros; accept, disable or remove them."""
    return _macros(ctx, workspace) if is_listing(ctx, workspace) else None


@macros.command()
def show(ctx: typer.Context, name: Name, *, workspace: Place = ".") -> Macro:
    """Show a macro, kept or proposed: its parameters and its steps."""
    there = _macros(ctx, workspace)
    proposed = {found.macro.name: found.macro for found in there.proposals()}
    return proposed[name] if name in proposed else there.get(name)


@macros.command()
def accept(
    ctx: typer.Context,
    name: Name,
    *,
    called: Annotated[str, typer.Option("--as", metavar="NAME", help="Keep it under this name.")] = "",
    workspace: Place = ".",
) -> str:
    """Keep a proposed macro: agents are offered it from now on."""
    kept = _macros(ctx, workspace).accept(name, called=called)
    return f"kept {kept.signature}: runs started from now on may call it"


@macros.command()
def enable(ctx: typer.Context, name: Name, *, workspace: Place = ".") -> str:
    """Offer a macro again."""
    return f"enabled {_macros(ctx, workspace).enable(name).name}"


@macros.command()
def disable(ctx: typer.Context, name: Name, *, workspace: Place = ".") -> str:
    """Keep a macro, but do not offer it any more."""
    return f"disabled {_macros(ctx, workspace).disable(name).name}"


@macros.command()
def remove(ctx: typer.Context, name: Name, *, workspace: Place = ".") -> str:
    """Forget a macro and all its versions."""
    _macros(ctx, workspace).remove(name)
    return f"removed {name}"


def _macros(ctx: typer.Context, workspace: str) -> WorkspaceMacros:
    return frontend_of(ctx).lab().macros.at(workspace)


skills = command_group(
    "List the skills (SKILL.md) that agents here can load, and those that they cannot, with the "
    "reason; show one.",
    invoke_without_command=True,
)
SkillPlace = Annotated[str, typer.Option(help="The workspace whose skills are meant.")]


@skills.callback()
def list_skills(ctx: typer.Context, *, workspace: SkillPlace = ".") -> WorkspaceSkills | None:
    """List the skills (SKILL.md) that agents here can load, and those that they cannot, with the reason; show
    one.
    """
    return frontend_of(ctx).lab().skills.at(workspace) if is_listing(ctx, workspace) else None


@skills.command("show", epilog="Example: kestrel skills show pdf-processing")
def show_skill(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The skill.")],
    *,
    workspace: SkillPlace = ".",
) -> ShownSkill:
    """Show what a skill says, and which files it has."""
    return frontend_of(ctx).lab().skills.at(workspace).get(name)


@skills.command("add", epilog="Example: kestrel skills add analyse-runs")
def add_skill(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The skill.")] = "analyse-runs",
    *,
    workspace: SkillPlace = ".",
) -> ShownSkill:
    """Copy a skill of kestrel into .agents/skills of the workspace: how to analyse recorded runs."""
    return frontend_of(ctx).lab().skills.at(workspace).add(name)
