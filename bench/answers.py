"""How many true answers are accused, and how many planted errors are caught: `python -m bench answers DATA REPOSITORIES --out FOLDER`.

DATA holds files NAME.jsonl with questions and true answers about a repository; REPOSITORIES holds the repositories as git folders called
`owner+name`, read at the commits below. An error is planted in an answer that no check accuses: another file, another line, another word in a quote
that a named file has.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kestrel_lab.core.citations import Citation, citations
from kestrel_lab.evals.stats.intervals_and_tests import wilson
from kestrel_lab.verification.claims import claims_of
from kestrel_lab.verification.engine import VerifierEngine
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.mentions import files_in
from kestrel_lab.verification.subject import Ground, Subject
from kestrel_lab.verification.text_match import quoted_in, quotes_in

COMMITS: Final = {
    "flask": ("pallets+flask", "85c5d93"),
    "requests": ("psf+requests", "46e939b"),
    "pytest": ("pytest-dev+pytest", "5989efe"),
    "sqlfluff": ("sqlfluff+sqlfluff", "db9801b"),
    "streamlink": ("streamlink+streamlink", "ab1f365"),
}
MOST_ACCUSED: Final = 0.03
"""The share of true answers that may have a concern beside them."""
_STEMS: Final = ("registry", "loader", "handlers", "factory")
_WORDS: Final = ("never", "always", "silently", "forbidden")
_FAR: Final = 40
"""Lines between a planted line and the right one."""
_CHECK: Final = {
    "file": "files_exist",
    "line past the end": "citations_resolve",
    "line elsewhere": "citations_resolve",
    "quote": "quotes_are_exact",
}


def check_out(repository: Path, commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder; raises `LookupError` where the commit is not there."""
    found = subprocess.run(["git", "-C", str(repository), "archive", commit], capture_output=True, check=False)
    if found.returncode:
        msg = f"{repository} has no commit {commit}: {found.stderr.decode(errors='replace').strip()}"
        raise LookupError(msg)
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def concerns(ground: Ground, question: str, answer: str) -> tuple[Issue, ...]:
    """What the checks say of an answer of a run that called nothing."""
    return VerifierEngine()(Subject(answer=answer, goal=question, ground=ground))


def planted(ground: Ground, question: str, answer: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """The kinds of errors that an answer has room for, each with the answer that has it."""
    said = claims_of(answer)
    files = [
        name.text
        for one in said
        for name in files_in(one)
        if "/" in name.text and ground.files.named(name.text) and name.text not in question
    ]
    if files:
        path = rng.choice(files)
        yield (
            "file",
            re.sub(rf"(?<![\w/.]){re.escape(path)}", f"{path.rpartition('/')[0]}/{rng.choice(_STEMS)}.{path.rpartition('.')[2]}", answer),
        )
    places = [one for one in citations(answer) if one.path and ground.files.named(one.path)]
    if places:
        cited = rng.choice(places)
        length = max(len((ground.files.read(path) or "").splitlines()) for path in ground.files.named(cited.path))
        yield "line past the end", _moved(answer, cited, length + rng.randint(20, 500))
        others = [line for line in range(1, length) if min(abs(line - cited.first), abs(line - cited.last)) > _FAR]
        if others:
            yield "line elsewhere", _moved(answer, cited, rng.choice(others))
    sources = [ground.files.read(path) or "" for one in said for name in files_in(one) for path in ground.files.named(name.text)]
    exact = [quote for one in said for quote in quotes_in(one) if quoted_in(quote, sources)]
    quotes = [(quote, word) for quote in exact for word in re.findall(r"(?<![\w'])[a-z]{4,}(?![\w'])", quote)]
    if quotes:
        quote, word = rng.choice(quotes)
        yield "quote", answer.replace(quote, quote.replace(word, rng.choice(_WORDS), 1))


def _moved(answer: str, cited: Citation, first: int) -> str:
    numbers = {str(cited.first): str(first), str(cited.last): str(first + cited.last - cited.first)}
    text = re.sub(r"\d+", lambda match: numbers.get(match[0], match[0]), cited.text)
    return answer[: cited.at] + text + answer[cited.at + len(cited.text) :]


def measure(data: Path, repositories: Path, seed: int) -> tuple[dict[str, int], dict[str, dict[str, int]], list[str]]:
    """Count answers and those accused, planted errors and those caught by kind; and what was said of true answers."""
    rng, caught, sown = random.Random(seed), Counter[str](), Counter[str]()
    answers = accused = 0
    shown: list[str] = []
    for name, (folder, commit) in COMMITS.items():
        with tempfile.TemporaryDirectory() as place:
            ground = Ground(check_out(repositories / folder, commit, Path(place)))
            for line in (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                found = concerns(ground, row["question"], row["answer"])
                answers += 1
                accused += bool(found)
                shown += [f"{name}: {one}" for one in found]
                for kind, text in () if found else planted(ground, row["question"], row["answer"], rng):
                    sown[kind] += 1
                    caught[kind] += any(one.check == _CHECK[kind] for one in concerns(ground, row["question"], text))
    return {"answers": answers, "accused": accused}, {kind: {"planted": sown[kind], "caught": caught[kind]} for kind in _CHECK}, shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the shares with 95 % intervals and write them to `answers.json`. Returns 1 where too many true answers are accused."""
    parser = argparse.ArgumentParser(prog="python -m bench answers", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with NAME.jsonl")
    parser.add_argument("repositories", type=Path, help="folder with git repositories called owner+name")
    parser.add_argument("--out", type=Path, default=Path("out/answers"), help="folder for answers.json (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the planted errors")
    asked = parser.parse_args(arguments)
    try:
        true, errors, shown = measure(asked.data, asked.repositories, asked.seed)
    except (OSError, LookupError) as error:
        parser.error(str(error))
    low, high = wilson(true["accused"], true["answers"])
    print(f"true answers with a concern: {true['accused']} of {true['answers']} ({low:.1%} to {high:.1%})", *shown, sep="\n  ")
    for kind, counts in errors.items():
        low, high = wilson(counts["caught"], counts["planted"])
        print(f"planted, {kind}: {counts['caught']} of {counts['planted']} caught ({low:.0%} to {high:.0%})")
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "answers.json").write_text(json.dumps({"true": true, "planted": errors}, indent=1) + "\n", encoding="utf-8")
    return int(true["accused"] > MOST_ACCUSED * true["answers"])


if __name__ == "__main__":
    sys.exit(main())
