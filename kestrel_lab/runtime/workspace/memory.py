"""The memory of a workspace as a person sees it: listed, searched, changed, drawn, forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.notes import Note, NoteQuery
from kestrel_lab.core.run_types import RunReference, run_id_of
from kestrel_lab.core.sanitize import one_line, sanitize_text, shown_folder
from kestrel_lab.eventlog.store import RunRow
from kestrel_lab.language.words import stems
from kestrel_lab.memory.graph import MemoryGraph, memory_graph
from kestrel_lab.memory.memory import ForgetResult, NoteMemory
from kestrel_lab.memory.selector import find_note, select_notes
from kestrel_lab.runtime.memory.learn import learn_from_run
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.html.elements import html_page, table_html
from kestrel_lab.views.html.graph_svg import GraphLink, GraphNode, web_svg
from kestrel_lab.views.html.table_view import Part, PartsView, Table, TableView

# Questions that are asked again and again: goals of runs that say much the same.

ALIKE = 0.7
"""Share of words in common from which two goals are one question."""
TIMES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurringQuestion:
    """A question and the runs that it was put to."""

    question: str
    """As it was put last."""
    runs: tuple[str, ...]
    """The newest first."""


def recurring_questions(runs: Iterable[RunRow]) -> list[RecurringQuestion]:
    """Questions put at least `TIMES` times, those put most often first; `runs` are the newest first."""
    groups: list[tuple[frozenset[str], list[RunRow]]] = []
    for run in runs:
        words = stems(run.goal)
        for known, asked in groups:
            if len(words & known) >= ALIKE * len(words | known):
                asked.append(run)
                break
        else:
            groups.append((words, [run]))
    found = [
        RecurringQuestion(question=asked[0].goal, runs=tuple(run.id for run in asked))
        for _, asked in groups
        if len(asked) >= TIMES
    ]
    return sorted(found, key=lambda each: -len(each.runs))


RUNS_READ = 500
"""How many of the newest runs recurring questions are sought in."""
_MOST_SHOWN = 200
"""Rows of a table of notes; ten thousand would be megabytes in a saved notebook."""
_COLUMNS = ("note", "kind", "text", "sure", "used", "source", "learned", "until")


@dataclass(frozen=True, slots=True, repr=False)
class Notes(TableView, Sequence[Note]):
    """Notes in an order; shown as a table."""

    notes: tuple[Note, ...]
    where: str
    """The workspace."""
    empty: str = "nothing is remembered yet; add a note: kestrel memory add 'Tests are run with make.'"

    @overload
    def __getitem__(self, place: int) -> Note: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Note, ...]: ...
    def __getitem__(self, place: int | slice) -> Note | tuple[Note, ...]:
        return self.notes[place]

    def __len__(self) -> int:
        return len(self.notes)

    def __iter__(self) -> Iterator[Note]:
        return iter(self.notes)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names and one row for each of the first notes."""
        return _COLUMNS, [_row(note) for note in self.notes[:_MOST_SHOWN]]

    def lines(self) -> tuple[str, ...]:
        """How many are not shown."""
        more = len(self.notes) - _MOST_SHOWN
        return (
            (f"and {more:,} more: choose with --select, or look for some with kestrel memory search",)
            if more > 0
            else ()
        )

    @property
    def nothing(self) -> str:
        """What is said where there is none."""
        return f"{shown_folder(self.where)}: {self.empty}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteCard:
    """One note with everything that is known of it."""

    note: Note
    links: tuple[tuple[str, str, str], ...] = ()
    """How it stands to others: `(relation, id, text)`."""
    names: tuple[str, ...] = ()

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """What is known, one thing a row."""
        note = self.note
        rows: list[tuple[str, ...]] = [
            ("text", note.text),
            ("kind", note.kind),
            ("confidence", f"{note.confidence:.2f}"),
            ("source", _source(note)),
        ]
        rows += [("evidence", note.evidence)] if note.evidence else []
        rows += [("tags", ", ".join(note.tags))] if note.tags else []
        rows += [("names", ", ".join(self.names))] if self.names else []
        rows += [("learned", _date(note.at)), ("used", f"{note.uses} times")]
        rows += [("until", until)] if (until := _expiry_text(note)) else []
        rows += [(relation, f"{note_id}: {text}") for relation, note_id, text in self.links]
        return ("note", note.id), rows

    def __repr__(self) -> str:
        rows = self.table()[1]
        return "\n".join(
            [f"note {self.note.id}", *(f"  {key + ':':<12} {sanitize_text(value)}" for key, value in rows)]
        )

    def _repr_html_(self) -> str:
        return table_html(*self.table())


@dataclass(frozen=True, slots=True, repr=False)
class MemoryDrawing(PartsView):
    """The graph of a memory: notes on the left, what they name on the right."""

    graph: MemoryGraph
    where: str

    def svg(self) -> str:
        """As a drawing."""
        notes = [GraphNode(id=note.id, label=note.text, kind=note.kind) for note in self.graph.notes]
        things = [
            GraphNode(id=f"named {thing.name}", label=thing.name, kind=thing.kind)
            for thing in self.graph.things
        ]
        ties = [
            GraphLink(source=note, target=f"named {thing.name}")
            for thing in self.graph.things
            for note in thing.notes
        ]
        ties += [
            GraphLink(source=source, target=target, label=relation)
            for source, target, relation in self.graph.links
        ]
        return web_svg(notes, things, ties)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """What notes name, and how notes stand to each other."""
        rows: list[tuple[str, ...]] = [
            (thing.name, thing.kind, ", ".join(thing.notes)) for thing in self.graph.things
        ]
        rows += [(source, relation, target) for source, target, relation in self.graph.links]
        return ("thing or note", "kind or relation", "notes"), rows

    def save(self, path: str | Path) -> Path:
        """Write the drawing and the table to a self-contained HTML file."""
        target = Path(path)
        listed = Notes(self.graph.notes, self.where)
        body = (
            f"<h1>Memory</h1>{self.svg()}<h2>Notes</h2>{listed._repr_html_()}<h2>What they "
            f"name</h2>{table_html(*self.table())}"
        )
        target.write_text(html_page("Memory", body), encoding="utf-8")
        return target

    def parts(self) -> Iterable[Part]:
        """Return how much there is, and the table."""
        if not self.graph.notes:
            return Notes((), self.where).parts()
        notes, things, links = map(len, (self.graph.notes, self.graph.things, self.graph.links))
        head = f"notes: {notes}, things that they name: {things}, links between notes: {links}"
        return [head, Table(*self.table()), "draw it: kestrel memory graph --html memory.html"]

    def _repr_html_(self) -> str:
        return (
            self.svg() + table_html(*self.table())
            if self.graph.notes
            else Notes((), self.where)._repr_html_()
        )


class WorkspaceMemory(PartsView):
    """Lists, searches, adds, edits, forgets and draws the notes of one workspace; shown as a table."""

    def __init__(self, lab: Services, workspace: str | Path = ".") -> None:
        self._lab = lab
        self._folder = Path(workspace)
        self._memory = NoteMemory(lab.store)

    @property
    def workspace(self) -> Path:
        """The folder that is meant; the current one, as it is when asked, unless another was named."""
        return self._folder.resolve()

    @property
    def _place(self) -> str:
        return str(self.workspace)

    def at(self, workspace: str | Path) -> WorkspaceMemory:
        """That of another workspace."""
        return WorkspaceMemory(self._lab, workspace)

    def recall(self, query: str, tags: Sequence[str] = (), top_k: int = 5) -> Notes:
        """Notes relevant to `query`, the most useful first: those that a run would get."""
        found = self._memory.find(NoteQuery(query, top_k, self._place, tags), count=False)
        return Notes(found, self._place, "no note has to do with that")

    def remember(
        self,
        text: str,
        kind: str = "fact",
        tags: Sequence[str] = (),
        confidence: float = 0.95,
        ttl: float | None = None,
        *,
        run: RunReference = "",
    ) -> Note:
        """Keep a note that the user states, for `ttl` seconds if given; returns it as it is kept.

        With `run` it is a short-lived note of that run alone, a day long unless `ttl` says otherwise, until
        it was recalled three times: then it is for all runs. Raises `UsageError` for a text that is empty or
        too long, an unknown kind, a confidence that is none, no such run.
        """
        if ttl is not None and not ttl > 0:
            raise UsageError(f"a note is kept for more than 0 seconds, not {ttl:g}")
        run_id = run_id_of(run)
        if run_id:
            self._lab.store.flush()
            self._lab.store.run(run_id)
        note = Note(
            text=text,
            kind=kind,
            tags=tuple(tags),
            confidence=confidence,
            expires=None if ttl is None else time.time() + ttl,
            stated=not run_id,
            run=run_id,
            term="short" if run_id else "long",
        )
        return self._memory.keep(note, self._place)

    def forget(self, selector: str) -> ForgetResult:
        """Take notes out of every index and the files of the database: see `NoteMemory.forget`."""
        return self._memory.forget(selector, self._place)

    def get(self, note_id: str) -> Note:
        """A note by its id or the beginning of it; raises `UsageError` when there is none."""
        return find_note(self._memory.table, note_id, self._place)

    def show(self, note_id: str) -> NoteCard:
        """A note with what it names and how it stands to others."""
        note = self.get(note_id)
        store = self._memory.table.store
        rows = store.query(
            "SELECT relation || CASE WHEN a.id = ?1 THEN '' ELSE ' (by)' END, CASE WHEN a.id = ?1 THEN "
            "b.id ELSE a.id END,"
            " CASE WHEN a.id = ?1 THEN b.text ELSE a.text END FROM note_links JOIN notes AS a ON "
            "a.number = source"
            " JOIN notes AS b ON b.number = target WHERE ?1 IN (a.id, b.id) ORDER BY 1, 2",
            (note.id,),
        )
        names = store.query(
            "SELECT DISTINCT name FROM note_names JOIN notes USING (number) WHERE id = ? ORDER BY name",
            (note.id,),
        )
        links = tuple((str(relation), str(other), str(text)) for relation, other, text in rows)
        return NoteCard(note=note, links=links, names=tuple(str(row[0]) for row in names))

    def edit(self, note_id: str, **changes: object) -> Note:
        """Change a note's `text`, `kind`, `tags`, `confidence` or `expires`; new text is the user's own."""
        return self._memory.edit(self.get(note_id), self._place, **changes)

    def learn(self, run: RunReference) -> Notes:
        """Keep what the log of a run teaches: errors that were put right, and what its workspace is."""
        run_id, store = run_id_of(run), self._lab.store
        store.flush()
        row = store.run(run_id)
        found = (
            learn_from_run(store.records(run_id), Path(row.workspace)) if Path(row.workspace).is_dir() else []
        )
        kept = [self._memory.keep(note, row.workspace) for note in found]
        return Notes(
            tuple(note for note in kept if note.id),
            row.workspace,
            "nothing can be learned from the log of this run",
        )

    def questions(self) -> list[RecurringQuestion]:
        """What was asked here at least three times, most often first."""
        store = self._lab.store
        store.flush()
        rows = [row for row in store.runs(limit=5_000, trials=False) if row.workspace == self._place]
        return recurring_questions(rows[:RUNS_READ])

    def graph(self, about: str = "") -> MemoryDrawing:
        """Notes, what they name and how they relate; only those relevant to `about`, if given."""
        chosen = self._memory.find(NoteQuery(about, 30, self._place), count=False) if about else None
        return MemoryDrawing(memory_graph(self._memory.table, self._place, about=chosen), self._place)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names and one row per note."""
        return self.list().table()

    def parts(self) -> Iterable[Part]:
        """Return the notes."""
        return self.list().parts()

    def list(self, selector: str = "all", *, replaced: bool = False) -> Notes:
        """The notes of a selector, newest first; with `replaced` also superseded ones."""
        found = select_notes(self._memory.table, selector, self._place)
        if selector != "expired":
            now = time.time()
            found = [note for note in found if note.expires is None or note.expires > now]
        if not replaced and selector != "replaced":
            found = [note for note in found if not note.replaced_by]
        return Notes(tuple(found), self._place)


def _row(note: Note) -> tuple[str, ...]:
    text = one_line(note.text, 100)
    return (
        note.id,
        note.kind,
        text,
        f"{note.confidence:.2f}",
        str(note.uses),
        _source(note),
        _date(note.at),
        _expiry_text(note),
    )


def _source(note: Note) -> str:
    who = "you" if note.stated else f"from {note.taint}" if note.taint else note.author or "kept"
    return f"{who}, run {note.run}" if note.run else who


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _expiry_text(note: Note) -> str:
    if note.replaced_by:
        return f"replaced by {note.replaced_by}"
    return "" if note.expires is None else _date(note.expires)
