"""Parts of a Markdown file: sections, paragraphs and list items, and the file with some of them only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.studies.guidance_parts import split_guidance

FILE = """\
---
name: house
description: rules
---
# Title

Intro of
two lines.

## Rules

- one
- two
  goes on

1. first

```sh
# no heading
```

### Deep

See [there].

[there]: https://example.org

## Empty

Setext
------

| a | b |
| - | - |
| 1 | 2 |
"""


def without_blank(text: str) -> list[str]:
    """Return the lines that have something in them."""
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("unit", "titles"),
    [
        ("paragraph", ["Intro of", "one", "1. first", "```sh", "See [there].", "| a | b"]),
        ("item", ["Intro of", "one", "two goes", "1. first", "```sh", "See [there].", "| a | b"]),
        ("section", ["Title Intro", "Rules - one", "Deep See", "Setext"]),
    ],
)
def test_a_file_has_these_parts(unit: str, titles: list[str]) -> None:
    """Front matter, link definitions and headings without text are no parts; a hash in code is no heading;
    with all parts it is the file itself.
    """
    found = split_guidance(FILE, unit)
    assert len(found.parts) == len(titles)
    for part, title in zip(found.parts, titles, strict=True):
        assert part.title.startswith(f"{part.number} {title}")
    assert found.text([True] * len(titles)) == FILE


def test_what_is_left_when_parts_go() -> None:
    """A heading goes with the last part below it, links stay defined, and front matter stays; without it
    nothing is left of no parts.
    """
    found = split_guidance(FILE)
    left = found.text([part.title.startswith("5 See") for part in found.parts])
    kept = [
        "---",
        "name: house",
        "description: rules",
        "---",
        "# Title",
        "## Rules",
        "### Deep",
        "See [there].",
        "[there]: https://example.org",
    ]
    assert without_blank(left) == [*kept, "## Empty"]
    assert without_blank(found.text([part.number == 6 for part in found.parts]))[4:7] == [
        "# Title",
        "[there]: https://example.org",
        "## Empty",
    ]
    assert found.text([False] * 6).startswith("---\nname: house")
    bare = split_guidance("# T\n\nonly\n")
    assert (bare.text([False]), bare.text([True])) == ("", "# T\n\nonly\n")


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# Title\n\n## Another\n", "---\nname: x\n---\n", "[a]: https://example.org\n"]
)
def test_a_file_without_parts_is_refused(text: str) -> None:
    """An empty file and one of headings alone have nothing to leave out."""
    with pytest.raises(UsageError, match="no paragraph to leave out"):
        split_guidance(text)


def test_an_unknown_unit_is_refused() -> None:
    """The message names the units."""
    with pytest.raises(UsageError, match="paragraph, section or item, not 'paragraphs'"):
        split_guidance("text", "paragraphs")


BLOCKS = st.sampled_from(
    [
        "# One\n",
        "## Two\n",
        "text\nmore\n",
        "- a\n- b\n\n  c\n",
        "> quoted\n",
        "```\n# x\n\ny\n```\n",
        "***\n",
        "Set\n===\n",
    ]
)


@given(
    blocks=st.lists(BLOCKS, min_size=1, max_size=8),
    unit=st.sampled_from(["paragraph", "section", "item"]),
    chance=st.randoms(),
)
def test_every_choice_keeps_the_order_of_lines(blocks: list[str], unit: str, chance) -> None:
    """Parts do not overlap; with all of them the text is whole; with some, each line that is left is one of
    the file, in its order, and the parts that were chosen are there.
    """  # one claim
    text = "\n".join(blocks)
    try:
        found = split_guidance(text, unit)
    except UsageError:
        return
    lines = [line for part in found.parts for line in part.lines]
    assert lines == sorted(set(lines))
    assert found.text([True] * len(found.parts)) == text
    chosen = [chance.random() < 0.5 for _ in found.parts]
    left = iter(text.splitlines())
    assert all(any(line == own for own in left) for line in found.text(chosen).splitlines())
    for part, stays in zip(found.parts, chosen, strict=True):
        assert not stays or part.text in found.text(chosen)
