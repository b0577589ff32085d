"""A check that an answer names where it got what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from kestrel_lab.checks.trajectory import made_calls
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events import ToolAnswered
from kestrel_lab.core.jsontypes import dumps
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text import one_line


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerCites:
    """The answer names the sources: paths, addresses or other names, letter by letter.

    A name inside a longer one does not count: `app.py` is not cited by `src/app.py` or `app.pyc`; a place in
    it, `app.py:12`, does. With `seen`, a source counts only if a tool of the run was called with it or told of
    it: the others can only be guessed.
    """

    needs: ClassVar[str] = ""

    sources: tuple[str, ...]
    mode: Literal["all", "any"] = "all"
    seen: bool = False

    def __post_init__(self) -> None:
        if not self.sources or not all(source.strip() for source in self.sources):
            msg = "answer_cites needs at least one source, and none of them empty"
            raise UsageError(msg)

    @property
    def label(self) -> str:
        """The check in words."""
        which = f"{self.mode} of " if len(self.sources) > 1 else ""
        return f"answer cites {which}{one_line(', '.join(self.sources), 80)}" + (" as seen" if self.seen else "")

    async def __call__(self, trial: Trial) -> Score:
        """Pass when the sources are cited; `value` is the share of them that is."""
        missing = [source for source in self.sources if not named_in(trial.answer, source)]
        unseen = [source for source in self.sources if source not in missing and not _told_of(trial, source)] if self.seen else []
        found = len(self.sources) - len(missing) - len(unseen)
        passed = found > 0 if self.mode == "any" else found == len(self.sources)
        told = [f"not cited: {', '.join(missing)}"] if missing else []
        told += [f"cited, but in no call: {', '.join(unseen)}"] if unseen else []
        value = 1.0 if passed else found / len(self.sources)
        return Score(check=self.label, passed=passed, value=value, reason="" if passed else one_line("; ".join(told), 200))


def named_in(text: str, source: str) -> bool:
    """Whether `source` stands in `text` as a whole; a full stop behind it may end the sentence."""
    return re.search(rf"(?<![\w./-]){re.escape(source)}(?![\w/-]|\.\w)", text) is not None


def _told_of(trial: Trial, source: str) -> bool:
    texts = (record.event.text for record in trial.records if isinstance(record.event, ToolAnswered) and record.event.error is None)
    return any(source in text for text in texts) or any(call.ok and source in dumps(call.args) for call in made_calls(trial.records))
