"""An answer with everything it may be held against: the files of the workspace, what tools answered, what was called."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from kestrel_lab.core.citations import Span, asked_in, spans_of
from kestrel_lab.core.events.union import Record, ToolAnswered
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.verification.claims import Said, claims_of
from kestrel_lab.verification.code.symbols import Symbols
from kestrel_lab.verification.prose.introduced_names import foreign, introduced
from kestrel_lab.verification.prose.names import Name
from kestrel_lab.verification.prose.stance import Stance, stance
from kestrel_lab.verification.work_limit import CLAIM, PARSED, SEARCHED, TOKEN
from kestrel_lab.verification.workspace_files import Files, whole_word

MOST_CLAIMS: Final = 1_000
"""Claims of an answer that are looked at."""
MOST_BLOCK: Final = 20_000
"""Characters of a block of code, which unlike what is said is looked at as a whole."""
MOST_CHARS: Final = 400_000
"""Characters of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A tool call of the run."""

    call: str
    tool: str
    args: Mapping[str, Json]
    ok: bool


class Ground:
    """A workspace as it is now, for as many answers as are looked at before it changes."""

    def __init__(self, root: Path, seconds: float | None = None) -> None:
        """`seconds` is how long the workspace may be looked into."""
        self.root = root
        self.files = Files(root, seconds)
        self.symbols = Symbols(self.files)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What the checks look at; what they find out on the way is kept, so it serves one answer at one time."""

    answer: str
    goal: str = ""
    spans: Sequence[Span] = ()
    calls: Sequence[Made] | None = None
    """`None` where it is not known what was called."""
    ground: Ground | None = None
    """`None` where there is no workspace to look into."""
    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    """Folders that commands are looked for in."""

    @cached_property
    def claims(self) -> tuple[Said, ...]:
        """What the answer says, as far as it is looked at."""
        return tuple(said for said in self._every[:MOST_CLAIMS] if len(said.text) <= MOST_BLOCK)

    @cached_property
    def _every(self) -> tuple[Said, ...]:
        return claims_of(self.looked_at)

    @property
    def looked_at(self) -> str:
        """The answer, as far as it is looked at."""
        return self.answer[:MOST_CHARS]

    @cached_property
    def left_out(self) -> str:
        """What of the answer is not looked at, in words; empty if all of it is."""
        if len(self._every) > MOST_CLAIMS:
            return f"only the first {MOST_CLAIMS:,} of its claims were looked at"
        if len(self.answer) > MOST_CHARS:
            return f"only the first {MOST_CHARS:,} of its {len(self.answer):,} characters were looked at"
        return f"only its blocks of up to {MOST_BLOCK:,} characters were looked at" if len(self.claims) < len(self._every) else ""

    def pay(self, cost: float) -> None:
        """Spend some of the work that a look may take."""
        self.files.work.spend(cost)

    def through(self, texts: Iterable[str], cost: float = TOKEN) -> Iterator[str]:
        """The texts, for something that goes through them: each is paid for when it comes, at a `cost` for each character."""
        for text in texts:
            self.pay(CLAIM + cost * len(text))
            yield text

    def paid(self) -> Iterator[Said]:
        """The claims, for a check that goes through them: each is paid for when it comes."""
        self.pay(TOKEN * len(self.looked_at))
        against = sum(len(span.text) for span in self.whole_spans) / SEARCHED
        for said in self.claims:
            self.pay(CLAIM + PARSED * len(said.text) + against)
            yield said

    @cached_property
    def introduced(self) -> frozenset[str]:
        """Names and files that the answer itself brings in: proposed, defined in an example, or said not to be there."""
        self.pay(CLAIM * len(self.claims) + PARSED * len(self.looked_at))
        return introduced(self.claims, lambda: frozenset(path.rpartition(".")[2].lower() for path in self.files.paths))

    @cached_property
    def home(self) -> frozenset[str]:
        """What the workspace is called: its folder, its packages and modules, in lower case."""
        parts = {part.removesuffix(".py").lower() for path in self.files.paths if path.endswith(".py") for part in path.split("/")[:3]}
        return frozenset({part.lstrip("_") for part in parts} | {self.files.root.name.lower()}) - {"", "init__"}

    def stance(self, said: Said, name: Name) -> Stance:
        """How the answer stands to a name or file in a claim: what it brings in itself it does not assert, nor what another library has."""
        how = stance(said.text, name.start, name.end, said.lead)
        if how != "asserted":
            return how
        if name.text in self.introduced or name.text.rpartition(".")[2] in self.introduced:
            return "to be made"
        return "supposed" if foreign(said, name.start, name.end, self.home) else how

    @cached_property
    def files(self) -> Files:
        """The workspace; without one, nothing is there and nothing is refused for it."""
        if self.ground is None:
            files = Files(Path("/nonexistent"))
            files.whole = False
            return files
        return self.ground.files

    @cached_property
    def symbols(self) -> Symbols:
        """The names the workspace defines."""
        return Symbols(self.files) if self.ground is None else self.ground.symbols

    @property
    def unseen(self) -> str:
        """What was not looked at so far, in words; empty if nothing was left out."""
        return self.left_out or ("a look may take no more work and time than that" if self.files.work.spent else "")

    @cached_property
    def told(self) -> str:
        """Everything that was said in the run before the answer: the goal, what tools answered, what they were called with."""
        calls = [dumps(dict(made.args)).replace("\\n", "\n").replace('\\"', '"') for made in self.calls or ()]
        return "\n".join([self.goal, *(span.text for span in self.whole_spans), *calls])

    @cached_property
    def whole_spans(self) -> tuple[Span, ...]:
        """The answers of tools, without their parts."""
        return tuple(span for span in self.spans if not span.path or not span.call)

    def tells(self, name: str) -> bool:
        """Whether `name` was told of in the run."""
        self.pay(CLAIM + len(self.told))
        return name in self.told and whole_word(name).search(self.told) is not None

    def names(self, word: str) -> bool:
        """Whether `word` stands anywhere in the workspace or in what was told in the run."""
        return self.tells(word) or bool(self.files.having(word))


def subject_of(records: Sequence[Record], *, answer: str, goal: str, root: Path | None) -> Subject:
    """The answer of a run with what its log holds."""
    return Subject(
        answer=answer,
        goal=goal,
        spans=spans_of([record.event for record in records]),
        calls=made_calls(records),
        ground=None if root is None else Ground(root),
    )


def made_calls(records: Sequence[Record]) -> tuple[Made, ...]:
    """The calls of tools that were answered."""
    asked = asked_in(record.event for record in records)
    return tuple(
        Made(call=event.call, tool=event.tool, args=asked.get(event.call, {}), ok=event.error is None)
        for event in (record.event for record in records)
        if isinstance(event, ToolAnswered)
    )
