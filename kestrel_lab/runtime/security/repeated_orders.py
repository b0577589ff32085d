"""Answers that repeat an order to say something which stands in what others wrote: a mark for the reader, since words alone act on nobody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.verification.issues import Issue, issue

_ORDER: Final = re.compile(
    r"(?im)(?:^|[.!?:;,]\s+|\b(?:please|must|should|now|then|to|and|also)\s+)"
    r"((?:say|tell|mention|recommend|suggest|state|write|include|answer|reply|respond|inform|claim|add|praise|advise)\b([^.!?]{20,400}))"
)
"""An English verb of saying where an order has it, and what is to be said."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_LINE_END: Final = re.compile(r"\\+n")
"""A line end as it is written inside of a quoted text."""
_FEWEST, _SHARE = 4, 0.6
"""How many words that the user did not say an order must have, and how many of them one sentence of the answer."""
_FIX: Final = "others wrote that, not you: judge for yourself whether it is so"
_MOST_PASSAGE, _MOST_ANSWER = 50_000, 100_000


def repeated_orders(answer: str, taint: Taint) -> Iterator[Issue]:
    """Yield an issue for each sentence of an answer that says what an untrusted text orders to say, once each.

    A sentence does so if it has at least 60 % of the order's words of four letters and more that the user did not say.
    """
    read = dict.fromkeys(passage for passage in taint.passages if passage.untrusted)
    if not read:
        return
    said = _words(" ".join(taint.words))
    orders = {
        " ".join(found[1].split()): (words, passage.source)
        for passage in read
        for found in _ORDER.finditer(_LINE_END.sub("\n", passage.text[:_MOST_PASSAGE]))
        if len(words := _words(found[2]) - said) >= _FEWEST
    }
    for sentence in dict.fromkeys(_SENTENCE.split(answer[:_MOST_ANSWER])):
        has = _words(sentence)
        for order, (words, source) in orders.items():
            if len(words & has) >= max(_FEWEST, _SHARE * len(words)):
                yield issue("minor", sentence, f"it repeats an order that stands in {source}: {order}", _FIX, check="repeated_orders")
                break


def may_order(text: str) -> bool:
    """Return whether a text may hold an order to say something, whoever wrote it."""
    return _ORDER.search(_LINE_END.sub("\n", text[:_MOST_PASSAGE])) is not None


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}
