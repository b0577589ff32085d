"""Names for runs, calls and events that sort by time and never repeat."""

import itertools
import secrets
import time
from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_run_id(now: float | None = None) -> str:
    """A short id such as `r6a1x9k-7q4dm2`: seconds since 2020 in base 32, then 30 random bits."""
    seconds = int((time.time() if now is None else now) - 1_577_836_800)
    return f"r{_base32(seconds, 6)}-{_base32(secrets.randbits(30), 6)}"


def counter(prefix: str) -> Callable[[], str]:
    """A function that gives `prefix1`, `prefix2`, and so on."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


def _base32(number: int, width: int) -> str:
    digits = []
    while number:
        number, rest = divmod(number, 32)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits)).rjust(width, "0")
