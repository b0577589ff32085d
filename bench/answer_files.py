"""Answers from a file held against their workspaces: how many true ones are refused, and how many made-up ones pass.

A line of the file is an object: `id`, `workspace` (a folder; a relative one is looked for beside the file and above it), `question`, `answer`,
`true`, and as far as there are any `style`, `what` (the kind of making up), `read` (files that were read before the answer was given) and
`commands` (`command` and `output` of what was run). They become what the log of a run holds: calls of `read_file` and of `bash`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.citations import Span, answered
from kestrel_lab.evals.stats.intervals_and_tests import wilson
from kestrel_lab.verification.engine import VerifierEngine
from kestrel_lab.verification.issues import Issue, refused
from kestrel_lab.verification.subject import Ground, Made, Subject

MOST_REFUSED: Final = 0.034
"""The share of true answers that may be refused: two of sixty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """An answer and what the checks say of it."""

    row: Mapping[str, Any]
    issues: tuple[Issue, ...]
    seconds: float

    @property
    def true(self) -> bool:
        """Whether it is true, as its writer says."""
        return bool(self.row["true"])

    @property
    def wrong(self) -> bool:
        """Whether it is true and refused, or made up and passed."""
        return self.true == refused(self.issues)


def judged(file: Path) -> list[Judged]:
    """Every answer of the file with what the checks say; raises `LookupError` where a workspace is not there."""
    grounds: dict[Path, Ground] = {}
    found: list[Judged] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        root = _workspace(file, str(row["workspace"]))
        ground = grounds.setdefault(root, Ground(root))
        subject = subject_in(row, ground, number)
        begun = time.process_time()
        issues = VerifierEngine()(subject)
        found.append(Judged(row=row, issues=issues, seconds=time.process_time() - begun))
    return found


def subject_in(row: Mapping[str, Any], ground: Ground, number: int = 1) -> Subject:
    """The answer with what a run that read those files and ran those commands would have in its log."""
    spans: list[Span] = []
    calls: list[Made] = []
    for place, (tool, args, text) in enumerate(_made(row, ground.root), 1):
        call = f"answer{number}.1.{place}"
        spans += answered(call, tool, args, text)
        calls.append(Made(call=call, tool=tool, args=args, ok=True))
    return Subject(answer=row["answer"], goal=str(row.get("question", "")), spans=tuple(spans), calls=tuple(calls), ground=ground)


def _made(row: Mapping[str, Any], root: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    for path in row.get("read") or ():
        if (root / path).is_file():
            yield "read_file", {"path": path}, (root / path).read_text(encoding="utf-8", errors="replace")
    for one in row.get("commands") or ():
        yield "bash", {"command": one["command"]}, one["output"]


def _workspace(file: Path, name: str) -> Path:
    for folder in (file.parent, *file.parent.parents):
        if (folder / name).is_dir():
            return folder / name
    msg = f"{file} names the workspace {name!r}, which is neither beside it nor above it"
    raise LookupError(msg)


def report(found: Iterable[Judged], *, show: bool) -> bool:
    """Print the numbers by style and kind, with `show` what went wrong too; whether as few true answers are refused as have to be."""
    found = list(found)
    true, made_up = [one for one in found if one.true], [one for one in found if not one.true]
    for name, group, key in (("true refused", true, "style"), ("made up passed", made_up, "what")):
        print(f"{name:16} {_share(group)}")
        wrong, every = (Counter(_kind(one.row, key) for one in group if one.wrong or all_) for all_ in (False, True))
        for kind, count in sorted(every.items()):
            print(f"  {wrong[kind]:3} of {count:3}  {kind}")
    if found:
        print(
            f"{1000 * sum(one.seconds for one in found) / len(found):.0f} ms of processor time an answer, {1000 * max(one.seconds for one in found):.0f} at most"
        )
    for one in (one for one in found if show and one.wrong):
        print(
            f"\n--- {one.row.get('id', '')} {'true, refused' if one.true else 'made up, passed'} ({one.row.get('what') or one.row.get('style') or ''})"
        )
        print(one.row["answer"])
        print("\n".join(f"  [{issue.severity}, {issue.check}] {issue}" for issue in one.issues if issue.refuses or not one.true))
    return sum(one.wrong for one in true) <= MOST_REFUSED * len(true)


def _kind(row: Mapping[str, Any], key: str) -> str:
    return str(row.get(key) or "").partition(":")[0][:60] or "not said"


def _share(group: list[Judged]) -> str:
    wrong = sum(one.wrong for one in group)
    low, high = wilson(wrong, len(group)) if group else (0.0, 1.0)
    return f"{wrong} of {len(group)} ({low:.1%} to {high:.1%})"
