"""Values as a person reads them: keys of a question, where its arguments come from, counts, caches,
guidance.
"""

from __future__ import annotations

from typing import Any

import pytest

from kestrel_lab.core.calls import IN_KERNEL, Usage
from kestrel_lab.core.events.union import ApprovalAsked, ModelAnswered
from kestrel_lab.core.json_types import Json
from kestrel_lab.views.formatting import (
    always_words,
    args_line,
    args_pairs,
    cache_text,
    chosen_answer,
    containment_text,
    format_duration,
    guidance_line,
    guidance_lines,
    origin_pairs,
    sandbox_words,
    thinking_text,
    typed_decision,
    usage_line,
    value_text,
)


def asked(**fields: Any) -> ApprovalAsked:
    """A question about a call."""
    return ApprovalAsked(
        **{"call": "c", "step": "s", "tool": "bash", "args": {}, "danger": "HIGH", "key": "k", **fields}
    )


MET: dict[str, Json] = {"untrusted": ["web"], "private": ["mail", "notes"], "effect": "would send"}
PLAIN, OFFERED, CONTAINED = asked(), asked(offer="git status"), asked(contained=MET)


def test_the_keys_that_are_offered_are_those_that_count() -> None:
    """Each question names its keys: like ones only where a pattern is offered, `none` only where containment
    asks.
    """
    assert always_words(PLAIN) == "[s]ame call always, [a]lways in this run"
    assert always_words(OFFERED) == "[s]ame call always, [l]ike git status always, [a]lways in this run"
    assert always_words(CONTAINED) == "[s]ame calls always, [a]ll like these, none from here on"


@pytest.mark.parametrize(
    ("word", "question", "decision"),
    [
        *((word, PLAIN, {"granted": True, "scope": "run"}) for word in ("a", "always", "any")),
        *((word, PLAIN, {"granted": True, "scope": "same"}) for word in ("s", "same")),
        *((word, OFFERED, {"granted": True, "scope": "like"}) for word in ("l", "like")),
        *((word, PLAIN, None) for word in ("l", "like", "none", "", "maybe", "yess")),
        ("none", CONTAINED, {"granted": False, "scope": "run", "reason": "none from here on"}),
        ("none", OFFERED, None),
        *((word, CONTAINED, {"granted": True}) for word in ("y", "yes")),
        *((word, PLAIN, {"granted": False}) for word in ("n", "no")),
    ],
)
def test_a_typed_word_decides_only_what_was_offered(
    word: str, question: ApprovalAsked, decision: dict[str, Any] | None
) -> None:
    """A word that no key of this question stands for decides nothing."""
    assert typed_decision(word, question) == decision


def test_where_arguments_come_from_is_said_beside_them() -> None:
    """Source, kind and piece of each text that is not the model's own; a place without a source is not
    listed.
    """
    origins: list[dict[str, Json]] = [
        {"arg": "to", "from": [{"kind": "goal"}, {"kind": "tool", "source": "fetch", "piece": "a@b"}]},
        {"arg": "cc", "from": [{"kind": "file", "source": "x.txt"}, "not a source"]},
        {"arg": "body", "from": [{"kind": "filled", "source": "secret MAIL", "piece": "unshown"}]},
        {"arg": "empty", "from": []},
        {"arg": "odd", "from": "nothing"},
    ]
    assert origin_pairs(asked(origins=origins)) == [
        ["to", "from the goal; from fetch: a@b"],
        ["cc", "from x.txt (file)"],
        ["body", "secret MAIL"],
    ]


def test_containment_says_what_met() -> None:
    """Sources, effect, other calls that wait for the same answer, and what was stated before."""
    base = (
        "The model has read what others wrote (web) and can know what is private (mail, notes); would send."
    )
    assert containment_text(PLAIN) == ""
    assert containment_text(CONTAINED) == base
    more: dict[str, Json] = {
        "wants": [{"tool": "send", "args": {"to": "x"}}, {"tool": "post"}, "odd"],
        "stated": {"send": 2},
    }
    assert containment_text(asked(contained=MET | more)) == (
        f"{base} This is also about: send (to: x); post (). A yes or no is for all of them. Stated "
        "before anything was read: send ×2."
    )


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("", ""),
        ("strict", "sandbox strict"),
        ("container: alpine", "container: alpine"),
        (f"{IN_KERNEL} now", "runs in your kernel"),
    ],
)
def test_a_sandbox_in_words(level: str, words: str) -> None:
    """A level by its name, a sentence as it is, a code by what it stands for."""
    assert sandbox_words(level) == words


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (" 2 ", "blue"),
        ("1", "red"),
        ("3", "7"),
        ("0", "0"),
        ("4", "4"),
        ("7", "7"),
        ("green", "green"),
        ("0001", "0001"),
        ("²", "²"),
        ("002", "blue"),
    ],
)
def test_a_number_chooses_an_option_unless_it_is_one(typed: str, answer: str) -> None:
    """The number of an option stands for it; other numbers, and one that is an option itself, stand for
    themselves.
    """
    assert chosen_answer(asked(args={"options": ["red", "blue", "7"]}), typed) == answer
    assert chosen_answer(PLAIN, typed) == typed.strip()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb\n", "a\nb\n"),  # the last line may end
        ("  a\n  b", "  a\n  b"),  # an indent is seen
        ("a\nb \n", '"a\\nb \\n"'),
        ("\na\nb", '"\\na\\nb"'),
        ("a\n\nb\n\n", '"a\\n\\nb\\n\\n"'),
        ("true", '"true"'),
        ("9" * 100, f'"{"9" * 100}"'),
        ("9" * 101, "9" * 101),
        (None, "null"),
    ],
)
def test_blanks_at_the_edges_and_what_reads_as_json_are_quoted(value: Json, text: str) -> None:
    """A string is shown bare only where its reader sees all of it and takes it for nothing else."""
    assert value_text(value) == text


def test_arguments_on_a_line_and_in_pairs() -> None:
    """One argument needs no name; pairs are cut only with a limit."""
    assert args_line({"path": "a.py"}) == "a.py"
    assert args_line({"path": "a.py", "n": 3}) == "path=a.py, n=3"
    assert args_line({}) == ""
    long = "x" * 9_000
    assert len(args_pairs({"a": long})[0][1]) < 5_000
    assert args_pairs({"a": long}, limit=None) == [["a", long]]


def test_durations_change_their_unit_at_its_end() -> None:
    """A tenth of a second and a minute are written in the larger unit."""
    assert [format_duration(s) for s in (0.0994, 0.0995, 59.94, 59.95, 119.6)] == [
        "99 ms",
        "0.1 s",
        "59.9 s",
        "1 min 00 s",
        "2 min 00 s",
    ]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ({}, ""),
        ({"tokens_in": 200, "tokens_cached": 50}, " (25% of the prompt from its cache)"),
        ({"tokens_cache_written": 1_500}, " (1,500 written to it)"),
        ({"tokens_in": 10, "tokens_reasoning": 7}, " (7 reasoning)"),
        (
            {"tokens_in": 4, "tokens_cached": 1, "tokens_reasoning": 7},
            " (25% of the prompt from its cache, 7 reasoning)",
        ),
    ],
)
def test_what_a_cache_did_is_said_only_where_it_did_something(tokens: dict[str, int], text: str) -> None:
    """Read, written and reasoning tokens, each where there are any."""
    assert cache_text(Usage(**tokens)) == text


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (
            Usage(tokens_in=2, tokens_out=1, cost_usd=0.5, unpriced=1, model_calls=1, tool_calls=1),
            "3 tokens · $0.5000 + 1 unpriced · 1 model call · 1 tool call",
        ),
        (Usage(unmetered=1, model_calls=1), "tokens unknown · $0.0000 · 1 model call · 0 tool calls"),
        (Usage(unmetered=1, tokens_in=5), "at least 5 tokens · $0.0000 · 0 model calls · 0 tool calls"),
    ],
)
def test_what_is_not_known_of_the_usage_is_said(usage: Usage, text: str) -> None:
    """Tokens that nobody counted are unknown or a minimum, and calls without a price stand beside the
    money.
    """
    assert usage_line(usage) == text


def test_thinking_names_what_is_encrypted() -> None:
    """Blocks stand apart; one without text is named."""
    event = ModelAnswered(call="m", step="s", model="m", thinking=[{"text": "first"}, {"data": "abc"}])
    assert thinking_text(event) == "first\n\n[a block that the provider keeps to itself]"


def test_guidance_is_listed_with_what_is_odd_about_it() -> None:
    """Each file is a line with size and hash, whether it is cut, whose it is, or why it is not used; skills
    are counted.
    """
    whole: dict[str, Any] = {"path": "AGENTS.md", "size": 1_200, "digest": "abcdef0123456789ff"}
    assert guidance_line(whole) == "AGENTS.md, 1,200 bytes, sha256 abcdef0123456789"
    assert guidance_line(whole | {"cut": True, "tainted": "of a guest"}) == (
        "AGENTS.md, 1,200 bytes, of which agents are given the beginning, sha256 abcdef0123456789; of a guest"
    )
    assert (
        guidance_line({"path": "AGENTS.md", "problem": "a link out"}) == "AGENTS.md is not used: a link out"
    )
    skill = {"path": "skills/pdf/SKILL.md", "skill": "pdf"}
    assert guidance_lines([whole, skill]) == [
        f"guidance of the workspace: {guidance_line(whole)}",
        "1 skill can be loaded: skills/pdf",
    ]
    assert guidance_lines([whole]) == [f"guidance of the workspace: {guidance_line(whole)}"]
