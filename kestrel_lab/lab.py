"""`Lab`, the one object most users hold: runs, suites and comparisons over one log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from kestrel_lab.agents import SearchAgent
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Middleware, Model, Reporter
from kestrel_lab.core.run_types import Limits
from kestrel_lab.core.sanitize import plain
from kestrel_lab.evals.options import EvalOptions, Selection, takes
from kestrel_lab.mcp.config import read_server
from kestrel_lab.permissions.rulebook import GivenRules, rulebook
from kestrel_lab.runtime.context.toolboxes import Tools
from kestrel_lab.runtime.mcp.discovery import ExpansionSettings
from kestrel_lab.runtime.options import RunListener, RunOptions, checked
from kestrel_lab.runtime.project_trust import TrustedFiles, check_home, told
from kestrel_lab.runtime.session import Session
from kestrel_lab.runtime.settings import LIMITS, Settings, expansion_of, load_settings, mcp_servers
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.runtime.workspace.folder_search import Searching
from kestrel_lab.runtime.workspace.macros import WorkspaceMacros
from kestrel_lab.runtime.workspace.memory import WorkspaceMemory
from kestrel_lab.runtime.workspace.web_search import evidence_of, search_model
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.views.html.elements import headline_html, table_html

if TYPE_CHECKING:
    from kestrel_lab.evals.commits.bisect_result import BisectResult
    from kestrel_lab.evals.commits.compare import Comparison
    from kestrel_lab.evals.commits.history import History
    from kestrel_lab.evals.execution.result import EvalResult
    from kestrel_lab.evals.stored.rescore import Rescored
    from kestrel_lab.evals.stored.summary import StoredSummary
    from kestrel_lab.evals.suite import Suite
    from kestrel_lab.evals.suites.scenario_from_run import ScenarioDraft
    from kestrel_lab.runtime.operations.web_evidence import EvidenceBundle
    from kestrel_lab.runtime.run import Run


_AS_SET = (
    *("checkpoint_every", "provider", "api_base", "sandbox", "cache", "cache_url", "network", "sandbox_memory"),
    *("containment", "verify", "abstain", "network_home", "form"),
)
"""Options of a session that are settings of the same name."""
_TOLD: set[str] = set()


def _tell_ignored(settings: Settings) -> None:
    """Say once what of a project's settings does not hold, because nobody trusts them."""
    text = told(settings.ignored)
    if text and text not in _TOLD:
        _TOLD.add(text)
        sys.stderr.write(f"{plain(text)}\n")


class Lab(Session):
    """Runs agents and measures them.

    Takes the options of `Session`, which describes them. What is not given comes from `kestrel.toml`, `[tool.kestrel]` in `pyproject.toml` or `KESTREL_…`
    environment variables (`kestrel config` shows which), and at last from built-in defaults:
    `Lab(home=".kestrel", model=None, approve="ask")`.

    `mcp` adds MCP servers to those that are configured: `Lab(mcp={"time": {"command": "mcp-server-time"}})`. Their
    tools are called `time:convert_time` and count as MEDIUM and opaque unless their table says otherwise.

    `rules` adds rules about calls to those of the settings, as a file or as tables:
    `Lab(rules=[{"tool": "bash", "command": "git diff ...", "verdict": "allow"}])`. Deny wins over ask, ask over allow.
    """

    @checked
    def __init__(
        self,
        home: str | Path | None = None,
        model: str | Model | None = None,
        approve: str | None = None,
        *,
        sandbox: str | None = None,
        cache: str | None = None,
        cache_url: str | None = None,
        tools: Tools = (),
        models: Mapping[str, Model] | None = None,
        middleware: Iterable[Middleware] = (),
        listeners: Iterable[RunListener] = (),
        limits: Limits | None = None,
        checkpoint_every: int | None = None,
        provider: str | None = None,
        api_base: str | None = None,
        network: bool | None = None,
        sandbox_memory: float | None = None,
        containment: str | None = None,
        verify: str | None = None,
        abstain: float | None = None,
        network_home: bool | None = None,
        form: str | None = None,
        expansion: ExpansionSettings | None = None,
        env: Mapping[str, str] | None = None,
        mcp: Mapping[str, Mapping[str, Any]] | None = None,
        rules: GivenRules = None,
    ) -> None:
        env = os.environ if env is None else env
        named = model if isinstance(model, str) else None if model is None else model.name
        bounds = {} if limits is None else {key: value for key, value in limits.as_json().items() if key in LIMITS}
        same = (
            *(checkpoint_every, provider, api_base, sandbox, cache, cache_url, network, sandbox_memory),
            *(containment, verify, abstain, network_home, form),
        )
        self.settings = load_settings(Path.cwd(), env).given(
            "Lab(…)",
            home=None if home is None else str(home),
            model=named,
            approve=approve,
            **dict(zip(_AS_SET, same, strict=True)),
            **{key: "none" if value is None else value for key, value in bounds.items()},
        )
        _tell_ignored(self.settings)
        if home is None and self.settings.items["home"].source != "KESTREL_HOME":
            check_home(Path(self.settings["home"]), TrustedFiles.of(env))
        super().__init__(
            self.settings["home"],
            model if model is not None else self.settings["model"],
            self.settings["approve"],
            tools=tools,
            models=models,
            middleware=middleware,
            listeners=listeners,
            limits=limits or self.settings.limits,
            env=env,
            rules=self.settings.rules + rulebook(rules, "Lab(rules=…)"),
            expansion=expansion or expansion_of(self.settings),
            mcp=mcp_servers(Path.cwd(), env) | {name: read_server(name, table) for name, table in (mcp or {}).items()},
            **{key: self.settings[key] for key in _AS_SET},
        )

    def configure(self, key: str, value: Any) -> Settings:
        """Change a setting for the runs that this lab begins from now on, as text or as the value itself; returns that setting.

        Files stay as they are. Raises `UsageError` for a setting that does not exist, a value that it cannot have, and
        for `home` and others that a lab is made with.
        """
        changed = self.settings.given("this session", **{key: value})
        match key:
            case "cache":
                self.cache.mode = changed[key]
            case "model" | "approve" | "checkpoint_every" | "verify" | "form":
                setattr(self, key, changed[key])
            case "abstain":
                self.ports = replace(self.ports, abstain=changed[key])
            case "network" | "sandbox" | "sandbox_memory":
                self.sandbox = Sandbox.parse(
                    changed["sandbox"], network=changed["network"], hidden=self.sandbox.hidden, memory_gib=changed["sandbox_memory"]
                )
            case _ if key in LIMITS:
                self.limits = changed.limits
            case _:
                msg = (
                    f"{key} cannot be changed in a lab that is at work: make another with Lab(…), or set it in kestrel.toml and begin anew"
                )
                raise UsageError(msg)
        self.settings = changed
        return changed.only(key)

    @property
    def macros(self) -> WorkspaceMacros:
        """Tool sequences that agents use again in the current folder, kept or proposed; `macros.at(folder)` for another."""
        return WorkspaceMacros(self)

    @property
    def memory(self) -> WorkspaceMemory:
        """What is remembered for later runs in the current folder; `memory.at(folder)` for another."""
        return WorkspaceMemory(self)

    def searching(self, folder: str | Path = ".") -> Searching:
        """Finds what a folder holds for a question: `search`, `find_files`, `explain`, `definitions`, `references`, `status`."""
        return Searching(self.indexes, folder)

    @takes(EvalOptions)
    async def eval(self, suite: str | Path | Suite, *, cluster: str | None = None, **options: Any) -> EvalResult:
        """Run a suite of scenarios, a file or a loaded one, over its model configurations.

        The options are described by `kestrel_lab.evals.options.EvalOptions`: `configs` or models in their place, `epochs`,
        `scenarios`, `families`, `tags`, `reuse`, `resume`, `retry_errors`, `cassette` … `cluster` is the address of a Dask
        scheduler whose workers run the trials.

        Returns one row per scenario × configuration × epoch; every finished trial is stored at once.
        Raises `UsageError` that names file, place and nearest spelling for a suite that is not in order.
        """
        from kestrel_lab.evals.execution.dask_cluster import on_cluster
        from kestrel_lab.evals.execution.runner import run_suite

        make = None if cluster is None else on_cluster(cluster)
        return await run_suite(self, suite, make=make, **options)

    @takes(Selection)
    async def compare(
        self,
        base: str = "auto",
        head: str = "HEAD",
        *,
        suite: str | Path,
        epochs: int | None = None,
        reporter: Reporter | None = None,
        margin: float = 0.05,
        own_suite: bool = False,
        **parts: Unpack[Selection],
    ) -> Comparison:
        """Run a suite at two commits, as far as results are not stored, and compare them.

        `base` may be `auto`: the nearest ancestor of `head` on the main branch that has results, or else the
        nearest there. With `own_suite` each commit runs the suite file it has itself. A change of the success rate within `margin` counts as none.
        `configs`, `scenarios`, `families` and `tags` select parts of the suite as for `eval`.
        Each commit is checked out in a worktree of its own; the user's files, index and HEAD are not
        touched. Raises `UsageError` for a commit that does not exist or a folder without a repository.
        """
        from kestrel_lab.evals.commits.compare import compare

        return await compare(self, base, head, suite=suite, epochs=epochs, reporter=reporter, margin=margin, own_suite=own_suite, **parts)

    async def eval_commits(self, suite: str | Path, commits: str, **options: Any) -> History:
        """Run a suite at several commits (`A..B`, or `A,B,C`), as far as results are not stored.

        Options: `every`, `last` to take some of the commits, `configs`, `epochs`, `metric` to look at, `reporter`,
        `own_suite` as for `compare`. The commits take turns epoch by epoch. Gives one row per trial with its
        commit (`.frame`), a row per commit (`.summary()`), `.steps` and `.plot()`; a commit that cannot be run is
        noted. Raises `UsageError` for names that are no commits and when none can be run.
        """
        from kestrel_lab.evals.commits.run_history import run_commits

        return await run_commits(self, suite, commits, **options)

    async def history(self, suite: str | Path, **options: Any) -> History:
        """A metric of a suite over commits, from stored results alone, and the commits at which it steps.

        Options: `commits`, `every`, `last` as for `eval_commits` (by default HEAD and before, those with results),
        `configs`, `metric`, `any_version` to count trials of scenarios that have changed since. Raises
        `UsageError` when nothing is stored for these commits.
        """
        from kestrel_lab.evals.commits.run_history import stored_history

        return await stored_history(self, suite, **options)

    async def bisect(self, suite: str | Path, good: str, bad: str = "HEAD", **options: Any) -> BisectResult:
        """Find the first commit after `good`, up to `bad`, at which a metric is worse, with as many trials as that needs.

        Options: `metric`, `margin` (how much worse is still not bad), `max_trials` made now, `alpha` (how often a
        wrong commit may be named), `configs`, `reporter`. Asked again it goes on where it was. Raises `UsageError`
        for commits that are not in one line and when the first or last cannot be run.
        """
        from kestrel_lab.evals.commits.bisect import find_first_bad

        return await find_first_bad(self, suite, good, bad, **options)

    @takes(Selection)
    async def rescore(self, suite: str | Path | Suite, *, commit: str | None = None, **parts: Unpack[Selection]) -> Rescored:
        """Rescore the stored trials of a suite by the checks it has now, without asking a model or calling a tool.

        The newest trial of each scenario, configuration and epoch of `commit`, or of the commit tried last. Checks that
        need what is not in the log keep their old scores, and the result says which. New scores are stored beside the
        old ones; where all checks could be judged, `reuse` takes them. `configs`, `scenarios`, `families` and `tags` select as for `eval`. Raises `UsageError` when nothing is stored.
        """
        from kestrel_lab.evals.stored.rescore import rescore

        return await rescore(self, suite, commit=commit, **parts)

    @takes(Selection)
    def stored(
        self,
        suite: str | Path | Suite,
        *,
        commit: str | None = None,
        by: str = "config",
        metrics: Sequence[str] = (),
        **parts: Unpack[Selection],
    ) -> StoredSummary:
        """Summarise the stored trials of a suite `by` config, family or scenario: every metric with its interval; nothing is run.

        They are those of `commit`, or of the commit that was tried last, and of the selected parts of the suite. Any number of trials takes little memory.
        """
        from kestrel_lab.evals.stored.summary import summarise_stored

        return summarise_stored(self, suite, commit=commit, by=by, metrics=metrics, **parts)

    def rescore_sync(self, suite: str | Path | Suite, **options: Any) -> Rescored:
        """`rescore` for scripts; takes the same options."""
        return run_blocking(self.rescore(suite, **options))

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
        """Search the web for what answers `question`: a run, whose outcome is the evidence with its quotes checked.

        At most so many `queries`, `results` of each and `pages` read; searching is LOW, reading a page is MEDIUM and
        asked about unless the policy allows it (`approve="auto:medium"`). `grounded` has the model's own web search find the pages.
        Where no model can be used, or `model="none"`, there are results and no facts. Takes the options of `run`.
        Raises `UsageError` for a model without web search where `grounded` is asked for, `RunFailed` when the run fails,
        `ApprovalRequired` like `run`.
        """
        agent = SearchAgent(queries=queries, results=results, pages=pages, grounded=grounded)
        options["model"], options["plan"] = search_model(self, options.get("model"), grounded=grounded), agent
        return evidence_of(await self.run(question, **options))

    def websearch_sync(self, question: str, **options: Any) -> EvidenceBundle:
        """`websearch` for scripts; takes the same options."""
        return run_blocking(self.websearch(question, **options))

    def scenario_from(self, run: str | Run, *, beside: str | Path | None = None) -> ScenarioDraft:
        """A draft of a scenario that asks for what a run did; printed, it is the YAML, and `write(path)` makes the file.

        Goal, tools, limits and workspace are the run's, the checks are proposed from what happened; what a person has
        to look at is marked EDIT. `beside` is the folder the file is to be in, where that is not the current one.
        Raises `UsageError` for a run that has not ended.
        """
        from kestrel_lab.evals.suites.scenario_from_run import scenario_from

        return scenario_from(self.get(run) if isinstance(run, str) else run, beside=None if beside is None else Path(beside))

    def eval_sync(self, suite: str | Path | Suite, **options: Any) -> EvalResult:
        """`eval` for scripts; takes the same options."""
        return run_blocking(self.eval(suite, **options))

    def compare_sync(self, base: str = "auto", head: str = "HEAD", **options: Any) -> Comparison:
        """`compare` for scripts; takes the same options."""
        return run_blocking(self.compare(base, head, **options))

    def eval_commits_sync(self, suite: str | Path, commits: str, **options: Any) -> History:
        """`eval_commits` for scripts; takes the same options."""
        return run_blocking(self.eval_commits(suite, commits, **options))

    def history_sync(self, suite: str | Path, **options: Any) -> History:
        """`history` for scripts; takes the same options."""
        return run_blocking(self.history(suite, **options))

    def bisect_sync(self, suite: str | Path, good: str, bad: str = "HEAD", **options: Any) -> BisectResult:
        """`bisect` for scripts; takes the same options."""
        return run_blocking(self.bisect(suite, good, bad, **options))

    def __repr__(self) -> str:
        return f"Lab(home={str(self.home)!r}, model={self._model_name()!r}, approve={self.approve!r}): {len(self.known_at_once(None)[0])} tools"

    def _repr_html_(self) -> str:
        rows = [
            ("log", str(self.store.path)),
            ("model", self._model_name()),
            ("approval policy", self.approve + (f", {len(self.rules)} rules" if self.rules else "")),
            ("limits", ", ".join(f"{key} {value}" for key, value in self.limits.as_json().items() if value is not None)),
            ("tools", ", ".join(self.known_at_once(None)[0].names)),
            ("tools on request", ", ".join(tool.name for tool in self.toolbox if tool.group)),
            ("runs", str(len(self.store.runs(limit=10_000, trials=False)))),
        ]
        return f"{headline_html('Lab')}{table_html(('what', 'value'), rows)}"

    def _model_name(self) -> str:
        if self.model is None:
            return "the first that is found"
        return self.model if isinstance(self.model, str) else f"{self.model.name} ({self.model.kind})"
