"""Labelling shows one trial at a time, blind, and everything it knows is in the log."""

import json

import pytest
from greetings import suite

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.labels.label_queue import RUBRIC, Labelling
from kestrel_lab.evals.labels.label_report import label_report
from kestrel_lab.evals.labels.stored_labels import labels_of, stored_labels
from kestrel_lab.evals.options import LabelOptions
from kestrel_lab.evals.stored_trials import stored_trials


def labelling(lab, who="ada", **more):
    """What a person labels of the twelve trials."""
    return Labelling(
        lab.store, suite(12), stored_trials(lab.store), LabelOptions(**{"who": who, "number": 10, **more})
    )


def label_all(own, value=lambda item: 1):
    """Label what is left; gives the runs in their order."""
    seen = []
    while (item := own.next()) is not None:
        own.give(item.run, value(item), repeat=item.repeat)
        seen.append(item.run)
    return seen


def test_one_after_the_other_to_the_end(lab):
    """Ten are drawn of twelve and one comes back; each label has its probability and seed."""
    own = labelling(lab, seed=5)
    assert own.progress() == (0, 11)
    seen = label_all(own)
    assert (len(seen), len(set(seen)), own.progress()) == (11, 10, (11, 11))
    found = stored_labels(lab.store, "demo")
    assert {(x.said.probability, x.said.drawn, x.said.seed) for x in found} == {(10 / 12, 10, 5)}
    assert [x.run for x in found if x.said.repeat] == [run for run in set(seen) if seen.count(run) == 2]
    assert all(one.probability == pytest.approx(10 / 12) for one in labels_of(lab.store, "demo").values())


def test_what_is_shown_is_blind(lab):
    """Goal, answer and checks are there; no model, configuration, outcome, verdict, or word of coming back."""
    item = labelling(lab).next()
    assert item.goal.startswith("Greet person")
    assert (item.answer, item.checks) == ("hello", ("answer contains 'hello'",))
    shown = {key: value for key, value in item.shown().items() if key not in ("run", "repeat")}
    assert not {"pass", "fail", "scripted", "config", "model", "outcome"} & set(json.dumps(shown).split('"'))


def test_another_process_goes_on_where_the_last_label_left_off(lab):
    """The next trial is derived from the log: a second tab and a restart show the same, and a label of one
    counts for the other.
    """
    one, other = labelling(lab), labelling(lab)
    first = one.next()
    assert other.next() == first
    one.give(first.run, 0)
    assert other.next() == one.next() != first
    other.give(first.run, 1)
    assert [x.said.value for x in stored_labels(lab.store, "demo")] == [1]


def test_undo_brings_the_trial_back(lab):
    """The newest label of this person goes, and nobody else's."""
    own, other = labelling(lab), labelling(lab, "bob")
    item = own.next()
    own.give(item.run, 1)
    other.give(item.run, 0)
    assert own.undo().said.who == "ada"
    assert own.next() == item
    assert own.undo() is None
    assert [x.said.who for x in stored_labels(lab.store, "demo")] == ["bob"]


def test_a_skipped_trial_does_not_come_back(lab):
    """Skips count as done, and are labels of nothing."""
    own = labelling(lab)
    label_all(own, lambda _: None)
    assert own.progress() == (10, 10)
    assert labels_of(lab.store, "demo") == {}


def test_an_edited_rubric_begins_a_new_version(lab):
    """Labels of the old one stay, are marked, and the trials come again; a second person goes by the new one
    at once, and it is there before the first label by it.
    """
    own = labelling(lab)
    first = own.next()
    own.give(first.run, 1)
    own.edit_rubric("It greets.")
    other = labelling(lab, "bob")
    assert other.rubric == "It greets."
    assert (own.outdated(), own.progress()[0], labels_of(lab.store, "demo")) == (1, 0, {})
    again = own.next()
    assert (again.run, again.seen) == (first.run, True)
    assert "1 label by earlier versions" in repr(label_report(lab.store, "demo"))
    labelling(lab, rubric="It greets.")
    assert own.progress()[0] == 0
    assert own.rubric != RUBRIC


def test_the_report_says_how_well_people_agree(lab):
    """Alpha, kappa and raw agreement of two people with intervals, and each one's consistency over what came
    back.
    """
    label_all(labelling(lab), lambda item: 0 if item.repeat else int(item.goal[-1] in "02468"))
    label_all(labelling(lab, "bob"), lambda item: int(item.goal[-1] in "02"))
    found = label_report(lab.store, "demo")
    assert found.within("ada").n == 1
    assert found.within("bob").mean == 1
    between = found.between()
    assert between["raw agreement"].n == 10
    assert 0 < between["Krippendorff's alpha"].mean < 1
    text = repr(found)
    assert "labelled by 2 persons" in text
    assert "Cohen's kappa" in text
    assert len(found.frame) == 22


def test_what_cannot_be_labelled_is_said(lab):
    """No trials, a person without a name, a trial that was not drawn."""
    with pytest.raises(UsageError, match="no trials to label"):
        Labelling(lab.store, suite(), [], LabelOptions(who="ada"))
    with pytest.raises(UsageError, match="name of the person"):
        labelling(lab, " ")
    with pytest.raises(UsageError, match="not among those drawn"):
        labelling(lab).give("gone", 1)
