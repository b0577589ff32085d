"""Compare the deeds that an answer claims in the first person with what the log says was done.

Only a few verbs of English are read, by kind of call. A claim is refuted where every call that could have done it was denied or
failed, or where no call could have done it. Where some command or tool may have done it unseen, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.events.deeds import Deed
from kestrel_lab.verification.claims import Statement, code_in, files_in
from kestrel_lab.verification.issues import Issue, make_issue
from kestrel_lab.verification.subject import Subject

_VERBS: Final[dict[str, str]] = {
    "write": "wrote|written|created|added|saved|generated",
    "edit": "edited|changed|updated|modified|fixed|refactored|renamed|replaced|implemented|patched",
    "delete": "deleted|removed",
    "run": "ran|run|executed|tested",
    "send": "sent|emailed|mailed|posted|published|submitted|transferred|paid|booked|scheduled|deployed|pushed",
}
_TOOLS: Final[dict[str, re.Pattern[str]]] = {
    kind: re.compile(words, re.IGNORECASE)
    for kind, words in {
        "write": "write|create|save|add|file",
        "edit": "edit|write|update|modify|patch|file",
        "delete": "delete|remove|file",
        "run": "run|exec|bash|shell|command|test",
        "send": "send|mail|post|publish|submit|transfer|pay|book|schedule|deploy|push|message|invite|reply",
    }.items()
}
"""Words in the names of tools that do a kind of deed."""
_ANY: Final = "|".join(_VERBS.values())
_ADVERBS: Final = r"(?:\s+(?:also|then|just|now|already|first|\w+ly))*"
_CLAIM: Final = re.compile(
    rf"(?:\b(?:I|we)(?:['’]ve|\s+have)?{_ADVERBS}\s+|(?<=[,;])\s+(?:and\s+)?(?:then\s+)?|\band{_ADVERBS}\s+)(?P<verb>{_ANY})\b",
    re.IGNORECASE,
)
_SUBJECT: Final = re.compile(rf"\b(?:I|we)(?:['’]ve|\s+have)?{_ADVERBS}\s+(?:\w+ed|\w+t|did|made|went|{_ANY})\b", re.IGNORECASE)
_BARE: Final = re.compile(
    rf"^\W*(?:(?:All\s+)?(?:done|finished|ok)\W+)?(?:Successfully\s+)?(?P<verb>(?!run\b)(?:{_ANY}))\s+(?:the\s+|a\s+|an\s+|file\s+|command\s+|new\s+)*(?=`|[\w./-]+\.\w+\b|rm\b)",
    re.IGNORECASE,
)
"""A report without its subject, as in "Wrote `SUMMARY.md`": its object follows at once."""
_PASSIVE: Final = re.compile(rf"^`?\s+(?:was|were|has been|have been|is now)\s+(?:\w+ly\s+)?(?:{_ANY})\b", re.IGNORECASE)
"""What follows a file that something was done with."""
_GREEN: Final = re.compile(
    r"\b(?P<all>all\s+(?:of\s+)?(?:the\s+)?)?(?P<number>\d{1,6}\s+)?(?:\w+\s+)?tests?\s+(?:now\s+|still\s+|all\s+|have\s+)*"
    r"(?:pass(?:es|ed)?|succeed(?:s|ed)?|(?:are|is)\s+(?:green|passing))\b|(?<![\w.])\d{1,6}\s+passed\b|\bno\s+tests?\s+fail(?:s|ed)?\b",
    re.IGNORECASE,
)
"""A claim that tests pass."""
_TESTING: Final = re.compile(r"test|tox|nox|check|make\b|npm|cargo|gradle|mvn", re.IGNORECASE)
_SUPPOSED: Final = re.compile(r"\b(?:if|when|once|after|before|until|unless|had|would|could|should|whenever|as soon as)\b", re.IGNORECASE)
_SUCCESS: Final = re.compile(r"\b(?:success\w*|pass(?:es|ed)?|without (?:any )?errors?|cleanly|green|works?|worked)\b", re.IGNORECASE)
_COUNT: Final = re.compile(
    r"(?<![\w.])(?P<number>\d{1,6}|all|no)\s+(?:\w+\s+)?(?P<word>passed|failed|failures?|errors?|skipped|warnings?)\b|(?P<tests>\d{1,6})\s+(?:\w+\s+)?tests?\s+(?P<how>pass\w*|fail\w*)",
    re.IGNORECASE,
)
_EXIT: Final = re.compile(r"\bexit(?:ed)?(?:\s+with)?(?:\s+(?:code|status))?\s+(?P<code>\d{1,3})\b", re.IGNORECASE)
_SPEAKS: Final = re.compile(rf"\b(?:{_ANY}|pass|passed|fail|failed|failures?|errors?|skipped|warnings?|exit|exited)\b", re.IGNORECASE)


def mentions_deeds(answer: str) -> bool:
    """Whether an answer has a word of those that the checks of deeds read: where it has none, the log need not be read."""
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
    if subject.deeds is None:
        return
    for said in subject.paid():
        for claimed in claimed_deeds(said):
            if why := _refutation(claimed, subject.deeds, subject):
                yield make_issue(
                    "critical", said.text, f"the answer says “{claimed.words}”, but {why}", "do it, or say that it was not done"
                )
        for name in files_in(said):
            touching = [deed for deed in subject.deeds if _touches_path(deed, name.text)]
            if _PASSIVE.match(said.text[name.end :]) and touching and all(deed.outcome in ("denied", "failed") for deed in touching):
                yield make_issue("critical", said.text, f"{name.text}: {_failure_text(touching)}", "do it, or say that it was not done")


def count_confirmed(subject: Subject) -> int:
    """Return how many deeds that the answer claims the log has as done."""
    done = [deed for deed in subject.deeds or () if deed.outcome == "done"]
    with subject.files.work.allowed():
        return sum(_is_in(one, done) for said in subject.claims for one in claimed_deeds(said)) if done else 0


def _is_in(claimed: ClaimedDeed, done: Sequence[Deed]) -> bool:
    if claimed.command:
        return any(_in_command(claimed.command, deed) for deed in done)
    return bool(claimed.files) and all(any(_touches_path(deed, path) for deed in done) for path in claimed.files)


def claimed_deeds(said: Statement) -> Iterator[ClaimedDeed]:
    """Yield the deeds that a sentence claims in the first person, or reports without a subject."""
    if said.kind == "code":
        return
    bare = _BARE.match(said.text)
    subject = _SUBJECT.search(said.text)
    found = ([bare] if bare else []) + ([match for match in _CLAIM.finditer(said.text) if match.end() > subject.start()] if subject else [])
    for place, match in enumerate(found):
        if _SUPPOSED.search(said.text[: match.start("verb")]):
            continue
        end = found[place + 1].start("verb") if place + 1 < len(found) else len(said.text)
        start = match.start("verb")
        verb = match["verb"].lower()
        kind = next(kind for kind, verbs in _VERBS.items() if verb in verbs.split("|"))
        files = tuple(name.text for name in files_in(said) if start <= name.start < end)
        codes = [code for code, at in code_in(said) if start <= at < end]
        plain = re.match(r"\s+([a-z][\w.-]*(?: -?[\w./=-]+)*)", said.text[match.end("verb") : end])
        command = next((code for code in codes if code not in files), "") or (plain[1].rstrip(".") if plain and " -" in plain[1] else "")
        words = " ".join(said.text[start:end].split()).rstrip(" ,;.")
        yield ClaimedDeed(kind=kind, words=words[:120], files=files, command=command if kind == "run" else "")


def _refutation(claimed: ClaimedDeed, deeds: Sequence[Deed], subject: Subject) -> str:
    """Why a claim is not true; empty where it is, or where nobody can know."""
    done = [deed for deed in deeds if deed.outcome in ("done", "unknown", "open")]
    for path in claimed.files if claimed.kind not in ("run", "send") else ():
        if why := _file_refuted(claimed, path, deeds, done, subject):
            return why
    if claimed.command:
        return _command_refuted(claimed, deeds, done)
    alike = [deed for deed in deeds if _TOOLS[claimed.kind].search(deed.tool)]
    if not claimed.files and alike and not any(deed.outcome in ("done", "unknown", "open") for deed in alike):
        return _failure_text(alike)
    if not done:
        return _failure_text(deeds) if deeds else "no call of this run did anything"
    return ""


def _file_refuted(claimed: ClaimedDeed, path: str, deeds: Sequence[Deed], done: Sequence[Deed], subject: Subject) -> str:
    touching = [deed for deed in deeds if _touches_path(deed, path)]
    if touching:
        return "" if any(deed in done for deed in touching) else _failure_text(touching)
    there = subject.files.whole_listing and subject.files.exists(path)
    unseen = any(deed.kind != "change" for deed in done)
    if unseen and (there if claimed.kind != "delete" else not there):
        return ""  # a command may have done it
    return f"no call of this run did that with {path}"


def _command_refuted(claimed: ClaimedDeed, deeds: Sequence[Deed], done: Sequence[Deed]) -> str:
    words = claimed.command.split()
    first = words[0].rpartition("/")[2] if words else ""
    running = [deed for deed in deeds if first and any(first in str(value) for value in (deed.tool, *deed.args.values()))]
    exact = [deed for deed in running if _in_command(claimed.command, deed)] or running
    if not exact:
        return f"{claimed.command} was not run"
    if not any(deed in done for deed in exact):
        return _failure_text(exact)
    codes = [deed.exit_code for deed in exact if deed in done]
    if _SUCCESS.search(claimed.words) and codes and all(code not in (0, None) for code in codes):
        return f"it ended with exit code {codes[-1]}"
    return ""


def _touches_path(deed: Deed, path: str) -> bool:
    last = path.removeprefix("./")
    return any(known == last or known.endswith(f"/{last}") or last.endswith(f"/{known}") for known in deed.files) or any(
        isinstance(value, str) and last.rpartition("/")[2] in value for value in deed.args.values()
    )


def _in_command(command: str, deed: Deed) -> bool:
    return " ".join(command.split()) in " ".join(str(deed.args.get("command", "")).split())


def _failure_text(deeds: Sequence[Deed]) -> str:
    last = deeds[-1]
    return f"the call of {last.tool} {'was denied' if last.outcome == 'denied' else 'failed'}"


def outcomes_are_right(subject: Subject) -> Iterator[Issue]:
    """Counts of passed and failed tests, and exit codes, are those that commands of the run gave, where they gave any."""
    ended = [deed for deed in subject.deeds or () if deed.kind == "command" and deed.outcome == "done"]
    if subject.deeds is not None:
        yield from _tests_pass(subject, subject.deeds, ended)
    outputs = "\n".join(deed.output for deed in ended)
    codes = {deed.exit_code for deed in ended if deed.exit_code is not None}
    for said in subject.paid() if ended else ():
        if said.kind == "code" or _SUPPOSED.search(said.text):
            continue
        for match in _COUNT.finditer(said.text):
            number, word = match["number"] or match["tests"], (match["word"] or f"{match['how'][:4]}ed").lower().rstrip("s")
            word = "failed" if word.startswith("fail") else word
            given = set(re.findall(rf"(?<![\w.])(\d+) {word}s?\b", outputs))
            of_several = number.isdigit() and int(number) == sum(map(int, given))  # runs of tests, added up
            if number.isdigit() and given and number not in given and not of_several:
                shown = ", ".join(sorted(given, key=int))
                what = f"the answer says {match[0]}; the output of the command says {shown} {word}"
                yield make_issue("critical", said.text, what, "report what the command printed")
        for match in _EXIT.finditer(said.text):
            if codes and int(match["code"]) not in codes:
                what = f"the answer says “{match[0]}”; the exit code was {', '.join(map(str, sorted(codes)))}"
                yield make_issue("critical", said.text, what, "report the exit code")


def _tests_pass(subject: Subject, deeds: Sequence[Deed], ended: Sequence[Deed]) -> Iterator[Issue]:
    """Whoever says that tests pass has run them, and the last time they passed; where a tool may have run them unseen, or told of it, nothing is said."""
    last = next((deed for deed in reversed(ended) if _TESTING.search(str(deed.args))), None)
    refused = [deed for deed in deeds if deed.outcome in ("denied", "failed") and _TOOLS["run"].search(deed.tool)]
    unseen = any(deed.outcome in ("done", "unknown", "open") and deed.kind != "change" for deed in deeds)
    told = any(re.search(r"\bpass", text, re.IGNORECASE) for text in (subject.goal, *(span.text for span in subject.whole_spans)))
    for said in subject.paid():
        claim = None if said.kind == "code" or _SUPPOSED.search(said.text) else _GREEN.search(said.text) or _EXIT.search(said.text)
        if claim is None:
            continue
        why, green = "", claim.re is _GREEN
        if last is not None and green and last.exit_code not in (0, None) and (claim["all"] or not re.search(r"\d", claim[0])):
            why = f"the last command that tests ended with exit code {last.exit_code}"
        elif not unseen and not told and not ended and (refused or green):
            why = _failure_text(refused) if refused else "no command of this run did"
        if why:
            yield make_issue("critical", said.text, f"the answer says “{claim[0]}”, but {why}", "run them, or say that they were not run")
