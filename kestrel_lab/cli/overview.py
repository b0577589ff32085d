"""The overview that `kestrel --help` prints, without the code of any command: loading that takes a second."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import typer

EPILOG: Final = """
Begin with [bold]kestrel doctor[/bold]: it says which models can be used and what to type for others.
Then [bold]kestrel run "Which files define the public API?"[/bold]
"""
SETTINGS: Final[dict[str, Any]] = {
    "name": "kestrel",
    "help": "Run LLM agents on a goal, watch and approve what they do, and measure them over suites and commits.",
    "epilog": EPILOG,
    "no_args_is_help": True,
    "add_completion": True,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
"""What the application with all commands is made with, too."""
COMMANDS: Final = {
    "trust": "Trust the settings of this project as they are now: what they weaken is shown, and holds from now on.",
    "compare": "Run a suite at two commits, as far as results are missing, and say what changed.",
    "run": "Run a goal: the agent calls tools, asks before risky calls, and answers.",
    "orchestrate": "Run a goal in stages: bootstrap, gather, plan, execute, verify, repair, commit; the same as `run --plan standard`.",
    "resume": "Go on with a run where its log ends, or behind its last completed stage if it failed; the same as `run --resume RUN`.",
    "cancel": "End a run for good, whoever works on it; one that was only interrupted need not be cancelled, it can be resumed.",
    "fork": "Go on from an event of a run in a new run, with something changed; the old run stays as it is.",
    "diff": "Show where two runs part, and what each did from there on.",
    "show": "Show a run: its calls, its answer, what it used, what it waits for.",
    "runs": "List the newest runs.",
    "approve": "Say yes to what a run waits for, or answer its question; a session that waits goes on at once.",
    "deny": "Say no to what a run waits for; the model is told and may find another way.",
    "tools": "List the tools with their danger, and with which word those are offered that not every run gets.",
    "models": "List the models that can be used now, and what to type for others.",
    "config": "Show every setting and rule, its value and where it came from; or change a setting.",
    "doctor": "Check what is configured, what is missing, and what to type.",
    "eval": "Measure agents: run suites of scenarios, compare two commits, decide gates.",
    "macros": "List macros, and sequences of calls that could become one; accept, disable, remove them.",
    "memory": "List what is remembered for later runs; search, add, edit, forget and draw it.",
    "mcp": "List MCP servers; check, approve and withdraw them; find and install others; serve the tools of this lab to other programs.",
    "scenario": "Make scenarios for suites.",
    "notebook": "Execute notebooks headless, with parameters.",
    "rules": "List the rules about calls; try which of them decides on one.",
    "plans": "List the workflows that come with the package, for `kestrel run GOAL --plan NAME`.",
    "plan": "Show the plan that a workflow makes for a goal; nothing is run.",
    "schema": "Print the JSON Schema of workflow, agent, suite or scenario files, for editors, or of the control protocol.",
    "time": "Tell the time, or read an expression such as `next Friday at 15:30` and say how it was read.",
    "serve": "Show runs on a page of this machine, and let it decide on them: lists and follows those of any process.",
    "follow": "Watch a run of any process to its end, and answer here what it asks; Ctrl-C leaves it alone.",
    "search": "Find the files and places of a folder that have to do with a question, best first, with why.",
    "index": "Build the index of a folder, or bring it up to date; runs then gather what a goal needs from it.",
    "websearch": "Search the web for what answers a question: facts, each with quotes that were found in their pages.",
    "taint": "List the files that runs wrote after they had read what others wrote; a run that reads one may be obeying it.",
    "chat": "Talk with an agent: what you type goes on where the last answer ended; Ctrl-C cancels the turn, a second one leaves.",
}
"""Every command with the first sentence of its help, in order. A test compares the page with that of `cli.app`."""


def main() -> None:
    """Run the `kestrel` command: print the overview, or load the commands and run one."""
    if sys.argv[1:] not in (["--help"], ["-h"]) or "_KESTREL_COMPLETE" in os.environ:
        from kestrel_lab.cli.main import main as run_command

        return run_command()
    from kestrel_lab.cli.build_server_output import harmless_output

    overview = typer.Typer(**SETTINGS)
    for name, text in COMMANDS.items():
        overview.command(name, help=text)(lambda: None)
    with harmless_output():
        overview(prog_name="kestrel")
    return None
