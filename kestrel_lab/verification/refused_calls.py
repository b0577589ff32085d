"""Compares reported changes with denied and failed calls: variables, cells, messages, the task itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from kestrel_lab.core.events.actions import Action
from kestrel_lab.language.python_ast import tree_of
from kestrel_lab.verification.claimed_actions import (
    CELL,
    DO_IT,
    SUPPOSED,
    TOOLS,
    ClaimedAction,
    failure_text,
    may_have_done,
)
from kestrel_lab.verification.claims import VERBS, Statement, files_in
from kestrel_lab.verification.effects import (
    changes_cells,
    code_of,
    may_change_anything,
    may_change_cell,
    may_change_variable,
)
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.places import ADMITS
from kestrel_lab.verification.subject import Subject


def refused_calls_did_nothing(subject: Subject) -> Iterator[Issue]:
    """Yield an issue for reported changes that only denied or failed calls could have made.

    No issue if the answer mentions a refusal or failure itself.
    """
    acts = subject.acts or ()
    refused = [
        action
        for action in acts
        if action.outcome == "denied"
        or (action.outcome == "failed" and action.kind != "command" and not code_of(action))
    ]
    if not refused or ADMITS.search(subject.answer):
        return
    done = [action for action in acts if action not in refused]
    yield from _completed(subject, refused, done)
    for said in subject.paid():
        if said.kind == "code" or SUPPOSED.search(said.text) or said.text.rstrip().endswith("?"):
            continue
        if (claimed := _claimed_change(said)) and (by := _only_refused(said, claimed, refused, done)):
            subject.checked.add(said.text)
            yield Issue("critical", said.text, f"the answer says “{claimed}”, but {failure_text(by)}", DO_IT)


_TASKS: Final = r"(?:task|request|change|work|job)s?"
_COMPLETED: Final = re.compile(
    r"\W*(?:(?:it(?:'|’)?s|it is|that(?:'|’)s|that is|everything is|i(?:'|’)m|i am"
    rf"|(?:the|your) {_TASKS} (?:is|are|was|has been|have been))\s+)?(?:all\s+|now\s+|successfully\s+)*"
    r"(?:done|finished|completed?|all set|set|taken care of|success)(?:\s+successfully)?\s*(?:[.!:,;–—-]|$)"
    rf"|\W*{_TASKS}\s+(?:is\s+)?(?:successfully\s+)?(?:done|finished|completed?)\b"
    r"|\W*i(?:'|’)?(?:ve| have)\s+(?:successfully\s+)?(?:done|finished|completed)\s+"
    rf"(?:it|that|this|(?:the|your) {_TASKS})\b",
    re.IGNORECASE,
)
"""An answer that begins with the report that the task is done."""
_IRREGULAR: Final = (
    "written|rewritten|sent|put|set|cut|split|made|built|run|taken|reset|paid|given|lost|got|became"
    "|shrank|grew|shrunk|grown"
)
_READS: Final = (
    "used|named|called|based|needed|required|expected|located|supposed|designed|documented|described|defined|contained|remained|stayed|existed|"
    "included|consisted|seemed|appeared|loaded|imported|inspected|checked|looked|listed|displayed|printed|showed|shown|analy[sz]ed|reviewed|examined|"
    "mentioned|asked|explained|reported|noted|observed|noticed|discussed|suggested|proposed|planned|intended|tried|attempted|wanted|red|shared|"
    "indexed|typed|stored|held|related|limited|interested|detailed|provided|requested|attached|embedded|unused|nested|measured|counted"
)
"""Words in -ed that report no change."""
_CHANGE: Final = re.compile(
    r"\b(?:was|were|has been|have been|is now|are "
    rf"now|got)\s+(?:\w+ly\s+|now\s+|also\s+)*(?!(?:{_READS})\b)(?:\w+ed|{_IRREGULAR})\b"
    rf"|\b(?!(?:{_READS})\b)(?:\w{{2,}}ed|lost|became|shrank|grew)\b|\b(?:is|are) (?:now "
    r")?gone\b|\b(?:now|no longer)\s+(?:has|have|is|are|contains?|holds?)\b"
    r"|\b(?:has|is|contains?|holds?) now\b",
    re.IGNORECASE,
)
"""Reports of a change, by anybody."""


def _completed(subject: Subject, refused: Sequence[Action], done: Sequence[Action]) -> Iterator[Issue]:
    """Yield an issue for a report that the task is done, where this run itself can have changed nothing."""
    report = _COMPLETED.match(subject.answer)
    own = [action for action in refused if action not in subject.earlier]
    by_itself = [action for action in done if action not in subject.earlier]
    if report is None or not own or any(map(may_change_anything, by_itself)):
        return
    subject.checked.add(report[0])
    what = f"the answer says “{report[0].strip()}”, but {failure_text(own)}"
    yield Issue("critical", report[0], what, DO_IT)


def _claimed_change(said: Statement) -> str:
    """Return the words with which a sentence reports a change; empty if it reports none."""
    # Code is masked: a name such as `is_deleted` reports no change.
    found = _CHANGE.search(re.sub(r"`[^`\n]*`", lambda match: "x" * len(match[0]), said.text))
    return said.text[found.start() : found.end()] if found else ""


def _only_refused(
    said: Statement, claimed: str, refused: Sequence[Action], done: Sequence[Action]
) -> list[Action]:
    """Return the refused calls that would have made the change, if no other call can have made it."""
    for name in _variables_in(said, refused):
        if not any(may_change_variable(action, name) or action.files or action.touched for action in done):
            return [action for action in refused if name in variables_of(action)]
    cells = [action for action in refused if changes_cells(action)]
    if cells and CELL.search(said.text) and not any(may_change_cell(action) for action in done):
        return cells
    verb = claimed.rsplit(maxsplit=1)[-1].lower()
    kind = next((kind for kind, verbs in VERBS.items() if verb in verbs.split("|")), "")
    # Only what was, or has been, done.
    if not kind or claimed.lower() == verb or kind == "run":
        return []
    one = ClaimedAction(kind=kind, words=f"{verb} {said.text}", files=(), command="")
    alike = [action for action in refused if TOOLS[kind].search(action.tool)]
    return (
        alike if not list(files_in(said)) and not any(may_have_done(one, action) for action in done) else []
    )


def _variables_in(said: Statement, refused: Sequence[Action]) -> Iterator[str]:
    known = {name for action in refused for name in variables_of(action)}
    yield from (name for name in dict.fromkeys(re.findall(r"[^\W\d]\w*", said.text)) if name in known)


@lru_cache(maxsize=64)
def _names_changed(code: str) -> frozenset[str]:
    """Return variables that code assigns, deletes or calls methods of; empty if it is not Python."""
    try:
        nodes = [*ast.walk(tree_of(code))]
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    held = {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name)
    }
    made = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return frozenset((held | made) - imported)


def variables_of(action: Action) -> frozenset[str]:
    """Return the variables that the code of a call would change."""
    code = code_of(action)
    return frozenset() if code is None else _names_changed(code)
