"""`kestrel eval ablate`, and `kestrel eval compare --arms`: guidance files measured from the command line,
all agents scripted.
"""

import subprocess
from pathlib import Path

import in_process
import pytest
from result_pages import page_index

MODEL = """\
def says(request):
    if not any(message.role == "tool" for message in request.messages):
        return [("read_file", {"path": "AGENTS.md"})]
    return "done" if "test" in request.messages[-1].text else "gave up"
"""
SUITE = """\
name: guided
scenarios:
%s
matrix:
  model: ["scripted:model.py:says"]
  guidance:
    none: none
    now: {files: [AGENTS.md]}
    short: {text: {AGENTS.md: Look twice.}}
"""


def kestrel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `kestrel eval` in `folder`."""
    return in_process.kestrel(folder, "eval", *words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a suite, a scripted agent and its AGENTS.md."""
    scenarios = "\n".join(
        f"  - {{id: t{n}, goal: Task {n}, checks: [answer_equals: done]}}" for n in range(8)
    )
    (tmp_path / "suite.yaml").write_text(SUITE % scenarios)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "AGENTS.md").write_text("# Rules\n\nWrite a test first.\n\nLook twice.\n")
    return tmp_path


def test_configurations_are_compared(folder: Path) -> None:
    """The first configuration is compared with the others, all questions asked together; without names it is
    the suite's first.
    """
    done = kestrel(
        folder, "compare", "suite.yaml", "none", "now", "short", "--arms", "--report", "out/page.html"
    )
    assert done.returncode == 0, done.stderr
    assert "none (scripted) → now (scripted), short (scripted)" in done.stdout
    rates = [line for line in done.stdout.splitlines() if "success_rate" in line]
    assert [("none → now" in line, "improvement" in line) for line in rates] == [(True, True), (False, False)]
    assert (folder / "out" / "page.html").exists()
    assert "none → short" in kestrel(folder, "compare", "suite.yaml", "--arms").stdout


@pytest.mark.parametrize("in_git", [False, True])
def test_stored_trials_are_compared(folder: Path, in_git: bool) -> None:
    """What a run of the whole suite stored counts for some of its configurations; only what is missing is
    run, and each side says how many.
    """
    text = (
        (folder / "suite.yaml")
        .read_text()
        .replace("text: {AGENTS.md: Look twice.}", "text: {prompt.md: Look twice.}")
    )
    (folder / "suite.yaml").write_text(text)
    if in_git:
        (folder / ".gitignore").write_text(".kestrel/\n__pycache__/\n")
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
            subprocess.run([*git, *words], cwd=folder, check=True, capture_output=True)
    assert kestrel(folder, "run", "suite.yaml", "--config", "none").returncode == 0
    assert kestrel(folder, "run", "suite.yaml", "--config", "now", "--config", "short").returncode == 0
    done = kestrel(folder, "compare", "suite.yaml", "none", "now", "--arms")
    assert "none (scripted): 8 trials, 8 of them stored before" in done.stdout
    assert "now (scripted): 8 trials, 8 of them stored before" in done.stdout
    assert ("whatever the code was then" in done.stdout) is not in_git
    done = kestrel(folder, "compare", "suite.yaml", "none", "now", "--arms", "--epochs", "2")
    assert "now (scripted): 16 trials, 8 of them stored before" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none", "--arms"], "two configurations are compared at least, and there is only none"),
        (["none", "nwo", "--arms"], "did you mean 'now'"),
        (["none", "none", "--arms"], "names used twice: none"),
        (["none", "now", "--arms", "-c", "none"], "with --arms the words are the configurations"),
    ],
)
def test_what_cannot_be_compared_is_refused(folder: Path, words: list[str], told: str) -> None:
    """Too few, unknown and equal configurations are mistakes of whoever types them."""
    done = kestrel(folder, "compare", "suite.yaml", *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_paragraphs_are_told_apart(folder: Path) -> None:
    """A table with a verdict for each paragraph, a page, a drawing and a CSV file; the same again without a
    trial that is stored.
    """
    words = ["ablate", "suite.yaml", "-f", "AGENTS.md", "-c", "now", "--budget", "48"]
    done = kestrel(
        folder, *words, "--report", "out/page.html", "--plot", "out/effects.svg", "--csv", "out/parts.csv"
    )
    assert done.returncode == 0, done.stderr
    assert (
        "AGENTS.md, 2 parts: 1 helps, 1 no difference shown (suite guided, now (scripted), 48 trials)"
        in done.stdout
    )
    assert "1 Write a test first." in done.stdout
    assert (folder / "out" / "parts.csv").read_text().startswith("part,heading,text,verdict,effect,low,high")
    assert "<svg" in (folder / "out" / "effects.svg").read_text()
    assert "2 parts: 1 helps" in page_index(folder / "out" / "page.html")["verdict"]
    assert "Stored before: 48 trials." in kestrel(folder, *words, "--resume").stdout
    refused = kestrel(folder, *words[:-1], "3")
    assert (refused.returncode, "3 trials are too few" in refused.stderr) == (2, True)
