"""Contracts for answers: the required content of a kind of answer, as instructions and as a check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrel_lab.answers.intent import Intent
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.host.git import run_git_outside
from kestrel_lab.verification.claims import file_names
from kestrel_lab.verification.workspace_files import Files

_UNABLE: Final = (
    r"(?:do not|don't|did not|didn't|cannot|can't|could not|couldn't|(?:am|was|are|were) (?:unable|not "
    r"able) to)"
)
_FIND: Final = r"(?:know|tell|say|find|determine|answer|verify|confirm|establish|locate)\b"
_NOT: Final = r"(?:is|are|was|were|does|do|has|have|can|could)(?:n't| not)|cannot"
_FACTS: Final = (
    r"(?:(?:been|be) "
    r")?(?:known|knowable|stated|mentioned|specified|given|documented|determined|answered|answerable|found|provided|"
    r"present|available|contained|covered|say|state|mention|specify|possible to "
    r"(?:tell|say|determine|answer|know))\b"
)
_ABSTAINS: Final = re.compile(
    rf"\b(?:i|we) {_UNABLE} {_FIND}"
    rf"|\b(?:{_NOT}) {_FACTS}"
    r"|\b(?:no|not enough|insufficient|too little) (?:information|evidence|answer|mention|data|record)\b"
    r"|^\W*(?:unknown|unanswerable|n/?a|i abstain|no answer)\b",
    re.IGNORECASE,
)
_SENTENCES: Final = 2
"""Sentences searched for an abstention: agents say at once that they do not know, while a later "could not
find" reports a search on the way.
"""


def is_abstention(answer: str) -> bool:
    """Return true if `answer` says that it does not know."""
    # Models write both apostrophes; the patterns have the plain one.
    text = answer.strip().replace("’", "'")
    first = " ".join(re.split(r"(?<=[.!?])\s+", text, maxsplit=_SENTENCES)[:_SENTENCES])
    return _ABSTAINS.search(first) is not None


Check = Callable[[Mapping[str, str], str, Path], Iterator[str]]
"""Takes sections by heading, the whole answer and the workspace; yields issues, worded for the author."""

BRIEF_WORDS: Final = 150
_FIRST_WORDS: Final = 60
_MOST_LINES: Final = 500
_LONGEST: Final = 2_000
"""Lines, and characters of one, in which files and sources are looked for."""
_HEADING: Final = re.compile(r"^#{1,4}[ \t]+(\S.{0,300}?)[ \t]*#*[ \t]*$", re.MULTILINE)
_BOLD: Final = re.compile(r"^[ \t]*(?:\*\*|__)(\S[^*\n]{0,80}?)(?:\*\*|__):?[ \t]*$", re.MULTILINE)
"""A bold line used as a heading in an answer without headings."""
_FENCE: Final = re.compile(r"^(```+|~~~+)[ \t]*(\w*)[^\n]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_NUMBERED: Final = re.compile(r"^\s{0,3}(\d+)[.)]\s+(.+)$", re.MULTILINE)
_ITEM: Final = re.compile(r"^\s{0,3}[-*+]\s+(.+)$", re.MULTILINE)
_NEW: Final = re.compile(r"\b(?:new|create[sd]?|added?|adds|to be (?:written|made))\b", re.IGNORECASE)
_SOURCE: Final = re.compile(r"https?://\S|\[[^\]\n]+\]|`[^`\n]+`|\b[\w./-]+\.\w{1,5}\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """Required form of an answer. An answer that abstains always passes."""

    name: str
    instructions: str
    """Instructions for the author."""
    sections: tuple[str, ...]
    """Headings that it has, in this order; none for an answer in one piece."""
    check: Check

    def issues(self, answer: str, workspace: Path) -> tuple[str, ...]:
        """Return what is wrong with the form of `answer`; empty if it is right.

        Reads files, changes nothing.
        """
        if not answer.strip():
            return ("there is no answer",)
        if is_abstention(answer):
            return ()
        found = sections_of(answer)
        wanted = [heading for heading in self.sections if heading.lower() not in found]
        # Only this is reported: what follows reads each section.
        if wanted:
            return (
                f"the answer lacks the section{'s' * (len(wanted) > 1)} "
                f"{', '.join(f'## {heading}' for heading in wanted)}",
            )
        order = [heading for heading in found if heading in {section.lower() for section in self.sections}]
        problems = (
            []
            if order == [section.lower() for section in self.sections]
            else [f"the sections must come in this order: {', '.join(self.sections)}"]
        )
        problems += [
            f"the section ## {heading} is empty"
            for heading in self.sections
            if not found[heading.lower()].strip()
        ]
        return (*problems, *self.check(found, answer, workspace))


_DECORATION: Final = re.compile(r"^[\W_]*(?:(?:\d+|[ivx]+)[.):]\s*)?[*_]*|[\s*_:#]+$")


def sections_of(answer: str) -> dict[str, str]:
    """Return the text under each heading of a Markdown answer, by lower-case heading; code is skipped.

    Numbers and marks around a heading are ignored. Bold lines count as headings if there are no others.
    """
    found = [*_HEADING.finditer(_prose(answer))] or [*_BOLD.finditer(_prose(answer))]
    marks = [(match.start(), match.end(), _DECORATION.sub("", match[1]).strip().lower()) for match in found]
    ends = [*(start for start, _, _ in marks[1:]), len(answer)]
    return {name: answer[end:until].strip() for (_, end, name), until in zip(marks, ends, strict=False)}


def _prose(text: str) -> str:
    # Blanks take the place of code, so that offsets hold in the whole answer.
    return _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def fenced_code(text: str, *languages: str) -> list[str]:
    """The insides of fenced code blocks in one of `languages`."""
    return [match[3] for match in _FENCE.finditer(text) if match[2].lower() in languages]


def _check_brief(_: Mapping[str, str], answer: str, __: Path) -> Iterator[str]:
    words = len(answer.split())
    if words > BRIEF_WORDS:
        yield (
            f"the answer has {words} words, at most {BRIEF_WORDS} are allowed: say what was asked and "
            "where it stands"
        )
    first = re.split(r"\n\s*\n", answer.strip(), maxsplit=1)[0]
    if len(first.split()) > _FIRST_WORDS:
        yield (
            f"the first paragraph has {len(first.split())} words: begin with the answer, in at most "
            f"{_FIRST_WORDS}"
        )
    if _HEADING.search(answer):
        yield "a brief answer has no headings"


def _plan(sections: Mapping[str, str], _: str, workspace: Path) -> Iterator[str]:
    steps = [(int(match[1]), match[2]) for match in _NUMBERED.finditer(_prose(sections["steps"]))]
    if [number for number, _ in steps] != list(range(1, len(steps) + 1)) or not steps:
        yield "## Steps must be a list numbered 1., 2., 3. and so on"
    for number, text in steps:
        if "`" not in text:
            yield f"step {number} names no file, symbol or command in backticks: {one_line(text, 60)!r}"
    yield from _missing_files(sections["steps"], workspace)
    if not (
        fenced_code(sections["checks"], "", "sh", "bash", "console", "shell") or "`" in sections["checks"]
    ):
        yield "## Checks names no command in backticks that shows whether it worked"


def _patch(sections: Mapping[str, str], answer: str, workspace: Path) -> Iterator[str]:
    changes = [match[1] for match in _ITEM.finditer(_prose(sections["changes"]))]
    if not changes:
        yield "## Changes must be a list with one line `- path: what changes` for each file"
    for change in changes:
        if not file_names(change):
            yield f"a line of ## Changes names no file: {one_line(change, 60)!r}"
    yield from _missing_files(sections["changes"], workspace)
    for number, patch in enumerate(fenced_code(answer, "diff", "patch"), 1):
        if why := patch_problem(patch, workspace):
            yield f"patch {number} does not fit the files: {why}"
    if not (
        fenced_code(sections["checks"], "", "sh", "bash", "console", "shell") or "`" in sections["checks"]
    ):
        yield "## Checks names no command in backticks that shows whether it worked"


def _explanation(sections: Mapping[str, str], _: str, workspace: Path) -> Iterator[str]:
    if len(sections["in short"].split()) > _FIRST_WORDS:
        yield f"## In short has {len(sections['in short'].split())} words, at most {_FIRST_WORDS} are allowed"
    if not file_names(sections["where to look"]):
        yield "## Where to look names no file"
    yield from _missing_files(sections["where to look"], workspace)


def _research(sections: Mapping[str, str], _: str, __: Path) -> Iterator[str]:
    lines = [line for line in sections["findings"].splitlines() if _ITEM.match(line) or _NUMBERED.match(line)]
    if not lines:
        yield "## Findings must be a list"
    for line in lines:
        if not _SOURCE.search(line[:_LONGEST]):
            yield (
                f"a finding has no source (an address, a file, or an id of evidence): {one_line(line, 60)!r}"
            )


def _missing_files(text: str, workspace: Path) -> Iterator[str]:
    """Return files that are named as existing but missing; lines that call them new are skipped."""
    files = Files(workspace)
    for line in _prose(text).splitlines()[:_MOST_LINES]:
        if _NEW.search(line):
            continue
        for name in file_names(line[:_LONGEST]):
            # A listing that was cut short does not show that a file is missing.
            if not files.exists(name) and files.whole_listing:
                yield (
                    f"there is no file {name!r} in the workspace; say `(new)` in its line if it is to be made"
                )


_ASK: Final = "Use exactly these headings, in this order: {}."


def _contract(name: str, text: str, sections: tuple[str, ...], check: Check) -> Contract:
    headings = f" {_ASK.format(', '.join(f'## {each}' for each in sections))}" if sections else ""
    return Contract(
        name=name, instructions=f"Form of the answer: {text}{headings}", sections=sections, check=check
    )


CONTRACTS: Final[Mapping[str, Contract]] = {
    made.name: made
    for made in (
        _contract(
            "brief",
            "the answer itself in the first one or two sentences, then at most five lines of "
            "evidence, each with the file and line "
            f"or the address it comes from. At most {BRIEF_WORDS} words, no headings.",
            (),
            _check_brief,
        ),
        _contract(
            "plan",
            "an implementation plan that somebody else could carry out. Steps are numbered, each names "
            "files, symbols or commands in "
            "backticks; say (new) behind a file that is to be made. Checks are commands.",
            ("Goal", "Steps", "Checks", "Risks"),
            _plan,
        ),
        _contract(
            "patch",
            "notes from which a patch can be reviewed or made. Changes are lines `- path: what "
            "changes`, with (new) where a file is to "
            "be made; patches are ```diff blocks that apply to the files as they are. Checks are commands.",
            ("Summary", "Changes", "Checks"),
            _patch,
        ),
        _contract(
            "explanation",
            "an explanation for a developer who has not seen the code. In short is at most "
            f"{_FIRST_WORDS} words; Where to look lists "
            "files, each with a line on what is there.",
            ("In short", "How it works", "Where to look"),
            _explanation,
        ),
        _contract(
            "research",
            "findings as a list, each with its source in the same line; then how sure they are and "
            "why, and what is still open.",
            ("Findings", "How sure", "Open"),
            _research,
        ),
    )
}
"""Every contract by its name."""
FOR_INTENT: Final[Mapping[Intent, str]] = {
    "question": "brief",
    "edit": "patch",
    "explanation": "explanation",
    "research": "research",
    "plan": "plan",
}
"""Which contract fits what a goal asks for."""


def contract_named(name: str, *others: str) -> Contract:
    """Return the contract of that name; raises `UsageError` that suggests the nearest name."""
    if (found := CONTRACTS.get(name)) is None:
        raise UsageError(f"there is no answer form {name!r}; {did_you_mean(name, [*CONTRACTS, *others])}")
    return found


LEVELS: Final = {
    "off": "answers are given as they are",
    "warn": "what looks made up is said beside the answer",
    "repair": "claims with citations are asked for, what the deterministic checks refuse is repaired; an "
    "answer that still does not pass is reported as failed",
    "judge": "the same, and a model must pass it as a whole and claim by claim, by the evidence it cites",
    "quality": "the answer stays as it is, and a report on it is made: issues with places and fixes, claims "
    "without evidence",
}
"""Levels of verification, by the word that a run is given."""
NONE, AUTO = "none", "auto"
"""Forms: none; and the one that fits the goal's intent."""


def parse_level(text: str) -> str:
    """Return `text` as a level; raises `UsageError` with the nearest one."""
    word = text.strip().lower()
    if word not in LEVELS:
        msg = (
            f"{text!r} is not a level of verification; {did_you_mean(word, LEVELS)} "
            f"({', '.join(f'{name}: {what}' for name, what in LEVELS.items())})"
        )
        raise UsageError(msg)
    return word


def parse_form(text: str) -> str:
    """Return `text` as an answer form: `none`, `auto` or the name of a contract; raises `UsageError` with the
    nearest one.
    """
    word = text.strip().lower()
    return word if word in (NONE, AUTO) else contract_named(word, NONE, AUTO).name


def answer_forms() -> str:
    """Return every name of an answer form, for help texts."""
    return ", ".join((*CONTRACTS, AUTO, NONE))


def patch_problem(patch: str, folder: Path) -> str:
    """Return why `patch`, a unified diff, does not apply in `folder`; empty if it applies or is applied.

    Runs `git apply --check`, which needs no repository and changes nothing. Context lines must match; line
    numbers may be off.
    """
    # git takes a patch without a last newline for a corrupt one.
    text = patch if patch.endswith("\n") else f"{patch}\n"
    said = _check(text, folder)
    # A patch that is applied already fits in reverse.
    if not said or not _check(text, folder, "--reverse"):
        return ""
    return said


def _check(patch: str, folder: Path, *options: str) -> str:
    # Outside of a repository, or git would leave out files that the repository around `folder` does not have.
    done = run_git_outside(folder, "apply", "--check", "--recount", *options, "-", stdin=patch.encode())
    if done.returncode == 0:
        return ""
    lines = [
        line.removeprefix("error: ")
        for line in done.stderr.decode(errors="replace").splitlines()
        if line.strip()
    ]
    return "; ".join(lines[:3]) or f"git apply ended with {done.returncode}"
