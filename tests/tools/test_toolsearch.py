"""Claims about finding tools: names are taken apart, order depends on nothing else, and no question breaks
it.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.tools.tool_search import ToolDescription, ToolIndex, count_covered, tool_from_definition

TOOLS = [
    ToolDescription(name="convertTimezone", description="Change a clock time from one place to another."),
    ToolDescription(
        name="get_current_weather",
        description="Temperature and wind at a place.",
        parameters="unit celsius fahrenheit",
    ),
    ToolDescription(name="math.factorial", description="Product of all numbers up to one."),
    ToolDescription(name="zz", description="Send mail.", server="mailbox post"),
]
INDEX = ToolIndex(TOOLS)


def found(need: str, top_k: int = 3) -> tuple[str, ...]:
    """The names that a need finds."""
    return INDEX.search(need, top_k)


def test_names_are_found_by_their_words_and_words_by_names() -> None:
    """Camel, snake, dotted and run-together names; forms of a word; parameters and servers."""
    assert found("which timezones are there")[0] == "convertTimezone"
    assert found("time zone")[0] == "convertTimezone"
    assert found("factorials of 5") == ("math.factorial",)
    assert found("fahrenheit") == ("get_current_weather",)
    assert found("the currentWeather")[0] == "get_current_weather"
    assert found("mailbox") == ("zz",)
    assert (found(""), found("   "), found("xyzzy"), found("mail", 0)) == ((), (), (), ())


def test_pairs_of_words_count_as_one_also_when_it_is_said_what_is_covered() -> None:
    """`timezone` covers `time zones`, and the other way round."""
    assert count_covered("convert time zones", "timezone conversion") == (2, 3)
    assert count_covered("timezone", "between time zones") == (1, 1)
    assert count_covered("", "anything") == (0, 0)


def test_the_order_of_tools_does_not_matter() -> None:
    """Equal tools in any order, equal answers; equally good ones by name."""
    twins = [ToolDescription(name=name, description="Send mail.") for name in ("b", "a", "c")]
    assert (
        ToolIndex(twins).search("mail", 3) == ToolIndex(reversed(twins)).search("mail", 3) == ("a", "b", "c")
    )


@settings(max_examples=30)
@given(st.text(max_size=200), st.integers(min_value=-1, max_value=10))
def test_no_question_breaks_a_search(need: str, top_k: int) -> None:
    """Any text at all, full-text syntax and quotes included, gives known names, each once, at most as many as
    asked for.
    """
    got = found(need, top_k)
    assert len(got) == len(set(got)) <= max(0, top_k)
    assert set(got) <= {tool.name for tool in TOOLS}
    assert got == found(need, top_k)


def test_nested_parameters_are_read_and_a_schema_without_end_is_not() -> None:
    """Names and descriptions at every level near the top; depth and length are bounded."""
    inner = {"type": "object", "properties": {"postcode": {"type": "string", "description": "of the town"}}}
    schema = {"type": "object", "properties": {"places": {"type": "array", "items": inner}}}
    assert tool_from_definition("a", "b", schema).parameters == "places postcode of the town"
    deep: dict[str, object] = {}
    for _ in range(50):
        deep = {"properties": {"a" * 1000: deep}}
    assert len(tool_from_definition("a", "b", deep).parameters) <= 4_000  # type: ignore[arg-type]
