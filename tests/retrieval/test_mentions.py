"""What a question names: files by the ends of their paths, frames of tracebacks, modules, dotted names and
names of code.
"""

from collections.abc import Collection, Mapping

import pytest

from kestrel_lab.retrieval.mentions import (
    Mentions,
    find_mentions,
    mentioned_paths,
    named_code,
    parse_question,
)

PATHS = ["src/shop/cart.py", "src/shop/__init__.py", "lib/cart.py", "docs/cart.md", "web/App.js"]
FILES = dict(enumerate(PATHS))
DEFINED: dict[str, dict[int, list[str]]] = {
    "total": {0: ["Cart.total"], 2: ["total"]},
    "cart": {0: ["Cart"]},
    "add_item": {0: ["Cart.add_item"]},
    "everywhere_x": {number: ["everywhere_x"] for number in range(26)},
    "often_x": {number: ["often_x"] for number in range(25)},
}


def definitions(names: Collection[str]) -> Mapping[str, Mapping[int, Collection[str]]]:
    """The definitions of these names."""
    return {name: DEFINED[name] for name in names if name in DEFINED}


def found(query: str) -> Mentions:
    """What a question names."""
    return find_mentions(query, query, FILES, definitions)


def scores(query: str, kind: str) -> dict[int, float]:
    """Files with the strength of what is said of them."""
    return {number: round(score, 3) for number, score in found(query).scores[kind].items()}


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("see src/shop/cart.py", {0: 1.0}),
        ("see /home/me/shop/cart.py", {0: 1.0}),  # the front is of another machine
        ("see shop\\cart.py", {0: 1.0}),
        ("see cart.py", {0: 0.5, 2: 0.5}),
        ("see cart.py and cart.py", {0: 0.5, 2: 0.5}),
        ("see WEB/app.js", {4: 1.0}),
        ("see carts.py", {}),
        ("see art.py", {}),
        ("see cart.pyc", {}),
        ("mail me@cart.py", {}),
    ],
)
def test_a_path_names_the_files_that_end_so(query: str, named: dict[int, float]) -> None:
    """The longest end that any file has counts; several files share it, and a path said twice counts once."""
    assert scores(query, "path") == named


def test_the_last_frame_of_a_traceback_counts_most() -> None:
    """Frames count from a half to one, by their place; they are no mentions of paths as well."""
    query = (
        'Traceback\n  File "/x/lib/cart.py", line 3, in f\n  File "/x/shop/cart.py", line 9, in g\nKeyError'
    )
    assert scores(query, "frame") == {2: 0.75, 0: 1.0}
    assert scores(query, "path") == {}
    assert found(query).because == {2: ("cart.py in a traceback",), 0: ("cart.py in a traceback",)}
    assert scores("src/shop/cart.py:12: error: no", "frame") == {0: 1.0}


@pytest.mark.parametrize(
    ("query", "module", "dotted"),
    [
        ("shop.cart.Cart.total is wrong", {0: 1.0}, {0: 1.0}),
        ("shop.cart is slow", {0: 1.0}, {}),
        ("cart.Cart breaks", {0: 0.5, 2: 0.5}, {0: 1.0}),
        ("shop.nothing breaks", {1: 1.0}, {}),
        ("other.thing breaks", {}, {}),
    ],
)
def test_a_dotted_name_is_a_module_and_what_it_defines(
    query: str, module: dict[int, float], dotted: dict[int, float]
) -> None:
    """The longest module that it begins with, and the files that define the rest."""
    assert set(scores(query, "module")) == set(module)
    assert scores(query, "module") == module
    assert set(scores(query, "dotted")) >= set(dotted)
    assert (scores(query, "dotted") == {}) is (dotted == {})


def test_a_name_that_many_files_define_says_nothing() -> None:
    """Up to 25 files may define it; each then gets its share."""
    assert set(scores("add_item fails", "identifier")) == {0}
    assert scores("everywhere_x fails", "identifier") == {}
    assert scores("often_x fails", "identifier")[3] == pytest.approx(1 / 25, abs=1e-3)
    assert set(scores("the `total` is wrong", "identifier")) == {0, 2}


@pytest.mark.parametrize(
    ("text", "names"),
    [("cart", ("cart",)), ("", ()), ("3", ()), ("why shop.cart", ("shop.cart",))],
)
def test_names_of_code_in_a_text(text: str, names: tuple[str, ...]) -> None:
    """Dotted ones first; a single word alone is one."""
    assert named_code(text)[:1] == names


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("see shop/cart.py", {"src/shop/cart.py"}),
        ("see cart.py", set()),  # two files
        ("see nowhere.py", set()),
        ('File "/x/lib/cart.py", line 3', {"lib/cart.py"}),
        ("nothing", set()),
        ("see App.js, docs/cart.md", {"web/App.js", "docs/cart.md"}),
    ],
)
def test_only_unambiguous_paths_are_mentioned(text: str, paths: set[str]) -> None:
    """A file is named where no other may be meant."""
    assert mentioned_paths(text, PATHS) == paths


@pytest.mark.parametrize(
    ("text", "head", "telling"),
    [
        ("### Describe the bug\nIt breaks", "It breaks", "It breaks"),
        ("<!-- fill in -->\nIt breaks\nOS: Linux", "It breaks", " \nIt breaks"),
        ("**Cart total**\nIt breaks", "**Cart total**", "**Cart total**\nIt breaks"),
        ("It breaks, see https://x.y/z", "It breaks, see", "It breaks, see  "),
        ("numpy 1.2.3\nIt breaks", "It breaks", "It breaks"),
        ("Bug", "Bug", "Bug"),  # nothing else is left
        ("", "", ""),
    ],
)
def test_what_forms_print_is_no_question(text: str, head: str, telling: str) -> None:
    """Headings of forms, comments, addresses and lists of versions are left out, unless nothing would be
    left.
    """
    asked = parse_question(text)
    assert (asked.text, asked.head, asked.telling) == (text, head, telling)
