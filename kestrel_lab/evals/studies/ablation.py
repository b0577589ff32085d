"""Ablation of a guidance file: which of its paragraphs help an agent, measured by trials with some of them
and trials with the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.evals.execution.prepare import PreparedSuite, prepare_suite
from kestrel_lab.evals.execution.progress import EvalProgress
from kestrel_lab.evals.execution.runner import TrialsToRun, asks_for, run_trials, start_servers
from kestrel_lab.evals.execution.trial import TrialRequest
from kestrel_lab.evals.git import code_version
from kestrel_lab.evals.guidance import Guidance, read_guidance
from kestrel_lab.evals.options import AblationOptions, Selection, take_options
from kestrel_lab.evals.scenario_groups import with_groups
from kestrel_lab.evals.stats.factorial_pairs import Subset, assign_pairs, fewest_pairs
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.studies.ablation_result import Ablation, PairOfTrials
from kestrel_lab.evals.studies.guidance_parts import DividedFile, split_guidance
from kestrel_lab.evals.suite import MOST_EPOCHS, Config, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.streaming_summary import known_cost
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_count

_LEAST_STEP: Final = 2
"""Pairs that are begun together, at least, where money is the budget."""


@takes_options(AblationOptions, Selection)
async def ablate_guidance(
    lab: Services,
    suite: str | Path | Suite,
    file: str,
    *,
    reporter: Reporter | None = None,
    **options: Any,
) -> Ablation:
    """Measure what each part of a guidance file does; see `Arms.ablate`."""
    asked = take_options(AblationOptions, options)
    loaded = (suite if isinstance(suite, Suite) else load_suite(suite)).select(**options)
    if len(loaded.configs) > 1:
        names = ", ".join(config.name for config in loaded.configs)
        raise UsageError(
            f"an ablation is about one configuration, and suite {loaded.name!r} has several: choose "
            f"one of {names}"
        )
    text, others = _guidance(loaded, file, asked.ref)
    try:
        divided = split_guidance(text, asked.unit)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    most = _most_pairs(loaded, len(divided.parts), asked.budget, asked.cost)
    arms = _Arms(suite=loaded, file=file, divided=divided, others=others)
    seed = content_key(file, text, asked.unit)
    dealt = assign_pairs(len(divided.parts), [scenario.id for scenario in loaded.scenarios], most, seed=seed)
    await start_servers(lab, loaded)
    whole = arms.suite_of([arms.config((True,) * len(divided.parts))])
    trials = _Trials(
        lab=lab,
        ready=prepare_suite(lab, whole),
        asks=await _pair_asks(lab, arms, dealt),
        fewest=fewest_pairs(len(divided.parts)),
        cost=asked.cost,
        stored=_stored_by_key(lab, whole, resume=asked.resume),
    )
    ended = await trials.run(reporter)
    return Ablation(
        suite=whole,
        file=file,
        unit=asked.unit,
        divided=divided,
        pairs=tuple(
            PairOfTrials(parts=subset, first=first, second=second)
            for (_, subset), (one, other) in zip(dealt, trials.asks, strict=True)
            if (first := trials.rows.get(one.identity.key))
            and (second := trials.rows.get(other.identity.key))
        ),
        margin=asked.margin,
        reused=trials.reused,
        ended=ended,
        store=lab.store,
    )


def _guidance(suite: Suite, file: str, ref: str) -> tuple[str, dict[str, str]]:
    """Return the text of the file and the other guidance of the suite's configuration."""
    config, top = suite.configs[0], suite.root or (suite.path.parent if suite.path else Path.cwd())
    given = dict(config.guidance.files) if config.guidance is not None else {}
    if file in given and not ref:
        return given.pop(file), given
    text = read_guidance(top, {file: file}, ref).files[file]
    given.pop(file, None)
    return text, given


def _most_pairs(suite: Suite, parts: int, budget: int | None, cost: float | None) -> int:
    fewest = fewest_pairs(parts)
    if budget is None and cost is None:
        points = 100 * 5.6 / math.sqrt(400)
        raise UsageError(
            f"give a budget, in trials or US dollars: {format_count(parts, 'part')} take "
            f"{format_count(2 * fewest, 'trial')} at least; "
            f"400 find effects from about {points:.0f} points on"
        )
    if cost is not None and not cost > 0:
        raise UsageError(f"cost is an amount of US dollars above 0, not {cost}")
    # A pair takes two trials.
    if budget is not None and budget // 2 < fewest:
        raise UsageError(
            f"{budget} trials are too few to tell {format_count(parts, 'part')} apart: it takes "
            f"{2 * fewest}, or "
            "larger parts (unit section)"
        )
    most = MOST_EPOCHS * len(suite.scenarios)
    if budget is not None and budget // 2 > most:
        raise UsageError(
            f"{budget:,} trials are more than {2 * MOST_EPOCHS:,} of each scenario: add scenarios, "
            "they tell more than repeats do"
        )
    return most if budget is None else budget // 2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Arms:
    """The configurations of an ablation: each has some parts of the file."""

    suite: Suite
    file: str
    divided: DividedFile
    others: dict[str, str]

    def config(self, chosen: Subset) -> Config:
        """Return the suite's configuration with these parts."""
        text, (given, *_) = self.divided.text(chosen), self.suite.configs
        files = {**self.others, **({self.file: text} if text.strip() else {})}
        return given.model_copy(
            update={
                "name": f"{given.name} · {self.file} {_ranges(chosen)}",
                "guidance": Guidance(files=files),
            }
        )

    def suite_of(self, configs: Iterable[Config]) -> Suite:
        """Return the suite with these configurations, under a name of its own: its trials are no trials of
        the suite.
        """
        return self.suite.model_copy(
            update={
                "name": f"{self.suite.name}?ablate={self.file}",
                "configs": tuple(configs),
                "epochs": 1,
                "gates": (),
            }
        )


def _ranges(chosen: Subset) -> str:
    """Return the numbers of parts as people write them: `1 3-5`."""
    if all(chosen) or not any(chosen):
        return "all" if all(chosen) else "none"
    numbered = groupby(enumerate(chosen, 1), key=lambda item: item[1])
    runs = [[number for number, _ in group] for inside, group in numbered if inside]
    return " ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


async def _pair_asks(
    lab: Services, arms: _Arms, dealt: Sequence[tuple[str, Subset]]
) -> list[tuple[TrialRequest, TrialRequest]]:
    """Return both trials of each pair; pairs of one scenario are its epochs."""
    code = str(await code_version(arms.suite.root, but=lab.home.absolute()))
    configs = {subset: arms.config(subset) for _, one in dealt for subset in (one, _complement(one))}
    scenarios = {scenario.id: scenario for scenario in arms.suite.scenarios}
    epochs: Counter[str] = Counter()
    wanted = []
    for name, subset in dealt:
        epochs[name] += 1
        wanted += [(scenarios[name], configs[one], epochs[name]) for one in (subset, _complement(subset))]
    asks = asks_for(arms.suite_of(configs.values()), wanted, code=code, git_sha=code)
    # `wanted` has the two trials of a pair one after the other.
    return list(zip(asks[::2], asks[1::2], strict=True))


def _complement(subset: Subset) -> Subset:
    return tuple(not one for one in subset)


def _stored_by_key(lab: Services, suite: Suite, *, resume: bool) -> dict[str, EvalRow]:
    """Return the stored trials that did not break, by key; those outside of git only where that is asked for,
    nothing tells their code apart.
    """
    rows = with_groups(stored_trials(lab.store, suite=suite.name), suite)
    return {row.key: row for row in rows if row.outcome != "error" and (row.git_sha or resume)}


@dataclass(kw_only=True, slots=True)
class _Trials:
    lab: Services
    ready: PreparedSuite
    asks: list[tuple[TrialRequest, TrialRequest]]
    fewest: int
    cost: float | None
    stored: dict[str, EvalRow]
    rows: dict[str, EvalRow] = field(default_factory=dict)
    reused: int = 0

    async def run(self, reporter: Reporter | None) -> str:
        """Make all pairs, or as many as their cost allows; returns what ended that before all were made."""
        if self.cost is None:
            found = [row for pair in self.asks for row in self._found(pair)]
            progress = self._progress(reporter, 2 * len(self.asks), found)
            async with progress.ticking():
                await self._make(self.asks, progress)
            return ""
        done, step = 0, max(_LEAST_STEP, self.ready.suite.concurrency // 2)
        progress = self._progress(reporter, 2 * self.fewest, [])
        async with progress.ticking():
            while done < len(self.asks):
                await self._make(self.asks[done : done + step], progress)
                done = min(done + step, len(self.asks))
                spent = self._spent()
                # The small addition keeps rounding from taking the last pair away.
                affordable = int((self.cost - spent) / (spent / done) + 1e-6)
                progress.total = 2 * min(len(self.asks), done + max(affordable, 0))
                if affordable < 1:
                    return (
                        f"${spent:.2f} of ${self.cost:.2f} are spent and a pair of trials takes "
                        f"${spent / done:.2g}"
                    )
                # Half of what is affordable at most, so that dearer pairs are noticed before the money is
                # gone.
                step = min(affordable, max(_LEAST_STEP, self.ready.suite.concurrency // 2, affordable // 2))
        return ""

    def _progress(self, reporter: Reporter | None, total: int, found: Sequence[EvalRow]) -> EvalProgress:
        # A board of trials would have hundreds of columns: the reporter is called for the numbers alone.
        shown = None if reporter is None else partial(reporter)
        return EvalProgress(shown, total, found, supervisor=self.lab.supervisor)

    async def _make(self, pairs: Sequence[tuple[TrialRequest, TrialRequest]], progress: EvalProgress) -> None:
        for pair in pairs:
            found = self._found(pair)
            self.rows |= {row.key: row for row in found}
            self.reused += len(found)
        todo = [ask for pair in pairs for ask in pair if ask.identity.key not in self.rows]
        if not todo:
            return
        configs = {ask.config.name: ask.config for ask in todo}
        ready, (name, model) = self.ready, *self.ready.models.items()
        ready = replace(
            ready,
            suite=ready.suite.model_copy(update={"configs": tuple(configs.values())}),
            models=dict.fromkeys(configs, model),
            plans=dict.fromkeys(configs, ready.plans[name]),
            config_tools={one: ready.config_tools[name] for one in configs if name in ready.config_tools},
        )
        work = TrialsToRun(lab=self.lab, ready=ready, asks=todo, on_row=progress.count, progress=progress)
        made = await run_trials(work)
        self.rows |= {row.key: row for row in made}

    def _found(self, pair: tuple[TrialRequest, TrialRequest]) -> list[EvalRow]:
        return [self.stored[ask.identity.key] for ask in pair if ask.identity.key in self.stored]

    def _spent(self) -> float:
        """Return the US dollars that the trials cost, stored ones included; raises `UsageError` where that is
        not known or nothing.
        """
        spent = known_cost(self.rows.values())
        if not spent:
            raise UsageError("these trials cost nothing, so a cost bounds nothing: give a budget of trials")
        return spent
