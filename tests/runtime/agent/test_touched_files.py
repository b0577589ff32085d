"""What a command touched is recorded with its answer, and the review of the run's answer reads it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.events.union import RunFinished, ToolAnswered
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.agent import touched_files
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A project with two files."""
    (tmp_path / "work" / "src").mkdir(parents=True)
    (tmp_path / "work" / "src" / "config.py").write_text("TIMEOUT = 30\n")
    (tmp_path / "work" / "old.py").write_text("x = 1\n")
    return tmp_path / "work"


def carry_out(session: Lab, workspace: Path, command: str, answer: str, **options: str) -> Run:
    """A run of one command."""
    model = ScriptedModel([[("bash", {"command": command})], answer])
    return asyncio.run(
        session.run(
            "set it to 60", model=model, workspace=workspace, approve="auto", containment="off", **options
        )
    )


def touched(run: Run) -> list[str] | None:
    """What its command touched."""
    return next(event.touched for event in run.events() if isinstance(event, ToolAnswered))


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("ls -la", []),
        ("cat src/config.py", []),
        ("sed -i s/30/60/ src/config.py", ["src/config.py"]),
        ("rm old.py && mkdir -p a/b && touch a/b/new.py", ["a", "a/b", "a/b/new.py", "old.py"]),
        ("printf 'TIMEOUT = 60\\n' > src/config.py; exit 3", ["src/config.py"]),
    ],
)
def test_touched_files_are_those_that_changed(
    session: Lab, workspace: Path, command: str, files: list[str]
) -> None:
    """Files that were changed, made or removed, also by a command that fails; none by one that only reads."""
    assert touched(carry_out(session, workspace, command, "Done.")) == files


def test_untrue_claims_are_found_beside_a_command(session: Lab, workspace: Path) -> None:
    """Of a file that no command touched it is said; of one that a script changed unseen it is not."""
    (workspace / "fix.py").write_text(
        "import pathlib; pathlib.Path('src/config.py').write_text('TIMEOUT = 60')"
    )
    for command, count in (("ls", 1), ("python3 --version", 1), ("python3 fix.py", 0)):
        run = carry_out(session, workspace, command, "I updated `src/config.py` to use 60.")
        end = next(event for event in run.events() if isinstance(event, RunFinished))
        assert (len(end.concerns), bool(end.checked)) == (count, True)


def test_nothing_is_compared_where_nobody_looks_or_there_is_too_much(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a review, and in a workspace of very many files, it is not known what was touched."""
    assert touched(carry_out(session, workspace, "touch x", "Done.", verify="off")) is None
    monkeypatch.setattr(touched_files, "MOST_ENTRIES", 2)
    assert touched(carry_out(session, workspace, "touch y", "Done.")) is None
