"""Write a log and wait to be killed: `cut_log_worker.main(PATH, [unmarked] [early] [refused])`.

Prints `done` once everything is acknowledged. The words are mutants, and a commit that fails at last.
"""

import threading

import apsw

from kestrel_lab.core.events.union import Progress, RunStarted
from kestrel_lab.eventlog import writer
from kestrel_lab.eventlog.seals.marks import MarkFile
from kestrel_lab.eventlog.store import SessionStore

RUNS, ACKNOWLEDGED = 3, 12
"""Runs, and the events of each."""


def mark_early() -> None:
    """Mark an event when it is added, before the commit."""
    add = writer._Pages.add

    def added(pages: writer._Pages, event: writer.Append) -> int:
        number = add(pages, event)
        assert pages.mark is not None
        marks[-1].advance(pages.mark)
        return number

    marks: list[MarkFile] = []
    opened = MarkFile.__init__

    def remember(mark: MarkFile, *arguments: object) -> None:
        marks.append(mark)
        opened(mark, *arguments)  # type: ignore[arg-type]

    writer._Pages.add = added  # type: ignore[method-assign]
    MarkFile.__init__ = remember  # type: ignore[assignment,method-assign]


def main(path: str, *words: str) -> None:
    """Write, and sleep."""
    if "unmarked" in words:
        MarkFile.advance = lambda *_: None  # type: ignore[method-assign,assignment]
    if "early" in words:
        mark_early()
    store = SessionStore(path)
    for number in range(RUNS):
        store.create_run(f"r{number}", RunStarted(goal="g", workspace="/w", model="m"))
        for event in range(ACKNOWLEDGED - 1):
            store.append(f"r{number}", Progress(text=f"{event} " + "x" * 900), urgent=True).result()
    if "refused" in words:
        held = apsw.Connection(path)
        held.execute("BEGIN IMMEDIATE")
        held.execute("UPDATE runs SET owner = 'other:1:0:x', epoch = 1 WHERE id = 'r0'")
        held.execute("COMMIT")
        assert store.append("r0", Progress(text="refused"), urgent=True).exception() is not None
    print("done", flush=True)
    threading.Event().wait()
