"""Values of arguments: a function gets what was validated, and the log has what can be validated again."""

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    Base64Bytes,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    RootModel,
    SecretStr,
    Tag,
    computed_field,
    field_serializer,
    model_validator,
)

from kestrel_lab.core.calls import Call, Danger
from kestrel_lab.core.events.union import ToolAnswered, ToolCalled
from kestrel_lab.lab import Lab
from kestrel_lab.models.prompted_tools import brief_prompt, reply_schema, required_only, tool_prompt
from kestrel_lab.runtime.security.authority import authority_arguments, content_arguments
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.argument_schema import SchemaArguments, ToolArgumentsError
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool


class Colour(Enum):
    """An enum."""

    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> "Colour | None":
        return cls.RED if str(value).lower() == "red" else None


class Mail(BaseModel):
    """Renamed and hidden fields."""

    sender: str = Field(alias="from")
    token: str = Field(exclude=True)
    to: str = Field(validation_alias=AliasChoices("to", "recipient"), serialization_alias="TO")


class Box(BaseModel):
    """A computed field, and no others than declared."""

    model_config = ConfigDict(extra="forbid")
    a: int

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated properties
    @property
    def twice(self) -> int:
        """A computed value."""
        return 2 * self.a


class Money(BaseModel):
    """A form for people."""

    cents: int

    @field_serializer("cents")
    def shown(self, cents: int) -> str:
        """As people write it."""
        return f"{cents / 100:.2f} €"


class Once(BaseModel):
    """A validator that changes what it is given."""

    words: list[str]

    @model_validator(mode="before")
    @classmethod
    def split(cls, value: Any) -> Any:
        """Take a text."""
        if not isinstance(value, dict) or not isinstance(value["words"], str):
            raise TypeError("words has to be a text")  # not what pydantic expects
        return {"words": value["words"].split()}


class Cat(BaseModel):
    """One of two."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """The other."""

    kind: Literal["dog"]
    lives: int = 1


@dataclass
class Counted:
    """A dataclass that changes itself."""

    n: int
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Count."""
        self.n += 1


class Numbers(RootModel[list[int]]):
    """A root model."""


def pet_kind(value: Any) -> str:
    """Tell a tag."""
    return "cat" if "lives" in (value if isinstance(value, dict) else value.__dict__) else "text"


Pet = Annotated[Annotated[Cat, Tag("cat")] | Annotated[dict[str, str], Tag("text")], Discriminator(pet_kind)]
PLUS = Annotated[int, AfterValidator(lambda number: number + 1)]
SPLIT = Annotated[list[str], BeforeValidator(lambda text: text.split(","))]

CASES: list[tuple[str, Any, Any, Callable[[Any], Any], Any]] = [
    (
        "alias, exclude",
        Mail,
        {"from": "me", "token": "t", "recipient": "you"},
        lambda m: (m.sender, m.token, m.to),
        ("me", "t", "you"),
    ),
    ("computed", Box, {"a": 2}, lambda b: b.twice, 4),
    ("serializer", Money, {"cents": 150}, lambda m: m.cents, 150),
    ("json", Json[dict[str, int]], '{"k": 1}', lambda j: j, {"k": 1}),
    ("list of json", list[Json[int]], ["1", "2"], lambda j: j, [1, 2]),
    ("not idempotent", PLUS, 1, lambda n: n, 2),
    ("nested, not idempotent", dict[str, PLUS], {"a": 1}, lambda n: n, {"a": 2}),
    ("another type", SPLIT, "a,b", lambda words: words, ["a", "b"]),
    ("another type in a model", Once, {"words": "a b"}, lambda once: once.words, ["a", "b"]),
    ("post_init", Counted, {"n": 1}, lambda counted: counted.n, 2),
    ("decimal", Decimal, "1.10", str, "1.10"),
    ("decimal or float", Decimal | float, "1.10", lambda n: (type(n), str(n)), (Decimal, "1.10")),
    ("bytes", bytes, "é", lambda b: b, "é".encode()),
    ("base64", Base64Bytes, "AP8=", lambda b: b, b"\0\xff"),
    ("datetime", datetime, "2024-01-02T03:04:05Z", lambda t: t, datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("date or datetime", date | datetime, "2024-01-02", type, date),
    ("timedelta", timedelta, "PT1H", lambda t: t, timedelta(hours=1)),
    ("enum", Colour, "RED", lambda c: c, Colour.RED),
    ("enum or text", Colour | str, "red", lambda c: c, "red"),
    ("set", set[int], ["3", 1, 3], lambda s: s, {1, 3}),
    ("frozenset", frozenset[str], ["a"], lambda s: s, frozenset({"a"})),
    ("tuple", tuple[int, str], ["1", "a"], lambda t: t, (1, "a")),
    ("keys", dict[int, date], {"1": "2024-01-02"}, lambda d: d, {1: date(2024, 1, 2)}),
    ("uuid", UUID, "12345678123456781234567812345678", str, "12345678-1234-5678-1234-567812345678"),
    ("secret", SecretStr, "s", lambda s: s.get_secret_value(), "s"),
    (
        "tagged",
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {"kind": "dog"},
        lambda a: (type(a), a.lives),
        (Dog, 1),
    ),
    ("tagged by function", Pet, {"kind": "cat", "lives": 3}, lambda a: (type(a), a.lives), (Cat, 3)),
    ("root", Numbers, ["1", 2], lambda n: n.root, [1, 2]),
    ("infinite", float, "-inf", lambda x: x, -math.inf),
    ("infinite in a list", list[float], ["inf", 1], lambda x: x, [math.inf, 1]),
    ("renamed", Annotated[str, Field(alias="from")], "me", lambda x: x, "me"),
    ("path", Path, "a/b", lambda p: p, Path("a/b")),
]


def tool_of(annotation: Any, seen: list[Any], **more: Any) -> Tool:
    """A tool with one parameter of that type."""

    def take(x: Any) -> str:
        """Take a value."""
        seen.append(x)
        return "ok"

    take.__annotations__["x"] = annotation
    return tool(danger_level=Danger.SAFE, **more)(take)


@pytest.mark.parametrize(
    ("annotation", "given", "look", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_function_gets_what_fits_the_schema(
    annotation: Any, given: Any, look: Callable[[Any], Any], expected: Any, tmp_path: Path
) -> None:
    """Whatever the type, a call in the form of the schema is made once, with the value that was validated; so
    is one read from a log.
    """
    seen: list[Any] = []
    made = tool_of(annotation, seen)
    key = "from" if "from" in made.schema["properties"] else "x"  # type: ignore[operator]  # an object
    lab = Lab(home=tmp_path, model=ScriptedModel([[("take", {key: given})], "done"]), tools=[made])
    run = asyncio.run(lab.run("go"))
    (answer,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert answer.text == "ok"
    (called,) = [event for event in run.events() if isinstance(event, ToolCalled)]
    asyncio.run(made.run(made.validate(json.loads(json.dumps(called.args))), None))
    assert [look(one) for one in seen] == [expected, expected]


def test_validators_run_once_for_a_call() -> None:
    """A validator that uses something up is not asked again between the check and the call."""
    tickets = ["a"]
    seen: list[Any] = []

    def take(text: str) -> str:
        tickets.remove(text)
        return text

    made = tool_of(Annotated[str, BeforeValidator(take)], seen)
    asyncio.run(made.run(made.validate({"x": "a"}), None))
    assert (seen, tickets) == (["a"], [])
    with pytest.raises(ToolArgumentsError, match="x"):
        made.validate({"x": "a"})


def test_changed_arguments_are_validated_again() -> None:
    """What a person or a middleware put in place of an argument is what the function gets, also where the
    dict itself was changed.
    """
    seen: list[Any] = []
    made = tool_of(PLUS, seen)
    args = made.validate({"x": 1})
    args["x"] = 5
    asyncio.run(made.run(args, None))
    asyncio.run(made.run({**made.validate({"x": 1}), "x": 7}, None))
    again = made.validate({"x": 1})
    for _ in range(2):
        asyncio.run(made.run(again, None))
    assert seen == [6, 8, 2, 2]


@pytest.mark.parametrize(
    "error",
    [TypeError("no"), KeyError("k"), AttributeError("strip"), RuntimeError("port"), ZeroDivisionError()],
)
def test_a_validator_that_breaks_is_an_answer_for_the_model(error: Exception, tmp_path: Path) -> None:
    """It is named with the error; the run goes on."""

    def broken(_: Any) -> Any:
        raise error

    made = tool_of(Annotated[str, BeforeValidator(broken)], [])
    run = asyncio.run(
        Lab(home=tmp_path, model=ScriptedModel([[("take", {"x": "a"})], "done"]), tools=[made]).run("go")
    )
    (answer,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert answer.text.startswith("error: take was not run, its arguments could not be checked")
    assert type(error).__name__ in answer.text
    assert run.answer == "done"


@pytest.mark.parametrize(
    ("annotation", "default", "shown"),
    [
        (Colour, Colour.RED, "red"),
        (Path, Path("out"), "out"),
        (date, date(2024, 1, 2), "2024-01-02"),
        (set[int], {1}, [1]),
        (PLUS, 1, None),
        (Mail, None, None),
        (bytes, b"\xff", None),
        (str, object(), None),
        (list[int], [], []),
    ],
)
def test_a_default_is_shown_where_it_can_be_read_again(annotation: Any, default: Any, shown: Any) -> None:
    """People and rules see it; the function gets the default itself in any case."""
    seen: list[Any] = []

    def take(x: Any = default) -> str:
        """Take a value."""
        seen.append(x)
        return "ok"

    take.__annotations__["x"] = annotation
    made = tool(take)
    args = made.validate({})
    assert args == ({} if shown is None and default is not None else {"x": shown})
    asyncio.run(made.run(args, None))
    assert seen == [default]


def test_a_missing_argument_with_another_name_is_named() -> None:
    """The error names what the model has to give."""
    made = tool_of(Annotated[str, Field(alias="from")], [])
    with pytest.raises(ToolArgumentsError, match="from: required but missing"):
        made.validate({})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": True}},
        {"properties": {"x": None}},
        {"properties": {"x": []}},
        {"properties": {"x": {"$ref": "#"}}},
        {"properties": None, "required": None},
        {"properties": True, "required": True},
        {"properties": [], "required": ["x", 7, None]},
        {},
    ],
)
def test_any_schema_of_a_server_is_looked_at(schema: dict[str, Any]) -> None:
    """What it says of an argument may be no more than that there is one; authority, search, prompts and rules
    take it as it is.
    """
    args: dict[str, Any] = {"x": "q"}
    made = Tool(
        name="s:t", description="d", function=print, arguments=SchemaArguments(tool="s:t", schema=schema)
    )
    assert made.validate(args) == args
    call = Call(id="c", kind="tool", target="s:t", args=args)
    assert authority_arguments(call, made) == args
    assert content_arguments(made) == frozenset()
    assert "s:t" in tool_prompt([made.spec()], thought=False)
    assert "s:t" in brief_prompt([made.spec()])
    assert reply_schema([required_only(made.spec())], thought=False)
