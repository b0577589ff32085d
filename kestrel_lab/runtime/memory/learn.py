"""Lessons from a run without a model: corrected errors, a fingerprint of the workspace, allowed notes."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.events.union import ModelAnswered, Record, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json, content_key, readable
from kestrel_lab.core.notes import GUIDING, NAMES, Note
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.language.words import stems

MOST_PITFALLS = 3
_NO_LESSON = frozenset({"denied", "cancelled", "limit", "raised", "timeout"})
"""Kinds of failures that teach nothing about the arguments."""
_EXIT_CODE = re.compile(r"(?m)^(?:exit_code: |\{?\s*\"exit_code\": )(\d+)")
"""The exit code in the text of a command's result."""
_TELLING = re.compile(
    r"(?i)\b(?:error|not found|no "
    r"such|invalid|unknown|unrecognized|cannot|failed|denied)\b|\w(?:Error|Exception)\b"
)
_MARKERS = (
    *(
        "pyproject.toml",
        "setup.py",
        "package.json",
        "Cargo.toml",
        "go.mod",
        "pom.xml",
        "build.gradle",
        "Gemfile",
        "CMakeLists.txt",
    ),
    *(
        "Makefile",
        "Dockerfile",
        "tox.ini",
        "noxfile.py",
        "requirements.txt",
        "uv.lock",
        "poetry.lock",
        "package-lock.json",
    ),
)
_MOST_FILES = 20_000


def learn_from_run(records: Iterable[Record], workspace: Path) -> list[Note]:
    """Return the notes that a run's log and workspace yield; the same log and files yield the same notes."""
    known = list(records)
    run, at = (known[0].run_id, known[-1].at) if known else ("", time.time())
    return [*learn_pitfalls(known), *learn_repository(workspace, run, at)]


@dataclass(frozen=True, slots=True)
class _Failed:
    """A call that failed."""

    args: dict[str, Json]
    why: str


def learn_pitfalls(records: Iterable[Record]) -> list[Note]:
    """Return a note per corrected error: what failed, why, and the arguments that worked afterwards."""
    asked: dict[str, dict[str, Json]] = {}
    called: dict[str, dict[str, Json]] = {}
    failed: dict[tuple[str, str], _Failed] = {}
    found: list[Note] = []
    for record in records:
        event = record.event
        if isinstance(event, ModelAnswered):
            asked |= {
                str(each["id"]): cast("dict[str, Json]", each["args"])
                for each in event.calls
                if isinstance(each.get("args"), dict)
            }
        elif isinstance(event, ToolCalled):
            called[event.call] = event.args
        elif isinstance(event, ToolAnswered) and (
            event.call in called or (event.cached and event.call in asked)
        ):
            place = (event.step, event.tool)
            # The cache answered: what the model left out is as it was.
            if (args := called.pop(event.call, None)) is None:
                args = {**(failed[place].args if place in failed else {}), **asked[event.call]}
            why = _failure(event)
            if why:
                failed[place] = _Failed(args, why)
            elif why == "" and (before := failed.get(place)) is not None and _put_right(before.args, args):
                del failed[place]
                found.append(_pitfall_note(event, before, args, record))
    return found[:MOST_PITFALLS]


def learn_repository(workspace: Path, run: str, at: float) -> Iterator[Note]:
    """Yield a note about the kind of repository; nothing for an empty workspace."""
    kinds: Counter[str] = Counter()
    for folder, folders, names in os.walk(workspace):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "_")) and name not in {"node_modules", "build", "dist"}
        )
        kinds.update(
            suffix
            for name in names
            if re.fullmatch(r"\.[a-z0-9]{1,6}", suffix := Path(folder, name).suffix.lower())
        )
        if kinds.total() > _MOST_FILES:
            break
    if not kinds:
        return
    top = sorted(
        entry.name
        for entry in os.scandir(workspace)
        if entry.is_dir() and re.fullmatch(r"[A-Za-z][\w-]{0,30}", entry.name)
    )
    there = [name for name in _MARKERS if (workspace / name).exists()]
    parts = [
        "This repository has "
        f"{', '.join(_about(count, f'{kind} file') for kind, count in kinds.most_common(4))}"
    ]
    parts += [f"is built and run with {', '.join(there)}"] if there else []
    parts += [f"has the folders {', '.join(top[:8])}"] if top else []
    text = one_line("; ".join(parts) + ".", 300)
    yield Note(
        id=f"n{content_key(run, 'fingerprint')[:10]}",
        text=text,
        kind="fingerprint",
        run=run,
        at=at,
        taint=NAMES,
        confidence=0.9,
    )


def _about(count: int, what: str) -> str:
    """Return a rounded count, which stays the same while a repository grows a little."""
    return format_count(count, what) if count < 10 else f"about {round(count, 1 - len(str(count)))} {what}s"


def _failure(event: ToolAnswered) -> str | None:
    """Return why a call failed; empty if it worked, `None` if it teaches nothing."""
    if event.error is not None:
        kind = str(event.error.get("kind", ""))
        return None if kind in _NO_LESSON else str(event.error.get("message", event.text)) or kind
    code = _EXIT_CODE.search(event.text[:300])
    if code is None or code[1] == "0":
        return ""
    errors = [line.strip() for line in event.text.splitlines() if _TELLING.search(line)]
    return f"exit code {code[1]}" + (f", {errors[-1]}" if errors else "")


def _put_right(before: dict[str, Json], after: dict[str, Json]) -> bool:
    """Return whether the second call is the first one with something changed, not another piece of work."""
    if before == after:
        return False
    if any(key in after and after[key] == value for key, value in before.items()):
        return True
    ours, theirs = (set(re.findall(r"\w+", readable(args).lower())) for args in (before, after))
    return 2 * len(ours & theirs) >= min(len(ours), len(theirs))


def _pitfall_note(event: ToolAnswered, before: _Failed, args: dict[str, Json], record: Record) -> Note:
    changed = {key: value for key, value in args.items() if before.args.get(key) != value}
    wrong = {key: value for key, value in before.args.items() if args.get(key) != value}
    text = (
        f"{event.tool} with {one_line(readable(wrong), 90)} failed: "
        f"{one_line(before.why.partition('; ')[0], 90).rstrip('.')}. It worked with "
        f"{one_line(readable(changed), 90)}."
    )
    return Note(
        id=f"n{content_key(record.run_id, record.eid)[:10]}",
        text=one_line(text, 300),
        kind="pitfall",
        run=record.run_id,
        event=record.eid,
        at=record.at,
        taint=f"tool {event.tool}",
        tags=(event.tool,),
        confidence=0.7,
    )


# What may be kept as a note: how far it is trusted, and what no note may say.

LONGEST_NOTE = 300
ANSWER = "answer"
"""The taint of a run's answer, which tools and files influence."""
_LONGEST_EVIDENCE = 1_000
KINDS = ("preference", "procedure", "decision", "pitfall", "fact")
"""Kinds of notes a model may propose."""
_SECRET = re.compile(
    r"(?i)\b(?:api[_ "
    r"-]?key|secret|password|passwd|token|credential)s?\b\s*(?:is|are|[:=])|-----BEGIN|\b(?=\w*\d)(?=\w*[a-z])[\w-]{32,}\b"
)
_ORDER = re.compile(
    r"(?i)\b(?:ignore|disregard|forget)\b.{0,40}\b(?:instruction|previous|above|rule)|\bsystem "
    r"prompt\b|\byou are now\b"
)


def with_source(note: Note, goal: str) -> Note:
    """Return `note` with its trust: the user's if the goal says most of it, else that of the run's answer.

    A preference that quotes the goal is reduced to the quote: the content comes from the user, only the kind
    from the model.
    """
    evidence = _words(note.evidence)
    if len(evidence) >= 3 and evidence in _words(goal):
        if note.kind == "preference" and not _is_covered(note.text, note.evidence):
            note = replace(note, text=one_line(note.evidence, LONGEST_NOTE))
        if _is_covered(note.text, note.evidence):
            return replace(note, stated=True, taint="", confidence=0.9)
    return replace(note, stated=False, taint=ANSWER, confidence=0.6)


def _is_covered(text: str, evidence: str) -> bool:
    wanted = stems(text)
    return len(wanted & stems(evidence)) >= 0.6 * len(wanted)


def note_refusal(note: Note, goal: str, answer: str) -> str:
    """Return why a proposed `note` is refused; empty if it is stored.

    Its taint tells whether the user said it.
    """
    if why := text_problem(note):
        return why
    if note.kind not in KINDS:
        return f"its kind is not {', '.join(KINDS[:-1])} or {KINDS[-1]}"
    evidence = _words(note.evidence)
    if len(evidence) < 3 or not (evidence in _words(goal) or evidence in _words(answer)):
        return "its evidence is not in the goal or the answer"
    if note.kind in GUIDING and note.taint:
        return f"a {note.kind} must be what the user said, and the goal does not say it"
    return ""


def text_problem(note: Note) -> str:
    """Return why a note's text is invalid, whatever its source; empty if it is valid."""
    if not note.text or len(note.text) > LONGEST_NOTE or "\n" in note.text:
        return f"it is not one sentence of at most {LONGEST_NOTE} characters"
    if len(note.evidence) > _LONGEST_EVIDENCE:
        return f"its evidence has more than {_LONGEST_EVIDENCE:,} characters"
    if sanitize_text(note.text) != note.text:
        return "it has hidden characters"
    if _SECRET.search(note.text) or _SECRET.search(note.evidence):
        return "it looks like a secret"
    if _ORDER.search(note.text):
        return "it gives orders to agents"
    return ""


def _words(text: str) -> str:
    return " ".join(text.casefold().split())
