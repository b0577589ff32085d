"""Page text: the visible text of a web page and its links, bounded in time whatever the page is."""

from __future__ import annotations

import re
import time
from html import escape
from html.parser import HTMLParser

from kestrel_lab.tools.web.fetch import Answer
from kestrel_lab.tools.web.urls import Url, join_url

_MOST_CHARS = 2_000_000
_PIECE = 16_384
_MOST_SECONDS = 2.0
_MOST_DEEP = 256
_MOST_LINKS = 5_000
_UNSEEN = frozenset(
    {
        "script",
        "style",
        "noscript",
        "template",
        "svg",
        "math",
        "iframe",
        "object",
        "head",
        "title",
        "select",
        "textarea",
        "canvas",
    }
)
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_BLOCK = frozenset(
    (
        "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 "
        "h3 h4 h5 h6 header hr li main nav ol "
        "p pre section table tr ul"
    ).split()
)
_IN_HEAD = frozenset({"title", "meta", "link", "script", "style", "base", "noscript", "template"})
_ENDS_ITS_LIKE = frozenset({"li", "dt", "dd", "tr", "td", "th"})
_TELLING = ("href", "class", "id", "role", "lang")
"""Attributes that mark the article of a page."""
_HIDDEN_STYLE = re.compile(
    r"(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?![.\d]*[1-9]))", re.IGNORECASE
)
_CODED = re.compile(
    r"utf-?8|us-ascii|ascii|latin-?1|(?:iso-?8859|windows|cp)-?\d{1,4}|utf-16(?:[bl]e)?|gb2312|gbk|gb18030|big5|euc-(?:jp|kr)|shift[_-]jis"
    r"|koi8-[ru]"
)
_DECLARED = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([\w-]{2,20})", re.IGNORECASE)


class Page(HTMLParser):
    """Visible text of an HTML page."""

    def __init__(self, html: str, most_seconds: float = _MOST_SECONDS) -> None:
        """Read `html`; what comes after two million characters, or after `most_seconds`, is left out."""
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.links: list[tuple[str, str]] = []
        """Reference and text of each link that can be seen."""
        self.depth = 0
        """Deepest nesting of elements."""
        self.complete = len(html) <= _MOST_CHARS
        self._open: list[tuple[str, bool]] = []
        """The elements around, and whether each hides what is in it."""
        self._hiding = 0
        self._seen: list[str] = []
        self._parts: list[str] = []
        self._link: list[str] | None = None
        stop = time.monotonic() + most_seconds
        # In pieces, and never closed: the end is where hostile pages cost most.
        for start in range(0, min(len(html), _MOST_CHARS), _PIECE):
            if time.monotonic() > stop:
                self.complete = False
                break
            self.feed(html[start : start + _PIECE])

    @property
    def text(self) -> str:
        """Paragraphs and list entries on lines of their own."""
        lines = (" ".join(line.split()) for line in "".join(self._parts).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()

    @property
    def html(self) -> str:
        """The page without scripts, comments, hidden elements, and attributes that say nothing about the
        text.
        """
        title = f"<head><title>{escape(self.title)}</title></head>" if self.title else ""
        return f"<html>{title}<body>{''.join(self._seen)}</body></html>"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        given = dict(attrs)
        self._end_implied(tag)
        hides = (
            tag in _UNSEEN
            or "hidden" in given
            or given.get("aria-hidden") == "true"
            or bool(_HIDDEN_STYLE.search(given.get("style") or ""))
        )
        if not (hides or self._hiding):
            self._parts.append(
                "\n- " if tag == "li" else "\n" if tag in _BLOCK else " | " if tag in {"td", "th"} else ""
            )
        if tag in _VOID:
            self._seen.append("<br>" if tag == "br" else "")
            return
        self._open.append((tag, hides))
        self._hiding += hides
        self.depth = max(self.depth, len(self._open))
        if not self._hiding:
            shown = "".join(f' {name}="{escape(given[name] or "")}"' for name in _TELLING if name in given)
            self._seen.append(f"<{tag}{shown}>")
        if tag == "a" and given.get("href") and not self._hiding:
            self._link = []
            self.links.append((str(given["href"]), ""))

    def handle_endtag(self, tag: str) -> None:
        """An element ends, and those in it that were not ended: only a few, as misplaced ends are common."""
        if tag == "a" and self._link is not None:
            self.links[-1] = (self.links[-1][0], " ".join("".join(self._link).split()))
            self._link = None
        if tag in _BLOCK:
            self._parts.append("\n")
        if not self._hiding and tag not in _VOID:
            self._seen.append(f"</{tag}>")
        for back in range(1, min(len(self._open), 20) + 1):
            if self._open[-back][0] == tag:
                self._hiding -= sum(hides for _, hides in self._open[-back:])
                del self._open[-back:]
                return

    def handle_data(self, data: str) -> None:
        """Text."""
        if self._open and self._open[-1][0] == "title" and not self.title:
            self.title = " ".join(data.split())[:300]
        if self._hiding:
            return
        self._parts.append(data)
        self._seen.append(escape(data, quote=False))
        if self._link is not None:
            self._link.append(data)

    def _end_implied(self, tag: str) -> None:
        """Close elements that `tag` closes implicitly, as browsers do: else a hidden one would hide what
        follows.
        """
        top = self._open[-1][0] if self._open else ""
        if (
            (top == "head" and tag not in _IN_HEAD)
            or (top == "p" and tag in _BLOCK)
            or (top == tag and tag in _ENDS_ITS_LIKE)
        ):
            self.handle_endtag(top)


def decode_body(answer: Answer) -> str:
    """Return the body as text, in the encoding that the server or the page names, else UTF-8; raises
    `ValueError` for what is not text.
    """
    if b"\0" in answer.body[:8_192] and "utf-16" not in answer.headers.get("content-type", "").lower():
        raise ValueError(f"{answer.url} is not text")
    named = re.search(
        r"charset\s*=\s*[\"']?([\w-]{2,20})", answer.headers.get("content-type", ""), re.IGNORECASE
    )
    declared = None if named else _DECLARED.search(answer.body[:4_096])
    name = (named[1] if named else declared[1].decode("ascii", "replace") if declared else "utf-8").lower()
    # Python knows encodings that are none of text, and slow ones.
    if not _CODED.fullmatch(name):
        name = "utf-8"
    try:
        # Browsers drop a byte order mark too.
        return answer.body.decode(name, "replace").removeprefix("\ufeff")
    except LookupError:
        return answer.body.decode("utf-8", "replace")


def is_html(answer: Answer) -> bool:
    """Return whether an answer is a page and not plain text."""
    return answer.kind in {"text/html", "application/xhtml+xml"} or (
        not answer.kind and answer.body.lstrip()[:1] == b"<"
    )


def article_text(html: str, url: str) -> str:
    """Return the text of the article on a page, without menus and adverts where they can be recognised, else
    all visible text.

    The article is found by trafilatura, where it is installed. What a page hides is left out.
    """
    page = Page(html)
    article = "" if page.depth > _MOST_DEEP or len(page.html) > _MOST_CHARS // 2 else _article(page.html, url)
    text = article if len(article) > 200 or len(article) * 2 > len(page.text) else page.text
    text = (
        text
        if page.complete or text is article
        else f"{text}\n[the rest of the page is left out: it is too large]"
    )
    return f"# {page.title}\n\n{text}" if page.title and not text.startswith("# ") else text


def page_links(html: str, base: Url) -> list[tuple[str, str]]:
    """URL and text of each web address that a page links to and shows, in order, each once."""
    found: dict[str, str] = {}
    for reference, text in Page(html).links[:_MOST_LINKS]:
        try:
            url = str(join_url(base, reference.strip()))
        except ValueError:
            # Mail addresses, scripts, and what is no URL.
            continue
        found[url] = found.get(url) or text
    return list(found.items())


def _article(html: str, url: str) -> str:
    try:
        # Half a second to load, and an extra.
        from trafilatura import extract
    except ImportError:
        return ""
    return (
        extract(
            html,
            url=url,
            output_format="markdown",
            include_comments=False,
            include_tables=True,
            include_images=False,
        )
        or ""
    )
