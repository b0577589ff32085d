"""Compare the actions that an answer claims in the first person with what the log says was done.

Only a few verbs of English are read, by kind of call. A claim is refuted where every call that can have done
it was denied or failed, or where no call can have done it (`verification.effects`). Where some command or
tool may have done it unseen, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.events.actions import Action
from kestrel_lab.shell_syntax.effects import runs_program
from kestrel_lab.verification.claims import ANY_VERB, VERBS, Statement, code_in, files_in
from kestrel_lab.verification.effects import (
    is_among,
    may_change_anything,
    may_change_cell,
    may_change_file,
    may_delete,
    may_run_tests,
    may_send,
    names_file,
)
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.subject import Subject

TOOLS: Final[dict[str, re.Pattern[str]]] = {
    kind: re.compile(words, re.IGNORECASE)
    for kind, words in {
        "write": "write|create|save|add|file|insert|append",
        "edit": "edit|write|update|modify|patch|file",
        "delete": "delete|remove|file",
        "run": "run|exec|bash|shell|command|test",
        "send": "send|mail|post|publish|submit|transfer|pay|book|schedule|deploy|push|message|invite|reply",
    }.items()
}
"""Words in the names of tools that do a kind of action."""
_ADVERBS: Final = r"(?:\s+(?:also|then|just|now|already|first|\w+ly))*"
_CLAIM: Final = re.compile(
    rf"(?:\b(?:I|we)(?:['’]ve|\s+have)?{_ADVERBS}\s+|(?<=[,;])\s+(?:and\s+)?(?:then\s+)?|\band{_ADVERBS}\s+)(?P<verb>{ANY_VERB})\b",
    re.IGNORECASE,
)
_SUBJECT: Final = re.compile(
    rf"\b(?:I|we)(?:['’]ve|\s+have)?{_ADVERBS}\s+(?:\w+ed|\w+t|did|made|went|{ANY_VERB})\b", re.IGNORECASE
)
_BARE: Final = re.compile(
    rf"^\W*(?:(?:All\s+)?(?:done|finished|ok)\W+)?(?:Successfully\s+)?(?P<verb>(?!run\b)(?:{ANY_VERB}))\s+(?:the\s+|a\s+|an\s+|file\s+|command\s+|new\s+)*(?=`|[\w./-]+\.\w+\b|rm\b)",
    re.IGNORECASE,
)
"""A report without its subject, as in "Wrote `SUMMARY.md`": its object follows at once."""
_PASSIVE: Final = re.compile(
    rf"^`?\s+(?:was|were|has been|have been|is now)\s+(?:\w+ly\s+)?(?:{ANY_VERB})\b", re.IGNORECASE
)
"""Text after a file that was changed."""
_SHOWN: Final = re.compile(r"\b(?:below|above|here|following)\b|:\W*$", re.IGNORECASE)
"""Content that the answer itself shows, which needs no call."""
DONE: Final = frozenset({"done", "unknown", "open"})
"""Outcomes of calls that had, or may have had, their effect."""
SUPPOSED: Final = re.compile(
    r"\b(?:if|when|once|after|before|until|unless|had|would|could|should|whenever|as soon as)\b",
    re.IGNORECASE,
)
_SUCCESS: Final = re.compile(
    r"\b(?:success\w*|pass(?:es|ed)?|without (?:any )?errors?|cleanly|green|works?|worked)\b", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedAction:
    """An action that an answer claims."""

    kind: str
    words: str
    """The verb with what follows it, up to the next claim."""
    files: tuple[str, ...]
    command: str


def deeds_were_done(subject: Subject) -> Iterator[Issue]:
    """Yield an issue for each claimed action that the log refutes."""
    if subject.acts is None:
        return
    for said in subject.paid():
        for claimed in claimed_actions(said):
            if why := _refutation(claimed, subject.acts, subject):
                subject.checked.add(claimed.words)
                yield Issue("critical", said.text, f"the answer says “{claimed.words}”, but {why}", DO_IT)
        for name in files_in(said):
            refused = [
                action
                for action in subject.acts
                if action.outcome not in DONE and names_file(action, name.text)
            ]
            excused = any(
                may_change_file(action, name.text) for action in subject.acts if action.outcome in DONE
            )
            if refused and not excused and _PASSIVE.match(said.text[name.end :]):
                subject.checked.add(name.text)
                yield Issue("critical", said.text, f"{name.text}: {failure_text(refused)}", DO_IT)


DO_IT: Final = "do it, or say that it was not done"


def count_confirmed(subject: Subject) -> int:
    """Return how many actions that the answer claims the log has as done."""
    done = [action for action in subject.acts or () if action.outcome == "done"]
    with subject.files.work.allowed():
        found = (
            [one.words for said in subject.claims for one in claimed_actions(said) if _is_in(one, done)]
            if done
            else []
        )
    subject.checked.update(found)
    return len(found)


def _is_in(claimed: ClaimedAction, done: Sequence[Action]) -> bool:
    if claimed.command:
        return any(_in_command(claimed.command, action) for action in done)
    if claimed.kind in ("run", "send"):
        return False
    return bool(claimed.files) and all(
        any(_has_changed(action, path) for action in done) for path in claimed.files
    )


def _has_changed(action: Action, path: str) -> bool:
    """Return true if a call certainly changed a file: its tool says so, or it names a file that changed
    during it.
    """
    return is_among(path, action.files) or (
        action.touched is not None and is_among(path, action.touched) and names_file(action, path)
    )


def claimed_actions(said: Statement) -> Iterator[ClaimedAction]:
    """Yield the actions that a sentence claims in the first person, or reports without a subject."""
    if said.kind == "code":
        return
    bare = _BARE.match(said.text)
    subject = _SUBJECT.search(said.text)
    found = ([bare] if bare else []) + (
        [match for match in _CLAIM.finditer(said.text) if match.end() > subject.start()] if subject else []
    )
    for place, match in enumerate(found):
        if SUPPOSED.search(said.text[: match.start("verb")]):
            continue
        end = found[place + 1].start("verb") if place + 1 < len(found) else len(said.text)
        start = match.start("verb")
        verb = match["verb"].lower()
        kind = next(kind for kind, verbs in VERBS.items() if verb in verbs.split("|"))
        files = tuple(name.text for name in files_in(said) if start <= name.start < end)
        codes = [code for code, at in code_in(said) if start <= at < end]
        plain = re.match(r"\s+([a-z][\w.-]*(?: -?[\w./=-]+)*)", said.text[match.end("verb") : end])
        # Without backticks only words with an option are surely a command.
        command = next((code for code in codes if code not in files), "") or (
            plain[1].rstrip(".") if plain and " -" in plain[1] else ""
        )
        words = " ".join(said.text[start:end].split()).rstrip(" ,;.")
        yield ClaimedAction(
            kind=kind, words=words[:120], files=files, command=command if kind == "run" else ""
        )


def _refutation(claimed: ClaimedAction, actions: Sequence[Action], subject: Subject) -> str:
    """Return why a claim is false; empty if it is true or unknown."""
    done = [action for action in actions if action.outcome in DONE]
    if claimed.files and claimed.kind not in ("run", "send"):
        return next(
            filter(None, (_file_refuted(claimed, path, actions, done, subject) for path in claimed.files)), ""
        )
    if claimed.command:
        return _command_refuted(claimed, actions, done)
    if any(may_have_done(claimed, action) for action in done) or (
        _SHOWN.search(claimed.words) and not CELL.search(claimed.words)
    ):
        return ""
    refused = [action for action in actions if action not in done]
    alike = [action for action in refused if TOOLS[claimed.kind].search(action.tool)]
    if alike or (refused and not done):
        return failure_text(alike or refused)
    return "no call of this run did that" if done else "no call of this run did anything"


CELL: Final = re.compile(r"\bcells?\b", re.IGNORECASE)
_TESTS: Final = re.compile(r"\btests?\b|\bsuite\b", re.IGNORECASE)


def may_have_done(claimed: ClaimedAction, action: Action) -> bool:
    """Return true if a call can have done what a claim without file or command says."""
    if claimed.kind == "send":
        return may_send(action, claimed.words)
    if claimed.kind == "run":
        return may_run_tests(action) if _TESTS.search(claimed.words) else not action.files
    if CELL.search(claimed.words):
        return may_change_cell(action) or bool(action.files or action.touched)
    return may_delete(action) if claimed.kind == "delete" else may_change_anything(action)


def _file_refuted(
    claimed: ClaimedAction, path: str, actions: Sequence[Action], done: Sequence[Action], subject: Subject
) -> str:
    acting = [
        action
        for action in actions
        if action.outcome != "denied" and may_change_file(action, path) and (action in done or action.touched)
    ]
    there = subject.files.exists(path)
    if any(names_file(action, path) for action in acting):
        return ""
    if acting and (not subject.files.whole_listing or there != (claimed.kind == "delete")):
        # A command or another tool may have done it.
        return ""
    refused = [action for action in actions if action not in done and names_file(action, path)]
    return failure_text(refused) if refused else f"no call of this run did that with {path}"


def _command_refuted(claimed: ClaimedAction, actions: Sequence[Action], done: Sequence[Action]) -> str:
    words = claimed.command.split()
    first = words[0].rpartition("/")[2] if words else ""
    exact = [action for action in actions if _in_command(claimed.command, action)]
    exact = exact or [action for action in actions if first and _may_run(action, first)]
    if not exact:
        return f"{claimed.command} was not run"
    if not any(action in done for action in exact):
        return failure_text(exact)
    # A report of exactly what was run is held against its outcome by `command_reports`.
    codes = [action.exit_code for action in exact if action in done and not _is_command(claimed, action)]
    if _SUCCESS.search(claimed.words) and codes and all(code not in (0, None) for code in codes):
        return f"it ended with exit code {codes[-1]}"
    return ""


def _may_run(action: Action, program: str) -> bool:
    """Return true if a call may have run a program: by command, output, or another tool's arguments."""
    if action.kind == "command":
        command = str(action.args.get("command", ""))
        return runs_program(command, program) or (may_run_tests(action) and program in action.output)
    return any(program in str(value) for value in (action.tool, *action.args.values()))


def _is_command(claimed: ClaimedAction, action: Action) -> bool:
    return claimed.command.split() == str(action.args.get("command", "")).split()


def _in_command(command: str, action: Action) -> bool:
    return " ".join(command.split()) in " ".join(str(action.args.get("command", "")).split())


def failure_text(actions: Sequence[Action]) -> str:
    """Return what became of the last of some calls, in words."""
    last = actions[-1]
    return f"the call of {last.tool} {'was denied' if last.outcome == 'denied' else 'failed'}"
