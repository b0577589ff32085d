"""Execute the notebooks of this folder headless and write them, outputs included.

    python notebooks/execute.py [--out FOLDER] [NOTEBOOK …]

Each is what `kestrel notebook run` does; without `--out` the notebooks are written in place. Runs are kept in a throw-away folder, and the
person who decides is called `you`, so that no name or path of this machine is stored. Ends with exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from kestrel_lab.evals.notebooks.run import run_notebook_sync

HERE = Path(__file__).parent


def main() -> int:
    """Execute what the command line names, or all."""
    parser = argparse.ArgumentParser(description="Execute notebooks headless.")
    parser.add_argument(
        "notebooks", nargs="*", type=Path, help="notebooks; all of this folder by default"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the executed notebooks; in place by default"
    )
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"KESTREL_HOME": home, "LOGNAME": "you"}
        for source in options.notebooks or sorted(HERE.glob("*.ipynb")):
            print(f"executing {source} …", flush=True)
            target = None if options.out is None else options.out / source.name
            result = run_notebook_sync(source, target, cwd=HERE.parent)
            print(f"  {result.headline}")
            failed |= not result.ok
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
