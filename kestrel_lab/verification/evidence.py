"""Claims of an answer with what each cites, every citation resolved exactly: the place exists, the quote is
in it, the call was made.

Whether a cited place shows what a claim says is not decided here; a model may be asked, see
`checks.llm_judge`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.citations import Citation, CitedStatus, Span, citations_in, is_current, resolve_citation
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.quoted_code import contains_code, operator_changed_in
from kestrel_lab.verification.quotes import contains_quote, inexact_quotes
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import ALIKE, PARSED, WorkSpent

State = Literal["cited", "uncited", "unknown", "changed", "wrong"]
"""State of a claim: all its citations are valid; it has none; one cannot be read; one was valid when it was
read; one is invalid.
"""
STATES: Final[tuple[State, ...]] = ("cited", "unknown", "changed", "wrong")
"""Of a citation, the best first: a claim is as good as the worst of its citations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedCitation:
    """A citation, what it points at, and whether it is right."""

    citation: Citation
    quote: str = ""
    span: Span | None = None
    """`None` if it does not exist."""
    state: State = "cited"
    why: str = ""
    """Why it is wrong or unknown."""
    status: CitedStatus = "current"
    """Whether lines that the run read have changed since."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CitedClaim:
    """A claim with what it cites."""

    text: str
    cited: tuple[CheckedCitation, ...] = ()

    @property
    def state(self) -> State:
        """The state of its worst citation."""
        return max((one.state for one in self.cited), key=STATES.index, default="uncited")

    def as_json(self) -> dict[str, Json]:
        """The claim as it is kept with the answer."""
        cites: list[Json] = [
            {"place": one.citation.text, "state": one.state, "why": one.why} for one in self.cited
        ]
        return {"text": self.text, "state": self.state, "citations": cites}


def evidence_of(subject: Subject, claims: Sequence[Mapping[str, Any]] = ()) -> tuple[CitedClaim, ...]:
    """Return the claims of an answer: the structured `claims` if given, else sentences with bracketed
    citations.

    Claims beyond the work limit are left out, which `Subject.unseen` reports.
    """
    found: list[CitedClaim] = []
    with subject.files.work.allowed():
        try:
            for one in _given_claims(subject, claims) if claims else _prose_claims(subject):
                found.append(one)  # what came before the work was spent is kept  # noqa: PERF402
        except WorkSpent:
            # The claims that were checked in time are returned; `Subject.unseen` reports the rest.
            pass
    return tuple(found)


def _given_claims(subject: Subject, claims: Sequence[Mapping[str, Any]]) -> Iterator[CitedClaim]:
    for claim in claims:
        made = [
            (one, str(entry.get("quote", ""))) for entry in claim["citations"] for one in places_of(entry)
        ]
        yield CitedClaim(
            text=str(claim["text"]), cited=tuple(_check_citation(subject, one, quote) for one, quote in made)
        )


def _prose_claims(subject: Subject) -> Iterator[CitedClaim]:
    for said in (one for one in subject.paid() if one.kind != "code"):
        cited = tuple(_check_citation(subject, one) for one in citations_in(said.text))
        if cited and (inexact := next(inexact_quotes(subject, said), None)):
            cited = tuple(
                replace(one, state="wrong", why=inexact.what) if one.state == "cited" else one
                for one in cited
            )
        yield CitedClaim(text=said.text, cited=cited)


def places_of(entry: Mapping[str, Any]) -> Iterator[Citation]:
    """Yield what an entry of a claim cites: lines of a file, a call, the address of a page."""
    place, call, address = (str(entry.get(key, "")).strip() for key in ("place", "call", "address"))
    if place:
        yield next((one for one in citations_in(place) if one.path), Citation(text=place, at=0, path=place))
    if call:
        yield Citation(text=call, at=0, call=call)
    if address:
        yield Citation(text=address, at=0, page=address)


def _check_citation(subject: Subject, cited: Citation, quote: str = "") -> CheckedCitation:
    # Bounds the work: an answer may cite thousands of places, each of which searches all spans.
    subject.pay(ALIKE * (1 + len(subject.spans) / ALIKE))
    read = subject.files.read
    span = resolve_citation(cited, subject.spans, read)
    status: CitedStatus = (
        "gone" if span is None else is_current(span, read) if subject.ground is not None else "current"
    )
    if span is not None and status != "current" and _is_own_edit(subject, span.path):
        # The run itself made it what it is now, after it had read it.
        span = resolve_citation(cited, (), read) or span
        status = "current"
    if cited.path:
        state, why = _place(subject, cited, quote, span)
    elif span is not None:
        state, why = (
            ("cited", "")
            if _contains_quote(quote, span.text, subject)
            else ("wrong", f"“{one_line(quote, 80)}” is not in {cited.text}")
        )
    elif cited.call and subject.calls is not None and cited.call not in {made.call for made in subject.calls}:
        state, why = "wrong", f"there was no tool call {cited.call}"
    elif denied := next(
        (made for made in subject.calls or () if made.call == cited.call and made.denied), None
    ):
        state, why = "unknown", f"the call of {denied.tool} was {denied.denied}"
    else:
        state, why = "unknown", f"{one_line(cited.text, 80)} was not read in this run"
    return CheckedCitation(
        citation=cited, quote=quote, span=span, state=cast("State", state), why=why, status=status
    )


def _is_own_edit(subject: Subject, path: str) -> bool:
    """Return whether a file is as the run's own last edit left it."""
    version = subject.left.get(path, "")
    return bool(version) and version == subject.files.version(path)


def span_as_now(subject: Subject, one: CheckedCitation) -> Span | None:
    """Return a citation's target as it is now, read again if it changed; `None` if it is gone."""
    if one.span is None or not one.span.path or one.status == "current":
        return one.span
    return resolve_citation(one.citation, (), subject.files.read)


def _place(subject: Subject, cited: Citation, quote: str, span: Span | None) -> tuple[str, str]:
    """Return the state of a cited place by the current file; the earlier reading only shows if it changed."""
    files, name = subject.files, cited.path
    texts = {path: text for path in files.named(name) if (text := files.read(path)) is not None}
    if not texts:
        # A listing that was cut short does not show that a file is missing.
        if subject.ground is None or not files.whole_listing or files.exists(name):
            return (
                ("cited", "")
                if span is not None and _contains_quote(quote, span.text, subject)
                else ("unknown", f"{name} cannot be read as text here")
            )
        return (
            ("changed", f"{name} was there when it was read")
            if span is not None
            else ("wrong", f"{name} does not exist")
        )
    parts = [_lines(cited, text) for text in texts.values()]
    if any(part is not None and _contains_quote(quote, part, subject) for part in parts):
        return "cited", ""
    if span is not None and _contains_quote(quote, span.text, subject):
        return "changed", f"{cited.text} is not as it was when it was read"
    longest = max(len(split_lines(text)) for text in texts.values())
    if all(part is None for part in parts):
        return "wrong", f"{cited.text} is not there: the file has {format_count(longest, 'line')}"
    at = next(
        (f"{path}:{line}" for path, text in texts.items() if (line := _line_of(quote, text, subject))), ""
    )
    return "wrong", f"“{one_line(quote, 80)}” is not at {cited.text}" + (f"; it is at {at}" if at else "")


def _lines(cited: Citation, text: str) -> str | None:
    """Return the cited lines, the whole text if none are named; `None` if they do not exist."""
    lines = split_lines(text)
    if not cited.first:
        return text
    return (
        "\n".join(lines[cited.first - 1 : cited.last])
        if 1 <= cited.first <= cited.last <= len(lines)
        else None
    )


def _contains_quote(quote: str, text: str, subject: Subject) -> bool:
    """Return true if a text contains a quote, ignoring line breaks; an empty quote is in any text."""
    subject.pay(PARSED * len(text))
    wanted = " ".join(quote.strip().strip('`"“”').split())
    return (
        not wanted
        or wanted in " ".join(text.split())
        or (
            len(wanted.split()) > 1
            and (
                (contains_quote(wanted, [text]) and not operator_changed_in(wanted, text))
                or contains_code(wanted, [text])
            )
        )
    )


def _line_of(quote: str, text: str, subject: Subject) -> int:
    first = split_lines(quote.strip())[0] if quote.strip() else ""
    return next(
        (
            number
            for number, line in enumerate(split_lines(text), 1)
            if first and _contains_quote(first, line, subject)
        ),
        0,
    )


def wrong_citations(backed: Iterable[CitedClaim]) -> Iterator[Issue]:
    """Yield an issue for each citation that is wrong or out of date."""
    for claim in backed:
        for one in claim.cited:
            if one.state in ("wrong", "changed"):
                yield Issue(
                    "critical",
                    claim.text,
                    one.why,
                    "cite what shows it as it is now, or leave the citation out",
                    check="citations",
                )


def cited_share(backed: Sequence[CitedClaim]) -> float:
    """Return the share of claims that cite something that is there; 0 without claims."""
    return sum(one.state == "cited" for one in backed) / len(backed) if backed else 0.0


def states_summary(states: Sequence[str]) -> str:
    """Return how many claims are in which state, in one line."""
    if not states:
        return "no claims"
    parts = [f"{states.count(state)} {word}" for state, word in _WORDS.items() if state in states]
    return f"{format_count(len(states), 'claim')}: {', '.join(parts)}"


_WORDS: Final[dict[str, str]] = {
    "cited": "cited",
    "uncited": "uncited",
    "unknown": "cited, not known to be there",
    "changed": "changed since",
    "wrong": "wrong",
}
