"""Compares what an answer says of tests and exit codes with the commands of its run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kestrel_lab.core.events.actions import Action
from kestrel_lab.verification.claimed_actions import DONE, SUPPOSED, TOOLS, failure_text
from kestrel_lab.verification.effects import may_run_tests
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.subject import Subject

_GREEN: Final = re.compile(
    r"\b(?P<all>all\s+(?:of\s+)?(?:the\s+)?)?(?P<number>\d{1,6}\s+)?(?:\w+\s+)?tests?\s+(?:now\s+|still\s+|all\s+|have\s+)*"
    r"(?:pass(?:es|ed)?|succeed(?:s|ed)?|(?:are|is)\s+(?:green|passing))\b|(?<![\w.])\d{1,6}\s+passed\b|\bno\s+tests?\s+fail(?:s|ed)?\b",
    re.IGNORECASE,
)
"""A claim that tests pass."""
_TESTING: Final = re.compile(r"test|tox|nox|check|make\b|npm|cargo|gradle|mvn", re.IGNORECASE)
_COUNT: Final = re.compile(
    r"(?<![\w.])(?P<number>\d{1,6}|all|no)\s+(?:\w+\s+)?(?P<word>passed|failed|failures?|errors?|skipped|warnings?)\b|(?P<tests>\d{1,6})\s+(?:\w+\s+)?tests?\s+(?P<how>pass\w*|fail\w*)",
    re.IGNORECASE,
)
_EXIT: Final = re.compile(
    r"\bexit(?:ed)?(?:\s+with)?(?:\s+(?:code|status))?\s+(?P<code>\d{1,3})\b", re.IGNORECASE
)


def outcomes_are_right(subject: Subject) -> Iterator[Issue]:
    """Yield an issue for test counts and exit codes that differ from those of the run's commands."""
    ended = [action for action in subject.acts or () if action.kind == "command" and action.outcome == "done"]
    if subject.acts is not None:
        yield from _tests_pass(subject, subject.acts, ended)
    outputs = "\n".join(action.output for action in ended)
    codes = {action.exit_code for action in ended if action.exit_code is not None}
    for said in subject.paid() if ended else ():
        if said.kind == "code" or SUPPOSED.search(said.text):
            continue
        for match in _COUNT.finditer(said.text):
            number, word = (
                match["number"] or match["tests"],
                (match["word"] or f"{match['how'][:4]}ed").lower().rstrip("s"),
            )
            # Failures and failed tests are counted together.
            word = "failed" if word.startswith("fail") else word
            given = set(re.findall(rf"(?<![\w.])(\d+) {word}s?\b", outputs))
            subject.checked.update([match[0]] if number.isdigit() and given else [])
            # Runs of tests, added up.
            of_several = number.isdigit() and int(number) == sum(map(int, given))
            if number.isdigit() and given and number not in given and not of_several:
                shown = ", ".join(sorted(given, key=int))
                what = f"the answer says {match[0]}; the output of the command says {shown} {word}"
                yield Issue("critical", said.text, what, "report what the command printed")
        for match in _EXIT.finditer(said.text):
            subject.checked.update([match[0]] if codes else [])
            if codes and int(match["code"]) not in codes:
                what = f"the answer says “{match[0]}”; the exit code was {', '.join(map(str, sorted(codes)))}"
                yield Issue("critical", said.text, what, "report the exit code")


def _tests_pass(subject: Subject, actions: Sequence[Action], ended: Sequence[Action]) -> Iterator[Issue]:
    """Yield an issue for a claim that tests pass, unless they were run and passed last.

    No issue if another tool may have run them unseen, or the run read that they pass.
    """
    last = next(
        (action for action in reversed(ended) if _TESTING.search(str(action.args)) and may_run_tests(action)),
        None,
    )
    refused = [
        action
        for action in actions
        if action.outcome in ("denied", "failed") and TOOLS["run"].search(action.tool)
    ]
    unseen = any(action.outcome in DONE and may_run_tests(action) for action in actions)
    known = _GREEN.search(subject.goal) and not _ORDERED.search(subject.goal)
    known = known or any(_READ_PASS.search(text) for text in (span.text for span in subject.whole_spans))
    for said in subject.paid():
        claim = (
            None
            if said.kind == "code" or SUPPOSED.search(said.text)
            else _GREEN.search(said.text) or _EXIT.search(said.text)
        )
        if claim is None:
            continue
        why, green = "", claim.re is _GREEN
        about = _CODE.search(said.text[: claim.start()]) is not None and not _OWN.search(said.text)
        if last is not None and green:
            subject.checked.add(claim[0])
        if (
            last is not None
            and green
            and last.exit_code not in (0, None)
            and (claim["all"] or not re.search(r"\d", claim[0]))
        ):
            why = f"the last command that tests ended with exit code {last.exit_code}"
        elif not about and (
            (not unseen and not known and (refused or green)) if green else (refused and not ended)
        ):
            why = failure_text(refused) if refused else "no command of this run did"
        if why:
            subject.checked.add(claim[0])
            yield Issue(
                "critical",
                said.text,
                f"the answer says “{claim[0]}”, but {why}",
                "run them, or say that they were not run",
            )


_ORDERED: Final = re.compile(
    r"\b(?:make|ensure|until|so|sure|check|verify|whether|if|get|let|have|see|should|must|need|confirm|want|please|run|fix)\b",
    re.IGNORECASE,
)
"""A goal that asks for passing tests is no evidence that they pass."""
_READ_PASS: Final = re.compile(rf"{_GREEN.pattern}|\bpass(?:ed|ing)\b", re.IGNORECASE)
"""Text read by the run that says something passed."""
_CODE: Final = re.compile(r"`[^`\n]+`")
_OWN: Final = re.compile(r"\b(?:I|we|all|now)\b", re.IGNORECASE)
"""A sentence that speaks of this run, not of how some code works."""
