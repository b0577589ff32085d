"""The page of public names has a text and a signature for each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import griffe
import pytest

import kestrel_lab
from bench.reference_pages import events_page, python_page
from kestrel_lab import Lab
from kestrel_lab.core.events.union import EVENT_TYPES


def entries() -> Iterator[tuple[str, str]]:
    """The heading of each entry and the path of what it shows; the path is empty for one that is written
    out.
    """
    for path, options in re.findall(r"^::: (\S+)\n((?: {4,}.*\n)*)", python_page(), re.MULTILINE):
        heading = re.search(r"heading: (\S+)", options)
        yield (heading[1] if heading else path.rpartition(".")[2]), path
    for heading in re.findall(r"^### (\S+)\n\n\S", python_page(), re.MULTILINE):
        yield heading, ""


@pytest.fixture(scope="module")
def source() -> griffe.Object:
    """The package as the site's generator reads it: its source, without importing it."""
    found = griffe.load("kestrel_lab", allow_inspection=False)
    assert isinstance(found, griffe.Object)
    return found


def test_every_entry_has_a_text(source: griffe.Object) -> None:
    """What a directive names is written with a docstring in the source, so that the page is not empty
    there.
    """
    bare = []
    for heading, path in entries():
        if path:
            found = source[path.removeprefix("kestrel_lab.")]
            written = found.is_function or found.is_class
            bare += [] if found.docstring and written else [heading]
    assert bare == []


def test_every_public_name_is_there() -> None:
    """All that can be imported from the package, and every public method of `Lab`, those of its parts too."""
    shown = {heading for heading, _ in entries()}
    assert {name for name in kestrel_lab.__all__ if not name.startswith("_")} <= shown
    methods = {
        name for name in vars(Lab) if not name.startswith("_") and hasattr(getattr(Lab, name), "__wrapped__")
    }
    assert {"run", "resume", "fork", "eval", "compare"} <= methods
    assert {f"Lab.{name}" for name in methods - {"websearch"}} <= shown


def test_every_event_is_there() -> None:
    """Each type that a log can have is on the page of events, with a text and a row for each of its
    fields.
    """
    shown = dict(re.findall(r"^### (\S+)\n\n(\w(?:.|\n(?!##))*)", events_page(), re.MULTILINE))
    fields = {name: re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) for name, text in shown.items()}
    assert fields == {name: list(event.__struct_fields__) for name, event in EVENT_TYPES.items()}
