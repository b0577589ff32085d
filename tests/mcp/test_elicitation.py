"""Laws of the form that a server has a person fill in: what is shown, what may be answered, and what the
server then gets.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams

from kestrel_lab.mcp.elicitation import DECLINE, DONE, LEAVE_OUT, Ask, answer_elicitation


class Person:
    """Answers what is asked in this order, and keeps it; declines what comes after."""

    def __init__(self, *answers: str | None) -> None:
        self.left = list(answers)
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    async def ask(self, text: str, options: tuple[str, ...]) -> str | None:
        """Answer one question."""
        self.asked.append((text, options))
        return self.left.pop(0) if self.left else DECLINE


def filled(ask: Ask, required: tuple[str, ...] = ("it",), /, **fields: dict[str, Any]) -> Any:
    """What the server gets for a form with these fields; `None` where it is declined."""
    schema = {"type": "object", "properties": fields, "required": list(required)}
    result = asyncio.run(
        answer_elicitation("s", ElicitRequestFormParams(message="Please.", requested_schema=schema), ask)
    )
    return result.content if result.action == "accept" else None


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("yes", True),
        ("no", False),
        ("true", True),
        ("false", False),
        (" No ", False),
        ("TRUE", True),
        ("Yes", True),
    ],
)
def test_a_yes_is_true_and_a_no_is_false(said: str, value: bool) -> None:
    """However a person spells it."""
    assert filled(Person(said).ask, it={"type": "boolean"}) == {"it": value}


@given(st.integers(-(10**6), 10**6))
def test_a_whole_number_is_a_number(number: int) -> None:
    """Also where the field takes others too."""
    assert filled(Person(str(number)).ask, it={"type": "integer"}) == {"it": number}
    assert filled(Person(f"{number / 8}").ask, it={"type": "number"}) == {"it": number / 8}


FIELDS: dict[str, tuple[dict[str, Any], Any]] = {
    "yes": ({"type": "boolean"}, True),
    "no": ({"type": "boolean"}, False),
    "number": ({"type": "integer"}, 7),
    "text": ({"type": "string"}, "a b"),
    "value": ({"type": "string", "enum": ["a", "b"]}, "b"),
    "named value": ({"type": "string", "enum": ["a", "b"], "enumNames": ["First", "Second"]}, "b"),
    "titled": (
        {"type": "string", "oneOf": [{"const": "a", "title": "First"}, {"const": "b", "title": "Second"}]},
        "b",
    ),
    "titled by itself": ({"type": "string", "oneOf": [{"const": "a"}, {"const": "b"}]}, "b"),
    "several": ({"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}}, ["c", "a"]),
    "several titled": (
        {
            "type": "array",
            "items": {"anyOf": [{"const": "a", "title": "First"}, {"const": "b", "title": "Second"}]},
        },
        ["b"],
    ),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_default_is_the_first_option_and_means_itself(field: str) -> None:
    """Who takes what is suggested gives the server its own default, whatever it is called on the screen."""
    about, value = FIELDS[field]
    person = Person()
    assert filled(person.ask, it=about | {"default": value}) is None
    suggested = person.asked[0][1][0]
    assert filled(Person(suggested).ask, it=about | {"default": value}) == {"it": value}


@pytest.mark.parametrize("field", FIELDS)
def test_every_option_that_is_offered_is_taken(field: str) -> None:
    """Each fits at once and only a field that may be left out offers that; both kinds may be declined."""
    about, _ = FIELDS[field]
    for required in (("it",), ()):
        person = Person()
        assert filled(person.ask, required, it=about) is None
        options = person.asked[0][1]
        assert (options[-1], LEAVE_OUT in options) == (DECLINE, not required)
        for option in options[:-1]:
            person = Person(option)
            found = filled(person.ask, required, it=about)
            assert (list(found), len(person.asked)) == ([] if option == LEAVE_OUT else ["it"], 1)


def test_what_does_not_fit_is_asked_three_times_and_then_declined() -> None:
    """The reason is in the next question; a word that leaves a field out leaves out none that the server
    needs.
    """
    person = Person("x", "0", "y", "4")
    assert filled(person.ask, it={"type": "integer", "minimum": 1}) is None
    assert [("does not fit" in text, "minimum" in text) for text, _ in person.asked] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert filled(Person(LEAVE_OUT, "2").ask, it={"type": "integer"}) == {"it": 2}


def test_several_fields_are_counted_and_one_is_not() -> None:
    """A person sees how many questions are to come; a field that is left out is not in the answer."""
    person = Person("a", LEAVE_OUT, "3")
    assert filled(
        person.ask,
        ("one", "three"),
        one={"type": "string"},
        two={"type": "string"},
        three={"type": "integer"},
    ) == {
        "one": "a",
        "three": 3,
    }
    assert [text.rpartition("(")[2] for text, _ in person.asked] == ["1 of 3)", "2 of 3)", "3 of 3)"]
    person = Person("a")
    filled(person.ask, it={"type": "string"})
    assert " of 1" not in person.asked[0][0]


@pytest.mark.parametrize(("said", "content"), [("yes", {}), (DECLINE, None), (None, None), ("no", None)])
def test_a_form_without_fields_asks_for_a_yes(said: str | None, content: dict[str, Any] | None) -> None:
    """Anything else declines it."""
    assert filled(Person(said).ask, ()) == content


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "javascript:alert(1)", "https://x.example/" + "a" * 8_000]
)
def test_an_address_that_is_no_page_is_declined_unasked(url: str) -> None:
    """Nor one that nobody reads to its end; others are accepted once the person has been there, and only
    then.
    """
    person = Person(DONE)
    assert (
        asyncio.run(
            answer_elicitation(
                "s", ElicitRequestURLParams(message="m", url=url, elicitation_id="1"), person.ask
            )
        ).action
        == "decline"
    )
    assert not person.asked
    for said, action in ((DONE, "accept"), (DECLINE, "decline"), ("yes", "decline"), (None, "decline")):
        asked = ElicitRequestURLParams(message="m", url="http://x.example/", elicitation_id="1")
        assert asyncio.run(answer_elicitation("s", asked, Person(said).ask)).action == action


ITEMS = {"type": "string", "enum": ["a", "b"]}
TITLED = [{"const": "a", "title": "First"}, {"const": "b"}, {"title": "nothing"}]
SHOWN: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "text": ({"type": "string"}, "it", ()),
    "told": (
        {"type": "string", "title": "Name", "description": "Your own.", "format": "email"},
        "Name (email): Your own.",
        (),
    ),
    "whole number": ({"type": "integer"}, "it (a whole number)", ()),
    "number": ({"type": "number", "default": 1.5}, "it (a number)", ("1.5",)),
    "yes": ({"type": "boolean"}, "it", ("yes", "no")),
    "no first": ({"type": "boolean", "default": False}, "it", ("no", "yes")),
    "one": (ITEMS | {"default": "b"}, "it", ("b", "a")),
    "named": (ITEMS | {"enumNames": ["First", "Second"], "default": "b"}, "it", ("Second", "First")),
    "titled": ({"type": "string", "oneOf": TITLED}, "it", ("First", "b")),
    "any of titled": ({"type": "string", "anyOf": TITLED, "default": "a"}, "it", ("First", "b")),
    "several": (
        {"type": "array", "items": ITEMS, "default": ["b", "a"]},
        "it (several, separated by commas; of a, b)",
        ("b, a",),
    ),
    "several titled": (
        {"type": "array", "items": {"anyOf": TITLED}, "default": ["a"]},
        "it (several, separated by commas; of First, b)",
        ("First",),
    ),
    "several of anything": ({"type": "array", "items": True}, "it (several, separated by commas; of )", ()),
}


@pytest.mark.parametrize("field", SHOWN)
def test_a_field_is_shown_with_its_kind_and_its_choices(field: str) -> None:
    """The default first and no choice twice; of several values only what is suggested is an option, and the
    choices stand in the question.
    """
    about, text, options = SHOWN[field]
    person = Person()
    filled(person.ask, it=about)
    assert person.asked == [(f"s asks: Please.\n{text}", (*options, DECLINE))]


def test_an_address_that_can_just_be_read_is_shown() -> None:
    """With whose it is; one letter more and nobody would read it to its end."""
    for more, asked in ((0, 1), (1, 0)):
        person = Person(DONE)
        url = "https://x.example/".ljust(8_000 + more, "a")
        result = asyncio.run(
            answer_elicitation(
                "s", ElicitRequestURLParams(message="m", url=url, elicitation_id="1"), person.ask
            )
        )
        assert (len(person.asked), result.action) == (asked, "accept" if asked else "decline")
        assert all("It belongs to x.example." in text for text, _ in person.asked)
