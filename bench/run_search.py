"""Full text of a hundred thousand trials: sizes and times, on a log made of recorded runs with variation.

Used as `python -m bench.run_search LOG HOME [TRIALS]`: LOG is a log into which recorded runs were imported
(`kestrel import`). A log that is in HOME already is measured again. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import apsw

from kestrel_lab import Lab, tool
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.workspace.find import find_runs
from kestrel_lab.testing import ScriptedModel, Turn

CHANGED = 0.03
"""Share of the words of a text that are others in each trial, beside half of its digits."""
RARE = "the your in account email of"
"""Common words in an order that one trial in 50,000 has."""
_WORD = re.compile(r"(?<![\\\w])(?!true|false|null)[a-z]{4,}(?![\w]*\":)|(?<=\d)\d")
"""In the JSON of an event: no key, no escape, no first digit."""
_COPY = (
    """INSERT INTO runs(id, goal, workspace, model, model_kind, config, scenario, status, began, last_seq, owner,
      created_at, epoch) SELECT id || ?1, goal, workspace, model, model_kind, config, scenario, status, began,
      last_seq, owner, created_at + ?2, epoch FROM source.runs ORDER BY created_at""",
    """INSERT INTO events(run_id, seq, eid, at, type, ref, body, epoch, hash) SELECT run_id || ?1, seq, eid || ?1,
      at + ?2, type, ref, iif(seq = 1, json_object('imported', json(body -> '$.imported')), varied(body)), epoch,
      hash FROM source.events WHERE seq = 1 OR type IN ('model_answered', 'tool_called', 'tool_answered')""",
    """INSERT INTO eval_runs SELECT id || ?1, scenario, json_set(result_json, '$.run', result_json ->> '$.run' ||
      ?1), metrics_json, git_sha, created_at + ?2, suite, config, epoch, key || ?1, NULL FROM source.eval_runs""",
)
_TEXT = """
SELECT (SELECT sum(octet_length(goal)) FROM runs) + (SELECT sum(CASE type
  WHEN 'tool_called' THEN octet_length(body ->> '$.tool') + octet_length(body ->> '$.args')
  ELSE octet_length(body ->> '$.text') END)
  FROM events WHERE type IN ('model_answered', 'tool_called', 'tool_answered'))
"""
"""Bytes of what a person would search, each told once: goals, answers, arguments of calls, results, errors."""


def fill(path: Path, source: Path, count: int) -> None:
    """Copy the trials of a log until there are so many, each with other words, ten seconds apart.

    Past our rules, whose checks of each event would take most of the time: the log is for measuring only.
    """
    SessionStore(path).close()
    raw, chance = apsw.Connection(str(path)), random.Random(32)
    raw.execute("ATTACH ? AS source", (str(source),))
    bodies = raw.execute("SELECT body FROM source.events WHERE type = 'tool_answered' LIMIT 3000").fetchall()
    words = sorted({word for (body,) in bodies for word in _WORD.findall(body) if len(word) > 3})

    def other(match: re.Match[str]) -> str:
        if match[0].isdigit():
            return str(chance.randrange(1, 10)) if chance.random() < 0.5 else match[0]
        return chance.choice(words) if chance.random() < CHANGED else match[0]

    raw.create_scalar_function("varied", lambda body: _WORD.sub(other, body), 1)
    rules = raw.execute(
        "SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger' AND tbl_name IN ('runs', 'events', "
        "'eval_runs') "
        "AND name IS NOT 'runs_text'"
    ).fetchall()
    raw.pragma("synchronous", 0)
    for name, _ in rules:
        raw.execute(f"DROP TRIGGER {name}")
    ((known,),) = raw.execute("SELECT count(*) FROM source.runs")
    for copy in range(-(-count // known)):
        with raw:
            for sql in _COPY:
                raw.execute(sql, (f"-{copy}", 86_400.0 * copy))
    for run, place in raw.execute(
        "SELECT run_id, seq FROM events WHERE type = 'model_answered' AND run_id IN (SELECT run_id FROM run_texts "
        "WHERE number % 50000 = 1234)"
    ).fetchall():
        raw.execute(
            "UPDATE events SET body = json_set(body, '$.text', ?) WHERE run_id = ? AND seq = ?",
            (RARE, run, place),
        )
    for _, sql in rules:
        raw.execute(sql)
    raw.close()


def seconds(store: SessionStore, query: str, **filters: Any) -> dict[str, Any]:
    """Return the time of a first page, the middle of five, and what is on it."""
    took = []
    for _ in range(5):
        began = time.perf_counter()
        found = find_runs(store, query, **filters)
        took.append(time.perf_counter() - began)
    return {"s": round(statistics.median(took), 4), "worst_s": round(max(took), 4), "hits": len(found)}


async def trial_cost(home: Path, turns: int = 9) -> float:
    """Return the processor seconds of a run with a scripted model and as many calls as a recorded one."""

    @tool(effect="pure")
    async def look(topic: str) -> str:
        """Look something up."""
        return f"{topic} " * 80

    def play(request: ModelRequest) -> Turn:
        done = (len(request.messages) - 2) // 2
        return "done" if done >= turns else [("look", {"topic": f"entry {done}"})]

    async with Lab(home / "cost", ScriptedModel(play), "auto", tools=[look], env={}) as lab:
        await lab.run("look", workspace=home)
        began = time.process_time()
        for _ in range(10):
            await lab.run("look", workspace=home)
        return (time.process_time() - began) / 10


def main(source: str, home: str, count: str = "100000") -> None:
    """Measure, and print what was measured."""
    path = Path(home) / "kestrel.db"
    if not path.exists():
        fill(path, Path(source), int(count))
    store = SessionStore(path)
    ((size,),) = store.query(_TEXT)
    store.texts.empty()
    cpu, began = time.process_time(), time.time()
    find_runs(store, "x", wait=True)
    cpu, took, total = time.process_time() - cpu, time.time() - began, store.texts.state()[1]
    raw = apsw.Connection(str(store.path))
    ((pages,),) = raw.execute(
        "SELECT sum(pgsize) FROM dbstat WHERE name GLOB 'run_words*' OR name GLOB '*run_texts*'"
    )
    middle = total // 2
    print(
        json.dumps(
            {
                "trials": total,
                "text_mb": round(size / 1e6, 1),
                "index_share": round(pages / size, 3),
                "index_cpu_ms_per_run": round(cpu / total * 1e3, 3),
                "index_s": round(took, 1),
                "trial_cpu_ms": round(asyncio.run(trial_cost(path.parent)) * 1e3, 1),
                "common word": seconds(store, "email"),
                "two common words": seconds(store, "account email"),
                "common words and filters": seconds(
                    store, "email", tool="send_email", check="failed", model="gpt-5*"
                ),
                "middle of a common word": seconds(store, "email", after=middle),
                "a filter alone": seconds(store, "", outcome="fail"),
                "since, fewer than a page": seconds(store, "email", since="2026-01-01", until="2026-01-02"),
                "rare phrase of common words": seconds(store, f'"{RARE}"'),
                "no such phrase": seconds(store, '"of email account the your in"'),
                "no such word": seconds(store, "zyxwvut"),
            },
            indent=1,
        )
    )
    raw.close()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
