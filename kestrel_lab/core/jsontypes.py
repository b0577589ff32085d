"""What may cross a file or a wire."""

import hashlib
import json

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""Any JSON value."""


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def dumps(value: object) -> str:
    """Compact JSON text in ASCII; raises `TypeError` or `ValueError` for what JSON cannot say.

    ASCII, because a lone surrogate (a model may send one) cannot be stored in any other way.
    """
    return _ENCODER.encode(value)


def content_key(*parts: object) -> str:
    """A hash that is equal for equal JSON content, whatever the order of keys (SHA-256, 32 hex digits)."""
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
