"""`VerifierEngine`: the deterministic checks of an answer. They speak only of what is certain: places, quotes and deeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

from kestrel_lab.verification.deeds import deeds_were_done, outcomes_are_right
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.places import citations_resolve, files_exist
from kestrel_lab.verification.quotes import quotes_are_exact
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import WorkSpent

Kind = Literal["files", "citations", "quotes", "deeds"]
Check = Callable[[Subject], Iterable[Issue]]

CHECKS: Final[Mapping[Kind, tuple[Check, ...]]] = MappingProxyType(
    {
        "files": (files_exist,),
        "citations": (citations_resolve,),
        "quotes": (quotes_are_exact,),
        "deeds": (deeds_were_done, outcomes_are_right),
    }
)
"""The checks, by what they look at; each is named after what it holds true."""
UNFINISHED: Final = "unfinished"
"""The check of the issue that says that a review stopped early."""
ORDER: Final = {"critical": 0, "major": 1, "minor": 2}


@dataclass(frozen=True, slots=True)
class VerifierEngine:
    """Deterministic checks of an answer against its workspace and its log."""

    checks: Mapping[Kind, tuple[Check, ...]] = field(default_factory=lambda: CHECKS)

    def __call__(self, subject: Subject) -> tuple[Issue, ...]:
        """Return what is wrong, the worst first, each place once for each check; nothing is run, changed or fetched.

        A review takes so much work and, where the ground says so, so much time: what was found until then is kept, and
        an issue of its own says where the review stopped.
        """
        found: dict[tuple[str, str], Issue] = {}
        stopped: list[Issue] = []
        with subject.files.work.allowed():
            for check in (check for checks in self.checks.values() for check in checks):
                try:
                    for one in check(subject):
                        found.setdefault((check.__name__, one.what), replace(one, check=check.__name__))
                except (WorkSpent, RecursionError, MemoryError) as error:
                    stopped.append(unfinished(_why(check.__name__, error)))
                    if isinstance(error, WorkSpent):
                        break
        if subject.left_out:
            stopped.append(unfinished(subject.left_out))
        return (*sorted(found.values(), key=lambda one: ORDER[one.severity]), *stopped)


def _why(check: str, error: BaseException) -> str:
    spent = "a review may take no more work and time than that"
    return f"the check {check} stopped early, {spent if isinstance(error, WorkSpent) else 'something is nested too deeply'}"


def unfinished(why: str) -> Issue:
    """Return the issue that says that an answer was not checked to its end."""
    fix = "nothing is known of the rest; ask for a shorter answer"
    return issue("minor", "", f"the answer was not checked to its end: {why}", fix, check=UNFINISHED)
