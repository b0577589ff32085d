"""OTLP export: spans as a file of OTLP JSON, to a collector by OTLP/HTTP, and live while runs work.

Needs the extra `otel`.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import (
    Event,
    LiveEvent,
    Record,
    RunInterrupted,
    RunStarted,
    StateTransition,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import escape_surrogates
from kestrel_lab.host.version import __version__
from kestrel_lab.telemetry.spans import Attributes, Span, SpanFold

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_BATCH: Final = 512
"""Spans sent at once."""
_LAST_S: Final = 5
"""Seconds that closing a session waits for a collector."""
_IDS: Final = ("traceId", "spanId", "parentSpanId")


class ExportedRun(Protocol):
    """What a live export needs of a run."""

    id: str

    def records(self) -> list[Record]:
        """Return its events in the log."""


def write_spans(spans: Sequence[Span], target: str | Path) -> None:
    """Write spans as OTLP JSON: one request in a `.json` file, else one a line; or send them to a collector
    if `target` is an http address.

    An address without a path is completed by `/v1/traces`; headers, certificates and timeouts are those of
    the `OTEL_EXPORTER_OTLP_…` variables. Raises `UsageError` where the extra `otel` is absent, or the
    collector cannot be reached or refuses the spans.
    """
    found = _readable(spans)
    if str(target).startswith(("http://", "https://")):
        _send(found, str(target))
        return
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    batches = (
        [found]
        if path.suffix == ".json"
        else [found[start : start + _BATCH] for start in range(0, len(found), _BATCH)]
    )
    path.write_text(
        "".join(f"{json.dumps(_otlp_json(batch), ensure_ascii=False)}\n" for batch in batches),
        encoding="utf-8",
    )


class LiveExport:
    """A listener that sends the spans of runs to a collector as they end; the address is that of the
    `OTEL_EXPORTER_OTLP_…` variables.

    Sends on a thread of its own. Spans for which a queue of 2,048 has no room, or which a collector does not
    take, are lost and logged by the SDK: the log has all of them, for `write_spans`. Raises `UsageError`
    where the extra `otel` is absent.
    """

    def __init__(self, conversation: Callable[[str], str], *, content: bool) -> None:
        """`conversation` returns the id of the first run of a run's chat."""
        _require()
        # OpenTelemetry is slow to load: only sessions that export spans pay for it.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._conversation, self._content = conversation, content
        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        self._folds: dict[str, SpanFold] = {}

    def __call__(self, run: ExportedRun, event: Event) -> None:
        """Take an event of a run in, and queue the spans that end with it."""
        # Such events are in no log: an export from the log would have other spans.
        if isinstance(event, LiveEvent):
            return
        fold = self._folds.get(run.id) or self._fold(run, event)
        for span in _readable(fold.take(event, time.time())):
            self._processor.on_end(span)
        if isinstance(event, RunInterrupted) or (
            isinstance(event, StateTransition) and RunStatus(event.target).terminal
        ):
            self._folds.pop(run.id, None)

    def _fold(self, run: ExportedRun, event: Event) -> SpanFold:
        """Return the fold of a run of which `event` is the first that this process sees."""
        if isinstance(event, RunStarted):
            conversation = self._conversation(event.follows) if event.follows else run.id
            fold = SpanFold(run.id, conversation=conversation, content=self._content)
        else:
            # Of another session, or of the run that it forks: they have exported it.
            earlier = _records_until(run.records(), event)
            fold = SpanFold(run.id, conversation=self._conversation(run.id), content=self._content)
            for record in earlier:
                fold.take(record.event, record.at)
        self._folds[run.id] = fold
        return fold

    def close(self) -> None:
        """Send what is queued; waits a few seconds at most."""
        # Of runs that wait for somebody.
        for fold in list(self._folds.values()):
            for span in _readable(fold.close()):
                self._processor.on_end(span)
        self._folds.clear()
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        # The SDK itself waits half a minute for a collector that is not there.
        closing.join(_LAST_S)
        if closing.is_alive():
            logging.getLogger(__name__).warning(
                "the OpenTelemetry collector did not take the last spans within %s s: export them from "
                "the log with kestrel show RUN --otlp",
                _LAST_S,
            )


def _records_until(records: list[Record], event: Event) -> Iterable[Record]:
    last = next(
        (place for place in reversed(range(len(records))) if records[place].event == event), len(records)
    )
    return records[:last]


def _require() -> None:
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # an extra  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "exporting OpenTelemetry spans needs the SDK: pip install 'kestrel-lab[otel]'"
        ) from error


def _readable(spans: Sequence[Span]) -> list[ReadableSpan]:
    """Return spans as the SDK has them."""
    if not spans:
        return []
    _require()
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import Event as SpanEvent
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    resource = Resource({"service.name": "kestrel_lab", "service.version": __version__}).merge(
        OTELResourceDetector().detect()
    )
    scope = InstrumentationScope("kestrel_lab", __version__)

    def context(trace: int, span: int) -> SpanContext:
        return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return [
        ReadableSpan(
            escape_surrogates(span.name),
            context=context(span.trace, span.id),
            parent=context(span.trace, span.parent) if span.parent else None,
            resource=resource,
            attributes=_encodable(span.attributes),
            events=[
                SpanEvent("gen_ai.evaluation.result", _encodable(given), _nanoseconds(at))
                for at, given in span.results
            ],
            links=[Link(context(link.trace, link.span), {"kestrel.link": link.kind}) for link in span.links],
            kind=SpanKind.CLIENT if span.client else SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET)
            if span.error is None
            else Status(StatusCode.ERROR, escape_surrogates(span.error) or None),
            start_time=_nanoseconds(span.began),
            end_time=_nanoseconds(span.ended),
            instrumentation_scope=scope,
        )
        for span in spans
    ]


def _encodable(attributes: Attributes) -> Attributes:
    """Return attributes without lone surrogates: the SDK drops an attribute that is not UTF-8."""
    return {
        name: escape_surrogates(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def _nanoseconds(at: float) -> int:
    # A float holds seconds since 1970 to a quarter of a microsecond: further digits would be noise.
    return round(at * 1e6) * 1000


def _send(spans: list[ReadableSpan], address: str) -> None:
    _require()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    endpoint = address if urlsplit(address).path.strip("/") else f"{address.rstrip('/')}/v1/traces"
    exporter = OTLPSpanExporter(endpoint=endpoint)
    try:
        for start in range(0, len(spans), _BATCH):
            if exporter.export(spans[start : start + _BATCH]) is not SpanExportResult.SUCCESS:
                raise UsageError(
                    f"the collector at {endpoint} did not take the spans: is it running, and does it "
                    "speak OTLP/HTTP there? Its answer is logged above"
                )
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]


def _otlp_json(spans: list[ReadableSpan]) -> dict[str, Any]:
    """Return a request as OTLP JSON: ids are hexadecimal, where Protocol Buffers' JSON has Base64."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    request: dict[str, Any] = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
    for resource in request.get("resourceSpans", ()):
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            for holder in (span, *span.get("links", ())):
                holder |= {name: base64.b64decode(holder[name]).hex() for name in _IDS if name in holder}
    return request
