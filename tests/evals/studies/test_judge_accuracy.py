"""The accuracy of a judge of claims. All judges here are scripts, and the results say so."""

import asyncio
import json
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.evals.studies.judge_accuracy import (
    LabelledClaim,
    judge_accuracy,
    read_labelled,
    sample_claims,
)
from kestrel_lab.testing import ScriptedModel

CLAIMS = [
    LabelledClaim(claim=f"{word} {number}", evidence=("x",), supported=word == "true", set="a")
    for word in ("true", "false")
    for number in range(10)
]


def test_rates_have_intervals() -> None:
    """Sensitivity is of unsupported claims, specificity of supported ones."""
    verdicts = {"true": lambda n: n != 9, "false": lambda n: n >= 8}

    def play(request: ModelRequest) -> str:
        word, number = request.messages[0].text.partition("<claim>")[2].split()[:2]
        return json.dumps(
            {"verdict": "entailed" if verdicts[word](int(number)) else "contradicted", "confidence": 0.5}
        )

    told = asyncio.run(judge_accuracy(ScriptedModel(play), CLAIMS))
    (one,) = told.sets.values()
    assert (one.found, one.unsupported, one.passed, one.supported) == (8, 10, 9, 10)
    assert "8 of 10: 80% (49%–94%)" in repr(told)
    assert "(scripted)" in repr(told)
    frame = told.frame
    assert (frame["sensitivity"][0], frame["specificity"][0]) == (0.8, 0.9)


def test_a_judge_that_passes_all_would_be_seen() -> None:
    """The mutant has a specificity of 1 and a sensitivity of 0; one that says nothing raises, and is counted
    where others speak.
    """
    lazy = asyncio.run(judge_accuracy(ScriptedModel(lambda _: '{"verdict": "entailed"}'), CLAIMS))
    assert (lazy.sets["a"].found, lazy.sets["a"].passed, lazy.sets["a"].balanced) == (0, 10, 0.5)
    with pytest.raises(ModelError, match="no verdict"):
        asyncio.run(judge_accuracy(ScriptedModel(lambda _: "hm"), CLAIMS))
    some = asyncio.run(
        judge_accuracy(
            ScriptedModel(lambda r: "hm" if "true 1" in r.messages[0].text else '{"verdict": "neither"}'),
            CLAIMS,
        )
    )
    assert (some.sets["a"].silent, some.sets["a"].supported) == (1, 9)


def test_files_and_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is read line by line, a wrong line is named; the command prints the table and writes the
    rates.
    """
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "claims.jsonl"
    path.write_text(
        "".join(
            json.dumps({"claim": one.claim, "evidence": ["x"], "supported": one.supported}) + "\n"
            for one in CLAIMS
        )
    )
    assert len(sample_claims(read_labelled(path), 5)) == 5
    (tmp_path / "script.yaml").write_text('rules: [{when: ., turns: [\'{"verdict": "entailed"}\']}]\n')
    with pytest.raises(SystemExit) as end:
        main(["eval", "judge", "claims.jsonl", "--model", "scripted:script.yaml", "--csv", "out.csv"])
    assert end.value.code in (0, None)
    assert "10 of 10: 100%" in capsys.readouterr().out
    assert "specificity_low" in (tmp_path / "out.csv").read_text()
    path.write_text('{"claim": "x"}\n')
    with pytest.raises(UsageError, match="line 1: a labelled claim is"):
        read_labelled(path)
