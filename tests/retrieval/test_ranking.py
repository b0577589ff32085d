"""Searching real code: an installed package, copied; its graph; the cascade and what it says of itself."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.memory.embeddings import default_embedder
from kestrel_lab.retrieval.cascade import Bounds, Cascade
from kestrel_lab.retrieval.code_graph import Graph
from kestrel_lab.retrieval.file_search_loop import ResourceMap, find_files
from kestrel_lab.retrieval.hits import Retriever
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.mentions import parse_question
from kestrel_lab.retrieval.search import Grep, Search, check_hits
from kestrel_lab.retrieval.semantic import SemanticScorer
from kestrel_lab.retrieval.trace_events import events_of, retrievals_in

TRACEBACK = """Crash with a proxy

```
Traceback (most recent call last):
  File "/home/me/venv/lib/python3.12/site-packages/httpx/_client.py", line 1002, in _send_handling_redirects
  File "/home/me/venv/lib/python3.12/site-packages/httpx/_decoders.py", line 77, in decode
ValueError: bad
```
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeIndex]:
    """The source of httpx with a document and a test beside it, in a repository of two commits."""
    folder = tmp_path_factory.mktemp("search") / "work"
    shutil.copytree(
        Path(httpx.__file__).parent, folder / "httpx", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "README.md").write_text(
        "# Timeouts and redirects\n\nSee [the guide](docs/guide.md).\n\n## Cookies\n\nkept\n"
    )
    (folder / "docs").mkdir()
    (folder / "docs/guide.md").write_text("# Guide\n\nHow redirects are followed and timeouts are set.\n")
    (folder / "tests").mkdir()
    (folder / "tests/test_digest.py").write_text(
        "from httpx._auth import DigestAuth\n\n\ndef test_digest_authentication():\n    "
        "DigestAuth('a', 'b')\n"
    )
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "All of it"], check=True)
    for name in ("_utils.py", "_urls.py"):
        with (folder / "httpx" / name).open("a") as file:
            file.write("# later\n")
    subprocess.run([*git, "commit", "-qam", "Frobnication of wildcards"], check=True)
    made = CodeIndex(folder, folder.parent / "home")
    made.refresh()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("how are digest authentication challenges answered", "httpx/_auth.py"),
        ("where are redirects followed", "httpx/_client.py"),
        ("decode gzip and brotli bodies", "httpx/_decoders.py"),
        ("`Timeout` configuration", "httpx/_config.py"),
        ("the setting in httpx/_transports/asgi.py", "httpx/_transports/asgi.py"),
        ("frobnication", "httpx/_urls.py"),
    ],
)
def test_the_file_that_matters_is_among_the_first(index: CodeIndex, query: str, path: str) -> None:
    """Words, names, paths and what was said when a file was changed lead to it; a test of the same words does
    not come before it.
    """
    found = Search(index)(query, 5)
    assert path in found.paths[:3]
    assert "tests/test_digest.py" not in found.paths[:1]


def test_a_traceback_counts_its_last_file_most_and_its_form_not_at_all(index: CodeIndex) -> None:
    """The files of the stack come first, although their paths are of another machine."""
    assert set(Search(index)(TRACEBACK, 2).paths) == {"httpx/_client.py", "httpx/_decoders.py"}
    asked = parse_question(
        "Fails\n\n<!-- Thanks for writing! -->\n**Describe the bug**\nredirect lost\n**Environment**\n "
        "- OS: Linux\n - Python version: 3.12\n"
    )
    assert (asked.head, sorted(asked.weights)) == ("Fails", ["fails", "lost", "redirect"])
    assert asked.weights["fails"] > asked.weights["lost"] == asked.weights["redirect"] > 0


def test_a_word_counts_by_where_it_stands() -> None:
    """In the first line twice what it counts below, in code less than in prose, and as often as it stands
    there.
    """
    weights = parse_question("cart\n\ntotal total\n\n```\nprice = 1\n```\n").weights
    assert weights["cart"] == weights["total"] == 2 * parse_question("x\ntax").weights["tax"] > 0
    assert 0 < weights["price"] < parse_question("x\ntax").weights["tax"]


def test_a_hit_is_what_it_says(index: CodeIndex) -> None:
    """Path, lines, text and hash are those of the file, so that a citation of it can be checked."""
    for retriever in (Search(index), Graph(index), Grep(index.workspace), Cascade(index)):
        made: Retriever = retriever
        hits = made("`Response.raise_for_status` of HTTPStatusError", 5).hits
        assert hits
        for hit in hits:
            content = (index.workspace / hit.path).read_bytes()
            lines = content.decode().split("\n")[hit.first - 1 : hit.last]
            assert (hit.hash, hit.text, hit.trust) == (
                sha256(content).hexdigest(),
                "\n".join(lines),
                "workspace",
            )
            assert hit.how
            assert hit.why


def test_the_graph_knows_definitions_uses_imports_and_links(index: CodeIndex) -> None:
    """Where a name is defined and used, which files import which, which document links which."""
    graph = Graph(index)
    assert [(hit.path, hit.why) for hit in graph.definitions("DigestAuth")] == [
        ("httpx/_auth.py", "class DigestAuth")
    ]
    assert [hit.why for hit in graph.definitions("Response.raise_for_status")] == [
        "method Response.raise_for_status"
    ]
    kinds = {(use.path, use.kind) for use in graph.uses("DigestAuth")}
    assert {
        ("httpx/_auth.py", "definition"),
        ("tests/test_digest.py", "import"),
        ("tests/test_digest.py", "call"),
    } <= kinds
    assert "httpx/_models.py" in graph.imports("httpx/_client.py")
    assert "httpx/_client.py" in graph.imported_by("httpx/_models.py")
    assert (graph.imports("README.md"), graph.imported_by("docs/guide.md")) == (
        ["docs/guide.md"],
        ["README.md"],
    )
    with pytest.raises(UsageError, match="is not a name"):
        graph.uses("a b")


def test_a_cascade_looks_again_until_it_has_enough(index: CodeIndex) -> None:
    """It stops at once where all is covered; where a word is nowhere it looks again, longer, and names the
    gap.
    """
    enough = Cascade(index)("digest authentication", 3)
    assert (enough.stopped, enough.coverage, enough.gaps, [step.retriever for step in enough.steps]) == (
        "confidence",
        1.0,
        (),
        ["search", "grep"],
    )
    missing = Cascade(index)("digest authentication zebrafish quagga", 2)
    assert (missing.stopped, missing.gaps) in {
        ("saturation", ("zebrafish", "quagga")),
        ("limit", ("zebrafish", "quagga")),
    }
    assert 0 < missing.coverage < 0.9
    assert 2 < len(missing.hits) <= 4
    assert len(missing.steps) > 2
    once = Cascade(index, Bounds(rounds=1))("digest authentication zebrafish", 2)
    assert [step.retriever for step in once.steps] == ["search", "grep"]
    nothing = Cascade(index)("zebrafish", 5)
    assert (nothing.hits, nothing.stopped, nothing.coverage) == ((), "nothing", 0.0)


def test_hits_are_read_before_they_are_given(index: CodeIndex) -> None:
    """One whose file is gone or has other lines now is dropped with the reason."""
    good = Search(index)("digest authentication", 1).hits[0]
    kept, dropped = check_hits(
        index.workspace, [good, replace(good, path="gone.py"), replace(good, path="README.md")], "digest"
    )
    assert [hit.path for hit in kept] == [good.path]
    assert set(dropped) == {"gone.py", "README.md"}


@pytest.mark.parametrize(("query", "top_k"), [("", 5), ("  ?!", 5), ("digest", 0), ("digest", True)])
def test_what_cannot_be_searched_for_is_refused(index: CodeIndex, query: str, top_k: int) -> None:
    """No words, or no places: said in a sentence."""
    for retriever in (Search(index), Cascade(index), Grep(index.workspace), Graph(index)):
        with pytest.raises(UsageError):
            retriever(query, top_k)


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "a OR b",
        "NEAR(x y)",
        "x* -y ^z",
        "{body}: q",
        "' ; DROP TABLE files",
        "\0nul",
        "ä" * 3000,
        "(" * 500 + "x",
    ],
)
def test_no_question_is_taken_for_a_command(index: CodeIndex, query: str) -> None:
    """Signs that full-text search reads as operators are words or nothing."""
    with suppress(UsageError):  # there is no word in it
        assert Cascade(index)(query, 3).query == query


def test_a_trace_survives_the_log(index: CodeIndex) -> None:
    """Steps, hits, coverage and gaps come back from the events as they were; only the text of hits is left to
    the files.
    """
    found = Cascade(index)("digest authentication zebrafish", 2)
    (again,) = retrievals_in(replace(event, step="s", call="c") for event in events_of(found))
    own = ("retriever", "query", "arguments", "found", "chosen", "dropped", "seconds", "note")
    before, after = ([[getattr(step, name) for name in own] for step in one.steps] for one in (found, again))
    assert before == after
    assert (again.query, again.coverage, again.gaps, again.stopped) == (
        found.query,
        found.coverage,
        found.gaps,
        found.stopped,
    )
    assert [(hit.place, hit.hash, hit.why) for hit in again.hits] == [
        (hit.place, hit.hash, hit.why) for hit in found.hits
    ]


def test_the_loop_gives_key_files_gaps_and_coverage(index: CodeIndex) -> None:
    """Without a model it is the same each time and says why it stopped; what a model proposes can close a
    gap.
    """

    async def proposed(found: ResourceMap) -> list[str]:
        return ["DigestAuth nonce"] if found.rounds else []

    goal = "how is a login with hashed passwords answered"
    plain, again = (asyncio.run(find_files(Cascade(index), Search(index), goal, top_k=4)) for _ in range(2))
    assert plain == replace(again, retrievals=plain.retrievals)
    assert plain.stopped in {"saturation", "limit", "confidence"}
    assert 1 <= len(plain.key_files) <= 4
    assert sum(map(len, plain.clusters.values())) == len(plain.key_files)
    helped = asyncio.run(find_files(Cascade(index), Search(index), goal, top_k=4, propose=proposed))
    assert "httpx/_auth.py" in [one.path for one in helped.key_files]
    with pytest.raises(UsageError, match="rounds must be"):
        asyncio.run(find_files(Cascade(index), Search(index), goal, rounds=0))


@pytest.mark.skipif(default_embedder() is None, reason="the extra semantic is not installed")
def test_vectors_are_one_more_signal_and_kept(index: CodeIndex) -> None:
    """With them a ranking has a part for meaning; a second question makes no vector twice."""
    load = default_embedder()
    assert load is not None
    search = Search(index, meaning=SemanticScorer(load))
    ranked = search.ranking("digest authentication").files
    count = index.rows("SELECT count(*) FROM vectors")[0][0]
    assert any("alike" in one.parts for one in ranked)
    assert search.ranking("digest authentication").files == ranked
    assert index.rows("SELECT count(*) FROM vectors")[0][0] == count > 0
