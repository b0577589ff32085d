"""A protocol client inside the server's process; each transport connects one to the outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import KestrelError, StoreError, UsageError
from kestrel_lab.core.json_types import dumps
from kestrel_lab.server import protocol
from kestrel_lab.server.run_stream import Follower

if TYPE_CHECKING:
    from kestrel_lab.server.controller import Control

_ROOM: Final = 256
"""Messages queued for a client; when the queue is full, only this client's log readers wait."""
_FOLLOWED: Final = 32
"""The largest number of runs that one client follows at once."""
_LIST_S: Final = 0.2
"""Seconds between two readings of the list of runs for one client."""
_WAKE: Final = object()


class Link:
    """A client.

    Iterating over it, or calling `receive`, gives the messages of the server, the first of which is `hello`.
    """

    def __init__(self, control: Control, *, how: str, person: bool) -> None:
        self._control = control
        self._how = how
        self._person = person
        self._queue: asyncio.Queue[protocol.ServerMessage | object | None] = asyncio.Queue(_ROOM)
        self._reports: dict[str, protocol.JobProgress] = {}
        """The newest progress message of each job; it replaces older ones."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Background tasks of the client: one per followed run, by id; under "" that of the list of runs."""
        self._followed: dict[str, Follower] = {}
        self._closed = False
        control.links.add(self)
        if person:
            control.attendance.came()
        self._queue.put_nowait(control.hello())

    async def send(self, message: protocol.ClientMessage | Mapping[str, Any] | str | bytes) -> None:
        """Send a message to the server; its reply arrives among the other messages.

        Waits while the client does not read.
        """
        if isinstance(message, Mapping):
            message = dumps(dict(message))
        read = protocol.read_message(message) if isinstance(message, str | bytes) else message
        try:
            await self._obey(read)
        except KestrelError as error:
            await self._put(
                protocol.Refused(
                    re=read.re if isinstance(read, protocol.Refused) else read.id,
                    code="refused",
                    message=str(error),
                )
            )

    async def _obey(self, read: protocol.ClientMessage | protocol.Refused) -> None:
        match read:
            case protocol.Refused():
                await self.refuse(read)
            case protocol.Subscribe():
                await self._subscribe(read)
            case protocol.Watch():
                # The count first: changes after it are found by the list below, even during this read.
                count, found = self._control.tail.count, await self._newest(read)
                await self._put(protocol.Accepted(re=read.id))
                await self._put(protocol.Runs(runs=found))
                self._run("", self._list(read, count, {summary.id: summary for summary in found}))
                for message in self._control.jobs.values():
                    self.report(message)
            case protocol.Unsubscribe():
                await self._unsubscribe(read)
            case _:
                await self._put(await self._control.handle(read, how=self._how))

    async def refuse(self, refused: protocol.Refused) -> None:
        """Send the reply to input that was not a message."""
        await self._put(refused)

    async def receive(self) -> protocol.ServerMessage:
        """Return the next message; raises `EOFError` when the link is closed."""
        while True:
            # Progress comes last: it may be replaced while it waits, all other messages are sent in order.
            if self._reports and self._queue.empty():
                return self._reports.pop(next(iter(self._reports)))
            if self._closed and self._queue.empty():
                raise EOFError
            found = await self._queue.get()
            if found is not _WAKE and found is not None:
                return found  # type: ignore[return-value]  # neither mark

    async def __aiter__(self) -> AsyncIterator[protocol.ServerMessage]:
        """Yield the messages until the link is closed."""
        while True:
            try:
                yield await self.receive()
            except EOFError:
                return

    def report(self, message: protocol.JobProgress) -> None:
        """Queue a job's progress for a watching client, replacing its older progress; never waits."""
        if "" not in self._tasks:
            return
        self._reports[message.job] = message
        # A full queue needs no wake-up: the client has messages to read, and then comes here anyway.
        if not self._queue.full():
            self._queue.put_nowait(_WAKE)

    def leave(self) -> None:
        """Note that the client decides nothing more, so runs stop waiting for it; it still gets messages."""
        if self._person:
            self._person = False
            self._control.attendance.left()

    async def settled(self) -> None:
        """Wait until every event that the log has of the followed runs has been queued for the client."""
        for name, follower in list(self._followed.items()):
            if (task := self._tasks.get(name)) is not None:
                at_end = asyncio.create_task(follower.settled.wait())
                await asyncio.wait({task, at_end}, return_when=asyncio.FIRST_COMPLETED)
                at_end.cancel()

    async def quiet(self) -> None:
        """Wait until the client has received all of these messages as well."""
        await self.settled()
        # Polled, since asyncio queues do not signal that they are empty.
        while (  # noqa: ASYNC110
            not self._queue.empty() and not self._closed
        ):
            await asyncio.sleep(0.01)

    async def ended(self, run: str) -> None:
        """Wait until the last message of a followed run has been queued."""
        if (task := self._tasks.get(run)) is not None:
            await asyncio.wait({task})

    async def close(self) -> None:
        """End all following and close the link; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._control.links.discard(self)
        self.leave()
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        # Wakes a reader that waits; one with a full queue does not wait.
        if not self._queue.full():
            self._queue.put_nowait(None)

    def drop(self) -> None:
        """Discard the messages that were not received, which releases senders that wait for room."""
        while not self._queue.empty():
            self._queue.get_nowait()

    async def _put(self, message: protocol.ServerMessage) -> None:
        if not self._closed:
            await self._queue.put(message)

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background; it replaces the earlier task of that name."""
        if (before := self._tasks.pop(name, None)) is not None:
            before.cancel()
        task = self._tasks[name] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._tasks.pop(name) if self._tasks.get(name) is done else None)

    async def _subscribe(self, message: protocol.Subscribe) -> None:
        if len(self._tasks) > _FOLLOWED and message.run not in self._tasks:
            await self._put(
                message.refused(
                    "too_many", f"{_FOLLOWED} runs are followed already", todo="unsubscribe from some"
                )
            )
            return
        try:
            follower = self._control.follow(message.run, after=message.after, view=message.view)
        except UsageError as error:
            await self._put(message.refused("unknown_run", str(error), todo="`watch` lists the runs"))
            return
        await self._put(protocol.Accepted(re=message.id, run=message.run))

        async def send() -> None:
            self._control.followers.add(follower)
            try:
                async for one in follower.messages():
                    await self._put(one)
            except StoreError as error:
                await self._put(message.refused("refused", str(error), todo="subscribe again"))
            finally:
                self._control.followers.discard(follower)

        self._followed[message.run] = follower
        self._run(message.run, send())

    async def _unsubscribe(self, message: protocol.Unsubscribe) -> None:
        task = self._tasks.pop(message.run, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._put(protocol.Accepted(re=message.id, run=message.run))

    async def _list(self, message: protocol.Watch, count: int, known: dict[str, protocol.RunSummary]) -> None:
        """Send the runs of the list that have changed, each in its newest state."""
        tail = self._control.tail
        try:
            while True:
                await tail.grown(count)
                count = tail.count
                found = await self._newest(message)
                # The list is newest first; clients add each new run at the top.
                for summary in reversed(found):
                    if known.get(summary.id) != summary:
                        await self._put(protocol.RunChanged(run=summary))
                known = {summary.id: summary for summary in found}
                await asyncio.sleep(_LIST_S)
        except StoreError as error:
            await self._put(message.refused("refused", str(error), todo="watch again"))

    async def _newest(self, message: protocol.Watch) -> list[protocol.RunSummary]:
        return await asyncio.to_thread(self._control.list.newest, message.limit, trials=message.trials)
