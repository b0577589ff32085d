"""Putting layers around a handler."""

from functools import partial

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.protocols import Handler, Middleware


def compose(handler: Handler, *layers: Middleware) -> Handler:
    """Wrap `handler` in `layers`; the first one listed sees the call first."""
    for layer in reversed(layers):
        handler = partial(_through, layer, handler)
    return handler


async def _through(layer: Middleware, proceed: Handler, call: Call) -> Result:
    return await layer(call, proceed)
