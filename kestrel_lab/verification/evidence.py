"""What an answer claims, claim by claim, with the spans that hold each claim up and how far they do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kestrel_lab.core.citations import Citation, Span, Standing, citations, resolve, standing
from kestrel_lab.core.protocols import Entailment
from kestrel_lab.language.words import claim_terms
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.support import THRESHOLD, Support, Word, absent_numbers, score
from kestrel_lab.verification.work_limit import ALIKE, PARSED, TOKEN, WorkSpent

MOST_SPANS: Final = 3
"""How many spans a claim that cites nothing is held against: those with most of its words."""
_READ: Final = 400_000
"""Characters of all spans that are looked through; the newest are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cited:
    """A citation, what it points at, and whether that still stands there."""

    citation: Citation
    span: Span | None
    """`None` where there is nothing of the kind."""
    standing: Standing = "current"


@dataclass(frozen=True, kw_only=True, slots=True)
class Backed:
    """A claim with what holds it up."""

    said: Said
    support: Support
    cited: tuple[Cited, ...] = ()


def evidence_of(subject: Subject) -> tuple[Backed, ...]:
    """Every claim of the answer but blocks of code, against what it cites, or else what of the run speaks most of the same.

    Claims that come when the work is spent are left out: `Subject.unseen` then says so.
    """
    found: list[Backed] = []
    with subject.files.work.allowed():
        try:
            for one in _each(subject):
                found.append(one)  # noqa: PERF402  # what came before the work was spent is kept
        except WorkSpent:
            pass  # `Subject.unseen` tells
    return tuple(found)


def _each(subject: Subject) -> Iterator[Backed]:
    pool = _pool(subject)
    for said in subject.paid():
        if said.kind == "code":
            continue
        subject.pay(ALIKE * len(citations(said.text)) * (1 + len(subject.spans) / ALIKE) + TOKEN * len(pool))
        cited = cited_in(said.text, subject.spans, subject.files.read)
        spans = tuple(one.span for one in cited if one.span is not None) or _nearest(said.text, pool)
        texts = list(subject.through((span.text for span in spans), PARSED))
        value = score(_bare(said.text, cited), texts)
        absent = absent_numbers(_bare(said.text, cited), texts) if texts else ()
        word: Word = "supported" if value >= THRESHOLD and not absent else "weak"
        support = Support(word=word, score=value, spans=spans if value else (), warnings=absent)
        yield Backed(said=said, support=support, cited=cited)


async def with_entailment(backed: Iterable[Backed], port: Entailment) -> tuple[Backed, ...]:
    """The same, where something that understands sentences was asked: the only way to `contradicted` and `not contradicted`."""
    found: list[Backed] = []
    for one in backed:
        if not one.support.spans:
            found.append(one)
            continue
        said = await port(one.said.text, [span.text for span in one.support.spans])
        word: Word = "contradicted" if said.verdict == "contradicted" else "supported" if said.verdict == "entailed" else "not contradicted"
        found.append(replace(one, support=replace(one.support, word=word)))
    return tuple(found)


def cited_in(text: str, spans: Sequence[Span], read: Callable[[str], str | None]) -> tuple[Cited, ...]:
    """The citations of a text, each with what it points at."""
    found: list[Cited] = []
    for citation in citations(text):
        span = resolve(citation, spans, read)
        found.append(Cited(citation=citation, span=span, standing="gone" if span is None else standing(span, read)))
    return tuple(found)


def summary(backed: Sequence[Backed]) -> str:
    """How many claims are how well held up, in one line."""
    if not backed:
        return "no claims"
    words = [one.support.word for one in backed]
    parts = [f"{words.count(word)} {word}" for word in ("supported", "not contradicted", "weak", "contradicted") if word in words]
    stale = sum(cited.standing != "current" for one in backed for cited in one.cited)
    return f"{len(backed)} claim{'s' * (len(backed) != 1)}: {', '.join(parts)}" + (
        f"; {stale} citation{'s' * (stale != 1)} not current" if stale else ""
    )


def support_of(backed: Sequence[Backed]) -> float | None:
    """How far the answer as a whole is held up: the mean over its claims; `None` without any."""
    return sum(one.support.score for one in backed) / len(backed) if backed else None


def evidence_rows(backed: Sequence[Backed]) -> list[dict[str, Any]]:
    """A row per claim and span: claim, support, score, span, found, trust, standing, warnings, text."""
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(backed, 1):
        stands = {cited.span.id: cited.standing for cited in one.cited if cited.span is not None}
        base = {"claim": number, "text": one.said.text, "support": one.support.word, "score": round(one.support.score, 3)}
        base["absent numbers"] = ", ".join(one.support.warnings)
        spans: Sequence[Span | None] = one.support.spans or (None,)
        rows += [
            {
                **base,
                "span": "" if span is None else span.id,
                "found": "" if span is None else span.found,
                "trust": "" if span is None else span.trust,
                "standing": "" if span is None else stands.get(span.id, "current"),
                "evidence": "" if span is None else span.text,
            }
            for span in spans
        ]
    return rows


def _bare(text: str, cited: Sequence[Cited]) -> str:
    for one in cited:
        text = text.replace(one.citation.text, " ")
    return text


def _pool(subject: Subject) -> list[tuple[Span, frozenset[str]]]:
    """What the run saw, in pieces, with the words of each."""
    room, pool = _READ, []
    parts = {span.call for span in subject.spans if span.path}
    for span in reversed(subject.spans):
        if (not span.path and span.call in parts) or room < 0:
            continue
        room -= len(span.text)
        pool.append((span, claim_terms(span.text)))
    return pool


def _nearest(text: str, pool: list[tuple[Span, frozenset[str]]]) -> tuple[Span, ...]:
    left, chosen = set(claim_terms(text)), []
    for _ in range(MOST_SPANS):
        best = max(pool, key=lambda one: len(left & one[1]), default=None)
        if best is None or not left & best[1]:
            break
        chosen.append(best[0])
        left -= best[1]
    return tuple(chosen)
