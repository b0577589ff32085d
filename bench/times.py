"""How often time expressions are read right, wrong, or refused: `python -m bench.times --data FOLDER --out
FOLDER`.

The folder holds `recognizers_simple.jsonl` (text, ref, future, past, kind) and, if there, `chrono.jsonl`
(text, ref, start).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.environments import environment, version
from bench.machine import facts, in_words

Asked = dict[str, Any]
Answer = tuple[str, str] | None
"""A start as ISO text and `day` or `moment`; `None` for a refusal."""
NOTES = (
    "Right: the start that the set gives for the coming or for the last one; a day must be said to be a day.",
    "Refused: no answer. Four of the 199 name days that do not exist, so 195 can be right.",
    "Our rules were written with the even rows in sight (0, 2, 4 …) and with their failures; the odd "
    "rows were only counted.",
    "`told`: month before day is allowed, which the set and the peers take for granted; we refuse it "
    "unless told.",
    "The chrono rows are sentences, compared by day; our rules never saw them. Refusing most is "
    "expected: we read expressions, not sentences.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How one reader did on some rows."""

    rows: str
    reader: str
    right: int
    wrong: int
    refused: int
    ms: float | None
    """Milliseconds an expression, by the clock."""


def ours(**settled: Any) -> Callable[[Sequence[Asked]], list[Answer]]:
    """Our reader, with what the asker has settled."""
    from kestrel_lab.core.errors import UsageError
    from kestrel_lab.tools.timeparse.parse import parse_relative

    def read(rows: Sequence[Asked]) -> list[Answer]:
        answers: list[Answer] = []
        for row in rows:
            try:
                found = parse_relative(
                    row["text"], datetime.fromisoformat(row["ref"]).replace(tzinfo=UTC), **settled
                )
            except UsageError:
                answers.append(None)
                continue
            kind = "moment" if found.instant else "day" if found.precision == "day" else "period"
            answers.append((found.start.strftime("%Y-%m-%d %H:%M:%S"), kind))
        return answers

    return read


def dateparser_alone(**settings: Any) -> Callable[[Sequence[Asked]], list[Answer]]:
    """The library by itself; it does not tell days from moments, so it is not asked to."""
    import dateparser

    def read(rows: Sequence[Asked]) -> list[Answer]:
        answers: list[Answer] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for row in rows:
                asked = {"RELATIVE_BASE": datetime.fromisoformat(row["ref"]), **settings}
                found = dateparser.parse(row["text"], languages=["en"], settings=asked)
                answers.append(None if found is None else (found.strftime("%Y-%m-%d %H:%M:%S"), "either"))
        return answers

    return read


def right(row: Asked, answer: tuple[str, str]) -> bool:
    """Whether an answer is one that the set gives."""
    start, kind = answer
    if row["kind"] == "date":
        return start[:10] in (row["future"], row["past"]) and kind in {"day", "either"}
    if row["kind"] == "dateTime":
        return start in (row["future"], row["past"]) and kind in {"moment", "either"}
    return start[:10] == row["start"][:10]


def score(
    rows: Sequence[Asked], answers: Sequence[Answer], name: str, reader: str, ms: float | None
) -> Score:
    """Count."""
    found = Counter(
        "refused" if a is None else "right" if right(row, a) else "wrong"
        for row, a in zip(rows, answers, strict=True)
    )
    return Score(
        rows=name, reader=reader, right=found["right"], wrong=found["wrong"], refused=found["refused"], ms=ms
    )


def recognizers(rows: Sequence[Asked]) -> tuple[list[Answer], float | None, str]:
    """recognizers-text in its own environment: answers, milliseconds, or why there are none."""
    place = environment("recognizers-text")
    if place.missing:
        return [], None, place.missing
    program = Path(__file__).with_name("peers") / "recognizers_times.py"
    done = subprocess.run(
        [str(place.python), "-W", "ignore", str(program)],
        input=json.dumps(list(rows)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "MEASURED " not in done.stdout:
        return [], None, (done.stderr.strip().splitlines() or ["it told nothing"])[-1]
    reported = json.loads(done.stdout.partition("MEASURED ")[2])
    return (
        [None if value is None else (_padded(value), "either") for value in reported["answers"]],
        reported["ms"],
        "",
    )


def _padded(value: str) -> str:
    return value if len(value) > 10 else f"{value} 00:00:00"


def read_rows(path: Path) -> list[Asked]:
    """The rows of a file, without those whose reference is no ISO time."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    kept = []
    for row in rows:
        try:
            datetime.fromisoformat(row["ref"])
        except ValueError:
            continue
        kept.append({"kind": "sentence", **row})
    return kept


def measure(folder: Path, *, peers: bool) -> list[Score]:
    """Every reader on every set."""
    rows = read_rows(folder / "recognizers_simple.jsonl")
    sets = {"all 199": slice(None), "even rows": slice(0, None, 2), "odd rows": slice(1, None, 2)}
    sets = {name.replace("199", str(len(rows))): part for name, part in sets.items()}
    readers = {
        "kestrel_lab": ours(),
        "kestrel_lab, told": ours(order="MDY"),
        "dateparser": dateparser_alone(),
        "dateparser, preferring the future": dateparser_alone(PREFER_DATES_FROM="future"),
    }
    scores = []
    for reader, read in readers.items():
        read(rows[:3])  # what is loaded on use is loaded now
        began = time.perf_counter()
        answers = read(rows)
        ms = (time.perf_counter() - began) * 1000 / len(rows)
        scores += [score(rows[part], answers[part], name, reader, ms) for name, part in sets.items()]
    if peers:
        answers, ms, missing = recognizers(rows)
        if missing:
            print(f"recognizers-text is left out: {missing}")
        else:
            label = f"recognizers-text {version('recognizers-text')}, whole text"
            scores += [score(rows[part], answers[part], name, label, ms) for name, part in sets.items()]
    if (other := folder / "chrono.jsonl").is_file():
        rows = [row for row in read_rows(other) if row.get("start")]
        for reader in ("kestrel_lab", "dateparser"):
            scores.append(score(rows, readers[reader](rows), f"chrono, {len(rows)}", reader, None))
    return scores


def markdown(scores: Sequence[Score], line: str) -> str:
    """The results as a table."""
    rows = [
        [s.rows, s.reader, str(s.right), str(s.wrong), str(s.refused), "" if s.ms is None else f"{s.ms:.1f}"]
        for s in scores
    ]
    heads = ["rows", "reader", "right", "wrong", "refused", "ms each"]
    table = "\n".join(
        f"| {' | '.join(cells)} |"
        for cells in [heads, ["---"] * len(heads), *sorted(rows, key=lambda row: row[0])]
    )
    return f"# Time expressions\n\n{line}\n\n{table}\n\n" + "\n".join(f"- {note}" for note in NOTES) + "\n"


def main() -> None:
    """Measure, print and write `times.json` and `times.md`."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.times", description="Read time expressions and count what is right."
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with recognizers_simple.jsonl and perhaps chrono.jsonl",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench"), help="folder for the results (default: %(default)s)"
    )
    parser.add_argument(
        "--no-peers", action="store_true", help="install nothing; dateparser is measured all the same"
    )
    asked = parser.parse_args()
    if not (asked.data / "recognizers_simple.jsonl").is_file():
        parser.error(f"{asked.data} has no recognizers_simple.jsonl")
    scores = measure(asked.data, peers=not asked.no_peers)
    machine = facts()
    asked.out.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "scores": [asdict(one) for one in scores]}
    (asked.out / "times.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    text = markdown(scores, in_words(machine))
    (asked.out / "times.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
