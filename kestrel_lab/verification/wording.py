"""What the words around a name make of it: something to be created, something said not to be there, an example."""

from __future__ import annotations

import re
from typing import Final, Literal

Stance = Literal["asserted", "to be made", "denied", "supposed"]

_NEAR: Final = 70
"""Characters before a name in which words still speak about it."""
_MAKE: Final = re.compile(
    r"\b(?:creat(?:e|es|ing)|generat(?:e|es|ing)|scaffold|introduc(?:e|es|ing)|writ(?:e|es|ing) (?:it|them|this|that|the \w+|results?|output)? ?(?:to|into|out)|"
    r"sav(?:e|es|ed|ing) (?:\w+ ){0,3}(?:to|as|in|into|under)|stor(?:e|es|ing) (?:\w+ ){0,3}(?:in|as|under|to)|nam(?:e|ing) (?:it|them|the \w+)|"
    r"call (?:it|them)|renam(?:e|ing) (?:\S+ ){1,3}to|mov(?:e|ing) (?:\S+ ){1,4}(?:to|into)|(?:a|the|your|any|another|its own|into a|own) new|new (?:file|module|script|test|class|function|method|helper|command)|"
    r"produc(?:e|es|ing)|put (?:it|them|this|that) (?:in|into)|defin(?:e|ing) (?:a|an|your own)|propos(?:e|ed|ing)|to be (?:called|named|created)|"
    r"add(?:ing)? (?:a|an|your own|another)(?: \w+)?(?: (?:called|named|such as|like))?|could be (?:called|named)|implement(?:ing)? (?:a|an|your own))"
    r"(?:[\s`*_:(,\"]+(?!(?:and|but|in|inside|of|from|with|using|by|via)\b)[\w`'\"-]+){0,4}?[\s`*_:(,\"']*$",
    re.IGNORECASE,
)
_MAKE_AFTER: Final = re.compile(
    r"^[`*_\"')\]]*,? (?:is |being |as |would be |will be )?(?:a |the |one )?(?:new )?(?:(?:file|module|script|folder|function|class|helper) )?(?:that |which )?(?:you|we|I)(?:'ll| will| would| have to| need to| can)? (?:create|write|add|make)\b",
    re.IGNORECASE,
)
_DENY_BEFORE: Final = re.compile(
    r"\bno[\s`*_\"']+$|(?:\bthere(?:'s| is| are| was| were)?(?: currently| also| at present)? (?:no|not|n't)\b|\bno (?:such |longer |separate |dedicated )?(?:file|module|folder|directory|function|class|method|"
    r"attribute|symbol|name|command|script|test|parameter|option|setting|match|matches|occurrence|mention|definition|hit)\w*\b|"
    r"\b(?:is|are|was|were|does|do|did|has|have|can|could)(?:n't| not| never) (?:\w+ ){0,2}?(?:any|a|an|exist|find|found|define[sd]?|contain|include|have|provide|ship|export|mention|called|named|see|locate)\b|"
    r"\b(?:lacks?|missing|without|removed?|deleted?|dropped?|absent|nonexistent|non-existent|nothing (?:called|named)|neither|nor|instead of|rather than|not (?:in|called|named)|formerly|used to be|replaces|unlike)\b)"
    r"(?:[\s`*_:(\",]+(?!and\b|but\b|which\b|that\b)[\w`./'-]+){0,5}?[\s`*_:(\"']*$",
    re.IGNORECASE,
)
_DENY_AFTER: Final = re.compile(
    r"^[`*_\"')\]\s(]*(?:(?:file|module|folder|directory|function|class|method|attribute|command|script|here|itself|either|,|in (?:this|the) \w+)\s*){0,3}"
    r"(?:(?:does|do|did|is|are|was|were|has|have|could|can)(?:n't| not| never| no longer)\s+(?:(?:actually|currently|yet|be|been|any)\s+){0,2}(?:exist|exists|there|present|found|defined|part|available|"
    r"installed|in (?:the|this)|a (?:file|function|class|method|module|command))\b|(?:is|are|was|were) (?:missing|absent|gone|nowhere|removed|deleted|nonexistent|non-existent)\b|"
    r"no longer exists?\b|cannot be found|could not be found|(?:has|have|had) been (?:removed|deleted|dropped))",
    re.IGNORECASE,
)
_SUPPOSE: Final = re.compile(
    r"\b(?:if (?:you (?:had|have|were|create|add|wanted|name|call|write|made|make)|there (?:were|was|is)|we had)|suppose|imagine|hypothetical\w*|placeholder|for instance your|say you|assuming|would (?:be|have|look|mean|need)|e\.g\. your|your own|"
    r"something like|along the lines of|perhaps|pretend)\b",
    re.IGNORECASE,
)
PLACEHOLDER: Final = re.compile(
    r"[*?<>{}$%]|\bpath/to\b|/path/|\bfoo\b|\bbar\b|\bbaz\b|\byour[_-]|\bmy[_-]|\bexample\b|\bsome[_-]|\.\.\.|…|\bXXX\b|\bNAME\b|\bFILE\b",
    re.IGNORECASE,
)


def stance(sentence: str, start: int, end: int, lead: str = "") -> Stance:
    """How the sentence stands to what is written from `start` to `end`; `lead` is what introduces the sentence."""
    sentence = re.sub(r"`[^`\n]*`", lambda match: f"`{'x' * (len(match[0]) - 2)}`", sentence)  # names of code are no words
    before, after = sentence[max(0, start - _NEAR) : start], sentence[end : end + _NEAR]
    if _DENY_AFTER.search(after) or _DENY_BEFORE.search(before):
        return "denied"
    if _MAKE.search(before) or _MAKE_AFTER.search(after) or (lead and _CREATES.search(lead) and not before.strip(" `*_")):
        return "to be made"
    if _SUPPOSE.search(sentence[:start]):
        return "supposed"
    return "asserted"


_CREATES: Final = re.compile(
    r"\b(?:(?:files?|modules?|tests?|things?|scripts?|functions?|classes?|pieces?|helpers?|commands?) to (?:create|add|write|be (?:created|added|written))|create (?:the following|these|\w+ (?:new )?files?)|"
    r"new (?:files?|modules?|tests?|functions?|helpers?|layout|structure)|would (?:look|be|give|create|add)|proposed|suggested (?:layout|structure|files?|names?)|adding (?:these|the following)|"
    r"(?:removed|deleted|missing)(?: files?)?|do(?:es)? not exist)\b",
    re.IGNORECASE,
)
