"""The operation `verify`: verifiers judge an answer, which is repaired until it passes or rounds end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from kestrel_lab.answers.claim_markdown import as_markdown, asks_for_claims, claims_given
from kestrel_lab.answers.contracts import contract_named, is_abstention
from kestrel_lab.checks.llm_judge import SCHEMA, judge_prompt, verdict_of
from kestrel_lab.core.calls import format_count
from kestrel_lab.core.citations import Span, is_current
from kestrel_lab.core.errors import UnmetError, UsageError
from kestrel_lab.core.events.union import ModelEscalated, StepFinished, VerifierFinished, VerifierStarted
from kestrel_lab.core.expressions.templates import escape_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Claim, Evidence, Verification, Verifier
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.step import Step
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.operations.arguments import Arguments, step_dialogue, temperature_of
from kestrel_lab.runtime.operations.verifiers import VERDICT, Cites, Formed, Grounded, ModelVerifier, Vote
from kestrel_lab.runtime.review.evidence_table import changed_spans, cited_spans
from kestrel_lab.verification.evidence import cited_share, evidence_of, span_as_now
from kestrel_lab.verification.subject import Subject

ROUNDS = 2
"""Repairs, unless a step says otherwise."""
MOST_JUDGED = 30
"""Claims that a model is asked about, one by one."""
_DEFAULT = "The answer reaches the goal, and nothing in it is made up."
_REPAIR = """\
Put an answer to this goal right:

{goal}

The artifacts below hold the answer so far, what a verifier found wrong with it, and the criteria it must \
meet. Use tools to find out \
what is true, do what is missing, then give the whole answer anew, without talking about the earlier one."""

_REFERENCE = re.compile(r"\{\{\s*(?P<a>[^\W\d][\w-]*)\s*\}\}|\$\{\s*(?P<b>[^\W\d][\w-]*)\s*\}")


async def verify(scope: Scope) -> Done:
    """Judge an answer: it passes if every verifier that the step asks for passes it.

    Arguments of the step: `answer`, a reference to the artifact that it consumes; `criteria`, a list; `goal`,
    the run's if not given; `rounds`, how often the answer is repaired at most; `escalate`, models for the
    first, second … repair (the last of them for all that follow); `form`, the name of a contract that the
    answer has to keep (see `answers.contracts`), which is checked first; `facts`, whether its facts are
    checked in workspace and log (yes); `judge`, whether a model is asked beside the deterministic checks
    (yes); `judges`, models of which most must pass it; `support`, from 0 to 1, the share of its claims that
    must cite something that is there, unless the answer says that it does not know. The plan's own acceptance
    criteria, and those that an operation `plan` proposed which the step waits for, hold as well. Steps it
    waits for that failed are issues too.

    Its output is the answer that passed; one that was given as claims with citations (`answers.claim_form`)
    is Markdown then. One that does not pass grows a step `STEP/repair#N`, which produces the answer anew, and
    the next round `STEP#N`. After the last round a `RunError` tells what is still wrong; an answer with which
    nothing is wrong but its form is given then, and the verdict on the form is in the log.
    """
    order = _Order(scope)
    answer, issues, form = order.text, list(order.failed), list[str]()
    if not answer:
        issues.append("there is no answer")
    for judge in order.verifiers() if answer else ():
        claim = Claim(
            goal=order.goal,
            answer=answer,
            criteria=order.criteria,
            evidence=await evidence_for(scope, answer, order.goal),
        )
        found = await _run_verifier(judge, claim, scope)
        (form if isinstance(judge, Formed) else issues).extend(found)
    issues += await _citation_issues(scope, order)
    over = order.round > order.rounds
    # What is right in another form is given, with what is wrong with its form beside it.
    if not issues and (not form or over):
        return Done(output=answer if order.claims else order.answer)
    issues = [*form, *issues]
    if over:
        times = f"{format_count(order.rounds, 'repair')}"
        raise UnmetError(
            f"the answer does not meet its criteria after {times}: "
            f"{'; '.join(one_line(issue, 300) for issue in issues)}"
        )
    return Done(grows=order.growth(answer, issues))


async def _run_verifier(judge: Verifier, claim: Claim, scope: Scope) -> tuple[str, ...]:
    """Return the issues of a verifier, and record its verdict."""
    ctx, step = scope.ctx, scope.step.id
    ctx.emit(VerifierStarted(step=step, verifier=judge.name, criteria=list(claim.criteria)))
    found = await judge(claim)
    ctx.emit(
        VerifierFinished(
            step=step,
            verifier=judge.name,
            passed=found.passed,
            confidence=found.confidence,
            issues=list(found.issues),
        )
    )
    return (
        ()
        if found.passed
        else found.issues or (f"the verifier {judge.name!r} did not pass it and gave no reason",)
    )


class _Order:
    """The checked arguments of a step."""

    def __init__(self, scope: Scope) -> None:
        args = Arguments(scope)
        self._scope = scope
        self.artifact = _artifact(scope.step)
        self.answer = scope.inputs[self.artifact]
        self.goal = args.goal()
        self.rounds = args.whole("rounds", ROUNDS, least=0)
        self.round = args.whole("round", 1, least=1)
        asked = self._maker is not None and asks_for_claims(self._maker.schema)
        self.claims = claims_given(self.answer) if asked or not isinstance(self.answer, str) else []
        self.text = (as_markdown(self.claims) if self.claims else as_text(self.answer)).strip()
        self.judge = args.flag("judge", default=True)
        self.facts = args.flag("facts", default=True)
        self.contract = contract_named(form) if (form := args.text("form")) else None
        self.support = args.share("support", 0)
        self.judges, self.escalate = args.texts("judges"), args.texts("escalate")
        for model in (*self.judges, *self.escalate):
            # Refused here, before any judge is paid: a later model may have a typing error.
            scope.ctx.given.resolve(model)
        written = dict.fromkeys(
            (*scope.plan.acceptance_criteria, *args.texts("criteria"), *_proposed_criteria(scope, args))
        )
        self.criteria = tuple(text for text in written if text.strip()) or (_DEFAULT,)
        went = cast("dict[str, dict[str, Json]]", scope.steps)
        self.failed = tuple(
            f"step {name} {'was ' if how['skipped'] else 'failed: '}{one_line(str(how['reason']), 300)}"
            for name, how in went.items()
            if not how["ok"]
        )
        """The failures of the steps it waits for."""

    def verifiers(self) -> tuple[Verifier, ...]:
        """Return the step's verifiers: form, citations, facts, then models, at temperature 0 by default."""
        if not (self.facts or self.judge or self.contract or self.support):
            msg = (
                "the operation 'verify' has nothing to check: facts and judge are off, and neither "
                "form nor support is requested"
            )
            raise UsageError(msg)
        scope, found = self._scope, list[Verifier]()
        if self.contract is not None:
            found.append(Formed(self.contract, Path(scope.ctx.given.workspace.root)))
        if self.claims:
            found.append(Cites(scope, self.claims))
        if self.facts:
            found.append(Grounded(scope))
        if self.judge:
            judges = tuple(
                _model_judge(scope, self, number, model)
                for number, model in enumerate(self.judges or ("",), 1)
            )
            found += (
                [_ClaimJudge(scope, self.claims, self.judges[0] if self.judges else "")]
                if self.claims
                else []
            )
            found.append(judges[0] if len(judges) == 1 else Vote(judges))
        return tuple(found)

    def growth(self, answer: str, issues: Sequence[str]) -> tuple[Step, ...]:
        """Return the step that repairs the answer, and the next round."""
        step = self._scope.step
        first = step.id if self.round == 1 else step.id.removesuffix(f"#{self.round}")
        repair = Step(
            id=f"{first}/repair#{self.round}",
            goal=_REPAIR.format(goal=self.goal),
            given={"answer so far": answer, "what is wrong": list(issues), "criteria": list(self.criteria)},
            produces=(self.artifact,),
            model=self._model(self.round),
            schema=None if self._maker is None else self._maker.schema,
            instructions=who.instructions if (who := self.contract or self._maker) is not None else "",
            stage="repair" if step.stage else "",
        )
        if repair.model != (before := self._model(self.round - 1)):
            source = before or self._scope.ctx.given.model.name
            self._scope.ctx.emit(
                ModelEscalated(
                    step=repair.id, source=source, target=repair.model, reason=one_line(issues[0], 200)
                )
            )
        again = replace(
            step,
            id=f"{first}#{self.round + 1}",
            parent="",
            depends_on=(repair.id,),
            when="",
            # A repair that failed leaves the last answer, which is judged once more.
            after_failure=True,
            args={
                "goal": escape_template(self.goal),
                "answer": f"{{{{{self.artifact}}}}}",
                "criteria": escape_template(list[Json](self.criteria)),
                "rounds": self.rounds,
                "round": self.round + 1,
                "escalate": escape_template(list[Json](self.escalate)),
                "judge": self.judge,
                "support": self.support,
                "judges": escape_template(list[Json](self.judges)),
                "form": "" if self.contract is None else self.contract.name,
                "facts": self.facts,
            },
        )
        return repair, again

    @property
    def _maker(self) -> Step | None:
        """The step whose schema the answer has, which a repair keeps; `None` if it has none."""
        within = self._scope.step.scope
        makers = (
            step
            for step in self._scope.plan.steps
            if self.artifact in step.produces and step.goal and step.scope == within
        )
        return next((step for step in makers if step.schema is not None), None)

    def _model(self, repair: int) -> str:
        return self.escalate[min(repair, len(self.escalate)) - 1] if self.escalate and repair else ""


def _artifact(step: Step) -> str:
    written = step.args.get("answer")
    if isinstance(written, str) and (found := _REFERENCE.fullmatch(written)):
        return found["a"] or found["b"]
    msg = (
        f"the operation 'verify' needs the artifact it judges as `answer: '{{{{NAME}}}}'`, not "
        f"{written!r}: a repair produces it anew"
    )
    raise UsageError(msg)


def _proposed_criteria(scope: Scope, args: Arguments) -> tuple[str, ...]:
    """Return the criteria that an operation `plan` proposed together with the awaited steps."""
    plans = {step.id for step in scope.plan.steps if step.operation == "plan"}
    given = [
        how.get("answer") for name, how in scope.steps.items() if name in plans and isinstance(how, dict)
    ]
    return tuple(
        text
        for value in given
        if isinstance(value, dict)
        for text in args.as_texts("criteria", value.get("acceptance_criteria", []))
    )


async def _citation_issues(scope: Scope, order: _Order) -> list[str]:
    """Return the issue that too few claims have valid citations; none if the answer abstains."""
    # "I do not know" claims nothing that could be cited.
    if not order.text or not order.support or is_abstention(order.text):
        return []
    subject = scope.subject(order.text, order.goal)
    backed = await asyncio.to_thread(evidence_of, subject, order.claims)
    share = cited_share(backed)
    if share >= order.support:
        return []
    unseen = f" ({subject.unseen})" if subject.unseen else ""
    bare = "; ".join(one_line(one.text, 120) for one in backed if one.state != "cited")
    return [
        f"{share:.0%} of its claims cite what is there{unseen}, {order.support:.0%} are needed: cite "
        f"what shows these, or leave them out: {bare}"
    ]


def tool_evidence(state: RunState, *, but: str = "") -> tuple[Evidence, ...]:
    """Return the results of tools in all steps of the run, except the step `but`."""
    steps = {step.id: step for step in state.planned.steps}
    found: list[Evidence] = []
    for name, conversation in state.conversations.items():
        if name == but:
            continue
        found += [
            Evidence(call=said.call_id, tool=said.name, text=said.text)
            for said in conversation.messages
            if said.role == "tool"
        ]
        if name in steps and steps[name].tool:
            found += [
                Evidence(call=call, tool=steps[name].tool, text=text)
                for call, text in conversation.answers.items()
            ]
    return tuple(found)


async def evidence_for(scope: Scope, answer: str, goal: str) -> tuple[Evidence, ...]:
    """Return the evidence for judging an answer: the spans it cites, without any all results of tools; then
    the files that the run changed.

    All of it is as it is now: a result of before the run changed its file says so.
    """
    state, subject = scope.ctx.state, scope.subject(answer, goal)
    cited = await asyncio.to_thread(lambda: _as_evidence(cited_spans(subject)))
    changed = await asyncio.to_thread(lambda: _as_evidence(changed_spans(subject, state.writers)))
    return (*(cited or _dated(tool_evidence(state, but=scope.step.id), subject)), *changed)


def _as_evidence(spans: Iterable[Span]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            call=span.call,
            tool=span.found if span.call or not span.first else "the workspace",
            text=span.text,
            span=span.id if span.path else "",
        )
        for span in spans
    )


def _dated(found: Iterable[Evidence], subject: Subject) -> tuple[Evidence, ...]:
    """The results of tools, those that show lines of files as they are no more marked as old."""
    old = {
        span.call: span.path
        for span in subject.spans
        if span.path and is_current(span, subject.files.read) != "current"
    }
    return tuple(
        replace(one, tool=f"{one.tool}, before {old[one.call]} was changed") if one.call in old else one
        for one in found
    )


def _model_judge(scope: Scope, order: _Order, number: int, model: str) -> Verifier:
    """Return the n-th judge, in a conversation of its own, so that none influences another."""
    # The first judge keeps the step's own id, under which a resumed run finds its verdict.
    own = scope.step.id if number == 1 else f"{scope.step.id}/judge#{number}"
    subject = scope.subject(order.text, order.goal)
    known = {span.id for span in (*subject.spans, *cited_spans(subject, scope.ctx.state.writers))}

    def knows(name: str) -> bool:
        return any(name in (item.call, item.span) for item in tool_evidence(scope.ctx.state)) or name in known

    asked = step_dialogue(
        scope, id=own, schema=VERDICT, temperature=temperature_of(scope), model=model or scope.step.model
    )
    judge = ModelVerifier(asked, knows, name=f"model {model}".strip())
    return judge if number == 1 else _Apart(judge, own, scope)


@contextmanager
def _end_conversation(scope: Scope, step: str) -> Iterator[None]:
    """End a conversation that is not a step of the plan when the block ends."""
    try:
        yield
    finally:
        if not scope.ctx.state.finished_steps.get(step):
            scope.ctx.emit(StepFinished(step=step, ok=True))


@dataclass(frozen=True, slots=True)
class _ClaimJudge:
    """A model judges each cited claim: it fails if its citations contradict or do not show it."""

    scope: Scope
    claims: Sequence[Mapping[str, Any]]
    model: str = ""
    name: str = "claims"

    async def __call__(self, claim: Claim) -> Verification:
        """Judge; raises `ModelError` where the model comes to no verdict."""
        scope = self.scope
        subject = scope.subject(claim.answer, claim.goal)
        backed = await asyncio.to_thread(evidence_of, subject, self.claims)
        issues: list[str] = []
        # Claims whose citation is wrong are refused by `Cites` already, without a model.
        asked = [one for one in backed if one.state == "cited"][:MOST_JUDGED]
        for number, one in enumerate(asked, 1):
            own = f"{scope.step.id}/claim#{number}"
            conversation = step_dialogue(
                scope,
                id=own,
                schema=SCHEMA,
                temperature=temperature_of(scope),
                model=self.model or scope.step.model,
                tools=(),
            )
            with _end_conversation(scope, own):
                said = await conversation.ask(
                    judge_prompt(
                        one.text, [span.text for cited in one.cited if (span := span_as_now(subject, cited))]
                    ),
                    verdict_of,
                )
            if said.verdict != "entailed":
                what = "contradicts it" if said.verdict == "contradicted" else "does not show it"
                issues.append(f"what it cites {what}, says a model: {one_line(one.text, 160)}")
        return Verification(passed=not issues, issues=tuple(issues))


@dataclass(frozen=True, slots=True)
class _Apart:
    """A judge whose conversation is not a step of the plan; the verdict ends it."""

    judge: Verifier
    step: str
    scope: Scope

    @property
    def name(self) -> str:
        return self.judge.name

    async def __call__(self, claim: Claim) -> Verification:
        with _end_conversation(self.scope, self.step):
            return await self.judge(claim)
