"""State behind the names, before and after code: settings of the process, attributes of modules and classes,
files, threads.

What the import of an installed library does is no doing of the code: it goes into the state before. That is
why imports are watched.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.kernel.state.attributes import Snapshot, own_holders
from kestrel_lab.tools.kernel.state.effects import Witness
from kestrel_lab.tools.kernel.state.imports import is_installed
from kestrel_lab.tools.kernel.state.library_probes import LIBRARIES
from kestrel_lab.tools.kernel.state.probes import ABSENT, Probe, Reading, same
from kestrel_lab.tools.kernel.state.python_probes import PYTHON
from kestrel_lab.tools.kernel.values import Buffers, encode_value
from kestrel_lab.tools.kernel.variables import Alteration, Before, Change

PROBES = (*PYTHON, *LIBRARIES)


def read_all(shell: Any) -> dict[str, Reading]:
    """Return all readings, by the name of the probe."""
    return {probe.name: probe.reading(shell) for probe in PROBES}


@dataclass(slots=True)
class ProcessState:
    """State besides variables, before code ran."""

    shell: Any
    witness: Witness
    _readings: dict[str, dict[Any, Any]]
    _attributes: Snapshot
    _wishes: Sequence[str] = ()
    wishing: list[str] = field(default_factory=list)
    """Installed libraries whose import wanted an effect."""

    @classmethod
    def of(
        cls, code: str, shell: Any, before: Before, hidden: str = "", wishes: Sequence[str] = ()
    ) -> ProcessState:
        """Read the current state, for `code` about to run; files in the folder `hidden` are skipped.

        `wishes` grows with each effect that the code is refused.
        """
        attributes = Snapshot.of(code, shell.user_ns, own_holders(before.own))
        readings = {name: dict(found) for name, found in read_all(shell).items()}
        return cls(shell, Witness(hidden), readings, attributes, wishes)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while the code runs in the block."""
        with self.witness.watching(), _watched_imports(self._around_import):
            yield

    @contextmanager
    def _around_import(self, name: str) -> Iterator[None]:
        """Let what the import of a library does in the block belong to the state before."""
        earlier, wishes = read_all(self.shell), len(self._wishes)
        try:
            with self.witness.paused():
                yield
        finally:
            for probe in PROBES:
                self._absorb(probe, earlier[probe.name], probe.reading(self.shell))
            self._attributes.look_again()
            if len(self._wishes) > wishes:
                self.wishing.append(name)

    def _absorb(self, probe: Probe, earlier: Reading, later: Reading) -> None:
        mine = self._readings[probe.name]
        for key, (was, now) in probe.difference(earlier, later).items():
            if not same(mine.get(key, ABSENT), was):
                # The code has changed it before.
                continue
            if now is ABSENT:
                mine.pop(key, None)
            else:
                mine[key] = now

    def alterations(self) -> list[Alteration]:
        """Return what is different now."""
        found = [one for probe in PROBES if (one := self._of_probe(probe)) is not None]
        # Attributes first: what a probe puts back into a list of `sys` goes into the list that was there.
        return [*_joined([*self._attributes.alterations(), *found]), *self.witness.alterations()]

    def _of_probe(self, probe: Probe) -> Alteration | None:
        old, new = self._readings[probe.name], probe.reading(self.shell)
        changed = probe.difference(old, new) if old or not probe.library else {}
        if not changed:
            return None
        change = Change(name=probe.name, kind="state", text=probe.text(changed), lost=probe.lost)

        def restore() -> None:
            if probe.restore is not None:
                probe.restore(self.shell, {key: was for key, (was, _) in changed.items()})

        def matches(place: int) -> bool:
            now = probe.reading(self.shell)
            return all(same(now.get(key, ABSENT), values[place]) for key, values in changed.items())

        return Alteration(change, restore, lambda: matches(1), lambda: matches(0))

    def adoptable(self, changes: list[Change], buffers: Buffers) -> dict[str, Json]:
        """Return the states among these changes that go along with the values of a preview, by the name of
        the probe.

        Raises `NotPlain` for one that cannot be handed over.
        """
        states = dict[str, Json]()
        for probe in PROBES:
            if probe.adopted and any(change.name == probe.name for change in changes):
                changed = probe.difference(self._readings[probe.name], probe.reading(self.shell))
                now = {key: value for key, (_, value) in changed.items()}
                states[probe.name] = encode_value(now, buffers)
        return states


def _joined(found: list[Alteration]) -> Iterator[Alteration]:
    """Yield one alteration per name: `sys.path` is both a module attribute and has a probe."""
    by_name = dict[str, list[Alteration]]()
    for one in found:
        by_name.setdefault(one.change.name, []).append(one)
    for same_name in by_name.values():
        yield same_name[0] if len(same_name) == 1 else _both(same_name)


def _both(parts: list[Alteration]) -> Alteration:
    def restore() -> None:
        for part in parts:
            part.restore()

    lost = next((part.change.lost for part in parts if part.change.lost), "")
    return Alteration(
        replace(parts[-1].change, lost=lost),
        restore,
        lambda: all(one.is_as_left() for one in parts),
        lambda: all(one.is_back() for one in parts),
    )


def is_adopted(change: Change) -> bool:
    """Return true if a state change is adopted together with a preview's values."""
    return any(probe.adopted and probe.name == change.name for probe in PROBES)


def adopt_states(shell: Any, states: Mapping[str, Any]) -> None:
    """Take over states that a preview handed over; raises `ValueError` for one that no preview may."""
    for name, values in states.items():
        probe = {one.name: one for one in PROBES}[name]
        if not probe.adopted or probe.restore is None or not isinstance(values, dict):
            raise ValueError(f"{name} cannot be taken over")
        probe.restore(shell, values)


# Imports.

_BOOTSTRAP = "<frozen importlib._bootstrap>"


@contextmanager
def _watched_imports(around: Callable[[str], Any]) -> Iterator[None]:
    """Enter `around(name)` while this thread imports an installed library for the first time."""
    machinery: Any = importlib._bootstrap
    load, here, inside = machinery._find_and_load, threading.get_ident(), False
    thread, is_library = threading.get_ident, is_installed

    def find_and_load(name: str, import_: Any) -> Any:
        nonlocal inside
        if inside or thread() != here or not is_library(name):
            return load(name, import_)
        inside = True
        try:
            with around(name):
                return load(name, import_)
        finally:
            inside = False

    # Python leaves its own import machinery out of tracebacks, by the name of the file. With its globals,
    # too, an import of the user's code is not taken for one of this package, which may import less.
    code = find_and_load.__code__.replace(co_filename=_BOOTSTRAP)
    watched = FunctionType(code, vars(machinery), closure=find_and_load.__closure__)
    machinery._find_and_load = watched
    try:
        yield
    finally:
        if machinery._find_and_load is watched:
            machinery._find_and_load = load
