"""What `@tool` makes of a function."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from waits import PATIENCE_S

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Tool, ToolArgumentsError, ToolContext


class City(BaseModel):
    """A nested model."""

    name: str
    country: str = "NO"


@dataclass
class Span:
    """A nested dataclass."""

    first: int
    last: int


def run(made: Tool, args: dict[str, Any], root: Path) -> Any:
    """Validate and run, as the engine does."""
    return asyncio.run(
        made.run(made.validate(args), ToolContext(workspace=Workspace(root), run_id="r1", call_id="c1"))
    )


def test_schema_and_description_come_from_signature_and_docstring() -> None:
    """Types, defaults and `Args:` entries are in the schema; the description is the text before the first
    section.
    """

    @tool(name="look_up", danger_level="high", effect="pure", timeout_s=3)
    def look(city: str, unit: Literal["C", "F"] = "C", days: int | None = None) -> str:
        """Look up the weather.

        Only for cities.

        Args:
            city: Its name,
                in English.
            unit (str): Which scale: C or F.

        Returns:
            Text.
        """
        return city + unit + str(days)

    spec = look.spec()
    assert (spec.name, spec.description) == ("look_up", "Look up the weather.\n\nOnly for cities.")
    assert spec.schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "Its name, in English."},
            "unit": {
                "type": "string",
                "enum": ["C", "F"],
                "default": "C",
                "description": "Which scale: C or F.",
            },
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        },
    }
    assert (look.danger, look.effect, look.timeout_s, look.parallel_safe) == (Danger.HIGH, "pure", 3, True)


def test_undeclared_properties_are_cautious(tmp_path: Path) -> None:
    """Without options a tool is LOW and opaque, may run beside others, and its version follows its source."""

    @tool
    async def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert (add.name, add.danger, add.effect, add.parallel_safe) == ("add", Danger.LOW, "opaque", True)
    assert len(add.version) == 12
    assert run(add, {"a": 1}, tmp_path) == 3
    assert not tool(danger_level=Danger.MEDIUM)(add.function).parallel_safe


def test_it_is_still_the_plain_function() -> None:
    """Calling the tool calls the function, and inspection sees its signature."""

    @tool
    def double(x: int) -> int:
        """Double."""
        return 2 * x

    assert double(4) == 8
    assert list(inspect.signature(double).parameters) == ["x"]


def test_arguments_are_converted_and_completed(tmp_path: Path) -> None:
    """Validation gives JSON with defaults filled in; the function gets Python values, the context
    included.
    """
    seen: list[Any] = []

    @tool
    def visit(
        city: City,
        spans: list[Span],
        ctx: ToolContext,
        where: Path = Path("out"),
        json: bool = False,
        model_config: str = "x",
        _hidden: int = 1,
    ) -> str:
        """Visit; the parameters have names that a pydantic model could not have."""
        seen.extend([city, spans, ctx.call_id, where, json, model_config, _hidden])
        return "ok"

    args = visit.validate({"city": {"name": "Oslo"}, "spans": [{"first": "1", "last": 2}]})
    assert args == {
        "city": {"name": "Oslo", "country": "NO"},
        "spans": [{"first": 1, "last": 2}],
        "where": "out",
        "json": False,
        "model_config": "x",
        "_hidden": 1,
    }
    assert visit.validate(args) == args
    assert run(visit, args, tmp_path) == "ok"
    assert seen == [City(name="Oslo"), [Span(1, 2)], "c1", Path("out"), False, "x", 1]


def test_mutable_defaults_are_not_shared(tmp_path: Path) -> None:
    """A list that one call changes is fresh in the next."""

    @tool
    def collect(items: list[int] = []) -> list[int]:
        """Collect."""
        items.append(len(items))
        return items

    assert [run(collect, {}, tmp_path), run(collect, {}, tmp_path)] == [[0], [0]]


def test_wrong_arguments_are_explained_key_by_key() -> None:
    """The message names every wrong key, what is wrong with it, and the nearest spelling of an unknown
    one.
    """

    @tool
    def plot(path: str, width: int, city: City | None = None) -> str:
        """Plot.

        Args:
            path: Where to save it.
            width: Pixels.

        """
        return path

    with pytest.raises(ToolArgumentsError) as caught:
        plot.validate({"pth": "x", "width": "wide", "city": {"nam": 1}})
    assert str(caught.value).splitlines() == [
        "plot was not run, its arguments are wrong:",
        "- path: required but missing (Where to save it.)",
        "- width: should be a valid integer, unable to parse string as an integer, not 'wide'",
        "- city.name: required but missing",
        "- pth: unknown argument; did you mean 'path'?",
    ]


def _bare(x) -> str:  # type: ignore[no-untyped-def]
    """Doc."""
    return str(x)


def _many(*x: int) -> str:
    """Doc."""
    return str(x)


def _more(**x: int) -> str:
    """Doc."""
    return str(x)


def _positional(x: int, /) -> str:
    """Doc."""
    return str(x)


def _silent(x: int) -> str:
    return str(x)


def _unknown(x: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Doc."""
    return str(x)


def _pieces(x: int) -> Iterator[int]:
    """Doc."""
    yield x


async def _late_pieces(x: int) -> AsyncIterator[int]:
    """Doc."""
    yield x


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            _pieces,
            "tool '_pieces' yields its answer in pieces, and a call has one: return a list of them instead",
        ),
        (_late_pieces, "tool '_late_pieces' yields its answer in pieces"),
        (_bare, "parameter 'x' of tool '_bare' has no type: write e.g. x: str"),
        (_many, "takes any number of arguments"),
        (_more, "takes any number of arguments"),
        (_positional, "remove the / from the signature"),
        (_silent, "tool '_silent' has no docstring"),
        (_unknown, "name 'Nowhere' is not defined"),
        (City, "@tool needs a function"),
        (lambda: None, "'<lambda>' cannot be a tool's name"),
    ],
)
def test_what_cannot_be_described_is_refused(function: Callable[..., Any], expected: str) -> None:
    """Decorating says what to change."""
    with pytest.raises(UsageError) as caught:
        tool(function)
    assert expected in str(caught.value)


def test_wrong_options_are_refused_with_the_nearest() -> None:
    """A misspelled danger level or effect names the right one."""
    with pytest.raises(UsageError, match="did you mean 'MEDIUM'"):
        tool(danger_level="medum")
    with pytest.raises(UsageError, match="did you mean 'idempotent'"):
        tool(effect="idempotant")  # type: ignore[call-overload]


def test_a_type_without_json_form_is_refused_when_the_schema_is_needed() -> None:
    """The error names the tool and says which types can be used."""

    class Opaque:
        pass

    @tool
    def use(x: Opaque) -> str:
        """Use."""
        return str(x)

    with pytest.raises(UsageError, match="tool 'use' has a parameter whose type has no JSON form"):
        use.spec()


def test_decorating_does_not_load_pydantic() -> None:
    """Import and decoration are cheap; the validator library is loaded at the first use."""
    code = (
        "import sys\nfrom kestrel_lab.tools.builtin import native_tools\nbox = native_tools()\n"
        "assert 'pydantic' not in sys.modules\nbox.specs()\nassert 'pydantic' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
