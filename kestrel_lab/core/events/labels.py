"""Events of labels: what people, model judges and scanners said of a run or of the trial that it is."""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import field

from kestrel_lab.core.events import Event
from kestrel_lab.core.json_types import Json


class Annotation(Event, frozen=True, kw_only=True):
    """What was said of a run beside what it did: anybody may add it, also after the run has ended."""


class OfRubric(Annotation, frozen=True, kw_only=True):
    """What a person did with the rubric of a suite."""

    suite: str
    who: str
    rubric: str
    """The text of the rubric."""
    rubric_hash: str


class TrialLabelled(OfRubric, frozen=True, kw_only=True):
    """A person judged the trial by a rubric; its time is the event's."""

    type: ClassVar[str] = "trial_labelled"
    value: int | None
    """1 where the rubric is met, 0 where not, `None` where the person skipped the trial."""
    note: str = ""
    probability: float = 1.0
    """With which this trial was among the `drawn`, above 0 and at most 1."""
    drawn: int = 0
    """How many trials the draw asked for; 0 for a trial that a person chose, which represents no other."""
    seed: int = 0
    """Of the draw."""
    frame: str = ""
    """A hash of the trials that could have been drawn."""
    repeat: bool = False
    """Whether the same person labels the trial a second time, without knowing it."""


class LabelUndone(Annotation, frozen=True, kw_only=True):
    """A label does not count any more."""

    type: ClassVar[str] = "label_undone"
    label: str
    """The `eid` of its event."""
    who: str


class RubricEdited(OfRubric, frozen=True, kw_only=True):
    """The suite has another rubric from here on; recorded in the run of the trial that was being labelled."""

    type: ClassVar[str] = "rubric_edited"


class TrialJudged(Annotation, frozen=True, kw_only=True):
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


BLAME: Final = "blame"
"""As a scanner, what re-runs of forks show of a failed run; it is no measure of a suite."""


class RunScanned(Annotation, frozen=True, kw_only=True):
    """Scanners looked through the run; of each scanner and version the newest counts."""

    type: ClassVar[str] = "run_scanned"
    scanners: dict[str, str]
    """The version of each scanner that looked, by its name."""
    upto: int
    """The number of the last event of the run that they saw."""
    findings: list[dict[str, Json]] = field(default_factory=list)
    """What they found: `scanner`, `text` (a sentence), `events` (ids) and `value` each; of a blame also
    `calls`, the model's and the tools' of a turn, which are shown marked.
    """
    failed: dict[str, str] = field(default_factory=dict)
    """Why scanners came to no end, by their names."""
    rubrics: dict[str, str] = field(default_factory=dict)
    """Hashes of the rubrics of model scanners, by their names: labels by the same one correct their rates."""


class ClusterNamed(Annotation, frozen=True, kw_only=True):
    """A cluster of failures got its name, or has it still; kept with the run that is most like the others."""

    type: ClassVar[str] = "cluster_named"
    suite: str
    """The suite whose failures were grouped; empty for a list of runs."""
    name: str
    words: dict[str, float]
    """Its most telling words with their weights."""
    size: int = 0
    sentence: str = ""
    """What a model says that the failures have in common."""
    model: str = ""
