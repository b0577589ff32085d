"""Labels are events: kept with all that one has to know of them, undone by another event, never mixed over
rubrics.
"""

import pytest
from greetings import RUBRIC

from kestrel_lab.checks.llm_judge import hash_rubric
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import TrialLabelled
from kestrel_lab.evals.labels.stored_labels import (
    labels_of,
    record_label,
    stored_labels,
    undo_label,
)
from kestrel_lab.lab import Lab


def said(value, who="ada", **more):
    """A label of the suite."""
    given = {"suite": "demo", "rubric": RUBRIC, "rubric_hash": "", "probability": 0.25, "drawn": 4, "seed": 7}
    return TrialLabelled(**{**given, "who": who, "value": value, **more})


def test_a_label_is_an_event_of_an_ended_run(lab, runs):
    """It says who, by which rubric, when, what, why, and with which probability; another session reads it,
    and the log is whole.
    """
    made = record_label(lab.store, runs[0], said(1, note="  by name "))
    other = Lab(home=lab.home, env={})
    try:
        assert stored_labels(other.store, "demo") == [made]
        assert (made.said.note, made.said.rubric_hash) == ("by name", hash_rubric(RUBRIC))
        assert (made.said.probability, made.said.drawn, made.said.seed) == (0.25, 4, 7)
        assert other.store.records(runs[0])[-1].event == made.said
        assert other.store.state(runs[0]).status == "COMPLETE"
        assert other.store.damage(runs[0]) is None
    finally:
        other.close()


def test_labels_can_be_undone_and_given_again(lab, runs):
    """What was undone does not count, and is still in the log; of two labels the newer one counts."""
    first = record_label(lab.store, runs[0], said(0))
    undo_label(lab.store, first, "ada")
    assert labels_of(lab.store, "demo") == {}
    record_label(lab.store, runs[0], said(0))
    record_label(lab.store, runs[0], said(1))
    assert labels_of(lab.store, "demo")[runs[0]].value == 1
    assert sum(one.event.type == "trial_labelled" for one in lab.store.records(runs[0])) == 3


def test_rubrics_are_never_mixed(lab, runs):
    """After an edit of the rubric only labels of the new version count; those of the old one are there by
    its hash.
    """
    record_label(lab.store, runs[0], said(0))
    record_label(lab.store, runs[1], said(1, rubric=RUBRIC + " Nothing else."))
    assert list(labels_of(lab.store, "demo")) == [runs[1]]
    assert list(labels_of(lab.store, "demo", rubric_hash=hash_rubric(RUBRIC + "\r\n"))) == [runs[0]]
    assert len(stored_labels(lab.store, "demo")) == 2


def test_persons_are_put_together_and_repeats_and_skips_left_out(lab, runs):
    """Two who differ make a half; a skipped trial says nothing, and one that came back counts once."""
    for who, value in (("ada", 1), ("bob", 0)):
        record_label(lab.store, runs[0], said(value, who))
    record_label(lab.store, runs[0], said(0, repeat=True))
    record_label(lab.store, runs[1], said(None))
    found = labels_of(lab.store, "demo")
    assert {run: (one.value, one.who) for run, one in found.items()} == {runs[0]: (0.5, ("ada", "bob"))}
    assert labels_of(lab.store, "demo", who=["bob"])[runs[0]].value == 0


def test_probabilities_of_several_draws_can_be_compared(lab, runs):
    """A draw that was ended early, and one that asked for more, give the probability of being among all that
    are labelled; a trial that somebody chose stands for itself, and a draw from other trials counts alone.
    """
    record_label(lab.store, runs[0], said(1, probability=0.5, drawn=6))
    record_label(lab.store, runs[1], said(1, probability=0.75, drawn=9))
    record_label(lab.store, runs[2], said(1, probability=1.0, drawn=0))
    record_label(lab.store, runs[3], said(1, probability=0.5, drawn=6, frame="another commit"))
    found = labels_of(lab.store, "demo")
    assert [found[run].probability for run in runs[:4]] == pytest.approx([2 / 12, 2 / 12, 1, 1 / 12])


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"value": 2}, "1, 0 or None"),
        ({"value": True}, "1, 0 or None"),
        ({"probability": 0.0}, "above 0"),
        ({"probability": float("nan")}, "above 0"),
        ({"who": " "}, "name of the person"),
        ({"rubric": " "}, "has no words"),
    ],
)
def test_a_wrong_label_is_refused(lab, runs, wrong, what):
    """Nothing is written of a label that could not be used."""
    before = len(lab.store.records(runs[0]))
    with pytest.raises(UsageError, match=what):
        record_label(lab.store, runs[0], said(**{"value": 1, **wrong}))
    assert len(lab.store.records(runs[0])) == before


def test_a_trial_without_a_run_is_named(lab):
    """A label of a run that is not in the log says so."""
    with pytest.raises(UsageError, match="no run 'gone'"):
        record_label(lab.store, "gone", said(1))
