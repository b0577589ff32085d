"""The bench of scanners: what it counts as right."""

import json
from pathlib import Path

import pytest

from bench.scanners import main


def test_findings_are_counted_against_what_the_files_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two runs without an answer one failed by its file; files of another kind are left out."""
    for number, done in enumerate((True, False)):
        call = {"function": "look", "args": {"at": "x"}, "id": "c1"}
        messages = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "nothing", "tool_call_id": "c1", "tool_call": call, "error": None},
        ]
        run = {
            "suite_name": "s",
            "pipeline_name": "p",
            "user_task_id": f"u{number}",
            "injection_task_id": None,
            "attack_type": None,
            "messages": messages,
            "utility": done,
            "security": False,
        }
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
    (tmp_path / "other.json").write_text("[]")
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("no_answer"))
    assert row.split()[:5] == ["no_answer", "2", "1", "50.0", "%"]
    assert printed.startswith("2 runs")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "away")])
