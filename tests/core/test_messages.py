"""Messages and parameters of models: what is written, read back, refused and laid over a request."""

from typing import Any

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.messages import (
    NO_PARAMS,
    ImagePart,
    Message,
    ModelParams,
    ModelRequest,
    ThinkingPart,
    ToolRequest,
    ToolSpec,
)

IMAGE = ImagePart.of(b"pixels", "image/png")
SAID = Message(
    role="assistant",
    text="Look",
    calls=(
        ToolRequest(id="1", name="grep", args={"n": 3}),
        ToolRequest(id="2", name="ls", problem="no JSON"),
    ),
    thinking=(ThinkingPart(text="hm"),),
    images=(IMAGE,),
)


def test_a_message_is_read_back_without_its_reasoning() -> None:
    """Text, calls and names of images are written; reasoning, bytes of images and what is empty are not."""
    written = SAID.as_json()
    assert set(written) == {"role", "text", "calls", "images"}
    back = Message.from_json(written | {"later": 1}, earlier=True)
    assert (back.role, back.text, back.calls, back.images) == (SAID.role, SAID.text, SAID.calls, SAID.images)
    assert (back.thinking, back.earlier, back.images[0].data) == ((), True, "")
    told = Message(role="tool", text="3", call_id="1", name="grep")
    assert Message.from_json(told.as_json()) == told
    assert Message.from_json({"role": "user"}) == Message(role="user")


def test_a_message_is_as_long_as_its_text_and_calls() -> None:
    """Arguments count as JSON, with the name; the same of a tool's description."""
    assert SAID.chars == len("Look") + len('{"n": 3}') + len("grep") + len("{}") + len("ls")
    assert ToolSpec(name="ls", description="lists", schema={"a": 1}).chars == 2 + 5 + len('{"a": 1}')


def test_an_image_is_named_by_its_bytes() -> None:
    """Equal bytes have one name, which is what is written."""
    assert IMAGE == ImagePart.of(b"pixels", "image/png") != ImagePart.of(b"other", "image/png")
    assert (IMAGE.as_json(), len(IMAGE.blob)) == ({"media_type": "image/png", "blob": IMAGE.blob}, 32)


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (ThinkingPart(), {}),
        (ThinkingPart(text="a", signature="b"), {"text": "a", "signature": "b"}),
        (ThinkingPart(redacted="x"), {"redacted": "x"}),
    ],
)
def test_empty_fields_of_reasoning_are_not_written(part: ThinkingPart, written: dict[str, str]) -> None:
    """Only what is there."""
    assert part.as_json() == written


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("seed", 1.5),
        ("seed", False),
        ("stop", ("a", "")),
        ("stop", (1,)),
        ("reasoning_effort", 3),
        ("response_format", []),
        ("timeout_s", -1),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(name: str, value: Any) -> None:
    """The error names the parameter and the value."""
    with pytest.raises(UsageError, match=f"the model parameter {name} cannot be"):
        ModelParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 2.5),
        ("top_p", 1),
        ("top_p", 0),
        ("max_tokens", 1),
        ("seed", -3),
        ("timeout_s", 0.5),
        ("reasoning_effort", "low"),
    ],
)
def test_bounds_belong_to_what_can_be(name: str, value: Any) -> None:
    """A parameter may have the value at its bound, and is written as it is."""
    assert ModelParams(**{name: value}).as_json() == {name: value}


@pytest.mark.parametrize(
    ("given", "params"),
    [
        (None, NO_PARAMS),
        ({}, NO_PARAMS),
        ({"stop": "END"}, ModelParams(stop=("END",))),
        ({"stop": ["a", "b"]}, ModelParams(stop=("a", "b"))),
        ({"stop": None, "seed": 1}, ModelParams(seed=1)),
        (ModelParams(seed=2), ModelParams(seed=2)),
    ],
)
def test_parameters_are_read_by_name(given: Any, params: ModelParams) -> None:
    """A text to stop at may stand alone; nothing given is nothing set."""
    assert ModelParams.of(given) == params


@pytest.mark.parametrize(
    ("given", "why"), [({"temprature": 1}, "did you mean 'temperature'"), ({"stop": 3}, "stop cannot be 3")]
)
def test_unknown_parameters_are_refused(given: Any, why: str) -> None:
    """A name that is none is answered with the nearest one."""
    with pytest.raises(UsageError, match=why):
        ModelParams.of(given)


def test_parameters_fill_only_what_a_request_leaves_open() -> None:
    """What the request sets stays; what neither sets stays unset; the same request comes back where nothing
    is to fill.
    """
    request = ModelRequest(messages=[], temperature=0.0, stop=("own",))
    filled = ModelParams(temperature=1.0, seed=7, stop=("END",), max_tokens=5).over(request)
    assert (filled.temperature, filled.seed, filled.stop, filled.max_tokens, filled.top_p) == (
        0.0,
        7,
        ("own",),
        5,
        None,
    )
    assert ModelParams(temperature=1.0).over(request) is request
    assert NO_PARAMS.over(request) is request


def test_later_parameters_win() -> None:
    """Of two sets the right one's values count where it has any."""
    both = ModelParams(seed=1, stop=("a",), temperature=0.5) | ModelParams(seed=2)
    assert both == ModelParams(seed=2, stop=("a",), temperature=0.5)
