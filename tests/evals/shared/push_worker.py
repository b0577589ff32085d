"""Pushes or pulls in a process of its own, which a test kills: `push_worker.py push|pull URL HOME`."""

import sys

from kestrel_lab.evals.shared.transfer import SharedResults
from kestrel_lab.lab import Lab

if __name__ == "__main__":
    way, url, home = sys.argv[1:]
    with Lab(home, env={}) as session:
        shared = SharedResults(session)
        print("begun", flush=True)
        done = (shared.push_sync if way == "push" else shared.pull_sync)(
            url, runs=True, reporter=lambda *told: print("page", *told, flush=True)
        )
        print("done", done.trials, flush=True)
