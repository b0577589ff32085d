"""How well the files of a change are found from what its author said of it: `python -m bench.changes
--repositories FOLDER`.

Issues whose change touched several files are few, commits are many: a repository is indexed as it was on a
day, and each later commit that touched one to four of its source files is asked for by its message. The ties
between files were chosen on other spans of the logs; those named here were left alone. A message is shorter
than an issue and surer of its words, so the shares are not those of issues: only the two rows are to be
compared.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.retrieval import Counts, check_out
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.ranking import Weights, is_peripheral, is_test
from kestrel_lab.retrieval.search import Search
from kestrel_lab.views.text import table_text

SPANS = (
    ("sphinx-doc/sphinx", "2019-03-01", "2020-04-01"),
    ("pytest-dev/pytest", "2018-08-01", "2019-05-01"),
    ("pydata/xarray", "2021-03-01", "2022-03-01"),
    ("pylint-dev/pylint", "2018-01-01", "2019-09-01"),
    ("dask/dask", "2020-09-01", "2021-06-01"),
    ("iterative/dvc", "2021-01-01", "2021-10-01"),
    ("pydantic/pydantic", "2023-07-01", "2024-06-01"),
    ("python/mypy", "2021-06-01", "2022-06-01"),
)
"""Repositories, each with the day of its index and that of the last question; for those of the public issues
before the first of these.
"""
ALONE = Weights(together=0.0, imported=0.0, folder=0.0)
_MOST_FILES, _MOST_TOUCHED, _LEAST_CHARS, _MOST_QUESTIONS = 4, 15, 90, 30
_SIGNED = re.compile(r"^(?:co-authored-by|signed-off-by|reviewed-by|closes?:? |\(cherry)", re.IGNORECASE)
_SWEEPS = re.compile(
    r"\b(?:typos?|flake8|pep8|black|isort|lint|annotations?|bump|pyupgrade|changelog|release|style|revert|clean "
    r"?up)\b",
    re.IGNORECASE,
)


def questions(repository: Path, begin: str, end: str) -> tuple[str, list[tuple[str, list[str]]]]:
    """The commit of a day, and what was said of later ones with the source files that each changed; none of
    these is new or gone.
    """
    commit = _git(repository, "rev-list", "-1", "--first-parent", f"--before={begin}", "HEAD").strip()
    there = set(_git(repository, "ls-tree", "-r", "--name-only", commit).split("\n"))
    reported = _git(
        repository,
        "log",
        "--no-merges",
        "--name-status",
        "--no-renames",
        "-z",
        f"--until={end}",
        "--format=%x01%B%x02",
        f"{commit}..HEAD",
    )
    found = []
    for piece in reported.split("\x01")[1:]:
        message, _, names = piece.partition("\x02")
        words = [word.strip("\n") for word in names.split("\0") if word.strip("\n")]
        touched = [
            (how, path) for how, path in zip(words[::2], words[1::2], strict=False) if _is_source(path)
        ]
        said = "\n".join(
            line for line in message.strip().split("\n") if not _SIGNED.match(line.strip())
        ).strip()
        fitting = (
            1 <= len(touched) <= _MOST_FILES
            and len(words) // 2 <= _MOST_TOUCHED
            and all(h == "M" and p in there for h, p in touched)
        )
        if fitting and len(said) >= _LEAST_CHARS and not _SWEEPS.search(said[:120]):
            found.append((said[:6000], sorted(path for _, path in touched)))
    return commit, found


def measure(repositories: Path, work: Path) -> dict[tuple[str, str], Counts]:
    """Ask for every change, with the ties between files and without."""
    counts: dict[tuple[str, str], Counts] = defaultdict(Counts)
    for name, mirror, begin, end in _present(repositories):
        commit, asked = questions(mirror, begin, end)
        copy = work / name
        check_out(mirror, copy, commit)
        index = CodeIndex(copy, work / "home")
        index.refresh()
        for several in (True, False):
            longest = sorted(
                (each for each in asked if (len(each[1]) > 1) == several),
                key=lambda each: (-min(len(each[0]), 600), each),
            )
            for text, wanted in longest[:_MOST_QUESTIONS]:
                for way, weights in (("with ties", Weights()), ("without", ALONE)):
                    ranked = [one.path for one in Search(index, weights).ranking(text).files[:20]]
                    counts[way, "several files" if several else "one file"].add(ranked, wanted)
        index.close()
        print(f"  {name}: {len(asked)} changes", file=sys.stderr, flush=True)
    return counts


def _present(repositories: Path) -> Iterator[tuple[str, Path, str, str]]:
    for repository, begin, end in SPANS:
        name = repository.replace("/", "+")
        mirror = next(
            (place for place in (repositories / name / "repo", repositories / name) if place.is_dir()), None
        )
        if mirror is None:
            print(f"  no repository {name} in {repositories}: it is left out", file=sys.stderr, flush=True)
        else:
            yield name, mirror, begin, end


def _is_source(path: str) -> bool:
    return (
        path.endswith(".py")
        and not is_test(path)
        and not is_peripheral(path, "python")
        and not path.startswith(("doc", ".", "setup"))
    )


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 1 if ties make it worse for changes of several files."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.changes", description="Measure how well the files of a change are found."
    )
    parser.add_argument(
        "--repositories", type=Path, required=True, help="folder with git repositories called owner+name"
    )
    parser.add_argument("--work", type=Path, help="folder for copies and indexes; a temporary one by default")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        counts = measure(asked.repositories, asked.work or Path(folder))
    print(
        table_text(
            ("search", "group", "changes", "@1", "@5", "@10", "@20", "@5, 95 %"),
            [(w, g, *c.row()) for (w, g), c in sorted(counts.items())],
        )
    )
    return int(counts["with ties", "several files"].right[5] < counts["without", "several files"].right[5])


if __name__ == "__main__":
    sys.exit(main())
