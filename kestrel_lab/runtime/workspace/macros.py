"""Macros of a workspace: lists, proposes, accepts and runs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.sanitize import shown_folder
from kestrel_lab.runtime.memory.macro_mining import MacroProposal, past_calls, propose_macros
from kestrel_lab.runtime.options import RunOptions, takes_options
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.start import run
from kestrel_lab.runtime.sync import blocking_twin
from kestrel_lab.tools.macros import MACRO_RUN, Macro, MacroRegistry
from kestrel_lab.views.html.table_view import Part, PartsView, Table

RUNS_READ = 200
"""How many of the newest runs of a workspace proposals are made from."""

_COLUMNS = ("macro", "state", "version", "steps", "what it does")


class WorkspaceMacros(PartsView):
    """Lists, proposes, accepts and runs the macros of one workspace; shown as a table."""

    def __init__(self, lab: Services, workspace: str | Path = ".") -> None:
        self._lab = lab
        self._folder = Path(workspace)

    @property
    def workspace(self) -> Path:
        """The folder that is meant; the current one, as it is when asked, unless another was named."""
        return self._folder.resolve()

    @property
    def _registry(self) -> MacroRegistry:
        return MacroRegistry(self._lab.store, str(self.workspace))

    def at(self, workspace: str | Path) -> WorkspaceMacros:
        """Return the macros of another workspace."""
        return WorkspaceMacros(self._lab, workspace)

    def get(self, name: str, version: int | None = None) -> Macro:
        """Return a macro by its name; raises `UsageError` with the nearest name when there is none."""
        return self._registry.get(name, version)

    def save(self, macro: Macro) -> Macro:
        """Keep a macro as the next version of its name, unless it is unchanged; returns what is kept."""
        return self._registry.save(macro)

    def accept(self, name: str, *, called: str = "") -> Macro:
        """Keep a proposed macro, as `called` if given; raises `UsageError` for an unknown name."""
        proposed = {proposal.macro.name: proposal.macro for proposal in self.proposals()}
        if name not in proposed:
            raise UsageError(
                f"no macro {name!r} is proposed for {self.workspace}; {did_you_mean(name, proposed)}"
            )
        if called in {macro.name for macro in self.list()}:
            raise UsageError(f"there is a macro {called!r} already: choose another name")
        return self.save(replace(proposed[name], name=called or name))

    def enable(self, name: str) -> Macro:
        """Offer a macro to runs that start from now on; raises `UsageError` for an unknown name."""
        return self._registry.enable(name)

    def disable(self, name: str) -> Macro:
        """Keep a macro and offer it no more; raises `UsageError` when there is none of that name."""
        return self._registry.disable(name)

    def remove(self, name: str) -> None:
        """Forget every version of a macro; raises `UsageError` when there is none of that name."""
        self._registry.remove(name)

    @takes_options(RunOptions)
    async def run(self, name: str, args: dict[str, Json] | None = None, **changes: Unpack[RunOptions]) -> Run:
        """Run a macro as the only step of a run, and wait for its end; options as for `Lab.run`."""
        step = Step(id="macro", tool=MACRO_RUN, args={"name": name, "args": args or {}})
        options: RunOptions = {"workspace": self.workspace, **changes, "plan": Plan(steps=(step,))}
        return await run(self._lab, f"macro {name}", **options)

    run_sync = blocking_twin(run)

    def proposals(self) -> list[MacroProposal]:
        """Propose macros for call sequences that occurred three times or more, best savings first."""
        store = self._lab.store
        store.flush()
        rows = [row for row in store.runs(limit=5_000) if row.workspace == str(self.workspace)][:RUNS_READ]
        seen: set[str] = set()
        conversations = [
            conversation for row in reversed(rows) for conversation in past_calls(store.records(row.id), seen)
        ]
        return propose_macros(conversations, self.list())

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names and one row per macro, those proposed last."""
        kept = [
            (macro, "enabled" if macro.enabled else "disabled", str(macro.version)) for macro in self.list()
        ]
        proposed = [(found.macro, f"proposed, {found.occurrences} times", "") for found in self.proposals()]
        rows: list[tuple[str, ...]] = [
            (macro.signature, state, version, ", ".join(step.tool for step in macro.steps), macro.description)
            for macro, state, version in (*kept, *proposed)
        ]
        return _COLUMNS, rows

    def parts(self) -> Iterable[Part]:
        """Return the macros, and how one that is proposed is kept."""
        columns, rows = self.table()
        if not rows:
            return [
                f"no macros for {shown_folder(self.workspace)}, and none to propose: agents have not "
                "yet done the same there three times"
            ]
        proposed = any(row[1].startswith("proposed") for row in rows)
        return [
            Table(columns, rows),
            *(["keep a proposed one with: kestrel macros accept NAME"] if proposed else []),
        ]

    def list(self) -> list[Macro]:
        """Return the newest version of each macro, by name, disabled ones too."""
        return self._registry.list()
