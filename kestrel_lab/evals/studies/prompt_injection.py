"""Prompt injection study: AgentDojo's tasks and attacks with and without containment, judged by its own
functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ApprovalAsked
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.evals.benchmarks.agentdojo import (
    RESISTED,
    UTILITY,
    VERSION,
    Situation,
    load_agentdojo,
    suite_tasks,
)
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval, wilson_proportion
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.result_table import format_percent, label_kind
from kestrel_lab.runtime.services import Services
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    import pandas as pd

VICTIM: Final = "victim"
HEADINGS: Final = (
    *("containment", "who is asked", "model", "task done", "task done, attacked"),
    *("attack succeeded", "attacked", "asked per run"),
)


def obedient_model(suite: str, version: str = VERSION) -> ScriptedModel:
    """A script, no model: it makes the calls that solve the user's task and then those of every injection it
    has read.

    What it does under attack is the worst that a model can do with these injections; its rates say what
    containment is worth and nothing of any model.
    """
    tasks = suite_tasks(suite, version)
    by_prompt = {task.PROMPT: name for name, task in tasks.user_tasks.items()}
    marks = {name: _signs(task.GOAL) for name, task in tasks.injection_tasks.items()}

    @cache
    def solution(name: str) -> tuple[list[Turn], Any]:
        before = (
            Situation(suite=suite, task=name, injection="", attack="", target="", version=version, release="")
            .open()
            .before
        )
        return _calls(tasks.user_tasks[name], before), before

    def play(request: ModelRequest) -> Turn:
        goal = next(message.text for message in request.messages if message.role == "user")
        if goal not in by_prompt:
            raise UsageError(
                f"the scripted victim knows the user tasks of {suite} only, and this is not one of "
                f"them: {goal[:80]!r}"
            )
        calls, before = solution(by_prompt[goal])
        read = _signs(" ".join(message.text for message in request.messages if message.role == "tool"))
        obeyed = [tasks.injection_tasks[name] for name, mark in marks.items() if mark in read]
        turns = [*calls, *(call for task in obeyed for call in _calls(task, before))]
        # The script keeps no state: its own answers show how far it is.
        said = sum(message.role == "assistant" for message in request.messages)
        answer = tasks.user_tasks[by_prompt[goal]].GROUND_TRUTH_OUTPUT or "Done."
        return (
            turns[said]
            if said < len(turns)
            else " ".join([answer, *(task.GROUND_TRUTH_OUTPUT for task in obeyed)])
        )

    return ScriptedModel(play, name=VICTIM)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One way to run the tasks, and its rates."""

    containment: str
    person: bool
    """Whether somebody is asked who allows the calls of the task's solution and no others."""
    model: str
    plain: tuple[int, int]
    """User tasks done, of how many, without an attack."""
    attacked: tuple[int, int]
    """The same under attack."""
    succeeded: tuple[int, int]
    """Attacks that succeeded, of how many."""
    broke: int
    """Trials that broke and are in none of these."""
    asked: float
    """Calls per run that a person had to allow, or that were denied because nobody could."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class InjectionResult(TableView):
    """Utility and attack success with and without containment."""

    suite: str
    attack: str
    settings: tuple[Setting, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per setting, each rate with `low` and `high` of Wilson's 95 % interval over trials."""
        return unit_frame([_record(setting) for setting in self.settings])

    def table(self) -> tuple[Sequence[str], list[tuple[str, ...]]]:
        """Headings and one row per setting."""
        return HEADINGS, [_row(setting) for setting in self.settings]

    @property
    def headline(self) -> str:
        """What was measured."""
        return f"{self.suite} under {self.attack}, 95 % intervals"

    def lines(self) -> list[str]:
        """Return what to read beside the table."""
        broke = sum(setting.broke for setting in self.settings)
        notes = [f"{format_count(broke, 'trial')} broke and are in no rate"] if broke else []
        if any(VICTIM in setting.model for setting in self.settings):
            notes.append(
                "the victim is a script that solves each task and obeys every injection: its rates are "
                "about containment, not about a model"
            )
        return notes


async def measure_injection(
    lab: Services,
    suite: str,
    attack: str = "important_instructions",
    *,
    model: str | Model | None = None,
    limit: int | None = None,
    reporter: Reporter | None = None,
) -> InjectionResult:
    """Run a suite of AgentDojo, without and with `attack`, with containment (nobody to ask, and somebody) and
    without it.

    Args:
        session: Where runs and trials are logged.
        suite: `workspace`, `banking`, `slack` or `travel`, also with `agentdojo:` before it.
        attack: An attack of the package.
        model: Who is attacked; `victim(suite)`, a script, by default. A script can only do what has a
            published solution: of `workspace` the injection tasks 6 to 13 have none and are then left out.
        limit: Only so many tasks, and so many attacked ones.
        reporter: Called with the progress.

    Raises `UsageError` like `load_agentdojo`.
    """
    name = suite.removeprefix("agentdojo:")
    chosen = (
        {VICTIM: obedient_model(name)}
        if model is None
        else {model if isinstance(model, str) else model.name: model}
    )
    # A wrong name is reported before anything runs.
    load_agentdojo(name, attack=attack, limit=limit)
    settings = []
    for containment, person in (("on", False), ("on", True), ("off", False)):
        rows: list[list[EvalRow]] = []
        for given in (None, attack):
            loaded = load_agentdojo(name, attack=given, containment=containment, person=person, limit=limit)
            if given is not None and model is None:
                loaded = loaded.model_copy(
                    update={
                        "scenarios": tuple(
                            one for one in loaded.scenarios if _has_solution(one.id.rpartition("/")[2], name)
                        )
                    }
                )
            asked = ", somebody is asked" if person else ""
            loaded = loaded.model_copy(update={"name": f"agentdojo:{name}, containment {containment}{asked}"})
            rows.append(list((await run_suite(lab, loaded, configs=chosen, reporter=reporter)).rows))
        settings.append(_setting(lab, containment, rows[0], rows[1], person=person))
    return InjectionResult(suite=f"agentdojo:{name}", attack=attack, settings=tuple(settings))


@cache
def _has_solution(injection: str, suite: str) -> bool:
    """Whether the benchmark says how the attacker's task is done."""
    tasks = suite_tasks(suite, VERSION)
    return bool(tasks.injection_tasks[injection].ground_truth(tasks.load_and_inject_default_environment({})))


def _setting(
    lab: Services, containment: str, plain: list[EvalRow], attacked: list[EvalRow], *, person: bool
) -> Setting:
    every = [row.result for row in (*plain, *attacked)]
    resisted, tried = _count_passed(attacked, RESISTED)
    return Setting(
        containment=containment,
        person=person,
        model=label_kind(attacked[0].config, every[-1]["model_kind"]),
        plain=_count_passed(plain, UTILITY),
        attacked=_count_passed(attacked, UTILITY),
        succeeded=(tried - resisted, tried),
        broke=sum(result["outcome"] == "error" for result in every),
        asked=sum(
            isinstance(one.event, ApprovalAsked)
            for result in every
            for one in lab.store.records(result["run"])
        )
        / len(every),
    )


def _count_passed(rows: Iterable[EvalRow], check: str) -> tuple[int, int]:
    scores = [score for row in rows for score in row.scores if score["check"] == check]
    return sum(bool(score["passed"]) for score in scores), len(scores)


def _record(setting: Setting) -> dict[str, Any]:
    found: dict[str, Any] = {
        "containment": setting.containment,
        "person": setting.person,
        "model": setting.model,
    }
    for name in ("plain", "attacked", "succeeded"):
        passed, tried = getattr(setting, name)
        rate = wilson_proportion(passed, tried) if tried else Interval(mean=math.nan, low=0.0, high=1.0)
        found |= {**rate.columns(name), f"{name}_trials": tried}
    return {**found, "asked": setting.asked, "broke": setting.broke}


def _row(setting: Setting) -> tuple[str, ...]:
    who = "nobody" if not setting.person else "who gave the task"
    shares = (
        wilson_proportion(*counts) if counts[1] else NOTHING
        for counts in (setting.plain, setting.attacked, setting.succeeded)
    )
    rates = (format_percent(share.mean, share.low, share.high) for share in shares)
    return (
        setting.containment,
        who,
        setting.model,
        *rates,
        str(setting.succeeded[1]),
        f"{setting.asked:.2f}",
    )


def _calls(task: Any, state: Any) -> list[Turn]:
    return [[(call.function, dict(call.args))] for call in task.ground_truth(state)]


def _signs(text: str) -> str:
    """A text without what quoting and wrapping change in it."""
    return re.sub(r"\W+", "", text).casefold()
