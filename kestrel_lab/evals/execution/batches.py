"""Trials that ask their models in batches: what they ask is gathered, sent in one file, answered hours later.

A trial goes on with its next turn when its answer comes, so an agent of ten turns takes ten batches. What
was planned, submitted and answered is in the log, see `batch_log`: a process that goes on after another died
makes the trials that are not stored again, takes what was answered, and waits for what is on its way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import ModelError, most_severe
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.protocols import Model
from kestrel_lab.evals.execution.batch_log import (
    Batch,
    cost_text,
    finish_eval_run,
    keep_fact,
    stored_batches,
    write_fact,
)
from kestrel_lab.evals.execution.conversation_digest import ConversationDigest
from kestrel_lab.evals.options import Rest
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.models.batch_model import in_batches, provider_models
from kestrel_lab.models.cassettes.scrub import folder_hidden, folder_shown, map_texts
from kestrel_lab.models.litellm.batch import BatchAnswer, BatchEndpoint, BatchState
from kestrel_lab.models.litellm.library import import_litellm
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.resolve import choose_model

AT_ONCE: Final = 2_000
"""Trials that wait at once: each has its folder and its conversation in memory."""
_MOST_LINES: Final = 50_000
_MOST_CHARS: Final = 50_000_000
"""Bounds of a file; providers take 50,000 requests and 200 MB."""
_PAUSES_S: Final = (1.0, 5.0, 30.0)
_TRIES: Final = 3
"""Batches in which a request goes before it counts as failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How long is waited, in seconds."""

    gather_s: float = 5.0
    """After the last request, for further ones, while some trial still works."""
    look_s: float = 0.2
    """Until a batch is looked at; then longer and longer."""
    longest_look_s: float = 60.0


@dataclass(kw_only=True, slots=True)
class _Request:
    """A request of a trial."""

    answer: asyncio.Future[BatchAnswer]
    endpoint: BatchEndpoint | None = None
    """`None` while no trial of this process has asked for it."""
    line: str = ""
    folder: str = ""
    tries: int = 0
    """Batches in which it went."""
    sent: bool = False
    """Whether one of them may still answer it."""


@dataclass(kw_only=True, slots=True)
class Batches:
    """The batches of one eval run. Use `at_work` around the trials."""

    store: SessionStore
    eval_run: str
    suite: str
    env: Mapping[str, str]
    known: Sequence[Model] = ()
    """Models of the suite, with their keys."""
    rest: Rest = "again"
    left: int = 0
    """Trials that have not ended."""
    at_once: int = AT_ONCE
    say: Callable[[str], None] = lambda _: None
    """Called with how far the batches are, whenever that changes."""
    pace: Pace = field(default_factory=Pace)
    notes: list[str] = field(default_factory=list)
    """Sentences about batches that did not bring back everything, and about the cost."""
    _requests: dict[str, _Request] = field(default_factory=dict)
    _parked: dict[str, _Request] = field(default_factory=dict)
    """Those that wait to be sent."""
    _waiting: Counter[str] = field(default_factory=Counter)
    """Requests under way, by trial."""
    _states: dict[str, BatchState | None] = field(default_factory=dict)
    """Of the batches that are under way, by our id."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    """Holds them. An error of one, a key that is refused for instance, stops the trials: none is stored as
    broken, and the next run goes on.
    """
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Take up what an earlier process left, and gather and send while the block runs.

        A block that ends without an error has stored all trials: the answers are forgotten.
        """
        await import_litellm()
        try:
            async with self._group:
                for batch in stored_batches(self.store, eval_run=self.eval_run):
                    self._take_up(batch)
                self._begin(self._gather())
                yield
                # The trials have ended: nobody waits for what is still under way.
                for task in self._tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise most_severe([errors]) from None
        made = stored_batches(self.store, eval_run=self.eval_run)
        self.notes += [cost_text(made)] if made else []
        finish_eval_run(self.store, self.eval_run)

    @contextmanager
    def trial(
        self, name: str, calls: ConversationDigest, workspace: Path
    ) -> Iterator[Callable[[Model], Model]]:
        """Yield what makes the models of one trial ask in batches."""
        numbers: Counter[str] = Counter()

        async def ask(model: LiteLLMModel, request: ModelRequest) -> ModelAnswer | None:
            same = content_key(self.eval_run, name, calls.key(model.name, request))
            # A trial may make the same request several times; each is one of its own.
            numbers[same] += 1
            self._waiting[name] += 1
            try:
                key = f"{same}-{numbers[same]}"
                return await self._ask(BatchEndpoint(model), request, key, workspace)
            finally:
                # The plus drops trials without a request, which `len` would count.
                self._waiting = +(self._waiting - Counter({name: 1}))

        try:
            yield partial(in_batches, ask=ask)
        finally:
            self.left -= 1
            self._changed.set()

    async def _ask(
        self, endpoint: BatchEndpoint, request: ModelRequest, key: str, workspace: Path
    ) -> ModelAnswer | None:
        wanted = self._request(key)
        wanted.endpoint, wanted.line = endpoint, endpoint.line(key, request)
        wanted.folder = str(workspace)
        self._park(key)
        # Shielded: a trial that is cancelled leaves the future to its batch, which still settles it.
        answer = await asyncio.shield(wanted.answer)
        if answer.refused:
            raise ModelError(f"{endpoint.model.name}: {answer.refused}", caller=True)
        if answer.body is None and self.rest == "direct":
            return None
        if answer.body is None:
            raise ModelError(
                f"{endpoint.model.name}: {_TRIES} batches brought back no answer to this request: ask for "
                "the rest directly (--batch-rest direct), or run the suite without --batch"
            )
        body = map_texts(cast("Json", answer.body), folder_shown(workspace))
        return endpoint.answer(request, cast("dict[str, Any]", body), answer.cost_usd)

    def _request(self, key: str) -> _Request:
        if key not in self._requests:
            self._requests[key] = _Request(answer=asyncio.get_running_loop().create_future())
        return self._requests[key]

    def _park(self, key: str) -> None:
        request = self._requests[key]
        if request.endpoint is not None and not request.sent and not request.answer.done():
            self._parked[key] = request
        self._changed.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work, name="kestrel batches")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_up(self, batch: Batch) -> None:
        for answer in batch.answers.values():
            self._settle(BatchAnswer(**answer))
        if batch.open:
            model = next(
                (
                    leaf
                    for one in self.known
                    for leaf in provider_models(one)
                    if (leaf.name, leaf.api_base) == (batch.model, batch.api_base)
                ),
                None,
            )
            endpoint = endpoint_of(batch, self.env) if model is None else BatchEndpoint(model)
            self._follow_soon(batch, endpoint)

    def _follow_soon(self, batch: Batch, endpoint: BatchEndpoint, lines: Sequence[str] = ()) -> None:
        for key in batch.keys:
            request = self._request(key)
            request.sent, request.tries = True, request.tries + 1
        self._states[batch.id] = None
        self._begin(self._follow(batch, endpoint, lines))

    async def _gather(self) -> None:
        """Send what is parked as soon as all trials wait, or when nothing was added for a while."""
        while True:
            self._changed.clear()
            if self._parked and len(self._waiting) >= min(self.left, self.at_once):
                await self._send()
            try:
                async with asyncio.timeout(self.pace.gather_s if self._parked else None):
                    await self._changed.wait()
            except TimeoutError:
                await self._send()

    async def _send(self) -> None:
        by_endpoint: dict[tuple[str, str | None], dict[str, _Request]] = {}
        for key, request in self._parked.items():
            model = cast("BatchEndpoint", request.endpoint).model
            by_endpoint.setdefault((model.name, model.api_base), {})[key] = request
        self._parked = {}
        for (name, api_base), requests in by_endpoint.items():
            for part in _files(requests):
                batch = Batch(
                    id=f"b{secrets.token_hex(6)}",
                    suite=self.suite,
                    eval_run=self.eval_run,
                    model=name,
                    api_base=api_base,
                    keys={key: requests[key].folder for key in part},
                )
                # On disk before it is sent: after a crash in between the provider is asked whether it has the
                # batch.
                await keep_fact(self.store, batch.id, "planned", batch.plan)
                endpoint = cast("BatchEndpoint", requests[part[0]].endpoint)
                self._follow_soon(batch, endpoint, [requests[key].line for key in part])
        self._tell()

    async def _follow(self, batch: Batch, endpoint: BatchEndpoint, lines: Sequence[str]) -> None:
        """Submit a batch unless that was done, wait until it has ended, and hand out what came back."""
        try:
            await submit(self.store, batch, endpoint, lines)
        except ModelError as error:
            await keep_fact(self.store, batch.id, "closed", {"status": "refused", "reason": str(error)})
            for key in batch.keys:
                self._settle(BatchAnswer(key=key, refused=str(error)))
        else:
            if batch.open:
                async for state in states(endpoint, batch.provider_id, self.pace):
                    self._states[batch.id] = state
                    self._tell()
                await take_answers(self.store, batch, endpoint, state)
            self._settle_all(batch)
        del self._states[batch.id]
        self._tell()

    def _settle_all(self, batch: Batch) -> None:
        """Hand out the answers of a batch that has ended, and see to what it did not answer."""
        for answer in batch.answers.values():
            self._settle(BatchAnswer(**answer))
        rest = [key for key in batch.keys if key not in batch.answers]
        for key in rest:
            request = self._requests[key]
            request.sent = False
            if batch.provider_id and (self.rest == "direct" or request.tries >= _TRIES):
                self._settle(BatchAnswer(key=key))
            self._park(key)
        if rest and batch.provider_id:
            what = "asked for directly, at the full price" if self.rest == "direct" else "sent again"
            came = f"{len(batch.answers):,} of {format_count(len(batch.keys), 'answer')}"
            why = f" ({batch.reason})" if batch.reason else ""
            self.notes.append(f"batch {batch.id} ended {batch.status} with {came}{why}: the rest was {what}")

    def _settle(self, answer: BatchAnswer) -> None:
        if not (future := self._request(answer.key).answer).done():
            future.set_result(answer)

    def _tell(self) -> None:
        if not self._states:
            self.say("")
            return
        known = [state for state in self._states.values() if state is not None]
        done, total = (sum(getattr(one, name) for one in known) for name in ("done", "total"))
        answers = f": {done:,} of {format_count(total, 'answer')}" if total else ""
        self.say(f"waiting for {_batches(len(self._states))}{answers}")


def _batches(number: int) -> str:
    return f"{number:,} batch{'' if number == 1 else 'es'}"


def _files(requests: Mapping[str, _Request]) -> Iterator[list[str]]:
    """Yield the keys of requests in parts that a provider takes as one file."""
    part: list[str] = []
    chars = 0
    for key, request in requests.items():
        if part and (len(part) >= _MOST_LINES or chars + len(request.line) > _MOST_CHARS):
            yield part
            part, chars = [], 0
        part.append(key)
        chars += len(request.line)
    yield part


def endpoint_of(batch: Batch, env: Mapping[str, str]) -> BatchEndpoint:
    """Return the endpoint of a stored batch; raises `UsageError` if its key is not in `env`."""
    model = choose_model(batch.model, env=env, api_base=batch.api_base)
    return BatchEndpoint(next(provider_models(model)))


async def submit(
    store: SessionStore, batch: Batch, endpoint: BatchEndpoint, lines: Sequence[str] = ()
) -> None:
    """Submit a planned batch unless that was done, and keep the provider's id of it.

    Without `lines` it was planned by a process that died. If that did not submit it, it is closed. Raises
    `ModelError` where the provider refuses it.
    """
    if batch.provider_id:
        return
    try:
        found = (
            await endpoint.submit(batch.id, lines, {"kestrel_suite": batch.suite[:500]})
            if lines
            else await endpoint.find(batch.id)
        )
    except ModelError as error:
        # Without an answer nobody knows whether it was submitted.
        if not error.transient or not (found := await endpoint.find(batch.id)):
            raise
    if found:
        batch.provider_id = found
        await keep_fact(store, batch.id, "submitted", {"id": found})
    else:
        batch.status = "not submitted"
        await keep_fact(store, batch.id, "closed", {"status": batch.status})


async def states(endpoint: BatchEndpoint, batch: str, pace: Pace) -> AsyncIterator[BatchState]:
    """Yield the states of a batch until it has ended; an endpoint that is away is waited for."""
    pause = pace.look_s
    while True:
        try:
            state = await endpoint.state(batch)
        except ModelError as error:
            if not error.transient:
                raise
        else:
            yield state
            if state.ended:
                return
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, pace.longest_look_s)


async def _downloaded(endpoint: BatchEndpoint, state: BatchState) -> list[BatchAnswer]:
    """Return what a batch brought back; a download that breaks off is repeated a few times."""
    for pause in _PAUSES_S:
        try:
            return [answer async for answer in endpoint.answers(state)]
        except ModelError as error:
            if not error.transient:
                raise
        await asyncio.sleep(pause)
    return [answer async for answer in endpoint.answers(state)]


async def take_answers(store: SessionStore, batch: Batch, endpoint: BatchEndpoint, state: BatchState) -> None:
    """Store what a batch that has ended brought back, and that it has ended."""
    for answer in await _downloaded(endpoint, state):
        if answer.key not in batch.keys:
            continue
        hidden = map_texts(cast("Json", asdict(answer)), folder_hidden(Path(batch.keys[answer.key])))
        batch.answers[answer.key] = cast("dict[str, Any]", hidden)
        write_fact(store, batch.id, "answered", batch.answers[answer.key])
    answered = [one for one in batch.answers.values() if one["body"] is not None]
    ended: dict[str, Json] = {
        "status": state.status,
        "reason": state.reason,
        "done": len(answered),
        "cost_usd": sum(one["cost_usd"] or 0.0 for one in answered),
        "full_usd": sum(one["full_usd"] or 0.0 for one in answered),
        "unpriced": sum(one["cost_usd"] is None for one in answered),
    }
    for name, value in ended.items():
        setattr(batch, name, value)
    await keep_fact(store, batch.id, "closed", ended)
