"""What the words around a name make of it: something to be created, something said not to be there, an example, another library's.

Only the clause that a name stands in speaks about it, and in it the last word that does: `create x`, but `to create one, use x`. Where
the words leave open whether it is asserted to be there now, it is not: an answer is refused for what it asserts, not for what it may mean.
Answers come in several languages; the words are those of English, German, French and Spanish.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Stance = Literal["asserted", "to be made", "denied", "supposed"]

_FUNCTION_TEXT: Final = """the a an is are of to in and it not for with that this by on as you der die das ein eine ist sind und nicht mit von zu den dem im auf für wird
    le la les un une est et pas des du dans que qui en se el los las es y del por con una no si al il lo gli di che non per sono della o os um uma é do da não para het de een van niet en"""
_FUNCTION: Final = frozenset(_FUNCTION_TEXT.split())
_CODE: Final = re.compile(r"``[^\n]+?``|`[^`\n]*`|\"[^\"\n]{1,400}\"|“[^”\n]{1,400}”|„[^“”\n]{1,400}[“”]")
_BREAK: Final = re.compile(
    r"[;:?!]\s|(?<!\be\.g)(?<!\bi\.e)(?<!\bz\.B)(?<!\bd\.h)(?<!\bcf)(?<!\bvs)\.\s|\s[—–-]\s|—|\||,?\s\b(?:but|whereas|while|because|since|so|aber|sondern|während|weil|denn|mais|pero|sino)\b|,\s(?:and|so|which|und|et|y)\b",
    re.IGNORECASE,
)
_DENY: Final = re.compile(
    r"\b(?:no|not|never|neither|nor|none|nothing|lack\w*|remove[ds]?|deleted?|dropped|formerly|used to be|replaces|unlike"
    r"|kein\w*|nicht|nie|weder|noch|aucune?|pas|ning[uú]n\w*|nunca|non|nessun\w*|n[ãa]o|nenhum\w*|geen|niet)\b|n['’]t\b"
    r"|\b(?:without|instead of|rather than|missing|absent|ohne|statt|anstelle|fehlt|fehlen\w*|sans|sin)(?:[^\w`]+(?:an?|the|any|your|\w+ing|of|de\w|einer?|une?)\b|\W+\w+){0,2}\W*$",
    re.IGNORECASE,
)
_DENY_AFTER: Final = re.compile(
    r"^[`*_\"')\]\s(]*(?:(?:file|module|folder|directory|function|class|method|attribute|parameter|option|command|script|here|itself|either|,|in (?:this|the) \w+)\s*){0,3}"
    r"(?:(?:does|do|did|is|are|was|were|has|have|could|can)(?:n['’]t| not| never| no longer)\s+(?:(?:actually|currently|yet|be|been|any)\s+){0,2}(?:exist|exists|there|present|found|defined|part|available|"
    r"installed|supported|in (?:the|this)|a (?:\w+ )?(?:file|function|class|method|module|command|parameter|option|name|thing))\b|(?:is|are|was|were) (?:missing|absent|gone|nowhere|removed|deleted|nonexistent|non-existent|undefined)\b|"
    r"no longer exists?\b|cannot be found|could not be found|(?:has|have|had) been (?:removed|deleted|dropped|renamed|replaced|deprecated)|(?:was|were) called\b|(?:was|were|is|are) (?:renamed|replaced)\b|(?:can|could|should|may|will) (?:then )?(?:also )?(?:go|be (?:removed|deleted|dropped))\b|goes away|(?:is|are) (?:no longer needed|obsolete|unnecessary)|"
    r"(?:existier\w+|gibt es|gibt's|ist|sind|war|kennt|fehlt|fehlen\w*)(?: \w+){0,4}? ?(?:nicht|nirgends|kein\w*)|fehlt\b|n['’]existe|no existe)",
    re.IGNORECASE,
)
_MAKE: Final = re.compile(
    r"\b(?:creat(?:e|ing)|generat(?:e|es|ed|ing)|scaffold|introduc(?:e|ing)|writ(?:e|es|ing)|written to|sav(?:e|es|ed|ing)|stor(?:e|ing)|nam(?:e|ing) (?:it|them)|call (?:it|them)|renam(?:e|ing)|mov(?:e|ing)|"
    r"new|own|produc(?:e|es|ing)|put(?:ting)?|place|defin(?:e|ing)|propos\w+|suggest\w*|to be (?:called|named|created|added)|add(?:ing)?|be (?:called|named)|implement(?:ing)?|extract(?:ing)?|split|expos(?:e|ing)|replac(?:e|ing)|"
    r"hypothetical|imaginary|custom|sketch|draft|chang(?:e|ing)|patch|"
    r"anleg\w*|lege?|erstell\w*|erzeug\w*|schreib\w*|hinzufüg\w*|füge?|ergänz\w*|neue[nmrs]?|eigene[nmrs]?|nenn\w*|benenn\w*|cré\w+|ajout\w+|nouve\w+|crea\w*|añad\w+|nuev\w+)\b",
    re.IGNORECASE,
)
_MAKE_AFTER: Final = re.compile(
    r"^[`*_\"')\]]*,? (?:is |being |as |would be |will be |ist )?(?:of course )?(?:a |the |one |your |eine? |deine? )?(?:own |new |neue )?(?:\w+ )?(?:(?:file|module|script|folder|function|class|helper|entry point|variable|app) )?"
    r"(?:(?:that |which )?(?:you|we|I)(?:['’]ll| will| would| have to| need to| can)? (?:create|write|add|make|define)\b|(?:you|we)['’]?d? (?:create|write|add)\b|stands for\b)|^[`*_\"')\]]*,? (?:is|are|ist|est|es) (?:of course )?(?:yours?|deine?|à vous|tuy[ao])\b|^[^.;:]{0,60}\bnew\b",
    re.IGNORECASE,
)
_SUPPOSE: Final = re.compile(
    r"\b(?:if|suppose|supposing|imagine|say|placeholder|assum\w+|would|could|should|might|(?:you|we|one|I) can(?!['’]t|not)|want to|need to|perhaps|maybe|consider|pretend|something like|along the lines of|for example|for instance|e\.g|such as|like|"
    r"let['’]s|given|your|you['’]d|I['’]d|we['’]d|similar to|equivalent\w*|analog\w*|in place of|whatever|any|people|"
    r"falls|angenommen|könnte\w*|würde\w*|sollte\w*|müsste\w*|z\. ?B|zum Beispiel|beispielsweise|etwa|dein\w*|ihre?\w*|euer\w*|wie|par exemple|comme|votre|vos|pourr\w+|por ejemplo|p\. ?ej|como|podr\w+|tu|su)(?=\W|$)",
    re.IGNORECASE,
)
_USE: Final = re.compile(
    r"\b(?:us(?:e|es|ing)|call(?:s|ing)?|run(?:s|ning)?|invok(?:e|ing)|see|via|look at|overrid(?:e|es|ing)|import(?:s|ing)?|subclass|catch|check|"
    r"(?:it|them|one|this|that|object|instance) (?:with|by|using)|verwende\w*|nutz\w*|benutz\w*|ruf\w*|siehe|utilis\w+|appel\w+|voir|us[ae]\w*|llam\w+|véase)\b",
    re.IGNORECASE,
)
PLACEHOLDER: Final = re.compile(
    r"[*?<>{}$%]|\bpath/to\b|/path/|\bfoo\b|\bbar\b|\bbaz\b|\byour[_-]|\bmy[_-]?(?=app|file|module|script|project|package|class|func|plugin|lib|_|-)|\bexample\b|\bsome[_-]|\.\.\.|…|\bXXX\b|\bNAME\b|\bFILE\b",
    re.IGNORECASE,
)
PROPOSES: Final = re.compile(
    r"\b(?:(?:files?|modules?|tests?|things?|scripts?|functions?|classes?|pieces?|helpers?|commands?|steps?) to (?:create|add|write|take|be (?:created|added|written))|create|add|write|wrap|subclass|"
    r"new|would|could|should|might|propos\w*|suggest\w*|sketch\w*|recommend\w*|patch\w*|fix\w*|chang(?:e|es|ing)|replac(?:e|ing)|refactor\w*|rewrit\w*|instead|improve\w*|improvement|after|example|options?|"
    r"(?:removed|deleted|missing)(?: files?)?|do(?:es)? not exist|I['’]d|you['’]d|let['’]s|try|minimal|abhilfe|vorschlag|beispiel|änder\w*|ersetz\w*|könnte\w*|würde\w*|exemple|ejemplo|propuesta)\b",
    re.IGNORECASE,
)
"""What introduces something that is proposed or an example, not shown as it is."""


def covered(sentence: str) -> str:
    """The sentence with what stands in backticks or quotation marks blotted out: it is no part of what is said about it."""
    return _CODE.sub(lambda match: f"{match[0][0]}{'x' * (len(match[0]) - 2)}{match[0][-1]}", sentence)


def clause(sentence: str, start: int, end: int) -> tuple[str, str]:
    """What the clause around `start` to `end` says before it and after it, in a sentence that is `covered`."""
    begin = max((match.end() for match in _BREAK.finditer(sentence, 0, start)), default=0)
    following = _BREAK.search(sentence, end)
    return _back(sentence[begin:start]), sentence[end : following.start() if following else len(sentence)]


def _back(before: str) -> str:
    """From the last comma on, unless that only goes on with a list."""
    parts = before.split(", ")
    kept = parts[-1]
    for part in reversed(parts[:-1]):
        if len(re.findall(r"\w+", _CODE.sub("", kept))) > 1:
            break
        kept = f"{part}, {kept}"
    return kept


def stance(sentence: str, start: int, end: int, lead: str = "") -> Stance:
    """How the sentence stands to what is written from `start` to `end`; `lead` is what introduces the sentence."""
    plain = covered(sentence)
    before, _ = clause(plain, start, end)
    if _unread(plain):
        return "supposed"
    following = re.sub(r"^x+(?=`)", "", plain[end:])  # the rest of a name that is called
    if _DENY_AFTER.search(following) or _DENY.search(before):
        return "denied"
    if _MAKE_AFTER.search(following):
        return "to be made"
    opening = re.search(r"([^.;!?|]*): ?\W*$", plain[: max(0, start - len(before))])
    before = before if opening is None else f"{opening[1]}: {before}"  # what is said before a colon goes on after it
    used = _last(_USE, before)
    if _last(_MAKE, before) > used:
        return "to be made"
    if _last(_SUPPOSE, before) > used:
        return "supposed"
    if lead and PROPOSES.search(covered(lead)) and used < 0:
        return "to be made"
    return "asserted"


def _unread(plain: str) -> bool:
    """Whether it is in a language whose words are not known here: then nothing tells what is asserted."""
    words = re.findall(r"[^\W\d_]+", _CODE.sub(" ", plain).lower())
    return len(words) >= 8 and not any(word in _FUNCTION for word in words)


def _last(pattern: re.Pattern[str], text: str) -> int:
    return max((match.start() for match in pattern.finditer(text)), default=-1)
