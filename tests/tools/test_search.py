"""Finding files and text."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import PATIENCE_S

from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.tools.files.glob import compile_pattern
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext

BOX = native_tools()
PARTS = ["a", "b", "*", "?", "**/", "/", "[ab]", "{a,b}", ".", "**"]


def use(root: Path, name: str, **args: Any) -> Any:
    """Validate and run a native tool."""
    made = BOX.get(name)
    return asyncio.run(made.run(made.validate(args), ToolContext(workspace=Workspace(root))))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A small project, with a secret beside it and links that lead there."""
    (tmp_path / "secret.py").write_text("needle outside\n")
    (tmp_path / ".gitignore").write_text("*\n")
    root = tmp_path / "root"
    for path, text in {
        "src/a.py": "import os\nneedle = 1\n",
        "src/deep/b.py": "x\nNEEDLE(2)\n",
        "docs/c.md": "needle needle\n",
        "ignored/d.py": "needle\n",
        ".git/e.py": "needle\n",
        ".github/f.yml": "needle\n",
        ".gitignore": "ignored/\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "out").symlink_to(tmp_path)
    (root / "out.py").symlink_to(tmp_path / "secret.py")
    return root


def test_grep_returns_lines_with_their_place(place: Path) -> None:
    """Sorted, hidden files in, ignored and linked ones out; nothing outside has a say."""
    assert (
        use(place, "grep", pattern="needle")
        == ".github/f.yml:1: needle\ndocs/c.md:1: needle needle\nsrc/a.py:2: needle = 1"
    )
    assert (
        use(place, "grep", pattern="needle", path="src", ignore_case=True)
        == "src/a.py:2: needle = 1\nsrc/deep/b.py:2: NEEDLE(2)"
    )
    assert use(place, "grep", pattern="needle", files="*.md") == "docs/c.md:1: needle needle"
    assert use(place, "grep", pattern="E(2)", literal=True) == "src/deep/b.py:2: NEEDLE(2)"
    assert use(place, "grep", pattern="needle", path="src/a.py") == "src/a.py:2: needle = 1"
    assert use(place, "grep", pattern="-nothing") == "[nothing matches -nothing]"


@pytest.mark.parametrize("path", ["..", "out", "out.py", "/", "out/secret.py"])
def test_grep_cannot_be_led_out(place: Path, path: str) -> None:
    """Dots and symlinks are refused as everywhere."""
    with pytest.raises(PermissionError):
        use(place, "grep", pattern="needle", path=path)


def test_grep_says_when_there_is_more_and_when_the_pattern_is_wrong(place: Path) -> None:
    """A limit and ripgrep's own complaint are passed on."""
    (place / "many").write_text("needle\n" * 500)
    assert use(place, "grep", pattern="needle", path="many", max_results=2) == (
        "many:1: needle\nmany:2: needle\n[stopped after 2 lines: use a narrower pattern or path]"
    )
    assert use(place, "grep", pattern="needle", path="many", max_results=500).count("\n") == 499
    with pytest.raises(ValueError, match=r"unclosed group[\s\S]*set literal"):
        use(place, "grep", pattern="(")
    with pytest.raises(ValueError, match="max_results must be from 1 to 1000"):
        use(place, "grep", pattern="x", max_results=0)


def test_grep_shortens_long_lines_around_the_match_and_reads_any_encoding(place: Path) -> None:
    """A line of a minified file does not fill the answer; bytes that are no UTF-8 are no obstacle."""
    (place / "min.js").write_text("a" * 100_000 + "needle" + "b" * 100_000)
    found = use(place, "grep", pattern="needle", path="min.js")
    assert len(found) < 330
    assert "needle" in found
    (place / "latin").write_bytes(b"needle caf\xe9\n")
    assert use(place, "grep", pattern="caf", files="latin") == "latin:1: needle caf\ufffd"


def test_grep_without_ripgrep_says_how_to_get_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is about the machine, not the pattern."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FileNotFoundError, match="pip install ripgrep"):
        use(place, "grep", pattern="x")


def test_glob_finds_files_by_name(place: Path) -> None:
    """Relative to the workspace whatever directory is searched; links are not followed."""
    assert use(place, "glob", pattern="*.py") == "ignored/d.py\nsrc/a.py\nsrc/deep/b.py"
    assert use(place, "glob", pattern="*.py", path="src/deep") == "src/deep/b.py"
    assert use(place, "glob", pattern="{src,docs}/*.{py,md}") == "docs/c.md\nsrc/a.py"
    assert use(place, "glob", pattern="src/**/[ab].p?") == "src/a.py\nsrc/deep/b.py"
    assert use(place, "glob", pattern="*.rs") == "[no file matches *.rs]"


def test_glob_is_bounded(tmp_path: Path) -> None:
    """More paths than a model can use are counted, and a pattern that stands for thousands is refused."""
    for number in range(205):
        (tmp_path / f"{number:03}").touch()
    assert use(tmp_path, "glob", pattern="*").splitlines()[-2:] == [
        "199",
        "[5 more: use a narrower pattern or path]",
    ]
    with pytest.raises(ValueError, match="more than 256"):
        compile_pattern("{a,b}" * 20)
    with pytest.raises(ValueError, match="cannot be read"):
        compile_pattern("[z-a]")


@settings(max_examples=40, deadline=None)
@given(pattern=st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join))
def test_patterns_mean_what_they_mean_to_ripgrep(
    tmp_path_factory: pytest.TempPathFactory, pattern: str
) -> None:
    """Law: the same files match as with `rg --glob`, for patterns without empty, hidden or negated parts."""
    if pattern.startswith("!") or any(part.startswith(".") or not part for part in pattern.split("/")):
        return
    folder = tmp_path_factory.getbasetemp() / "patterns"
    if not folder.exists():
        for path in ("a", "b", "ab", "a.b", "d/a", "d/b", "d/ab", "d/e/a", "aa/b", "aa/a.a/b"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
    listed = subprocess.run(
        [
            str(shutil.which(os.path.join(os.path.dirname(sys.executable), "rg")) or "rg"),
            "--files",
            "--no-ignore",
            f"--glob={pattern}",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    ).stdout.split()
    ours = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert sorted(path for path in ours if compile_pattern(pattern).fullmatch(path)) == sorted(listed)


def test_many_stars_take_no_longer() -> None:
    """A pattern that would make a naive expression try every split of a name is refused at once."""
    started = time.thread_time()
    assert compile_pattern("*a" * 40 + "*b").fullmatch("a" * 255) is None
    assert compile_pattern("**/" * 40 + "x").fullmatch("a/" * 60 + "y") is None
    assert time.thread_time() - started < 1


def test_tree_shows_the_layout(place: Path) -> None:
    """Indented names, to the depth asked for."""
    assert use(place, "tree", path="src") == "src/\n  a.py\n  deep/\n    b.py"
    assert use(place, "tree", depth=1).splitlines() == [
        "./",
        "  .github/",
        "  .gitignore",
        "  docs/",
        "  ignored/",
        "  out (symlink)",
        "  out.py (symlink)",
        "  src/",
    ]
