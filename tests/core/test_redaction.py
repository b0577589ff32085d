"""Secrets are found plain and encoded, in one piece and in many."""

import json
import re
import time
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.redaction import KEY_LIKE, REDACTED, Redactor

SECRET = "hunter2 hünter/2+?x"
KEY = "sk-" + "abcdefghij" * 3
REDACTOR = Redactor.of({"MY_API_KEY": SECRET, "HOME": "/home/somebody", "SHORT_TOKEN": "abc"})

ENCODED = {
    "plain": SECRET,
    "in an address": quote(SECRET, safe=""),
    "in JSON": json.dumps(SECRET)[1:-1],
    "hex": SECRET.encode().hex(),
    **{f"base64 behind {n}": b64encode(b"x" * n + SECRET.encode() + b"yz").decode() for n in range(4)},
    "base64 of addresses": urlsafe_b64encode(SECRET.encode()).decode(),
    "like a key": KEY,
}


@pytest.mark.parametrize("text", ENCODED.values(), ids=ENCODED)
def test_a_secret_is_found_in_every_form(text: str) -> None:
    """As it is, in an address, in JSON, in hex and in base64 at any place; what has the form of a key without
    being known.
    """
    shown = REDACTOR.text(f"before {text} after")
    assert REDACTED in shown
    assert (shown.startswith("before "), shown.endswith(" after")) == (True, True)
    assert SECRET[:7] not in shown
    assert REDACTOR.text(shown) == shown


def test_what_is_no_secret_stays() -> None:
    """Values that are too short, variables that hold none, and ordinary text."""
    text = "abc lives in /home/somebody and asks sk-learn"
    assert REDACTOR.text(text) == text
    assert REDACTOR.json({"a": [SECRET, 1, None], SECRET: True}) == {"a": [REDACTED, 1, None], REDACTED: True}
    assert SECRET not in repr(REDACTOR)


@given(
    st.text("ab \n-hunter2", max_size=30),
    st.sampled_from([SECRET, KEY, quote(SECRET, safe="")]),
    st.lists(st.integers(0, 90), max_size=8),
)
def test_pieces_hide_what_the_whole_hides(around: str, secret: str, cuts: list[int]) -> None:
    """Law: however a text is cut, what is settled piece by piece and redacted holds no secret, and nothing
    else is lost.
    """
    whole = f"{around} {secret} {around}"
    told, held, last = "", "", 0
    for cut in [*sorted(cuts), len(whole)]:
        held += whole[last:cut]
        last = max(last, cut)
        settled = REDACTOR.settled(held)
        told, held = told + REDACTOR.text(held[:settled]), held[settled:]
    assert told + REDACTOR.text(held) == REDACTOR.text(whole)
    assert secret not in told


def test_without_waiting_a_cut_would_let_it_through() -> None:
    """The mutant: redacting each piece by itself shows a secret that was cut in two."""
    assert REDACTOR.text(SECRET[:8]) + REDACTOR.text(SECRET[8:]) == SECRET
    assert REDACTOR.settled(f"a {SECRET[:8]}") == 2


@pytest.mark.parametrize("word", ["eyJ-", "sk-", "sk_", "xoxb-", "-----BEGIN ", "bearer ", "ghp_", "AKIA"])
def test_looking_for_keys_takes_time_as_text_grows(word: str) -> None:
    """Four times the text takes about four times the work, whatever it repeats; a mutant without a bound
    takes sixteen times.
    """

    def growth(pattern: re.Pattern[str], once: int) -> float:
        def work(times: int) -> float:
            began = time.process_time()
            pattern.sub("", word * times)
            return time.process_time() - began

        return min(work(4 * once) for _ in range(5)) / max(min(work(once) for _ in range(5)), 1e-6)

    assert growth(KEY_LIKE, 3_000 if word == "eyJ-" else 12_000) < 9
    if word == "eyJ-":
        assert growth(re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"), 600) > 9
