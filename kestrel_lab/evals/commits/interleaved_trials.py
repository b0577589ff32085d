"""Interleaved trials: commits take turns at running a suite, each in a worker process in its own checkout and
environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, Unpack

from kestrel_lab.core.errors import UsageError, most_severe
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.commits.comparison import Side
from kestrel_lab.evals.commits.worktrees import environment_for, temporary_worktree
from kestrel_lab.evals.execution.progress import EvalProgress
from kestrel_lab.evals.execution.remote_trials import bench_order
from kestrel_lab.evals.execution.reuse import Reuse, reusable_rows
from kestrel_lab.evals.execution.runner import plan_trials, require_all_rows, sort_rows
from kestrel_lab.evals.execution.trial import TrialRequest
from kestrel_lab.evals.git import code_version, commit_of, file_at, has_file
from kestrel_lab.evals.options import Selection
from kestrel_lab.evals.reports.gate_needs import gates_out_of_reach
from kestrel_lab.evals.stored_trials import EvalRow, store_trial
from kestrel_lab.evals.suite import MOST_EPOCHS, Suite
from kestrel_lab.evals.suites.cassettes import default_folder, with_cassette
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.services import Services

AT_ONCE: Final = 8
"""Commits whose processes are kept alive at once."""
FIRST_OF_SEARCH: Final = MOST_EPOCHS + 1
"""The first epoch of trials made to search for a bad commit.

They are kept apart: those that made somebody search would favour what was seen in them, and those made until
something could be decided would tilt an average.
"""

_WORKER_MODULES: Final = (
    "kestrel_lab.evals.execution.remote_trials",
    "kestrel_lab.evals.commits.worker",
    "kestrel_lab.evals.worker",
)
"""The module that serves trials, by the names that it has in this version and in earlier ones, whose commits
can be compared, too.
"""


@dataclass(kw_only=True, slots=True)
class CommitTrials:
    """One commit and its trials."""

    name: str
    """The name that the user gave."""
    sha: str
    suite: Suite
    asks: list[TrialRequest]
    found: Reuse
    own: bool = False
    """Whether the suite is the one of that commit."""
    prompts_differ: bool = False
    """Whether it has its own suite because the prompts there are not those of the present suite."""
    new_scenarios: frozenset[str] = frozenset()
    """Scenarios of the present suite that the commit's own suite file does not have."""
    newer: bool = False
    """Whether the commit has no such suite: files that it lacks then come from the present checkout."""
    made: list[EvalRow] = field(default_factory=list)
    """Trials that were run now."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Scenarios that it cannot run, and why."""
    broken: str = ""
    """Why it cannot be run at all."""

    @property
    def title(self) -> str:
        """The commit as messages name it: name and short hash."""
        return f"{self.name} ({self.sha[:10]})"

    @property
    def todo(self) -> list[TrialRequest]:
        """The trials to run: neither stored ones nor those that this commit cannot run."""
        if self.broken:
            return []
        return [
            ask
            for ask in self.asks
            if ask.identity.key not in self.found.rows and ask.scenario.id not in self.skipped
        ]

    @property
    def all_rows(self) -> tuple[EvalRow, ...]:
        """Stored trials and those that were run now, in order."""
        return sort_rows(self.asks, [*self.found.rows.values(), *self.made])

    def side(self) -> Side:
        """Return the commit as one side of a comparison."""
        return Side(
            name=self.name,
            sha=self.sha,
            rows=self.all_rows,
            reused=len(self.found.rows),
            skipped=self.skipped,
            newer=self.newer,
            prompts_differ=self.prompts_differ,
            new_scenarios=self.new_scenarios,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A suite file, as it is now, in its repository."""

    path: Path
    suite: Suite
    repository: Path
    parts: Selection = field(default_factory=Selection)
    """The parts of the suite that were asked for."""
    cassette: str | None = None
    """The mode of cassettes that was asked for in place of the suite's."""
    cassettes: str | Path | None = None

    def inside(self, tree: Path) -> Path:
        """Return where a checkout has, or would have, its own suite file."""
        return tree / self.path.relative_to(self.repository)

    def recordings(self, tree: Path) -> dict[str, Json]:
        """Return what a worker in a checkout is to know of cassettes: a commit is replayed from its own
        recordings, as far as it has some.
        """
        use = self.suite.cassette
        if use.mode == "off":
            return {}
        folder = use.folder if use.folder is not None else default_folder(self.path, self.suite.name)
        if use.mode == "replay" and folder.is_relative_to(self.repository):
            own = tree / folder.relative_to(self.repository)
            folder = own if own.is_dir() else folder
        return {"cassette": use.mode, "cassettes": str(folder.absolute())}


def suite_with_parts(
    lab: Services,
    suite: str | Path,
    *,
    epochs: int | None,
    cassette: str | None = None,
    cassettes: str | Path | None = None,
    **parts: Unpack[Selection],
) -> Place:
    """Return the suite with the selected parts; raises `UsageError` where it cannot be run at commits."""
    path = Path(suite).absolute()
    chosen = with_cassette(load_suite(suite), cassette, cassettes).select(epochs=epochs, **parts)
    if cassette in ("record", "refresh") and cassettes is None:
        msg = (
            "the checkout of a commit is thrown away, and a recording with it: kestrel eval run "
            f"{suite} --cassette {cassette} makes"
        )
        raise UsageError(f"{msg} recordings to commit; commits are compared with --cassette replay")
    if chosen.root is None:
        msg = (
            f"{suite} is not in a git repository, so there are no commits to compare: git init, and commit it"
        )
        raise UsageError(f"{msg} (kestrel eval compare SUITE --arms compares configurations instead)")
    if not isinstance(lab.options.get("model"), str | None) and any(
        not config.model for config in chosen.configs
    ):
        raise UsageError(
            "commits are compared in processes of their own, which cannot use a model object: give the "
            "suite's configurations a model's name"
        )
    return Place(
        path=path, suite=chosen, repository=chosen.root, parts=parts, cassette=cassette, cassettes=cassettes
    )


async def plan_commit(
    lab: Services, place: Place, name: str, *, own_suite: bool | None = False
) -> CommitTrials:
    """Return the trials of the commit `name`, and which of them are stored.

    With `own_suite` it is what the commit's own suite file asks for; `None` means so where the prompts there
    are other ones, so that a prompt is compared alike wherever it stands. A commit whose own file is missing
    or not in order is `broken`; `UsageError` is raised for a name that is not a commit.
    """
    sha = await commit_of(place.repository, name)
    suite, broken = place.suite, ""
    then = await _earlier_suite(lab, place, sha) if own_suite is None else None
    prompts_differ = then is not None and _have_other_prompts(then, place.suite)
    own_suite = own_suite or prompts_differ
    if own_suite:
        async with temporary_worktree(place.repository, sha, lab.home) as tree:
            try:
                suite = _as_asked(load_suite(place.inside(tree)), place)
            except UsageError as error:
                broken = str(error).replace(f"{tree}/", "")
    newer = not own_suite and not await has_file(
        place.repository, sha, place.path.relative_to(place.repository)
    )
    # What comes from the present checkout is part of what was tried, so stored trials count only as long as
    # that is the same.
    code = f"{sha}+{await code_version(place.repository, but=lab.home.absolute())}" if newer else sha
    asks = [] if broken else plan_trials(suite, code=code, git_sha=sha)
    found = reusable_rows(lab.store, suite, asks)
    return CommitTrials(
        name=name,
        sha=sha,
        suite=suite,
        asks=asks,
        found=found,
        own=own_suite,
        prompts_differ=prompts_differ,
        new_scenarios=frozenset() if then is None else frozenset(_prompts(place.suite)) - set(_prompts(then)),
        newer=newer,
        broken=broken,
    )


async def _earlier_suite(lab: Services, place: Place, sha: str) -> Suite | None:
    """Return the suite as the file of a commit has it; `None` where that is the present file, or where the
    commit has none that can be read.
    """
    text = await file_at(place.repository, sha, place.path.relative_to(place.repository))
    if text is None or text == place.path.read_bytes():
        return None
    async with temporary_worktree(place.repository, sha, lab.home) as tree:
        try:
            suite = load_suite(place.inside(tree))
        except UsageError:
            # What this version cannot read says nothing of prompts.
            return None
    names = {scenario.id for scenario in place.suite.scenarios}
    common = [scenario for scenario in suite.scenarios if scenario.id in names]
    return suite.model_copy(update={"scenarios": tuple(common)}) if common else None


def _have_other_prompts(then: Suite, now: Suite) -> bool:
    """Return whether one suite asks the model something else than the other, in a scenario that both have."""
    prompts_then, prompts_now = _prompts(then), _prompts(now)
    return any(prompts_then[name] != prompts_now[name] for name in prompts_then.keys() & prompts_now.keys())


def _prompts(suite: Suite) -> dict[str, tuple[object, ...]]:
    """Return what a suite file itself says to models, by scenario."""
    return {
        scenario.id: (suite.instructions, scenario.goal, scenario.turns, scenario.history, scenario.user)
        for scenario in suite.scenarios
    }


def _as_asked(suite: Suite, place: Place) -> Suite:
    parts: Selection = {**place.parts, "configs": [config.name for config in place.suite.configs]}
    return with_cassette(suite, place.cassette, place.cassettes).select(epochs=place.suite.epochs, **parts)


async def run_interleaved(
    lab: Services, place: Place, works: Sequence[CommitTrials], reporter: Reporter | None, *, strict: bool
) -> None:
    """Run what is missing; the commits take turns epoch by epoch, and which goes first changes from epoch to
    epoch.

    A slow hour of a provider so falls on all of them. Where a commit cannot be run, that is raised if
    `strict`; otherwise it is noted in the commit's `broken`.
    """
    stored = [row for work in works for row in work.found.rows.values()]
    total = sum(len(work.asks) for work in works)
    count = EvalProgress(reporter, total, stored, notice="; ".join(gates_out_of_reach(place.suite))).count

    # Preparations are shown too, though they finish no trial.
    def note(text: str) -> None:
        if reporter is not None:
            reporter(len(stored) + sum(len(work.made) for work in works), total, one_line(text, 200))

    async with WorkerPool(lab, place, note) as crew:
        await crew.begin([work for work in works if work.todo])
        epochs = sorted({ask.epoch for work in works for ask in work.todo})
        for turn, epoch in enumerate(epochs):
            # A provider that slows down during an epoch must not always slow the same commit.
            for work in works if turn % 2 == 0 else reversed(works):
                asks = [ask for ask in work.todo if ask.epoch == epoch]
                try:
                    await crew.make(work, asks, count)
                except UsageError as error:
                    if strict:
                        raise
                    work.broken = str(error)
    lab.store.flush()


class WorkerPool:
    """Processes that run trials of commits, each in its worktree and environment; started when first needed.

    At most `AT_ONCE` are alive; the one that was used longest ago makes room. All end with the block.
    """

    def __init__(
        self, lab: Services, place: Place, note: Callable[[str], None], *, epochs: int | None = None
    ) -> None:
        self._lab = lab
        self._place = place
        self._note = note
        self._epochs = epochs
        self._alive: dict[str, tuple[Worker, AsyncExitStack]] = {}
        self._failed: dict[str, UsageError] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while self._alive:
                _, stack = self._alive.pop(next(iter(self._alive)))
                await stack.__aexit__(kind, error, trace)
        finally:
            # A worktree that cannot be removed must not leave the processes of the others.
            if self._alive:
                await self.__aexit__(kind, error, trace)

    async def begin(self, works: Sequence[CommitTrials]) -> None:
        """Start the processes of the first of `works` at the same time; a failure to start is raised when the
        process is needed.
        """
        # A start checks out a commit and may install its requirements, so few are made at once.
        starting = asyncio.Semaphore(4)

        async def start(work: CommitTrials) -> None:
            async with starting:
                try:
                    await self._process(work)
                except UsageError as error:
                    self._failed[work.sha] = error

        new = [work for work in works if work.sha not in self._alive]
        try:
            async with asyncio.TaskGroup() as group:
                for work in new[: AT_ONCE - len(self._alive)]:
                    group.create_task(start(work), name=f"kestrel start {work.sha[:10]}")
        except BaseExceptionGroup as errors:
            # A group of errors says little to a person: the gravest of them is raised.
            raise most_severe([errors]) from None

    async def make(
        self, work: CommitTrials, asks: Sequence[TrialRequest], on_row: Callable[[EvalRow], None]
    ) -> None:
        """Run trials of a commit and store each as it ends; what the commit cannot run is noted in `work`.

        Raises `UsageError` when the commit cannot be run.
        """
        if not asks:
            return
        process = await self._process(work)
        work.skipped = dict(process.skipped)
        try:
            await process.make(
                [ask for ask in asks if ask.scenario.id not in work.skipped],
                _keeper(self._lab, work, on_row),
            )
        except UsageError as error:
            _, stack = self._alive.pop(work.sha)
            await stack.__aexit__(type(error), error, error.__traceback__)
            raise

    async def _process(self, work: CommitTrials) -> Worker:
        # A start that failed is reported where the process is first needed; after that it is tried again.
        if work.sha in self._failed:
            raise self._failed.pop(work.sha)
        if work.sha in self._alive:
            # Moved to the end: the first one was used longest ago, and makes room.
            self._alive[work.sha] = self._alive.pop(work.sha)
            return self._alive[work.sha][0]
        if len(self._alive) >= AT_ONCE:
            _, stack = self._alive.pop(next(iter(self._alive)))
            await stack.aclose()
        async with AsyncExitStack() as stack:
            process = await stack.enter_async_context(self._started(work))
            self._alive[work.sha] = process, stack.pop_all()
        return process

    @asynccontextmanager
    async def _started(self, work: CommitTrials) -> AsyncIterator[Worker]:
        lab, place = self._lab, self._place
        async with temporary_worktree(place.repository, work.sha, lab.home) as tree:
            environment = await environment_for(
                place.repository, tree, lab.home, lambda text: self._note(f"{work.title}: {text}")
            )
            suite = (
                work.suite if self._epochs is None else work.suite.model_copy(update={"epochs": self._epochs})
            )
            at = place.inside(tree)
            # A commit that brings a kestrel_lab of its own, with its own format of the log, logs its runs
            # apart.
            home = lab.home.absolute()
            home = home / "commits" / work.sha[:12] if (tree / "kestrel_lab").exists() else home
            order = {
                **bench_order(lab, suite, at if work.own else place.path, work.sha),
                "at": str(at),
                "home": str(home),
                "newer": work.newer,
                **place.recordings(tree),
            }
            try:
                async with _worker(
                    order, tree, {**lab.env, **environment.env}, environment.python, work.title
                ) as process:
                    yield process
            except UsageError as error:
                # Where the commit was checked out for the moment helps nobody.
                raise UsageError(str(error).replace(f"{tree}{os.sep}", "")) from error


def _keeper(
    lab: Services, work: CommitTrials, on_row: Callable[[EvalRow], None]
) -> Callable[[EvalRow], None]:
    """Return a function that stores each row under the identity that was asked for."""
    asked = {(ask.scenario.id, ask.config.name, ask.epoch): ask for ask in work.asks}

    def keep(row: EvalRow) -> None:
        ask = asked[row.scenario, row.config, row.epoch]
        # A worker of another version may name a trial in another way: what was asked for here counts.
        result: dict[str, Json] = {**row.result, "identity": ask.identity.as_json()}
        mine = replace(row, result=result, git_sha=work.sha, key=ask.identity.key)
        store_trial(lab.store, mine)
        work.made.append(mine)
        on_row(mine)

    return keep


@dataclass(kw_only=True, slots=True)
class Worker:
    """A process that runs trials on request."""

    title: str
    """The commit, as errors name it."""
    process: Process
    errors: IO[bytes]
    skipped: dict[str, str] = field(default_factory=dict)
    """Scenarios that it cannot run, and why."""

    async def make(self, asks: Sequence[TrialRequest], on_row: Callable[[EvalRow], None]) -> None:
        """Run the trials and call `on_row` with each; raises `UsageError` when the worker fails, and
        `RunError` when it leaves a trial out.
        """
        if not asks:
            return
        rows: list[EvalRow] = []
        await self.send([[ask.scenario.id, ask.config.name, ask.epoch] for ask in asks])
        while "done" not in (message := await self.receive()):
            row = EvalRow(**message["row"])
            rows.append(row)
            on_row(row)
        require_all_rows(asks, rows)

    async def send(self, message: object) -> None:
        """Send one message."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        # That a worker is gone shows when its answer does not come.
        with contextlib.suppress(ConnectionError):
            await self.process.stdin.drain()

    async def receive(self) -> dict[str, Any]:
        """Return the next message; raises `UsageError` for a refusal, and with its last words for a worker
        that has ended.
        """
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            await self.process.wait()
            self.errors.seek(0, os.SEEK_END)
            self.errors.seek(max(0, self.errors.tell() - 2000))
            said = (
                one_line(self.errors.read().decode(errors="replace"), 1500)
                or f"exit code {self.process.returncode}"
            )
            raise UsageError(f"the process that runs {self.title} ended: {said}")
        message: dict[str, Any] = json.loads(line)
        if "refused" in message:
            raise UsageError(f"{self.title}: {message['refused']}")
        return message


@asynccontextmanager
async def _worker(
    order: dict[str, Json], tree: Path, env: dict[str, str], python: Path, title: str
) -> AsyncIterator[Worker]:
    """Start a worker in `tree` with an order from `bench_order`; it ends with the block.

    Raises `UsageError` when it cannot start or refuses.
    """
    # The checkout may bring a kestrel_lab of its own, of an earlier version.
    there = (name for name in _WORKER_MODULES if (tree / f"{name.replace('.', '/')}.py").is_file())
    module = next(there, _WORKER_MODULES[0])
    # A worker that has to be killed cannot remove the folders of its trials: they are made where this process
    # can.
    with (
        # A file and no pipe: it is read at the end only, and a full pipe would stop the worker.
        tempfile.TemporaryFile() as errors,
        tempfile.TemporaryDirectory(prefix="kestrel-", ignore_cleanup_errors=True) as scratch,
    ):
        process = await asyncio.create_subprocess_exec(
            str(python),
            "-m",
            module,
            cwd=tree,
            env={**os.environ, **env, "TMPDIR": scratch},
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            # A group of its own, so that what the trials started ends with the worker.
            start_new_session=True,
            limit=8_000_000,
        )
        try:
            made = Worker(title=title, process=process, errors=errors)
            await made.send(order)
            made.skipped = (await made.receive())["ready"]
            yield made
        except BaseException:
            # Shielded, because a second cancellation would leave the process behind.
            await asyncio.shield(_end_worker(process, 0))
            raise
        # A worker that is asked to end still stores the trial that it has just ended.
        await asyncio.shield(_end_worker(process, 5.0))


async def _end_worker(process: Process, grace: float) -> None:
    """Let the worker end by itself within `grace` seconds, then end it and everything it started."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
