"""Scripted agents that read AGENTS.md and work as it says: no models, so what they are told is all that makes
a difference.
"""

import random
import re

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.messages import ModelAnswer

READ = [("read_file", {"path": "AGENTS.md"})]


def worker(request):
    """Read AGENTS.md first; then answer with every word that it has in capitals, or `nothing` where there is
    none.
    """
    if not any(message.role == "tool" for message in request.messages):
        return READ
    told = "".join(message.text for message in request.messages if message.role == "tool")
    return " ".join(re.findall(r"\b[A-Z]{4,}\b", told.replace("AGENTS", ""))) or "nothing"


def learner(request):
    """Read AGENTS.md first; then be right by a chance that `HELPS` raises and `HARMS` lowers, at more tokens
    where it says `LONG`.
    """
    if not any(message.role == "tool" for message in request.messages):
        return READ
    told = "".join(message.text for message in request.messages if message.role == "tool")
    goal = next(message.text for message in request.messages if message.role == "user")
    chance = 0.5 + 0.45 * (("HELPS" in told) - 0.5) - 0.4 * (("HARMS" in told) - 0.5)
    right = random.Random(f"{request.seed} {goal} {told}").random() < chance
    usage = Usage(
        tokens_in=50, tokens_out=20 + 80 * ("LONG" in told), cost_usd=0.01 if "priced" in goal else 0.0
    )
    return ModelAnswer(text="right" if right else "wrong", usage=usage, model="simulated")
