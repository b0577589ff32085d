"""Runs a suite of scripted trials under kill -9, again and again, and says what was acknowledged when.

Arguments: folder, number of trials (hundreds), number of kills, seed, mutant or nothing. Everything is loaded
once; each sitting is a fork of this process.
"""

import asyncio
import json
import os
import random
import select
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.evals.execution import runner
from kestrel_lab.evals.execution import runner as keeping
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

TRIALS = int(sys.argv[2])
SUITE = Suite(
    name="many",
    scenarios=tuple(
        Scenario(id=f"s{n}", goal=f"g{n}", checks=(AnswerContains(texts=("yes",)),)) for n in range(100)
    ),
    epochs=TRIALS // 100,
)


def late() -> None:
    """Mutant: trials are said to be stored, and are once thirty have come together."""
    real, kept = keeping.store_trial, []

    def add(store: SessionStore, row: EvalRow, **_how: object) -> Future[None]:
        kept.append(row)
        if len(kept) == 30:
            for one in kept:
                real(store, one)
            kept.clear()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    keeping.store_trial = add


def sit(home: Path, pipe: int, mutant: str) -> None:
    """One sitting, to its end or until it is killed."""
    session = Lab(home, env={})
    if mutant == "late":
        late()
    if mutant == "forgetful":
        runner.resumed_trials = lambda *_: {}

    class Acknowledge(runner.EvalProgress):
        def count(self, row: EvalRow) -> None:
            super().count(row)
            os.write(pipe, f"{row.key}\n".encode())

    runner.EvalProgress = Acknowledge
    result = asyncio.run(
        runner.run_suite(session, SUITE, configs={"m": ScriptedModel(lambda request: "yes")}, resume=True)
    )
    session.close()
    os.write(pipe, f"result {len(result.rows)}\n".encode())


def main() -> None:
    """Kill so often, then let one sitting finish; prints JSON: acknowledged keys by sitting, and the last
    result's size.
    """
    home, kills, seed, mutant = Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    chance, told = random.Random(seed), []
    for number in range(kills + 1):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reader)
            sit(home, writer, mutant)
            os._exit(0)
        os.close(writer)
        heard, wanted = b"", chance.randrange(0, 2 * TRIALS // (kills + 2))
        while number < kills and heard.count(b"\n") < wanted:
            if not (piece := os.read(reader, 65536)):
                break
            heard += piece
        if number < kills:
            time.sleep(chance.random() * 0.01)
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while select.select([reader], [], [], 0)[0] and (piece := os.read(reader, 65536)):
            heard += piece
        while number == kills and (piece := os.read(reader, 65536)):
            heard += piece
        os.close(reader)
        told.append(heard.decode().splitlines())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
