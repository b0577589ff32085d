"""YAML that is written is read back as what it was."""

from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.yaml.reader import parse_yaml
from kestrel_lab.core.yaml.writer import entry_text

TEXT = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    [
        "no",
        "1e5",
        "0o17",
        "~",
        "",
        " x",
        "- a",
        "a: b",
        "# c",
        "*a",
        "&b",
        "!t",
        "x\n",
        "a\n\n b\n",
        "\ta",
        "a \nb",
        "|\n",
        "true",
        "12",
        ".inf",
        "a\r\nb",
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT.filter(bool), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.integers(0, 8))
def test_what_is_written_is_read_back(value, indent):
    """Any JSON value comes back equal, at any depth, whatever its texts look like."""
    parents = "".join(f"{' ' * depth}p:\n" for depth in range(indent))
    found = parse_yaml(parents + entry_text("key", value, indent), "t").value
    for _ in range(indent):
        found = found["p"]
    assert found == {"key": value}


def test_it_is_pleasant_to_read():
    """Short values stay on a line, texts of several lines are blocks, words need no quotes, a shared value is
    written twice.
    """
    assert entry_text("tools", ["read_file", "no"], 2) == '  tools: [read_file, "no"]\n'
    assert entry_text("goal", "Find it.\nSay it.\n", 2) == "  goal: |\n    Find it.\n    Say it.\n"
    shared = ["a"]
    assert entry_text("x", [shared, shared]) == "x: [[a], [a]]\n"
    assert entry_text("x", ["long word " * 8] * 2) == "x:\n" + f'  - "{"long word " * 8}"\n' * 2


def test_a_lone_surrogate_does_not_stop_it():
    """A text that no encoding knows is written with a question mark."""
    assert entry_text("x", "a\ud800b") == 'x: "a?b"\n'
