"""One of every object that users hold, made by really running something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.routing_metrics import router_curve, routers_figure
from kestrel_lab import Comparison, Lab, Plan, Step, tool
from kestrel_lab.cli.commands.doctor import known_models
from kestrel_lab.core.events.plan import BranchScored
from kestrel_lab.evals.commits.bisect_result import BisectResult, TriedCommit
from kestrel_lab.evals.commits.comparison import Side
from kestrel_lab.evals.commits.history import CommitRows, History
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.git import Commit
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.timeparse.parse import parse_relative
from kestrel_lab.tools.timeparse.session_time import session_time
from kestrel_lab.views.thought_tree import plot_thoughts, thoughts_of

TRAP = "$x_1+y_2$"
"""What JupyterLab would set as a formula."""
SUITE = f"""
name: "held {TRAP}"
configs: [{{name: good, model: "scripted:right.yaml"}}, {{name: 'bad {TRAP}', model: "scripted:wrong.yaml"}}]
gates: [{{success_rate: {{at_least: 0.5}}}}]
defaults: {{tools: []}}
scenarios:
  - {{id: one, goal: 'say {TRAP}', checks: [{{answer_contains: '{TRAP}'}}]}}
  - {{id: two, goal: say yes, checks: [{{answer_contains: 'yes'}}]}}
"""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Objects by what they are called in the tests."""

    objects: dict[str, Any]


@tool(danger_level="safe", effect="pure")
def weigh(what: str) -> str:
    """Weigh $x_1+y_2$.

    Args:
        what: Whatever it is.
    """
    return what


@contextmanager
def hold(folder: Path) -> Iterator[Holdings]:
    """Run, measure and compare in `folder`, and give what comes of it."""
    turns = [
        [("write_file", {"path": "a.txt", "content": TRAP}), ("weigh", {"what": TRAP})],
        f"It is {TRAP}.",
    ]
    lab = Lab(
        home=folder / "home", model=ScriptedModel(turns, name=f"model {TRAP}"), approve="auto", tools=[weigh]
    )
    try:
        yield Holdings({**_runs(lab, folder), **_measured(lab, folder), **_remembered(lab, folder)})
    finally:
        lab.close()


def _runs(lab: Lab, folder: Path) -> dict[str, Any]:
    plan = Plan(
        steps=(
            Step(id="dig", goal=f"dig {TRAP}", produces=("hole",)),
            Step(id="fill", goal="fill", consumes=("hole",)),
        )
    )
    runs = [lab.run_sync(f"write {TRAP}", workspace=folder) for _ in range(3)]
    planned = lab.run_sync(
        "garden", plan=plan, model=ScriptedModel(lambda _: f"done {TRAP}"), workspace=folder
    )
    fork = run_blocking(lab.fork(runs[0].id, answer=f"no {TRAP}"))
    scored = [
        BranchScored(step="s", candidate=f"c{n}", parent="", score=0.5, text=f"idea {TRAP}", done=n == 1)
        for n in range(3)
    ]
    thoughts = thoughts_of(scored)
    macros = lab.macros.at(folder)
    kept = macros.accept(macros.proposals()[0].macro.name)
    return {
        "lab": lab,
        "run": runs[0],
        "planned run": planned,
        "plan": plan,
        "step": plan.steps[0],
        "plan figure": planned.report.plot_plan(),
        "runs": lab.runs(),
        "events": runs[0].to_frame(),
        "stages": runs[0].report.stages(),
        "checkpoints": lab.history.checkpoints(runs[0].id),
        "diff": lab.diff(runs[0].id, fork.id),
        "diff frame": lab.diff(runs[0].id, fork.id).frame,
        "thoughts": thoughts,
        "thoughts figure": plot_thoughts(thoughts),
        "usage": runs[0].usage,
        "status": runs[0].status,
        "limits": lab.limits,
        "toolbox": lab.registry.toolbox,
        "tool": weigh,
        "danger": weigh.danger,
        "settings": lab.settings,
        "setting": next(iter(lab.settings)),
        "models": known_models(lab),
        "health": lab.supervisor,
        "health table": lab.supervisor.states(),
        "macros": macros,
        "no macros": lab.macros.at(folder / "home"),
        "macro": kept,
        "scenario": lab.evals.scenario_from(runs[0]),
    }


def _measured(lab: Lab, folder: Path) -> dict[str, Any]:
    repository = folder / "repository"
    repository.mkdir()
    (repository / "suite.yaml").write_text(SUITE)
    right = {"say yes": "yes", ".": TRAP}
    for name, says in (("right", right), ("wrong", {".": "no"})):
        rules = "".join(f"  - {{when: '{when}', turns: ['{turn}']}}\n" for when, turn in says.items())
        (repository / f"{name}.yaml").write_text(f"rules:\n{rules}")
    suite = load_suite(repository / "suite.yaml")
    result = lab.eval_sync(suite)
    (repository / "right.yaml").write_text("rules:\n  - {when: '.', turns: ['yes']}\n")
    later = lab.eval_sync(suite)
    sides = [
        Side(name=f"{name} {TRAP}", sha=name, rows=found.rows)
        for name, found in (("before", result), ("after", later))
    ]
    comparison = Comparison(suite=suite, base=sides[0], head=sides[1])
    return {
        "suite": suite,
        "suite's scenario": suite.scenarios[0],
        "result": result,
        "trials": result.frame,
        "scores": result.scores,
        "summary": result.summary(),
        "pass at": result.pass_at(1),
        "result figure": result.plot(),
        "gates": comparison.gates(),
        "comparison": comparison,
        "changes": comparison.frame,
        "flips": comparison.flips,
        "families": result.by("family"),
        "families figure": result.plot("success_rate"),
        "stored": lab.evals.stored(suite),
        "stored frame": lab.evals.stored(suite, by="scenario").frame,
        "rescored": run_blocking(lab.evals.rescore(_stricter(repository))),
        **_along(result, later),
    }


def _stricter(repository: Path) -> Path:
    """The same suite with another check."""
    path = repository / "stricter.yaml"
    path.write_text(SUITE.replace("answer_contains: 'yes'", f"answer_contains: 'no {TRAP}'"))
    return path


def _along(before: EvalResult, after: EvalResult) -> dict[str, Any]:
    """What is told of several commits and models, of the rows of two results."""
    commits = [
        Commit(sha=f"{n}" * 40, subject=f"Commit {n} {TRAP}", at=1_700_000_000.0 + 86_400 * n)
        for n in range(7)
    ]
    rows = [(before if n < 4 else after).rows for n in range(6)]
    history = History(
        suite=before.suite,
        metric="success_rate",
        commits=(
            *(CommitRows(commit=c, rows=r) for c, r in zip(commits, rows, strict=False)),
            CommitRows(commit=commits[6], rows=(), why=TRAP),
        ),
        notes=(f"of note {TRAP}",),
    )
    tried = [
        TriedCommit(
            place=n,
            rows=() if n == 2 else rows[n],
            decided="bad" if n > 3 else "good",
            skipped=TRAP if n == 2 else "",
            worse_than_good=0.01,
            better_than_bad=1.0,
        )
        for n in (0, 2, 3, 4, 5)
    ]
    found = BisectResult(
        suite=before.suite,
        metric="success_rate",
        margin=0.05,
        alpha=0.05,
        commits=tuple(commits[:6]),
        phase="found",
        good=3,
        bad=4,
        tried=tuple(tried),
        made=20,
        reused=4,
        ended="",
    )
    marks = [float(n % 3 > 0) for n in range(60)]
    router = router_curve(f"router {TRAP}", [1 - mark for mark in marks], [1.0] * 60, marks)
    front = before.frontier("working_time")
    return {
        "history": history,
        "history frame": history.frame,
        "history summary": history.summary(),
        "steps": history.steps,
        "history figure": history.plot(),
        "bisect": found,
        "bisect frame": found.frame,
        "bisect figure": found.plot(),
        "front": front,
        "front frame": front.frame,
        "front figure": front.plot(),
        "router": router,
        "router frame": router.frame,
        "routers figure": routers_figure([router]),
    }


def _remembered(lab: Lab, folder: Path) -> dict[str, Any]:
    """Notes of a workspace, and readings of the time."""
    memory = lab.memory.at(folder)
    first = memory.remember(f"Tests are run with make {TRAP} in Makefile.", kind="procedure", tags=["tests"])
    memory.remember("Tests are run with tox in Makefile.", kind="procedure", tags=["tests"])
    now = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
    return {
        "memory": memory,
        "notes": memory.list(),
        "no notes": memory.list("tag:none"),
        "note card": memory.show(first.id),
        "note": first,
        "memory graph": memory.graph(),
        "no memory graph": lab.memory.at(folder / "home").graph(),
        "questions": memory.questions(),
        "forgotten": memory.forget("tag:none"),
        "now": session_time(now),
        "time": parse_relative("next monday at 9:00", now),
        "times": parse_relative("last week", now),
    }
