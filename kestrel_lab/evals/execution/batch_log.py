"""What happened to batches at a provider: facts in the log, and the state of each batch folded from them.

A batch is planned, which names its requests, before it is sent; then it is submitted, which names the
provider's id; then answers come; then it is closed. A process that dies between two of these leaves what the
next one needs to go on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.eventlog.seals.row_seals import check_heads, check_row, row_hash
from kestrel_lab.eventlog.store import SessionStore

Fact = Literal["planned", "submitted", "answered", "closed", "finished"]
"""`finished` is said of an eval run, whose id is in place of a batch's: all its trials are stored."""

_INSERT: Final = "INSERT INTO batch_events(batch, at, type, body, hash) VALUES (?,?,?,?,?)"
_FORGET: Final = """
    DELETE FROM batch_events WHERE type = 'answered' AND batch IN
      (SELECT batch FROM batch_events WHERE type = 'planned' AND body ->> '$.eval_run' = ?)
"""


@dataclass(kw_only=True, slots=True)
class Batch:
    """A batch, as far as the log knows it."""

    id: str
    suite: str
    eval_run: str
    model: str
    api_base: str | None
    keys: Mapping[str, str]
    """Its requests: the folder of the trial that asked, by the request's key."""
    at: float = 0.0
    """When it was planned, in seconds since 1970."""
    provider_id: str = ""
    """Empty while nobody knows whether it was submitted."""
    status: str = ""
    """How it ended; empty while it goes on."""
    reason: str = ""
    """Why it failed, where it did."""
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What came back, by key, until the trials are stored; see `BatchAnswer`."""
    done: int = 0
    """Requests that were answered."""
    cost_usd: float = 0.0
    full_usd: float = 0.0
    """What the answers would have cost if asked for one by one."""
    unpriced: int = 0
    """Answers whose price in a batch is not known."""

    @property
    def plan(self) -> dict[str, Json]:
        """What is known of it before it is submitted."""
        return {
            "suite": self.suite,
            "eval_run": self.eval_run,
            "model": self.model,
            "api_base": self.api_base,
            "keys": {**self.keys},
        }

    @property
    def open(self) -> bool:
        """True while answers may come."""
        return not self.status


def write_fact(store: SessionStore, batch: str, fact: Fact, body: Mapping[str, Json]) -> Future[None]:
    """Queue a fact; the future resolves once it is on disk."""
    values = (batch, time.time(), fact, dumps(dict(body)))
    return store.execute(_INSERT, (*values, row_hash(values)), f"batch {batch}", urgent=fact != "answered")


async def keep_fact(store: SessionStore, batch: str, fact: Fact, body: Mapping[str, Json]) -> None:
    """Return once a fact is on disk."""
    await asyncio.wrap_future(write_fact(store, batch, fact, body))


def stored_batches(
    store: SessionStore, *, suite: str | None = None, eval_run: str | None = None
) -> list[Batch]:
    """Return the batches of a suite or an eval run, or all, oldest first."""
    store.flush()
    found: dict[str, Batch] = {}
    for batch, at, fact, body in _facts(store):
        if fact == "planned":
            found[batch] = Batch(id=batch, at=at, **body)
        elif batch in found:
            _take(found[batch], fact, body)
    return [one for one in found.values() if suite in (None, one.suite) and eval_run in (None, one.eval_run)]


def unfinished_eval_run(store: SessionStore, suite: str) -> str:
    """Return the id of the newest eval run of `suite` that asked in batches and was not finished; empty where
    there is none.
    """
    asked = dict.fromkeys(batch.eval_run for batch in stored_batches(store, suite=suite))
    finished = {batch for batch, _, fact, _ in _facts(store) if fact == "finished"}
    return next((run for run in reversed(asked) if run not in finished), "")


def cost_text(batches: Sequence[Batch]) -> str:
    """Return what batches cost, and what the same answers cost if asked for one by one."""
    done, unpriced = (sum(getattr(one, name) for one in batches) for name in ("done", "unpriced"))
    paid, full = (sum(getattr(one, name) for one in batches) for name in ("cost_usd", "full_usd"))
    many = f"{len(batches):,} batch{'' if len(batches) == 1 else 'es'}"
    answers = f"{many} brought {format_count(done, 'answer')}"
    if unpriced:
        usual = f"; asked for one by one they cost ${full:.4f}" if full else ""
        return f"{answers}: the price of {unpriced:,} of them in a batch is not known{usual}"
    return f"{answers} for ${paid:.4f} instead of ${full:.4f}"


def finish_eval_run(store: SessionStore, eval_run: str) -> None:
    """Record that all trials of an eval run are stored, and forget the answers: the runs have them."""
    write_fact(store, eval_run, "finished", {})
    store.execute(_FORGET, (eval_run,), f"the answers of {eval_run}").result()


def _facts(store: SessionStore) -> Iterator[tuple[str, float, str, dict[str, Any]]]:
    check_heads(store.query, "batch_events")
    rows = store.query("SELECT batch, at, type, body, hash FROM batch_events ORDER BY number")
    for batch, at, fact, body, digest in rows:
        check_row((batch, at, fact, body), digest, f"a fact of batch {batch}")
        yield batch, at, fact, json.loads(body)


def _take(batch: Batch, fact: str, body: dict[str, Any]) -> None:
    if fact == "submitted":
        batch.provider_id = body["id"]
    elif fact == "answered":
        batch.answers[body["key"]] = body
    elif fact == "closed":
        for name, value in body.items():
            setattr(batch, name, value)
