"""Finished trials on their way into the log: each is stored at once, and nobody is told of one before it is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from kestrel_lab.evals.sitting import Sitting
from kestrel_lab.log.store import EvalRow, SessionStore


class Keeper:
    """Stores rows without holding up whoever makes them."""

    def __init__(self, store: SessionStore | None, on_row: Callable[[EvalRow], None], sitting: Sitting | None = None) -> None:
        """With no `store`, rows are only told of; `on_row` is called on the running event loop."""
        self._store, self._on_row, self._sitting = store, on_row, sitting
        self._loop = asyncio.get_running_loop()
        self._storing: set[Future[None]] = set()
        self._failure: BaseException | None = None
        self.rows: list[EvalRow] = []

    def keep(self, row: EvalRow) -> None:
        """Queue `row`; raises what went wrong with an earlier one."""
        if self._failure is not None:
            raise self._failure
        row = row if self._sitting is None else self._sitting.mark(row)
        self.rows.append(row)
        if self._store is None:
            self._on_row(row)
            return
        done = self._store.add_eval_run(row)
        self._storing.add(done)
        done.add_done_callback(lambda stored: self._loop.call_soon_threadsafe(self._stored, stored, row))

    async def finish(self) -> None:
        """Wait until all rows are on disk and told of; raises what went wrong with one."""
        if self._store is not None and self._storing:
            self._store.hurry()
            await asyncio.gather(*(asyncio.wrap_future(done) for done in tuple(self._storing)))
        if self._failure is not None:
            raise self._failure

    def _stored(self, done: Future[None], row: EvalRow) -> None:
        self._storing.discard(done)
        try:
            done.result()
            self._on_row(row)
        except Exception as error:  # noqa: BLE001  # raised to whoever keeps the next row, or waits for the end
            self._failure = self._failure or error
