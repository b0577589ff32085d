"""The steps that a level of verification and an answer form add to a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from kestrel_lab.answers.contracts import (
    AUTO,
    CONTRACTS,
    NONE,
    Contract,
    contract_named,
    parse_form,
    parse_level,
)
from kestrel_lab.answers.output_types import OutputType
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.templates import escape_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import REPORTS, Plan
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.artifacts import answering_steps

ANSWER: Final = "answer_to_verify"
"""The artifact that is verified where the plan names none."""
ROUNDS: Final = 1
FORM_ROUNDS: Final = 2
"""Repairs of an answer that must keep a form."""
_CRITERION: Final = "What it says is shown by the evidence, and nothing in it is made up."


def form_for(given: str | None, default: str, plan: Plan | None) -> str:
    """Return the form `given` for a run, or the `default`; a default of `auto` does not apply to plans."""
    if given:
        return parse_form(given)
    return NONE if default == AUTO and plan is not None else default


def with_verification(plan: Plan | None, goal: str, level: str, form: str = NONE) -> Plan | None:
    """Return `plan` with a last step that verifies the answer or reports on it, where the level or the form
    asks for that.

    A plan that verifies already only gets the form, in its last verification. `auto` without a plan gives one
    that first classifies the goal. Raises `UsageError` for `auto` beside a plan, and for a plan with several
    ends, whose answer is not defined.
    """
    level = parse_level(level)
    if level == "quality":
        return _with_report(with_verification(plan, goal, "off", form) or Plan.single(goal))
    if form == AUTO:
        if plan is not None:
            raise UsageError(
                "the form 'auto' is for runs without a plan of their own; name the form instead: "
                f"{', '.join(CONTRACTS)}"
            )
        return Plan(
            steps=(
                Step(id="intake", operation="intake", args={"goal": escape_template(goal), "verify": level}),
            )
        )
    contract = None if form == NONE else contract_named(form)
    verifies = plan is not None and any(step.operation == "verify" for step in plan.steps)
    if contract is None and (level not in ("repair", "judge") or verifies):
        return plan
    known = plan or Plan.single(goal)
    last = _last_step(known)
    if last.operation == "verify" and contract is not None:
        return _with_form(known, last, contract)
    name = last.produces[0] if last.produces else ANSWER
    made = _with_claims(
        _with_instructions(last if last.produces else replace(last, produces=(name,)), contract), contract
    )
    check = verification_step(_free_name("verify", {step.id for step in known.steps}), name, level, form)
    return replace(known, steps=(*(made if step.id == last.id else step for step in known.steps), check))


def with_output_type(plan: Plan | None, goal: str, output: OutputType[Any], form: str = NONE) -> Plan:
    """Return `plan` with its answer asked for as `output`; raises `UsageError` beside a form, and where the
    answer has another schema.

    Where no agent gives the answer, what the last step gives is checked when the run ends.
    """
    if form != NONE:
        raise UsageError(f"an answer cannot have an output type and the form {form!r}: leave out one of them")
    known = plan or Plan.single(goal)
    makers = {step.id for step in answering_steps(known)}
    return replace(
        known,
        steps=tuple(_step_with_output(step, output) if step.id in makers else step for step in known.steps),
    )


def _step_with_output(step: Step, output: OutputType[Any]) -> Step:
    if step.schema == output.schema:
        return step
    if step.schema is not None:
        raise UsageError(
            f"step {step.id!r} gives the answer and has a schema of its own: leave out output, or the schema"
        )
    return replace(
        step, schema=output.schema, instructions=_join_instructions(step.instructions, output.instructions)
    )


def quality_step(step: str, artifact: str) -> Step:
    """Return the step that reports on the quality of `artifact`, by checks and by a model."""
    return Step(
        id=step,
        operation="quality",
        args={"answer": f"{{{{{artifact}}}}}", "model": True},
        consumes=(artifact,),
    )


def _with_report(plan: Plan) -> Plan:
    """Return `plan` with a report on its answer; one that has a report already is returned as it is."""
    if any(step.operation in REPORTS for step in plan.steps):
        return plan
    last, artifacts = _last_step(plan), {name for step in plan.steps for name in step.produces}
    name = last.produces[0] if last.produces else _free_name(ANSWER, artifacts)
    steps = (
        replace(step, produces=step.produces or (name,)) if step.id == last.id else step
        for step in plan.steps
    )
    return replace(
        plan, steps=(*steps, quality_step(_free_name("quality", {step.id for step in plan.steps}), name))
    )


def _last_step(plan: Plan) -> Step:
    ends = plan.ends()
    if len(ends) != 1:
        names = ", ".join(step.id for step in ends)
        raise UsageError(
            f"the plan ends in several steps ({names}): let one step wait for them, or add a step with "
            "`operation: verify`"
        )
    return ends[0]


def verification_step(step: str, artifact: str, level: str, form: str = NONE) -> Step:
    """Return the step that verifies and repairs `artifact` as the level and the form ask."""
    args: dict[str, Json] = {"answer": f"{{{{{artifact}}}}}"}
    if form != NONE:
        args |= {"form": form, "facts": level in ("repair", "judge")}
    args |= {
        "criteria": [_CRITERION],
        "rounds": ROUNDS if form == NONE else FORM_ROUNDS,
        "judge": level == "judge",
    }
    return Step(id=step, operation="verify", args=args, consumes=(artifact,), after_failure=False)


def _with_form(plan: Plan, last: Step, contract: Contract) -> Plan:
    """Return the plan with the form in its own last verification, unless that asks for one already."""
    if last.args.get("form"):
        return plan
    asks = replace(last, args={**last.args, "form": contract.name})
    makers = {step.id for step in plan.steps if set(step.produces) & last.references}
    steps = (
        asks if step.id == last.id else _with_instructions(step, contract) if step.id in makers else step
        for step in plan.steps
    )
    return replace(plan, steps=tuple(steps))


def _with_instructions(step: Step, contract: Contract | None) -> Step:
    """Return an agent's step with the instructions of the contract."""
    if contract is None or not step.goal:
        return step
    return replace(step, instructions=_join_instructions(step.instructions, contract.instructions))


def _join_instructions(instructions: str, more: str) -> str:
    return "\n\n".join(text for text in (instructions.strip(), more) if text)


def _with_claims(step: Step, contract: Contract | None) -> Step:
    """Return an agent step that must answer as claims with citations, unless it has a form."""
    if contract is not None or not step.goal or step.schema is not None:
        return step
    from kestrel_lab.answers.claim_form import HOW, ClaimedAnswer  # with pydantic: only where it is asked for

    output = OutputType.of(ClaimedAnswer)
    assert output is not None
    return replace(
        step,
        schema=output.schema,
        instructions=_join_instructions(_join_instructions(step.instructions, output.instructions), HOW),
    )


def _free_name(name: str, taken: set[str]) -> str:
    return next(
        free
        for free in (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
        if free not in taken
    )
