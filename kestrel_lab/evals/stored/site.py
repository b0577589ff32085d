"""A static site of stored results: all suites, the history of each, and the pages of their newest eval runs.

It needs no server and no network, so that GitHub Pages, GitLab Pages or a folder will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.sanitize import one_line, sanitize_text, shown_path
from kestrel_lab.evals.commits.history import CommitRows, History
from kestrel_lab.evals.commits.interleaved_trials import FIRST_OF_SEARCH
from kestrel_lab.evals.execution.eval_run import eval_run_of
from kestrel_lab.evals.git import Commit
from kestrel_lab.evals.reports.result_view import write_text
from kestrel_lab.evals.reports.suite_page import WEB, trials_of, write_page
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stats.intervals_and_tests import Interval
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.evals.summaries.metric_values import find_metric
from kestrel_lab.evals.summaries.result_table import broke_in, format_percent
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.models.cassettes.cassette import file_for
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.elements import safe_markup, template_environment

GENERATOR: Final = "kestrel eval site"
"""In the pages: another index.html is not overwritten."""
PAGES: Final = 10
"""Eval runs of each suite that have a page of all their trials."""
_DRAWN: Final = 40
"""Eval runs that a plot shows."""
_NAMES: Final = (
    "SELECT suite, max(created_at) AS last FROM eval_runs GROUP BY suite ORDER BY last DESC, suite"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What was written."""

    index: Path
    suites: int
    pages: int

    def __repr__(self) -> str:
        counts = f"{format_count(self.suites, 'suite')}, {format_count(self.pages, 'page')} of eval runs"
        return f"wrote {shown_path(self.index)}: {counts}"


def write_site(
    store: SessionStore,
    out: Path,
    *,
    names: Sequence[str] = (),
    files: Sequence[Suite] = (),
    pages: int = PAGES,
) -> Site:
    """Write the site of all stored suites, or of those with these names, to the folder `out`.

    `files` are suites of which the file is known: their pages say tags and expected values, too. Raises
    `UsageError` where nothing is stored, and where `out` holds another site.
    """
    store.flush()
    stored = [str(name) for name, _ in store.query(_NAMES, ())]
    wanted = [*names, *(one.name for one in files)] or stored
    for name in wanted:
        if name not in stored:
            raise UsageError(f"no trials of a suite {name!r} are stored here; {did_you_mean(name, stored)}")
    if not stored:
        raise UsageError("no suite was run here yet, so there is no site to write: kestrel eval run SUITE")
    index = out / "index.html"
    if index.exists() and GENERATOR not in index.read_text(encoding="utf-8", errors="replace"):
        raise UsageError(f"{shown_path(index)} is not from kestrel eval site: name another folder")
    known = {one.name: one for one in files}
    made = [_write_suite(store, out, name, known.get(name), pages) for name in stored if name in wanted]
    # GitHub Pages would leave out files that begin with _.
    write_text(out / ".nojekyll", "")
    _write(index, "site_index.html", suites=[shown for shown, _ in made], generator=GENERATOR)
    return Site(index=index, suites=len(made), pages=sum(count for _, count in made))


def _write_suite(
    store: SessionStore, out: Path, name: str, known: Suite | None, pages: int
) -> tuple[dict[str, Any], int]:
    """Write the pages of one suite; returns what the index shows of it, and the number of eval runs with a
    page.
    """
    runs = _eval_runs(stored_trials(store, suite=name))
    rows = [row for _, of in runs for row in of]
    suite = known if known is not None else suite_of_rows(store, name, rows)
    folder = file_for(out, name).with_suffix("")
    linked: dict[int, str] = {}
    for place, (run, of) in list(enumerate(runs))[-pages:] if pages else []:
        path = file_for(folder, run or "outside-git").with_suffix(".html")
        trials = trials_of(suite, of, store)
        write_page(path, trials, trials.index(f"Suite {name}, {_when(of)}"))
        linked[place] = path.name
    commits = tuple(
        CommitRows(commit=Commit(sha=of[-1].git_sha, subject="", at=_made(of)), rows=tuple(of))
        for _, of in runs
    )
    rates = History(suite=suite, metric="success_rate", commits=commits)
    costs = rates.of("cost_estimate")
    shown = _shown_suite(rates, costs, linked)
    _write(folder / "index.html", "site_suite.html", suite=shown, generator=GENERATOR)
    return shown | {"link": f"{folder.name}/index.html"}, len(linked)


def _eval_runs(rows: Iterable[EvalRow]) -> list[tuple[str, list[EvalRow]]]:
    """Return the eval runs, oldest first; trials that belong to none are those of their commit."""
    found: dict[str, dict[tuple[str, str, int], EvalRow]] = {}
    for row in rows:
        if row.epoch < FIRST_OF_SEARCH:
            name = eval_run_of(row) or row.git_sha
            found.setdefault(name, {})[row.scenario, row.config, row.epoch] = row
    runs = [(name, [*of.values()]) for name, of in found.items()]
    return sorted(runs, key=lambda run: _made(run[1]))


def suite_of_rows(store: SessionStore, name: str, rows: Sequence[EvalRow]) -> Suite:
    """Return a suite of which these may be the trials, where its file is not known; runs have its goals."""
    firsts = {row.scenario: row for row in reversed(rows)}
    sql = "SELECT id, goal FROM runs WHERE id IN (SELECT value FROM json_each(?))"
    goals = dict(store.query(sql, (dumps([row.run for row in firsts.values()]),)))
    return Suite(
        name=name,
        scenarios=tuple(
            Scenario(id=one, goal=goals.get(row.run, ""), family=row.family, group=row.group, checks=())
            for one, row in reversed(firsts.items())
        ),
        configs=tuple(Config(name=one) for one in dict.fromkeys(row.config for row in rows)),
    )


def _made(rows: Sequence[EvalRow]) -> float:
    return max(row.created_at for row in rows)


def _when(rows: Sequence[EvalRow]) -> str:
    return f"{datetime.fromtimestamp(_made(rows), tz=UTC):%Y-%m-%d %H:%M} UTC"


def _shown_suite(rates: History, costs: History, linked: Mapping[int, str]) -> dict[str, Any]:
    """Return what templates show of a suite, newest eval run first."""
    cost = {(config, place): interval for config, place, _, interval in costs.points}
    runs = group_values(
        (
            place,
            {
                "config": rates.labels[config],
                "colour": _colour(rates, config),
                "rate": format_percent(interval.mean, interval.low, interval.high),
                "trials": str(len(rows)),
                "broke": broke_in(rows),
                "cost": _cost_text(cost[config, place]),
            },
        )
        for config, place, rows, interval in rates.points
    )
    newest = max(runs)
    return {
        "name": sanitize_text(rates.suite.name),
        "runs": [
            {
                "when": _when(rates.commits[place].rows),
                "commit": _commit(rates.commits[place].commit.sha),
                "configs": of,
                "link": linked.get(place, ""),
            }
            for place, of in sorted(runs.items(), reverse=True)
        ],
        "newest": runs[newest],
        "when": _when(rates.commits[newest].rows),
        "steps": [one_line(line, 300) for line in rates.lines()] if len(runs) > 1 else [],
        "plots": [
            *_plot(rates, "Success rate, 95 % interval", top=1.0),
            *_plot(costs, "Cost per trial, US dollars"),
        ],
        "spark": [*_plot(rates, "", top=1.0, width=220, height=44)],
    }


def _commit(sha: str) -> str:
    """Return a commit in short, with a mark where the code was not committed."""
    plain, changed, _ = sha.partition("-dirty.")
    return (plain[:8] + ("+changes" if changed else "")) or "not in git"


def _cost_text(interval: Interval) -> str:
    return "unknown" if math.isnan(interval.mean) else f"${interval.mean:.4f}"


# Plots are drawn here, since the library for figures is an extra.

_LEFT: Final = 46
_EDGE: Final = 12
_COLOURS: Final = 6
_LABEL: Final = 34
"""Half of the label below a point."""
_APART: Final = 7
"""Between the points of two configurations, so that intervals do not hide each other."""


def _plot(
    history: History, title: str, *, top: float = 0.0, width: int = 720, height: int = 220
) -> Iterable[dict[str, Any]]:
    """Yield the data of a line per configuration over the newest eval runs; nothing without known values."""
    first = max(0, len(history.commits) - _DRAWN)
    points = [
        (config, place - first, found)
        for config, place, _, found in history.points
        if place >= first and not math.isnan(found.mean)
    ]
    most = top or max((_high(found) for _, _, found in points), default=0.0)
    if not points or not most:
        return
    small = not title
    left, bottom = (0, height - 4) if small else (_LEFT, height - 28)
    edge = 4 if small else _LABEL
    step = (width - left - 2 * edge) / max(1, len(history.commits) - first - 1)
    beside = {config: 0 if small else _APART * number for number, config in enumerate(history.labels)}

    def across(place: int, config: str = "") -> float:
        middle = max(beside.values()) / 2 if config else 0
        return round(left + edge + place * step + beside.get(config, 0) - middle, 1)

    def up(value: float) -> float:
        top_edge = 4 if small else _EDGE
        return round(bottom - (bottom - top_edge) * min(value, most) / most, 1)

    lines: dict[str, list[dict[str, Any]]] = {}
    for config, place, found in points:
        sure = not math.isnan(found.low)
        lines.setdefault(config, []).append(
            {
                "x": across(place, config),
                "y": up(found.mean),
                "low": up(max(0.0, found.low)) if sure else None,
                "high": up(_high(found)) if sure else None,
                "text": f"{_commit(history.commits[place + first].commit.sha)}: "
                f"{found.text(find_metric(history.metric, history.suite.metrics).text)}",
            }
        )
    shown = len(history.commits) - first
    every = max(1, math.ceil(shown / 8))
    yield {
        "title": title,
        "width": width,
        "height": height,
        "left": left,
        "right": width - _EDGE,
        "ticks": []
        if small
        else [{"y": up(part * most), "text": _tick(history, part * most)} for part in (0, 0.5, 1)],
        "names": []
        if small
        else [
            {
                "x": across(place),
                "y": height - 8,
                "text": _commit(history.commits[place + first].commit.sha)[:8],
            }
            for place in range(shown - 1, -1, -every)
        ],
        "lines": [
            {"label": history.labels[config], "colour": _colour(history, config), "points": of}
            for config, of in lines.items()
        ],
    }


def _colour(history: History, config: str) -> int:
    """Return the number of a configuration's colour: the last one is for all others."""
    return min([*history.labels].index(config), _COLOURS - 1)


def _high(found: Interval) -> float:
    return found.mean if math.isnan(found.high) else found.high


def _tick(history: History, value: float) -> str:
    return f"{100 * value:.0f} %" if history.metric == "success_rate" else f"{value:.2g}"


def _write(path: Path, template: str, **values: Any) -> None:
    style = (WEB / "suite_page.css").read_text(encoding="utf-8") + (WEB / "site.css").read_text(
        encoding="utf-8"
    )
    page = template_environment(WEB).get_template(template)
    write_text(path, str(page.render(style=safe_markup(style), **values)))
