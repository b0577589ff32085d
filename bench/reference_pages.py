"""Write the site's generated pages: public names, the command line, settings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from enum import EnumType
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import griffe
import typer

import kestrel_lab
from kestrel_lab import Lab
from kestrel_lab.cli.app import app
from kestrel_lab.core.events.union import EVENT_TYPES
from kestrel_lab.evals.options import EvalOptions
from kestrel_lab.runtime.options import LabOptions, RunOptions
from kestrel_lab.runtime.settings import Setting

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"


def main() -> None:
    """Write the pages; raises `OSError` when they cannot be written."""
    REFERENCE.mkdir(exist_ok=True)
    (REFERENCE / "cli.md").write_text(cli_page(), encoding="utf-8")
    (REFERENCE / "settings.md").write_text(settings_page(), encoding="utf-8")
    (REFERENCE / "python.md").write_text(python_page(), encoding="utf-8")
    (REFERENCE / "events.md").write_text(events_page(), encoding="utf-8")
    sys.stdout.write(f"written: {REFERENCE}/cli.md, settings.md, python.md, events.md\n")


def python_page() -> str:
    """Return the page of public names, each a directive that the site's generator fills."""
    names = [name for name in kestrel_lab.__all__ if not name.startswith("_")]
    parts = ["# Python", "Everything on this page can be imported from `kestrel_lab`. Other names may move."]
    for name in names:
        listed = (
            "\n    options:\n      show_if_no_docstring: true"
            if isinstance(getattr(kestrel_lab, name), EnumType)
            else ""
        )
        # The members of an enumeration are all that it has.
        parts.append(f"::: {kestrel_lab._HOMES[name]}.{name}{listed}")
        if name == "Lab":
            parts += [_forwarded(method) for method in sorted(vars(Lab)) if _is_forwarded(method)]
    parts += [
        "## Options",
        "What a lab, a run and a suite can be given, as keyword arguments or as one of these objects.",
    ]
    parts += [
        _directive(each.__module__, each.__qualname__, each.__name__)
        for each in (LabOptions, RunOptions, EvalOptions)
    ]
    return "\n\n".join(parts) + "\n"


def _is_forwarded(name: str) -> bool:
    """Whether a public method of the lab is one of a part of it, or a `…_sync` twin: the generator reads
    source and finds neither.
    """
    return (
        not name.startswith("_")
        and callable(found := getattr(Lab, name))
        and hasattr(found, "__wrapped__")
        and name != "websearch"
    )


def _forwarded(name: str) -> str:
    """Return the entry of such a method: a directive that names where it is written; for a twin a few words,
    and the method it waits for.
    """
    method = getattr(Lab, name)
    written = inspect.unwrap(method)
    if written.__name__ == name:
        return _directive(written.__module__, written.__qualname__, f"Lab.{name}")
    twin = f"### Lab.{name}\n\n{inspect.getdoc(method)}"
    return (
        twin
        if written.__name__ in vars(Lab)
        else f"{twin}\n\n{_directive(written.__module__, written.__qualname__, f'Lab.{written.__name__}')}"
    )


def _directive(module: str, name: str, heading: str) -> str:
    return (
        f"::: {module}.{name}\n    options:\n      heading: {heading}\n      toc_label: {heading}\n    "
        "  heading_level: 3"
    )


def events_page() -> str:
    """Return the page of the events of a log, by what they are about, with their fields."""
    parts = [
        "# Events",
        "`run.events()` gives the records of a run. Each has a number within the run (`seq`), a time "
        "(`at`) and an event of one of these types. "
        "Events only ever gain fields. A question to a person is `approval_asked`, and the answer "
        "`approval_given`, whether it is about a "
        "call or asked by the agent (`ask_user`); the concerns and citations of an answer are in "
        "`run_finished`.",
    ]
    source = griffe.load("kestrel_lab.core.events", allow_inspection=False)
    for module, heading in {
        "run": "The run",
        "plan": "Plan and steps",
        "calls": "Calls of models and tools",
        "kernel": "The kernel",
        "labels": "Labels and verdicts",
    }.items():
        parts.append(f"## {heading}")
        for name, event in EVENT_TYPES.items():
            if event.__module__ == f"{source.path}.{module}":
                parts += _event(name, source[f"{module}.{event.__name__}"], event.__struct_fields__)
    return "\n\n".join(parts) + "\n"


def _event(name: str, written: griffe.Object, fields: Iterable[str]) -> list[str]:
    """Return the entry of a type of event: what it says, and a table of its fields."""
    rows = []
    for field in fields:
        attribute = written.attributes[field]
        meaning = attribute.docstring.value if attribute.docstring else ""
        rows.append(f"| `{field}` | `{_cell(str(attribute.annotation))}` | {_cell(meaning)} |")
    table = "| Field | Type | Meaning |\n| --- | --- | --- |\n" + "\n".join(rows)
    return [f"### {name}", written.docstring.value if written.docstring else "", *([table] if rows else [])]


def settings_page() -> str:
    """Return the page of settings with their defaults and meanings."""
    with TemporaryDirectory() as empty, Lab(home=Path(empty) / ".kestrel", env={}) as lab:
        rows = [f"| `{each.key}` | `{_default(each)}` | {_cell(each.meaning)} |" for each in lab.settings]
    return (
        "# Settings\n\nA setting comes from `kestrel.toml`, from `[tool.kestrel]` in `pyproject.toml`, "
        "or from a variable such as\n"
        "`KESTREL_APPROVE`; the last one wins. `kestrel config` shows each setting with its value and "
        "where it came from.\n\n"
        "| Setting | Default | Meaning |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


def _default(setting: Setting) -> str:
    return "one per workspace" if setting.key == "home" else str(setting.value)


def cli_page() -> str:
    """Return the page of the command line: every command with its arguments and options."""
    root = typer.main.get_command(app)
    parts = [
        "# Command line",
        "Each command also explains itself: `kestrel COMMAND --help`. In a notebook, `%kestrel` takes "
        "the same words.",
    ]
    parts += _command(root, "kestrel")
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, path: str) -> list[str]:
    parts = []
    if path != "kestrel":
        parts = [f"{'##' if path.count(' ') == 1 else '###'} {path}", " ".join((command.help or "").split())]
        rows = [
            _parameter(each, path)
            for each in command.params
            if not getattr(each, "hidden", False) and each.name != "help"
        ]
        if rows:
            parts.append("| Argument or option | Meaning |\n| --- | --- |\n" + "\n".join(rows))
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if not child.hidden:
            parts += _command(child, f"{path} {name}")
    return parts


def _parameter(parameter: click.Parameter, path: str) -> str:
    name = (
        parameter.make_metavar(click.Context(click.Command(path)))
        if isinstance(parameter, click.Argument)
        else ", ".join(parameter.opts)
    )
    return f"| `{_cell(name)}` | {_cell(getattr(parameter, 'help', None) or '')} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
