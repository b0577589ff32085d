"""Whether an answer says that it does not know."""

from __future__ import annotations

import re
from typing import Final

_UNABLE: Final = r"(?:do not|don't|did not|didn't|cannot|can't|could not|couldn't|(?:am|was|are|were) (?:unable|not able) to)"
_FIND: Final = r"(?:know|tell|say|find|determine|answer|verify|confirm|establish|locate)\b"
_NOT: Final = r"(?:is|are|was|were|does|do|has|have|can|could)(?:n't| not)|cannot"
_TOLD: Final = (
    r"(?:(?:been|be) )?(?:known|knowable|stated|mentioned|specified|given|documented|determined|answered|answerable|found|provided|"
    r"present|available|contained|covered|say|state|mention|specify|possible to (?:tell|say|determine|answer|know))\b"
)
_ABSTAINS: Final = re.compile(
    rf"\b(?:i|we) {_UNABLE} {_FIND}"
    rf"|\b(?:{_NOT}) {_TOLD}"
    r"|\b(?:no|not enough|insufficient|too little) (?:information|evidence|answer|mention|data|record)\b"
    r"|^\W*(?:unknown|unanswerable|n/?a|i abstain|no answer)\b",
    re.IGNORECASE,
)
_SENTENCES: Final = 2
"""An agent that does not know says so at once; "could not find" further down tells of a search on the way to an answer."""


def abstains(answer: str) -> bool:
    """Whether `answer` says that it does not know."""
    text = answer.strip().replace("’", "'")
    first = " ".join(re.split(r"(?<=[.!?])\s+", text, maxsplit=_SENTENCES)[:_SENTENCES])
    return _ABSTAINS.search(first) is not None
