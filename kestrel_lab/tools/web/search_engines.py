"""Web search: free search engines, or Brave with its key."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.tools.tool import Tool
from kestrel_lab.tools.web.fetch import Reach, request
from kestrel_lab.tools.web.json_api import Service, api_service, text_at
from kestrel_lab.tools.web.page_text import Page, article_text, decode_body, is_html
from kestrel_lab.tools.web.tools import mark_foreign, require_success, web_tool
from kestrel_lab.tools.web.urls import read_url

Found = tuple[str, str, str]
"""Title, address and extract."""
Engine = Callable[[str, int], list[Found]]
"""A search function: takes a query and the number of results; blocks."""

_MOST = 20
_BRAVE = "https://api.search.brave.com"
_SECONDS = 20
_ENGINES: Final = ("duckduckgo.com", "www.bing.com")
"""Two of the engines of ddgs: if neither is reachable, the others are not tried."""
_REACHED_S: Final = 4.0


def search_tools(reach: Reach, engine: Engine | None = None) -> list[Tool]:
    """`web_search`, and where `BRAVE_API_KEY` is set `brave_search`, which `web_search` then asks too.

    Without the key `engine` is asked: by default the search engines that the library ddgs (extra `web`)
    knows. The query is sent to a search engine and to nobody else, so the danger is LOW.
    """
    brave, find = _brave(reach), search_function(reach, engine)

    @web_tool(Danger.LOW, "idempotent")
    async def web_search(query: str, count: int = 8) -> str:
        """Search the web: titles, addresses and extracts. Read what looks right with web_fetch.

        Args:
            query: What to look for.
            count: Number of results, at most 20.

        """
        return _results_text(query, await find(query, count))

    if brave is None:
        return [web_search]

    @web_tool(Danger.LOW, "idempotent")
    async def brave_search(
        query: str, count: int = 8, age: Literal["", "day", "week", "month", "year"] = ""
    ) -> str:
        """Search the web with Brave: titles, addresses and extracts.

        Args:
            query: What to look for.
            count: Number of results, at most 20.
            age: Only pages that are not older; any by default.

        """
        return _results_text(query, await _ask_brave(brave, query, _count(query, count), age))

    return [web_search, brave_search]


def search_function(
    reach: Reach, engine: Engine | None = None
) -> Callable[[str, int], Awaitable[list[Found]]]:
    """Return the search function: Brave where its key is set, else `engine`; see `search_tools`.

    It raises `ValueError` for an empty query or a number that is not from 1 to 20, `ConnectionError` when
    nobody answers.
    """
    brave = _brave(reach)

    async def find(query: str, count: int) -> list[Found]:
        wanted = _count(query, count)
        if brave is not None:
            return await _ask_brave(brave, query, wanted, "")
        if engine is not None:
            return _check_results(await asyncio.to_thread(engine, query, wanted))
        return _check_results(await asyncio.to_thread(_ask_engines, reach, query, wanted))

    return find


def _check_results(results: object) -> list[Found]:
    """Return the results of an engine; raises `ValueError` unless they are such."""
    rows = list(results) if isinstance(results, list | tuple) else None
    if rows is None or not all(map(_is_result, rows)) or (rows and not any(row[1] for row in rows)):
        raise ValueError(
            "the search engine answered in another shape than title, address and extract: "
            f"{one_line(repr(results), 200)}"
        )
    return rows


def _is_result(row: object) -> bool:
    return isinstance(row, tuple | list) and len(row) == 3 and all(isinstance(text, str) for text in row)


def _brave(reach: Reach) -> Service | None:
    key = reach.env.get("BRAVE_API_KEY", "") or reach.env.get("BRAVE_SEARCH_API_KEY", "")
    if not key:
        return None
    headers = {"X-Subscription-Token": key, "Accept": "application/json"}
    return api_service("Brave", _BRAVE, reach.env.get("BRAVE_API_URL", ""), reach, headers)


async def _ask_brave(brave: Service, query: str, count: int, age: str) -> list[Found]:
    fresh = {"": "", "day": "pd", "week": "pw", "month": "pm", "year": "py"}[age]
    value: Json = await brave.get("/res/v1/web/search", q=query, count=count, freshness=fresh)
    # Where nothing was found the answer has no part for pages.
    if isinstance(value, dict) and value.get("type") == "search" and "web" not in value:
        return []
    rows = brave.rows_in(value, "web", "results", each="url")[:count]
    return [
        (
            _without_emphasis(text_at(row, "title")),
            text_at(row, "url"),
            _without_emphasis(text_at(row, "description")),
        )
        for row in rows
    ]


def _ask_engines(reach: Reach, query: str, count: int) -> list[Found]:
    """Ask the search engines of ddgs; the library contacts their fixed addresses through the same proxy."""
    try:
        from ddgs import DDGS  # an extra
        from ddgs.exceptions import DDGSException
    except ImportError as error:
        raise UsageError(
            "web_search needs the library ddgs: pip install 'kestrel-lab[web]', or set BRAVE_API_KEY"
        ) from error
    proxy = reach.proxy(read_url("https://duckduckgo.com")) or None
    _check_reached(proxy)
    client = DDGS(proxy=proxy, timeout=_SECONDS, verify=reach.env.get("SSL_CERT_FILE") or True)
    try:
        rows: list[dict[str, Any]] = client.text(query, max_results=count)
    except DDGSException as error:
        # ddgs raises one exception for both; only the text tells an empty result from a failure.
        if str(error).startswith("No results found"):
            return []
        raise ConnectionError(
            f"no search engine answered ({str(error).partition(':')[0]}): try again later, or set "
            "BRAVE_API_KEY to ask Brave"
        ) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            f"ddgs answered in another shape than a list of results: {one_line(repr(rows), 200)}"
        )
    return [(str(row.get("title", "")), str(row.get("href", "")), str(row.get("body", ""))) for row in rows]


def _check_reached(proxy: str | None) -> None:
    """Raise `ConnectionError` if the search engines or their proxy are unreachable: ddgs would try each for
    long.
    """
    if proxy is None:
        places, what = [(engine, 443) for engine in _ENGINES], " and ".join(_ENGINES)
    else:
        parts = urlsplit(proxy)
        places, what = (
            [(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))],
            "the proxy of the environment",
        )
    if not is_reachable(places, _REACHED_S):
        raise ConnectionError(
            f"no search engine can be reached ({what} take no connection): go online, or name a proxy "
            "that works in HTTPS_PROXY, and search again"
        )


def is_reachable(
    places: Sequence[tuple[str, int]], seconds: float, connect: Callable[..., Any] = socket.create_connection
) -> bool:
    """Return whether one of these hosts and ports takes a connection within so long."""
    answers: SimpleQueue[bool] = SimpleQueue()

    def look(place: tuple[str, int]) -> None:
        try:
            connect(place, timeout=seconds).close()
        except OSError:
            answers.put(False)
        else:
            answers.put(True)

    # Threads that nobody waits for: a resolver may take half a minute to give up.
    for place in places:
        Thread(target=look, args=(place,), daemon=True).start()
    try:
        return any(answers.get(timeout=seconds) for _ in places)
    except Empty:
        return False


def _count(query: str, count: int) -> int:
    if not query.strip():
        raise ValueError("the query is empty")
    if not 1 <= count <= _MOST:
        raise ValueError(f"count must be from 1 to {_MOST}, not {count}")
    return count


def _without_emphasis(text: str) -> str:
    """Text without the emphasis that a search engine puts into it."""
    return Page(text[:5_000] + " ").text


def _results_text(query: str, found: Sequence[Found]) -> str:
    if not found:
        return f"nothing was found for {query!r}"
    lines = [
        f"{number}. {title}\n   {url}\n   {' '.join(extract.split())[:500]}"
        for number, (title, url, extract) in enumerate(found, 1)
    ]
    return mark_foreign("\n".join(lines), "web search")


# Search results and pages as values that a program goes on with: what a search agent uses in place of texts
# for a model.

RESULTS, PAGE = "web_results", "web_page"
"""Names of the tools."""
_PAGE_CHARS = 60_000


def evidence_tools(reach: Reach, engine: Engine | None = None) -> list[Tool]:
    """`web_results` and `web_page`: as dangerous as `web_search` and `web_fetch`, and asking in the same way.

    What they give is foreign and not marked as such in its text: the caller that shows it to a model has to
    do that.
    """
    find = search_function(reach, engine)

    @web_tool(Danger.LOW, "idempotent", group="evidence")
    async def web_results(query: str, count: int = 8) -> list[Json]:
        """Search the web and give title, url and snippet of each result as a list.

        Args:
            query: What to look for.
            count: Number of results, at most 20.

        """
        found = await find(query, count)
        return [
            {"title": title, "url": url, "snippet": " ".join(extract.split())[:500]}
            for title, url, extract in found
        ]

    @web_tool(Danger.MEDIUM, "idempotent", group="evidence")
    async def web_page(url: str) -> dict[str, Json]:
        """Read a web page and give its url, title, text and the time as fields.

        Args:
            url: Address with https:// or http://; only the public internet can be reached.

        """
        answer = require_success(await request(reach, "GET", url))
        raw = decode_body(answer)
        text, title = raw, ""
        if is_html(answer):
            text = await asyncio.to_thread(article_text, raw, str(answer.url))
            title = Page(raw[:200_000]).title
        at = datetime.now(UTC).isoformat(timespec="seconds")
        left = max(0, len(text) - _PAGE_CHARS)
        return {
            "url": str(answer.url),
            "title": title,
            "text": text[:_PAGE_CHARS],
            "at": at,
            "characters_left_out": left,
        }

    return [web_results, web_page]
