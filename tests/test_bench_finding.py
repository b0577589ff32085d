"""`make bench` says of every bound whether it is met, missed, or why it was not measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench import finding
from bench.finding import Bench, Bound
from bench.numbers import Verdict
from bench.report import as_json, markdown

MACHINE: dict[str, str | int] = {
    name: "?" for name in ("cores", "processor", "system", "Python", "kestrel_lab", "litellm", "apsw", "date")
}


def bench(told: object, code: int = 0, folder: str = "") -> Bench:
    """A bench that writes `told`, or breaks where that is an error."""

    def main(arguments: Sequence[str]) -> int:
        if isinstance(told, BaseException):
            raise told
        Path(arguments[0], "told.json").write_text(json.dumps(told), encoding="utf-8")
        return code

    high = Bound(meaning="high", value=lambda found: found["high"], at_least=0.8)
    low = Bound(meaning="low", value=lambda found: found["low"], at_most=2, digits=0, needs="claims")
    return Bench(
        main=main,
        arguments=lambda data, mirrors, out: [str(out)],
        reported="told.json",
        bounds=(high, low),
        folder=folder,
        better="better",
    )


def verdicts(
    one: Bench, out: Path, monkeypatch: pytest.MonkeyPatch, data: Path | None
) -> list[tuple[str, str, bool | None]]:
    """What is said of its bounds."""
    monkeypatch.setitem(finding.BENCHES, "b", one)
    return [
        (found.meaning, found.measured, found.met)
        for found in finding.run(["b"], data, None, out, lambda _: None)
    ]


def test_bounds_are_met_or_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number within its bound meets it, another misses it, and the exit code says whether ours is
    better.
    """
    (tmp_path / "claims").mkdir()
    assert verdicts(bench({"high": 0.79, "low": 2}, code=1), tmp_path, monkeypatch, tmp_path) == [
        ("better", "no", False),
        ("high", "0.790", False),
        ("low", "2", True),
    ]


def test_what_is_not_measured_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing data, a number that is not told and a bench that breaks are neither met nor missed; an old
    result is not taken for a new one.
    """
    (tmp_path / "told.json").write_text('{"high": 1, "low": 0}', encoding="utf-8")
    skipped = "skipped: DATA= was not given (a folder with claims/)"
    assert verdicts(bench({"high": 0.8}), tmp_path, monkeypatch, None)[1:] == [
        ("high", "0.800", True),
        ("low", skipped, None),
    ]
    assert {found[1:] for found in verdicts(bench({}, folder="claims"), tmp_path, monkeypatch, None)} == {
        (skipped, None)
    }
    assert verdicts(bench({}), tmp_path, monkeypatch, tmp_path)[1:] == [
        ("high", "the bench did not tell it (KeyError: 'high')", None),
        ("low", f"skipped: there is no claims/ in {tmp_path}", None),
    ]
    (tmp_path / "told.json").write_text('{"high": 1, "low": 0}', encoding="utf-8")
    for error in (SystemExit("there is no x.jsonl"), ValueError("bad")):
        found = verdicts(bench(error), tmp_path, monkeypatch, None)
        assert {(text, met) for _, text, met in found} == {(f"broke: {type(error).__name__}: {error}", None)}


def test_repositories_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs the repositories says so; the rest of its bench is measured."""
    one = bench({"high": 1.0})
    one = replace(one, bounds=(one.bounds[0], replace(one.bounds[0], meaning="files", needs="REPOSITORIES")))
    found = verdicts(one, tmp_path, monkeypatch, tmp_path)
    assert found[1:] == [("high", "1.000", True), ("files", "skipped: REPOSITORIES= was not given", None)]


def test_the_table_has_them_all() -> None:
    """The report ends with these bounds too, also where nothing else was measured."""
    found = [Verdict(benchmark="b", meaning="high", wanted="≥ 0.8", measured="0.790", met=False)]
    assert "| b: high | ≥ 0.8 | 0.790 | missed |" in markdown([], MACHINE, found)
    assert as_json([], MACHINE, found)["finding"][0]["standing"] == "missed"
