"""Events of labels: what people, and model judges, said of the trial that a run is."""

from __future__ import annotations

from typing import ClassVar

from kestrel_lab.core.events import Event


class TrialLabelled(Event, frozen=True, kw_only=True):
    """A person judged the trial by a rubric; its time is the event's."""

    type: ClassVar[str] = "trial_labelled"
    suite: str
    who: str
    rubric: str
    """The text of the rubric."""
    rubric_hash: str
    value: int | None
    """1 where the rubric is met, 0 where not, `None` where the person skipped the trial."""
    note: str = ""
    probability: float = 1.0
    """With which this trial was among the `drawn`, above 0 and at most 1."""
    drawn: int = 0
    """How many trials the draw asked for; 0 for a trial that somebody chose: it stands for itself alone."""
    seed: int = 0
    """Of the draw."""
    frame: str = ""
    """A hash of the trials that could have been drawn."""
    repeat: bool = False
    """Whether the trial came back to the same person, who was not told."""


class LabelUndone(Event, frozen=True, kw_only=True):
    """A label does not count any more."""

    type: ClassVar[str] = "label_undone"
    label: str
    """The `eid` of its event."""
    who: str


class RubricEdited(Event, frozen=True, kw_only=True):
    """Labels of the suite go by another rubric from here on; kept with the trial that was being labelled."""

    type: ClassVar[str] = "rubric_edited"
    suite: str
    who: str
    rubric: str
    rubric_hash: str


class TrialJudged(Event, frozen=True, kw_only=True):
    """A model judged the trial by a rubric; where the judge or a hash differs, it is another judge."""

    type: ClassVar[str] = "trial_judged"
    suite: str
    judge: str
    """The model's name, with its kind where it is not a real one."""
    prompt_hash: str
    """Of the instructions that the judge was given."""
    rubric: str
    rubric_hash: str
    value: int
    """1 where the judge finds that the rubric is met, else 0."""
    score: float
    """What the judge said, from 0 to 1; `value` is 1 from `at_least` on."""
    at_least: float = 0.5
    why: str = ""
    round: int = 0
    """0 for its first verdict on the trial, 1 for the second …"""
    swapped: bool = False
    """Whether it was shown rubric, goal and answer in the reverse order."""
