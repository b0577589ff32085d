"""Full text of runs: an FTS5 index in the log's database, made of the events, which alone keep the texts.

The index has no content of its own (SQLite calls it contentless): to take an entry out, its terms are
computed from the events once more, which never change.

**What is indexed.** A run is one entry: its goal, what was answered, the arguments of calls, their results
and their errors, of its own events (those that a fork shares are found in its parent). An entry is a set of
*terms* without positions: each word, each pair of neighbours (as a hash, so that a phrase of common words is
found without reading every run that has the words), and the facts of the run: model, tools, scenario. Scripts
that put no space between words are split into characters, whose pairs are the bigrams that find them.
`words_of` is used for texts and for queries alike, and a search checks the text of each run it finds: a term
says where to look, never what is there.

**When.** Rows of `run_texts` say up to which event each run is indexed; triggers of the database add a row
with each run, keep the terms in step with the rows, and take them out when a run is removed. So there is
nothing that could drift from the events. The turns of a run pay nothing: the log's writer indexes runs that
have ended a few at a time, one statement for every `_BATCH` runs that a session begins and one when it
closes. What is left, runs of older logs and those that still work, is caught up with when somebody looks for
something, newest first.

**Numbers.** Entries are numbered as their runs came into the log: neighbours get small differences, which
makes the index small, and the newest runs with a word are the first that are read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import apsw
import msgspec

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.json_types import loads
from kestrel_lab.core.run_types import TERMINAL

T = TypeVar("T")
_BATCH: Final = 32
"""Runs that are indexed in one statement: some 40 ms in which the log writes nothing else."""
_LONGEST: Final = 16
"""Characters of a word that are indexed. Longer ones are hashes and the like: their beginning finds them."""
_FACT: Final = 48
_MOST_PAIRS: Final = 50_000
_CODES: Final = [
    a + b for a in "0123456789abcdefghijklmnopqrstuvwxyz" for b in "0123456789abcdefghijklmnopqrstuvwxyz"
]
FORM: Final = f"1 {unicodedata.unidata_version}"
"""Of the terms. An index of another form is made anew: its terms could not be taken out one by one."""

# Thai, Lao, Burmese, Khmer; Chinese, Japanese and Korean: no spaces, or none that a searcher would know.
_UNSPACED: Final = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecd\u1000-\u1049\u1050-\u109f\u1780-\u17d3\u2e80-\u2fd5\u3005-\u3007"
    "\u3021-\u3029\u3031-\u3035\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents, which `\w` is not, belong to the word.
_MARKS: Final = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0970-\u0dff\u0f00-\u0fff"
)
_WORD: Final = re.compile(rf"[{_UNSPACED}]|(?:[^\W_{_UNSPACED}]|[{_MARKS}])+")
_ASCII_WORD: Final = re.compile(r"[a-z0-9]+")
_DIGIT: Final = re.compile(r"\d")
_ACCENT: Final = re.compile("[\u0300-\u036f]")
_NO_TERM: Final = re.compile("[\x00-\x7f](?<![a-z0-9])|[\ud800-\udfff]")


def words_of(text: str) -> list[str]:
    """Return the words of a text in order, without case, accents and width: of texts and queries alike."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    plain = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
    return _WORD.findall(unicodedata.normalize("NFC", _ACCENT.sub("", plain)))


def pairs_of(words: Sequence[str]) -> Iterator[str]:
    """Yield each two neighbours that are indexed together, as one text: those without a digit.

    Numbers are many, and seldom the same in two runs: with them the index would be a third larger.
    """
    return (pair for pair in map("".join, pairwise(words)) if pair.isalpha() or not _DIGIT.search(pair))


class _PairTerms(dict[str, str]):
    """Terms of pairs, kept because most pairs are in many runs."""

    def __missing__(self, pair: str) -> str:
        if len(self) >= _MOST_PAIRS:
            self.clear()
        number = crc32(pair.encode("utf-8", "replace"))
        # Four digits to the base of 36: no more than 1.7 million terms, however many pairs the texts have, at
        # the price of pairs that share one. Whoever finds a run checks its text.
        return self.setdefault(pair, f"~{_CODES[number % 1296]}{_CODES[number // 1296 % 1296]}")


_PAIR_TERMS: Final = _PairTerms()


def fact_term(field: str, value: str) -> str:
    """Return the term of a fact; a prefix of the value gives a prefix of the term."""
    return f"={field}~{_NO_TERM.sub('~', value.casefold())[:_FACT]}"


def query_terms(phrases: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the terms that every run has in which these phrases occur."""
    found = dict[str, None]()
    for phrase in phrases:
        found.update(dict.fromkeys(word[:_LONGEST] for word in phrase))
        found.update(dict.fromkeys(map(_PAIR_TERMS.__getitem__, pairs_of(phrase))))
    return list(found)


class Piece(NamedTuple):
    """A text that a run holds."""

    seq: int
    """The number of its event; 0 for the goal."""
    what: str
    """`goal`, `said` (by a person), `answer`, `call`, `result` or `error`."""
    tool: str
    """Of a call, a result or its error."""
    text: str


def texts_of_event(seq: int, kind: str, body: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield what a person would look for in an event, as it is stored."""
    tool = str(body.get("tool") or "")
    match kind:
        case "prompted":
            yield Piece(seq, "said", "", str(body.get("text") or ""))
        case "step_started":
            yield Piece(seq, "goal", "", str(body.get("goal") or ""))
        case "approval_given":
            yield Piece(seq, "said", "", str(body.get("answer") or body.get("reason") or ""))
        case "model_answered":
            yield Piece(seq, "answer", "", str(body.get("text") or ""))
            for call in body.get("calls") or ():
                yield Piece(
                    seq, "call", str(call.get("name") or ""), call_text(call.get("name"), call.get("args"))
                )
        case "tool_called":
            yield Piece(seq, "call", tool, call_text(tool, body.get("args")))
        case "tool_answered":
            yield Piece(seq, "result", tool, str(body.get("text") or ""))
        case "run_finished":
            yield Piece(seq, "answer", "", str(body.get("answer") or ""))
            yield Piece(seq, "error", "", str(body.get("reason") or ""))
    if isinstance(error := body.get("error"), dict):
        yield Piece(seq, "error", tool, str(error.get("message") or ""))


TEXT_EVENTS: Final = (
    "prompted",
    "step_started",
    "approval_given",
    "model_answered",
    "tool_called",
    "tool_answered",
    "run_finished",
)
"""Types of events that hold texts."""


def call_text(tool: Any, args: Any) -> str:
    """Return a call as it is searched and shown: the tool, and each argument with its name."""
    return " ".join([str(tool or ""), *_strings(args)])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield str(name)
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def read_texts(rows: Iterable[tuple[Any, ...]]) -> Iterator[Piece]:
    """Yield the texts of events, given as `(seq, type, body)`; a body that cannot be read has none."""
    for seq, kind, body in rows:
        try:
            yield from texts_of_event(int(seq), str(kind), _read_body(body))
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue  # a damaged event: `kestrel doctor` tells of it, the rest of the run is searched


def _read_body(body: str) -> Any:
    try:
        return msgspec.json.decode(body)  # three times as fast, and without lone surrogates
    except msgspec.DecodeError:
        return loads(body)


_HEAD: Final = """
SELECT goal, model, config, scenario, workspace,
  (SELECT body ->> '$.imported.format' FROM events WHERE run_id = runs.id AND seq = 1 AND json_valid(body))
FROM runs WHERE id = ?
"""
_TEXTS: Final = (
    "SELECT seq, type, body FROM events WHERE run_id = ? AND seq <= ? AND type IN "
    f"({', '.join(repr(one) for one in TEXT_EVENTS)}) ORDER BY seq"
)
_FACTS: Final = ("model", "config", "scenario", "workspace", "imported")


def run_terms(connection: apsw.Connection, run_id: str, upto: int) -> str:
    """Return the terms of a run up to an event, a space between them; the same events give the same terms."""
    goal, *facts = next(iter(connection.execute(_HEAD, (run_id,))), [""] * (1 + len(_FACTS)))
    words, pairs, seen = set(found := words_of(str(goal))), set(pairs_of(found)), {str(goal)}
    terms = {fact_term(name, str(value)) for name, value in zip(_FACTS, facts, strict=True) if value}
    for piece in read_texts(connection.execute(_TEXTS, (run_id, upto)).fetchall()):
        if piece.tool:
            terms.add(fact_term("tool", piece.tool))
        if piece.text not in seen:  # the log has a call as request and as start, and an answer twice
            seen.add(piece.text)
            words.update(found := words_of(piece.text))
            pairs.update(pairs_of(found))
    terms.update(word[:_LONGEST] for word in words)
    terms.update(map(_PAIR_TERMS.__getitem__, pairs))
    return " ".join(terms)


def register_terms(connection: apsw.Connection) -> None:
    """Give a connection the function that the triggers of the index call."""
    connection.create_scalar_function("kestrel_terms", partial(run_terms, connection), 2)


_ENDED: Final = ", ".join(f"'{status}'" for status in sorted(TERMINAL))
_INDEX: Final = f"""
UPDATE run_texts SET upto = due.last_seq, waiting = due.status NOT IN ({_ENDED}) FROM (
  SELECT number, last_seq, status FROM run_texts CROSS JOIN runs ON id = run_id
  WHERE waiting AND CASE ?1 WHEN 'new' THEN upto IS NULL WHEN 'ended' THEN status IN ({_ENDED})
    ELSE upto IS NOT NULL AND (upto < last_seq OR status IN ({_ENDED})) END
  ORDER BY number DESC LIMIT {_BATCH}) AS due
WHERE run_texts.number = due.number
"""
_CHANGED: Final = """
SELECT EXISTS (SELECT 1 FROM run_texts JOIN runs ON id = run_id
  WHERE waiting AND upto IS NOT NULL AND upto < last_seq)
"""
_NEW: Final = "SELECT EXISTS (SELECT 1 FROM run_texts WHERE waiting AND upto IS NULL)"
_STATE: Final = """
SELECT (SELECT count(*) FROM run_texts), (SELECT count(*) FROM run_texts WHERE waiting AND upto IS NULL)
"""
_EMPTY: Final = """
INSERT INTO run_words(run_words) VALUES ('delete-all');
INSERT INTO run_words(run_words, rank) VALUES ('secure-delete', 1);
UPDATE run_texts SET upto = NULL, waiting = 1;
UPDATE text_form SET form = ?1;
"""


class TextIndex:
    """The index of one log, as its store keeps it."""

    def __init__(
        self,
        query: Callable[..., list[tuple[Any, ...]]],
        execute: Callable[..., Future[None]],
    ) -> None:
        """`query` reads the log; `execute` queues a statement with its writer."""
        self._query = query
        self._execute = partial(execute, what="the index of texts", urgent=False)
        self._begun = 0

    def run_began(self) -> None:
        """Count a run of this session; every now and then those that have ended are indexed."""
        self._begun += 1
        if self._begun >= _BATCH:
            self.settle()

    def settle(self) -> None:
        """Queue the indexing of runs that have ended since this session began some, if it did."""
        if self._begun:
            self._begun = 0
            self._execute(_INDEX, ("ended",))

    def state(self) -> tuple[int, int]:
        """Return how many runs are in the index, and how many there are."""
        ((runs, missing),) = self._query(_STATE)
        return int(runs) - int(missing), int(runs)

    def complete(self) -> bool:
        """Whether all runs are in the index; those that still work may have said more since."""
        return not self._query(_NEW)[0][0]

    def refresh(self) -> None:
        """Index what runs have said since they were indexed, and wait for it."""
        if self._query(_CHANGED)[0][0]:
            self.repaired(lambda: self._execute(_INDEX, ("changed",)).result())

    def catch_up(self) -> None:
        """Index the newest runs that are not in the index, `_BATCH` of them, and wait for it.

        A damaged index, or one of another form, is emptied first, so that it is made anew. Raises
        `StoreError` where that is not possible either.
        """
        self.repaired(lambda: self._execute(_INDEX, ("new",)).result())

    def repaired(self, work: Callable[[], T]) -> T:
        """Return what `work` with the index gives; where it is damaged or of another form, `work` is done
        with one that was emptied.
        """
        if self._query("SELECT form FROM text_form") != [(FORM,)]:
            self.empty()
        try:
            return work()
        except StoreError as error:
            # A damaged length makes SQLite ask for more memory than there is.
            if not isinstance(error.__cause__, (apsw.CorruptError, apsw.NoMemError)):
                raise
        self.empty()
        return work()

    def empty(self) -> None:
        """Empty the index, all runs of which are due then."""
        self._execute(_EMPTY, (FORM,)).result()


def marked_words(text: str) -> tuple[str, list[tuple[str, int, int]]]:
    """Return a text as it is compared, and its words, each with where it begins and ends in it.

    A text with letters beyond ASCII is given in its composed form, which is what `words_of` splits.
    """
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    pattern = _WORD if not plain.isascii() else re.compile("[A-Za-z0-9]+")
    return plain, [
        (folded, match.start(), match.end())
        for match in pattern.finditer(plain)
        for folded in words_of(match[0])[:1]
    ]
