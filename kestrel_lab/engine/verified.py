"""How much is done about what an answer claims, from nothing to a judge: a word that runs take, and the plan it makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step

LEVELS: Final = {
    "off": "answers are given as they are",
    "warn": "what looks made up is said beside the answer",
    "repair": "what the deterministic checks refuse is repaired; an answer that still does not pass is reported as failed",
    "judge": "the same, and a model must pass it, by the evidence it cites",
}
ANSWER: Final = "answer_to_verify"
"""The artifact that is verified."""
ROUNDS: Final = 1
_CRITERION: Final = "What it says is shown by the evidence, and nothing in it is made up."


def parse_level(text: str) -> str:
    """`text` as a level; raises `UsageError` with the nearest one."""
    word = text.strip().lower()
    if word not in LEVELS:
        msg = f"{text!r} is no level of verification; {nearest(word, LEVELS)} ({', '.join(f'{name}: {what}' for name, what in LEVELS.items())})"
        raise UsageError(msg)
    return word


def verified(plan: Plan | None, goal: str, level: str) -> Plan | None:
    """`plan` with a step at its end that verifies the answer, where the level asks for it and no step does so already.

    Raises `UsageError` for a plan with several ends: what its answer is then, is not for this to say.
    """
    level = parse_level(level)
    if level not in ("repair", "judge") or (plan is not None and any(step.operation == "verify" for step in plan.steps)):
        return plan
    known = plan or Plan.single(goal)
    ends = known.ends()
    if len(ends) != 1:
        names = ", ".join(step.id for step in ends)
        msg = f"the plan ends in several steps ({names}): let one step wait for them, or add a step with `operation: verify`"
        raise UsageError(msg)
    last = ends[0]
    name = last.produces[0] if last.produces else ANSWER
    made = last if last.produces else replace(last, produces=(name,))
    check = Step(
        id=_free("verify", {step.id for step in known.steps}),
        operation="verify",
        args={"answer": f"{{{{{name}}}}}", "criteria": [_CRITERION], "rounds": ROUNDS, "judge": level == "judge"},
        consumes=(name,),
        after_failure=False,
    )
    return replace(known, steps=(*(made if step.id == last.id else step for step in known.steps), check))


def _free(name: str, taken: set[str]) -> str:
    return next(free for free in (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))) if free not in taken)
