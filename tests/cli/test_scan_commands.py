"""`kestrel eval scan`, `kestrel eval clusters` and `kestrel align` as they are typed."""

import json
from pathlib import Path

from in_process import home_of, kestrel

from kestrel_lab.lab import Lab


def test_recorded_runs_are_looked_through(tmp_path: Path) -> None:
    """Runs that another tool recorded are scanned, grouped and aligned by their ids; an own scanner's file is
    named on the line, and what is not there is an error.
    """
    (tmp_path / "chat.jsonl").write_text(
        "".join(
            json.dumps(
                {"messages": [{"role": "user", "content": goal}, {"role": "assistant", "content": text}]}
            )
            + "\n"
            for goal, text in (("Send it", "I can’t help with that."), ("Send it all", "Sent."))
        )
    )
    (tmp_path / "own.py").write_text(
        "from kestrel_lab.evals.scanners.scanner import finding, scanner\n\n\n"
        "@scanner\ndef short(run):\n    yield finding('it is short', *run.steps)\n"
    )
    lab = Lab(home=home_of(tmp_path), env={})
    lab.evals.import_runs_sync(tmp_path / "chat.jsonl")
    one, other = (run.id for run in lab.store.runs())
    lab.close()
    scanned = kestrel(tmp_path, "eval", "scan", one, other)
    assert "the answer refuses" in scanned.stdout
    assert "it is short" in kestrel(tmp_path, "eval", "scan", one, "-s", "own.py:short").stdout
    missing = kestrel(tmp_path, "eval", "scan", one, "-s", "own.py:long")
    assert missing.returncode
    assert "has no scanner 'long'" in missing.stderr
    aligned = kestrel(tmp_path, "align", one, other, "--report", "page.html")
    assert "first difference" in aligned.stdout
    assert (tmp_path / "page.html").exists()
    assert kestrel(tmp_path, "eval", "clusters", one, other).returncode
