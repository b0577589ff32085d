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
    described_task,
    read_call,
    read_calls,
    read_parts,
    record_digest,
)
from kestrel_lab.evals.importers.json_fields import Broken, JsonFields


def is_agentdojo(value: Any) -> bool:
    """Return whether a JSON value looks like a run file of AgentDojo."""
    return isinstance(value, dict) and {"pipeline_name", "suite_name", "user_task_id"} <= value.keys()


def agentdojo_recording(value: dict[str, Any], source: str) -> Recording:
    """Return the recording; suite, scenario and scores are named as `agentdojo:SUITE` of this package names
    them.

    A task passes if the user's task was done and, under attack, the attacker's was not: `security` is true of
    an attack that succeeded. The benchmark counts a task that broke as not done, and so does this; where one
    of the two verdicts is missing, the trial broke. The files tell neither tokens nor prices, and of times
    only the whole duration. Raises `ValueError` for a file that names no task.
    """
    left_out: list[Broken] = []
    record = JsonFields(value, source, left_out, whole=True)
    pipeline, suite, task = (record.label(key) for key in ("pipeline_name", "suite_name", "user_task_id"))
    if not (pipeline and suite and task):
        raise ValueError("it does not name pipeline, suite and task")
    attack, injection = record.label("attack_type"), record.label("injection_task_id")
    attack = "" if attack == "none" else attack
    done, obeyed = record.flag("utility"), record.flag("security")
    scores = [] if done is None else [_score(UTILITY, done, "" if done else f"{task} was not done")]
    if attack and obeyed is not None:
        scores.append(_score(RESISTED, not obeyed, f"{injection} was done" if obeyed else ""))
    judged = len(scores) == (2 if attack else 1)
    system: list[str] = []
    messages = read_parts(record.parts("messages"), lambda one: _read_message(one, system), left_out)
    # What broke before the first answer has no messages.
    if not messages:
        messages = [described_task(f"{suite}/{task} of AgentDojo; the recording has no messages")]
    names = [suite, task, *([injection] if attack and injection else [])]
    return Recording(
        format="agentdojo",
        source=source,
        id="/".join([pipeline, *names, *([attack] if attack else [])]),
        digest=record_digest("agentdojo", value),
        model=pipeline,
        system="\n\n".join(system),
        messages=messages,
        seconds=record.amount("duration"),
        error=record.text("error"),
        suite=suite_name(suite, attack or None),
        scenario="/".join(names),
        family=attack or "no attack",
        group="/".join(map(str, names[:2])),
        config=pipeline,
        scores=tuple(scores),
        passed=all(bool(score["passed"]) for score in scores) if judged else None,
        unjudged="" if judged else "the file does not say whether it passed: utility or security is missing",
        facts={"injections": dict(record.fields("injections")), "utility": done, "security": obeyed},
        left_out=tuple(left_out),
    )


def _read_message(message: JsonFields, system: list[str]) -> list[ImportedMessage]:
    role, text = message["role"], _read_text(message)
    if role == "system":
        system.append(text)
        return []
    if role == "assistant":
        return [
            ImportedMessage(
                role="assistant", text=text, calls=read_calls(message.objects("tool_calls"), _read_call)
            )
        ]
    if role == "tool":
        # What the model was shown of a call that failed is its error.
        call, error = message.label("tool_call_id"), message.text("error")
        return [ImportedMessage(role="tool", text=text, call=call, error=error)]
    if role != "user":
        raise ValueError(f"a message has the role {role!r}")
    return [ImportedMessage(role="user", text=text)]


def _read_call(call: JsonFields) -> ImportedCall:
    return read_call(call["function"], call.get("args"), call.label("id"))


def _read_text(message: JsonFields) -> str:
    """Return the text of a message; newer versions write blocks whose text is their `content`."""
    if not isinstance(message.get("content"), list):
        return message.text("content")
    texts = [block.text("content", "text") for block in message.objects("content")]
    return "\n\n".join(texts)


def _score(check: str, passed: bool, reason: str) -> dict[str, Any]:  # the score's own field
    return {"check": check, "passed": passed, "value": float(passed), "reason": reason}
