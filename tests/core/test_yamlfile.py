"""Strict YAML: what is read, what is refused, and where errors point."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.yaml.reader import MAX_BYTES, parse_yaml, read_yaml


def refusal(text: str) -> str:
    """The message with which `text` is refused."""
    with pytest.raises(UsageError) as caught:
        parse_yaml(text, "s.yaml")
    return str(caught.value)


def test_scalars_follow_yaml_1_2():
    """Only true, false, null and numbers are special; `no`, `on`, dates and clock times stay text."""
    text = """
on: no
off: Yes
when: 2024-01-02
at: 12:30:00
n: 1_000
yes: [true, False, ~, null, "", '']
numbers: [0, -3, 0x1F, 0o17, 017, 1.5, .5, 1e3, -2.]
quoted: ["true", '12', "~"]
empty:
1: one
"""
    assert parse_yaml(text, "s.yaml").value == {
        "on": "no",
        "off": "Yes",
        "when": "2024-01-02",
        "at": "12:30:00",
        "n": "1_000",
        "yes": [True, False, None, None, "", ""],
        "numbers": [0, -3, 31, 15, 17, 1.5, 0.5, 1000.0, -2.0],
        "quoted": ["true", "12", "~"],
        "empty": None,
        "1": "one",
    }


def test_block_text_is_text():
    """A literal or folded block is never a number or a boolean."""
    assert parse_yaml("a: |\n  12\nb: >-\n  true\n", "s.yaml").value == {"a": "12\n", "b": "true"}


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=80), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_json_reads_as_itself(value):
    """JSON with escaped text is YAML: whatever it holds comes back equal."""
    import json

    text = json.dumps(value)  # ASCII: YAML forbids some characters unescaped that JSON allows
    if "\\ud" in text:
        return  # lone surrogates are no text
    assert parse_yaml(text, "s.yaml").value == value


def test_lines_point_at_keys_and_items():
    """Each value knows its line; an unknown path points at what surrounds it."""
    file = parse_yaml(
        "name: x\nscenarios:\n  - id: a\n    goal: |\n      one\n      two\n  - id: b\n", "evals/s.yaml"
    )
    assert file.place(("scenarios", 0, "goal")) == "evals/s.yaml:4: scenarios[0].goal"
    assert file.place(("scenarios", 1)) == "evals/s.yaml:7: scenarios[1]"
    assert file.place(("scenarios", 1, "goal")) == "evals/s.yaml:7: scenarios[1].goal"
    assert file.place() == "evals/s.yaml:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "s.yaml:3: a: the key is already on line 1"),
        ("x:\n  - {k: 1, k: 2}\n", "s.yaml:2: x[0].k: the key is already on line 2"),
        ("a: &x 1\n", "s.yaml:1: anchors and aliases (&name, *name) are not supported; write the value out"),
        (
            "a: 1\nb: *x\n",
            "s.yaml:2: anchors and aliases (&name, *name) are not supported; write the value out",
        ),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "s.yaml:1: tags such as 'tag:yaml.org,2002:python/object/apply:os.system' are not supported",
        ),
        ("a: !x 1\n", "s.yaml:1: tags such as '!x' are not supported"),
        ("a: 1\n---\nb: 2\n", "s.yaml:2: a second document begins here; one file holds one"),
        ("? [a, b]\n: 1\n", "s.yaml:1: a key must be text, not a list or mapping"),
        ("'': 1\n", "s.yaml:1: a key is empty"),
        ("a: .inf\n", "s.yaml:1: '.inf' is not a finite number; put it in quotes to make it text"),
        ("a: 1e999\n", "s.yaml:1: '1e999' is too large for a number; put it in quotes to make it text"),
        ("a:\n\t- 1\n", "s.yaml:2: not valid YAML: found character that cannot start any token"),
        ("a: [1, 2\nb: 3\n", "s.yaml:2: not valid YAML: did not find expected ',' or ']'"),
    ],
)
def test_refusals_name_the_line(text, message):
    """What is refused is refused with the file, the line and what to do."""
    assert refusal(text) == message


def test_attacks_are_refused_fast():
    """Billion laughs, deep nesting, floods of nodes and huge files cost less than a second together."""
    laughs = "a: &a [x]\n" + "".join(
        f"{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n"
        for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    started = time.thread_time()
    assert "anchors and aliases" in refusal(laughs)
    assert "more than 50 levels" in refusal("[" * 100_000)
    assert "more than 50 levels" in refusal("{a: " * 100_000)
    assert "more than 50 levels" in refusal("- " * 100_000)
    assert "more than 50,000 values" in refusal("[" + "1," * 60_000 + "1]")
    assert "300 digits" in refusal("a: " + "9" * 5000)
    assert "larger than 1,000,000 bytes" in refusal("a" * (MAX_BYTES + 1))
    assert time.thread_time() - started < 1.5


def test_what_is_as_large_as_allowed_is_read():
    """Bytes, levels and digits up to the limit, which is of bytes and not of characters."""
    assert parse_yaml("#" * MAX_BYTES, "s.yaml").value is None
    assert "larger than" in refusal("#" + "é" * (MAX_BYTES // 2))
    assert parse_yaml("[" * 50 + "1" + "]" * 50, "s.yaml").value and "more than 50 levels" in refusal(
        "[" * 51 + "1" + "]" * 51
    )
    assert parse_yaml("9" * 300, "s.yaml").value == int("9" * 300) and "300 digits" in refusal("9" * 301)


def test_control_characters_are_refused():
    """A file with characters that YAML forbids is refused, not half read."""
    assert refusal("a: \x00b\n").startswith("s.yaml")


def test_read_yaml_says_what_is_wrong_with_the_file(tmp_path):
    """A missing, too large or undecodable file is named with the reason; a byte order mark is not a
    problem.
    """
    missing, binary, large, marked = (
        tmp_path / name for name in ("no.yaml", "bin.yaml", "large.yaml", "bom.yaml")
    )
    binary.write_bytes(b"a: \xff\xfe")
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    marked.write_bytes(b"\xef\xbb\xbfa: 1\n")
    messages = []
    for path in (missing, binary, large):
        with pytest.raises(UsageError) as caught:
            read_yaml(path, path.name)
        messages.append(str(caught.value))
    assert messages == [
        "no.yaml: cannot be read: No such file or directory",
        "bin.yaml: is not UTF-8 text (byte 4)",
        "large.yaml: is larger than 1,000,000 bytes; split it",
    ]
    assert read_yaml(marked).value == {"a": 1}
    assert dumps(read_yaml(marked).value) == '{"a":1}'
