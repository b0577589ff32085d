"""Stored labels: what people said of the trials of a suite, as events of the trials' runs.

A label carries the rubric it was given by. The rubric may be edited while trials are labelled: that makes
another version, known by the hash of its text, and labels of two versions are never counted together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from kestrel_lab.checks.llm_judge import clean_rubric, hash_rubric
from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events.union import LabelUndone, RubricEdited, TrialJudged, TrialLabelled, decode_event
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.eventlog.seals.hash_chain import START, chain_hash
from kestrel_lab.eventlog.store import SessionStore

# The words of the index `labels_and_verdicts`, without which SQLite reads the whole log. Each comes after the
# end of its run, so that the event before it is of the same run.
_STORED: Final = (
    "SELECT e.run_id, e.seq, e.eid, e.at, e.type, e.ref, e.body, e.epoch, e.hash, b.hash FROM events AS e "
    "LEFT JOIN events AS b ON b.run_id = e.run_id AND b.seq = e.seq - 1 "
    "WHERE e.type IN ('trial_labelled', 'label_undone', 'rubric_edited', 'trial_judged') "
    "ORDER BY e.at, e.run_id, e.seq"
)
_CUT: Final = (
    "SELECT id FROM runs WHERE last_seq > coalesce((SELECT max(seq) FROM events WHERE run_id = id), "
    "forked_at, 0) AND id NOT IN (SELECT run_id FROM removals) "
    "AND id IN (SELECT result_json ->> '$.run' FROM eval_runs WHERE suite = ?) LIMIT 1"
)
"""A run of a suite that has fewer events than its row says: its last ones may have been labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A label that was not undone."""

    run: str
    """The run of the trial."""
    id: str
    at: float
    """Seconds since 1970, UTC."""
    said: TrialLabelled

    @property
    def key(self) -> tuple[str, str, bool]:
        """What there is one label of by one rubric: the trial, the person, and whether it came back."""
        return self.run, self.said.who, self.said.repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialLabel:
    """What all who labelled a trial by one rubric say of it."""

    run: str
    value: float
    """1 where the rubric is met, 0 where not, the mean of the persons where they differ."""
    probability: float
    """With which this trial is among the labelled ones, above 0 and at most 1; 1 for a trial that somebody
    chose. Probabilities of all trials of one answer can be compared, whatever number each draw asked for.
    """
    who: tuple[str, ...]
    rubric_hash: str


def check_label(said: TrialLabelled) -> TrialLabelled:
    """Return a label as it is stored, with the hash of its rubric.

    Raises `UsageError` for a value that is not 1, 0 or `None`, a probability that is not above 0 and at most
    1, and a label without a person or a rubric.
    """
    if said.value not in (0, 1, None) or isinstance(said.value, bool | float):
        raise UsageError(f"a label is 1, 0 or None for a trial that was skipped, not {said.value!r}")
    if not 0 < said.probability <= 1:
        raise UsageError(f"the probability of a draw is above 0 and at most 1, not {said.probability!r}")
    if not said.who.strip():
        raise UsageError("a label needs the name of the person who gives it")
    rubric = clean_rubric(said.rubric)
    return replace(
        said,
        who=said.who.strip(),
        rubric=rubric,
        rubric_hash=hash_rubric(rubric),
        note=said.note.strip(),
    )


def record_label(store: SessionStore, run: str, said: TrialLabelled, *, at: float | None = None) -> Label:
    """Record a label of the trial that `run` is, given now or `at` seconds since 1970, and wait until it is
    on disk.

    Raises `UsageError` as `check_label` does, and for a run that is not in the log.
    """
    kept = check_label(said)
    # It raises with the nearest id, or when the run was removed.
    store.run(run)
    made = store.decide(run, kept, at=at)
    [given_at] = store.query("SELECT at FROM events WHERE run_id = ? AND eid = ?", (run, made))[0]
    return Label(run=run, id=made, at=given_at, said=kept)


def undo_label(store: SessionStore, label: Label, who: str) -> None:
    """Record that a label does not count any more, and wait until it is on disk."""
    store.decide(label.run, LabelUndone(label=label.id, who=who))


def stored_labels(store: SessionStore, suite: str) -> list[Label]:
    """Return the labels of a suite that were not undone, oldest first: all rubrics, persons, repeats and
    skipped trials; of one trial, person and rubric the newest.
    """
    said = [*said_of_suite(store, suite)]
    undone = {event.label for *_, event in said if isinstance(event, LabelUndone)}
    found = [
        Label(run=run, id=eid, at=at, said=event)
        for run, eid, at, event in said
        if isinstance(event, TrialLabelled) and eid not in undone
    ]
    newest = {(label.key, label.said.rubric_hash): label.id for label in found}
    kept = set(newest.values())
    return [label for label in found if label.id in kept]


def current_rubric(store: SessionStore, suite: str) -> str:
    """Return the text of the rubric that labels go by: that of the last edit or label, whichever is newer;
    empty where there is none.
    """
    found = ""
    for *_, event in said_of_suite(store, suite):
        if isinstance(event, RubricEdited | TrialLabelled):
            found = event.rubric
    return found


def edit_rubric(store: SessionStore, suite: str, run: str, rubric: str, who: str) -> str:
    """Record that labels of the suite go by this rubric from now on, with the trial that is being labelled;
    returns its text as stored.
    """
    text = clean_rubric(rubric)
    store.decide(run, RubricEdited(suite=suite, who=who, rubric=text, rubric_hash=hash_rubric(text)))
    return text


def labels_of(
    store: SessionStore, suite: str, *, rubric_hash: str | None = None, who: Sequence[str] = ()
) -> dict[str, TrialLabel]:
    """Return what people say of the trials of a suite, by the id of the trial's run.

    Only labels by one rubric count, the current one unless `rubric_hash` names another, and only those of the
    persons named, if any. Skipped trials are left out, and repeats, which measure the person and not the
    trial. Empty where nothing was labelled by that rubric.
    """
    labels = stored_labels(store, suite)
    wanted = rubric_hash or (hash_rubric(current_rubric(store, suite)) if labels else "")
    return combine_labels(
        label for label in labels if label.said.rubric_hash == wanted and (not who or label.said.who in who)
    )


def combine_labels(labels: Iterable[Label]) -> dict[str, TrialLabel]:
    """Return one value per trial of labels by one rubric, with comparable probabilities."""
    by_run = group_values(
        (label.run, label) for label in labels if label.said.value is not None and not label.said.repeat
    )
    # A trial that a draw of 50 takes with probability p is among the first k of it with p * k / 50, since its
    # order is random. So draws that somebody ended early, and those that asked for more later, agree. Draws
    # from other trials, those of another commit perhaps, say nothing of these.
    drawn: dict[str, set[str]] = {}
    for run, group in by_run.items():
        for label in group:
            if label.said.drawn:
                drawn.setdefault(label.said.frame, set()).add(run)
    return {
        run: TrialLabel(
            run=run,
            value=fmean(label.said.value or 0 for label in group),
            probability=min(1.0, max(_probability(label, drawn) for label in group)),
            who=tuple(label.said.who for label in group),
            rubric_hash=group[0].said.rubric_hash,
        )
        for run, group in by_run.items()
    }


def _probability(label: Label, drawn: Mapping[str, Collection[str]]) -> float:
    if not label.said.drawn:
        # A trial that somebody chose was certain to be labelled.
        return 1.0
    return label.said.probability * len(drawn[label.said.frame]) / label.said.drawn


Said = TrialLabelled | LabelUndone | RubricEdited | TrialJudged


def said_of_suite(store: SessionStore, suite: str) -> Iterable[tuple[str, str, float, Said]]:
    """Yield run, id, time and event of all that people and judges said of a suite, oldest first; undos of all
    suites, for they do not name one.

    Raises `StoreError` where one is not what was written, or does not follow what was written before it.
    """
    for (run,) in store.query(_CUT, (suite,)):
        raise StoreError(f"the last events of run {run}, perhaps labels, are missing. See: kestrel doctor")
    for run, seq, eid, at, kind, ref, body, epoch, digest, before in store.query(_STORED):
        if digest is not None and digest != chain_hash(
            before or START, run, seq, eid, at, kind, ref, body, epoch
        ):
            raise StoreError(
                f"the label or verdict {eid} of run {run} is not what was written. See: kestrel doctor"
            )
        event = decode_event(kind, body)
        if not isinstance(event, Said):
            raise StoreError(f"event {eid} of run {run} is no label. See: kestrel doctor")
        if isinstance(event, LabelUndone) or event.suite == suite:
            yield run, eid, at, event
