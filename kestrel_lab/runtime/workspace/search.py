"""Search of a folder: results, explanations and the state of the index as tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kestrel_lab.core.errors import RunFailed, UsageError
from kestrel_lab.core.events.union import StepFinished
from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import shown_folder
from kestrel_lab.models.resolve import NoModel
from kestrel_lab.models.web_grounding import WEB
from kestrel_lab.retrieval.code_graph import Graph, NameUse
from kestrel_lab.retrieval.explain import NO_UTF8, FileExplanation, explain_rank
from kestrel_lab.retrieval.file_search_loop import Propose, ResourceMap, propose_by_rule
from kestrel_lab.retrieval.hits import Hit, Retrieval, missing_words_phrase, nothing_found
from kestrel_lab.retrieval.indexing.file_list import unnameable_files
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.workspace_indexes import WorkspaceIndexes
from kestrel_lab.runtime.operations.gather import find_in
from kestrel_lab.runtime.operations.web_evidence import KIND, EvidenceBundle
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, Table, TableView


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class SearchResult(PartsView):
    """The results of a search, shown as a table."""

    retrieval: Retrieval
    note: str = ""
    trace: bool = False

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names and one row per place."""
        rows: list[tuple[str, ...]] = [
            (str(number), hit.place, hit.why, f"{hit.score:.2f}", hit.how)
            for number, hit in enumerate(self.retrieval.hits, 1)
        ]
        return ("", "place", "why", "score", "by"), rows

    def steps(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names and one row per step."""
        return ("step", "asked", "matched", "chosen", "dropped", "ms", "note"), [
            (
                each.retriever,
                each.query[:60],
                str(each.found),
                str(len(each.chosen)),
                str(len(each.dropped)),
                f"{1000 * each.seconds:.0f}",
                each.note,
            )
            for each in self.retrieval.steps
        ]

    def summary(self) -> str:
        """Return a sentence about the quality of the answer."""
        found = self.retrieval
        missing = f"; {missing_words_phrase(found.gaps)}" if found.gaps else ""
        text = (
            f"{format_count(len(found.hits), 'file')} found, covering {found.coverage:.0%} of the "
            f"question ({found.stopped}){missing}"
        )
        if not found.hits:
            text = nothing_found(found.gaps)
        return f"{text}\n{self.note}" if self.note else text

    def parts(self) -> Iterable[Part]:
        """Return the places, with `trace` the steps, and how good the answer is."""
        found = [Table(*self.table())] if self.retrieval.hits else []
        return [*found, *([Table(*self.steps())] if self.trace else []), self.summary()]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FoundFiles(PartsView):
    """The results of the file-search loop, shown as a table."""

    map: ResourceMap

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names and one row per key file."""
        return ("begin at", "why", "score", "queries"), [
            (one.place, one.why, f"{one.score:.2f}", str(len(one.queries))) for one in self.map.key_files
        ]

    def summary(self) -> str:
        """Return a sentence about how the loop ended."""
        return repr(self.map).rsplit("\n", 1)[-1]

    def parts(self) -> Iterable[Part]:
        """Return the key files, and how the loop ended."""
        return [*([Table(*self.table())] if self.map.key_files else []), self.summary()]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class IndexStatus(TableView):
    """The state of a folder's index."""

    folder: Path
    facts: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...] = ()
    """Files that are not read, with the reason."""
    note: str = ""

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return one property a row."""
        more = [("not read", f"{path}: {why}") for path, why in self.left_out[:20]]
        more += [("", f"and {len(self.left_out) - 20} more")] if len(self.left_out) > 20 else []
        return ("index of", shown_folder(str(self.folder))), [*self.facts, *more]

    def lines(self) -> tuple[str, ...]:
        """Return the note."""
        return (self.note,)


class WorkspaceSearch:
    """Searches one folder, explains results, and reports the state of its index."""

    def __init__(self, indexes: WorkspaceIndexes, folder: str | Path = ".") -> None:
        self._indexes = indexes
        self.folder = Path(folder).expanduser().resolve()

    def search(self, query: str, *, top_k: int = 10, trace: bool = False) -> SearchResult:
        """Find files about `query`; an index is made if there is none.

        Raises `UsageError` for a query without a word.
        """
        index, note = self._indexes.ready(self.folder)
        return SearchResult(retrieval=self._indexes.cascade(index)(query, top_k), note=note, trace=trace)

    def explain(self, query: str, path: str, *, top_k: int = 10) -> FileExplanation:
        """Explain why `path` is among the results of `query`, or why not."""
        index, _ = self._indexes.ready(self.folder)
        return explain_rank(index, query, path, self._indexes.cascade(index)(query, top_k), top_k)

    def find_files(
        self, goal: str, *, top_k: int = 8, rounds: int = 4, propose: Propose = propose_by_rule
    ) -> FoundFiles:
        """Return the key files for a goal; see `retrieval.file_search_loop.find_files`."""
        return FoundFiles(
            map=run_blocking(
                find_in(self._indexes, self.folder, goal, propose=propose, top_k=top_k, rounds=rounds)
            )
        )

    def definitions(self, name: str) -> list[Hit]:
        """Return the places where a name is defined."""
        return Graph(self._indexes.ready(self.folder)[0]).definitions(name)

    def references(self, name: str) -> list[NameUse]:
        """Return the lines that use a name."""
        return Graph(self._indexes.ready(self.folder)[0]).uses(name)

    async def build(self, reporter: Reporter | None = None, *, rebuild: bool = False) -> IndexStatus:
        """Update the index, or build it anew, and return its state."""
        index = self._indexes.of(self.folder)
        if rebuild:
            index.forget()
        done = await asyncio.to_thread(index.refresh, reporter)
        how = f"{done.changed:,} files read, {done.removed:,} taken out, {done.seconds:.1f} s"
        return self.status(f"{how}. {done.note}" if done.note else how)

    def status(self, note: str = "") -> IndexStatus:
        """Return the state of the index; nothing is built."""
        index = self._indexes.of(self.folder)
        if not index.exists:
            return IndexStatus(
                folder=self.folder, facts=(("state", "there is none"),), note="build it: kestrel index"
            )
        return IndexStatus(folder=self.folder, facts=_facts(index), left_out=_left_out(index), note=note)


def _facts(index: CodeIndex) -> tuple[tuple[str, str], ...]:
    counts = [
        (what, f"{index.rows(f'SELECT count(*) FROM {table} {where}')[0][0]:,}")
        for what, table, where in (
            ("files", "files", "WHERE skipped = ''"),
            ("chunks", "chunks", ""),
            ("symbols", "symbols", ""),
            ("imports and links", "edges", ""),
            ("commits", "commits", ""),
        )
    ]
    size = f"{index.path.stat().st_size / 1e6:.1f} MB"
    return (
        ("state", "complete" if index.complete else "begun, not complete"),
        *counts,
        ("size", size),
        ("kept in", str(index.path)),
    )


def _left_out(index: CodeIndex) -> tuple[tuple[str, str], ...]:
    odd = (
        tuple((path, NO_UTF8) for path in unnameable_files(index.workspace))
        if index.workspace.is_dir()
        else ()
    )
    return odd + tuple(
        (str(path), str(why))
        for path, why in index.rows("SELECT path, skipped FROM files WHERE skipped <> '' ORDER BY path")
    )


def search_model(lab: Services, model: str | Model | None, *, grounded: bool) -> Model:
    """Return the model of a search; `NoModel` where none is named, set up or found.

    Raises `UsageError` for a model that cannot be had, and where `grounded` is asked for one that does not
    search the web.
    """
    options = lab.options
    nothing_set = (
        model is None
        and options.get("model") is None
        and not options.get("provider")
        and not options.get("api_base")
    )
    try:
        found = lab.registry.resolve_model(model)
    except UsageError:
        if grounded or not nothing_set or lab.env.get("MODEL_PROVIDER"):
            raise
        return NoModel()
    if grounded:
        lab.registry.resolve_model(found.name if found.name.endswith(WEB) else f"{found.name}{WEB}")
    return found


def evidence_of(run: Run) -> EvidenceBundle:
    """Return a run's last evidence bundle; raises `RunFailed` if it failed, `UsageError` without one."""
    for event in reversed(run.events()):
        if (
            isinstance(event, StepFinished)
            and isinstance(event.output, dict)
            and event.output.get("kind") == KIND
        ):
            return EvidenceBundle.from_json(event.output)
    if run.status is RunStatus.FAILED:
        raise RunFailed(f"the search failed: {run.reason} (run {run.id})")
    raise UsageError(
        f"run {run.id} has no evidence bundle: it is {run.status}, and searches are made by `kestrel "
        "websearch`"
    )
