"""A scripted agent that reads AGENTS.md and works as it says: no model, so what it is told is all that makes a difference."""

import re

READ = [("read_file", {"path": "AGENTS.md"})]


def worker(request):
    """Read AGENTS.md first; then answer with every word that it has in capitals, or `nothing` where there is none."""
    if not any(message.role == "tool" for message in request.messages):
        return READ
    told = "".join(message.text for message in request.messages if message.role == "tool")
    return " ".join(re.findall(r"\b[A-Z]{4,}\b", told.replace("AGENTS", ""))) or "nothing"
