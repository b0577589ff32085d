"""Gates decided with intervals: a bound holds or is violated only where that is shown with 95 %
confidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from kestrel_lab.core.sanitize import shown_path
from kestrel_lab.evals.gate_bounds import SUCCESS, FailOn, Gate, format_metric, is_share
from kestrel_lab.evals.reports.gate_needs import undecided_change, undecided_reason
from kestrel_lab.evals.reports.junit import Case, Group, Outcome
from kestrel_lab.evals.reports.markdown import code_span, join_blocks, markdown_table, plain_prose
from kestrel_lab.evals.scanners.scanner import PREFIX as FOUND
from kestrel_lab.evals.scenario_groups import with_groups
from kestrel_lab.evals.stats.difference import BY_CONSTRUCTION, Difference
from kestrel_lab.evals.stats.intervals_and_tests import (
    ALPHA,
    NOTHING,
    Interval,
    group_by_cluster,
    share_of,
)
from kestrel_lab.evals.stats.label_correction import ENOUGH_LABELS, corrected_rate
from kestrel_lab.evals.stats.skewed_means import amount_of
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.evals.summaries.corrected_rates import enough_labels, is_judged, sample_of_records
from kestrel_lab.evals.summaries.result_table import (
    label_kind,
    record_units,
    success_interval,
    trial_record,
)
from kestrel_lab.evals.summaries.streaming_summary import broken_bounds
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GateVerdict = Literal["ok", "no base", "uncertain", "regression", "inconclusive", "broken", "unrecorded"]
"""`no base`: there is no earlier commit to compare with. `uncertain`: these trials do not tell whether there
is a change, and nothing was asked to be shown. `inconclusive`: a bound was to be shown, and is not.
`unrecorded`: a replay asked for what was never recorded.
"""
EXIT_CODES: Final[dict[GateVerdict, int]] = {
    "ok": 0,
    "no base": 0,
    "uncertain": 0,
    "regression": 1,
    "inconclusive": 2,
    "broken": 3,
    "unrecorded": 3,
}
HEADINGS: Final = ("gate", "configuration", "value (95 %)", "trials", "verdict", "why")
# A replay that lacks a recording did not try what the others try, so it says nothing of any bound.
_BY_WEIGHT: Final[tuple[GateVerdict, ...]] = (
    "unrecorded",
    "regression",
    "broken",
    "inconclusive",
    "uncertain",
)
# A bound that is not shown ends with exit code 2; as a skipped case a server would show it in green.
_OUTCOMES: Final[dict[GateVerdict, Outcome]] = {
    "ok": "passed",
    "no base": "skipped",
    "uncertain": "skipped",
    "regression": "failure",
    "inconclusive": "failure",
    "broken": "error",
    "unrecorded": "error",
}
_CHANGE: Final = f"{SUCCESS}: change"
"""Begins the decision about a change."""
_CONCERNS: Final = 3
"""Decisions that the first lines of a comment have."""
_CONCERN_WORDS: Final[dict[GateVerdict, str]] = {
    "regression": "Violated:",
    "broken": "Broken:",
    "unrecorded": "Not recorded:",
}
_WHY: Final = 600
"""Characters of a reason in Markdown."""
_MISSES: Final = 3
"""Calls without a recording that are named."""


def gravest(verdicts: Iterable[GateVerdict]) -> GateVerdict:
    """Return the gravest verdict; `ok` where there is none."""
    present = set(verdicts)
    return next((verdict for verdict in _BY_WEIGHT if verdict in present), "ok")


def fails(decision: Decision, fail_on: FailOn) -> bool:
    """Return whether a decision ends with another exit code than 0, see `FailOn`."""
    if EXIT_CODES[decision.verdict]:
        return True
    if decision.verdict == "uncertain":
        return fail_on != "worse"
    return fail_on == "any" and decision.changed


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The verdict on one gate for one configuration."""

    gate: str
    """The gate in words."""
    metric: str
    config: str
    """The configuration, with the kind of model where no real one answered."""
    interval: Interval
    trials: int
    verdict: GateVerdict
    why: str = ""
    bound: float = math.nan
    changed: bool = False
    """Whether it is about a rate that is another one than before, however sure that is."""

    def cells(self) -> list[str]:
        """A row under `HEADINGS`."""
        value = self.interval.text(partial(format_metric, self.metric))
        return [self.gate, self.config, value, str(self.trials), self.verdict, self.why]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class GateReport(PartsView):
    """All gates of a suite, decided."""

    suite: str
    decisions: tuple[Decision, ...]
    notes: tuple[str, ...] = ()
    """How the trials were run."""
    looks: tuple[tuple[int, tuple[Decision, ...]], ...] = ()
    """Where trials were made in turns: after how many of each configuration what was decided."""
    fail_on: FailOn = "worse"

    @property
    def verdict(self) -> GateVerdict:
        """The gravest of all: `unrecorded`, `regression`, `broken` (nothing ran, or not enough of it),
        `inconclusive`, `uncertain`, `ok`.
        """
        verdicts = {decision.verdict for decision in self.decisions}
        return gravest(verdicts) if verdicts else "broken"

    @property
    def exit_code(self) -> int:
        """0 where nothing fails by `fail_on`, 1 regression, 2 not shown, 3 broken or unrecorded."""
        code = EXIT_CODES[self.verdict]
        if not code and any(fails(decision, self.fail_on) for decision in self.decisions):
            return EXIT_CODES["inconclusive"]
        return code

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        return f"{self.verdict.upper()}: suite {self.suite}, {format_count(len(self.decisions), 'gate')}"

    def plot(self) -> Figure:
        """Draw the values after each look with their intervals, and the bounds; of gates that were decided at
        once there is one look.
        """
        from kestrel_lab.evals.reports.plots import gates_figure

        return gates_figure(self.looks or [(max(d.trials for d in self.decisions), self.decisions)])

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Headings, and a row of texts per decision."""
        return HEADINGS, [decision.cells() for decision in self.decisions]

    def group(self) -> Group:
        """The gates as test cases: those that `fails` names fail, broken ones are errors; a comparison that
        is uncertain, or had nothing to compare with, is skipped.
        """
        cases = [
            Case(
                name=f"{d.gate} [{d.config}]",
                outcome=self._outcome(d),
                kind=d.verdict,
                message=f"{d.cells()[2]} over {format_count(d.trials, 'trial')}"
                + (f": {d.why}" if d.why else ""),
                properties={
                    "value": d.interval.mean,
                    "low": d.interval.low,
                    "high": d.interval.high,
                    "trials": d.trials,
                },
            )
            for d in self.decisions
        ]
        return Group(name=f"{self.suite}.gates", cases=cases)

    def _outcome(self, decision: Decision) -> Outcome:
        """Return how the decision ends as a test case."""
        outcome = _OUTCOMES[decision.verdict]
        if outcome in ("passed", "skipped") and fails(decision, self.fail_on):
            return "failure"
        return outcome

    def concerns(self) -> list[str]:
        """Lines of Markdown on gates that are violated, broken or not recorded, the first few.

        A change of the success rate is not among them: a comparison begins with it.
        """
        found = [
            d
            for d in self.decisions
            if d.verdict in _CONCERN_WORDS and not (d.verdict == "regression" and d.gate.startswith(_CHANGE))
        ]
        more = [f"… and {len(found) - _CONCERNS} more"] if len(found) > _CONCERNS else []
        return [
            f"**{_CONCERN_WORDS[d.verdict]}** {code_span(d.gate)}, {code_span(d.config)}: "
            + ", ".join(filter(None, (d.cells()[2] if d.trials else "", d.why and plain_prose(d.why, _WHY))))
            for d in found[:_CONCERNS]
        ] + more

    def markdown(self) -> str:
        """A table for a pull request."""
        rows = [
            [code_span(d.gate), code_span(d.config), *d.cells()[2:5], plain_prose(d.why, _WHY)]
            for d in self.decisions
        ]
        return join_blocks([f"**Gates: {self.verdict}**", markdown_table(HEADINGS, rows)])

    def parts(self) -> Iterable[Part]:
        """Return the notes, and a row per decision."""
        return [*self.notes, Table(*self.table())]


def decide_gates(suite: Suite, rows: Iterable[EvalRow], *, alpha: float = ALPHA) -> tuple[Decision, ...]:
    """Decide every gate of the suite for every configuration that it applies to, and whether a replay found
    all of its recordings.

    `ok` when the whole interval is on the right side of the bound; `regression` when all of it is on the
    wrong side, and still would be with Holm's adjustment for the number of gates; else `inconclusive`, or
    `uncertain` where the suite lets undecided bounds pass;
    `broken` when no trial ran to its end or says anything of the metric, or trials that broke would turn
    the verdict over, had they passed or failed. Intervals have the error `alpha`. Other metrics than the
    success rate are of trials that did not break. A success rate with enough labels is the corrected one;
    where a model judge has a say in it, it is `inconclusive` without them.
    """
    rows = tuple(with_groups(rows, suite))
    asked = gate_trials(suite, rows)
    perhaps = f"violated by itself, but as one of {len(asked)} gates that may be by chance"
    decisions = []
    for (gate, config, records), is_sure in zip(asked, _surely_violated(asked, alpha), strict=True):
        decision = _decision(gate, config, records, alpha)
        if decision.verdict == "regression" and not is_sure:
            decision = replace(decision, verdict="inconclusive", why=perhaps)
        if decision.verdict == "inconclusive" and gate.undecided == "pass":
            decision = replace(decision, verdict="uncertain")
        decisions.append(decision)
    return (*_unrecorded(suite, rows), *decisions)


Asked = tuple[Gate, str, list[dict[str, Any]]]
"""A gate, a configuration, and the records of its trials."""


def gate_trials(suite: Suite, rows: Iterable[EvalRow]) -> list[Asked]:
    """Return each gate of the suite with each configuration that it applies to and the trials it is of."""
    records = [
        trial_record(row, suite.count_errors) | {"judged": is_judged(row), "early": row.ended_early}
        for row in rows
    ]
    names = [config.name for config in suite.configs]
    return [
        (gate, name, [r for r in records if r["config"] == name and gate.covers(name, r["family"])])
        for gate in suite.gates
        for name in ([gate.config] if gate.config else names)
    ]


def can_hold(
    suite: Suite,
    gate: Gate,
    records: list[dict[str, Any]],
    to_come: Iterable[Scenario],
    *,
    alpha: float = ALPHA,
) -> bool:
    """Return whether a gate of the success rate may still hold if all trials to come go well; `to_come` has
    the scenario of each. Other metrics know no best value: theirs may always hold.
    """
    if gate.metric != SUCCESS:
        return True
    # The best that can happen to a lower bound is a pass, to an upper bound a failure.
    best = float(gate.at_least is not None)
    imagined = [
        {"scenario": one.id, "group": suite.groups[one.id], "weight": one.weight, "success": best}
        for one in to_come
    ]
    return _judge(gate, success_interval([*records, *imagined], alpha=alpha)) == "ok"


def _unrecorded(suite: Suite, rows: Sequence[EvalRow]) -> Iterable[Decision]:
    """Return a decision for each configuration whose replay lacked a recording."""
    for config in suite.configs:
        mine = [row for row in rows if row.config == config.name]
        if missed := [row for row in mine if row.unrecorded]:
            yield Decision(
                gate="every call is recorded",
                metric="",
                config=label_kind(config.name, mine[0].model_kind),
                interval=NOTHING,
                trials=len(mine),
                verdict="unrecorded",
                why=f"{missed_recordings(missed)}. {record_again(suite)}",
            )


def missed_recordings(rows: Sequence[EvalRow]) -> str:
    """Return which scenarios asked for what was not recorded, and what is different about it; the first few
    of them.
    """
    lines = [f"scenario {row.scenario}, epoch {row.epoch}: {row.unrecorded[0]}" for row in rows[:_MISSES]]
    return "; ".join(
        [*lines, *([f"and {format_count(len(rows) - _MISSES, 'more trial')}"] if len(rows) > _MISSES else [])]
    )


def record_again(suite: Suite) -> str:
    """Return how the recordings of a suite are made again."""
    file = shown_path(suite.path) if suite.path is not None else "SUITE"
    return (
        f"Record anew where there is a key, and commit the recordings: kestrel eval run {file} "
        "--cassette record"
    )


def _surely_violated(asked: Sequence[Asked], alpha: float) -> list[bool]:
    """Return which bounds are violated when all are tested together: Holm's procedure, by intervals of the
    adjusted width.

    That all gates hold needs no such care: it is only said where each interval says so.
    """
    found = [False] * len(asked)
    while True:
        each = alpha / max(1, len(asked) - sum(found))
        more = [
            sure or _judge(gate, _interval(gate, mine, each)) == "regression"
            for sure, (gate, _, mine) in zip(found, asked, strict=True)
        ]
        if more == found:
            return found
        found = more


def decide_change(
    suite: Suite,
    head: Iterable[EvalRow],
    against: str,
    differences: Iterable[tuple[tuple[str, str], Difference]],
    margin: float,
    outdated: Mapping[str, str],
) -> tuple[Decision, ...]:
    """Return the verdicts of a comparison as decisions: of success rates, and of metrics that the suite has
    gates for. `outdated` says by configuration why trials of one side do not count.
    """
    gated = {SUCCESS, *(gate.metric for gate in suite.gates)}
    records = [trial_record(row, suite.count_errors) for row in head]
    found = []
    for (config, metric), d in differences:
        if metric in gated:
            mine = [record for record in records if record["config"] == config]
            verdict: GateVerdict = "ok"
            if d.verdict == "regression":
                verdict = "regression"
            elif d.verdict == "inconclusive":
                verdict = "uncertain"
            why = ""
            if verdict == "uncertain":
                detectable = (
                    f"the smallest change that so many trials detect is {format_metric(metric, d.mde)}"
                )
                why = d.note or (undecided_change(d, margin) if metric == SUCCESS else detectable)
            elif d.test in BY_CONSTRUCTION:
                why = f"no difference is possible: {d.test} on both sides"
            if config in outdated:
                verdict, why = "broken", outdated[config]
            # Where nothing ran, a difference of nothing says nothing.
            if not d.scenarios or all(record["outcome"] == "error" for record in mine):
                verdict, why = "broken", _first_reason(mine)
            found.append(
                Decision(
                    gate=f"{metric}: change from {against}",
                    metric=metric,
                    config=_label(config, mine),
                    interval=d.interval,
                    trials=len(mine),
                    verdict=verdict,
                    why=why,
                    changed=metric == SUCCESS and d.base != d.head,
                )
            )
    return tuple(found)


def decide_without_base(suite: Suite, head: Iterable[EvalRow], why: str) -> tuple[Decision, ...]:
    """Return a decision for each configuration that says why there is no change to decide about; `broken`
    where no trial ran to its end.
    """
    records = [trial_record(row, suite.count_errors) for row in head]
    found = []
    for config in suite.configs:
        mine = [record for record in records if record["config"] == config.name]
        broke = all(record["outcome"] == "error" for record in mine)
        found.append(
            Decision(
                gate=_CHANGE,
                metric=SUCCESS,
                config=_label(config.name, mine),
                interval=NOTHING,
                trials=len(mine),
                verdict="broken" if broke else "no base",
                why=_first_reason(mine) if broke else why,
            )
        )
    return tuple(found)


def _decision(gate: Gate, config: str, records: list[dict[str, Any]], alpha: float) -> Decision:
    ran = [record for record in records if record["outcome"] != "error"]
    broke = len(records) - len(ran)
    made = Decision(
        gate=gate.text,
        metric=gate.metric,
        config=_label(config, records),
        interval=_interval(gate, records, alpha),
        trials=len(records),
        verdict="broken",
        why=_first_reason(records),
        bound=gate.bound,
    )
    if not ran:
        return made
    if not made.interval.n:
        scan = ": kestrel eval scan SUITE" if gate.metric.startswith(FOUND) else ""
        return replace(made, why=f"no trial says anything of {gate.metric}{scan}")
    if gate.metric != SUCCESS and (early := sum(record["early"] for record in ran)):
        count = format_count(early, "trial")
        why = f"{count} ended early, so {gate.metric} is not that of whole trials: leave early stopping out"
        return replace(made, verdict="inconclusive", why=why)
    verdict = _judge(gate, made.interval)
    why = f"{broke} of {format_count(len(records), 'trial')} broke" if broke else ""
    if broke and gate.metric == SUCCESS:
        bounds = broken_bounds((r["outcome"], 1, r["weight"]) for r in records)
        failed, passed = (format_metric(SUCCESS, rate) for rate in bounds)
        why += f" (the rate is {failed} if they failed, {passed} if they passed)"
        if verdict != "inconclusive" and any(
            _judge(gate, _interval(gate, _as_if(records, fill), alpha)) != verdict for fill in (0.0, 1.0)
        ):
            turned = f"no verdict ({verdict}): {why}, which could turn it over: {_first_reason(records)}"
            return replace(made, why=turned)
    if gate.metric == SUCCESS and (labelled := _by_labels(records, alpha))[1]:
        return replace(
            made,
            verdict=verdict if labelled[0] else "inconclusive",
            why="; ".join(filter(None, [why, labelled[1]])),
        )
    if verdict == "inconclusive":
        trials_by_unit = Counter(record_units(records))
        needed = undecided_reason(gate, made.interval, [*trials_by_unit.values()])
        why = "; ".join(filter(None, [why, needed]))
    if verdict == "ok" and gate.metric == "cost_estimate" and any(record["unpriced_calls"] for record in ran):
        verdict, why = "inconclusive", "calls of unknown price are not in the value"
    return replace(made, verdict=verdict, why=why)


def _as_if(records: Iterable[dict[str, Any]], success: float) -> list[dict[str, Any]]:
    """Return the records as if all trials that broke had passed, 1, or failed, 0."""
    return [r | {"success": success} if r["outcome"] == "error" else r for r in records]


def _by_labels(records: list[dict[str, Any]], alpha: float) -> tuple[bool, str]:
    """Return whether labels make the success rate one that can be decided about, and what to say of them;
    nothing where neither labels nor a judge have a part in it.
    """
    sample = sample_of_records(records)
    there, judged = len(sample.labelled), any(record["judged"] for record in records)
    if enough_labels(sample):
        found, alone = corrected_rate(sample, alpha=alpha), success_interval(records, alpha=alpha)
        worth = found.sentence(len(sample.verdicts))
        verdicts = alone.text(partial(format_metric, SUCCESS))
        return (
            True,
            f"corrected by {format_count(there, 'label')}; by verdicts alone {verdicts}"
            + f"; {worth}" * bool(worth),
        )
    if not judged:
        return False, ""
    return False, (
        f"a model judge has a say in this rate, which takes {ENOUGH_LABELS} labels of people to be decided "
        f"about, and there are {there}: kestrel eval label SUITE"
    )


def _interval(gate: Gate, records: list[dict[str, Any]], alpha: float = ALPHA) -> Interval:
    if gate.metric == SUCCESS:
        sample = sample_of_records(records)
        if enough_labels(sample):
            return corrected_rate(sample, alpha=alpha).interval
        return success_interval(records, alpha=alpha)
    # A trial that broke early is cheap and quick, which is no merit.
    values = [(r, r.get(gate.metric, math.nan)) for r in records if r["outcome"] != "error"]
    kept = [(r, value) for r, value in values if not math.isnan(value)]
    clusters = group_by_cluster(
        [value for _, value in kept], record_units([r for r, _ in kept]), [r["weight"] for r, _ in kept]
    )
    return (share_of if is_share(gate.metric) else amount_of)(clusters, alpha=alpha)


def _judge(gate: Gate, interval: Interval) -> GateVerdict:
    """An interval that says nothing decides nothing."""
    if gate.at_least is not None:
        return (
            "ok"
            if interval.low >= gate.bound
            else "regression"
            if interval.high < gate.bound
            else "inconclusive"
        )
    return (
        "ok" if interval.high <= gate.bound else "regression" if interval.low > gate.bound else "inconclusive"
    )


def _label(config: str, records: list[dict[str, Any]]) -> str:
    return label_kind(config, records[0]["model_kind"]) if records else config


def _first_reason(records: list[dict[str, Any]]) -> str:
    if not records:
        return "no trial was made"
    return next((str(record["reason"]) for record in records if record["outcome"] == "error"), "")
