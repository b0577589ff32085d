"""`VerifierEngine`: what kind of output an answer is decides which deterministic checks look at it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

from kestrel_lab.core.spans import citations
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.facts import (
    addresses_were_met,
    advisories_were_met,
    deeds_were_done,
    names_resolve,
)
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.naming import code_in, files_in, names_in
from kestrel_lab.verification.numbers import counts_are_right, numbers_are_there
from kestrel_lab.verification.placing import definitions_are_there, files_exist, lines_hold
from kestrel_lab.verification.quoting import quotes_are_exact
from kestrel_lab.verification.running import SHELLS, blocks_parse, commands_are_there, imports_resolve, json_is_valid
from kestrel_lab.verification.structure import bases_hold, calls_fit, lists_hold
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.values import values_hold

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
ORDER: Final = {"critical": 0, "major": 1, "minor": 2}
_SECURITY: Final = re.compile(r"\bCVE-\d|\bvulnerab|\bexploit|\binjection\b|\bXSS\b|\bCSRF\b|\bRCE\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class VerifierEngine:
    """Deterministic checks of an answer, triggered by what is in it."""

    checks: Mapping[Kind, tuple[Check, ...]] = field(default_factory=lambda: CHECKS)

    def __call__(self, subject: Subject) -> tuple[Issue, ...]:
        """What is wrong, the worst first, each place once for each check; nothing is run, changed or fetched.

        Where the ground may be looked into for so long only, no check begins after that.
        """
        found: dict[tuple[str, str], Issue] = {}
        for kind in sorted(kinds(subject)):
            for check in self.checks.get(kind, ()):
                if subject.files.late:
                    break
                for one in check(subject):
                    found.setdefault((check.__name__, one.what), replace(one, check=check.__name__))
        known = list(found.values())
        if not subject.files.whole:  # what is not seen may be where nobody could look
            known = [one for one in known if one.check in SURE]
        return tuple(sorted(known, key=lambda one: ORDER[one.severity]))


def kinds(subject: Subject) -> frozenset[Kind]:
    """What kinds of output an answer holds."""
    found: set[Kind] = set()
    for said in subject.claims:
        found |= _kinds_of(said)
    if subject.answer.strip()[:1] in ("{", "["):
        found.add("json")
    if re.search(r"https?://", subject.answer):
        found.add("addresses")
    if re.search(r"\b(?:I|we)(?:'ve| have)?\b", subject.answer, re.IGNORECASE):
        found.add("deeds")
    if _SECURITY.search(subject.answer):
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
