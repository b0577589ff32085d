"""Scripted models for the suites, workflows and commands of the pages, behind a local server.

No real model answers here: each goal has a script that does what a good agent would do.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from openai_server import OpenAIServer, Reply

Call = tuple[str, dict[str, Any]]
Said = str | list[Call]

GRADE: Final = json.dumps({"score": 1, "why": "it does"})
"""What a grader says."""
SCRIPTS: Final[dict[str, list[Said]]] = {
    "Add up the column": [
        [("read_file", {"path": "orders.csv"})],
        [("write_file", {"path": "total.txt", "content": "7"})],
        "The sum is in total.txt.",
    ],
    "Which file defines": ["a.py"],
    "Which Python files of this folder": [[("grep", {"pattern": "def "})], "Only a.py defines a function."],
    "Which files name a price": [
        [("bash", {"command": "grep -rl price ."})],
        [("grep", {"pattern": "price"})],
        [("read_file", {"path": "shop.txt"})],
        "shop.txt names a price.",
    ],
    "Name the three causes": ["Rain, frost and wind; the cost was 1,200 euros. (rain, frost, wind)"],
    "What is the capital": ["Canberra"],
    "I want to return my shoes": ["Order 7 is refunded: you get the money back."],
    "Answer the customer": ["You get your money back within 14 days."],
    "Read mail.txt": [[("read_file", {"path": "mail.txt"})], "Ada gets the refund."],
    "What is 17 + 25": ["42"],
    "What is 19 * 21": ["399"],
    "Write the notes": ["The sum is 42."],
    "Judge the draft": [json.dumps({"verdict": "accept", "issues": []})],
    "Count the Python files": ["There is one Python file."],
    "the total of invoice 7": [[("read_file", {"path": "invoices.txt"})], "Invoice 7 is 120 euros."],
    "When is invoice 8 due": [[("read_file", {"path": "invoices.txt"})], "Invoice 8 is due on 2 May."],
}
"""What an agent says and does, turn by turn, for goals that begin so."""


class PageServer(OpenAIServer):
    """Answers like an agent that does what the pages say; anything else with `otherwise`."""

    def __init__(self, otherwise: str = "a.py") -> None:
        super().__init__([Reply(text=otherwise)])

    def take(self, body: bytes, headers: dict[str, str]) -> Reply:
        """Note the request and give the next turn of the script for its goal."""
        with self._lock:
            self.bodies.append(body)
            self.headers_seen.append(headers)
        return _reply(json.loads(body), self.replies[0])


def _reply(asked: dict[str, Any], otherwise: Reply) -> Reply:
    messages = asked["messages"]
    goal = next((_text(one) for one in messages if one["role"] == "user"), "")
    turn = sum(one["role"] == "assistant" for one in messages)
    if goal.startswith("Judge an answer"):
        return Reply(text=_verdict_on(goal))
    if any('{"score"' in _text(one) for one in messages):
        return Reply(text=GRADE)
    if goal.startswith("Make a plan"):
        return Reply(text=_plan_for(goal))
    if "choose who does" in goal:
        return Reply(text=json.dumps({"route": "talk", "reason": "a question", "confidence": 0.9}))
    script = next((said for begin, said in SCRIPTS.items() if begin in goal[:400]), None)
    if script is None:
        return otherwise
    said = script[min(turn, len(script) - 1)]
    if isinstance(said, str):
        return Reply(text=said)
    return Reply(calls=tuple((name, json.dumps(args)) for name, args in said))


def _verdict_on(question: str) -> str:
    """Return that an answer meets its one criterion, shown by the first evidence in the question."""
    evidence = re.findall(r"begin artifact '(?:span|call) (\S+) of ", question)[:1]
    met = {"criterion": 1, "met": True, "why": "it does", "evidence": evidence}
    return json.dumps({"criteria": [met], "confidence": 1})


def _plan_for(goal: str) -> str:
    """Return a plan of one step, which is the whole goal."""
    wanted = goal.split("\n\n")[1]
    plan = {"steps": [{"id": "work", "goal": wanted}], "acceptance_criteria": ["the goal is reached"]}
    return json.dumps(plan)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)
