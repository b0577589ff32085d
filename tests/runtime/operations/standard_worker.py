"""Runs the plan `standard` in forks of itself that are killed: one JSON order per line, the exit status of
the fork as answer.

An order has `folder`, `api_base`, and either `stage` (kill when it begins; empty for never) or `resume` (a
run to go on with, by the command line). The fork writes its process id to `folder/pid` before it works, for
whoever wants to kill it.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from standard import GOAL

from kestrel_lab.cli.main import main as command_line
from kestrel_lab.core.events.union import Event, StageStarted
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run


def begin(folder: Path, order: dict[str, Any]) -> None:
    """Start a session; die when its stage begins, with everything before on disk."""

    def watch(run: Run, event: Event) -> None:
        if isinstance(event, StageStarted) and event.stage == order["stage"]:
            lab.store.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    lab = Lab(folder / "home", model="openai/test", approve="auto", listeners=[watch])
    asyncio.run(lab.run(GOAL, plan="standard", workspace=folder / "work"))
    lab.close()


def work(order: dict[str, Any]) -> None:
    """Carry out one order."""
    folder = Path(order["folder"])
    os.chdir(folder)
    os.environ |= {
        "KESTREL_HOME": str(folder / "home"),
        "KESTREL_API_BASE": order["api_base"],
        "OPENAI_API_KEY": "none",
    }
    (folder / "pid").write_text(str(os.getpid()))
    if order.get("resume"):
        told = os.open(folder / "told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(told, 1)
        os.dup2(told, 2)
        sys.argv = ["kestrel", "run", "--resume", order["resume"]]
        command_line()
    else:
        begin(folder, order)


def main() -> None:
    """Serve orders until the input ends."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the internet
    import jsonschema  # slow to load: once for all forks  # noqa: F401
    import litellm  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                work(json.loads(line))
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(int(end.code or 0))
            except BaseException as error:  # whatever it is: said, and the fork ends here  # noqa: BLE001
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(9)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
