"""Laws of what a server's answer becomes: every kind of content has its place in the text, images are shown
as far as models take them.
"""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.messages import IMAGE_BYTES
from kestrel_lab.mcp.results import LONGEST, answer_of, text_of

PNG = base64.b64encode(b"\x89PNG").decode()
BLOCKS: dict[str, tuple[Any, str, int]] = {
    "text": (TextContent(type="text", text="words"), "words", 0),
    "image": (ImageContent(type="image", data=PNG, mime_type="image/png"), "[image image/png, 6 bytes]", 1),
    "image of another kind": (
        ImageContent(type="image", data=PNG, mime_type="image/tiff"),
        "[image image/tiff, 6 bytes, not shown]",
        0,
    ),
    "no image": (
        ImageContent(type="image", data="not base64", mime_type="image/png"),
        "[image image/png, 7 bytes, not shown: it is not Base64]",
        0,
    ),
    "letters that are no Base64": (
        ImageContent(type="image", data=f"#{PNG[1:]}", mime_type="image/png"),
        "[image image/png, 6 bytes, not shown: it is not Base64]",
        0,
    ),
    "audio": (
        AudioContent(type="audio", data=PNG, mime_type="audio/wav"),
        "[audio audio/wav, 6 bytes, not shown]",
        0,
    ),
    "file of text": (
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="notes://a", text="held")),
        "[notes://a]\nheld",
        0,
    ),
    "image file": (
        EmbeddedResource(
            type="resource", resource=BlobResourceContents(uri="pic://a", blob=PNG, mime_type="image/png")
        ),
        "[pic://a] [file image/png, 6 bytes]",
        1,
    ),
    "file of no kind": (
        EmbeddedResource(type="resource", resource=BlobResourceContents(uri="bin://a", blob=PNG)),
        "[bin://a] [file , 6 bytes, not shown]",
        0,
    ),
    "link": (
        ResourceLink(type="resource_link", uri="notes://a", name="a", description="what it is"),
        "[notes://a] what it is",
        0,
    ),
    "bare link": (ResourceLink(type="resource_link", uri="notes://a", name="a"), "[notes://a] a", 0),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_each_content_is_named_or_shown(kind: str) -> None:
    """What a model cannot be shown is named with its size; a link says where it leads."""
    block, text, shown = BLOCKS[kind]
    told, images = text_of([block, TextContent(type="text", text="more")])
    assert (told, len(images)) == (f"{text}\nmore", shown)


def test_a_kind_of_a_later_protocol_is_named() -> None:
    """It is neither shown nor an error."""

    class Later:
        type = "hologram"

    assert text_of([Later()]) == ("[hologram, not shown]", ())


def test_no_more_and_no_larger_images_than_models_take() -> None:
    """Ten at most, each up to the limit of bytes; the others are named."""
    one = BLOCKS["image"][0]
    told, images = text_of([one] * 12)
    assert (len(images), told.count("not shown")) == (10, 2)
    large = base64.b64encode(bytes(IMAGE_BYTES + 3)).decode()
    assert text_of([ImageContent(type="image", data=large, mime_type="image/png")])[1] == ()


values = st.recursive(
    st.integers() | st.text(max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.text(min_size=1, max_size=4), values, min_size=2, max_size=3))
def test_what_is_said_twice_is_said_once(value: dict[str, Any]) -> None:
    """Structured content that its text repeats is the value; beside another text both are kept; alone it
    stands alone.
    """
    plain = answer_of(CallToolResult(content=[], structured_content=value)).value
    assert answer_of(
        CallToolResult(content=[TextContent(type="text", text="other")], structured_content=value)
    ).value == {
        "text": "other",
        "structured": plain,
    }
    if plain == value:  # nothing had to be cleaned
        repeated = answer_of(
            CallToolResult(
                content=[TextContent(type="text", text=json.dumps(value))], structured_content=value
            )
        )
        assert repeated.value == value


@pytest.mark.parametrize(
    ("text", "structured", "value"),
    [
        ("5", {"result": 5}, "5"),
        ("words", {"result": "words"}, "words"),
        ("[1, 2]", {"result": [1, 2]}, "[1, 2]"),
        ("words", {}, "words"),
        ("words", None, "words"),
        ("words", {"result": "w" * LONGEST}, "words"),
        ("", {"result": "words"}, {"result": "words"}),
    ],
)
def test_a_wrapped_value_is_what_it_wraps(text: str, structured: Any, value: Any) -> None:
    """Nothing, an empty object and one that is too long leave the text as it is."""
    content: list[Any] = [TextContent(type="text", text=text)] if text else []
    assert answer_of(CallToolResult(content=content, structured_content=structured)).value == value


def test_structured_content_is_cleaned_through_and_through() -> None:
    """Hidden characters are shown in names and in values, however deep; what is as long as a result may be is
    kept.
    """
    hidden = {"a\u200bb": [{"c": "x\u202ey"}, 1, None]}
    shown = answer_of(CallToolResult(content=[], structured_content=hidden)).value
    assert "\u200b" not in str(shown) and "\u202e" not in str(shown) and str(shown).count("1, None") == 1
    longest = {"a": "w" * (LONGEST - len('{"a":""}')), "b": ""}
    for size, kept in ((0, True), (1, False)):
        value = {**longest, "a": longest["a"][: LONGEST - len(dumps({"a": "", "b": ""})) + size]}
        assert (
            len(dumps(value)),
            answer_of(CallToolResult(content=[], structured_content=value)).value == value,
        ) == (LONGEST + size, kept)
