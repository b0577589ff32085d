"""The page of a suite or a comparison as files: one that holds everything, or one with a folder of blocks."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.evals.reports.cluster_report import group_failures
from kestrel_lab.evals.reports.gate_decisions import GateReport
from kestrel_lab.evals.reports.page_data import Trials, shown_table
from kestrel_lab.evals.reports.result_view import write_text
from kestrel_lab.evals.reports.scan_report import ScanReport
from kestrel_lab.evals.scanners.findings import stored_scans
from kestrel_lab.evals.scenario_groups import with_groups
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.retrieval_recall import MISSED_HEADINGS, MissedItems, missed_table
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.html.elements import safe_markup, template_environment

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import Suite

WEB: Final = Path(__file__).parent / "web"
PAGE_BYTES: Final = 20_000_000
"""Of a page in one file; the details of the trials of a larger one lie in a folder beside it."""
_FOLDER: Final = "_trials"
"""Ends the name of the folder."""


_MISSED: Final = 100
"""Items that were not found and are listed."""


def trials_of(
    suite: Suite,
    rows: Sequence[EvalRow],
    *stores: SessionStore,
    columns: Sequence[str] = (),
    pairs: Sequence[tuple[str, ...]] = (),
) -> Trials:
    """Return the trials of a suite in its order of scenarios, and of configurations unless `columns` says
    another one.
    """
    scenarios = {one.id: one for one in suite.scenarios}
    order = {name: place for place, name in enumerate(scenarios)}
    return Trials(
        name=suite.name,
        # Trials of one scenario follow each other: what is packed together is alike, and opened together.
        rows=sorted(
            with_groups(rows, suite), key=lambda row: (order.get(row.scenario, len(order)), row.scenario)
        ),
        stores=stores,
        count_errors=suite.count_errors,
        scenarios=scenarios,
        columns=columns or [one.name for one in suite.configs],
        pairs=pairs,
    )


def write_suite_page(
    path: str | Path,
    suite: Suite,
    rows: Sequence[EvalRow],
    store: SessionStore,
    *,
    gates: GateReport | None = None,
) -> Path:
    """Write the page of one eval run of a suite; returns its path."""
    trials = trials_of(suite, rows, store)
    lacking = MissedItems()
    for _ in lacking.noting(rows):
        pass
    missed = missed_table(suite, lacking, store)
    tables: list[Json] = [gate_table(gates)] if gates else []
    if missed:
        shown = (
            f", the first {_MISSED} of {len(missed):,}: EvalResult.recall()" if len(missed) > _MISSED else ""
        )
        tables.append([f"What was not found{shown}", shown_table((MISSED_HEADINGS, missed[:_MISSED]))])
    tables += _read_tables(suite.name, rows, store)
    return write_page(path, trials, trials.index(f"Suite {suite.name}", tables=tables))


def _read_tables(suite: str, rows: Sequence[EvalRow], store: SessionStore) -> Iterator[Json]:
    """Yield what reading the runs gave: how often scanners found something, and clusters of the failures."""
    scans = stored_scans(store, [row.run for row in rows])
    names = sorted({name for one in scans.values() for name in one})
    if names:
        table = ScanReport(what=suite, rows=rows, scans=scans, names=names).table()
        if table[1]:
            yield ["What scanners found", shown_table(table)]
    # With fewer failures the matrix says all that clusters could.
    if sum(row.outcome != "pass" for row in rows) >= 6:
        # The runs are in no log that is at hand.
        with suppress(UsageError):
            groups = group_failures(store, suite, rows)[1]
            if any(len(one.members) > 1 for one in groups.clusters):
                yield ["Failures that are alike: kestrel eval clusters", shown_table(groups.table())]


def gate_table(gates: GateReport) -> list[Json]:
    """Return the decisions of gates as a table of the page, under their verdict."""
    return [f"Gates: {gates.verdict}", shown_table(gates.table())]


def write_page(path: str | Path, trials: Trials, index: dict[str, Any], *, most: int = PAGE_BYTES) -> Path:
    """Write the page with the details of all its trials; returns its path.

    Details are compressed in blocks that the page unpacks as they are asked for. With more than `most` bytes
    of them they are files in the folder `NAME_trials` beside the page, each read as it is asked for.
    """
    target = Path(path)
    folder = target.parent / f"{target.stem}{_FOLDER}"
    # Only a folder that holds nothing but blocks of a page is removed.
    if folder.is_dir() and all(re.fullmatch(r"\d+\.js", one.name) for one in folder.iterdir()):
        # The folder belongs to the page that this one replaces.
        shutil.rmtree(folder)
    blocks: list[str] = []
    files = size = 0
    for packed in _blocks(map(trials.detail, trials.rows), sizes := list[int]()):
        size += len(packed)
        blocks.append(packed)
        if size > most:
            # What was kept so far moves to files as well, so that no page holds more than its bound.
            files = _write_blocks(folder, files, blocks)
            blocks.clear()
    if files:
        files = _write_blocks(folder, files, blocks)
        blocks.clear()
    whole = index | {"blocks": sizes, "folder": folder.name if files else ""}
    return write_text(target, page_html(whole, blocks))


def page_html(index: dict[str, Any], blocks: Iterable[str]) -> str:
    """Return the page's document; what is foreign in it is text, or packed."""
    script = (WEB / "suite_page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = template_environment(WEB).get_template("suite_page.html")
    return str(
        page.render(
            index=index,
            packed=packed_json(index),
            blocks=blocks,
            digest=digest,
            script=safe_markup(script),
            style=safe_markup((WEB / "suite_page.css").read_text(encoding="utf-8")),
        )
    )


def packed_json(value: Json) -> str:
    """Return JSON, compressed, as base64: text that cannot end the element that it is in."""
    # Without a time in it, so that equal results give equal pages.
    return base64.b64encode(gzip.compress(dumps(value).encode(), 6, mtime=0)).decode()


def _blocks(details: Iterable[dict[str, Any]], sizes: list[int]) -> Iterator[str]:
    """Yield details in packed lists; the number of details of each goes to `sizes`."""
    held: list[Json] = []
    chars = 0
    for detail in details:
        held.append(detail)
        chars += len(dumps(detail))
        # Small enough to unpack while a person waits, large enough that alike details compress together.
        if chars >= 500_000:
            sizes.append(len(held))
            yield packed_json(held)
            held, chars = [], 0
    if held:
        sizes.append(len(held))
        yield packed_json(held)


def _write_blocks(folder: Path, first: int, blocks: Iterable[str]) -> int:
    """Write each block as a script that hands it to the page, since a page from a disk may load scripts
    alone; returns the number of the next one.
    """
    for block in blocks:
        write_text(folder / f"{first}.js", f'kestrelBlock({first}, "{block}");\n')
        first += 1
    return first
