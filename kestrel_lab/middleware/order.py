"""The calls of one turn: safe ones run together, each risky one alone and in its place."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.errors import Signal
from kestrel_lab.core.protocols import Handler


class TurnOrder:
    """Lets a call start once every earlier call that it could clash with has ended.

    Two calls clash unless both are in `together`. Approval comes before this layer, so all questions of
    a turn are asked at once while only the running is ordered. A call that clashes with one that was
    left for later is left too.
    """

    def __init__(self, calls: Sequence[Call], together: frozenset[str]) -> None:
        self._ended = {call.id: asyncio.Event() for call in calls}
        self._left: dict[str, Signal] = {}
        self._before = {
            call.id: [earlier.id for earlier in calls[:place] if not (call.id in together and earlier.id in together)]
            for place, call in enumerate(calls)
        }

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Wait for this call's place, then proceed; raises the signal of an earlier call that was left."""
        asked = time.perf_counter()
        for earlier in self._before[call.id]:
            await self._ended[earlier].wait()
            if earlier in self._left:
                raise self._left[earlier]
        queued = time.perf_counter() - asked
        return replace(await proceed(call), queued=queued)

    def leave(self, call: Call, signal: Signal) -> None:
        """Say that `call` was left for later, and which signal those after it are to raise."""
        self._left[call.id] = signal

    def end(self, call: Call) -> None:
        """Say that `call` is over, however it ended."""
        self._ended[call.id].set()
