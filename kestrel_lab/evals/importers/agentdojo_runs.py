"""AgentDojo's run files, one JSON object a file, as recordings: messages, calls, results, utility and
security.
"""

from __future__ import annotations

from typing import Any

from kestrel_lab.evals.benchmarks.agentdojo import RESISTED, UTILITY, suite_name
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    read_messages,
    record_digest,
)


def is_agentdojo(value: Any) -> bool:
    """Return whether a JSON value looks like a run file of AgentDojo."""
    return (
        isinstance(value, dict)
        and {"pipeline_name", "suite_name", "user_task_id", "messages"} <= value.keys()
    )


def agentdojo_recording(value: dict[str, Any], source: str) -> Recording:
    """Return the recording; suite, scenario and scores are named as `agentdojo:SUITE` of this package names
    them.

    A task passes if the user's task was done and, under attack, the attacker's was not: `security` is true of
    an attack that succeeded. The benchmark counts a task that broke as not done, and so does this. The files
    tell neither tokens nor prices, and of times only the whole duration. Raises `KeyError`, `TypeError` or
    `ValueError` for another shape.
    """
    attack, injection = value.get("attack_type"), value.get("injection_task_id")
    attack = None if attack == "none" else attack
    done, obeyed = bool(value["utility"]), bool(value["security"])
    scores = [_score(UTILITY, done, "" if done else f"{value['user_task_id']} was not done")]
    if attack:
        scores.append(_score(RESISTED, not obeyed, f"{injection} was done" if obeyed else ""))
    said, left_out = read_messages(
        value["messages"],
        lambda message: None if message["role"] == "system" else _read_message(message),
        source,
    )
    # What broke before the first answer has no messages.
    if not said:
        said = [
            ImportedMessage(
                role="user",
                text=f"{value['suite_name']}/{value['user_task_id']} of AgentDojo; the recording has no "
                "messages",
            )
        ]
    system = [one for one in value["messages"] if isinstance(one, dict) and one.get("role") == "system"]
    names = [value["suite_name"], value["user_task_id"], *([injection] if attack and injection else [])]
    return Recording(
        format="agentdojo",
        source=source,
        id="/".join(map(str, [value["pipeline_name"], *names, *([attack] if attack else [])])),
        digest=record_digest("agentdojo", value),
        model=str(value["pipeline_name"]),
        system="\n\n".join(_text(message) for message in system),
        messages=said,
        seconds=float(value["duration"]) if value.get("duration") is not None else None,
        error=str(value.get("error") or ""),
        suite=suite_name(str(value["suite_name"]), attack),
        scenario="/".join(map(str, names)),
        family=attack or "no attack",
        config=str(value["pipeline_name"]),
        scores=tuple(scores),
        passed=all(bool(score["passed"]) for score in scores),
        facts={"injections": value.get("injections") or {}, "utility": done, "security": obeyed},
        left_out=left_out,
    )


def _read_message(message: dict[str, Any]) -> ImportedMessage:
    if message["role"] == "assistant":
        calls = tuple(
            ImportedCall(tool=call["function"], args=dict(call["args"]), id=call.get("id") or "")
            for call in message.get("tool_calls") or ()
        )
        return ImportedMessage(role="assistant", text=_text(message), calls=calls)
    if message["role"] == "tool":
        # What the model was shown of a call that failed is its error.
        return ImportedMessage(
            role="tool",
            text=_text(message),
            call=message.get("tool_call_id") or "",
            error=str(message.get("error") or ""),
        )
    if message["role"] != "user":
        raise ValueError(f"a message has the role {message['role']!r}")
    return ImportedMessage(role="user", text=_text(message))


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    # Newer versions write a list of blocks.
    if isinstance(content, list):
        return "\n\n".join(str(part.get("content") or part.get("text") or "") for part in content)
    return str(content or "")


def _score(check: str, passed: bool, reason: str) -> dict[str, Any]:  # the score's own field
    return {"check": check, "passed": passed, "value": float(passed), "reason": reason}
