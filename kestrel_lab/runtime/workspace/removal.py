"""Removal of runs and of what they keep beside the log: to delete data, or to free space."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.run_types import RunReference, run_id_of
from kestrel_lab.core.sanitize import full_stop, one_line
from kestrel_lab.eventlog.removal import (
    RemovalPlan,
    plan_removal,
    remove_from_log,
    removed_runs,
    rewrite,
    sweep_blobs,
)
from kestrel_lab.eventlog.run_status import at_work
from kestrel_lab.eventlog.store import RunRow, SessionStore
from kestrel_lab.runtime.forks.private_copy import copies_folder, remove_copy, runs_with_copies
from kestrel_lab.tools.files.snapshots import SnapshotStore
from kestrel_lab.tools.files.trash import TRASH
from kestrel_lab.views.formatting import format_count, opening_line
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    from kestrel_lab.runtime.services import Services

RECEIPTS: Final = "blame"
"""Under the home: what was found of runs that failed, a file each."""
_SETTLED_S = 3_600.0
"""How old a copy is before no fork can be about to begin in it."""
_AGE = re.compile(r"(\d+(?:\.\d+)?) ?([mhdw])")
_SECONDS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_TRIALS = "SELECT count(*) FROM eval_runs WHERE result_json ->> '$.run' IN (SELECT value FROM json_each(?))"
_TRIES = 10
_PART = 500
"""Runs that are removed in one transaction: others can write in between, and the log does not grow."""
_BUSY = "the other runs were not removed: other processes begin runs all the time; try again"
_ALL = 1_000_000_000
_STAYS = "notes and macros learned from them, and what was pushed, exported or written into files, stay"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Removal(TableView):
    """Runs that are removed, or would be."""

    runs: tuple[RunRow, ...]
    plan: RemovalPlan
    trials: int
    """Trials of suites whose runs these are; their results and scores go with them."""
    removed: int = 0
    """How many of them are gone so far."""
    done: bool = False
    freed: int = 0
    """Bytes by which the files of the log shrank."""
    problem: str = ""

    @property
    def headline(self) -> str:
        """How many, and whether it was done."""
        count = format_count(len(self.runs), "run")
        return (
            f"{count} removed; the log is {self.freed / 1e6:,.1f} MB smaller"
            if self.done
            else f"{count} to be removed, for good"
        )

    @property
    def nothing(self) -> str:
        """What is said without runs."""
        return "there is no such run"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return a row per run: its goal, and the runs that share a part of it, which stays for them."""
        rows = []
        for run in self.runs:
            shared = self.plan.children.get(run.id, [])
            stays = (
                f"{format_count(self.plan.keep.get(run.id, 0), 'event')}, or the conversation, for "
                f"{', '.join(shared)}"
                if shared
                else ""
            )
            rows.append(
                (
                    run.id,
                    opening_line(run.goal, 60),
                    time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created_at)),
                    stays,
                )
            )
        return ("run", "goal", "started", "what stays of it"), rows

    def lines(self) -> tuple[str, ...]:
        """Return what goes with them, and what stays."""
        trials = (
            f"results and scores of {format_count(self.trials, 'trial')} of suites go with them; "
            if self.trials
            else ""
        )
        shared = (
            "; --children removes their forks and follow-ups, too"
            if self.plan.children and not self.done
            else ""
        )
        return (f"{trials}{_STAYS}{shared}", *([self.problem] if self.problem else []))


def plan_of(lab: Services, runs: Iterable[str], *, children: bool = False) -> Removal:
    """Return what a removal would do; raises `UsageError` for unknown runs and those at work."""
    store = lab.store
    chosen = [store.run(run) for run in dict.fromkeys(runs)]
    plan = plan_removal(store, [run.id for run in chosen], children=children)
    gone = removed_runs(store)
    rows = tuple(store.run(run) for run in plan.keep if run not in gone)
    if busy := [run.id for run in rows if _is_busy(run)]:
        raise UsageError(
            f"run {', '.join(busy)} is at work: stop it first (kestrel cancel {busy[0]}), then remove it"
        )
    names = [run.id for run in rows]
    ((trials,),) = store.query(_TRIALS, (dumps(names),))
    return Removal(runs=rows, plan=plan, trials=int(trials))


def seconds_of_age(age: str, option: str = "") -> float:
    """Return an age such as `30d` (m, h, d, w) in seconds; raises `UsageError` for another text, with the
    name of the option that it was given for.
    """
    found = _AGE.fullmatch(age.strip().lower())
    if found is None:
        raise UsageError(f"{option}{one_line(age, 40)}: say a number and m, h, d or w, such as 30d or 12h")
    return float(found[1]) * _SECONDS[found[2]]


def runs_older_than(lab: Services, age: str, *, trials: bool = False) -> list[str]:
    """Return idle runs older than `30d` (m, h, d, w); those of suites only with `trials`."""
    limit = time.time() - seconds_of_age(age, "--older-than ")
    return [
        run.id
        for run in lab.store.runs(limit=_ALL, trials=trials)
        if run.created_at < limit and not _is_busy(run)
    ]


def remove_runs(lab: Services, *runs: RunReference, children: bool = False) -> Removal:
    """Remove runs for good: their events, kept texts, deleted files and cached answers, from the tables and
    from the files.

    Takes runs or their ids. Events that forks and follow-ups share stay for those, unless `children` are
    removed, too. Results of suites whose trials the runs are go with them; notes stay. Raises `UsageError`
    for a run that does not exist, or that somebody works on.
    """
    chosen = [run_id_of(run) for run in runs]
    planned = plan_of(lab, chosen, children=children)
    *_, removal = remove_in_parts(lab, planned)
    return removal


def remove_in_parts(lab: Services, planned: Removal) -> Iterator[Removal]:
    """Remove planned runs a part at a time, the youngest first; yields how far it is, before each part and at
    the end.

    Where it is ended early, the runs of the parts so far are gone and the others are whole. Raises
    `UsageError` for a run that somebody works on.
    """
    # A fork goes before the run that it was forked from, which then keeps nothing for it.
    names = [run.id for run in planned.runs]
    for start in range(0, len(names), _PART):
        yield replace(planned, removed=start)
        _remove_part(lab, names[start : start + _PART])
    lab.cache.clear()
    yield replace(planned, removed=len(names))
    yield _rewritten(lab, replace(planned, removed=len(names), done=True))


def _remove_part(lab: Services, names: Sequence[str]) -> None:
    """Remove runs in one transaction, then what they keep beside the log."""
    snapshots = SnapshotStore(lab.home)
    for _ in range(_TRIES):
        before = removed_runs(lab.store)  # by another process meanwhile
        part = plan_of(lab, [name for name in names if name not in before])
        files = _files_of(lab.store, snapshots, part.plan.keep)
        if remove_from_log(lab.store, part.plan):
            break
    else:
        raise StoreError(_BUSY)
    gone = {run.id for run in part.runs}
    for run in part.runs:
        _remove_trash(lab, run, part.plan.keep[run.id])
        lab.history.live.pop(run.id, None)
    for place in lab.home.glob("*/*"):
        if place.name in gone and place != copies_folder(lab.home, place.name):
            shutil.rmtree(place, ignore_errors=True)
    _remove_files(lab, snapshots, files)


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """What a collection found that nobody needs."""

    runs: int
    """Removed runs of which a part had stayed, whose last fork or follow-up is gone."""
    texts: int
    freed: int
    problem: str = ""

    def __repr__(self) -> str:
        found = (
            f"{format_count(self.runs, 'rest')} of removed runs, "
            f"{format_count(self.texts, 'kept text')} that no event names"
        )
        return (
            f"{found}; the log is {self.freed / 1e6:,.1f} MB "
            f"smaller{f'. {self.problem}' if self.problem else ''}"
        )


def collect_garbage(lab: Services) -> Swept:
    """Remove what no run needs: rests of removed runs, unnamed texts, free space in the log."""
    for _ in range(_TRIES):
        plan = plan_removal(lab.store, ())
        if remove_from_log(lab.store, plan):
            break
    else:
        raise StoreError(_BUSY)
    _remove_copies(lab)
    texts = sweep_blobs(lab.store)
    done = _rewritten(lab, Removal(runs=(), plan=plan, trials=0))
    return Swept(runs=len(plan.keep), texts=texts, freed=done.freed, problem=done.problem)


# Files that forks need: contents of snapshots, and the private copies. Others may share both.

_OF_FILES = "('files_kept', 'files_applied', 'run_started', 'run_forked')"
"""The events that name contents of snapshots and private copies."""
_NAME = re.compile(r"[0-9a-f]{32}")


def _files_of(
    store: SessionStore, snapshots: SnapshotStore, keep: Mapping[str, int] | None = None
) -> set[str]:
    """Return the contents that events name: all, or of the runs in `keep` those behind that number."""
    runs: Iterable[str] = (str(run) for (run,) in store.query("SELECT id FROM runs"))
    if keep is not None:
        runs = keep
    found, indexes = set[str](), set[str]()
    for run in runs:
        rows = store.query(
            "SELECT body, coalesce(body ->> '$.whole', body ->> '$.private_copy.whole', '') FROM "
            f"events WHERE run_id = ? AND seq > ? AND type IN {_OF_FILES}",
            (run, 0 if keep is None else keep[run]),
        )
        for body, whole in rows:
            found.update(_NAME.findall(str(body)))
            indexes.add(str(whole))
    for whole in indexes - {""}:
        found.update(entry.content for entry in (snapshots.index(whole) or {}).values() if entry.kind == "f")
    return found - {""}


def _remove_files(lab: Services, snapshots: SnapshotStore, names: set[str]) -> None:
    """Remove those of the contents `names` that no event names any more, and copies that no run works in."""
    if names:
        snapshots.drop(names - _files_of(lab.store, snapshots))
    _remove_copies(lab)


def _remove_copies(lab: Services) -> None:
    """Remove private copies of missing runs, except those that a follow-up or resumed fork uses."""
    store, gone = lab.store, removed_runs(lab.store)
    rows = store.query(
        "SELECT run_id, body ->> '$.private_copy.folder' FROM events WHERE type IN ('run_started', "
        "'run_forked') AND body ->> '$.private_copy.folder' <> ''"
    )
    used = {str(folder) for run, folder in rows if run not in gone}
    known = {str(run) for (run,) in store.query("SELECT id FROM runs")} - gone.keys()
    for run in runs_with_copies(lab.home):
        folder = copies_folder(lab.home, run)
        # Of a fork that is just being made.
        fresh = folder.stat().st_mtime > time.time() - _SETTLED_S
        if (
            run not in known
            and (run in gone or not fresh)
            and not any(Path(place).is_relative_to(folder) for place in used)
        ):
            remove_copy(lab.home, run)
    for run in gone:
        (lab.home / RECEIPTS / f"{run}.json").unlink(missing_ok=True)


def _rewritten(lab: Services, removal: Removal) -> Removal:
    try:
        return replace(removal, freed=rewrite(lab.store))
    except StoreError as error:
        # The runs are gone already; only the room in the files stays taken.
        return replace(
            removal,
            problem=f"Parts of the text may still be in the files of the log: {full_stop(error)} "
            f"Then: kestrel gc",
        )


def _is_busy(run: RunRow) -> bool:
    return not run.status.terminal and at_work(run.owner, run.id)


def _remove_trash(lab: Services, run: RunRow, kept: int) -> None:
    """Remove deleted files that the run kept for undo, except those whose deletion is kept."""
    folder = Path(run.workspace, TRASH, run.id)
    if not folder.is_dir() or folder.is_symlink():
        return
    named: Collection[str] = ()
    if kept:
        bodies = lab.store.query(
            "SELECT body FROM events WHERE run_id = ? AND instr(body, ?)", (run.id, f"{TRASH}/{run.id}/")
        )
        named = {
            place
            for (body,) in bodies
            for place in re.findall(rf"{re.escape(f'{TRASH}/{run.id}/')}([^/\"]+)", str(body))
        }
    for place in folder.iterdir():
        if place.name not in named:
            shutil.rmtree(place, ignore_errors=True)
    if not named:
        shutil.rmtree(folder, ignore_errors=True)
