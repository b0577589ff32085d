"""Labelling: the trials of a suite one by one, blind, with everything that was said kept in the log.

What comes next is derived from the log each time, so a reload, a second tab or another process goes on where
the last label left off. A person sees the goal, the answer, the checks without what they found, and what the
agent did; not the configuration, the model, the outcome, what a judge says, or whether the trial comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from kestrel_lab.checks.composition import each_check
from kestrel_lab.checks.llm_judge import ModelGraded, hash_rubric
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import (
    ModelAnswered,
    Prompted,
    Record,
    RunFinished,
    RunStarted,
    ToolAnswered,
    ToolCalled,
    TrialLabelled,
)
from kestrel_lab.core.json_types import Json, content_key, dumps
from kestrel_lab.core.run_types import RunReference, run_id_of
from kestrel_lab.core.sanitize import head_tail, one_line, sanitize_text
from kestrel_lab.evals.labels.draw import DrawnTrial, draw_trials, with_repeats
from kestrel_lab.evals.labels.stored_labels import (
    Label,
    current_rubric,
    edit_rubric,
    record_label,
    stored_labels,
    undo_label,
)
from kestrel_lab.evals.labels.verdicts import stored_verdicts, unsure_of
from kestrel_lab.evals.options import LabelOptions
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.user import user_name
from kestrel_lab.views.formatting import format_count

RUBRIC: Final = "The answer does what the goal asks for, and what it says is true."
"""The rubric of a suite that has none."""
_TEXT: Final = 20_000
"""Characters of an answer or a result that are shown; a longer one loses its middle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscriptStep:
    """Something that was said, or a call with its arguments and its result."""

    kind: str
    """`said`, `asked` (by the user or the runtime) or `call`."""
    title: str
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelItem:
    """A trial to be labelled, as a person sees it."""

    run: str
    repeat: bool
    """Whether it comes back; not to be shown."""
    goal: str
    answer: str
    checks: tuple[str, ...]
    transcript: tuple[TranscriptStep, ...]
    seen: bool
    """Whether this person labelled it by an earlier version of the rubric."""

    def shown(self) -> dict[str, Json]:
        """Return it as JSON for a page."""
        return asdict(self)


class Labelling:
    """The labels that one person gives to drawn trials of a suite."""

    def __init__(
        self,
        store: SessionStore,
        suite: Suite,
        rows: Sequence[EvalRow],
        how: LabelOptions,
        *,
        unsure: Mapping[str, float] | None = None,
    ) -> None:
        """Draw some of the trials `rows`, with probabilities by how `unsure` a judge is, where given.

        Trials that broke are left out, and those whose runs are not in this log. A rubric other than the
        current one makes a new version. Raises `UsageError` where no trial is left, and for a person without
        a name.
        """
        if not how.who.strip():
            raise UsageError("labels need the name of the person who gives them: who=, or --who")
        runs = _runs_in_log(store, rows)
        self.store, self.suite, self.who, self.seed = store, suite, how.who.strip(), how.seed
        self.number = min(how.number, len(runs))
        self._frame = content_key("frame/1", sorted(runs))[:12]
        self._scenario = {row.run: row.scenario for row in rows}
        self._checks = {one.id: tuple(map(check_words, one.checks)) for one in suite.scenarios}
        self._drawn = with_repeats(draw_trials(runs, how.number, seed=how.seed, unsure=unsure), how.seed)
        self._rubric = how.rubric.strip()
        if self._rubric and current_rubric(store, suite.name) not in ("", self._rubric):
            self.edit_rubric(self._rubric)

    def __repr__(self) -> str:
        done, total = self.progress()
        return sanitize_text(
            f"suite {self.suite.name}: {done} of {total} labelled by {self.who}\n"
            f"rubric: {one_line(self.rubric, 200)}\n"
            "label by keys: a cell that ends with it, or kestrel eval label; by code: .next(), .give(run, 1)"
        )

    @property
    def rubric(self) -> str:
        """The rubric that the next label goes by: the current one of the suite."""
        return current_rubric(self.store, self.suite.name) or self._rubric or suite_rubric(self.suite)

    def edit_rubric(self, rubric: str) -> None:
        """Go on by another version of the rubric; labels of the one before stay, and are marked as such."""
        if hash_rubric(rubric) != hash_rubric(self.rubric) or not current_rubric(self.store, self.suite.name):
            edit_rubric(self.store, self.suite.name, self._drawn[0].run, rubric, self.who)

    def labels(self) -> list[Label]:
        """Return the labels that this person gave by the current rubric, oldest first."""
        wanted = hash_rubric(self.rubric)
        return [label for label in self._mine() if label.said.rubric_hash == wanted]

    def next(self) -> LabelItem | None:
        """Return the trial that comes next; `None` where all are labelled."""
        values = {(label.run, label.said.repeat): label.said.value for label in self.labels()}
        for drawn in self._drawn:
            # What was skipped does not come back: there is nothing to compare it with.
            skipped = drawn.repeat and values.get((drawn.run, False)) is None
            if (drawn.run, drawn.repeat) not in values and not skipped:
                return self._item(drawn)
        return None

    def give(self, run: RunReference, value: int | None, *, note: str = "", repeat: bool = False) -> Label:
        """Record the label of a drawn trial and wait until it is on disk; raises `UsageError` for another
        trial, and for a value that is not 1, 0 or `None`.
        """
        run_id = run_id_of(run)
        drawn = next((one for one in self._drawn if (one.run, one.repeat) == (run_id, repeat)), None)
        if drawn is None:
            raise UsageError(f"the trial of run {run_id} is not among those drawn with seed {self.seed}")
        said = TrialLabelled(
            suite=self.suite.name,
            who=self.who,
            rubric=self.rubric,
            rubric_hash="",
            value=value,
            note=note,
            probability=drawn.probability,
            drawn=self.number,
            seed=self.seed,
            frame=self._frame,
            repeat=repeat,
        )
        return record_label(self.store, run_id, said)

    def undo(self) -> Label | None:
        """Undo the newest label of this person by the current rubric, which is returned; `None` where there
        is none.
        """
        mine = self.labels()
        if not mine:
            return None
        undo_label(self.store, mine[-1], self.who)
        return mine[-1]

    def progress(self) -> tuple[int, int]:
        """Return how many of how many labels are given; trials that come back count."""
        mine = {(label.run, label.said.repeat): label.said.value for label in self.labels()}
        # A skipped trial does not come back, so it is not counted twice.
        dropped = sum(
            one.repeat and (one.run, True) not in mine and mine.get((one.run, False), 1) is None
            for one in self._drawn
        )
        return sum((one.run, one.repeat) in mine for one in self._drawn), len(self._drawn) - dropped

    def outdated(self) -> int:
        """Return how many labels this person gave by earlier versions of the rubric."""
        return len(self._mine()) - len(self.labels())

    def elsewhere(self) -> int:
        """Return how many labels this person gave to trials that are not drawn, such as those of an earlier
        execution of the suite: the trials of the next one are others.
        """
        drawn = {one.run for one in self._drawn}
        return sum(label.run not in drawn for label in self.labels())

    def _mine(self) -> list[Label]:
        return [label for label in stored_labels(self.store, self.suite.name) if label.said.who == self.who]

    def _item(self, drawn: DrawnTrial) -> LabelItem:
        records, now = self.store.records(drawn.run), hash_rubric(self.rubric)
        started = next((r.event for r in records if isinstance(r.event, RunStarted)), None)
        ended = next((r.event for r in reversed(records) if isinstance(r.event, RunFinished)), None)
        return LabelItem(
            run=drawn.run,
            repeat=drawn.repeat,
            goal=_shown(started.goal if started else ""),
            answer=_shown(ended.answer if ended else ""),
            checks=self._checks.get(self._scenario[drawn.run], ()),
            transcript=tuple(transcript_steps(records, but=ended.answer if ended else "")),
            seen=any(x.run == drawn.run and x.said.rubric_hash != now for x in self._mine()),
        )


def begin_labelling(
    store: SessionStore,
    suite: Suite,
    rows: Sequence[EvalRow],
    how: LabelOptions,
    *,
    active: bool = False,
) -> Labelling:
    """Begin to label trials of a suite, drawn alike, or with `active` likelier where judges are unsure: see
    `stored.judgements`.
    """
    verdicts = stored_verdicts(store, suite.name, rows) if active else {}
    if active and not verdicts:
        raise UsageError(
            f"no judge has said anything of suite {suite.name!r}: ask one (kestrel eval judge {suite.name} "
            "--model NAME), or draw with equal probabilities"
        )
    unsure = unsure_of(verdicts) if verdicts else None
    return Labelling(store, suite, rows, replace(how, who=how.who or user_name()), unsure=unsure)


def check_words(check: object) -> str:
    """Return a check in words that name neither its verdict nor who judges."""
    if isinstance(check, ModelGraded):
        return f"a rubric: {one_line(check.rubric, 300)}"
    return sanitize_text(str(getattr(check, "label", check)))


def suite_rubric(suite: Suite) -> str:
    """Return the rubric that all `graded` checks of a suite have, or a general one."""
    rubrics = {
        c.rubric for one in suite.scenarios for c in each_check(one.checks) if isinstance(c, ModelGraded)
    }
    # Checks with several rubrics have no one by which a whole answer could be labelled.
    return rubrics.pop() if len(rubrics) == 1 else RUBRIC


def transcript_steps(records: Sequence[Record], but: str = "") -> list[TranscriptStep]:
    """Return what was said and done in a run, without the names of models, and without the answer `but`."""
    results = {r.event.call: r.event for r in records if isinstance(r.event, ToolAnswered)}
    found: list[TranscriptStep] = []
    for event in (record.event for record in records):
        if isinstance(event, ModelAnswered) and event.text.strip() not in ("", but.strip()):
            found.append(TranscriptStep(kind="said", title="said", text=_shown(event.text)))
        elif isinstance(event, Prompted) and event.text.strip():
            found.append(TranscriptStep(kind="asked", title="asked", text=_shown(event.text)))
        elif isinstance(event, ToolCalled):
            answered = results.get(event.call)
            title = one_line(f"{event.tool} {dumps(event.args)}", 160)
            text = f"{_pretty(event.args)}\n→ {'' if answered is None else answered.text}"
            found.append(TranscriptStep(kind="call", title=title, text=_shown(text)))
    return found


def _runs_in_log(store: SessionStore, rows: Sequence[EvalRow]) -> list[str]:
    # A trial that broke says nothing of the answer.
    asked = [row.run for row in rows if row.outcome != "error"]
    sql = "SELECT id FROM runs WHERE id IN (SELECT value FROM json_each(?))"
    known = {str(run) for (run,) in store.query(sql, (dumps(asked),))}
    if not rows:
        raise UsageError("there are no trials to label: run the suite first (kestrel eval run)")
    if not known:
        why = (
            "all of them broke" if not asked else "their runs are not in this log (kestrel eval pull --runs)"
        )
        raise UsageError(f"none of the {format_count(len(rows), 'trial')} can be labelled: {why}")
    return [run for run in asked if run in known]


def _shown(text: str) -> str:
    return sanitize_text(head_tail(text, _TEXT)[0])


def _pretty(args: Mapping[str, Json]) -> str:
    return "\n".join(
        f"{name}: {value if isinstance(value, str) else dumps(value)}" for name, value in args.items()
    )
