"""Make the repository whose two commits `make demo-local` compares: an assistant that searches the handbook, and one that is told all of it.

python evals/demo_repository.py FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = """\
name: assistant
concurrency: 1
cassette: {{mode: replay, folder: {cassettes}}}
configs:
  - {{name: assistant, model: local, temperature: 0, seed: 1, plan: answer.yaml, tools: [search_code, batch_read]}}
defaults:
  workspace: {{folder: handbook}}
  limits: {{cycles: 2, seconds: 120}}
scenarios_from: [questions.yaml]
"""


def main() -> None:
    """Write the repository to the folder that the command line names, in place of what was there."""
    place = Path(sys.argv[1])
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ROOT / "datasets" / "handbook", place / "handbook")
    shutil.copy(ROOT / "scenarios" / "handbook" / "questions.yaml", place / "questions.yaml")
    (place / "suite.yaml").write_text(
        SUITE.format(cassettes=ROOT / "evals" / "cassettes" / "demo"), encoding="utf-8"
    )
    (place / ".gitignore").write_text(".kestrel/\n", encoding="utf-8")
    git(place, "init", "--quiet", "--initial-branch", "main")
    commits = {
        "search": "The assistant searches the handbook",
        "memory": "Simplify the assistant: one step is enough",
    }
    for workflow, message in commits.items():
        shutil.copy(ROOT / "scenarios" / "handbook" / f"{workflow}.yaml", place / "answer.yaml")
        git(place, "add", "--all")
        git(place, "commit", "--quiet", "--message", message)
        git(place, "tag", workflow)


def git(place: Path, *words: str) -> None:
    """Run git as somebody who need not have a name here."""
    who = [
        "-c",
        "user.name=demo",
        "-c",
        "user.email=demo@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "core.hooksPath=/dev/null",
    ]
    subprocess.run(["git", *who, *words], cwd=place, check=True)


if __name__ == "__main__":
    main()
