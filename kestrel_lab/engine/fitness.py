"""What may be kept as a note: how far it is trusted, and what no note may say."""

from __future__ import annotations

import re
from dataclasses import replace

from kestrel_lab.core.notes import GUIDING, Note
from kestrel_lab.core.text import plain
from kestrel_lab.memory.words import stems

LONGEST_NOTE = 300
ANSWER = "answer"
"""The taint of what a run's answer says: tools and files had a say in it."""
_LONGEST_EVIDENCE = 1_000
KINDS = ("preference", "procedure", "decision", "pitfall", "fact")
"""What a model may propose."""
_SECRET = re.compile(
    r"(?i)\b(?:api[_ -]?key|secret|password|passwd|token|credential)s?\b\s*(?:is|are|[:=])|-----BEGIN|\b(?=\w*\d)(?=\w*[a-z])[\w-]{32,}\b"
)
_ORDER = re.compile(r"(?i)\b(?:ignore|disregard|forget)\b.{0,40}\b(?:instruction|previous|above|rule)|\bsystem prompt\b|\byou are now\b")


def sourced(note: Note, goal: str) -> Note:
    """`note` with how far it is trusted: as the user's own words if the goal says most of it, else as the run's answer."""
    evidence = _words(note.evidence)
    if len(evidence) >= 3 and evidence in _words(goal) and _covered(note.text, note.evidence):
        return replace(note, stated=True, taint="", confidence=0.9)
    return replace(note, stated=False, taint=ANSWER, confidence=0.6)


def _covered(text: str, evidence: str) -> bool:
    wanted = stems(text)
    return len(wanted & stems(evidence)) >= 0.6 * len(wanted)


def refusal(note: Note, goal: str, answer: str) -> str:
    """Why a proposed `note` is not kept, in words; empty if it may be. It says by its taint whether the user said it."""
    if why := unfit(note):
        return why
    if note.kind not in KINDS:
        return f"its kind is not {', '.join(KINDS[:-1])} or {KINDS[-1]}"
    evidence = _words(note.evidence)
    if len(evidence) < 3 or not (evidence in _words(goal) or evidence in _words(answer)):
        return "its evidence is not in the goal or the answer"
    if note.kind in GUIDING and note.taint:
        return f"a {note.kind} must be what the user said, and the goal does not say it"
    return ""


def unfit(note: Note) -> str:
    """What is wrong with the words of a note, wherever they come from."""
    if not note.text or len(note.text) > LONGEST_NOTE or "\n" in note.text:
        return f"it is not one sentence of at most {LONGEST_NOTE} characters"
    if len(note.evidence) > _LONGEST_EVIDENCE:
        return f"its evidence has more than {_LONGEST_EVIDENCE:,} characters"
    if plain(note.text) != note.text:
        return "it has hidden characters"
    if _SECRET.search(note.text) or _SECRET.search(note.evidence):
        return "it looks like a secret"
    if _ORDER.search(note.text):
        return "it gives orders to agents"
    return ""


def _words(text: str) -> str:
    return " ".join(text.casefold().split())
