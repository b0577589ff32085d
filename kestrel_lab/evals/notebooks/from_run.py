"""A notebook of the code that a conversation executed; it runs from top to bottom without a model."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import escape_surrogates, sanitize_text, shown_folder
from kestrel_lab.evals.reports.markdown import code_span
from kestrel_lab.language.numbers import number_origins
from kestrel_lab.runtime.recomputation import CodeCall, Turn, needed_names, turns_of
from kestrel_lab.runtime.run_report import newest_blame
from kestrel_lab.runtime.services import Services
from kestrel_lab.tools.kernel.kernel_tools import NO_OUTPUT

OWNER: Final = "kestrel"
"""The key under which cells say in their metadata which run and call they are of."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class RunNotebook:
    """A notebook made of the log of a conversation."""

    run: str
    turns: tuple[Turn, ...]
    needs: tuple[str, ...]
    """Variables of the user that its code reads: to be defined in a cell at its top."""
    content: Any
    """The notebook, in the form of nbformat 4."""

    def write(self, path: str | Path) -> Path:
        """Write the file; raises `UsageError` if there is one already, which somebody may have edited."""
        import nbformat

        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("x", encoding="utf-8") as file:
                file.write(nbformat.writes(self.content) + "\n")  # type: ignore[no-untyped-call,unused-ignore]
        except FileExistsError as error:
            raise UsageError(f"{target} is there already: give another name, or remove it first") from error
        return target

    def __repr__(self) -> str:
        calls, left_out = (
            sum(len(part) for part in parts)
            for parts in zip(*((turn.calls, turn.left_out) for turn in self.turns), strict=True)
        )
        parts = [f"{format_count(calls, 'call')} of {format_count(len(self.turns), 'run')}"]
        parts += [f"needs {', '.join(self.needs)} from your notebook"] if self.needs else []
        parts += [f"{format_count(left_out, 'call')} left out, see its first cell"] if left_out else []
        return "; ".join(parts)


def notebook_of(lab: Services, run_id: str) -> RunNotebook:
    """Return the notebook of the conversation that a run ends; see `Evaluations.notebook_from`.

    Each call of `run_python` or `run_cell` that had its effect is a code cell, with the recorded output.
    Goals and answers are text of others and are in blocks of code, where no markup, link or formula of
    theirs is rendered.
    """
    from nbformat.v4 import new_notebook

    turns = turns_of(lab.store, run_id)
    calls = [call for turn in turns for call in turn.calls]
    needs = needed_names(calls)
    cells = _Cells()
    cells.markdown(_note(run_id, turns, needs))
    before, numbered = "", list[tuple[int, CodeCall]]()
    for turn in turns:
        blamed = _blamed(lab, turn.run)
        cells.markdown(f"## Question\n\n{_as_text(turn.goal)}", run=turn.run)
        for call in turn.calls:
            if before not in ("", call.kernel):
                cells.new_kernel(call.live)
            before = call.kernel
            if said := blamed.get(call.call):
                cells.markdown(f"▶ **Decisive step.** {_as_text(said)}", blame=call.call)
            numbered.append((cells.code(call), call))
        if turn.answer:
            cells.answer(turn, numbered)
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content: Any = new_notebook(cells=cells.made, metadata={"kernelspec": spec, OWNER: {"run": run_id}})  # type: ignore[no-untyped-call,unused-ignore]
    return RunNotebook(run=run_id, turns=tuple(turns), needs=tuple(needs), content=content)


def _blamed(lab: Services, run: str) -> dict[str, str]:
    """Return what a blame of the run says, by the calls that it names."""
    blame = newest_blame(lab.store, run)
    return {
        str(call): str(found.get("text", ""))
        for found in ([] if blame is None else blame.findings)
        if isinstance(calls := found.get("calls"), list)
        for call in calls
    }


class _Cells:
    def __init__(self) -> None:
        self.made: list[Any] = []
        self._codes = 0

    def markdown(self, text: str, **about: Json) -> None:
        from nbformat.v4 import new_markdown_cell

        metadata = {OWNER: about} if about else {}
        cell = new_markdown_cell(text, id=f"cell-{len(self.made)}", metadata=metadata)  # type: ignore[no-untyped-call,unused-ignore]
        self.made.append(cell)

    def code(self, call: CodeCall) -> int:
        """Add the code of a call; returns its number among the cells with code."""
        tags: list[Json] = ["raises-exception"] if call.error else []
        self._code(
            escape_surrogates(call.code),
            list(_outputs(call)),
            {OWNER: {"run": call.run, "call": call.call}, **({"tags": tags} if tags else {})},
        )
        return self._codes

    def _code(self, source: str, outputs: list[Any], metadata: dict[str, Json]) -> None:
        from nbformat.v4 import new_code_cell

        self._codes += 1
        name = f"cell-{len(self.made)}"
        cell = new_code_cell(source, id=name, metadata=metadata, outputs=outputs)  # type: ignore[no-untyped-call,unused-ignore]
        self.made.append(cell)

    def new_kernel(self, live: bool) -> None:
        """Say that another kernel begins; off the notebook it began without any variables."""
        self.markdown("Another kernel begins here: the variables of the cells above were gone.")
        if not live:
            self._code("%reset -f", [], {OWNER: {"reset": True}})

    def answer(self, turn: Turn, numbered: Sequence[tuple[int, CodeCall]]) -> None:
        """Add the answer of a turn with the cells that its numbers came from."""
        found = number_origins(turn.answer, [call.output for _, call in numbered])
        lines = [
            f"- {said} → {', '.join(f'cell {numbered[place][0]}' for place in places)}"
            for said, places in found.items()
        ]
        listed = (
            "\n\nNumbers that stand in outputs, by cell with code from the top:\n\n" + "\n".join(lines)
            if lines
            else ""
        )
        about: dict[str, Json] = {
            said: [[numbered[place][1].run, numbered[place][1].call] for place in places]
            for said, places in found.items()
        }
        self.markdown(f"## Answer\n\n{_as_text(turn.answer)}{listed}", run=turn.run, numbers=about)


def _outputs(call: CodeCall) -> Iterator[Any]:
    """Yield what the log has of the output: its text, then the figures that are still kept."""
    from nbformat.v4 import new_output

    if call.text not in ("", NO_OUTPUT):
        yield new_output("stream", name="stdout", text=sanitize_text(call.text) + "\n")  # type: ignore[no-untyped-call,unused-ignore]
    for media, path in call.images:
        if path is not None:
            data = {media: base64.b64encode(path.read_bytes()).decode()}
            yield new_output("display_data", data=data)  # type: ignore[no-untyped-call,unused-ignore]


def _note(run_id: str, turns: Sequence[Turn], needs: Sequence[str]) -> str:
    models = ", ".join(code_span(model) for model in dict.fromkeys(turn.model for turn in turns))
    folders = ", ".join(
        code_span(shown_folder(folder))
        for folder in dict.fromkeys(turn.workspace for turn in turns if turn.workspace)
    )
    runs = ", ".join(code_span(turn.run) for turn in turns)
    parts = [
        f"# What run {code_span(run_id)} executed",
        f"Made from the log of {runs} (model: {models}). Each cell with code is one call that had its "
        "effect. Run all cells to compute "
        "everything anew; no model is needed. Stored outputs are those of the log, as the model was "
        "given them, long ones shortened.",
    ]
    if folders:
        parts.append(f"The code worked in {folders}; run it there.")
    if needs:
        parts.append(
            f"**Needs {', '.join(map(code_span, needs))} from your notebook**: insert a cell below "
            "that defines them."
        )
    if any(call.live for turn in turns for call in turn.calls):
        parts.append("Your own cells are not in the log.")
    left_out = [
        f"- {code_span(call)} of {code_span(turn.run)}: {code_span(why, 200)}"
        for turn in turns
        for call, why in turn.left_out
    ]
    if left_out:
        parts.append("Left out:\n\n" + "\n".join(left_out))
    return "\n\n".join(parts)


def _as_text(text: str) -> str:
    """Return foreign text as a block of code, which nothing in it can end."""
    shown = sanitize_text(text)
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall(r"`{3,}", shown)), 3)
    return f"{fence}text\n{shown}\n{fence}"
