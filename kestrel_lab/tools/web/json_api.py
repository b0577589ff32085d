"""Client of JSON interfaces over HTTP, with a key that no tool shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.tools.web.fetch import Answer, Reach, request
from kestrel_lab.tools.web.page_text import decode_body
from kestrel_lab.tools.web.urls import read_url


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service at a fixed address."""

    name: str
    base: str
    """Its address without a slash at the end."""
    reach: Reach
    headers: Mapping[str, str] = field(repr=False)

    async def get(self, path: str, **query: str | int) -> Json:
        """Return the answer to a GET; raises `ValueError` with the service's message for an error."""
        asked = {name: value for name, value in query.items() if value not in {"", 0}}
        url = self.base + path + (f"?{urlencode(asked)}" if asked else "")
        return self._value(await request(self.reach, "GET", url, headers=self.headers, follow=False), path)

    async def text(self, path: str, accept: str) -> str:
        """Return what it answers as text of the media type `accept`; raises like `get`."""
        answer = await request(
            self.reach, "GET", self.base + path, headers={**self.headers, "Accept": accept}, follow=False
        )
        self._check(answer, path)
        return decode_body(answer)

    async def post(self, path: str, body: Json) -> Json:
        """Return what it answers to something new; raises like `get`."""
        return self._value(
            await request(
                self.reach,
                "POST",
                self.base + path,
                headers={**self.headers, "Content-Type": "application/json"},
                body=json.dumps(body).encode(),
                follow=False,
            ),
            path,
        )

    def list_in(self, value: Json, *keys: str) -> list[Json]:
        """Return the list under `keys`, or `value` itself; raises `ValueError` where there is no list."""
        item = value
        for key in keys:
            item = item.get(key) if isinstance(item, dict) else None
        if not isinstance(item, list):
            raise self.unexpected(value, f"no list of {'.'.join(keys) or 'results'}")
        return item

    def rows_in(self, value: Json, *keys: str, each: str) -> list[dict[str, Json]]:
        """Return the objects in the list under `keys`, whose texts or numbers are under `each`.

        Raises `ValueError` for what is no list of such objects. Single ones without `each` are returned.
        """
        rows: list[dict[str, Json]] = []
        for item in self.list_in(value, *keys):
            if not isinstance(item, dict):
                raise self.unexpected(item, "a result that is no object")
            rows.append(item)
        if rows and not any(text_at(row, each) for row in rows):
            raise self.unexpected(value, f"results without {each}")
        return rows

    def object_with(self, value: Json, key: str) -> dict[str, Json]:
        """Return `value`; raises `ValueError` unless it is an object with a text or number under `key`."""
        if not isinstance(value, dict) or not text_at(value, key):
            raise self.unexpected(value, f"no object with {key}")
        return value

    def unexpected(self, value: Json, problem: str) -> ValueError:
        """Return the error for an answer of another shape, with its beginning."""
        beginning = one_line(json.dumps(value, ensure_ascii=False), 200)
        return ValueError(
            f"{self.name} answered in another shape than its interface has, {problem}: {beginning}. "
            f"Is {self.base} the address of {self.name}?"
        )

    def _check(self, answer: Answer, path: str) -> None:
        """Raise `ValueError` for an error or an unread answer, `ConnectionError` for a transient error."""
        text = "" if answer.left_out else decode_body(answer)
        if not 200 <= answer.status < 300:
            what = {
                401: "the key is not accepted",
                403: "the key may not do that, or has been used too often",
                404: f"there is no {path}",
            }
            msg = (
                f"{self.name} answered {answer.said}: "
                f"{_words(text) or what.get(answer.status, answer.left_out)}"
            )
            raise ConnectionError(msg) if answer.status in {429, 502, 503, 504} else ValueError(msg)
        if answer.left_out:
            raise ValueError(f"the answer of {self.name} was not read: {answer.left_out}")

    def _value(self, answer: Answer, path: str) -> Json:
        self._check(answer, path)
        try:
            value: Json = json.loads(decode_body(answer))
        except (ValueError, RecursionError):
            raise ValueError(f"{self.name} answered what is not JSON") from None
        return value


def api_service(
    name: str, default: str, configured: str, reach: Reach, headers: Mapping[str, str]
) -> Service:
    """Return a service at its usual address, or at one from the environment, which may be private."""
    if not configured:
        return Service(name=name, base=default, reach=reach, headers=headers)
    url = read_url(configured)
    own = replace(reach, also=reach.also | {(url.host, url.port)})
    return Service(name=name, base=str(url).rstrip("/"), reach=own, headers=headers)


def text_at(value: Json, *keys: str) -> str:
    """Return the text or number under `keys`; empty if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return str(value) if isinstance(value, str | int | float) else ""


def _words(text: str) -> str:
    """Return the message of an error: services use different fields for it."""
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(value, dict):
        return ""
    said = [text_at(value, "message"), text_at(value, "error", "detail"), text_at(value, "error", "code")]
    messages = value.get("errorMessages")
    said += [str(item) for item in messages] if isinstance(messages, list) else []
    return "; ".join(part for part in said if part)[:500]
