"""`VerifierEngine`: what kind of output an answer is decides which deterministic checks look at it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

from kestrel_lab.core.citations import citations
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.prose.names import code_in, files_in, names_in
from kestrel_lab.verification.rules.code_and_commands import SHELLS, blocks_parse, commands_are_there, imports_resolve, json_is_valid
from kestrel_lab.verification.rules.code_structure import bases_hold, calls_fit, lists_hold
from kestrel_lab.verification.rules.facts import addresses_were_met, advisories_were_met, deeds_were_done, names_resolve
from kestrel_lab.verification.rules.files_and_lines import definitions_are_there, files_exist, lines_hold
from kestrel_lab.verification.rules.numbers import counts_are_right, numbers_are_there
from kestrel_lab.verification.rules.quotes import quotes_are_exact
from kestrel_lab.verification.rules.values import values_hold
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.work_limit import WorkSpent

Kind = Literal["files", "names", "code", "commands", "addresses", "numbers", "values", "quotes", "json", "deeds", "security"]
Check = Callable[[Subject], Iterable[Issue]]

CHECKS: Final[Mapping[Kind, tuple[Check, ...]]] = MappingProxyType(
    {
        "files": (files_exist, lines_hold, definitions_are_there),
        "names": (names_resolve, bases_hold, calls_fit, lists_hold),
        "code": (blocks_parse, imports_resolve, calls_fit),
        "commands": (commands_are_there,),
        "addresses": (addresses_were_met,),
        "numbers": (numbers_are_there, counts_are_right),
        "values": (values_hold,),
        "quotes": (quotes_are_exact,),
        "json": (json_is_valid,),
        "deeds": (deeds_were_done,),
        "security": (advisories_were_met,),
    }
)
"""Which checks look at which kind of output; a check says by its name what it holds true."""
SURE: Final = frozenset({"blocks_parse", "json_is_valid", "lines_hold", "deeds_were_done"})
"""Checks whose issues do not rest on something being nowhere in the workspace."""
UNFINISHED: Final = "unfinished"
"""The check of the issue that says that a look stopped early."""
ORDER: Final = {"critical": 0, "major": 1, "minor": 2}
_SECURITY: Final = re.compile(r"\bCVE-\d|\bvulnerab|\bexploit|\binjection\b|\bXSS\b|\bCSRF\b|\bRCE\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class VerifierEngine:
    """Deterministic checks of an answer, triggered by what is in it."""

    checks: Mapping[Kind, tuple[Check, ...]] = field(default_factory=lambda: CHECKS)

    def __call__(self, subject: Subject) -> tuple[Issue, ...]:
        """What is wrong, the worst first, each place once for each check; nothing is run, changed or fetched.

        A look takes so much work and, where the ground says so, so much time: what was found until then is kept, and
        an issue of its own says where the look stopped.
        """
        found: dict[tuple[str, str], Issue] = {}
        stopped: list[Issue] = []
        with subject.files.work.allowed():
            for check in self._chosen(subject, stopped):
                try:
                    for one in check(subject):
                        found.setdefault((check.__name__, one.what), replace(one, check=check.__name__))
                except (WorkSpent, RecursionError, MemoryError) as error:
                    stopped.append(unfinished(_why(check.__name__, error)))
                    if isinstance(error, WorkSpent):
                        break
        if subject.left_out:
            stopped.append(unfinished(subject.left_out))
        known = list(found.values())
        if not subject.files.whole:  # what is not seen may be where nobody could look
            known = [one for one in known if one.check in SURE]
        return (*sorted(known, key=lambda one: ORDER[one.severity]), *stopped)

    def _chosen(self, subject: Subject, stopped: list[Issue]) -> list[Check]:
        """The checks for what is in the answer."""
        try:
            return [check for kind in sorted(kinds(subject)) for check in self.checks.get(kind, ())]
        except (WorkSpent, RecursionError, MemoryError) as error:
            stopped.append(unfinished(_why("kinds", error)))
            return []


def _why(check: str, error: BaseException) -> str:
    spent = "a look may take no more work and time than that"
    return f"the check {check} stopped early, {spent if isinstance(error, WorkSpent) else 'something is nested too deeply'}"


def unfinished(why: str) -> Issue:
    """What is said of an answer that was not looked at to its end."""
    return issue(
        "minor",
        "",
        f"the answer was not checked to its end: {why}",
        "nothing is known of the rest; ask for a shorter answer",
        check=UNFINISHED,
    )


def kinds(subject: Subject) -> frozenset[Kind]:
    """What kinds of output an answer holds."""
    found: set[Kind] = set()
    for said in subject.paid():
        found |= _kinds_of(said)
    if subject.looked_at.strip()[:1] in ("{", "["):
        found.add("json")
    if re.search(r"https?://", subject.looked_at):
        found.add("addresses")
    if re.search(r"\b(?:I|we)(?:'ve| have)?\b", subject.looked_at, re.IGNORECASE):
        found.add("deeds")
    if _SECURITY.search(subject.looked_at):
        found.add("security")
    return frozenset(found)


def _kinds_of(said: Said) -> set[Kind]:
    if said.kind == "code":
        quoted: set[Kind] = {"quotes"} if said.lead else set()
        return quoted | ({"code", "commands"} if said.language in SHELLS else {"code"})
    found: set[Kind] = set()
    if any(True for _ in files_in(said)) or citations(said.text):
        found.add("files")
    if any(True for _ in names_in(said)):
        found |= {"names", "files"}
    if any(True for _ in code_in(said)):
        found |= {"names", "commands", "quotes", "values", "numbers"}
    if said.kind == "quote" or re.search(r"[\"“]", said.text):
        found.add("quotes")
    if re.search(r"\d", said.text):
        found |= {"numbers", "values"}
    return found
