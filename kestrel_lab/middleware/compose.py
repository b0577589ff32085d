"""Composition of middleware: wrap layers around a handler."""

from kestrel_lab.core.protocols import Handler, Middleware


def compose(handler: Handler, *layers: Middleware) -> Handler:
    """Wrap `handler` in `layers`; the first one listed sees the call first."""
    for layer in reversed(layers):
        handler = _around(layer, handler)
    return handler


def _around(layer: Middleware, proceed: Handler) -> Handler:
    return lambda call: layer(call, proceed)
