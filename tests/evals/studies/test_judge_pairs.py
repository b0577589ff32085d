"""Recorded verdicts on pairs: known judges have known measures, and a line that is no pair is named."""

import json
from pathlib import Path

import pytest

from bench.judges import converted
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.studies.judge_pairs import measure_pairs, read_pairs

_PLACES = [folder / "shared" / "data" / "judges" / "llmbar.jsonl" for folder in Path(__file__).parents]
LLMBAR = next((place for place in _PLACES if place.is_file()), _PLACES[0])


def written(tmp_path: Path, number: int = 40) -> Path:
    """Pairs of which the longer output is better in every second, with judges of known habits."""
    rows = []
    for n in range(number):
        label, longer = 1 + n % 2, 1 + (n // 2) % 2
        texts = {f"output_{m}": "word " * (10 if m == longer else 2) for m in (1, 2)}
        judges = {
            "right": [label, label],
            "first": [1, 2],
            "long": [longer, longer],
            "mute": [None, label],
        }
        rows.append({"id": f"p{n}", "input": "do", **texts, "label": label, "judges": judges})
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_habits_are_found(tmp_path: Path) -> None:
    """A judge that is right, one that takes what it is shown first, one that takes the longer output, and one
    that gives no verdict in one order.
    """
    found = measure_pairs(read_pairs(written(tmp_path)))
    by = {one.judge: one for one in found.judges}
    assert (by["right"].right.mean, by["right"].same_swapped.mean, by["right"].first.mean) == (1, 1, 0)
    assert (by["first"].first.mean, by["first"].same_swapped.mean, by["first"].right.mean) == (0.5, 0, 0.5)
    assert (by["long"].longer.mean, by["long"].right.mean, by["long"].picks_1.mean) == (1, 0.5, 0.5)
    assert (by["mute"].silent, by["mute"].right.mean, by["mute"].same_swapped.n) == (40, 1, 0)
    assert by["right"].right.low > 0.85
    assert "prefers the first" in repr(found)
    assert set(found.frame["judge"]) == set(by)


@pytest.mark.parametrize(
    "line",
    ["{", "3", '{"label": 3, "output_1": "", "output_2": "", "judges": {}}', '{"label": 1}']
    + ['{"label": 1, "output_1": "a", "output_2": "b", "judges": {"x": [1, 3]}}'],
)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: str) -> None:
    """The file and the line, and what a pair is."""
    path = written(tmp_path, 2)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UsageError, match=r"pairs\.jsonl, line 3: a labelled pair is"):
        read_pairs(path)


def test_a_clone_is_converted(tmp_path: Path) -> None:
    """Every dataset with the verdicts of its judges; of a prompt in stages the last one decides."""
    folder = tmp_path / "Dataset" / "LLMBar" / "Natural"
    place = folder / "evaluators" / "GPT-4" / "Swap"
    place.mkdir(parents=True)
    pair = {"input": "i", "output_1": "a", "output_2": "bb", "label": 2}
    (folder / "dataset.json").write_text(json.dumps([pair]))
    stages = [[], {"swap = False": {"winner": "2"}, "swap = True": {"winner": None}}]
    (place / "result.json").write_text(json.dumps([{**pair, "results": stages}]))
    assert [*converted(tmp_path)] == [{"id": "Natural/0", **pair, "judges": {"GPT-4/Swap": [2, None]}}]


@pytest.mark.skipif(not LLMBAR.is_file(), reason="the public pairs are not here: see bench/judges.py")
def test_recorded_judges_of_llmbar_are_as_published() -> None:
    """GPT-4 is right in .76 of 419 pairs without rules and the same in both orders in .91; LLaMA 2 is worse
    than chance.
    """
    pairs = read_pairs(LLMBAR)
    wanted = ("GPT-4/Vanilla_NoRules", "LLaMA2/Vanilla")
    found = measure_pairs([type(pair)(**_only(pair, wanted)) for pair in pairs])
    by = {one.judge: one for one in found.judges}
    assert by[wanted[0]].given.mean == pytest.approx(0.76, abs=0.005)
    assert by[wanted[0]].same_swapped.mean == pytest.approx(0.91, abs=0.005)
    assert by[wanted[1]].right.high < 0.5


def _only(pair, names):
    judges = {name: pair.judges[name] for name in names}
    return {"id": pair.id, "label": pair.label, "longer": pair.longer, "judges": judges}
