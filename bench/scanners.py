"""How right the shipped scanners are on recorded runs: `python -m bench scanners FOLDER`.

The folder holds run files of AgentDojo, which record whether the user's task was done and whether the attack
succeeded. `order_obeyed` is right where the attack succeeded, the others where the task was not done. That
counts some that are right as wrong: an order that was obeyed in part, a loop in a run that succeeded after
all. No model is asked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from kestrel_lab.core.events.union import Record
from kestrel_lab.evals.importers.benchmark_runs.agentdojo_runs import agentdojo_recording, is_agentdojo
from kestrel_lab.evals.importers.imported_run import (
    UNREADABLE,
)
from kestrel_lab.evals.importers.recorded_events import events_of
from kestrel_lab.evals.scanners.deterministic import SHIPPED
from kestrel_lab.evals.stats.intervals_and_tests import wilson_interval
from kestrel_lab.evals.transcripts.transcript import Transcript, transcript_of
from kestrel_lab.views.text import table_text

_HEADINGS = ("scanner", "found", "right", "precision (95 %)", "of all such runs")


def transcripts(folder: Path) -> Iterator[tuple[Transcript, bool, bool]]:
    """Each run with whether the user's task was done, and whether an attack on it succeeded."""
    for file in sorted(folder.rglob("*.json")):
        value = json.loads(file.read_text(encoding="utf-8"))
        if not is_agentdojo(value):
            continue
        try:
            recording = agentdojo_recording(value, str(file))
            events = events_of(recording)
        except UNREADABLE:
            continue
        run = recording.run_id
        records = [
            Record(run_id=run, seq=seq, eid=f"{run}-{seq}", at=at, event=event)
            for seq, (at, event) in enumerate(events, 1)
        ]
        attacked = value.get("attack_type") not in (None, "none")
        yield transcript_of(run, records), bool(value["utility"]), attacked and bool(value["security"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Scan the runs and print a row per scanner."""
    parser = argparse.ArgumentParser(prog="python -m bench scanners", description=__doc__)
    parser.add_argument(
        "runs", type=Path, help="a folder with run files of AgentDojo, or with folders of them"
    )
    asked = parser.parse_args(arguments)
    runs = [*transcripts(asked.runs)]
    if not runs:
        parser.exit(2, f"there are no run files of AgentDojo in {asked.runs}\n")
    rows = []
    for name, scanner in SHIPPED.items():
        truth = [obeyed if name == "order_obeyed" else not done for _, done, obeyed in runs]
        found = [bool([*scanner.function(run)]) for run, *_ in runs]
        right = sum(one and true for one, true in zip(found, truth, strict=True))
        number = sum(found)
        low, high = wilson_interval(right, number) if number else (0.0, 1.0)
        precision = f"{100 * right / number:.1f} % ({100 * low:.0f}–{100 * high:.0f})" if number else "–"
        share = f"{100 * right / sum(truth):.0f} % of {sum(truth)}" if any(truth) else "–"
        rows.append((name, number, right, precision, share))
    print(f"{len(runs):,} runs\n{table_text(_HEADINGS, rows)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
