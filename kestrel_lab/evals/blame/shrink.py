"""Shrink a failed run: the least history, files, tools and guidance with which it still fails, as a scenario.

Delta debugging (A. Zeller and R. Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE
Transactions on Software Engineering 28, 2002) over parts of what the agent had. A candidate is a trial of its
own in a throw-away folder, and counts only if it fails as the run did: the same checks, and no call that
fails where none did before. Otherwise the least failure would be an agent without its tools.

Replays pass and fail by chance, and a whole one is dear. So all that seems needless is left out at once.
Where turns are needed, the last one is searched among beginnings of the history, whose replays make only the
rest anew; what a blame has paid for counts. Every further part that is needed costs one more such search.
What is found has to fail in enough replays of its own.
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
from kestrel_lab.core.protocols import Check
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.core.yaml.writer import entry_text
from kestrel_lab.evals.blame.blame import breaks, earlier_receipt
from kestrel_lab.evals.blame.receipt import Receipt
from kestrel_lab.evals.blame.rerun import FIRST_EPOCH, Rerun, Reruns, open_reruns
from kestrel_lab.evals.execution.prepare import prepare_suite
from kestrel_lab.evals.execution.runner import plan_trials
from kestrel_lab.evals.execution.trial import run_trial
from kestrel_lab.evals.given_turns import GivenCall, GivenTurn
from kestrel_lab.evals.guidance import is_guidance
from kestrel_lab.evals.options import RerunOptions
from kestrel_lab.evals.reports.result_view import ResultView
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.stats.decisive_step import DecisiveStep
from kestrel_lab.evals.stats.intervals_and_tests import Interval, wilson_proportion
from kestrel_lab.evals.studies.guidance_parts import split_guidance
from kestrel_lab.evals.suite import Scenario
from kestrel_lab.evals.suites.scenario_from_run import ScenarioDraft, slug
from kestrel_lab.runtime.forks.past_files import files_at
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_count

SHARE: Final = 0.8
"""Of the replays of a candidate, this share has to fail."""
_FEW, _MANY = 3, 5
"""Replays of what is kept: the second number where not all of the first fail."""
_FEW_FILES: Final = 3
"""So few that the run named are not worth the runs it takes to leave out one more."""


@dataclass(frozen=True, order=True, slots=True)
class Part:
    """Something the agent had: a `turn` of its history, a `file`, a `tool`, or a paragraph (`guidance`)."""

    kind: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """All that the agent of a run had, in parts."""

    files: tuple[dict[str, str], ...]
    """Texts by path before each turn, those of the first in place 0."""
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
            *(Part("file", path) for path in self.files[0]),
            *(Part("tool", name) for name in self.tools),
            *paragraphs,
        )

    def scenario(self, whole: Scenario, kept: Collection[Part]) -> Scenario:
        """Return the scenario with the parts that are kept."""
        turns = [number for number in self.history if Part("turn", number) in kept]
        # Files are as they were behind the last turn that is kept, and what a turn made comes with it.
        made = {path for number in turns for path in self._made(int(number))}
        there = self.files[int(turns[-1]) if turns else 0]
        files = {path: text for path, text in there.items() if Part("file", path) in kept or path in made}
        for path, text in self.guidance.items():
            divided = split_guidance(text)
            chosen = [Part("guidance", f"{path}:{part.number}") in kept for part in divided.parts]
            if any(chosen):
                files[path] = divided.text(chosen)
        tools = tuple(name for name in self.tools if Part("tool", name) in kept)
        done = tuple(self.history[number] for number in turns)
        return whole.model_copy(update={"history": done, "place": InlineFiles(files=files), "tools": tools})

    def _made(self, number: int) -> list[str]:
        """Return the files that a turn made or changed."""
        before, after = self.files[number - 1 : number + 1]
        return [path for path, text in after.items() if before.get(path) != text]


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
        if not self.replays:
            return f"NOT SHRUNK: nothing could be replayed of run {self.run}"
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


async def shrink_run(lab: Services, run_id: str, how: RerunOptions) -> Shrunk:
    """Find the least with which a run still fails; see `Evaluations.shrink`."""
    reruns = await open_reruns(lab, run_id, how)
    if reruns.scenario.environment is not None:
        raise UsageError(
            f"the scenario {reruns.scenario.id!r} brings an environment of its own, which no file can hold: "
            "it is the smallest scenario already"
        )
    reruns.refuse_outside()
    search = _Search(reruns, await _material(reruns))
    return search.result(await search.least(earlier_receipt(reruns, how.get("model"))))


async def _material(reruns: Reruns) -> Material:
    states, names = await _files(reruns), reruns.named_guidance
    guidance = {path: text for path, text in states[0].items() if is_guidance(PurePosixPath(path), names)}
    calls = [record.event for record in reruns.records if isinstance(record.event, ToolCalled)]
    named = dumps([call.args for call in calls]) + reruns.scenario.goal
    own = states[0].keys() - guidance.keys()
    touched = {path for path in own if re.search(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", named)}
    # Each file that the run did not name costs a replay of its own; more than 40 are left out at once.
    left_out = {*guidance, *(own - touched if len(own) - len(touched) > 40 else ())}
    used = dict.fromkeys(call.tool for call in calls)
    tools = tuple(dict.fromkeys((*used, *reruns.tool_names)))
    return Material(
        files=tuple({path: text for path, text in one.items() if path not in left_out} for one in states),
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


async def _files(reruns: Reruns) -> list[dict[str, str]]:
    """Return the text files that the run had before each turn."""
    snapshots, known, states = reruns.lab.recorders.store, dict[str, bytes](), list[dict[str, str]]()
    async with reruns.folder() as folder:
        for turn in reruns.turns:
            then = files_at(reruns.lab.store, snapshots, reruns.run.id, turn.seq, folder)
            texts: dict[str, str] = {}
            for path, entry in sorted(then.entries.items()):
                # A file is written into the scenario as text: binaries, large files and what git keeps have
                # no place there.
                if entry.kind != "f" or entry.size > 40_000 or ".git" in path.split("/"):
                    continue
                if entry.content and entry.content not in known:
                    known[entry.content] = snapshots.read(entry.content) or b""
                content = known[entry.content] if entry.content else (folder / path).read_bytes()
                # A file that is no text cannot be written into a scenario.
                with suppress(UnicodeDecodeError):
                    texts[path] = content.decode("utf-8")
            states.append(texts)
    return states


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


class _EndedError(Exception):
    """No replay more can be paid, or the last ones all broke."""


class _Search:
    """Tries parts of what a run had."""

    def __init__(self, reruns: Reruns, material: Material) -> None:
        self._reruns, self._material = reruns, material
        self._seen: dict[frozenset[Part], tuple[int, int]] = {}
        """How many replays of a candidate failed, of how many."""
        self._labels: frozenset[str] = frozenset()
        self._errors = _errors(reruns.lab, reruns.run.id)
        self.ended = ""

    async def least(self, receipt: Receipt | None) -> frozenset[Part]:
        """Return the fewest parts found that fail reliably; all parts where none do.

        What a blame of the run paid for, its `receipt` has.
        """
        needed = self._material.needed
        few = [part for part in self._material.parts if part not in needed]
        turns = [part for part in few if part.kind == "turn"]
        others = [part for part in few if part.kind != "turn"]
        files = [part for part in self._material.parts if part in needed and part.kind == "file"]
        many = files if len(files) > _FEW_FILES else []
        steps: list[tuple[frozenset[Part], list[Part]]] = [
            (needed - frozenset(many), many),
            (needed, others),
            (needed, turns),
            (needed, [*others, *turns]),
        ]
        # Without the turn that it names the run does not fail.
        if receipt is not None and receipt.steps:
            steps.insert(0, steps.pop(2))
        try:
            for fixed, parts in steps:
                if await self._fewest(fixed, parts, receipt):
                    break
        except _EndedError as error:
            self.ended = str(error)
        whole = frozenset(self._material.parts)
        seen = [parts for parts, (failed, replays) in self._seen.items() if failed >= SHARE * replays]
        proven = [parts for parts in seen if self._seen[parts][1] >= _FEW] or seen
        return min(proven, key=self._size, default=whole)

    async def _fewest(self, fixed: frozenset[Part], parts: Sequence[Part], receipt: Receipt | None) -> bool:
        """Look for the fewest of `parts` that fail together with `fixed`; return whether all of them do.

        The parts are in order, so a search among beginnings finds the last one that is needed, and with that
        kept the one before it: as many searches as parts are needed.
        """
        turns = any(part.kind == "turn" for part in parts)
        # A whole history leaves one turn to replay: it is cheap to be sure of that.
        if not await (self._fails if turns else self._seems)(fixed | set(parts)):
            return False
        left, kept = list(parts), fixed
        while left:
            steps = await self._decisive(kept, left, receipt if kept == fixed else None)
            for count in sorted({1, len(steps)} if steps else ()):
                if await self._fails(kept | {left[step - 1] for step in steps[:count]}):
                    return True
            kept |= {left[step - 1] for step in steps}
            left = left[: min(steps, default=1) - 1]
        return await self._fails(fixed | set(parts))

    async def _decisive(
        self, kept: frozenset[Part], parts: Sequence[Part], receipt: Receipt | None
    ) -> tuple[int, ...]:
        """Return which of `parts`, numbered from 1 and the likeliest first, is the last one that is needed.

        Beginnings of `parts` without it pass more often than those with it, as forks before and after the
        decisive turn of a blame do.
        """
        files = all(part.kind == "file" for part in parts)
        largest = _FEW_FILES if files else max(1, len(parts) // 10)
        # 5 % for the case that several parts fail together and none alone; a part is tried alone from 80 %
        # on, since what is kept then has its own replays.
        search = DecisiveStep(len(parts) + 1, none_before=0.05, largest=largest, sure=0.8)
        starts = [kept.union(parts[:place]) for place in range(len(parts) + 1)]
        for step, start in enumerate(starts, 1):
            failed, replays = self._seen.get(start, (0, 0))
            search.passed[step] += replays - failed
            search.failed[step] += failed
        if receipt is not None and receipt.search.steps == search.steps and parts[0].kind == "turn":
            for step in range(1, search.steps + 1):
                search.passed[step] += receipt.search.passed[step]
                search.failed[step] += receipt.search.failed[step]
        while not search.over():
            step = search.next()
            # What is found has to be made sure of.
            if self._ended(starts[step - 1], kept, *([kept] * (_FEW - 1))):
                break
            search.add(step, passed=not await self._replay(starts[step - 1]))
        chances = search.posterior()
        if chances[0] >= search.sure:
            return ()
        order = sorted(range(1, search.steps), key=lambda step: -chances[step])
        return search.accused()[:largest] or tuple(order[:largest])

    async def _seems(self, parts: frozenset[Part]) -> bool:
        """Return whether the first replay of a candidate failed."""
        if parts not in self._seen:
            await self._replay(parts)
        return self._seen[parts][0] > 0

    async def _fails(self, parts: frozenset[Part]) -> bool:
        """Return whether a candidate fails in enough of its replays."""
        failed, replays = self._seen.get(parts, (0, 0))
        # Two that pass cannot be made up for by the others.
        while failed + _MANY - replays >= SHARE * _MANY:
            if replays >= (_FEW if failed == replays else _MANY):
                return True
            failed, replays = failed + await self._replay(parts), replays + 1
        return False

    def _size(self, parts: frozenset[Part]) -> tuple[int, int]:
        """Return what is kept of the events of the run, and of everything."""
        return self._events(parts), len(parts)

    def _ended(self, *candidates: frozenset[Part]) -> str:
        """Return why these cannot be replayed within the budget; empty if they can."""
        turns = [sum(part.kind == "turn" for part in parts) for parts in candidates]
        return self._reruns.ended(sum(self._reruns.share(self._reruns.turns[count]) for count in turns))

    async def _replay(self, parts: frozenset[Part]) -> bool:
        """Run a trial of a candidate, and return whether it failed as the run did."""
        if ended := self._ended(parts):
            raise _EndedError(ended)
        reruns = self._reruns
        reruns.report(f"{format_count(len(self._seen), 'candidate')} tried")
        scenario = self._material.scenario(reruns.scenario, parts)
        suite, models = reruns.as_suite(scenario)
        ready = prepare_suite(reruns.lab, suite, models=models)
        ask = plan_trials(suite, code="", git_sha="")[0].at(epoch=FIRST_EPOCH + len(reruns.made))
        row = await run_trial(reruns.lab, ready, ask)
        records = reruns.lab.store.records(row.run)
        cost = row.metrics.get("cost_usd")
        # Given turns are recorded like the run's own.
        calls = sum(isinstance(record.event, ModelCalled) for record in records) - len(scenario.history)
        reruns.made.append(
            Rerun(turn=1, outcome=row.outcome, reason=row.reason, run=row.run, calls=calls, cost_usd=cost)
        )
        # A replay that broke says nothing of the candidate.
        if row.outcome == "error":
            if ended := breaks(reruns.made):
                raise _EndedError(ended)
            return await self._replay(parts)
        failed = frozenset(str(score["check"]) for score in row.scores if not score["passed"])
        as_it_did = row.outcome == "fail" and _errors(reruns.lab, row.run) <= self._errors
        if as_it_did:
            # The first failure says which checks it is about, where no suite judged the run itself.
            self._labels = self._labels or reruns.failed_checks or failed
            as_it_did = self._labels <= failed
        before, replays = self._seen.get(parts, (0, 0))
        self._seen[parts] = before + as_it_did, replays + 1
        return as_it_did

    def result(self, least: frozenset[Part]) -> Shrunk:
        """Return the scenario of what is kept."""
        reruns, material = self._reruns, self._material
        failed, replays = self._seen.get(least, (0, 0))
        count: Callable[[Collection[Part], str], int] = lambda parts, kind: sum(  # noqa: E731
            part.kind == kind for part in parts
        )
        kinds = ("turn", "file", "tool", "guidance")
        scenario = material.scenario(reruns.scenario, least)
        kept = {kind: count(least, kind) for kind in kinds}
        # Files that kept turns made are no parts of their own.
        if isinstance(scenario.place, InlineFiles):
            kept["file"] = len(scenario.place.files.keys() - material.guidance.keys())
        return Shrunk(
            run=reruns.run.id,
            scenario=_draft(reruns, scenario, failed, replays),
            before={kind: count(material.parts, kind) for kind in kinds},
            kept=kept,
            failed=failed,
            replays=replays,
            whole_runs=reruns.whole_runs,
            events=len(reruns.records),
            kept_events=self._events(least),
            ended=self.ended,
        )

    def _events(self, parts: Collection[Part]) -> int:
        """Return how many events of the run, with its goal, are of these parts."""
        turns = {int(part.name) for part in parts if part.kind == "turn"}
        ends = [turn.seq for turn in self._reruns.turns] + [len(self._reruns.records) + 1]
        return 1 + sum(ends[turn] - ends[turn - 1] for turn in turns)


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
        entry["history"] = [
            {name: value for name, value in turn.definition().items() if value} for turn in scenario.history
        ]
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
