"""Events without secrets: what a failure says may quote an address, a header or a file."""

from __future__ import annotations

from dataclasses import replace

from kestrel_lab.core.events import Event
from kestrel_lab.core.redaction import Redactor

_FOREIGN = ("error", "reason", "message")
"""Fields with words of errors. What tools answer is redacted where it comes from, before anything keeps it; what is asked for stays exact."""


def without_secrets(event: Event, redactor: Redactor) -> Event:
    """`event`, or one like it whose words about what went wrong hold no secret."""
    changed = {}
    for name in _FOREIGN:
        if (said := getattr(event, name, None)) and (clean := redactor.json(said)) != said:
            changed[name] = clean
    return replace(event, **changed) if changed else event  # type: ignore[arg-type]  # the type of a field stays what it was
