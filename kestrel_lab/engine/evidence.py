"""What a run has to show for its answer: the spans its tools gave, its claims, and a look at the answer before it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel_lab.core.events import Record
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.spans import Span, answered
from kestrel_lab.log.fold import RunState
from kestrel_lab.verification.engine import VerifierEngine
from kestrel_lab.verification.evidence import Backed, evidence_of, evidence_rows, summary, support_of
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.subject import Ground, Made, Subject, subject_of
from kestrel_lab.verification.support import ABSTAIN
from kestrel_lab.views.evidence import claims_html, evidence_html, evidence_text
from kestrel_lab.views.frames import shown_frame

if TYPE_CHECKING:
    import pandas as pd

    from kestrel_lab.engine.context import RunContext


LOOK_S = 2.0
"""How long a workspace is looked into before an answer is given; a huge one is not known to the end, and nothing is said of what is not known."""
MOST_CONCERNS = 20
"""How many are kept with the answer."""


class EvidenceTable:
    """The claims of an answer with the spans that hold each up, as a frame and as a table to look at."""

    def __init__(self, backed: Sequence[Backed]) -> None:
        self.claims = tuple(backed)

    @property
    def frame(self) -> pd.DataFrame:
        """A row per claim and span: `claim`, `text`, `support`, `score`, `absent numbers`, `span`, `found`, `trust`, `standing`, `evidence`."""
        return shown_frame(evidence_rows(self.claims), columns=list(_COLUMNS), units={})

    def __len__(self) -> int:
        return len(self.claims)

    def __iter__(self) -> Iterator[Backed]:
        return iter(self.claims)

    def __str__(self) -> str:
        return summary(self.claims)

    def __repr__(self) -> str:
        return evidence_text(summary(self.claims), evidence_rows(self.claims))

    def _repr_html_(self) -> str:
        return evidence_html(summary(self.claims), evidence_rows(self.claims))

    def _repr_markdown_(self) -> None:
        """No Markdown form: it would be rendered with remote images."""


_COLUMNS = ("claim", "text", "support", "score", "absent numbers", "span", "found", "trust", "standing", "evidence")


def evidence_table(records: Sequence[Record], *, answer: str, goal: str, workspace: str) -> EvidenceTable:
    """The claims of a stored run's answer, against its log and the workspace as it is now."""
    return EvidenceTable(evidence_of(subject_of(records, answer=answer, goal=goal, root=_root(workspace))))


def report_html(records: Sequence[Record], *, answer: str, goal: str, workspace: str) -> str:
    """The claims for the run's page; empty where it has none, or nothing to hold them against."""
    subject = subject_of(records, answer=answer, goal=goal, root=_root(workspace))
    backed = evidence_of(subject) if subject.spans or any(said.kind != "code" for said in subject.claims) else ()
    return claims_html(summary(backed), evidence_rows(backed)) if any(one.support.spans for one in backed) else ""


def subject_in(state: RunState, root: Path, answer: str, *, goal: str = "", but: str = "", seconds: float | None = None) -> Subject:
    """An answer with what the steps of the run saw so far, the step `but` left out."""
    spans: list[Span] = []
    calls: list[Made] = []
    for call, tool, args, text in _answers(state, but):
        spans += answered(call, tool, args, text)
        calls.append(Made(call=call, tool=tool, args=args, ok=True))
    goal = goal or (state.started.goal if state.started else "")
    return Subject(answer=answer, goal=goal, spans=tuple(spans), calls=tuple(calls), ground=Ground(root, seconds))


def _answers(state: RunState, but: str) -> Iterator[tuple[str, str, Mapping[str, Json], str]]:
    steps = {step.id: step for step in state.planned.steps}
    for name, talk in state.conversations.items():
        if name == but:
            continue
        asked = {call.id: call.args for said in talk.messages for call in said.calls}
        for said in talk.messages:
            if said.role == "tool":
                yield said.call_id, said.name, asked.get(said.call_id, {}), said.text
        if name in steps and steps[name].tool:
            for call, text in talk.answers.items():
                yield call, steps[name].tool, steps[name].args, text


async def concerns(ctx: RunContext, answer: str) -> list[dict[str, Json]]:
    """What a look at the answer finds questionable, without a model and without changing anything; for whoever reads it."""
    if not ctx.ports.look or not answer.strip():
        return []
    found = await asyncio.to_thread(_looked_at_well, ctx.state, Path(ctx.workspace.root), answer)
    return [one.as_json() for one in found[:MOST_CONCERNS]]


def _looked_at_well(state: RunState, root: Path, answer: str) -> tuple[Issue, ...]:
    found = looked_at(state, root, answer, seconds=LOOK_S)
    backed = evidence_of(subject_in(state, root, answer)) if any(talk.cycles > 1 for talk in state.conversations.values()) else ()
    support = support_of(backed) if any(one.support.spans for one in backed) else None
    if support is None or support >= ABSTAIN or len(backed) < 3:
        return found
    weak = sum(one.support.word == "weak" for one in backed)
    what = f"little of what it says has support in what the run saw: {weak} of {len(backed)} claims are weak"
    return (*found, issue("minor", "", what, "look at `run.evidence`", check="support"))


def looked_at(
    state: RunState, root: Path, answer: str, *, goal: str = "", but: str = "", seconds: float | None = None
) -> tuple[Issue, ...]:
    """What the deterministic checks find wrong with an answer; a check that fails is itself told of, never hidden."""
    try:
        return VerifierEngine()(subject_in(state, root, answer, goal=goal, but=but, seconds=seconds))
    except Exception as error:  # noqa: BLE001  # an answer is not lost to a defect of what looks at it
        return (
            issue("minor", "", f"the answer could not be checked: {type(error).__name__}: {error}", "please report it", check="checks"),
        )


def _root(workspace: str) -> Path | None:
    path = Path(workspace)
    return path if workspace and path.is_dir() else None


def as_cited(subject: Subject) -> tuple[Span, ...]:
    """The spans that an answer cites; where it cites none, those that hold its claims up."""
    backed = evidence_of(subject)
    cited = [one.span for claim in backed for one in claim.cited if one.span is not None]
    chosen = cited or [span for claim in backed for span in claim.support.spans]
    return tuple({span.id: span for span in chosen}.values())
