"""The intent of a goal: a question, a change of code, an explanation, research, or a plan.

A model decides where there is one, in any language. Rules, which know English, decide without one and where
its answer cannot be used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, get_args

Intent = Literal["question", "edit", "explanation", "research", "plan"]
INTENTS: Final[tuple[Intent, ...]] = get_args(Intent)
_LONG: Final = 25
"""Words."""
AskModel = Callable[[str], Awaitable[str]]
"""Asks a model a question; its answer is text."""

_EDIT: Final = (
    r"(?:fix|add|implement|change|refactor|rename|remove|delete|write|create|update|replace|make|migrate|port|convert|move|bump|rewrite|"
    r"extend|correct|repair|drop|deprecate|introduce|insert|split|merge|extract|inline|support|handle|wire|raise|set|apply|revert|"
    r"upgrade|downgrade|patch|edit|modify|adjust|simplify|optimi[sz]e|speed up|clean "
    r"up|turn|put|let|ensure|reformat|format|translate|"
    r"configure|enable|disable|parametri[sz]e|vectori[sz]e|type|annotate|document|resolve|append|prepend|sort|increase|decrease|store|save)"
)
_POLITE: Final = (
    r"(?:(?:please|now|then|also|first|next|finally|and)[, ]+|(?:can|could|would|will) you (?:please "
    r")?|(?:i|we) (?:want|need|would like)"
    r" you to |let'?s |(?:i|we) (?:need|want) to |you should |your task is to |try to |help me (?:to )?)*"
)
_THING: Final = (
    r"(?:functions?|class(?:es)?|methods?|tests?|files?|modules?|scripts?|docstrings?|readme|imports?"
    r"|options?|flags?|types?|bugs?|code|configs?|endpoints?|api)"
)
_CARRIED_OUT: Final = rf"(?!.*\b(?:and|then) (?:then )?(?:{_EDIT}|execute|carry|do|follow|start|begin|run)\b)"
"""Excludes goals whose plan is also to be carried out."""
_ASKS: Final = (
    r"^(?!(?:what|which|where|who|whose|when|why|is|are|was|were|does|do|did|has|have|had|how "
    r"(?:does|do|did|is|are|was|many|much))\b)"
)
"""Excludes questions about things that exist."""
_RULES: Final[tuple[tuple[Intent, float, str], ...]] = (
    ("edit", 3, rf"^{_POLITE}{_EDIT}\b"),
    ("edit", 2, rf"[,;:.] {_POLITE}{_EDIT} \w"),
    (
        "edit",
        3,
        r"\b(?:to reproduce|bug report|(?:expected|actual) (?:behaviou?rs?|results?|outputs?)|minimal "
        r"(?:working )?example|feature request)\b",
    ),
    ("edit", 2, r"\b[A-Z]\w*(?:Error|Exception)\b(?!.*\?$)"),
    ("edit", 1, rf"\b{_EDIT} (?:the |a |an |all |this |that |its |our |my )?(?:\S+ ){{0,3}}{_THING}\b"),
    (
        "edit",
        1.5,
        r"\bso that\b|\binstead of\b|\bshould (?:not |now |also "
        r")?(?:return|raise|accept|be|print|use|fail|support|give|do)\b",
    ),
    (
        "edit",
        1.5,
        r"\b(?:fails?|crash(?:es)?|breaks?|is broken|does(?:n't| not) "
        r"work|throws?|traceback|regression|wrong result)\b(?!.*\?$)",
    ),
    ("edit", 2.5, rf"\band (?:then |also )?{_EDIT} (?:it|them|those|these|each|all|every)\b"),
    ("edit", 2, r"\bmake (?:it|them|sure|this)\b|\bopen a pull request\b|\bcommit\b.*\b(?:it|change)"),
    (
        "explanation",
        3.5,
        rf"^{_POLITE}(?:explain|describe|walk (?:me|us) through|outline|clarify|illustrate|teach|give "
        r"(?:me |us )?an (?:overview|explanation))\b",
    ),
    (
        "explanation",
        3,
        r"\bhow "
        r"(?:does|do|is|are|did)\b.{3,80}\b(?:work|works|implemented|structured|organi[sz]ed|built"
        r"|connected|handled|interact|fit "
        r"together|designed)\b",
    ),
    ("explanation", 2, r"^how (?:does|do|did|is|are|was|were)\b"),
    (
        "explanation",
        2.5,
        r"^why\b|\bwhy (?:does|do|is|are|did|was)\b|\bwhat happens "
        r"(?:when|if|after|before|between)\b|\bthe (?:idea|reason|design|architecture|rationale) "
        r"(?:behind|of)\b",
    ),
    (
        "explanation",
        2,
        r"\b(?:architecture|overview|in your own words|step by step|control flow|data flow|life "
        r"?cycle|mental model|understand)\b",
    ),
    ("explanation", 2, rf"^{_POLITE}summari[sz]e\b"),
    (
        "explanation",
        1.5,
        r"^what does\b.{3,80}\bdo\b|\bsummari[sz]e (?:the|this|how) "
        r".{0,30}\b(?:module|class|code|design|package|function|file)\b|\brole of\b",
    ),
    (
        "research",
        3.5,
        rf"^{_POLITE}(?:research|survey|investigate|compare|evaluate|assess|review the literature|look "
        r"up|search (?:the web|online|for)|gather|collect|benchmark|recommend)\b",
    ),
    (
        "research",
        2.5,
        r"\b(?:pros and cons|trade-?offs?|best practices?|state of the "
        r"art|latest|newest|up-to-date|literature|papers?|sources?|citations?|alternatives?"
        r"|market|trends?|competitors?|on "
        r"the web|online)\b",
    ),
    (
        "research",
        2,
        r"\bwhich "
        r"(?:library|libraries|framework|frameworks|tool|tools|database|model|models|service|approach)"
        r"\b.*\b(?:should|best|better|recommended|suits?)\b|\b(?:vs\.?|versus)\b|\bdifferences? "
        r"between\b",
    ),
    ("research", 2.5, r"\bshould (?:we|i|one) (?:use|choose|pick|take|buy|adopt)\b"),
    (
        "research",
        1.5,
        rf"^{_POLITE}(?:find out|report on|write (?:a|an) (?:report|survey|summary of the)|prepare a "
        r"report)\b|\breport\b.*\bsources?\b",
    ),
    ("plan", 6, rf"^{_CARRIED_OUT}{_POLITE}plan\b(?!\s+(?:is|was|has|does|\w+s)\b)"),
    (
        "plan",
        6,
        rf"{_ASKS}{_CARRIED_OUT}(?:(?!\bplans?\b).)*?\b(?:an?|your|another) (?:[\w'-]+ "
        rf"){{0,3}}(?:plan|roadmap)\b(?=\W*$|[,.:;!?)]|\s+(?:for|to|of|how|on|with|that|which|in|before|first|and)\b)",
    ),
    (
        "question",
        1.5,
        r"^(?:what|which|where|who|whom|whose|when|how (?:many|much|long|often|old|far|big|large))\b",
    ),
    (
        "question",
        1.5,
        r"^(?:is|are|was|were|does|do|did|has|have|had|can|could|will|would|should|may|must)\b",
    ),
    ("question", 0.5, r"\?\s*$"),
    (
        "question",
        2,
        rf"^{_POLITE}(?:tell me|find|list|name|count|show|give (?:me "
        r")?the|say|report|read|locate|identify|look at|check "
        r"whether|determine|calculate|compute|answer|state|print)\b",
    ),
)
_QUESTION: Final = """\
What does this goal ask an assistant for, in whatever language it is?

{goal}

Answer with one word: question (a fact), edit (a change of files), explanation (how or why something works), \
research (several sources \
compared), plan (steps that somebody is to carry out later). A goal that asks a question and for a plan is a \
plan; one whose plan is to be carried out at once is an edit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IntentGuess:
    """The likely intent of a goal."""

    intent: Intent
    share: float
    """Share of all evidence that supports this intent, from 0 to 1; 1 where a model decided.

    A weight of rules, not a probability.
    """
    by: str = "rules"
    """`rules` or `model`."""


@cache
def _rules() -> tuple[tuple[Intent, float, re.Pattern[str]], ...]:
    """Compile the rules on first use: that takes longer than importing this module."""
    return tuple(
        (intent, weight, re.compile(pattern, re.IGNORECASE | re.MULTILINE))
        for intent, weight, pattern in _RULES
    )


def guess_intent(goal: str) -> IntentGuess:
    """Return the intent of `goal`, by rules over its first 2,000 characters.

    Without evidence it is a question, or, if it is long and asks nothing, a change.
    """
    # Words in code say nothing about what is asked for.
    text = re.sub(r"```.*?(?:```|\Z)", " ", goal[:2000], flags=re.DOTALL).strip()
    votes: Counter[Intent] = Counter()
    for intent, weight, pattern in _rules():
        if pattern.search(text):
            votes[intent] += weight  # type: ignore[assignment]  # weights may be halves
    if not votes:
        return IntentGuess(
            intent="edit" if len(text.split()) > _LONG and "?" not in text else "question", share=0.0
        )
    best = max(INTENTS, key=lambda intent: votes[intent])
    return IntentGuess(intent=best, share=votes[best] / votes.total())


async def decide_intent(goal: str, ask_model: AskModel | None = None) -> IntentGuess:
    """Return the intent that a model names, else that of `guess_intent`: where there is no model, or its
    answer names none or several.
    """
    by_rules = guess_intent(goal)
    if ask_model is None:
        return by_rules
    answer = (await ask_model(_QUESTION.format(goal=goal[:4000]))).lower()
    named = [intent for intent in INTENTS if re.search(rf"\b{intent}\b", answer)]
    return IntentGuess(intent=named[0], share=1.0, by="model") if len(named) == 1 else by_rules
