"""Undo of code in a kernel: keeps old objects of rebound names, and a paused copy for changed objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.kernel import KernelUndone
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.kernel.fork import PROBLEM, Fork
from kestrel_lab.tools.kernel.state.fingerprints import value_fingerprint
from kestrel_lab.tools.kernel.values import decode_value
from kestrel_lab.tools.kernel.variables import Alteration, Before, Change, not_plain, put_back, put_state

MOST_HELD = 1024**3
"""Bytes of memory that old states of a kernel may hold together; beyond them the oldest is dropped."""
UNDO_S = 30.0
_FORCE = "undo with force (--force) if that may be lost"
_ABSENT = object()


@dataclass(slots=True)
class Done:
    """One piece of code that changed variables, and what is needed to take that back."""

    run: str
    call: str
    changes: tuple[Change, ...]
    before: Before
    """The objects that names stood for, and their fingerprints."""
    state: tuple[Alteration, ...] = ()
    """Changes besides variables."""
    new: dict[str, tuple[Any, int | None]] = field(default_factory=dict)
    """New objects by name, with fingerprints that show later changes; `None` if compared by identity."""
    paused: Fork | None = None
    dropped: bool = False
    """The paused copy was given up, because too much memory was held."""


class UndoResult(KernelUndone, frozen=True, kw_only=True):
    """What was undone, in one run or several."""

    runs: list[str]
    """The run of each of `calls`."""

    def __str__(self) -> str:
        parts = [*self.restored, *self.files, *(f"cell {cell}" for cell in self.cells)]
        back = f"restored {', '.join(parts)}" if parts else "nothing was restored"
        lost = "".join(f"; {name} could not be restored: {why}" for name, why in self.missing.items())
        return f"undone: {', '.join(self.calls)} ({back}{lost})"


class UndoStack:
    """Changes made in one kernel, in order."""

    def __init__(self, namespace: dict[str, Any], most_held: int = MOST_HELD) -> None:
        self._namespace, self._most = namespace, most_held
        self._done: list[Done] = []

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Run and id of each call that can be undone, the oldest first."""
        return [(one.run, one.call) for one in self._done]

    def push(self, done: Done) -> list[str]:
        """Record a change; return calls whose in-place changes can no longer be undone."""
        changed = [change for change in done.changes if change.kind in ("new", "changed")]
        done.new = {
            one.name: (value := self._namespace.get(one.name, _ABSENT), _print(value, one)) for one in changed
        }
        # A paused copy is needed only for objects that were changed in place; it costs memory until then.
        if done.paused is not None and not any(_from_copy(change, done.before) for change in done.changes):
            done.paused.end()
            done.paused = None
        if done.changes:
            self._done.append(done)
        return self._make_room()

    def _make_room(self) -> list[str]:
        # A single copy is kept however large it is, and is not measured.
        copies = [one for one in self._done if one.paused is not None]
        held = (
            {one.call: one.paused.held() for one in copies if one.paused is not None}
            if len(copies) > 1
            else {}
        )
        given_up = []
        while copies and sum(held.values()) > self._most:
            oldest = copies.pop(0)
            assert oldest.paused is not None
            oldest.paused.end()
            oldest.paused, oldest.dropped = None, True
            held.pop(oldest.call)
            given_up.append(oldest.call)
        return given_up

    def undo(self, run: str = "", call: str = "", *, force: bool = False) -> UndoResult:
        """Undo the newest call, or the named call with all later ones, the newest first.

        Raises `UsageError` if there is nothing to undo, or, without `force`, if something else changed the
        variables since: those changes would be lost.
        """
        found = [
            place for place, one in enumerate(self._done) if call in ("", one.call) and run in ("", one.run)
        ]
        if not found:
            msg = (
                f"nothing of call {call!r} can be undone"
                if call
                else "no code of an agent has changed a variable of this kernel"
            )
            raise UsageError(msg)
        last = self._done[found[-1] :]
        if not force and (others := self._changed_since(last)):
            raise UsageError(f"{', '.join(others)} changed since, by something else: {_FORCE}")
        restored, missing = dict[str, None](), dict[str, Json]()
        # The newest first: each call restores the state that the one before it left.
        for one in reversed(last):
            self._done.remove(one)
            back, lost = self._restore(one, force=force)
            missing = {**{name: why for name, why in missing.items() if name not in back}, **lost}
            restored |= dict.fromkeys(back)
        return UndoResult(
            kernel="",
            calls=[one.call for one in reversed(last)],
            runs=[one.run for one in reversed(last)],
            restored=[name for name in restored if name not in missing],
            missing=missing,
        )

    def _changed_since(self, last: Iterable[Done]) -> list[str]:
        newest: dict[str, tuple[Any, int | None]] = {}
        for one in last:
            newest |= one.new
        return [
            name
            for name, (value, printed) in newest.items()
            if (now := self._namespace.get(name, _ABSENT)) is not value
            or printed not in (None, value_fingerprint(now))
        ]

    def _restore(self, one: Done, *, force: bool) -> tuple[list[str], dict[str, str]]:
        """Undo one piece of code; return the restored names, and the others with reasons."""
        variables = [change for change in one.changes if change.kind != "state"]
        missing = {change.name: change.lost for change in variables if change.lost}
        values, failed = _restore_values(
            one, [change.name for change in variables if _from_copy(change, one.before)]
        )
        missing |= failed
        contents = dict[int, Any]()
        for name, value in values.items():
            old = one.before.values[name]
            # By identity: two names of one object must be two names of one object again.
            contents.setdefault(id(old), put_back(old, value))
        for change in variables:
            name = change.name
            if change.kind == "new":
                self._namespace.pop(name, None)
                continue
            old = one.before.values[name]
            self._namespace[name] = contents.get(id(old), old)
            if change.inside and name in one.before.states:
                put_state(old, one.before.states[name])
        # Before the other state is compared: a new object may be what keeps a file open.
        one.new.clear()
        missing |= _restore_state(one.state, force=force)
        for change in variables:
            if (wrong := self._not_back(change, one.before)) and change.name not in missing:
                missing[change.name] = wrong
            elif not wrong and change.name not in one.before.used:
                missing.pop(change.name, None)
        return [change.name for change in one.changes if change.name not in missing], missing

    def _not_back(self, change: Change, before: Before) -> str:
        """Compare a variable with its earlier value; return the difference, or an empty text."""
        now = self._namespace.get(change.name, _ABSENT)
        if change.kind == "new":
            return "" if now is _ABSENT else "it is still there"
        return "" if now is not _ABSENT and before.is_as_before(change.name, now) else "it is not what it was"


def _from_copy(change: Change, before: Before) -> bool:
    """Return true if the old value must come from the paused copy of the kernel."""
    return change.kind != "state" and change.inside and not change.lost and change.name not in before.states


def _restore_state(state: Iterable[Alteration], *, force: bool) -> dict[str, str]:
    """Restore state besides variables, the environment before what depends on it; return failures."""
    missing = dict[str, str]()
    tried, due = list[Alteration](), list[Alteration]()
    # All are looked at before any is restored: two may hold the same thing.
    for one in state:
        if not force and not one.is_back() and not one.is_as_left():
            missing[one.change.name] = f"something else has changed it since; {_FORCE}"
        else:
            due.append(one)
    for one in due:
        try:
            one.restore()
        except Exception as error:  # the boundary to libraries and to the system: the person sees it  # noqa: BLE001
            missing[one.change.name] = f"{type(error).__name__}: {error}"
            continue
        tried.append(one)
    for one in tried:
        if not one.is_back():
            missing[one.change.name] = f"{one.change.text}: {one.change.lost or 'it is not what it was'}"
    return missing


def _restore_values(one: Done, names: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    if not names:
        return {}, {}
    if one.paused is None:
        why = (
            "its old state was dropped to save memory"
            if one.dropped
            else "there was no copy of its old state"
        )
        return {}, dict.fromkeys(names, why)
    one.paused.resume(names)
    store = one.paused.wait(UNDO_S)
    one.paused = None
    if store is None:
        return {}, dict.fromkeys(names, "the copy with its old state did not answer")
    header = cast("dict[str, Any]", store.header)
    if PROBLEM in header:
        return {}, dict.fromkeys(names, str(header[PROBLEM]))
    values, failed = dict[str, Any](), dict[str, str]()
    for name in names:
        if PROBLEM in header[name]:
            failed[name] = str(header[name][PROBLEM])
        else:
            values[name] = decode_value(cast("Json", header[name]["value"]), store)
    return values, failed


def _print(value: object, change: Change) -> int | None:
    # Objects that are not plain data, such as a thread or a connection, change by themselves, and their
    # content could not be restored anyway.
    return None if value is _ABSENT or change.lost or not_plain(value) else value_fingerprint(value)
