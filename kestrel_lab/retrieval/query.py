"""Questions as weighted search terms, without the headings and version lists that issue templates add."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kestrel_lab.language.code_tokens import terms

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_URL = re.compile(r"https?://\S+")
_FENCE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
_GENERIC_TEXT = """
a actual additional and any are as attempted behavior behaviour behind bug can checklist code complete context current describe
description detailed details environment error example examples expected feature following for fix full help here how i implementation in
info information is issue it like list log logs message minimal more of option options os other output please possible problem project
proposed python question related relevant report reproduce reproducible request result results run sample screenshot screenshots setup
snippet solution solutions solve steps system summary that the this to tools traceback unexpected useful version versions what why with
working you your alternatives considered d we e g link media
"""
_GENERIC = frozenset(_GENERIC_TEXT.split())
"""Words of the headings that forms of issues print."""
_MARKED = re.compile(r"^\s*(?:#{1,6}\s+(.*?)#*|\*\*(.+?)\*\*:?|__(.+?)__:?|([A-Z][\w /'-]{2,40}):?)\s*$")
_PLACE = re.compile(
    r"^\s*(?:[-*]\s*(?:\[.\]\s*)?)?(?:\*\*)?(?:OS|Operating [Ss]ystem|Python(?: version)?|Browser|Extra tools|Versions?|Platform|[A-Za-z]+ version"
    r"|Sphinx(?: version| extensions)?)\s*(?:\*\*)?\s*[:=].{0,120}$|^\s*[\w.\[\]-]+(?:\s*==\s*|\s{1,40})v?\d+(?:\.\w+)+(?:[-+.]\w+)*(?:\s+\S+)?\s*$"
)
_TOLD_IN_CODE = 0.7
_TOLD_IN_HEAD = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question taken apart."""

    text: str
    """As it was asked."""
    head: str
    """Its first line that is not empty."""
    telling: str
    """Without comments, addresses, headings of forms and lists of versions."""
    weights: Mapping[str, float]
    """Words as the index stores them, each with its weight."""


def ask(text: str) -> Question:
    """Take a question apart; all words of a short one weigh the same."""
    bare = _URL.sub(" ", _COMMENT.sub(" ", text.replace("\r\n", "\n")))
    telling = "\n".join(line for line in bare.split("\n") if not _PLACE.match(line) and not _form(line)) or bare
    if not telling.strip():
        telling = text
    head = next((line.strip() for line in telling.split("\n") if line.strip()), "")
    prose = _FENCE.sub("\n", telling)
    code = "\n".join(match[0] for match in _FENCE.finditer(telling))
    weights: dict[str, float] = {}
    for piece, amount in ((head, _TOLD_IN_HEAD - 1), (prose, 1.0), (code, _TOLD_IN_CODE)):
        for word, many in (terms(piece) if piece.strip() else {}).items():
            weights[word] = weights.get(word, 0.0) + many * amount
    return Question(text=text, head=head, telling=telling, weights=weights)


def _form(line: str) -> bool:
    """Return whether a line is a heading from a form."""
    found = _MARKED.match(line)
    if found is None:
        return False
    words = re.findall(r"[a-z]+", next(group for group in found.groups() if group is not None).lower())
    return all(word in _GENERIC for word in words)
