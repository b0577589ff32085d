"""A simulated agent, no model: it answers questions of four options, right with a chance that depends on the question.

The same in all patterns: alone, in an ensemble, in a council. What differs is how often it is asked and what is made of its answers,
which is what the suite measures. On questions of the family `independent` each member errs by itself, in a way of its own; on those of
the family `shared` all are drawn to the same wrong option, as models are that learned from the same texts.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.messages import ModelAnswer, ModelRequest

RIGHT = {"independent": 0.6, "shared": 0.4}
"""How often it is right."""
DRAWN = {"independent": 1 / 3, "shared": 0.8}
"""How often, of the times when it is wrong, it takes the first of the wrong options."""
SWAYED = 0.5
"""How often it joins the larger part in a later round, where it is not part of it."""


def reasoner(request: ModelRequest) -> ModelAnswer:
    """The answer to a question such as `Question 7 (shared), options A B C D, right: B`, in the form that is asked for."""
    first = next(message.text for message in request.messages if message.role == "user")
    asked = re.search(r"Question (\d+) \((\w+)\), options ([A-Z ]+), right: ([A-Z])", first)
    assert asked is not None
    number, family, options, right = asked[1], asked[2], asked[3].split(), asked[4]
    name = re.search(
        r"You are (\w+)\.", request.messages[0].text
    )  # the rest of the system message holds the time of day
    told: list[Json] = [message.text for message in request.messages if message.role == "user"]
    chance = random.Random(  # noqa: S311
        content_key(request.seed, number, name and name[1], told)
    )  # the same again for the same seed
    own = _thought(chance, family, options, right)
    form = set((request.schema or {}).get("properties", {}))  # type: ignore[arg-type]
    held: dict[str, str] = dict(re.findall(r'"(\w+)":\s*\{\s*"position":\s*"([A-Z])"', first))
    votes = re.findall(r'"vote":\s*"(\w+)"', first)
    if "decision" in form:
        said: Json = {
            "decision": held[_most(votes)],
            "reason": "most votes",
            "confidence": votes.count(_most(votes)) / len(votes),
        }
    elif "vote" in form:
        said = {
            "vote": next(
                member for member, position in held.items() if position == _most(list(held.values()))
            ),
            "reason": "most agree",
        }
    elif "position" in form:
        if held:
            member = re.search(r"You are (\w+),", first)
            own = held.get(member[1] if member else "", own)
            own = _most(list(held.values())) if chance.random() < SWAYED else own
        said = {"position": own, "claims": [{"claim": f"it is {own}", "evidence": []}], "confidence": 0.6}
    elif "confidence" in form:
        sure = chance.random() < (0.7 if own == right else 0.3)
        said = {"answer": own, "confidence": 0.9 if sure else 0.5}
    else:
        others = re.findall(r"artifact '\w+' \w+ ---\n([A-Z])\n", first)
        said = _most(others) if others else own
    text = said if isinstance(said, str) else json.dumps(said)
    usage = Usage(
        tokens_in=sum(len(message.text) for message in request.messages) // 4,
        tokens_out=max(1, len(text) // 4),
    )
    return ModelAnswer(text=text, usage=usage)


def _thought(chance: random.Random, family: str, options: Sequence[str], right: str) -> str:
    if chance.random() < RIGHT[family]:
        return right
    wrong = [option for option in options if option != right]
    return wrong[0] if chance.random() < DRAWN[family] else chance.choice(wrong[1:])


def _most(said: Sequence[str]) -> str:
    return Counter(said).most_common(1)[0][0]
