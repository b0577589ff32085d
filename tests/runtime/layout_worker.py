"""Write events into a log while everything that reads files goes over the workspace: `layout_worker.py HOME
WORKSPACE RUN [blind]`.

Prints the number of each event that was acknowledged. `blind` is the mutant: nothing knows which files belong
to a log.
"""

import sys
import threading
import time
from pathlib import Path

from kestrel_lab.host import log_files

if "blind" in sys.argv:
    log_files.is_open_here = lambda *_: False
    log_files.LOG_NAMES = frozenset()

from kestrel_lab.core.events.union import CheckpointSaved, FilesTainted, RunStarted
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.retrieval.indexing.file_list import file_stamp, read_text
from kestrel_lab.runtime.security.file_taint import FileTaint
from kestrel_lab.tools.files.directory_walk import SIZE
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.verification.workspace_files import Files


def go_over(files: FileTaint, workspace: Workspace) -> None:
    """Read the workspace as taint, file tools, retrieval, the checks of answers and copies do."""
    for path, stamp in files.stamps(workspace, everything=True).stamps.items():
        if stamp:  # as after a call that has read others: every file that changed is hashed
            entry = files.described(workspace, path, name=False)
            files.take(
                "x",
                str(workspace.root),
                FilesTainted(call="c", step="s", began=time.time(), source="page", files=[entry], ended=True),
            )
            files._hashes.clear()
            assert stamp[SIZE] >= 0
    files.below(workspace, ".")
    for entry in workspace.walk(skip=()):
        try:
            workspace.read_bytes(entry.path)
        except (OSError, ValueError):
            continue
    for place in workspace.root.rglob("*"):
        path = str(place.relative_to(workspace.root))
        if not isinstance(file_stamp(workspace.root, path), str):
            read_text(workspace.root, path)
        Files(workspace.root).read(path)
        log_files.is_log(place)


def main(home: str, root: str, run: str) -> None:
    """Write for ever."""
    store = SessionStore(Path(home) / "kestrel.db")
    store.create_run(run, RunStarted(goal="g", workspace=root, model="m"))
    files, workspace = FileTaint(lambda: store), Workspace(Path(root))

    def read() -> None:
        while True:
            go_over(files, workspace)

    threading.Thread(target=read, daemon=True).start()
    while True:
        print(
            store.append(run, CheckpointSaved(seq=1, reason="x" * 3_000, bytes=1), urgent=True).result(),
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:4])
