"""The boundary to classes of others, whose code may raise anything while a value is read."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_NAME_OF: Callable[[type], str] = vars(type)["__name__"].__get__


def is_a(value: object, kinds: Any) -> bool:
    """Return what `isinstance` does, by the type alone: `value.__class__` may be a property of the user."""
    return issubclass(type(value), kinds)


def read_or(default: _Result, read: Callable[..., _Result], *values: object) -> _Result:
    """Return `read(*values)`, or `default` if that raises, whatever it raises."""
    try:
        return read(*values)
    except BaseException:  # a class of others may raise any exception; nobody has interrupted  # noqa: BLE001
        return default


def type_name(value: object) -> str:
    """Return the name of the type of a value."""
    return read_or("object", _NAME_OF, type(value))


def module_of(kind: object) -> str:
    """Return the name of the module of a class or function; empty if it has none."""
    module = read_or("", getattr, kind, "__module__", "")
    return module if type(module) is str else ""


def raw_dict(value: object) -> dict[str, Any]:
    """Return the `__dict__` of an object or module, without calling its class, which may load lazily."""
    attributes = read_or(None, object.__getattribute__, value, "__dict__")
    return attributes if is_a(attributes, dict) else {}


@dataclass(slots=True)
class _HeldInterrupt:
    """Takes the place of the handler of interrupts and notes whether one came."""

    handler: Any
    pressed: bool = False

    def __call__(self, *_: object) -> None:
        self.pressed = True


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Hold back an interrupt that comes during the block, and deliver it afterwards.

    So `KeyboardInterrupt` in the block comes from a class of the user and not from a person.
    """
    handler = signal.getsignal(signal.SIGINT)
    # None: the handler was not set by Python, and cannot be set by it.
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield
        return
    held = _HeldInterrupt(handler)
    signal.signal(signal.SIGINT, held)
    try:
        yield
    finally:
        # An undo may have set the handler that was there before.
        if signal.getsignal(signal.SIGINT) is held:
            signal.signal(signal.SIGINT, handler)
        if held.pressed:
            signal.raise_signal(signal.SIGINT)


def signal_handler(number: int) -> Any:
    """Return the handler of a signal, also while `held_interrupts` takes its place."""
    handler = signal.getsignal(number)
    return handler.handler if isinstance(handler, _HeldInterrupt) else handler
