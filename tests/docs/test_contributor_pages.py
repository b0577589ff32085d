"""The diffs of the pages for contributors apply to the project as it is, and their tests fail without the
rest of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "contribute").glob("*.md"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package and of what its tests are set up with."""
    place = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "kestrel_lab", place / "kestrel_lab", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "tests").mkdir()
    for name in ("conftest", "folders", "outcomes", "rewriting"):
        shutil.copy(ROOT / "tests" / f"{name}.py", place / "tests")
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_diff_of_a_page_works(page: Path, project: Path) -> None:
    """With the whole diff its test passes; with the test alone it fails."""
    (diff,) = [
        token.content
        for token in MarkdownIt().parse(page.read_text(encoding="utf-8"))
        if token.type == "fence"
    ]
    (test,) = [line.removeprefix("+++ b/") for line in diff.splitlines() if line.startswith("+++ b/tests/")]

    def apply(*options: str) -> None:
        subprocess.run(["git", "apply", "-C1", *options, "-"], input=diff, text=True, cwd=project, check=True)

    def passes() -> bool:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
        done = subprocess.run(
            words,
            cwd=project,
            env=os.environ | {"PYTHONPATH": str(project)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1, 2), (
            done.stdout + done.stderr
        )  # passed, failed, or did not even import
        return done.returncode == 0

    apply("--include=tests/*")
    assert not passes()
    apply("--exclude=tests/*")
    assert passes()
    apply("--reverse")
