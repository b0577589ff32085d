"""The order of the calls of one turn: safe calls run together, each risky call alone and in its place, also beside other steps."""

import asyncio
import time
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.errors import Signal
from kestrel_lab.core.protocols import Handler


class TurnOrder:
    """Lets a call start once every earlier call that it could clash with has ended.

    Two calls clash unless both are in `together`. Approval comes before this layer, so all questions of
    a turn are asked at once while only the running is ordered. A call that clashes with one that was
    left for later is left too.

    Of those in `alone` one at a time has `lock`, which other turns share: from its beginning until its end is told.
    """

    def __init__(
        self, calls: Sequence[Call], together: Collection[str], alone: Collection[str] = (), lock: asyncio.Lock | None = None
    ) -> None:
        self._alone, self._lock = alone, lock
        self._has: set[str] = set()
        self._left: dict[str, Signal] = {}
        self._before = {
            call.id: [earlier.id for earlier in calls[:place] if not (call.id in together and earlier.id in together)]
            for place, call in enumerate(calls)
            if place
        }
        self._ended = {earlier: asyncio.Event() for earlier in set().union(*self._before.values())}
        """Of the calls that others wait for."""

    @property
    def matters(self) -> bool:
        """Whether any call waits for another one, of this turn or of another step."""
        return bool(self._ended or self._alone)

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Wait for this call's place, then proceed; raises the signal of an earlier call that was left."""
        alone = self._lock is not None and call.id in self._alone
        before = self._before.get(call.id)
        if not before and not alone:
            return await proceed(call)
        asked = time.perf_counter()
        for earlier in before or ():
            await self._ended[earlier].wait()
            if earlier in self._left:
                raise self._left[earlier]
        if self._lock is not None and alone:
            await self._lock.acquire()
            self._has.add(call.id)
        queued = time.perf_counter() - asked
        return replace(await proceed(call), queued=queued)

    def leave(self, call: Call, signal: Signal) -> None:
        """Say that `call` was left for later, and which signal those after it are to raise."""
        self._left[call.id] = signal

    def end(self, call: Call) -> None:
        """Say that `call` is over, however it ended."""
        if self._lock is not None and call.id in self._has:
            self._has.discard(call.id)
            self._lock.release()
        if (ended := self._ended.get(call.id)) is not None:
            ended.set()
