"""How far evidence holds a claim up, told by words alone: a measure that notices additions, not contradictions.

The features are laid over a logistic curve. Its weights come from three public sets of dialogue answers, scientific claims and
Wikipedia sentences (`python -m bench.faithfulness FOLDER` measures, and prints the weights anew). Words cannot tell a
contradiction or a small edit from support: what they hold up is called `supported`, never true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from kestrel_lab.core.citations import Span
from kestrel_lab.language.words import CLAIM_COMMON, claim_stem, words

Word = Literal["supported", "weak", "not contradicted", "contradicted"]
"""The last two are said only where something that understands sentences was asked."""

NAMES: Final = ("coverage", "all words", "longest common", "pairs", "speaks of itself", "numbers absent", "names absent")
BIAS: Final = -3.55
WEIGHTS: Final = (2.723, 2.116, 1.791, 0.128, -2.005, -1.42, -1.354)
THRESHOLD: Final = 0.5
"""From here on a claim is called supported: the curve is laid so that both kinds of error weigh the same here."""
ABSTAIN: Final = 0.4
"""Below this mean support an answer had better not be given.

Measured on the three sets with both kinds of claim weighing alike: of the claims at or above it about a quarter are not
supported (20, 22 and 31 of 100), and a little over half are kept (61, 50 and 64 of 100).
"""
_BEST: Final = 3
"""How many sentences of the evidence a claim may be put together from."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])|\n+")
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_CAPITAL: Final = re.compile(r"(?<!^)(?<![.!?]\s)\b[A-Z][a-z]+")
_SELF: Final = frozenset({"i", "my", "me", "i'm", "i've", "we"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """What evidence does for a claim."""

    word: Word
    score: float
    """From 0 to 1, by words alone."""
    spans: tuple[Span, ...] = ()
    """What holds it up, the most first."""
    warnings: tuple[str, ...] = ()
    """Numbers of the claim that no evidence has."""


def features(claim: str, evidence: Sequence[str]) -> tuple[float, ...]:
    """What the curve is laid over, in the order of `NAMES`."""
    spoken = words(claim)
    every = [claim_stem(word) for word in spoken]
    content = {claim_stem(word) for word in spoken if word not in CLAIM_COMMON and (len(word) > 1 or word.isdigit())} or set(every)
    sentences = [
        [claim_stem(word) for word in words(sentence)] for text in evidence for sentence in _SENTENCE.split(text) if sentence.strip()
    ]
    best = _best(content, sentences)
    known = {word for sentence in sentences for word in sentence}
    held = {word for sentence in best for word in sentence}
    joined = [word for sentence in best for word in sentence]
    pairs = set(pairwise(joined))
    own = list(pairwise(every))
    capitals = [match[0] for match in _CAPITAL.finditer(claim)]
    return (
        len(content & held) / max(1, len(content)),
        sum(word in known for word in every) / max(1, len(every)),
        _common(every, best[0] if best else []) / max(1, len(every)),
        sum(pair in pairs for pair in own) / len(own) if own else float(bool(every) and set(every) <= held),
        float(any(word in _SELF for word in spoken)),
        float(bool(absent_numbers(claim, evidence))),
        min(2, sum(claim_stem(word.lower()) not in known for word in capitals)) / 2,
    )


def score(claim: str, evidence: Sequence[str]) -> float:
    """How far the evidence holds the claim up, from 0 to 1; 0 without evidence."""
    if not any(text.strip() for text in evidence):
        return 0.0
    total = BIAS + sum(weight * value for weight, value in zip(WEIGHTS, features(claim, evidence), strict=True))
    return 1 / (1 + math.exp(-total))


def absent_numbers(claim: str, evidence: Sequence[str]) -> tuple[str, ...]:
    """Numbers of the claim that stand nowhere in the evidence."""
    known = {number for text in evidence for number in _NUMBER.findall(text)}
    return tuple(dict.fromkeys(number for number in _NUMBER.findall(claim) if number not in known))


def _best(content: set[str], sentences: list[list[str]]) -> list[list[str]]:
    """The few sentences that together have most of the words."""
    left, chosen, sets = set(content), [], [set(sentence) for sentence in sentences]
    for _ in range(_BEST):
        place = max(range(len(sets)), key=lambda number: len(left & sets[number]), default=None)
        if place is None or not left & sets[place]:
            break
        chosen.append(sentences[place])
        left -= sets[place]
    return chosen


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest sequence of words that both have in the same order."""
    if not a or not b:
        return 0
    a, b = a[:200], b[:400]
    before = [0] * (len(b) + 1)
    for one in a:
        now = [0]
        for place, other in enumerate(b):
            now.append(before[place] + 1 if one == other else max(before[place + 1], now[place]))
        before = now
    return before[-1]
