"""Search results and pages as values that a program goes on with: what a search agent uses in place of texts for a model."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.tools.registry import Tool
from kestrel_lab.tools.web.ask import ask
from kestrel_lab.tools.web.http import succeeded
from kestrel_lab.tools.web.offering import offered
from kestrel_lab.tools.web.page import Page, decoded, is_html, readable
from kestrel_lab.tools.web.reach import Reach
from kestrel_lab.tools.web.search import Engine, finder

RESULTS, PAGE = "web_results", "web_page"
"""Names of the tools."""
_PAGE_CHARS = 60_000


def evidence_tools(reach: Reach, engine: Engine | None = None) -> list[Tool]:
    """`web_results` and `web_page`: as dangerous as `web_search` and `web_fetch`, and asking in the same way.

    What they give is foreign and not marked as such in its text: whoever shows it to a model has to do that.
    """
    find = finder(reach, engine)

    async def web_results(query: str, count: int = 8) -> list[Json]:
        """Search the web and give title, url and snippet of each result as a list.

        Args:
            query: What to look for.
            count: Number of results, at most 20.

        """
        found = await find(query, count)
        return [{"title": title, "url": url, "snippet": " ".join(extract.split())[:500]} for title, url, extract in found]

    async def web_page(url: str) -> dict[str, Json]:
        """Read a web page and give its url, title, text and the time as fields.

        Args:
            url: Address with https:// or http://; only the public internet can be reached.

        """
        answer = succeeded(await ask(reach, "GET", url))
        raw = decoded(answer)
        text, title = raw, ""
        if is_html(answer):
            text = await asyncio.to_thread(readable, raw, str(answer.url))
            title = Page(raw[:200_000]).title
        at = datetime.now(UTC).isoformat(timespec="seconds")
        left = max(0, len(text) - _PAGE_CHARS)
        return {"url": str(answer.url), "title": title, "text": text[:_PAGE_CHARS], "at": at, "characters_left_out": left}

    return [
        offered(web_results, Danger.LOW, "idempotent", group="evidence"),
        offered(web_page, Danger.MEDIUM, "idempotent", group="evidence"),
    ]
