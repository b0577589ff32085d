"""Compare two commits: run a suite at each, as far as results are not stored, and say what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.engine.session import Session
from kestrel_lab.evals.commits import environment_for, worktree
from kestrel_lab.evals.comparison import Comparison, Side
from kestrel_lab.evals.git import commit_of
from kestrel_lab.evals.remote import Worker, worker
from kestrel_lab.evals.reuse import Reuse, look_up
from kestrel_lab.evals.runner import count_rows, in_order, plan_trials
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suitefile import load_suite
from kestrel_lab.evals.trial import Ask
from kestrel_lab.log.store import EvalRow

__all__ = ["Comparison", "compare"]


@dataclass(kw_only=True, slots=True)
class _Work:
    """One commit while it is being measured."""

    name: str
    sha: str
    asks: list[Ask]
    found: Reuse
    rows: list[EvalRow] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def todo(self) -> list[Ask]:
        return [ask for ask in self.asks if ask.identity.key not in self.found.rows]

    def side(self) -> Side:
        rows = in_order(self.asks, [*self.found.rows.values(), *self.rows])
        return Side(name=self.name, sha=self.sha, rows=rows, reused=len(self.found.rows), skipped=self.skipped)


async def compare(
    session: Session,
    base: str,
    head: str,
    *,
    suite: str | Path,
    configs: Sequence[str] | None = None,
    epochs: int | None = None,
    reporter: Reporter | None = None,
    margin: float = 0.05,
) -> Comparison:
    """Run the suite file, as it is now, against the code of two commits and compare what comes out.

    Each commit is checked out in a worktree of its own, where folders, tools, instructions and scripts that
    the suite names are found; the user's files, index and HEAD are not touched. Trials stored for equal
    commit, scenario and configuration are not made again. The two commits take turns epoch by epoch, so that
    a slow hour of a provider falls on both. `margin` is how large a change still counts as none.

    Raises `UsageError` for commits that do not exist or are the same, a suite outside a git repository, and
    what a commit cannot run.
    """
    path = Path(suite)
    chosen = load_suite(path).select(configs=configs, epochs=epochs)
    repository = chosen.root
    if repository is None:
        msg = f"{suite} is not in a git repository, so there are no commits to compare"
        raise UsageError(msg)
    if session.model is not None and not isinstance(session.model, str) and any(not config.model for config in chosen.configs):
        msg = "commits are compared in processes of their own, which cannot use a model object: give the suite's configurations a model's name"
        raise UsageError(msg)
    works = [await _work(session, chosen, repository, name) for name in (base, head)]
    if works[0].sha == works[1].sha:
        msg = f"{base} and {head} are the same commit {works[0].sha[:10]}: there is nothing to compare"
        raise UsageError(msg)
    stored = [row for work in works for row in work.found.rows.values()]
    count = count_rows(reporter, sum(len(work.asks) for work in works), stored)
    if any(work.todo for work in works):
        await _measure(session, chosen, path, repository, works, count, _teller(reporter, works))
    return Comparison(suite=chosen, base=works[0].side(), head=works[1].side(), margin=margin, store=session.store)


async def _work(session: Session, suite: Suite, repository: Path, name: str) -> _Work:
    sha = await commit_of(repository, name)
    asks = plan_trials(suite, code=sha, git_sha=sha)
    return _Work(name=name, sha=sha, asks=asks, found=look_up(session.store, suite, asks))


async def _measure(
    session: Session, suite: Suite, path: Path, repository: Path, works: list[_Work], count: Callable[[EvalRow], None], note: Callable[[str], None]
) -> None:  # fmt: skip
    """Make what is missing, the commits taking turns; which goes first changes from epoch to epoch."""
    async with AsyncExitStack() as stack:
        pairs: list[tuple[_Work, Worker]] = [
            (work, await stack.enter_async_context(_started(session, suite, path, repository, work, note))) for work in works if work.todo
        ]
        for epoch in range(1, suite.epochs + 1):
            for work, process in pairs if epoch % 2 else reversed(pairs):
                work.skipped = process.skipped
                asks = [ask for ask in work.todo if ask.epoch == epoch and ask.scenario.id not in process.skipped]
                await process.make(asks, _keeper(session, work, count))
    session.store.flush()


@asynccontextmanager
async def _started(
    session: Session, suite: Suite, path: Path, repository: Path, work: _Work, note: Callable[[str], None]
) -> AsyncIterator[Worker]:
    """A worker for one commit, in its worktree and environment."""
    title = f"{work.name} ({work.sha[:10]})"
    async with worktree(repository, work.sha, session.home) as tree:
        environment = await environment_for(repository, tree, session.home, lambda text: note(f"{title}: {text}"))
        suite_file, at = _suite_files(path, repository, tree)
        home = _home(session, tree, work.sha)
        async with worker(session, suite, suite_file, at, tree, work.sha, environment, home=home, title=title) as process:
            yield process


def _suite_files(path: Path, repository: Path, tree: Path) -> tuple[Path, Path]:
    """The suite file as it is now, and where the commit has, or would have, its own."""
    file = path.absolute()
    return file, tree / file.relative_to(repository)


def _home(session: Session, tree: Path, sha: str) -> Path:
    """Where the worker logs its runs: in the session's log, unless the commit brings a kestrel_lab with its own log format."""
    home = session.home.absolute()
    return home / "commits" / sha[:12] if (tree / "kestrel_lab").exists() else home


def _keeper(session: Session, work: _Work, count: Callable[[EvalRow], None]) -> Callable[[EvalRow], None]:
    """Stores each row under the identity it was asked for with."""
    asked = {(ask.scenario.id, ask.config.name, ask.epoch): ask for ask in work.asks}

    def keep(row: EvalRow) -> None:
        ask = asked[row.scenario, row.config, row.epoch]
        result: dict[str, Json] = {**row.result, "identity": ask.identity.as_json()}
        mine = replace(row, result=result, git_sha=work.sha, key=ask.identity.key)
        session.store.add_eval_run(mine)
        work.rows.append(mine)
        count(mine)

    return keep


def _teller(reporter: Reporter | None, works: list[_Work]) -> Callable[[str], None]:
    """Tells the reporter of preparations, which finish no trial."""

    def note(text: str) -> None:
        if reporter is not None:
            reporter(sum(len(work.found.rows) + len(work.rows) for work in works), sum(len(work.asks) for work in works), text)

    return note
