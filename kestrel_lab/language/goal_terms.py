"""The words of a text that tell it from others: what simple search and recall go by."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_][\w.-]*[\w]|\d[\w.-]*\w")
_WORDS = """
a about after all also an and any are as at be been but by can could do does each every find for from get give had has
have here how if in into is it its just know let list made make many may me more most much must my no not of on one
only or other our out over please say see shall should show so some such tell than that the their them then there
these they this those to two up us use using want was way we were what when where which while who why will with would
write you your
"""
_COMMON = frozenset(_WORDS.split())


def terms(text: str, most: int = 24) -> tuple[str, ...]:
    """The distinct words of `text` in lower case, common English ones and single characters left out; the first `most`."""
    words = (match[0].casefold() for match in _WORD.finditer(text))
    return tuple(dict.fromkeys(word for word in words if word not in _COMMON))[:most]
