"""The parts of retrieval by themselves: imports resolved, files cut into chunks, excerpts, histories of
commits, likeness.
"""

import json
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.retrieval.indexing.chunks import cut_chunks
from kestrel_lab.retrieval.indexing.file_list import read_text
from kestrel_lab.retrieval.indexing.git_history import (
    changed_together,
    co_change_shares,
    commit_message_scores,
    recent_changes,
)
from kestrel_lab.retrieval.indexing.imports import resolve_import
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.ranking import Ranked, Weights, scale_scores
from kestrel_lab.retrieval.search import check_query, file_excerpt, hit_reason, score_text
from kestrel_lab.retrieval.semantic import SemanticScorer

KNOWN = frozenset(
    "app/cart.py app/__init__.py app/sub/deep.py src/lib/tool.py web/a.ts web/b/index.js web/c.jsx "
    "inc/x.h main.c go/go.mod go/util/u.go go/util/u_test.go"
    " rs/lib.rs rs/net/mod.rs rs/net/tcp.rs java/org/shop/Cart.java docs/a.md docs/guide/index.md "
    "README.md".split()
)


@pytest.mark.parametrize(
    ("path", "target", "names", "found"),
    [
        ("app/sub/deep.py", "app.cart", "", ["app/cart.py"]),
        (
            "app/sub/deep.py",
            "app",
            "cart nothing",
            ["app/cart.py"],
        ),  # modules among the names go before the package
        ("app/sub/deep.py", "app", "thing", ["app/__init__.py"]),
        ("app/sub/deep.py", "..cart", "Cart", ["app/cart.py"]),
        ("app/sub/deep.py", "..", "cart", ["app/cart.py"]),
        ("app/cart.py", ".sub", "deep", ["app/sub/deep.py"]),
        ("app/cart.py", "lib.tool", "", ["src/lib/tool.py"]),
        ("app/cart.py", "numpy", "array", []),
        ("web/c.jsx", "./a.js", "", ["web/a.ts"]),  # named as what it is compiled to
        ("web/c.jsx", "./b", "", ["web/b/index.js"]),
        ("web/c.jsx", "a", "", []),
        ("main.c", "inc/x.h", "", ["inc/x.h"]),
        ("main.c", "x.h", "", ["inc/x.h"]),
        ("main.c", "y.h", "", []),
        ("go/main.go", "example.org/shop/util", "", ["go/util/u.go"]),
        ("go/main.go", "fmt", "", []),
        ("rs/lib.rs", "crate::net::tcp::Stream", "", ["rs/net/tcp.rs"]),
        ("rs/lib.rs", "net", "", ["rs/net/mod.rs"]),
        ("rs/net/mod.rs", "self::tcp", "", ["rs/net/tcp.rs"]),
        ("rs/net/tcp.rs", "super::nothing", "", []),
        ("rs/net/tcp.rs", "tcp", "", []),  # itself
        ("x/A.java", "org.shop.Cart", "", ["java/org/shop/Cart.java"]),
        ("x/A.java", "org.shop.Cart.total", "", ["java/org/shop/Cart.java"]),
        ("x/A.java", "org.shop", "", []),
        ("notes.txt", "app.cart", "", []),
    ],
)
def test_an_import_is_resolved_as_its_language_does(
    path: str, target: str, names: str, found: list[str]
) -> None:
    """To files of the folder only, each by the rules of its language."""
    assert resolve_import(path, "import", target, names, KNOWN) == found


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("a.md", ["docs/a.md"]),
        ("a", ["docs/a.md"]),
        ("guide", ["docs/guide/index.md"]),
        ("/docs/a.md", ["docs/a.md"]),
        ("../README.md", ["README.md"]),
        ("b", []),
    ],
)
def test_a_link_leads_to_a_file_of_the_folder(target: str, found: list[str]) -> None:
    """From the document or the root, with an ending or without."""
    assert resolve_import("docs/b.md", "link", target, "", KNOWN) == found


CODE = '''"""Reads carts.

More."""
import os, json as j
from .shop import (Cart, Tax as T,  # both
)

LIMIT = 3
pick = lambda x: x


class Cart:
    """One."""

    @property
    def total(self):
        def inner():
            return 1
        return inner()


def close():
    return 1
'''


def test_python_is_cut_into_what_it_defines() -> None:
    """Every line is in one chunk; functions of a class are methods; imports have their names and lines."""
    found = cut_chunks("cart.py", CODE)
    assert (found.language, found.title) == ("python", "Reads carts.")
    assert [
        (one.qualified, one.kind, one.first, one.last)
        for one in found.symbols
        if one.kind in {"class", "method"}
    ] == [
        ("Cart", "class", 12, 19),
        ("Cart.total", "method", 15, 19),
    ]
    assert ("close", "function") in [(one.qualified, one.kind) for one in found.symbols]
    assert [(one.target, one.names, one.line) for one in found.edges] == [
        ("os", "", 4),
        ("json", "", 4),
        (".shop", "Cart Tax", 5),
    ]
    lines = [number for chunk in found.chunks for number in range(chunk.first, chunk.last + 1)]
    assert lines == [*range(1, 24)]
    assert [chunk.name for chunk in found.chunks if chunk.kind == "method"] == ["Cart.total"]


@pytest.mark.parametrize(
    ("path", "text", "title", "symbols"),
    [
        (
            "a.js",
            "// Adds things\n// up.\nconst add = (a) => a\nconst N = 3\n",
            "Adds things up.",
            {("add", "function")},
        ),
        (
            "a.js",
            "/* Adds */\nfunction f() {}\nclass A { m() {} }\n",
            "Adds",
            {("f", "function"), ("A", "class"), ("A.m", "method")},
        ),
        (
            "a.cpp",
            "namespace shop { int total() { return 1; } }\n",
            "",
            {("shop", "namespace"), ("shop.total", "function")},
        ),
        ("a.c", "typedef struct node { int x; } node_t;\n", "", {("node_t", "type"), ("node", "struct")}),
        ("a.h", "class A { public: int f(); };\n", "", {("A", "class")}),
    ],
)
def test_other_languages_have_their_titles_and_symbols(
    path: str, text: str, title: str, symbols: set[tuple[str, str]]
) -> None:
    """The comment at the head is the title; functions within a class are methods, within a namespace
    functions.
    """
    found = cut_chunks(path, text)
    assert found.title == title
    assert {name for name, _ in symbols} <= {one.qualified for one in found.symbols}
    kinds = {one.qualified: one.kind for one in found.symbols}
    assert all(kinds[name] == kind for name, kind in symbols if kind in {"function", "method", "class"})


def test_prose_is_cut_at_its_headings() -> None:
    """Both kinds of headings count, none within a fence; what stands before the first has no name; links are
    edges.
    """
    text = "intro\n\n# One #\ntext\n```\n# no heading\n```\nTwo\n===\nsee [a](b.md)\n"
    found = cut_chunks("a.md", text)
    assert [(one.first, one.last, one.name) for one in found.chunks] == [
        (1, 2, ""),
        (3, 7, "One"),
        (8, 10, "Two"),
    ]
    assert (found.title, [one.target for one in found.edges]) == ("One", ["b.md"])
    assert cut_chunks("a.md", "just text\n").title == "just text"
    assert cut_chunks("a.md", "").chunks == ()
    short = cut_chunks("a.md", "A long heading line\n==\n")  # too short to be its underline
    assert [one.name for one in short.chunks] == [""]


def test_long_sections_are_cut_at_empty_lines() -> None:
    """Parts follow each other without a gap, and end at an empty line where there is one."""
    lines = ["# Long", *("word" if number % 10 else "" for number in range(1, 200))]
    found = cut_chunks("a.md", "\n".join(lines) + "\n").chunks
    assert [one.first for one in found[1:]] == [one.last + 1 for one in found[:-1]]
    assert (found[0].first, found[-1].last, {one.name for one in found}) == (1, 200, {"Long"})
    assert all(lines[one.last - 1] == "" for one in found[:-1])


def test_a_notebook_is_cut_into_cells() -> None:
    """As Jupyter writes it each cell is a chunk; written otherwise its lines are; what is no notebook is
    text.
    """
    cells = [{"cell_type": "markdown", "source": ["# Title\n"]}, {"cell_type": "code", "source": ["x = 1\n"]}]
    text = json.dumps({"cells": cells}, indent=1)
    found = cut_chunks("a.ipynb", text)
    assert [one.name for one in found.chunks] == ["", "cell 1, markdown", "cell 2, code"]
    assert (found.title, found.chunks[0].first, found.chunks[-1].last) == ("Title", 1, len(text.split("\n")))
    assert [one.last + 1 for one in found.chunks[:-1]] == [one.first for one in found.chunks[1:]]
    flat = cut_chunks("a.ipynb", json.dumps({"cells": cells}))
    assert [(one.first, one.last) for one in flat.chunks] == [(1, 1)]
    assert [one.kind for one in cut_chunks("a.ipynb", "{not json").chunks] == ["lines"]
    assert [one.kind for one in cut_chunks("a.ipynb", '{"cells": []}').chunks] == ["lines"]


def excerpt(
    count: int, first: int, last: int, at: int, words: tuple[str, ...] = ("tax", "sum", "vat")
) -> tuple[int, int]:
    """First and last line of the excerpt of a file that has a word in one line."""
    text = "\n".join("the tax sum vat" if number == at else "nothing" for number in range(1, count + 1))
    hit = file_excerpt("a.py", (text, text.encode()), first, last, words)
    assert len(hit.text.split("\n")) == hit.last - hit.first + 1
    return hit.first, hit.last


def test_an_excerpt_has_the_lines_with_the_words() -> None:
    """A short place is shown whole; of a long one the lines around the words; bounds beyond the file are
    moved into it.
    """
    assert excerpt(20, 3, 8, 4) == (3, 8)
    assert excerpt(5, 1, 99, 4) == (1, 5)
    assert excerpt(5, 90, 99, 4) == (5, 5)
    first, last = excerpt(200, 1, 200, 150)
    assert first <= 150 <= last < 200
    assert excerpt(200, 1, 200, 0)[0] == 1  # no word: the beginning
    first, last = excerpt(200, 20, 200, 200)
    assert last == 200


def ranked(**fields: Any) -> Ranked:
    """A file that was found."""
    return Ranked(
        **{
            "file": 1,
            "path": "a.py",
            "score": 1.0,
            "parts": {"body": 0.5, "path": 1.0},
            "factor": 1.0,
            **fields,
        }
    )


def test_why_a_file_was_found_is_said_by_what_tells_most() -> None:
    """What the question names, else the words that are seen, else the strongest signals; parts of a score the
    greatest first.
    """
    assert hit_reason(ranked(named=("a", "b", "c", "d")), Weights(), ["tax"]) == "the question names a, b, c"
    assert hit_reason(ranked(), Weights(), ["tax", "sum"]) == "has tax, sum"
    strongest = hit_reason(ranked(parts={"body": 0.5, "path": 1.0, "title": 0.01}), Weights())
    assert (
        strongest == f"{hit_reason(ranked(parts={'body': 1.0}), Weights())} and "
        f"{hit_reason(ranked(parts={'path': 1.0}), Weights())}"
    )
    plain = score_text({"body": 0.5, "path": 1.0, "title": 0.001}, Weights())
    assert [float(part.rsplit(" ", 1)[1]) for part in plain.split(" + ")] == [0.5, 0.1]
    assert score_text({"body": 0.5}, Weights(), 0.3).endswith(") × 0.3")
    assert score_text({}, Weights()) == "0"


@pytest.mark.parametrize(("query", "top_k"), [("", 3), ("?!", 3), ("tax", 0), ("tax", True), ("tax", 1.0)])
def test_a_query_needs_a_word_and_a_number(query: str, top_k: Any) -> None:
    """Nothing to search for, or nothing asked for."""
    with pytest.raises(UsageError):
        check_query(query, top_k)


def test_scores_are_shares_of_the_greatest() -> None:
    """Or of a least value; what has no score is left out."""
    assert scale_scores({1: 4.0, 2: 1.0, 3: 0.0}) == {1: 1.0, 2: 0.25}
    assert scale_scores({1: 4.0}, least=8.0) == {1: 0.5}
    assert scale_scores({1: 0.0}) == scale_scores({}) == {}


def history() -> apsw.Connection:
    """Three commits: a and b together, a alone, c with three others."""
    connection = apsw.Connection(":memory:")
    connection.execute(
        "CREATE TABLE commits(seq INTEGER PRIMARY KEY); CREATE TABLE commit_files(seq, path, many)"
    )
    for seq, paths in ((1, "ab"), (2, "a"), (900, "acde")):
        connection.execute("INSERT INTO commits VALUES (?)", (seq,))
        connection.executemany(
            "INSERT INTO commit_files VALUES (?, ?, ?)", [(seq, path, len(paths)) for path in paths]
        )
    return connection


def test_history_counts_small_and_late_commits_more() -> None:
    """A commit of one file says more of it than one of many; an old one less than a new one."""
    files = {name: number for number, name in enumerate("abc")}
    connection = history()
    assert commit_message_scores(connection, {1: 2.0, 2: 1.0}, files) == pytest.approx(
        {0: 2 / np.log2(3) + 1 / 2, 1: 2 / np.log2(3)}
    )
    late = recent_changes(connection, files)
    assert late[2] == pytest.approx(np.log1p(1 / 4))
    assert late[1] == pytest.approx(np.log1p(0.5 ** (899 / 500) / 2))
    assert late[0] > late[2] > late[1]
    together = changed_together(connection, "a")
    total = 1 / np.log2(3) + 1 / np.log2(2) + 1 / np.log2(5)
    assert [*together] == ["b", "c", "d", "e"]
    assert together["b"] == pytest.approx(1 / np.log2(3) / (total + 1))
    assert [*changed_together(connection, "a", most=2)] == ["b", "c"]
    shares = co_change_shares(connection, ["a"], ["b", "c", "x"])["a"]
    assert shares["b"] > shares["c"] > 0
    assert "x" not in shares


def test_text_is_read_whatever_its_encoding(tmp_path: Path) -> None:
    """UTF-8, Latin-1 and marked encodings are text; zeros and control characters are not; links are not
    followed.
    """
    contents = {
        "utf8": "größer".encode(),
        "latin": ("größer " * 40).encode("latin-1"),
        "utf16": "größer".encode("utf-16"),
        "zero": b"a\0b",
        "control": bytes([1, 2, 0xFF, 0xFE]) * 30,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link").symlink_to(tmp_path / "utf8")
    found = {name: read_text(tmp_path, name) for name in (*contents, "link", "gone")}
    assert [found[name][0].strip()[:6] for name in ("utf8", "latin", "utf16")] == ["größer"] * 3
    assert (found["zero"], found["control"]) == ("binary", "binary")
    assert all(
        isinstance(found[name], str) and found[name].startswith("it cannot be read")
        for name in ("link", "gone")
    )


class Lengths:
    """Its vectors say how much of a text is about tax; counts what it made."""

    name = "lengths"
    made = 0

    def __call__(self, texts: Any) -> Any:
        """Two numbers each."""
        self.made += len(texts)
        share = np.array([text.count("tax") for text in texts], dtype="f4")
        found = np.stack([share, np.ones(len(texts), dtype="f4")], axis=1)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_likeness_is_scaled_and_its_vectors_are_kept(tmp_path: Path) -> None:
    """The likest file has 1 and the least like 0; vectors are made once, and none where a file is gone; one
    file alone says nothing.
    """
    (tmp_path / "w").mkdir()
    for name, text in (("a", "tax tax tax"), ("b", "tax sum"), ("c", "sum")):
        (tmp_path / "w" / f"{name}.txt").write_text(f"{text}\n")
    index = CodeIndex(tmp_path / "w", tmp_path / "kept")
    index.refresh()
    rows = index.rows("SELECT file, chunks.id, path FROM chunks JOIN files ON files.id = file ORDER BY path")
    chunks = {int(file): int(chunk) for file, chunk, _ in rows}
    embed = Lengths()
    score = SemanticScorer(lambda: embed)

    def asked(some: dict[int, int]) -> dict[int, float]:
        return index.read(lambda connection: score(connection, "tax", some, folder=tmp_path / "w"))

    a, b, c = chunks
    found = asked(chunks)
    assert 1.0 == max(found.values()) > found[c] == 0.0
    assert found[b] > 0
    made = embed.made
    assert asked(chunks) == found
    assert embed.made == made + 1  # the question
    assert asked({a: chunks[a]}) == {}
