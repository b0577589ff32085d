"""Shrink a failed run: the least history, files, tools and guidance with which it still fails, as a scenario.

Delta debugging (A. Zeller and R. Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE
Transactions on Software Engineering 28, 2002) over parts of what the agent had. A candidate is a trial of its
own in a throw-away folder, and counts only if it fails as the run did: the same checks, and no call that
fails where none did before. Otherwise the least failure would be an agent without its tools. What seems
needless is left out at once, and halves are tried where that is too much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Final, cast

from kestrel_lab.checks.parse import CHECKS
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelAnswered, ModelCalled, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.protocols import Check, Model, Reporter
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.core.yaml.writer import entry_text
from kestrel_lab.evals.blame.blame import Budget
from kestrel_lab.evals.blame.receipt import read_receipt
from kestrel_lab.evals.blame.rerun import FIRST_EPOCH, GivenCheck, Rerun, Reruns, open_reruns
from kestrel_lab.evals.execution.prepare import PreparedSuite, prepare_suite
from kestrel_lab.evals.execution.runner import plan_trials
from kestrel_lab.evals.execution.trial import TrialRequest, run_trial
from kestrel_lab.evals.given_turns import GivenCall, GivenTurn
from kestrel_lab.evals.guidance import is_guidance
from kestrel_lab.evals.reports.result_view import ResultView
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.stats.intervals_and_tests import Interval, wilson_proportion
from kestrel_lab.evals.studies.guidance_parts import split_guidance
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.suites.scenario_from_run import ScenarioDraft, slug
from kestrel_lab.runtime.forks.past_files import files_at
from kestrel_lab.runtime.services import Services

SHARE: Final = 0.8
"""Of the replays of a candidate, this share has to fail."""
_LOOKS: Final = 2
"""Replays of a candidate on the way, of which all have to fail."""
_FEW, _MANY = 3, 5
"""Replays of what is kept: the second number where not all of the first fail."""
_FEW_FILES: Final = 3
"""So few that the run named are not worth the runs it takes to leave out one more."""
_MOST_FILE: Final = 40_000
"""Bytes of a file that is taken into a scenario."""
_TOGETHER: Final = 40
"""Of so many files that the run did not name, each is tried on its own; more are left out at once."""


@dataclass(frozen=True, order=True, slots=True)
class Part:
    """Something the agent had: a `turn` of its history, a `file`, a `tool`, or a paragraph (`guidance`)."""

    kind: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """All that the agent of a run had, in parts."""

    files: dict[str, str]
    """Texts by path at the beginning, guidance left out."""
    later: dict[str, str]
    """The same behind the history, for what begins there."""
    guidance: dict[str, str]
    history: dict[str, GivenTurn]
    """Each turn but the last, by its number."""
    tools: tuple[str, ...]
    needed: frozenset[Part]
    """What the run has named or called."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every part, in a fixed order."""
        paragraphs = (
            Part("guidance", f"{path}:{part.number}")
            for path, text in self.guidance.items()
            for part in split_guidance(text).parts
        )
        return (
            *(Part("turn", number) for number in self.history),
            *(Part("file", path) for path in {**self.files, **self.later}),
            *(Part("tool", name) for name in self.tools),
            *paragraphs,
        )

    def scenario(self, whole: Scenario, kept: Collection[Part]) -> Scenario:
        """Return the scenario with the parts that are kept."""
        done = tuple(turn for number, turn in self.history.items() if Part("turn", number) in kept)
        there = self.later if done else self.files
        files = {path: text for path, text in there.items() if Part("file", path) in kept}
        for path, text in self.guidance.items():
            divided = split_guidance(text)
            chosen = [Part("guidance", f"{path}:{part.number}") in kept for part in divided.parts]
            if any(chosen):
                files[path] = divided.text(chosen)
        tools = tuple(name for name in self.tools if Part("tool", name) in kept)
        return whole.model_copy(update={"history": done, "place": InlineFiles(files=files), "tools": tools})


@dataclass(frozen=True, kw_only=True, repr=False)
class Shrunk(ResultView):
    """The least with which a run was seen to fail, as a scenario."""

    run: str
    scenario: ScenarioDraft
    """The file; `write(path)` makes it."""
    before: dict[str, int]
    """How many parts there were, by kind."""
    kept: dict[str, int]
    failed: int
    """Replays of what is kept that failed as the run did."""
    replays: int
    whole_runs: float
    events: int
    """Events of the run."""
    kept_events: int
    """Of those, what is kept of its history, and its goal."""
    ended: str = ""
    """Why nothing smaller was tried."""

    @property
    def rate(self) -> Interval:
        """How often what is kept fails, with its interval."""
        return wilson_proportion(self.failed, max(1, self.replays))

    @property
    def reliable(self) -> bool:
        """Whether it fails often enough to be kept as a scenario."""
        return self.replays > 0 and self.failed >= SHARE * self.replays

    @property
    def exit_code(self) -> int:
        """0 where what is kept fails reliably, else 1."""
        return int(not self.reliable)

    @property
    def headline(self) -> str:
        """How much is left, in one line."""
        share = 100 * self.kept_events / max(1, self.events)
        if not self.reliable:
            return (
                f"NOT RELIABLE: even with all that run {self.run} had, {self.failed} of {self.replays} "
                "replays fail as it did"
            )
        return (
            f"SHRUNK to {share:.0f} % of the events and {self.kept['file']} "
            f"file{'' if self.kept['file'] == 1 else 's'}: {self.failed} of {self.replays} replays fail"
        )

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return what was there and what is kept, by kind."""
        names = {
            "turn": "turns of history",
            "file": "files",
            "tool": "tools",
            "guidance": "paragraphs of guidance",
        }
        return ("what", "before", "kept"), [
            [words, str(self.before[kind]), str(self.kept[kind])] for kind, words in names.items()
        ]

    def lines(self) -> list[str]:
        """Return what it cost, and why it ended."""
        cost = (
            f"cost {self.whole_runs:.1f} whole runs; scenario {self.scenario.id}, .write(path) makes the file"
        )
        return [cost, *([f"ended because {self.ended}"] if self.ended else [])]

    def write(self, path: str | Path) -> Path:
        """Write the scenario; raises `UsageError` if there is such a file."""
        return self.scenario.write(path)


async def shrink_run(
    lab: Services,
    run_id: str,
    *,
    suite: str | Path | Suite | None = None,
    checks: Sequence[GivenCheck] = (),
    model: str | Model | None = None,
    budget: Budget,
    reporter: Reporter | None = None,
) -> Shrunk:
    """Find the least with which a run still fails; see `Evaluations.shrink`."""
    reruns = await open_reruns(lab, run_id, suite=suite, checks=checks, model=model)
    if reruns.scenario.environment is not None:
        raise UsageError(
            f"the scenario {reruns.scenario.id!r} brings an environment of its own, which no file can hold: "
            "it is the smallest scenario already"
        )
    reruns.refuse_outside()
    material = await _material(reruns)
    search = _Search(reruns, material, budget, reporter)
    optional = [part for part in material.parts if part not in material.needed]
    least, ended = await search.least(frozenset(material.needed), optional)
    needed = [part for part in material.parts if part in least and part.kind in ("file", "tool")]
    if least in search.failing and sum(part.kind == "file" for part in needed) > _FEW_FILES:
        fixed = least - set(needed)
        least, ended = await search.least(fixed, needed, halves_first=True)
    return search.result(await search.confirmed(least), ended)


async def _material(reruns: Reruns) -> Material:
    files = await _files(reruns, reruns.turns[0].seq)
    later = await _files(reruns, reruns.turns[-1].seq)
    guidance = {
        path: text for path, text in files.items() if is_guidance(PurePosixPath(path), reruns.named_guidance)
    }
    own = {path: text for path, text in files.items() if path not in guidance}
    calls = [record.event for record in reruns.records if isinstance(record.event, ToolCalled)]
    named = dumps([call.args for call in calls]) + reruns.scenario.goal
    touched = {path for path in own if re.search(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", named)}
    if len(own) - len(touched) > _TOGETHER:
        own = {path: text for path, text in own.items() if path in touched}
        later = {path: text for path, text in later.items() if path in touched}
    used = dict.fromkeys(call.tool for call in calls)
    tools = tuple(dict.fromkeys((*used, *reruns.tool_names)))
    return Material(
        files=own,
        later={path: text for path, text in later.items() if path not in guidance},
        guidance=guidance,
        history=_history(reruns),
        tools=tools,
        needed=frozenset(
            (
                *(Part("file", path) for path in touched),
                *(Part("tool", name) for name in tools if name in used),
            )
        ),
    )


async def _files(reruns: Reruns, at: int) -> dict[str, str]:
    """Return the text files that the run had at its event `at`."""
    async with reruns.folder() as folder:
        snapshots = reruns.lab.recorders.store
        then = files_at(reruns.lab.store, snapshots, reruns.run.id, at, folder)
        texts: dict[str, str] = {}
        for path, entry in sorted(then.entries.items()):
            if entry.kind != "f" or entry.size > _MOST_FILE or ".git" in path.split("/"):
                continue
            content = snapshots.read(entry.content) if entry.content else (folder / path).read_bytes()
            with suppress(UnicodeDecodeError):  # no scenario file can hold it
                texts[path] = (content or b"").decode("utf-8")
    return texts


def _history(reruns: Reruns) -> dict[str, GivenTurn]:
    """Return each turn but the last, which is the answer that failed, by its number."""
    events = [record.event for record in reruns.records]
    answers = {event.call: event for event in events if isinstance(event, ModelAnswered)}
    results = {event.call: event.text for event in events if isinstance(event, ToolAnswered)}
    found: dict[str, GivenTurn] = {}
    for turn in reruns.turns[:-1]:
        asked = reruns.records[turn.seq - 1].event
        assert isinstance(asked, ModelCalled)
        answer = answers[asked.call]
        calls = tuple(
            GivenCall(
                tool=str(call["name"]),
                args=cast("dict[str, Json]", call.get("args") or {}),
                result=results.get(str(call["id"]), ""),
            )
            for call in answer.calls
        )
        found[str(turn.number)] = GivenTurn(text=answer.text, calls=calls)
    return found


class _Search:
    """Tries parts of what a run had."""

    def __init__(self, reruns: Reruns, material: Material, budget: Budget, reporter: Reporter | None) -> None:
        self._reruns, self._material, self._budget, self._reporter = reruns, material, budget, reporter
        self._seen: dict[frozenset[Part], tuple[int, int]] = {}
        self._labels: frozenset[str] = frozenset()
        self._errors = _errors(reruns.lab, reruns.run.id)

    def _blamed(self, most: int | None = None) -> frozenset[Part]:
        """Return the turns that the newest receipt names, the likeliest so many."""
        receipt = read_receipt(self._reruns.lab.home, self._reruns.run.id)
        steps = () if receipt is None else receipt.steps[:most]
        return frozenset(Part("turn", str(step)) for step in steps if str(step) in self._material.history)

    @property
    def failing(self) -> set[frozenset[Part]]:
        """What was seen to fail reliably."""
        return {
            parts for parts, (failed, replays) in self._seen.items() if replays and failed >= SHARE * replays
        }

    async def least(
        self, fixed: frozenset[Part], parts: Sequence[Part], *, halves_first: bool = False
    ) -> tuple[frozenset[Part], str]:
        """Return the least of `parts` that fails together with `fixed`, and why it was not made smaller."""
        if not halves_first:
            # The turns that a blame named are the likeliest to be needed.
            for first in dict.fromkeys((fixed, fixed | self._blamed(1), fixed | self._blamed())):
                if not self._ended() and await self._fails(first):
                    return first, ""
        whole = fixed | set(parts)
        if ended := self._ended():
            return (fixed if fixed in self._seen else whole), ended
        if not await self._fails(whole):
            return whole, "with all of it the run does not fail reliably"
        left, chunks = list(parts), 2
        while len(left) >= 2:
            size = -(-len(left) // chunks)
            pieces = [left[start : start + size] for start in range(0, len(left), size)]
            smaller = await self._smaller(fixed, left, pieces)
            if smaller is None:
                if chunks >= len(left) or self._ended():
                    break
                chunks = min(len(left), 2 * chunks)
            else:
                chunks = 2 if len(smaller) <= size else max(2, chunks - 1)
                left = [*smaller]
        return fixed | set(left), self._ended()

    async def _smaller(
        self, fixed: frozenset[Part], left: Sequence[Part], pieces: Sequence[Sequence[Part]]
    ) -> Sequence[Part] | None:
        """Return the first piece, or all but one piece, that still fails; `None` if none does."""
        candidates = [*pieces]
        if len(pieces) > 2:
            candidates += [[part for part in left if part not in piece] for piece in pieces]
        for candidate in candidates:
            if self._ended():
                return None
            if await self._fails(fixed | set(candidate)):
                return candidate
        return None

    async def confirmed(self, least: frozenset[Part]) -> frozenset[Part]:
        """Return the smallest candidate that fails reliably in more replays, and `least` if none does."""
        for parts in sorted(self.failing, key=len):
            ready = self._ready(parts)
            failed, replays = self._seen[parts]
            # Two that pass cannot be made up for by the others.
            while (
                replays < (_FEW if failed == replays else _MANY) and replays - failed <= (1 - SHARE) * _MANY
            ):
                failed, replays = failed + bool(await self._replay(*ready)), replays + 1
            self._seen[parts] = failed, replays
            if parts in self.failing:
                return parts
        return least

    async def _fails(self, parts: frozenset[Part]) -> bool:
        """Return whether a candidate seems to fail: a quick look, which `confirmed` makes sure of."""
        if parts not in self._seen:
            failed = replays = 0
            ready = self._ready(parts)
            while failed == replays < _LOOKS:
                failed, replays = failed + bool(await self._replay(*ready)), replays + 1
            self._seen[parts] = failed, replays
        return parts in self.failing

    def _ready(self, parts: frozenset[Part]) -> tuple[PreparedSuite, TrialRequest]:
        scenario = self._material.scenario(self._reruns.scenario, parts)
        suite, models = self._reruns.as_suite(scenario)
        return prepare_suite(self._reruns.lab, suite, models=models), plan_trials(suite, code="", git_sha="")[
            0
        ]

    async def _replay(self, ready: PreparedSuite, ask: TrialRequest) -> bool:
        """Run a trial, and return whether it failed as the run did."""
        reruns = self._reruns
        if self._reporter is not None:
            note = f"{len(self._seen)} candidates tried"
            self._reporter(int(reruns.whole_runs), int(self._budget.runs), note)
        row = await run_trial(reruns.lab, ready, ask.at(epoch=FIRST_EPOCH + len(reruns.made)))
        records = reruns.lab.store.records(row.run)
        cost = row.metrics.get("cost_usd")
        calls = sum(isinstance(record.event, ModelCalled) for record in records)
        reruns.made.append(
            Rerun(turn=1, outcome=row.outcome, reason=row.reason, run=row.run, calls=calls, cost_usd=cost)
        )
        failed = frozenset(str(score["check"]) for score in row.scores if not score["passed"])
        if row.outcome != "fail" or not _errors(reruns.lab, row.run) <= self._errors:
            return False
        # The first failure says which checks it is about, where the run itself was not judged by a suite.
        self._labels = self._labels or reruns.failed_checks or failed
        return self._labels <= failed

    def _ended(self) -> str:
        return self._budget.ended(self._reruns)

    def result(self, least: frozenset[Part], ended: str) -> Shrunk:
        """Return the scenario of what is kept."""
        reruns, material = self._reruns, self._material
        failed, replays = self._seen.get(least, (0, 0))
        count: Callable[[Collection[Part], str], int] = lambda parts, kind: sum(  # noqa: E731
            part.kind == kind for part in parts
        )
        kinds = ("turn", "file", "tool", "guidance")
        scenario = material.scenario(reruns.scenario, least)
        turns = {int(part.name) for part in least if part.kind == "turn"}
        ends = [turn.seq for turn in reruns.turns] + [len(reruns.records) + 1]
        return Shrunk(
            run=reruns.run.id,
            scenario=_draft(reruns, scenario, failed, replays),
            before={kind: count(material.parts, kind) for kind in kinds},
            kept={kind: count(least, kind) for kind in kinds},
            failed=failed,
            replays=replays,
            whole_runs=reruns.whole_runs,
            events=len(reruns.records),
            kept_events=1 + sum(ends[turn] - ends[turn - 1] for turn in turns),
            ended=ended,
        )


def _errors(lab: Services, run: str) -> frozenset[str]:
    """Return the tools of a run that answered with an error."""
    answers = (record.event for record in lab.store.records(run))
    return frozenset(
        answer.tool for answer in answers if isinstance(answer, ToolAnswered) and answer.error is not None
    )


def _draft(reruns: Reruns, scenario: Scenario, failed: int, replays: int) -> ScenarioDraft:
    """Return the scenario as a file."""
    name = f"{slug(reruns.run.goal)}-shrunk"
    entry: dict[str, Json] = {"id": name, "goal": scenario.goal}
    if isinstance(scenario.place, InlineFiles) and scenario.place.files:
        entry["workspace"] = {"files": cast("dict[str, Json]", scenario.place.files)}
    if scenario.history:
        entry["history"] = [_turn_entry(turn) for turn in scenario.history]
    entry["tools"] = [*(scenario.tools or ())]
    if scenario.limits:
        entry["limits"] = dict(scenario.limits)
    if scenario.approve:
        entry["approve"] = scenario.approve
    if scenario.expected is not None:
        entry["expected"] = scenario.expected
    entry["checks"] = [_check_entry(check) for check in scenario.checks]
    model = one_line(reruns.run.report.model)
    head = (
        f"# The least with which run {reruns.run.id} ({model}) was seen to fail:\n"
        f"# {failed} of {replays} replays fail. It passes when the failure is fixed.\n"
    )
    return ScenarioDraft(
        id=name, text=head + sanitize_text(entry_text("scenarios", [entry])).rstrip("\n") + "\n"
    )


def _turn_entry(turn: GivenTurn) -> dict[str, Json]:
    return {name: value for name, value in turn.definition().items() if value}


def _check_entry(check: Check) -> dict[str, Json]:
    """Return a check as suite files write it, without what is as by default."""
    kind = type(check)
    name = next((name for name, known in CHECKS.items() if known is kind), None)
    if name is None:
        raise UsageError(f"the check {check.label!r} is Python code without a name: no file can hold it")
    given: dict[str, Json] = {}
    for one in fields(kind):  # type: ignore[arg-type]  # every check of CHECKS is a dataclass
        value = getattr(check, one.name)
        if one.default is MISSING or value != one.default:
            given[one.name] = list(value) if isinstance(value, tuple) else value
    return {name: cast("Json", given)}
