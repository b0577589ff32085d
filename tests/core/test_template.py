"""References in JSON are replaced by values, and nothing else ever happens."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions import templates as template
from kestrel_lab.core.expressions.json_paths import JsonPath
from kestrel_lab.core.expressions.templates import (
    MAX_TEMPLATE,
    escape_template,
    referenced_names,
    render_template,
)
from kestrel_lab.core.json_types import Json, dumps

SCOPE: dict[str, Json] = {
    "root": "src",
    "count": 3,
    "flag": True,
    "none": None,
    "previous": {"content": {"files": ["a.py", "b.py"], "note": "{{root}} ${count}"}, "ok": True},
    "steps": [{"content": "first"}, {"content": [1, 2]}],
}

odd_text = st.text(alphabet="{}$ab. [0]'\\\n", max_size=12)
json_values: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | odd_text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | odd_text, inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ("{{count}}", 3),
        ("${count}", 3),
        ("{{ flag }}", True),
        ("{{none}}", None),
        ("{{previous.content.files}}", ["a.py", "b.py"]),
        ("${previous.content.files[1]}", "b.py"),
        ("{{steps[1].content[0]}}", 1),
        ("in {{root}}/${previous.content.files[0]}: {{count}}", "in src/a.py: 3"),
        ("{{flag}} {{none}} {{steps[1].content}}", "true null [1,2]"),
        (" {{count}}", " 3"),
        ("{{previous.content.note}}", "{{root}} ${count}"),
        ("said {{previous.content.note}}", "said {{root}} ${count}"),
        ("{{{{count}} and $${count}", "{{count}} and ${count}"),
        ("${{count}} costs", "$3 costs"),
        ("{${root}}", "{src}"),
        ("$HOME } }} { $ {} $(x)", "$HOME } }} { $ {} $(x)"),
        (
            {"path": "{{root}}", "more": [{"n": "{{count}}"}, 5], "{{root}}": None},
            {"path": "src", "more": [{"n": 3}, 5], "{{root}}": None},
        ),
        (7, 7),
    ],
)
def test_a_reference_stands_for_its_value(value: Json, rendered: Json) -> None:
    """Both spellings; alone a value keeps its type, in a text it is written; what is put in is not looked at
    again; keys stay.
    """
    assert dumps(render_template(value, SCOPE)) == dumps(rendered)


def test_the_names_a_template_needs() -> None:
    """`referenced_names` gives the first name of each reference in values at any depth, not in keys and not
    where it is escaped.
    """
    value: Json = {"{{key}}": ["{{a.b}} ${c[0]}", {"x": "{{a}}{{{{d}}$${e}"}], "n": 1}
    assert referenced_names(value) == {"a", "c"}
    assert template.references_in(value) == (JsonPath("a", ("b",)), JsonPath("c", (0,)), JsonPath("a"))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("{{rot}}", "'rot': there is no 'rot'; did you mean 'root'?"),
        (
            "{{previous.content.file}}",
            "'previous.content.file': previous.content has no 'file'; did you mean 'files'?",
        ),
        ("{{steps[2].content}}", "'steps[2].content': steps has 2 items, counted from [0]"),
        ("{{root.x}}", "'root.x': root is a text, and root.x asks for a key of an object"),
        (
            "{{previous[0]}}",
            "'previous[0]': previous is an object, and previous[0] asks for a place in a list",
        ),
        ("{{}}", "'' is not a path: write a name, then .key or [0] as often as needed"),
        ("{{a b}}", "'a b' is not a path: write a name, then .key or [0] as often as needed"),
        (
            "x {{count",
            "'{{count' begins a reference that does not end: write {{path}} or ${path}; {{{{ and $${ "
            "stand for themselves",
        ),
        (
            "{{{count}}}",
            "'{{{count}}}' begins a reference that does not end: write {{path}} or ${path}; {{{{ and "
            "$${ stand for themselves",
        ),
        (
            "{{a.__class__}}",
            "'a.__class__': there is no 'a'; known: count, flag, none, previous, root, steps",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_is_told(value: Json, told: str) -> None:
    """The error names the reference, how far it leads and what is there."""
    with pytest.raises(UsageError) as caught:
        render_template(value, SCOPE)
    assert str(caught.value) == told


@pytest.mark.parametrize(
    "attack",
    [
        "{{root.__class__}}",
        "{{root.__class__.__mro__[1].__subclasses__()}}",
        "{{previous.keys}}",
        "{{steps.append}}",
        "{{count.real}}",
        "{{root|upper}}",
        "{{root!r}}",
        "{{root:>10}}",
        "{{1+1}}",
        "{{'a'}}",
        "{{steps[-1]}}",
        "{{steps[0:1]}}",
        "{{steps['0']}}",
        "{{ {{root}} }}",
        "${${root}}",
        "{{root}",
        "{{__import__('os')}}",
    ],
)
def test_what_is_more_than_a_path_is_refused(attack: str) -> None:
    """Attributes, calls, filters, formats, arithmetic, slices and references within references."""
    with pytest.raises(UsageError):
        render_template(attack, SCOPE)


@pytest.mark.parametrize(
    "harmless",
    ["{0}", "{root.__class__}", "%(root)s", "$root", "$(root)", "`root`", "{% if x %}", "#{root}", "{#x#}"],
)
def test_other_template_languages_are_plain_text(harmless: str) -> None:
    """Only the two documented spellings mean anything."""
    assert (referenced_names(harmless), render_template(harmless, SCOPE)) == (frozenset(), harmless)


@given(value=json_values)
def test_a_value_alone_keeps_its_type(value: Json) -> None:
    """Whatever JSON is referred to comes out equal, type by type, also when its text looks like a
    template.
    """
    assert dumps(render_template(["{{x}}", "${y.z[0]}"], {"x": value, "y": {"z": [value]}})) == dumps(
        [value, value]
    )


@given(value=json_values)
def test_what_is_escaped_comes_out_as_it_was(value: Json) -> None:
    """`escape_template` makes any JSON a template without references that renders to it."""
    assert referenced_names(escape_template(value)) == frozenset()
    assert dumps(render_template(escape_template(value), {})) == dumps(value)


@given(
    parts=st.lists(
        st.tuples(odd_text | st.text(max_size=5), st.sampled_from(["{{x}}", "${x}"]), odd_text),
        min_size=1,
        max_size=4,
    )
)
def test_values_in_a_text_are_only_written(parts: list[tuple[str, str, str]]) -> None:
    """Literal text around references stays itself; a text put in stays itself whatever it looks like."""
    made, expected = "", ""
    scope: dict[str, Json] = {}
    for number, (before, reference, value) in enumerate(parts):
        literal = before.rstrip(
            "{$"
        )  # what stands right before a reference may be read as part of its opening
        made += str(escape_template(literal)) + reference.replace("x", f"x{number}")
        expected += literal + value
        scope[f"x{number}"] = value
    made, expected = f".{made}", f".{expected}"
    assert render_template(made, scope) == expected


@given(text=st.text(alphabet="{}$ab.[0] ", max_size=40))
def test_any_text_is_rendered_or_refused(text: str) -> None:
    """No text raises anything but `UsageError`, and `referenced_names` refuses exactly what cannot be
    read.
    """
    try:
        names = referenced_names(text)
    except UsageError:
        with pytest.raises(UsageError):
            render_template(text, {"a": 1, "b": [1]})
        return
    try:
        render_template(text, {"a": 1, "b": [1]})
    except UsageError:
        assert names


def test_what_is_rendered_is_a_copy() -> None:
    """Changing the result changes neither the template nor the scope."""
    scope: dict[str, Json] = {"x": {"deep": [1]}}
    result = render_template({"a": "{{x}}"}, scope)
    assert isinstance(result, dict)
    result["a"]["deep"].append(2)  # type: ignore[index,union-attr]
    assert scope == {"x": {"deep": [1]}}


def deep(levels: int) -> Json:
    """A reference in lists in lists."""
    value: Json = "{{x}}"
    for _ in range(levels):
        value = [value]
    return value


def test_templates_are_bounded() -> None:
    """Length, depth and what is put in have caps; each is told."""
    assert render_template(deep(32), {"x": 1}) is not None
    for use in (referenced_names, escape_template, lambda value: render_template(value, {"x": 1})):
        with pytest.raises(UsageError, match="nested at most 32 deep"):
            use(deep(33))
        with pytest.raises(UsageError, match="at most 100,000 characters"):
            use(["a" * 60_000, "b" * 60_000])
    with pytest.raises(UsageError, match="more than 1,000,000 characters"):
        render_template("{{x}}" * 20_000, {"x": "y" * 1_000})
    with pytest.raises(UsageError, match="cannot be put in"):
        render_template("{{x}}", {"x": float("inf")})
    far: Json = 1
    for _ in range(100_000):
        far = [far]
    with pytest.raises(UsageError, match="cannot be put in"):
        render_template("{{x}}", {"x": far})


@pytest.mark.parametrize(
    "part",
    [
        "{",
        "{{",
        "{{{{",
        "$",
        "${",
        "$${",
        "{{a",
        "{{a.",
        "{{a}",
        "a[0]",
        "}}",
        "{{a}}",
        "{{a.b}}",
        "{{a" + ".b" * 400 + "}}",
    ],
)
def test_no_text_takes_long(part: str) -> None:
    """Repetitions up to the cap are rendered or refused at once."""
    began = time.thread_time()
    try:
        render_template(part * (MAX_TEMPLATE // len(part)), {"a": {"b": 1}})
    except UsageError:
        pass
    assert time.thread_time() - began < 1
