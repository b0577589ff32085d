"""The web pages that a provider names for an answer: the formats of several providers, parsed into one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.text_files import split_lines

Source = tuple[str, str]
"""Title and address."""

MARK: Final = "Pages that the provider says this answer rests on:"
_LINE = re.compile(r"\d+\. (?P<title>.*?) ?<(?P<url>https?://[^\s<>]+)>")
_ADDRESS = re.compile(r"https?://[^\s<>]+")


def sources_of(answer: Any) -> tuple[Source, ...]:
    """Return the pages that a chat completion names, in order, each once; links in the model's text do not
    count.

    Read are the annotations of the message (OpenAI, Gemini), its citations (Anthropic), and the search
    results and citations beside it (Perplexity).
    """
    found: dict[str, str] = {}
    for title, url in _cited_sources(answer):
        if isinstance(url, str) and _ADDRESS.fullmatch(url):
            found[url] = found.get(url) or one_line(str(title or ""), 200)
    return tuple((title, url) for url, title in found.items())


def with_sources(text: str, sources: Iterable[Source]) -> str:
    """Return `text` followed by the pages, in the form that `read_sources` parses."""
    lines = [f"{number}. {title} <{url}>" for number, (title, url) in enumerate(sources, 1)]
    return "\n".join([text.rstrip(), "", MARK, *(lines or ["none"])])


def read_sources(text: str) -> tuple[str, tuple[Source, ...]]:
    """Return the arguments of `with_sources`, from the last list: a model may have written a similar one
    before.
    """
    said, mark, listed = text.rpartition(MARK)
    if not mark:
        return text, ()
    rows = (_LINE.fullmatch(line.strip()) for line in split_lines(listed))
    return said.rstrip(), tuple((row["title"], row["url"]) for row in rows if row)


def _cited_sources(answer: Any) -> Iterator[tuple[Any, Any]]:
    for choice in _list(_get(answer, "choices"))[:1]:
        message = _get(choice, "message")
        for note in _list(_get(message, "annotations")):
            cited = _get(note, "url_citation") or note
            yield _get(cited, "title"), _get(cited, "url")
        groups = _list(_get(_get(message, "provider_specific_fields"), "citations"))
        for cited in (one for group in groups for one in (_list(group) or [group])):
            yield _get(cited, "title"), _get(cited, "url")
    for row in _list(_get(answer, "search_results")):
        yield _get(row, "title"), _get(row, "url")
    for url in _list(_get(answer, "citations")):
        yield "", url


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
