"""Find: runs of the log, trials and imported ones among them, by their words and by what is known of them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.json_types import dumps, loads
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.eventlog.store import RunRow, SessionStore
from kestrel_lab.eventlog.text_index import (
    TEXT_EVENTS,
    Piece,
    fact_term,
    marked_words,
    query_terms,
    read_texts,
    words_of,
)
from kestrel_lab.runtime.options import check_names
from kestrel_lab.runtime.workspace.removal import seconds_of_age
from kestrel_lab.runtime.workspace.run_filters import FILTERS, SCORES
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import opening_line
from kestrel_lab.views.html.elements import headline_html, paragraph_html, table_html
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    import pandas as pd

MOST: Final = 500
"""Runs of one page."""
PATIENCE_S: Final = 2.0
"""How long a find waits for the index at first; the rest is indexed in the background."""
_SEARCH_S: Final = 5.0
"""How long runs are looked through for a filter that the index does not know, such as a cost."""
_MOST_TERMS: Final = 48
_MOST_QUERY: Final = 2_000
_WINDOW: Final = 150
"""Characters of a text that are shown of a hit."""
_PRUNED: Final = 20_000
"""Runs since or until a moment, beyond which the others are not left out beforehand."""
_SPACES: Final = re.compile(r"\s+")
_LAST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Hit:
    """A run that was found, and where in it the words are."""

    row: RunRow
    number: int
    """Its place in the order of the log."""
    trial: Mapping[str, Any]
    """Of its newest trial: `id`, `suite`, `epoch`, `outcome` and `failed`, the names of checks; or empty."""
    piece: Piece
    """The text with most of the words, cut to what is round the first of them."""
    marks: tuple[tuple[int, int], ...]
    """Where the words begin and end in it."""
    tokens: int
    cost_usd: float | None
    """`None` where no price is known."""

    @property
    def where(self) -> str:
        """In which kind of text the words are."""
        return f"{self.piece.what} of {self.piece.tool}" if self.piece.tool else self.piece.what

    @property
    def ended(self) -> str:
        """The trial's outcome with the checks that failed, or the run's status."""
        failed = ", ".join(self.trial.get("failed") or ())
        return f"{self.trial.get('outcome') or self.row.status.lower()}{f': {failed}' if failed else ''}"

    @property
    def when(self) -> datetime:
        """When it began."""
        return datetime.fromtimestamp(self.row.created_at, UTC)

    def parts(self) -> Iterator[tuple[str, bool]]:
        """Yield the text in pieces on one line, each with whether it was asked for."""
        text, last = self.piece.text, 0
        for start, end in (*self.marks, (len(text), len(text))):
            for piece, marked in ((text[last:start], False), (text[start:end], True)):
                if piece:
                    yield _SPACES.sub(" ", piece), marked
            last = end

    def as_json(self) -> dict[str, Any]:
        """Return the hit for programs."""
        row = self.row
        return {
            "run": row.id,
            "began": self.when.isoformat(timespec="seconds"),
            "ended": self.ended,
            "where": self.where,
            "event": self.piece.seq,
            "text": self.piece.text,
            "goal": opening_line(row.goal, 200),
            **{name: getattr(row, name) for name in ("model", "scenario", "config", "workspace")},
            "suite": self.trial.get("suite", ""),
            "epoch": self.trial.get("epoch"),
            "tokens": self.tokens,
            "cost_usd": self.cost_usd,
        }


_COLUMNS: Final = (
    *("run", "began", "ended", "where", "event", "text", "goal", "model", "scenario", "config", "workspace"),
    *("suite", "epoch", "tokens", "cost_usd"),
)
"""The fields of `Hit.as_json`: a frame has them also where nothing was found."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FoundRuns(TableView):
    """Runs that were found, newest first: a table; `frame` has everything of them."""

    query: str
    hits: tuple[Hit, ...]
    after: int | None
    """Give it to the next find for the next page; `None` at the end."""
    indexed: int
    runs: int
    """How many runs of the log are in the index, and how many there are."""
    until: datetime | None = None
    """Back to when runs were looked through, where there was no time for all."""
    notes: tuple[str, ...] = ()
    """What of the query could not be looked for."""

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per run, newest first, indexed by its id."""
        import pandas as pd

        rows = [hit.as_json() for hit in self.hits]
        found = unit_frame(rows, columns=list(_COLUMNS), units={"cost_usd": "USD"})
        if rows:
            found["began"] = pd.to_datetime(found["began"])
        return found.set_index("run")

    def as_json(self) -> dict[str, Any]:
        """Return the page for programs."""
        return {
            "query": self.query,
            "hits": [hit.as_json() for hit in self.hits],
            "after": self.after,
            "indexed": self.indexed,
            "runs": self.runs,
            "notes": self.progress(),
        }

    @property
    def headline(self) -> str:
        """What was looked for, and how much of it is here."""
        more = ", newest first; there are more" if self.after is not None else ""
        return f"{format_count(len(self.hits), 'run')} with {one_line(self.query, 200)}{more}"

    @property
    def nothing(self) -> str:
        """What is said in place of a table."""
        return "no run was found" if self.runs else "there are no runs yet"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return a row for each run."""
        return ("run", "began", "ended", "model", "task", "where", "text"), [
            (
                hit.row.id,
                f"{hit.when:%Y-%m-%d %H:%M}",
                one_line(hit.ended, 60),
                one_line(hit.row.model, 40),
                opening_line(hit.row.scenario or hit.row.goal, 50),
                one_line(hit.where, 40),
                one_line(hit.piece.text, _WINDOW + 20),
            )
            for hit in self.hits
        ]

    def progress(self) -> list[str]:
        """Return how far the index and the search are, where that is not to the end; what was left out."""
        said = [*self.notes]
        if self.indexed < self.runs:
            said.append(
                f"{self.indexed:,} of {self.runs:,} runs are indexed so far, the newest: repeat later"
            )
        if self.until is not None:
            said.append(
                f"runs back to {self.until:%Y-%m-%d %H:%M} were looked through; the next page goes on"
            )
        return said

    def lines(self) -> Sequence[str]:
        """Return how far that is, and how to go on."""
        more = [] if self.after is None else [f"next page: --after {self.after}, or after={self.after}"]
        return self.progress() + more

    def _repr_html_(self) -> str:
        columns, rows = self.table()
        shown = [(*row[:-1], _marked_html(hit)) for row, hit in zip(rows, self.hits, strict=True)]
        body = table_html(columns, shown) if shown else paragraph_html(self.nothing)
        return headline_html(self.headline) + body + "".join(map(paragraph_html, self.lines()))


def _marked_html(hit: Hit) -> Any:
    from markupsafe import Markup, escape

    return Markup().join(
        Markup("<mark>%s</mark>") % sanitize_text(text) if marked else escape(sanitize_text(text))
        for text, marked in hit.parts()
    )


def phrases_of(query: str) -> list[tuple[str, ...]]:
    """Return what a query asks for, as the words of each phrase: in quotation marks, or without a space.

    Nothing else has a meaning: AND, NEAR and * are words and signs like others.
    """
    parts = [
        part if place % 2 else one
        for place, part in enumerate(re.split('["“”„«»]', query))
        for one in ([part] if place % 2 else part.split())
    ]
    return list(dict.fromkeys(words for part in parts if (words := tuple(words_of(part)))))


class _Search:
    """What is asked for, as conditions of SQL and as terms of the index."""

    def __init__(self, query: str, filters: Mapping[str, Any]) -> None:
        check_names("find", filters, FILTERS)
        self.notes: tuple[str, ...] = ()
        if len(query) > _MOST_QUERY:
            self.notes = (f"of the {len(query):,} characters the first {_MOST_QUERY:,} were looked for",)
            query = query[:_MOST_QUERY]
        self.phrases = phrases_of(query)
        self.nothing = bool(query.strip()) and not self.phrases
        """Whether words are asked for and there are none, which no run has."""
        if self.nothing:
            self.notes += (f"{one_line(query, 40)!r} has no letter and no digit to look for",)
        self.given = {name: _value(name, value) for name, value in filters.items() if value not in (None, "")}
        self.words = {word for phrase in self.phrases for word in phrase}
        terms = sorted(query_terms(self.phrases), key=len, reverse=True)[:_MOST_TERMS]
        self.match = [f'"{term}"' for term in terms]
        conditions, bindings, trial, of_trial = ["runs.id IS NOT NULL"], [], [], []
        for name, value in self.given.items():
            known = FILTERS[name]
            if known.fact:
                self.match += _fact_match(known.fact, str(value))
            if known.sql:
                conditions.append(known.sql)
                bindings.append(_pattern(value))
            elif known.trial:
                trial.append(known.trial)
                of_trial += [value] * known.trial.count("?") if name == "check" else [_pattern(value)]
        if trial:
            # The plus keeps SQLite from comparing as texts, for which `eval_runs_by_run` is useless. It would
            # make a join of an EXISTS and then sort all rows, hence a scalar query.
            of_run = "e.result_json ->> '$.run' = +runs.id"
            conditions.append(
                f"(SELECT 1 FROM eval_runs AS e WHERE {' AND '.join([of_run, *trial])} LIMIT 1)"
            )
        self.where, self.bindings = " AND ".join(conditions), [*bindings, *of_trial]

    def candidates(self, store: SessionStore, below: int, floor: int, limit: int) -> list[tuple[int, str]]:
        """Return the newest runs below a number that have the terms and what the database knows."""
        words = "run_words CROSS JOIN run_texts ON number = run_words.rowid"
        source, number = (
            (f"{words} CROSS JOIN", "run_words.rowid") if self.match else ("run_texts CROSS JOIN", "number")
        )
        asked = "run_words MATCH ? AND " if self.match else ""
        sql = (
            f"SELECT number, run_id FROM {source} runs ON id = run_id WHERE {asked}{number} < ? "
            f"AND {number} >= ? AND {self.where} ORDER BY {number} DESC LIMIT ?"
        )
        match = [" AND ".join(self.match)] if self.match else []
        return [
            (int(number), str(run))
            for number, run in store.query(sql, [*match, below, floor, *self.bindings, limit])
        ]

    def fits(self, pieces: Sequence[Piece], tokens: int, cost: float | None) -> bool:
        """Whether a run has the tool, and took what it may have taken."""
        amounts = {"tokens": float(tokens), "cost": cost}
        for name, value in self.given.items():
            bound, _, what = name.partition("_")
            if bound in ("min", "max") and (
                (amount := amounts[what]) is None or (amount < value if bound == "min" else amount > value)
            ):
                return False
            if name == "tool" and not any(fnmatchcase(one.tool, value) for one in pieces if one.tool):
                return False
        return True


def _value(name: str, value: Any) -> Any:
    kind = FILTERS[name].kind
    try:
        value = kind(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: {one_line(str(value), 40)!r} is no number") from None
    if name in ("since", "until"):
        return _seconds(name, value)
    if name == "check":
        check, _, outcome = (
            value.rpartition("=") if value.endswith(("=failed", "=passed")) else (value, "", "")
        )
        if value in ("failed", "passed"):
            check, outcome = "*", value
        passed = {"failed": "0", "passed": "1"}.get(outcome, "null")
        return f"[{dumps(_pattern(check))}, {passed}]"
    return {"yes": "?*", "no": ""}.get(value, value) if name == "imported" else value


def _pattern(value: Any) -> Any:
    """Return a text as a pattern of SQLite in which only * and ? have a meaning."""
    return value.replace("[", "[[]") if isinstance(value, str) else value


def _fact_match(fact: str, value: str) -> list[str]:
    """Return what the index is asked for a fact: the term, the beginning of one, or nothing."""
    plain = re.split(r"[*?]", value, maxsplit=1)[0]
    if plain == value:
        return [f'"{fact_term(fact, value)}"'] if value else []
    return [f'"{fact_term(fact, plain)}" *'] if plain or fact in ("tool", "imported") else []


def _seconds(name: str, value: str) -> float:
    """Return a moment, given as an age or a date, in seconds since 1970."""
    with suppress(UsageError):
        return time.time() - seconds_of_age(value)
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise UsageError(
            f"{name}: {one_line(value, 40)!r} is neither an age such as 2w nor a date such as 2026-11-27"
        ) from None
    return moment.timestamp()


def find_runs(
    store: SessionStore,
    query: str = "",
    *,
    limit: int = 20,
    after: int | None = None,
    wait: bool = False,
    reporter: Reporter | None = None,
    **filters: Any,
) -> FoundRuns:
    """Return the newest runs that have all words of the query and pass the filters.

    A word is found in any case and accent, anywhere in the run's own events; words in quotation marks only
    beside each other. `FILTERS` names the filters. The index is brought up to date first, for `PATIENCE_S`
    or with `wait` for as long as it takes; what is left goes on in the background, and `FoundRuns.indexed`
    says how far it is.

    Args:
        store: The log.
        query: What to look for; empty for all that pass the filters. Any text is one; of a long one the
            beginning is looked for, and without a letter or digit nothing is found, which `notes` says.
        limit: Runs of the page.
        after: `FoundRuns.after` of the page before.
        wait: Whether to wait until all runs are indexed.
        reporter: Called with the progress of indexing.
        **filters: By name; `None` and an empty text choose nothing.

    Raises:
        UsageError: An unknown filter, or a value that it cannot have.
    """
    search = _Search(query, filters)
    if not 1 <= limit <= MOST:
        raise UsageError(f"limit is from 1 to {MOST}, not {limit}")
    store.flush()
    index_texts(store, None if wait else PATIENCE_S, reporter)
    hits, last, unseen = store.texts.repaired(
        lambda: _page(store, search, limit, _LAST if after is None else after)
    )
    indexed, runs = store.texts.state()
    shown = " ".join(filter(None, (query.strip(), *(f"{name}={filters[name]}" for name in search.given))))
    return FoundRuns(
        query=shown or "anything",
        hits=tuple(hits),
        after=last,
        indexed=indexed,
        runs=runs,
        until=unseen,
        notes=search.notes,
    )


def _page(
    store: SessionStore, search: _Search, limit: int, below: int
) -> tuple[list[Hit], int | None, datetime | None]:
    """Return a page of hits, the number behind which the next one begins, and where the time was up."""
    hits: list[Hit] = []
    if search.nothing:
        return hits, None, None
    floor, ceiling = _bounds(store, search)
    below, size, until = min(below, ceiling), 2 * limit, time.monotonic() + _SEARCH_S
    while found := search.candidates(store, below, floor, size):
        for number, run in found:
            if (hit := _hit(store, search, number, run)) is not None:
                if len(hits) == limit:
                    return hits, hits[-1].number, None
                hits.append(hit)
            below = number
            if time.monotonic() > until:
                return hits, below, datetime.fromtimestamp(store.run(run).created_at, UTC)
        if len(found) < size:
            break
        size = min(2 * size, MOST)
    return hits, None, None


def _bounds(store: SessionStore, search: _Search) -> tuple[int, int]:
    """Return numbers between which all runs begun in the time that is asked for lie, the second one excluded,
    so that older and newer ones are not looked at.

    Runs are numbered as they came into the log, which need not be the order in which they began.
    """
    bounds = [0, _LAST]
    for place, name, edge, sign in ((0, "since", "min", ">="), (1, "until", "max", "<")):
        if (moment := search.given.get(name)) is not None:
            sql = (
                f"SELECT {edge}(number), count(*) FROM (SELECT number FROM runs INDEXED BY runs_by_time "
                f"CROSS JOIN run_texts ON run_id = id WHERE created_at {sign} ? LIMIT ?)"
            )
            ((number, count),) = store.query(sql, (moment, _PRUNED))
            if count < _PRUNED:
                bounds[place] = (_LAST, 0)[place] if number is None else number + place
    return bounds[0], bounds[1]


_EVENTS: Final = (
    "SELECT seq, type, body FROM events WHERE run_id = ? AND type IN "
    f"({', '.join(repr(one) for one in TEXT_EVENTS)}) ORDER BY seq"
)
_TRIAL: Final = f"""
SELECT json_object('id', e.id, 'suite', e.suite, 'epoch', e.epoch, 'outcome', e.result_json ->> '$.outcome',
  'failed', json((SELECT json_group_array(score.value ->> '$.check') FROM {SCORES}
    WHERE NOT score.value ->> '$.passed')))
FROM eval_runs AS e WHERE e.result_json ->> '$.run' = ? ORDER BY e.created_at DESC LIMIT 1
"""


def _hit(store: SessionStore, search: _Search, number: int, run: str) -> Hit | None:
    """Return the run as a hit if its texts are what is asked for: terms say only where to look."""
    rows = store.query(_EVENTS, (run,))
    try:
        row = store.run(run)
    except (UsageError, StoreError):  # removed meanwhile, or damaged
        return None
    pieces = [Piece(0, "goal", "", row.goal), *read_texts(rows)]
    best = _best(pieces, search.phrases)
    tokens, cost = _usage(rows)
    if best is None or not search.fits(pieces, tokens, cost):
        return None
    trial = store.query(_TRIAL, (run,))
    piece, marks = _excerpt(best, search)
    known: Any = loads(trial[0][0]) if trial else {}
    return Hit(row, number, known, piece, marks, tokens, cost)


def _best(pieces: Sequence[Piece], phrases: Sequence[tuple[str, ...]]) -> Piece | None:
    """Return the first text with most of the phrases, if each of them is in one; without any the goal."""
    needles = [f" {' '.join(phrase)} " for phrase in phrases]
    missing, best, most = set(needles), pieces[0], 0
    for piece in pieces:
        words = f" {' '.join(words_of(piece.text))} "
        found = [needle for needle in needles if needle in words]
        missing.difference_update(found)
        if len(found) > most:
            best, most = piece, len(found)
    return None if missing else best


def _usage(rows: Sequence[tuple[Any, ...]]) -> tuple[int, float | None]:
    """Return the tokens and the money that the answers of models took."""
    tokens, cost = 0, None
    for _, kind, body in rows:
        if kind == "model_answered":
            with suppress(ValueError, TypeError, AttributeError):
                said: Any = loads(body)
                tokens += int(said.get("tokens_in") or 0) + int(said.get("tokens_out") or 0)
                if (price := said.get("cost_usd")) is not None:
                    cost = (cost or 0.0) + float(price)
    return tokens, cost


def _excerpt(piece: Piece, search: _Search) -> tuple[Piece, tuple[tuple[int, int], ...]]:
    """Return the text round the words that are looked for, and where those are in it."""
    plain, words = marked_words(piece.text)
    places = [place for place, (word, _, _) in enumerate(words) if word in search.words]
    first = next(
        (
            place
            for place in places
            for phrase in search.phrases
            if tuple(word for word, _, _ in words[place : place + len(phrase)]) == phrase
        ),
        places[0] if places else 0,
    )
    start = max(0, words[first][1] - _WINDOW // 3) if words else 0
    end = start + _WINDOW
    shown = plain[start:end]
    marks = [
        (words[place][1] - start + (start > 0), words[place][2] - start + (start > 0))
        for place in places
        if start <= words[place][1] and words[place][2] <= end
    ]
    text = f"{'…' if start else ''}{shown}{'…' if end < len(plain) else ''}"
    return piece._replace(text=text), tuple(marks)


# The index is caught up with while somebody waits, and then in the background.

_WORKING: Final = set[int]()


def index_texts(store: SessionStore, patience_s: float | None, reporter: Reporter | None = None) -> None:
    """Index the runs that are not, for so long, or with `None` until all are; the rest in the background.

    A damaged index is made anew. Raises `StoreError` where the log cannot be written.
    """
    store.texts.refresh()
    until = None if patience_s is None else time.monotonic() + patience_s
    while not store.texts.complete():
        if until is not None and time.monotonic() > until:
            _in_background(store)
            return
        store.texts.catch_up()
        if reporter is not None:
            reporter(*store.texts.state(), "runs indexed")


def _in_background(store: SessionStore) -> None:
    if id(store) in _WORKING:
        return
    _WORKING.add(id(store))

    def work() -> None:
        try:
            with suppress(StoreError):  # closed, or no room: the next find goes on, or says why not
                while not store.closed and not store.texts.complete():
                    store.texts.catch_up()
                    time.sleep(0.002)  # runs write meanwhile
        finally:
            _WORKING.discard(id(store))

    threading.Thread(target=work, name="kestrel-text-index", daemon=True).start()
