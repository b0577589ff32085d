"""Redaction: hides the values of secret variables, plain or encoded, and strings that look like keys."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from kestrel_lab.core.json_types import Json

REDACTED: Final = "[REDACTED]"
"""Replaces a secret."""
MIN_SECRET: Final = 8
"""Shortest value of a variable that is redacted: a shorter one could be an ordinary word."""
LONGEST: Final = 1024
"""Longest token that can be a key; streamed text is held back by as much, so that none is split."""

SECRET_NAME: Final = re.compile(
    r"(?i)(?:^|_)(?:api_?key|key|token|secret|password|passwd|passphrase|credentials?|pat)(?:_|\d*$)"
)
"""A variable of such a name holds a secret."""
KEY_LIKE: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    # The first letter and what is before it are tested once for all forms: that makes the search four times
    # as fast.
    r"|(?<!\w)(?=[eghnprstxA])(?:(?:AKIA|ASIA)[0-9A-Z]{16}(?!\w)"
    # a JSON web token; bounded where many may begin in one word
    r"|eyJ(?:(?<!-eyJ)[\w-]{10,}|[\w-]{10,1024})\.[\w-]{10,}\.[\w-]+"
    # keys of providers of models and of code hosting
    r"|(?<!-)(?:(?:sk|rk|pk)[-_]|gh[opsur]_|github_pat_|glpat-|hf_|gsk_|xai-|pypi-|npm_|r8_|tvly-|AIza)[\w-]{20,}"
    r"|(?<!-)xox[abeprs]-[\w-]{10,})"
    r"|(?<=[rR] )(?i:(?<=\bbearer )[\w.~+/=-]{20,})"
)
_PUBLIC: Final = frozenset({"host", "port", "db", "dbname", "database", "sslmode"})
"""Parameters of the address of a server that hold no secret."""
_SHORTEST_KEY: Final = 15
"""Characters of the shortest word that `KEY_LIKE` finds, a Slack token."""
_IN_KEYS: Final = "".join(map(chr, [*range(48, 58), *range(65, 91), *range(97, 123)])) + "_-+/=%"
_OPEN_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?![\s\S]*-----END )")
_BEARER_END: Final = re.compile(r"(?i)\bbearer [\w.~+/=-]*\Z")


def secret_values(env: Mapping[str, str]) -> set[str]:
    """Return the values of variables that hold secrets, without those that are as short as a word."""
    return {
        value for name, value in env.items() if SECRET_NAME.search(name) and len(value.strip()) >= MIN_SECRET
    }


def shown_url(url: str) -> str:
    """Return an address that is safe to show: without user, password and secret parameters."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        # `urlsplit` refuses some addresses (`http://[`): then any of it may be the secret.
        return f"{url.partition('://')[0]}://…"
    place = f"…@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    query = urlencode([(key, value) for key, value in parse_qsl(parts.query) if key in _PUBLIC], safe="/")
    return f"{parts.scheme}://{place}{parts.path}{'?' if query else ''}{query}"


def url_secrets(url: str) -> frozenset[str]:
    """Return the secret parts of an address, which errors of libraries may quote."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # As above: an address that cannot be split counts as secret as a whole.
        return frozenset({url.partition("://")[2]}) - {""}
    user = parts.netloc.rpartition("@")[0]
    password = user.partition(":")[2]
    private = [value for key, value in parse_qsl(parts.query) if key not in _PUBLIC]
    return frozenset({user, password, unquote(password), *private}) - {""}


def _encodings(value: str) -> Iterator[str]:
    """Yield a value and its usual encodings; in base64, the part that is the same at any offset."""
    content = value.encode("utf-8", "surrogateescape")
    yield from (value, value.strip(), quote(value, safe=""), json.dumps(value)[1:-1], content.hex())
    # For bytes that may be cut within a character, and are searched as Latin-1.
    yield content.decode("latin-1")
    for before in range(3):
        encoded = b64encode(bytes(before) + content).decode("ascii")
        inner = encoded[-(-before * 4 // 3) : (before + len(content)) * 4 // 3]
        yield from (inner, inner.replace("+", "-").replace("/", "_"))


@dataclass(frozen=True)
class Redactor:
    """Replaces secrets by `REDACTED`; redacting twice changes nothing."""

    values: frozenset[str] = field(default_factory=frozenset, repr=False)

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Redactor:
        """For the secrets among the variables of an environment."""
        return cls(
            frozenset(
                form for value in secret_values(env) for form in _encodings(value) if len(form) >= MIN_SECRET
            )
        )

    @property
    def margin(self) -> int:
        """How many characters next to a cut may belong to a secret that the cut made unrecognisable."""
        return max([LONGEST, *map(len, self.values)])

    def text(self, text: str) -> str:
        """`text` without secrets."""
        if self._pattern is not None:
            text = self._pattern.sub(REDACTED, text)
        # Each form of `KEY_LIKE` has a long word in it, and splitting a text takes a tenth of the time of
        # searching it for all of them.
        if "-----BEGIN" not in text and max(map(len, text.split()), default=0) < _SHORTEST_KEY:
            return text
        return KEY_LIKE.sub(REDACTED, text)

    def json(self, value: Json) -> Json:
        """`value` without secrets in any text of it, keys of objects included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.json(item) for key, item in value.items()}
        return value

    def settled(self, text: str) -> int:
        """Return how many characters of the beginning of `text` can be redacted and shown now, although more
        text may follow.

        The rest may be the beginning of a secret. The cut is never within a secret.
        """
        tail = text[-LONGEST:]
        cut = len(text) - (len(tail) - len(tail.rstrip(_IN_KEYS)))
        for pattern, since in ((_BEARER_END, max(0, len(text) - LONGEST)), (_OPEN_KEY, 0)):
            if (found := pattern.search(text, since)) is not None:
                cut = min(cut, found.start())
        for value in self.values:
            cut = min(cut, len(text) - _overlap(text, value))
        for found in self.found(text):
            if found.start() < cut < found.end():
                cut = found.start()
        return cut

    def found(self, text: str) -> Iterator[re.Match[str]]:
        """Return the places of secrets in `text`."""
        if self._pattern is not None:
            yield from self._pattern.finditer(text)
        yield from KEY_LIKE.finditer(text)

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        longest_first = sorted(self.values, key=lambda value: (-len(value), value))
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _overlap(text: str, value: str) -> int:
    """Return how many characters at the end of `text` are the beginning, and not the whole, of `value`."""
    for size in range(min(len(value) - 1, len(text)), 0, -1):
        if text.endswith(value[:size]):
            return size
    return 0
