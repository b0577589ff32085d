"""The server of `kestrel eval view`: the pages of all stored eval runs, live while one is going on.

- `GET /v1/suites`: the stored eval runs, newest first
- `GET /v1/page?suite=S&eval_run=R`: the index of the page of one, as in a report; with `seen`, the stamp of
  an earlier answer, only where trials were added since (else 204)
- `GET /v1/trial?run=RUN`: the details of a trial
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import dumps
from kestrel_lab.evals.execution.eval_run import EvalRun, eval_run_of, is_going_on
from kestrel_lab.evals.reports.page_data import Trials
from kestrel_lab.evals.reports.suite_page import WEB, trials_of
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials, trials_of_run
from kestrel_lab.evals.suite import Suite
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.services import Services
from kestrel_lab.server import protocol
from kestrel_lab.server.auth import Guard, refusal_response
from kestrel_lab.server.serve import Address, serve_app
from kestrel_lab.server.trial_list import list_trials
from kestrel_lab.views.formatting import format_count

_FILES: Final = {
    "/": ("view.html", "text/html"),
    "/view.js": ("view.js", "text/javascript"),
    "/suite_page.js": ("suite_page.js", "text/javascript"),
    "/suite_page.css": ("suite_page.css", "text/css"),
}


class StoredPages:
    """The pages of the eval runs of one log; a suite whose file is known says goals, tags and expected
    values.
    """

    def __init__(self, store: SessionStore, suite: Suite | None = None) -> None:
        self._store, self._suite = store, suite

    def suites(self) -> list[dict[str, Any]]:
        """Return the stored eval runs, newest first."""
        return [one.model_dump() for one in list_trials(self._store, protocol.ListTrials()).eval_runs]

    def page(self, suite: str, eval_run: str, seen: str = "") -> dict[str, Any] | None:
        """Return stamp and index of a page; `None` where the stamp is the one that was seen."""
        self._store.flush()
        rows = self._rows(suite, eval_run)
        live = self._going_on(rows)
        stamp = f"{len(rows)} {max((row.created_at for row in rows), default=0)} {live}"
        # The page asks again and again: it is drawn only where something changed.
        if stamp == seen:
            return None
        return {"stamp": stamp, "index": self._trials(suite, rows).index(f"Suite {suite}", live=live)}

    def trial(self, run: str) -> dict[str, Any] | None:
        """Return the details of the trial of a run; `None` where there is none."""
        rows = trials_of_run(self._store, run)
        return self._trials(rows[-1].suite, rows).detail(rows[-1]) if rows else None

    def _rows(self, suite: str, eval_run: str) -> list[EvalRow]:
        """Return the trials of an eval run, of a scenario, configuration and epoch the newest; what belongs
        to none is named by its commit.
        """
        found = (
            row
            for row in stored_trials(self._store, suite=suite)
            if (eval_run_of(row) or row.git_sha) == eval_run
        )
        return [*{(row.scenario, row.config, row.epoch): row for row in found}.values()]

    def _trials(self, suite: str, rows: list[EvalRow]) -> Trials:
        if self._suite is not None and self._suite.name == suite:
            return trials_of(self._suite, rows, self._store)
        return Trials(
            name=suite, rows=sorted(rows, key=lambda row: (row.scenario, row.epoch)), stores=[self._store]
        )

    def _going_on(self, rows: list[EvalRow]) -> str:
        """Return how far an eval run has come that is not at its end; empty for one that is."""
        if not rows or not (name := eval_run_of(rows[-1])):
            return ""
        sitting = max(rows, key=lambda row: row.created_at).result["sitting"]
        of = int(sitting["of"])
        if len(rows) >= of:
            return ""
        done = f"{len(rows):,} of {format_count(of, 'trial')}"
        if is_going_on(self._store, EvalRun(id=name, of=of, by=str(sitting["by"])), len(rows)):
            return f"Running: {done} so far. This page follows."
        return f"Cut off after {done}; kestrel eval run SUITE --resume goes on with it."


def view_app(pages: StoredPages, *, token: str, port: int) -> ASGIApp:
    """Return the application, for a server that listens on `port` of this machine only."""

    def answer(found: dict[str, Any] | list[dict[str, Any]] | None) -> Response:
        return (
            Response(status_code=204)
            if found is None
            else Response(dumps(found), media_type="application/json")
        )

    async def suites(_: Request) -> Response:
        return answer(await asyncio.to_thread(pages.suites))

    async def page(request: Request) -> Response:
        asked = [request.query_params.get(name, "") for name in ("suite", "eval_run", "seen")]
        return answer(await asyncio.to_thread(pages.page, *asked))

    async def trial(request: Request) -> Response:
        run = request.query_params.get("run", "")
        found = await asyncio.to_thread(pages.trial, run)
        if found is None:
            return refusal_response(404, "unknown_run", "no trial of this run is stored")
        return answer(found)

    routes = [Route(path, _file(*named), methods=["GET"]) for path, named in _FILES.items()]
    routes += [
        Route("/v1/suites", suites, methods=["GET"]),
        Route("/v1/page", page, methods=["GET"]),
        Route("/v1/trial", trial, methods=["GET"]),
    ]
    return Guard(Starlette(routes=routes), token=token, port=port, public=frozenset(_FILES))


def _file(name: str, media_type: str) -> Callable[[Request], Any]:
    content = (WEB / name).read_bytes()

    async def serve(_: Request) -> Response:
        return Response(content, media_type=f"{media_type}; charset=utf-8")

    return serve


def stored_suite(store: SessionStore, name: str) -> str:
    """Return the id of the newest eval run of a stored suite.

    Raises `UsageError` where no trial of it is stored.
    """
    found = list_trials(store, protocol.ListTrials()).eval_runs
    for one in found:
        if one.suite == name:
            return one.eval_run
    known = list(dict.fromkeys(one.suite for one in found))
    hint = did_you_mean(name, known) if known else "run one first: kestrel eval run SUITE"
    raise UsageError(f"no trials of a suite {name!r} are stored here; {hint}")


@asynccontextmanager
async def serving_view(
    lab: Services, suite: Suite | None = None, *, port: int = 0
) -> AsyncIterator[tuple[Address, asyncio.Task[None]]]:
    """Serve the pages while the block runs; gives the address, and a task that ends on a signal."""
    pages = StoredPages(lab.store, suite)

    def made(token: str, bound: int) -> ASGIApp:
        return view_app(pages, token=token, port=bound)

    async with serve_app(made, lab.home, port=port) as served:
        yield served
