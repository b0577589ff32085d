"""Tools of the group `cells`: read the notebook that the run works in, insert, edit, delete and run cells,
each undoable.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import ConflictError, ToolError
from kestrel_lab.core.events.union import CellsChanged
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.edit import replace_exact, unified_diff
from kestrel_lab.tools.kernel.documents import (
    Cell,
    Document,
    NextInput,
    Swap,
    cell_of,
    document_of,
    output_text,
    running_cell,
)
from kestrel_lab.tools.kernel.kernel_tools import (
    checked_text,
    context_of,
    live_kernel_of,
    preview_code,
    run_live,
)
from kestrel_lab.tools.kernel.live_kernel import LiveKernel, kernel_of, live_shell
from kestrel_lab.tools.tool import DryRun, Tool, ToolContext

GROUP: Final = "cells"
_READ_CHARS = 18_000
_CELL_CHARS = 1_500
"""Characters of a source and of an output when all cells are read."""
_MOST_LOGGED = 200_000
"""Characters of a cell that an event holds; beyond them it is kept without its outputs."""
_AGENT = re.compile(r"(?m)^\s*(?:\w+\s*=\s*)?%%?kestrel\b")
_NOWHERE = "there is no notebook here: cells can be read and changed only by a run that was started in one"
_WRITING: Final[dict[str, Any]] = {
    "danger_level": Danger.MEDIUM,
    "effect": "opaque",
    "version": "1",
    "parallel_safe": False,
    "reads": "kernel private",
    "reaches": "anything",
}
"""Neither file taint nor the sandbox covers cells: after untrusted text every change is asked about."""


_Turn = tuple[str, str]
"""The run and the model turn of a call."""
_Change = Callable[[dict[str, Json], list[Cell], LiveKernel, _Turn | None], Swap]
"""What the arguments of a call ask for, of the cells as they are now; raises `ToolError`, and `ValueError`
for a text that does not fit.

A preview has no turn: all calls of one are shown before any of them is made.
"""


def cell_tools() -> list[Tool]:
    """Return `read_notebook`, `insert_cell`, `edit_cell`, `delete_cell` and `run_cell`."""
    made = [read_notebook, insert_cell, edit_cell, delete_cell, replace(run_cell, dry_run=_dry_run)]
    return [replace(one, group=GROUP) for one in made]


@tool(
    danger_level=Danger.SAFE,
    effect="idempotent",
    version="1",
    parallel_safe=False,
    reads="kernel workspace",
    reaches="nothing",
)
async def read_notebook(ctx: ToolContext, cell: str = "") -> str:
    """Read the notebook that you work in: its cells with their ids, and what they put out.

    Args:
        ctx: The run it works for.
        cell: Id of one cell, to read it whole; by default all cells, long ones shortened.

    """
    live = _require_live(ctx)
    document, cells = await asyncio.to_thread(_read, live)
    chosen = [_find_cell(cells, cell)] if cell else cells
    room = _READ_CHARS if cell else min(_CELL_CHARS, max(200, _READ_CHARS // max(1, 2 * len(cells))))
    here = running_cell(live.shell)
    parts = [_cell_text(one, cells.index(one) + 1, room, running=one["id"] == here) for one in chosen]
    note = (
        "[what ran in this kernel; the notebook itself cannot be read here]\n"
        if isinstance(document, NextInput)
        else ""
    )
    return note + ("\n\n".join(parts) or "[the notebook is empty]")


def _insertion(args: dict[str, Json], cells: list[Cell], live: LiveKernel, turn: _Turn | None) -> Swap:
    cell = cell_of(str(args["source"]), str(args.get("cell_type") or "code"), secrets.token_hex(4))
    return Swap(None, cell, _place(cells, str(args.get("below") or ""), live, turn))


def _replacement(args: dict[str, Json], cells: list[Cell], _live: LiveKernel, _turn: _Turn | None) -> Swap:
    found = _find_cell(cells, str(args["cell"]))
    return Swap(
        found,
        {
            **found,
            "source": replace_exact(found["source"], str(args["old"]), str(args["new"]), everywhere=False),
        },
    )


def _deletion(args: dict[str, Json], cells: list[Cell], live: LiveKernel, _turn: _Turn | None) -> Swap:
    found = _find_cell(cells, str(args["cell"]))
    if found["id"] == running_cell(live.shell):
        raise ToolError("this cell runs just now, so it cannot be deleted")
    place = cells.index(found)
    return Swap(found, None, str(cells[place - 1]["id"]) if place else "")


def _preview(change: _Change) -> Callable[[dict[str, Json], ToolContext], str]:

    def shown(args: dict[str, Json], _: ToolContext) -> str:
        if (shell := live_shell()) is None:
            raise ToolError(_NOWHERE)
        live = kernel_of(shell)
        cells = _read(live)[1]
        try:
            swap = change(args, cells, live, None)
        except ValueError as error:
            return f"this edit would fail: {error}"
        if swap.before is not None:
            return _diff(swap, _cell_label(cells, swap.cell))
        where = f"below {_cell_label(cells, swap.below)}" if swap.below else "at the top"
        return _diff(swap, f"new {args.get('cell_type')} cell {where}")

    return shown


@tool(**_WRITING, preview=_preview(_insertion))
async def insert_cell(
    source: str, ctx: ToolContext, below: str = "", cell_type: Literal["code", "markdown"] = "code"
) -> str:
    """Insert a new cell into the notebook. It is not run: use run_cell.

    Args:
        source: What stands in the cell.
        ctx: The run it works for.
        below: Id of the cell above it; by default the one that runs now.
        cell_type: Kind of the cell.

    """
    swap, note = await _carried_out(
        ctx, _insertion, {"source": source, "below": below, "cell_type": cell_type}
    )
    return f"inserted cell {swap.cell}{note}"


@tool(**_WRITING, preview=_preview(_replacement))
async def edit_cell(cell: str, old: str, new: str, ctx: ToolContext) -> str:
    """Replace text in a cell of the notebook. The old text must be exact and occur once. The cell is not run.

    Args:
        cell: Id of the cell.
        old: The exact text to replace.
        new: The text to put in its place.
        ctx: The run it works for.

    """
    swap, note = await _carried_out(ctx, _replacement, {"cell": cell, "old": old, "new": new})
    return f"edited cell {swap.cell}{note}\n{_diff(swap, swap.cell)}"


@tool(**_WRITING, preview=_preview(_deletion))
async def delete_cell(cell: str, ctx: ToolContext) -> str:
    """Delete a cell of the notebook.

    Args:
        cell: Id of the cell.
        ctx: The run it works for.

    """
    swap, note = await _carried_out(ctx, _deletion, {"cell": cell})
    return f"deleted cell {swap.cell}{note}"


@tool(
    danger_level=Danger.MEDIUM,
    effect="opaque",
    version="1",
    parallel_safe=False,
    reads="kernel workspace",
    reaches="workspace",
)
async def run_cell(cell: str, ctx: ToolContext) -> str:
    """Run a code cell of the notebook as the user would: what comes of it becomes its output, and is
    returned.

    Args:
        cell: Id of the cell.
        ctx: The run it works for.

    """
    live, about = _require_live(ctx), context_of(ctx)
    document, cells = await asyncio.to_thread(_read, live, cell)
    found = _code_cell(cells, cell, live)
    known = live.known(ctx.call_id)
    if known is not None and not live.is_of(known, found["source"]):
        raise ConflictError(
            f"cell {found['id']} was changed since it was decided to run it: nothing was run; make the "
            "call again"
        )
    note, ran = await run_live(live, found["source"], about, ctx, cell=True)
    swap = Swap(found, {**found, "outputs": list(ran.outputs), "execution_count": None})
    try:
        warning = await asyncio.to_thread(document.swap, swap)
    except (ToolError, ConflictError) as error:
        live.show(ran, ctx.run_id)
        warning = f"its output is below the running cell instead: {error}"
    else:
        about.emit(
            CellsChanged(
                call=ctx.call_id, step=about.step, how=document.how, changes=_swap_for_log(swap, ctx)
            ),
            (),
        )
    return checked_text(ran, note, [warning] if warning else ())


async def _dry_run(args: dict[str, Json], ctx: ToolContext) -> DryRun | None:
    """Preview the code of the cell; what is asked about is this code."""
    live = live_kernel_of(ctx)
    if live is None:
        return None
    try:
        _, cells = await asyncio.to_thread(_read, live)
        found = _code_cell(cells, str(args["cell"]), live)
    except ToolError:  # the call says so
        return None
    head = f"runs {_cell_label(cells, found['id'])}:\n{found['source']}\n\n"
    return await preview_code(live, found["source"], ctx, head=head)


def _require_live(ctx: ToolContext) -> LiveKernel:
    if (live := live_kernel_of(ctx)) is None:
        raise ToolError(_NOWHERE)
    return live


def _read(live: LiveKernel, whole: str = "") -> tuple[Document, list[Cell]]:
    document = document_of(live)
    return document, document.read(whole)


async def _carried_out(ctx: ToolContext, change: _Change, args: dict[str, Json]) -> tuple[Swap, str]:
    """Apply an approved change to the notebook as it is now and record it; return it with a note."""
    live, about = _require_live(ctx), context_of(ctx)
    # A call is named `step.turn.place`.
    turn = ctx.run_id, ctx.call_id.rpartition(".")[0]

    def work() -> tuple[Document, Swap, str]:
        document, cells = _read(live, str(args.get("cell", "")))
        try:
            swap = change(args, cells, live, turn)
        except ValueError as error:
            raise ToolError(f"the notebook was not changed: {error}") from None
        ctx.versions.as_shown()
        warning = document.swap(swap)
        if swap.before is None:
            live.inserted[swap.cell] = turn
        return document, swap, warning

    document, swap, warning = await asyncio.to_thread(work)
    if not isinstance(document, NextInput):
        about.emit(
            CellsChanged(
                call=ctx.call_id, step=about.step, how=document.how, changes=_swap_for_log(swap, ctx)
            ),
            (),
        )
    return swap, f" ({warning})" if warning else ""


def _swap_for_log(swap: Swap, ctx: ToolContext) -> list[dict[str, Json]]:
    """Return the change for the log without oversized or secret outputs; `None` if a source has a secret.

    The log may contain no secret, and a change that is not in the log cannot be undone.
    """

    def fit(cell: Cell | None) -> Cell | None:
        whole = cell is None or (len(dumps(cell)) <= _MOST_LOGGED and ctx.redactor.json(cell) == cell)
        return cell if whole or cell is None or "outputs" not in cell else {**cell, "outputs": []}

    change = Swap(fit(swap.before), fit(swap.after), swap.below).as_json()
    return [change] if ctx.redactor.json(change) == change else []


def _find_cell(cells: list[Cell], wanted: str) -> Cell:
    """Return the cell with that id, or the only one whose id starts with it."""
    found = [cell for cell in cells if cell["id"] == wanted] or [
        cell for cell in cells if wanted and str(cell["id"]).startswith(wanted)
    ]
    if len(found) != 1:
        known = ", ".join(str(cell["id"]) for cell in cells[:30])
        raise ToolError(
            f"{'there is no cell' if not found else 'several cells begin with'} {wanted!r}; the cells "
            f"are: {known or 'none'}"
        )
    return found[0]


def _code_cell(cells: list[Cell], wanted: str, live: LiveKernel) -> Cell:
    found = _find_cell(cells, wanted)
    if found["cell_type"] != "code":
        raise ToolError(f"cell {found['id']} is {found['cell_type']}: only code can be run")
    if found["id"] == running_cell(live.shell) or _AGENT.search(found["source"]):
        raise ToolError(f"cell {found['id']} starts an agent: an agent does not run it")
    return found


def _place(cells: list[Cell], below: str, live: LiveKernel, turn: _Turn | None) -> str:
    """Return the id of the cell below which a new one goes: the named one, else the one that runs, else the
    last.

    What was inserted there before stays above it, so that cells come out in the order in which they were
    asked for: cells of the same turn, and where no cell is named those of the whole run.
    """
    known = [str(cell["id"]) for cell in cells]
    here = str(_find_cell(cells, below)["id"]) if below else running_cell(live.shell)
    if here not in known:
        return next(reversed(known), "")
    for later in known[known.index(here) + 1 :]:
        before = live.inserted.get(later)
        if turn is None or before is None or (before != turn if below else before[0] != turn[0]):
            break
        here = later
    return here


def _diff(swap: Swap, name: str) -> str:
    """Return the change of a cell as a unified diff, without notes on missing final newlines."""
    before, after = (
        f"{cell['source']}\n" if cell and cell["source"] else "" for cell in (swap.before, swap.after)
    )
    return unified_diff(before, after, name)


def _cell_label(cells: list[Cell], ident: str) -> str:
    place = next(number for number, cell in enumerate(cells, 1) if cell["id"] == ident)
    return f"cell {place} ({ident})"


def _cell_text(cell: Cell, number: int, room: int, *, running: bool) -> str:
    count = cell.get("execution_count")
    state = (
        "runs now"
        if running
        else f"run as [{count}]"
        if count
        else "not run"
        if cell["cell_type"] == "code"
        else ""
    )
    head = one_line(f"[{number}] id {cell['id']} · {cell['cell_type']}" + (f" · {state}" if state else ""))
    output = head_tail(output_text(cell), room)[0]
    return f"{head}\n{head_tail(cell['source'], room)[0]}" + (f"\n→ {output}" if output else "")
