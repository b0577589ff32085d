"""`kestrel rules …`: the rules in force, and what they say about a call before anything makes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kestrel_lab.cli.frontend import command_group, frontend_of
from kestrel_lab.core.calls import Call, Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.lab import Lab
from kestrel_lab.permissions.policy import Ruling
from kestrel_lab.permissions.rulebook import Rulebook, policy_for, read_rulebook
from kestrel_lab.shell_syntax.parser import COMMAND, read_line
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Tool, ToolArgumentsError

EPILOG = """
Write rules into kestrel.toml, into pyproject.toml as [bold]\\[\\[tool.kestrel.rules]][/bold], or into a \
file for --rules:

[bold]\\[\\[rules]][/bold]

[bold]tool = "bash"[/bold] — a name, * for any signs

[bold]verdict = "allow"[/bold] — or ask, or deny

[bold]command = \\["git diff ...", "pytest ..."][/bold] — words of one command; * within a word, ... for \
further words.
To allow, ... stands for options that write and run nothing; others must be written out. To deny, options \
may stand anywhere

[bold]path = "docs/**"[/bold], [bold]url = "*.example.org/api/**"[/bold], [bold]args = {branch = \
"release-*", count = "<= 3"}[/bold] — other arguments

[bold]reason = "they only look"[/bold]

Deny wins over ask, ask over allow, in whatever order and file they stand; where no rule is about a call, \
its danger decides.

A command line is allowed only if each command in it is and nothing hides another; a command is denied \
wherever it stands, whatever options come before its sub-command.
"""

rules = command_group(
    "List the rules about calls, or find the rule that decides on a call.",
    epilog=EPILOG,
    invoke_without_command=True,
)

RulesFile = Annotated[
    str | None,
    typer.Option("--rules", metavar="FILE", help="A TOML file with more rules: see `kestrel rules --help`."),
]


@rules.callback()
def list_rules(ctx: typer.Context) -> Rulebook | None:
    """List the rules about calls, or find the rule that decides on a call."""
    return frontend_of(ctx).lab().rules if ctx.invoked_subcommand is None else None


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """What would become of a call."""

    call: Call
    ruling: Ruling
    unclear: str

    def __repr__(self) -> str:
        word = {"allow": "goes on", "ask": "is asked about", "deny": "is refused"}[self.ruling.verdict]
        lines = [
            f"{self.call.target} ({self.call.danger.name}) {word}: {self.ruling.by}",
            f"  {self.ruling.why}",
        ]
        if self.unclear and self.ruling.how == "policy":
            lines.append(f"  no rule can allow it: {self.unclear}")
        if (
            isinstance(line := self.call.args.get(COMMAND), str)
            and len(commands := read_line(line).commands) > 1
        ):
            lines.append(
                "  it runs: "
                f"{' · '.join(' '.join('…' if word is None else word for word in one) for one in commands)}"
            )
        return sanitize_text("\n".join(lines))


@rules.command("try", epilog="Example: kestrel rules try bash 'git push --force' --approve auto:medium")
def try_rules(
    ctx: typer.Context,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Name of a tool.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENTS]", help="Its arguments as a JSON object, or its first one as it is."
        ),
    ] = None,
    *,
    approve: Annotated[str | None, typer.Option(help="The approval policy to assume.")] = None,
    rules: RulesFile = None,
    workspace: Annotated[str, typer.Option(help="The folder that the run would work in.")] = ".",
) -> RuleCheck:
    """Show whether a call would be allowed, asked about or denied, and by which rule; nothing is run."""
    lab = frontend_of(ctx).lab()
    call = _call(lab, tool, " ".join(arguments or ()))
    own = read_rulebook(rules)
    policy = policy_for(approve or lab.options["approve"], lab.rules, own, Workspace(Path(workspace)).root)
    return RuleCheck(call, policy.ruling(call), (lab.rules + own).unclear(call))


def _call(lab: Lab, name: str, text: str) -> Call:
    """The call that is meant; tools of servers are not asked what arguments they take."""
    tool = None if ":" in name and name not in lab.registry.toolbox else lab.registry.toolbox.get(name)
    args = _arguments(tool, text)
    try:
        args = args if tool is None else tool.validate(args)
    except ToolArgumentsError as error:
        raise UsageError(str(error)) from error
    if tool is None:
        # What tools of servers count as.
        return Call(id="try", kind="tool", target=name, args=args, danger=Danger.MEDIUM)
    return Call(id="try", kind="tool", target=name, args=args, danger=tool.danger, effect=tool.effect)


def _arguments(tool: Tool | None, text: str) -> dict[str, Json]:
    if not text.strip():
        return {}
    if not text.lstrip().startswith("{"):
        taken = None if tool is None else tool.schema.get("properties")
        if isinstance(taken, dict) and taken:
            return {next(iter(taken)): text}
    try:
        args = loads(text)
    except ValueError as error:
        raise UsageError(f"the arguments are not JSON: {error}") from error
    if not isinstance(args, dict):
        raise UsageError("the arguments must be a JSON object")
    return args
