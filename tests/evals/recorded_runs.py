"""Runs that another tool recorded, made by hand: transcripts of them, and trials in a log."""

from collections.abc import Sequence

from kestrel_lab.core.events.union import Record
from kestrel_lab.core.json_types import content_key
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
)
from kestrel_lab.evals.importers.recorded_events import events_of, trial_of
from kestrel_lab.evals.stored_trials import store_run, store_trial
from kestrel_lab.evals.transcripts.transcript import Transcript, transcript_of
from kestrel_lab.eventlog.store import SessionStore

Said = str | tuple[str, dict[str, object], str]
"""An answer, or a call with its tool, its arguments and what it answered; `!` begins an error."""


def recording(
    goal: str, *said: Said, passed: bool = True, scenario: str = "s", config: str = "c"
) -> Recording:
    """A recording of one task."""
    messages = [ImportedMessage(role="user", text=goal)]
    for one in said:
        if isinstance(one, str):
            messages.append(ImportedMessage(role="assistant", text=one))
            continue
        tool, args, answer = one
        messages.append(ImportedMessage(role="assistant", calls=(ImportedCall(tool=tool, args=args),)))
        error = answer[1:] if answer.startswith("!") else ""
        messages.append(ImportedMessage(role="tool", text=error or answer, error=error))
    return Recording(
        format="chat",
        source="made",
        id="made",
        digest=content_key(goal, said, scenario, config),
        model="m",
        messages=messages,
        suite="demo",
        scenario=scenario,
        config=config,
        scores=({"check": "done", "passed": passed, "value": float(passed), "reason": ""},),
        passed=passed,
    )


def transcript(goal: str, *said: Said) -> Transcript:
    """The transcript of such a recording, with ids of events that no other has."""
    made = recording(goal, *said)
    return transcript_of(
        made.run_id,
        [
            Record(run_id=made.run_id, seq=seq, eid=f"{made.run_id}-{seq}", at=at, event=event)
            for seq, (at, event) in enumerate(events_of(made), 1)
        ],
    )


def store_recordings(store: SessionStore, recordings: Sequence[Recording]) -> list[str]:
    """Store recordings as runs with trials; returns the ids of the runs."""
    for one in recordings:
        events = events_of(one)
        store_run(store, one.run_id, events)
        store_trial(store, trial_of(one, events))
    store.flush()
    return [one.run_id for one in recordings]
