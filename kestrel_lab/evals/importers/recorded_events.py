"""The events and the trial that a recording becomes in the log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from kestrel_lab.core.events import union as e
from kestrel_lab.core.events.tool_kinds import edited_file, only_reads
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.evals.execution.trial import ANSWER_KEPT
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    finite_json,
)
from kestrel_lab.evals.metrics import measure_run
from kestrel_lab.evals.stored_trials import EvalRow, failed_scores, failed_text
from kestrel_lab.host.version import __version__
from kestrel_lab.runtime.context.recorded_tools import recorded_tool

COMMIT: Final = "imported"
"""In place of a commit's hash: `kestrel eval summary SUITE --commit imported` shows imported trials, no
commit's name does.
"""
_STEP: Final = "answer"
_CLOCKS: Final = ("wall_time", "working_time", "waiting_time", "queued_time", "backoff_time")


def events_of(recording: Recording) -> list[tuple[float, e.Event]]:
    """Return the events of the recording's run, each with its time.

    Times that the recording does not tell are those of the event before: only what `RunStarted.imported`
    names is known. Raises `ValueError` for a conversation that cannot be one.
    """
    return _Conversion(recording).events()


class _Conversion:
    """Makes events of a recording, message by message."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        known = [said.at for said in recording.messages if said.at is not None]
        start = (
            recording.began
            if recording.began is not None
            else min(known, default=time.time() - (recording.seconds or 0.0))
        )
        self._start = self._now = start
        self._times = "each" if known else "total" if recording.seconds is not None else "unknown"
        self._events: list[tuple[float, e.Event]] = []
        self._open: dict[str, tuple[str, ImportedCall]] = {}
        """Calls without an answer, by our id, with the recording's."""
        self._ids: dict[str, str] = {}
        self._turns = 0

    def events(self) -> list[tuple[float, e.Event]]:
        recording, goal = self._recording, self._recording.goal
        self._put(e.PlanProposed(plan=Plan.single(goal).as_json()))
        self._put(e.StateTransition(source=RunStatus.PLANNING, target=RunStatus.EXECUTING))
        self._put(e.StepStarted(step=_STEP, goal=goal))
        first = recording.first_question
        for place, said in enumerate(recording.messages):
            if said.role == "assistant":
                self._assistant(said, place)
            elif said.role == "tool":
                self._tool(said)
            elif said.role == "note":
                self._put(e.Progress(text=said.text), said.at)
            elif place != first:
                self._close()
                self._put(e.Prompted(step=_STEP, text=said.text), said.at)
        self._close()
        self._end()
        return [(self._start, self._started(goal)), *self._events]

    def _put(self, event: e.Event, at: float | None = None) -> None:
        # Events of a run are in the order of time; a recording's clock may have been set back.
        self._now = max(self._now, self._now if at is None else at)
        self._events.append((self._now, event))

    def _assistant(self, said: ImportedMessage, place: int) -> None:
        self._close()
        self._turns += 1
        call, model = f"{_STEP}.m{self._turns}", said.model or self._recording.model
        calls: list[dict[str, Json]] = []
        for number, asked in enumerate(said.calls, 1):
            ours = f"{_STEP}.{self._turns}.{number}"
            self._open[ours] = (asked.id, asked)
            self._ids[ours] = asked.id
            calls.append(
                {"id": ours, "name": asked.tool, "args": finite_json(asked.args), "problem": asked.problem}
            )
        began = None if said.at is None else said.at - said.seconds
        messages, tools = place + bool(self._recording.system), len(self._recording.tools)
        self._put(
            e.ModelCalled(
                call=call, step=_STEP, model=model, cycle=self._turns, messages=messages, tools=tools
            ),
            began,
        )
        answered = e.ModelAnswered(
            call=call,
            step=_STEP,
            model=model,
            text=said.text,
            calls=calls,
            tokens_in=said.tokens_in or 0,
            tokens_out=said.tokens_out or 0,
            tokens_cached=said.tokens_cached,
            tokens_reasoning=said.tokens_reasoning,
            thinking=[{"text": said.thinking}] if said.thinking else [],
            cost_usd=said.cost_usd,
            seconds=said.seconds,
            finish="tool_calls" if calls else "stop",
            metered=said.tokens_in is not None and said.tokens_out is not None,
        )
        self._put(answered, said.at)

    def _tool(self, said: ImportedMessage) -> None:
        fits = [
            ours for ours, (theirs, _) in self._open.items() if not said.call or theirs in ("", said.call)
        ]
        if not fits:
            raise ValueError(
                f"a tool answers the call {said.call!r}, which nobody made"
                if said.call
                else "a tool answers, and no call is open"
            )
        self._result(fits[0], said.text, said.error, "failed", said)

    def _result(
        self, ours: str, text: str, error: str, kind: str, said: ImportedMessage | None = None
    ) -> None:
        _, asked = self._open.pop(ours)
        said = said or ImportedMessage(role="tool")
        at, seconds = said.at, said.seconds
        if not asked.problem:
            began = None if at is None else at - seconds
            # Claims about actions are checked against what the calls can have done.
            declared = self._recording.declared.get(asked.tool) if asked.pure is None else asked.pure
            pure = only_reads(asked.tool, asked.args) if declared is None else declared
            called = e.ToolCalled(
                call=ours,
                step=_STEP,
                tool=asked.tool,
                args=finite_json(asked.args),
                danger="",
                effect="pure" if pure else "opaque",
            )
            self._put(called, began)
        edited = "" if error or said.changed else edited_file(asked.tool, asked.args)
        problem: dict[str, Json] | None = (
            {"kind": kind, "message": error, "transient": False} if error else None
        )
        self._put(
            e.ToolAnswered(
                call=ours,
                step=_STEP,
                tool=asked.tool,
                text=text or error,
                error=problem,
                seconds=seconds,
                changed=[edited] if edited else list(said.changed),
                touched=None if said.touched is None else list(said.touched),
            ),
            at,
        )

    def _close(self) -> None:
        """Answer the calls that the recording has no answer to, so that every conversation is whole and can
        be forked.
        """
        for ours, (_, asked) in list(self._open.items()):
            kind = "invalid_arguments" if asked.problem else "unknown_outcome"
            self._result(ours, "", asked.problem or "the recording has no result of this call", kind)

    def _end(self) -> None:
        recording = self._recording
        until = None if recording.seconds is None else self._start + recording.seconds
        outcome, target = ("error", RunStatus.FAILED) if recording.error else ("complete", RunStatus.COMPLETE)
        reason = recording.error or recording.reason
        self._put(e.StepFinished(step=_STEP, ok=not recording.error, reason=reason), until)
        ended = e.RunFinished(outcome=outcome, answer=recording.answer, reason=reason)
        self._put(_reviewed(recording.goal, [event for _, event in self._events], ended))
        self._put(e.StateTransition(source=RunStatus.EXECUTING, target=target, reason=reason))

    def _started(self, goal: str) -> e.RunStarted:
        recording = self._recording
        imported: dict[str, Json] = {
            "format": recording.format,
            "source": recording.source,
            "id": recording.id,
            "at": time.time(),
            "times": self._times,
            **finite_json(recording.facts),
            **({"usage": usage} if (usage := recording.usage.as_json()) else {}),
            **({"left_out": [str(one) for one in recording.left_out]} if recording.left_out else {}),
            "calls": {ours: theirs for ours, theirs in self._ids.items() if theirs},
        }
        called = dict.fromkeys(asked.tool for said in recording.messages for asked in said.calls)
        offered = {str(tool["name"]): finite_json(tool) for tool in recording.tools}
        return e.RunStarted(
            goal=goal,
            workspace="",
            model=recording.model,
            model_kind=recording.kind,
            system=recording.system,
            config=recording.config,
            # Runs of a scenario are trials, which lists of runs leave out.
            scenario=recording.scenario if recording.is_trial else "",
            package=__version__,
            imported=imported,
            tools=[
                recorded_tool(**cast("Any", offered.get(name, {"name": name})))
                for name in dict.fromkeys((*offered, *called))
            ],
        )


def _reviewed(goal: str, events: Sequence[e.Event], ended: e.RunFinished) -> e.RunFinished:
    """Return the end of a run with what its answer claims and its calls refute, as in our own runs.

    Only claims about actions are compared: the files that it is about are not here.
    """
    if not ended.answer:
        return ended
    # With all the rules of the checks: imported only where there is an answer.
    from kestrel_lab.verification.claims import mentions_actions
    from kestrel_lab.verification.engine import CHECKS, check_answer
    from kestrel_lab.verification.subject import subject_of

    if not mentions_actions(ended.answer):
        return replace(ended, looked=True)
    records = _records("", ((0.0, event) for event in events))
    subject = subject_of(records, answer=ended.answer, goal=goal, root=None)
    found = check_answer(subject, {"deeds": CHECKS["deeds"]})
    return replace(ended, looked=True, concerns=[one.as_json() for one in found])


def _records(run: str, events: Iterable[tuple[float, e.Event]]) -> list[e.Record]:
    return [
        e.Record(run_id=run, seq=seq, eid="", at=at, event=event) for seq, (at, event) in enumerate(events, 1)
    ]


def trial_of(recording: Recording, events: Sequence[tuple[float, e.Event]]) -> EvalRow:
    """Return the trial that the recording is; what it does not tell is in no metric."""
    run = recording.run_id
    metrics = measure_run(_records(run, events))
    answers = [message for message in recording.messages if message.role == "assistant"]
    if not answers or any(None in (answer.tokens_in, answer.tokens_out) for answer in answers):
        for name in ("token_usage", "tokens_in", "tokens_out"):
            metrics.pop(name)
    if all(answer.cost_usd is None for answer in answers):
        metrics.pop("cost_estimate")
    if all(said.at is None for said in recording.messages):
        # Some recordings tell how long the whole took, and no other time.
        for name in _CLOCKS if recording.seconds is None else _CLOCKS[1:]:
            metrics.pop(name)
    metrics |= recording.usage.metrics() | recording.metrics
    broke = recording.passed is None
    outcome = "error" if broke else "pass" if recording.passed else "fail"
    reason = (
        recording.error
        or recording.reason
        or (recording.unjudged or "not judged in the recording" if broke else "")
    )
    if outcome == "fail" and not reason:
        failed = failed_scores(recording.scores or ())
        reason = failed_text((str(score["check"]), "") for score in failed)
    result: dict[str, Json] = {
        "family": recording.family,
        **({"group": recording.group} if recording.group else {}),
        "weight": 1.0,
        "model": recording.model,
        "model_kind": recording.kind,
        "outcome": outcome,
        "reason": reason,
        "scores": finite_json(recording.scores or ()),
        "status": str(RunStatus.FAILED if recording.error else RunStatus.COMPLETE),
        "answer": head_tail(recording.answer, ANSWER_KEPT)[0],
        "run": run,
        "imported": recording.format,
    }
    return EvalRow(
        id=f"t{recording.run_id}",
        scenario=recording.scenario,
        result=result,
        created_at=time.time(),
        git_sha=COMMIT,
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        suite=recording.suite,
        config=recording.config or recording.model,
        epoch=recording.epoch,
        key="",
    )
