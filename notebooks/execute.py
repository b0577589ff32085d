"""Execute notebooks headless through nbclient and write them, outputs included.

    python notebooks/execute.py [--out FOLDER] [NOTEBOOK …]

Without `--out` the notebooks are written in place. Ends with exit code 1 if a cell raised or took too long.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

CELL_TIMEOUT_S = 120
HERE = Path(__file__).parent


def execute(source: Path, target: Path) -> float:
    """Run every cell of `source` in a fresh kernel and write the result to `target`; returns the seconds it took."""
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=40"],  # a warning about encryption on this very machine
        resources={"metadata": {"path": str(HERE.parent)}},
    )
    began = time.perf_counter()
    try:
        client.execute()
    finally:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
    return time.perf_counter() - began


def main() -> int:
    """Execute what the command line names, or all."""
    parser = argparse.ArgumentParser(description="Execute notebooks headless.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="notebooks; all of this folder by default")
    parser.add_argument("--out", type=Path, help="folder for the executed notebooks; in place by default")
    options = parser.parse_args()
    failed = 0
    for source in options.notebooks or sorted(HERE.glob("*.ipynb")):
        target = source if options.out is None else options.out / source.name
        print(f"executing {source} …", flush=True)
        try:
            seconds = execute(source, target)
        except (CellExecutionError, CellTimeoutError) as error:
            failed += 1
            print(f"  failed: {error}")
        else:
            print(f"  {seconds:.1f} s → {os.path.relpath(target)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
