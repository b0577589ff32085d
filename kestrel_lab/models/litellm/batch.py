"""The batch endpoint of a model's provider, through litellm: requests go in one file, answers come hours
later for less money.

The file has a line per request in OpenAI's form. A batch carries the name that its sender gave it as
metadata, by which it is found again if its sender died before it knew the provider's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.json_types import dumps, loads
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.models.chat_format import messages_to_wire, tools_to_wire
from kestrel_lab.models.litellm.cost import batch_prices, read_usage, usage_of
from kestrel_lab.models.litellm.errors import model_error
from kestrel_lab.models.litellm.library import import_litellm, litellm_library
from kestrel_lab.models.litellm.response import Response, completion_of
from kestrel_lab.models.wrapper import drop_text

if TYPE_CHECKING:
    from kestrel_lab.models.litellm.model import LiteLLMModel

PROVIDERS: Final = ("openai", "azure", "hosted_vllm", "litellm_proxy")
"""Providers whose batches litellm submits, lists and reads without a store of their own."""
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
"""States after which no further answer comes; any of them may come with a part of the answers."""
_NAME: Final = "kestrel_batch"
_PAGE: Final = 100
_PAGES: Final = 20
"""Pages of the provider's list in which a batch is looked for, newest first."""
_AGAIN: Final = frozenset({408, 409, 425, 429})


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchState:
    """What the provider says of a batch."""

    id: str
    status: str
    done: int = 0
    failed: int = 0
    total: int = 0
    files: tuple[str, ...] = ()
    """The files with answers and errors, as far as there are any."""
    reason: str = ""
    """Why it failed, in the provider's words."""

    @property
    def ended(self) -> bool:
        """True if no further answer comes. A batch is completed a moment before its files are there."""
        early = self.status == "completed" and self.done + self.failed > 0 and not self.files
        return self.status in ENDED and not early


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchAnswer:
    """What came back for one request."""

    key: str
    body: dict[str, Any] | None = None
    """The chat completion; `None` where there is none."""
    refused: str = ""
    """Why the provider will not answer this request, however often it is asked."""
    cost_usd: float | None = None
    """What it cost; `None` where the price of a batch is not known."""
    full_usd: float | None = None
    """What it would have cost if asked for by itself."""


def _refusal_text(body: Any) -> str:
    """Return the words of an error body, whatever its form."""
    error = (body.get("error") or body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(message if isinstance(message, str) else dumps(error), 400)


@dataclass(frozen=True, slots=True)
class BatchEndpoint:
    """The batch endpoint for `model`. Methods raise `ModelError`."""

    model: LiteLLMModel

    @property
    def provider(self) -> str:
        """The provider's prefix."""
        return self.model.name.partition("/")[0]

    @property
    def missing(self) -> str:
        """Why there is no such endpoint; empty where there is one."""
        if self.provider in PROVIDERS:
            return ""
        return (
            f"{self.model.name}: no batch endpoint of {self.provider} can be used through litellm, only "
            f"those of {', '.join(PROVIDERS)}"
        )

    def line(self, key: str, request: ModelRequest) -> str:
        """Return the line of a batch file for `request`; its answer will be named by `key`. Loads litellm."""
        model, litellm = self.model, litellm_library()
        dialect, settings = model.dialect(request), model.settings(request)
        name = model.name.partition("/")[2]
        tools = tools_to_wire(request.tools, dialect)
        options: dict[str, Any] = litellm.get_optional_params(
            model=name,
            custom_llm_provider=self.provider,
            drop_params=True,
            **settings,
            **({"tools": tools} if tools else {}),
            **model.extra,
        )
        options |= options.pop("extra_body", None) or {}
        options.pop("stream", None)
        body: dict[str, Any] = {
            "model": name,
            "messages": messages_to_wire(request.messages, dialect),
            **options,
        }
        return dumps({"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body})

    async def submit(self, name: str, lines: Sequence[str], metadata: Mapping[str, str]) -> str:
        """Submit a batch called `name`; return the provider's id of it."""
        content = "\n".join(lines).encode() + b"\n"
        file = await self._call("create_file", file=(f"{name}.jsonl", content), purpose="batch")
        made = await self._call(
            "create_batch",
            completion_window="24h",
            endpoint="/v1/chat/completions",
            input_file_id=file.id,
            metadata={_NAME: name, **metadata},
        )
        return str(made.id)

    async def find(self, name: str) -> str:
        """Return the provider's id of the batch called `name`; empty if there is none."""
        after: dict[str, Any] = {}
        for _ in range(_PAGES):
            page = await self._call("list_batches", limit=_PAGE, **after)
            found = [one for one in page.data if (one.metadata or {}).get(_NAME) == name]
            if found:
                return str(found[0].id)
            if not page.data or not getattr(page, "has_more", False):
                return ""
            after = {"after": page.data[-1].id}
        return ""

    async def state(self, batch: str) -> BatchState:
        """Return the state of a batch by the provider's id."""
        found = await self._call("retrieve_batch", batch_id=batch)
        counts = found.request_counts
        errors = getattr(getattr(found, "errors", None), "data", None) or ()
        return BatchState(
            id=batch,
            status=str(found.status),
            done=counts.completed if counts else 0,
            failed=counts.failed if counts else 0,
            total=counts.total if counts else 0,
            files=tuple(file for file in (found.output_file_id, found.error_file_id) if file),
            reason="; ".join(str(one.message) for one in errors if one.message),
        )

    async def cancel(self, batch: str) -> None:
        """Ask the provider to stop a batch; what it has answered by then can be read."""
        await self._call("cancel_batch", batch_id=batch)

    async def answers(self, state: BatchState) -> AsyncIterator[BatchAnswer]:
        """Yield what came back; a line that cannot be read costs that line only."""
        for file in state.files:
            content = await self._call("file_content", file_id=file)
            for line in split_lines(content.content.decode("utf-8", "replace")):
                for answer in self._read(line):
                    yield answer

    def answer(self, request: ModelRequest, body: dict[str, Any], cost: float | None) -> ModelAnswer:
        """Return a chat completion that came back as the answer to `request`, at the price of the batch."""
        litellm = litellm_library()
        incoming = Response(drop_text, signed=self.model.dialect(request).signed_thinking)
        incoming.take(body)
        answer = incoming.answer(request)
        usage = usage_of(litellm, self.model.name, request, answer.text, incoming.usage)
        paid = Usage(unpriced=1) if cost is None else Usage(cost_usd=cost)
        counted = replace(usage, cost_usd=0.0, unpriced=0) + paid
        return replace(answer, usage=counted, model=incoming.model or self.model.name)

    def _read(self, line: str) -> Iterator[BatchAnswer]:
        try:
            row: Any = loads(line)
            key, response = str(row["custom_id"]), row.get("response") or {}
            status, body = int(response.get("status_code") or 0), response.get("body")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return
        completion = completion_of(body) if status == 200 else None
        if completion is not None:
            reported = read_usage(completion.get("usage"))
            prices: tuple[float | None, float | None] = (None, None)
            if reported is not None:
                prices = batch_prices(litellm_library(), self.model.name, reported)
            yield BatchAnswer(key=key, body=completion, cost_usd=prices[0], full_usd=prices[1])
        elif 400 <= status < 500 and status not in _AGAIN:
            yield BatchAnswer(key=key, refused=f"{status}: {_refusal_text(body)}")

    async def _call(self, function: str, **arguments: Any) -> Any:
        await import_litellm()
        model = self.model
        if model.api_base is not None:
            arguments["api_base"] = model.api_base
        if model.api_key is not None or model.api_base is not None:
            arguments["api_key"] = model.api_key or "none"
        try:
            # In a thread: each asynchronous call of litellm leaves a client behind that nobody can close. A
            # client that repeats a request by itself would submit a batch twice.
            return await asyncio.to_thread(
                getattr(litellm_library(), function),
                custom_llm_provider=self.provider,
                max_retries=0,
                **arguments,
            )
        except Exception as error:
            raise model_error(
                error,
                model=f"{model.name} (batches)",
                api_base=model.api_base,
                key_name=f"{self.provider.upper()}_API_KEY",
            ) from error
