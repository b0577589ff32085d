"""Facts are kept only with words that are really there: each quote is looked for in the page it is said to be from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kestrel_lab.core.sanitize import plain
from kestrel_lab.runtime.operations.web_evidence import Fact, Quote

LEAST_QUOTE = 12
"""Characters of a quote: a shorter one is found in any page."""
SAME_TEXT = 60
"""Characters from which on equal quotes of two sites count as one: one of them copied."""
_NUMBER = re.compile(r"\d(?:[\d.,]*\d)?")
_EMPHASIS = re.compile(r"[*`]+")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
_SECOND_LEVEL = frozenset({"ac", "co", "com", "edu", "gov", "net", "org"})


def evened(text: str) -> str:
    """`text` as quotes are compared: hidden characters shown, white space of any kind as one space, nothing else changed.

    Only the emphasis and the link targets of Markdown are left out, which reading a page has put there.
    """
    return " ".join(_LINK.sub(r"\1", _EMPHASIS.sub("", plain(text))).split())


def checked_facts(
    claimed: Iterable[Mapping[str, Any]], pages: Mapping[str, str], urls: Mapping[str, str], known: str
) -> tuple[tuple[Fact, ...], dict[str, int], int]:
    """The facts of a model that have a quote which is in its page, what was dropped by reason, and how many quotes hold.

    A quote counts when the page it names was read, when it is at least 12 characters long, stands there word for
    word, and has every number that the fact has, unless that is in `known` (what was asked). A fact without one is
    dropped. `pages` are texts and `urls` addresses by the id of the result.
    """
    texts = {name: evened(text) for name, text in pages.items()}
    given = set(_numbers(known))
    dropped: Counter[str] = Counter()
    facts: dict[str, Fact] = {}
    held = 0
    for claim in claimed:
        said = evened(str(claim["fact"]))
        quotes: list[Quote] = []
        for item in claim["quotes"]:
            quote = Quote(result=str(item["result"]), text=evened(str(item["quote"])))
            why = _wrong(quote, texts, {*_numbers(said)} - given)
            if why:
                dropped[why] += 1
            elif quote not in quotes:
                quotes.append(quote)
        if not quotes or not said:
            dropped["fact without a quote that holds"] += 1
            continue
        held += len(quotes)
        before = facts[said].quotes if said in facts else ()
        every = tuple(dict.fromkeys((*before, *quotes)))
        sites = independent_sites(every, urls)
        facts[said] = Fact(text=said, quotes=every, sites=sites, confidence=agreement(len(sites)))
    return tuple(facts.values()), dict(dropped), held


def agreement(sites: int) -> float:
    """The confidence in what so many independent sites say: 1 - 2^-n, so 0.5 for one, 0.75 for two, 0.875 for three."""
    return 1 - 2.0**-sites


def overall(facts: Sequence[Fact], held: int, wrong: int) -> float | None:
    """The mean confidence of the facts times the share of the quotes that hold; `None` where there are no facts."""
    if not facts:
        return None
    return sum(fact.confidence for fact in facts) / len(facts) * held / (held + wrong)


def site(url: str) -> str:
    """Who publishes a page: the last two labels of its host, three under endings such as co.uk; a number as it is.

    Subdomains count as one site, and so do the customers of a host for many (`a.github.io`, `b.github.io`): rather too
    few independent sites than too many.
    """
    host = (urlsplit(url).hostname or "").rstrip(".")
    labels = host.split(".")
    if ":" in host or labels[-1].isdecimal():
        return host
    count = 3 if len(labels) > 2 and labels[-2] in _SECOND_LEVEL and len(labels[-1]) == 2 else 2
    return ".".join(labels[-count:])


def independent_sites(quotes: Iterable[Quote], urls: Mapping[str, str]) -> tuple[str, ...]:
    """The sites that the quotes are from; of sites with the same long text only the first."""
    found: dict[str, None] = {}
    seen: dict[str, str] = {}
    for quote in quotes:
        where, text = site(urls[quote.result]), quote.text.casefold()
        if len(text) < SAME_TEXT or seen.setdefault(text, where) == where:
            found[where] = None
    return tuple(found)


def _wrong(quote: Quote, texts: Mapping[str, str], numbers: set[str]) -> str:
    if quote.result not in texts:
        return "quote of a page that was not read"
    if len(quote.text) < LEAST_QUOTE:
        return "quote too short to tell anything"
    if quote.text not in texts[quote.result]:
        return "quote that is not in its page"
    return "quote without a number of its fact" if numbers - {*_numbers(quote.text)} else ""


def _numbers(text: str) -> list[str]:
    return [match.replace(",", "") for match in _NUMBER.findall(text)]
