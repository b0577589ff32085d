"""Compare the deeds that an answer claims in the first person with what the log says was done.

Only a few verbs of English are read, by kind of call. A claim is refuted where every call that can have done
it was denied or failed, or where no call can have done it (`verification.effects`). Where some command or
tool may have done it unseen, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.events.deeds import Deed
from kestrel_lab.shell_syntax.effects import runs_program
from kestrel_lab.verification.claims import Statement, code_in, files_in
from kestrel_lab.verification.effects import (
    is_among,
    may_change_anything,
    may_change_cell,
    may_change_file,
    may_run_tests,
    may_send,
    names_file,
)
from kestrel_lab.verification.issues import Issue, make_issue
from kestrel_lab.verification.subject import Subject

VERBS: Final[dict[str, str]] = {
    "write": "wrote|written|created|added|saved|generated|inserted|appended",
    "edit": "edited|changed|updated|modified|fixed|refactored|renamed|replaced|implemented|patched",
    "delete": "deleted|removed",
    "run": "ran|run|executed|tested",
    "send": "sent|emailed|mailed|posted|published|submitted|transferred|paid"
    "|booked|scheduled|deployed|pushed",
}
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
"""Words in the names of tools that do a kind of deed."""
_ANY: Final = "|".join(VERBS.values())
_ADVERBS: Final = r"(?:\s+(?:also|then|just|now|already|first|\w+ly))*"
_CLAIM: Final = re.compile(
    rf"(?:\b(?:I|we)(?:['’]ve|\s+have)?{_ADVERBS}\s+|(?<=[,;])\s+(?:and\s+)?(?:then\s+)?|\band{_ADVERBS}\s+)(?P<verb>{_ANY})\b",
    re.IGNORECASE,
)
_SUBJECT: Final = re.compile(
    rf"\b(?:I|we)(?:['’]ve|\s+have)?{_ADVERBS}\s+(?:\w+ed|\w+t|did|made|went|{_ANY})\b", re.IGNORECASE
)
_BARE: Final = re.compile(
    rf"^\W*(?:(?:All\s+)?(?:done|finished|ok)\W+)?(?:Successfully\s+)?(?P<verb>(?!run\b)(?:{_ANY}))\s+(?:the\s+|a\s+|an\s+|file\s+|command\s+|new\s+)*(?=`|[\w./-]+\.\w+\b|rm\b)",
    re.IGNORECASE,
)
"""A report without its subject, as in "Wrote `SUMMARY.md`": its object follows at once."""
_PASSIVE: Final = re.compile(
    rf"^`?\s+(?:was|were|has been|have been|is now)\s+(?:\w+ly\s+)?(?:{_ANY})\b", re.IGNORECASE
)
"""What follows a file that something was done with."""
_SHOWN: Final = re.compile(r"\b(?:below|above|here|following)\b|:\W*$", re.IGNORECASE)
"""What the answer itself shows, which no call needs to have made."""
DONE: Final = frozenset({"done", "unknown", "open"})
"""Outcomes of calls that had, or may have had, their effect."""
SUPPOSED: Final = re.compile(
    r"\b(?:if|when|once|after|before|until|unless|had|would|could|should|whenever|as soon as)\b",
    re.IGNORECASE,
)
_SUCCESS: Final = re.compile(
    r"\b(?:success\w*|pass(?:es|ed)?|without (?:any )?errors?|cleanly|green|works?|worked)\b", re.IGNORECASE
)
_SPEAKS: Final = re.compile(
    rf"\b(?:{_ANY}|pass|passed|fail|failed|failures?|errors?|skipped|warnings?|exit|exited)\b", re.IGNORECASE
)


def mentions_deeds(answer: str) -> bool:
    """Whether an answer has a word of those that the checks of deeds read: where it has none, the log need
    not be read.
    """
    return _SPEAKS.search(answer) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedDeed:
    """A deed that an answer claims."""

    kind: str
    words: str
    """The verb with what follows it, up to the next claim."""
    files: tuple[str, ...]
    command: str


def deeds_were_done(subject: Subject) -> Iterator[Issue]:
    """What the answer says that its author did was done."""
    if subject.acts is None:
        return
    for said in subject.paid():
        for claimed in claimed_deeds(said):
            if why := _refutation(claimed, subject.acts, subject):
                subject.checked.add(claimed.words)
                yield make_issue(
                    "critical", said.text, f"the answer says “{claimed.words}”, but {why}", DO_IT
                )
        for name in files_in(said):
            refused = [
                deed for deed in subject.acts if deed.outcome not in DONE and names_file(deed, name.text)
            ]
            excused = any(may_change_file(deed, name.text) for deed in subject.acts if deed.outcome in DONE)
            if refused and not excused and _PASSIVE.match(said.text[name.end :]):
                subject.checked.add(name.text)
                yield make_issue("critical", said.text, f"{name.text}: {failure_text(refused)}", DO_IT)


DO_IT: Final = "do it, or say that it was not done"


def count_confirmed(subject: Subject) -> int:
    """Return how many deeds that the answer claims the log has as done."""
    done = [deed for deed in subject.acts or () if deed.outcome == "done"]
    with subject.files.work.allowed():
        found = (
            [one.words for said in subject.claims for one in claimed_deeds(said) if _is_in(one, done)]
            if done
            else []
        )
    subject.checked.update(found)
    return len(found)


def _is_in(claimed: ClaimedDeed, done: Sequence[Deed]) -> bool:
    if claimed.command:
        return any(_in_command(claimed.command, deed) for deed in done)
    if claimed.kind in ("run", "send"):
        return False
    return bool(claimed.files) and all(
        any(_has_changed(deed, path) for deed in done) for path in claimed.files
    )


def _has_changed(deed: Deed, path: str) -> bool:
    """Whether a call changed a file for certain: its tool says so, or it names it and it was another one when
    the call ended.
    """
    return is_among(path, deed.files) or (
        deed.touched is not None and is_among(path, deed.touched) and names_file(deed, path)
    )


def claimed_deeds(said: Statement) -> Iterator[ClaimedDeed]:
    """Yield the deeds that a sentence claims in the first person, or reports without a subject."""
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
        command = next((code for code in codes if code not in files), "") or (
            plain[1].rstrip(".") if plain and " -" in plain[1] else ""
        )
        words = " ".join(said.text[start:end].split()).rstrip(" ,;.")
        yield ClaimedDeed(kind=kind, words=words[:120], files=files, command=command if kind == "run" else "")


def _refutation(claimed: ClaimedDeed, deeds: Sequence[Deed], subject: Subject) -> str:
    """Why a claim is not true; empty where it is, or where nobody can know."""
    done = [deed for deed in deeds if deed.outcome in DONE]
    if claimed.files and claimed.kind not in ("run", "send"):
        return next(
            filter(None, (_file_refuted(claimed, path, deeds, done, subject) for path in claimed.files)), ""
        )
    if claimed.command:
        return _command_refuted(claimed, deeds, done)
    if any(may_have_done(claimed, deed) for deed in done) or (
        _SHOWN.search(claimed.words) and not CELL.search(claimed.words)
    ):
        return ""
    refused = [deed for deed in deeds if deed not in done]
    alike = [deed for deed in refused if TOOLS[claimed.kind].search(deed.tool)]
    if alike or (refused and not done):
        return failure_text(alike or refused)
    return "no call of this run did that" if done else "no call of this run did anything"


CELL: Final = re.compile(r"\bcells?\b", re.IGNORECASE)
_TESTS: Final = re.compile(r"\btests?\b|\bsuite\b", re.IGNORECASE)


def may_have_done(claimed: ClaimedDeed, deed: Deed) -> bool:
    """Whether a call can have done what is claimed without naming a file or a command."""
    if claimed.kind == "send":
        return may_send(deed, claimed.words)
    if claimed.kind == "run":
        return may_run_tests(deed) if _TESTS.search(claimed.words) else not deed.files
    if CELL.search(claimed.words):
        return may_change_cell(deed) or bool(deed.files or deed.touched)
    return may_change_anything(deed)


def _file_refuted(
    claimed: ClaimedDeed, path: str, deeds: Sequence[Deed], done: Sequence[Deed], subject: Subject
) -> str:
    acting = [
        deed
        for deed in deeds
        if deed.outcome != "denied" and may_change_file(deed, path) and (deed in done or deed.touched)
    ]
    there = subject.files.exists(path)
    if any(names_file(deed, path) for deed in acting):
        return ""
    if acting and (not subject.files.whole_listing or there != (claimed.kind == "delete")):
        return ""  # a command or another tool may have done it
    refused = [deed for deed in deeds if deed not in done and names_file(deed, path)]
    return failure_text(refused) if refused else f"no call of this run did that with {path}"


def _command_refuted(claimed: ClaimedDeed, deeds: Sequence[Deed], done: Sequence[Deed]) -> str:
    words = claimed.command.split()
    first = words[0].rpartition("/")[2] if words else ""
    exact = [deed for deed in deeds if _in_command(claimed.command, deed)]
    exact = exact or [deed for deed in deeds if first and _may_run(deed, first)]
    if not exact:
        return f"{claimed.command} was not run"
    if not any(deed in done for deed in exact):
        return failure_text(exact)
    codes = [deed.exit_code for deed in exact if deed in done]
    if _SUCCESS.search(claimed.words) and codes and all(code not in (0, None) for code in codes):
        return f"it ended with exit code {codes[-1]}"
    return ""


def _may_run(deed: Deed, program: str) -> bool:
    """Whether a call may have run a program: its command does, what it printed has the name, or another tool
    was called with it.
    """
    if deed.kind == "command":
        command = str(deed.args.get("command", ""))
        return runs_program(command, program) or (may_run_tests(deed) and program in deed.output)
    return any(program in str(value) for value in (deed.tool, *deed.args.values()))


def _in_command(command: str, deed: Deed) -> bool:
    return " ".join(command.split()) in " ".join(str(deed.args.get("command", "")).split())


def failure_text(deeds: Sequence[Deed]) -> str:
    """Return what became of the last of some calls, in words."""
    last = deeds[-1]
    return f"the call of {last.tool} {'was denied' if last.outcome == 'denied' else 'failed'}"
