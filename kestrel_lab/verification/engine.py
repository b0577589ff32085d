"""The deterministic checks of an answer. They speak only of what is certain: places, quotes and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Final, Literal

from kestrel_lab.verification.claimed_actions import deeds_were_done
from kestrel_lab.verification.command_reports import command_reports_are_right
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.outcomes import outcomes_are_right
from kestrel_lab.verification.places import citations_resolve, files_exist
from kestrel_lab.verification.quotes import quotes_are_exact
from kestrel_lab.verification.refused_calls import refused_calls_did_nothing
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import WorkSpent

Kind = Literal["files", "citations", "quotes", "deeds"]
Check = Callable[[Subject], Iterable[Issue]]

CHECKS: Final[Mapping[Kind, tuple[Check, ...]]] = MappingProxyType(
    {
        "files": (files_exist,),
        "citations": (citations_resolve,),
        "quotes": (quotes_are_exact,),
        "deeds": (deeds_were_done, refused_calls_did_nothing, outcomes_are_right, command_reports_are_right),
    }
)
"""The checks, by what they look at; each is named after what it holds true."""
UNFINISHED: Final = "unfinished"
"""Check name of the issue that a review stopped early."""
ORDER: Final = {"critical": 0, "major": 1, "minor": 2}


def check_answer(subject: Subject, checks: Mapping[Kind, tuple[Check, ...]] = CHECKS) -> tuple[Issue, ...]:
    """Return what is wrong with an answer by workspace and log, worst first, each place once per check.

    Nothing is run, changed or fetched. Work, and optionally time, are limited: issues found so far are kept,
    and one more says where the review stopped.
    """
    found: dict[tuple[str, str], Issue] = {}
    stopped: list[Issue] = []
    with subject.files.work.allowed():
        for check in chain.from_iterable(checks.values()):
            try:
                for one in check(subject):
                    found.setdefault((check.__name__, one.what), replace(one, check=check.__name__))
            # The limit is one for all checks: the next ones would stop at once.
            except WorkSpent:
                stopped.append(
                    unfinished_issue(
                        f"the check {check.__name__} stopped early, a review may take no more work and "
                        "time than that"
                    )
                )
                break
            # An answer is the text of a model: however it is nested, it must not end the run.
            except (RecursionError, MemoryError):
                stopped.append(
                    unfinished_issue(
                        f"the check {check.__name__} stopped early, something is nested too deeply"
                    )
                )
    if subject.left_out:
        stopped.append(unfinished_issue(subject.left_out))
    return (*sorted(found.values(), key=lambda one: ORDER[one.severity]), *stopped)


def unfinished_issue(why: str) -> Issue:
    """Return the issue that an answer was not checked completely."""
    return Issue(
        "minor",
        "",
        f"the answer was not checked to its end: {why}",
        "nothing is known of the rest; ask for a shorter answer",
        check=UNFINISHED,
    )
