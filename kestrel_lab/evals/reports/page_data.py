"""The data of a page of results: an index of all trials for its matrix, and the details of one trial."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.sanitize import head_tail, one_line, sanitize_text
from kestrel_lab.evals.scenario_groups import count_groups
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.best_configuration import (
    FEWEST,
    best_configuration,
    cause_counts,
    causes,
)
from kestrel_lab.evals.summaries.result_table import (
    format_percent,
    label_kind,
    not_real,
    summary_table,
    with_unit,
)
from kestrel_lab.evals.summaries.streaming_summary import Reducer, reduce_rows
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.markdown import markdown_nodes
from kestrel_lab.views.rows import CallRow, NoticeRow, Row, TextRow
from kestrel_lab.views.run_view import view_of

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import CountErrors, Scenario

TEXT_CHARS: Final = 60_000
"""Of one text of a transcript."""
TRANSCRIPT_CHARS: Final = 400_000
"""Of one transcript; of a longer one the beginning and the end are kept."""
_GOAL: Final = 300
"""Characters of a goal that the filter searches; the whole is in the trial."""
_MARKUP: Final = re.compile(r"[*_`#|<>\[\]]|^\s*(?:[-+]|\d+\.) ", re.MULTILINE)
"""What Markdown makes something of; other texts are shown as they are."""
OUTCOMES: Final = ("pass", "fail", "error")


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials that a page is about, in the order of their scenarios."""

    name: str
    """Of the suite."""
    rows: Sequence[EvalRow]
    stores: Sequence[SessionStore]
    """The logs of their runs."""
    count_errors: CountErrors = "fail"
    scenarios: Mapping[str, Scenario] = field(default_factory=dict)
    """As the suite declares them; without its file their goals are read from the logs."""
    columns: Sequence[str] = ()
    """Configurations in their order; others follow them."""
    pairs: Sequence[tuple[str, ...]] = ()
    """Columns that are base and head of a comparison."""

    def index(self, title: str, **more: Json) -> dict[str, Any]:
        """Return what the page shows before anything is opened; `more` takes the place of what is derived.

        `trials` are lists of scenario, column, epoch, outcome, run, reason and causes, of which the first
        two and the last two are places in `scenarios`, `columns`, `reasons` and `causes`.
        """
        reducer = reduce_rows(self.rows, self.count_errors)
        order = {name: place for place, name in enumerate(self.columns)}
        summaries = sorted(reducer.summaries(), key=lambda one: order.get(one["config"], len(order)))
        goals = self._goals()
        scenarios = {row.scenario: self._scenario(row, goals) for row in self.rows}
        columns = [
            {
                "label": sanitize_text(label_kind(one["config"], one["model_kind"])),
                "trials": one["trials"],
                **_interval(one["success_rate"], one["low"], one["high"], one["trials"]),
            }
            for one in summaries
        ]
        said = _Said([*scenarios], [one["config"] for one in summaries])
        trials = [said.trial(row) for row in self.rows]
        weights = {name: one.weight for name, one in self.scenarios.items()}
        # Of a comparison its head: what fails now.
        heads = {pair[1] for pair in self.pairs}
        asked = [row for row in self.rows if not heads or row.config in heads]
        counted = cause_counts(asked)
        return {
            "title": sanitize_text(title),
            "verdict": sanitize_text(best_configuration(self.rows, summaries, self.count_errors, weights)),
            "about": self._about(len(columns)),
            "warnings": [*map(sanitize_text, not_real(summaries))],
            "notes": [],
            "not_passed": sum(row.outcome != "pass" for row in asked),
            "why_of": f" of {sanitize_text(', '.join(sorted(heads)))}" if heads else "",
            "why": [[sanitize_text(cause), count] for cause, count in counted[:6]],
            "summary": shown_table(summary_table(summaries)),
            "plots": [
                rate_plot([*columns, *_corrected(summaries)]),
                *_scatters(summaries),
                *_family_plots(reducer),
            ],
            "tables": [],
            "columns": columns,
            "pairs": [
                [said.columns[one] for one in pair]
                for pair in self.pairs
                if all(one in said.columns for one in pair)
            ],
            "scenarios": [*scenarios.values()],
            "reasons": [*said.reasons],
            "causes": [*said.causes],
            "trials": trials,
            "rates": _cell_rates(reducer, said),
            "several": len({row.epoch for row in self.rows}) > 1,
        } | more

    def detail(self, row: EvalRow) -> dict[str, Any]:
        """Return a trial as its reader sees it: goal, expected value, answer, verdicts and transcript."""
        scenario = self.scenarios.get(row.scenario)
        records = next((found for store in self.stores if (found := store.records(row.run))), [])
        view = view_of(records) if records else None
        goal = scenario.goal if scenario is not None else (view.head.goal if view is not None else "")
        expected = None if scenario is None else scenario.expected
        answer = str(row.result.get("answer", ""))
        drawn = [] if view is None else [shown for one in view.rows.values() if (shown := _row(one))]
        return {
            "goal": sanitize_text(head_tail(goal, TEXT_CHARS)[0]),
            "turns": [] if scenario is None else [*map(sanitize_text, scenario.turns)],
            "expected": "" if expected is None else sanitize_text(_plain(expected)),
            "answer": sanitize_text(answer),
            **_marked_up(answer),
            "reason": sanitize_text(row.reason),
            "checks": [
                [
                    sanitize_text(score["check"]),
                    bool(score["passed"]),
                    sanitize_text(str(score["reason"])),
                    bool(score.get("kept")),
                ]
                for score in row.scores
            ],
            "model": sanitize_text(label_kind(str(row.result["model"]), row.model_kind)),
            "commit": row.git_sha,
            "used": "" if view is None else sanitize_text(view.head.usage),
            "transcript": _bounded(drawn, row.run),
            "stored": view is not None,
        }

    def _scenario(self, row: EvalRow, goals: Mapping[str, str]) -> dict[str, Json]:
        known = self.scenarios.get(row.scenario)
        goal = known.goal if known is not None else goals.get(row.run, "")
        return {
            "id": sanitize_text(row.scenario),
            "family": sanitize_text(row.family),
            "tags": [] if known is None else [*map(sanitize_text, known.tags)],
            "goal": one_line(goal, _GOAL),
        }

    def _goals(self) -> dict[str, str]:
        """Return the goals of the runs, as far as the suite's file does not say them."""
        runs = dumps([row.run for row in self.rows if row.scenario not in self.scenarios])
        sql = "SELECT id, substr(goal, 1, ?) FROM runs WHERE id IN (SELECT value FROM json_each(?))"
        return (
            {}
            if runs == "[]"
            else {run: goal for store in self.stores for run, goal in store.query(sql, (_GOAL, runs))}
        )

    def _about(self, columns: int) -> str:
        epochs = len({row.epoch for row in self.rows})
        commits = sorted({row.git_sha[:10] for row in self.rows if row.git_sha})
        sizes = [
            count_groups((row.scenario for row in self.rows), (row.group for row in self.rows)),
            format_count(columns - len(self.pairs), "configuration"),
            *(["2 sides"] if self.pairs else []),
            format_count(epochs, "epoch"),
        ]
        counted = "as failed" if self.count_errors == "fail" else "in no rate"
        return (
            f"{format_count(len(self.rows), 'trial')}: {' × '.join(sizes)}. "
            f"Commit: {', '.join(commits) or 'not in git'}. A trial that broke counts {counted}."
        )


class _Said:
    """Places of names and texts, each of which is in the data once."""

    def __init__(self, scenarios: Sequence[str], columns: Sequence[str]) -> None:
        self.scenarios = {name: place for place, name in enumerate(scenarios)}
        self.columns = {name: place for place, name in enumerate(columns)}
        self.reasons: dict[str, int] = {}
        self.causes: dict[str, int] = {}

    def trial(self, row: EvalRow) -> list[Json]:
        reason = one_line(row.reason, 240)
        return [
            self.scenarios[row.scenario],
            self.columns[row.config],
            row.epoch,
            OUTCOMES.index(row.outcome),
            row.run,
            self.reasons.setdefault(reason, len(self.reasons)),
            [self.causes.setdefault(sanitize_text(one), len(self.causes)) for one in causes(row)],
        ]


def _interval(mean: float, low: float, high: float, n: int) -> dict[str, Json]:
    """Return a rate as the page takes it, in numbers and in words; of few trials without an interval."""
    # The interval of very few trials is as wide as the plot.
    enough = n >= FEWEST and not math.isnan(low)
    return {
        "mean": None if math.isnan(mean) else round(mean, 6),
        "low": round(low, 6) if enough else None,
        "high": round(high, 6) if enough else None,
        "text": format_percent(mean, low if enough else math.nan, high),
    }


def _cell_rates(reducer: Reducer, said: _Said) -> list[list[Json]]:
    """Return scenario, column and rate of each cell that has enough trials for an interval."""
    return [
        [said.scenarios[scenario], said.columns[config], format_percent(rate.mean, rate.low, rate.high)]
        for (config, scenario), rate in reducer.cell_rates().items()
        if rate.n >= FEWEST
    ]


def shown_table(table: tuple[Sequence[str], Iterable[Sequence[object]]]) -> list[Json]:
    """Return headings and rows of texts that are harmless to show."""
    headings, rows = table
    return [[*map(sanitize_text, headings)], [[sanitize_text(str(cell)) for cell in row] for row in rows]]


def _corrected(summaries: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Json]]:
    """Yield the rows of a plot of the rates that people's labels correct, where there are enough labels."""
    for one in summaries:
        if not math.isnan(one.get("corrected_rate", math.nan)):
            label = (
                f"{label_kind(one['config'], one['model_kind'])}, corrected by "
                f"{format_count(one['labels'], 'label')}"
            )
            ends = (one[f"corrected_rate{end}"] for end in ("", "_low", "_high"))
            yield interval_row(label, *ends)


def rate_plot(columns: Iterable[Mapping[str, Json]]) -> dict[str, Any]:
    """Return a plot of success rates with their intervals."""
    rows = [{**one, "tone": ""} for one in columns if one["mean"] is not None]
    return {"kind": "intervals", "title": "Success rate, 95 % interval", "unit": "%", "rows": rows}


def interval_row(label: str, mean: float, low: float, high: float, tone: str = "") -> dict[str, Json]:
    """Return a row of a plot of intervals; without one where it is not known."""
    return {"label": sanitize_text(label), **_interval(mean, low, high, FEWEST), "tone": tone}


def _scatters(summaries: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield plots of success against cost and time, where something was spent and it is known."""
    for metric, title in (("cost_estimate", "cost per trial"), ("working_time", "working time per trial")):
        points = [
            {
                "label": sanitize_text(label_kind(one["config"], one["model_kind"])),
                "x": one[metric],
                "y": one["success_rate"],
                "best": bool(one["pareto"]),
            }
            for one in summaries
            if not (math.isnan(one[metric]) or math.isnan(one["success_rate"]))
            and (metric != "cost_estimate" or one["cost_known"])
        ]
        if any(point["x"] > 0 for point in points):
            yield {
                "kind": "scatter",
                "title": f"Success rate and {title}",
                "x": with_unit(metric),
                "points": points,
                "left_out": len(summaries) - len(points),
            }


def _family_plots(reducer: Reducer) -> Iterable[dict[str, Any]]:
    """Yield a plot of the success rate, and of each `recall@k`, by family, where there are several."""
    records = reducer.grouped("family")
    if len({record["family"] for record in records}) < 2:
        return
    recalls = [name for name in records[0] if name.startswith("recall@") and f"{name}_low" in records[0]]
    for metric in ("success_rate", *recalls):
        yield {
            "kind": "intervals",
            "title": f"{'Success rate' if metric == 'success_rate' else metric} by family, 95 % interval",
            "unit": "%",
            "rows": [
                interval_row(
                    f"{one['family'] or 'no family'} · {label_kind(one['config'], one['model_kind'])}",
                    *(one[f"{metric}{end}"] for end in ("", "_low", "_high")),
                )
                for one in sorted(records, key=lambda one: str(one["family"]))
                if not math.isnan(one[metric])
            ],
        }


def _marked_up(text: str) -> dict[str, Json]:
    """Return a text as nodes of Markdown for the page, where it has any."""
    return {"nodes": markdown_nodes(text)} if _MARKUP.search(text) else {}


def _plain(value: object) -> str:
    return value if isinstance(value, str) else dumps(value)


def _row(row: Row) -> dict[str, Json] | None:
    """Return a row of a transcript without what is empty; `None` for one that says nothing."""
    match row:
        case TextRow():
            texts = {"thinking": row.thinking, "text": row.text, "note": row.note}
            shown: dict[str, Json] = {"k": "answer" if row.role == "answer" else "text", "state": row.state}
        case CallRow():
            texts = {"text": row.summary, "result": row.result, "diff": row.diff, "note": row.note}
            args: Json = [[name, head_tail(text, TEXT_CHARS)[0]] for name, text in row.args]
            shown = {"k": "call", "state": row.state, "tool": row.tool, "took": row.took, "args": args}
        case NoticeRow():
            texts = {"text": "\n".join([row.text, *row.items])}
            shown = {"k": "notice", "state": row.level}
        case _:
            texts, shown = {"text": f"Stage {row.stage}"}, {"k": "notice", "state": row.state}
    if shown["k"] == "answer":
        shown |= _marked_up(head_tail(texts["text"], TEXT_CHARS)[0])
    kept = {name: head_tail(text, TEXT_CHARS)[0] for name, text in texts.items() if text}
    return {**shown, **kept} if kept or row.kind == "call" else None


def _bounded(rows: list[dict[str, Json]], run: str) -> list[dict[str, Json]]:
    """Return the rows; of a transcript that is too long those of its beginning and its end, and how many are
    missing.
    """
    sizes = [len(dumps(row)) for row in rows]
    if sum(sizes) <= TRANSCRIPT_CHARS:
        return rows
    first, last, room = 0, len(rows), TRANSCRIPT_CHARS
    while first < last:
        # Two of three places go to the beginning, as in shortened texts.
        place = last - 1 if (first + len(rows) - last) % 3 == 2 else first
        room -= sizes[place]
        if room < 0:
            break
        first, last = (first, last - 1) if place == last - 1 and place != first else (first + 1, last)
    missing = f"… {format_count(last - first, 'row')} left out; all of them: kestrel show {run}"
    return [*rows[:first], {"k": "notice", "state": "", "text": missing}, *rows[last:]]
