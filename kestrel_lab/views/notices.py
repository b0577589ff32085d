"""Notices: the rows of events that one sentence describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, cast

from kestrel_lab.core.events import union as e
from kestrel_lab.core.events.actions import Action, action_lines
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import REPORTS
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.verification.evidence import states_summary
from kestrel_lab.views.confidence_badge import Badge
from kestrel_lab.views.evidence import STATE_MARKS
from kestrel_lab.views.formatting import action_line, format_count, sanitize_short
from kestrel_lab.views.rows import NoticeRow

_MOST_ACTIONS: Final = 20
"""Lines that tell what a run did."""
_MARKS = {"todo": "☐", "doing": "▶", "done": "☑", "dropped": "☒"}


def copy_row(copy: Mapping[str, Json]) -> NoticeRow:
    """Return the row that says what the files of a fork are: see `RunForked.private_copy`."""
    exact = bool(copy.get("exact"))
    doubt = "" if exact else "; they may not be those of that moment"
    notes = cast("Sequence[str]", copy.get("notes") or ())
    return _row(
        "info" if exact else "warning",
        f"files: a private copy, made of {copy.get('source')}{doubt}",
        map(str, notes),
    )


def notice_of(event: e.Event) -> NoticeRow | None:  # one case per event  # noqa: C901
    """Return the row for `event`, still without an id; `None` for an event that has another row or none."""
    match event:
        case e.BudgetWarned() if (
            event.limit != "cost_usd"
        ):  # the log has that a price is not known; repeating it in each run would be noise
            return _row("warning", event.message)
        case e.ContextCompacted():
            return _compaction_row(event)
        case e.FilesKept() if event.problem:
            return _row("warning", f"what files hold is not kept for forks from here on: {event.problem}")
        case e.FilesApplied():
            return _row(
                "info",
                f"applied to the workspace: {format_count(len(event.changed), 'path')}",
                [*event.changed][:_MOST_ACTIONS],
            )
        case e.StepRetried():
            soon = f" in {event.wait_s:g} s" if event.wait_s else ""
            text = (
                f"failed ({event.error_class}) and is tried again{soon}, attempt {event.attempt}: "
                f"{event.reason}"
            )
            return _row("warning", text, step=event.step)
        case e.BranchScored():
            after = f", goes on from {event.parent}" if event.parent else ""
            return _row(
                "info",
                f"candidate {event.candidate}: score {event.score:.2f}{after}",
                [event.text],
                step=event.step,
            )
        case e.MemoryRecalled():
            text = f"{format_count(len(event.notes), 'note')} of earlier runs recalled"
            return _row("info", text, map(_note, event.notes), step=event.step)
        case e.MemoryStored():
            return _row("info", "kept for later runs", [_note(event.note)], step=event.step)
        case e.RetrievalStep() if event.stopped:
            text = (
                f"{format_count(len(event.hits), 'file')} found, covering {event.coverage or 0:.0%} of "
                f"the question ({event.stopped})"
            )
            return _row("info", text, [_hit_text(hit) for hit in event.hits], step=event.step)
        case e.VoteCast() if event.vote:
            return _row(
                "info",
                f"{event.member} votes for the position of {event.vote}: {event.reason}",
                step=event.step,
            )
        case e.VoteCast():
            claims = [f"{one.get('claim')} – {_weight(one)}" for one in event.claims]
            return _row(
                "info",
                f"{event.member}, {event.confidence:.0%} sure: {event.position}",
                claims,
                step=event.step,
            )
        case e.CouncilDecided():
            against = [
                f"{one.get('member')} for {one.get('vote')}: {one.get('reason')}" for one in event.dissent
            ]
            tally = ", ".join(f"{member} {number}" for member, number in event.votes.items())
            found = (
                f"decided{' on a split vote' if event.split else ''} ({tally}): {event.decision}. "
                f"{event.reason}"
            )
            return _row("warning" if event.split else "info", found, against, step=event.step)
        case e.ModelEscalated():
            return _row(
                "info", f"{event.target} takes over from {event.source}: {event.reason}", step=event.step
            )
        case e.ToolsAdded():
            names = [str(tool["name"]) for tool in event.tools]
            return _row(
                "info",
                f"{format_count(len(names), 'tool')} of servers that were started for the first time",
                names,
            )
        case e.ToolsShown() if event.tools:
            what = f" for: {one_line(event.need, 100)}" if event.need else ""
            return _row(
                "info",
                f"offered {format_count(len(event.tools), 'more tool')}{what}",
                event.tools,
                step=event.step,
            )
        case e.McpCandidateFound():
            return _candidate(event)
        case e.McpInstalled():
            how = f", allowed by mcp_allow: {event.allowed}" if event.allowed else ""
            return _row(
                "good",
                f"{event.package} is installed as {event.server}{how}",
                (str(tool.get("name", "")) for tool in event.tools),
            )
    return None


def _compaction_row(event: e.ContextCompacted) -> NoticeRow:
    left_out = f"{format_count(len(event.results), 'result')} left out" if event.results else ""
    what = " and ".join(
        part for part in (left_out, "what came before summarised" if event.summary else "") if part
    )
    found = what or "nothing could be left out"
    text = (
        f"context compacted: {found}; about {event.before:,} tokens were {event.after:,} of {event.window:,}"
    )
    return _row("info", text, step=event.step)


def _hit_text(hit: dict[str, Json]) -> str:
    first, last = hit.get("first"), hit.get("last")
    return sanitize_short(
        f"{hit.get('path')}:{first}{'' if last == first else f'-{last}'} ({hit.get('why')})", 300
    )


def prompt_row(event: e.Prompted, *, again: bool) -> NoticeRow:
    """Return the row of a prompt, shortened: prompts are long and mostly known."""
    return _row("info", f"asked{' again' if again else ''}: {one_line(event.text, 160)}", step=event.step)


def update_verdict(row: NoticeRow, event: e.VerifierStarted | e.VerifierFinished) -> NoticeRow:
    """Bring the row of a verification up to date: what is asked for, then the verdict."""
    if isinstance(event, e.VerifierStarted):
        criteria: list[Json] = [sanitize_short(text, 500) for text in event.criteria]
        row.change(
            text=f"{sanitize_text(event.verifier)} checks the answer",
            level="info",
            state="running",
            items=criteria,
        )
    else:
        sure = "" if event.confidence is None else f" · confidence {event.confidence:.2f}"
        text = f"{'PASS' if event.passed else 'FAIL'}{sure} · {sanitize_text(event.verifier)}"
        issues: list[Json] = [sanitize_short(text, 500) for text in event.issues]
        row.change(text=text, level="good" if event.passed else "bad", state="done", items=issues)
    return row


def actions_done(actions: Sequence[Action]) -> NoticeRow | None:
    """The row of what the run really did, from its log: changes of files, and commands; `None` where the rows
    of the calls say all there is.
    """
    every = list(action_lines(one for one in actions if one.kind != "other"))
    if not every:
        return None
    lines = every[:_MOST_ACTIONS] + (
        [f"… and {len(every) - _MOST_ACTIONS} more"] if len(every) > _MOST_ACTIONS else []
    )
    refused = any(action.outcome in ("denied", "failed", "unknown") for action in actions)
    row = _row("warning" if refused else "info", "what it did:", lines)
    if len(lines) == 1:
        row.change(text=f"what it did: {row.items[0]}", items=[])
    return row


def chosen_model(event: e.RunStarted) -> NoticeRow:
    """Return the row that says which model was chosen where none was named."""
    why = f"{event.model} works on this, as no model was named and {event.model_why}"
    return _row("info", f"{why}; another one: --model NAME, or Lab(model=…)")


def imported_from(event: e.RunStarted) -> NoticeRow:
    """Return the row of an imported run; names its file without the folder, which is private."""
    source = PurePath(str(event.imported.get("source"))).name
    return _row(
        "info", f"imported: recorded elsewhere ({event.imported.get('format')}, {source}), not run here", []
    )


def concerns_row(event: e.RunFinished) -> NoticeRow | None:
    """Return the row with the concerns about an answer; `None` where there are none."""
    if not event.concerns:
        return None
    items = [
        f"{one.get('severity')}: {one.get('what')}" + (f" — {one['place']}" if one.get("place") else "")
        for one in event.concerns
    ]
    level = "warning" if any(one.get("severity") != "minor" for one in event.concerns) else "info"
    return _row(level, f"{format_count(len(items), 'concern')} about the answer", items)


def confidence_row(badge: Badge) -> NoticeRow | None:
    """The row beside an answer that says what was checked; `None` where nothing was."""
    # What is wrong has a row of its own.
    if not str(badge) or (
        badge.word in ("unchecked", "nothing to check", "wrong")
        and badge.value is None
        and badge.judge is None
    ):
        return None
    return _row("", str(badge), [badge.why] if badge.value is not None else [])


def claims_row(claims: Sequence[Mapping[str, Any]]) -> NoticeRow | None:
    """The row of the claims of an answer, with states and citations; `None` without claims."""
    if not claims:
        return None
    states = [str(claim.get("state")) for claim in claims]
    bad = any(state in ("wrong", "changed") for state in states)
    return _row("warning" if bad else "info", states_summary(states), map(_claim, claims))


def _claim(claim: Mapping[str, Any]) -> str:
    state = str(claim.get("state"))
    cites = [
        f"{one.get('place')}" + (f" ({one['why']})" if one.get("why") else "")
        for one in claim.get("citations", ())
    ]
    text = f"{STATE_MARKS.get(state, '?')} {state}: {one_line(str(claim.get('text', '')), 200)}"
    return sanitize_short(text + (f" — {'; '.join(cites)}" if cites else ""), 500)


def next_steps(event: e.RunFinished) -> NoticeRow | None:
    """The row of next actions, a line each to copy; `None` without one to take: that a file is named in the
    answer is no step.
    """
    lines = [
        action_line(str(one.get("text", "")), str(one.get("why", "")))
        for one in event.actions
        if one.get("text") and one.get("kind") != "file"
    ]
    return _row("", "next, if you like:", lines) if lines else None


def task_list(row: NoticeRow, tasks: Iterable[e.TaskChanged]) -> NoticeRow:
    """Bring the row of the task list up to date: how far it is, then each task with its state."""
    tasks = list(tasks)
    over = sum(task.status in {"done", "dropped"} for task in tasks)
    texts = [
        f"{_MARKS.get(task.status, task.status)} {task.title}" + (f": {task.note}" if task.note else "")
        for task in tasks
    ]
    lines: list[Json] = [sanitize_short(text, 500) for text in texts]
    level, state = ("good", "done") if over == len(tasks) else ("info", "running")
    row.change(text=f"tasks: {over} of {len(tasks)} done", level=level, state=state, items=lines)
    return row


def _weight(claim: Mapping[str, Json]) -> str:
    evidence = cast("list[Json]", claim.get("evidence") or [])
    return (
        f"{claim.get('shown')} of {format_count(len(evidence), 'piece')} of evidence found"
        if evidence
        else "no evidence"
    )


def _row(level: str, text: str, items: Iterable[str] = (), *, step: str = "") -> NoticeRow:
    found = [sanitize_short(item, 500) for item in items]
    return NoticeRow(
        id="", step=step, level=level, text=sanitize_short(text, 500), items=[item for item in found if item]
    )


def _candidate(event: e.McpCandidateFound) -> NoticeRow:
    lines = [f"{point.get('criterion')}: {point.get('points')}, {point.get('why')}" for point in event.rubric]
    if event.problem:
        return _row("info", f"server {event.server} cannot be had: {event.problem}", lines)
    return _row("info", f"server {event.server} was found: {event.score} of 100 points", lines)


def _note(note: dict[str, Json]) -> str:
    text = next((note[key] for key in ("text", "content", "note") if isinstance(note.get(key), str)), None)
    if isinstance(found := note.get("id"), str) and found:
        about = f"{note.get('kind', 'note')} {found}" + (
            f" (from {note['taint']})" if note.get("taint") else ""
        )
        return f"{about}: {text}" if text is not None else f"{about}; its words: kestrel memory show {found}"
    return (
        str(text)
        if text is not None
        else one_line(", ".join(f"{key}: {value}" for key, value in note.items()), 300)
    )


# A report on the quality of an answer as texts: what is wrong, how bad, where, what to do, and what has no
# evidence.

COLUMNS: Final = ("severity", "place", "what", "fix", "step", "check")


def quality_rows(report: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A row of texts per issue, the worst first, then one per claim without evidence."""
    for one in report.get("issues", ()):
        yield {column: one_line(sanitize_text(str(one.get(column, ""))), 300) for column in COLUMNS}
    for text in report.get("missing_evidence", ()):
        what, fix = "it cites nothing that shows it", "cite what shows it, or say that it is unknown"
        # Nothing in the run supports or contradicts the claim, which is no severity.
        yield {
            "severity": "no evidence",
            "place": one_line(sanitize_text(str(text)), 300),
            "what": what,
            "fix": fix,
            "step": "",
            "check": "",
        }


def quality_line(report: Mapping[str, Any]) -> str:
    """Return the verdict of a quality report and the number of findings by severity."""
    severities = [str(one.get("severity")) for one in report.get("issues", ())]
    parts = [
        f"{severities.count(word)} {word}" for word in ("critical", "major", "minor") if word in severities
    ]
    missing = len(report.get("missing_evidence", ()))
    parts += [f"{format_count(missing, 'claim')} without evidence"] if missing else []
    return (
        f"quality: {'passed' if report.get('pass') is True else 'did not pass'}, "
        f"{', '.join(parts) or 'nothing found'}"
    )


def quality_row(event: e.StepFinished, operation: str) -> NoticeRow | None:
    """The row that shows a report; `None` for the end of any other step."""
    if operation not in REPORTS or not isinstance(event.output, dict):
        return None
    rows = [list(row.values()) for row in quality_rows(event.output)]
    level = "good" if event.output.get("pass") is True else "bad"
    return NoticeRow(
        id="",
        step=event.step,
        level=level,
        text=quality_line(event.output),
        table=[list(COLUMNS), *rows] if rows else [],
    )
