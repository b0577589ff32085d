"""A pattern of a user's file that does not end is ended and named, wherever such a pattern is searched."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.expressions import bounded_search
from kestrel_lab.core.expressions.bounded_search import replace_in_time, search_in_time
from kestrel_lab.core.messages import Message, ModelRequest
from kestrel_lab.models.cassettes.scrub import Scrubber
from kestrel_lab.models.router import Route, RoutedModel
from kestrel_lab.testing import ScriptedModel, load_script

ENDLESS, TEXT = "(a|aa)+$", "a" * 60 + "!"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of a second is enough here."""
    monkeypatch.setattr(bounded_search, "SEARCH_SECONDS", 0.2)


def ask_script(folder: Path) -> object:
    """Play a script whose first rule does not end."""
    script = folder / "script.yaml"
    script.write_text(f"rules:\n  - when: '{ENDLESS}'\n    turns: [hi]\n")
    request = ModelRequest(messages=(Message(role="user", text=TEXT),))
    return asyncio.run(load_script(script)(request, lambda _: None))


def choose_route(folder: Path) -> object:
    """Choose a model by a rule that does not end."""
    model = ScriptedModel(["hi"])
    route = Route(kind="code", model=model, when=re.compile(ENDLESS))
    return RoutedModel(name="route", routes=(route,), otherwise=model).choose(TEXT)


def scrub_text(folder: Path) -> object:
    """Leave out volatile text by a pattern that does not end."""
    return Scrubber.of({}, [ENDLESS])(TEXT)


@pytest.mark.parametrize("door", [ask_script, choose_route, scrub_text])
def test_an_endless_pattern_is_ended_and_named(door: Callable[[Path], object], tmp_path: Path) -> None:
    """Scripts, routes and recordings end with an error that has the pattern and says what to do."""
    with pytest.raises(ModelError, match=r"\(a\|aa\)\+\$.*did not end within 0\.2 s; use fewer repetitions"):
        door(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "text"), [("a.*b+", "xaab"), ("say", "I say hi"), ("(?i)S.*(A)y?", "to say"), ("q+x*", "n")]
)
def test_other_patterns_find_what_they_found(pattern: str, text: str) -> None:
    """The match and the replacement are those of Python's own expressions."""
    expected, found = re.search(pattern, text), search_in_time(re.compile(pattern), text)
    assert (found and (found[0], found.span())) == (expected and (expected[0], expected.span()))
    assert replace_in_time(re.compile(pattern), "-", text) == re.sub(pattern, "-", text)
