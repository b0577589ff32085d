"""Evaluations: suites, comparisons of commits and stored results, over the log of one session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.run_types import RunReference, run_id_of
from kestrel_lab.evals.options import (
    AblationOptions,
    RerunOptions,
    Selection,
    StoredSelection,
    SummaryOptions,
)
from kestrel_lab.evals.shared.transfer import SharedResults
from kestrel_lab.evals.stored.scans import Reading
from kestrel_lab.runtime.options import check_names, takes_options
from kestrel_lab.runtime.services import Services, reporter_of
from kestrel_lab.runtime.sync import blocking_twin

if TYPE_CHECKING:
    from kestrel_lab.evals.blame.receipt import Receipt
    from kestrel_lab.evals.blame.shrink import Shrunk
    from kestrel_lab.evals.commits.bisect_result import BisectResult
    from kestrel_lab.evals.commits.compare import Comparison
    from kestrel_lab.evals.commits.history import History
    from kestrel_lab.evals.commits.sequential_compare import Design
    from kestrel_lab.evals.execution.result import EvalResult
    from kestrel_lab.evals.importers.load import ImportResult
    from kestrel_lab.evals.notebooks.from_run import RunNotebook
    from kestrel_lab.evals.stored.rescore import RescoreResult
    from kestrel_lab.evals.stored.summary import StoredSummary
    from kestrel_lab.evals.studies.ablation_result import Ablation
    from kestrel_lab.evals.suite import Suite
    from kestrel_lab.evals.suites.scenario_from_run import ScenarioDraft
    from kestrel_lab.runtime.recomputation import RecomputeResult


class Arms:
    """What tells configurations of a suite apart, at one commit."""

    def __init__(self, lab: Services) -> None:
        self._lab = lab
        self.shared = SharedResults(lab)
        """Pushes stored trials to the results of a team, and pulls theirs."""

    def compare_configs(
        self, result: EvalResult, base: str, head: str, *more: str, margin: float = 0.05
    ) -> Comparison:
        """Compare configurations of one result, made here or imported, with another one: the same
        differences, intervals and verdicts as between commits.

        `head` and each of `more` are compared with `base`; all are questions asked together. Trials are
        paired by scenario and epoch. Times are compared only where both were made side by side. Raises
        `UsageError` for a configuration without trials.
        """
        from kestrel_lab.evals.commits.compare import compare_configs

        return compare_configs(result, base, head, *more, margin=margin)

    async def compare_in_turns(
        self,
        suite: str | Path | Suite,
        base: str,
        head: str,
        *,
        design: Design,
        reporter: Reporter | None = None,
        **options: Any,
    ) -> Comparison:
        """Run two configurations in turns, pair by pair, until their difference is decided or `design`, a
        budget with error rates, is used up.

        Looks at the trials as they come, with the error of the design over all looks together; stops for a
        difference, for one that is smaller than matters, and for the budget. Stored trials are taken.
        Options: `configs` (models by the two names, in place of the suite's configurations), `scenarios`,
        `families`, `tags`, `cassette`, `cassettes` and `concurrency` as for `eval`. The
        comparison's `sequence` has the looks: `.frame`, `.plot()`. Raises `UsageError` for a budget that
        cannot decide anything, and for a cost where prices are not known.
        """
        from kestrel_lab.evals.commits.compare import compare_configs_in_turns

        return await compare_configs_in_turns(
            self._lab, suite, base, head, design=design, reporter=reporter_of(self._lab, reporter), **options
        )

    compare_in_turns_sync = blocking_twin(compare_in_turns)

    async def gate_in_turns(
        self, suite: str | Path | Suite, *, design: Design, reporter: Reporter | None = None, **options: Any
    ) -> EvalResult:
        """Run a suite in turns until its gates are decided or `design`, a budget with an error, is used up.

        After each look the gates are decided by intervals that hold at all looks together. It stops when all
        hold, when one is violated, and when one cannot hold any more whatever the rest gives; the trials
        that are skipped then count in no rate. Stored trials are taken. Options: `configs`, `scenarios`,
        `families`, `tags`, `cassette`, `cassettes` and `concurrency` as for `eval`. `gates()` of the result
        is the decision, with its looks: `.plot()`. Raises `UsageError` for a suite without gates, and for one
        whose trials a model judge decides.
        """
        from kestrel_lab.evals.commits.sequential_gate import gate_in_turns

        return await gate_in_turns(
            self._lab, suite, design=design, reporter=reporter_of(self._lab, reporter), **options
        )

    gate_in_turns_sync = blocking_twin(gate_in_turns)

    @takes_options(AblationOptions, Selection)
    async def ablate(
        self, suite: str | Path | Suite, file: str, *, reporter: Reporter | None = None, **options: Any
    ) -> Ablation:
        """Find out which paragraphs of a guidance file, AGENTS.md for instance, help the agent of a suite.

        Each trial has some of them; `kestrel_lab.evals.stats.factorial_pairs` describes design and intervals.
        Workspaces have this file and what the configuration's `guidance` names, and no other guidance.

        Options: `unit` (`paragraph`, `section` or `item`), `ref` (the commit that has the file; as it is in
        the checkout by default), `budget` (trials, stored ones included), `cost` (US dollars, after which no
        trial is begun; those under way are finished), of which one is required, `margin` (how large an effect
        still counts as none), `configs`, `scenarios`, `families` and `tags` as for `eval`. Every trial is
        stored as it ends, and asked again it goes on where it was; `resume` takes stored trials outside of
        git, too.

        Gives a row per paragraph (`.frame`), `.trials`, `.plot()` and `.report(path)`. Raises `UsageError`
        for a file that does not exist or has no such parts, a budget that cannot tell them apart, several
        configurations, and a cost where prices are not known.
        """
        from kestrel_lab.evals.studies.ablation import ablate_guidance

        return await ablate_guidance(
            self._lab, suite, file, reporter=reporter_of(self._lab, reporter), **options
        )

    ablate_sync = blocking_twin(ablate)


class Evaluations(Reading, Arms):
    """Measures agents: each method loads what it needs when it is first called."""

    @takes_options(RerunOptions)
    async def blame(
        self,
        run: RunReference,
        *,
        each: int = 1,
        change: str | Sequence[str] = (),
        repair: bool = False,
        tries: int = 10,
        **how: Unpack[RerunOptions],
    ) -> Receipt:
        """Find the turn that made a run fail, by making turns of it anew in private copies.

        The checks of the trial say what success is, with `suite`, its file, where that is not found by its
        name; of any other run `checks` do, such as `"answer_contains: '42'"`, or the scenario of `suite` that
        has the goal of the run. Each fork is made where it tells most, `each` times at once, until a set of
        at most three turns holds the decisive one with 91 %, no single turn is to blame with 91 %, or the
        budget of `runs` like this one (40), or of `cost` in US dollars, ends. A second call goes on where the
        first one ended. `model` makes the re-runs in the place of the run's own, under the policy `approve`.

        With `change`, a line or several, or with `repair`, lines that the model proposes, the likeliest turn
        is made anew `tries` times with each line before the model, as far as the budget goes.

        Gives the receipt: `.steps`, `.posterior`, `.before`, `.after`, `.frame`, `.plot()`, `.write(path)`.
        Calls that reach outside of the copy are answered from the log; it says which. Raises `UsageError` for
        a run that has not ended or passed, for one whose tools or files are not there any more, and where
        nothing says what success is.
        """
        from kestrel_lab.evals.blame.blame import blame_run

        return await blame_run(
            self._lab,
            run_id_of(run),
            self._options(40, how),
            each=each,
            changes=(change,) if isinstance(change, str) else change,
            repair=repair,
            tries=tries,
        )

    @takes_options(RerunOptions)
    async def shrink(self, run: RunReference, **how: Unpack[RerunOptions]) -> Shrunk:
        """Find the least with which a run still fails, and draft a scenario of it.

        Turns of its history, files, tools and paragraphs of guidance are left out; a candidate is kept if at
        least 80 % of its replays, each in a throw-away folder, fail by the same checks, and no call fails
        where none did before. `suite` and `checks` say what success is, as for `blame`, whose receipt is used
        where there is one; `runs` (10) and `cost` are the budget. `.write(path)` makes the scenario file.
        Raises `UsageError` as `blame` does, and for runs that called what reaches outside of the workspace.
        """
        from kestrel_lab.evals.blame.shrink import shrink_run

        return await shrink_run(self._lab, run_id_of(run), self._options(10, how))

    def _options(self, runs: float, how: RerunOptions) -> RerunOptions:
        """Return the options with a budget, and with the bar of these surroundings where none is given."""
        reporter = reporter_of(self._lab, None)
        return {"runs": runs, **how, "reporter": how.get("reporter") or reporter}

    blame_sync = blocking_twin(blame)
    shrink_sync = blocking_twin(shrink)

    async def eval_commits(self, suite: str | Path, commits: str, **options: Any) -> History:
        """Run a suite at several commits (`A..B`, or `A,B,C`), as far as results are not stored.

        Options: `every`, `last` to take some of the commits, `configs`, `epochs`, `metric` to look at,
        `reporter`, `own_suite` as for `compare_commits`. The commits take turns epoch by epoch. Gives one row
        per trial with its commit (`.frame`), a row per commit (`.summary()`), `.steps` and `.plot()`; a
        commit that cannot be run is noted. Raises `UsageError` for names that are not commits and when none
        can be run.
        """
        from kestrel_lab.evals.commits.run_history import run_commits

        return await run_commits(self._lab, suite, commits, **options)

    async def history(self, suite: str | Path, **options: Any) -> History:
        """A metric of a suite over commits, from stored results alone, and the commits at which it steps.

        Options: `commits`, `every`, `last` as for `eval_commits` (by default HEAD and before, those with
        results), `configs`, `metric`, `any_version` to count trials of scenarios that have changed since.
        Raises `UsageError` when nothing is stored for these commits.
        """
        from kestrel_lab.evals.commits.run_history import stored_history

        return await stored_history(self._lab, suite, **options)

    async def bisect(
        self,
        suite: str | Path,
        good: str,
        bad: str = "HEAD",
        *,
        reporter: Reporter | None = None,
        **search: Any,
    ) -> BisectResult:
        """Find the first commit after `good`, up to `bad`, at which a metric is worse, with as many trials as
        that needs.

        Rounds of trials, one of each scenario and configuration, are added until a sequential paired test can
        decide, commit by commit, by binary search along first parents. Shares are compared by their
        difference, other metrics by which trial of a pair is worse by more than `margin` times. A trial that
        broke says nothing; a commit that cannot be run is skipped.

        Options: `metric`, `margin` (how much worse is still not bad), `max_trials` made now, `alpha` (how
        often a wrong commit may be named, over all steps together), `configs`, `reporter`. Asked again it
        goes on where it was. Raises `UsageError` for commits that are not in one line and when the first or
        last cannot be run.
        """
        from kestrel_lab.evals.commits.bisect import find_first_bad
        from kestrel_lab.evals.commits.bisect_result import BisectSearch

        check_names("Evaluations.bisect", search, BisectSearch.__dataclass_fields__)
        return await find_first_bad(self._lab, suite, good, bad, BisectSearch(**search), reporter=reporter)

    @takes_options(StoredSelection)
    async def rescore(self, suite: str | Path | Suite, **which: Unpack[StoredSelection]) -> RescoreResult:
        """Rescore the stored trials of a suite by the checks it has now, without asking a model or calling a
        tool.

        The newest trial of each scenario, configuration and epoch of `commit`, or of the commit tried last. A
        check that needs what is not in the log (files or commands unless the trial's folder was kept, a
        model, a function without `from_log = True`) keeps its old score, and the result says so; without one
        the trial counts as broken. A trial whose task changed is left out. New scores are stored beside the
        old ones; where all checks could be judged, `reuse` takes them. `configs`, `scenarios`, `families` and
        `tags` select as for `eval`. Raises `UsageError` when nothing is stored.
        """
        from kestrel_lab.evals.stored.rescore import rescore_trials

        return await rescore_trials(self._lab, suite, **which)

    @takes_options(SummaryOptions)
    def stored(self, suite: str | Path | Suite, **options: Unpack[SummaryOptions]) -> StoredSummary:
        """Summarise the stored trials of a suite `by` config, family, scenario or any column of a frame:
        every metric with its interval; nothing is run. With `tries` also pass@k and pass^k for every k.

        They are those of `commit`, or of the commit that was tried last, and of the selected parts of the
        suite. By config, family and scenario any number of trials takes little memory.
        """
        from kestrel_lab.evals.stored.summary import summarise_stored

        return summarise_stored(self._lab, suite, **options)

    def scenario_from(self, run: RunReference, *, beside: str | Path | None = None) -> ScenarioDraft:
        """A draft of a scenario that asks for what a run did; printed, it is the YAML, and `write(path)`
        makes the file.

        Goal, tools, limits and workspace are the run's, the checks are proposed from what happened; what a
        person has to look at is marked EDIT. `beside` is the folder the file is to be in, where that is not
        the current one. Raises `UsageError` for a run that has not ended.
        """
        from kestrel_lab.evals.suites.scenario_from_run import scenario_from

        return scenario_from(
            self._lab.history.get(run),
            beside=None if beside is None else Path(beside),
        )

    def notebook_from(self, run: RunReference) -> RunNotebook:
        """A notebook of the Python code that a run and the conversation before it executed; `write(path)`
        makes the file.

        It runs from top to bottom without a model. Undone and stopped calls are left out and named. Numbers
        of an answer name the cells whose outputs have them. Raises `UsageError` for a run that has not
        ended, and for one without code.
        """
        from kestrel_lab.evals.notebooks.from_run import notebook_of

        return notebook_of(self._lab, run_id_of(run))

    async def recompute(
        self,
        run: RunReference,
        *,
        workspace: str | Path | None = None,
        copy: bool = False,
        reporter: Reporter | None = None,
    ) -> RecomputeResult:
        """Run the code of a conversation again in a sandboxed kernel, without a model, and say for each call
        whether its output still holds.

        The code reads the workspace of the run, or the folder `workspace`, and can change nothing there; with
        `copy` it works in a throw-away copy of that folder, for code that writes files. Raises `UsageError`
        for a run that has not ended, for one without code, and where code cannot be sandboxed.
        """
        from kestrel_lab.runtime.recomputation import recompute_run

        memory, name = self._lab.options["sandbox_memory"], run_id_of(run)
        return await recompute_run(
            self._lab.store, name, workspace=workspace, copy=copy, memory=memory, reporter=reporter
        )

    def export_otel(self, run: RunReference, target: str | Path, *, content: bool = False) -> int:
        """Export a run of the log as OpenTelemetry spans, to a file of OTLP JSON or to a collector's http
        address; returns how many.

        The spans follow the GenAI conventions and are computed from the events: the run, its steps, model
        calls, tool calls, verifiers, and the scores of trials that it is the run of. Only with `content` they
        hold the goal, messages, arguments, results and error texts. Exported again they have the same ids.
        Raises `UsageError` for a run that does not exist, where the extra `otel` is absent, and for a
        collector that does not take them.
        """
        from kestrel_lab.evals.stored_trials import trials_of_run
        from kestrel_lab.runtime.conversation import conversation_runs
        from kestrel_lab.telemetry.otlp import write_spans
        from kestrel_lab.telemetry.spans import evaluation_span, spans_of

        found = self._lab.history.get(run)
        spans = spans_of(
            found.id,
            found.records(),
            conversation=conversation_runs(self._lab.store, found.id)[0],
            content=content,
        )
        last = next(span for span in reversed(spans) if span.key == "run")
        spans += [
            evaluation_span(
                found.id,
                last,
                f"{row.suite}/{row.scenario}/{row.id}",
                row.created_at,
                scores,
                content=content,
            )
            for row in trials_of_run(self._lab.store, found.id)
            if (scores := row.scores)
        ]
        write_spans(spans, target)
        return len(spans)

    def export_atif(self, run: RunReference, target: str | Path) -> int:
        """Write a run of the log as a trajectory in ATIF, Harbor's format, to a JSON file; returns how many
        steps it has.

        It has the goal, what the models said and thought, calls, results, tokens and costs, as far as they
        are known. A run that was imported from ATIF is the same file again. Raises `UsageError` for a run
        that does not exist.
        """
        from kestrel_lab.telemetry.atif import write_trajectory

        found = self._lab.history.get(run)
        return write_trajectory(found.id, found.records(), Path(target))

    async def import_runs(
        self,
        *paths: str | Path | Sequence[str | Path],
        suite: str | Path | Suite | None = None,
        reporter: Reporter | None = None,
    ) -> ImportResult:
        """Import what other tools recorded, from files or folders of them, one by one or in a list.

        What can be read is in `importers.formats.FORMATS` and on the page howto/import.md: ATIF, sessions and
        trajectories of coding agents, traces, logs of Inspect, chats. Each record becomes a run in the log,
        marked as imported, with its source and original ids; what the recording lacks (times, tokens, prices)
        is unknown and not 0. Runs can be shown and forked, a model going on from there. Each judged record is
        a trial too, under the commit `imported`; with a `suite` the runs whose goal is a scenario's are
        judged by its checks. A log with results alone keeps these and makes no trial. Importing again adds
        nothing. Nothing in the files is run.

        A record, or a message of one, that cannot be read is in `broken` with its place, and loses no other.
        Raises `UsageError` when there is no such file or nothing in it can be read.
        """
        from kestrel_lab.evals.importers.load import import_runs

        return await import_runs(self._lab, paths, suite=suite, reporter=reporter)

    eval_commits_sync = blocking_twin(eval_commits)
    history_sync = blocking_twin(history)
    bisect_sync = blocking_twin(bisect)
    rescore_sync = blocking_twin(rescore)
    import_runs_sync = blocking_twin(import_runs)
