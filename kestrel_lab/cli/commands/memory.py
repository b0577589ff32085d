"""`kestrel memory …`: list, search, change, draw and forget what later runs recall."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.frontend import command_group, frontend_of, is_listing, option_groups
from kestrel_lab.core.errors import UsageError
from kestrel_lab.runtime.workspace.memory import MemoryDrawing, NoteCard, Notes, WorkspaceMemory
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count

memory = command_group(
    "List the notes for later runs; search, add, edit, forget or draw them.", invoke_without_command=True
)

NoteId = Annotated[
    str, typer.Argument(metavar="ID", help="A note, as `kestrel memory` lists it; the beginning is enough.")
]
Place = Annotated[str, typer.Option(help="The workspace whose notes are meant.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag; may be repeated.")]
Kind = Annotated[
    str, typer.Option(help="fact, procedure, pitfall, preference, decision, episode or fingerprint.")
]
Ttl = Annotated[str, typer.Option(metavar="TIME", help="Forget it after this time: 90m, 12h, 30d.")]
Sure = Annotated[float | None, typer.Option("--confidence", help="How certain the note is, from 0 to 1.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class AboutNote:
    """What is said of a note beside its text and kind."""

    tag: Tags = None
    confidence: Sure = None
    workspace: Place = "."


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@memory.callback()
def list_notes(
    ctx: typer.Context,
    *,
    select: Annotated[
        str,
        typer.Option(metavar="SELECTOR", help="Only these, for example kind:pitfall, tag:tests, tainted."),
    ] = "all",
    replaced: Annotated[bool, typer.Option("--replaced", help="Also notes that newer ones replace.")] = False,
    workspace: Place = ".",
) -> Notes | None:
    """List the notes for later runs; search, add, edit, forget or draw them."""
    return _memory(ctx, workspace).list(select, replaced=replaced) if is_listing(ctx, workspace) else None


@memory.command(epilog='Example: kestrel memory search "how are the tests run"')
def search(
    ctx: typer.Context,
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="The goal of a run.")],
    *,
    tag: Tags = None,
    top: Annotated[int, typer.Option(help="The largest number of notes to list.")] = 5,
    workspace: Place = ".",
) -> Notes:
    """Show the notes about a goal, the most useful first; runs with the plan learning or standard are given
    these.
    """
    return _memory(ctx, workspace).recall(" ".join(query), tags=tag or (), top_k=top)


memory.command("recall", epilog="The same as: kestrel memory search QUERY")(search)


@memory.command()
def show(ctx: typer.Context, note: NoteId, *, workspace: Place = ".") -> NoteCard:
    """Show a note: its text, its origin, what it names and its relation to others."""
    return _memory(ctx, workspace).show(note)


@memory.command(
    epilog='Example: kestrel memory add "Tests are run with make test." --kind procedure --tag tests'
)
@option_groups
def add(
    ctx: typer.Context,
    text: Annotated[list[str], typer.Argument(metavar="TEXT", help="What to remember.")],
    *,
    kind: Kind = "fact",
    more: AboutNote,
    ttl: Ttl = "",
    run: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Keep the note for this run only, for a day, until it has been useful three times.",
        ),
    ] = "",
) -> NoteCard:
    """Add a note for later runs; it replaces notes that say otherwise, which are kept."""
    there = _memory(ctx, more.workspace)
    sure = 0.95 if more.confidence is None else more.confidence
    seconds = _seconds(ttl) if ttl else None
    kept = there.remember(" ".join(text), kind, more.tag or (), sure, seconds, run=run)
    return there.show(kept.id)


memory.command("remember", epilog="The same as: kestrel memory add TEXT")(add)


@memory.command(epilog="Example: kestrel memory edit n3f2 --text 'Tests are run with tox.' --confidence 0.9")
@option_groups
def edit(
    ctx: typer.Context,
    note: NoteId,
    *,
    text: Annotated[str | None, typer.Option(help="The new text.")] = None,
    kind: Annotated[str | None, typer.Option(help="The new kind.")] = None,
    more: AboutNote,
) -> NoteCard:
    """Change a note; a new text counts as yours."""
    given: dict[str, Any] = {
        "text": text,
        "kind": kind,
        "tags": None if more.tag is None else tuple(more.tag),
        "confidence": more.confidence,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise UsageError("say what to change: --text, --kind, --tag or --confidence")
    there = _memory(ctx, more.workspace)
    return there.show(there.edit(note, **changes).id)


@memory.command(epilog="Example: kestrel memory forget tag:customer-x --yes")
def forget(
    ctx: typer.Context,
    selector: Annotated[
        str,
        typer.Argument(
            metavar="SELECTOR",
            help="An id, kind:KIND, tag:TAG, run:RUN, author:NAME, text:WORDS, before:DATE, after:DATE, "
            "tainted, short, replaced, expired or all.",
        ),
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Allow more than one note to be deleted.")] = False,
    workspace: Place = ".",
) -> str:
    """Delete notes for good: from every index and from the database files, which are rewritten."""
    there = _memory(ctx, workspace)
    chosen = there.list(selector, replaced=True)
    if len(chosen) > 1 and not yes:
        msg = (
            f"{selector} means {format_count(len(chosen), 'note')} "
            f"({', '.join(note.id for note in chosen[:5])}{' …' if len(chosen) > 5 else ''}): add "
            "--yes to forget them all"
        )
        raise UsageError(msg)
    return str(there.forget(selector))


@memory.command()
def learn(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, as `kestrel runs` lists them.")],
) -> Notes:
    """Add notes from the log of a run: corrected errors, lasting preferences, facts about the workspace."""
    return _memory(ctx, ".").learn(run)


@memory.command()
def questions(ctx: typer.Context, *, workspace: Place = ".") -> Any:
    """List the questions that were asked here three times or more."""
    found = _memory(ctx, workspace).questions()
    if not found:
        return "no question was asked here three times"
    frame = unit_frame(
        [(each.question, len(each.runs), each.runs[0]) for each in found],
        columns=["question", "times", "last run"],
    )
    return frame.set_index("question")


@memory.command()
def graph(
    ctx: typer.Context,
    about: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY", help="Only notes that have to do with this.")
    ] = None,
    *,
    html: Annotated[Path | None, typer.Option(help="Write the drawing to this HTML file instead.")] = None,
    workspace: Place = ".",
) -> MemoryDrawing | Path:
    """Draw notes, what they name, and how they stand to each other."""
    drawing = _memory(ctx, workspace).graph(" ".join(about or ()))
    return drawing if html is None else drawing.save(html)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if found is None:
        raise UsageError(f"{text!r} is not a time: write 45s, 90m, 12h, 30d or 2w")
    return float(found[1]) * _UNITS[found[2]]


def _memory(ctx: typer.Context, workspace: str) -> WorkspaceMemory:
    return frontend_of(ctx).lab().memory.at(workspace)
