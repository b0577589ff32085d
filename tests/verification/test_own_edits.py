"""What a run edited itself has not "changed since"."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel


@pytest.mark.parametrize(("later", "status"), [("", "current"), ("x = 3\n", "stale")])
def test_an_own_edit_is_no_change_since(tmp_path: Path, later: str, status: str) -> None:
    """A fix reads a file, edits it and cites it: the cited lines are those that it left. What somebody else
    changed after that has changed since.
    """
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.py").write_text("x = 1\n", encoding="utf-8")
    model = ScriptedModel(
        [
            [("read_file", {"path": "a.py"})],
            [("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = 2"})],
            "It sets x. [a.py:1]",
        ]
    )
    lab = Lab(tmp_path / "home", env={})
    run = asyncio.run(lab.run("Fix a.py.", model=model, workspace=work, approve="auto"))
    assert run.report.concerns == []
    if later:
        (work / "a.py").write_text(later, encoding="utf-8")
    [claim] = run.report.evidence
    assert [citation.status for citation in claim.cited] == [status]
    lab.close()
