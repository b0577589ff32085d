"""The commands and their headings, for `kestrel --help` without the code of commands: that takes a second."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup

EPILOG: Final = """
Begin with [bold]kestrel doctor[/bold]: it shows which models can be used and how to set up others.
Then [bold]kestrel run "Which files define the public API?"[/bold]
"""
PANELS: Final = {
    "Run agents": (
        "run",
        "chat",
        "orchestrate",
        "fix",
        "resume",
        "cancel",
        "fork",
        "apply",
        "websearch",
        "plans",
        "plan",
    ),
    "Watch and decide": (
        "runs",
        "find",
        "show",
        "diff",
        "align",
        "follow",
        "serve",
        "approve",
        "deny",
        "undo",
        "acp",
    ),
    "Measure": ("init", "eval", "compare", "import", "scenario", "router", "notebook", "blame", "shrink"),
    "What agents may do and know": (
        "tools",
        "mcp",
        "skills",
        "macros",
        "memory",
        "search",
        "index",
        "rules",
        "taint",
        "trust",
    ),
    "Set up": ("doctor", "models", "config", "home", "gc", "schema", "time"),
}
"""The headings of the overview, and the commands below each in their order."""
EVAL_PANELS: Final = {
    "Measure": ("run", "batches", "ablate", "injection"),
    "Read many runs": ("view", "summary", "history", "clusters", "scan", "calibration", "rescore"),
    "Label and judge": ("label", "judge"),
    "Decide": ("compare", "gate", "bisect", "ci", "comment"),
    "Bring in and share": ("import", "import-suite", "push", "pull", "site"),
}
"""The same of `kestrel eval --help`."""


class GroupedCommands(TyperGroup):
    """The commands in the order and below the headings of `PANELS`, or those of `eval`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        panels = EVAL_PANELS if self.name == "eval" else PANELS
        known = {name: panel for panel, names in panels.items() for name in names}
        for name in sorted(self.commands, key=[*known, *self.commands].index):
            command = self.commands[name] = self.commands.pop(name)
            command.rich_help_panel = known.get(name)  # type: ignore[attr-defined]  # read by typer
            # A docstring is wrapped for its source file; typer would keep those line ends.
            first, *rest = (command.help or "").split("\n\n")
            command.help = "\n\n".join([" ".join(first.split()), *rest])


SETTINGS: Final[dict[str, Any]] = {
    "name": "kestrel",
    "cls": GroupedCommands,
    "help": "Run LLM agents on a goal, watch and approve what they do, and measure them over suites and "
    "commits.",
    "epilog": EPILOG,
    "no_args_is_help": True,
    "add_completion": True,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
"""What the application with all commands is made with, too."""
COMMANDS: Final = {
    "acp": "Run as an agent inside an editor that speaks the agent client protocol (ACP): it starts this "
    "command and talks to it.",
    "trust": "Trust the settings of this project as they are now: show what they weaken, and apply them "
    "from now on.",
    "import": "Import what other tools recorded: runs to show, fork, score and compare like our own, and "
    "their rates with 95 % intervals.",
    "compare": "Run a suite at two commits, where results are missing, and show what changed.",
    "run": "Run a goal: the agent calls tools, asks before risky calls, and answers.",
    "orchestrate": "Run a goal in stages: bootstrap, gather, plan, execute, verify, repair, commit; the "
    "same as "
    "`run --plan standard`.",
    "fix": "Fix the cell of this notebook that failed last: the agent is given the cell, its traceback and "
    "the variables that it names.",
    "resume": "Continue a run where its log ends; one that failed goes on in a new run, with what it has.",
    "cancel": "End a run for good, whichever process works on it.",
    "fork": "Start a new run from an event of another run, with something changed; the old run and your "
    "files stay as they are.",
    "apply": "Take what a fork changed in its private copy over into your files, as far as they are what "
    "the fork began with.",
    "diff": "Show where two runs differ first, and what each did after that.",
    "align": "Align recorded runs: which steps correspond, where they differ first, and what each did from "
    "there.",
    "show": "Show a run: its calls, its answer, what it used and what it waits for.",
    "runs": "List the newest runs, or remove runs.",
    "find": "Find runs and trials by words and by what is known of them, newest first; imported ones, too.",
    "approve": "Approve what a run waits for, or answer its question; a waiting session continues at once.",
    "deny": "Deny what a run waits for; the model learns of it and may find another way.",
    "undo": "Undo calls of an agent: variables and cells of this notebook, and files, are again what they "
    "were.",
    "tools": "List the tools with their danger levels, and the names that offer those which not every run "
    "gets.",
    "models": "List the models that can be used now, and how to set up others.",
    "gc": "Free the room of what no run needs any more, and rewrite the files of the log without what "
    "was deleted.",
    "home": "Show where runs of this folder are kept (the home), and the homes of folders that are gone; "
    "or move it.",
    "config": "Show every setting and rule, its value and its source; or change a setting.",
    "doctor": "Check what is set up and what is missing, and show how to fix it.",
    "init": "Write a first suite: three scenarios with checks, example answers, a notebook, kestrel.toml "
    "and a file for CI.",
    "eval": "Measure agents: run suites of scenarios, compare two commits, decide gates.",
    "skills": "List the skills (SKILL.md) that agents here can load, and those that they cannot, with the "
    "reason; show one.",
    "macros": "List macros, and sequences of calls that could become macros; accept, disable or remove them.",
    "memory": "List the notes for later runs; search, add, edit, forget or draw them.",
    "mcp": "List MCP servers; check, approve, log in to and withdraw them; find and install others; serve "
    "the tools of this lab to other programs.",
    "scenario": "Make scenarios for suites.",
    "notebook": "Execute notebooks headless, with parameters; make one of the code that a run executed, or "
    "run "
    "that code again.",
    "router": "Learn from results which model to choose for a prompt; no model is called for that.",
    "rules": "List the rules about calls, or find the rule that decides on a call.",
    "plans": "List the workflows that come with the package, for `kestrel run GOAL --plan NAME`.",
    "plan": "Show the plan that a workflow makes for a goal; nothing is run.",
    "schema": "Print the JSON Schema of workflow, agent, suite or scenario files, for editors, or of the "
    "control protocol.",
    "time": "Show the time, or read an expression such as `next Friday at 15:30` and show how it was "
    "understood.",
    "serve": "Show the runs of every process on a web page of this machine, and decide on them there.",
    "follow": "Watch a run of any process until it ends, and answer its questions here; Ctrl-C stops "
    "watching only.",
    "blame": "Find the turn that made a run fail, by making turns of it anew in private copies.",
    "shrink": "Find the least history, files, tools and guidance with which a run still fails, as a "
    "scenario.",
    "search": "Find the files and lines of a folder that are about a question, best first, and say why.",
    "index": "Build or update the search index of a folder; runs then use it to gather what a goal needs.",
    "websearch": "Search the web for an answer: facts, each with quotes from the pages that support it.",
    "taint": "List the files that runs wrote after reading untrusted text; a run that reads such a file may "
    "follow instructions in it.",
    "chat": "Talk with an agent: what you type goes on where the last answer ended; Ctrl-C cancels the "
    "turn, a second one leaves.",
}
"""Every command with the first sentence of its help. A test compares the page with that of `cli.app`."""
