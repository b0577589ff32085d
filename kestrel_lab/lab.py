"""`Lab`, the one object most users hold: runs, suites and comparisons over one log."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.protocols import Middleware, Model, Reporter
from kestrel_lab.engine.blocking import run_blocking
from kestrel_lab.engine.options import RunListener, Tools
from kestrel_lab.engine.session import Session
from kestrel_lab.engine.settings import load_settings
from kestrel_lab.engine.workspace_macros import WorkspaceMacros
from kestrel_lab.engine.workspace_memory import WorkspaceMemory
from kestrel_lab.views.html import table_html

if TYPE_CHECKING:
    from kestrel_lab.engine.run import Run
    from kestrel_lab.evals.compare import Comparison
    from kestrel_lab.evals.fromrun import ScenarioDraft
    from kestrel_lab.evals.result import EvalResult
    from kestrel_lab.evals.suite import Suite


class Lab(Session):
    """Runs agents and measures them.

    What is not given comes from `kestrel.toml`, `[tool.kestrel]` in `pyproject.toml` or `KESTREL_…`
    environment variables (`kestrel config` shows which), and at last from built-in defaults:
    `Lab(home=".kestrel", model=None, approve="ask")`.
    """

    def __init__(
        self,
        home: str | Path | None = None,
        model: str | Model | None = None,
        approve: str | None = None,
        *,
        tools: Tools = (),
        models: Mapping[str, Model] | None = None,
        middleware: Iterable[Middleware] = (),
        listeners: Iterable[RunListener] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if env is None else env
        self.settings = load_settings(Path.cwd(), env)
        super().__init__(
            home if home is not None else self.settings["home"],
            model if model is not None else self.settings["model"],
            approve if approve is not None else self.settings["approve"],
            tools=tools,
            models=models,
            middleware=middleware,
            listeners=listeners,
            limits=self.settings.limits,
            checkpoint_every=self.settings["checkpoint_every"],
            provider=self.settings["provider"],
            api_base=self.settings["api_base"],
            env=env,
        )

    @property
    def macros(self) -> WorkspaceMacros:
        """Tool sequences that agents use again in the current folder, kept or proposed; `macros.at(folder)` for another."""
        return WorkspaceMacros(self)

    @property
    def memory(self) -> WorkspaceMemory:
        """What is remembered for later runs in the current folder; `memory.at(folder)` for another."""
        return WorkspaceMemory(self)

    async def eval(
        self,
        suite: str | Path | Suite,
        *,
        configs: Sequence[str] | Mapping[str, Any] | None = None,
        epochs: int | None = None,
        reporter: Reporter | None = None,
        reuse: bool = False,
    ) -> EvalResult:
        """Run a suite of scenarios over its model configurations.

        Args:
            suite: A suite file or a loaded suite.
            configs: Names of the suite's configurations to run, or models by a name of your own; all by default.
            epochs: How often each scenario is repeated; the suite's number by default.
            reporter: Told of progress.
            reuse: Take trials that were made before with equal scenario, configuration and code.

        Returns one row per scenario × configuration × epoch; every finished trial is stored at once.
        Raises `UsageError` that names file, place and nearest spelling for a suite that is not in order.
        """
        from kestrel_lab.evals.runner import run_suite

        return await run_suite(self, suite, configs=configs, epochs=epochs, reporter=reporter, reuse=reuse)

    async def compare(
        self,
        base: str,
        head: str,
        *,
        suite: str | Path,
        configs: Sequence[str] | None = None,
        epochs: int | None = None,
        reporter: Reporter | None = None,
        margin: float = 0.05,
    ) -> Comparison:
        """Run a suite at two commits, as far as results are not stored, and compare them.

        A change of the success rate within `margin` counts as none.
        Each commit is checked out in a worktree of its own; the user's files, index and HEAD are not
        touched. Raises `UsageError` for a commit that does not exist or a folder without a repository.
        """
        from kestrel_lab.evals.compare import compare

        return await compare(self, base, head, suite=suite, configs=configs, epochs=epochs, reporter=reporter, margin=margin)

    def scenario_from(self, run: str | Run, *, beside: str | Path | None = None) -> ScenarioDraft:
        """A draft of a scenario that asks for what a run did; printed, it is the YAML, and `write(path)` makes the file.

        Goal, tools, limits and workspace are the run's, the checks are proposed from what happened; what a person has
        to look at is marked EDIT. `beside` is the folder the file is to be in, where that is not the current one.
        Raises `UsageError` for a run that has not ended.
        """
        from kestrel_lab.evals.fromrun import scenario_from

        return scenario_from(self.get(run) if isinstance(run, str) else run, beside=None if beside is None else Path(beside))

    def eval_sync(self, suite: str | Path | Suite, **options: Any) -> EvalResult:
        """`eval` for scripts; takes the same options."""
        return run_blocking(self.eval(suite, **options))

    def compare_sync(self, base: str, head: str, **options: Any) -> Comparison:
        """`compare` for scripts; takes the same options."""
        return run_blocking(self.compare(base, head, **options))

    def __repr__(self) -> str:
        return f"Lab(home={str(self.home)!r}, model={self._model_name()!r}, approve={self.approve!r}): {len(self.toolbox)} tools"

    def _repr_html_(self) -> str:
        rows = [
            ("log", str(self.store.path)),
            ("model", self._model_name()),
            ("approval policy", self.approve),
            ("limits", ", ".join(f"{key} {value}" for key, value in self.limits.as_json().items() if value is not None)),
            ("tools", ", ".join(self.toolbox.names)),
            ("runs", str(len(self.store.runs(limit=10_000, trials=False)))),
        ]
        return f"<b>{html.escape('Lab')}</b>{table_html(('what', 'value'), rows)}"

    def _model_name(self) -> str:
        if self.model is None:
            return "the first that is found"
        return self.model if isinstance(self.model, str) else f"{self.model.name} ({self.model.kind})"
