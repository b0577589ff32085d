"""Deduplication of notes: detects by words whether two notes agree or contradict."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Literal

from kestrel_lab.language.words import NEGATIONS, normal_form, stem, stems, words_in
from kestrel_lab.memory.entities import find_entities

Relation = Literal["same", "contradicts", "near", "other"]
SAME = 0.8
"""Share of common words above which notes say the same, if no value differs and one contains the other."""
NEAR = 0.5
_VALUES = frozenset({"path", "number", "version", "date", "url", "command", "symbol", "package", "error"})
"""Kinds of names that are the same in notes that agree."""
_IS = re.compile(
    r"\b(?:is|are|was|were|equals?|means?|defaults? to|called|named|lives? (?:in|at)|run(?:s|ning)? "
    r"(?:on|with|by)|=)\s",
    re.IGNORECASE,
)
_CLASSES = tuple(
    frozenset(line.split())
    for line in """
    red green blue yellow black white grey gray brown orange purple pink
    monday tuesday wednesday thursday friday saturday sunday
    on off enabled disabled
    true false yes no
    low medium high critical
    slow fast
    public private internal
    required optional forbidden allowed
    tabs spaces
    short long
    open closed
    sync async synchronous asynchronous
    always never sometimes
    major minor patch
    before after
    """.strip().splitlines()
)
"""Words that exclude each other."""
_LANGUAGES = frozenset(
    """
english german french italian spanish portuguese dutch swedish danish norwegian finnish polish czech russian \
ukrainian greek turkish romansh
hungarian arabic hebrew hindi bengali chinese japanese korean vietnamese indonesian
""".split()
)
"""A rule names one of them; a manual may exist in two."""
_BINDING = re.compile(
    r"(?i)\b(?:always|must|shall|should|only|prefers?|please|from now on|in future|all|every|each)\b"
)
_OF_A_THING = frozenset({"the", "a", "an", "our", "your", "my", "their", "each", "every"})


def compare_notes(new: str, old: str) -> Relation:
    """Return how `new` relates to `old`.

    They contradict if they agree but for one value: a number, file, version, an exclusive word, a name, a
    language, or a negation. Two negations do not: neither Monday nor Friday may be a release day.
    """
    ours, theirs = stems(new) - NEGATIONS, stems(old) - NEGATIONS
    if normal_form(new) == normal_form(old):
        return "same"
    share = len(ours & theirs) / len(ours | theirs) if ours | theirs else 0.0
    if _is_negated(new) != _is_negated(old):
        return "contradicts" if share >= SAME else "near" if share >= NEAR else "other"
    if _one_value_differs(new, old):
        return "contradicts"
    if (
        share >= SAME
        and _values(new) == _values(old)
        and not (_classes(new) ^ _classes(old))
        and (ours <= theirs or theirs <= ours)
    ):
        return "same"
    return "near" if share >= NEAR else "other"


def _is_negated(text: str) -> bool:
    return bool(NEGATIONS & {word.replace("'", "") for word in words_in(text)})


def _values(text: str) -> frozenset[str]:
    return frozenset(entity.name for entity in find_entities(text) if entity.kind in _VALUES)


def _classes(text: str) -> frozenset[str]:
    found = frozenset(words_in(text))
    return frozenset(word for known in _CLASSES for word in known & found)


_TOKEN = re.compile(r"`[^`]+`|\"[^\"]+\"|[\w./:@%+-]*\w|[^\w\s]")


def _one_value_differs(new: str, old: str) -> bool:
    """Return whether both are the same sentence with another value in one place."""
    ours, theirs = (
        [found.lower() for found in _TOKEN.findall(text) if found not in ".!,;"] for text in (new, old)
    )
    if min(len(ours), len(theirs)) < 3:
        return False
    changes = [
        change
        for change in SequenceMatcher(
            None, list(map(stem, ours)), list(map(stem, theirs)), autojunk=False
        ).get_opcodes()
        if change[0] != "equal"
    ]
    if len(changes) != 1 or changes[0][0] != "replace":
        return False
    _, a, b, c, d = changes[0]
    left, right = ours[a:b], theirs[c:d]
    if max(len(left), len(right)) > 4 or 2 * max(len(left), len(right)) > len(ours[:a]) + len(ours[b:]) + 1:
        return False
    # Part of a name: "migration 12", "step 3"
    if a < 2 and all(value.isdigit() for value in (*left, *right)):
        return False
    # Too: "the fast tests", "our Monday meeting"
    if a == 1 and ours[0] in _OF_A_THING and ours[b : b + 1] and not _IS.match(f"{ours[b]} "):
        return False
    if _is_negated(new) and ours[a - 1 : a] != ["than"]:
        return False
    if {*left, *right} <= _LANGUAGES:
        return ours[a - 1 : a] == ["in"] and bool(_BINDING.search(new))
    return _are_exclusive(" ".join(left), " ".join(right), " ".join(ours[:a]) + " ", last=b == len(ours))


def adds_words(new: str, old: str) -> bool:
    """Return true if `new`, which agrees with `old`, has additional words."""
    return stems(new) > stems(old)


def _are_exclusive(left: str, right: str, before: str, *, last: bool) -> bool:
    """Return true if at most one of two values can be true of the words before them."""
    if any(left in known and right in known for known in _CLASSES):
        return True
    if _is_measure(left) and _is_measure(right):
        return True
    if not last or not (found := list(_IS.finditer(before))) or found[-1].end() < len(before) - 12:
        return False
    # One word alone may be many things: "the API is slow", "the API is public"
    return len(stems(before[: found[-1].start()])) >= 2 or not re.search(
        r"\b(?:is|are|was|were)\s$", found[-1][0], re.IGNORECASE
    )


def _is_measure(text: str) -> bool:
    """Return whether `text` is a number, a version, a date, or a number with a unit."""
    return bool(re.fullmatch(r"[`\"]?v?\d[\w.,:%-]*[`\"]?(?: ?[a-z%]+)?", text))
