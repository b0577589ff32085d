"""How well files are found: `python -m bench retrieval --data FOLDER --repositories FOLDER`, plain full-text
search beside ours in the same run.

Two public sets. Localisation: issues of repositories, and which files the change that closed them touched
(`localisation/issues.jsonl`); the repositories are git folders called `owner+name`, and are checked out
commit by commit into copies. SciFact: claims, and the abstracts that speak of them (`scifact/`). The weights
were chosen on the issues whose id has an even hash (`dev`) and on a sample of a repository that is not
reported, those of ties between files on commits of ten logs, older than the issues where a repository has
any; the issues of `test` were left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from kestrel_lab.evals.stats.intervals_and_tests import wilson_interval
from kestrel_lab.memory.embeddings import default_embedder
from kestrel_lab.retrieval.cascade import Cascade
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.search import Search
from kestrel_lab.retrieval.semantic import SemanticScorer
from kestrel_lab.views.text import table_text

NOT_REPORTED = "sympy/sympy"
"""More than half of the issues are of it; it would be the result."""
_DEPTHS = (1, 5, 10, 20)

Say = Callable[[str], None]


@dataclass(kw_only=True, slots=True)
class Counts:
    """Strict accuracy: an issue counts at k if every file of its change is among the first k."""

    issues: int = 0
    right: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, ranked: Sequence[str], wanted: Iterable[str]) -> None:
        """Count one issue."""
        self.issues += 1
        for depth in _DEPTHS:
            self.right[depth] += set(wanted) <= set(ranked[:depth])

    def row(self) -> list[str]:
        """The number of issues, the shares in per cent, and between what the share at 5 may lie (Wilson, 95
        %).
        """
        low, high = wilson_interval(self.right[5], self.issues) if self.issues else (None, None)
        interval = "" if low is None or high is None else f"{100 * low:.1f}–{100 * high:.1f}"
        return [
            str(self.issues),
            *(f"{100 * self.right[depth] / max(1, self.issues):.1f}" for depth in _DEPTHS),
            interval,
        ]


def check_out(mirror: Path, copy: Path, commit: str) -> None:
    """Let `copy` be the files of `commit`, with the log that led there and nothing later; large files may be
    missing from a mirror.
    """
    if not copy.is_dir():
        subprocess.run(
            ["git", "clone", "-q", "--shared", "--no-checkout", str(mirror), str(copy)], check=True
        )
    git = ["git", "-C", str(copy)]
    subprocess.run([*git, "update-ref", "--no-deref", "HEAD", commit], check=True)
    subprocess.run([*git, "read-tree", commit], check=True)
    subprocess.run([*git, "checkout-index", "-a", "-f", "-q"], check=False, stderr=subprocess.DEVNULL)
    subprocess.run([*git, "clean", "-fdqx"], check=True)


class Plain:
    """Full-text search as it comes: paths and texts of the same files, every word of the question."""

    def __init__(self, folder: Path, paths: Iterable[str]) -> None:
        self._index = apsw.Connection(":memory:")
        self._index.execute("CREATE VIRTUAL TABLE files USING fts5(path, text)")
        for path in paths:
            self._index.execute(
                "INSERT INTO files VALUES (?, ?)",
                (path, (folder / path).read_text(encoding="utf-8", errors="replace")),
            )

    def __call__(self, question: str, top_k: int) -> list[str]:
        """The paths, best first."""
        words = dict.fromkeys("".join(sign if sign.isalnum() else " " for sign in question).split())
        match = " OR ".join(f'"{word}"' for word in words)
        sql = "SELECT path FROM files WHERE files MATCH ? ORDER BY rank LIMIT ?"
        return [str(row[0]) for row in self._index.execute(sql, (match, top_k))]


def localisation(
    data: Path, repositories: Path, work: Path, say: Say, *, only: Sequence[str] = (), plain: bool = True
) -> dict[str, Any]:
    """Ask every issue at its commit; returns counts by repository, half and number of files, and times."""
    issues = [
        issue for issue in _lines(data / "localisation" / "issues.jsonl") if issue["repo"] != NOT_REPORTED
    ]
    issues = [issue for issue in issues if not only or any(word in issue["repo"] for word in only)]
    counts: dict[tuple[str, str], Counts] = defaultdict(Counts)
    times: dict[str, list[float]] = defaultdict(list)
    for number, issue in enumerate(
        sorted(issues, key=lambda issue: (issue["repo"], issue["instance_id"])), 1
    ):
        name = issue["repo"].replace("/", "+")
        mirror = next(
            (place for place in (repositories / name / "repo", repositories / name) if place.is_dir()), None
        )
        if mirror is None:
            say(f"no repository {name} in {repositories}: {issue['instance_id']} is left out")
            continue
        copy = work / name
        check_out(mirror, copy, issue["base_commit"])
        index = CodeIndex(copy, work / "home")
        first = not index.exists
        refreshed = index.refresh()
        times["build, ms a file" if first else "update, s"].append(
            refreshed.seconds * (1000 / max(1, refreshed.changed) if first else 1)
        )
        ways: dict[str, Callable[[str, int], Sequence[str]]] = {
            "ours: search": lambda text, k, index=index: [
                one.path for one in Search(index).ranking(text).files[:k]
            ],  # type: ignore[misc]
            "ours: cascade": lambda text, k, index=index: Cascade(index)(text, k).paths,  # type: ignore[misc]
        }
        if plain:
            ways["plain FTS5"] = Plain(
                copy, [str(row[0]) for row in index.rows("SELECT path FROM files WHERE skipped = ''")]
            )
        for way, find in ways.items():
            began, cpu = time.perf_counter(), time.process_time()
            ranked = find(issue["problem_statement"], max(_DEPTHS))
            times[f"{way}, s a question"].append(time.perf_counter() - began)
            spent = time.process_time() - cpu
            times[f"{way}, s of processor"].append(spent)
            if way == "ours: cascade":
                times[f"{way}, s of processor, {issue['repo']}"].append(spent)
            half = (
                "dev"
                if int(hashlib.sha256(issue["instance_id"].encode()).hexdigest(), 16) % 2 == 0
                else "test"
            )
            groups = [
                "all",
                half,
                issue["repo"],
                "several files" if len(issue["gold_files"]) > 1 else "one file",
            ]
            for group in groups:
                counts[way, group].add(ranked, issue["gold_files"])
        index.close()
        if number % 10 == 0:
            say(f"{number} of {len(issues)} issues")
    return {"counts": counts, "times": times}


def scifact(data: Path, work: Path, say: Say) -> dict[str, Any]:
    """Ask every claim; returns nDCG@10 of plain search, of ours, and of ours with vectors where their extra
    is installed.
    """
    folder = work / "abstracts"
    folder.mkdir()
    for each in _lines(data / "scifact" / "corpus.jsonl"):
        text = each.get("text") or each.get("abstract")
        (folder / f"{each['_id']}.md").write_text(
            f"# {each['title']}\n\n{text if isinstance(text, str) else ' '.join(text)}\n", encoding="utf-8"
        )
    wanted: dict[str, set[str]] = defaultdict(set)
    for line in (data / "scifact" / "qrels_train.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, relevant = line.split("\t")
        if int(relevant) > 0:
            wanted[query].add(f"{document}.md")
    queries = {
        each["_id"]: each["text"]
        for each in _lines(data / "scifact" / "queries_train.jsonl")
        if each["_id"] in wanted
    }
    index = CodeIndex(folder, work / "home")
    built = index.refresh()
    say(f"{built.files:,} abstracts indexed in {built.seconds:.1f} s")
    plain = Plain(folder, sorted(path.name for path in folder.iterdir()))
    ways: dict[str, Callable[[str, int], Sequence[str]]] = {
        "plain FTS5": plain,
        "ours": lambda text, k: [one.path for one in Search(index).ranking(text).files[:k]],
    }
    if (load := default_embedder()) is not None:
        meaning = SemanticScorer(load)
        ways["ours with vectors (extra semantic)"] = lambda text, k: [
            one.path for one in Search(index, meaning=meaning).ranking(text).files[:k]
        ]
    scores, times = {}, {}
    for way, find in ways.items():
        began = time.perf_counter()
        gains = [_ndcg(find(text, 10), wanted[query]) for query, text in queries.items()]
        times[way] = (time.perf_counter() - began) / len(queries)
        scores[way] = sum(gains) / len(gains)
        say(f"{way}: nDCG@10 {scores[way]:.4f}")
    index.close()
    return {
        "ndcg": scores,
        "s": times,
        "questions": len(queries),
        "build_s": built.seconds,
        "files": built.files,
    }


def _ndcg(ranked: Sequence[str], wanted: set[str]) -> float:
    gain = sum(1 / math.log2(place + 1) for place, path in enumerate(ranked, 1) if path in wanted)
    return gain / sum(1 / math.log2(place + 1) for place in range(1, min(len(wanted), 10) + 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; with `--out` write them as JSON too.

    Returns 1 if ours is not better than plain search.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench retrieval", description="Measure how well files are found."
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with localisation/ and scifact/")
    parser.add_argument(
        "--repositories",
        type=Path,
        help="folder with git repositories called owner+name; without it SciFact alone",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="only repositories with this in their name; may be repeated",
    )
    parser.add_argument("--no-scifact", action="store_true", help="localisation alone")
    parser.add_argument("--work", type=Path, help="folder for copies and indexes; a temporary one by default")
    parser.add_argument("--out", type=Path, help="file for the numbers as JSON")
    asked = parser.parse_args(arguments)
    work = Path(tempfile.mkdtemp()) if asked.work is None else asked.work
    work.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {}
    worse = False
    try:
        if not asked.no_scifact:
            found = scifact(asked.data, work, _say)
            rows = [
                (way, f"{score:.4f}", f"{1000 * found['s'][way]:.0f}") for way, score in found["ndcg"].items()
            ]
            print(
                f"\nSciFact: {found['files']:,} abstracts, {found['questions']:,} claims (its training "
                "part)\n"
            )
            print(table_text(("search", "nDCG@10", "ms a claim"), rows))
            kept["scifact"] = found
            worse |= found["ndcg"]["ours"] <= found["ndcg"]["plain FTS5"]
        if asked.repositories:
            found = localisation(asked.data, asked.repositories, work, _say, only=asked.only)
            counts = found["counts"]
            print("\nLocalisation: every file of the change among the first k, per cent\n")
            print(
                table_text(
                    ("search", "group", "issues", *(f"@{k}" for k in _DEPTHS), "@5, 95 %"),
                    [(w, g, *c.row()) for (w, g), c in sorted(counts.items())],
                )
            )
            print()
            print(
                table_text(
                    ("time", "median", "90 %", "most"),
                    [_spread(name, values) for name, values in found["times"].items()],
                )
            )
            kept["localisation"] = {
                f"{way} | {group}": {"issues": c.issues, **c.right} for (way, group), c in counts.items()
            }
            kept["times"] = found["times"]
            worse |= counts["ours: search", "all"].right[5] <= counts["plain FTS5", "all"].right[5]
    finally:
        if asked.work is None:
            shutil.rmtree(work, ignore_errors=True)
    if asked.out:
        asked.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(worse)


def _spread(name: str, values: Sequence[float]) -> tuple[str, ...]:
    ordered = sorted(values)
    return (
        name,
        *(f"{ordered[min(int(share * len(ordered)), len(ordered) - 1)]:.3f}" for share in (0.5, 0.9, 1)),
    )


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        sys.exit(f"there is no {path}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
