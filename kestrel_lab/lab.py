"""`Lab`, the object that most users hold: runs, suites and comparisons over one log."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Approver, Model
from kestrel_lab.core.run_types import RunReference
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.evals.options import CompareOptions, EvalOptions
from kestrel_lab.host.homes import moved_notice
from kestrel_lab.permissions.rulebook import read_rulebook
from kestrel_lab.runtime.options import (
    LIMITS,
    SETTINGS,
    LabKeywords,
    LabOptions,
    ResumeOptions,
    RunOptions,
    may_be_none,
    takes_options,
)
from kestrel_lab.runtime.project_trust import TrustedFiles, check_home, ignored_notice
from kestrel_lab.runtime.services import Services, reporter_of
from kestrel_lab.runtime.settings import Settings, load_settings, mcp_servers
from kestrel_lab.runtime.sync import blocking_twin
from kestrel_lab.runtime.workspace.run_filters import takes_filters
from kestrel_lab.views.html.elements import headline_html, table_html

if TYPE_CHECKING:
    import pandas as pd

    from kestrel_lab.answers.output_types import OutputForm, T
    from kestrel_lab.evals.commits.compare import Comparison
    from kestrel_lab.evals.commits.sequential_compare import Design
    from kestrel_lab.evals.execution.result import EvalResult
    from kestrel_lab.evals.suite import Suite
    from kestrel_lab.runtime.conversation import Chat
    from kestrel_lab.runtime.diff import RunDiff
    from kestrel_lab.runtime.operations.web_evidence import EvidenceBundle
    from kestrel_lab.runtime.run import Run
    from kestrel_lab.runtime.workspace.find import FoundRuns

_OPENED_WITH: Final = {"provider", "api_base", "cache_url", "containment", "network_home", "otel"}
"""Options that hold for as long as a lab is open."""
_NOTICES: set[str] = set()
"""Notices that were written already: a notebook may open many labs."""


def _tell_ignored(settings: Settings) -> None:
    """Write once which settings of a project are ignored because nobody trusts them."""
    _tell(ignored_notice(settings.ignored))


def _tell(text: str) -> None:
    """Write a notice to standard error, once per process; an empty one is ignored."""
    if text and text not in _NOTICES:
        _NOTICES.add(text)
        sys.stderr.write(f"{sanitize_text(text)}\n")


def _prepare_model(env: Mapping[str, str], model: str | Model | None) -> None:
    from kestrel_lab.models.resolve import prepare_in_background  # providers: only in a kernel

    if model is None or isinstance(model, str):
        prepare_in_background(env, model)


class Lab(Services):
    """Runs agents and measures them.

    `LabOptions` describes its options. Options that are not given come from `kestrel.toml`, `[tool.kestrel]`
    in `pyproject.toml` or `KESTREL_…` environment variables (`kestrel config` shows which), and otherwise
    from built-in defaults: `Lab(home=None, model=None, approve="ask")`. Without a `home` the log is outside
    of the current folder, in a folder below the user's state folder: `kestrel home` shows and moves it.

    `mcp` adds MCP servers to those that are configured: `Lab(mcp={"time": {"command": "mcp-server-time"}})`.
    Their tools are called `time:convert_time` and count as MEDIUM and opaque unless their table says
    otherwise.

    `rules` adds rules about calls to those of the settings, as a file or as tables: `Lab(rules=[{"tool":
    "bash", "command": "git diff ...", "verdict": "allow"}])`. Deny wins over ask, ask over allow.

    `evals` has all methods for suites; `eval` and `compare` are methods of the lab as well. `history` lists
    and compares runs. `skills`, `macros` and `memory` are those of the current folder; `at(folder)` gives
    those of another. `store` is the log, `registry` has models and tools, `mcp` the MCP servers. Leaving
    `with Lab(…)` or `async with Lab(…)` closes all of them.
    """

    __slots__ = (
        "align",
        "blame",
        "decide",
        "evals",
        "macros",
        "memory",
        "scan",
        "settings",
        "shrink",
        "skills",
    )

    @takes_options(LabKeywords)
    def __init__(
        self,
        home: str | Path | None = None,
        model: str | Model | None = None,
        approve: str | None = None,
        **options: Unpack[LabKeywords],
    ) -> None:
        given: dict[str, Any] = {
            name: "none" if value is None else value
            for name, value in options.items()
            if value is not None or may_be_none(LabOptions, name)
        }
        env = given.setdefault("env", os.environ)
        limits = given.pop("limits", None)
        bounds = (
            {} if limits is None else {key: value for key, value in limits.as_json().items() if key in LIMITS}
        )
        settings = load_settings(Path.cwd(), env)
        same = LabOptions.__annotations__.keys() & SETTINGS.keys() - {"model"}
        self.settings = settings.given(
            "Lab(…)",
            home=None if home is None else str(home),
            model=model if isinstance(model, str) or model is None else model.name,
            approve=approve,
            **{name: given.pop(name) for name in same & given.keys()},
            **{key: "none" if value is None else value for key, value in bounds.items()},
        )
        _tell_ignored(self.settings)
        if home is None and self.settings.items["home"].source != "KESTREL_HOME":
            check_home(Path(self.settings["home"]), TrustedFiles.of(env))
        given["mcp"] = {**mcp_servers(Path.cwd(), env), **given.get("mcp", {})}
        given["rules"] = self.settings.rules + read_rulebook(given.get("rules"), "Lab(rules=…)")
        super().__init__(
            self.settings["home"],
            model=self.settings["model"] if model is None else model,
            limits=limits or self.settings.limits,
            **{name: self.settings[name] for name in same},
            **given,
        )
        self._open_parts()
        # In a kernel the person reads and types first, so loading in the background saves time. A script asks
        # at once and would only compete with itself.
        if "ipykernel" in sys.modules:
            _prepare_model(env, self.options.get("model"))
        if self.settings.items["home"].source == "default" and not self.store.runs(limit=1):
            _tell(moved_notice(Path.cwd(), env))

    def _open_parts(self) -> None:
        from kestrel_lab.evals.evaluations import Evaluations
        from kestrel_lab.runtime.workspace.macros import WorkspaceMacros
        from kestrel_lab.runtime.workspace.memory import WorkspaceMemory
        from kestrel_lab.runtime.workspace.skills import WorkspaceSkills

        self.decide = self.history.decide
        """Decides on everything a run waits for, see `RunHistory.decide`."""
        self.evals = Evaluations(self)
        """Everything that is done with suites and stored trials."""
        self.align = self.evals.align
        """Aligns recorded runs with each other, see `Evaluations.align`."""
        self.scan = self.evals.scan
        """Searches recorded runs with scanners, see `Evaluations.scan`."""
        self.blame = self.history.blame = self.evals.blame
        """Finds the turn that made a run fail, see `Evaluations.blame`."""
        self.shrink = self.evals.shrink
        """Finds the smallest input with which a run still fails, see `Evaluations.shrink`."""
        self.macros = WorkspaceMacros(self)
        """The macros (tool sequences that agents use again) of the current folder, saved or proposed."""
        self.memory = WorkspaceMemory(self)
        """The notes that later runs in the current folder can recall."""
        self.skills = WorkspaceSkills(self)
        """The skills (folders with a SKILL.md) that agents in the current folder can load."""

    @takes_options(RunOptions)
    def start(
        self,
        goal: str,
        *,
        output: type[T] | OutputForm | None = None,
        **options: Unpack[RunOptions],
    ) -> Run[T]:
        """Begin a run on the running event loop and return at once.

        `RunOptions` describes what a run can be given. With `output`, a type or a JSON Schema, the answer is
        asked for in that form, and `Run.value` is the answer as a value of the type.

        Raises:
            UsageError: An empty goal, an unknown model, tool or policy, a workspace that is not a folder, a
                sandbox level that was named and does not work here, an invalid workflow, a step of the plan
                with an unknown tool or wrong arguments.
        """
        from kestrel_lab.runtime.start import start

        return start(self, goal, output=output, **options)

    @takes_options(RunOptions)
    async def run(
        self,
        goal: str,
        *,
        output: type[T] | OutputForm | None = None,
        **options: Unpack[RunOptions],
    ) -> Run[T]:
        """Run `start` and wait for the end.

        Returns the run also when it ended FAILED: `status` and `reason` say so. Raises `ApprovalRequired`
        when a call needs approval and no approver was given.
        """
        from kestrel_lab.runtime.start import run

        return await run(self, goal, output=output, **options)

    run_sync = blocking_twin(run)

    @takes_options(ResumeOptions)
    async def resume(
        self,
        run: RunReference,
        *,
        take_over: bool = False,
        output: type[T] | OutputForm | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Run[T]:
        """Continue a run at the end of its log, and wait for its end. `runtime.start.resume` returns at once.

        A run that ended FAILED or CANCELLED after a completed stage, or by a limit or an error of a model
        call, continues in a new run, which shares the completed part by reference: see `runtime.resume`. Any
        other run that has ended is returned as it is, and so is one that this lab works on. The plan is the
        one in the log, even if its file has changed; if it needs something that is gone, the error names the
        stage. `limits` apply from here on and include what was used before. Calls whose outcome is unknown
        are repeated only if that is harmless; otherwise they need approval. A run that another session works
        on, in this process or another, is taken over only with `take_over`. That session then writes nothing
        more, and its run ends with `Fenced` before its next tool call with an effect. A call that it is
        executing may still have its effect, so that call needs approval. `output` is the type that the run
        was begun with: the log has only its schema.

        Raises:
            UsageError: No such run, another session works on it, or its model or tools cannot be found again.
            Damaged: Its events are not those that were written.
        """
        from kestrel_lab.runtime.start import resume, watched

        def begin(approver: Approver | None) -> Run[T]:
            given: ResumeOptions = {**options, "approver": approver}
            return resume(self, run, take_over=take_over, output=output, **given)

        return await watched(self, begin, options.get("approver"))

    @takes_options(ResumeOptions)
    async def fork(
        self,
        run: RunReference,
        *,
        at: int | None = None,
        answer: str | None = None,
        result: str | None = None,
        in_place: bool = False,
        output: type[T] | OutputForm | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Run[T]:
        """Begin a new run that shares the events of another up to number `at`, and wait for its end.
        `runtime.start.fork` returns at once.

        The fork works in a private copy of the workspace with the files as they were at `at`; `Run.apply`
        copies its changes back. The parent is not changed, and may still be working. Model, tools, policy and
        approver may be different, as for `resume`; `limits` include what the shared events used. A question
        that was open at `at` is asked again; a tool call that had begun is handled as by `resume`.

        Args:
            run: The run to fork.
            at: The last event shared, any before the run's end; by default its last `model_called`, or with
                `result` its last `tool_called`. A model that was being asked there is asked again.
            answer: The answer of the model called at `at`, in place of its own.
            result: The result of the tool called at `at`, in place of its own.
            in_place: Work in the folder of the parent as it is now, and change the files there.
            output: The type that the parent was begun with, for `Run.value`.

        Raises:
            UsageError: No such run or event, one after the end, one that an answer or a result cannot follow,
                a model or tools that cannot be found again, files of which nothing is known or no copy can be
                made.
            Damaged: An event up to `at` is not what was written.
        """
        from kestrel_lab.runtime.start import fork, watched

        def begin(approver: Approver | None) -> Run[T]:
            given: ResumeOptions = {**options, "approver": approver}
            return fork(
                self, run, at=at, answer=answer, result=result, in_place=in_place, output=output, **given
            )

        return await watched(self, begin, options.get("approver"))

    @takes_options(RunOptions)
    def chat(self, **options: Unpack[RunOptions]) -> Chat:
        """Return a conversation whose turns take these options: `await chat.ask("…")`; a notebook shows each
        in a panel.
        """
        from kestrel_lab.runtime.conversation import Chat

        return Chat(self.start, self.run, options)

    def get(self, run: RunReference, *, output: type[T] | OutputForm | None = None) -> Run[T]:
        """Return a run of this log; see `RunHistory.get`."""
        return self.history.get(run, output=output)

    def runs(self, *, limit: int = 100, trials: bool = False) -> pd.DataFrame:
        """Return the newest runs first, one row each, indexed by id; with those of suites if `trials`."""
        return self.history.runs(limit=limit, trials=trials)

    @takes_filters
    def find(
        self,
        query: str = "",
        *,
        limit: int = 20,
        after: int | None = None,
        wait: bool = False,
        **filters: Any,
    ) -> FoundRuns:
        """Return the newest runs that have all words of `query` in what they asked, called, got and answered,
        trials and imported runs among them: `lab.find("refund twice", tool="send_money", since="2w")`.

        Words in quotation marks have to stand beside each other. `filters` choose by what is known of runs.
        See `kestrel_lab.runtime.workspace.find.find_runs`.
        """
        from kestrel_lab.runtime.workspace.find import find_runs

        return find_runs(self.store, query, limit=limit, after=after, wait=wait, **filters)

    def diff(self, a: RunReference, b: RunReference) -> RunDiff:
        """Return where two runs of this log differ first, forks of each other or not; raises `UsageError` for
        an unknown id.
        """
        return self.history.diff(a, b)

    @takes_options(EvalOptions)
    async def eval(
        self, /, suite: str | Path | Suite, *, cluster: str | None = None, **options: Any
    ) -> EvalResult:
        """Run a suite of scenarios, a file or a loaded one, over its model configurations.

        The options are described by `kestrel_lab.evals.options.EvalOptions`: `configs` or models in their
        place, `epochs`, `scenarios`, `families`, `tags`, `reuse`, `resume`, `retry_errors`, `cassette` …
        `cluster` is the address of a Dask scheduler whose workers run the trials.

        Returns one row per scenario × configuration × epoch; every finished trial is stored at once.
        Raises `UsageError` that names file, place and nearest spelling for a suite that is not in order.
        """
        from kestrel_lab.evals.execution.runner import run_suite

        options["reporter"] = reporter_of(self, options.get("reporter"))
        if cluster is not None:
            from kestrel_lab.evals.execution.dask_cluster import on_cluster

            options["make"] = on_cluster(cluster)
        return await run_suite(self, suite, **options)

    eval_sync = blocking_twin(eval)  # the method above  # noqa: A003

    @takes_options(CompareOptions)
    async def compare(
        self,
        base: str = "auto",
        head: str = "HEAD",
        *,
        suite: str | Path,
        design: Design | None = None,
        **options: Unpack[CompareOptions],
    ) -> Comparison:
        """Run a suite at two commits, as far as results are not stored, and compare them.

        `base` may be `auto`: the nearest ancestor of `head` on the main branch that has results, or else the
        nearest there. With `own_suite` each commit runs the suite file it has itself. A change of the success
        rate within `margin` counts as none. `configs`, `scenarios`, `families` and `tags` select parts of the
        suite as for `eval`. With `cassette="replay"` each commit is replayed from the recordings that it has
        itself; what they lack at `base` is left out. A commit without the suite runs the present one, with
        the present files where it lacks them. With `alone` a first commit, which `auto` finds no base for, is
        run by itself: `no_base` of the result says why. With a `design` the commits are run in turns until
        their difference is decided or its budget is used up: see `Evaluations.compare_in_turns`. Commits
        with the same files are run once: there is no difference between them. Each commit is checked out in
        a worktree of its own; the user's files, index and HEAD are not touched. Raises `UsageError` for a
        commit that does not exist or a folder without a repository.
        """
        from kestrel_lab.evals.commits.compare import compare_commits

        return await compare_commits(self, base, head, suite=suite, design=design, **options)

    compare_sync = blocking_twin(compare)

    def configure(self, key: str, value: Any) -> Settings:
        """Change a setting for the runs that this lab begins from now on, as text or as the value itself;
        returns that setting.

        Files stay as they are. Raises `UsageError` for a setting that does not exist, a value that it cannot
        have, and for `home` and others that a lab is made with.
        """
        changed = self.settings.given("this session", **{key: value})
        if key in LIMITS:
            update: LabOptions = {"limits": changed.limits}
        elif key in LabOptions.__annotations__.keys() - _OPENED_WITH:
            update = {key: changed[key]}  # type: ignore[misc]  # a field that is a setting of the same name
        else:
            msg = (
                f"{key} cannot be changed in a lab that is at work: make another with Lab(…), or set "
                "it in kestrel.toml and begin anew"
            )
            raise UsageError(msg)
        self.change(**update)
        self.settings = changed
        return changed.only(key)

    @takes_options(RunOptions)
    async def websearch(
        self,
        question: str,
        *,
        queries: int = 3,
        results: int = 8,
        pages: int = 4,
        grounded: bool = False,
        **options: Unpack[RunOptions],
    ) -> EvidenceBundle:
        """Search the web for what answers `question`: a run, whose outcome is the evidence with its quotes
        checked.

        At most so many `queries`, `results` of each and `pages` read; searching is LOW, reading a page is
        MEDIUM and asked about unless the policy allows it (`approve="auto:medium"`). `grounded` has the
        model's own web search find the pages. Where no model can be used, or `model="none"`, there are
        results and no facts. Takes the options of `run`. Raises `UsageError` for a model without web search
        where `grounded` is asked for, `RunFailed` when the run fails, `ApprovalRequired` like `run`.
        """
        from kestrel_lab.agents import SearchAgent
        from kestrel_lab.runtime.workspace.search import evidence_of, search_model

        agent = SearchAgent(queries=queries, results=results, pages=pages, grounded=grounded)
        options["model"], options["plan"] = (
            search_model(self, options.get("model"), grounded=grounded),
            agent,
        )
        return evidence_of(await self.run(question, **options))

    websearch_sync = blocking_twin(websearch)

    def __repr__(self) -> str:
        tools = len(self.registry.known_at_once(None)[0])
        return (
            f"Lab(home={str(self.home)!r}, model={self._model_name()!r}, "
            f"approve={self.options['approve']!r}): {tools} tools"
        )

    def _repr_html_(self) -> str:
        registry = self.registry
        rows = [
            ("log", str(self.store.path)),
            ("model", self._model_name()),
            (
                "approval policy",
                self.options["approve"] + (f", {len(self.rules)} rules" if self.rules else ""),
            ),
            (
                "limits",
                ", ".join(
                    f"{key} {value}" for key, value in self.limits.as_json().items() if value is not None
                ),
            ),
            ("tools", ", ".join(registry.known_at_once(None)[0].names)),
            ("tools on request", ", ".join(tool.name for tool in registry.toolbox if tool.group)),
            ("runs", str(self.history.count())),
        ]
        return f"{headline_html('Lab')}{table_html(('what', 'value'), rows)}"

    def _model_name(self) -> str:
        model = self.options.get("model")
        if model is None:
            return "the first that is found"
        return model if isinstance(model, str) else f"{model.name} ({model.kind})"
