"""Labels in the log reach what is shown of trials, and nothing that is stored of them."""

from contextlib import closing
from dataclasses import replace

from greetings import RUBRIC
from made_rows import row

from kestrel_lab.core.events.union import TrialLabelled
from kestrel_lab.evals.labels.stored_labels import record_label, undo_label
from kestrel_lab.evals.summaries.corrected_rates import with_annotations
from kestrel_lab.eventlog.store import SessionStore


def test_labels_are_in_copies_of_rows(lab, runs):
    """By the run of the trial, with the probability of its draw; the row itself stays, and a label that was
    undone is gone. A log that was closed is read all the same.
    """
    said = TrialLabelled(
        suite="demo", rubric=RUBRIC, rubric_hash="", probability=0.25, drawn=1, who="ada", value=1
    )
    made = record_label(lab.store, runs[0], said)
    trial = row("s0", "pass")
    trials = [replace(trial, result={**trial.result, "run": run}) for run in runs[:2]]
    labelled, other = with_annotations(trials, lab.store)
    assert (labelled.result["label"], labelled.result["label_probability"]) == (1.0, 0.25)
    assert other is trials[1]
    assert "label" not in trials[0].result
    with closing(SessionStore(lab.store.path)) as closed:
        pass
    assert [*with_annotations(trials, closed)] == [labelled, other]
    undo_label(lab.store, made, "ada")
    assert list(with_annotations(trials, lab.store)) == trials
    assert list(with_annotations(trials, None)) == trials
