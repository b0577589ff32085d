"""Spans: pieces of text with their source and place, which answers cite and claims are checked against.

An answer cites a span by its id in square brackets: `[src/app.py:12-20]` for lines of a file, `[main.2.1]`
for what a tool call answered, an address for a page. Ids are computed from the log, so the same log always
gives the same ones. What models write of themselves is read as well: `src/app.py:12`, `src/app.py#L12-L20`,
`lines 12-20 of src/app.py`, in backticks or not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal, cast

from kestrel_lab.core.events.union import Event, ModelAnswered, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import FrozenStruct, Json
from kestrel_lab.core.text_files import split_lines

Trust = Literal["workspace", "tool", "untrusted"]
CitedStatus = Literal["current", "moved", "stale", "gone"]
"""Where the cited text is now: unchanged, moved within its file, gone from it, or the file is gone."""

_NAME = r"[\w.+@~-]*[\w+@~-]"
_PLAIN_FILES = (
    r"(?:[\w-]+/)*(?:Makefile|Dockerfile|Justfile|Procfile|LICENSE|COPYING|NOTICE|CODEOWNERS|Jenkinsfile)"
)
PATH: Final = (
    rf"(?:(?:~|\.{{1,2}})?/)?(?:{_NAME}/)*[\w.+@-]*[\w+@-]\.[A-Za-z][A-Za-z0-9]{{0,9}}|{_PLAIN_FILES}"
)
"""What reads as the path of a file: a name with an ending, or a file that is known without one."""
_DASH = r"\s?(?:-|–|—|to|through)\s?"
_LINES = rf"(?P<first>\d+)(?:{_DASH}[lL]?(?P<last>\d+))?"
_AFTER = re.compile(
    rf"(?<![\w/.:+@~-])(?P<path>{PATH})`?"
    r"(?:(?::|#L|#l|:L)(?P<a>\d+)(?:[-–—:](?:L|l)?(?P<b>\d+))?(?P<more>(?:, "
    r"?\d+(?:-\d+)?)+(?=\])|(?:,\d+(?:-\d+)?)+(?![\w,-]|\.\w))?"
    rf"|[\s,(]{{1,3}}(?:at |on |in )?(?:lines?|ll?\.) {_LINES})"
)
_SPACED = re.compile(r"[\[`]((?:[^\s\[\]`:,;]+ )+)\Z")
_LONGEST: Final = 120
"""Characters before the last space of a path."""
_MORE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
_BEFORE = re.compile(
    rf"\b[lL](?:ines?|l?\.) {_LINES} (?:of|in|from) (?:the (?:file )?)?[`\[(]*(?P<path>{PATH})(?![\w/-])"
)
_CALL = re.compile(r"(?<![\w)])\[(?:call )?`?(?P<call>[\w/#~-]+(?:\.[\w/#~-]+)*\.\d+\.\d+(?:/[\w.-]+)*)`?\]")
_URL = re.compile(r"https?://[^\s<>()\[\]`\"']+[^\s<>()\[\]`\"'.,;:!?]")
_GREP = re.compile(r"^(?P<path>[^\n:]+):(?P<line>\d+): ?(?P<text>.*)$", re.MULTILINE)
_PART = re.compile(r"^=== (?P<path>.+) ===\n", re.MULTILINE)
_PLACE = re.compile(
    r"^(?P<path>[^\n]+?):(?P<first>\d+)(?:-\d+)?  \(.*\)\n(?P<lines>(?: *\d+  .*(?:\n|\Z))+)", re.MULTILINE
)
"""A place as `search_code` and `find_definition` show it: where and why, then its lines with their numbers.
"""
_NUMBER = re.compile(r"^ *\d+  ", re.MULTILINE)
_USE = re.compile(
    r"^(?P<path>[^\n:]+):(?P<line>\d+): (?:definition|import|call|use): (?P<text>.*)$", re.MULTILINE
)
_CUT: Final = {"find_references": 200, "search_code": 300, "find_definition": 300}
"""Characters of a line that a tool shows at most."""
_NOTE = re.compile(r"\n?\[(?:lines \d+ to \d+ of \d+|the last [\d,]+ characters|the file is )[^\]\n]*\]\s*\Z")
_WEB = frozenset({"fetch_url", "read_web_page", "web_search", "web_fetch"})


class Place(FrozenStruct, frozen=True, kw_only=True):
    """A text and where it is from: lines of a file, a page, or a tool call."""

    text: str
    path: str = ""
    first: int = 0
    """Its first line in the file, counted from 1; 0 if it is not lines of a file."""
    last: int = 0
    page: str = ""
    """The address of the page."""
    call: str = ""
    """The id of the tool call."""


class Span(Place, frozen=True, kw_only=True):
    """A text that a source said; an answer can cite it."""

    id: str
    """What an answer cites it by."""
    source: str
    """The file, page, message or tool that it is from, in words."""
    start: int = 0
    """Where it begins in that answer, in characters."""
    end: int = 0
    found: str = ""
    """How it was found: the tool, or `cited` for lines that only the answer pointed at."""
    trust: Trust = "tool"

    @property
    def digest(self) -> str:
        """A hash of its text: equal as long as the text is."""
        return text_digest(self.text)


class Citation(Place, frozen=True, kw_only=True):
    """A place that an answer points at; `text` is the citation as written."""

    at: int
    """Where it begins in the answer."""
    spaced: str = ""
    """The longer path with spaces that may end in `path`: all the text before it in the same brackets."""


def _number(digits: str | int) -> int:
    """The number of a line; one of a thousand digits is not a line, and Python would refuse to read it."""
    return int(str(digits)[:9])


def text_digest(text: str) -> str:
    """Sixteen characters that are equal for equal texts, white space at the ends of lines left out."""
    return hashlib.sha256(
        "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).encode()
    ).hexdigest()[:16]


@lru_cache(maxsize=512)
def citations_in(answer: str) -> tuple[Citation, ...]:
    """The places that an answer points at, in its order, each as often as it is written."""
    found: dict[int, Citation] = {}
    for match in _AFTER.finditer(answer):
        first = _number(match["a"] or match["first"])
        last = _number(match["b"] or match["last"] or first)
        before = _SPACED.search(answer, max(0, match.start() - _LONGEST), match.start())
        spaced = f"{before[1]}{match['path']}" if before else ""
        found[match.start()] = Citation(
            text=match[0], at=match.start(), path=match["path"], first=first, last=last, spaced=spaced
        )
        for also in _MORE.finditer(answer, *match.span("more")):
            first, last = _number(also["first"]), _number(also["last"] or also["first"])
            found[also.start()] = Citation(
                text=match[0], at=also.start(), path=match["path"], first=first, last=last
            )
    for match in _BEFORE.finditer(answer):
        first = _number(match["first"])
        found[match.start()] = Citation(
            text=match[0],
            at=match.start(),
            path=match["path"],
            first=first,
            last=_number(match["last"] or first),
        )
    for match in _CALL.finditer(answer):
        found.setdefault(match.start(), Citation(text=match[0], at=match.start(), call=match["call"]))
    for match in _URL.finditer(answer):
        found.setdefault(match.start(), Citation(text=match[0], at=match.start(), page=match[0]))
    return tuple(found[at] for at in sorted(found))


def arguments_by_call(events: Iterable[Event]) -> dict[str, dict[str, Json]]:
    """Arguments of calls by id, as they were made; of calls that never started, as the model wrote them."""
    asked: dict[str, dict[str, Json]] = {}
    for event in events:
        if isinstance(event, ToolCalled):
            asked[event.call] = event.args
        elif isinstance(event, ModelAnswered):
            asked |= {
                str(call.get("id", "")): cast("dict[str, Json]", call.get("args") or {})
                for call in event.calls
            }
    return asked


def spans_of(events: Sequence[Event]) -> tuple[Span, ...]:
    """Return the spans of tool answers without errors: each whole answer, then the lines of files in it."""
    args = arguments_by_call(events)
    found: list[Span] = []
    for event in events:
        if isinstance(event, ToolAnswered) and event.error is None and event.text.strip():
            found += answer_spans(event.call, event.tool, args.get(event.call, {}), event.text)
    return tuple(found)


def answer_spans(call: str, tool: str, args: Mapping[str, Json], text: str) -> tuple[Span, ...]:
    """The spans of one answer of a tool."""
    page = str(args.get("url") or "") if tool in _WEB or "url" in args else ""
    trust: Trust = "untrusted" if page or tool in _WEB or ":" in tool else "tool"
    whole = Span(
        id=call,
        source=f"{tool} {page}".strip(),
        text=text,
        call=call,
        end=len(text),
        page=page,
        found=tool,
        trust=trust,
    )
    if tool == "read_file" and isinstance(args.get("path"), str):
        return whole, *_lines(whole, str(args["path"]), args.get("offset"), 0, text)
    if tool == "batch_read":
        marks = [*_PART.finditer(text)]  # none in an error
        ends = [mark.start() for mark in marks[1:]] + [len(text)]
        return whole, *(
            span
            for mark, end in zip(marks, ends, strict=False)
            for span in _lines(whole, mark["path"], 1, mark.end(), text[mark.end() : end])
        )
    if tool == "grep":
        return whole, *(_line(whole, match) for match in _GREP.finditer(text))
    if tool == "find_references":
        return whole, *(_line(whole, match) for match in _USE.finditer(text))
    if tool in ("search_code", "find_definition"):
        return whole, *(_numbered_span(whole, match) for match in _PLACE.finditer(text))
    return (whole,)


def _numbered_span(whole: Span, match: re.Match[str]) -> Span:
    text = _NUMBER.sub("", match["lines"].removesuffix("\n"))
    first = _number(match["first"])
    lines = (first, first + text.count("\n"))
    made = _of_file(whole, match["path"], lines, text, match.start("lines"))
    return replace(made, end=match.end("lines"))


def _lines(whole: Span, path: str, offset: Json, start: int, text: str) -> Iterator[Span]:
    body = _NOTE.sub("", text)
    if body.startswith("[not read: ") or not body.strip():
        return
    # Models send `true` and negative offsets, too; the tool then begins at the first line.
    first = offset if isinstance(offset, int) and not isinstance(offset, bool) and offset > 0 else 1
    last = first + max(len(body.removesuffix("\n").split("\n")), 1) - 1
    yield _of_file(whole, path, (first, last), body, start)


def _line(whole: Span, match: re.Match[str]) -> Span:
    line = _number(match["line"])
    return _of_file(whole, match["path"], (line, line), match["text"], match.start("text"))


def _of_file(whole: Span, path: str, lines: tuple[int, int], text: str, start: int) -> Span:
    first, last = lines
    path = path.removeprefix("./")
    name = f"{path}:{first}" if first == last else f"{path}:{first}-{last}"
    return Span(
        id=name,
        source=path,
        text=text,
        path=path,
        first=first,
        last=last,
        call=whole.call,
        start=start,
        end=start + len(text),
        found=whole.found,
        trust="workspace",
    )


def resolve_citation(
    cited: Citation, spans: Iterable[Span], read: Callable[[str], str | None]
) -> Span | None:
    """Return the span that a citation points at: as the run saw it, or, for lines that it never saw, as
    `read` gives the file now.

    `None` for a call that never was, a page that nothing fetched, a file or lines that are not there.
    """
    spans = tuple(spans)
    if (
        cited.spaced
        and (whole := resolve_citation(replace(cited, path=cited.spaced, spaced=""), spans, read)) is not None
    ):
        return whole
    if cited.call:
        return next((span for span in reversed(spans) if span.id == cited.call), None)
    if cited.page:
        return next(
            (span for span in reversed(spans) if span.page and _same_page(span.page, cited.page)), None
        )
    named = [span for span in spans if span.path and _same_file(span.path, cited.path)]
    exact = cited.path.removeprefix("./")
    # Not the file of a longer path that ends so.
    if any(span.path == exact for span in named):
        named = [span for span in named if span.path == exact]
    seen = [span for span in named if span.first <= cited.first <= cited.last <= span.last]
    if seen:
        return _cut_span(min(reversed(seen), key=lambda span: span.last - span.first), cited)
    text = read(cited.path)
    lines = [] if text is None else split_lines(text)
    if not 1 <= cited.first <= cited.last <= len(lines):
        return None
    return Span(
        id=_id(cited),
        source=cited.path,
        text="\n".join(lines[cited.first - 1 : cited.last]),
        path=cited.path,
        first=cited.first,
        last=cited.last,
        found="cited",
        trust="workspace",
    )


def is_current(span: Span, read: Callable[[str], str | None]) -> CitedStatus:
    """Return whether the lines of a file are still the same; anything else cannot change and is current."""
    if not span.path:
        return "current"
    text = read(span.path)
    if text is None:
        return "gone"
    lines, most = split_lines(text), _CUT.get(span.found)
    was = _shown_forms(_lines_of(span), most)
    if _shown_forms(lines[span.first - 1 : span.last], most) == was:
        return "current"
    return "moved" if span.text.strip() and was.strip() in _shown_forms(lines, most) else "stale"


def _lines_of(span: Span) -> list[str]:
    """The lines of a span: an empty last one counts, but a final line end begins none."""
    return span.text.split("\n")[: span.last - span.first + 1]


def _shown_forms(lines: list[str], most: int | None) -> str:
    """Lines as tools may show them: cut, without trailing blanks; a single line also without indent."""
    return (
        lines[0].strip()[:most].rstrip()
        if len(lines) == 1
        else "\n".join(line[:most].rstrip() for line in lines)
    )


def _cut_span(span: Span, cited: Citation) -> Span:
    lines = span.text.split("\n")
    text = "\n".join(lines[cited.first - span.first : cited.last - span.first + 1])
    made = replace(span, id=_id(cited, span.path), text=text, first=cited.first, last=cited.last)
    # Shown with line numbers: the place of the whole is what there is.
    if span.end - span.start != len(span.text):
        return made
    start = span.start + sum(len(line) + 1 for line in lines[: cited.first - span.first])
    return replace(made, start=start, end=start + len(text))


def _id(cited: Citation, path: str = "") -> str:
    lines = f"{cited.first}" if cited.first == cited.last else f"{cited.first}-{cited.last}"
    return f"{path or cited.path}:{lines}"


def _same_file(known: str, named: str) -> bool:
    named = named.removeprefix("./")
    return known == named or known.endswith(f"/{named}")


def _same_page(known: str, named: str) -> bool:
    return known.rstrip("/").partition("#")[0] == named.rstrip("/").partition("#")[0]
