"""One run has one time, whichever door shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kestrel_lab.cli.terminal import TerminalDisplay
from kestrel_lab.core.events import union as e
from kestrel_lab.core.usage import usage_of_run, wall_time
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.server.controller import RunList
from kestrel_lab.views.confidence_badge import badge_of
from kestrel_lab.views.formatting import format_duration
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.report_rows import report_rows
from kestrel_lab.views.run_view import view_of

STARTED = e.RunStarted(goal="g", workspace="w", model="m")
RUN: list[tuple[float, e.Event]] = [
    (100.0, e.StateTransition(source="PLANNING", target="EXECUTING")),
    (101.0, e.ModelCalled(call="m1", step="s", model="m", cycle=1, messages=1)),
    # A second of these two was a wait for the endpoint, which takes time though it is no work.
    (103.0, e.ModelAnswered(call="m1", step="s", model="m", seconds=2.0, queued=1.0, tokens_in=9)),
    (103.0, e.ApprovalAsked(call="c", step="s", tool="execute_code", args={}, danger="HIGH", key="k")),
    (103.0, e.StateTransition(source="EXECUTING", target="WAITING_APPROVAL")),
    (160.0, e.ApprovalGiven(call="c", granted=True, by="me", how="click")),
    (160.0, e.StateTransition(source="WAITING_APPROVAL", target="EXECUTING")),
    (161.0, e.RunInterrupted()),
    (900.0, e.RunResumed()),
    (900.2, e.ToolAnswered(call="c", step="s", tool="execute_code", text="ok", seconds=0.1)),
    (900.2, e.RunFinished(outcome="complete", answer="Done.")),
    (900.2, e.StateTransition(source="EXECUTING", target="COMPLETE")),
]
TOOK = "4.2 s"
"""Three seconds before the question, one behind it, a fifth after the run was taken up again."""
LATER: dict[str, list[e.Event]] = {
    "nothing": [],
    "an undo": [e.KernelUndone(calls=["c"], kernel="")],
    "files of a fork": [e.FilesApplied(by="me", folder="w")],
}


def records_of(store: SessionStore) -> list[e.Record]:
    """The run's log."""
    return list(store.records("r"))


def show_in_panel(store: SessionStore) -> str:
    """What the panel's clock and the saved page of a panel are made of."""
    return format_duration(view_of(records_of(store)).head.took)


def show_ending(store: SessionStore) -> str:
    """The last line in a terminal."""
    display = TerminalDisplay(Console(file=StringIO()))
    for record in records_of(store):
        display.tell(record.event, record.at)
    return display.ending().plain


def show_report(store: SessionStore) -> str:
    """The report's row."""
    rows = report_rows(view_of(records_of(store)), None, [], badge_of([]))
    return " ".join(dict(rows)["took"])


DOORS: dict[str, Callable[[SessionStore], str]] = {
    "panel": show_in_panel,
    "finished panel": lambda store: run_html(view_of(records_of(store))),
    "terminal": show_ending,
    "report": show_report,
    "list of runs": lambda store: format_duration(RunList(store).newest(1)[0].took_s),
}


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_shows_the_same_time(tmp_path: Path, door: str, later: str) -> None:
    """From the start to the end, without waiting for a person and without the time between sessions; what a
    person does to the run afterwards does not change it.
    """
    with closing(SessionStore(tmp_path / "log.db")) as store:
        store.create_run("r", STARTED, at=100.0)
        for at, event in RUN:
            store.append("r", event, at=at)
        for event in LATER[later]:
            store.append("r", event, at=5_000.0)
        store.flush()
        assert TOOK in DOORS[door](store)


def test_an_undo_adds_to_no_time() -> None:
    """The times that are measured of a trial end with the run: a label, a verdict or an undo adds to none."""
    history = [(100.0, STARTED), *RUN]
    records = [
        e.Record(run_id="r", seq=seq, eid=str(seq), at=at, event=event)
        for seq, (at, event) in enumerate(history, 1)
    ]
    undone = e.Record(run_id="r", seq=99, eid="99", at=5_000.0, event=e.KernelUndone(calls=["c"], kernel=""))
    assert usage_of_run([*records, undone]) == usage_of_run(records)
    assert wall_time([*records, undone]) == pytest.approx(800.2)


def test_a_fork_begins_its_own_time() -> None:
    """What the parent took is not the fork's; the limit of seconds counts both."""
    history = [(100.0, STARTED), *RUN[:3], (500.0, e.RunForked(parent="p", at=4, model="m"))]
    history += [(502.0, e.RunFinished(outcome="complete", answer="Done."))]
    meter = usage_of_run(
        e.Record(run_id="r", seq=seq, eid=str(seq), at=at, event=event)
        for seq, (at, event) in enumerate(history, 1)
    )
    assert (meter.took_s, meter.working_s) == (2.0, 4.0)
